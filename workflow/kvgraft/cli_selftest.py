"""The command `kvgraft selftest`: does the loaded engine compute the portable arithmetic?

`add_commands` is loaded with --help, so imports that take time happen in `run`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvgraft.cli_common import emit, fields, pretty

if TYPE_CHECKING:
    from kvgraft.selftest import SelfTest

_SHOWN = 20


def add_commands(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `selftest`.

    Args:
        commands: argparse's object of commands.
        command: (commands, name, summary, example) -> the parser of one, with --json.
    """
    parser = command(
        commands,
        "selftest",
        "compare what the engine's operators give with the golden bytes of the portable arithmetic",
        'kvgraft selftest --engine "$(python envs/engine_variant.py portable)"',
    )
    parser.add_argument(
        "--engine",
        metavar="DIR",
        help="folder of a portable build (default: the engine that loads, $LLAMA_CPP_LIB_PATH)",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        help="do not compare; write what the engine gives as golden digests",
    )


def run(options: argparse.Namespace) -> int:
    """Compute and compare, or write; 1 where an operator differs.

    Operators cannot tell every build: the folder of what is loaded is checked before them.

    Raises:
        TypedError: as `portable.activate`, `portable.at_hand`, `selftest.run` and
            `selftest.write`.
    """
    from kvgraft import portable, selftest

    if options.engine is not None:
        portable.activate(options.engine)
    portable.at_hand()
    if options.write is not None:
        made = selftest.write(options.write)
        rows = [("written", options.write), ("operators", len(made.operators))]
        found = {"written": options.write, "sha256": made.sha256}
        emit(pretty(found) if options.json else fields([*rows, ("sha256", made.sha256)]))
        return 0
    compared = selftest.run()
    emit(pretty(compared.to_json()) if options.json else _compared(compared))
    return 0 if compared.passed else 1


def _compared(found: SelfTest) -> str:
    rows: list[tuple[str, object]] = [
        ("engine", f"llama-cpp-python {found.engine} on {found.architecture}"),
        ("operators", f"{len(found.operators)} in {found.seconds:.1f} s"),
        ("different", len(found.differences)),
    ]
    for number, one in enumerate(found.differences[:_SHOWN]):
        what = (
            f"with {one.how}" if one.how else f"{_short(one.found)}, golden {_short(one.expected)}"
        )
        rows.append(("" if number else "first", f"{one.operator}: {what}"))
    if len(found.differences) > _SHOWN:
        rows.append(("", f"and {len(found.differences) - _SHOWN} more (--json lists them)"))
    computes = "computes" if found.passed else "does not compute"
    rows.append(("verdict", f"this engine {computes} the portable arithmetic"))
    return fields(rows)


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:16]
