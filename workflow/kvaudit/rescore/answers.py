r"""Reads an answer as it is written into what it is: a number, a list, an interval, a word.

`read` tidies LaTeX away that only sets type, takes units, degrees, dollars and percent signs off a
number and keeps them, and tells lists from thousands. docs/rescoring.md names the rules N that are
followed here; tests hold each to its cases. This module must not know what a right answer is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvaudit.rescore import expression
from kvaudit.rescore.expression import Beyond, Tree, Unreadable

MAX_ITEMS = 64
MAX_RELATIONS = 12

_SPACES = re.compile(
    r"(?<!\\)\\(?:[,;:! ]|q?quad\b|displaystyle\b|limits\b|left\b|right\b|[bB]igg?[lr]?\b)"
)
_STYLES = re.compile(
    r"\\(?:mathbf|boldsymbol|mathrm|mathit|bm|mathnormal|operatorname)\s*\{([^{}]*)\}"
)
_TEXTS = re.compile(r"\\(?:text(?:bf|it|rm|tt|sf|normal)?|mbox|hbox|emph)\s*\{([^{}]*)\}")
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm|tt|sf|normal)?|mbox|boxed|fbox|emph)\s*\{(.*)\}")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_AND = re.compile(r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\s+(?:and|or)\s+|\\(?:lor|vee)\b")
_RELATIONS = ("\\leq", "\\geq", "\\neq", "\\le", "\\ge", "\\ne", "\\lt", "\\gt", "\\in", "\\approx")
_RELATION = re.compile(r"\\(?:leq|geq|neq|le|ge|ne|lt|gt|in|approx)(?![A-Za-z])|[=<>≤≥≠≈∈]")
_SAME_RELATION = {
    "\\leq": "≤", "\\le": "≤", "\\geq": "≥", "\\ge": "≥", "\\neq": "≠", "\\ne": "≠",
    "\\lt": "<", "\\gt": ">", "\\in": "∈", "\\approx": "≈",
}  # fmt: skip
_NAME = re.compile(r"\\?[A-Za-z]+(?:_(?:\w|\{\w+\}))?(?:\(\\?[A-Za-z]\))?")
_UNIT_MARK = re.compile(
    r"(?<=[\d})\]!πA-Za-z])\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|°)\s*([CF]?)$"
)
_UNIT_WORDS = re.compile(
    r"(?<=[\d})\]!π])\s*"
    r"(?:\\(?:text(?:rm)?|mbox|mathrm)\s*\{\s*([^{}]*?)\s*\}|\s([A-Za-z][A-Za-z .]+))"
    r"\s*(?:\^\s*\{?\s*([23])\s*\}?)?$"
)
_GLUED_UNIT = re.compile(
    r"(?<=\d)(cm|mm|km|kg|mph|ft|in|min|hours?|degrees?|inches)(?:\^\{?([23])\}?)?$"
)
_BASE = re.compile(r"(\d+)\s*_\s*\{?\s*(\d{1,2})\s*\}?$")
_UNITS = {
    "centimeter": "cm", "centimetre": "cm", "millimeter": "mm", "meter": "m", "metre": "m",
    "kilometer": "km", "kilometre": "km", "inch": "in", "inche": "in", "foot": "ft", "feet": "ft",
    "gram": "g", "kilogram": "kg", "minute": "min", "hour": "h", "hr": "h", "second": "s",
    "sec": "s", "deg": "degree", "buck": "dollar", "usd": "dollar", "cents": "cent",
}  # fmt: skip
_PREFIX = {"$": "dollar", "\\$": "dollar", "£": "pound", "€": "euro"}


@dataclass(frozen=True)
class Quantity:
    """An expression with what was taken off it."""

    tree: Tree
    unit: str = ""
    percent: bool = False


@dataclass(frozen=True)
class Words:
    """Text that is no mathematics, in lower case, without punctuation."""

    text: str


@dataclass(frozen=True)
class Ordered:
    """An ordered list with its brackets: a tuple, a point, an interval, a matrix of rows."""

    brackets: str
    items: tuple[Shape, ...]


@dataclass(frozen=True)
class Bag:
    """A list without order: a set, several solutions, the two values of ±.

    `braces` tells a set in braces from a bare list.
    """

    items: tuple[Shape, ...]
    braces: bool = False


@dataclass(frozen=True)
class Relation:
    """An equation, inequality or membership."""

    sign: str
    left: Shape
    right: Shape
    named: bool  # the left side is one name, as in x = 5


Shape = Quantity | Words | Ordered | Bag | Relation


def read(text: str) -> Shape:
    """What an answer is.

    Raises:
        Beyond: it is longer than an answer can be, or has too many parts.
    """
    if len(text) > expression.MAX_CHARACTERS:
        raise Beyond(f"longer than {expression.MAX_CHARACTERS} characters")
    return _read(tidy(text), 0)


def tidy(text: str) -> str:
    r"""The text without what only sets type: spaces, \left, \dfrac, dollars around mathematics."""
    text = text.replace("\u200b", "").replace("\u00a0", " ").replace("−", "-").strip()
    text = re.sub(r"(?<=\d)\s*(?:\{,\}|,\\!|\\,|\{\\,\})\s*(?=\d{3}(?!\d))", "", text)
    text = text.replace("\\%", "%").replace("\\$", "\x00")
    text = re.sub(
        r"^(?:\\\(|\\\[|\$\$?)\s*(.*?)\s*(?:\\\)|\\\]|\$\$?)[.,]?$", r"\1", text, flags=re.S
    )
    text = _SPACES.sub(" ", text).replace("~", " ").replace("\x00", "\\$")
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\\[lr]vert(?![A-Za-z])", "|", text)
    text = _STYLES.sub(_style, text)
    text = re.sub(r"\s+", " ", text).strip().strip("*").strip()
    return text.rstrip(".,;:").rstrip() if not text.endswith("\\.") else text


def _style(match: re.Match[str]) -> str:
    inside = match[1].strip()
    return match[0] if len(inside) > 1 and match[0].startswith("\\mathrm") else inside


def plain(text: str) -> str:
    """The text as words are compared: lower case, no commands, punctuation or spaces."""
    text = _TEXTS.sub(r"\1", text)
    text = re.sub(r"\\[A-Za-z]+|[\\{}$*]", " ", text).lower()
    return re.sub(r"[\s.,;:'\"()\[\]!?-]+", " ", text).strip()


def _read(text: str, depth: int) -> Shape:
    if depth > 8:
        raise Beyond("lists are nested too deeply")
    inside = _unwrapped(text)
    if inside is not None:
        return _read(tidy(inside), depth + 1)
    for reader in (_joined, _listed, _related, _bracketed):
        found = reader(text, depth)
        if found is not None:
            return found
    try:
        return _quantity(text)
    except Beyond:
        raise
    except Unreadable:
        return Words(plain(text))


def _unwrapped(text: str) -> str | None:
    r"""What is inside one \text{…} or \boxed{…} that is the whole of the text."""
    match = _WRAPPED.fullmatch(text)
    if match is None or _split(match[1] + "}", "}")[0] != match[1]:
        return None
    return match[1]


def _split(text: str, separator: str) -> list[str]:
    """The text cut at a separator that stands outside of every bracket."""
    parts, start, depth = [], 0, 0
    for index, letter in enumerate(text):
        if text.startswith(separator, index) and depth == 0:
            parts.append(text[start:index])
            start = index + len(separator)
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
    parts.append(text[start:])
    if len(parts) > MAX_ITEMS:
        raise Beyond(f"more than {MAX_ITEMS} parts")
    return parts


def _joined(text: str, depth: int) -> Shape | None:
    """A union of intervals."""
    parts = [part.strip() for part in _split(text.replace("∪", "\\cup"), "\\cup")]
    if len(parts) < 2:
        return None
    return Bag(tuple(_read(part, depth + 1) for part in parts), braces=True)


def _listed(text: str, depth: int) -> Shape | None:
    """A bare list: parts with commas, «and» or «or» between them, not thousands."""
    text = _AND.sub(",", text)
    text = _outside(text)
    parts = [part.strip() for part in _split(text, ",")]
    parts = [part for part in parts if part]
    if len(parts) < 2:
        return None
    items = tuple(_read(part, depth + 1) for part in parts)
    # x = 1, x = 2 and x = 1, 2 are lists of values.
    items = tuple(
        i.right if isinstance(i, Relation) and i.named and i.sign == "=" else i for i in items
    )
    if all(isinstance(item, Words) for item in items):
        return Ordered(",", items)
    return Bag(items)


def _outside(text: str) -> str:
    """The text with the commas of thousands taken out where it is inside of no bracket."""
    depth, pieces, last = 0, [], 0
    for match in _THOUSANDS.finditer(text):
        depth += sum((c in "([{") - (c in ")]}") for c in text[last : match.start()])
        pieces += [text[last : match.start()], match[0] if depth else match[0].replace(",", "")]
        last = match.end()
    return "".join(pieces) + text[last:]


def _related(text: str, depth: int) -> Shape | None:
    signs = list(_RELATION.finditer(text))
    if len(signs) > MAX_RELATIONS:
        raise Beyond(f"more than {MAX_RELATIONS} relations")
    signs = [m for m in signs if _level(text, m.start()) == 0]
    if not signs:
        return None
    left, sign, right = (
        text[: signs[-1].start()].strip(),
        signs[-1].group(),
        text[signs[-1].end() :],
    )
    if not left or not right.strip():
        return None
    sign = _SAME_RELATION.get(sign, sign)
    named = _NAME.fullmatch(left) is not None
    if sign == "=" and len(signs) > 1 and all(m.group() == "=" for m in signs):
        named = True  # a chain of equals: its end is the answer
    if len(signs) == 2 and not named:
        return Words(re.sub(r"\s+", "", text))
    return Relation(sign, _read(left, depth + 1), _read(right.strip(), depth + 1), named)


def _level(text: str, end: int) -> int:
    return sum((c in "([{") - (c in ")]}") for c in text[:end])


def _bracketed(text: str, depth: int) -> Shape | None:
    if text in ("\\emptyset", "\\varnothing", "∅", "\\{\\}", "\\{ \\}"):
        return Bag((), braces=True)
    if text.startswith("\\{") and text.endswith("\\}"):
        parts = [part.strip() for part in _split(text[2:-2], ",")]
        return Bag(tuple(_read(part, depth + 1) for part in parts), braces=True)
    matrix = re.fullmatch(r"\\begin\s*\{([bpvBV]?)matrix\}(.*)\\end\s*\{\1matrix\}", text)
    if matrix is not None:
        lines = [line for line in re.split(r"\\\\", matrix[2]) if line.strip()]
        rows = tuple(
            Ordered(
                "matrix", tuple(_read(c.strip(), depth + 1) for c in line.split("&")[:MAX_ITEMS])
            )
            for line in lines[:MAX_ITEMS]
        )
        return Ordered("matrix", rows)
    if len(text) > 2 and text[0] in "([" and text[-1] in ")]":
        inner = text[1:-1]
        if _split(inner + ")", ")")[0] != inner and _split(inner + "]", "]")[0] != inner:
            return None
        parts = [part.strip() for part in _split(inner, ",")]
        if len(parts) > 1:
            return Ordered(text[0] + text[-1], tuple(_read(part, depth + 1) for part in parts))
    return None


def _quantity(text: str) -> Shape:
    unit = ""
    for mark, name in _PREFIX.items():
        if text.startswith(mark):
            text, unit = text[len(mark) :].strip(), name
        elif text.startswith("-" + mark):
            text, unit = "-" + text[len(mark) + 1 :].strip(), name
    text = text.replace("$", "").strip()
    percent = text.endswith("%")
    text = text.rstrip("%").strip() if percent else text
    match = re.fullmatch(r"(.*[\d})])\s*(?:\\text\{\s*)?percent(?:\s*\})?", text)
    if match is not None:
        text, percent = match[1], True
    base = _BASE.fullmatch(text)
    if base is not None:
        return Quantity(["n", base[1]], f"base {base[2]}")
    text, found = _unit(text)
    tree = expression.parse(_outside(text))
    if expression.has_signs(tree):
        both = [Quantity(expression.signs(tree, s), found or unit, percent) for s in (1, -1)]
        return Bag(tuple(both))
    return Quantity(tree, found or unit, percent)


def _unit(text: str) -> tuple[str, str]:
    """The text without its unit, and the unit by one name."""
    match = _UNIT_MARK.search(text)
    if match is not None and not any(f"\\{name}" in text for name in expression.TRIGONOMETRY):
        return text[: match.start()], f"degree{match[1]}"
    match = _UNIT_WORDS.search(text) or _GLUED_UNIT.search(text)
    if match is None:
        return text, ""
    groups = match.groups()
    word = (groups[0] or groups[1] if len(groups) == 3 else groups[0]) or ""
    power = groups[-1] or ""
    rest = text[: match.start()].strip()
    if not rest or word.strip().lower() in ("and", "or"):
        return text, ""
    return rest, _unit_name(word, power)


def _unit_name(word: str, power: str) -> str:
    words = [w for w in re.split(r"[\s.]+", word.lower()) if w]
    if words[:1] in (["square"], ["sq"]):
        words, power = words[1:], "2"
    elif words[:1] in (["cubic"], ["cu"]):
        words, power = words[1:], "3"
    named = []
    for part in words:
        one = part[:-1] if len(part) > 2 and part.endswith("s") else part
        named.append(_UNITS.get(one, one))
    return " ".join(named) + power
