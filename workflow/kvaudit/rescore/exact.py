"""Exact values of trees: rational numbers, in this process, within bounds.

Integers and fractions need no algebra system, and nearly all answers are such. What is not rational
is left to `symbolic`; what is too large to be written down is refused. This module must not know
where a tree comes from.
"""

from __future__ import annotations

import math
from fractions import Fraction

from kvaudit.rescore.expression import Tree

MAX_BITS = 4_096
"""Of a numerator or denominator; a number of a thousand digits fits."""
MAX_FACTORIAL = 400


class TooLarge(Exception):
    """A number of the expression would be longer than `MAX_BITS`."""


def value(tree: Tree) -> Fraction | None:
    """The rational number that a tree denotes; None where it denotes none, or not evidently.

    Raises:
        TooLarge: an intermediate number is longer than `MAX_BITS`.
    """
    kind = tree[0]
    if kind == "n":
        return number(tree[1])
    if kind not in ("+", "-", "*", "/", "^", "root", "abs", "!", "binom", "f"):
        return None
    operands = [value(child) for child in tree[1:] if isinstance(child, list)]
    known = [operand for operand in operands if operand is not None]
    if len(known) < len(operands):
        return None
    found = _apply(kind, known) if kind != "f" else _function(tree[1], known[0])
    return None if found is None else _bounded(found)


def number(text: str) -> Fraction:
    """The value of digits as they are spelled, with a point and an exponent if there is one.

    Raises:
        TooLarge: more digits, or a larger exponent, than `MAX_BITS` allow.
    """
    digits, _, exponent = text.lower().partition("e")
    limit = MAX_BITS // 4
    if len(digits) > limit or len(exponent) > 5 or abs(int(exponent or 0)) > limit:
        raise TooLarge
    return _bounded(Fraction(digits) * Fraction(10) ** int(exponent or 0))


def _bounded(found: Fraction) -> Fraction:
    if max(found.numerator.bit_length(), found.denominator.bit_length()) > MAX_BITS:
        raise TooLarge
    return found


def _apply(kind: str, operands: list[Fraction]) -> Fraction | None:
    first, second = operands[0], operands[-1]
    if kind == "+":
        return first + second
    if kind == "-":
        return -first
    if kind == "*":
        return first * second
    if kind == "/":
        return first / second if second else None
    if kind == "abs":
        return abs(first)
    if kind == "^":
        return _power(first, second)
    if kind == "root":
        return _power(second, 1 / first) if first > 0 else None
    if kind == "!":
        return _factorial(first)
    return _binomial(first, second)


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if base == 0:
        return Fraction(0) if exponent > 0 else None
    if exponent.denominator > 1:
        root = _root(base, exponent.denominator)
        return None if root is None else _power(root, Fraction(exponent.numerator))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and abs(exponent.numerator) * max(bits - 1, 1) > MAX_BITS:
        raise TooLarge
    if abs(base) == 1:
        return Fraction(1) if base == 1 or exponent.numerator % 2 == 0 else Fraction(-1)
    return base**exponent.numerator


def _root(base: Fraction, order: int) -> Fraction | None:
    """The rational root, if there is one; of a negative number none, as its value is a choice."""
    if base < 0 or order > 64:
        return None
    parts = [_integer_root(part, order) for part in (base.numerator, base.denominator)]
    return None if None in parts else Fraction(parts[0] or 0, parts[1] or 1)


def _integer_root(number: int, order: int) -> int | None:
    if order == 2:
        found = math.isqrt(number)
    else:
        found = 1 << -(-number.bit_length() // order)
        while True:
            better = ((order - 1) * found + number // found ** (order - 1)) // order
            if better >= found:
                break
            found = better
    return found if found**order == number else None


def _factorial(number: Fraction) -> Fraction | None:
    if number.denominator != 1 or number < 0:
        return None
    if number > MAX_FACTORIAL:
        raise TooLarge
    return Fraction(math.factorial(int(number)))


def _binomial(above: Fraction, below: Fraction) -> Fraction | None:
    if above.denominator != 1 or below.denominator != 1 or min(above, below) < 0:
        return None
    if above > MAX_BITS:
        raise TooLarge
    return Fraction(math.comb(int(above), int(below)))


def _function(name: str, argument: Fraction) -> Fraction | None:
    if name == "floor":
        return Fraction(math.floor(argument))
    if name == "ceil":
        return Fraction(math.ceil(argument))
    return None
