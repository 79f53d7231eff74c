"""What a generation was asked, and behind which text: recomputed from the records.

The verifier compares the question's digest, and whoever has an engine reads the same tokens again.
This module must not know how a text is tokenised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvaudit.flywheel import prompts
from kvaudit.flywheel.records import (
    CODING,
    DEPOSITS,
    GATED,
    PROBLEMS,
    PROGRAMS,
    RECALLING,
    demonstrated,
)
from kvaudit.stagekind import Rows

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """The records that questions and contexts follow from.

    Attributes:
        problems: by name.
        deposits: by name.
        programs: texts, by SHA-256.
    """

    problems: Mapping[str, Row]
    deposits: Mapping[str, Row]
    programs: Mapping[str, str]

    @classmethod
    def of(cls, rows: Rows) -> Asked:
        """From the records of a stage."""
        return cls(
            {row["name"]: row for row in rows[PROBLEMS]},
            {row["name"]: row for row in rows[DEPOSITS]},
            {row["sha256"]: row["program"] for row in rows[PROGRAMS]},
        )

    def question(self, row: Row) -> str | None:
        """The text that a generation answers; None where records that it needs are missing."""
        problem = self.problems.get(row["problem"])
        if problem is None:
            return None
        statement: str = problem["statement"]
        if row["arm"] in RECALLING:
            family = row["problem"].split("/")[0]
            held = [self.deposits[name] for name in row["deposits"] if name in self.deposits]
            own = next((one for one in held if one["family"] == family), None)
            program = self.programs.get(own["program_sha256"]) if own else None
            return None if program is None else prompts.recall_text(statement, program)
        if row["arm"] in CODING:
            return prompts.code_text(statement)
        if row["arm"] in GATED:
            return prompts.adapt_text(statement)
        return prompts.direct_text(statement)

    def context(self, row: Row) -> list[str] | None:
        """The texts of the blocks in a generation's context, in their order.

        Each is tokenised apart, the first with the model's begin token; one that does not begin
        with a line break has one put before it where another text precedes it. None where records
        that it needs are missing.
        """
        texts: list[str] = []
        for name in row["deposits"]:
            deposit = self.deposits.get(name)
            if deposit is None:
                return None
            parts = [deposit["text"]]
            shown = deposit["demonstration"]
            if shown is not None and demonstrated(row["arm"]):
                problem = self.problems.get(shown["problem"])
                program = self.programs.get(shown["program_sha256"])
                if problem is None or program is None:
                    return None
                parts.append(
                    prompts.demonstration_text(problem["statement"], program, problem["answer"])
                )
            for part in parts:
                lead = "\n" if texts and not part.startswith("\n") else ""
                texts.append(lead + part)
        return texts
