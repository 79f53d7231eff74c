"""The committed portable run can be rechecked by this checkout; what contradicts itself is refused.

No engine is loaded here; `.ci/run` rechecks the run itself.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvaudit import digests, manifest
from kvaudit.errors import UnusableInput
from kvgraft import selftest
from kvgraft.recheck import recheck

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
