"""The integer literals of a program, and the program again with expressions in their places.

A literal is found in the syntax tree, so digits in strings, comments and names are not literals.
It is replaced in the author's own text, which keeps lines and comments as they were; the new text
must parse to the same tree as the replacement made in the tree itself, and where it does not (the
places of literals inside f-strings are unreliable before Python 3.12) the tree is written out
instead. This module must not know statements, answers, or which expression is a good one.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

MAX_BYTES = 8192
"""Longest program that is looked at."""

_WORD = re.compile(r"[^\W\d]\w*")
_REST_OF_LINE = re.compile(rb"[ \t]*(?:#.*)?")

# Deep nesting ends in one of the last two, a lone surrogate or a null byte in a ValueError.
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)

# Here a sum or product needs no brackets; everywhere else it gets them.
_LOOSE = (
    ast.AnnAssign,
    ast.Assign,
    ast.AugAssign,
    ast.Call,
    ast.Compare,
    ast.List,
    ast.Return,
    ast.Set,
    ast.Slice,
    ast.Subscript,
    ast.Tuple,
    ast.keyword,
)


@dataclass(frozen=True)
class Slot:
    """One integer literal, with its minus sign if it has one.

    Attributes:
        value: what the program says there.
        adoptable: the name that a line `name = literal` of the module gives it, if the line may
            move to the top; None otherwise.
        lasting: nothing else binds that name, so that it has this value wherever it is used.
    """

    value: int
    adoptable: str | None = None
    lasting: bool = False


@dataclass(frozen=True)
class Code:
    """A program and its literals, in the order in which the tree is walked."""

    source: str
    slots: tuple[Slot, ...]
    words: frozenset[str]
    """Every word of the text, strings and comments included: no new name may be one of them."""


@dataclass(frozen=True)
class _Place:
    """Where a literal hangs in a tree."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.expr
    value: int

    def put(self, new: ast.expr) -> None:
        if self.index is None:
            setattr(self.parent, self.field, new)
        else:
            getattr(self.parent, self.field)[self.index] = new


def read(program: str) -> Code | None:
    """The literals of a program; None if it does not parse, or is too long or too deep."""
    source = program.replace("\r\n", "\n").replace("\r", "\n")
    try:
        if len(source.encode()) > MAX_BYTES:
            return None
        tree = _parse(source)
        places = _places(tree)
        adoptable = _adoptable(tree, source)
    except _UNREADABLE:
        return None
    slots = tuple(Slot(place.value, *adoptable.get(id(place.node), ())) for place in places)
    return Code(source, slots, frozenset(_WORD.findall(source)))


def rewrite(
    code: Code,
    expressions: Sequence[str | None],
    head: Mapping[str, int],
    moved: Collection[int] = (),
) -> str | None:
    """The program with expressions in place of literals, behind lines that set the names.

    Args:
        code: from `read`.
        expressions: for every slot the expression to put there; None leaves the literal.
        head: the first lines of the result, `name = value`, in this order.
        moved: slots whose own line, which sets an adoptable name, is left out because `head`
            has it.

    Returns:
        The new program, or None if neither text nor tree can be written faithfully.
    """
    first = "".join(f"{name} = {value}\n" for name, value in head.items())
    try:
        tree = _edited_tree(code, expressions, first, moved)
        wanted = ast.dump(tree)
        for bare in (True, False):
            text = first + _edited_text(code, expressions, moved, bare)
            if _dump(text) == wanted:
                return text
        text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        return text if _dump(text) == wanted else None
    except _UNREADABLE:
        return None


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of doubtful style in the program, of no use to anyone
        return ast.parse(source)


def _dump(source: str) -> str | None:
    try:
        return ast.dump(_parse(source))
    except SyntaxError:
        return None


def _places(tree: ast.Module) -> list[_Place]:
    """Every literal; the order is the same for every parse of one source."""
    return list(_walk(tree))


def _walk(parent: ast.AST) -> Iterator[_Place]:
    for field, content in ast.iter_fields(parent):
        listed = isinstance(content, list)
        for index, node in enumerate(content if listed else [content]):
            # In a pattern of `match` a name would catch the value instead of comparing with it.
            if not isinstance(node, ast.AST) or isinstance(node, ast.pattern):
                continue
            value = _integer(node)
            if value is not None and isinstance(node, ast.expr):
                yield _Place(parent, field, index if listed else None, node, value)
            else:
                yield from _walk(node)


def _integer(node: ast.AST) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand) if isinstance(node.operand, ast.Constant) else None
        return None if inner is None else -inner
    # True and False are integers to isinstance.
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _adoptable(tree: ast.Module, source: str) -> dict[int, tuple[str, bool]]:
    """Of the lines `name = literal` that may move to the top {id of the literal's node: (name,
    whether nothing else binds it)}.

    A name bound elsewhere as well may move only from among the first lines, past nothing but
    lines of the same kind.
    """
    bound = Counter(_bindings(tree))
    if bound["*"]:
        return {}  # an import of everything could bind any name after the line has moved
    lines = source.encode().split(b"\n")
    shared = Counter(statement.lineno for statement in tree.body)
    found: dict[int, tuple[str, bool]] = {}
    first: set[str] | None = set()
    for statement in tree.body:
        name = _named_literal(statement, lines) if shared[statement.lineno] == 1 else None
        if name is None or not isinstance(statement, ast.Assign):
            first = None
            continue
        if bound[name] == 1 or (first is not None and name not in first):
            found[id(statement.value)] = (name, bound[name] == 1)
        if first is not None:
            first.add(name)
    return found


def _named_literal(statement: ast.stmt, lines: Sequence[bytes]) -> str | None:
    """The name, if a statement is a line `name = literal` and nothing else but a comment."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or _integer(statement.value) is None:
        return None
    if statement.lineno != statement.end_lineno or statement.col_offset != 0:
        return None
    rest = lines[statement.lineno - 1][statement.end_col_offset or 0 :]
    return target.id if _REST_OF_LINE.fullmatch(rest) else None


def _bindings(tree: ast.Module) -> Iterator[str]:
    """Every name as often as something binds or deletes it, in whatever scope."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.split(".")[0]
            case ast.ExceptHandler(name=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names


def _edited_tree(
    code: Code, expressions: Sequence[str | None], first: str, moved: Collection[int]
) -> ast.Module:
    tree = _parse(code.source)
    gone = []
    for index, (place, text) in enumerate(zip(_places(tree), expressions, strict=True)):
        if index in moved:
            gone.append(place.parent)
        elif text is not None:
            place.put(ast.parse(text, mode="eval").body)
    left = [statement for statement in tree.body if all(statement is not other for other in gone)]
    tree.body = [*_parse(first).body, *left]
    return tree


def _edited_text(
    code: Code, expressions: Sequence[str | None], moved: Collection[int], bare: bool
) -> str:
    """The text with its edits; with `bare` no expression is put in brackets."""
    data = code.source.encode()
    lines = data.split(b"\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    edits: list[tuple[int, int, bytes]] = []
    places = _places(_parse(code.source))
    for index, (place, text) in enumerate(zip(places, expressions, strict=True)):
        node = place.node
        line = min(node.lineno, len(lines))  # of a literal in an f-string the place may be wrong
        if index in moved:
            edits.append((starts[line - 1], min(starts[line], len(data)), b""))
        elif text is not None:
            last = min(node.end_lineno or line, len(lines))
            start, end = starts[line - 1] + node.col_offset, starts[last - 1]
            end += node.end_col_offset or 0
            if not (bare or text.isidentifier() or isinstance(place.parent, _LOOSE)):
                text = f"({text})"
            # `return-5` and `5if` are fine, `returna` and `aif` are other words.
            before = " " if _is_word(data[start - 1 : start]) else ""
            after = " " if _is_word(data[end : end + 1]) else ""
            edits.append((start, end, f"{before}{text}{after}".encode()))
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new + data[end:]
    return data.decode("utf-8", "replace")


def _is_word(byte: bytes) -> bool:
    return byte.isalnum() or byte == b"_"
