"""The committed portable run can be rechecked by this checkout; what contradicts itself is refused.

No engine is loaded here; `.ci/run` rechecks the run itself.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvaudit import digests, manifest
from kvaudit.errors import UnusableInput
from kvgraft import cli, pins, selftest
from kvgraft import recheck as recheck_module
from kvgraft.model import FrozenModel
from kvgraft.recheck import recheck
from kvgraft.recheck_common import LONG_CONTEXT, require_bounded, settings
from kvgraft.tiny import make_tiny_gguf

RUN = Path(__file__).parents[2] / "results" / "reference-portable"
STAGE = {"exactness": "exactness/smollm2-135m", "flywheel": "flywheel/smollm2-135m"}
Lines = list[dict[str, Any]]


def rewritten(folder: Path, stage: str, name: str, change: Callable[[Lines], Any]) -> Path:
    """A copy of the committed run with other records, which the stage's manifest names."""
    shutil.copytree(RUN, folder)
    path = folder / STAGE[stage] / "records" / name
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(rows)
    text = "".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    listed = folder / STAGE[stage] / manifest.STAGE
    value = json.loads(listed.read_bytes())
    entry = {"bytes": path.stat().st_size, "sha256": digests.sha256_file(path)}
    value["outputs"][f"records/{name}"] |= entry
    manifest.write(listed, value)
    manifest.close_run(folder)
    return folder


def registered(
    folder: Path, model: str, change: Callable[[dict[str, Any], dict[str, Any]], Any]
) -> Path:
    """A copy of the committed run whose inputs register another profile or configuration.

    Args:
        folder: a new one.
        model: whose profile.
        change: is given that profile and the configuration's value; digests follow.
    """
    shutil.copytree(RUN, folder)
    value = json.loads((folder / manifest.INPUTS).read_bytes())
    entry, configuration = value["profiles"][model]["portable"], value["configuration"]
    change(entry["profile"], configuration["value"])
    entry["digest"] = digests.sha256_json(entry["profile"])
    configuration["sha256"] = digests.sha256_json(configuration["value"])
    digest = manifest.write(folder / manifest.INPUTS, value)
    for path in folder.rglob(manifest.STAGE):
        manifest.write(path, json.loads(path.read_bytes()) | {"predecessor": digest})
    manifest.close_run(folder)
    return folder


def test_it_was_made_with_the_arithmetic_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUN.parents[1] / "envs"))
    definition = json.loads(importlib.import_module("portable_engine").definition())
    inputs = manifest.read(RUN / manifest.INPUTS, "inputs")
    assert len(inputs["profiles"]) == 2
    for profiles in inputs["profiles"].values():
        engine = profiles["portable"]["profile"]["engine"]
        assert engine["arithmetic"] == definition
        assert engine["goldens"] == digests.sha256_file(selftest.FILE)


@pytest.mark.parametrize(
    ("stage", "name", "change"),
    [
        ("exactness", "samples.jsonl", lambda rows: rows.pop()),
        ("exactness", "samples.jsonl", lambda rows: rows.append(rows[-1])),
        ("exactness", "splits.jsonl", lambda rows: rows.pop(3)),
        ("exactness", "splits.jsonl", lambda rows: rows[3].update(profile="0" * 64)),
        ("exactness", "determinism.jsonl", lambda rows: rows.pop()),
        ("exactness", "determinism.jsonl", lambda rows: rows[2].update(tokens=65)),
        ("exactness", "blocks.jsonl", lambda rows: rows.append(rows[0])),
        ("flywheel", "generations.jsonl", lambda rows: rows.pop()),
        ("flywheel", "generations.jsonl", lambda rows: rows.append(rows[-1])),
    ],
)
def test_records_left_out_added_or_altered_are_refused(
    tmp_path: Path, stage: str, name: str, change: Callable[[Lines], Any]
) -> None:
    run = rewritten(tmp_path / "run", stage, name, change)
    with pytest.raises(UnusableInput, match=r"contradict each other or the plan|nothing can"):
        recheck(run, models=["smollm2-135m"], stages=[stage])


def test_records_that_no_manifest_names_are_refused(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    with (tmp_path / "run/exactness/smollm2-135m/records/splits.jsonl").open("a") as stream:
        stream.write("{}\n")
    with pytest.raises(UnusableInput, match="not those that the manifest names"):
        recheck(tmp_path / "run")


ODD: list[dict[str, Any]] = [
    *({"unknown": 1}, {"type_k": "q4"}, {"n_ctx": "x"}, {"n_ctx": 0}, {"n_batch": 10**9}),
    *({"n_threads": 10**5}, {"swa_full": 1}, {"rope_freq_base": None}),
]


@pytest.mark.parametrize("change", [*ODD, None])
def test_settings_that_no_version_knows_are_refused(change: dict[str, Any] | None) -> None:
    inputs = manifest.read(RUN / manifest.INPUTS, "inputs")
    recorded = inputs["profiles"]["smollm2-135m"]["portable"]["profile"]
    assert settings(recorded, 3).n_threads == 3
    odd = {**recorded, "settings": {**recorded["settings"], **change}} if change else {}
    with pytest.raises(UnusableInput, match="the recorded settings: "):
        settings(odd, 1)


@pytest.mark.parametrize("stage", ["exactness", "flywheel"])
@pytest.mark.parametrize("change", [*ODD, None])
def test_a_run_that_registers_such_settings_is_refused(
    tmp_path: Path, stage: str, change: dict[str, Any] | None
) -> None:
    def alter(profile: dict[str, Any], _: dict[str, Any]) -> None:
        profile["settings"] = {**profile["settings"], **change} if change else {}

    run = registered(tmp_path / "run", "smollm2-135m", alter)
    with pytest.raises(UnusableInput):
        recheck(run, models=["smollm2-135m"], stages=[stage])


@pytest.mark.parametrize("n", [513, 100_000, 10**30, -1])
def test_threads_that_the_engine_does_not_take_are_refused(
    n: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["recheck", str(RUN), "--threads", str(n)]) == 2
    assert "--threads is out of range; expected 1 to 512" in capsys.readouterr().err
    with pytest.raises(UnusableInput, match="no such number of threads"):
        settings({}, n)


def test_a_machine_of_many_cores_uses_those_that_the_engine_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2000))
    inputs = manifest.read(RUN / manifest.INPUTS, "inputs")
    recorded = inputs["profiles"]["smollm2-135m"]["portable"]["profile"]
    assert settings(recorded, None).n_threads == 512


def test_a_context_of_any_length_is_not_opened(tmp_path: Path) -> None:
    """The model's file is a tiny one: its header alone is read, and nothing is allocated."""
    path = make_tiny_gguf(tmp_path / "tiny.gguf")
    with FrozenModel.open(pins.for_file(path)) as model:
        assert model.facts.n_ctx_train < LONG_CONTEXT
        sizes: list[Any] = [{"settings": {"n_ctx": n}} for n in (1, LONG_CONTEXT, "x")]
        require_bounded(model, [*sizes, {}, None, {"settings": []}])
        with pytest.raises(UnusableInput, match="n_ctx of at most 32768; found 400000"):
            require_bounded(model, [*sizes, {"settings": {"n_ctx": 400_000}}])


@pytest.mark.model
@pytest.mark.parametrize("derived", [False, True])
def test_a_run_that_asks_for_a_longer_context_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, derived: bool
) -> None:
    def long(profile: dict[str, Any]) -> None:
        profile["settings"]["n_ctx"] = profile["context"]["n_ctx"] = 400_128

    def profiles_of_the_stage(rows: Lines) -> None:
        long(rows[-1]["profile"])

    def nothing(*_: Any) -> tuple[()]:
        return ()

    monkeypatch.setattr(recheck_module, "_require_consistent", nothing)
    if derived:
        name = "profiles.jsonl"
        run = rewritten(tmp_path / "run", "flywheel", name, profiles_of_the_stage)
    else:
        monkeypatch.setattr(recheck_module.profiles, "problems", nothing)
        run = registered(tmp_path / "run", "smollm2-135m", lambda profile, _: long(profile))
    with pytest.raises(UnusableInput, match="longer context than is opened here"):
        recheck(run, models=["smollm2-135m"], stages=["flywheel"], sample=1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("section", ["exactness", "flywheel"])
def test_a_plan_of_too_many_samples_is_refused_soon(tmp_path: Path, section: str) -> None:
    field = {"exactness": "samples", "flywheel": "attempts"}[section]

    def alter(_: dict[str, Any], configuration: dict[str, Any]) -> None:
        configuration[section][field] = 10**7

    run = registered(tmp_path / "run", "smollm2-135m", alter)
    begun = time.process_time()
    with pytest.raises(UnusableInput, match=f"(?s){section}.*{field}"):
        recheck(run, models=["smollm2-135m"], sample=1)
    assert time.process_time() - begun < 10
