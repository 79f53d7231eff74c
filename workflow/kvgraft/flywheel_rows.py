"""The rows that the stage flywheel writes: generations, and the programs that they name.

And the values that its parts hand each other. A program is run once, however often the model writes
it. Which questions are asked, and of what context, is `flywheel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvaudit import digests
from kvaudit.errors import SandboxUnavailable
from kvaudit.flywheel import answers, prompts
from kvaudit.flywheel.answers import Answer
from kvaudit.flywheel.gate import Gate
from kvaudit.flywheel.records import ARMS, FILE_ARMS, MAX_OUTPUT, RUNNING, kept
from kvaudit.sandbox import Limits, Ran, Sandbox, outcome
from kvgraft.solving import Said, Sampling

Row = dict[str, Any]

N_CTX = 3072
"""A block with its demonstration, and 256 cells for every branch, fit into it."""

FLAT_N_CTX = 6144
"""The blocks of a group, their demonstrations and the branches fit into it."""


class Problem(Protocol):
    """A problem as it is asked."""

    @property
    def name(self) -> str:
        """Its name in the records."""

    @property
    def statement(self) -> str:
        """Its words."""

    @property
    def answer(self) -> Answer:
        """The known answer."""


@dataclass(frozen=True)
class Setting:
    """What the context held when a question was asked.

    Attributes:
        deposits: names, in the order of their blocks.
        cached: tokens restored.
        read: tokens of blocks' texts that were read instead.
        exact: as the session says; None where nothing was restored.
    """

    deposits: tuple[str, ...] = ()
    cached: int = 0
    read: int = 0
    exact: bool | None = None


@dataclass(frozen=True)
class Questions:
    """What an arm asks of what the session holds, all side by side.

    Attributes:
        arm: as in the records.
        problems: that are asked, in their order.
        question: the text that is asked about one of them.
        limit: the option that says how many tokens an answer has at most.
        setting: what the session holds.
        attempts: for each problem; all but the first are sampled.
    """

    arm: str
    problems: Sequence[Problem]
    question: Callable[[Problem], str]
    limit: str
    setting: Setting
    attempts: int = 1


@dataclass(frozen=True)
class Cost:
    """What a generation took: of those made side by side an equal share each.

    Attributes:
        seconds: by the clock.
        joules: None where there is no meter.
    """

    seconds: float
    joules: float | None


def program_limits(seconds: float) -> Limits:
    """Bounds of a program of the flywheel: this many seconds, the rest as everywhere."""
    return Limits(wall_seconds=seconds, cpu_seconds=math.ceil(seconds))


@dataclass
class Ledger:
    """Everything that was generated and run in a stage.

    Attributes:
        model: its name.
        sandbox: where programs run.
    """

    model: str
    sandbox: Sandbox
    _runs: dict[str, tuple[str, Ran]] = field(default_factory=dict)
    _rows: dict[str, list[Row]] = field(default_factory=dict)

    def run_all(self, programs: Sequence[str]) -> list[Ran]:
        """How each program ended; those seen before are not run again.

        Raises:
            SandboxUnavailable: one could not be started in isolation, tried several times.
        """
        keys = [digest(program) for program in programs]
        new = {k: p for k, p in zip(keys, programs, strict=True) if k not in self._runs}
        for key, ran in zip(new, self.sandbox.run_all(new.values()), strict=True):
            if ran.ending == "sandbox failure":
                raise SandboxUnavailable(
                    "a program could not be isolated",
                    found=ran.complaint.decode("utf-8", "replace").strip() or "no reason given",
                    hint="run the stage again on a machine with less else to do",
                )
            self._runs[key] = (new[key], ran)
        return [self._runs[key][1] for key in keys]

    def add(
        self,
        arm: str,
        problem: Problem,
        said: Said,
        sampling: Sampling,
        setting: Setting,
        cost: Cost,
        *,
        attempt: int = 0,
        judged: Gate | None = None,
    ) -> Row:
        """Note one generation; what it is worth is read from it, by running its program if any."""
        continuation = said.continuation
        program = prompts.read_program(continuation.text) if arm in RUNNING else None
        if program is not None and isinstance(problem.answer, int):
            ran = self.run_all([program])[0]
            answer: Answer | None = kept(ran.answer)
            worth = outcome(ran, problem.answer)
        else:
            answer = answers.read(arm, continuation.text, problem.answer)
            worth = "no answer" if answer is None else "wrong"
            worth = "answer" if answers.is_right(answer, problem.answer) else worth
        row = {
            "kind": "flywheel-generation",
            "version": 1,
            "model": self.model,
            "arm": arm,
            "problem": problem.name,
            "attempt": attempt,
            "deposits": list(setting.deposits),
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "prompt_sha256": digests.sha256_bytes(said.question.encode("utf-8")),
            "prompt_tokens": said.read_tokens + setting.read,
            "cached_tokens": setting.cached,
            "decoded_tokens": len(continuation.tokens),
            "tokens": list(continuation.tokens),
            "text": continuation.text,
            "finish": continuation.finish,
            "logits_sha256": continuation.logits_sha256,
            "exact": setting.exact,
            "program_sha256": None if program is None else digest(program),
            "gate": judged,
            "answer": answer,
            "outcome": worth,
            "seconds": round(cost.seconds, 6),
            **({} if cost.joules is None else {"joules": round(cost.joules, 6)}),
        }
        self._rows.setdefault(arm, []).append(row)
        return row

    def generations(self, *, joules: bool = True) -> list[Row]:
        """All generations, in the order of the arms; without joules where a meter was lost."""
        rows = [row for arm in (*ARMS, *FILE_ARMS) for row in self._rows.get(arm, [])]
        if joules:
            return rows
        return [{key: value for key, value in row.items() if key != "joules"} for row in rows]

    def programs(self, named: set[str]) -> list[Row]:
        """The programs that records name, by digest."""
        rows = []
        for key in sorted(named):
            program, ran = self._runs[key]
            rows.append(
                {
                    "kind": "flywheel-program",
                    "version": 1,
                    "model": self.model,
                    "sha256": key,
                    "program": program,
                    "ending": ran.ending,
                    "answer": kept(ran.answer),
                    "output": ran.output.decode("utf-8", "replace")[:MAX_OUTPUT],
                    "output_sha256": digests.sha256_bytes(ran.output),
                    "seconds": round(ran.seconds, 6),
                }
            )
        return rows


def digest(program: str) -> str:
    """SHA-256 of a program's UTF-8."""
    return digests.sha256_bytes(program.encode("utf-8"))
