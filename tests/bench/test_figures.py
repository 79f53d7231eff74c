"""Figures are ratios of medians, limits are said and decide nothing, cases cover what they must."""

from __future__ import annotations

from typing import Any

import pytest

from kvgraft.bench import figures, report, splits
from kvgraft.bench.server import largest_gap
from kvgraft.bench.work import context_size

N = 256
OURS = {
    "cold": [2.0, 1.0, 3.0],
    "prefill": [1.6, 1.6, 1.6],
    "capture": [0.1],
    "put": [0.1],
    "restore": [0.02, 0.02],
    "graft": [0.012, 0.012],
    "restore_unverified": [0.016],
    "graft_unverified": [0.008],
    "copy": [0.002],
    "sha256": [0.004],
    "blake3": [0.003],
    "decode": [0.5],
}


def measurement(who: str, **seconds: list[float]) -> dict[str, Any]:
    return {
        "who": who,
        "n_tokens": N,
        "seconds": seconds,
        "disk_bytes": 1_000_000,
        "differences": {"same_split": 0.0, "one_shot": 0.25},
        "verified": who in figures.PRESETS,
        "extra": {"state_bytes": 100, "peaks": [108, 104] if who == "stock" else []},
    }


@pytest.fixture
def result() -> dict[str, Any]:
    slow = {**OURS, "prefill": [3.2], "decode": [1.0]}
    return {
        "lengths": [N],
        "repeats": 3,
        "n_ctx": 512,
        "n_threads": 2,
        "ours": {
            "stock": {"measured": [measurement("stock", **OURS)]},
            "split-invariant": {"measured": [measurement("split-invariant", **slow)]},
        },
        "rivals": [measurement("a rival", cold=[2.0], restore=[0.04])],
    }


@pytest.fixture
def found(result: dict[str, Any]) -> dict[tuple[str, str], figures.Figure]:
    return {(f.name, f.who): f for f in figures.of_model("gemma-3-270m", result)}


def test_speed_up_is_cold_over_verified_restore_and_has_a_range(
    found: dict[tuple[str, str], figures.Figure],
) -> None:
    speed_up = found["speed-up", "stock"]
    assert (speed_up.value, speed_up.low, speed_up.high) == pytest.approx((100, 50, 150))
    assert speed_up.wanted == 20
    assert speed_up.met is True
    assert found["speed-up", "split-invariant"].wanted is None
    assert found["speed-up", "a rival"].value == pytest.approx(50)


def test_verification_is_measured_on_the_restore_alone(
    found: dict[tuple[str, str], figures.Figure],
) -> None:
    assert found["verification, %", "stock"].value == pytest.approx(50)
    assert found["verification, %", "stock"].met is True


def test_the_worst_memory_reading_counts_and_an_absent_one_is_no_figure(
    found: dict[tuple[str, str], figures.Figure],
) -> None:
    assert found["peak memory / block", "stock"].value == pytest.approx(1.08)
    assert found["peak memory / block", "stock"].met is True
    assert ("peak memory / block", "split-invariant") not in found


def test_rivals_and_profiles_are_compared_by_their_times(
    found: dict[tuple[str, str], figures.Figure],
) -> None:
    assert found["stock faster than a rival", "stock"].value == pytest.approx(2)
    assert found["stock faster than a rival", "stock"].met is True
    assert found["prefill time / stock", "split-invariant"].value == pytest.approx(2)
    assert found["decode time / stock", "split-invariant"].value == pytest.approx(2)


def test_the_table_names_everyone_and_every_missed_limit(result: dict[str, Any]) -> None:
    text = report.of_model("gemma-3-270m", result)
    for part in ("a rival", "stock", "split-invariant", "no, 0.2", "≥ 20 met", "1.0 MB"):
        assert part in text
    assert "MISSED" not in text
    result["ours"]["stock"]["measured"][0]["seconds"]["cold"] = [0.1]
    assert "≥ 20 MISSED" in report.of_model("gemma-3-270m", result)


def test_cases_cover_lengths_on_both_sides_of_the_window_and_every_kind_of_batch() -> None:
    chosen = splits.cases(30)
    assert [case.n_tokens for case in chosen] == [sum(case.sizes) for case in chosen]
    assert chosen == splits.cases(30)
    assert chosen[0].n_tokens < 64
    assert sum(case.n_tokens > 512 for case in chosen) >= 5
    assert max(max(case.sizes) for case in chosen) > 100
    assert sum(case.sizes[-40:] == (1,) * 40 for case in chosen) == 10


def test_variants_differ_from_the_default_in_what_they_are_called_for() -> None:
    variants = splits.variants(512)
    assert variants["the same, 1 row"].min_rows == 1
    assert variants["repack, 8 rows"].repack
    assert variants["repack, 8 rows"].min_rows == 8
    assert variants["stock"].tiled


def test_a_token_missing_from_one_list_counts_from_that_list_s_last() -> None:
    assert largest_gap({1: -0.5, 2: -1.0}, {1: -0.5, 2: -1.0}) == 0.0
    assert largest_gap({1: -0.5, 2: -1.0}, {1: -0.5, 3: -1.25}) == pytest.approx(0.25)


@pytest.mark.parametrize("longest", [1, 256, 4000])
def test_the_context_holds_span_question_and_decode_rate(longest: int) -> None:
    assert context_size([longest]) % 256 == 0
    assert context_size([longest]) > longest + 17
