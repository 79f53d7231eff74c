"""Runs every recorded program again, isolated, and compares how it ends.

What a record shows of a program's output must be the beginning of the bytes whose digest it gives.
Other bytes with the same ending and the same answer are held against a record only where nothing
but the program's text decides what it prints (`repeatable`), and the record names a release of the
minor version that runs here; a day, an address, the order of a set or the words of an error may
have changed. Between releases of one minor version nothing else is excused. Another ending or
answer on another minor version is held against a record unless that is open by what happens here:
the program raises, or something besides its text decides what it prints. Then the record is left
undecided, and the evidence with it. What the record says of itself, its release and its ending,
excuses nothing: whoever forges it writes both. Both releases are named.

A program that ran out of time in its own run may end otherwise on another machine, but not at once;
nobody counts it as right. What is at once is told by the processor's time where the program cannot
wait for anything, since a busy machine does not lengthen that, and by the clock otherwise.

One that ends in different ways on this machine (it prints an address or a random number) shows
nothing, unless it was counted as right. Where no program can be isolated, nothing is said. All
programs of a run share a time; of those that it does not reach nothing is said either.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvaudit import digests
from kvaudit.errors import SandboxUnavailable
from kvaudit.flywheel.records import (
    CALIBRATION,
    DEPOSITS,
    GENERATIONS,
    PROGRAMS,
    ROUTES,
    RUN,
    STOPPED,
    shown,
)
from kvaudit.flywheel.repeatable import is_repeatable
from kvaudit.sandbox import Limits, Ran, Sandbox
from kvaudit.stagekind import Budget, Problem, Rerun, Rows

PATIENT = Limits(wall_seconds=60.0, cpu_seconds=60)
"""For a program that had ended by itself: a slow or busy machine is no contradiction."""

BRIEF = Limits(wall_seconds=1.0, cpu_seconds=1)
"""For a program recorded as out of time: only one that ends at once contradicts that."""

HERE = platform.python_version()
"""The release that runs programs here: the sandbox has this process's interpreter."""

_MINOR = re.compile(r"[0-9]+\.[0-9]+(?=\.[0-9])", re.ASCII)
"""The minor version of a release."""

Row = Mapping[str, Any]
How = tuple[str, int | None, str]
"""Ending, answer, and the digest of all that was printed."""


@dataclass(frozen=True)
class _Look:
    """One run, without its output, of which thousands would not be held.

    Attributes:
        how: how it ended.
        shown_sha256: of what a record shows of its output.
        seconds: that it took by the clock, with the start of the sandbox.
        cpu_seconds: that it took of a processor; None where it was stopped.
    """

    how: How
    shown_sha256: str
    seconds: float
    cpu_seconds: float | None

    @classmethod
    def at(cls, ran: Ran) -> _Look:
        how = (ran.ending, ran.answer, digests.sha256_bytes(ran.output))
        text = digests.sha256_bytes(shown(ran.output).encode("utf-8"))
        return cls(how, text, ran.seconds, ran.cpu_seconds)

    @property
    def ending(self) -> str:
        return self.how[0]


LIBRARY_ARMS = frozenset(
    {"code", "admission-alone", "admission-with", "solved-alone", "solved-with", "solved-card"}
)
"""Arms by whose outcomes a block is deposited and admitted, or is not."""


def named(chosen: Rows, rows: Rows) -> set[str]:
    """Digests of the programs that records rest on.

    They name some. Where they are of blocks, or of the routes to them, they rest besides on all
    that decided which blocks there are: an attempt that was rightly a failure left no deposit.

    Args:
        chosen: the records.
        rows: all records of the stage.
    """
    held = [*chosen[GENERATIONS], *chosen[DEPOSITS]]
    by_library = [*chosen[DEPOSITS], *chosen[ROUTES], *chosen[CALIBRATION]]
    if by_library or any(row["deposits"] for row in chosen[GENERATIONS]):
        held += rows[DEPOSITS]
        held += [row for row in rows[GENERATIONS] if row["arm"] in LIBRARY_ARMS]
    held += [row["demonstration"] for row in held if row.get("demonstration") is not None]
    return {row["program_sha256"] for row in held} - {None}


def rerun(rows: Rows, budget: Budget | None = None, only: Collection[str] | None = None) -> Rerun:
    """Runs the programs of one stage again, side by side.

    Args:
        rows: all records of the stage.
        budget: time that is left for it; None for one of its own.
        only: digests of the programs to run; None for all.
    """
    listed: Sequence[Row] = rows[PROGRAMS]
    chosen = [n for n, row in enumerate(listed) if only is None or row["sha256"] in only]
    if not chosen:
        return Rerun(0)
    budget = budget or Budget()
    try:
        with budget.spending():
            looks = _looks(listed, chosen, budget.left)
    except SandboxUnavailable as error:
        return Rerun(0, reason=str(error))
    right, there = _counted_right(rows), _recorded_on(rows)
    akin = _is_akin(there)
    problems: list[Problem] = []
    undecided: list[Problem] = []
    failed = 0
    for n, runs in looks.items():
        row = listed[n]
        if any(run.ending == "sandbox failure" for run in runs):
            failed += 1
            continue
        where, is_right = f"line {n + 1}", row["sha256"] in right
        problems += [
            Problem(PROGRAMS, f"{where}: {said}") for said in _contradictions(row, runs, is_right)
        ]
        decided = akin or _is_decided_by_text(row, runs)
        for said in _differences(row, runs, is_right, akin):
            if there != HERE:
                said += f" on Python {HERE}; it was recorded on {there}"
            if decided:
                problems.append(Problem(PROGRAMS, f"{where}: {said}"))
            else:
                undecided.append(
                    Problem(PROGRAMS, f"{where}: {said}, and only there is it decided")
                )
    reason = _reason(failed, len(chosen) - len(looks), budget, len(undecided), there)
    return Rerun(len(looks) - failed, tuple(problems), reason, tuple(undecided))


def _reason(
    failed: int, unreached: int, budget: Budget, apart: int = 0, there: str = ""
) -> str | None:
    """Why not all programs were run again, or could be judged by it."""
    reasons = [f"{failed} programs could not be isolated"] if failed else []
    if apart:
        reasons.append(
            f"{apart} programs end otherwise on Python {HERE} than on {there}, which recorded "
            "them, and that may be the release's doing"
        )
    if unreached:
        reasons.append(f"the {budget.seconds:.0f} seconds for the programs of all stages were over")
    return "; ".join(reasons) or None


def _looks(listed: Sequence[Row], chosen: Sequence[int], seconds: float) -> dict[int, list[_Look]]:
    """What each chosen program came to, by its number; those not reached in time are left out.

    One that was not stopped, and ends otherwise than recorded, is run twice more with patience.
    """
    deadline = time.monotonic() + seconds
    looks: dict[int, list[_Look]] = {}
    slow = [n for n in chosen if listed[n]["ending"] == "timeout"]
    rest = [n for n in chosen if listed[n]["ending"] != "timeout"]
    for limits, numbers in ((None, rest), (BRIEF, slow)):
        with Sandbox(limits) as sandbox:
            programs = (listed[n]["program"] for n in numbers)
            found = sandbox.run_within(programs, deadline - time.monotonic())
            for n, ran in zip(numbers, found, strict=False):
                looks[n] = [_Look.at(ran)]
    again = [n for n, (first,) in looks.items() if _odd(listed[n], first)]
    if again:
        second: dict[int, list[_Look]] = {n: [] for n in again}
        with Sandbox(PATIENT) as sandbox:
            for _ in range(2):
                programs = (listed[n]["program"] for n in again)
                found = sandbox.run_within(programs, deadline - time.monotonic())
                for n, ran in zip(again, found, strict=False):
                    second[n].append(_Look.at(ran))
        for n, runs in second.items():
            if len(runs) == 2:
                looks[n] = runs
            else:
                del looks[n]
    return looks


def _odd(row: Row, look: _Look) -> bool:
    """Whether a program is worth another look: it was not stopped, and ends otherwise here."""
    if look.ending == "sandbox failure":
        return True
    return row["ending"] not in STOPPED and look.how != _recorded(row)


QUICK_SECONDS = 0.2
"""A program recorded as out of time that ends within this many seconds here was not."""


def _is_quick(row: Row, look: _Look) -> bool:
    """Whether a program ended at once; one that no text but its own decides waits for nothing."""
    spent = look.seconds
    if look.cpu_seconds is not None and is_repeatable(row["program"]):
        spent = min(spent, look.cpu_seconds)
    return spent < QUICK_SECONDS


def _contradictions(row: Row, runs: Sequence[_Look], right: bool) -> Iterator[str]:
    """What a record says against itself, whatever a program does elsewhere."""
    text = digests.sha256_bytes(row["output"].encode("utf-8"))
    if any(run.how[2] == row["output_sha256"] and run.shown_sha256 != text for run in runs):
        yield "its output is not the beginning of what it prints"
    if row["ending"] in STOPPED and right:
        yield f"ended as {row['ending']}, but is counted as right"


def _is_decided_by_text(row: Row, runs: Sequence[_Look]) -> bool:
    """Whether every release of Python that runs a program to its end ends it as this one does.

    An error here may be of this release: what one takes for a fault in the text, the next may
    allow. An error that is only recorded says nothing of the kind.
    """
    return all(run.ending != "error" for run in runs) and is_repeatable(row["program"])


def _differences(row: Row, runs: Sequence[_Look], right: bool, akin: bool) -> Iterator[str]:
    """What a program's runs here say against its record.

    Args:
        row: the record.
        runs: of this machine; two or more where the first ended otherwise.
        right: whether its answer was counted as right.
        akin: whether the record's release of Python is of the minor version that ran here.
    """
    if row["ending"] in STOPPED:
        # Memory and output are the same everywhere, time is not.
        elsewhere = runs[0].ending != row["ending"] and runs[0].ending != "timeout"
        if elsewhere and (row["ending"] != "timeout" or _is_quick(row, runs[0])):
            yield f"ended as {row['ending']}, but ends as {runs[0].ending} when it is run again"
        return
    found = [run.how for run in runs]
    if _recorded(row) in found:
        return
    settled = all(how == found[0] for how in found)
    if settled and found[0][:2] == (row["ending"], row["answer"]):
        if akin and is_repeatable(row["program"]):
            yield "prints something else when it is run again"
    elif settled:
        ending, answer, _ = found[0]
        what = f"ends as {ending}" if row["ending"] != ending else "prints something else"
        if row["answer"] != answer:
            what += f" with {answer} instead of {row['answer']}"
        yield f"{what} when it is run again"
    elif right and any(how[:2] != (row["ending"], row["answer"]) for how in found):
        yield "is counted as right, but ends in another way each time"


def _recorded(row: Row) -> How:
    return row["ending"], row["answer"], row["output_sha256"]


def _recorded_on(rows: Rows) -> str:
    """The release of Python on which the stage says that its programs ran."""
    return (
        " or ".join({release(row["python"]): None for row in rows[RUN]})
        or "no Python that is named"
    )


def _is_akin(there: str) -> bool:
    """Whether a release is of the minor version that runs here; what is no release excuses none."""
    minor = _MINOR.match(there)
    return minor is None or minor.group() == ".".join(HERE.split(".")[:2])


def release(python: str) -> str:
    """The release of which `python` is the whole `sys.version`."""
    return " ".join(python.split()[:1])


def _counted_right(rows: Rows) -> set[str]:
    """Programs whose answer was counted as right somewhere."""
    found = {r["program_sha256"] for r in rows[GENERATIONS] if r["outcome"] == "answer"}
    for row in rows[DEPOSITS]:
        found.add(row["program_sha256"])
        if row["demonstration"] is not None:
            found.add(row["demonstration"]["program_sha256"])
    return found - {None}
