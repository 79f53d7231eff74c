"""Families of number theory: divisibility, powers, remainders, factorials and divisors.

This module must not know how problems are asked or scored.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from kvaudit.problems.family import Family, hard_coded, parametric, ranges, sampler, solver


def prime_factors(n: int) -> dict[int, int]:
    """Primes of a positive integer with their exponents, by trial division."""
    found: dict[int, int] = {}
    p = 2
    while p * p <= n:
        while n % p == 0:
            found[p] = found.get(p, 0) + 1
            n //= p
        p += 1
    if n > 1:
        found[n] = found.get(n, 0) + 1
    return found


# Multiples of one number or another.


@solver
def _either_closed(n: int, a: int, b: int) -> int:
    return n // a + n // b - n // math.lcm(a, b)


@solver
def _either_sets(n: int, a: int, b: int) -> int:
    return len({*range(a, n + 1, a), *range(b, n + 1, b)})


@solver
def _either_merge(n: int, a: int, b: int) -> int:
    # Two pointers that walk along the multiples together.
    count, x, y = 0, a, b
    while min(x, y) <= n:
        low = min(x, y)
        x += a if x == low else 0
        y += b if y == low else 0
        count += 1
    return count


@solver
def _either_near(n: int, a: int, b: int) -> int:
    return n // a - n // math.lcm(a, b)


MULTIPLES_OF_EITHER = Family(
    name="multiples-of-either",
    category="number theory",
    kind="parametric",
    difficulty=1,
    template="How many positive integers not greater than {n} are divisible by {a} or by {b}, "
    "or by both?",
    paraphrase="Count the whole numbers from one up to and including {n} which are multiples of "
    "at least one of the numbers {a} and {b}.",
    near_miss="How many positive integers not greater than {n} are divisible by {a} but not by "
    "{b}?",
    sample=sampler(
        ranges(n=(150, 999), a=(3, 19), b=(3, 19)),
        _either_closed,
        _either_near,
        lambda p: p["a"] % p["b"] != 0 and p["b"] % p["a"] != 0,
    ),
    program=parametric(
        "n a b",
        """
s = range(1, n + 1)
s = [k for k in s if k % a * (k % b) == 0]
print(len(s))
""",
    ),
    solvers=(_either_closed, _either_sets, _either_merge),
    near_solver=_either_near,
)


# The remainder of a power.


@solver
def _power_builtin(a: int, e: int, m: int) -> int:
    return pow(a, e, m)


@solver
def _power_steps(a: int, e: int, m: int) -> int:
    x = 1
    for _ in range(e):
        x = x * a % m
    return x


@solver
def _power_cycle(a: int, e: int, m: int) -> int:
    # The powers of a modulo m run into a cycle; the exponent is reduced along it.
    powers, place, x = [1 % m], {1 % m: 0}, a % m
    while x not in place:
        place[x] = len(powers)
        powers.append(x)
        x = x * a % m
    start = place[x]
    length = len(powers) - start
    return powers[e if e < start else start + (e - start) % length]


@solver
def _power_near(a: int, e: int, m: int) -> int:
    return sum(pow(a, i, m) for i in range(1, e + 1)) % m


POWER_REMAINDER = Family(
    name="power-remainder",
    category="number theory",
    kind="parametric",
    difficulty=2,
    template="The number {a} is raised to the power {e}. What remainder does the result leave on "
    "division by {m}?",
    paraphrase="Let the base {a} have the exponent {e}. Find the least residue, zero or more, of "
    "this power modulo {m}.",
    near_miss="The number {a} is raised to every power from the first up to the power {e}. What "
    "remainder does the sum of the results leave on division by {m}?",
    sample=sampler(ranges(a=(2, 30), e=(15, 90), m=(101, 997)), _power_builtin, _power_near),
    program=parametric("a e m", "print(a ** e % m)"),
    solvers=(_power_builtin, _power_steps, _power_cycle),
    near_solver=_power_near,
)


# Two remainders at once.


@solver
def _two_inverse(r: int, a: int, s: int, b: int) -> int:
    # The Chinese remainder theorem for coprime a and b. It is never 0, as r is not.
    return r + a * ((s - r) * pow(a, -1, b) % b)


@solver
def _two_sieve(r: int, a: int, s: int, b: int) -> int:
    x = r
    while x % b != s:
        x += a
    return x


@solver
def _two_sets(r: int, a: int, s: int, b: int) -> int:
    return min(set(range(r, a * b, a)) & set(range(s, a * b, b)))


@solver
def _two_near(r: int, a: int, s: int, b: int) -> int:
    return max(x for x in range(r, 1000, a) if x % b == s)


TWO_REMAINDERS = Family(
    name="two-remainders",
    category="number theory",
    kind="parametric",
    difficulty=3,
    template="What is the smallest positive integer that leaves remainder {r} on division by {a} "
    "and remainder {s} on division by {b}?",
    paraphrase="Find the least number of stones such that {r} are left over when they are laid in "
    "groups of {a}, and {s} are left over when they are laid in groups of {b}.",
    near_miss="What is the largest positive integer below one thousand that leaves remainder {r} "
    "on division by {a} and remainder {s} on division by {b}?",
    sample=sampler(
        ranges(r=(1, 30), a=(5, 31), s=(1, 30), b=(5, 31)),
        _two_inverse,
        _two_near,
        lambda p: (
            p["r"] < p["a"]
            and p["s"] < p["b"]
            and p["r"] != p["s"]
            and math.gcd(p["a"], p["b"]) == 1
            and 60 <= p["a"] * p["b"] <= 499
        ),
    ),
    program=parametric(
        "r a s b",
        """
while r % b != s:
    r += a
print(r)
""",
    ),
    solvers=(_two_inverse, _two_sieve, _two_sets),
    near_solver=_two_near,
)


# The exponent of a prime in a factorial.


@solver
def _factorial_legendre(p: int, n: int) -> int:
    # Legendre's formula.
    total = 0
    while n:
        n //= p
        total += n
    return total


@solver
def _factorial_digits(p: int, n: int) -> int:
    # Legendre's other formula: (n - digit sum of n in base p) / (p - 1).
    digits, rest = 0, n
    while rest:
        digits += rest % p
        rest //= p
    return (n - digits) // (p - 1)


@solver
def _factorial_multiples(p: int, n: int) -> int:
    return sum(_exponent(k, p) for k in range(p, n + 1, p))


@solver
def _factorial_near(p: int, n: int) -> int:
    return sum(_exponent(k, p) for k in range(1, n + 1, 2))


def _exponent(k: int, p: int) -> int:
    found = 0
    while k % p == 0:
        k //= p
        found += 1
    return found


def _factorial_draw(rng: np.random.Generator) -> dict[str, int]:
    p = (2, 3, 5, 7, 11, 13)[int(rng.integers(6))]
    return {"p": p, "n": int(rng.integers(100, 1000))}


FACTORIAL_EXPONENT = Family(
    name="factorial-exponent",
    category="number theory",
    kind="parametric",
    difficulty=3,
    template="To what greatest power can the prime {p} be raised so that the result divides the "
    "factorial of {n}? Give the exponent.",
    paraphrase="How many times does the prime {p} appear when the factorial of {n} is written as "
    "a product of primes?",
    near_miss="To what greatest power can the prime {p} be raised so that the result divides the "
    "product of all odd positive integers up to {n}? Give the exponent.",
    sample=sampler(_factorial_draw, _factorial_legendre, _factorial_near),
    program=parametric(
        "p n",
        """
t = 0
while n > 0:
    n = n // p
    t += n
print(t)
""",
    ),
    solvers=(_factorial_legendre, _factorial_digits, _factorial_multiples),
    near_solver=_factorial_near,
)


# The sum of some divisors.


@solver
def _divisors_formula(n: int, d: int) -> int:
    # The divisors of n that d divides are d times the divisors of n / d.
    powers = prime_factors(n // d)
    return d * math.prod(sum(int(p**i) for i in range(e + 1)) for p, e in powers.items())


@solver
def _divisors_brute(n: int, d: int) -> int:
    return sum(k for k in range(1, n + 1) if n % k == 0 and k % d == 0)


@solver
def _divisors_pairs(n: int, d: int) -> int:
    low = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return sum(k for k in {*low, *(n // k for k in low)} if k % d == 0)


@solver
def _divisors_near(n: int, d: int) -> int:
    return sum(k for k in range(1, n + 1) if n % k == 0 and k % d != 0)


def _divisors_draw(rng: np.random.Generator) -> dict[str, int]:
    d = int(rng.integers(2, 21))
    return {"n": d * int(rng.integers(4, 201)), "d": d}


@hard_coded
def _divisors_program(n: int, d: int) -> str:
    return f"""
t = 0
for k in range(1, {n + 1}):
    if {n} % k == 0 and k % {d} == 0:
        t += k
print(t)
"""


DIVISOR_SUM = Family(
    name="divisor-sum",
    category="number theory",
    kind="hard-coded",
    difficulty=2,
    template="What is the sum of all positive divisors of {n} that are multiples of {d}?",
    paraphrase="Add up every positive integer which divides {n} without remainder and is itself "
    "divisible by {d}. What is the total?",
    near_miss="What is the sum of all positive divisors of {n} that are not multiples of {d}?",
    sample=sampler(_divisors_draw, _divisors_formula, _divisors_near),
    program=_divisors_program,
    solvers=(_divisors_formula, _divisors_brute, _divisors_pairs),
    near_solver=_divisors_near,
)


# Numbers coprime to a product.


@solver
def _coprime_inclusion(n: int, a: int, b: int) -> int:
    primes = sorted({*prime_factors(a), *prime_factors(b)})
    return sum(
        (-1) ** size * (n // math.prod(chosen))
        for size in range(len(primes) + 1)
        for chosen in itertools.combinations(primes, size)
    )


@solver
def _coprime_gcd(n: int, a: int, b: int) -> int:
    return sum(math.gcd(k, a) == 1 and math.gcd(k, b) == 1 for k in range(1, n + 1))


@solver
def _coprime_sieve(n: int, a: int, b: int) -> int:
    left = bytearray([1]) * (n + 1)
    left[0] = 0
    for d in range(2, max(a, b) + 1):
        if a % d == 0 or b % d == 0:
            left[::d] = bytes(n // d + 1)
    return sum(left)


@solver
def _coprime_near(n: int, a: int, b: int) -> int:
    return sum(math.gcd(k, a) == 1 and math.gcd(k, b) != 1 for k in range(1, n + 1))


@hard_coded
def _coprime_program(n: int, a: int, b: int) -> str:
    return f"""
from math import gcd
t = 0
for k in range(1, {n + 1}):
    if gcd(k, {a * b}) == 1:
        t += 1
print(t)
"""


COPRIME_TO_PRODUCT = Family(
    name="coprime-to-product",
    category="number theory",
    kind="hard-coded",
    difficulty=3,
    template="How many positive integers up to and including {n} are coprime to the product of "
    "{a} and {b}?",
    paraphrase="Count the numbers from one to {n}, both included, which share no prime factor "
    "with {a} times {b}.",
    near_miss="How many positive integers up to and including {n} are coprime to {a} but not "
    "coprime to {b}?",
    sample=sampler(
        ranges(n=(80, 999), a=(4, 40), b=(4, 40)),
        _coprime_inclusion,
        _coprime_near,
        lambda p: p["a"] != p["b"],
    ),
    program=_coprime_program,
    solvers=(_coprime_inclusion, _coprime_gcd, _coprime_sieve),
    near_solver=_coprime_near,
)

FAMILIES = (
    MULTIPLES_OF_EITHER,
    POWER_REMAINDER,
    TWO_REMAINDERS,
    FACTORIAL_EXPONENT,
    DIVISOR_SUM,
    COPRIME_TO_PRODUCT,
)
