"""The commands `kvgraft problems`: the contest set, its instances, and problem files of a user.

`add_commands` is loaded with --help, so imports that take time happen in `run`. This module must
not know a model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from kvaudit.errors import UnusableInput, printable
from kvgraft.cli_common import fields, pretty

FORMS = ("aime", "livebench")
"""How a file holds its problems, see `kvgraft.problems`."""

MAX_SEED = 200
"""Characters of a seed; a record's name of an instance holds it."""


def add_commands(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `problems` with its actions.

    Args:
        commands: argparse's object of commands.
        command: (commands, name, summary, example) -> the parser of one, with --json.
    """
    problems = command(
        commands,
        "problems",
        "list the contest set, show one problem, or check a problem file",
        "kvgraft problems show multiples-of-either 7",
        json=False,
    )
    parts = problems.add_subparsers(metavar="ACTION", required=True)
    ls = command(parts, "ls", "list the families", "kvgraft problems ls")
    show = command(
        parts,
        "show",
        "show a family's problem of one seed: numbers, program and answer",
        "kvgraft problems show multiples-of-either 7",
    )
    show.add_argument("family", metavar="FAMILY", help="a name of `problems ls`")
    show.add_argument("seed", metavar="SEED", help="any text; the same problem for the same text")
    check = command(
        parts,
        "check",
        "read a problem file in full, and print the digest to pin",
        "kvgraft problems check aime.jsonl --form aime",
    )
    check.add_argument("file", metavar="FILE", help="JSON Lines, or of LiveBench JSON or Parquet")
    check.add_argument(
        "--form", choices=FORMS, default=FORMS[0], help="how it holds problems (%(default)s)"
    )
    check.add_argument("--sha256", metavar="DIGEST", help="the pin that the file must have")
    for one, name in ((ls, "ls"), (show, "show"), (check, "check")):
        one.set_defaults(command=f"problems {name}")


def run(options: argparse.Namespace) -> str:
    """What one of the commands prints.

    Raises:
        UnusableInput: no such family, a seed that names no instance, or a file that `problems`
            refuses; InputChanged where it has another digest than its pin.
    """
    action = {"ls": _ls, "show": _show, "check": _check}[options.command.removeprefix("problems ")]
    value, text = action(options)
    return pretty(value) if options.json else text


def _ls(_: argparse.Namespace) -> tuple[Any, str]:
    from kvaudit.problems.registry import FAMILIES

    value = [
        {
            "name": family.name,
            "category": family.category,
            "kind": family.kind,
            "difficulty": family.difficulty,
            "parameters": list(family.names),
        }
        for family in FAMILIES
    ]
    width = max(len(family.name) for family in FAMILIES)
    lines = [f"{'FAMILY':<{width}}  {'CATEGORY':<13}  {'KIND':<10}  DIFFICULTY\n"]
    lines += [
        f"{one.name:<{width}}  {one.category:<13}  {one.kind:<10}  {one.difficulty}\n"
        for one in FAMILIES
    ]
    return value, "".join(lines)


def _show(options: argparse.Namespace) -> tuple[Any, str]:
    from kvaudit.problems.family import instance
    from kvaudit.problems.registry import by_name

    seed: str = options.seed
    if not seed.isprintable() or not 0 < len(seed) <= MAX_SEED:
        raise UnusableInput(
            "a seed is a line of printable characters",
            expected=f"1 to {MAX_SEED}",
            found=printable(seed, 40),
        )
    family = by_name(options.family)
    made = instance(family, seed)
    value = {
        "name": made.name,
        "category": family.category,
        "kind": family.kind,
        "difficulty": family.difficulty,
        "params": dict(made.params),
        "statement": made.statement,
        "program": family.program(made.params),
        "answer": made.answer,
    }
    rows: list[tuple[str, object]] = [
        ("problem", made.name),
        ("category", f"{family.category}, {family.kind}, difficulty {family.difficulty} of 5"),
        ("statement", made.statement),
    ]
    lines = str(value["program"]).split("\n")
    rows += [("" if number else "program", line) for number, line in enumerate(lines)]
    return value, fields([*rows, ("answer", made.answer)])


def _check(options: argparse.Namespace) -> tuple[Any, str]:
    from collections import Counter

    from kvgraft import problems

    digest = options.sha256 or problems.digest_of(options.file)
    load = {"aime": problems.load_aime, "livebench": problems.load_livebench}[options.form]
    found = load(options.file, digest)
    categories = Counter(problem.category for problem in found)
    value = {
        "sha256": digest,
        "pinned": options.sha256 is not None,
        "problems": len(found),
        "integer_answers": sum(isinstance(problem.answer, int) for problem in found),
        "categories": dict(sorted(categories.items())),
        "released": sorted({problem.release for problem in found if problem.release}),
    }
    rows: list[tuple[str, object]] = [
        ("sha256", f"{digest}{', as pinned' if options.sha256 else ''}"),
        ("problems", f"{len(found)}, {value['integer_answers']} with an integer for an answer"),
    ]
    rows += [
        ("" if number else "category", f"{printable(name)}: {n}")
        for number, (name, n) in enumerate(sorted(categories.items()))
    ]
    return value, fields(rows)
