"""Every configuration loads, conforms and can be planned; what does not fit together is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from planning import ROOT, dry_run

from kvaudit import schemas
from kvaudit.errors import UnusableInput
from kvgraft import plan


@pytest.mark.parametrize("name", ["default", "smoke", "paper", "portable"])
def test_a_configuration_is_planned(name: str, tmp_path: Path) -> None:
    results = f"results={tmp_path / 'run'}"
    status, output = dry_run("--configfile", f"config/{name}.yaml", "--config", results)
    assert status == 0, output
    for rule in ("register_inputs", "exactness", "seal", "verdict"):
        assert f"rule {rule}:" in output


def test_a_portable_run_is_planned_on_its_own_build_and_no_other_is(tmp_path: Path) -> None:
    results = f"results={tmp_path / 'run'}"
    status, output = dry_run("--configfile", "config/portable.yaml", "--config", results)
    assert status == 0, output
    assert "work/engines/portable.txt" in output
    assert output.count("rule exactness:") == output.count("rule flywheel:") == 2
    assert "rule position:" not in output
    status, output = dry_run("--config", results)
    assert status == 0, output
    assert "rule engine_variant:" not in output.split("rule replay_stage:")[0]


@pytest.mark.parametrize("setting", ["name=Bad_Name", "unknown=1", "seed="])
def test_a_setting_out_of_bounds_stops_before_anything_runs(setting: str) -> None:
    status, output = dry_run("--config", setting)
    assert status != 0
    assert "rule exactness:" not in output


@pytest.mark.parametrize("name", ["default", "smoke", "paper", "portable"])
def test_a_configuration_fits_together(name: str) -> None:
    value: dict[str, Any] = yaml.safe_load((ROOT / "config/default.yaml").read_text())
    over = yaml.safe_load((ROOT / f"config/{name}.yaml").read_text())
    for key, part in over.items():
        value[key] = {**value.get(key, {}), **part} if isinstance(part, dict) else part
    schemas.validate(value, "config", where=name)
    section = {"determinism_lengths": [64, 301, 700], "split_lengths": [203, 701, 1203]}
    plan.check({**section, **value["exactness"]}, value["profile"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw_samples": 6}, "raw_samples is at most samples"),
        ({"min_tokens": 200}, "min_tokens is at most max_tokens"),
        ({"max_tokens": 1000}, "tokens of question fit into n_ctx"),
        ({"split_lengths": [1024]}, "every length fits into n_ctx"),
        ({"split_lengths": [513]}, "every length is one batch"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    settings = {
        "samples": 5,
        "raw_samples": 1,
        "min_tokens": 32,
        "max_tokens": 160,
        "determinism_lengths": [64],
        "split_lengths": [67, 500],
    }
    profile = {"n_ctx": 1024, "n_batch": 512}
    plan.check(settings, profile)
    with pytest.raises(UnusableInput, match=message):
        plan.check({**settings, **change}, profile)
