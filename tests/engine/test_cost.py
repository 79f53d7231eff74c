"""The stage cost runs on tiny models: planned records, exact grafts, honest cache states.

No test depends on a time; what times amount to is tested on made-up records.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tinywork import WINDOW, draw

from kvaudit import digests, records
from kvaudit.cost import expected, plan, plots
from kvaudit.cost.kind import KIND
from kvaudit.cost.records import Records
from kvaudit.errors import UnusableInput
from kvgraft import page_cache
from kvgraft.alternatives import NO_SERVER, Alternatives, Native
from kvgraft.bench.work import Work, context_size
from kvgraft.context import APART, TEXT
from kvgraft.cost import Cost
from kvgraft.profile import split_invariant, stock
from kvgraft.session import Session

OPTIONS: dict[str, Any] = {
    "lengths": [8, 40, 96, 4090],
    "repeats": 2,
    "rounds": 2,
    "short_tokens": 8,
    "short_repeats": 3,
    "long_tokens": 96,
    "long_prefills": 1,
    "one_shot_tokens": 40,
    "alternative_lengths": [40, 96],
    "alternative_repeats": 2,
    "memory_contexts": [256, 1024],
}
Measured = tuple[Cost, dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def make(models: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Cost]:
    def cost(name: str, **options: Any) -> Cost:
        return Cost(
            model=models(name),
            settings=split_invariant(n_ctx=1024),
            options={**OPTIONS, **options},
            seed="test",
            scratch=tmp_path_factory.mktemp("cost"),
            note=lambda _line: None,
            cores=1,
        )

    return cost


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def measured(request: pytest.FixtureRequest, make: Callable[..., Cost]) -> Measured:
    cost = make(request.param)
    return cost, cost.measure()


def written(measured: Measured, folder: Path) -> Records:
    """The records as a run would hold them: validated, canonical, read again."""
    rows = measured[1]
    (folder / "records").mkdir()
    for path, kind in KIND.records.items():
        records.write(folder / path, kind, rows[Path(path).stem])
    found: Records = KIND.typed(records.read_folder(folder, KIND.records))
    return found


def inputs_of(cost: Cost) -> dict[str, Any]:
    """The part of an inputs manifest that the checks read."""
    with Session(cost.model, cost.settings) as session:
        own = session.profile.to_json()
    control = {**own, "settings": stock(n_ctx=1024).to_json()}
    entries = {
        document["settings"]["name"]: {
            "digest": digests.sha256_json(document),
            "profile": document,
        }
        for document in (own, control)
    }
    value = {"profile": {"preset": "split-invariant"}, "cost": cost.options, "seed": "test"}
    return {
        "models": [{"name": cost.model.name, "sha256": cost.model.pin.sha256}],
        "profiles": {cost.model.name: entries},
        "configuration": {"value": value},
    }


def test_the_records_are_the_planned_ones_and_contradict_nothing(
    measured: Measured, tmp_path: Path
) -> None:
    found = written(measured, tmp_path)
    cost = measured[0]
    assert expected.check(cost.model.name, found, inputs_of(cost)) == []
    assert {row["tokens"] for row in found.timings} == {8, 40, 96}  # 4,090 leaves no room
    KIND.summary_bytes(cost.model.name, found)


def test_every_graft_has_the_logits_of_every_prefill(measured: Measured) -> None:
    for n_tokens in (8, 40, 96):
        rows = [row for row in measured[1]["timings"] if row["tokens"] == n_tokens]
        read = [row for row in rows if row["arm"] in plan.DECODING]
        assert len({digest for row in read for digest in row["logits_sha256"]}) == 1


def test_the_prefilled_logits_are_those_of_a_session(measured: Measured) -> None:
    cost, rows = measured
    with Session(cost.model, split_invariant(n_ctx=512)) as session:
        session.prefill(cost._text[:40])
        logits = session.decode([cost._text[40]])[0]
    row = next(r for r in rows["timings"] if r["tokens"] == 40 and r["arm"] == "prefill")
    assert row["logits_sha256"] == [hashlib.sha256(logits.tobytes()).hexdigest()]


def test_each_capture_makes_a_block_of_its_own_and_leaves_one_file_a_length(
    measured: Measured,
) -> None:
    cost, rows = measured
    ids = [row["block_id"] for row in rows["timings"] if row["arm"] == "prefill"]
    assert len(ids) == len(set(ids)) == 3 + 2 + 1
    files = list((cost.scratch / "blocks" / "blocks").glob("*/*.kvb"))
    assert len(files) == 3 + 1  # and the warm-up's


def test_load_is_noted_around_every_part(measured: Measured) -> None:
    rows = measured[1]["conditions"]
    assert [(row["part"], row["repeat"]) for row in rows] == plan.conditions(OPTIONS, 4096)
    assert all(row["load_before"] is not None and row["load_after"] is not None for row in rows)


# -- native alternatives ----------------------------------------------------------------------


def test_the_live_prefix_alone_is_reused_and_is_exact(measured: Measured) -> None:
    rows = {(row["arm"], row["tokens"]): row for row in measured[1]["alternatives"]}
    for n_tokens in (40, 96):
        live, again = rows[plan.LIVE, n_tokens], rows[plan.RESTART, n_tokens]
        assert live["reused_tokens"] == n_tokens
        assert live["decoded_tokens"] == 1
        assert live["held_last"] == n_tokens + plan.CONTINUED
        assert live["logits_sha256"] == live["fresh_sha256"] == again["logits_sha256"]
        for arm in (plan.RESTART, plan.ELSEWHERE):
            assert rows[arm, n_tokens]["held_first"] == rows[arm, n_tokens]["held_last"] == -1
            assert rows[arm, n_tokens]["decoded_tokens"] == n_tokens + 1


def test_a_small_window_cache_that_moved_on_reads_everything_again(measured: Measured) -> None:
    rows = [row for row in measured[1]["alternatives"] if row["arm"] == plan.SMALL_WINDOW]
    assert len(rows) == (2 if measured[0].model.name == "gemma3" else 0)
    for row in rows:
        assert row["held_first"] > max(0, row["tokens"] - WINDOW)
        assert row["reused_tokens"] == 0
        assert len(row["seconds"]["request"]) == 2


def test_file_caches_are_measured_and_an_absent_server_is_said_to_be(measured: Measured) -> None:
    rows = {(row["arm"], row["tokens"]): row for row in measured[1]["alternatives"]}
    for n_tokens in (40, 96):
        for arm in (plan.SAVE_STATE, plan.DISK_CACHE):
            row = rows[arm, n_tokens]
            assert row["measured"]
            assert row["disk_bytes"] > 0
            assert row["notices_damage"] is False
            assert len(row["seconds"]["cold"]) == len(row["seconds"]["request"]) == 2
        absent = rows[plan.SERVER, n_tokens]
        assert (absent["measured"], absent["reason"], absent["seconds"]) == (False, NO_SERVER, {})


def test_a_server_that_fails_is_no_measurement_and_no_end_of_the_stage(
    models: Any, tmp_path: Path
) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    made = Alternatives(
        models("llama"), split_invariant(), OPTIONS, tuple(draw(200)), tmp_path, 1, program,
        lambda _line: None, lambda profile: profile.digest,
    )  # fmt: skip
    pin = made.model.pin
    work = Work(pin, made.text[:80], (40,), 1, context_size([40]), 1, tmp_path)
    (row,) = made._server(work)
    assert row["measured"] is False
    assert row["reason"] == "llama-server failed"


@pytest.fixture
def native(models: Any) -> Any:
    made = Native(models("llama"), split_invariant(n_ctx=512, n_batch=64))
    yield made
    made.close()


def test_a_request_reads_only_what_is_not_held(native: Native) -> None:
    prefix, token = draw(100), 7
    cold = native.request(prefix, token, TEXT, 0)
    assert (cold.first, cold.last, cold.reused) == (-1, -1, 0)
    warm = native.request(prefix, token, TEXT, 0)
    assert (warm.first, warm.last, warm.reused) == (0, 100, 100)
    assert warm.logits_sha256 == cold.logits_sha256
    assert native.request(prefix, token + 1, TEXT, 0).logits_sha256 != cold.logits_sha256
    other = native.request(prefix, token, APART, 0)
    assert (other.first, other.reused) == (-1, 0)
    assert native.span(TEXT) == (0, 100)
    assert native.request(draw(120), token, TEXT, 0).reused == 0


# -- memory -----------------------------------------------------------------------------------


def test_the_small_window_cache_is_smaller_only_where_there_is_a_window(
    measured: Measured,
) -> None:
    sizes = {(row["n_ctx"], row["swa_full"]): row["cache_mib"] for row in measured[1]["memory"]}
    assert sizes[1024, True] == pytest.approx(4 * sizes[256, True], rel=0.1)
    assert (sizes[1024, False] < sizes[1024, True]) == (measured[0].model.name == "gemma3")


# -- page cache -------------------------------------------------------------------------------


def test_looking_at_a_file_does_not_load_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    before = page_cache.resident(path)
    assert before is None or 0.0 <= before <= 1.0
    page_cache.drop(path)
    dropped = page_cache.resident(path)
    assert page_cache.resident(path) == dropped
    path.read_bytes()
    after = page_cache.resident(path)
    if after is not None and dropped is not None:
        assert after == 1.0 >= dropped


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.resident(tmp_path / "empty") is None


# -- the whole --------------------------------------------------------------------------------


def test_no_length_that_fits_is_refused(make: Callable[..., Cost]) -> None:
    with pytest.raises(UnusableInput, match="no length fits into the model's trained context"):
        make("llama", lengths=[4090], alternative_lengths=[4090]).measure()


def test_plots_are_readable_and_equal_records_make_equal_bytes(
    measured: Measured, tmp_path: Path
) -> None:
    rows = {path: measured[1][Path(path).stem] for path in KIND.records}
    drawn = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths = plots.draw({"one": rows, "two": rows}, tmp_path / name)
        drawn.append([path.read_bytes() for path in paths])
    assert drawn[0] == drawn[1]
    text = drawn[0][0].decode()
    assert all(word in text for word in ("time, s", "span, tokens", "raw limit", "two"))
