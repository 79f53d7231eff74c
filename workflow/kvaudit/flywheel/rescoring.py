"""Runs every recorded program again, isolated, and compares how it ends.

A program that ran out of time in its own run may end otherwise on another machine, but not at once;
nobody counts it as right. One that ends in different ways on this machine (it prints an address or
a random number) shows nothing, unless it was counted as right. Where no program can be isolated,
nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvaudit import digests
from kvaudit.errors import SandboxUnavailable
from kvaudit.flywheel.records import DEPOSITS, GENERATIONS, PROGRAMS, STOPPED
from kvaudit.sandbox import Limits, Ran, Sandbox
from kvaudit.stagekind import Problem, Rerun, Rows

PATIENT = Limits(wall_seconds=60.0, cpu_seconds=60)
"""For a program that had ended by itself: a slow or busy machine is no contradiction."""

Row = Mapping[str, Any]
How = tuple[str, int | None, str]


def rerun(rows: Rows) -> Rerun:
    """Runs the programs of one stage again, side by side.

    Args:
        rows: all records of the stage.
    """
    listed: Sequence[Row] = rows[PROGRAMS]
    if not listed:
        return Rerun(0)
    try:
        with Sandbox() as sandbox:
            ran = sandbox.run_all([row["program"] for row in listed])
        again = [n for n, (row, one) in enumerate(zip(listed, ran, strict=True)) if _odd(row, one)]
        second: dict[int, list[Ran]] = {}
        if again:
            with Sandbox(PATIENT) as sandbox:
                for _ in range(2):
                    found = sandbox.run_all([listed[n]["program"] for n in again])
                    for n, one in zip(again, found, strict=True):
                        second.setdefault(n, []).append(one)
    except SandboxUnavailable as error:
        return Rerun(0, reason=str(error))
    right = _counted_right(rows)
    problems: list[Problem] = []
    failed = 0
    for n, (row, one) in enumerate(zip(listed, ran, strict=True)):
        runs = second.get(n, [one])
        if any(run.ending == "sandbox failure" for run in runs):
            failed += 1
            continue
        for text in _differences(row, runs, row["sha256"] in right):
            problems.append(Problem(PROGRAMS, f"line {n + 1}: {text}"))
    reason = f"{failed} programs could not be isolated" if failed else None
    return Rerun(len(listed) - failed, tuple(problems), reason)


def _odd(row: Row, ran: Ran) -> bool:
    """Whether a program is worth another look: it was not stopped, and ends otherwise here."""
    if ran.ending == "sandbox failure":
        return True
    return row["ending"] not in STOPPED and _how(ran) != _recorded(row)


QUICK_SECONDS = 0.2
"""A program recorded as out of time that ends within this many seconds here was not."""


def _differences(row: Row, runs: Sequence[Ran], right: bool) -> Iterator[str]:
    """What a program's runs here say against its record.

    Args:
        row: the record.
        runs: of this machine; two or more where the first ended otherwise.
        right: whether its answer was counted as right.
    """
    if row["ending"] in STOPPED:
        if right:
            yield f"ended as {row['ending']}, but is counted as right"
        # Memory and output are the same everywhere, time is not.
        elsewhere = runs[0].ending != row["ending"] and runs[0].ending != "timeout"
        quick = row["ending"] != "timeout" or runs[0].seconds < QUICK_SECONDS
        if elsewhere and quick:
            yield f"ended as {row['ending']}, but ends as {runs[0].ending} when it is run again"
        return
    found = [_how(run) for run in runs]
    if found[0] == _recorded(row):
        return
    settled = all(how == found[0] for how in found)
    if settled:
        ending, answer, _ = found[0]
        what = f"ends as {ending}" if row["ending"] != ending else "prints something else"
        if row["answer"] != answer:
            what += f" with {answer} instead of {row['answer']}"
        yield f"{what} when it is run again"
    elif right and any(how[:2] != (row["ending"], row["answer"]) for how in found):
        yield "is counted as right, but ends in another way each time"


def _recorded(row: Row) -> How:
    return row["ending"], row["answer"], row["output_sha256"]


def _how(ran: Ran) -> How:
    return ran.ending, ran.answer, digests.sha256_bytes(ran.output)


def _counted_right(rows: Rows) -> set[str]:
    """Programs whose answer was counted as right somewhere."""
    found = {r["program_sha256"] for r in rows[GENERATIONS] if r["outcome"] == "answer"}
    for row in rows[DEPOSITS]:
        found.add(row["program_sha256"])
        if row["demonstration"] is not None:
            found.add(row["demonstration"]["program_sha256"])
    return found - {None}
