"""What a text says in answer to a problem, and whether that is right.

The answer of a contest problem is an integer; that of a problem from a user's file may be words.
The stage reads by these functions and the verifier reads by them again. This module must not know
what an arm holds in its context.
"""

from __future__ import annotations

import re

from kvaudit.flywheel import prompts
from kvaudit.flywheel.records import RECALLING, kept

Answer = int | str

MAX_WORDS = 200
"""Characters of an answer in words; a problem with a longer one is not asked."""

_MARKS = '*$"`'


def _pair(mark: str) -> re.Pattern[str]:
    """A pair of marks around words, as in `**yes, no**`; one between word characters is none."""
    one, others = re.escape(mark), re.escape(_MARKS.replace(mark, ""))
    return re.compile(
        rf"(?<![^\s(\[{{,;:{others}])({one}+)(?![\s{one}])"
        rf"((?:[^{one}]|(?<=\w){one}+(?=\w))+)"
        rf"(?<!\s)\1(?!{one})(?![^\s)\]}},;:.?!{others}])"
    )


_PAIRS = [_pair(mark) for mark in _MARKS]


def read(arm: str, text: str, wanted: Answer) -> Answer | None:
    """The answer that a text gives to a problem; None where it gives none.

    Args:
        arm: in which it was generated.
        text: as it was.
        wanted: the known answer, of which the kind alone counts here.
    """
    if isinstance(wanted, str):
        return words(text)[:MAX_WORDS] or None
    return kept((prompts.first_integer if arm in RECALLING else prompts.read_answer)(text))


def is_right(answer: Answer | None, wanted: Answer) -> bool:
    """Whether an answer is the known one; of words, whatever their case and pairs of marks."""
    if isinstance(answer, str) and isinstance(wanted, str):
        return words(answer).casefold() == words(wanted).casefold()
    return type(answer) is type(wanted) and answer == wanted


def unmarked(text: str) -> str:
    """A text without the pairs of marks (`*`, `$`, `"`, backtick) that are around its words."""
    for pair in _PAIRS:
        text = pair.sub(r"\2", text)
    return text


def words(text: str) -> str:
    """A text in one line, without pairs of marks around words and full stops at its end.

    Of a longer text, the beginning: its first `2 * MAX_WORDS` characters. A mark between word
    characters stays: `2*3` is not `23`. What was read is read the same again.
    """
    line = " ".join(text.split())[: 2 * MAX_WORDS].strip()
    while True:
        before = line
        line = unmarked(line)
        line = re.sub(r"\s*,\s*", ", ", line).strip().removesuffix(".").strip()
        if line == before:
            return line
