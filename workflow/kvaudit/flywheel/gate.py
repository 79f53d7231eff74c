"""The gate between an adapted program and its answer: does the block's problem explain the query?

An adaptation may change integers and nothing else, and every number of the query must stand where
the block's program has the number that stands at its place in the block's problem. What passes is
run; what does not is another attempt, or an abstention. The gate never sees an answer, and must not
know a model.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from kvaudit.flywheel.prompts import numbers

Gate = Literal["passed", "no program", "shape", "unbound"]
"""`no program`: it is no Python. `shape`: more than integers was changed. `unbound`: a number of
the query is not at its place in the program, or has no place there."""

MAX_CHARACTERS = 20_000
MAX_DEPTH = 100
"""Levels of a program's tree. How deep Python itself can go depends on who calls it."""


def judge(program: str, statement: str, block_program: str, block_statement: str) -> Gate:
    """Judge an adapted program.

    Args:
        program: as the model wrote it.
        statement: the query's.
        block_program: the program that was to be adapted.
        block_statement: the problem that it solves.
    """
    mine, theirs = _parse(program), _parse(block_program)
    if mine is None or theirs is None:
        return "no program"
    new, old = _integers(mine), _integers(theirs)
    if _shape(mine) != _shape(theirs):
        return "shape"
    bound = _is_bound(numbers(statement), numbers(block_statement), new, old)
    return "passed" if bound else "unbound"


def _is_bound(
    asked: Sequence[int], known: Sequence[int], new: Sequence[int], old: Sequence[int]
) -> bool:
    """Whether every number asked for stands where the block's program has its counterpart.

    Args:
        asked: numbers of the query.
        known: numbers of the block's problem, in their order.
        new: integers of the adapted program, in the order of its tree.
        old: integers of the block's program; as many.
    """
    if len(asked) != len(known):
        return not Counter(map(abs, asked)) - Counter(new)
    if any((a < 0) != (k < 0) for a, k in zip(asked, known, strict=True)):
        return False  # a sign is part of a program's shape, which an adaptation keeps
    for value in {*known}:
        wanted = Counter(abs(a) for a, k in zip(asked, known, strict=True) if k == value)
        placed = Counter(n for n, o in zip(new, old, strict=True) if o == abs(value))
        if wanted - placed and wanted != Counter({abs(value): wanted.total()}):
            return False
    return True


def _parse(program: str) -> ast.Module | None:
    if not program.strip() or len(program) > MAX_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():  # which may be errors where the verifier runs
            warnings.simplefilter("ignore")
            tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return tree
    return None


def _integers(tree: ast.AST) -> list[int]:
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) is int
    ]


def _shape(tree: ast.Module) -> str:
    """The tree's text with every integer made 0; the tree itself is changed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            node.value = 0
    return ast.dump(tree)
