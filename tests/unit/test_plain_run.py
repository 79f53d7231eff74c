"""A run without Snakemake refuses what it does not run, and says so in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvaudit import schemas
from kvaudit.errors import UnusableInput
from kvgraft import plain_run


def configuration(**changes: Any) -> dict[str, Any]:
    """One that the schema accepts."""
    sections = json.loads(schemas.text("config"))["properties"]
    value: dict[str, Any] = {
        "name": "plain",
        "results": "",
        "seed": "plain",
        "pins": "",
        "models": ["m"],
        "stages": ["exactness"],
        "profile": {"preset": "portable", "n_ctx": 512, "n_batch": 512, "n_gpu_layers": 0},
    }
    for name in ("exactness", "flywheel", "replay"):
        fields = sections[name]["properties"]
        value[name] = {key: one["default"] for key, one in fields.items() if "default" in one}
    return {**value, **changes}


@pytest.fixture(autouse=True)
def _nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_run, "register", lambda *_: pytest.fail("the run was begun"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert plain_run.main([str(one) for one in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("UnusableInput: ")
    assert said.count("\n") == 1
    return said


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "configuration.json"
    path.write_text(json.dumps(configuration()), encoding="utf-8")
    return path


@pytest.mark.parametrize("stages", [["replay"], ["exactness", "replay"]])
def test_another_stage_is_refused_before_anything_is_made(
    capsys: pytest.CaptureFixture[str], given: Path, tmp_path: Path, stages: list[str]
) -> None:
    given.write_text(json.dumps(configuration(stages=stages)), encoding="utf-8")
    said = refused(capsys, tmp_path / "run", given)
    assert "not run without Snakemake; at stages: replay; expected exactness or flywheel" in said
    assert not (tmp_path / "run").exists()


def test_another_stage_is_not_measured_as_a_flywheel(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="stages: replay"):
        plain_run.measure(tmp_path, configuration(), "replay", "m")


def test_a_folder_that_is_there_is_refused(
    capsys: pytest.CaptureFixture[str], given: Path, tmp_path: Path
) -> None:
    assert "the run folder cannot be made" in refused(capsys, tmp_path, given)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_arguments_is_refused(
    capsys: pytest.CaptureFixture[str], given: Path, tmp_path: Path, count: int
) -> None:
    said = refused(capsys, *[tmp_path / "run", given, "more"][:count])
    assert f"a run folder and a configuration; found {count}" in said


@pytest.mark.parametrize("data", [b"", b"[", b"[]", b"{}", b"\xff"])
def test_what_is_no_configuration_is_refused(
    capsys: pytest.CaptureFixture[str], given: Path, tmp_path: Path, data: bytes
) -> None:
    given.write_bytes(data)
    assert "configuration.json" in refused(capsys, tmp_path / "run", given)
    assert "cannot be read" in refused(capsys, tmp_path / "run", tmp_path / "absent.json")
