"""The summary of a flywheel stage: the one function that the stage and the verifier both use.

Statistics only; whether they are good is for `claims`. This module must not read files.
"""

from __future__ import annotations

from typing import Any

from kvaudit.flywheel import blocks, contest, economy, file_tables, routes
from kvaudit.flywheel.figures import Found
from kvaudit.stagekind import Rows


def summarise(subject: str, rows: Rows) -> dict[str, Any]:
    """The summary of one flywheel stage (schema flywheel-summary.v1.json).

    Args:
        subject: the model's name.
        rows: all records of the stage.
    """
    found = Found(subject, rows)
    of_files = file_tables.tables(found)
    return {
        "kind": "flywheel-summary",
        "version": 1,
        "stage": "flywheel",
        "subject": subject,
        "contest": contest.contest(found),
        "recurrence": contest.recurrence(found),
        "routed": blocks.routed(found),
        "transfer": blocks.transfer(found),
        "router": routes.router(found),
        "solved": blocks.solved(found),
        "categories": blocks.categories(found),
        "attempts": contest.attempts(found),
        "economy": economy.economy(found),
        "deposits": economy.deposits(found),
        **({"files": of_files} if of_files else {}),
    }
