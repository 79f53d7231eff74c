"""Which fields are readings of a clock or of the machine's state, and so differ in every run.

Seconds, load, page cache and peak memory say when and beside what a run was made; the rest says
what was computed. A field is a reading if a part of its path has the word `seconds` in its name,
the schemas' own convention, or if it stands in the table below by the kind of its document. The
table is held against reality by a test: records that differ in readings alone make summaries that
differ in readings alone. This module must not read files.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TABLE: Mapping[str, tuple[str, ...]] = {
    "context-block": ("resumed",),
    "context-growth": ("index_bytes",),
    "context-index": ("memory_bytes",),
    "context-memory": ("peak_bytes",),
    "context-run": ("estimate/**", "resumed"),
    "context-summary": (
        "access/**",
        "growth/laws/index_bytes/*",
        "growth/marks/*/index_bytes",
        "growth/put_slope/*",
        "index/sizes/*/bytes_per_entry",
        "index/ten_million/memory_bytes",
        "memory/peak_bytes/*",
        "memory/ratio",
        "pages/resumed",
    ),
    "cost-conditions": ("load_after", "load_before"),
    "cost-summary": (
        "alternatives/*/cold/*",
        "alternatives/*/request/*",
        "alternatives/*/speed_up",
        "conditions/load_before_*",
        "crossover/**",
        "growth/*",
        "lengths/*/arms/*/page_cache/*",
        "lengths/*/cold_reads_are_cold",
        "lengths/*/limit/**",
        "lengths/*/speed_up/**",
    ),
    "cost-timing": ("resident/*",),
    "flywheel-run": ("energy/**", "python"),
    "replay-sample": ("host/**",),
    "replay-target": ("host/**",),
    "flywheel-summary": (
        "energy/**",
        "router/growth/law/*",
        "router/growth/sizes/*/parts/*",
    ),
}
"""Kind of document -> paths; `*` stands for any text without a `/`, `**` for any text."""

INPUTS = "inputs"
"""The kind of an inputs manifest and its parts: seconds there are limits, and no readings."""

_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """One field that differs; `a` and `b` are None where it is absent there.

    `reading` says whether it is one of the machine, so that a difference is of no consequence.
    """

    path: str
    a: Any
    b: Any
    reading: bool


def is_reading(kind: str, path: str) -> bool:
    """Whether a field is a reading.

    Args:
        kind: of the document or record, its field `kind`.
        path: keys and list indices from its top, joined by `/`.
    """
    if kind == INPUTS:
        return False
    if any("seconds" in part.split("_") for part in path.split("/")):
        return True
    return any(pattern.match(path) for pattern in _patterns(kind))


@functools.cache
def _patterns(kind: str) -> tuple[re.Pattern[str], ...]:
    def pattern(text: str) -> str:
        return re.escape(text).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")

    return tuple(re.compile(pattern(text) + r"\Z") for text in TABLE.get(kind, ()))


def differences(a: Any, b: Any, kind: str) -> Iterator[Difference]:
    """Every field in which two JSON values of one kind differ, in the order of their paths."""
    yield from _walk(a, b, kind, "")


def _walk(a: Any, b: Any, kind: str, path: str) -> Iterator[Difference]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            below = f"{path}/{key}" if path else key
            yield from _walk(a.get(key, _ABSENT), b.get(key, _ABSENT), kind, below)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _walk(left, right, kind, f"{path}/{index}" if path else str(index))
    elif a != b or type(a) is not type(b):
        left, right = (None if value is _ABSENT else value for value in (a, b))
        yield Difference(path, left, right, reading=is_reading(kind, path))
