"""Families of logic: elimination, switching, rules with worked examples, guarantees.

Worked examples are written in words, so that the digits of a statement are its parameters. This
module must not know how problems are asked or scored.
"""

from __future__ import annotations

import bisect
from collections import deque

import numpy as np

from kvaudit.problems.family import Family, hard_coded, parametric, ranges, sampler, solver

# Children who leave a circle.


@solver
def _circle_recurrence(n: int, k: int) -> int:
    place = 0
    for size in range(2, n + 1):
        place = (place + k) % size
    return place + 1


@solver
def _circle_list(n: int, k: int) -> int:
    left = list(range(1, n + 1))
    at = 0
    while len(left) > 1:
        at = (at + k - 1) % len(left)
        del left[at]
    return left[0]


@solver
def _circle_turning(n: int, k: int) -> int:
    ring = deque(range(1, n + 1))
    while len(ring) > 1:
        ring.rotate(1 - k)
        ring.popleft()
    return ring[0]


@solver
def _circle_near(n: int, k: int) -> int:
    ring = deque(range(1, n + 1))
    for _ in range(2):
        ring.rotate(1 - k)
        ring.popleft()
    ring.rotate(1 - k)
    return ring[0]


CHILDREN_IN_CIRCLE = Family(
    name="children-in-circle",
    category="logic",
    kind="parametric",
    difficulty=4,
    template="Children numbered from one to {n} stand in a circle in order. Counting begins with "
    "child one; whoever is counted as {k} leaves, and the next child is counted as one. Which "
    "number has the child that remains?",
    paraphrase="There are {n} players in a ring, numbered in order from one. A count up to {k} "
    "starts at player one; the player it ends on drops out, and the following player starts a new "
    "count. Who survives?",
    near_miss="Children numbered from one to {n} stand in a circle in order. Counting begins with "
    "child one; whoever is counted as {k} leaves, and the next child is counted as one. Which "
    "number has the third child to leave?",
    sample=sampler(ranges(n=(25, 300), k=(3, 20)), _circle_recurrence, _circle_near),
    program=parametric(
        "n k",
        """
r = 0
for i in range(2, n + 1):
    r = (r + k) % i
print(r + 1)
""",
    ),
    solvers=(_circle_recurrence, _circle_list, _circle_turning),
    near_solver=_circle_near,
)


# Lamps that are switched in rounds.


@solver
def _lamps_bits(n: int, m: int) -> int:
    # All lamps in one integer; a round's mask has every r-th bit set.
    lamps = 0
    for r in range(1, m + 1):
        lamps ^= ((1 << (r * (n // r))) - 1) // ((1 << r) - 1) << (r - 1)
    return lamps.bit_count()


@solver
def _lamps_divisors(n: int, m: int) -> int:
    rounds = range(1, m + 1)
    return sum(sum([k % r == 0 for r in rounds]) % 2 for k in range(1, n + 1))


@solver
def _lamps_sets(n: int, m: int) -> int:
    on: set[int] = set()
    for r in range(1, m + 1):
        on ^= set(range(r, n + 1, r))
    return len(on)


@solver
def _lamps_near(n: int, m: int) -> int:
    switched = [0] * (n + 1)
    for r in range(1, m + 1):
        for k in range(r, n + 1, r):
            switched[k] += 1
    return switched.count(2)


SWITCHED_LAMPS = Family(
    name="switched-lamps",
    category="logic",
    kind="parametric",
    difficulty=3,
    template="In a row are {n} lamps, numbered from one, all off. In rounds one to {m}, every "
    "lamp whose number is a multiple of the round's number is switched over. How many lamps are "
    "on at the end?",
    paraphrase="Of {n} closed doors, numbered from one, each of {m} visitors, numbered from one "
    "as well, opens or shuts those with a number that his own number divides. How many doors "
    "finally stand open?",
    near_miss="In a row are {n} lamps, numbered from one, all off. In rounds one to {m}, every "
    "lamp whose number is a multiple of the round's number is switched over. How many lamps are "
    "switched exactly twice?",
    sample=sampler(ranges(n=(60, 300), m=(3, 16)), _lamps_bits, _lamps_near),
    program=parametric(
        "n m",
        """
s = [0] * (n + 1)
for r in range(1, m + 1):
    for k in range(r, n + 1, r):
        s[k] = 1 - s[k]
print(sum(s))
""",
    ),
    solvers=(_lamps_bits, _lamps_divisors, _lamps_sets),
    near_solver=_lamps_near,
)


# An operation given by a rule and worked examples.


@solver
def _star_rule(a: int, b: int, c: int) -> int:
    z = a * b - a - b
    return z * c - z - c


@solver
def _star_shifted(a: int, b: int, c: int) -> int:
    # xy - x - y = (x - 1)(y - 1) - 1, so z - 1 is two less than a product.
    return ((a - 1) * (b - 1) - 2) * (c - 1) - 1


@solver
def _star_counting(a: int, b: int, c: int) -> int:
    # By repeated addition only.
    def star(x: int, y: int) -> int:
        return sum(x for _ in range(y)) - x - y

    return star(star(a, b), c)


@solver
def _star_near(a: int, b: int, c: int) -> int:
    z = a * b + a + b
    return z * c + z + c


STAR_OPERATION = Family(
    name="star-operation",
    category="logic",
    kind="parametric",
    difficulty=2,
    template="For numbers x and y, x star y is their product less their sum: three star four is "
    "five, five star three is seven. Let z be {a} star {b}. What is z star {c}?",
    paraphrase="Two numbers are mixed by taking their product minus their sum, so six and two "
    "give four. Mix {a} with {b}, then mix the outcome with {c}. What comes out?",
    near_miss="For numbers x and y, x star y is their product plus their sum: three star four is "
    "nineteen, five star three is twenty-three. Let z be {a} star {b}. What is z star {c}?",
    sample=sampler(ranges(a=(3, 16), b=(3, 16), c=(3, 16)), _star_rule, _star_near),
    program=parametric(
        "a b c",
        """
z = a * b - a - b
print(z * c - z - c)
""",
    ),
    solvers=(_star_rule, _star_shifted, _star_counting),
    near_solver=_star_near,
)


# A machine that halves even numbers.


def _machine_step(x: int, a: int) -> int:
    return x + a if x % 2 else x // 2


@solver
def _machine_steps(s: int, a: int, n: int) -> int:
    for _ in range(n):
        s = s + a if s % 2 else s // 2
    return s


@solver
def _machine_cycle(s: int, a: int, n: int) -> int:
    # The numbers run into a cycle, along which the steps left are reduced.
    held, place = [s], {s: 0}
    while (x := _machine_step(held[-1], a)) not in place:
        place[x] = len(held)
        held.append(x)
    start = place[x]
    length = len(held) - start
    return held[n if n < start else start + (n - start) % length]


@solver
def _machine_jumps(s: int, a: int, n: int) -> int:
    # Maps of 1, 2, 4, ... steps on all numbers that can occur, joined by the bits of n. With an
    # odd a no number exceeds the larger of s and 2a, plus a.
    jump = [_machine_step(x, a) for x in range(max(s, 2 * a) + a + 1)]
    # Numbers of the table from which a step would leave it do not occur.
    size = len(jump)
    jump = [x if x < size else 0 for x in jump]
    while n:
        if n % 2:
            s = jump[s]
        n //= 2
        if n:
            jump = [jump[x] for x in jump]
    return s


@solver
def _machine_near(s: int, a: int, n: int) -> int:
    most = s
    for _ in range(n):
        s = _machine_step(s, a)
        most = max(most, s)
    return most


def _machine_draw(rng: np.random.Generator) -> dict[str, int]:
    s, a = int(rng.integers(60, 600)), 2 * int(rng.integers(10, 120)) + 1
    return {"s": s, "a": a, "n": int(rng.integers(6, 60))}


HALVING_MACHINE = Family(
    name="halving-machine",
    category="logic",
    kind="parametric",
    difficulty=3,
    template="A machine is fed the number {s}. In each step it halves its number if even, as "
    "twelve becomes six, and adds {a} if odd. Which number does it hold after {n} steps?",
    paraphrase="Begin with {s}. An odd number is raised by {a}, an even one is cut in half. What "
    "is reached when this rule has been applied {n} times?",
    near_miss="A machine is fed the number {s}. In each step it halves its number if even, as "
    "twelve becomes six, and adds {a} if odd. What is the largest number it holds in the first "
    "{n} steps, its start included?",
    sample=sampler(_machine_draw, _machine_steps, _machine_near),
    program=parametric(
        "s a n",
        """
for i in range(n):
    s = s + a if s % 2 else s // 2
print(s)
""",
    ),
    solvers=(_machine_steps, _machine_cycle, _machine_jumps),
    near_solver=_machine_near,
)


# A snail in a well.


@solver
def _snail_closed(h: int, u: int, d: int) -> int:
    return -((h - u) // -(u - d)) + 1


@solver
def _snail_days(h: int, u: int, d: int) -> int:
    height, day = u, 1
    while height < h:
        height += u - d
        day += 1
    return day


@solver
def _snail_search(h: int, u: int, d: int) -> int:
    # The height at noon of a day only grows, so its first value of h or more can be bisected.
    return bisect.bisect_left(range(h + 1), h, lo=1, key=lambda day: u * day - d * (day - 1))


@solver
def _snail_near(h: int, u: int, d: int) -> int:
    return d * -((h - u) // -(u - d))


@hard_coded
def _snail_program(h: int, u: int, d: int) -> str:
    return f"""
x = {u}
t = 1
while x <= {h - 1}:
    x -= {d}
    x += {u}
    t += 1
print(t)
"""


SNAIL_IN_WELL = Family(
    name="snail-in-well",
    category="logic",
    kind="hard-coded",
    difficulty=2,
    template="A snail at the bottom of a well {h} feet deep climbs {u} feet every day and slips "
    "back {d} feet every night. On which day does it first reach the top?",
    paraphrase="A well is {h} feet deep. A snail starts at its ground, gains {u} feet by day and "
    "loses {d} feet in the night after. Counting days from one, on which does it first touch the "
    "rim?",
    near_miss="A snail at the bottom of a well {h} feet deep climbs {u} feet every day and slips "
    "back {d} feet every night. How many feet has it slipped back in all when it first reaches "
    "the top?",
    sample=sampler(
        ranges(h=(150, 2500), u=(6, 30), d=(3, 27)),
        _snail_closed,
        _snail_near,
        lambda p: p["u"] - p["d"] >= 2,
    ),
    program=_snail_program,
    solvers=(_snail_closed, _snail_days, _snail_search),
    near_solver=_snail_near,
)


# Socks from a drawer in the dark.


@solver
def _socks_closed(r: int, g: int, b: int, k: int) -> int:
    return sum(min(colour, k - 1) for colour in (r, g, b)) + 1


@solver
def _socks_adversary(r: int, g: int, b: int, k: int) -> int:
    # Bad luck, sock by sock: another sock of a colour that is not yet near its k.
    left, taken, drawn = [r, g, b], [0, 0, 0], 0
    while open_ := [i for i in range(3) if left[i] and taken[i] < k - 1]:
        colour = open_[drawn % len(open_)]
        left[colour] -= 1
        taken[colour] += 1
        drawn += 1
    return drawn + 1


@solver
def _socks_sizes(r: int, g: int, b: int, k: int) -> int:
    # All sizes of hands without k of a colour, as bits of one integer; one more is certain.
    sizes = 1
    for colour in (r, g, b):
        made = 0
        for taken in range(min(colour + 1, k)):
            made |= sizes << taken
        sizes = made
    return sizes.bit_length()


@solver
def _socks_near(r: int, g: int, b: int, k: int) -> int:
    return g + b + k


@hard_coded
def _socks_program(r: int, g: int, b: int, k: int) -> str:
    return f"""
t = 1
for x in [{r}, {g}, {b}]:
    t += min(x, {k - 1})
print(t)
"""


SOCKS_IN_DRAWER = Family(
    name="socks-in-drawer",
    category="logic",
    kind="hard-coded",
    difficulty=3,
    template="A dark drawer holds {r} red, {g} green and {b} blue socks. What is the least number "
    "of socks to take out unseen to be certain of having {k} of the same colour?",
    paraphrase="From a closed box with {r} red, {g} green and {b} blue marbles, some are drawn "
    "blindly and kept. How many draws at least guarantee {k} marbles of one colour?",
    near_miss="A dark drawer holds {r} red, {g} green and {b} blue socks. What is the least "
    "number of socks to take out unseen to be certain of having {k} red ones?",
    sample=sampler(
        ranges(r=(10, 250), g=(10, 250), b=(10, 250), k=(8, 120)),
        _socks_closed,
        _socks_near,
        # At least one colour must be short, so that the answer is no mere multiple of k.
        lambda p: min(p["g"], p["b"]) < p["k"] - 1 < p["r"],
    ),
    program=_socks_program,
    solvers=(_socks_closed, _socks_adversary, _socks_sizes),
    near_solver=_socks_near,
)

FAMILIES = (
    CHILDREN_IN_CIRCLE,
    SWITCHED_LAMPS,
    STAR_OPERATION,
    HALVING_MACHINE,
    SNAIL_IN_WELL,
    SOCKS_IN_DRAWER,
)
