"""One file scored again, from its bytes to the report.

This module must not print.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from kvaudit import records
from kvaudit.errors import InputChanged, UnusableInput
from kvaudit.rescore import adapters, programs, report, rows, scoring
from kvaudit.rescore.adapters import Published
from kvaudit.rescore.report import Report
from kvaudit.safefs import SafeRoot


def run(
    format: str,
    path: str | Path,
    *,
    published: str | None = None,
    run_programs: bool = True,
    workers: int | None = None,
) -> Report:
    """Scores one file again.

    Args:
        format: a name of `adapters.names()`.
        path: the file; what belongs to it is looked for where its format says.
        published: a figure in percent, in place of the one that lies with the file.
        run_programs: whether to run programs again where the rows have some.
        workers: sandboxes side by side.

    Raises:
        UnusableInput: no such format, the file is not of it, or the figure is no percentage.
        InputChanged: the file changed while it was scored.
        EvidenceIncomplete: the file, or one that belongs to it, is absent.
        SandboxUnavailable, ToolMissing: a sandbox is needed and this machine has none.
    """
    adapter = adapters.load(format)
    if published is not None:
        report.percent(published)
    folder, name = _place(path, adapter.above)
    with SafeRoot(folder) as root:
        digest = _digest(root, name)
        found = list(adapter.rows(root, name))
        figure = adapter.published(root, name)
        # An adapter opens the file by itself: the report names the bytes that it has read.
        if _digest(root, name) != digest:
            raise InputChanged("the file changed while it was scored", where=path, expected=digest)
    if not found:
        raise UnusableInput("the file has no rows", where=path)
    if published is not None:
        figure = Published(published, "given on the command line")
    scored = scoring.score(found, adapter.rule, workers)
    reruns = None
    if run_programs and any(row.program is not None for row in found):
        reruns = programs.rerun(scored, workers)
    return Report(adapter.name, str(path), digest, scored, figure, reruns)


def write_rows(path: str | Path, result: Report) -> None:
    """Writes the rows of a report as records of kind `rescore-row`.

    Raises:
        OSError: the file cannot be written.
    """
    records.write(path, rows.SCHEMA, (item.row.to_json() for item in result.scored))


def _digest(root: SafeRoot, name: str) -> str:
    digest = hashlib.sha256()
    for piece in root.stream(name):
        digest.update(piece)
    return digest.hexdigest()


def _place(path: str | Path, above: int) -> tuple[str, str]:
    """The folder that is opened, and the file's path beneath it."""
    parts = os.path.abspath(path).split(os.sep)
    cut = len(parts) - 1 - above
    if cut < 1:
        raise UnusableInput("the file does not lie deep enough for its format", where=path)
    return os.sep.join(parts[:cut]) or os.sep, "/".join(parts[cut:])
