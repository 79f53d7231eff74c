"""What a generation was asked, and behind which text: recomputed from the records.

The verifier compares the question's digest, and whoever has an engine reads the same tokens again.
This module must not know how a text is tokenised.
"""

from __future__ import annotations

from kvaudit.flywheel import files, prompts
from kvaudit.flywheel.known import Known, Row
from kvaudit.flywheel.records import CODING, FILE_ARMS, GATED, RECALLING, demonstrated


def question(known: Known, row: Row) -> str | None:
    """The text that a generation answers; None where records that it needs are missing."""
    problem = known.problems.get(row["problem"])
    if problem is None:
        return None
    statement: str = problem["statement"]
    if row["arm"] in FILE_ARMS:
        return files.question(row["arm"], statement)
    if row["arm"] in RECALLING:
        family = row["problem"].split("/")[0]
        held = [known.deposits[name] for name in row["deposits"] if name in known.deposits]
        own = next((one for one in held if one["family"] == family), None)
        program = known.programs.get(own["program_sha256"]) if own else None
        return None if program is None else prompts.recall_text(statement, program["program"])
    if row["arm"] in CODING:
        return prompts.code_text(statement)
    if row["arm"] in GATED:
        return prompts.adapt_text(statement)
    return prompts.direct_text(statement)


def context(known: Known, row: Row) -> list[str] | None:
    """The texts of the blocks in a generation's context, in their order.

    Each is tokenised apart, the first with the model's begin token; one that does not begin with a
    line break has one put before it where another text precedes it. None where records that it
    needs are missing.
    """
    texts: list[str] = []
    for name in row["deposits"]:
        deposit = known.deposits.get(name)
        if deposit is None:
            return None
        parts = [deposit["text"]]
        shown = deposit["demonstration"]
        if shown is not None and demonstrated(row["arm"]):
            problem = known.problems.get(shown["problem"])
            program = known.programs.get(shown["program_sha256"])
            if problem is None or program is None:
                return None
            parts.append(
                prompts.demonstration_text(
                    problem["statement"], program["program"], problem["answer"]
                )
            )
        for part in parts:
            lead = "\n" if texts and not part.startswith("\n") else ""
            texts.append(lead + part)
    return texts
