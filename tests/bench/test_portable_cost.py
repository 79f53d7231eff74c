"""The cost table of the portable builds: a row for each build that is there, in one small run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvgraft.tiny import make_tiny_gguf

SCRIPT = Path(__file__).parents[2] / "envs" / "portable_cost.py"


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, which imports its neighbours by their plain names."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("portable_cost")


def test_every_build_that_is_there_has_a_row_for_every_type(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    figures = tmp_path / "cost.json"
    done = subprocess.run(
        [
            *(sys.executable, str(SCRIPT), "--models", str(model), "--types", "F32,Q8_0"),
            *("--prefill", "16", "--decode", "2", "--rounds", "1", "--json", str(figures)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(figures.read_text(encoding="utf-8"))["models"][str(model)]
    assert set(measured) == {"F32", "Q8_0"}
    for kind, builds in measured.items():
        missing = {name for name in ("portable", "portable-generic") if name not in builds}
        assert all(f"{name} is not built" in done.stderr for name in missing)
        for build, best in builds.items():
            assert f"| {kind} | {build} |" in done.stdout
            assert all(seconds > 0 for name in ("prefill", "decode") for seconds in best[name])
        loaded = {build: Path(best["libraries"]) for build, best in builds.items()}
        assert len({*loaded.values()}) == len(loaded)
        assert loaded.pop("stock").parent.name == "llama_cpp"
        assert all((folder / "ARITHMETIC.json").is_file() for folder in loaded.values())


@pytest.mark.parametrize(
    ("model", "kind", "named"),
    [("none.gguf", "Q9", "Q9"), ("no-such-model", "F32", "no-such-model")],
)
def test_a_type_or_a_model_that_is_unknown_ends_with_a_message(
    model: str, kind: str, named: str
) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--models", model, "--types", kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("build", ["stock", "portable"])
def test_a_row_of_another_build_than_it_names_ends_the_measurement(
    cost: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    build: str,
) -> None:
    folder = None if build == "stock" else tmp_path / "portable-0123"

    def child(job: dict[str, Any], _folder: Path | None) -> Any:
        timings = {"prefill": [1.0, 1.0], "decode": [1.0, 1.0]}
        return None if "kind" in job else {**timings, "libraries": str(tmp_path / "another")}

    monkeypatch.setattr(cost, "builds", lambda: {build: folder})
    monkeypatch.setattr(cost, "child", child)
    assert cost.main(["--models", "m.gguf", "--types", "F32"]) == 1
    said = capsys.readouterr()
    assert f"cost: {build}: the engine was loaded from {tmp_path / 'another'}, not" in said.err
    assert f"| {build} |" not in said.out


def test_libraries_of_two_folders_are_no_build(
    cost: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def maps(*names: str) -> None:
        lines = "".join(f"7f00-7f01 r-xp 00000000 08:01 42    {name}\n" for name in names)
        monkeypatch.setattr(cost.Path, "read_text", lambda *_args, **_named: lines)

    maps("/usr/lib/libc.so.6", "/a b/libllama.so", "/a b/libggml-cpu.so.0", "/a b/libggml.so.0")
    assert cost.loaded_folder() == Path("/a b")
    for names in (
        ("/a/libllama.so", "/b/libggml-base.so.0.25.3"),
        ("/usr/lib/libc.so.6", "[heap]"),
    ):
        maps(*names)
        with pytest.raises(cost.BuildError, match="instead of from one folder"):
            cost.loaded_folder()
