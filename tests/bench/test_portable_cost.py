"""The cost table of the portable builds: a row for each build that is there, in one small run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from kvgraft.tiny import make_tiny_gguf

SCRIPT = Path(__file__).parents[2] / "envs" / "portable_cost.py"


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


def test_a_type_that_is_unknown_ends_with_a_message(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--models", "none.gguf", "--types", "Q9"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Q9" in done.stderr
    assert "Traceback" not in done.stderr
