"""What is measured, and the form in which every measurement comes back.

One model, the first tokens of one text at several lengths, one size of context, all cores. The
task is everywhere the same: from nothing to the logits of one token behind the span. This module
measures nothing itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgraft.model import ModelPin
from kvgraft.profile import PRESETS, ProfileSettings

N_DECODE = 16
"""Single tokens behind the question over which the decode rate is taken."""
RESTORES_PER_ROUND = 5
"""A restore takes milliseconds, a prefill seconds: so many restores for one cold reading."""
WARM_UP = 64


@dataclass(frozen=True)
class Work:
    """The work every contender does.

    Attributes:
        pin: the model's, with the path of its file as source.
        ids: tokens of the text; longer than the longest span by 1 + N_DECODE.
        lengths: tokens of the spans, ascending.
        repeats: rounds; each has one cold reading.
        n_ctx: tokens of context, a multiple of 256.
        n_threads: threads.
        scratch: folder for blocks and the rivals' files.
        n_gpu_layers: layers offloaded to an accelerator.
    """

    pin: ModelPin
    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    repeats: int
    n_ctx: int
    n_threads: int
    scratch: Path
    n_gpu_layers: int = 0

    def span(self, n_tokens: int) -> list[int]:
        """The span of that length."""
        return list(self.ids[:n_tokens])

    def question(self, n_tokens: int) -> int:
        """The one token behind it."""
        return self.ids[n_tokens]

    def settings(self, preset: str) -> ProfileSettings:
        """Settings of a preset for this work."""
        return PRESETS[preset](
            n_ctx=self.n_ctx, n_threads=self.n_threads, n_gpu_layers=self.n_gpu_layers
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON form; `from_json` reads it back."""
        return {**vars(self), "pin": self.pin.to_json(), "scratch": str(self.scratch)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Work:
        """Build from the JSON form."""
        return cls(
            pin=ModelPin.from_json(value["pin"]),
            ids=tuple(value["ids"]),
            lengths=tuple(value["lengths"]),
            repeats=value["repeats"],
            n_ctx=value["n_ctx"],
            n_threads=value["n_threads"],
            scratch=Path(value["scratch"]),
            n_gpu_layers=value["n_gpu_layers"],
        )


@dataclass(frozen=True)
class Measured:
    """What one contender did at one length.

    Attributes:
        who: name of the contender.
        n_tokens: length of the span.
        seconds: raw timings by what was timed; every contender has "cold" (the span and one token)
            and "restore" (restore and one token), ours with its bytes verified.
        disk_bytes: what lies on disk for the span.
        differences: largest difference of a logit (of a server: of a top log-probability) after the
            restore from a fresh reading in the same two batches, and in one; 0.0 is bytes equal.
        verified: whether a restore noticed one changed byte in what it read.
        extra: what only this contender has.
    """

    who: str
    n_tokens: int
    seconds: dict[str, list[float]]
    disk_bytes: int
    differences: dict[str, float]
    verified: bool
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON form: the fields."""
        return asdict(self)


class Clock:
    """Collects timings by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def note(self, name: str, seconds: float) -> None:
        """Add one timing."""
        self.seconds.setdefault(name, []).append(seconds)

    def time(self, name: str, action: Callable[[], Any]) -> Any:
        """Run an action, add its time, return its result."""
        begin = time.perf_counter()
        result = action()
        self.note(name, time.perf_counter() - begin)
        return result


def context_size(lengths: Sequence[int]) -> int:
    """Tokens of context for the longest span, the question and the decode rate."""
    needed = max(lengths) + 1 + N_DECODE + 64
    return -(-needed // 256) * 256


def largest_difference(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Largest absolute difference; 0.0 only if the bytes are equal."""
    if a.tobytes() == b.tobytes():
        return 0.0
    return max(float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)))), 5e-324)


def flip_byte(source: Path, target: Path, offset: int) -> None:
    """Copy a file with the lowest bit of one byte changed; a negative offset counts from the end.

    `target` may be `source`.
    """
    data = bytearray(source.read_bytes())
    data[offset] ^= 1
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.write_bytes(data)


def all_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
