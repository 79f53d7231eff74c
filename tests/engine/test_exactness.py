"""The experiment runs end to end on tiny models, and stops where two computations differ."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinywork import draw

import kvaudit.exactness.claims  # noqa: F401 - registers the claims
from kvaudit import claims, records, stats
from kvaudit.exactness import consistency
from kvaudit.exactness import records as exactness_records
from kvgraft import exactness, plan, remote
from kvgraft.errors import DeterminismFailed
from kvgraft.exactness import Experiment, Observed, describe_difference
from kvgraft.profile import split_invariant

OPTIONS = {
    "samples": 5,  # fewer, and claim E1 does not hold
    "raw_samples": 1,
    "min_tokens": 24,
    "max_tokens": 90,
    "determinism_lengths": [30],
    "split_lengths": [40, 120],
    "random_splits": 1,
    "single_tokens": 6,
}
Make = Callable[..., Experiment]


@pytest.fixture(scope="module")
def make(models: Any, tmp_path_factory: pytest.TempPathFactory) -> Make:
    def experiment(name: str, **options: Any) -> Experiment:
        folder = tmp_path_factory.mktemp("experiment")
        for part in ("evidence/records", "scratch"):
            (folder / part).mkdir(parents=True)
        return Experiment(
            model=models(name),
            settings=split_invariant(n_ctx=1024),
            options={**OPTIONS, **options},
            seed="test",
            folder=folder / "evidence",
            scratch=folder / "scratch",
            note=lambda _line: None,
        )

    return experiment


@pytest.fixture(scope="module", params=["llama-f32", "gemma3-q4_k"])
def measured(
    request: pytest.FixtureRequest, make: Make
) -> tuple[Experiment, exactness_records.Records]:
    """An experiment that ran, and its records as written, validated and read again."""
    experiment = make(request.param)
    rows = experiment.measure()
    for path, kind in exactness_records.KINDS.items():
        records.write(experiment.folder / path, kind, rows[Path(path).stem])
    kinds = exactness_records.KINDS
    return experiment, exactness_records.typed(records.read_folder(experiment.folder, kinds))


Measured = tuple[Experiment, exactness_records.Records]


def test_every_arm_of_every_sample_has_the_bytes_of_fresh(measured: Measured) -> None:
    experiment, found = measured
    assert len(found.samples) == 5
    for sample in found.samples:
        assert set(sample.arms) == set(exactness_records.ARMS)
        fresh = sample.arms["fresh"]
        for name, arm in sample.arms.items():
            assert arm.logits_sha256 == fresh.logits_sha256, name
            assert arm.state_sha256 == fresh.state_sha256, name
            assert set(arm.kl_from_fresh) == {0.0}
        assert sample.exact
        assert sample.split_invariant
    assert any(s.past_window for s in found.samples) == experiment.model.name.startswith("gemma3")


def test_restored_arms_ran_elsewhere_and_decoded_the_query_alone(measured: Measured) -> None:
    for sample in measured[1].samples:
        for name in ("graft", "token_by_token"):
            arm = sample.arms[name]
            assert arm.process > 0
            assert arm.decoded_tokens == sample.query_tokens
            assert arm.restored_bytes == sample.state_bytes
        for name in ("fresh", "fresh_again", "one_shot"):
            assert sample.arms[name].process == 0
            assert sample.arms[name].restored_bytes == 0
        assert sample.arms["fresh_process"].process > 0


def test_determinism_is_shown_in_context_in_contexts_and_in_processes(measured: Measured) -> None:
    found = measured[1].determinism
    assert [row.case for row in found] == list(exactness_records.CASES)
    assert all(row.equal for row in found)
    assert found[-1].second.process > 0


def test_splits_are_equal_and_their_controls_are_not(measured: Measured) -> None:
    found = measured[1].splits
    assert not any(row.differs for row in found if not row.control)
    assert {row.grafted for row in found if not row.control} == {True, False}
    changed = [row for row in found if row.control and row.profile_name != "stock"]
    assert len(changed) == 2
    assert all(row.differs and row.kl > 0 for row in changed)
    stock = [row for row in found if row.profile_name == "stock"]
    assert len(stock) == 1


def test_raw_logits_lie_under_their_own_digest_and_belong_to_their_records(
    measured: Measured,
) -> None:
    experiment, found = measured
    files = {path.stem: path.read_bytes() for path in (experiment.folder / "logits").iterdir()}
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in files.items())
    named: set[str] = set()
    (raw,) = [sample for sample in found.samples if sample.raw is not None]
    assert raw.raw is not None
    for arm, digest in raw.raw.items():
        assert digest == raw.arms[arm].logits_sha256[-1]
        named.add(str(digest))
    for row in found.splits:
        if row.raw is not None:
            p = np.frombuffer(files[row.raw["reference"]], "<f4")
            q = np.frombuffer(files[row.raw["logits"]], "<f4")
            assert stats.kl_divergence(p, q) == row.kl
            named |= set(row.raw.values())
    assert named == set(files)


def test_the_auditor_finds_no_contradiction_and_its_claims_hold(measured: Measured) -> None:
    experiment, found = measured
    model = experiment.model
    profiles = {row.profile for row in found.samples} | {row.profile for row in found.splits}
    inputs = {
        "models": [{"name": model.name, "sha256": model.pin.sha256}],
        "profiles": {model.name: {digest: {"digest": digest} for digest in profiles}},
    }
    assert consistency.check_records(model.name, found, inputs) == []

    def read(digest: str) -> Any:
        return np.fromfile(experiment.folder / "logits" / f"{digest}.f32", "<f4")

    assert consistency.check_raw(found, read) == []
    evidence = claims.Evidence(model.name, found, len(consistency.raw_digests(found)), 0)
    verdicts = {claim.id: claim.verdict for claim in claims.judge("exactness", evidence)}
    assert verdicts == {"D1": "holds", "E1": "holds", "E2": "holds", "E3": "holds"}


def test_a_split_record_names_its_own_argmax_first(experiment: Experiment, sessions: Any) -> None:
    session = sessions("llama")
    text = tuple(draw(30))
    reference = remote.read_fresh(session, [], list(text), one_shot=True, outputs=1, state=True)
    for last in range(2, 258):
        other = remote.read_fresh(
            session, [], [*text[:-1], last], one_shot=True, outputs=1, state=True
        )
        if stats.argmax(other.logits[-1]) != stats.argmax(reference.logits[-1]):
            break
    row = experiment._split_row(
        plan.SplitPlan(0, text, (30,)), other, reference, "one token changed"
    )
    assert row["argmax"] == [stats.argmax(other.logits[-1]), stats.argmax(reference.logits[-1])]
    assert row["argmax"][0] != row["argmax"][1]
    assert row["kl"] == stats.rounded(stats.kl_divergence(reference.logits[-1], other.logits[-1]))


def test_two_measurements_of_one_seed_give_the_same_bytes(make: Make) -> None:
    def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            for arm in row["arms"].values():
                del arm["seconds"]
        return rows

    first, second = (make("llama", samples=1).measure() for _ in range(2))
    assert bare(first["samples"]) == bare(second["samples"])
    for kind in ("determinism", "blocks", "splits"):
        assert first[kind] == second[kind]


# -- a determinism failure --------------------------------------------------------------------


def observe(session: Any, ids: list[int], split: Any = None) -> Observed:
    session.reset()
    logits = session.decode(ids, outputs=1, split=split)[-1]
    return Observed(logits, session.capture().state, 0)


@pytest.fixture
def experiment(make: Make) -> Experiment:
    made = make("llama-f32")
    made._profile = "0" * 64
    return made


def test_equal_observations_make_a_record(experiment: Experiment, sessions: Any) -> None:
    session = sessions("llama-f32")
    row = experiment._case("same_context", draw(50), *[observe(session, draw(50))] * 2)
    assert row["equal"] is True


def test_another_token_stops_the_run_and_is_found_in_the_first_layer(
    experiment: Experiment, sessions: Any
) -> None:
    session = sessions("llama-f32")
    ids = draw(50)
    first, second = observe(session, ids), observe(session, [*ids[:-1], ids[-1] ^ 1])
    with pytest.raises(
        DeterminismFailed,
        match=r"two fresh computations of 50 tokens differ \(new_process\); at cache 0, layer 0 k, "
        r"byte \d+ \(chunk 0\), \d+ bytes in all; expected \('[0-9a-f]{64}', '[0-9a-f]{64}'\); .*"
        "nothing else would mean anything",
    ) as caught:
        experiment._case("new_process", ids, first, second)
    assert caught.value.exit_code == 1


def test_other_kernels_stop_the_run_and_are_found_behind_the_first_layers_keys(
    experiment: Experiment, sessions: Any
) -> None:
    # Batches of one row: another kernel, so that a last bit differs somewhere.
    session = sessions("llama-f32", min_rows=1)
    for n in range(100, 700, 40):
        first, second = observe(session, draw(n)), observe(session, draw(n), split=1)
        if first.digests != second.digests:
            break
    with pytest.raises(DeterminismFailed, match=r"at cache 0, layer [0-3] [kv], byte \d+ \(chunk"):
        experiment._case("new_context", draw(n), first, second)


def test_flash_attention_against_none_is_a_difference_of_layout(
    experiment: Experiment, sessions: Any
) -> None:
    first = observe(sessions("llama-f32"), draw(50))
    second = observe(sessions("llama-f32", flash_attention=True), draw(50))
    with pytest.raises(DeterminismFailed, match="at cache 0, header, byte"):
        experiment._case("new_context", draw(50), first, second)


def test_logits_that_differ_alone_are_said_to(experiment: Experiment, sessions: Any) -> None:
    first = observe(sessions("llama-f32"), draw(50))
    logits = first.logits.copy()
    logits[3] = np.nextafter(logits[3], np.float32(np.inf))
    second = Observed(logits, first.state, 0)
    with pytest.raises(
        DeterminismFailed, match="at the states are equal, only the logits differ; expected"
    ):
        experiment._case("same_context", draw(50), first, second)
    assert describe_difference(first.state, first.state).startswith("the states are equal")


def test_a_determinism_failure_ends_the_measurement_before_any_sample(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = exactness._observe
    calls: list[int] = []

    def unstable(session: Any, ids: list[int], process: int) -> Observed:
        calls.append(len(ids))
        return real(session, ids if len(calls) == 1 else [ids[0] ^ 1, *ids[1:]], process)

    monkeypatch.setattr(exactness, "_observe", unstable)
    stopped = make("llama")
    monkeypatch.setattr(
        Experiment, "samples", lambda _self, _session: pytest.fail("a sample was measured")
    )
    with pytest.raises(DeterminismFailed, match=r"30 tokens differ \(same_context\)"):
        stopped.measure()
    assert calls == [30, 30]
