"""Runs the programs of rows again in the sandbox and compares what they print, row by row.

Two comparisons: of what is printed now with what the file says was printed, and with the answer
that the text ends on. Each program has a sandbox of its own; none sees what another did. This
module must not know any format, nor what the right answer is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvaudit.rescore import answers, equality, exact, symbolic
from kvaudit.rescore.answers import Quantity
from kvaudit.rescore.equality import Oracle
from kvaudit.rescore.expression import Unreadable
from kvaudit.rescore.scoring import Scored
from kvaudit.sandbox import Limits, Ran, Sandbox

LIMITS = Limits(wall_seconds=20.0, cpu_seconds=5, memory_bytes=512 << 20)
"""Wall time is generous because sympy's import waits for the disk; the processor's time counts."""

_ERROR = re.compile(
    r"(?:^|\n)\S*(?:Error|Exception|Timeout|Traceback|Interrupt)\b|Timed Out|\bTimeout"
)


@dataclass(frozen=True)
class Rerun:
    """One program, run again.

    Attributes:
        ran: how it ended; None where the row has no program.
        ending: "printed", "printed nothing", "no program", or how it failed.
        recorded: against the output in the file: "same", "same number", "both failed",
            "other", "none recorded".
        answer: against the answer of the text: "same", "rounded", "opposite sign", "other",
            "not comparable", "no answer", or "nothing printed".
        printed: its last line.
    """

    ran: Ran | None
    ending: str
    recorded: str
    answer: str
    printed: str


def rerun(scored: Sequence[Scored], workers: int | None = None) -> list[Rerun]:
    """Runs every program; one result a row, in their order.

    Raises:
        SandboxUnavailable, ToolMissing: this machine cannot isolate a program, or lacks sympy.
    """
    programs = {index: s.row.program for index, s in enumerate(scored) if s.row.program is not None}
    with Sandbox(LIMITS, workers, symbolic.packages()) as sandbox:
        runs = dict(zip(programs, sandbox.run_all(programs.values()), strict=True))
    oracle = Oracle()
    first = _compared(scored, runs, oracle)
    if not oracle.asked:
        return first
    return _compared(scored, runs, Oracle(symbolic.decide(oracle.asked, workers)))


def counts(reruns: Sequence[Rerun]) -> dict[str, Counter[str]]:
    """How many rows had each outcome, of each of the three kinds."""
    return {
        "ending": Counter(item.ending for item in reruns),
        "recorded": Counter(item.recorded for item in reruns),
        "answer": Counter(item.answer for item in reruns),
    }


def _compared(scored: Sequence[Scored], runs: Mapping[int, Ran], oracle: Oracle) -> list[Rerun]:
    return [_outcome(item, runs.get(index), oracle) for index, item in enumerate(scored)]


def _outcome(item: Scored, ran: Ran | None, oracle: Oracle) -> Rerun:
    if ran is None:
        return Rerun(None, "no program", "none recorded", "nothing printed", "")
    text = ran.output.decode("utf-8", "replace").strip()
    failed = ran.ending not in ("printed", "no answer")
    ending = ran.ending if failed else "printed" if text else "printed nothing"
    last = text.rpartition("\n")[2].strip()
    recorded = _recorded(item.row.printed, text, failed, oracle)
    if ending != "printed":
        return Rerun(ran, ending, recorded, "nothing printed", last)
    if item.answer.rule in ("none", "printed"):
        return Rerun(ran, ending, recorded, "no answer", last)
    return Rerun(ran, ending, recorded, _against(last, item.answer.text, oracle), last)


def _recorded(recorded: str | None, text: str, failed: bool, oracle: Oracle) -> str:
    if recorded is None:
        return "none recorded"
    if failed or _ERROR.search(recorded):
        return "both failed" if failed and _ERROR.search(recorded) else "other"
    if recorded.strip() == text:
        return "same"
    sides = (recorded.strip().rpartition("\n")[2], text.rpartition("\n")[2])
    return "same number" if _against(*sides, oracle) == "same" else "other"


def _against(printed: str, answer: str, oracle: Oracle) -> str:
    """How a printed line relates to an answer."""
    judged = equality.compare(answer, printed, oracle)
    if judged.same:
        return "same"
    first, second = _number(printed), _number(answer)
    if first is None or second is None:
        words = judged.same is None or judged.why == equality.WORDS
        return "not comparable" if words else "other"
    if _rounds(first, second, answer):
        return "rounded"
    return "opposite sign" if first == -second else "other"


def _number(text: str) -> Fraction | None:
    try:
        shape = answers.read(text)
        return exact.value(shape.tree) if isinstance(shape, Quantity) else None
    except (Unreadable, exact.TooLarge, RecursionError):
        return None


def _rounds(printed: Fraction, answer: Fraction, spelled: str) -> bool:
    """Whether the answer is the printed number, rounded to its places, up, down or to nearest."""
    match = re.search(r"\.(\d+)", spelled)
    unit = Fraction(1, 10 ** min(len(match[1]) if match else 0, 30))
    return abs(printed - answer) < unit
