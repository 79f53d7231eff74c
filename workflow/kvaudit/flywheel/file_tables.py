"""Tables of the user's problem files: the frozen model alone, the routed block, and many blocks.

Row F9 as it stands for such files. Where there is a library, every problem of the test counts in
both arms behind blocks: one whose words lead to no block was not asked there, and is not solved.
This module must not know a claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvaudit.flywheel import files
from kvaudit.flywheel.answers import is_right
from kvaudit.flywheel.figures import Found, most_frequent, rate, spent
from kvaudit.flywheel.known import Row
from kvaudit.flywheel.records import PROBLEMS


def tables(found: Found) -> list[dict[str, Any]]:
    """One table for each file, in the order of the configuration."""
    return [_table(found, name, held) for name, held in files.by_file(found.rows[PROBLEMS]).items()]


def _table(found: Found, name: str, held: Sequence[Row]) -> dict[str, Any]:
    mine = {row["name"]: row for row in held}
    arms = {
        arm: {n: rows for n, rows in found.arm(f"file-{arm}").items() if n in mine}
        for arm in ("direct", "code", "recall", "routed", "flat")
    }
    rights = {
        arm: {n: found.rights(f"file-{arm}")[n] for n in problems} for arm, problems in arms.items()
    }
    voted = {
        n: is_right(most_frequent(rows), mine[n]["answer"]) for n, rows in arms["direct"].items()
    }
    test = [row for row in held if row["role"] == files.TEST]
    if len(test) < len(held):
        for arm in ("routed", "flat"):
            rights[arm] = {row["name"]: rights[arm].get(row["name"], False) for row in test}
    return {
        "file": name,
        "sha256": held[0]["file_sha256"],
        "library": len(held) - len(test),
        "problems": len(test),
        **{arm: _spent(rights[arm], arms[arm]) for arm in arms},
        "vote": spent(voted.values(), [row for rows in arms["direct"].values() for row in rows]),
        "routed_flat": _paired(found, rights["routed"], rights["flat"], f"{name}/flat"),
        "routed_direct": _paired(found, rights["routed"], rights["direct"], f"{name}/direct"),
        "categories": [
            {
                "category": category,
                **{
                    arm: rate(r for n, r in rights[arm].items() if mine[n]["category"] == category)
                    for arm in ("direct", "routed", "flat")
                },
            }
            for category in dict.fromkeys(row["category"] for row in test)
        ],
    }


def _spent(rights: Mapping[str, bool], arm: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """First attempts alone."""
    return spent(rights.values(), [rows[0] for rows in arm.values()])


def _paired(
    found: Found, first: Mapping[str, bool], second: Mapping[str, bool], name: str
) -> dict[str, Any]:
    """As `Found.paired`; the problems of a file are of no families that could be resampled."""
    return {**found.paired(first, second, f"F9/{name}"), "by_family": None}
