"""Reads the mathematics of one answer, LaTeX or plain, into a tree; evaluates nothing.

A tree is nested lists of texts, so that it can be handed to another process as JSON: a number as it
is spelled `["n", "12.5"]`, a name `["v", "x"]`, `["pi"]`, and operators with their operands.
Foreign text is never executed: this is the only parser of it, it knows no names but those below,
and it is bounded in length and depth. This module must not know what is compared, or how.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NoReturn

Tree = list[Any]

MAX_CHARACTERS = 2_000
MAX_DEPTH = 60
MAX_TOKENS = 300

FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "exp",
        "ln",
        "log",
        "lg",
        "det",
        "gcd",
        "lcm",
        "max",
        "min",
        "floor",
        "ceil",
    ]
)
TRIGONOMETRY = frozenset(["sin", "cos", "tan", "cot", "sec", "csc"])
_ONE_ARGUMENT = FUNCTIONS - {"det", "gcd", "lcm", "max", "min"}
_CONSTANTS = {"pi": ["pi"], "infty": ["oo"], "infinity": ["oo"], "inf": ["oo"], "oo": ["oo"]}
_GREEK = frozenset(
    [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "upsilon",
        "phi",
        "varphi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
        "ell",
    ]
)
_PRODUCTS = frozenset({"*", "·", "×", "\\cdot", "\\times", "\\ast"})
_QUOTIENTS = frozenset({"/", "÷", "\\div"})
_TOKEN = re.compile(
    r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+(?![\w.]))?|\.\d+)|(?P<command>\\[A-Za-z]+|\\[{}|%])"
    r"|(?P<word>[A-Za-z]+|π|∞)|(?P<mark>\*\*|[-+*/^_(){}\[\]|!=<>,·×÷±∓√°−–]|\S)"
)
_CLOSING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "|": "|"}
_STARTS = frozenset({"(", "[", "{", "|", "√"})


class Unreadable(Exception):
    """The text is not mathematics that this module knows; the message says why."""


class Beyond(Unreadable):
    """The text is longer or deeper than is read; whether it is right stays open."""


class Token(NamedTuple):
    """One token; `spaced` when white space stands before it."""

    kind: str
    text: str
    spaced: bool


def parse(text: str) -> Tree:
    """The tree of one expression.

    Raises:
        Beyond: too long or too deep.
        Unreadable: not an expression.
    """
    if len(text) > MAX_CHARACTERS:
        raise Beyond(f"longer than {MAX_CHARACTERS} characters")
    reader = _Reader(_tokens(text))
    try:
        tree = reader.sum()
    except RecursionError:  # the token bound comes first; this is the belt to its braces
        raise Beyond("nested too deeply") from None
    if reader.left:
        reader.fail(f"unexpected {reader.left[-1].text!r}")
    return tree


def names(tree: Tree) -> set[str]:
    """The names that occur in a tree."""
    if tree[0] == "v":
        return {str(tree[1])}
    return {name for child in tree[1:] if isinstance(child, list) for name in names(child)}


def signs(tree: Tree, sign: int) -> Tree:
    """The tree with every ± read as `sign` and every ∓ as its opposite."""
    if tree[0] == "±":
        return ["+", signs(tree[1], sign), _signed(signs(tree[2], sign), sign * int(tree[3]))]
    return [tree[0], *(signs(c, sign) if isinstance(c, list) else c for c in tree[1:])]


def has_signs(tree: Tree) -> bool:
    """Whether a ± or ∓ occurs."""
    return tree[0] == "±" or any(has_signs(c) for c in tree[1:] if isinstance(c, list))


def _signed(tree: Tree, sign: int) -> Tree:
    return tree if sign > 0 else ["-", tree]


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    end = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        tokens.append(Token(kind, match.group(), match.start() > end))
        end = match.end()
    if not tokens:
        raise Unreadable("empty")
    if len(tokens) > MAX_TOKENS:
        raise Beyond(f"more than {MAX_TOKENS} tokens")
    return tokens


class _Reader:
    """Recursive descent; `left` holds the tokens still to come, the next one last."""

    def __init__(self, tokens: list[Token]) -> None:
        self.left = tokens[::-1]
        self.depth = 0

    def fail(self, why: str) -> NoReturn:
        raise Unreadable(why)

    def peek(self) -> str:
        return self.left[-1].text if self.left else ""

    def take(self) -> Token:
        if not self.left:
            self.fail("it ends too early")
        return self.left.pop()

    def expect(self, text: str) -> None:
        if self.peek() != text:
            self.fail(f"{text!r} is missing")
        self.left.pop()

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Beyond(f"nested deeper than {MAX_DEPTH}")
        sign = self.peek()
        if sign in ("±", "\\pm", "∓", "\\mp"):
            self.take()
            tree: Tree = ["±", ["n", "0"], self.product(), "1" if sign in ("±", "\\pm") else "-1"]
        else:
            tree = self.product()
        while (sign := self.peek()) in ("+", "-", "−", "–", "±", "\\pm", "∓", "\\mp"):
            self.take()
            term = self.product()
            if sign in ("±", "\\pm", "∓", "\\mp"):
                tree = ["±", tree, term, "1" if sign in ("±", "\\pm") else "-1"]
            else:
                tree = ["+", tree, term if sign == "+" else ["-", term]]
        self.depth -= 1
        return tree

    def product(self) -> Tree:
        tree = self.signed()
        while self.left:
            text = self.peek()
            if text in _PRODUCTS:
                self.take()
                tree = ["*", tree, self.signed()]
            elif text in _QUOTIENTS:
                self.take()
                tree = ["/", tree, self.signed()]
            elif self.begins_factor():
                if self.left[-1].kind == "number":
                    self.fail("two numbers stand side by side")
                tree = ["*", tree, self.power()]
            else:
                break
        return tree

    def begins_factor(self) -> bool:
        token = self.left[-1]
        if token.kind in ("number", "word"):
            return True
        if token.kind == "command":
            name = token.text[1:]
            return name in FUNCTIONS | _GREEK | {"frac", "sqrt", "pi", "infty", "binom", "lfloor"}
        return token.text in _STARTS - {"|", "["}

    def signed(self) -> Tree:
        minus = 0
        while self.peek() in ("+", "-", "−", "–"):
            minus += self.take().text != "+"
            if minus > MAX_DEPTH:
                raise Beyond(f"nested deeper than {MAX_DEPTH}")
        tree = self.power()
        return ["-", tree] if minus % 2 else tree

    def power(self) -> Tree:
        tree = self.atom()
        while self.peek() in ("^", "**", "!", "°"):
            mark = self.take().text
            if mark == "!":
                tree = ["!", tree]
            elif mark == "°" or self.degree():
                tree = ["*", tree, ["/", ["pi"], ["n", "180"]]]
            else:
                tree = ["^", tree, self.argument(signed=True, whole=True)]
        return tree

    def degree(self) -> bool:
        if self.peek() == "\\circ":
            self.take()
            return True
        if [token.text for token in self.left[-3:]] == ["}", "\\circ", "{"]:
            del self.left[-3:]
            return True
        return False

    def argument(self, *, signed: bool = False, whole: bool = False) -> Tree:
        """What a command or an exponent takes: a group, or one token, or with `whole` a number."""
        if self.peek() == "{":
            return self.group()
        if signed and self.peek() in ("-", "−", "+"):
            sign = self.take().text
            tree = self.argument(whole=whole)
            return tree if sign == "+" else ["-", tree]
        if self.left and self.left[-1].kind == "number" and not whole:
            token = self.take()
            rest = token.text[1:]
            if rest:
                self.left.append(Token("number", rest, False))
            return ["n", token.text[0]]
        if whole and self.left and self.left[-1].kind == "number":
            tree = ["n", self.take().text]
            if self.peek() in ("^", "**"):  # 10**10**8 is 10**(10**8)
                self.take()
                return ["^", tree, self.nested()]
            return tree
        return self.atom()

    def nested(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Beyond(f"nested deeper than {MAX_DEPTH}")
        tree = self.argument(signed=True, whole=True)
        self.depth -= 1
        return tree

    def group(self) -> Tree:
        opening = self.take().text
        tree = self.sum()
        self.expect(_CLOSING[opening])
        return tree

    def atom(self) -> Tree:
        token = self.take()
        if token.kind == "number":
            return self.mixed(token.text)
        if token.kind == "word":
            return self.word(token.text)
        if token.text == "√":
            return ["root", ["n", "2"], self.argument(whole=True)]
        if token.text == "|":
            tree = self.sum()
            self.expect("|")
            return ["abs", tree]
        if token.text in ("(", "[", "{"):
            self.left.append(token)
            return self.group()
        if token.kind == "command":
            return self.command(token.text[1:])
        raise Unreadable(f"unexpected {token.text!r}")

    def mixed(self, digits: str) -> Tree:
        """A number, or a mixed one: an integer right before a fraction of two integers."""
        number: Tree = ["n", digits]
        if not digits.isdigit() or not self.left:
            return number
        ahead = self.left[::-1][:7]
        texts = [token.text for token in ahead]
        if texts[0] == "\\frac":
            ahead = self.left[:]
            self.take()
            top, bottom = self.argument(), self.argument()
            if top[0] == "n" == bottom[0] and (top[1] + bottom[1]).isdigit():
                return ["+", number, ["/", top, bottom]]
            self.left = ahead
        elif len(texts) > 2 and ahead[0].spaced and texts[1] == "/":
            top, bottom = ["n", texts[0]], ["n", texts[2]]
            if (texts[0] + texts[2]).isdigit():
                del self.left[-3:]
                return ["+", number, ["/", top, bottom]]
        return number

    def word(self, text: str) -> Tree:
        if text in ("π", "∞"):
            return ["pi"] if text == "π" else ["oo"]
        if text in _CONSTANTS:
            return list(_CONSTANTS[text])
        if text == "sqrt":
            if self.peek() != "(":
                self.fail("sqrt without brackets")
            return ["root", ["n", "2"], self.group()]
        if text in _ONE_ARGUMENT and self.peek() in ("(", "{", "^"):
            return self.function(text)
        if len(text) > 2 or text.lower() in ("no", "or", "is"):
            self.fail(f"the word {text!r}")
        if len(text) == 2:
            self.left.append(Token("word", text[1], False))
        return ["v", text[0] + self.subscript()] if len(text) == 1 else ["v", text[0]]

    def subscript(self) -> str:
        if self.peek() != "_":
            return ""
        self.take()
        if self.peek() != "{":
            return "_" + self.take().text
        self.take()
        inside = []
        while self.peek() not in ("}", ""):
            inside.append(self.take().text)
        self.expect("}")
        return "_" + "".join(inside)

    def function(self, name: str) -> Tree:
        exponent: Tree | None = None
        base: Tree | None = None
        if self.peek() == "_" and name == "log":
            self.take()
            base = self.argument(whole=True)
        if self.peek() in ("^", "**"):
            self.take()
            exponent = self.argument(signed=True, whole=True)
        inside = self.group() if self.peek() in ("(", "[", "{") else self.bare()
        tree: Tree = ["f", name, inside] if base is None else ["log", base, inside]
        if exponent is None:
            return tree
        if exponent == ["-", ["n", "1"]] and name in TRIGONOMETRY:
            return ["f", f"arc{name}", inside]
        return ["^", tree, exponent]

    def bare(self) -> Tree:
        """The argument of a function without brackets: what is multiplied, up to a sign."""
        tree = self.power()
        while self.left and self.begins_factor() and self.peek() not in ("(",):
            if self.peek()[:1] == "\\" and self.peek()[1:] in FUNCTIONS:
                break
            tree = ["*", tree, self.power()]
        return tree

    def command(self, name: str) -> Tree:
        if name in ("frac", "binom"):
            top = self.argument()
            return ["/" if name == "frac" else "binom", top, self.argument()]
        if name == "sqrt":
            order: Tree = ["n", "2"]
            if self.peek() == "[":
                order = self.group()
            return ["root", order, self.argument(whole=True)]
        if name in _CONSTANTS:
            return list(_CONSTANTS[name])
        if name in _GREEK:
            return ["v", name + self.subscript()]
        if name in _ONE_ARGUMENT:
            return self.function(name)
        if name in ("lfloor", "lceil"):
            tree = self.sum()
            self.expect("\\rfloor" if name == "lfloor" else "\\rceil")
            return ["f", "floor" if name == "lfloor" else "ceil", tree]
        raise Unreadable(f"the command \\{name}")
