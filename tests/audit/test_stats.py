"""The statistics against definitions, other implementations and published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from kvaudit import stats

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)
rows = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(0, 4, 50).astype(np.float32)
)


@given(numbers, numbers)
def test_cliffs_delta_is_the_mean_of_signs(first: list[float], second: list[float]) -> None:
    signs = [(x > y) - (x < y) for x in first for y in second]
    assert stats.cliffs_delta(first, second) == pytest.approx(sum(signs) / len(signs))


@given(numbers)
def test_a_sample_does_not_differ_from_itself(values: list[float]) -> None:
    assert stats.cliffs_delta(values, values) == 0.0
    assert stats.mann_whitney(values, values).p == 1.0


def test_all_equal_values_give_p_one_as_scipy_has_it() -> None:
    test = stats.mann_whitney([0.0] * 50, [0.0] * 50)
    scipys = scipy.stats.mannwhitneyu([0.0] * 50, [0.0] * 50, method="asymptotic")
    assert (test.u, test.p) == (scipys.statistic, scipys.pvalue) == (1250.0, 1.0)


@given(numbers, numbers)
def test_mann_whitney_p_is_a_probability_and_symmetric(a: list[float], b: list[float]) -> None:
    assert 0.0 <= stats.mann_whitney(a, b).p <= 1.0
    assert stats.mann_whitney(a, b).p == pytest.approx(stats.mann_whitney(b, a).p)


def test_mann_whitney_sees_a_shift() -> None:
    assert stats.mann_whitney([0.0] * 50, [1e-30] * 50).p < 1e-10


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 50, 0.0, 0.0713), (15, 15, 0.7961, 1.0), (8, 8, 0.6756, 1.0), (5, 10, 0.2366, 0.7634)],
)
def test_wilson_has_known_values(successes: int, n: int, low: float, high: float) -> None:
    found = stats.wilson(successes, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_scipy_and_holds_the_share(counts: tuple[int, int]) -> None:
    successes, n = counts
    found = stats.wilson(successes, n)
    theirs = scipy.stats.binomtest(successes, n).proportion_ci(0.95, "wilson")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert 0.0 <= found.low <= successes / n <= found.high <= 1.0


@given(numbers)
def test_percentiles_are_ordered_and_within(values: list[float]) -> None:
    low, p99, high = min(values), stats.percentile(values, 99.0), max(values)
    assert low <= stats.median(values) <= p99 <= high or math.isclose(p99, high)


@given(rows)
def test_kl_of_equal_logits_is_exactly_zero(row: np.ndarray) -> None:
    assert stats.kl_divergence(row, row.copy()) == 0.0


@given(rows, rows)
def test_kl_agrees_with_scipy(p: np.ndarray, q: np.ndarray) -> None:
    expected = scipy.stats.entropy(np.exp(stats.log_softmax(p)), np.exp(stats.log_softmax(q)))
    assert stats.kl_divergence(p, q) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_kl_sees_one_changed_logit() -> None:
    p = np.zeros(1000, dtype=np.float32)
    q = p.copy()
    q[7] = np.float32(1e-3)
    assert stats.kl_divergence(p, q) > 0.0


@given(rows)
def test_margin_and_argmax_by_sorting(row: np.ndarray) -> None:
    ordered = sorted(map(float, row), reverse=True)
    assert stats.top5_margin(row) == ordered[0] - ordered[4]
    assert float(row[stats.argmax(row)]) == ordered[0]


def test_argmax_takes_the_first_of_equals() -> None:
    assert stats.argmax([1.0, 2.0, 2.0]) == 1


@pytest.mark.parametrize("bad", [[], [[1.0]], [1.0, math.nan], [1.0, math.inf]])
def test_logits_that_are_no_row_are_refused(bad: list[object]) -> None:
    with pytest.raises(ValueError, match="logit"):
        stats.log_softmax(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"123", b"12345"])
def test_raw_logits_are_whole_floats(data: bytes) -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        stats.read_logits(data)


@given(rows)
def test_raw_logits_survive_their_bytes(row: np.ndarray) -> None:
    assert stats.read_logits(row.astype("<f4").tobytes()).tobytes() == row.tobytes()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_zero_apart_from_everything_else(value: float) -> None:
    assert (stats.rounded(value) == 0.0) == (value == 0.0)
    assert stats.rounded(value) == pytest.approx(value, rel=1e-11)


@pytest.mark.parametrize("call", [stats.median, lambda x: stats.cliffs_delta(x, [1.0])])
def test_no_values_are_an_error(call: object) -> None:
    with pytest.raises(ValueError, match="no values"):
        call([])  # type: ignore[operator]


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (2, 1), (-1, 5)])
def test_wilson_refuses_impossible_counts(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        stats.wilson(successes, n)
