"""Whether all that a program prints follows from its text alone, on any day and any machine.

The order of a set of texts follows from a seed, addresses from where memory lies, times and names
of the system from the world, the words of an error and the rounding of a sum from the release of
Python, and the last digits of a sine from the C library. A program that uses none of them prints
the same bytes wherever it ends by itself. What is not sure is said not to be so. This module must
not run anything.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

PURE = frozenset(
    {
        *("bisect", "collections", "decimal", "fractions", "functools", "heapq", "itertools"),
        *("math", "operator", "string"),
    }
)
"""Modules whose functions depend on their arguments alone; `math` only as far as `WHOLE` goes."""

WHOLE = frozenset({"gcd", "lcm", "comb", "perm", "factorial", "isqrt", "prod"})
"""Functions of `math` that give the same integer everywhere."""

WORLDLY = frozenset(
    {
        *("set", "frozenset", "id", "hash", "object", "open", "input", "breakpoint", "help"),
        *("dir", "vars", "globals", "locals", "eval", "exec", "compile", "copyright", "credits"),
        *("license", "memoryview", "type", "super", "print_exc"),
        *("float", "complex", "truediv", "itruediv"),
    }
)
"""Names whose value, or what is printed of it, may differ from run to run or between releases."""

_UNSURE = (ast.Set, ast.SetComp, ast.Try, ast.TryStar, ast.With, ast.ClassDef, ast.Lambda, ast.Div)
"""Sets, errors that are caught, what prints as an address unless it says otherwise, and floats."""

_PRINTING = frozenset({"print", "str", "repr", "ascii", "format"})
"""Functions that make text of what they are given."""

_LAZY = frozenset({"map", "filter", "zip", "enumerate", "reversed", "iter"})
"""Functions whose results print as addresses."""

_NUMBERS = frozenset({"numerator", "denominator"})
"""Attributes that are no methods, so that printing them prints no address."""


@dataclass(frozen=True)
class _Names:
    """What the names of a program stand for.

    Attributes:
        modules: name as it is used -> the module.
        functions: names of functions that the program makes or imports; a class may be among them.
        called: ids of the nodes that are called, handed to a function that makes no text, or
            decorate: there the name of a function does not end as an address.
        owners: ids of the nodes whose attribute is taken.
        printed: ids of the nodes that text is made of.
    """

    modules: dict[str, str]
    functions: frozenset[str]
    called: frozenset[int]
    owners: frozenset[int]
    printed: frozenset[int]


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
    names = _names(tree)
    return all(_is_pure(node, names) for node in ast.walk(tree))


def _names(tree: ast.AST) -> _Names:
    modules: dict[str, str] = {}
    functions: set[str] = set()
    called: set[int] = set()
    owners: set[int] = set()
    printed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {one.asname or one.name: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.module != "string":  # which holds texts
                functions |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.add(node.name)
            called |= {id(one) for one in node.decorator_list}
        elif isinstance(node, ast.Attribute):
            owners.add(id(node.value))
        elif isinstance(node, ast.FormattedValue):
            printed.add(id(node.value))
        elif isinstance(node, ast.Call):
            called.add(id(node.func))
            given = {id(one) for one in (*node.args, *(word.value for word in node.keywords))}
            makes_text = _last_name(node.func) in _PRINTING
            (printed if makes_text else called).update(given)
    sets = (frozenset(one) for one in (called, owners, printed))
    return _Names(modules, frozenset(functions), *sets)


def _is_pure(node: ast.AST, names: _Names) -> bool:
    if isinstance(node, ast.Import):
        return all(one.name in PURE for one in node.names)
    if isinstance(node, ast.ImportFrom):
        taken = {one.name for one in node.names}
        whole = node.module != "math" or taken <= WHOLE
        return node.level == 0 and node.module in PURE and whole and not taken & {"*", *WORLDLY}
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, float | complex)
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Pow):
        power = node.right if isinstance(node, ast.BinOp) else node.value
        return not isinstance(power, ast.UnaryOp)  # a negative one gives a float
    if isinstance(node, _UNSURE) or (id(node) in names.printed and _is_lazy(node)):
        return False
    if isinstance(node, ast.Name):
        return _is_pure_name(node, names)
    if isinstance(node, ast.Attribute):
        return _is_pure_attribute(node, names)
    return True


def _is_pure_name(node: ast.Name, names: _Names) -> bool:
    if node.id in WORLDLY or node.id.startswith("__"):
        return False
    if node.id in names.modules:
        return id(node) in names.owners
    if node.id in names.functions and isinstance(node.ctx, ast.Load):
        return id(node) in names.called or id(node) in names.owners
    return True


def _is_pure_attribute(node: ast.Attribute, names: _Names) -> bool:
    if node.attr in WORLDLY or node.attr.startswith("__"):
        return False
    module = names.modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
    if module == "math" and node.attr not in WHOLE:
        return False
    if module == "string":
        return True
    if id(node) in names.printed:  # a method prints as an address
        return node.attr in _NUMBERS
    return module is None or id(node) in names.called or id(node) in names.owners


def _is_lazy(node: ast.AST) -> bool:
    """Whether what is printed is a generator or the like, and so prints as an address."""
    if isinstance(node, ast.Call):
        return _last_name(node.func) in _LAZY
    return isinstance(node, ast.GeneratorExp)


def _last_name(function: ast.AST) -> str | None:
    """The last part of the name that is called."""
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else None
