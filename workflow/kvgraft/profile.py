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

from kvaudit import digests, profiles
from kvaudit.profiles import differences as differences  # of two `to_json`

NATIVE, PORTABLE = "native", "portable"
KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}
"""Cache element types by their ggml numbers."""
MAX_THREADS = 512
"""Threads that ggml takes (`GGML_MAX_N_THREADS`)."""


@dataclass(frozen=True)
class ProfileSettings:
    """What a caller asks of the engine.

    Attributes:
        name: label of the settings, the key in `PRESETS` for those.
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
        arithmetic: "native", that of the libraries that are loaded, or "portable", which gives the
            same bytes on every processor and which not every build of the engine computes.
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
    arithmetic: str = NATIVE

    def __post_init__(self) -> None:
        for name, low, high in (
            ("n_ctx", 1, 1 << 24),
            ("n_batch", 1, 1 << 16),
            ("n_outputs_max", 1, 1 << 16),
            ("n_threads", 1, MAX_THREADS),
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
        if self.arithmetic not in (NATIVE, PORTABLE):
            raise ValueError(f"arithmetic must be {NATIVE} or {PORTABLE}")
        if self.is_portable:
            for name in ("flash_attention", "repack", "tiled", "n_gpu_layers"):
                if getattr(self, name):
                    raise ValueError(f"{name} is not part of the portable arithmetic")

    @property
    def is_portable(self) -> bool:
        """Whether the bytes asked for are those of every processor."""
        return self.arithmetic == PORTABLE

    @classmethod
    def from_json(cls, value: object) -> ProfileSettings:
        """The settings of a JSON object, which has every field, in its type, and no other.

        A profile of the portable arithmetic names no `n_threads`; they are then 1.

        Raises:
            ValueError: the object is none of settings that this version knows.
        """
        if not isinstance(value, Mapping):
            raise ValueError("no settings are recorded")
        like = ProfileSettings().to_json()
        if value.get("arithmetic") == PORTABLE:
            like = portable().to_json()
            value = {"n_threads": like["n_threads"], **value}
        if odd := sorted(set(value) ^ set(like)):
            raise ValueError(f"fields missing or not known: {', '.join(map(str, odd))}")
        fields: dict[str, Any] = {}
        for name, default in like.items():
            # Canonical JSON writes 0.0 as 0, so that a float may come back as an integer.
            kinds = (int, float) if isinstance(default, float) else (type(default),)
            if type(value[name]) not in kinds:
                raise ValueError(f"{name} is not of type {type(default).__name__}")
            fields[name] = type(default)(value[name])
        return cls(**fields)

    def with_(self, **changes: Any) -> ProfileSettings:
        """A copy with some fields changed."""
        return replace(self, **changes)

    @property
    def environment(self) -> dict[str, str]:
        """Process-wide variables the engine must be loaded under (read once by the library)."""
        if self.is_portable:
            return {"GGML_CPU_DISABLE_FUSION": "1", "GGML_CPU_TILED_MM": "0"}
        return {"GGML_CPU_TILED_MM": "1" if self.tiled else "0"}

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object; `arithmetic` where it is not the native one."""
        fields = asdict(self)
        if not self.is_portable:
            del fields["arithmetic"]
        return fields


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
    """The same settings with the engine's default kernels, the control of every run but a portable.

    Raises:
        ValueError: for portable settings; such a build has no other kernels.
    """
    if settings.is_portable:
        raise ValueError("the portable arithmetic has no stock control")
    return settings.with_(name="stock", repack=True, tiled=True, min_rows=1)


def portable(**changes: Any) -> ProfileSettings:
    """Settings under which every processor, thread count and batch split gives the same bytes."""
    return ProfileSettings(name=PORTABLE, arithmetic=PORTABLE, min_rows=1).with_(**changes)


PRESETS = {"split-invariant": split_invariant, "stock": stock, PORTABLE: portable}


@dataclass(frozen=True)
class ExecutionProfile:
    """What is in force, read back from the loaded library.

    Attributes:
        settings: what was asked for.
        engine: versions, and the SHA-256 of every shared library that computes. Of the portable
            arithmetic its definition, and the digest of what it must give.
        machine: architecture, instruction set features the library reports, devices; nothing of
            the portable arithmetic.
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
        """The whole profile as a JSON object; its canonical form is what is hashed.

        The number of threads belongs to the host, and changes no byte of the portable arithmetic.
        """
        settings, context = self.settings.to_json(), dict(self.context)
        if self.settings.is_portable:
            del settings["n_threads"], context["n_threads"]
        return {
            "settings": settings,
            "engine": dict(self.engine),
            "machine": dict(self.machine),
            "context": context,
            "buffers": dict(self.buffers),
            "environment": dict(self.environment),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the profile, hex."""
        return self._digest

    @property
    def engine_digest(self) -> str:
        """Digest of the engine's shared libraries, names bound to contents, hex.

        Of the portable arithmetic that of its definition.
        """
        return profiles.engine_digest(self.engine)

    @property
    def is_split_invariant(self) -> bool:
        """Whether, by the rule of docs/adr/0003, any batch split gives the same bytes.

        Kernels must not change with the number of rows: no repacked weights, no tiled kernels, no
        flash attention, no accelerator, and never fewer rows than the smallest matrix kernel takes
        (`smallest_batch`; the portable arithmetic has one kernel for any number). A buffer type
        that the engine did not report counts as a wrong one.
        """
        rows = 1 if self.settings.is_portable else smallest_batch(self.machine["architecture"])
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
