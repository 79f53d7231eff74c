r"""Finds the answer in a text: a box, an announced answer, what was printed, or the last number.

The rules E1 to E6 of docs/rescoring.md. Program text and its output between fences are no prose.
This module must not know what a right answer is.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Literal

Rule = Literal["marked", "boxed", "announced", "printed", "last number", "none"]

BARE_WORDS = 6
"""A text of so few words, where a word is asked for, is the answer itself."""
MAX_TEXT = 8 * 1024 * 1024
MAX_MARKS = 10_000
MAX_BOXES, MAX_BOX = 50, 20_000
"""The last boxes that are looked at, where none closes; and their longest, in characters."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s{}$]+)")
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.S)
_ANNOUNCED = re.compile(
    r"(?:\bfinal\s+answer\s*(?:is)?|\banswer\s+is|\bANSWER(?=\s*:)|\banswer(?=\s*:))\s*[:*]*\s*",
    re.I,
)
_NUMBER = re.compile(
    r"(?<![\w.])-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?:(?<![\w.)\]}])-)?(?:\d+(?:\.\d+)?|\.\d+)"
)


@dataclass(frozen=True)
class Answer:
    """An answer as it is written, and the rule by which it was found."""

    text: str
    rule: Rule


def extract(text: str, *, printed: str | None = None, task: str | None = None) -> Answer:
    """The answer of one generation; empty, by rule "none", where there is none.

    Args:
        text: the generation.
        printed: what the publisher says that its program printed, if it has one.
        task: LiveBench's; its prompts ask for marks of their own.
    """
    text = text[-MAX_TEXT:]
    mark = _marked(text, task)
    if mark:
        return Answer(mark, "marked")
    inside = boxed(text)
    if inside is not None:
        return Answer(inside, "boxed")
    prose = _FENCE.sub(" ", text)
    found = _announced(prose)
    if found:
        return Answer(found, "announced")
    if printed is not None and printed.strip():
        return Answer(printed.strip().splitlines()[-1].strip(), "printed")
    numbers = deque(_NUMBER.finditer(prose), maxlen=1)
    return Answer(numbers[0].group(), "last number") if numbers else Answer("", "none")


def _marked(text: str, task: str | None) -> str:
    """What stands in <solution>, or in the mark that the task's prompt asks for."""
    found = enclosed(text, "<solution>", "</solution>")
    if not found and task == "math_comp/amc":
        found = [run[0] for run in re.findall(r"(?:A{4,}|B{4,}|C{4,}|D{4,}|E{4,})", text)]
    if not found and task in ("spatial", "web_of_lies_v2", "zebra_puzzle/one"):
        found = re.findall(r"\*\*\*([^*\n]+)\*\*\*", text) or re.findall(r"\*\*([^*\n]+)\*\*", text)
    if not found and task == "zebra_puzzle/one" and len(text.split()) <= BARE_WORDS:
        found = [text]
    return str(found[-1]).strip() if found else ""


def boxed(text: str) -> str | None:
    r"""What the last closed \boxed or \fbox holds, braces counted; None without one."""
    for match in reversed(deque(_BOX.finditer(text), maxlen=MAX_BOXES)):
        inside = braced(text, match.end())
        if inside is not None:
            return inside.strip()
    bare = _BARE_BOX.findall(text)
    return str(bare[-1]) if bare else None


def enclosed(text: str, opening: str, closing: str) -> list[str]:
    """What stands between marks, in one pass; a pattern would try each open one to the end."""
    found: list[str] = []
    start = text.find(opening)
    while start >= 0 and len(found) < MAX_MARKS:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        found.append(text[start + len(opening) : end])
        start = text.find(opening, end + len(closing))
    return found


def braced(text: str, start: int) -> str | None:
    """What the group holds that opens at `start`; None where it does not close in `MAX_BOX`."""
    depth, index = 0, start
    while index < min(len(text), start + MAX_BOX):
        letter = text[index]
        if letter == "\\":
            index += 2
            continue
        if letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : index]
        index += 1
    return None


def _announced(prose: str) -> str:
    """What stands behind the last «answer is» or «answer:», up to the end of its sentence."""
    marks = deque(_ANNOUNCED.finditer(prose), maxlen=1)
    if not marks:
        return ""
    rest = prose[marks[0].end() : marks[0].end() + 400].split("\n", 1)[0]
    marked = re.match(r"\W{0,3}?(?:\$\$?(.+?)\$\$?|\\\((.+?)\\\)|\*\*(.+?)\*\*)", rest)
    if marked is not None:
        return next(group for group in marked.groups() if group is not None).strip()
    return re.split(r"[.!?](?:\s|$)", rest, maxsplit=1)[0].strip(" *:")
