"""Whether the router's records follow from the deposits and from its scores.

Words are counted again and every decision is taken again; a score itself needs the model. This
module must not know an engine, nor the plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvaudit.flywheel import calibration, routing
from kvaudit.flywheel.known import Known, Row
from kvaudit.flywheel.plan import OWN
from kvaudit.flywheel.records import CALIBRATION, ROUTES
from kvaudit.stagekind import Rows


def routes(known: Known) -> Iterator[str]:
    """What in the routes contradicts the deposits, the scores or the threshold."""
    held, rows = known.entries, known.rows
    threshold = rows[CALIBRATION][0]["threshold"] if rows[CALIBRATION] else None
    for number, row in enumerate(rows[ROUTES], start=1):
        yield from (f"line {number}: {text}" for text in _route(row, held, threshold))


def _route(row: Row, held: list[Row], threshold: float | None) -> Iterator[str]:
    statements = [entry["statement"] for entry in held]
    ranked = [
        [held[index]["name"], points]
        for index, points in routing.shortlist(statements, row["statement"], len(held))
    ]
    exact = routing.exact(statements, row["statement"])
    wanted: tuple[str | None, float | None] = (None, None)
    if exact is not None:
        decision: str = "recall"
        wanted = (held[exact]["name"], None)
        if row["shortlist"] not in ([], ranked[: len(row["shortlist"])]):
            yield "shortlist is not that of the words"
        if row["scores"]:
            yield "was scored, although it repeats a statement"
    else:
        if row["shortlist"] != ranked[: max(1, len(row["shortlist"]))]:
            yield "shortlist is not that of the words"
        if [one["deposit"] for one in row["scores"]] != [name for name, _ in row["shortlist"]]:
            yield "scores are not those of its shortlist"
        if len({one["tokens"] for one in row["scores"]}) > 1:
            yield "its candidates were scored on different tokens"
        found = routing.best({one["deposit"]: one["score"] for one in row["scores"]})
        decision = routing.decide(found, threshold)
        wanted = found or wanted
    if (row["best"], row["score"]) != wanted:
        yield "best and its score are not those of the scores"
    if row["decision"] != decision:
        yield f"decision is {row['decision']}, by score and threshold {decision}"
    if row["right"] != _right(row, held):
        yield f"right is {row['right']}, by its decision it is not"


def _right(row: Row, held: list[Row]) -> bool:
    abstained: bool = row["decision"] == "abstain"
    families = {entry["name"]: entry["family"] for entry in held}
    if row["query_kind"] not in OWN or row["family"] not in families.values():
        return abstained
    return not abstained and bool(families.get(row["best"]) == row["family"])


def calibrated(rows: Rows) -> Iterator[str]:
    """What in the calibration does not follow from its split."""
    if len(rows[CALIBRATION]) != 1:
        yield "holds one line a run"
    split = [row for row in rows[ROUTES] if row["split"] == "calibration"]
    scores = [row["score"] for row in split]
    for row in rows[CALIBRATION]:
        if row["statistic"] != routing.STATISTIC:
            yield f"statistic is not {routing.STATISTIC}"
        if row["n"] != len(split):
            yield f"n is {row['n']}, the split has {len(split)} queries"
        if row["threshold"] != calibration.threshold_of(scores, row["alpha"]):
            yield "threshold is not that of the split's scores"
