"""Whether two answers are the same, in three values: yes, no, or not decided.

Exact integers and fractions first, in this process; what is left is asked of an oracle, which
`symbolic` answers in batches in the sandbox. So a comparison is made twice: once to find what must
be asked, once with the answers. This module must not know how an answer was found in a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvaudit.rescore import answers, exact, expression
from kvaudit.rescore.answers import Bag, Ordered, Quantity, Relation, Shape, Words
from kvaudit.rescore.expression import Beyond, Tree

Pair = tuple[str, str]

MAX_MATCHED = 10
"""Parts of an unordered list that algebra may have to compare, each with each."""

WORDS = "words against mathematics"
"""The reason where one side is no mathematics at all."""

_CONSTANT = re.compile(r"(?<=\S)\s*\+\s*[Cc]\s*$")


@dataclass(frozen=True)
class Judged:
    """A verdict: same, not the same, or None; and by which rule, in words."""

    same: bool | None
    why: str


@dataclass(frozen=True)
class Found:
    """What algebra says of one pair: equal, not, or undecided (None), and both values as digits."""

    same: bool | None
    values: tuple[str | None, str | None] = (None, None)
    trouble: str = ""


@dataclass
class Oracle:
    """What is known about pairs of trees, and what was asked and is not known yet."""

    known: dict[Pair, Found] = field(default_factory=dict)
    asked: dict[Pair, tuple[Tree, Tree]] = field(default_factory=dict)

    def ask(self, first: Tree, second: Tree) -> Found:
        """What is known of two trees; nothing yet, the first time."""
        pair = (repr(first), repr(second))
        if pair not in self.known:
            self.asked[pair] = (first, second)
            return Found(None)
        return self.known[pair]

    def same(self, first: Tree, second: Tree) -> bool | None:
        """Whether two trees denote the same, as far as it is known."""
        return self.ask(first, second).same


def compare(gold: str, answer: str, oracle: Oracle) -> Judged:
    """Judges one answer against one gold answer."""
    if gold.strip() == answer.strip():
        return Judged(True, "the same text")
    if max(len(gold), len(answer)) > expression.MAX_CHARACTERS:
        return Judged(None, f"not read: longer than {expression.MAX_CHARACTERS} characters")
    if answers.tidy(gold) == answers.tidy(answer):
        return Judged(True, "the same text")
    if _CONSTANT.search(answer) and "c" not in gold.lower().replace("\\c", ""):
        judged = compare(gold, _CONSTANT.sub("", answer), oracle)
        return Judged(judged.same, f"{judged.why}, constant of integration set aside")
    try:
        right, given = answers.read(gold), answers.read(answer)
    except Beyond as error:
        return Judged(None, f"not read: {error}")
    choice = _choice(right, answer)
    if choice is not None:
        return Judged(choice, "by the letter of the choice")
    try:
        return _shapes(right, given, oracle)
    except exact.TooLarge:
        return Judged(None, f"a number of more than {exact.MAX_BITS} bits")
    except RecursionError:
        return Judged(None, "nested too deeply")


def _choice(right: Shape, answer: str) -> bool | None:
    """For a gold that is one letter A to J: the letter that the answer begins with."""
    if isinstance(right, Quantity) and right.tree[0] == "v" and right.tree[1] in "ABCDEFGHIJ":
        text = answers.plain(answer)
        if len(text) == 1 or (len(text) > 1 and text[1] == " " and text[0] in "abcdefghij"):
            return text[0] == str(right.tree[1]).lower()
    return None


def _shapes(right: Shape, given: Shape, oracle: Oracle) -> Judged:
    right, given = _unlabelled(right, given)
    if isinstance(right, Words) or isinstance(given, Words):
        if isinstance(right, Words) and isinstance(given, Words):
            return Judged(right.text == given.text, "as words")
        return Judged(False, WORDS)
    if isinstance(right, Quantity) and isinstance(given, Quantity):
        return _quantities(right, given, oracle)
    if isinstance(right, Relation) and isinstance(given, Relation):
        return _relations(right, given, oracle)
    if isinstance(right, Relation) or isinstance(given, Relation):
        return Judged(False, "an equation against a value")
    return _lists(right, given, oracle)


def _unlabelled(right: Shape, given: Shape) -> tuple[Shape, Shape]:
    """«x = 5» is 5 where the other side has no such label, or the same one."""

    def bare(shape: Shape) -> Shape:
        if isinstance(shape, Relation) and shape.named and shape.sign in ("=", "∈"):
            return shape.right
        return shape

    if isinstance(right, Relation) and isinstance(given, Relation):
        return (bare(right), bare(given)) if right.left == given.left else (right, given)
    return bare(right), bare(given)


def _quantities(right: Quantity, given: Quantity, oracle: Oracle) -> Judged:
    if right.unit and given.unit and right.unit != given.unit:
        return Judged(False, f"units differ: {right.unit}, {given.unit}")
    notes = "" if right.unit == given.unit else f", unit «{right.unit or given.unit}» set aside"
    judged = _trees(right.tree, given.tree, oracle)
    if right.percent == given.percent or judged.same:
        note = "" if right.percent == given.percent else ", percent sign set aside"
        return Judged(judged.same, judged.why + note + notes)
    hundredth: Tree = ["/", right.tree if right.percent else given.tree, ["n", "100"]]
    other = given.tree if right.percent else right.tree
    again = _trees(hundredth, other, oracle)
    same = True if again.same else _both((judged.same, again.same), any_of=True)
    return Judged(same, f"{again.why}, percent read as hundredths{notes}")


def _trees(right: Tree, given: Tree, oracle: Oracle) -> Judged:
    if right == given:
        return Judged(True, "the same expression")
    first, second = exact.value(right), exact.value(given)
    if first is not None and second is not None:
        return Judged(first == second, "exactly")
    if expression.names(right) != expression.names(given) and (first is None) != (second is None):
        rational, other = (right, given) if first is not None else (given, right)
        if not expression.names(rational) and other[0] == "v":
            return Judged(False, "a name against a number")
    return Judged(oracle.same(right, given), "by algebra")


def _relations(right: Relation, given: Relation, oracle: Oracle) -> Judged:
    flipped = {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}
    if right.sign != given.sign:
        if flipped.get(right.sign) != given.sign:
            return Judged(False, f"relations differ: {right.sign}, {given.sign}")
        given = Relation(right.sign, given.right, given.left, False)
    sides = _both(
        _shapes(a, b, oracle).same
        for a, b in ((right.left, given.left), (right.right, given.right))
    )
    if sides or right.sign != "=":
        return Judged(sides, "side by side")
    parts = (right.left, right.right, given.left, given.right)
    trees = [part.tree for part in parts if isinstance(part, Quantity)]
    if len(trees) < 4:
        return Judged(sides, "side by side")
    first, second = ["+", trees[0], ["-", trees[1]]], ["+", trees[2], ["-", trees[3]]]
    ways = (oracle.same(first, second), oracle.same(first, ["-", second]))
    return Judged(_both(ways, any_of=True), "as equations")


def _lists(right: Shape, given: Shape, oracle: Oracle) -> Judged:
    if isinstance(right, Ordered) and isinstance(given, Ordered):
        two = len(right.items) == 2 and "matrix" not in (right.brackets, given.brackets)
        if two and right.brackets != given.brackets and "," not in (right.brackets, given.brackets):
            return Judged(False, f"brackets differ: {right.brackets}, {given.brackets}")
        return _ordered(right.items, given.items, oracle)
    if isinstance(right, Bag) and isinstance(given, Bag):
        return _unordered(right.items, given.items, oracle)
    first, second = _items(right), _items(given)
    if isinstance(right, Ordered) or isinstance(given, Ordered):
        braces = any(isinstance(s, Bag) and s.braces for s in (right, given))
        if braces or not (first and second):
            return Judged(False, "a list in order against a set")
        return _ordered(first, second, oracle)
    return _unordered(first, second, oracle)


def _items(shape: Shape) -> tuple[Shape, ...]:
    return shape.items if isinstance(shape, Ordered | Bag) else (shape,)


def _ordered(right: tuple[Shape, ...], given: tuple[Shape, ...], oracle: Oracle) -> Judged:
    if len(right) != len(given):
        return Judged(False, f"{len(right)} parts against {len(given)}")
    pairs = zip(right, given, strict=True)
    return Judged(_both(_shapes(a, b, oracle).same for a, b in pairs), "part by part")


def _unordered(right: tuple[Shape, ...], given: tuple[Shape, ...], oracle: Oracle) -> Judged:
    """Each part of one has its equal in the other; equality leaves no choice to be tried."""
    if len(right) != len(given):
        return Judged(False, f"{len(right)} parts against {len(given)}")
    if len(right) > MAX_MATCHED and not all(_rational(shape) for shape in right + given):
        return Judged(None, "too many parts to match")
    left = list(given)
    open_ = False
    for part in right:
        found = [_shapes(part, other, oracle).same for other in left]
        if True in found:
            del left[found.index(True)]
        elif None in found:
            open_ = True
        else:
            return Judged(False, "part by part, in any order")
    return Judged(None if open_ else True, "part by part, in any order")


def _rational(shape: Shape) -> bool:
    return isinstance(shape, Quantity) and exact.value(shape.tree) is not None


def _both(values: Iterable[bool | None], *, any_of: bool = False) -> bool | None:
    """All of the values, or with `any_of` any; None where an open one decides."""
    found = list(values)
    if any_of in found:
        return any_of
    return None if None in found else not any_of
