"""Families that even a small model answers by itself, and a method text that does not help.

They are outside the contest set: a library cannot gain on them, and the method text is what a
deposit that does harm looks like. This module must not know how either is measured.
"""

from __future__ import annotations

from kvaudit.problems.family import Family, parametric, ranges, solver


@solver
def _same(a: int) -> int:
    return a


@solver
def _counted(a: int) -> int:
    return sum(1 for _ in range(a))


@solver
def _read_back(a: int) -> int:
    return int(str(a))


@solver
def _one_more(a: int) -> int:
    return a + 1


SOLVED: tuple[Family, ...] = (
    Family(
        name="balls-in-box",
        category="counting",
        kind="parametric",
        difficulty=1,
        template="A box holds {a} balls and nothing else. How many balls are in the box?",
        paraphrase="There are {a} balls in a box, and no other things. What is the number of "
        "balls in it?",
        near_miss="A box holds {a} balls and nothing else. One more ball is put in. How many "
        "balls are in the box?",
        sample=ranges(a=(10, 999)),
        program=parametric("a", "print(a)"),
        solvers=(_same, _counted, _read_back),
        near_solver=_one_more,
    ),
    Family(
        name="number-on-card",
        category="logic",
        kind="parametric",
        difficulty=1,
        template="The number {a} is written on a card. Which number is written on the card?",
        paraphrase="On a card stands the number {a}. What number can be read on the card?",
        near_miss="The number {a} is written on a card. Which number comes directly after the "
        "number on the card?",
        sample=ranges(a=(10, 999)),
        program=parametric("a", "print(a)"),
        solvers=(_same, _counted, _read_back),
        near_solver=_one_more,
    ),
)
"""Trivial families. Unlike those of the contest set, their answer is a parameter."""

METHOD_CARD = (
    "Method for problems of counting and reading. First let the given quantity be N and write N "
    "as a sum of place values, N = 100 x + 10 y + z. Then form the digit sum q = x + y + z and "
    "the weight w = 9 (11 x + y), for which N = w + q holds. Reduce w modulo nine to make sure "
    "that no place was lost, and reduce N and q in the same way. If these two residues agree, "
    "go on to the complement 999 - N and repeat the decomposition there, since an error in one of "
    "the two forms shows up in the other. Compare the two digit sums: together they are twenty-"
    "seven. Only when every check has passed, rebuild the quantity from its places, beginning "
    "with the units, and carry where a place exceeds nine. Keep all intermediate values, name "
    "them in order, and do not state a result before the last of them has been checked twice."
)
"""A plausible text of a method, true in its single claims and of no use for these families."""
