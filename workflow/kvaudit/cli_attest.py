"""The commands `kvaudit keygen`, `kvaudit sign`, `kvaudit timestamp` and `kvaudit crate`."""

from __future__ import annotations

import argparse
import os
from typing import Any

from kvaudit.cli_common import add_command, emit, pretty, send_request_text
from kvaudit.cli_keys import add_key, add_root, ask, password_of, private_keys
from kvaudit.errors import UnusableInput, printable


def add_commands(commands: Any) -> None:
    """Adds the commands to what `add_subparsers` returned."""
    keygen = add_command(
        commands,
        "keygen",
        "make an Ed25519 key pair: PATH for you alone, PATH.pub for everybody",
        "example:\n  kvaudit keygen ~/.config/kvaudit/signer.pem --password\n\n"
        "exit codes:\n  0  made\n  2  a file exists already, or cannot be written\n",
        _keygen,
    )
    keygen.add_argument(
        "path",
        metavar="PATH",
        help="the private key's file; must not exist. Missing folders above it are made, for you "
        "alone",
    )
    group = keygen.add_mutually_exclusive_group()
    group.add_argument("--password", action="store_true", help="ask for a password of the key")
    group.add_argument(
        "--password-file", metavar="FILE", help="the password is this file's first line"
    )

    sign = add_command(
        commands,
        "sign",
        "verify a run and sign its evidence and verdict",
        "example:\n  kvaudit sign results/reference --key signer.pem\n"
        "  kvaudit verify results/reference --key signer.pem.pub\n\n"
        "exit codes:\n  0  signed\n  1  the run does not verify, or a claim fails: not signed\n"
        "  2  unusable run, key or envelope: not signed\n"
        "  3  something of the run is not there, or its programs cannot be run again here:\n"
        "     not signed\n",
        _sign,
    )
    sign.add_argument("directory", metavar="RUN", help="a sealed run with its verdict.json")
    add_key(sign, required=True)
    sign.add_argument(
        "--replace",
        action="store_true",
        help="drop an attestation of what this run no longer is, with its signatures",
    )
    sign.add_argument(
        "--drop-stamp",
        action="store_true",
        help="drop a time stamp that another signature makes void",
    )
    sign.add_argument(
        "--failed-claims",
        action="store_true",
        help="sign sound evidence although a claim fails: a negative result",
    )
    sign.add_argument("--json", action="store_true", help="print what was done as JSON")

    _add_stamping(commands)

    crate = add_command(
        commands,
        "crate",
        "export a run as an RO-Crate of the Workflow Run profile",
        "examples:\n  kvaudit crate results/reference --into crate\n"
        "  kvaudit crate results/reference --into crate.zip\n\n"
        "exit codes:\n  0  written\n  1  the evidence does not verify: nothing is written\n"
        "  2  unusable run, or INTO exists\n  3  the run is incomplete: nothing is written\n",
        _crate,
    )
    crate.add_argument("directory", metavar="RUN", help="a sealed run with its verdict.json")
    crate.add_argument(
        "--into", metavar="INTO", required=True, help="a new folder, or a new file ending in .zip"
    )
    crate.add_argument(
        "--source",
        metavar="REPO",
        default=".",
        help="the source tree or its git history, for Snakefile, rules and scripts (default: .)",
    )
    crate.add_argument(
        "--license",
        metavar="SPDX",
        default="Apache-2.0",
        help="of the evidence (default: %(default)s)",
    )


def _add_stamping(commands: Any) -> None:
    stamp = add_command(
        commands,
        "timestamp",
        "ask for an RFC 3161 time stamp of a run's attestation, and take the reply; both are files",
        "example:\n  kvaudit timestamp request results/mine mine.tsq\n"
        "  kvaudit timestamp accept results/mine mine.tsr --root tsa-root.pem\n"
        "  kvaudit verify results/mine --key signer.pem.pub --root tsa-root.pem\n",
        lambda options: 2,
    )
    kinds = stamp.add_subparsers(metavar="WHAT", required=True)
    made = {}
    for name, summary, example, done, function in (
        (
            "request",
            "write the request, which is sent to an authority when everybody has signed",
            "request results/mine mine.tsq",
            "written",
            _request,
        ),
        (
            "accept",
            "check a reply against root certificates and add it to the run",
            "accept results/mine mine.tsr --root tsa-root.pem",
            "accepted",
            _accept,
        ),
    ):
        epilog = (
            f"example:\n  kvaudit timestamp {example}\n\nexit codes:\n  0  {done}\n"
            "  2  unusable run, envelope or file\n  3  the run is not signed\n"
        )
        made[name] = add_command(kinds, name, summary, epilog, function)
        made[name].add_argument("directory", metavar="RUN", help="a signed run")
    made["request"].add_argument("file", metavar="FILE.tsq", help="a new file")
    made["accept"].add_argument("reply", metavar="FILE.tsr", help="what the authority sent")
    add_root(made["accept"], required=True)


def _keygen(options: argparse.Namespace) -> int:
    from kvaudit.attest import keys

    password = None
    if options.password_file is not None:
        password = password_of(options.password_file)
    elif options.password:
        password = ask("password: ")
        if ask("once more: ") != password:
            raise UnusableInput("the two passwords differ; no key was made")
    keys.generate(options.path, password)
    public = keys.load_public(f"{options.path}{keys.PUBLIC_SUFFIX}")
    secrecy = "no password" if password is None else "with a password"
    emit(
        f"private key {printable(options.path)} (mode 0600, {secrecy})\n"
        f"public key  {printable(options.path)}{keys.PUBLIC_SUFFIX}\n"
        f"key id      {public.keyid}\n"
    )
    return 0


def _sign(options: argparse.Namespace) -> int:
    from kvaudit.attest import run

    done = run.sign_run(
        options.directory,
        private_keys(options),
        replace=options.replace,
        drop_stamp=options.drop_stamp,
        failed_claims=options.failed_claims,
    )
    if options.json:
        emit(pretty(done.to_json()))
        return 0
    for keyid in done.added:
        emit(f"signed by key {keyid}\n")
    if not done.added:
        emit("nothing to do: these keys have signed this run already\n")
    emit(
        f"{done.subjects} files and the verdict `{done.verdict.status}`, "
        f"{done.signatures} signature{'' if done.signatures == 1 else 's'}\n"
    )
    return 0


def _request(options: argparse.Namespace) -> int:
    from kvaudit import atomic
    from kvaudit.attest import stamp
    from kvaudit.safefs import lies_inside

    data = stamp.request(options.directory)
    if os.path.lexists(options.file):
        raise UnusableInput(
            "the request cannot be written", where=options.file, found="the file exists already"
        )
    if lies_inside(options.file, options.directory):
        raise UnusableInput("the request would lie inside the run", where=options.file)
    try:
        atomic.sweep(options.file)
        atomic.write_bytes(options.file, data)
    except OSError as error:
        raise UnusableInput(
            "the request cannot be written", where=options.file, found=error.strerror or error
        ) from None
    emit(send_request_text(options.file, f"timestamp accept {options.directory}"))
    return 0


def _accept(options: argparse.Namespace) -> int:
    from kvaudit import timestamp
    from kvaudit.attest import stamp
    from kvaudit.safefs import read_file

    found = stamp.accept(
        options.directory,
        read_file(options.reply, timestamp.MAX_BYTES),
        timestamp.load_roots(options.root),
        where=options.reply,
    )
    emit(f"accepted: its signatures existed no later than {found.text}\n")
    return 0


def _crate(options: argparse.Namespace) -> int:
    from kvaudit import crate

    written = crate.export(
        options.directory, options.into, source=options.source, licence=options.license
    )
    emit(f"{printable(options.into)}: {written} files\n")
    return 0
