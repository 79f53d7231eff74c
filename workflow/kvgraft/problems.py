"""Problem files that the user names: AIME-style JSON Lines, and LiveBench question files.

Such a file is evidence: it is read once, its SHA-256 is compared with the pin before a single row
is looked at, and the rows come from those very bytes. A row is taken in full or refused with its
line. This module must not know what a problem is used for, and holds no problem itself.
"""

from __future__ import annotations

import datetime
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit import canonical, digests
from kvaudit.errors import InputChanged, UnusableInput

MAX_BYTES = 256 * 1024 * 1024
MAX_DIGITS = 18

_SHA256 = re.compile(r"[0-9a-f]{64}")
_INTEGER = re.compile(rf"[+-]?[0-9]{{1,{MAX_DIGITS}}}")
_DATE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]00:00:00(?:\.0+)?(?:Z|\+00:00)?)?")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class UserProblem:
    """One problem of a user's file.

    Attributes:
        id: unique within the file.
        statement: as it stands there.
        answer: an integer where the file's answer is one (`025` is 25), its text otherwise.
        release: the day the problem was published, `YYYY-MM-DD`; None where the file has no date.
        category: `aime` unless the row says otherwise; of LiveBench category and task, as in
            `reasoning/spatial`.
    """

    id: str
    statement: str
    answer: int | str
    release: str | None
    category: str


def load_aime(path: str | Path, sha256: str) -> tuple[UserProblem, ...]:
    """The problems of JSON Lines with `id`, `problem` and `answer` (or `expected_answer`).

    `release` and `category` are read where a row has them; other fields are ignored.

    Args:
        path: the file; blank lines in it are skipped.
        sha256: the pinned digest of the whole file, lower-case hexadecimal.

    Raises:
        InputChanged: the file has another digest.
        UnusableInput: the file cannot be read or holds no problem; a line is not a JSON object,
            lacks a field or has one of a wrong type; an id occurs twice. Names the line.
    """
    data = _read(Path(path), sha256)
    return _problems(_lines(data, str(path)), _aime)


def load_livebench(path: str | Path, sha256: str) -> tuple[UserProblem, ...]:
    """The problems of a LiveBench question file: `.jsonl`, `.json` (one array) or `.parquet`.

    Rows have `question_id`, `category`, `task`, `turns` (one text), `ground_truth` and, if known,
    `livebench_release_date`. Tasks that are judged by other means than a ground truth are refused.

    Args:
        path: the file; its suffix says the format.
        sha256: as in `load_aime`.

    Raises:
        InputChanged: the file has another digest.
        UnusableInput: as `load_aime`, or the suffix is another one. Names the line or row.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise UnusableInput(
            "a question file has an unknown format",
            where=path,
            expected=sorted(_FORMATS),
            found=path.suffix,
        )
    data = _read(path, sha256)
    return _problems(_FORMATS[path.suffix](data, str(path)), _livebench)


def digest_of(path: str | Path) -> str:
    """The SHA-256 of a problem file, to be pinned.

    Raises:
        UnusableInput: the file cannot be read.
    """
    return digests.sha256_bytes(_bytes(Path(path)))


# -- rows -------------------------------------------------------------------------------------


def _aime(row: Row, where: str) -> UserProblem:
    answer = "answer" if "answer" in row else "expected_answer"
    return UserProblem(
        id=_id(row, "id", where),
        statement=_text(row, "problem", where),
        answer=_answer(row, answer, where),
        release=_release(row, "release", where),
        category=_text(row, "category", where) if "category" in row else "aime",
    )


def _livebench(row: Row, where: str) -> UserProblem:
    turns = row.get("turns")
    if not isinstance(turns, list) or len(turns) != 1:
        raise UnusableInput(
            "a question has one turn",
            where=f"{where}, turns",
            expected="a list of one text",
            found=f"{len(turns)} turns" if isinstance(turns, list) else _type(turns),
        )
    return UserProblem(
        id=_id(row, "question_id", where),
        statement=_text({"turns": turns[0]}, "turns", where),
        answer=_answer(row, "ground_truth", where),
        release=_release(row, "livebench_release_date", where),
        category=f"{_text(row, 'category', where)}/{_text(row, 'task', where)}",
    )


def _problems(
    rows: Iterator[tuple[str, Any]], made_from: Callable[[Row, str], UserProblem]
) -> tuple[UserProblem, ...]:
    problems: dict[str, UserProblem] = {}
    first: dict[str, str] = {}
    where = "the file"
    for where, row in rows:
        if not isinstance(row, dict):
            raise UnusableInput("a problem is not a JSON object", where=where, found=_type(row))
        problem = made_from(row, where)
        if problem.id in problems:
            raise UnusableInput(
                "an id occurs twice",
                where=where,
                found=problem.id,
                hint=f"first at {first[problem.id]}",
            )
        problems[problem.id], first[problem.id] = problem, where
    if not problems:
        raise UnusableInput("the file holds no problem", where=where)
    return tuple(problems.values())


def _id(row: Row, field: str, where: str) -> str:
    value = row.get(field)
    return str(value) if type(value) is int else _text(row, field, where)


def _text(row: Row, field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise UnusableInput(
            "a field is missing or not a text",
            where=f"{where}, {field}",
            expected="a text that is not blank",
            found=_type(value),
        )
    return value


def _answer(row: Row, field: str, where: str) -> int | str:
    value = row.get(field)
    if type(value) is int:
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else repr(value)
    text = _text(row, field, where).strip()
    return int(text) if _INTEGER.fullmatch(text) else text


def _release(row: Row, field: str, where: str) -> str | None:
    value = row.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, datetime.date):  # of Parquet; a datetime is a date as well
        return value.isoformat()[:10]
    found = _DATE.fullmatch(value) if isinstance(value, str) else None
    try:
        if found is not None:
            return datetime.date.fromisoformat(found[1]).isoformat()
    except ValueError:
        pass  # no such day
    raise UnusableInput(
        "a release date is not a day", where=f"{where}, {field}", expected="YYYY-MM-DD", found=value
    )


def _type(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


# -- files ------------------------------------------------------------------------------------


def _bytes(path: Path) -> bytes:
    """All of a file of bounded length."""
    try:
        # A device or pipe could be endless, or wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                raise UnusableInput(
                    "a problem file is a regular file of bounded length",
                    where=path,
                    expected=f"at most {MAX_BYTES} bytes",
                    found=f"{status.st_size} bytes, mode {stat.filemode(status.st_mode)}",
                )
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnusableInput("the problem file cannot be read", where=path, found=reason) from None
    return data


def _read(path: Path, sha256: str) -> bytes:
    """The file's bytes, which have the pinned digest."""
    if not _SHA256.fullmatch(sha256):
        raise UnusableInput(
            "a pin is no SHA-256", where=path, expected="64 hexadecimal digits", found=sha256
        )
    data = _bytes(path)
    found = digests.sha256_bytes(data)
    if found != sha256:
        raise InputChanged(
            "a problem file is not the pinned one",
            where=path,
            expected=sha256,
            found=found,
            hint="restore the file, or pin this one and call its results by another name",
        )
    return data


def _lines(data: bytes, where: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            place = f"{where}, line {number}"
            yield place, canonical.loads(line, where=place)


def _array(data: bytes, where: str) -> Iterator[tuple[str, Any]]:
    rows = canonical.loads(data, where=where, max_bytes=MAX_BYTES)
    if not isinstance(rows, list):
        raise UnusableInput("the document is not an array of rows", where=where, found=_type(rows))
    yield from ((f"{where}, row {number}", row) for number, row in enumerate(rows, start=1))


def _parquet(data: bytes, where: str) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import parquet

    try:
        rows = parquet.read_table(pa.BufferReader(data)).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnusableInput("the file is not Parquet", where=where, found=error) from None
    yield from ((f"{where}, row {number}", row) for number, row in enumerate(rows, start=1))


_FORMATS: dict[str, Callable[[bytes, str], Iterator[tuple[str, Any]]]] = {
    ".json": _array,
    ".jsonl": _lines,
    ".parquet": _parquet,
}

LOADERS: Mapping[str, Callable[[str | Path, str], tuple[UserProblem, ...]]] = {
    "aime": load_aime,
    "livebench": load_livebench,
}
"""The form in which a file holds problems, as a configuration names it -> what reads such a file,
given its path and its pin.
"""
