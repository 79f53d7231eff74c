"""Families of counting: shares, orders, placings, payments, choices and digits.

This module must not know how problems are asked or scored.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from kvaudit.problems.family import Family, hard_coded, parametric, ranges, sampler, solver

# Identical sweets for different children, with a least share.


@solver
def _sweets_closed(n: int, k: int, m: int) -> int:
    return math.comb(n - k * m + k - 1, k - 1)


@solver
def _sweets_series(n: int, k: int, m: int) -> int:
    # The coefficient of x^n in (x^m + x^(m+1) + ...)^k: each factor is a shift and running sums.
    ways = [1] + [0] * n
    for _ in range(k):
        ways = [0] * m + ways[: n + 1 - m]
        for i in range(1, n + 1):
            ways[i] += ways[i - 1]
    return ways[n]


@solver
def _sweets_recursion(n: int, k: int, m: int) -> int:
    @functools.cache
    def ways(left: int, children: int) -> int:
        if children == 1:
            return int(left >= m)
        return sum(ways(left - own, children - 1) for own in range(m, left + 1))

    return ways(n, k)


@solver
def _sweets_near(n: int, k: int, m: int) -> int:
    # All ways, less those in which nobody has m: by inclusion and exclusion over who has m.
    def with_exactly(j: int) -> int:
        left, others = n - j * m, k - j
        if left < 0:
            return 0
        if others == 0:
            return int(left == 0)
        return math.comb(left + others - 1, others - 1)

    return sum((-1) ** (j + 1) * math.comb(k, j) * with_exactly(j) for j in range(1, k + 1))


def _sweets_draw(rng: np.random.Generator) -> dict[str, int]:
    k, m = int(rng.integers(3, 7)), int(rng.integers(2, 13))
    return {"n": k * m + int(rng.integers(4, 41)), "k": k, "m": m}


SWEETS_TO_CHILDREN = Family(
    name="sweets-to-children",
    category="counting",
    kind="parametric",
    difficulty=3,
    template="In how many ways can all of {n} identical sweets be shared out among {k} different "
    "children so that every child receives at least {m}?",
    paraphrase="A bag of {n} equal sweets is divided completely between {k} children with "
    "different names. Nobody may get fewer than {m}. How many divisions are possible?",
    near_miss="In how many ways can all of {n} identical sweets be shared out among {k} different "
    "children so that at least one child receives exactly {m}?",
    sample=sampler(_sweets_draw, _sweets_closed, _sweets_near),
    program=parametric(
        "n k m",
        """
from math import comb
r = n - k * m
print(comb(r + k - 1, k - 1))
""",
    ),
    solvers=(_sweets_closed, _sweets_series, _sweets_recursion),
    near_solver=_sweets_near,
)


# Orders of steps in which one kind never leads by too much.


@solver
def _walks_reflection(a: int, b: int, c: int) -> int:
    # Andre's reflection: bad orders touch a lead of c + 1, and correspond to all orders of
    # a + c + 1 steps east and b - c - 1 north.
    return (math.comb(a + b, b) - math.comb(a + b, b - c - 1)) % 1000


@solver
def _walks_grid(a: int, b: int, c: int) -> int:
    # Ways to each point of a row, row by row.
    ways = [1] * (a + 1)
    for y in range(1, b + 1):
        for x in range(a + 1):
            ways[x] = 0 if y - x > c else ways[x] + (ways[x - 1] if x else 0)
    return ways[a] % 1000


@solver
def _walks_leads(a: int, b: int, c: int) -> int:
    # The lead after each step alone, from -a to c, as a walk on a line that may not pass c.
    ways = [0] * (a + c + 1)
    ways[a] = 1
    for _ in range(a + b):
        ways = [below + above for below, above in zip([0, *ways[:-1]], [*ways[1:], 0], strict=True)]
    return ways[b] % 1000  # a start at place a, and a lead of b - a


@solver
def _walks_near(a: int, b: int, c: int) -> int:
    return (math.comb(a + b, b) if b - a >= c else math.comb(a + b, b - c)) % 1000


LEADING_STEPS = Family(
    name="leading-steps",
    category="counting",
    kind="parametric",
    difficulty=4,
    template="A robot makes {a} unit steps east and {b} unit steps north. In how many orders do "
    "the north steps so far never outnumber the east steps so far by more than {c}? Answer modulo "
    "one thousand.",
    paraphrase="A walk has {a} moves right and {b} moves up. Count the arrangements in which, at "
    "every moment, the moves up made exceed the moves right made by at most {c}. Reduce the count "
    "modulo one thousand.",
    near_miss="A robot makes {a} unit steps east and {b} unit steps north. In how many orders do "
    "the north steps so far at some time outnumber the east steps so far by exactly {c}? Answer "
    "modulo one thousand.",
    sample=sampler(
        ranges(a=(4, 18), b=(4, 18), c=(1, 8)),
        _walks_reflection,
        _walks_near,
        lambda p: p["c"] < p["b"] <= p["a"] + p["c"],
    ),
    program=parametric(
        "a b c",
        """
from math import comb
t = comb(a + b, b)
print((t - comb(a + b, b - c - 1)) % 1000)
""",
    ),
    solvers=(_walks_reflection, _walks_grid, _walks_leads),
    near_solver=_walks_near,
)


# Bags on a row of chairs, with gaps.


@solver
def _bags_closed(n: int, k: int, g: int) -> int:
    return math.comb(n - (k - 1) * g, k)


@solver
def _bags_chairs(n: int, k: int, g: int) -> int:
    # ways[j]: placings of j bags on the chairs up to this one, and back by the gap.
    history = [[1] + [0] * k]
    for chair in range(1, n + 1):
        before = history[max(chair - 1 - g, 0)]
        last = history[-1]
        history.append([1] + [last[j] + before[j - 1] for j in range(1, k + 1)])
    return history[n][k]


@solver
def _bags_last(n: int, k: int, g: int) -> int:
    # at[i]: placings in which the newest bag is on chair i; the next one stands g + 1 further.
    at = [1] * n
    for _ in range(k - 1):
        total, after = 0, [0] * n
        for chair in range(g + 1, n):
            total += at[chair - g - 1]
            after[chair] = total
        at = after
    return sum(at)


@solver
def _bags_near(n: int, k: int, g: int) -> int:
    # On a circle: n starts, the spare chairs in the k gaps, and each placing found k times.
    spare = n - k * (g + 1)
    return n * math.comb(spare + k - 1, k - 1) // k if spare >= 0 else 0


SPACED_BAGS = Family(
    name="spaced-bags",
    category="counting",
    kind="parametric",
    difficulty=3,
    template="A row has {n} chairs. In how many ways can {k} identical bags be placed, at most "
    "one on a chair, with at least {g} empty chairs between any two bags?",
    paraphrase="Out of {n} seats in a straight line, {k} are to be chosen such that two chosen "
    "seats always have {g} or more free seats between them. How many choices are there?",
    near_miss="A round table has {n} numbered chairs. In how many ways can {k} identical bags be "
    "placed, at most one on a chair, with at least {g} empty chairs between any two bags, both "
    "ways round?",
    sample=sampler(
        ranges(n=(10, 60), k=(2, 5), g=(2, 12)),
        _bags_closed,
        _bags_near,
        lambda p: p["n"] - (p["k"] - 1) * p["g"] >= p["k"] + 2,
    ),
    program=parametric(
        "n k g",
        """
from math import comb
r = n - (k - 1) * g
print(comb(r, k))
""",
    ),
    solvers=(_bags_closed, _bags_chairs, _bags_last),
    near_solver=_bags_near,
)


# Ways to pay.


@solver
def _pay_sum(n: int, a: int, b: int) -> int:
    return sum((n - big) // a + 1 for big in range(0, n + 1, b))


@solver
def _pay_table(n: int, a: int, b: int) -> int:
    ways = [1] * (n + 1)
    for coin in (a, b):
        for amount in range(coin, n + 1):
            ways[amount] += ways[amount - coin]
    return ways[n]


@solver
def _pay_pairs(n: int, a: int, b: int) -> int:
    # Every sum of the two larger coins leaves one way to pay the rest in pennies.
    small = range(0, n + 1, a)
    return sum(x + y <= n for y in range(0, n + 1, b) for x in small)


@solver
def _pay_near(n: int, a: int, b: int) -> int:
    # For a fixed number of the largest coin the rest is best paid greedily.
    return min(i + (n - i * b) // a + (n - i * b) % a for i in range(n // b + 1))


PENCE_PAYMENTS = Family(
    name="pence-payments",
    category="counting",
    kind="parametric",
    difficulty=2,
    template="In how many ways can {n} pence be paid with coins of one penny, {a} pence and {b} "
    "pence, if the order of the coins does not matter and not every kind need be used?",
    paraphrase="Postage of {n} pence is made up of stamps of one penny, {a} pence and {b} pence, "
    "any number of each, none included. How many selections of stamps are possible?",
    near_miss="What is the least number of coins with which {n} pence can be paid, with coins of "
    "one penny, {a} pence and {b} pence, if not every kind need be used?",
    sample=sampler(
        ranges(n=(40, 250), a=(3, 15), b=(4, 25)),
        _pay_sum,
        _pay_near,
        lambda p: p["a"] < p["b"],
    ),
    program=parametric(
        "n a b",
        """
t = 0
for x in range(0, n + 1, b):
    t += (n - x) // a + 1
print(t)
""",
    ),
    solvers=(_pay_sum, _pay_table, _pay_pairs),
    near_solver=_pay_near,
)


# Crews of two professions.


@solver
def _crew_complement(k: int, p: int, e: int) -> int:
    return math.comb(p + e, k) - math.comb(p, k) - math.comb(e, k)


@solver
def _crew_cases(k: int, p: int, e: int) -> int:
    return sum(math.comb(p, i) * math.comb(e, k - i) for i in range(1, k))


@solver
def _crew_persons(k: int, p: int, e: int) -> int:
    # Person by person: ways[size][seen], seen = 1 for a pilot, 2 for an engineer, 3 for both.
    ways = [[0, 0, 0, 0] for _ in range(k + 1)]
    ways[0][0] = 1
    for profession in [1] * p + [2] * e:
        for size in range(k, 0, -1):
            for seen, found in enumerate(ways[size - 1]):
                if found:
                    ways[size][seen | profession] += found
    return ways[k][3]


@solver
def _crew_near(k: int, p: int, e: int) -> int:
    return sum(math.comb(p, i) * math.comb(e, k - i) for i in range(k // 2 + 1, k + 1))


@hard_coded
def _crew_program(k: int, p: int, e: int) -> str:
    return f"""
from math import comb
t = comb({p + e}, {k})
t -= comb({p}, {k})
t -= comb({e}, {k})
print(t)
"""


MIXED_CREW = Family(
    name="mixed-crew",
    category="counting",
    kind="hard-coded",
    difficulty=2,
    template="A crew of {k} people is chosen from {p} pilots and {e} engineers. How many "
    "different crews have at least one pilot and at least one engineer?",
    paraphrase="Teams of {k} are formed out of {p} pilots and {e} engineers, and both professions "
    "must be present. How many teams can be formed?",
    near_miss="A crew of {k} people is chosen from {p} pilots and {e} engineers. How many "
    "different crews have more pilots than engineers?",
    sample=sampler(
        ranges(k=(3, 8), p=(2, 28), e=(2, 28)),
        _crew_complement,
        _crew_near,
    ),
    program=_crew_program,
    solvers=(_crew_complement, _crew_cases, _crew_persons),
    near_solver=_crew_near,
)


# Numbers in which a digit occurs.


@solver
def _digit_rank(a: int, b: int, d: int) -> int:
    # The numbers 0..n without the digit d, as a rank in base nine.
    def without(n: int) -> int:
        rank = 0
        for place, digit in enumerate(digits := [int(c) for c in str(n)]):
            rank = 9 * rank + digit - (digit > d)
            if digit == d:  # all smaller numbers without d have a smaller digit here
                return rank * int(9 ** (len(digits) - place - 1))
        return rank + 1

    return (b - a + 1) - (without(b) - without(a - 1))


@solver
def _digit_text(a: int, b: int, d: int) -> int:
    return sum(str(d) in str(k) for k in range(a, b + 1))


@solver
def _digit_places(a: int, b: int, d: int) -> int:
    # For each place of the digit, the runs of numbers that have it there.
    found: set[int] = set()
    for unit in (1, 10, 100, 1000):
        for start in range(d * unit, b + 1, 10 * unit):
            found.update(range(max(start, a), min(start + unit, b + 1)))
    return len(found)


@solver
def _digit_near(a: int, b: int, d: int) -> int:
    return sum(str(k).count(str(d)) for k in range(a, b + 1))


def _digit_draw(rng: np.random.Generator) -> dict[str, int]:
    a = int(rng.integers(101, 800))
    return {"a": a, "b": a + int(rng.integers(100, 1100)), "d": int(rng.integers(1, 10))}


@hard_coded
def _digit_program(a: int, b: int, d: int) -> str:
    return f"""
t = 0
for k in range({a}, {b + 1}):
    if str({d}) in str(k):
        t += 1
print(t)
"""


DIGIT_IN_RANGE = Family(
    name="digit-in-range",
    category="counting",
    kind="hard-coded",
    difficulty=2,
    template="How many integers from {a} to {b}, both included, have the digit {d} at least once "
    "in their decimal form?",
    paraphrase="All whole numbers from {a} to {b} inclusive are written on cards, one on each. On "
    "how many cards can the digit {d} be seen?",
    near_miss="All integers from {a} to {b}, both included, are written down in decimal form. How "
    "many times in total is the digit {d} written?",
    sample=sampler(_digit_draw, _digit_rank, _digit_near),
    program=_digit_program,
    solvers=(_digit_rank, _digit_text, _digit_places),
    near_solver=_digit_near,
)

FAMILIES = (
    SWEETS_TO_CHILDREN,
    LEADING_STEPS,
    SPACED_BAGS,
    PENCE_PAYMENTS,
    MIXED_CREW,
    DIGIT_IN_RANGE,
)
