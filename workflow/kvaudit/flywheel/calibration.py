"""The router's threshold, how often it routes what it should not, and what abstaining costs.

Two statements bound the false routes, and they say different things. The split-conformal
threshold keeps a promise before any test: whatever the distribution of the scores, the next
foreign query is routed with probability at most alpha. It needs no model of the scores and no
large sample, only that foreign queries of the calibration split and later ones are exchangeable
(drawn in the same way, in any order). That probability is over the draw of the calibration split
as well; one unlucky split may give a threshold with a higher rate. So the rate of the threshold at
hand is measured on a split that had no part in it, and Clopper-Pearson bounds it from that count.

This module must not know how a score is made, nor what a query or an entry is.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple


@dataclass(frozen=True)
class Scored:
    """One query that was ranked.

    Attributes:
        score: of its best candidate; the query is routed where this exceeds the threshold.
        foreign: no entry of the library answers it.
        right: its best candidate is the entry that answers it; False of a foreign query.
    """

    score: float
    foreign: bool
    right: bool


class Point(NamedTuple):
    """What one threshold does.

    Attributes:
        threshold: queries with a score above it are routed.
        coverage: share of the queries with an entry of their own that are routed, right or wrong;
            None where there are none.
        accuracy_of_routed: share of all routed queries, foreign ones among them, that reach
            their own entry; None where none is routed.
        false_route_rate: share of the foreign queries that are routed; None where there are none.
    """

    threshold: float
    coverage: float | None
    accuracy_of_routed: float | None
    false_route_rate: float | None


def conformal_threshold(foreign_scores: Sequence[float], alpha: float) -> float | None:
    """The lowest threshold that a new foreign score exceeds with probability at most alpha.

    Of n + 1 exchangeable scores each is equally likely to be the r-th largest. The threshold is
    the r-th largest of the n known ones with r = ⌊(n + 1) alpha⌋, so that the new one lies above
    it only if it is among the r largest of all; ties only lower the probability. Source: V. Vovk,
    A. Gammerman and G. Shafer, "Algorithmic Learning in a Random World" (2005), section 4.1; as
    split conformal prediction J. Lei et al., JASA 113 (2018) 1094-1111.

    Args:
        foreign_scores: scores of foreign queries of the calibration split, finite.
        alpha: the accepted probability, between 0 and 1.

    Returns:
        The threshold, one of the scores; None where (n + 1) alpha < 1, because then no finite
        threshold keeps the promise and every query must be abstained from.

    Raises:
        ValueError: alpha out of range, or a score is not finite.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError("alpha out of range")
    _check(foreign_scores)
    rank = math.floor((len(foreign_scores) + 1) * _as_written(alpha))
    if rank < 1:
        return None
    return float(sorted(foreign_scores, reverse=True)[rank - 1])


def needed(alpha: float) -> int:
    """The fewest foreign queries of which `conformal_threshold` takes a threshold.

    Raises:
        ValueError: alpha out of range.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError("alpha out of range")
    return math.ceil(1 / _as_written(alpha)) - 1


def threshold_of(scores: Sequence[float | None], alpha: float) -> float | None:
    """The threshold of a calibration split, as records and libraries hold it: to six digits.

    Args:
        scores: the best score of every query of the split; None where it had no candidate. Such a
            query abstains by itself, so its score counts as lower than every other.
        alpha: as in `conformal_threshold`.

    Raises:
        ValueError: as `conformal_threshold`.
    """
    found = [float(score) for score in scores if score is not None]
    below = [min(found, default=0.0) - 1.0] * (len(scores) - len(found))
    threshold = conformal_threshold([*found, *below], alpha)
    return None if threshold is None else round(threshold, 6)


def curve(rows: Sequence[Scored]) -> list[Point]:
    """The abstention curve: one point for every threshold that makes a difference.

    Args:
        rows: ranked queries of the test split.

    Returns:
        Points by rising threshold, from one just below the lowest score, where everything is
        routed, to the highest score, where nothing is.

    Raises:
        ValueError: no rows, a score is not finite, or a foreign query is said to be right.
    """
    if not rows:
        raise ValueError("no values")
    if any(row.foreign and row.right for row in rows):
        raise ValueError("a foreign query has no right entry")
    _check([row.score for row in rows])
    foreign = sorted(row.score for row in rows if row.foreign)
    own = sorted(row.score for row in rows if not row.foreign)
    right = sorted(row.score for row in rows if row.right)
    scores = sorted({float(row.score) for row in rows})
    points = []
    for threshold in (math.nextafter(scores[0], -math.inf), *scores):
        routed_own, routed_foreign = _above(own, threshold), _above(foreign, threshold)
        routed = routed_own + routed_foreign
        points.append(
            Point(
                threshold,
                _share(routed_own, len(own)),
                _share(_above(right, threshold), routed),
                _share(routed_foreign, len(foreign)),
            )
        )
    return points


def _as_written(alpha: float) -> Fraction:
    """In binary, 0.07 * 100 would be just above 7 and 0.29 * 100 below 29."""
    return Fraction(repr(float(alpha)))


def _above(ordered: Sequence[float], threshold: float) -> int:
    return len(ordered) - bisect_right(ordered, threshold)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _check(scores: Sequence[float]) -> None:
    if not all(math.isfinite(score) for score in scores):
        raise ValueError("a score is not finite")
