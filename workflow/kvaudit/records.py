"""Record files: JSON Lines, one object a line, canonical and validated against a schema.

Every stage's raw evidence has this form. What a line means is for the stage's own package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvaudit import atomic, canonical, schemas
from kvaudit.errors import UnusableInput

MAX_LINES = 200_000
"""Lines of one record file; no stage comes near it."""


def write(path: str | Path, kind: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a record file atomically, every row validated and canonical.

    Raises:
        UnusableInput: a row does not conform to the schema of `kind`.
    """
    checked = [dict(row) for row in rows]
    for number, row in enumerate(checked, start=1):
        schemas.validate(row, kind, where=f"{Path(path).name}, line {number}")
    atomic.write_bytes(path, canonical.dump_lines(checked))


def parse(data: bytes, kind: str, *, where: str) -> list[dict[str, Any]]:
    """Reads a record file strictly.

    Args:
        data: the whole file.
        kind: the kind of its lines.
        where: the file's path in the run directory.

    Raises:
        UnusableInput: not canonical JSON Lines, or a line does not conform; names the line.
    """
    lines = data.count(b"\n")
    if lines > MAX_LINES:
        raise UnusableInput(
            "the record file has too many lines",
            where=where,
            expected=f"at most {MAX_LINES}",
            found=lines,
        )
    rows = canonical.loads_lines(data, where)
    for number, row in enumerate(rows, start=1):
        schemas.validate(row, kind, where=f"{where}, line {number}")
    return rows


def read_folder(stage_folder: str | Path, kinds: Mapping[str, str]) -> dict[str, list[Any]]:
    """Reads the records that a stage itself has just written; the verifier reads by `safefs`.

    Args:
        stage_folder: where the stage writes.
        kinds: record file, relative to it -> kind of its lines.

    Returns:
        Record file -> its rows.

    Raises:
        UnusableInput: as `parse`.
        OSError: a record file is absent.
    """
    return {
        name: parse((Path(stage_folder) / name).read_bytes(), kind, where=name)
        for name, kind in kinds.items()
    }
