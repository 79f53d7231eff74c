"""A stage begins only on the inputs that were registered, and ends its script with one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvaudit import manifest, schemas
from kvaudit.errors import InputChanged, UnusableInput
from kvaudit.source import source_files
from kvgraft import pins, stage
from kvgraft.errors import DeterminismFailed, EngineNotInstalled, ModelMismatch, StageBusy
from kvgraft.profile import split_invariant

SUBJECT = "tiny"


@pytest.fixture
def config(models: Any, tmp_path: Path) -> dict[str, Any]:
    """A configuration of one tiny model in a file of its own."""
    model = tmp_path / "tiny.gguf"
    model.write_bytes(models("llama").path.read_bytes())
    pins.add(tmp_path / "pins.json", pins.for_file(model, SUBJECT))
    return {
        "name": "test",
        "pins": str(tmp_path / "pins.json"),
        "models": [SUBJECT],
        "profile": {"preset": "split-invariant", "n_ctx": 512},
    }


@pytest.fixture
def run(config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with registered inputs, as the working folder; returns the run folder."""
    repository = tmp_path / "repository"
    for name in ("Snakefile", "config/test.yaml", "envs/audit.txt", "workflow/code.py"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(f"{name}\n")
    monkeypatch.chdir(repository)
    with next(stage.open_models(config)) as model:
        entry = stage.model_entry(model)
    inputs = manifest.build_inputs(
        configuration_name="test",
        configuration=config,
        source={"commit": None, "dirty": None, "files": source_files(".")},
        models=[entry],
        profiles={},
        environment=manifest.environment(stage.PACKAGES, stage.locks(Path("."))),
    )
    folder = tmp_path / "run"
    folder.mkdir()
    manifest.write(folder / manifest.INPUTS, inputs)
    return folder


def test_unchanged_inputs_are_hashed_again_and_the_folder_is_emptied(
    run: Path, config: dict[str, Any]
) -> None:
    old = run / "exactness" / SUBJECT / "records" / "old.jsonl"
    old.parent.mkdir(parents=True)
    old.write_text("from an interrupted run")
    opening = stage.enter(run, "exactness", SUBJECT, config)
    assert opening.folder == run / "exactness" / SUBJECT
    assert sorted(p.name for p in opening.folder.rglob("*")) == ["records", "tables"]
    assert set(opening.inputs_used) == {"configuration", "source", "envs/audit.txt", SUBJECT}
    assert opening.inputs_used[SUBJECT] == opening.model.pin.sha256
    assert opening.host()["cpus"] >= 1


@pytest.mark.parametrize("name", ["Snakefile", "config/test.yaml", "workflow/code.py"])
def test_changed_source_is_refused_by_name(run: Path, config: dict[str, Any], name: str) -> None:
    Path(name).write_text("changed\n")
    with pytest.raises(
        InputChanged, match=f"inputs changed since they were registered: {name}; at inputs.manifest"
    ):
        stage.enter(run, "exactness", SUBJECT, config)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: Path("workflow/new.py").write_text("new"), "workflow/new.py"),
        (lambda: Path("workflow/code.py").unlink(), "workflow/code.py"),
        (lambda: Path("envs/audit.txt").write_text("numpy"), "envs/audit.txt"),
        (lambda: Path("envs/more.txt").write_text("numpy"), r"envs/more.txt \(not registered\)"),
    ],
    ids=["new file", "removed file", "changed lock", "new lock"],
)
def test_added_and_removed_source_and_locks_are_refused_by_name(
    run: Path, config: dict[str, Any], change: Callable[[], object], named: str
) -> None:
    change()
    with pytest.raises(InputChanged, match=f"inputs changed .*{named}"):
        stage.enter(run, "exactness", SUBJECT, config)


def test_a_changed_configuration_is_refused(run: Path, config: dict[str, Any]) -> None:
    with pytest.raises(
        InputChanged,
        match=r"the configuration is not the registered one; at inputs.manifest.json "
        r"\(register the inputs again, or use another results folder\)",
    ):
        stage.enter(run, "exactness", SUBJECT, {**config, "seed": "another"})


def test_a_model_changed_together_with_its_pin_is_refused(
    run: Path, config: dict[str, Any], models: Any
) -> None:
    path = Path(config["pins"]).parent / "tiny.gguf"
    path.write_bytes(models("other").path.read_bytes())
    with pytest.raises(ModelMismatch, match="model tiny"):  # against the old pin
        stage.enter(run, "exactness", SUBJECT, config)
    pins.add(config["pins"], pins.for_file(path, SUBJECT))
    with pytest.raises(InputChanged, match="inputs changed since they were registered: tiny;"):
        stage.enter(run, "exactness", SUBJECT, config)


def test_a_refused_stage_leaves_earlier_results_alone(run: Path, config: dict[str, Any]) -> None:
    old = run / "exactness" / SUBJECT / "summary.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    Path("Snakefile").write_text("changed\n")
    with pytest.raises(InputChanged):
        stage.enter(run, "exactness", SUBJECT, config)
    assert old.read_text() == "{}"


def test_a_typed_error_ends_a_script_with_its_line_and_its_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "stage.log"

    def script() -> None:
        with stage.logged(str(log)) as note:
            note("begun")
            raise DeterminismFailed("two computations differ", where="cache 0, layer 1 k")

    with pytest.raises(SystemExit) as caught:
        script()
    assert caught.value.code == 1
    begun, ended = log.read_text().splitlines()
    assert begun.endswith(" begun")
    assert ended.endswith("DeterminismFailed: two computations differ; at cache 0, layer 1 k")


def test_the_profile_and_its_stock_control_are_read_back_from_processes(
    run: Path, config: dict[str, Any], sessions: Any
) -> None:
    model = next(stage.open_models(config))
    profiles = stage.profiles_in_force(model, config)
    assert stage.settings(config) == split_invariant(n_ctx=512)
    assert set(profiles) == {"split-invariant", "stock"}
    assert profiles["split-invariant"]["digest"] == sessions("llama", n_ctx=512).profile.digest
    assert profiles["stock"]["profile"]["environment"]["GGML_CPU_TILED_MM"] == "1"


def test_a_portable_run_has_no_stage_that_is_about_the_installed_engine(
    config: dict[str, Any],
) -> None:
    portable = {**config, "profile": {"preset": "portable"}, "stages": ["exactness", "cost"]}
    with pytest.raises(UnusableInput, match="not run under the portable profile; at stages: cost"):
        stage.load_engine(portable)


def test_a_portable_stage_does_not_begin_without_its_build(
    run: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    portable = {**config, "profile": {"preset": "portable"}, "stages": ["exactness"]}
    with pytest.raises(EngineNotInstalled, match="no build of the engine is noted"):
        stage.enter(run, "exactness", SUBJECT, portable)


def test_a_configuration_that_does_not_conform_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UnusableInput, match="does not conform to schema config"):
        schemas.validate({**config, "samples": 5}, "config", where="test")


def test_a_stage_that_another_process_is_at_work_on_is_refused(
    run: Path, config: dict[str, Any]
) -> None:
    opening = stage.enter(run, "exactness", SUBJECT, config)
    with pytest.raises(StageBusy, match="another process is at work on this stage"):
        stage.enter(run, "exactness", SUBJECT, config)
    os.close(opening.lock)
    assert stage.enter(run, "exactness", SUBJECT, config).folder == opening.folder
