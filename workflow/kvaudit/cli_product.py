"""The commands `kvaudit explain`, `kvaudit diff` and `kvaudit pack`, and what `verify` shares.

A run is a folder or a bundle of one everywhere.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from kvaudit.cli_common import add_command, emit, pretty
from kvaudit.errors import UnusableInput, printable


def add_commands(commands: Any) -> None:
    """Adds the commands to what `add_subparsers` returned."""
    explain = add_command(
        commands,
        "explain",
        "walk from a claim to the records and digests that it rests on",
        "examples:\n  kvaudit explain results/reference E1\n"
        "  kvaudit explain run.tar.zst P2 --model gemma-3-270m --json\n"
        "  kvaudit explain results/reference F3 --programs\n\n"
        "exit codes:\n  0  the claim does not fail and its evidence is sound\n"
        "  1  the claim or its evidence fails\n  2  unusable run, or no such claim\n"
        "  3  something that the manifests promise is not there\n",
        _explain,
    )
    explain.add_argument("run", metavar="RUN", help="a run directory or a bundle of one")
    explain.add_argument("claim", metavar="CLAIM", help="its id, e.g. E1")
    explain.add_argument("--model", metavar="M", help="of this model alone")
    explain.add_argument(
        "--programs",
        action="store_true",
        help="run the recorded programs again that the claim rests on; without it such a claim is "
        "not run here, and its verdict as recorded is shown beside that",
    )
    explain.add_argument("--json", action="store_true", help="print as JSON")

    diff = add_command(
        commands,
        "diff",
        "say what differs between two runs, and whether it matters",
        "example:\n  kvaudit diff results/reference results/default\n\n"
        "Readings of clock, load, page cache and memory, dates and the host do not matter.\n\n"
        "exit codes:\n  0  the same in substance\n"
        "  1  they differ in substance, or the verifier has findings about one of them\n"
        "  2  one of them is unusable\n  3  one of them has no inputs manifest\n",
        _diff,
    )
    diff.add_argument("a", metavar="RUN_A", help="a run directory or a bundle of one")
    diff.add_argument("b", metavar="RUN_B", help="the other")
    diff.add_argument(
        "--programs",
        action="store_true",
        help="run the recorded programs of both again, to judge the claims that rest on them",
    )
    diff.add_argument("--json", action="store_true", help="print as JSON")

    pack = add_command(
        commands,
        "pack",
        "put a sealed run into one file, always of the same bytes",
        "example:\n  kvaudit pack results/reference reference.tar.zst\n\n"
        "exit codes:\n  0  written\n  2  unusable run, or FILE exists\n"
        "  3  the run is not sealed\n",
        _pack,
    )
    pack.add_argument("run", metavar="RUN", help="a run directory")
    pack.add_argument("file", metavar="FILE", help="a new file: .tar.zst, .zip or .tar")
    pack.add_argument("--json", action="store_true", help="print name, length and digest as JSON")


def write_page(path: str, page: bytes) -> None:
    """Writes an HTML page where `verify --html` wants it.

    Raises:
        UnusableInput: it cannot be written.
    """
    from kvaudit import atomic

    try:
        atomic.write_bytes(path, page)
    except OSError as error:
        raise UnusableInput(
            "the page cannot be written", where=path, found=error.strerror or error
        ) from None


def _explain(options: argparse.Namespace) -> int:
    return explain_claim(options.run, options.claim, options.model, options.programs, options.json)


def explain_claim(run: str, claim: str, model: str | None, programs: bool, as_json: bool) -> int:
    """What `kvaudit explain` does, and `kvaudit verify --explain`; returns the exit code."""
    from kvaudit import bundle, chain
    from kvaudit.explain import explain
    from kvaudit.explain_text import render

    with bundle.opened(run) as folder:
        found = explain(folder, claim, model=model, programs=programs)
    if as_json:
        emit(pretty([one.to_json() for one in found]))
    else:
        emit("\n".join(render(one) for one in found))
    return chain.worst(one.exit_code for one in found)


def _diff(options: argparse.Namespace) -> int:
    from kvaudit import bundle, chain
    from kvaudit.diff import diff
    from kvaudit.diff_report import render

    with bundle.opened(options.a) as a, bundle.opened(options.b) as b:
        comparison = diff(a, b, programs=options.programs)
    emit(pretty(comparison.to_json()) if options.json else render(comparison))
    sound = comparison.same and not any(comparison.findings)
    return chain.VERIFIED if sound else chain.FAILED


def _pack(options: argparse.Namespace) -> int:
    from kvaudit import pack

    sha256 = pack.pack(options.run, options.file)
    size = Path(options.file).stat().st_size
    if options.json:
        name = os.path.basename(options.file)
        emit(pretty({"file": name, "bytes": size, "sha256": sha256}))
    else:
        emit(f"{printable(options.file)}: {size:,} bytes\nsha256 {sha256}\n")
    return 0
