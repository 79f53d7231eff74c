"""Keys and certificates on a command line: which files, and where passwords come from.

A password is a file's first line, or is asked for at the terminal; it never comes as an argument
or from standard input. This module must not know what is signed.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from kvaudit.errors import EvidenceIncomplete, UnusableInput, printable

if TYPE_CHECKING:
    from kvaudit.attest.keys import PrivateKey

MAX_PASSWORD_FILE_BYTES = 4096


def add_key(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Adds `--key`, which may be repeated, and `--password-file`."""
    parser.add_argument(
        "--key",
        metavar="FILE",
        action="append",
        default=None if required else [],
        required=required,
        help="a private key to sign with; repeatable",
    )
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        help="its first line is the password of the keys that have one; asked for otherwise",
    )


def add_root(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Adds `--root`, which may be repeated."""
    parser.add_argument(
        "--root",
        metavar="CERT",
        action="append",
        default=None if required else [],
        required=required,
        help="a root certificate that is trusted to stamp times; repeatable",
    )


def private_keys(options: argparse.Namespace) -> list[PrivateKey]:
    """The keys that `add_key`'s options name, in their order.

    Raises:
        EvidenceIncomplete: a file is absent.
        UnusableInput: a file holds no private key, or no password that opens it.
    """
    from kvaudit.attest import keys

    held = []
    given = None if options.password_file is None else password_of(options.password_file)
    for path in options.key:
        password = None
        if keys.needs_password(path):
            password = given or ask(f"password of {printable(path)}: ")
        held.append(keys.load_private(path, password))
    return held


def ask(prompt: str) -> bytes:
    """A password from the terminal, never from standard input that is something else.

    Raises:
        UnusableInput: there is no terminal, or nothing was typed.
    """
    import getpass

    if sys.stdin is None or not sys.stdin.isatty():
        raise UnusableInput(
            "there is no terminal to ask for the password", hint="--password-file FILE"
        )
    try:
        return getpass.getpass(prompt).encode()
    except (EOFError, OSError):
        raise UnusableInput("no password was given") from None


def password_of(path: str) -> bytes:
    """The first line of a file, which may be a pipe.

    Raises:
        EvidenceIncomplete: the file is absent.
        UnusableInput: it cannot be read or is too long, or its first line is empty.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_PASSWORD_FILE_BYTES + 1)
    except FileNotFoundError:
        raise EvidenceIncomplete("there is no such password file", where=path) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnusableInput("the password file cannot be read", where=path, found=reason) from None
    line = data.split(b"\n", 1)[0].removesuffix(b"\r")
    if not line or len(data) > MAX_PASSWORD_FILE_BYTES:
        raise UnusableInput(
            "the password file's first line is no password",
            where=os.fspath(path),
            expected=f"a line that is not empty, in at most {MAX_PASSWORD_FILE_BYTES} bytes",
            found="an empty line" if not line else "a longer file",
        )
    return line
