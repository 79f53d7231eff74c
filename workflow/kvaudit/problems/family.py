"""What a family of problems is, and how instances are drawn from it.

A family is one question with numbers left open: a template, a sampler of the numbers, a program
that answers it, and three independent solvers. Instances are named by family and seed, so that new
ones can always be made. This module must not know any single family, nor who reads the problems.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvaudit.errors import UnusableInput
from kvaudit.estimate import generator

Category = Literal["number theory", "counting", "sequences", "geometry", "logic"]
Kind = Literal["parametric", "hard-coded"]
Params = Mapping[str, int]
Solver = Callable[[Params], int]
Sampler = Callable[[np.random.Generator], dict[str, int]]
Program = Callable[[Params], str]
Key = tuple[int, ...]

ANSWER_MAX = 999
"""Answers are integers from 0 to this one, as in the contests that the problems imitate."""

_TRIES = 10_000


@dataclass(frozen=True)
class Family:
    """A question with open numbers.

    Attributes:
        name: in kebab case, unique among all families.
        category: the field of mathematics.
        kind: `parametric` if the program names its numbers in its first lines, `hard-coded` if
            they stand, some of them changed, inside the code.
        difficulty: 1 (one thought) to 5.
        template: the statement, with one `{field}` for each parameter and no other digit.
        paraphrase: the same question in other words, with the same fields in the same order.
        near_miss: a different question in nearly the same words, with the same fields.
        sample: draws parameters for which the question has one answer up to 999 that cannot be
            guessed (see `guessable`) and differs from the near miss's answer.
        program: the text of a Python program for given parameters, without a last line break. It
            uses builtins and `math` only and prints one integer.
        solvers: three independent ways to the answer.
        near_solver: the answer of `near_miss`.
    """

    name: str
    category: Category
    kind: Kind
    difficulty: int
    template: str
    paraphrase: str
    near_miss: str
    sample: Sampler
    program: Program
    solvers: tuple[Solver, Solver, Solver]
    near_solver: Solver

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in the order of the statement."""
        return fields(self.template)

    def key(self, params: Params) -> Key:
        """The parameters' values, in the order of the statement."""
        return tuple(params[name] for name in self.names)


@dataclass(frozen=True)
class Instance:
    """One problem: a family with numbers, and its answer."""

    name: str
    family: Family
    params: Params
    statement: str
    answer: int

    @property
    def key(self) -> Key:
        """The parameters' values, in the order of the statement."""
        return self.family.key(self.params)


def instance(family: Family, seed: str) -> Instance:
    """The instance of a family that a seed names: the same on every machine.

    Raises:
        AssertionError: the three solvers disagree, or the answer is out of 0..999; then the
            family is wrong.
    """
    params = family.sample(generator(family.name, seed))
    first, *others = (solve(params) for solve in family.solvers)
    assert all(other == first for other in others), (family.name, seed, first, others)
    assert 0 <= first <= ANSWER_MAX, (family.name, seed, first)
    statement = family.template.format(**params)
    return Instance(f"{family.name}/{seed}", family, params, statement, first)


def fresh(family: Family, seed: str, n: int, taken: Collection[Key] = ()) -> list[Instance]:
    """Instances with distinct parameters that are not taken yet, in the order of their seeds.

    Args:
        family: to draw from.
        seed: the instances have the seeds `seed/0`, `seed/1` and so on; some may be skipped.
        n: how many.
        taken: keys of instances (`Instance.key`) that must not come again. It is not changed.

    Raises:
        UnusableInput: the family has too few instances that are not taken.
    """
    seen = set(taken)
    found: list[Instance] = []
    for i in range(_TRIES):
        if len(found) >= n:
            return found
        made = instance(family, f"{seed}/{i}")
        if made.key not in seen:
            seen.add(made.key)
            found.append(made)
    raise UnusableInput(
        "a family has too few new instances",
        expected=f"{n} with distinct parameters",
        found=len(found),
        where=family.name,
        hint="ask for fewer, or take other families as well",
    )


def fields(template: str) -> tuple[str, ...]:
    """The names of a template's fields in order; a name used twice comes twice."""
    return tuple(name for _, name, _, _ in string.Formatter().parse(template) if name is not None)


def solver(function: Callable[..., int]) -> Solver:
    """A solver made of a function whose arguments are the parameters by name."""
    return lambda params: function(**params)


def hard_coded(function: Callable[..., str]) -> Program:
    """A program made of a function whose arguments are the parameters by name."""
    return lambda params: function(**params).strip("\n")


def parametric(names: str, body: str) -> Program:
    """A program that first assigns its parameters, one a line, and then runs `body`.

    Args:
        names: the parameters in the order of the statement, with blanks between them.
        body: code that uses the names and holds no parameter's value.
    """

    def program(params: Params) -> str:
        heads = [f"{name} = {params[name]}" for name in names.split()]
        return "\n".join([*heads, body.strip("\n")])

    return program


def ranges(**bounds: tuple[int, int]) -> Sampler:
    """A sampler of independent uniform integers, both bounds included."""

    def draw(rng: np.random.Generator) -> dict[str, int]:
        return {name: int(rng.integers(low, high + 1)) for name, (low, high) in bounds.items()}

    return draw


def sampler(
    draw: Sampler, solve: Solver, near: Solver, valid: Callable[[Params], bool] = lambda _: True
) -> Sampler:
    """A sampler that draws until the parameters are valid and the problem is worth asking.

    Args:
        draw: candidates.
        solve: the answer of valid parameters.
        near: the near miss's answer, which must differ: a program for the wrong question must
            not be right by luck.
        valid: whether parameters make sense at all.
    """

    def sample(rng: np.random.Generator) -> dict[str, int]:
        for _ in range(_TRIES):
            params = draw(rng)
            if not valid(params):
                continue
            answer = solve(params)
            if answer > ANSWER_MAX or guessable(answer, params.values()):
                continue
            if near(params) != answer:
                return params
        raise AssertionError("a family without valid parameters")

    return sample


def guessable(answer: int, values: Collection[int]) -> bool:
    """Whether a model without understanding might hit upon an answer: it has one digit, or it is
    a parameter, or the sum, difference or product of two (or of one with itself).
    """
    if answer < 10 or answer in values:
        return True
    pairs = itertools.combinations_with_replacement(values, 2)
    return any(answer in (x + y, abs(x - y), x * y) for x, y in pairs)
