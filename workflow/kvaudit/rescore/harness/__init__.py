"""The rules by which others scored, in our words, so that their figures can be told from ours.

A rule takes a row and an oracle and gives the score that the publisher's harness would give. It is
as generous or as strict as theirs; that is its only purpose. docs/rescoring.md says of each where
it was read and what of it is not carried over.
"""

from __future__ import annotations

import importlib
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


def load(name: str) -> Rule:
    """The rule of a name that an adapter gives."""
    rule: Rule = importlib.import_module(_RULES[name])
    return rule
