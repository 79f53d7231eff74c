"""The summary of the stage cost: the one function that the stage and the verifier both use.

Every comparison is a ratio of two times of one run. Whether the figures are good is for `claims`.
This module must not read files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvaudit import estimate, stats
from kvaudit.cost import plan
from kvaudit.cost.records import (
    VERIFIED,
    WITH_RESET,
    WORK,
    Records,
    Row,
    is_cold,
    page_cache,
    seconds,
    totals,
)

GROWTH_FROM = 256
"""Tokens from which the speed-up is expected to grow: the first length of the table in C1."""


def summarise(subject: str, records: Records) -> dict[str, Any]:
    """The summary of one stage (schema cost-summary.v1.json).

    Args:
        subject: the model's name.
        records: all records of the stage.

    Returns:
        A JSON object; floats carry 12 significant digits.
    """
    return {
        "kind": "cost-summary",
        "version": 1,
        "stage": "cost",
        "subject": subject,
        "conditions": _conditions(records),
        "lengths": [_length(subject, records, n) for n in records.lengths()],
        "growth": _growth(records),
        "crossover": {
            "warm": _crossover_json(crossover(records, "graft")),
            "cold": _crossover_json(crossover(records, "graft_cold")),
        },
        "alternatives": [_alternative(records, row) for row in records.alternatives],
        "memory": memory(records),
    }


# -- what claims read as well -----------------------------------------------------------------


def ratios(records: Records, n_tokens: int, arm: str, parts: Sequence[str] = WORK) -> list[float]:
    """Prefill + token over an arm + token, one value a repeat in which both were measured."""
    cold = {row["repeat"]: seconds(row, parts) for row in records.at(n_tokens, "prefill")}
    return [
        cold[row["repeat"]] / seconds(row, parts)
        for row in records.at(n_tokens, arm)
        if row["repeat"] in cold
    ]


def recompute_ratios(records: Records, n_tokens: int, arm: str) -> list[float]:
    """As `ratios`, over the cheaper of two ways to compute anew: in two calls, or in one."""
    one = {row["repeat"]: seconds(row) for row in records.at(n_tokens, "one_shot")}
    two = {row["repeat"]: seconds(row) for row in records.at(n_tokens, "prefill")}
    return [
        min(two[repeat], one.get(repeat, two[repeat])) / seconds(row)
        for row in records.at(n_tokens, arm)
        if (repeat := row["repeat"]) in two
    ]


def logits_equal(records: Records, n_tokens: int) -> tuple[int, int]:
    """(grafts whose logits have the bytes of every prefill of this length, grafts), by rows."""
    fresh = {d for row in records.at(n_tokens, "prefill") for d in row["logits_sha256"]}
    rows = [row for arm in plan.GRAFTS for row in records.at(n_tokens, arm)]
    equal = sum(len(fresh) == 1 and {*row["logits_sha256"]} == fresh for row in rows)
    return equal, len(rows)


def limit(records: Records, n_tokens: int) -> dict[str, Any] | None:
    """The verified graft over the larger of copying and hashing the same bytes, medians of all
    rounds, warm; None where one of them was not measured.
    """
    raw = {arm: _all(records.at(n_tokens, arm), (arm,)) for arm in ("sha256", "copy")}
    graft = _all(records.at(n_tokens, "graft"), VERIFIED)
    if not graft or not all(raw.values()):
        return None
    by = max(raw, key=lambda arm: stats.median(raw[arm]))
    return {
        "by": by,
        "seconds": stats.rounded(stats.median(raw[by])),
        "graft_seconds": stats.rounded(stats.median(graft)),
        "ratio": stats.rounded(stats.median(graft) / stats.median(raw[by])),
    }


@dataclass(frozen=True)
class Crossover:
    """Where grafting begins to win.

    Attributes:
        relation: `at`, or `below` the shortest length measured, or `above` the longest.
        tokens: where the medians cross, or the length that `relation` speaks of.
        low: where the highest ratio of each length would cross; as `tokens` outside the lengths.
        high: the same of the lowest.
    """

    relation: str
    tokens: float
    low: float
    high: float


def crossover(records: Records, arm: str) -> Crossover | None:
    """The length below which recomputing wins, interpolated between measured lengths with both
    axes logarithmic; None where nothing was measured.
    """
    found = {n: recompute_ratios(records, n, arm) for n in records.lengths()}
    points = {n: values for n, values in found.items() if values}
    if not points:
        return None
    relation, tokens = _crossing([(n, stats.median(values)) for n, values in points.items()])
    _, low = _crossing([(n, max(values)) for n, values in points.items()])
    _, high = _crossing([(n, min(values)) for n, values in points.items()])
    return Crossover(relation, tokens, low, high)


def growth(records: Records) -> estimate.Fit | None:
    """Slope of log speed-up on log tokens, from `GROWTH_FROM` on; None of fewer than 3 lengths."""
    points = [
        (math.log(n), math.log(ratio))
        for n in records.lengths()
        if n >= GROWTH_FROM
        for ratio in ratios(records, n, "graft")
    ]
    if len({x for x, _ in points}) < 3:
        return None
    return estimate.slope([x for x, _ in points], [y for _, y in points])


def memory(records: Records) -> list[dict[str, Any]]:
    """Size of the full and of the small cache by n_ctx."""
    out = []
    sizes = {(row["n_ctx"], row["swa_full"]): row["cache_mib"] for row in records.memory}
    for n_ctx in sorted({n for n, _ in sizes}):
        full, small = sizes.get((n_ctx, True)), sizes.get((n_ctx, False))
        ratio = stats.rounded(full / small) if full and small else None
        out.append({"n_ctx": n_ctx, "full_mib": full, "small_mib": small, "ratio": ratio})
    return out


def survives_restart(row: Row) -> bool:
    """Whether an alternative leaves something on disk that another process can read."""
    return bool(row["disk_bytes"])


def equals_fresh(row: Row) -> bool | None:
    """Whether an alternative's logits have the bytes of a fresh reading in the same two batches."""
    if row["differences"] is not None:
        return bool(row["differences"]["same_split"] == 0)
    if not row["logits_sha256"] or row["fresh_sha256"] is None:
        return None
    return bool(len(row["fresh_sha256"]) == 1 and row["logits_sha256"] == row["fresh_sha256"])


# -- parts ------------------------------------------------------------------------------------


def _conditions(records: Records) -> dict[str, Any]:
    rows = records.conditions
    loads = [row["load_before"] for row in rows if row["load_before"] is not None]
    return {
        "cores": max((row["cores"] for row in rows), default=0),
        "n_ctx_train": max((row["n_ctx_train"] for row in rows), default=0),
        "load_before_first": rows[0]["load_before"] if rows else None,
        "load_before_max": max(loads, default=None),
    }


def _length(subject: str, records: Records, n_tokens: int) -> dict[str, Any]:
    rows = {arm: records.at(n_tokens, arm) for arm in plan.ARMS}
    measured = {arm: found for arm, found in rows.items() if found}
    size = next(iter(measured.values()))[0]
    equal, grafts = logits_equal(records, n_tokens)
    cell = _bytes_per_token(records)
    return {
        "tokens": n_tokens,
        "state_bytes": size["state_bytes"],
        "file_bytes": size["file_bytes"],
        "share_of_full_cache": (
            None if cell is None else stats.rounded(size["state_bytes"] / (cell * n_tokens))
        ),
        "arms": {arm: _arm(found) for arm, found in measured.items()},
        "speed_up": {
            arm: _speed_up(subject, records, n_tokens, arm)
            for arm in plan.GRAFTS
            if ratios(records, n_tokens, arm)
        },
        "grafts": grafts,
        "grafts_equal": equal,
        "cold_reads_are_cold": is_cold(rows["graft_cold"]),
        "limit": limit(records, n_tokens),
    }


def _arm(rows: Sequence[Row]) -> dict[str, Any]:
    parts = plan.PARTS[rows[0]["arm"]]
    states = [page_cache(share) for row in rows for share in row["resident"]]
    return {
        "n": len(rows),
        "seconds": {part: spread(_all(rows, (part,))) for part in parts},
        "page_cache": {state: states.count(state) for state in sorted(set(states))},
    }


def _speed_up(subject: str, records: Records, n_tokens: int, arm: str) -> dict[str, Any]:
    found = ratios(records, n_tokens, arm)
    cold = {row["repeat"]: seconds(row) for row in records.at(n_tokens, "prefill")}
    rows = [row for row in records.at(n_tokens, arm) if row["repeat"] in cold]
    interval = estimate.bootstrap_ratio(
        [cold[row["repeat"]] for row in rows],
        [seconds(row) for row in rows],
        f"{subject}/cost/{n_tokens}/{arm}",
    )
    return {
        **spread(found),
        "of_means": stats.rounded(interval.estimate),
        "interval": [stats.rounded(interval.low), stats.rounded(interval.high)],
        "with_reset": stats.rounded(stats.median(ratios(records, n_tokens, arm, WITH_RESET))),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {
        "median": stats.rounded(stats.median(values)),
        "min": stats.rounded(min(values)),
        "max": stats.rounded(max(values)),
    }


def _all(rows: Sequence[Row], parts: Sequence[str]) -> list[float]:
    return [value for row in rows for value in totals(row, parts)]


def _bytes_per_token(records: Records) -> float | None:
    """Bytes that the full cache holds for one token, from the largest cache that was opened."""
    sizes = [row for row in records.memory if row["swa_full"] and row["cache_mib"]]
    if not sizes:
        return None
    largest = max(sizes, key=lambda row: row["n_ctx"])
    return float(largest["cache_mib"] * 2**20 / largest["n_ctx"])


def _growth(records: Records) -> dict[str, float] | None:
    fit = growth(records)
    if fit is None:
        return None
    return {
        "slope": stats.rounded(fit.slope),
        "low": stats.rounded(fit.low),
        "high": stats.rounded(fit.high),
    }


def _crossing(points: Sequence[tuple[int, float]]) -> tuple[str, float]:
    """(relation, tokens) of the last step from a ratio below 1 to one of 1 or more."""
    below = [index for index, (_, ratio) in enumerate(points) if ratio < 1.0]
    if not below:
        return "below", float(points[0][0])
    if below[-1] == len(points) - 1:
        return "above", float(points[-1][0])
    (n0, r0), (n1, r1) = points[below[-1]], points[below[-1] + 1]
    share = -math.log(r0) / (math.log(r1) - math.log(r0))
    return "at", math.exp(math.log(n0) + share * (math.log(n1) - math.log(n0)))


def _crossover_json(found: Crossover | None) -> Mapping[str, Any] | None:
    if found is None:
        return None
    return {
        "relation": found.relation,
        "tokens": stats.rounded(found.tokens),
        "range": [stats.rounded(found.low), stats.rounded(found.high)],
    }


def _alternative(records: Records, row: Row) -> dict[str, Any]:
    """Its own cold reading is what a file cache is compared with; the engine's own arms have that
    of a new context.
    """
    times = row["seconds"]
    cold, request = times.get("cold"), times.get("request")
    if row["arm"] not in plan.FILES:
        again = (one for one in records.alternatives if one["arm"] == plan.RESTART)
        fresh = next((one for one in again if one["tokens"] == row["tokens"]), None)
        cold = fresh["seconds"].get("request") if fresh else None
    return {
        "arm": row["arm"],
        "tokens": row["tokens"],
        "measured": row["measured"],
        "reused_tokens": row["reused_tokens"],
        "cold": spread(cold) if cold else None,
        "request": spread(request) if request else None,
        "speed_up": (
            stats.rounded(stats.median(cold) / stats.median(request)) if cold and request else None
        ),
        "equals_fresh": equals_fresh(row),
        "disk_bytes": row["disk_bytes"],
        "survives_restart": survives_restart(row),
        "notices_damage": row["notices_damage"],
    }
