"""Estimates with their uncertainty: bootstrap intervals of means and ratios, and a straight line.

Resampling is drawn from a named seed, so that a stage and the verifier get the same digits on any
machine. Results are plain floats, not rounded. This module must not know where numbers come from
or what would be a good result.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """An estimate and its interval, in the unit of the values."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """A straight line: its slope with the slope's interval, and its intercept."""

    slope: float
    intercept: float
    low: float
    high: float


def bootstrap_mean(
    values: Sequence[float], seed: str, *, n: int = RESAMPLES, level: float = 0.95
) -> Interval:
    """The mean with its percentile bootstrap interval: B. Efron and R. J. Tibshirani, "An
    Introduction to the Bootstrap" (1993), chapter 13.

    Args:
        values: one value a sample, finite.
        seed: name from which the resampling derives.
        n: the number of resamples.
        level: of the interval, between 0 and 1.

    Raises:
        ValueError: no values, a value that is not finite, or n or level out of range.
    """
    data = _finite(values)
    picked = _resampled(len(data), seed, n, level)
    return _interval(_mean(data), data[picked].mean(axis=1), level)


def bootstrap_median(
    values: Sequence[float], seed: str, *, n: int = RESAMPLES, level: float = 0.95
) -> Interval:
    """The median with its percentile bootstrap interval; otherwise as `bootstrap_mean`."""
    data = _finite(values)
    picked = _resampled(len(data), seed, n, level)
    return _interval(float(np.median(data)), np.median(data[picked], axis=1), level)


def bootstrap_ratio(
    numerators: Sequence[float],
    denominators: Sequence[float],
    seed: str,
    *,
    n: int = RESAMPLES,
    level: float = 0.95,
) -> Interval:
    """The ratio of two means with its percentile bootstrap interval (as `bootstrap_mean`).

    Samples are resampled, the pair of a sample is never torn apart. Where resampled denominators
    are all 0 the ratio is infinite, or 1 if the numerators are 0 as well.

    Args:
        numerators: one value a sample, finite and not negative.
        denominators: the same samples in the same order.
        seed: as in `bootstrap_mean`.
        n: as in `bootstrap_mean`.
        level: as in `bootstrap_mean`.

    Raises:
        ValueError: as `bootstrap_mean`; lengths differ; a value is negative; no denominator is
            above 0.
    """
    above, below = _finite(numerators), _finite(denominators)
    if len(above) != len(below):
        raise ValueError("numerators and denominators differ in number")
    if (above < 0).any() or (below < 0).any():
        raise ValueError("a value is negative")
    if not below.any():
        raise ValueError("every denominator is 0")
    picked = _resampled(len(above), seed, n, level)
    tops, bottoms = above[picked].mean(axis=1), below[picked].mean(axis=1)
    ratios = np.where(tops == 0.0, 1.0, np.inf)
    np.divide(tops, bottoms, out=ratios, where=bottoms > 0.0)
    return _interval(_mean(above) / _mean(below), ratios, level)


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    seed: str,
    *,
    n: int = RESAMPLES,
    level: float = 0.95,
) -> Interval:
    """The mean of first - second with its percentile bootstrap interval (as `bootstrap_mean`).

    Pairs are resampled, never torn apart: what both ways find hard or easy cancels out.

    Args:
        first: one value a sample, finite; successes count as 1 and 0.
        second: the same samples in the same order.
        seed: as in `bootstrap_mean`.
        n: as in `bootstrap_mean`.
        level: as in `bootstrap_mean`.

    Raises:
        ValueError: as `bootstrap_mean`, or lengths differ.
    """
    if len(first) != len(second):
        raise ValueError("first and second differ in number")
    differences = [float(a) - float(b) for a, b in zip(first, second, strict=True)]
    return bootstrap_mean(differences, seed, n=n, level=level)


def slope(x: Sequence[float], y: Sequence[float], level: float = 0.95) -> Fit:
    """Ordinary least squares of y on x, with Student's t interval of the slope: N. R. Draper and
    H. Smith, "Applied Regression Analysis" (3rd ed., 1998), section 1.4.

    Raises:
        ValueError: fewer than three points, lengths differ, a value is not finite, every x is
            the same, or level out of range.
    """
    from scipy.stats import t

    xs, ys = _finite(x), _finite(y)
    if len(xs) != len(ys) or len(xs) < 3:
        raise ValueError("needs three points or more, as many y as x")
    if not 0.0 < level < 1.0:
        raise ValueError("level out of range")
    centred = xs - _mean(xs)
    spread = math.fsum(centred * centred)
    if spread == 0.0 or xs.min() == xs.max():
        raise ValueError("every x is the same")
    gradient = math.fsum(centred * (ys - _mean(ys))) / spread
    intercept = _mean(ys) - gradient * _mean(xs)
    left = ys - (intercept + gradient * xs)
    error = math.sqrt(math.fsum(left * left) / (len(xs) - 2) / spread)
    half = float(t.ppf(0.5 + level / 2.0, len(xs) - 2)) * error
    return Fit(gradient, intercept, gradient - half, gradient + half)


def generator(*names: object) -> np.random.Generator:
    """A PCG64 generator seeded by the SHA-256 of names."""
    text = "\x1f".join(str(name) for name in names)
    seed = int.from_bytes(hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest(), "big")
    return np.random.Generator(np.random.PCG64(seed))


def _finite(values: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0:
        raise ValueError("no values")
    if not np.isfinite(data).all():
        raise ValueError("a value is not finite")
    return data


def _mean(values: npt.NDArray[np.float64]) -> float:
    """The mean by an exactly rounded sum: the same on every machine."""
    return math.fsum(values) / len(values)


def _resampled(size: int, seed: str, n: int, level: float) -> npt.NDArray[np.int64]:
    """Indices of the resamples, int64 [n, size]."""
    if n < 1 or not 0.0 < level < 1.0:
        raise ValueError("n or level out of range")
    return generator("bootstrap", seed, size, n).integers(0, size, (n, size), dtype=np.int64)


def _interval(estimate: float, found: npt.NDArray[np.float64], level: float) -> Interval:
    ends = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    # Resampled ratios may be infinite, between which nothing can be interpolated.
    method: Any = "linear" if np.isfinite(found).all() else "closest_observation"
    low, high = (float(end) for end in np.quantile(found, ends, method=method))
    return Interval(estimate, low, high)
