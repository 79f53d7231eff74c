"""The language of criteria and predictions: read from text into a tree, nothing evaluated.

    exactness/gemma-3-270m: samples.exact == samples.n and splits.equal == splits.n

    criterion  = [ stage "/" model ":" ] or
    or         = and { "or" and }
    and        = not { "and" not }
    not        = "not" not | comparison
    comparison = sum [ ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) sum ]
    sum        = product { ( "+" | "-" ) product }
    product    = sign { ( "*" | "/" ) sign }
    sign       = "-" sign | atom
    atom       = number | string | "true" | "false" | function "(" or { "," or } ")" | path
               | "(" or ")"
    path       = [ "@" stage "/" model ":" ] name { "." name | "[" index "]" }
    index      = number | string | "*" | name "==" ( number | string )

A path leads into the summary.json of the stage and model before the colon, or of its own behind
`@`. `[*]` takes every element, `[tokens == 512]` the one element whose field has that value. Text
and depth are bounded, there is no loop and no name that could be defined: every expression comes
to an end. This module must not know what a summary holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from kvaudit.canonical import MAX_INTEGER
from kvaudit.prereg.errors import ExpressionInvalid

MAX_CHARACTERS = 2000
MAX_DEPTH = 24
MAX_TOKENS = 400
FUNCTIONS = {
    "abs": (1, 1),
    "all": (1, 1),
    "any": (1, 1),
    "count": (1, 1),
    "len": (1, 1),
    "max": (1, 16),
    "measured": (1, 1),
    "min": (1, 16),
    "sum": (1, 1),
}
"""Function -> fewest and most arguments."""

COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_WORDS = {"and", "or", "not", "true", "false"}
_SCOPE = re.compile(r"\s*([a-z][a-z0-9-]*/[a-z0-9][a-z0-9.-]*)\s*:")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<at>@[a-z][a-z0-9-]*/[a-z0-9][a-z0-9.-]*:)"
    r'|(?P<text>"[^"\\\x00-\x1f]{0,200}")'
    r"|(?P<sign>==|!=|<=|>=|[-+*/<>().,\[\]]))",
    re.ASCII,
)


@dataclass(frozen=True)
class Every:
    """The step `[*]`."""


@dataclass(frozen=True)
class Where:
    """The step `[field == value]`."""

    field: str
    value: int | float | str


Step = str | int | Every | Where


@dataclass(frozen=True)
class Literal:
    """A number, text or truth value."""

    value: bool | int | float | str


@dataclass(frozen=True)
class Path:
    """A place in the summary of `subject`, e.g. exactness/gemma-3-270m."""

    subject: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        text = ""
        for step in self.steps:
            if isinstance(step, Every):
                text += "[*]"
            elif isinstance(step, Where):
                value = f'"{step.value}"' if isinstance(step.value, str) else step.value
                text += f"[{step.field} == {value}]"
            elif isinstance(step, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", step):
                text += f".{step}" if text else step
            else:
                text += f'["{step}"]' if isinstance(step, str) else f"[{step}]"
        return f"{self.subject}: {text}"


@dataclass(frozen=True)
class Call:
    """A function of `FUNCTIONS` and its arguments."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Prefix:
    """`not` or `-` before one operand."""

    sign: str
    operand: Node


@dataclass(frozen=True)
class Infix:
    """`and`, `or`, a comparison or an arithmetic sign between two operands."""

    sign: str
    left: Node
    right: Node


Node = Literal | Path | Call | Prefix | Infix


def parse(text: str) -> Node:
    """Reads an expression.

    Raises:
        ExpressionInvalid: too long, too deep, or not of the grammar; names the character.
    """
    return _Parser(text).whole()


def paths(node: Node) -> Iterator[Path]:
    """Every path of an expression, from left to right."""
    if isinstance(node, Path):
        yield node
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from paths(argument)
    elif isinstance(node, Prefix):
        yield from paths(node.operand)
    elif isinstance(node, Infix):
        yield from paths(node.left)
        yield from paths(node.right)


def is_statement(node: Node) -> bool | None:
    """Whether an expression is true or false (True), a value (False), or a path alone (None)."""
    if isinstance(node, Literal):
        return isinstance(node.value, bool)
    if isinstance(node, Path):
        return None
    if isinstance(node, Call):
        return node.name in ("all", "any", "measured")
    if isinstance(node, Prefix):
        return node.sign == "not"
    return node.sign in ("and", "or", *COMPARISONS)


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ExpressionInvalid(
                "an expression is too long",
                expected=f"at most {MAX_CHARACTERS} characters",
                found=f"{len(text)} characters",
            )
        self._text = text
        scope = _SCOPE.match(text)
        self._scope = scope.group(1) if scope else None
        self._offset = scope.end() if scope else 0
        self._depth = self._tokens = 0
        self._kind, self._token, self._start = "", "", 0
        self._next()

    def whole(self) -> Node:
        node = self._or()
        if self._kind:
            self._fail("the end, or a sign between two operands")
        return node

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._offset)
        if match is None:
            rest = self._text[self._offset :]
            self._start = self._offset + len(rest) - len(rest.lstrip())
            self._kind, self._token = "", ""
            if rest.strip():
                self._token = rest.strip()[0]
                self._fail("a number, a name, a text in double quotes, or a sign")
            return
        self._kind = str(match.lastgroup)
        self._token = match.group(self._kind)
        self._start = match.start(self._kind)
        self._offset = match.end()
        self._tokens += 1  # a chain of operands is as deep a tree as it is long
        if self._tokens > MAX_TOKENS:
            self._fail(f"at most {MAX_TOKENS} words and signs")

    def _fail(self, expected: str) -> NoReturn:
        raise ExpressionInvalid(
            "an expression does not parse",
            where=f"character {self._start + 1} of: {self._text.strip()}",
            expected=expected,
            found=self._token or "the end",
        )

    def _is(self, *tokens: str) -> bool:
        return self._kind in ("sign", "name") and self._token in tokens

    def _take(self, *tokens: str) -> str:
        if not self._is(*tokens):
            self._fail(" or ".join(tokens))
        taken = self._token
        self._next()
        return taken

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"at most {MAX_DEPTH} levels")

    def _or(self) -> Node:
        self._deeper()
        node = self._and()
        while self._is("or"):
            node = Infix(self._take("or"), node, self._and())
        self._depth -= 1
        return node

    def _and(self) -> Node:
        node = self._not()
        while self._is("and"):
            node = Infix(self._take("and"), node, self._not())
        return node

    def _not(self) -> Node:
        if self._is("not"):
            self._deeper()
            node = Prefix(self._take("not"), self._not())
            self._depth -= 1
            return node
        return self._comparison()

    def _comparison(self) -> Node:
        node = self._sum()
        if self._is(*COMPARISONS):
            node = Infix(self._take(*COMPARISONS), node, self._sum())
            if self._is(*COMPARISONS):
                self._fail("one comparison; join two with `and`")
        return node

    def _sum(self) -> Node:
        node = self._product()
        while self._is("+", "-"):
            node = Infix(self._take("+", "-"), node, self._product())
        return node

    def _product(self) -> Node:
        node = self._sign()
        while self._is("*", "/"):
            node = Infix(self._take("*", "/"), node, self._sign())
        return node

    def _sign(self) -> Node:
        if self._is("-"):
            self._deeper()
            node = Prefix(self._take("-"), self._sign())
            self._depth -= 1
            return node
        return self._atom()

    def _atom(self) -> Node:
        if self._kind in ("number", "text"):
            return Literal(self._literal())
        if self._is("true", "false"):
            return Literal(self._take("true", "false") == "true")
        if self._is("("):
            self._next()
            node = self._or()
            self._take(")")
            return node
        if self._kind == "at":
            subject = self._token[1:-1]
            self._next()
            return self._path(subject)
        if self._kind == "name" and self._token not in _WORDS:
            if self._text[self._offset :].lstrip().startswith("("):
                return self._call()
            if self._scope is None:
                self._fail("a stage and model before the path, e.g. exactness/gemma-3-270m:")
            return self._path(self._scope)
        return self._fail("a number, a path, a function or an opening parenthesis")

    def _call(self) -> Node:
        name = self._token
        if name not in FUNCTIONS:
            self._fail(f"a function among {', '.join(FUNCTIONS)}")
        self._next()
        self._take("(")
        arguments = [self._or()]
        while self._is(","):
            self._next()
            arguments.append(self._or())
        fewest, most = FUNCTIONS[name]
        if not fewest <= len(arguments) <= most:
            self._fail(f"{fewest} to {most} arguments of {name}")
        self._take(")")
        return Call(name, tuple(arguments))

    def _path(self, subject: str) -> Path:
        steps: list[Step] = [self._name()]
        while self._is(".", "["):
            if self._take(".", "[") == ".":
                steps.append(self._name())
            else:
                steps.append(self._index())
                self._take("]")
        return Path(subject, tuple(steps))

    def _name(self) -> str:
        if self._kind != "name":
            self._fail("the name of a field")
        name = self._token
        self._next()
        return name

    def _index(self) -> Step:
        if self._is("*"):
            self._next()
            return Every()
        if self._kind == "name":
            field = self._name()
            self._take("==")
            return Where(field, self._literal())
        if self._kind == "number" and not self._token.isdigit():
            self._fail("a whole number")
        value = self._literal()
        assert isinstance(value, int | str)
        return value

    def _literal(self) -> int | float | str:
        kind, token = self._kind, self._token
        if kind == "text":
            self._next()
            return token[1:-1]
        if kind != "number":
            self._fail("a number, or a text in double quotes")
        value = int(token) if token.isdigit() and len(token) < 20 else float(token)
        if abs(value) > (MAX_INTEGER if isinstance(value, int) else 1e300):
            self._fail("a number in range")
        self._next()
        return value
