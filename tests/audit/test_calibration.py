"""The threshold keeps its promise on synthetic scores, and the curve counts what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.estimate import generator
from kvaudit.flywheel.calibration import Scored, conformal_threshold, curve, needed, threshold_of
from kvaudit.stats import clopper_pearson

scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)
alphas = st.floats(0.001, 0.999)


def drawn(shape: str, name: str, size: tuple[int, int]) -> np.ndarray:
    draw = generator("calibration", shape, name)
    if shape == "heavy tails":
        return draw.standard_cauchy(size)
    if shape == "many ties":
        return draw.integers(0, 6, size).astype(float)
    return draw.normal(0, 1, size)


@pytest.mark.parametrize("shape", ["normal", "heavy tails", "many ties"])
@pytest.mark.parametrize(("n", "alpha"), [(50, 0.05), (99, 0.01), (150, 0.1), (19, 0.05)])
def test_a_new_foreign_score_exceeds_the_threshold_with_at_most_the_stated_probability(
    shape: str, n: int, alpha: float
) -> None:
    splits = 4000
    rows = drawn(shape, f"{n} {alpha}", (splits, n + 1))
    exceeded = 0
    for row in rows:
        threshold = conformal_threshold(row[:n].tolist(), alpha)
        assert threshold is not None
        exceeded += row[n] > threshold
    # The rate of the promise itself, not the measured one, must be within the measured interval.
    assert clopper_pearson(exceeded, splits, 0.9999).low <= alpha


@pytest.mark.parametrize(("n", "alpha"), [(99, 0.05), (199, 0.1)])
def test_without_ties_the_promise_is_not_wasteful(n: int, alpha: float) -> None:
    rows = drawn("normal", f"tight {n}", (4000, n + 1))
    exceeded = sum(row[n] > (conformal_threshold(row[:n].tolist(), alpha) or 0.0) for row in rows)
    found = clopper_pearson(int(exceeded), 4000, 0.9999)
    assert found.low <= alpha <= found.high  # (n + 1) alpha is whole, so equality holds


def test_the_interval_of_the_test_split_holds_the_true_rate() -> None:
    missed = 0
    for row in drawn("normal", "interval", (1000, 300)):
        threshold = conformal_threshold(row[:100].tolist(), 0.1)
        assert threshold is not None
        rate = 0.5 * math.erfc(threshold / math.sqrt(2))
        found = clopper_pearson(int(np.sum(row[100:] > threshold)), 200)
        missed += not found.low <= rate <= found.high
    assert missed <= 65  # 5% of 1000 and two standard deviations; Clopper-Pearson is wider still


@pytest.mark.parametrize(
    ("n", "alpha", "rank"), [(99, 0.05, 5), (99, 0.07, 7), (99, 0.29, 29), (20, 0.05, 1)]
)
def test_the_threshold_has_the_rank_that_alpha_as_written_gives(
    n: int, alpha: float, rank: int
) -> None:
    assert conformal_threshold([float(i) for i in range(n)], alpha) == n - rank


@pytest.mark.parametrize(("n", "alpha"), [(0, 0.5), (18, 0.05), (98, 0.01)])
def test_too_few_scores_give_no_threshold(n: int, alpha: float) -> None:
    assert conformal_threshold([0.0] * n, alpha) is None
    assert needed(alpha) == n + 1
    assert conformal_threshold([0.0] * (n + 1), alpha) == 0.0


@given(scores, alphas)
def test_no_more_of_the_known_scores_exceed_the_threshold_than_alpha_allows(
    found: list[float], alpha: float
) -> None:
    threshold = conformal_threshold(found, alpha)
    if threshold is None:
        assert (len(found) + 1) * alpha < 1.0 + 1e-9
    else:
        assert threshold in found
        assert sum(score > threshold for score in found) < (len(found) + 1) * alpha


@given(scores, alphas, alphas)
def test_a_stricter_alpha_gives_no_lower_threshold(found: list[float], a: float, b: float) -> None:
    strict, loose = (conformal_threshold(found, alpha) for alpha in sorted((a, b)))
    assert strict is None or (loose is not None and loose <= strict)


def test_a_query_without_a_candidate_counts_as_the_lowest_score_of_its_split() -> None:
    assert threshold_of([None, -2.0, None, -1.0], 0.2) == -1.0
    assert threshold_of([None, -2.0, None, -1.0], 0.6) == -3.0
    assert threshold_of([None, None], 0.4) == -1.0
    assert threshold_of([], 0.4) is None
    assert threshold_of([1 / 3] * 9, 0.1) == 0.333333


@pytest.mark.parametrize("bad", [[math.nan], [math.inf, 0.0]])
def test_scores_that_are_not_finite_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="not finite"):
        conformal_threshold(bad, 0.5)
    with pytest.raises(ValueError, match="not finite"):
        curve([Scored(score, True, False) for score in bad])


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, math.nan])
def test_an_alpha_that_is_no_probability_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha out of range"):
        conformal_threshold([0.0], alpha)


def test_the_curve_of_a_small_case_is_counted_by_hand() -> None:
    rows = [
        Scored(3.0, foreign=False, right=True),
        Scored(2.0, foreign=False, right=False),
        Scored(2.0, foreign=True, right=False),
        Scored(1.0, foreign=True, right=False),
    ]
    lowest, *rest = curve(rows)
    assert lowest.threshold < 1.0
    assert lowest[1:] == (1.0, 0.25, 1.0)
    assert rest == [(1.0, 1.0, 1 / 3, 0.5), (2.0, 0.5, 1.0, 0.0), (3.0, 0.0, None, 0.0)]


@given(
    st.lists(
        st.builds(
            lambda score, kind: Scored(score, kind == "foreign", kind == "right"),
            st.floats(-5, 5),
            st.sampled_from(["foreign", "right", "wrong"]),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_every_point_of_the_curve_is_what_its_threshold_does(rows: list[Scored]) -> None:
    points = curve(rows)
    assert [p.threshold for p in points] == sorted({p.threshold for p in points})
    for threshold, coverage, accuracy, rate in points:
        routed = [row for row in rows if row.score > threshold]
        own, foreign = ([r for r in rows if r.foreign is f] for f in (False, True))
        assert coverage == (sum(r in routed for r in own) / len(own) if own else None)
        assert accuracy == (sum(r.right for r in routed) / len(routed) if routed else None)
        assert rate == (sum(r in routed for r in foreign) / len(foreign) if foreign else None)


def test_a_curve_of_nothing_or_of_a_foreign_query_that_is_right_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        curve([])
    with pytest.raises(ValueError, match="no right entry"):
        curve([Scored(0.0, foreign=True, right=True)])
