"""Templates: a verified program whose literal numbers are bound to the numbers of its statement.

A program that answers one instance often carries the instance's numbers in its code, some of them
changed: `range(1, 121)` for "up to 120", `x % 91` where the statement has 7 and 13. Which literal
stands for which number cannot be read off one instance, since a literal may equal a number by
accident and a number may occur twice. So readings are tried on other instances of the problem
whose answers are known, the simplest first, and one that agrees on all of them is checked on
instances that the search has not seen. This module must not know how a program is run.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kvaudit.errors import UnusableInput
from kvaudit.flywheel.prompts import MAX_DIGITS, numbers
from kvgraft import template_code
from kvgraft.errors import TemplateMismatch
from kvgraft.template_code import Code

MIN_OTHERS = 3
"""Two instances for the search and one for the check."""

MAX_TRIED = 256
"""Readings that are run, at most."""

MAX_LOOKED = 5_000
"""Readings that are looked at, at most, in each of two passes; those that leave out a number are
not run."""

MAX_OPEN = 32
"""Literals that may have more than one reading."""

MAX_NUMBERS = 12
_ABREAST = 16

RunAll = Callable[[list[str]], list[int | None]]
"""Runs programs; gives what each printed as its answer, or None, in the same order."""

_NAMES = "abcdfghjkmnpqrstuvwxyz"  # without e, which `from math import *` would bind, and i, l, o
_HEAD = re.compile(r"[A-Za-z_]\w* = -?[0-9]+")


@dataclass(frozen=True)
class Template:
    """A program for every instance of a problem.

    Attributes:
        program: its first lines set one name each, `a = 17`, in the order of the statement; the
            code below uses the names. With the numbers of the instance it was made from.
        shape: for every number of the statement the name that it binds, or its value where all
            known instances have the same one: what a change of it would do has not been seen.
            A number that always equals an earlier one has the earlier one's name.
    """

    program: str
    shape: tuple[str | int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The bound names in the order of the first lines."""
        return tuple(dict.fromkeys(part for part in self.shape if isinstance(part, str)))

    @property
    def positions(self) -> tuple[int, ...]:
        """For every name the index, among the numbers of the statement, of the number it binds."""
        return tuple(self.shape.index(name) for name in self.names)

    def to_json(self) -> dict[str, Any]:
        """The template as a JSON value."""
        return {"program": self.program, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The template out of `to_json`.

        Raises:
            UnusableInput: a field is missing or of another type, or the first lines do not set
                the names of the shape.
        """
        program, shape = value.get("program"), value.get("shape")
        if (
            not isinstance(program, str)
            or not isinstance(shape, list)
            or not all(type(part) in (str, int) for part in shape)
        ):
            raise UnusableInput("a template has a program and a shape", found=sorted(value))
        made = cls(program, tuple(shape))
        head = program.split("\n")[: len(made.names)]
        if [line.split(" = ")[0] for line in head if _HEAD.fullmatch(line)] != list(made.names):
            raise UnusableInput(
                "a template's first lines do not set its names", expected=made.names, found=head
            )
        return made


def bind(template: Template, statement: str) -> str:
    """The template's program with the numbers of another statement.

    Raises:
        TemplateMismatch: the statement has more or fewer numbers than the template's, another
            value where all known instances have one, or two where they have the same twice.
    """
    found = numbers(statement)
    if len(found) != len(template.shape):
        raise TemplateMismatch(
            "the statement has another count of numbers than the template",
            expected=len(template.shape),
            found=len(found),
        )
    values: dict[str, int] = {}
    for index, (part, number) in enumerate(zip(template.shape, found, strict=True)):
        expected = part if isinstance(part, int) else values.setdefault(part, number)
        if expected != number:
            raise TemplateMismatch(
                "a number of the statement is not the one that its place has always had",
                expected=expected,
                found=number,
                where=f"number {index + 1} of the statement",
            )
    body = template.program.split("\n", len(values))[-1]
    return "".join(f"{name} = {value}\n" for name, value in values.items()) + body


def find(
    statement: str, program: str, others: Sequence[tuple[str, int]], run_all: RunAll
) -> Template | None:
    """The template of a program, if there is one that other instances bear out.

    Every number of the statement that differs between the instances must be used. The search sees
    two thirds of the other instances; the simplest reading that agrees on all of them is checked
    once on the rest, and a failed check is not followed by another choice, since that would turn
    the check into search.

    Args:
        statement: of the instance that the program answers.
        program: verified; prints the answer.
        others: at least `MIN_OTHERS` other instances, (statement, answer). More of them tell more
            readings apart.
        run_all: called with at most a few dozen programs at a time. A wrong reading may loop for
            ever, so it should have a time limit little above what the program itself takes.

    Returns:
        The template, or None: the program does not parse, the statements differ in their count of
        numbers, no number varies, no reading within the bounds agrees, or the check failed.

    Raises:
        ValueError: too few other instances.
    """
    if len(others) < MIN_OTHERS:
        raise ValueError(f"needs {MIN_OTHERS} other instances or more")
    code = template_code.read(program)
    rows = [numbers(statement), *(numbers(other) for other, _ in others)]
    if code is None or len({len(row) for row in rows}) != 1:
        return None
    columns = list(zip(*rows, strict=True))
    varying = [column for column in dict.fromkeys(columns) if len(set(column)) > 1]
    if not 1 <= len(varying) <= MAX_NUMBERS:
        return None
    held = max(1, len(others) // 3)
    search, check = others[:-held], others[-held:]
    candidates = _templates(code, columns, varying)
    for batch in _batches(itertools.islice(candidates, MAX_TRIED)):
        agreeing = _agreeing(batch, search[:1], run_all)
        agreeing = _agreeing(agreeing, search[1:], run_all)
        if agreeing:
            chosen = agreeing[0]
            first, again = run_all([program, chosen.program])
            confirmed = first is not None and first == again
            return chosen if confirmed and _agreeing([chosen], check, run_all) else None
    return None


def _agreeing(
    templates: Sequence[Template], instances: Sequence[tuple[str, int]], run_all: RunAll
) -> list[Template]:
    """Those templates that print the answer of every instance."""
    left = list(templates)
    for statement, answer in instances:
        if not left:
            break
        printed = run_all([bind(template, statement) for template in left])
        left = [t for t, found in zip(left, printed, strict=True) if found == answer]
    return left


def _batches(templates: Iterator[Template]) -> Iterator[list[Template]]:
    """Small ones first: one of the first readings is mostly right, and a wrong one may not end."""
    size = 2
    while batch := list(itertools.islice(templates, size)):
        yield batch
        size = min(2 * size, _ABREAST)


# -- readings ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """One way to read a literal: `{0} + 1`, the fields being varying numbers; or as a constant."""

    cost: int
    text: str | None
    uses: frozenset[int]


def _forms(value: int, known: Sequence[int]) -> list[_Form]:
    """The ways to read a literal that give its value, by rising cost.

    Args:
        value: of the literal.
        known: the varying numbers of the statement that the program answers.
    """
    # Loop bounds, steps and bases are mostly what they seem to be. A large literal that numbers of
    # the statement explain is rarely a constant; a small one equals some sum by accident.
    usual = abs(value) <= 2 or abs(value) in (10, 100, 1000)
    constant = 0 if usual else 3 if abs(value) <= 12 else 5
    forms = [_Form(constant, None, frozenset())]
    for sign, size in ((1, value), (-1, -value)):
        for cost, text, used, result in _expressions(known):
            if result != size or (sign < 0 and (value == 0 or (value > 0 and cost > 0))):
                continue  # of a positive literal only the plain negative number is a reading
            if sign < 0:
                text = f"-{text}" if text.startswith("{") and cost == 0 else f"-({text})"
            forms.append(_Form(cost + usual + (sign < 0), text, frozenset(used)))
    return sorted(forms, key=lambda form: form.cost)


def _expressions(known: Sequence[int]) -> Iterator[tuple[int, str, tuple[int, ...], int]]:
    """(cost, text, numbers used, value) of every expression that is tried."""
    for i, p in enumerate(known):
        a = f"{{{i}}}"
        yield 0, a, (i,), p
        yield 1, f"{a} + 1", (i,), p + 1
        yield 1, f"{a} - 1", (i,), p - 1
        yield 3, f"2 * {a}", (i,), 2 * p
        yield 3, f"{a} * {a}", (i,), p * p
        yield 4, f"{a} // 2", (i,), p // 2
        if 0 < p <= MAX_DIGITS:
            yield 4, f"10 ** {a}", (i,), 10**p
        for j, q in enumerate(known):
            b = f"{{{j}}}"
            if i != j:
                yield 3, f"{a} - {b}", (i, j), p - q
            if i < j:
                for step, suffix in ((0, ""), (1, " + 1"), (-1, " - 1")):
                    yield 2 + 2 * abs(step), f"{a} * {b}{suffix}", (i, j), p * q + step
                    yield 3 + abs(step), f"{a} + {b}{suffix}", (i, j), p + q + step


def _templates(
    code: Code, columns: Sequence[tuple[int, ...]], varying: Sequence[tuple[int, ...]]
) -> Iterator[Template]:
    """Templates of all readings that use every varying number, the simplest first.

    At first literals of one value are read alike; then each on its own, which is needed where a
    number occurs twice in the statement, or equals a constant by accident.
    """
    forms = {v: _forms(v, [c[0] for c in varying]) for v in {slot.value for slot in code.slots}}
    distinct = list(dict.fromkeys(slot.value for slot in code.slots))
    units = {value: index for index, value in enumerate(distinct)}
    alike = [units[slot.value] for slot in code.slots]
    seen: set[tuple[_Form, ...]] = set()
    passes = (
        (alike, [forms[value] for value in distinct]),
        (list(range(len(code.slots))), [forms[slot.value] for slot in code.slots]),
    )
    for unit_of, options in passes:
        for picked in itertools.islice(_by_cost(options), MAX_LOOKED):
            reading = tuple(picked[unit] for unit in unit_of)
            used = frozenset[int]().union(*(form.uses for form in reading))
            if len(used) == len(varying) and reading not in seen:
                seen.add(reading)
                made = _template(code, reading, columns, varying)
                if made is not None:
                    yield made


def _by_cost(options: Sequence[Sequence[_Form]]) -> Iterator[tuple[_Form, ...]]:
    """Every choice of one form a unit, by rising total cost, earlier forms first among equals."""
    open_units = [unit for unit, forms in enumerate(options) if len(forms) > 1]
    if len(open_units) > MAX_OPEN:
        return
    start = (0,) * len(open_units)
    # Steps are taken in the order of the units, so that every choice is reached in one way only.
    heap = [(sum(forms[0].cost for forms in options), start, 0)]
    while heap:
        cost, at, last = heapq.heappop(heap)
        picked = [forms[0] for forms in options]
        for unit, i in zip(open_units, at, strict=True):
            picked[unit] = options[unit][i]
        yield tuple(picked)
        for place in range(last, len(at)):
            forms, i = options[open_units[place]], at[place]
            if i + 1 < len(forms):
                after = (*at[:place], i + 1, *at[place + 1 :])
                heapq.heappush(heap, (cost + forms[i + 1].cost - forms[i].cost, after, place))


def _template(
    code: Code,
    reading: Sequence[_Form],
    columns: Sequence[tuple[int, ...]],
    varying: Sequence[tuple[int, ...]],
) -> Template | None:
    """The template of one reading; a program that already names a number keeps its name."""
    plain = [f"{{{number}}}" for number in range(len(varying))]
    uses = Counter(number for form in reading for number in form.uses)
    names: dict[int, str] = {}
    moved: set[int] = set()
    for index, (slot, form) in enumerate(zip(code.slots, reading, strict=True)):
        if slot.adoptable is None or form.text not in plain:
            continue
        number = plain.index(form.text)
        if number not in names and (slot.lasting or uses[number] == 1):
            names[number] = slot.adoptable
            moved.add(index)
    free = (name for name in _fresh() if name not in code.words)
    named = [names.get(number) or next(free) for number in range(len(varying))]
    head = {name: column[0] for name, column in zip(named, varying, strict=True)}
    texts = [None if form.text is None else form.text.format(*named) for form in reading]
    program = template_code.rewrite(code, texts, head, moved)
    if program is None:
        return None
    name_of = dict(zip(varying, named, strict=True))
    return Template(program, tuple(name_of.get(column, column[0]) for column in columns))


def _fresh() -> Iterator[str]:
    yield from _NAMES
    yield from (f"p{number}" for number in itertools.count(1))
