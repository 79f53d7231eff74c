"""The stage position on tiny models: its own records pass its own checks and tell no lies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvaudit import claims, digests, records, stats
from kvaudit.claims import Evidence
from kvaudit.errors import UnusableInput
from kvaudit.position import hypotheses, plan, relocation
from kvaudit.position.kind import KIND
from kvaudit.position.part import setting
from kvgraft import rotated_keys
from kvgraft.position import Experiment
from kvgraft.profile import split_invariant
from kvgraft.rotated_keys import Rope
from kvgraft.session import Session

OPTIONS = {
    "samples": 5,
    "raw_samples": 1,
    "min_tokens": 30,
    "max_tokens": 40,
    "query_tokens": 6,
    "offsets": [8, 64, 512],
    "probe_offset": 64,
    "explanation_samples": 5,
    "few_samples": 1,
    "key_samples": 1,
    "chains": [[20, 12]],
    "prefix": {"tokens": 40, "tail_tokens": 6, "prompts": 2, "checked": 1},
    "compositions": [[[0, 20], [256, 12]]],
    "answers": 1,
}
SEED = "test"
OWN_PARTS = (relocation.PART, hypotheses.PART)
Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=["llama-f32", "gemma3-f32", "gemma3-q4_k"])
def ran(
    request: pytest.FixtureRequest, models: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Rows, dict[str, Any], Path]:
    """A model's name, its records as written and read again, the inputs, the stage's folder."""
    folder = tmp_path_factory.mktemp("position")
    (folder / "evidence/records").mkdir(parents=True)
    model = models(request.param)
    experiment = Experiment(
        model=model,
        settings=split_invariant(n_ctx=1024),
        options=OPTIONS,
        seed=f"{SEED}/{model.name}",
        folder=folder / "evidence",
        scratch=folder / "scratch",
        note=lambda _line: None,
    )
    measured = experiment.measure()
    rows: Rows = {}
    for path, kind in KIND.records.items():
        records.write(folder / "evidence" / path, kind, measured[Path(path).stem])
    rows |= records.read_folder(folder / "evidence", KIND.records)
    with Session(model, experiment.settings) as session:
        profile = session.profile.to_json()
    stock = copy.deepcopy(profile)
    stock["settings"]["name"] = "stock"
    inputs = {
        "configuration": {
            "value": {
                "seed": SEED,
                "profile": {"preset": "split-invariant"},
                "position": OPTIONS,
            }
        },
        "profiles": {
            model.name: {
                one["settings"]["name"]: {"digest": digests.sha256_json(one), "profile": one}
                for one in (profile, stock)
            }
        },
    }
    return model.name, rows, inputs, folder / "evidence"


Ran = tuple[str, Rows, dict[str, Any], Path]


def test_own_records_pass_every_check(ran: Ran) -> None:
    name, rows, inputs, _ = ran
    found = setting(name, inputs)
    assert found is not None
    assert [problem for part in OWN_PARTS for problem in part.check(found, rows)] == []


def test_raw_logits_bear_out_the_scores(ran: Ran) -> None:
    _, rows, _, folder = ran
    named = relocation.raw_digests(rows)
    assert len(named) == 3

    def read(digest: str) -> Any:
        return stats.read_logits((folder / "logits" / f"{digest}.f32").read_bytes())

    assert relocation.check_raw(rows, read) == []
    kept = next(row for row in rows["records/relocation.jsonl"] if row["raw"])
    kept["kl"]["relocated"] += 0.5
    assert relocation.check_raw(rows, read) != []
    kept["kl"]["relocated"] -= 0.5


def test_own_position_is_byte_equal_and_relocation_is_marked_inexact(ran: Ran) -> None:
    _, rows, _, _ = ran
    for row in rows["records/samples.jsonl"]:
        assert row["kl"] == 0.0
        assert row["graft"] == row["fresh"]
    for row in rows["records/relocation.jsonl"]:
        assert row["relocated"]["exact"] is False
        assert row["fresh"]["exact"] is True


def test_relocation_lands_near_the_control_and_a_wrong_base_does_not(ran: Ran) -> None:
    _, rows, _, _ = ran
    table = hypotheses.Table(rows)
    wrong = max(table.kl("frequency_mismatch", "outside_wrong_base"))
    assert wrong > 10 * max(table.curve("relocated"))
    # An exact rotation outside the engine and the engine's own are of one kind.
    assert max(table.kl("large_angle", "outside")) < wrong / 10
    assert not any(table.kl("double_rotation", "by_zero"))


def test_keys_are_turned_by_the_models_own_frequencies(ran: Ran) -> None:
    _, rows, _, _ = ran
    for row in rows["records/keys.jsonl"]:
        # Angles in float32 are off by about their own size times 2^-24, once a pair of components.
        limit = 2.0**-10 if row["cache"] == plan.REGISTERED else 2.0**-20 * row["offset"]
        assert row["rms_error"] < max(limit, 2.0**-20), row


def test_relocation_in_a_window_cache_that_reuses_cells_is_refused(ran: Ran) -> None:
    name, rows, _, _ = ran
    tried = {"small_relocation", "past_small_relocation"}
    found = [r for r in rows["records/explanations.jsonl"] if r["condition"] in tried]
    assert bool(found) == name.startswith("gemma3")
    assert all(row["refused"] == "GraftRefused" for row in found)


def test_summary_has_its_schema_and_claims_are_judged(ran: Ran) -> None:
    name, rows, _, _ = ran
    assert KIND.summary_bytes(name, rows)
    judged = {c.id: c for c in claims.judge("position", Evidence(name, rows, 3, 0)) if c.id < "P5"}
    assert judged["P1"].verdict == "holds"
    assert judged["P4"].verdict == "not run here"
    assert set(judged) == {"P1", "P2", "P3", "P4"}


@pytest.mark.parametrize(
    "change", [{"probe_offset": 16}, {"max_tokens": 20}, {"key_samples": 9}, {"offsets": [8, 64]}]
)
def test_a_configuration_that_does_not_fit_is_refused(
    models: Callable[[str], Any], tmp_path: Path, change: dict[str, Any]
) -> None:
    experiment = Experiment(
        model=models("llama"),
        settings=split_invariant(n_ctx=1024),
        options={**OPTIONS, **change},
        seed=SEED,
        folder=tmp_path,
        scratch=tmp_path,
        note=lambda _line: None,
    )
    with pytest.raises(UnusableInput):
        experiment.measure()


@pytest.mark.parametrize("neighbours", [True, False])
def test_rotation_in_float64_is_a_group(neighbours: bool) -> None:
    rope = Rope(heads=2, width=8, neighbours=neighbours, bases=(1e4, 1e4))
    keys = np.random.default_rng(0).normal(size=(5, 2, 8))
    there = rope.turn(rope.turn(keys, 700, 1e4), -700, 1e4)
    assert np.allclose(there, keys, atol=1e-12)
    once = rope.turn(keys, 300, 1e4)
    assert np.allclose(rope.turn(rope.turn(keys, 100, 1e4), 200, 1e4), once, atol=1e-12)
    assert not np.allclose(once, keys)
    assert np.allclose((once**2).sum(-1), (keys**2).sum(-1))


def test_a_state_moved_outside_keeps_its_values_and_moves_its_positions(sessions: Any) -> None:
    session = sessions("gemma3")
    rope = Rope.of(session.model)
    session.prefill(range(2, 42))
    own = session.capture().state
    moved = rotated_keys.relocated_outside(own, rope, 64)
    session.reset()
    session.decode(range(2, 42))
    assert len(moved) == len(own)
    assert np.array_equal(rotated_keys.relocated_outside(own, rope, 0), own)
    for where in (("relocated", 0), ("relocated", 1)):
        assert rotated_keys.errors(own, moved, rope, 64, where)["rms_error"] < 2.0**-11
