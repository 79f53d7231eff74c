"""Whether all that a program prints follows from its text alone, on any day and any machine.

The order of a set of texts follows from a seed, addresses from where memory lies, times and names
of the system from the world, and the words of an error from the version of Python. A program that
uses none of them prints the same bytes wherever it ends by itself. What is not sure is said not to
be so. This module must not run anything.
"""

from __future__ import annotations

import ast
import warnings

PURE = frozenset(
    {
        *("bisect", "collections", "decimal", "fractions", "functools", "heapq", "itertools"),
        *("math", "operator", "statistics", "string"),
    }
)
"""Modules whose functions depend on their arguments alone."""

WORLDLY = frozenset(
    {
        *("set", "frozenset", "id", "hash", "object", "open", "input", "breakpoint", "help"),
        *("dir", "vars", "globals", "locals", "eval", "exec", "compile", "copyright", "credits"),
        *("license", "memoryview", "type", "super", "print_exc"),
    }
)
"""Names whose value, or what is printed of it, may differ from run to run."""

_UNSURE = (ast.Set, ast.SetComp, ast.Try, ast.TryStar, ast.With, ast.ClassDef, ast.Lambda)
"""Sets, errors that are caught, and what prints as an address unless it says otherwise."""


def is_repeatable(program: str) -> bool:
    """Whether the output of a program that ends by itself is the same in every run."""
    try:
        with warnings.catch_warnings():  # which may be errors where the verifier runs
            warnings.simplefilter("ignore")
            tree = ast.parse(program)
    except SyntaxError:
        return True  # it prints nothing
    except (ValueError, RecursionError, MemoryError):
        return False
    return all(_is_pure(node) for node in ast.walk(tree))


def _is_pure(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return all(name.name in PURE for name in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and node.module in PURE
    if isinstance(node, ast.Name):
        return node.id not in WORLDLY and not node.id.startswith("__")
    if isinstance(node, ast.Attribute):
        return not node.attr.startswith("__")
    return not isinstance(node, _UNSURE)
