"""Execution profiles: everything that can change a bit of a logit, asked for and in force.

`ProfileSettings` is what a caller asks for. `ExecutionProfile` is what the loaded library reports
to be in force, in a canonical form whose digest stands in every block and record. This module holds
values only; `context` fills them from the engine.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvaudit import digests
from kvaudit.profiles import differences as differences  # of two `to_json`

KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}
"""Cache element types by their ggml numbers."""


@dataclass(frozen=True)
class ProfileSettings:
    """What a caller asks of the engine.

    Attributes:
        name: label of the settings, "split-invariant" or "stock" for the two presets.
        n_ctx: tokens of context asked for; the engine may round up.
        n_batch: most tokens of one decode call; also the physical batch, so that the engine never
            splits a call again.
        n_outputs_max: most rows of logits of one decode call; bounds the engine's logits buffer.
        n_threads: threads for decode and prefill alike.
        flash_attention: pinned on or off, never left to the engine.
        type_k: element type of the K cache, a key of `KV_TYPES`.
        type_v: element type of the V cache, a key of `KV_TYPES`.
        swa_full: keep a full-size cache for layers with a sliding window.
        repack: let the engine repack weights into kernels that change with the number of rows.
        tiled: let the engine use tiled K-quant kernels, which start at 8 rows.
        min_rows: rows of every decode call; fewer tokens are filled up with rows of a scratch
            sequence that is removed after the call.
        n_gpu_layers: layers offloaded to an accelerator.
        rope_freq_base: RoPE base override, 0 for the model's own.
        rope_freq_scale: RoPE scale override, 0 for the model's own.
    """

    name: str = "split-invariant"
    n_ctx: int = 2048
    n_batch: int = 512
    n_outputs_max: int = 64
    n_threads: int = 1
    flash_attention: bool = False
    type_k: str = "f16"
    type_v: str = "f16"
    swa_full: bool = True
    repack: bool = False
    tiled: bool = False
    min_rows: int = 2
    n_gpu_layers: int = 0
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("n_ctx", 1, 1 << 24),
            ("n_batch", 1, 1 << 16),
            ("n_outputs_max", 1, 1 << 16),
            ("n_threads", 1, 512),
            ("min_rows", 1, 64),
            ("n_gpu_layers", 0, 1 << 16),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} must be an integer in {low} … {high}, not {value!r}")
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in KV_TYPES:
                raise ValueError(f"{name} must be one of {sorted(KV_TYPES)}")
        if self.n_outputs_max < self.min_rows:
            raise ValueError("n_outputs_max must be at least min_rows")
        if self.n_batch < self.min_rows:
            raise ValueError("n_batch must be at least min_rows")
        if self.n_ctx < self.min_rows:  # the engine takes no batch longer than that
            raise ValueError("n_ctx must be at least min_rows")

    def with_(self, **changes: Any) -> ProfileSettings:
        """A copy with some fields changed."""
        return replace(self, **changes)

    @property
    def environment(self) -> dict[str, str]:
        """Process-wide variables the engine must be loaded under (read once by the library)."""
        return {"GGML_CPU_TILED_MM": "1" if self.tiled else "0"}

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def smallest_batch(architecture: str) -> int:
    """Fewest rows that every matrix kernel takes (llama.cpp `sgemm.cpp`): 2, on Arm 4."""
    return 4 if architecture in ("aarch64", "arm64") else 2


def split_invariant(**changes: Any) -> ProfileSettings:
    """Settings under which any batch split gives the same bytes (measured: docs/adr/0003)."""
    return ProfileSettings(min_rows=smallest_batch(platform.machine())).with_(**changes)


def stock(**changes: Any) -> ProfileSettings:
    """The engine's default kernels, flash attention off: bits depend on the batch split."""
    return stock_control(ProfileSettings()).with_(**changes)


def stock_control(settings: ProfileSettings) -> ProfileSettings:
    """The same settings with the engine's default kernels, the control of every run."""
    return settings.with_(name="stock", repack=True, tiled=True, min_rows=1)


PRESETS = {"split-invariant": split_invariant, "stock": stock}


@dataclass(frozen=True)
class ExecutionProfile:
    """What is in force, read back from the loaded library.

    Attributes:
        settings: what was asked for.
        engine: versions, and the SHA-256 of every shared library that computes.
        machine: architecture, instruction set features the library reports, devices.
        context: effective n_ctx after padding, batch sizes, threads, flash attention, cache types.
        buffers: buffer types in which weights, cache and scratch were really allocated.
        environment: the engine's variables found set in this process.
    """

    settings: ProfileSettings
    engine: Mapping[str, Any]
    machine: Mapping[str, Any]
    context: Mapping[str, Any]
    buffers: Mapping[str, Any]
    environment: Mapping[str, str]
    _digest: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "_digest", digests.sha256_json(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """The whole profile as a JSON object; its canonical form is what is hashed."""
        return {
            "settings": self.settings.to_json(),
            "engine": dict(self.engine),
            "machine": dict(self.machine),
            "context": dict(self.context),
            "buffers": dict(self.buffers),
            "environment": dict(self.environment),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the profile, hex."""
        return self._digest

    @property
    def engine_digest(self) -> str:
        """Digest of the engine's shared libraries, names bound to contents, hex."""
        return digests.tree_digest(self.engine["libraries"])

    @property
    def is_split_invariant(self) -> bool:
        """Whether, by the rule of docs/adr/0003, any batch split gives the same bytes.

        Kernels must not change with the number of rows: no repacked weights, no tiled kernels, no
        flash attention, no accelerator, and never fewer rows than the smallest matrix kernel takes
        (`smallest_batch`). A buffer type that the engine did not report counts as a wrong one.
        """
        rows = smallest_batch(self.machine["architecture"])
        return (
            not self.context["flash_attention"]
            and not self.settings.tiled
            and self.settings.swa_full
            and bool(self.buffers["weights"])
            and not any("REPACK" in name or "AMX" in name for name in self.buffers["weights"])
            and self.settings.n_gpu_layers == 0
            and self.settings.min_rows >= rows
            and self.environment.get("GGML_CPU_TILED_MM") == "0"
        )
