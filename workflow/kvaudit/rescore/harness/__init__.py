"""The rules by which others scored, in our words, so that their figures can be told from ours.

A rule takes a row and an oracle and gives the score that the publisher's harness would give. It is
as generous or as strict as theirs; that is its only purpose. docs/rescoring.md says of each where
it was read and what of it is not carried over.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from kvaudit.rescore.equality import Oracle
from kvaudit.rescore.rows import Row

_RULES = {
    "qwen-math": "kvaudit.rescore.harness.qwen_math",
    "tora": "kvaudit.rescore.harness.tora",
    "livebench": "kvaudit.rescore.harness.livebench",
}


@dataclass(frozen=True)
class AsPublished:
    """What a publisher's rule makes of a row.

    Attributes:
        score: 0 to 1; None where the rule, or what we carry over of it, gives none.
        answer: what it takes for the answer.
        why: in words.
    """

    score: float | None
    answer: str
    why: str


class Rule(Protocol):
    """A module with one function."""

    def score(self, row: Row, oracle: Oracle) -> AsPublished:
        """The score of a row; with an oracle that knows nothing yet it may be None."""
        ...


def judged(found: Collection[bool | None], answer: str, right: str) -> AsPublished:
    """The result of a rule that is yes, no or open for each gold, any of which is right.

    Args:
        found: whether the answer is each of the golds; None where algebra has not decided it.
        answer: what the rule takes for the answer.
        right: in words, what a right answer is.
    """
    if True in found:
        return AsPublished(1.0, answer, right)
    if None in found:
        return AsPublished(None, answer, "not decided by algebra")
    return AsPublished(0.0, answer, f"not {right}")


def load(name: str) -> Rule:
    """The rule of a name that an adapter gives."""
    rule: Rule = importlib.import_module(_RULES[name])
    return rule
