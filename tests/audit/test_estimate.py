"""Estimates: known values, properties, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit import estimate, rotation

VALUES = st.lists(
    st.floats(0, 1e6, allow_nan=False, allow_subnormal=False), min_size=1, max_size=20
)


@given(VALUES)
def test_an_interval_holds_its_mean_within_the_values(values: list[float]) -> None:
    found = estimate.bootstrap_mean(values, "a", n=200)
    room = 1e-9 * max(1.0, *values)
    assert min(values) - room <= found.low <= found.high <= max(values) + room
    assert math.isclose(found.estimate, math.fsum(values) / len(values), abs_tol=room)
    middle = estimate.bootstrap_median(values, "a", n=200)
    assert min(values) - room <= middle.low <= middle.high <= max(values) + room


def test_resampling_follows_from_the_seed_alone() -> None:
    values = [0.1, 0.5, 0.2, 0.9, 0.4]
    assert estimate.bootstrap_mean(values, "a") == estimate.bootstrap_mean(values, "a")
    assert estimate.bootstrap_mean(values, "a") != estimate.bootstrap_mean(values, "b")


def test_a_bootstrap_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        found = estimate.bootstrap_mean(list(draw.exponential(1.0, 40)), str(trial), n=400)
        covered += found.low <= 1.0 <= found.high
    assert 170 <= covered <= 199


def test_pairs_stay_together_in_a_ratio() -> None:
    below = [0.01, 1.0, 100.0, 3.0]
    found = estimate.bootstrap_ratio([2 * v for v in below], below, "a")
    assert found.estimate == found.low == found.high == 2.0


def test_a_resample_without_denominator_makes_the_ratio_infinite() -> None:
    found = estimate.bootstrap_ratio([1.0, 1.0], [0.0, 1.0], "a")
    assert found.estimate == 2.0
    assert found.high == math.inf
    assert math.isfinite(found.low)


def test_a_line_is_found_again() -> None:
    fit = estimate.slope([1, 2, 3, 4], [5, 7, 9, 11])
    assert (fit.slope, fit.intercept) == (2.0, 3.0)
    assert math.isclose(fit.low, 2.0)
    assert math.isclose(fit.high, 2.0)


def test_slope_and_its_interval_are_those_of_scipy() -> None:
    from scipy.stats import linregress, t

    draw = np.random.default_rng(1)
    x, y = list(draw.normal(size=12)), list(draw.normal(size=12))
    fit, known = estimate.slope(x, y), linregress(x, y)
    half = float(t.ppf(0.975, 10)) * known.stderr
    assert np.allclose(
        [fit.slope, fit.intercept, fit.low, fit.high],
        [known.slope, known.intercept, known.slope - half, known.slope + half],
    )


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (estimate.bootstrap_mean, ([], "a")),
        (estimate.bootstrap_mean, ([math.nan], "a")),
        (estimate.bootstrap_mean, ([math.inf], "a")),
        (estimate.bootstrap_ratio, ([1.0], [1.0, 2.0], "a")),
        (estimate.bootstrap_ratio, ([1.0], [0.0], "a")),
        (estimate.bootstrap_ratio, ([-1.0], [1.0], "a")),
        (estimate.slope, ([1, 2], [1, 2])),
        (estimate.slope, ([1, 1, 1], [1, 2, 3])),
        (estimate.slope, ([1, 2, 3], [1, 2])),
        (estimate.slope, ([1, 2, 3], [1, 2, 3], 1.0)),
    ],
)
def test_what_has_no_estimate_is_refused(call: object, arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        call(*arguments)  # type: ignore[operator]


def test_the_angle_sum_identity_breaks_in_float32_for_many_pairs() -> None:
    found = rotation.demonstration()
    assert found.pairs == rotation.POINTS**2
    assert 0.2 * found.pairs < found.unequal < 0.8 * found.pairs
    assert 0 < found.max_error < 2.0**-22


def test_the_identity_holds_where_both_angles_are_0() -> None:
    found = rotation.demonstration(points=1)
    assert (found.pairs, found.unequal, found.max_error) == (1, 0, 0.0)


def test_a_paired_difference_leaves_out_what_both_have_in_common() -> None:
    hardness = [0.0, 50.0, 3.0, 900.0, 7.0]
    found = estimate.paired_difference([h + 2.0 for h in hardness], hardness, "a")
    assert found.estimate == found.low == found.high == 2.0


def test_a_paired_difference_is_the_mean_of_the_differences() -> None:
    first, second = [True, True, False, True], [False, True, False, False]
    found = estimate.paired_difference(first, second, "a")
    assert found == estimate.bootstrap_mean([1.0, 0.0, 0.0, 1.0], "a")
    with pytest.raises(ValueError, match="differ in number"):
        estimate.paired_difference([1.0], [1.0, 2.0], "a")
