"""Questions that no family answers: foreign problems, and near misses of the families.

A router must abstain on both. Foreign problems share the style and some words of the contest set;
near misses share nearly all words of one family. This module must not know their answers, nor who
routes them.
"""

from __future__ import annotations

from kvaudit.errors import UnusableInput
from kvaudit.estimate import generator
from kvaudit.problems.family import fields, fresh
from kvaudit.problems.registry import FAMILIES

TEMPLATES: tuple[str, ...] = (
    "How many digits does the number {a} have when it is written in base two?",
    "What is the sum of the decimal digits of {a} raised to the power {b}?",
    "What is the smallest prime number greater than {a}?",
    "How many divisors has that positive integer up to {a} which has the most of them?",
    "What is the least common multiple of {a}, {b} and {c}?",
    "How many palindromes lie strictly between {a} and {b} thousand?",
    "What is the inverse of {a} modulo the first prime above one hundred?",
    "How many of the first {a} Fibonacci numbers are divisible by {b}?",
    "In how many ways can {a} married couples sit at a round table so that nobody sits beside the "
    "own partner?",
    "In how many ways can the letters of a word with {a} different letters be put back so that "
    "none is in its old place?",
    "How many necklaces of {a} beads can be made from {b} colours of glass, if turned necklaces "
    "are the same?",
    "In how many ways can {a} be written as a sum of distinct positive integers, each at most {b}?",
    "A flag has {a} stripes in a row, and {b} colours of cloth are at hand. How many flags have no "
    "two neighbouring stripes of one colour?",
    "A ball falls from a height of {a} metres and rises after each bounce to {b} percent of its "
    "last height. How far has it travelled at bounce number {c}?",
    "The population of a town grows by {a} percent each year. After how many years has it become "
    "{b} times as large?",
    "Which triangular number is the first to exceed {a} times {b}?",
    "A look-and-say sequence starts with {a}. How many digits has its term number ten?",
    "What is the area of the largest square that fits into a circle of radius {a}?",
    "How many diagonals does a convex polygon with {a} corners have?",
    "A cone has radius {a} and height {b}. What is its volume divided by pi, rounded down?",
    "Two towers of heights {a} and {b} stand {c} metres apart. How long is the shortest rope "
    "between their tops, rounded to whole metres?",
    "A triangle has angles of {a} and {b} degrees. How large is its third angle?",
    "A train of {a} metres passes a bridge of {b} metres in {c} seconds. How fast is it, in "
    "metres per second?",
    "Anna is {a} years old and her brother is {b}. In how many years will their ages add up to a "
    "perfect square for the first time?",
    "A boat carries {a} people across a river, but one of them must row it back each time. How "
    "many crossings bring a group of {b} to the other bank?",
    "A clock loses {a} minutes a day. After how many days does it show the right time again?",
    "What is the greatest number that cannot be written as a sum of two different primes?",
    "How many knights can be placed on a chessboard so that none attacks another?",
    "Which regular polygons can tile the plane without gaps, and how many are they?",
    "In how many ways can a traveller visit all corners of a cube along its edges and come home "
    "again?",
)
"""Thirty questions; the last four have no numbers."""

_TRIES = 1000


def foreign(seed: str, n: int) -> list[str]:
    """Distinct statements of foreign problems, in a drawn order: all templates in turn, those
    without numbers once.

    Raises:
        UnusableInput: so many distinct statements cannot be made.
    """
    order = [int(i) for i in generator("foreign", seed).permutation(len(TEMPLATES))]
    found: dict[str, None] = {}
    for turn in range(_TRIES):
        for index in order:
            if len(found) >= n:
                return list(found)
            template = TEMPLATES[index]
            rng = generator("foreign", seed, turn, index)
            numbers = {name: int(rng.integers(3, 90)) for name in fields(template)}
            found.setdefault(template.format(**numbers))
    raise UnusableInput("too many foreign problems", expected=n, found=len(found))


def near_misses(seed: str, n: int) -> list[tuple[str, str]]:
    """Distinct near misses, all families in turn.

    Returns:
        pairs of a family's name and the statement of a question which that family's program does
        not answer, although the words are nearly its own.
    """
    rounds = -(-n // len(FAMILIES))
    drawn = [fresh(family, f"near/{seed}", rounds) for family in FAMILIES]
    made = [
        (one.family.name, one.family.near_miss.format(**one.params))
        for turn in zip(*drawn, strict=True)
        for one in turn
    ]
    return made[:n]
