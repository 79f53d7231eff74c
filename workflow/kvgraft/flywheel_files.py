"""The user's problem files in the stage flywheel: read once, asked alone and behind old problems.

Which problems are asked, and behind which blocks, is `kvaudit.flywheel.files`; this module reads
the files as they are pinned, and asks. Nothing of a file is asked before all files were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from kvaudit.errors import UnusableInput
from kvaudit.flywheel import files, prompts
from kvaudit.flywheel.answers import Answer
from kvgraft.flywheel_deposits import Deposited, Shelf
from kvgraft.flywheel_rows import FLAT_N_CTX, N_CTX, Questions, Row, Setting
from kvgraft.model import FrozenModel
from kvgraft.problems import LOADERS
from kvgraft.session import Session

SPARE = 64
"""Cells that branches lose to their alignment, at most, and begin tokens."""


@dataclass(frozen=True)
class Asked:
    """A problem of a file under its name in the records."""

    name: str
    statement: str
    answer: Answer


class Stage(Protocol):
    """The stage flywheel, as far as it asks."""

    session: Session
    options: Mapping[str, Any]

    def ask(self, what: Questions) -> list[Row]:
        """Ask questions of what the session holds."""


def load(section: Mapping[str, Any]) -> list[Row]:
    """The problems of all files that a configuration names, as records without kind and model.

    Raises:
        InputChanged: a file is not the pinned one.
        UnusableInput: a file cannot be read, or leaves no problem for one side of its split.
    """
    rows: list[Row] = []
    for entry in section.get("files", ()):
        found = LOADERS[entry["form"]](entry["path"], entry["sha256"])
        rows += files.rows(entry, [files.FileProblem(**asdict(one)) for one in found])
    return rows


def registered(config: Mapping[str, Any]) -> dict[str, str]:
    """By file, the digest of its rows that a run of this configuration asks.

    The rule register_inputs calls this, so that a file is refused there rather than hours later.

    Raises:
        InputChanged: as `load`.
        UnusableInput: as `load`.
    """
    return files.rows_digests(load(config["flywheel"])) if "flywheel" in config["stages"] else {}


@dataclass
class FileArms:
    """The arms of files of one stage.

    Attributes:
        model: its name.
        rows: of all problems, as `load` gives them.
        questions: arm -> what is asked, of which blocks.
    """

    model: str
    rows: list[Row]
    questions: Mapping[str, Sequence[files.Question]]

    @classmethod
    def opened(cls, section: Mapping[str, Any], model: FrozenModel) -> FileArms:
        """The files of a section, read.

        Raises:
            InputChanged: as `load`.
            UnusableInput: as `load`; or what is asked together has too many tokens.
        """
        rows = load(section)
        questions = files.questions(rows, section["flat_blocks"])
        mine = cls(model.name, rows, questions)
        mine._require_room(section, model)
        return mine

    def _require_room(self, section: Mapping[str, Any], model: FrozenModel) -> None:
        """Refuse what would not fit into a context, before anything is asked."""
        rows = {row["name"]: row for row in self.rows}
        blocks = {
            name: len(model.tokenize(prompts.worked_text(row["statement"], row["answer"])))
            for held in files.by_file(self.rows).values()
            for name, row in files.library(held).items()
        }
        for arm, questions in self.questions.items():
            most = FLAT_N_CTX if arm == "file-flat" else N_CTX
            most -= SPARE + section["program_tokens" if arm == "file-code" else "answer_tokens"]
            for name, held in questions:
                n = len(model.tokenize(files.question(arm, rows[name]["statement"])))
                n += sum(blocks[one] for one in held)
                if n > most:
                    raise UnusableInput(
                        "a problem has too many tokens with the blocks that are before it",
                        where=name,
                        expected=f"at most {most} of {model.name}",
                        found=n,
                        hint="lower `characters` of its file, or `flat_blocks`",
                    )

    def records(self) -> list[Row]:
        """The records of the problems."""
        head = {"kind": "flywheel-problem", "version": 1, "model": self.model}
        return [{**head, **row} for row in self.rows]

    def measure(self, stage: Stage, shelf: Shelf) -> None:
        """The frozen model alone, then every old problem's block with what is asked behind it."""
        stage.session.reset()
        self._ask(stage, "file-direct", (), Setting(), stage.options["attempts"])
        self._ask(stage, "file-code", (), Setting(), stage.options["code_attempts"])
        for name, deposit in self._deposits(shelf):
            setting = shelf.graft(stage.session, deposit)
            self._ask(stage, "file-recall", (name,), setting)
            self._ask(stage, "file-routed", (name,), setting)

    def measure_flat(self, stage: Stage, shelf: Shelf) -> None:
        """The same problems behind the texts of many old ones."""
        held = dict(self._deposits(shelf))
        for group in dict.fromkeys(group for _, group in self.questions["file-flat"]):
            deposits = [held[name] for name in group]
            setting = shelf.read_together(stage.session, deposits, demonstrated=False)
            self._ask(stage, "file-flat", group, setting)

    def _deposits(self, shelf: Shelf) -> list[tuple[str, Deposited]]:
        return [
            (name, shelf.of_file(name, file, _asked(row)))
            for file, held in files.by_file(self.rows).items()
            for name, row in files.library(held).items()
        ]

    def _ask(
        self, stage: Stage, arm: str, held: tuple[str, ...], setting: Setting, attempts: int = 1
    ) -> None:
        """Everything that an arm asks of what the session holds."""
        rows = {row["name"]: row for row in self.rows}
        asked = [_asked(rows[name]) for name, blocks in self.questions[arm] if blocks == held]

        stage.ask(
            Questions(
                arm,
                asked,
                lambda one: files.question(arm, one.statement),
                "program_tokens" if arm == "file-code" else "answer_tokens",
                setting,
                attempts,
            )
        )


def _asked(row: Mapping[str, Any]) -> Asked:
    return Asked(row["name"], row["statement"], row["answer"])
