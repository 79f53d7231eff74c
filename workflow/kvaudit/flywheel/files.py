"""Problems of files that the user names: which are asked, and behind which blocks.

A file whose problems are dated may be split at a day: those published before make a library, one
block each, those from that day on are asked; no problem is on both sides. Which block a problem is
routed to is counted from words. The stage chooses by these functions from the file, the verifier
again from the rows that the records hold of it. This module must not read a file, nor know an
engine.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvaudit import digests
from kvaudit.errors import UnusableInput
from kvaudit.flywheel import prompts, routing
from kvaudit.flywheel.answers import MAX_WORDS, Answer, unmarked
from kvaudit.flywheel.records import FILE_ARMS, kept

LIBRARY, TEST = "file-library", "file-test"
ROLES = frozenset({LIBRARY, TEST})

MOST, CHARACTERS = 30, 2000
"""Problems that are asked and that make the library, and characters of a statement, at most, where
the configuration says nothing else."""

MAX_ID = 200

FIELDS = (
    *("role", "name", "family", "category", "tag", "params", "statement", "answer", "release"),
    "file_sha256",
)
"""Of a problem's record, what `rows` says."""

_DELIMITERS = re.compile(r"\\[()\[\]]|[$`\"\u201c-\u201f\u00ab\u00bb]")
_STOPS = re.compile(r"[.,;:?]+(?=\s|$)")
_SPACES = re.compile(r"(?<![0-9])\s+|\s+(?![0-9])")

Row = Mapping[str, Any]
Question = tuple[str, tuple[str, ...]]
"""A problem and the deposits in its context."""


@dataclass(frozen=True)
class FileProblem:
    """A problem of a file; `id` is its own in it, `release` a day or None."""

    id: str
    statement: str
    answer: Answer
    release: str | None
    category: str

    @classmethod
    def of(cls, row: Row) -> FileProblem:
        """As a record holds it."""
        name = str(row["name"]).removeprefix(f"{row['family']}/")
        return cls(name, row["statement"], row["answer"], row.get("release"), row["category"])


def rows(entry: Row, problems: Sequence[FileProblem]) -> list[dict[str, Any]]:
    """The records of a file's problems, kind and model apart: the library first, then the test.

    Left out are statements and answers that are too long, and a problem whose statement is one
    with an earlier one's, of the library or of its own side (`bare`). What is then too much is cut
    off at the end of the file.

    Args:
        entry: of the configuration's `flywheel.files`.
        problems: in the order of the file.

    Raises:
        UnusableInput: an id is no line, a problem to be split has no date, or nothing is left of
            a side.
    """
    where, split = entry["name"], entry.get("split")
    most = entry.get("characters", CHARACTERS)
    library: list[FileProblem] = []
    test: list[FileProblem] = []
    for problem in problems:
        if not problem.id.isprintable() or len(problem.id) > MAX_ID:
            raise UnusableInput(
                "an id is a line of printable characters",
                where=where,
                expected=f"at most {MAX_ID}",
                found=problem.id[:MAX_ID],
            )
        if split is not None and problem.release is None:
            raise UnusableInput(
                "a file is split by release dates, and a problem has none",
                where=where,
                found=problem.id,
                hint="leave out `split`, or name a file with dates",
            )
        if len(problem.statement) > most or len(str(problem.answer)) > MAX_WORDS:
            continue
        old = split is not None and problem.release is not None and problem.release < split
        (library if old else test).append(problem)
    known: set[str] = set()
    library = _first(library, entry.get("library", MOST), known)
    test = _first(test, entry.get("problems", MOST), known)
    for side, what in ((library, "library"), (test, "test")):
        if not side and (what == "test" or split is not None):
            raise UnusableInput(
                f"a file leaves no problem for the {what}",
                where=where,
                hint="look at `split` and `characters`, and at `kvgraft problems check`",
            )
    return [
        _row(entry, role, one) for role, side in ((LIBRARY, library), (TEST, test)) for one in side
    ]


def bare(statement: str) -> str:
    """What is left of a statement for telling whether another one is the same.

    Equal for statements that differ in Unicode's compatibility forms, characters without a shape,
    case, quotation marks and delimiters of formulas, emphasis, stops that end a word, and spaces
    but those between two digits. Signs that reckon stay, `!` and `'` among them. Not found are
    other words for the same, and letters that only look alike.
    """
    text = "".join(
        one for one in statement if one.isspace() or unicodedata.category(one) not in ("Cc", "Cf")
    )
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _SPACES.sub("", _STOPS.sub("", unmarked(_DELIMITERS.sub("", text)))).strip()


def _first(problems: Sequence[FileProblem], most: int, known: set[str]) -> list[FileProblem]:
    """The first problems whose statements are not known yet; known from then on."""
    found: list[FileProblem] = []
    for problem in problems:
        if len(found) == most:
            break
        if (key := bare(problem.statement)) not in known:
            known.add(key)
            found.append(problem)
    return found


def _row(entry: Row, role: str, problem: FileProblem) -> dict[str, Any]:
    answer = problem.answer
    whole = answer if isinstance(answer, str) else kept(answer)
    return {
        "role": role,
        "name": f"{entry['name']}/{problem.id}",
        "family": entry["name"],
        "category": problem.category,
        "tag": "file",
        "params": {},
        "statement": problem.statement,
        "answer": str(answer) if whole is None else whole,
        "release": problem.release,
        "file_sha256": entry["sha256"],
    }


def deposit_name(file: str, number: int) -> str:
    """The name of the block of a library's problem, by its place in it."""
    return f"{file}/{number}"


def author(file: str) -> str:
    """Who supplies a problem of a file, as the deposit's source says."""
    return f"file {file}"


def library(held: Sequence[Row]) -> dict[str, Row]:
    """Deposit -> the problem of it, for the problems of one file."""
    old = [row for row in held if row["role"] == LIBRARY]
    return {deposit_name(row["family"], number): row for number, row in enumerate(old)}


def by_file(problems: Sequence[Row]) -> dict[str, list[Row]]:
    """The problems of files among the records of problems, file by file."""
    found: dict[str, list[Row]] = {}
    for row in problems:
        if row["role"] in ROLES:
            found.setdefault(row["family"], []).append(row)
    return found


def rows_digests(problems: Sequence[Row]) -> dict[str, str]:
    """By file, the SHA-256 of its problems' rows, as the inputs manifest registers them.

    Args:
        problems: the records of problems, or the rows that they are made of; kind, version and
            model do not count.
    """
    return {
        file: digests.sha256_json([{key: row.get(key) for key in FIELDS} for row in held])
        for file, held in by_file(problems).items()
    }


def questions(problems: Sequence[Row], flat_blocks: int) -> dict[str, list[Question]]:
    """What is asked of the problems of files, arm by arm in the order of the records.

    `file-direct` and `file-code` ask the frozen model alone, the latter where the answer is an
    integer. `file-recall` asks for a library's problem behind its block. `file-routed` asks a test
    problem behind the block that its words lead to, `file-flat` behind all blocks of the group in
    which that one is.
    """
    made: dict[str, list[Question]] = {arm: [] for arm in FILE_ARMS}
    for held in by_file(problems).values():
        test = [row for row in held if row["role"] == TEST]
        made["file-direct"] += [(row["name"], ()) for row in test]
        made["file-code"] += [(row["name"], ()) for row in test if type(row["answer"]) is int]
        blocks = library(held)
        names = [*blocks]
        made["file-recall"] += [(row["name"], (name,)) for name, row in blocks.items()]
        led = [(row["name"], _routed(names, [*blocks.values()], row)) for row in test]
        for name in names:
            made["file-routed"] += [(one, (name,)) for one, to in led if to == name]
        for at in range(0, len(names), flat_blocks):
            group = tuple(names[at : at + flat_blocks])
            made["file-flat"] += [(one, group) for one, to in led if to in group]
    return made


def _routed(names: Sequence[str], old: Sequence[Row], query: Row) -> str | None:
    found = routing.shortlist([row["statement"] for row in old], query["statement"], 1)
    return names[found[0][0]] if found else None


def question(arm: str, statement: str) -> str:
    """The text that is asked in an arm of files."""
    if arm == "file-direct":
        return prompts.direct_text(statement)
    if arm == "file-code":
        return prompts.code_text(statement)
    return prompts.answer_text(statement)


def section_problems(section: Row, reserved: Sequence[str]) -> Iterator[str]:
    """What is wrong with the files of a configuration, their schema apart."""
    names = [entry["name"] for entry in section.get("files", ())]
    for name in sorted({name for name in names if names.count(name) > 1 or name in reserved}):
        yield f"configuration.value.flywheel.files: {name} is the name of another file or family"
