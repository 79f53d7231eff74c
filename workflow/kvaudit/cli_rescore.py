"""The command `kvaudit rescore`: scores other people's outputs again."""

from __future__ import annotations

import argparse
import os
from typing import Any

from kvaudit.cli_common import add_command, emit, pretty
from kvaudit.errors import UnusableInput

_EPILOG = """\
examples:
  kvaudit rescore --list
  kvaudit rescore --format qwen-math outputs/aime24/test_cot_-1_seed0.jsonl
  kvaudit rescore --format tora outputs/gsm8k.jsonl --published 84.3

exit codes:
  0  agrees: the published figure and every row's score are those of our rules
  1  disagrees: the report names the rows and the reasons; or the file changed meanwhile
  2  unusable input: one line on standard error says what and where
  3  a sandbox is needed and there is none
"""


def add_commands(commands: Any) -> None:
    """Adds `rescore`."""
    rescore = add_command(
        commands,
        "rescore",
        "score other people's committed outputs again, by their rule and by ours",
        _EPILOG,
        _rescore,
    )
    rescore.add_argument("file", metavar="FILE", nargs="?", help="their output")
    rescore.add_argument("--format", metavar="NAME", help="what wrote it; see --list")
    rescore.add_argument("--list", action="store_true", help="name the formats")
    rescore.add_argument("--published", metavar="X", help="the published figure, in percent")
    rescore.add_argument("--json", action="store_true", help="print the report as JSON")
    rescore.add_argument("--all", action="store_true", help="print every disagreement")
    rescore.add_argument("--rows", metavar="OUT", help="write the rows as JSON Lines to OUT")
    rescore.add_argument("--no-programs", action="store_true", help="run no program again")
    rescore.add_argument("--workers", metavar="N", type=int, help="sandboxes side by side")


def _rescore(options: argparse.Namespace) -> int:
    from kvaudit.rescore import adapters

    if options.list:
        named = [(name, adapters.load(name).summary) for name in adapters.names()]
        if options.json:
            emit(pretty(dict(named)))
        else:
            emit("".join(f"{name:<14} {summary}\n" for name, summary in named))
        return 0
    if options.file is None or options.format is None:
        raise UnusableInput("give --format NAME and FILE, or --list")
    if options.workers is not None and not 1 <= options.workers <= 64:
        raise UnusableInput("--workers is out of range", expected="1 to 64", found=options.workers)

    from kvaudit import atomic
    from kvaudit.rescore import audit

    if options.rows is not None:
        atomic.require_replaceable(options.rows)
    result = audit.run(
        options.format,
        options.file,
        published=options.published,
        run_programs=not options.no_programs,
        workers=options.workers,
    )
    if options.rows is not None:
        try:
            audit.write_rows(options.rows, result)
        except OSError as error:
            raise UnusableInput(
                "the rows cannot be written",
                where=os.path.abspath(options.rows),
                found=error.strerror or error,
            ) from None
    emit(pretty(result.to_json()) if options.json else result.render(every=options.all))
    return result.exit_code
