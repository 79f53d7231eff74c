"""The summary of a replay stage: the one function that the stage and the verifier both use.

Bytes and function stand apart, target by target. Statistics only; whether they are good is for
`claims`. This module must not read files and must not know raw logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kvaudit import estimate, stats
from kvaudit.estimate import Interval
from kvaudit.replay.plan import TARGETS
from kvaudit.replay.records import CURVES, Arm, Records, Sample, Target

RATIO_LEVEL = 0.90
"""An upper end of a 90% interval is a one-sided bound at 95%."""

Pairs = Sequence[tuple[Target, Sample]]


def summarise(subject: str, records: Records) -> dict[str, Any]:
    """The summary of one replay stage (schema replay-summary.v1.json)."""
    spans = [sample.span_tokens for sample in records.samples]
    return {
        "kind": "replay-summary",
        "version": 1,
        "stage": "replay",
        "subject": subject,
        "samples": len(records.samples),
        "targets": {name: _target(pairs) for name in TARGETS if (pairs := records.on(name))},
        "span_tokens": {"min": min(spans), "median": stats.median(spans), "max": max(spans)}
        if spans
        else None,
    }


def is_usable(row: Target, sample: Sample) -> bool:
    """Whether the block was restored, and all of the question decoded behind it."""
    return (
        row.graft.restored_bytes == sample.state_bytes
        and row.graft.decoded_tokens == sample.query_tokens
    )


def same_logits(arm: Arm, other: Arm) -> bool:
    """Whether two arms have the same logits, byte for byte, at every position."""
    return arm.logits_sha256 == other.logits_sha256


def same_copy(row: Target, sample: Sample) -> bool:
    """Whether the file in the second store has the bytes of the first."""
    return (row.copy_bytes, row.copy_sha256) == (sample.file_bytes, sample.file_sha256)


def same_block(row: Target, sample: Sample) -> bool:
    """Whether the target computes the same state bytes itself."""
    return row.own.state_sha256 == sample.state_sha256


def by_sample(pairs: Pairs, curve: str) -> list[float]:
    """KL of each sample, nats: the mean over its question."""
    return [math.fsum(row.kl[curve]) / len(row.kl[curve]) for row, _ in pairs]


def ratio(pairs: Pairs) -> Interval | None:
    """Mean KL of the graft over that of the target's own reading, both from the origin's.

    None where the target's own readings are the origin's.
    """
    graft, fresh = (
        [max(value, 0.0) for value in by_sample(pairs, name)]
        for name in ("graft_from_origin", "fresh_from_origin")
    )
    if not any(fresh):
        return None
    return estimate.bootstrap_ratio(graft, fresh, "replay/ratio", level=RATIO_LEVEL)


def argmax_differ(pairs: Pairs, arm: str) -> int:
    """Positions at which an arm and the origin have another most likely token."""
    return sum(
        a != b
        for row, sample in pairs
        for a, b in zip(getattr(row, arm).argmax, sample.fresh.argmax, strict=False)
    )


def _target(pairs: Pairs) -> dict[str, Any]:
    positions = sum(sample.query_tokens for _, sample in pairs)
    differ = argmax_differ(pairs, "graft")
    share = stats.wilson(min(differ, positions), positions)
    state = sum(row.own.state_bytes for row, _ in pairs)
    found = ratio(pairs)
    return {
        "samples": len(pairs),
        "usable": sum(is_usable(*pair) for pair in pairs),
        "exact": sum(row.exact for row, _ in pairs),
        "copies_equal": sum(same_copy(*pair) for pair in pairs),
        "blocks_equal": sum(same_block(*pair) for pair in pairs),
        "differing_share": stats.rounded(sum(r.own.differing_bytes for r, _ in pairs) / state),
        "graft_equal": sum(same_logits(row.graft, sample.fresh) for row, sample in pairs),
        "fresh_equal": sum(same_logits(row.fresh, sample.fresh) for row, sample in pairs),
        "positions": positions,
        "argmax_differ": differ,
        "argmax_differ_wilson95": [stats.rounded(share.low), stats.rounded(share.high)],
        "argmax_differ_fresh": argmax_differ(pairs, "fresh"),
        "answers_equal": sum(row.graft.answer == sample.fresh.answer for row, sample in pairs),
        "answers_equal_fresh": sum(
            row.fresh.answer == sample.fresh.answer for row, sample in pairs
        ),
        "kl": {name: _curve(pairs, name) for name in CURVES},
        "ratio": None if found is None else _interval(found),
    }


def _curve(pairs: Pairs, name: str) -> dict[str, Any]:
    values = by_sample(pairs, name)
    return {
        "mean": _interval(estimate.bootstrap_mean(values, f"replay/{name}")),
        "median": _interval(estimate.bootstrap_median(values, f"replay/{name}")),
        "max": stats.rounded(max((v for row, _ in pairs for v in row.kl[name]), key=abs)),
    }


def _interval(found: Interval) -> dict[str, float | None]:
    ends = {"estimate": found.estimate, "low": found.low, "high": found.high}
    return {k: stats.rounded(v) if math.isfinite(v) else None for k, v in ends.items()}
