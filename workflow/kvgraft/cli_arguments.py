"""The arguments of `kvgraft`: commands, options, help texts. What a command does is in `cli`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from kvaudit.errors import printable
from kvgraft import cli_problems, cli_recheck, cli_selftest
from kvgraft.cli_common import default_store, emit, version

_EXIT_CODES = """\
exit codes:
  0  done; what was compared is equal, what was checked is sound
  1  a check fails: bytes differ, inspect or fsck finds damage, the machine is not deterministic,
     a deposit's program does not print its answer, an import refuses an entry
  2  unusable input, a damaged block among it: one line on standard error says what and where
  3  something needed is not installed or incomplete
"""


class _Parser(argparse.ArgumentParser):
    """Usage errors are unusable input too: argparse's exit code 2 is the right one already."""

    def error(self, message: str) -> Any:
        self.exit(2, f"kvgraft: {printable(message)} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            emit(message)
        else:
            super()._print_message(message, file)


def _command(
    commands: Any, name: str, summary: str, example: str, *, json: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=name)
    if json:
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _named(text: str) -> str:
    """A folder or URL; an empty name would mean the working folder without saying so."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="DIR",
        type=_named,
        default=default_store(),
        help="folder or URL of the block store (default: $KVGRAFT_STORE, or %(default)s)",
    )


def _add_model(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--model", metavar="MODEL", help=help)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_positive.__name__ = "positive number"  # argparse puts it into its message


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1.0:
        raise ValueError
    return value


_share.__name__ = "probability"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of one call; `command` is the name of the command.

    Args:
        arguments: without the program's name; those of the process otherwise.

    Raises:
        SystemExit: after --help (0), or wrong usage (2) and one line on standard error.
    """
    whole = parser()
    options, rest = whole.parse_known_args(arguments)
    # Before Python 3.12.7 argparse takes TEXT for absent when an option stands in front of it.
    if len(rest) == 1 and getattr(options, "text", "") is None and not _is_option(rest[0]):
        options.text = rest.pop()
    if rest:
        whole.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and argument != "-" and " " not in argument


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; use `parse`, which knows a trap of it."""
    out = _Parser(
        prog="kvgraft",
        description="Keeps what a language model computed for a text, and restores it byte for "
        "byte where the text was read.",
        epilog="example:\n  kvgraft doctor\n"
        "  kvgraft capture smollm2-135m --file notes.txt\n"
        "  kvgraft graft 3fa4c1 'Question: who signed it? Answer:' --check\n\n" + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--version", action="version", version=f"kvgraft {version()}")
    commands = out.add_subparsers(metavar="COMMAND", required=True)
    _add_block_commands(commands)
    _add_store_commands(commands)
    _add_library_commands(commands)
    cli_problems.add_commands(commands, _command)
    cli_recheck.add_commands(commands, _command)
    cli_selftest.add_commands(commands, _command)

    pin = _command(
        commands,
        "pin",
        "write the identity of a model file into a pins file",
        "kvgraft pin model.gguf --name mine --into pins.json",
    )
    pin.add_argument("file", metavar="FILE", help="a GGUF file")
    pin.add_argument("--name", required=True, help="its name in configurations and records")
    pin.add_argument("--into", required=True, metavar="PINS.json", help="made if absent")
    pin.add_argument("--licence", help="licence of the weights (default: unknown)")
    return out


def _add_block_commands(commands: Any) -> None:
    doctor = _command(
        commands,
        "doctor",
        "say what is installed, what is missing, and whether this machine is deterministic",
        "kvgraft doctor",
    )
    _add_model(doctor, "read with this model: a name or a path (default: the smallest at hand)")

    capture = _command(
        commands,
        "capture",
        "read a text and store what the model computed for it",
        "kvgraft capture smollm2-135m --file notes.txt --store blocks",
    )
    capture.add_argument("model", metavar="MODEL", help="an embedded model or a GGUF file")
    capture.add_argument("text", metavar="TEXT", nargs="?", help="the text, or - for stdin")
    capture.add_argument("--file", metavar="PATH", help="read the text from a file")
    _add_store(capture)
    capture.add_argument(
        "--profile",
        choices=("split-invariant", "stock", "portable"),
        default="split-invariant",
        help="whether bytes are independent of batches, or the engine's own kernels are used, or "
        "bytes are the same on every processor (that takes a build of its own: make portable)",
    )
    capture.add_argument(
        "--n-ctx",
        type=_positive,
        metavar="N",
        help="tokens of context (default: 2048, more for a longer text)",
    )
    capture.add_argument("--threads", type=_positive, metavar="N", help="engine threads")

    graft = _command(
        commands,
        "graft",
        "restore a block and answer a prompt behind it, greedily",
        "kvgraft graft 3fa4c1 'Question: who signed it? Answer:' --check",
    )
    graft.add_argument("block", metavar="BLOCK", help="an id, the beginning of one, or a .kvb file")
    graft.add_argument("prompt", metavar="PROMPT", help="what to read behind it, or - for stdin")
    _add_store(graft)
    graft.add_argument(
        "--check",
        action="store_true",
        help="compute the same text in a new process and compare every byte of the logits",
    )
    graft.add_argument(
        "--inexact", action="store_true", help="accept a block of another execution profile"
    )
    graft.add_argument(
        "--max-tokens", type=_positive, default=64, metavar="N", help="longest answer (default: 64)"
    )
    _add_model(graft, "the block's model, if it is not an embedded one: its path")

    inspect = _command(
        commands,
        "inspect",
        "show what a block says of itself and verify its bytes; needs no engine",
        "kvgraft inspect 3fa4c1",
    )
    inspect.add_argument("block", metavar="BLOCK", help="an id, the beginning of one, or a file")
    _add_store(inspect)
    _add_model(inspect, "the block's model, to show the text if it is not an embedded one")


def _add_store_commands(commands: Any) -> None:
    store = commands.add_parser(
        "store",
        help="look after a block store",
        description="Look after a block store.",
        epilog=f"example:\n  kvgraft store fsck --store blocks\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = store.add_subparsers(metavar="ACTION", required=True)
    ls = _command(parts, "ls", "list the blocks", "kvgraft store ls")
    put = _command(
        parts, "put", "take in block files, all or none", "kvgraft store put a.kvb b.kvb"
    )
    put.add_argument("files", metavar="FILE", nargs="+", help="block files")
    get = _command(
        parts, "get", "write a verified block to a file", "kvgraft store get 3fa4c1 a.kvb"
    )
    get.add_argument("block", metavar="ID", help="an id or the beginning of one")
    get.add_argument("destination", metavar="DEST", help="a new file, or a folder")
    fsck = _command(parts, "fsck", "verify every block", "kvgraft store fsck --json")
    gc = _command(
        parts,
        "gc",
        "remove what dead writers left, and on request every block that is not kept",
        "kvgraft store gc --keep 3fa4c1",
    )
    gc.add_argument(
        "--keep",
        metavar="ID",
        action="append",
        help="remove every block but this one and its parents; may be repeated",
    )
    gc.add_argument(
        "--min-age",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="leave younger temporaries alone (default: 60)",
    )
    for one in (ls, put, get, fsck, gc):
        _add_store(one)


def _add_library_commands(commands: Any) -> None:
    deposit = _command(
        commands,
        "deposit",
        "run a program in the sandbox and, if it prints the answer, keep it in a library",
        "kvgraft deposit lib --model smollm2-135m --statement 'How many ...?' \\\n"
        "    --program solve.py --answer 42 --author me",
    )
    _add_library(deposit)
    deposit.add_argument(
        "--statement", required=True, metavar="TEXT", help="the problem, or - for stdin"
    )
    deposit.add_argument(
        "--program", required=True, metavar="FILE", help="Python; its last line of output counts"
    )
    deposit.add_argument(
        "--answer", required=True, type=int, metavar="N", help="the known answer, an integer"
    )
    deposit.add_argument("--author", required=True, metavar="NAME", help="who supplies it")
    example = deposit.add_argument_group(
        "an example", "how the program is adapted: all three of them, or none"
    )
    example.add_argument(
        "--example-statement", metavar="TEXT", help="the problem with other numbers"
    )
    example.add_argument("--example-program", metavar="FILE", help="the program that solves it")
    example.add_argument("--example-answer", type=int, metavar="N", help="its known answer")
    _add_model(deposit, "the library's model; makes LIBRARY where there is none")
    deposit.add_argument(
        "--profile",
        choices=("split-invariant", "stock", "portable"),
        default="split-invariant",
        help="of a new library, as in capture",
    )
    deposit.add_argument(
        "--n-ctx", type=_positive, metavar="N", help="tokens of context of a new library (2048)"
    )

    ask = _command(
        commands,
        "ask",
        "answer a question from a library, or say why not",
        "kvgraft ask lib 'How many ...?'",
    )
    _add_library(ask)
    ask.add_argument("question", metavar="QUESTION", help="a problem in words, or - for stdin")
    _add_model(ask, "the library's model, if it is not an embedded one: its path")

    library = commands.add_parser(
        "library",
        help="look at a library and after it, write it to an archive or take one in",
        description="Look at a library and after it, write it to an archive or take one in.",
        epilog=f"example:\n  kvgraft library ls lib\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = library.add_subparsers(metavar="ACTION", required=True)
    ls = _command(parts, "ls", "list the deposits", "kvgraft library ls lib")
    _add_library(ls)
    show = _command(parts, "show", "show one deposit", "kvgraft library show lib 3fa4c1")
    _add_library(show)
    show.add_argument("entry", metavar="ENTRY", help="an id or the beginning of one")
    export = _command(
        parts, "export", "write a library to an archive", "kvgraft library export lib lib.tar"
    )
    _add_library(export)
    export.add_argument("destination", metavar="FILE", help="a new file")
    take_in = _command(
        parts,
        "import",
        "take in an archive: run its programs and compute its blocks again",
        "kvgraft library import lib.tar lib",
    )
    take_in.add_argument("file", metavar="FILE", help="an archive")
    _add_library(take_in)
    _add_model(take_in, "the archive's model, if it is not an embedded one: its path")
    take_in.add_argument(
        "--without-model",
        action="store_true",
        help="trust that blocks belong to their texts; digests and programs are still checked",
    )
    rm = _command(
        parts, "rm", "remove deposits and their blocks", "kvgraft library rm lib 3fa4c1 77e0"
    )
    _add_library(rm)
    rm.add_argument("entries", metavar="ENTRY", nargs="+", help="an id or the beginning of one")
    fsck = _command(
        parts, "fsck", "read every deposit and verify every block", "kvgraft library fsck lib"
    )
    _add_library(fsck)
    gc = _command(
        parts,
        "gc",
        "remove what dead writers left: temporaries, and blocks that no deposit names",
        "kvgraft library gc lib",
    )
    _add_library(gc)
    calibrate = _command(
        parts,
        "calibrate",
        "take the threshold of routing from questions that no deposit answers",
        "kvgraft library calibrate lib foreign.txt --alpha 0.05",
    )
    _add_library(calibrate)
    calibrate.add_argument("file", metavar="FILE", help="one question a line, 19 at least for 0.05")
    calibrate.add_argument(
        "--alpha",
        type=_share,
        default=0.05,
        metavar="P",
        help="accepted probability that such a question is routed (default: 0.05)",
    )
    _add_model(calibrate, "the library's model, if it is not an embedded one: its path")
    named = {"ls": ls, "show": show, "export": export, "import": take_in}
    named |= {"rm": rm, "fsck": fsck, "gc": gc, "calibrate": calibrate}
    for name, one in named.items():
        one.set_defaults(command=f"library {name}")


def _add_library(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("library", metavar="LIBRARY", type=_named, help="folder of the library")
