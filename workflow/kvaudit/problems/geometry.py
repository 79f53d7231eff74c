"""Families of geometry with whole numbers: lattice points, squares, regions, blocks, triangles.

This module must not know how problems are asked or scored.
"""

from __future__ import annotations

import math

import numpy as np

from kvaudit.problems.family import Family, hard_coded, parametric, ranges, sampler, solver

# Lattice points inside a right triangle.


@solver
def _triangle_pick(a: int, b: int) -> int:
    # Pick's theorem: area = interior + boundary / 2 - 1.
    return (a * b - (a + b + math.gcd(a, b)) + 2) // 2


@solver
def _triangle_points(a: int, b: int) -> int:
    whole = a * b
    return sum(b * x + a * y < whole for x in range(1, a) for y in range(1, b))


@solver
def _triangle_columns(a: int, b: int) -> int:
    return sum((b * x - 1) // a for x in range(1, a))


@solver
def _triangle_near(a: int, b: int) -> int:
    return a + b + math.gcd(a, b)


TRIANGLE_INTERIOR = Family(
    name="triangle-interior",
    category="geometry",
    kind="parametric",
    difficulty=4,
    template="A right triangle has its right angle at the origin and legs of length {a} and {b} "
    "along the coordinate axes. How many points with integer coordinates lie strictly inside it?",
    paraphrase="The origin, the point at distance {a} on the horizontal axis and the point at "
    "distance {b} on the vertical axis are the corners of a triangle. Count the lattice points in "
    "its interior, without the border.",
    near_miss="A right triangle has its right angle at the origin and legs of length {a} and {b} "
    "along the coordinate axes. How many points with integer coordinates lie on its sides?",
    sample=sampler(
        ranges(a=(6, 60), b=(6, 60)), _triangle_pick, _triangle_near, lambda p: p["a"] != p["b"]
    ),
    program=parametric(
        "a b",
        """
t = 0
for x in range(1, a):
    t += (b * x - 1) // a
print(t)
""",
    ),
    solvers=(_triangle_pick, _triangle_points, _triangle_columns),
    near_solver=_triangle_near,
)


# Squares of every size on a sheet.


@solver
def _sheet_closed(a: int, b: int) -> int:
    low, high = sorted((a, b))
    return low * (low + 1) * (3 * high - low + 1) // 6


@solver
def _sheet_sizes(a: int, b: int) -> int:
    return sum((a - size) * (b - size) for size in range(min(a, b)))


@solver
def _sheet_corners(a: int, b: int) -> int:
    # From each top left corner as many squares as fit to the right and downwards.
    return sum(min(a - x, b - y) for x in range(a) for y in range(b))


@solver
def _sheet_near(a: int, b: int) -> int:
    return math.comb(a + 1, 2) * math.comb(b + 1, 2)


SQUARES_ON_SHEET = Family(
    name="squares-on-sheet",
    category="geometry",
    kind="parametric",
    difficulty=2,
    template="A rectangular sheet {a} units wide and {b} units high is ruled into unit squares. "
    "How many squares of any size have all their sides along the ruling or the edges?",
    paraphrase="On a board with {a} columns and {b} rows of equal square cells, count all squares "
    "made of whole cells, whatever their size.",
    near_miss="A rectangular sheet {a} units wide and {b} units high is ruled into unit squares. "
    "How many rectangles of any size, squares included, have all their sides along the ruling or "
    "the edges?",
    sample=sampler(ranges(a=(3, 40), b=(3, 40)), _sheet_closed, _sheet_near),
    program=parametric(
        "a b",
        """
t = 0
for k in range(min(a, b)):
    t += (a - k) * (b - k)
print(t)
""",
    ),
    solvers=(_sheet_closed, _sheet_sizes, _sheet_corners),
    near_solver=_sheet_near,
)


# Regions made by lines, some of them parallel.


@solver
def _lines_closed(n: int, k: int) -> int:
    return 1 + n + math.comb(n, 2) - math.comb(k, 2)


@solver
def _lines_one_by_one(n: int, k: int) -> int:
    # A new line adds a region more than it crosses lines: the parallel ones come first.
    regions = 1
    for line in range(n):
        regions += 1 + (line if line >= k else 0)
    return regions


@solver
def _lines_euler(n: int, k: int) -> int:
    # Vertices - edges + regions = 1 for a plane figure with unbounded edges.
    crossings = [n - k if line < k else n - 1 for line in range(n)]
    vertices = sum(crossings) // 2
    edges = sum(crossed + 1 for crossed in crossings)
    return 1 - vertices + edges


@solver
def _lines_near(n: int, k: int) -> int:
    return math.comb(n, 2) - math.comb(k, 2)


LINES_IN_PLANE = Family(
    name="lines-in-plane",
    category="geometry",
    kind="parametric",
    difficulty=3,
    template="In a plane lie {n} straight lines. Exactly {k} of them are parallel to one another, "
    "no other two are parallel, and no three meet in a point. Into how many regions do they "
    "divide the plane?",
    paraphrase="A plane is cut along {n} different lines. Just {k} of these share a direction, the "
    "others differ in direction from these and from one another, and every crossing belongs to "
    "just two lines. Count the pieces.",
    near_miss="In a plane lie {n} straight lines. Exactly {k} of them are parallel to one "
    "another, no other two are parallel, and no three meet in a point. In how many points do "
    "lines cross?",
    sample=sampler(
        ranges(n=(8, 60), k=(3, 50)), _lines_closed, _lines_near, lambda p: p["k"] <= p["n"] - 2
    ),
    program=parametric(
        "n k",
        """
t = 1 + n + n * (n - 1) // 2
print(t - k * (k - 1) // 2)
""",
    ),
    solvers=(_lines_closed, _lines_one_by_one, _lines_euler),
    near_solver=_lines_near,
)


# Painted cubes of a block.


@solver
def _block_inner(a: int, b: int, c: int) -> int:
    return a * b * c - (a - 2) * (b - 2) * (c - 2)


@solver
def _block_faces(a: int, b: int, c: int) -> int:
    # Faces, less the edges counted twice, plus the corners then lost.
    return 2 * (a * b + b * c + c * a) - 4 * (a + b + c) + 8


@solver
def _block_cubes(a: int, b: int, c: int) -> int:
    return sum(
        x in (0, a - 1) or y in (0, b - 1) or z in (0, c - 1)
        for x in range(a)
        for y in range(b)
        for z in range(c)
    )


@solver
def _block_near(a: int, b: int, c: int) -> int:
    return 4 * (a + b + c - 6)


PAINTED_BLOCK = Family(
    name="painted-block",
    category="geometry",
    kind="parametric",
    difficulty=2,
    template="A solid block measuring {a} by {b} by {c} units is painted on all its faces and "
    "then sawn into unit cubes. How many of the unit cubes have some paint on them?",
    paraphrase="Unit cubes are glued together to a full cuboid with edges of {a}, {b} and {c}. "
    "How many of the small cubes touch the outside of the cuboid with at least one face?",
    near_miss="A solid block measuring {a} by {b} by {c} units is painted on all its faces and "
    "then sawn into unit cubes. How many of the unit cubes have paint on exactly two faces?",
    sample=sampler(ranges(a=(3, 15), b=(3, 15), c=(3, 15)), _block_inner, _block_near),
    program=parametric(
        "a b c",
        """
t = a * b * c
u = (a - 2) * (b - 2) * (c - 2)
print(t - u)
""",
    ),
    solvers=(_block_inner, _block_faces, _block_cubes),
    near_solver=_block_near,
)


# Triangles with whole sides and a given perimeter.


@solver
def _rods_shortest(n: int, m: int) -> int:
    # For the shortest side a, the middle one is at least a and more than n / 2 - a, and at most
    # half of what is left.
    return sum(
        max((n - a) // 2 - max(a, (n - 2 * a) // 2 + 1) + 1, 0) for a in range(m, n // 3 + 1)
    )


@solver
def _rods_brute(n: int, m: int) -> int:
    found = 0
    for longest in range(m, n):
        for middle in range(m, longest + 1):
            shortest = n - longest - middle
            found += m <= shortest <= middle and shortest + middle > longest
    return found


@solver
def _rods_tangents(n: int, m: int) -> int:
    # The incircle's tangents: sides are x + y, x + z, y + z. Twice the tangents are positive, of
    # the parity of n, and add up to n; x + y >= m says that twice z is at most n - 2m.
    return sum(
        x <= y <= z <= n - 2 * m
        for x in range(2 - n % 2, n // 3 + 1, 2)
        for y in range(x, (n - x) // 2 + 1, 2)
        for z in (n - x - y,)
    )


@solver
def _rods_near(n: int, m: int) -> int:
    legs = range(m, (n + 1) // 2)
    return sum(n - 2 * leg >= m and n - 2 * leg < 2 * leg for leg in legs)


@hard_coded
def _rods_program(n: int, m: int) -> str:
    return f"""
t = 0
for a in range({m}, {n + 1}):
    for b in range(a, {n + 1}):
        c = {n} - a - b
        if b <= c < a + b:
            t += 1
print(t)
"""


INTEGER_TRIANGLES = Family(
    name="integer-triangles",
    category="geometry",
    kind="hard-coded",
    difficulty=4,
    template="How many triangles with whole-number sides have perimeter {n} and no side shorter "
    "than {m}? Congruent triangles count once.",
    paraphrase="Three rods of integer length are joined to a triangle with a total length of {n}, "
    "each rod being at least {m} long. How many different triangles can arise, congruent ones "
    "being the same?",
    near_miss="How many isosceles triangles with whole-number sides have perimeter {n} and no "
    "side shorter than {m}? Equilateral triangles are isosceles, and congruent triangles count "
    "once.",
    sample=sampler(
        ranges(n=(50, 140), m=(3, 30)),
        _rods_shortest,
        _rods_near,
        lambda p: p["n"] >= 4 * p["m"],
    ),
    program=_rods_program,
    solvers=(_rods_shortest, _rods_brute, _rods_tangents),
    near_solver=_rods_near,
)


# Tiles under a diagonal.


@solver
def _tiles_closed(a: int, b: int) -> int:
    return a + b - math.gcd(a, b)


@solver
def _tiles_crossings(a: int, b: int) -> int:
    # Ruled lines cross the diagonal at i / a and j / b of its length; every place but the start
    # lets it enter a tile.
    return len({*range(0, a * b, b), *range(0, a * b, a)})


@solver
def _tiles_columns(a: int, b: int) -> int:
    # In each column from the tile where the line enters to the one where it leaves.
    return sum(-(-(x + 1) * b // a) - x * b // a for x in range(a))


@solver
def _tiles_near(a: int, b: int) -> int:
    return math.gcd(a, b) + 1


def _tiles_draw(rng: np.random.Generator) -> dict[str, int]:
    common = int(rng.integers(3, 31))
    a, b = (common * int(rng.integers(2, 30)) for _ in range(2))
    return {"a": a, "b": b}


@hard_coded
def _tiles_program(a: int, b: int) -> str:
    return f"""
from math import gcd
g = gcd({a}, {b})
print({a + b} - g)
"""


TILES_UNDER_LINE = Family(
    name="tiles-under-line",
    category="geometry",
    kind="hard-coded",
    difficulty=2,
    template="A rectangular floor has {a} rows and {b} columns of square tiles. A straight line "
    "is drawn from one corner of the floor to the opposite corner. Through the inside of how many "
    "tiles does it pass?",
    paraphrase="A rectangle is made of unit squares, {a} along one side and {b} along the other. "
    "How many of the unit squares have interior points on a diagonal of the rectangle?",
    near_miss="A rectangular floor has {a} rows and {b} columns of square tiles. A straight line "
    "is drawn from one corner of the floor to the opposite corner. Through how many corners of "
    "tiles does it pass, both its ends included?",
    sample=sampler(_tiles_draw, _tiles_closed, _tiles_near, lambda p: p["a"] != p["b"]),
    program=_tiles_program,
    solvers=(_tiles_closed, _tiles_crossings, _tiles_columns),
    near_solver=_tiles_near,
)

FAMILIES = (
    TRIANGLE_INTERIOR,
    SQUARES_ON_SHEET,
    LINES_IN_PLANE,
    PAINTED_BLOCK,
    INTEGER_TRIANGLES,
    TILES_UNDER_LINE,
)
