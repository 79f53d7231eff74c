"""Two runs side by side: readings of the machine are told apart from differences of substance."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic

from kvaudit import canonical, manifest, pack, readings, records, schemas, stagekinds
from kvaudit.diff import _unjudged as unjudged
from kvaudit.diff import diff
from kvaudit.verify import verify

Audit = Callable[..., tuple[int, str, str]]
REFERENCE = Path(__file__).parents[2] / "results/reference"
SAMPLES = "records/samples.jsonl"


def edit_samples(run: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Edits the samples of tiny-a as a pipeline would have written them: all digests follow."""
    rows = synthetic.read_rows(run, "tiny-a", SAMPLES)
    change(rows)
    synthetic.write_rows(run, "tiny-a", SAMPLES, rows)
    synthetic.derive(run, "tiny-a")
    synthetic.reseal(run)


def slower(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["arms"]["graft"]["seconds"]["query"] *= 3


def test_a_run_is_the_same_as_itself(pristine: Path, audit: Audit) -> None:
    code, out, _ = audit("diff", pristine, pristine)
    assert code == 0
    assert out.endswith("the same\n")


def test_a_bundle_is_the_same_as_its_folder(pristine: Path, tmp_path: Path, audit: Audit) -> None:
    pack.pack(pristine, tmp_path / "run.zip")
    assert audit("diff", pristine, tmp_path / "run.zip")[0] == 0


def test_other_timings_are_no_difference_of_substance(
    pristine: Path, run: Path, audit: Audit
) -> None:
    edit_samples(run, slower)
    code, out, _ = audit("diff", pristine, run)
    assert code == 0
    assert "6 in readings alone" in out
    assert "arms/graft/median_seconds/query" in out
    assert out.endswith("the same in substance: only readings of clock and machine differ\n")


def test_another_day_host_and_python_are_no_difference_of_substance(
    pristine: Path, run: Path, audit: Audit
) -> None:
    def change(inputs: dict[str, Any]) -> None:
        inputs["environment"] |= {"python": "3.12.1", "platform": "another"}

    synthetic.edit_json(run / manifest.INPUTS, change)
    for stage in run.glob("*/*/stage.manifest.json"):
        synthetic.edit_json(stage, lambda value: value["host"].update(load_before=9.5))
    synthetic.reseal(run)
    code, out, _ = audit("diff", pristine, run)
    assert code == 0
    assert "python: 3.11.7 -> 3.12.1" in out


def test_one_other_digest_in_one_record_matters_and_is_shown(
    pristine: Path, run: Path, audit: Audit
) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        slower(rows)
        rows[3]["arms"]["graft"]["logits_sha256"][0] = "0" * 64

    edit_samples(run, change)
    code, out, _ = audit("diff", pristine, run)
    assert code == 1
    assert "E1 of tiny-a: holds -> fails" in out
    assert "exactness/tiny-a/records/samples.jsonl: 6 rows; 1 of substance, 5 in readings" in out
    assert "line 4, arms/graft/logits_sha256/0: " in out
    assert "arms/graft/equal: 6 -> 5" in out


def test_the_json_has_every_number_of_both(pristine: Path, run: Path, audit: Audit) -> None:
    edit_samples(run, slower)
    code, out, _ = audit("diff", pristine, run, "--json")
    said = json.loads(out)
    assert (code, said["same_in_substance"]) == (0, True)
    (summary,) = said["summaries"]
    assert summary["name"] == "exactness/tiny-a/summary.json"
    for field in summary["differences"]:
        assert field["reading"]
        assert field["a"] * 3 == pytest.approx(field["b"])


def test_a_missing_stage_and_missing_rows_matter(pristine: Path, run: Path, audit: Audit) -> None:
    edit_samples(run, lambda rows: rows.pop())
    code, out, _ = audit("diff", pristine, run)
    assert code == 1
    assert "6 and 5 rows; 1 of substance" in out
    for path in sorted((run / "exactness/tiny-a").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (run / "exactness/tiny-a").rmdir()
    synthetic.reseal(run)
    code, out, _ = audit("diff", pristine, run)
    assert code == 1
    assert "exactness/tiny-a: only in a" in out


INPUTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "source": (lambda v: v["source"]["files"].update(Snakefile="0" * 64), "Snakefile: "),
    "model": (lambda v: v["models"][0].update(sha256="0" * 64), "tiny-a/sha256: "),
    "lock": (lambda v: v["environment"]["locks"].update({"envs/audit.txt": "0" * 64}), "locks/"),
    "package": (lambda v: v["environment"]["packages"].update(numpy="3"), "packages/numpy: 2 -> 3"),
    "configuration": (lambda v: v["configuration"]["value"].update(seed="x"), "seed: "),
    "profile": (
        lambda v: v["profiles"]["tiny-a"]["stock"]["profile"]["settings"].update(n_threads=9),
        "tiny-a/stock/profile/settings/n_threads: 1 -> 9",
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_other_inputs_matter_and_are_named(
    pristine: Path, run: Path, audit: Audit, name: str
) -> None:
    change, said = INPUTS[name]
    synthetic.edit_json(run / manifest.INPUTS, change)
    synthetic.reseal(run)
    code, out, _ = audit("diff", pristine, run)
    assert code == 1
    assert said in out


def test_the_order_of_the_two_does_not_decide(pristine: Path, run: Path) -> None:
    edit_samples(run, lambda rows: rows[0].update(query_sha256="0" * 64))
    there, back = diff(pristine, run), diff(run, pristine)
    assert not there.same
    assert not back.same
    assert there.records[0].substance == back.records[0].substance == 1


def test_a_damaged_run_is_not_the_same(pristine: Path, run: Path, audit: Audit) -> None:
    (run / "extra").write_bytes(b"x")
    assert audit("diff", pristine, run)[0] == 1


def test_two_runs_that_are_damaged_alike_are_no_sound_pair(
    run: Path, audit: Audit, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (run / "extra").write_bytes(b"x")
    shutil.copytree(run, other)
    code, out, _ = audit("diff", run, other)
    assert code == 1
    assert out.count("failed, 1 findings") == 2
    assert "1 and 1 findings of the verifier: what was compared is not sound evidence" in out
    said = json.loads(audit("diff", run, other, "--json")[1])
    assert (said["same_in_substance"], said["findings"]) == (True, [1, 1])


def test_claims_that_wait_for_programs_are_those_of_stages_that_have_some(pristine: Path) -> None:
    waits, rests = (
        dataclasses.replace(verify(pristine).claims[0], id=name, verdict="not run here")
        for name in ("E1", "F1")
    )
    verdict = dataclasses.replace(
        verify(pristine), claims=(waits, rests), programs_reason="was asked not to"
    )
    assert unjudged([verdict, verdict], programs=False) == 1
    assert unjudged([verdict, verdict], programs=True) == 0


def test_an_unusable_run_is_exit_2(pristine: Path, tmp_path: Path, audit: Audit) -> None:
    (tmp_path / "file").write_bytes(b"no bundle")
    for other, code in ((tmp_path / "file", 2), (tmp_path / "absent", 2)):
        found, _, err = audit("diff", pristine, other)
        assert (found, err.count("\n")) == (code, 1)


def test_hostile_values_stay_on_their_line(pristine: Path, run: Path, audit: Audit) -> None:
    edit_samples(run, lambda rows: rows[0].update(seed="a\nb\x1b[2J"))
    _, out, _ = audit("diff", pristine, run)
    assert "\x1b" not in out
    assert "a\\nb" in out


def test_seconds_in_a_configuration_are_limits_and_no_readings() -> None:
    assert readings.is_reading("cost-timing", "seconds/prefill/0")
    assert readings.is_reading("context-block", "prefill_seconds")
    assert not readings.is_reading(readings.INPUTS, "flywheel/program_seconds")


def test_the_table_names_kinds_that_have_a_schema() -> None:
    assert {*readings.TABLE} <= {*schemas.kinds()}


def _moved(value: Any, kind: str, path: str, salt: str) -> Any:
    """The value with every reading in it replaced by another of its type."""
    if isinstance(value, dict):
        return {k: _moved(v, kind, f"{path}/{k}" if path else k, salt) for k, v in value.items()}
    if isinstance(value, list):
        return [_moved(v, kind, f"{path}/{i}", salt) for i, v in enumerate(value)]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not readings.is_reading(kind, path):
        return value
    share = int(hashlib.sha256(f"{salt}/{path}".encode()).hexdigest()[:8], 16) / 2**32
    if path.startswith("resident"):
        return 0.5
    return type(value)(value * (0.4 + 1.5 * share))


@pytest.mark.parametrize("stage", stagekinds.KINDS)
def test_records_that_differ_in_readings_make_summaries_that_differ_in_readings(
    stage: str,
) -> None:
    kind = stagekinds.KINDS[stage]
    folder = REFERENCE / stage / "gemma-3-270m"
    if not folder.is_dir():
        pytest.skip("the reference run has no such stage")
    rows = records.read_folder(folder, kind.records)
    moved = {
        name: [_moved(row, line, "", f"{name} {i}") for i, row in enumerate(rows[name])]
        for name, line in kind.records.items()
    }
    summaries = [kind.summarise("gemma-3-270m", kind.typed(one)) for one in (rows, moved)]
    found = list(readings.differences(*summaries, summaries[0]["kind"]))
    left = {re.sub(r"/\d+(?=/|\Z)", "/*", one.path) for one in found if not one.reading}
    assert left == set()
    if stage != "position":  # which keeps no seconds at all
        assert found


def test_readings_are_told_by_path_and_kind(pristine: Path) -> None:
    data = (pristine / "exactness/tiny-a/summary.json").read_bytes()
    value = canonical.loads(data, where="summary")
    other = canonical.loads(data, where="summary")
    other["arms"]["graft"]["equal"] = 0
    other["arms"]["graft"]["median_seconds"]["query"] = None
    found = {one.path: one.reading for one in readings.differences(value, other, "summary")}
    assert found == {"arms/graft/equal": False, "arms/graft/median_seconds/query": True}
