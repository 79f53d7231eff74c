"""What the verifier must know of a kind of stage: its files, its checks and its summary.

A stage is added by a `StageKind` of its own, entered in `stagekinds`, and by its claims. This
module must not know any stage.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kvaudit import canonical, schemas

Rows = dict[str, list[dict[str, Any]]]
"""Record file, relative to the stage's folder -> its rows, validated."""

RawReader = Callable[[str], Any]
"""SHA-256 of raw logits -> float32 [n_vocab], or None where the file is missing or damaged."""

SUMMARY = "summary.json"


@dataclass(frozen=True)
class Problem:
    """A disagreement; `file` is relative to the stage's folder."""

    file: str
    message: str


@dataclass(frozen=True)
class Rerun:
    """What running the recorded programs of a stage again came to.

    Attributes:
        programs: that were run again.
        problems: those that do not end as recorded.
        reason: why they were not run, or not all of them; None where all were. A run that could
            not be made says nothing about the records, so this is never a problem.
        undecided: those that do not end as recorded, where that may be this machine's doing: the
            records are neither confirmed nor contradicted, and `reason` says so too.
    """

    programs: int
    problems: tuple[Problem, ...] = ()
    reason: str | None = None
    undecided: tuple[Problem, ...] = ()


RERUN_SECONDS = 1800.0
"""For running the programs of all stages of one run again; 1,027 of them take less than a minute on
two processors. A run of a stranger may record as many that never end as a file has room for."""


class Budget:
    """Seconds that may be spent, in turn, by several stages.

    Attributes:
        left: what is left of them; below zero once a spender took longer.
    """

    def __init__(self, seconds: float = RERUN_SECONDS) -> None:
        self.seconds = self.left = seconds

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Take the time of a block of code from what is left."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.left -= time.monotonic() - began


class Rerunner(Protocol):
    """Runs the recorded programs of a stage again, isolated."""

    def __call__(
        self, records: Any, budget: Budget | None = None, only: Collection[str] | None = None, /
    ) -> Rerun:
        """What became of it.

        Args:
            records: of the stage.
            budget: time that all stages share; None for a time of its own.
            only: digests of the programs to run; None for all.
        """


def _nothing(_: Any) -> Mapping[str, str]:
    return {}


def _no_problems(*_: Any) -> list[Problem]:
    return []


def _no_words(_: Mapping[str, Any]) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True)
class StageKind:
    """One kind of stage.

    Attributes:
        name: the stage's name; also that of its folder and of its section in a configuration.
        records: record file, relative to the stage's folder -> kind of its lines.
        summary_kind: schema of its summary.json.
        typed: rows -> what the functions below work on, called `records` there.
        summarise: (subject, records) -> the summary, a JSON object.
        check: (subject, records, inputs manifest) -> what contradicts itself, the inputs or the
            plan that follows from the configuration.
        configuration_problems: (section of the configuration) -> what is wrong with it.
        raw_digests: records -> {SHA-256 of raw logits: record file that names it}.
        check_raw: (records, reader) -> scores that do not agree with the raw logits.
        rerun: runs their programs again; None for a stage that records none.
        named_programs: (some rows, all rows) -> the digests of the recorded programs that some
            rest on; None for a stage that cannot say.
        tables: table -> the record file that it is made from.
        check_table: (bytes of a table, rows) -> what is wrong with it, or None.
        draw: (rows by model, folder) -> the plots written into it; never evidence.
    """

    name: str
    records: Mapping[str, str]
    summary_kind: str
    summarise: Callable[[str, Any], dict[str, Any]]
    check: Callable[[str, Any, Mapping[str, Any]], list[Problem]]
    typed: Callable[[Rows], Any] = lambda rows: rows
    configuration_problems: Callable[[Mapping[str, Any]], Iterator[str]] = _no_words
    raw_digests: Callable[[Any], Mapping[str, str]] = _nothing
    check_raw: Callable[[Any, RawReader], list[Problem]] = _no_problems
    rerun: Rerunner | None = None
    named_programs: Callable[[Rows, Rows], Collection[str]] | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    check_table: Callable[[bytes, Sequence[Mapping[str, Any]]], str | None] | None = None
    draw: Callable[[Mapping[str, Rows], Path], list[Path]] | None = None

    def summary_bytes(self, subject: str, records: Any) -> bytes:
        """The bytes of summary.json: canonical JSON and one newline.

        Raises:
            UnusableInput: the records make a summary that its schema does not allow.
        """
        summary = self.summarise(subject, records)
        schemas.validate(summary, self.summary_kind, where=SUMMARY)
        return canonical.dumps(summary) + b"\n"
