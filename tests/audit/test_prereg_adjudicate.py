"""Adjudication: a verdict for each criterion and prediction, on a registered run and no other."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prereg_world
import pytest
import synthetic
from prereg_world import CRITERION, PREDICTION, World

from kvaudit import canonical, digests, manifest
from kvaudit.attest import dsse
from kvaudit.prereg import adjudicate, filing, ledger, registration
from kvaudit.prereg.errors import RunRefused

Audit = Callable[..., tuple[int, str, str]]
Facts = dict[str, Any]

CRITERIA = [
    CRITERION,
    {"id": "E2", "claim": "no split exists", "expression": "exactness/tiny-b: splits.n == 0"},
    {
        "id": "E3",
        "claim": "a fresh context restores quickly",
        "expression": "exactness/tiny-a: arms.fresh.median_seconds.restore < 1",
    },
    {
        "id": "E4",
        "claim": "both models have as many samples",
        "expression": "@exactness/tiny-a:samples.n == @exactness/tiny-b:samples.n",
    },
]
PREDICTIONS = [
    PREDICTION,
    {
        "id": "P2",
        "claim": "the control differs by more than one nat",
        "quantity": "exactness/tiny-a: splits.control_kl_max",
        "direction": "above",
        "baseline": "0",
        "interval": [1, 10],
    },
    {
        "id": "P3",
        "claim": "fewer blocks than positions at model b",
        "quantity": "exactness/tiny-a: samples.positions",
        "direction": "below",
        "baseline": "@exactness/tiny-b:blocks",
        "interval": [0, 100],
    },
    {
        "id": "P4",
        "claim": "restoring a fresh context is slower than nothing",
        "quantity": "exactness/tiny-a: arms.fresh.median_seconds.restore",
        "direction": "above",
        "baseline": "0",
        "interval": [0, 1],
    },
]


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = prereg_world.build(tmp_path_factory.mktemp("court"))
    world.file("first", criteria=CRITERIA, predictions=PREDICTIONS)
    world.file("second")
    return world


@pytest.fixture(scope="session")
def sealed(laboratory: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the first registration; read-only by convention."""
    found = registration.find(laboratory.folder, 1)
    return laboratory.run(found, tmp_path_factory.mktemp("sealed") / "run")


@pytest.fixture
def world(laboratory: World, tmp_path: Path) -> World:
    return prereg_world.copy(laboratory, tmp_path / "court")


@pytest.fixture
def run(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "run"))


def judged(world: World, run: Path, number: int = 1, **options: Any) -> dict[str, Any]:
    entry = filing.open_registration(world.folder, number, what="a verdict")
    return adjudicate.adjudicate(entry, run, **options)


def command(world: World, run: Path, *more: object) -> tuple[object, ...]:
    return (
        *("prereg", "adjudicate", 1, run, "--registrations", world.folder),
        *("--results", world.root / "results", *more),
    )


def test_every_criterion_and_prediction_gets_its_verdict(world: World, run: Path) -> None:
    outcome = judged(world, run)
    assert {one["id"]: one["verdict"] for one in outcome["criteria"]} == {
        "E1": "held",
        "E2": "failed",
        "E3": "not run",
        "E4": "held",
    }
    assert {one["id"]: one["verdict"] for one in outcome["predictions"]} == {
        "P1": "held",
        "P2": "direction right but magnitude wrong",
        "P3": "failed",
        "P4": "not run",
    }
    assert outcome["criteria"][0]["read"]["exactness/tiny-a: samples.n"] == synthetic.SAMPLES
    assert "was not measured" in outcome["criteria"][2]["reason"]
    assert outcome["run"]["inputs_sha256"] == digests.sha256_file(run / manifest.INPUTS)


@pytest.mark.parametrize(
    ("direction", "quantity", "verdict"),
    [
        ("above", 2.0, "held"),
        ("above", 3.0, "held"),
        ("above", 3.1, "direction right but magnitude wrong"),
        ("above", 1.5, "direction right but magnitude wrong"),
        ("above", 1.0, "failed"),
        ("above", 0.0, "failed"),
        ("below", 0.9, "direction right but magnitude wrong"),
        ("below", 1.0, "failed"),
    ],
)
def test_direction_counts_first_then_the_interval(
    world: World, direction: str, quantity: float, verdict: str
) -> None:
    one = registration.find(world.folder, 1).predictions()[0]
    changed = registration.Prediction(
        one.id, one.claim, one.quantity, direction, one.baseline, 2.0, 3.0
    )
    assert adjudicate.judge(changed, quantity, 1.0) == verdict


def test_the_command_writes_signs_and_checks_the_outcome(
    world: World, run: Path, audit: Audit
) -> None:
    code, out, _ = audit(*command(world, run, "--key", world.key))
    assert code == 0
    assert "E1     held  every graft is exact" in out
    assert "P2     direction right but magnitude wrong" in out
    folder = world.folder / "0001-first"
    payload = dsse.open(
        (folder / registration.OUTCOME_ENVELOPE).read_bytes(),
        registration.OUTCOME_PAYLOAD_TYPE,
        [world.public],
    )
    assert payload == (folder / registration.OUTCOME).read_bytes()
    chain = ledger.read(world.folder, ledger.Trust(keys=[world.public]))
    assert chain.exit_code == 0
    assert [entry.state for entry in chain.entries] == ["adjudicated", "open"]
    code, _, _ = audit(*command(world, run, "--check"))
    assert code == 0
    code, _, err = audit(*command(world, run))
    assert code == 2
    assert "the registration is closed" in err


def test_an_outcome_edited_and_signed_again_is_not_what_the_run_gives(
    world: World, run: Path, audit: Audit
) -> None:
    audit(*command(world, run, "--key", world.key))
    path = world.folder / "0001-first" / registration.OUTCOME

    def change(value: Facts) -> None:
        value["criteria"][1]["verdict"] = "held"

    prereg_world.rewrite(path, change)
    code, _, err = audit(*command(world, run, "--check"))
    assert code == 1
    assert "was changed after it was signed" in err
    envelope = dsse.sign(path.read_bytes(), registration.OUTCOME_PAYLOAD_TYPE, world.signer())
    path.with_name(registration.OUTCOME_ENVELOPE).write_bytes(dsse.to_bytes(envelope))
    code, _, err = audit(*command(world, run, "--check"))
    assert code == 1
    assert "the outcome is not what this run gives" in err
    assert "outcome.json: criteria[1].verdict; expected failed; found held" in err


KILLED_AT = """
import os, signal, sys
from kvaudit.__main__ import main

synced, left = os.fsync, int(sys.argv.pop(1))

def fsync(descriptor):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    synced(descriptor)

os.fsync = fsync
sys.exit(main())
"""
"""`kvaudit`, killed when it synchronises a file or folder for the n-th time."""


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_killed_adjudication_leaves_a_chain_that_goes_on(
    world: World, run: Path, audit: Audit, nth: int
) -> None:
    again = command(world, run, "--key", world.key)
    line = [sys.executable, "-c", KILLED_AT, str(nth), *map(str, again)]
    assert subprocess.run(line, check=False).returncode == -9
    folder = world.folder / "0001-first"
    (world.folder / registration.SCRATCH).mkdir()  # and a filing was killed besides
    code, _, err = audit(*again)
    if code == 2:  # the envelope had been written, and holds the outcome: it is finished
        assert "the registration is closed; at 0001-first; found adjudicated" in err
    else:
        assert code == 0
    assert {path.name for path in folder.iterdir()} == {
        *(registration.REGISTRATION, registration.ENVELOPE),
        *(registration.OUTCOME, registration.OUTCOME_ENVELOPE),
    }
    assert not (world.folder / registration.SCRATCH).exists()
    chain = ledger.read(world.folder, ledger.Trust(keys=[world.public]))
    assert (chain.exit_code, chain.entries[0].state) == (0, "adjudicated")
    assert audit(*command(world, run, "--check"))[0] == 0


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_full_disk_is_one_clear_error_and_leaves_the_registration_open(
    world: World, run: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    synced, calls = os.fsync, iter(range(1, 99))

    def full(descriptor: int) -> None:
        if next(calls) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = audit(*command(world, run, "--key", world.key))
    assert (code, err.count("\n")) == (2, 1)
    assert "No space left on device" in err
    monkeypatch.undo()
    chain = ledger.read(world.folder, ledger.Trust(keys=[world.public]))
    assert (chain.exit_code, chain.entries[0].state) == (0, "open")
    assert audit(*command(world, run, "--key", world.key))[0] == 0


def test_the_leftovers_of_a_killed_adjudication_do_not_break_the_chain(world: World) -> None:
    folder = world.folder / "0001-first"
    (folder / ".outcome.dsse.json.a1b2c3d_.tmp").write_bytes(b"{")
    (world.folder / registration.SCRATCH).mkdir()
    assert ledger.read(world.folder).exit_code == 0
    (folder / ".outcome.dsse.json.tmp").write_bytes(b"{")
    (folder / ".outcome.json.a1b2c3d_.tmp").mkdir()
    assert len(ledger.read(world.folder).all_findings) == 2


def test_an_envelope_of_something_else_is_not_taken_for_an_outcome(
    world: World, run: Path, audit: Audit
) -> None:
    folder = world.folder / "0001-first"
    shutil.copy(folder / registration.ENVELOPE, folder / registration.OUTCOME_ENVELOPE)
    code, _, err = audit(*command(world, run, "--key", world.key))
    assert code == 1
    assert "its signature is there" in err
    assert not (folder / registration.OUTCOME).exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"runs": ["0" * 64]}, "runs"),
        ({"closed": "2099-01-01T00:00:00Z"}, "closed"),
        ({"closed": prereg_world.EARLY}, "closed"),
    ],
)
def test_the_runs_and_the_time_of_an_outcome_are_checked_too(
    world: World, run: Path, audit: Audit, changes: Facts, field: str
) -> None:
    audit(*command(world, run, "--key", world.key))
    path = world.folder / "0001-first" / registration.OUTCOME
    prereg_world.rewrite(path, lambda value: value.update(changes))
    envelope = dsse.sign(path.read_bytes(), registration.OUTCOME_PAYLOAD_TYPE, world.signer())
    path.with_name(registration.OUTCOME_ENVELOPE).write_bytes(dsse.to_bytes(envelope))
    code, _, err = audit(*command(world, run, "--check"))
    assert code == 1
    assert f"outcome.json: {field}; expected" in err


def test_a_run_that_lies_there_is_named_by_the_outcome(
    world: World, run: Path, audit: Audit
) -> None:
    audit(*command(world, run, "--key", world.key))
    found = registration.find(world.folder, 1)
    other = {"created": "2026-06-01T00:00:00Z"}
    world.run(found, world.root / "results/other", change=lambda facts: facts.update(other))
    code, _, err = audit(*command(world, run, "--check"))
    assert code == 1
    assert "outcome.json: runs; expected" in err


@pytest.mark.parametrize(
    "name", ["claims_held", "claims_failed", "claims_not_run", "programs_rerun"]
)
def test_a_count_edited_and_signed_again_is_not_what_the_run_gives(
    world: World, run: Path, audit: Audit, name: str
) -> None:
    audit(*command(world, run, "--key", world.key))
    path = world.folder / "0001-first" / registration.OUTCOME
    prereg_world.rewrite(path, lambda value: value["run"].update({name: 77}))
    envelope = dsse.sign(path.read_bytes(), registration.OUTCOME_PAYLOAD_TYPE, world.signer())
    path.with_name(registration.OUTCOME_ENVELOPE).write_bytes(dsse.to_bytes(envelope))
    code, _, err = audit(*command(world, run, "--check"))
    assert code == 1
    assert f"run.{name}" in err
    assert "found 77" in err


def test_claims_that_rest_on_programs_may_differ_where_other_programs_could_be_run(
    world: World, run: Path
) -> None:
    outcome = judged(world, run)
    held = outcome["run"]["claims_held"]

    def filed(**changes: Any) -> Facts:
        return {**outcome, "closed": "2026-01-01T00:00:00Z", "run": {**outcome["run"], **changes}}

    def fields(one: Facts, other: Facts) -> list[str]:
        return [difference.field for difference in adjudicate.differences(one, other)]

    fewer = {"claims_held": held - 1, "claims_not_run": outcome["run"]["claims_not_run"] + 1}
    assert fields(filed(), outcome) == []
    assert fields(filed(**fewer), outcome) == ["run.claims_held", "run.claims_not_run"]
    assert fields(filed(rerun_reason="no sandbox", **fewer), outcome) == []
    assert fields(filed(rerun_reason="no sandbox", claims_held=held + 1), outcome) == ["run.claims"]
    # Both ran out of time, but not at the same program.
    late = filed(rerun_reason="the time was over", programs_rerun=7)
    assert fields(filed(rerun_reason="the time was over", programs_rerun=5, **fewer), late) == []
    assert fields({**late, "run": {**late["run"], **fewer}}, late) == [
        "run.claims_held",
        "run.claims_not_run",
    ]


def change_file(name: str) -> Callable[[Facts], None]:
    return lambda facts: facts["source"]["files"].update({name: "0" * 64})


def change_setting(facts: Facts) -> None:
    facts["configuration"]["value"]["position"]["samples"] = 7


def change_python(facts: Facts) -> None:
    facts["environment"]["python"] = "3.11.99"


def change_lock(facts: Facts) -> None:
    facts["environment"]["locks"] = {"envs/audit.txt": "0" * 64}


def change_engine(facts: Facts) -> None:
    facts["environment"]["packages"] = {"llama-cpp-python": "0.4.0"}


def back_date(facts: Facts) -> None:
    facts["created"] = "2025-12-31T23:59:59Z"


def without_registration(facts: Facts) -> None:
    facts["registration"] = None


def other_registration(facts: Facts) -> None:
    facts["registration"]["sha256"] = "0" * 64


def stamped(facts: Facts) -> None:
    facts["registration"]["token_sha256"] = "0" * 64


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (change_file("workflow/code.py"), "source tree: workflow/code.py"),
        (change_file("workflow/data.jsonl"), "data: workflow/data.jsonl"),
        (change_file("workflow/new.py"), "source tree: workflow/new.py"),
        (change_setting, "configuration: position"),
        (change_lock, "environment lock: envs/audit.txt"),
        (change_engine, "engine: llama-cpp-python 0.4.0"),
        (change_python, "python: 3.11.99 and not "),
        (back_date, "before the filing"),
        (without_registration, "names no registration"),
        (other_registration, "registration sha256"),
        (stamped, "registration token_sha256"),
    ],
)
def test_another_run_is_refused_and_what_differs_is_named(
    world: World, run: Path, change: Callable[[Facts], None], named: str
) -> None:
    refused(world, prereg_world.relabel(run, change), named)


def refused(world: World, run: Path, named: str) -> None:
    with pytest.raises(RunRefused, match="the run is not one of registration 0001-first") as caught:
        judged(world, run)
    assert named in str(caught.value.found)
    assert "\n" not in str(caught.value)


def test_another_seed_is_another_order_of_samples(world: World, tmp_path: Path) -> None:
    other = world.run(registration.find(world.folder, 1), tmp_path / "other", seed="mine")
    refused(world, other, "seed, and with it the order of samples: mine")


def test_another_model_under_the_same_name_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest_of = synthetic.digest_of

    def swapped(*parts: object) -> str:
        return "0" * 64 if parts == ("model", "tiny-a") else digest_of(*parts)

    monkeypatch.setattr(synthetic, "digest_of", swapped)
    other = world.run(registration.find(world.folder, 1), tmp_path / "other")
    refused(world, other, "model: tiny-a is 000")


def test_a_dropped_model_is_refused_although_the_run_is_whole_in_itself(
    world: World, tmp_path: Path
) -> None:
    def drop(facts: Facts) -> None:
        facts["configuration"]["models"] = ["tiny-a"]

    other = world.run(registration.find(world.folder, 1), tmp_path / "other", change=drop)
    refused(world, other, "configuration: models")


def test_the_run_of_another_registration_is_refused(world: World, run: Path) -> None:
    with pytest.raises(RunRefused, match="registration number: 1 and not 2"):
        judged(world, run, 2)


def test_a_run_of_a_registration_changed_since_is_refused(
    world: World, run: Path, audit: Audit
) -> None:
    def soften(value: Facts) -> None:
        value["predictions"][1]["interval"] = [0, 10]

    path = world.folder / "0001-first" / registration.REGISTRATION
    prereg_world.rewrite(path, soften)
    code, _, err = audit(*command(world, run))
    assert code == 1
    assert "was changed after it was signed" in err
    # Signed again, and the only one in its chain, it still is not what the run was made from.
    shutil.rmtree(world.folder / "0002-second")
    envelope = dsse.sign(path.read_bytes(), registration.PAYLOAD_TYPE, world.signer())
    path.with_name(registration.ENVELOPE).write_bytes(dsse.to_bytes(envelope))
    code, _, err = audit(*command(world, run))
    assert code == 1
    assert "registration sha256" in err
    assert "seed" in err


def test_a_forger_who_names_the_new_digest_and_keeps_the_samples_is_found_by_the_verifier(
    world: World, run: Path
) -> None:
    """Inputs rewritten to a registration filed afterwards; the samples are the old seed's."""
    found = registration.find(world.folder, 2)

    def forge(value: Facts) -> None:
        value["registration"] = found.reference()
        value["configuration"]["value"] = found.configuration()

    prereg_world.relabel(run, forge)
    with pytest.raises(RunRefused, match="does not verify"):
        judged(world, run, 2)


def test_a_run_that_does_not_verify_is_refused(world: World, run: Path) -> None:
    path = run / "exactness/tiny-a/summary.json"
    synthetic.edit_json(path, lambda value: value["samples"].update(exact=1))
    synthetic.reseal(run)
    with pytest.raises(RunRefused, match="does not verify"):
        judged(world, run)


def test_a_claim_that_fails_is_a_result_and_no_reason_to_refuse(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of = synthetic.rows_of

    def unequal(model: str, preset: str = synthetic.INVARIANT) -> Any:
        rows, raw = rows_of(model, preset)
        row = rows["records/determinism.jsonl"][0]
        row["second"] = {**row["second"], "logits_sha256": "0" * 64}
        row["equal"] = False
        return rows, raw

    monkeypatch.setattr(synthetic, "rows_of", unequal)
    found = registration.find(world.folder, 1)
    outcome = judged(world, world.run(found, tmp_path / "negative"))
    assert outcome["run"]["claims_failed"] > 0


def drop_stage(run: Path) -> None:
    shutil.rmtree(run / "exactness/tiny-b")
    synthetic.reseal(run)


def test_a_dropped_stage_is_refused(world: World, run: Path) -> None:
    drop_stage(run)
    with pytest.raises(RunRefused, match=r"does not verify.*exactness/tiny-b"):
        judged(world, run)


def test_a_dropped_stage_that_is_owned_up_to_is_listed_and_judged_not_run(
    world: World, run: Path
) -> None:
    drop_stage(run)
    outcome = judged(world, run, allow_missing=True)
    assert outcome["run"]["missing"] == ["exactness/tiny-b"]
    verdicts = {one["id"]: one["verdict"] for one in outcome["criteria"]}
    assert verdicts == {"E1": "held", "E2": "not run", "E3": "not run", "E4": "not run"}
    assert outcome["predictions"][2]["verdict"] == "not run"


def test_owning_up_to_a_dropped_stage_excuses_nothing_else(world: World, run: Path) -> None:
    drop_stage(run)
    path = run / "exactness/tiny-a/records/samples.jsonl"
    path.write_bytes(path.read_bytes()[:-2] + b"\n")
    with pytest.raises(RunRefused, match="does not verify"):
        judged(world, run, allow_missing=True)


def test_a_stage_whose_manifest_alone_was_taken_away_is_refused(world: World, run: Path) -> None:
    (run / "exactness/tiny-b" / manifest.STAGE).unlink()
    with pytest.raises(RunRefused, match="does not verify"):
        judged(world, run, allow_missing=True)


def test_a_summary_without_a_criterion_s_field_is_one_clear_error(
    tmp_path: Path, audit: Audit
) -> None:
    world = prereg_world.build(tmp_path)
    absent = {**CRITERION, "expression": "exactness/tiny-a: arms.unknown.kl.max == 0"}
    found = world.file("first", criteria=[absent])
    run = world.run(found, tmp_path / "run")
    code, _, err = audit(*command(world, run))
    assert code == 3
    assert "lacks the field of a criterion: arms.unknown" in err
    assert "exactness/tiny-a/summary.json" in err
    assert err.count("\n") == 1
    assert not (found.folder / registration.OUTCOME).exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without_registration, "and registration is null"),
        (other_registration, "seed does not derive from the registration"),
        (stamped, "seed does not derive from the registration"),
        (lambda facts: facts["registration"].update(number=2), "not the one that configuration"),
    ],
)
def test_inputs_that_contradict_their_registration_show_without_it(
    run: Path, change: Callable[[Facts], None], problem: str
) -> None:
    value = manifest.read(run / manifest.INPUTS, "inputs")
    assert list(registration.inputs_problems(value)) == []
    change(value)
    assert problem in " ".join(registration.inputs_problems(value))


def test_the_committed_reference_still_validates_without_a_registration() -> None:
    path = Path(__file__).parents[2] / "results/reference" / manifest.INPUTS
    if not path.exists():
        pytest.skip("there is no reference run")
    value = manifest.read(path, "inputs")
    assert value["registration"] is None
    old = {**value, "registration": {"number": 1, "sha256": "0" * 64}}
    assert manifest.parse(canonical.dumps(old) + b"\n", "inputs", where="old")
