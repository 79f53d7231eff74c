"""Tables of the router: where queries went, what abstaining costs, and what routing takes.

Row F6. A query of a family that the library refused has no entry of its own; it is counted apart
from those that have one and from near misses and foreign ones. This module must not know a claim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvaudit import stats
from kvaudit.context.summary import law
from kvaudit.flywheel import calibration
from kvaudit.flywheel.calibration import Point, Scored
from kvaudit.flywheel.figures import Found, median
from kvaudit.flywheel.known import Row
from kvaudit.flywheel.plan import OWN
from kvaudit.flywheel.records import CALIBRATION, GROWTH, ROUTES

KINDS = (*OWN, "near miss", "foreign")
PARTS = ("rank", "graft", "score")

MAX_POINTS = 41
"""Points of the abstention curve that a summary holds; a plot has them all."""


def router(found: Found) -> dict[str, Any]:
    """F6: the test split by kind of query, false routes with their bound, and the curve."""
    test = [row for row in found.rows[ROUTES] if row["split"] == "test"]
    known = found.rows[CALIBRATION][0] if found.rows[CALIBRATION] else None
    points = curve(found)
    step = max(1, math.ceil((len(points) - 1) / (MAX_POINTS - 1)))
    kept = [*points[:-1:step], *points[-1:]]
    return {
        "threshold": known and known["threshold"],
        "alpha": known and known["alpha"],
        "calibration": known["n"] if known else 0,
        "queries": len(test),
        "not_own": sum(row["query_kind"] not in OWN for row in test),
        "kinds": {
            kind.replace(" ", "_"): _kind([row for row in test if row["query_kind"] == kind], found)
            for kind in KINDS
        },
        "false_route": false_route(test),
        "curve": [_point(point) for point in kept],
        "seconds": {part: median([float(row["seconds"][part]) for row in test]) for part in PARTS},
        "growth": growth(found.rows[GROWTH]),
    }


def _kind(queries: Sequence[Row], found: Found) -> dict[str, int]:
    """Queries of one kind; those without an entry of their own are right only if abstained."""
    with_entry = [row for row in queries if row["family"] in found.in_library]
    without = [row for row in queries if row["family"] not in found.in_library]
    went = [row for row in with_entry if row["decision"] != "abstain"]
    return {
        "n": len(queries),
        "with_entry": len(with_entry),
        "right": sum(row["right"] for row in went),
        "wrong": sum(not row["right"] for row in went),
        "abstained": len(with_entry) - len(went),
        "without_entry": len(without),
        "without_entry_routed": sum(row["decision"] != "abstain" for row in without),
    }


def false_route(queries: Sequence[Row]) -> dict[str, Any] | None:
    """Near misses and foreign queries that were routed, with the Clopper-Pearson 95% interval."""
    decisions = [row["decision"] for row in queries if row["query_kind"] not in OWN]
    if not decisions:
        return None
    routed, n = sum(one != "abstain" for one in decisions), len(decisions)
    bound = stats.clopper_pearson(routed, n)
    return {
        "routed": routed,
        "n": n,
        "rate": stats.rounded(routed / n),
        "low": stats.rounded(bound.low),
        "high": stats.rounded(bound.high),
    }


def curve(found: Found) -> list[Point]:
    """The abstention curve of the test split.

    Left out are exact statements, which need no score, and own queries without an entry. A query
    without any candidate is never routed, whatever the threshold.
    """
    scored: list[Scored] = []
    unscored: list[bool] = []
    for row in found.rows[ROUTES]:
        own = row["query_kind"] in OWN
        if (
            row["split"] != "test"
            or row["query_kind"] == "exact"
            or (own and row["family"] not in found.in_library)
        ):
            continue
        if row["score"] is None:
            unscored.append(not own)
            continue
        deposit = found.deposits.get(row["best"])
        right = own and deposit is not None and deposit["family"] == row["family"]
        scored.append(Scored(float(row["score"]), not own, right))
    if not scored:
        return []
    # Below every score, so that the second point routes all that have a candidate and no other.
    floor = min(one.score for one in scored) - 1.0
    points = calibration.curve([*scored, *(Scored(floor, one, False) for one in unscored)])
    return points[1:] if unscored else points


def _point(point: Point) -> dict[str, float | None]:
    return {
        key: None if value is None else stats.rounded(value)
        for key, value in point._asdict().items()
    }


def growth(rows: Sequence[Row]) -> dict[str, Any]:
    """Median seconds of a query by size of the library, and the power law through them."""
    sizes: dict[int, list[Row]] = {}
    for row in rows:
        sizes.setdefault(row["entries"], []).append(row)
    table = [_size(entries, sizes[entries]) for entries in sorted(sizes)]
    return {
        "sizes": table,
        "law": law([one["entries"] for one in table], [one["seconds"] for one in table]),
    }


def _size(entries: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "entries": entries,
        "queries": len(rows),
        "candidates": median([float(row["candidates"]) for row in rows]),
        "scored_tokens": median([float(row["scored_tokens"]) for row in rows]),
        "parts": {part: median([float(row["seconds"][part]) for row in rows]) for part in PARTS},
        "seconds": median([math.fsum(row["seconds"].values()) for row in rows]),
    }
