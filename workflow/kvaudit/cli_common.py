"""What every command of `kvaudit` needs: its parser, its exit codes, and its way to print.

Modules `cli_*` add their commands with `add_command`; nothing here imports more than argparse.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from kvaudit.errors import UnusableInput, printable

EXIT_CODES = """\
exit codes:
  0  verified: every digest, statistic and claim was recomputed and agrees
  1  evidence or a claim fails; the report names the file
  2  unusable input: one line on standard error says what and where
  3  incomplete: something that the manifests promise is not there, or how a program ends
     here neither confirms nor contradicts its record
"""


class Parser(argparse.ArgumentParser):
    """Usage errors are unusable input too: argparse's exit code 2 is the right one already."""

    def error(self, message: str) -> Any:
        """One line on standard error, and exit code 2."""
        complain(f"{printable(message)} (see {self.prog} --help)")
        sys.exit(2)

    def _print_message(self, message: str, file: Any = None) -> None:
        emit(message)


def add_command(
    commands: Any,
    name: str,
    summary: str,
    epilog: str,
    function: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Adds a command and returns its parser.

    Args:
        commands: what `add_subparsers` returned.
        name: of the command.
        summary: one line for --help.
        epilog: examples and exit codes.
        function: takes the parsed options, returns the exit code.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=function)
    return parser


def pretty(value: Any) -> str:
    """JSON for people: indented, keys sorted."""
    import json

    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def send_request_text(name: str, then: str) -> str:
    """What to do with a written request for a time stamp, in three lines.

    Args:
        name: of the request's file.
        then: the arguments of kvaudit that take the reply.
    """
    name = printable(name)
    return (
        f"{name}: send it to a time-stamping authority, e.g.\n"
        f"  curl -H 'Content-Type: application/timestamp-query' --data-binary @{name} "
        "URL > reply.tsr\n"
        f"then: kvaudit {printable(then)} reply.tsr --root CERT\n"
    )


def colour() -> bool:
    """Whether standard output is a terminal that wants colours."""
    return sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ


def emit(text: str) -> None:
    """Writes to standard output; a reader who has gone away changes nothing about the verdict.

    Raises:
        UnusableInput: standard output is closed or cannot be written.
    """
    try:
        if sys.stdout is None:
            raise UnusableInput("standard output is closed")
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        raise UnusableInput(
            "standard output cannot be written", found=error.strerror or error
        ) from None


def complain(text: str) -> None:
    """Writes the one line of an error, if there is somewhere to write it."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"kvaudit: {text}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: Any) -> None:
    """Lets what is still in a stream's buffer go nowhere when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
