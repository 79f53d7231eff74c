"""The command `kvaudit`: verify a run directory, look at its manifests, print the schemas.

Parses arguments, prints, and turns errors into exit codes; everything else is in the library.
Heavy imports happen inside the commands, so that --help is immediate.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvaudit import cli_attest, cli_prereg, cli_product, cli_rescore
from kvaudit.cli_common import EXIT_CODES, Parser, add_command, colour, complain, emit, pretty
from kvaudit.cli_keys import add_root
from kvaudit.errors import TypedError, UnusableInput, printable

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from kvaudit.attest.keys import PublicKey
    from kvaudit.attest.report import AttestationReport
    from kvaudit.attest.revoked import Revoked
    from kvaudit.history import HistoryReport


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; `kvaudit.__main__` answers an interrupt.

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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kvaudit",
        description="Checks reported results from their raw evidence. Needs no engine and follows "
        "no link out of the directory. Runs nothing that it finds but the programs that a model "
        "wrote, each in a sandbox.",
        epilog=f"example:\n  kvaudit verify RUN\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    verify = add_command(
        commands,
        "verify",
        "recompute every digest, statistic and claim of a run",
        "examples:\n  kvaudit verify results/reference --history . --failing F9:gemma-3-270m\n"
        f"  kvaudit verify run.tar.zst --html verdict.html\n\n{EXIT_CODES}",
        _verify,
    )
    verify.add_argument(
        "directory",
        metavar="RUN",
        help="the directory of inputs.manifest.json, or a .tar.zst, .tar or .zip of it",
    )
    verify.add_argument("--json", action="store_true", help="print the verdict as JSON")
    verify.add_argument(
        "--write", action="store_true", help="write verdict.json into RUN instead of comparing it"
    )
    verify.add_argument(
        "--html", metavar="FILE", help="write the verdict as a page that needs nothing else, too"
    )
    verify.add_argument(
        "--explain", metavar="CLAIM", help="show what one claim rests on instead; see `explain`"
    )
    verify.add_argument(
        "--no-programs",
        action="store_true",
        help="run no recorded program again; claims that rest on them are then not run here",
    )
    verify.add_argument(
        "--failing",
        metavar="CLAIM:MODEL",
        action="append",
        help="a claim that is reported as failing: exit code 0 if these claims fail, all of them, "
        "and nothing else is wrong; repeatable",
    )
    verify.add_argument(
        "--history",
        metavar="REPO",
        help="a git repository: check that the source tree is that of the commit named",
    )

    verify.add_argument(
        "--key",
        metavar="PUB",
        action="append",
        help="a public key: check the run's attestation; repeatable",
    )
    verify.add_argument(
        "--threshold",
        metavar="N",
        type=int,
        default=1,
        help="how many of the keys must have signed (default: 1)",
    )
    verify.add_argument(
        "--revoked",
        metavar="FILE",
        action="append",
        help="a list of keys whose signatures count no longer: KEYID, or KEYID and the time from "
        "which they do not, a line; repeatable, the earliest time of a key counts",
    )
    add_root(verify)

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
    cli_product.add_commands(commands)
    cli_attest.add_commands(commands)
    cli_prereg.add_commands(commands)
    cli_rescore.add_commands(commands)
    return parser


def _verify(options: argparse.Namespace) -> int:
    from kvaudit import bundle

    if options.explain is not None:
        beside = [name for name, given in _beside_explain(options).items() if given]
        if beside:
            raise UnusableInput(
                "--explain goes with --json and --no-programs alone", found=", ".join(beside)
            )
        return cli_product.explain_claim(
            options.directory, options.explain, None, False, options.json
        )
    trust = _trust(options)
    if options.write and not os.path.isdir(options.directory):
        raise UnusableInput("a bundle is not written to", where=options.directory)
    with bundle.opened(options.directory) as folder:
        return _verify_folder(options, str(folder), trust)


def _beside_key(options: argparse.Namespace) -> dict[str, bool]:
    """Options of `verify` that mean nothing without a key, and whether they were given."""
    return {
        "--threshold": options.threshold != 1,
        "--root": bool(options.root),
        "--revoked": options.revoked is not None,
    }


def _beside_explain(options: argparse.Namespace) -> dict[str, bool]:
    """Options of `verify` that an explanation would not heed, and whether they were given."""
    return {
        "--write": options.write,
        "--html": options.html is not None,
        "--failing": options.failing is not None,
        "--history": options.history is not None,
        "--key": options.key is not None,
        **_beside_key(options),
    }


def _verify_folder(options: argparse.Namespace, folder: str, trust: _Trust) -> int:
    from kvaudit import atomic, chain, report
    from kvaudit.manifest import VERDICT
    from kvaudit.verify import reported, verify, write_verdict

    if options.html is not None:
        atomic.require_replaceable(options.html)
    verdict = verify(folder, check_verdict=not options.write, programs=not options.no_programs)
    history = None if options.history is None else _history(folder, options.history)
    if options.write:
        try:
            write_verdict(folder, verdict)
        except OSError as error:
            raise UnusableInput(
                "the verdict cannot be written",
                where=os.path.join(folder, VERDICT),
                found=error.strerror or error,
            ) from None
    attestation = _attestation(folder, trust)
    others = [other for other in (history, attestation) if other is not None]
    if options.html is not None:
        from kvaudit import html_report

        page = html_report.render(verdict, notes=[other.render() for other in others])
        cli_product.write_page(options.html, page)
    if options.json:
        value = verdict.to_json()
        if history is not None:
            value["history"] = history.to_json()
        if attestation is not None:
            value["attestation"] = attestation.to_json()
        emit(pretty(value))
    else:
        emit(report.render(verdict, colour=colour()))
        for other in others:
            emit(other.render() + "\n")
    code = verdict.exit_code
    if options.failing is not None:
        code, text = reported(verdict, options.failing)
        if not options.json:
            emit(text + "\n")
    return chain.worst([code, *(other.exit_code for other in others)])


@dataclass(frozen=True)
class _Trust:
    """Whom the reader trusts to sign and to stamp times, and whom no longer."""

    keys: Sequence[PublicKey] = ()
    threshold: int = 1
    roots: Sequence[Certificate] = ()
    revoked: Revoked | None = None


def _trust(options: argparse.Namespace) -> _Trust:
    """What was given: read before a long verification, not after it."""
    if options.key is None:
        for name, given in _beside_key(options).items():
            if given:
                raise UnusableInput(f"{name} needs --key")
        return _Trust()
    from kvaudit import timestamp
    from kvaudit.attest import dsse, keys, revoked

    public = [keys.load_public(path) for path in options.key]
    dsse.check_threshold(public, options.threshold)
    return _Trust(
        public,
        options.threshold,
        timestamp.load_roots(options.root),
        None if options.revoked is None else revoked.load(*options.revoked),
    )


def _attestation(directory: str, trust: _Trust) -> AttestationReport | None:
    """The attestation, checked where there are keys; None where there is neither."""
    from kvaudit.attest.report import UNCHECKED
    from kvaudit.manifest import ATTESTATION, ATTESTATION_STAMP

    if trust.keys:
        from kvaudit.attest import run

        return run.check_run(
            directory, trust.keys, trust.threshold, roots=trust.roots, revoked=trust.revoked
        )
    if os.path.lexists(os.path.join(directory, ATTESTATION_STAMP)):
        from kvaudit.attest import run

        return run.look(directory)
    return UNCHECKED if os.path.lexists(os.path.join(directory, ATTESTATION)) else None


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
