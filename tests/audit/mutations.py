"""Seeded edits of records that their schemas still allow, for tests of whoever reads records.

An edit puts a value of another kind, a bound, an empty or a very long one in the place of any value
however deep, takes a field or an item away, or doubles, drops and empties rows. What the schema of
the record refuses is thrown away, since it never comes so far. This module must not know a stage.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any

from kvaudit import schemas
from kvaudit.errors import UnusableInput

Rows = dict[str, list[dict[str, Any]]]
Path = tuple[str | int, ...]

LONG = "9" * 5000
"""More digits than Python turns into an integer without being told to."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 99, 0.5, 1e-300, 2**53 - 1, -(2**53) + 1),
    *("", "x", "a = 1", f"a = {LONG}\nprint(a)", LONG, "0" * 64, "f" * 64, [], {}, [0], [[]]),
)

_DELETED = object()


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Every place in a JSON value, containers among them, its root apart."""
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = list(enumerate(value))[:2]  # items are alike
    for key, inner in parts:
        yield (*at, key)
        yield from paths(inner, (*at, key))


def edited(value: Any, path: Path, new: Any) -> Any:
    """A copy of a JSON value with another one at a place, or without it."""
    made = copy.deepcopy(value)
    holder = made
    for key in path[:-1]:
        holder = holder[key]
    if new is _DELETED:
        del holder[path[-1]]
    else:
        holder[path[-1]] = copy.deepcopy(new)
    return made


def _replacements(old: Any, others: list[Any]) -> Iterator[Any]:
    yield from (one for one in VALUES if one != old or type(one) is not type(old))
    yield from others
    yield _DELETED
    if isinstance(old, list) and old:
        yield from (old[:-1], old + old[-1:], old[::-1])
    if isinstance(old, str):
        yield from (old + LONG, old.replace("1", LONG, 1), f"{old}\n")


def edits(rows: Rows, kinds: Mapping[str, str], n: int, seed: str) -> Iterator[tuple[str, Rows]]:
    """`n` edits drawn by a seed, evenly over the files: (what was done, all rows with it).

    Rows that no edit touches are shared with `rows`, so nobody may change them.
    """
    draw = random.Random(seed)
    done = 0
    while done < n:
        file = draw.choice([name for name in kinds if rows[name]])
        if draw.random() < 0.05:
            yield _whole(rows, file, draw)
            done += 1
            continue
        lines = rows[file]
        number = draw.randrange(len(lines))
        path = draw.choice([*paths(lines[number])])
        old = _at(lines[number], path)
        others = [_at(other, path) for other in draw.sample(lines, min(3, len(lines)))]
        new = draw.choice([*_replacements(old, others)])
        row = edited(lines[number], path, new)
        if row == lines[number]:
            continue
        try:
            schemas.validate(row, kinds[file], where=file)
        except UnusableInput:
            continue
        said = "away" if new is _DELETED else repr(new)[:60]
        yield (
            f"{file}, line {number + 1}, {'/'.join(map(str, path))}: {said}",
            {**rows, file: [*lines[:number], row, *lines[number + 1 :]]},
        )
        done += 1


def _whole(rows: Rows, file: str, draw: random.Random) -> tuple[str, Rows]:
    lines = rows[file]
    number = draw.randrange(len(lines))
    changes = {
        "emptied": [],
        "only one line": lines[number : number + 1],
        f"line {number + 1} dropped": [*lines[:number], *lines[number + 1 :]],
        f"line {number + 1} doubled": [*lines, lines[number]],
        "turned round": lines[::-1],
    }
    name = draw.choice([*changes])
    return f"{file}: {name}", {**rows, file: changes[name]}


def _at(value: Any, path: Path) -> Any:
    for key in path:
        try:
            value = value[key]
        except (IndexError, KeyError, TypeError):
            return None
    return value
