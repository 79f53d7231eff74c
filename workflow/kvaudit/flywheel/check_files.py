"""Whether what a stage holds of the user's problem files follows from the configuration.

The file itself is not at hand: its digest is that of the configuration, and the rows, whose digest
was registered before anything ran, say what was in it. That they are the file's own is checked by
who has the file (`kvgraft problems check --run`).
This module must not know an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvaudit.errors import UnusableInput
from kvaudit.flywheel import files, prompts
from kvaudit.flywheel.known import Known, Row
from kvaudit.flywheel.records import DEPOSITS, PROBLEMS

VARIANT = "file"


def problems(entries: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    """What in the problems of files is not as planned.

    Args:
        entries: of the configuration's `flywheel.files`.
        rows: the records of problems of files.
    """
    held = files.by_file(rows)
    if [*held] != [entry["name"] for entry in entries]:
        yield "the files are not the planned ones, in their order"
        return
    if [row for ones in held.values() for row in ones] != [*rows]:
        yield "problems of several files are mixed"
    for entry in entries:
        mine = held[entry["name"]]
        try:
            wanted = files.rows(entry, [files.FileProblem.of(row) for row in mine])
        except UnusableInput as error:
            yield f"{entry['name']}: {error}"
            continue
        made = [{key: row.get(key) for key in one} for one, row in zip(wanted, mine, strict=False)]
        if len(wanted) != len(mine) or made != wanted:
            yield f"{entry['name']}: its problems are not chosen, dated and split as planned"


def registered(rows: Sequence[Row], inputs: Mapping[str, Any]) -> Iterator[str]:
    """Whether the problems of every file are those that were registered, all of them.

    Args:
        rows: the records of problems.
        inputs: the inputs manifest.
    """
    found, wanted = files.rows_digests(rows), inputs.get("problem_files", {})
    for file in sorted({*found, *wanted}):
        if found.get(file) != wanted.get(file):
            yield f"{file}: its problems are not those that inputs.manifest.json registers"


def deposits(known: Known) -> Iterator[str]:
    """One block for every problem of a library, and no other."""
    planned = {
        name: problem
        for held in files.by_file(known.rows[PROBLEMS]).values()
        for name, problem in files.library(held).items()
    }
    found = [row["name"] for row in known.rows[DEPOSITS] if row["variant"] == VARIANT]
    if found != [*planned]:
        yield "the blocks of files are not one for each problem of their libraries"
    for row in known.rows[DEPOSITS]:
        if row["variant"] == VARIANT and row["name"] in planned:
            problem = planned[row["name"]]
            yield from (f"{row['name']}: {text}" for text in _deposit(row, problem))


def _deposit(row: Row, problem: Row) -> Iterator[str]:
    wanted = {
        "family": problem["family"],
        "problems": [problem["name"]],
        "statement": problem["statement"],
        "answer": problem["answer"],
        "text": prompts.worked_text(problem["statement"], problem["answer"]),
        **dict.fromkeys(("program_sha256", "template", "demonstration", "entry_id", "admission")),
        "admitted": False,
        "chosen": False,
    }
    differing = sorted(key for key, value in wanted.items() if row[key] != value)
    if differing:
        yield f"{', '.join(differing)} not as its problem has it"
    if row["source"]["author"] != files.author(problem["family"]):
        yield "its source does not name its file"
