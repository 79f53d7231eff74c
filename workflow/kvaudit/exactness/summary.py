"""The summary of an exactness stage: the one function that the stage and the verifier both use.

Statistics only; whether they are good is for `claims`. This module must not read files and must
not know raw logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvaudit import stats
from kvaudit.exactness.records import ARMS, CASES, Records, Sample, Split


def summarise(subject: str, records: Records) -> dict[str, Any]:
    """The summary of one exactness stage (schema summary.v1.json).

    Args:
        subject: the model's name.
        records: all records of the stage.

    Returns:
        A JSON object; floats carry 12 significant digits, so that one set of records has one
        summary text on every machine.
    """
    return {
        "kind": "summary",
        "version": 1,
        "stage": "exactness",
        "subject": subject,
        "samples": _samples(records.samples),
        "arms": {
            name: _arm([sample for sample in records.samples if name in sample.arms], name)
            for name in ARMS
            if any(name in sample.arms for sample in records.samples)
        },
        "graft_against_fresh_again": _comparison(records.samples),
        "determinism": {
            case: {
                "n": len(found := [d for d in records.determinism if d.case == case]),
                "equal": sum(
                    (d.first.logits_sha256, d.first.state_sha256)
                    == (d.second.logits_sha256, d.second.state_sha256)
                    for d in found
                ),
            }
            for case in CASES
        },
        "splits": _splits(records.splits),
        "blocks": len(records.blocks),
    }


def sample_kl(sample: Sample, arm: str) -> float:
    """The KL of one sample's arm from fresh, in nats: the one of largest size over its positions.

    The largest, not the mean: nothing is averaged away before the statistics. By size, because
    a rounding error below 0 must not hide behind a 0.
    """
    return max(sample.arms[arm].kl_from_fresh, key=abs)


def argmax_differs(sample: Sample, arm: str) -> bool:
    """Whether the arm and fresh disagree on the most likely token at any compared position."""
    return sample.arms[arm].argmax != sample.arms["fresh"].argmax


def _samples(samples: Sequence[Sample]) -> dict[str, Any]:
    margins = [margin for sample in samples for margin in sample.top5_margin]
    return {
        "n": len(samples),
        "positions": sum(len(sample.positions) for sample in samples),
        "exact": sum(sample.exact for sample in samples),
        "split_invariant": sum(sample.split_invariant for sample in samples),
        "past_window": sum(sample.past_window for sample in samples),
        "raw": sum(sample.raw is not None for sample in samples),
        "span_tokens": _range([sample.span_tokens for sample in samples]),
        "query_tokens": _range([sample.query_tokens for sample in samples]),
        "state_bytes": _range([sample.state_bytes for sample in samples]),
        "top5_margin_min": stats.rounded(min(margins)) if margins else None,
    }


def _arm(samples: Sequence[Sample], name: str) -> dict[str, Any]:
    arms = [sample.arms[name] for sample in samples]
    kl = [sample_kl(sample, name) for sample in samples]
    differ = sum(argmax_differs(sample, name) for sample in samples)
    interval = stats.wilson(differ, len(samples))
    return {
        "samples": len(samples),
        "equal": sum(s.arms[name].logits_sha256 == s.arms["fresh"].logits_sha256 for s in samples),
        "argmax_differ": differ,
        "argmax_differ_wilson95": [stats.rounded(interval.low), stats.rounded(interval.high)],
        "kl": {
            "median": stats.rounded(stats.median(kl)),
            "p99": stats.rounded(stats.percentile(kl, 99.0)),
            "max": stats.rounded(max(kl, key=abs)),
        },
        "processes": len({arm.process for arm in arms}),
        "decoded_tokens": sum(arm.decoded_tokens for arm in arms),
        "restored_bytes": sum(arm.restored_bytes for arm in arms),
        "median_seconds": {
            part: _median_or_none([arm.seconds[part] for arm in arms])
            for part in ("prefill", "restore", "query")
        },
    }


def _comparison(samples: Sequence[Sample]) -> dict[str, float] | None:
    if not samples:
        return None
    graft = [sample_kl(sample, "graft") for sample in samples]
    again = [sample_kl(sample, "fresh_again") for sample in samples]
    test = stats.mann_whitney(graft, again)
    return {
        "u": stats.rounded(test.u),
        "p": stats.rounded(test.p),
        "cliffs_delta": stats.rounded(stats.cliffs_delta(graft, again)),
    }


def _splits(splits: Sequence[Split]) -> dict[str, Any]:
    cases = [split for split in splits if not split.control]
    controls = [split for split in splits if split.control]
    return {
        "n": len(cases),
        "equal": sum(not split.differs for split in cases),
        "grafted": sum(split.grafted for split in cases),
        "past_window": sum(split.past_window for split in cases),
        "controls": len(controls),
        "controls_different": sum(split.differs for split in controls),
        "control_kl_max": stats.rounded(max(s.kl for s in controls)) if controls else None,
    }


def _range(values: Sequence[int]) -> Mapping[str, float] | None:
    if not values:
        return None
    return {"min": min(values), "median": stats.median(values), "max": max(values)}


def _median_or_none(seconds: Sequence[float | None]) -> float | None:
    values = [value for value in seconds if value is not None]
    return stats.rounded(stats.median(values)) if values else None
