"""Plots of a run, drawn from its records: `kvaudit plots RUN --into FOLDER`.

A plot is for the eye and never evidence: it lies outside the run's folder, and anyone can draw it
again. Only records whose digest the manifests name are drawn. Needs matplotlib, which the verifier
does not.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kvaudit import atomic, chain
from kvaudit.errors import EvidenceIncomplete, ToolMissing, UnusableInput
from kvaudit.safefs import SafeRoot
from kvaudit.stagecheck import listed_rows
from kvaudit.stagekind import Rows
from kvaudit.stagekinds import KINDS


def draw(run_folder: str | Path, into: str | Path) -> list[Path]:
    """Draw every plot of every stage that has some.

    Args:
        run_folder: the directory that holds inputs.manifest.json.
        into: a folder, made if it is absent; regular files of the same name in it are replaced.

    Returns:
        The files written, SVG.

    Raises:
        ToolMissing: matplotlib is not installed.
        UnusableInput: a record file is not the one that its manifest names, or not readable; or
            `into` cannot be written, or has a link or device of a plot's name.
        EvidenceIncomplete: a record file is absent, or no stage of the run has a plot.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ToolMissing(
            "plots need matplotlib", hint="pip install matplotlib; nothing else here needs it"
        )
    found: dict[str, dict[str, Rows]] = {}
    with SafeRoot(run_folder) as root:
        documents = chain.read(root, root.walk())
        for folder, stage in documents.stages.items():
            kind = KINDS[stage["stage"]]
            if kind.draw is not None:
                rows = listed_rows(root, folder, kind, stage["outputs"])
                found.setdefault(kind.name, {})[stage["subject"]] = rows
    if not found:
        raise EvidenceIncomplete("no stage of this run has a plot", where=run_folder)
    target = Path(into)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="kvaudit-plots-") as scratch:
            drawn = [path for name in sorted(found) for path in _drawn(name, found[name], scratch)]
            written = [target / path.name for path in drawn]
            for path in written:
                atomic.require_replaceable(path)
            for path, source in zip(written, drawn, strict=True):
                atomic.write_bytes(path, source.read_bytes())
    except OSError as error:
        raise UnusableInput(
            "plots cannot be written there", where=target, found=error.strerror
        ) from error
    return written


def _drawn(name: str, rows_by_model: Mapping[str, Rows], folder: str) -> list[Path]:
    """The plots of one stage, in a folder of our own: what draws would follow a link."""
    function = KINDS[name].draw
    assert function is not None
    try:
        return function(rows_by_model, Path(folder))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UnusableInput(
            f"nothing can be drawn from the records: {type(error).__name__}",
            where=name,
            hint="kvaudit verify says what does not agree",
        ) from error
