"""The summary of a context stage: the one function that the stage and the verifier both use.

Statistics only; whether they are good is for `claims`. This module must not read files.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from kvaudit import estimate, stats
from kvaudit.context import ranking
from kvaudit.context.ranking import UNIT
from kvaudit.context.records import (
    ACCESSES,
    ANSWERS,
    ARMS,
    BLOCKS,
    GROWTH,
    INDEX,
    MEMORY,
    MEMORY_ARMS,
    NEEDLES,
    RUN,
)
from kvaudit.stagekind import Rows

TEN_MILLION = 10_000_000
PARTS = ("get", "restore", "token")

Row = Mapping[str, Any]


def summarise(subject: str, rows: Rows) -> dict[str, Any]:
    """The summary of one context stage (schema context-summary.v1.json).

    Args:
        subject: the model's name.
        rows: all records of the stage.
    """
    return {
        "kind": "context-summary",
        "version": 1,
        "stage": "context",
        "subject": subject,
        "pages": _pages(rows),
        "answers": {arm: _arm(rows, arm) for arm in ARMS},
        "router": _router(rows),
        "access": access(rows[ACCESSES]),
        "memory": memory(rows),
        "growth": growth(rows[GROWTH]),
        "index": _index(rows),
    }


def _pages(rows: Rows) -> dict[str, Any]:
    blocks, n_ctx = rows[BLOCKS], rows[RUN][0]["n_ctx"] if rows[RUN] else 1
    tokens = sum(row["tokens"] for row in blocks)
    return {
        "blocks": len(blocks),
        "tokens": tokens,
        "n_ctx": n_ctx,
        "multiple": stats.rounded(tokens / n_ctx),
        "state_bytes": sum(row["state_bytes"] for row in blocks),
        "disk_bytes": sum(row["file_bytes"] for row in blocks),
        "resumed": sum(row["resumed"] for row in blocks),
        "prefill_seconds": _total(row["prefill_seconds"] for row in blocks),
        "deposit_seconds": _total(row["deposit_seconds"] for row in blocks),
    }


# -- answers ----------------------------------------------------------------------------------


def says(text: str, code: str) -> bool:
    """Whether an answer gives a code: as a number of its own, not within a longer one."""
    at = text.find(code)
    while at >= 0:
        around = text[max(at - 1, 0) : at] + text[at + len(code) : at + len(code) + 1]
        if not any(character.isdigit() for character in around):
            return True
        at = text.find(code, at + 1)
    return False


def _arm(rows: Rows, arm: str) -> dict[str, Any]:
    needles = {row["number"]: row for row in rows[NEEDLES]}
    answers = [row for row in rows[ANSWERS] if row["arm"] == arm and row["needle"] in needles]
    right = sum(
        bool(row["ranking"]) and row["ranking"][0][0] == needles[row["needle"]]["block"]
        for row in answers
    )
    return {
        "n": len(answers),
        "routed_right": None if arm == "absent" else right,
        "code_found": sum(says(row["text"], needles[row["needle"]]["code"]) for row in answers),
        "other_code": sum(
            any(
                says(row["text"], needle["code"])
                for needle in needles.values()
                if needle["number"] != row["needle"]
            )
            for row in answers
        ),
    }


def _router(rows: Rows) -> dict[str, Any]:
    """What could tell a question about an absent thing: the margin, or a word that no block has."""
    known = {word for row in rows[BLOCKS] for word in ranking.words(row["text"])}
    questions = {row["number"]: ranking.sought(row["question"]) for row in rows[NEEDLES]}
    margins: dict[str, list[float]] = defaultdict(list)
    unknown: dict[str, list[int]] = defaultdict(list)
    for row in rows[ANSWERS]:
        margins[row["arm"]].append(_margin(row))
        sought = questions.get(row["needle"], [])
        unknown[row["arm"]].append(sum(word not in known for word in sought))
    return {
        "margin_planted_min": min(margins["routed"], default=None),
        "margin_absent_max": max(margins["absent"], default=None),
        "unknown_words_planted_max": max(unknown["routed"], default=None),
        "unknown_words_absent_min": min(unknown["absent"], default=None),
    }


def _margin(row: Row) -> float:
    scores = [entry[1] for entry in row["ranking"][:2]] + [0, 0]
    return stats.rounded((scores[0] - scores[1]) / UNIT)


# -- access time ------------------------------------------------------------------------------


def block_medians(accesses: Sequence[Row]) -> dict[int, float]:
    """Median seconds of the counted accesses to every block, by block."""
    taken: dict[int, list[float]] = defaultdict(list)
    for row in accesses:
        if row["round"] > 0:
            taken[row["block"]].append(sum(row["seconds"].values()))
    return {block: stats.median(seconds) for block, seconds in sorted(taken.items())}


def access(accesses: Sequence[Row]) -> dict[str, Any]:
    """Access time against depth.

    One point a block: accesses to one block share its bytes and its place on the disk, so that
    they are no independent witnesses of what depth does.
    """
    counted = [row for row in accesses if row["round"] > 0]
    seconds = [sum(row["seconds"].values()) for row in counted]
    medians = block_medians(accesses)
    fit = line(list(medians), list(medians.values()))
    whole = None
    if fit is not None and stats.median(seconds) > 0.0:
        span = (max(medians) - min(medians)) / stats.median(seconds)
        whole = {key: stats.rounded(fit[key] * span) for key in ("slope", "low", "high")}
    return {
        "counted": len(counted),
        "median_seconds": _median(seconds),
        "range_seconds": [_rounded(min(seconds)), _rounded(max(seconds))] if seconds else None,
        "parts": {
            part: _rounded(stats.median([row["seconds"][part] for row in counted]))
            for part in PARTS
        }
        if counted
        else None,
        "per_block": fit,
        "whole_depth_share": whole,
    }


# -- memory -----------------------------------------------------------------------------------


def memory(rows: Rows) -> dict[str, Any]:
    """Peak memory of the two processes, and how far their answers agree."""
    arms = {row["arm"]: row for row in rows[MEMORY]}
    pairs: list[tuple[Row, Row]] = []
    ratio = None
    if all(arm in arms for arm in MEMORY_ARMS):
        pairs = list(zip(arms["store"]["answers"], arms["direct"]["answers"], strict=False))
        ratio = stats.rounded(arms["store"]["peak_bytes"] / arms["direct"]["peak_bytes"])
    return {
        "peak_bytes": {arm: row["peak_bytes"] for arm, row in arms.items()},
        "ratio": ratio,
        "answers": len(pairs),
        "equal_logits": sum(a["logits_sha256"] == b["logits_sha256"] for a, b in pairs),
        "equal_tokens": sum(a["tokens"] == b["tokens"] for a, b in pairs),
    }


# -- growth -----------------------------------------------------------------------------------


def growth(rows: Sequence[Row]) -> dict[str, Any]:
    """What a growing store takes at each doubling, and the power laws through those points."""
    sizes = doublings(len(rows))
    took = list(
        itertools.accumulate(
            sum(row["seconds"][part] for part in ("prefill", "put", "index")) for row in rows
        )
    )
    marks = [
        {
            "blocks": size,
            "seconds": _rounded(took[size - 1]),
            "disk_bytes": rows[size - 1]["disk_bytes"],
            "index_bytes": rows[size - 1]["index_bytes"],
            "route_seconds": _rounded(rows[size - 1]["seconds"]["route"]),
        }
        for size in sizes
    ]
    return {
        "marks": marks,
        "laws": {
            key: law([mark["blocks"] for mark in marks], [mark[key] for mark in marks])
            for key in ("seconds", "disk_bytes", "index_bytes")
        },
        "put_slope": line([row["blocks"] for row in rows], [row["seconds"]["put"] for row in rows]),
    }


def doublings(largest: int) -> list[int]:
    """The largest size and its halves, quarters … down to 2, ascending; four at most."""
    sizes = [largest >> shift for shift in range(4)]
    return sorted({size for size in sizes if size >= 2})


def _index(rows: Rows) -> dict[str, Any]:
    sizes = [
        {
            "entries": row["entries"],
            "bytes_per_entry": stats.rounded(row["memory_bytes"] / row["entries"]),
            "seconds_per_entry": _rounded(row["build_seconds"] / row["entries"]),
            "route_seconds": row["route_seconds"],
            "route_by_name_seconds": row["route_by_name_seconds"],
        }
        for row in rows[INDEX]
    ]
    projected = None
    if rows[INDEX] and rows[BLOCKS] and rows[RUN]:
        largest = max(rows[INDEX], key=lambda row: int(row["entries"]))
        up, blocks = TEN_MILLION / largest["entries"], len(rows[BLOCKS])
        projected = {
            "memory_bytes": stats.rounded(largest["memory_bytes"] * up),
            "build_seconds": _rounded(largest["build_seconds"] * up),
            "route_seconds": _rounded(largest["route_seconds"] * up),
            "disk_bytes": stats.rounded(
                sum(row["file_bytes"] for row in rows[BLOCKS]) / blocks * TEN_MILLION
            ),
            "fsck_seconds": _rounded(rows[RUN][0]["fsck"]["seconds"] / blocks * TEN_MILLION),
        }
    return {"sizes": sizes, "ten_million": projected}


# -- fits -------------------------------------------------------------------------------------


def line(x: Sequence[float], y: Sequence[float]) -> dict[str, float] | None:
    """A straight line with the 95% interval of its slope; None with fewer than three points."""
    if len(set(x)) < 3:
        return None
    fit = estimate.slope(x, y)
    return {key: _rounded(value) for key, value in vars(fit).items()}


def law(x: Sequence[float], y: Sequence[float]) -> dict[str, float] | None:
    """A power law, as a straight line through logarithms; None where it cannot be drawn."""
    if min(y, default=0) <= 0:
        return None
    fit = line([math.log(value) for value in x], [math.log(value) for value in y])
    return fit and {"exponent": fit["slope"], "low": fit["low"], "high": fit["high"]}


def _median(values: Sequence[float]) -> float | None:
    return _rounded(stats.median(values)) if values else None


def _total(values: Any) -> float:
    return _rounded(math.fsum(values))


def _rounded(value: float) -> float:
    return stats.rounded(value)
