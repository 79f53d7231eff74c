"""Records that their schemas allow and no measurement gives: whoever reads them finds what is wrong
and names the file, or judges them; nobody stops at a key, an index or a number.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import flywheel_stage
import mutations
import numpy as np
import pytest
import synthetic

from kvaudit import canonical, claims, manifest, records
from kvaudit.errors import UnusableInput
from kvaudit.flywheel.records import DEPOSITS, GENERATIONS, PROBLEMS
from kvaudit.stagecheck import UNCOMPUTABLE
from kvaudit.stagekinds import KINDS

REFERENCE = Path(__file__).parents[2] / "results/reference"
MODEL = "smollm2-135m"
EDITS = {"exactness": 60, "position": 10, "cost": 25, "context": 80, "flywheel": 40}
Rows = dict[str, list[dict[str, Any]]]


def reference(stage: str) -> tuple[str, Rows, Mapping[str, Any]]:
    inputs = json.loads((REFERENCE / manifest.INPUTS).read_bytes())
    folder = REFERENCE / stage / MODEL
    return MODEL, records.read_folder(folder, KINDS[stage].records), inputs


def made_flywheel() -> tuple[str, Rows, Mapping[str, Any]]:
    changes = {
        "configuration": flywheel_stage.CONFIGURATION,
        "profiles": {flywheel_stage.MODEL: flywheel_stage.REGISTERED},
    }
    subject = flywheel_stage.MODEL
    return subject, flywheel_stage.made_rows(), synthetic.inputs((subject,), **changes)


SOURCES: dict[str, Callable[[], tuple[str, Rows, Mapping[str, Any]]]] = {
    "exactness": lambda: reference("exactness"),
    "position": lambda: reference("position"),
    "cost": lambda: reference("cost"),
    "context": lambda: reference("context"),
    "flywheel": made_flywheel,
}


def outcome(stage: str, subject: str, rows: Rows, inputs: Mapping[str, Any]) -> list[Any]:
    """What a stage's checks find; figures and claims may be missing where they found something."""
    kind = KINDS[stage]
    typed = kind.typed(rows)
    found = kind.check(subject, typed, inputs)
    kind.raw_digests(typed)
    found += kind.check_raw(typed, lambda _: np.arange(9, dtype=np.float32))
    try:
        claims.judge(stage, claims.Evidence(subject, typed, 0, 0))
        kind.summary_bytes(subject, typed)
    except UNCOMPUTABLE:
        assert found, "figures cannot be computed, and no check says why"
    except UnusableInput as error:
        if not error.found:  # the cause
            raise
    return found


@pytest.mark.parametrize("stage", SOURCES)
def test_no_edit_that_a_schema_allows_ends_a_check(stage: str) -> None:
    subject, rows, inputs = SOURCES[stage]()
    pristine = copy.deepcopy(rows)
    files = {*KINDS[stage].records}
    for what, edited in mutations.edits(rows, KINDS[stage].records, EDITS[stage], "edits"):
        try:
            found = outcome(stage, subject, edited, inputs)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}") from error
        assert {one.file for one in found} <= files, what
    assert rows == pristine


# -- the ones that once ended a check -----------------------------------------------------------


def _no_contest(rows: Rows) -> None:
    row = next(row for row in rows[DEPOSITS] if row["variant"] == "examples")
    rows[PROBLEMS][:] = [one for one in rows[PROBLEMS] if one["family"] != row["family"]]
    row["problems"] = []


def _long_integer(rows: Rows) -> None:
    row = next(row for row in rows[DEPOSITS] if row["template"])
    name, rest = row["template"]["program"].split(" = ", 1)
    row["template"]["program"] = f"{name} = {mutations.LONG}\n{rest.partition(chr(10))[2]}"


def _no_context(file: str) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        rows[file][0]["profile"]["context"] = []

    return change


ONCE: dict[str, tuple[str, Callable[[Rows], None], str, str]] = {
    "a family without its problems": (
        *("flywheel", _no_contest, DEPOSITS),
        "no contest instance of its family is recorded",
    ),
    "a template with five thousand digits": (
        *("flywheel", _long_integer, DEPOSITS),
        "its template's first lines do not set the numbers of its statement",
    ),
    "a context that is a list": (
        *("flywheel", _no_context("records/profiles.jsonl"), "records/profiles.jsonl"),
        "line 1: digest is not that of the profile",
    ),
    "a context that is a list, of pages": (
        *("context", _no_context("records/profiles.jsonl"), "records/run.jsonl"),
        "n_ctx is not that of the profile",
    ),
    "settings that are a list": (
        "context",
        lambda rows: rows["records/profiles.jsonl"][0]["profile"].update(settings=[]),
        "records/profiles.jsonl",
        "n_ctx is not the planned",
    ),
    "a profile of no parts": (
        "context",
        lambda rows: rows["records/profiles.jsonl"][0].update(profile={}),
        "records/run.jsonl",
        "n_ctx is not that of the profile",
    ),
    "a needle without a place": (
        "context",
        lambda rows: rows["records/needles.jsonl"][0].update(place=None),
        "records/blocks.jsonl",
        "but has no place there",
    ),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_record_that_once_ended_a_check_is_a_finding_of_its_file(name: str) -> None:
    stage, change, file, message = ONCE[name]
    subject, rows, inputs = SOURCES[stage]()
    change(rows)
    for one, lines in rows.items():
        for row in lines:
            records.schemas.validate(row, KINDS[stage].records[one], where=one)
    found = outcome(stage, subject, rows, inputs)
    assert any(one.file == file and message in one.message for one in found), found


# -- whole runs ---------------------------------------------------------------------------------


def test_records_that_make_no_figures_leave_the_findings_that_say_why(
    tmp_path: Path, audit: Callable[..., tuple[int, str, str]]
) -> None:
    run = Path(shutil.copytree(REFERENCE, tmp_path / "run"))
    path = run / "flywheel" / MODEL / PROBLEMS
    path.write_bytes(b"")
    (run / manifest.VERDICT).unlink()
    synthetic.reseal(run)
    code, out, err = audit("verify", "--no-programs", "--json", run)
    assert (code, err) == (1, "")
    verdict = json.loads(out)
    found = {(one["file"], one["message"]) for one in verdict["findings"]}
    assert (f"flywheel/{MODEL}/{PROBLEMS}", "0 problems recorded, 432 planned") in found
    said = [text for file, text in found if file == f"flywheel/{MODEL}/summary.json"]
    assert any(
        text.startswith("cannot be computed from these records (KeyError: ") for text in said
    )
    judged = [one for one in verdict["claims"] if one["id"] == "F1" and one["model"] == MODEL]
    assert [one["verdict"] for one in judged] == ["fails"]


def test_what_no_finding_explains_is_unusable_with_its_cause(
    tmp_path: Path, audit: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvaudit.flywheel import check_routes

    def broken(*_: Any) -> Any:
        raise KeyError("a field")

    run = Path(shutil.copytree(REFERENCE, tmp_path / "run"))
    monkeypatch.setattr(check_routes, "calibrated", broken)
    code, _, err = audit("verify", "--no-programs", run)
    assert code == 2
    assert "nothing can be computed from the records: KeyError: 'a field'; at flywheel/" in err


def test_an_edit_is_schema_valid_and_touches_one_row() -> None:
    subject, rows, _ = made_flywheel()
    kinds = KINDS["flywheel"].records
    seen = set()
    for what, edited in mutations.edits(rows, kinds, 60, "self"):
        changed = [file for file in kinds if edited[file] is not rows[file]]
        assert len(changed) == 1, what
        seen.add(changed[0])
        for row in edited[changed[0]]:
            records.schemas.validate(row, kinds[changed[0]], where=what)
        canonical.dump_lines(edited[changed[0]])
    assert len(seen) > 5
    assert subject == flywheel_stage.MODEL
    assert GENERATIONS in seen
