"""The raw records of the stage cost, and the few readings of a row that everyone shares.

Rows stay the JSON objects that their schemas allow. This module must not know which values would
be good ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvaudit import stats
from kvaudit.stagekind import Rows

Row = Mapping[str, Any]

TIMINGS = "records/timings.jsonl"
ALTERNATIVES = "records/alternatives.jsonl"
MEMORY = "records/memory.jsonl"
CONDITIONS = "records/conditions.jsonl"
PROFILES = "records/profiles.jsonl"

KINDS: Mapping[str, str] = {
    TIMINGS: "cost-timing",
    ALTERNATIVES: "cost-alternative",
    MEMORY: "cost-memory",
    CONDITIONS: "cost-conditions",
    PROFILES: "profile",
}
"""Record file, relative to the stage's folder -> kind of its lines."""

COLD_AT_MOST, WARM_AT_LEAST = 0.05, 0.95
"""Resident shares of a file at which it is called cold and warm: a header that the kernel kept, or
a few pages that it took back, decide nothing.
"""


@dataclass(frozen=True)
class Records:
    """All records of one stage, in file order."""

    timings: Sequence[Row]
    alternatives: Sequence[Row]
    memory: Sequence[Row]
    conditions: Sequence[Row]
    profiles: Sequence[Row]

    def at(self, n_tokens: int, arm: str) -> list[Row]:
        """The timings of one arm at one length, by repeat."""
        return [r for r in self.timings if r["tokens"] == n_tokens and r["arm"] == arm]

    def lengths(self) -> list[int]:
        """The measured lengths, ascending."""
        return sorted({row["tokens"] for row in self.timings})


def typed(rows: Rows) -> Records:
    """The records of validated rows."""
    return Records(
        timings=rows[TIMINGS],
        alternatives=rows[ALTERNATIVES],
        memory=rows[MEMORY],
        conditions=rows[CONDITIONS],
        profiles=rows[PROFILES],
    )


def totals(row: Row, parts: Sequence[str]) -> list[float]:
    """Seconds of the named parts together, one value a round; parts the arm lacks count nothing.

    Rounds that one of the parts lacks are left out: that they differ in number is for `expected`.
    """
    held = [row["seconds"][part] for part in parts if part in row["seconds"]]
    return [sum(values) for values in zip(*held, strict=False)]


WORK = ("prefill", "read", "restore", "token")
"""From an empty context to the logits of one token: what prefill and graft are compared by."""
WITH_RESET = ("reset", *WORK)
"""The same with the emptying of the context, which both sides need."""
VERIFIED = ("read", "restore")
"""The verified graft alone."""


def seconds(row: Row, parts: Sequence[str] = WORK) -> float:
    """The median of `totals`."""
    return stats.median(totals(row, parts))


def page_cache(resident: float | None) -> str:
    """How much of a file was in memory: `cold`, `warm`, `partly` or `unknown`."""
    if resident is None:
        return "unknown"
    if resident <= COLD_AT_MOST:
        return "cold"
    return "warm" if resident >= WARM_AT_LEAST else "partly"


def is_cold(rows: Sequence[Row]) -> bool:
    """Whether every round of every row read a file that the kernel had really dropped."""
    states = [page_cache(share) for row in rows for share in row["resident"]]
    return bool(states) and set(states) == {"cold"}
