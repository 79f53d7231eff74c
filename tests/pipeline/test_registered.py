"""A registered run takes everything from its registration, and nothing else is planned."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from planning import ROOT, dry_run

from kvaudit import cli, prereg
from kvaudit.attest import keys

PARTS = ("Snakefile", "config", "envs", "manifests/pins", "manifests/schema", "rules", "workflow")
CRITERION = {
    "id": "E1",
    "claim": "every graft is exact",
    "expression": "exactness/gemma-3-270m: samples.exact == samples.n",
}


def git(repository: Path, *arguments: str) -> None:
    who = {f"GIT_{a}_{b}": "x" for a in ("AUTHOR", "COMMITTER") for b in ("NAME", "EMAIL")}
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    subprocess.run(
        ["git", "-C", str(repository), *arguments],
        check=True,
        capture_output=True,
        env={**clean, **who, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout with one registration, filed by the commands."""
    root = tmp_path_factory.mktemp("registered") / "checkout"
    skip = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build")
    for part in PARTS:
        target = root / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, target, ignore=skip)
        else:
            shutil.copy(ROOT / part, target)
    git(root, "init", "-q")
    git(root, "add", "-A", "-f")
    git(root, "commit", "-q", "-m", "all")
    key = root.parent / "signer.pem"
    keys.generate(key)
    smoke = root / "config/smoke.yaml"
    into = ("--into", str(root.parent), "--repository", str(root))
    new = ("prereg", "new", "--config", str(smoke), "--name", "first", "--device", "cpu")
    assert cli.main([*new, "--driver", "none", *into]) == 0
    draft = root.parent / "first.draft.json"
    value = json.loads(draft.read_bytes())
    draft.write_text(json.dumps({**value, "criteria": [CRITERION], "stopping_rule": "one run"}))
    filed = ("--into", str(root / prereg.FOLDER), "--repository", str(root))
    assert cli.main(["prereg", "file", str(draft), "--key", str(key), *filed]) == 0
    return root


def test_the_registered_matrix_is_planned(checkout: Path) -> None:
    status, out = dry_run("--config", "registration=0001", checkout=checkout)
    assert status == 0, out
    assert "results/registered/0001-first/inputs.manifest.json" in out
    assert "results/smoke/" not in out
    assert "results/default/" not in out


def test_a_flywheel_is_registered_and_planned_alone(checkout: Path) -> None:
    root, f9 = str(checkout), str(checkout / "config/f9.yaml")
    into = ("--into", str(checkout.parent), "--repository", root)
    new = ("prereg", "new", "--config", f9, "--name", "row-f9", "--device", "cpu")
    assert cli.main([*new, "--driver", "none", *into]) == 0
    draft = checkout.parent / "row-f9.draft.json"
    value = json.loads(draft.read_bytes())
    assert value["matrix"] == ["flywheel/gemma-3-270m", "flywheel/smollm2-135m"]
    path = "flywheel/smollm2-135m: categories.routed_flat"
    criterion = {**CRITERION, "expression": f"{path}.difference.low > 0"}
    draft.write_text(json.dumps({**value, "criteria": [criterion], "stopping_rule": "one run"}))
    filed = ("--into", str(checkout / prereg.FOLDER), "--repository", root)
    key = str(checkout.parent / "signer.pem")
    assert cli.main(["prereg", "file", str(draft), "--key", key, *filed]) == 0
    status, out = dry_run("--config", "registration=2", checkout=checkout)
    assert status == 0, out
    assert "results/registered/0002-row-f9/flywheel/smollm2-135m/stage.manifest.json" in out
    assert "rule exactness:" not in out


def test_the_results_folder_is_left_to_the_user(checkout: Path, tmp_path: Path) -> None:
    given = ("registration=1", f"results={tmp_path}/run")
    status, out = dry_run("--config", *given, checkout=checkout)
    assert status == 0, out
    assert f"{tmp_path}/run/inputs.manifest.json" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--config", "registration=1", "seed=mine"),
        ("--configfile", "config/paper.yaml", "--config", "registration=1"),
        ("--config", "registration=7"),
    ],
)
def test_another_setting_or_registration_stops_before_anything_runs(
    checkout: Path, arguments: tuple[str, ...]
) -> None:
    status, out = dry_run(*arguments, checkout=checkout)
    assert status != 0
    assert "rule register_inputs:" not in out


def test_a_closed_registration_is_not_run_in_the_place_of_its_run(
    checkout: Path, tmp_path: Path
) -> None:
    outcome = checkout / prereg.FOLDER / "0001-first/outcome.json"
    outcome.write_text("{}\n")
    try:
        status, out = dry_run("--config", "registration=1", checkout=checkout)
        elsewhere, _ = dry_run(
            "--config", "registration=1", f"results={tmp_path}/run", checkout=checkout
        )
    finally:
        outcome.unlink()
    assert status != 0
    assert "registration 0001-first is closed" in out
    value = json.loads((outcome.parent / "registration.json").read_bytes())
    assert f"git checkout {value['source']['commit']}, git checkout @{{-1}} -- " in out
    assert "0001-first, and --config registration=1 results=FOLDER" in out
    assert "rule register_inputs:" not in out
    assert elsewhere == 0


def test_another_source_tree_stops_before_anything_is_planned(checkout: Path) -> None:
    changed = checkout / "config/paper.yaml"
    before = changed.read_text()
    changed.write_text(before + "# another tree\n")
    try:
        status, out = dry_run("--config", "registration=1", checkout=checkout)
    finally:
        changed.write_text(before)
    assert status != 0
    assert "the source tree is not that of registration 0001-first" in out
    assert "rule register_inputs:" not in out
