r"""The rule of the Qwen2.5-Math harness (evaluation/parser.py and grader.py), in our words.

The answer is what follows the last «boxed», closed or not; else what follows «he answer is» or
«final answer is»; else the last number. It is cleaned of units, degrees, percent signs, dollars and
trailing zeros. Right is: the same text in any case; numbers within a ten-thousandth, also when one
is a hundred times the other; lists part by part; else equal by algebra, or in value to that
tolerance. Not carried over: numbers in words, its LaTeX parsers (ours is used), and its second of
time for algebra.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from kvaudit.rescore import answers, exact, expression, extract
from kvaudit.rescore.equality import Oracle
from kvaudit.rescore.harness import AsPublished, judged
from kvaudit.rescore.rows import Row

Close = Callable[[float, float], bool]
TOLERANCE = 1e-4
_UNITS = (
    "degree mile mph kmph ft inches feet foot inch yard meter metre cm mm km m dm kg gm g lb "
    "gallon liter litre hour hr minute min second sec day month year percent dollar rupee rs acre "
    "hectare square cubic sq cu unit mark man men woman women am pm east west rounds coin apple "
    "number more less by per are ratio prime increase decrease profit loss gain a c d h l o s t"
)
_UNIT = re.compile(rf"(^|\W)(?:{'|'.join(sorted(_UNITS.split(), key=len, reverse=True))})s?($|\W)")
_NUMBER = re.compile(r"-?\d*\.?\d+")
_GONE = ("\n", "\\!", "\\left", "\\right", "^{\\circ}", "^\\circ", "\\$", "$", "\\(", "\\)")
_LABELS = ("x=", "y=", "z=", "x\\in", "y\\in", "z\\in", "x\\to", "y\\to", "z\\to")


def score(row: Row, oracle: Oracle) -> AsPublished:
    """The score of a row."""
    answer = clean(find(row.generation))
    found = [equal(answer, clean(gold), oracle, near) for gold in row.golds]
    return judged(found, answer, "equal by the harness's rule")


def near(first: float, second: float) -> bool:
    """The harness's tolerance."""
    return math.isclose(second, first, rel_tol=TOLERANCE)


def find(text: str) -> str:
    """What the harness takes for the answer, uncleaned."""
    if "final answer is $" in text and "$. I hope" in text:
        found = text.split("final answer is $", 1)[1].split("$. I hope", 1)[0]
    elif "boxed" in text:
        rest = text.rsplit("boxed", 1)[1]
        inside = extract.braced(rest, 0) if rest.startswith("{") else rest.split("$")[0]
        found = rest[1:] if inside is None else inside
    elif "he answer is" in text:
        found = text.rsplit("he answer is", 1)[1]
    elif "final answer is" in text:
        found = text.rsplit("final answer is", 1)[1]
    else:
        numbers = _NUMBER.findall(text.replace(",", ""))
        found = numbers[-1] if numbers else ""
    found = re.sub(r"\n\s*", "", found.strip())
    return found.removeprefix(":").removesuffix(".").removesuffix("/")


def clean(text: str) -> str:
    """The answer as the harness compares it; a very long one is cut, it equals nothing."""
    text = text[: 2 * expression.MAX_CHARACTERS].strip().rstrip(".")
    text = text.replace("\n", "").replace("\\!", "")
    text = re.sub(r"[td]frac", "frac", text).replace("bmatrix", "pmatrix")
    text = text.replace("\\left", "").replace("\\right", "")
    text = text.replace("\\{", "{").replace("\\}", "}")
    text = re.sub(r"\\text\{.*?\}$", "", text).strip() or text
    for _ in range(2):
        text = _UNIT.sub(r"\1\2", text) or text
    for gone in _GONE:
        text = text.replace(gone, "")
    text = re.sub(r"\\text\{(.*?)\}", r"\1", text)
    for label in _LABELS:
        text = text.replace(label, "")
    text = text.replace("\\%", "").replace("%", "").replace(" .", " 0.").replace("{.", "{0.")
    text = text.replace("and", "").replace("\\mathbf", "")
    text = re.sub(r"(\d+)\.0*([^\d])", r"\1\2", text)
    text = re.sub(r"(\d+)\.0*$", r"\1", text)
    if text.startswith("."):
        text = "0" + text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = re.sub(r"\\sqrt(\w+)", r"\\sqrt{\1}", text).replace(" ", "")
    return re.sub(r"^(-?\d+)/(-?\d+)$", r"\\frac{\1}{\2}", text)


def digits(text: str) -> float | None:
    """A number as Python reads it, commas left out; a percent sign divides by a hundred."""
    text = text.replace(",", "")
    if len(text) > 400:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return (
            float(text.removesuffix("%").removesuffix("\\")) / 100 if text.endswith("%") else None
        )
    except ValueError:
        return None


def equal(answer: str, gold: str, oracle: Oracle, close: Close) -> bool | None:
    """Whether the harness calls an answer right; None where algebra has not decided yet."""
    if answer.lower() == gold.lower():
        return True
    first, second = digits(answer), digits(gold)
    if first is not None and second is not None:
        return any(close(first, value) for value in (second / 100, second, second * 100))
    if not answer:
        return False
    if gold in ("A", "B", "C", "D", "E"):
        letters = re.findall(r"\b[A-E]\b", answer.upper())
        if letters:
            return bool(letters[-1] == gold)
    if re.sub(r"[{}()]", "", answer).lower() == re.sub(r"[{}()]", "", gold).lower():
        return True
    if re.match(r"[(\[].+[)\]]", answer) and re.match(r"[(\[].+[)\]]", gold):
        return _parts(answer[1:-1].split(","), gold[1:-1].split(","), oracle, close)
    if answer.startswith("\\begin{pmatrix}") and gold.startswith("\\begin{pmatrix}"):
        return _parts(_cells(answer), _cells(gold), oracle, close)
    return _algebra(answer, gold, oracle, close)


def _parts(answer: list[str], gold: list[str], oracle: Oracle, close: Close) -> bool | None:
    if len(answer) != len(gold) or len(answer) > answers.MAX_ITEMS:
        return False
    found = [equal(a, g, oracle, close) for a, g in zip(answer, gold, strict=True)]
    return False if False in found else None if None in found else True


def _cells(matrix: str) -> list[str]:
    return re.split(r"&|\\\\", matrix[15:].removesuffix("\\end{pmatrix}"))


def _algebra(answer: str, gold: str, oracle: Oracle, close: Close) -> bool | None:
    sides = [text.split("=") for text in (answer, gold)]
    if max(len(side) for side in sides) > 2:
        return False
    try:
        trees = [_tree(side, len(sides[0]) == len(sides[1]) == 2) for side in sides]
        values = [exact.value(tree) for tree in trees]
    except (expression.Unreadable, exact.TooLarge, RecursionError):
        return False
    if values[0] is not None and values[1] is not None:
        return values[0] == values[1] or close(_float(values[0]), _float(values[1]))
    found = oracle.ask(trees[0], trees[1])
    if found.values[0] is not None and found.values[1] is not None:
        return bool(found.same) or close(float(found.values[0]), float(found.values[1]))
    return found.same


def _tree(sides: list[str], difference: bool) -> expression.Tree:
    if any("{,}" in side for side in sides):
        raise expression.Unreadable("its parsers know no such comma")
    trees = [expression.parse(answers.tidy(side)) for side in sides]
    return ["+", trees[0], ["-", trees[1]]] if difference else trees[-1]


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
