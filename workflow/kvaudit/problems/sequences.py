"""Families of sequences: recurrences, sums, lists with gaps, and totals that pass a bound.

This module must not know how problems are asked or scored.
"""

from __future__ import annotations

import bisect
import itertools
import math

import numpy as np

from kvaudit.problems.family import Family, hard_coded, parametric, ranges, sampler, solver

# Each term is the sum of the two before it.


@solver
def _two_terms_steps(a: int, b: int, n: int, m: int) -> int:
    for _ in range(n - 1):
        a, b = b, (a + b) % m
    return a % m


@solver
def _two_terms_doubling(a: int, b: int, n: int, m: int) -> int:
    # Term n is a F(n-2) + b F(n-1); Fibonacci numbers by doubling.
    def pair(k: int) -> tuple[int, int]:
        if k == 0:
            return 0, 1
        low, high = pair(k // 2)
        even, odd = low * (2 * high - low), low * low + high * high
        return (odd, even + odd) if k % 2 else (even, odd)

    before, last = pair(n - 2)
    return (a * before + b * last) % m


@solver
def _two_terms_binomials(a: int, b: int, n: int, m: int) -> int:
    # F(k+1) counts the ways to write k as ones and twos: a sum of binomials.
    def fibonacci(k: int) -> int:
        return sum(math.comb(k - 1 - i, i) for i in range((k - 1) // 2 + 1)) if k else 0

    return (a * fibonacci(n - 2) + b * fibonacci(n - 1)) % m


@solver
def _two_terms_near(a: int, b: int, n: int, m: int) -> int:
    total = 0
    for _ in range(n):
        total += a
        a, b = b, a + b
    return total % m


TWO_FIRST_TERMS = Family(
    name="two-first-terms",
    category="sequences",
    kind="parametric",
    difficulty=2,
    template="The first two terms of a sequence are {a} and {b}, and every later term is the sum "
    "of the two terms before it. What remainder does term number {n} leave on division by {m}?",
    paraphrase="We write {a}, then {b}, and go on so that each new entry adds the two latest "
    "ones. Find the entry in place {n}, counted from one, reduced modulo {m}.",
    near_miss="The first two terms of a sequence are {a} and {b}, and every later term is the sum "
    "of the two terms before it. What remainder does the sum of the first {n} terms leave on "
    "division by {m}?",
    sample=sampler(
        ranges(a=(1, 20), b=(1, 20), n=(15, 60), m=(100, 997)),
        _two_terms_steps,
        _two_terms_near,
    ),
    program=parametric(
        "a b n m",
        """
for i in range(n - 1):
    a, b = b, a + b
print(a % m)
""",
    ),
    solvers=(_two_terms_steps, _two_terms_doubling, _two_terms_binomials),
    near_solver=_two_terms_near,
)


# The sum of an arithmetic sequence up to a bound.


@solver
def _arithmetic_closed(a: int, d: int, n: int) -> int:
    terms = (n - a) // d + 1
    return terms * a + d * terms * (terms - 1) // 2


@solver
def _arithmetic_steps(a: int, d: int, n: int) -> int:
    total = 0
    while a <= n:
        total += a
        a += d
    return total


@solver
def _arithmetic_residues(a: int, d: int, n: int) -> int:
    return sum(k for k in range(a, n + 1) if (k - a) % d == 0)


@solver
def _arithmetic_near(a: int, d: int, n: int) -> int:
    return n * a + d * n * (n - 1) // 2


BOUNDED_PROGRESSION = Family(
    name="bounded-progression",
    category="sequences",
    kind="parametric",
    difficulty=1,
    template="An arithmetic sequence has first term {a} and common difference {d}. What is the "
    "sum of all its terms that do not exceed {n}?",
    paraphrase="Begin at {a} and keep adding {d}. What is the total of all numbers reached, the "
    "first one included, that are at most {n}?",
    near_miss="An arithmetic sequence has first term {a} and common difference {d}. What is the "
    "sum of its first {n} terms?",
    sample=sampler(
        ranges(a=(2, 30), d=(2, 15), n=(30, 150)),
        _arithmetic_closed,
        _arithmetic_near,
        lambda p: p["n"] - p["a"] >= 3 * p["d"],
    ),
    program=parametric("a d n", "print(sum(range(a, n + 1, d)))"),
    solvers=(_arithmetic_closed, _arithmetic_steps, _arithmetic_residues),
    near_solver=_arithmetic_near,
)


# Multiply, add one, reduce.


@solver
def _ticks_steps(a: int, p: int, m: int, n: int) -> int:
    for _ in range(n):
        a = (a * p + 1) % m
    return a


@solver
def _ticks_closed(a: int, p: int, m: int, n: int) -> int:
    power = int(p**n)
    return (a * power + (power - 1) // (p - 1)) % m


@solver
def _ticks_composed(a: int, p: int, m: int, n: int) -> int:
    # The step x -> p x + 1 composed with itself by squaring, as pairs (factor, summand).
    factor, summand, step = 1, 0, (p, 1)
    while n:
        if n % 2:
            factor, summand = step[0] * factor % m, (step[0] * summand + step[1]) % m
        step = (step[0] * step[0] % m, (step[0] * step[1] + step[1]) % m)
        n //= 2
    return (factor * a + summand) % m


@solver
def _ticks_near(a: int, p: int, m: int, n: int) -> int:
    for _ in range(n):
        a = (a + 1) * p % m
    return a


COUNTER_TICKS = Family(
    name="counter-ticks",
    category="sequences",
    kind="parametric",
    difficulty=3,
    template="A counter shows {a}. At each tick its number is multiplied by {p}, then one is "
    "added, and only the remainder on division by {m} is kept. What does it show after {n} ticks?",
    paraphrase="Take {a} as the start. One step replaces a number by {p} times itself plus one, "
    "reduced modulo {m}. Which number has been reached after {n} steps?",
    near_miss="A counter shows {a}. At each tick one is added to its number, then it is "
    "multiplied by {p}, and only the remainder on division by {m} is kept. What does it show "
    "after {n} ticks?",
    sample=sampler(
        ranges(a=(2, 90), p=(2, 19), m=(101, 997), n=(8, 60)), _ticks_steps, _ticks_near
    ),
    program=parametric(
        "a p m n",
        """
for i in range(n):
    a = (a * p + 1) % m
print(a)
""",
    ),
    solvers=(_ticks_steps, _ticks_closed, _ticks_composed),
    near_solver=_ticks_near,
)


# The list of numbers that two numbers do not divide.


@solver
def _unlisted_search(a: int, b: int, k: int) -> int:
    # The least x up to which k numbers are left over, by bisection on the count.
    both = math.lcm(a, b)
    return bisect.bisect_left(range(4 * k), k, key=lambda x: x - x // a - x // b + x // both)


@solver
def _unlisted_walk(a: int, b: int, k: int) -> int:
    x = 0
    while k:
        x += 1
        k -= x % a != 0 and x % b != 0
    return x


@solver
def _unlisted_period(a: int, b: int, k: int) -> int:
    # The pattern repeats after the least common multiple.
    both = math.lcm(a, b)
    kept = [x for x in range(1, both) if math.gcd(x, a) < a and math.gcd(x, b) < b]
    rounds, place = divmod(k - 1, len(kept))
    return rounds * both + kept[place]


@solver
def _unlisted_near(a: int, b: int, k: int) -> int:
    most = k * min(a, b)
    return sorted(set(range(a, most + 1, a)) | set(range(b, most + 1, b)))[k - 1]


UNLISTED_NUMBERS = Family(
    name="unlisted-numbers",
    category="sequences",
    kind="parametric",
    difficulty=2,
    template="The positive integers that are divisible neither by {a} nor by {b} are listed in "
    "increasing order. Which integer stands in place {k} of the list, counted from one?",
    paraphrase="From the positive integers all multiples of {a} and all multiples of {b} are "
    "crossed out. Which of the numbers left over is number {k} by size, the least being number "
    "one?",
    near_miss="The positive integers that are divisible by {a} or by {b} or by both are listed in "
    "increasing order. Which integer stands in place {k} of the list, counted from one?",
    sample=sampler(
        ranges(a=(2, 9), b=(3, 13), k=(60, 600)),
        _unlisted_search,
        _unlisted_near,
        lambda p: p["a"] % p["b"] != 0 and p["b"] % p["a"] != 0,
    ),
    program=parametric(
        "a b k",
        """
s = range(1000)
s = [x for x in s if x % a * (x % b) > 0]
print(s[k - 1])
""",
    ),
    solvers=(_unlisted_search, _unlisted_walk, _unlisted_period),
    near_solver=_unlisted_near,
)


# The day on which a growing total passes a bound.


def _saved(a: int, d: int, days: int) -> int:
    return days * a + d * days * (days - 1) // 2


@solver
def _saver_root(a: int, d: int, n: int) -> int:
    # The positive root of d x^2 + (2a - d) x = 2n, in integers, then at most one step up.
    half = 2 * a - d
    days = max((math.isqrt(half * half + 8 * d * n) - half) // (2 * d), 0)
    return days + 1 if _saved(a, d, days) <= n else days


@solver
def _saver_days(a: int, d: int, n: int) -> int:
    total = day = 0
    while total <= n:
        total += a + day * d
        day += 1
    return day


@solver
def _saver_search(a: int, d: int, n: int) -> int:
    return bisect.bisect_right(range(n + 2), n, key=lambda days: _saved(a, d, days))


@solver
def _saver_near(a: int, d: int, n: int) -> int:
    return (n - a) // d + 2


@hard_coded
def _saver_program(a: int, d: int, n: int) -> str:
    return f"""
t = 0
k = 0
while t < {n + 1}:
    t += {a} + k * {d}
    k += 1
print(k)
"""


GROWING_SAVINGS = Family(
    name="growing-savings",
    category="sequences",
    kind="hard-coded",
    difficulty=2,
    template="A saver puts {a} coins into an empty box on the first day, and on each later day "
    "{d} coins more than the day before. On which day does the total first exceed {n}?",
    paraphrase="Payments into a box grow daily: {a} coins on day one, then always {d} more than "
    "on the previous day. What is the number of the day on which the box first holds more than "
    "{n}?",
    near_miss="A saver puts {a} coins into an empty box on the first day, and on each later day "
    "{d} coins more than the day before. On which day does the amount of that day first exceed "
    "{n}?",
    sample=sampler(ranges(a=(2, 40), d=(2, 9), n=(1000, 60000)), _saver_root, _saver_near),
    program=_saver_program,
    solvers=(_saver_root, _saver_days, _saver_search),
    near_solver=_saver_near,
)


# The remainder of a sum of squares.


@solver
def _squares_closed(a: int, b: int, m: int) -> int:
    def up_to(n: int) -> int:
        return n * (n + 1) * (2 * n + 1) // 6

    return (up_to(b) - up_to(a - 1)) % m


@solver
def _squares_loop(a: int, b: int, m: int) -> int:
    total = 0
    for k in range(a, b + 1):
        total = (total + k * k) % m
    return total


@solver
def _squares_differences(a: int, b: int, m: int) -> int:
    # Squares are running sums of odd numbers; no multiplication but the first.
    odd = range(2 * a + 1, 2 * b, 2)
    return sum(itertools.accumulate(odd, initial=a * a)) % m


@solver
def _squares_near(a: int, b: int, m: int) -> int:
    return int(sum(range(a, b + 1)) ** 2) % m


def _squares_draw(rng: np.random.Generator) -> dict[str, int]:
    a = int(rng.integers(5, 60))
    return {"a": a, "b": a + int(rng.integers(12, 90)), "m": int(rng.integers(101, 998))}


@hard_coded
def _squares_program(a: int, b: int, m: int) -> str:
    return f"""
t = 0
for k in range({a}, {b + 1}):
    t += k * k
print(t % {m})
"""


SQUARES_REMAINDER = Family(
    name="squares-remainder",
    category="sequences",
    kind="hard-coded",
    difficulty=2,
    template="The squares of all integers from {a} to {b}, both included, are added. What "
    "remainder does the sum leave on division by {m}?",
    paraphrase="Square every whole number in the range {a} to {b} inclusive and sum the results. "
    "Give this sum modulo {m}.",
    near_miss="All integers from {a} to {b}, both included, are added, and the sum is squared. "
    "What remainder does the square leave on division by {m}?",
    sample=sampler(_squares_draw, _squares_closed, _squares_near),
    program=_squares_program,
    solvers=(_squares_closed, _squares_loop, _squares_differences),
    near_solver=_squares_near,
)

FAMILIES = (
    TWO_FIRST_TERMS,
    BOUNDED_PROGRESSION,
    COUNTER_TICKS,
    UNLISTED_NUMBERS,
    GROWING_SAVINGS,
    SQUARES_REMAINDER,
)
