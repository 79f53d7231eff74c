"""The statistics that reports quote, each with the source of its formula.

Inputs are plain numbers out of records or raw logits; outputs are Python floats. This module must
not know where numbers come from or what would be a good result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Z95 = 1.959963984540054
"""The 97.5% point of the standard normal distribution."""


@dataclass(frozen=True)
class Interval:
    """A closed interval of a proportion, both ends within [0, 1]."""

    low: float
    high: float


@dataclass(frozen=True)
class McNemar:
    """The discordant pairs, counted by which of the two succeeded, and the two-sided p-value."""

    only_first: int
    only_second: int
    p: float


@dataclass(frozen=True)
class MannWhitney:
    """U of the first sample and the two-sided p-value."""

    u: float
    p: float


def median(values: Sequence[float]) -> float:
    """The median; of an even count the mean of the two middle values.

    Raises:
        ValueError: no values.
    """
    return percentile(values, 50.0)


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0 … 100) by linear interpolation, definition 7 of Hyndman and Fan,
    "Sample quantiles in statistical packages", The American Statistician 50 (1996) 361-365;
    numpy's `linear`.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values")
    return float(np.percentile(np.asarray(values, dtype=np.float64), q, method="linear"))


def wilson(successes: int, n: int, z: float = Z95) -> Interval:
    """Wilson's score interval of a proportion: E. B. Wilson, "Probable inference, the law of
    succession, and statistical inference", JASA 22 (1927) 209-212.

    Args:
        successes: 0 … n.
        n: the number of trials, at least 1.
        z: normal quantile; the default gives 95%.

    Raises:
        ValueError: counts out of range.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError("counts out of range")
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At the ends the formula is exactly 0 or 1; rounding must not leave a stray 1e-17 there.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(low, high)


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """The exact interval of a proportion: C. J. Clopper and E. S. Pearson, "The use of confidence
    or fiducial limits illustrated in the case of the binomial", Biometrika 26 (1934) 404-413, in
    its form as quantiles of beta distributions.

    Both tails hold at most (1 - level) / 2, whatever the true proportion is. The upper end of a
    90% interval is therefore a one-sided bound at 95%.

    Args:
        successes: 0 … n.
        n: the number of trials, at least 1.
        level: of the interval, between 0 and 1.

    Raises:
        ValueError: counts or level out of range.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError("counts out of range")
    if not 0.0 < level < 1.0:
        raise ValueError("level out of range")
    from scipy.stats import beta

    tail = (1.0 - level) / 2.0
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(beta.ppf(1.0 - tail, successes + 1, n - successes))
    return Interval(low, high)


def mcnemar_exact(first: Sequence[bool], second: Sequence[bool]) -> McNemar:
    """The exact McNemar test of two ways to answer the same questions: Q. McNemar, "Note on the
    sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947) 153-157, with the binomial distribution in place of chi-squared.

    Only pairs in which one way succeeds and the other does not tell the two apart; where neither
    is better, such a pair falls to either side with probability 1/2. The sum is taken in whole
    numbers, so p has no rounding error but that of one division.

    Args:
        first: whether the first way succeeded, one value a question.
        second: the same of the second way, the same questions in the same order.

    Raises:
        ValueError: no values, or lengths differ.
    """
    if not first:
        raise ValueError("no values")
    if len(first) != len(second):
        raise ValueError("first and second differ in number")
    pairs = list(zip(first, second, strict=True))
    only_first = sum(1 for a, b in pairs if a and not b)
    only_second = sum(1 for a, b in pairs if b and not a)
    n = only_first + only_second
    tail, term = 0, 1
    for i in range(min(only_first, only_second) + 1):
        tail += term
        term = term * (n - i) // (i + 1)  # the next binomial coefficient
    # Of an even split the two tails overlap in the middle term, and with no pairs they are one.
    return McNemar(only_first, only_second, min(1.0, 2 * tail / 2**n))


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> MannWhitney:
    """Two-sided Mann-Whitney U test, normal approximation with tie and continuity correction:
    H. B. Mann and D. R. Whitney, "On a test of whether one of two random variables is
    stochastically larger than the other", Ann. Math. Statist. 18 (1947) 50-60; through scipy.

    Where all values are equal the ranks carry no information, the variance of U is 0 and the
    statistic is not defined; p is 1.0 then, as scipy has it.

    Raises:
        ValueError: an empty sample.
    """
    if not first or not second:
        raise ValueError("no values")
    if len({*first, *second}) == 1:
        return MannWhitney(len(first) * len(second) / 2, 1.0)
    from scipy.stats import mannwhitneyu

    result = mannwhitneyu(first, second, alternative="two-sided", method="asymptotic")
    return MannWhitney(float(result.statistic), float(result.pvalue))


def cliffs_delta(first: Sequence[float], second: Sequence[float]) -> float:
    """Cliff's delta: P(x > y) - P(x < y) for x of `first` and y of `second`, in [-1, 1]:
    N. Cliff, "Dominance statistics", Psychological Bulletin 114 (1993) 494-509.

    Raises:
        ValueError: an empty sample.
    """
    if not first or not second:
        raise ValueError("no values")
    x = np.asarray(first, dtype=np.float64)
    y = np.sort(np.asarray(second, dtype=np.float64))
    below = int(np.searchsorted(y, x, side="left").sum())
    above = int((len(y) - np.searchsorted(y, x, side="right")).sum())
    return (below - above) / (len(x) * len(y))


def kl_divergence(p_logits: npt.ArrayLike, q_logits: npt.ArrayLike) -> float:
    """KL(P ‖ Q) in nats of two softmax distributions, computed in float64 from float32 logits:
    S. Kullback and R. A. Leibler, "On information and sufficiency", Ann. Math. Statist. 22
    (1951) 79-86, with log-softmax as x - max - log Σ exp(x - max).

    Equal logits give exactly 0.0 on every machine, because every term is p · 0. The result is
    not clipped: of two nearly equal distributions it can be a rounding error below 0, and that
    must stay visible.

    Args:
        p_logits: shape [n_vocab], the reference.
        q_logits: shape [n_vocab].

    Raises:
        ValueError: shapes differ or a logit is not finite.
    """
    log_p = log_softmax(p_logits)
    log_q = log_softmax(q_logits)
    if log_p.shape != log_q.shape:
        raise ValueError("shapes differ")
    return float(np.sum(np.exp(log_p) * (log_p - log_q)))


def log_softmax(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """log p of every token, float64 [n_vocab], from logits [n_vocab].

    Raises:
        ValueError: not one-dimensional, empty, or a logit is not finite.
    """
    x = _finite(logits)
    shifted = x - np.max(x)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted))), dtype=np.float64)


def argmax(logits: npt.ArrayLike) -> int:
    """The index of the largest logit, the first of equals; [n_vocab] -> token id.

    Raises:
        ValueError: as `log_softmax`.
    """
    return int(np.argmax(_finite(logits)))


def top5_margin(logits: npt.ArrayLike) -> float:
    """The largest logit less the fifth largest, in float64.

    Raises:
        ValueError: fewer than five logits, or as `log_softmax`.
    """
    x = _finite(logits)
    if x.size < 5:
        raise ValueError("fewer than five logits")
    top = np.sort(np.partition(x, x.size - 5)[-5:])
    return float(top[-1] - top[0])


def read_logits(data: bytes) -> npt.NDArray[np.float32]:
    """Raw logits: float32 little-endian, [n_vocab]; the file's bytes and nothing else.

    Raises:
        ValueError: the length is 0 or not a multiple of 4.
    """
    if not data or len(data) % 4:
        raise ValueError("the length is not a positive multiple of 4")
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def rounded(value: float, digits: int = 12) -> float:
    """`value` to 12 significant digits, so that summaries of one set of records have one text.

    Percentiles and p-values may differ in the last bits between machines and versions. A value
    other than 0 never becomes 0 by this.
    """
    return float(f"{value:.{digits - 1}e}")


def _finite(logits: npt.ArrayLike) -> npt.NDArray[Any]:
    x = np.asarray(logits, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError("logits are not one row")
    if not np.all(np.isfinite(x)):
        raise ValueError("a logit is not finite")
    return x
