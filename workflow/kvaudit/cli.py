"""The command `kvaudit`: verify a run directory, look at its manifests, print the schemas.

Parses arguments, prints, and turns errors into exit codes; everything else is in the library.
Heavy imports happen inside the commands, so that --help is immediate.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvaudit.cli_common import EXIT_CODES, Parser, add_command, colour, complain, emit, pretty
from kvaudit.errors import TypedError, UnusableInput, printable

if TYPE_CHECKING:
    from kvaudit.history import HistoryReport


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    Args:
        arguments: without the program's name; those of the process otherwise.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        options = _parser().parse_args(arguments)
        code: int = options.command(options)
        return code
    except TypedError as error:
        complain(error.message())
        return error.exit_code
    except KeyboardInterrupt:
        complain("interrupted")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kvaudit",
        description="Checks reported results from their raw evidence. Needs no engine and follows "
        "no link out of the directory. Runs nothing that it finds but the programs that a model "
        "wrote, each in a sandbox.",
        epilog=f"example:\n  kvaudit verify results/reference\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    verify = add_command(
        commands,
        "verify",
        "recompute every digest, statistic and claim of a run directory",
        f"example:\n  kvaudit verify results/reference --history .\n\n{EXIT_CODES}",
        _verify,
    )
    verify.add_argument("directory", metavar="DIR", help="the directory of inputs.manifest.json")
    verify.add_argument("--json", action="store_true", help="print the verdict as JSON")
    verify.add_argument(
        "--write", action="store_true", help="write verdict.json into DIR instead of comparing it"
    )
    verify.add_argument(
        "--no-programs",
        action="store_true",
        help="run no recorded program again; claims that rest on them are then not run here",
    )
    verify.add_argument(
        "--history",
        metavar="REPO",
        help="a git repository: check that the source tree is that of the commit named",
    )

    manifest = add_command(
        commands,
        "manifest",
        "show the manifests of a run directory, or validate one file",
        "examples:\n  kvaudit manifest results/reference\n"
        "  kvaudit manifest --check results/reference/run.manifest.json\n\n"
        "exit codes:\n  0  shown, valid\n  2  unusable\n  3  a manifest is absent\n",
        _manifest,
    )
    manifest.add_argument("directory", metavar="DIR", nargs="?", help="a run directory")
    manifest.add_argument("--check", metavar="FILE", help="validate this manifest alone")
    manifest.add_argument("--json", action="store_true", help="print as JSON")

    plots = add_command(
        commands,
        "plots",
        "draw the plots of a run from its records",
        "example:\n  kvaudit plots results/reference --into plots\n\n"
        "exit codes:\n  0  drawn\n  2  unusable records\n"
        "  3  records are absent, no stage has a plot, or matplotlib is not installed\n",
        _plots,
    )
    plots.add_argument("directory", metavar="DIR", help="a run directory")
    plots.add_argument("--into", metavar="FOLDER", required=True, help="where the SVG files go")

    schema = add_command(
        commands,
        "schema",
        "list the document kinds, or print the schema of one",
        "example:\n  kvaudit schema stage\n\nexit codes:\n  0  printed\n  2  no such kind\n",
        _schema,
    )
    schema.add_argument("kind", metavar="KIND", nargs="?", help="e.g. inputs, stage, run")
    schema.add_argument("--json", action="store_true", help="list as JSON")
    return parser


def _verify(options: argparse.Namespace) -> int:
    from kvaudit import report
    from kvaudit.manifest import VERDICT
    from kvaudit.verify import FAILED, INCOMPLETE, VERIFIED, verify, write_verdict

    verdict = verify(
        options.directory, check_verdict=not options.write, programs=not options.no_programs
    )
    history = None if options.history is None else _history(options.directory, options.history)
    if options.write:
        try:
            write_verdict(options.directory, verdict)
        except OSError as error:
            raise UnusableInput(
                "the verdict cannot be written",
                where=os.path.join(options.directory, VERDICT),
                found=error.strerror or error,
            ) from None
    if options.json:
        value = verdict.to_json()
        if history is not None:
            value["history"] = history.to_json()
        emit(pretty(value))
    else:
        emit(report.render(verdict, colour=colour()))
        if history is not None:
            emit(history.render() + "\n")
    codes = {verdict.exit_code, history.exit_code if history else VERIFIED}
    return next((code for code in (FAILED, INCOMPLETE) if code in codes), VERIFIED)


def _history(directory: str, repository: str) -> HistoryReport:
    from kvaudit import history, manifest

    inputs = manifest.read(os.path.join(directory, manifest.INPUTS), "inputs")
    return history.check(repository, inputs)


def _manifest(options: argparse.Namespace) -> int:
    from kvaudit import canonical, chain, manifest
    from kvaudit.safefs import SafeRoot

    if (options.directory is None) == (options.check is None):
        raise UnusableInput("give either DIR or --check FILE")
    if options.check is not None:
        folder, name = os.path.split(options.check)
        with SafeRoot(folder or ".") as root:
            data = root.read(name, max_bytes=manifest.MAX_MANIFEST_BYTES)
        kind = canonical.loads(data, where=name, max_bytes=manifest.MAX_MANIFEST_BYTES)
        kind = kind.get("kind") if isinstance(kind, dict) else None
        if kind not in ("inputs", "stage", "run"):
            raise UnusableInput("the file is not a manifest", where=name, found=f"kind {kind}")
        value = manifest.parse(data, kind, where=name)
        emit(pretty(value) if options.json else f"{printable(name)}: a valid {kind} manifest\n")
        return 0
    with SafeRoot(options.directory) as root:
        documents = chain.read(root, root.walk())
        shown: dict[str, Any] = {manifest.INPUTS: documents.inputs}
        for folder, stage in documents.stages.items():
            shown[f"{folder}/{manifest.STAGE}"] = stage
        if documents.run_sha256 is not None:
            data = root.read(manifest.RUN, max_bytes=manifest.MAX_MANIFEST_BYTES)
            shown[manifest.RUN] = manifest.parse(data, "run", where=manifest.RUN)
    if options.json:
        emit(pretty(shown))
    else:
        emit("".join(f"# {name}\n{pretty(value)}" for name, value in shown.items()))
    return 3 if documents.unreadable or documents.run_sha256 is None else 0


def _plots(options: argparse.Namespace) -> int:
    from kvaudit import plots

    for path in plots.draw(options.directory, options.into):
        emit(f"{path}\n")
    return 0


def _schema(options: argparse.Namespace) -> int:
    from kvaudit import schemas

    if options.kind is not None:
        emit(schemas.text(options.kind))
    elif options.json:
        emit(pretty(list(schemas.kinds())))
    else:
        emit("".join(f"{kind}\n" for kind in schemas.kinds()))
    return 0
