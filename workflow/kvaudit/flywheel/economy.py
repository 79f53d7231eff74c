"""What every arm spent, what the deposits are, and after how many recurrences they have paid.

This module must not know a claim, nor whether an answer was worth its tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kvaudit import stats
from kvaudit.flywheel.figures import Found, all_tokens, per_solved, right, tokens, verdict
from kvaudit.flywheel.known import Row
from kvaudit.flywheel.records import ARMS, DEPOSITS, GATED, RUN

VARIANTS = ("deposited", "templated", "solved", "card", "examples")


def economy(found: Found) -> dict[str, Any]:
    """Every arm's tokens and seconds, in all and for one solved problem, and the break-even."""
    return {
        "arms": {arm: _arm(arm, found.arm(arm)) for arm in ARMS},
        "break_even": break_even(found),
    }


def _arm(arm: str, by_problem: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """One arm. A problem is solved if an attempt is right; of a gated arm, if the counted one is.

    In `admission-with` the attempts at a problem belong to different deposits, each of which has
    its own gate.
    """
    if arm in GATED and arm != "admission-with":
        solved = sum(verdict(rows) == "right" for rows in by_problem.values())
    elif arm in GATED:
        solved = sum(any(verdict([row]) == "right" for row in rows) for rows in by_problem.values())
    else:
        solved = sum(any(map(right, rows)) for rows in by_problem.values())
    took = tokens(row for rows in by_problem.values() for row in rows)
    return {
        "problems": len(by_problem),
        "solved": solved,
        **took,
        "per_solved": per_solved(took, solved),
    }


def break_even(found: Found) -> dict[str, Any]:
    """How often a problem must come again before its entry has saved what it took.

    Invested are the deposit's own prefill, the own attempts at its problem that failed, and the
    admission test of the family's deposits with the frozen model's side of it. Saved by a
    recurrence are the own attempts less the recall. Both are totals over the library's entries
    that were recalled, once of decoded tokens alone and once of those read as well; restored
    tokens count in neither.
    """
    names = list(found.recalled)
    families = {found.problems[name]["family"] for name in names}
    attempts = [row for name in names for row in found.own_attempts(name)]
    failed = tokens(row for row in attempts if not right(row))
    admission = tokens(
        row
        for arm in ("admission-alone", "admission-with")
        for problem, rows in found.arm(arm).items()
        if found.problems[problem]["family"] in families
        for row in rows
    )
    tried, back = tokens(attempts), tokens(found.recalled.values())
    prefilled = sum(found.in_library[family]["tokens"] for family in families)
    return {
        "entries": len(names),
        "decoded": _paid(
            0,
            failed["decoded_tokens"],
            admission["decoded_tokens"],
            tried["decoded_tokens"] - back["decoded_tokens"],
            len(names),
        ),
        "all": _paid(
            prefilled,
            all_tokens(failed),
            all_tokens(admission),
            all_tokens(tried) - all_tokens(back),
            len(names),
        ),
    }


def _paid(deposit: int, failed: int, admission: int, saved: int, entries: int) -> dict[str, Any]:
    """The invested parts in all, what one recurrence saves, and how many pay for it.

    `recurrences` is None where a recurrence saves nothing.
    """
    return {
        "deposit_tokens": deposit,
        "failed_tokens": failed,
        "admission_tokens": admission,
        "saved_per_recall": stats.rounded(saved / entries) if entries else None,
        "recurrences": stats.rounded((deposit + failed + admission) / saved) if saved > 0 else None,
    }


def deposits(found: Found) -> dict[str, Any]:
    """Deposits by variant and source, what became of them, and the library's size."""
    rows = found.rows[DEPOSITS]
    sources = Counter(row["source"]["kind"] for row in rows if row["variant"] == "deposited")
    run = found.rows[RUN][0] if found.rows[RUN] else None
    return {
        "variants": {variant: _variant(rows, variant) for variant in VARIANTS},
        "deposited_by_solver": sources["solver"],
        "deposited_supplied": sources["supplied"],
        "library_by_solver": sum(
            row["source"]["kind"] == "solver" for row in found.in_library.values()
        ),
        "library_templated": sum(
            row["variant"] == "templated" for row in found.in_library.values()
        ),
        "library": {
            "entries": run["library"]["entries"] if run else 0,
            "bytes": run["library"]["bytes"] if run else 0,
        },
        "tokens": sum(row["tokens"] for row in found.in_library.values()),
        "file_bytes": sum(row["file_bytes"] for row in found.in_library.values()),
    }


def _variant(rows: Sequence[Row], variant: str) -> dict[str, int]:
    """Deposits of one variant: all, tested for admission, admitted and refused of those, chosen."""
    mine = [row for row in rows if row["variant"] == variant]
    tested = [row for row in mine if row["admission"] is not None]
    admitted = sum(row["admitted"] for row in tested)
    return {
        "n": len(mine),
        "tested": len(tested),
        "admitted": admitted,
        "refused": len(tested) - admitted,
        "chosen": sum(row["chosen"] for row in mine),
    }
