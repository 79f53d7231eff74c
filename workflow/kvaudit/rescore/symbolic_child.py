"""Compares pairs of trees by sympy; runs inside the sandbox as a program, is never imported.

The trees are data: nothing here parses or evaluates text. Every pair is judged in a process of its
own, forked after sympy was imported once, so that a pair that takes too long or too much memory
ends alone and touches no other. One line a pair: its verdict, then the values of both sides where
they are numbers. It imports nothing of the project, because nothing of it can be seen from there.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from typing import Any

CPU_SECONDS, WALL_SECONDS = 2, 10.0
"""Of one pair. What counts is the first; the second is for a machine that has no time for it."""
DIGITS = (50, 300)
"""Numbers that agree to the first are compared to the second: a root of a root comes near to 1."""
POINTS = ((3, 7), (-5, 11), (13, 17), (-19, 6), (29, 8), (1, 23))
"""Values of free names are fractions made of these, of both signs, small and large."""
ENOUGH = 4
"""Points at which both sides are numbers and agree to all digits, that are taken for a proof."""


def build(tree: list[Any], sympy: Any) -> Any:
    """The sympy expression of a tree."""
    kind, rest = tree[0], tree[1:]
    if kind == "n":
        return sympy.Rational(rest[0])
    if kind == "v":
        if rest[0] in ("e", "i"):
            return sympy.E if rest[0] == "e" else sympy.I
        return sympy.Symbol(rest[0])
    if kind in ("pi", "oo"):
        return sympy.pi if kind == "pi" else sympy.oo
    name = rest.pop(0) if kind == "f" else ""
    parts = [build(child, sympy) for child in rest]
    if kind == "f":
        name = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ceil": "ceiling"}.get(
            name, name
        )
        if name == "lg":
            return sympy.log(parts[0], 10)
        return getattr(sympy, name)(*parts)
    operations = {
        "+": sympy.Add, "*": sympy.Mul, "^": sympy.Pow, "abs": sympy.Abs,
        "!": sympy.factorial, "binom": sympy.binomial,
        "-": lambda a: -a, "/": lambda a, b: a / b,
        "root": lambda n, a: sympy.real_root(a, n) if n.is_Integer and n > 2 else a ** (1 / n),
        "log": lambda base, a: sympy.log(a, base),
    }  # fmt: skip
    return operations[kind](*parts)


def number(expression: Any, digits: int, sympy: Any) -> Any:
    """The value to so many digits; None where it is not one finite number."""
    if expression.free_symbols:
        return None
    found = sympy.N(expression, digits)
    return found if found.is_number and found.is_finite else None


def close(first: Any, second: Any, sympy: Any) -> bool | None:
    """Whether two numbers agree to all digits but the last ten; None where one is no number."""
    for digits in DIGITS:
        sides = [number(side, digits, sympy) for side in (first, second)]
        if None in sides:
            return None
        scale = max(abs(sides[0]), abs(sides[1]), sympy.Float(1, digits))
        if not abs(sides[0] - sides[1]) <= scale * sympy.Float(10, digits) ** (10 - digits):
            return False
    return True


def judge(first: Any, second: Any, sympy: Any) -> bool | None:
    """Whether two expressions are equal: True, False, or None."""
    if first == second:
        return True
    names = sorted(first.free_symbols | second.free_symbols, key=str)
    agreed = 0
    for point in POINTS if names else POINTS[:1]:
        values = {n: sympy.Rational(point[0] + 2 * i, point[1]) for i, n in enumerate(names)}
        near = close(first.subs(values), second.subs(values), sympy)
        if near is False:
            return False
        agreed += near is True
    if agreed >= (ENOUGH if names else 1):
        return True
    if sympy.simplify(first - second) == 0:
        return True
    found: bool | None = first.equals(second)
    return found


def spelled(expression: Any, sympy: Any) -> str | None:
    """The value as digits that a float reads, where it is a real number."""
    found = number(expression, DIGITS[0], sympy)
    return None if found is None or not found.is_real else str(sympy.N(found, 20))


def work(pair: list[list[Any]], writer: int, sympy: Any) -> None:
    """Judges one pair and writes one line; the process ends with it."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    verdict: bool | None = None
    values: list[str | None] = [None, None]
    try:
        sides = [build(tree, sympy) for tree in pair]
        verdict = judge(sides[0], sides[1], sympy)
        values = [spelled(side, sympy) for side in sides]
    except Exception as error:  # whatever sympy raises, the pair is not decided
        os.write(writer, json.dumps([verdict, values, type(error).__name__]).encode())
        os._exit(0)
    os.write(writer, json.dumps([verdict, values, ""]).encode())
    os._exit(0)


def main(text: str) -> None:
    """Judges every pair of a JSON list."""
    import sympy  # type: ignore[import-untyped]

    for pair in json.loads(text):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            work(pair, writer, sympy)
        os.close(writer)
        ready = select.select([reader], [], [], WALL_SECONDS)[0]
        line = os.read(reader, 4096) if ready else b""
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        sys.stdout.write((line.decode() or '[null, [null, null], "time or memory"]') + "\n")
    sys.stdout.flush()
