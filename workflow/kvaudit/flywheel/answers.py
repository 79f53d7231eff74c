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

_MARKS = re.compile(r"[*$\"`]+")


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
    """Whether an answer is the known one; of words, whatever their case and marks."""
    if isinstance(answer, str) and isinstance(wanted, str):
        return words(answer).casefold() == words(wanted).casefold()
    return type(answer) is type(wanted) and answer == wanted


def words(text: str) -> str:
    """A text in one line, without marks of emphasis and the full stop at its end."""
    line = " ".join(_MARKS.sub("", text).split()).removesuffix(".").strip()
    return re.sub(r"\s*,\s*", ", ", line)
