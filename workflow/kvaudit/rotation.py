"""A direct demonstration that re-rotation cannot be bit-exact, in plain NumPy.

A key rotated to position a and then by b more is, in exact arithmetic, the key rotated to a + b.
In float32 the angle-sum identity does not hold bit for bit. Cosines and sines are computed in
float64 and rounded once to float32, products and sums are single float32 operations: every machine
counts the same. This module must not know a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

POINTS = 512
"""Angles of each side of the grid: 512 x 512 pairs."""
STEP = 0.0625
"""Radians between two angles; a binary fraction, so that a, b and a - b are exact in float32."""


@dataclass(frozen=True)
class Count:
    """How many of `pairs` angle pairs break the identity, and by how much at most."""

    pairs: int
    unequal: int
    max_error: float


def demonstration(points: int = POINTS, step: float = STEP) -> Count:
    """Counts pairs with float32(cos a cos b + sin a sin b) unequal to float32(cos(a - b)).

    Args:
        points: angles 0, step, 2 step, ... on each side of the grid.
        step: radians; a power of two.
    """
    angles = np.arange(points, dtype=np.float64) * step
    cosine, sine = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    added = cosine[:, None] * cosine[None, :] + sine[:, None] * sine[None, :]
    # cos is even, so that only the size of the difference matters.
    exact = cosine[np.abs(np.arange(points)[:, None] - np.arange(points)[None, :])]
    error = np.abs(added.astype(np.float64) - exact.astype(np.float64))
    return Count(points * points, int(np.count_nonzero(added != exact)), float(error.max()))
