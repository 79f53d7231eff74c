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


pairs = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200)


@given(pairs)
def test_mcnemar_is_scipys_binomial_test_of_the_discordant_pairs(
    found: list[tuple[bool, bool]],
) -> None:
    test = stats.mcnemar_exact([a for a, _ in found], [b for _, b in found])
    assert test.only_first == found.count((True, False))
    assert test.only_second == found.count((False, True))
    n = test.only_first + test.only_second
    expected = scipy.stats.binomtest(test.only_first, n, 0.5).pvalue if n else 1.0
    assert test.p == pytest.approx(expected, rel=1e-9)


@given(pairs)
def test_mcnemar_does_not_depend_on_which_way_comes_first(found: list[tuple[bool, bool]]) -> None:
    first, second = [a for a, _ in found], [b for _, b in found]
    one, other = stats.mcnemar_exact(first, second), stats.mcnemar_exact(second, first)
    assert one == stats.McNemar(other.only_second, other.only_first, other.p)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (6, 0, 0.03125), (1, 9, 22 / 1024), (2000, 0, 0.0)],
)
def test_mcnemar_has_known_values(only_first: int, only_second: int, p: float) -> None:
    first = [True] * only_first + [False] * only_second + [True, False]
    second = [False] * only_first + [True] * only_second + [True, False]
    assert stats.mcnemar_exact(first, second).p == pytest.approx(p, abs=1e-300)


def test_mcnemar_refuses_what_is_no_set_of_pairs() -> None:
    with pytest.raises(ValueError, match="no values"):
        stats.mcnemar_exact([], [])
    with pytest.raises(ValueError, match="differ in number"):
        stats.mcnemar_exact([True], [True, False])


@given(
    st.integers(1, 1000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
def test_clopper_pearson_agrees_with_scipy_and_holds_the_share(
    counts: tuple[int, int], level: float
) -> None:
    successes, n = counts
    found = stats.clopper_pearson(successes, n, level)
    theirs = scipy.stats.binomtest(successes, n).proportion_ci(level, "exact")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert 0.0 <= found.low <= successes / n <= found.high <= 1.0


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_at_the_upper_end_so_few_successes_have_the_stated_probability(
    counts: tuple[int, int],
) -> None:
    successes, n = counts
    high = stats.clopper_pearson(successes, n).high
    assert scipy.stats.binom.cdf(successes, n, high) == pytest.approx(0.025, rel=1e-6)


def test_clopper_pearson_of_no_success_is_a_power() -> None:
    assert stats.clopper_pearson(0, 100).low == 0.0
    assert stats.clopper_pearson(0, 100).high == pytest.approx(1 - 0.025 ** (1 / 100))
    assert stats.clopper_pearson(100, 100).high == 1.0


@pytest.mark.parametrize("call", [(0, 0), (2, 1), (-1, 5), (1, 2, 0.0), (1, 2, 1.0)])
def test_clopper_pearson_refuses_impossible_counts_and_levels(call: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        stats.clopper_pearson(*call)
