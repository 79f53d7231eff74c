"""Routing: which deposit a query goes to, or none.

Words give a shortlist; the frozen model then says how well each candidate's block explains the
query's words. Behind a block of the same problem every word can be copied, whatever the numbers; a
near miss has at least one word that cannot. So a candidate's score is made of the query's worst
words, not of all. The stage routes by these functions and the verifier decides again by them. This
module must not know an engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from kvaudit.context import ranking
from kvaudit.flywheel.prompts import same_statement

Ranked = TypeVar("Ranked", bound=Sequence[int])
Decision = Literal["recall", "adapt", "abstain"]

STATISTIC = "worst-words-mean"
"""Name of the score, as a library's calibration states it."""

WORST = 3
"""Words whose log-probabilities are averaged: the worst of a query."""

UNEXPLAINED = -1000.0
"""Score of a query of numbers alone: less than any word's."""

NEAR = 0.5
"""Candidates below this share of the best word score are not looked at."""

_DIGITS = re.compile(r"\d+")


def words_of(statement: str) -> str:
    """A statement without its numbers: those are what a new instance changes."""
    return _DIGITS.sub(" ", statement)


def shortlist(statements: Sequence[str], query: str, limit: int) -> list[list[int]]:
    """Candidates by words.

    Returns:
        [number of a statement, BM25 score in millionths], best first, at most `limit`; those
        below half the best score are left out.
    """
    return near(ranking.rank([words_of(one) for one in statements], words_of(query), limit))


def near(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Of ranked candidates, [number, score] from the best down, those that are looked at."""
    return [entry for entry in ranked if entry[1] >= NEAR * ranked[0][1]]


def exact(statements: Sequence[str], query: str) -> int | None:
    """Number of the statement that the query repeats, None if there is none."""
    return next((n for n, one in enumerate(statements) if same_statement(one, query)), None)


def score(log_probabilities: Sequence[float]) -> float:
    """A candidate's score: the mean of the `WORST` smallest log-probabilities, in nats.

    Args:
        log_probabilities: of the query's tokens that are part of no number, behind the block.

    Returns:
        At most 0; `UNEXPLAINED` where there is no word to explain.
    """
    worst = sorted(log_probabilities)[:WORST]
    return round(sum(worst) / len(worst), 6) if worst else UNEXPLAINED


def best(scores: Mapping[str, float]) -> tuple[str, float] | None:
    """The candidate with the highest score, the first of equals by name."""
    if not scores:
        return None
    name = min(scores, key=lambda one: (-scores[one], one))
    return name, scores[name]


def decide(found: tuple[str, float] | None, threshold: float | None) -> Decision:
    """What is done with a query that repeats no statement.

    Args:
        found: the best candidate and its score.
        threshold: of the calibration; None abstains always, for nothing is known then.
    """
    if found is None or threshold is None or found[1] <= threshold:
        return "abstain"
    return "adapt"
