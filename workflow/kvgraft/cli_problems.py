"""The commands `kvgraft problems`: the contest set, its instances, and problem files of a user.

`add_commands` is loaded with --help, so imports that take time happen in `run`. This module must
not know a model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvaudit.errors import UnusableInput, printable
from kvgraft.cli_common import fields, pretty
from kvgraft.problems import LOADERS, UserProblem, digest_of

MAX_SEED = 200
"""Characters of a seed; a record's name of an instance holds it."""

LEAD = 20
"""Characters that two texts have in common and are shown before where they part."""


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
        "--form",
        choices=LOADERS,
        default=next(iter(LOADERS)),
        help="how it holds problems (%(default)s)",
    )
    check.add_argument("--sha256", metavar="DIGEST", help="the pin that the file must have")
    check.add_argument(
        "--run", metavar="FOLDER", help="a run that asked the file: are its records the file's own?"
    )
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

    digest = options.sha256 or digest_of(options.file)
    found = LOADERS[options.form](options.file, digest)
    categories = Counter(problem.category for problem in found)
    value: dict[str, Any] = {
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
    if options.run:
        value["run"] = _recorded(options.run, digest, found)
        told = [f"{name} has {n}, as the file has them" for name, n in value["run"].items()]
        rows += [("" if number else "run", line) for number, line in enumerate(told)]
    return value, fields(rows)


def _recorded(folder: str, digest: str, found: Sequence[UserProblem]) -> dict[str, int]:
    """How many of a file's problems each model of a run has, all as they are in the file.

    Raises:
        UnusableInput: the run asked no such file, or a record is not the file's own; or as
            `SafeRoot.read`.
        EvidenceIncomplete: the inputs or a model's records are absent.
    """
    from dataclasses import asdict

    from kvaudit import manifest, records
    from kvaudit.flywheel import files
    from kvaudit.flywheel.records import KINDS, PROBLEMS
    from kvaudit.safefs import SafeRoot
    from kvaudit.stagecheck import MAX_RECORD_BYTES

    out: dict[str, int] = {}
    with SafeRoot(folder) as root:
        data = root.read(manifest.INPUTS, max_bytes=manifest.MAX_MANIFEST_BYTES)
        inputs = manifest.parse(data, "inputs", where=manifest.INPUTS)
        value = inputs["configuration"]["value"]
        asked = value.get("flywheel", {}).get("files", ())
        entries = [one for one in asked if one["sha256"] == digest]
        if not entries or "flywheel" not in value["stages"]:
            raise UnusableInput("the run asked no such file", where=folder, found=digest)
        listed = [files.FileProblem(**asdict(problem)) for problem in found]
        wanted = [row for entry in entries for row in files.rows(entry, listed)]
        for model in value["models"]:
            path = f"flywheel/{model}/{PROBLEMS}"
            data = root.read(path, max_bytes=MAX_RECORD_BYTES)
            held = records.parse(data, KINDS[PROBLEMS], where=path)
            made = [row for row in held if row.get("file_sha256") == digest]
            _require_own(wanted, made, path)
            out[model] = len(made)
    return out


def _require_own(
    wanted: Sequence[Mapping[str, Any]], made: Sequence[Mapping[str, Any]], path: str
) -> None:
    """Refuse the first record that is not as the file has it, one that is missing or too many."""
    for n, (row, recorded) in enumerate(zip(wanted, made, strict=False), start=1):
        for key in row:
            if recorded.get(key) != row[key]:
                expected, found = _apart(repr(row[key]), repr(recorded.get(key)))
                raise UnusableInput(
                    "a record is not the file's own",
                    where=f"{path}, problem {n} of the file, {key}",
                    expected=expected,
                    found=found,
                )
    if len(made) != len(wanted):
        raise UnusableInput(
            "the run has not as many problems of the file as its settings say",
            where=path,
            expected=len(wanted),
            found=len(made),
        )


def _apart(one: str, other: str) -> tuple[str, str]:
    """Two texts from shortly before where they part, since an error shows only a beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(one), len(other))) - LEAD
    return (one, other) if at <= 0 else (f"…{one[at:]}", f"…{other[at:]}")
