"""Problem files of a user in the stage flywheel: pinned, split, asked and judged again."""

from __future__ import annotations

import copy
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from test_flywheel_stage import inputs_of
from tinyflywheel import Measured, run

from kvaudit import claims, digests, manifest, schemas
from kvaudit.errors import InputChanged, UnusableInput
from kvaudit.flywheel import check_files
from kvaudit.flywheel.kind import KIND
from kvaudit.flywheel.records import DEPOSITS, FILE_ARMS, GENERATIONS, PROBLEMS, PROGRAMS
from kvgraft import flywheel_files
from kvgraft.recheck_generations import recheck_rows

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
pytestmark = pytest.mark.usefixtures("isolation")
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the shared data folder ../shared/data is absent"
)
SMALL = {"arms": [], "attempts": 2, "answer_tokens": 6, "program_tokens": 16, "flat_blocks": 2}


def aime(number: int) -> dict[str, Any]:
    return {"id": f"I-{number}", "problem": f"What is {number} + 7?", "answer": number + 7}


def live(number: int, release: str, answer: str) -> dict[str, Any]:
    return {
        "question_id": f"q{number}",
        "category": "reasoning",
        "task": "spatial" if number % 2 else "logic",
        "turns": [f"How many corners has solid {number} of kind {number % 3}?"],
        "ground_truth": answer,
        "livebench_release_date": release,
    }


def entry(path: Path, form: str, **settings: Any) -> dict[str, Any]:
    sha256 = digests.sha256_bytes(path.read_bytes())
    return {"name": path.stem, "path": str(path), "form": form, "sha256": sha256, **settings}


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("files")
    old = [live(n, "2024-06-24", str(n)) for n in range(3)]
    new = [live(n, "2024-08-31", "yes, no") for n in range(3, 6)]
    again = {**new[0], "question_id": "again", "turns": old[0]["turns"]}
    contents = {"some-aime": map(aime, range(4)), "some-live": [*old, *new, again]}
    for name, rows in contents.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        entry(folder / "some-aime.jsonl", "aime", problems=3),
        entry(folder / "some-live.jsonl", "livebench", split="2024-08-31"),
    ]


@pytest.fixture(scope="module")
def measured(models: Any, entries: Any, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return run(models("llama"), tmp_path_factory.mktemp("asked"), files=entries, **SMALL)


def complaints(made: Measured, rows: Any = None) -> list[str]:
    config = {"stages": ["flywheel"], "flywheel": made.stage.options}
    inputs = {**inputs_of(made.stage), "problem_files": flywheel_files.registered(config)}
    found = KIND.check(made.stage.model.name, rows or made.rows, inputs)
    return [one.message for one in found]


def test_the_auditor_finds_no_contradiction_and_judges_every_answer_again(
    measured: Measured,
) -> None:
    assert complaints(measured) == []
    assert {row["arm"] for row in measured.rows[GENERATIONS]} == {*FILE_ARMS}
    assert KIND.rerun is not None
    assert KIND.rerun(measured.rows).problems == ()
    named = {row["program_sha256"] for row in measured.of("file-code")}
    assert named <= {row["sha256"] for row in measured.rows[PROGRAMS]}


def test_old_releases_are_the_library_and_new_ones_the_test(measured: Measured) -> None:
    roles = {row["name"]: row["role"] for row in measured.rows[PROBLEMS] if "release" in row}
    # The file's last problem has the words of one in the library, the fourth of AIME is too many.
    assert roles == {
        **{f"some-aime/I-{n}": "file-test" for n in range(3)},
        **{f"some-live/q{n}": "file-library" for n in range(3)},
        **{f"some-live/q{n}": "file-test" for n in range(3, 6)},
    }
    blocks = [row["name"] for row in measured.rows[DEPOSITS] if row["variant"] == "file"]
    assert blocks == [f"some-live/{n}" for n in range(3)]
    assert len(measured.of("file-direct")) == 2 * 6
    assert len(measured.of("file-code")) == 3, "answers in words are not asked by program"
    assert [row["deposits"] for row in measured.of("file-recall")] == [[name] for name in blocks]
    assert len(measured.of("file-routed")) == len(measured.of("file-flat")) == 3
    for routed in measured.of("file-routed"):
        flat = next(r for r in measured.of("file-flat") if r["problem"] == routed["problem"])
        assert {*routed["deposits"]} <= {*flat["deposits"]}
        assert routed["exact"] is True
        assert flat["cached_tokens"] == 0


def test_the_summary_has_a_table_for_each_file_and_no_other_claim_changes(
    measured: Measured, entries: Any
) -> None:
    name = measured.stage.model.name
    summary = json.loads(KIND.summary_bytes(name, measured.rows))
    schemas.validate(summary, "flywheel-summary", where="summary")
    first, second = summary["files"]
    assert [first["sha256"], second["sha256"]] == [one["sha256"] for one in entries]
    assert (first["library"], first["problems"], second["library"], second["problems"]) == (
        *(0, 3),
        *(3, 3),
    )
    assert second["routed_flat"]["first"]["n"] == 3
    assert [one["category"] for one in second["categories"]] == [
        "reasoning/spatial",
        "reasoning/logic",
    ]
    said = claims.judge("flywheel", claims.Evidence(name, measured.rows, 0, 0, 100, None))
    assert {one.verdict for one in said} == {"not run here"}


def test_an_engine_reads_every_answer_again(measured: Measured) -> None:
    found = recheck_rows(measured.stage.model, measured.rows, None, "again", 1, lambda _: None)
    assert found.equal == found.checked == len(measured.rows[GENERATIONS])


def _answer(rows: Any) -> None:
    row = next(r for r in rows[GENERATIONS] if r["arm"] == "file-routed")
    row.update(answer="yes, no", outcome="answer")


def _key(rows: Any) -> None:
    next(r for r in rows[PROBLEMS] if r["role"] == "file-library")["answer"] = 5


def _library(rows: Any) -> None:
    next(r for r in rows[PROBLEMS] if r["role"] == "file-test" and r["release"])["role"] = (
        "file-library"
    )


def _digest(rows: Any) -> None:
    next(r for r in rows[PROBLEMS] if r["role"] == "file-test")["file_sha256"] = "0" * 64


def _block(rows: Any) -> None:
    row = next(r for r in rows[DEPOSITS] if r["variant"] == "file")
    row["text"] = row["text"].replace("Verified answer: 0", "Verified answer: 1")


def _fewer(rows: Any) -> None:
    rows[GENERATIONS] = [r for r in rows[GENERATIONS] if r["problem"] != "some-live/q4"]


def _picked(rows: Any) -> None:
    """A problem of the test left out with all that was asked of it."""
    for file, key in ((PROBLEMS, "name"), (GENERATIONS, "problem")):
        rows[file] = [r for r in rows[file] if r[key] != "some-live/q5"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_picked, "some-live: its problems are not those that inputs.manifest.json registers"),
        (_answer, "the text says"),
        (_key, "answer, text not as its problem has it"),
        (_library, "not chosen, dated and split as planned"),
        (_digest, "not chosen, dated and split as planned"),
        (_block, "text not as its problem has it"),
        (_fewer, "are not the planned questions"),
    ],
)
def test_a_changed_record_is_found(
    measured: Measured, change: Callable[[Any], None], message: str
) -> None:
    rows = copy.deepcopy(measured.rows)
    change(rows)
    assert any(message in text for text in complaints(measured, rows)), complaints(measured, rows)


@pytest.mark.model
def test_the_rule_registers_the_rows_that_are_asked(
    entries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    config = yaml.safe_load(Path("config/default.yaml").read_text())
    config |= {"pins": "", "models": ["smollm2-135m"], "stages": ["flywheel"]}
    config["exactness"] |= {"determinism_lengths": [64], "split_lengths": [64]}
    config["flywheel"] = {**SMALL, "files": entries}
    given = SimpleNamespace(
        log=[str(tmp_path / "log")],
        params=SimpleNamespace(config=config),
        output=[str(tmp_path / "inputs.manifest.json")],
    )
    runpy.run_path("workflow/stages/register_inputs.py", {"snakemake": given})
    asked = flywheel_files.load(config["flywheel"])
    inputs = manifest.read(given.output[0], "inputs")
    assert {*inputs["problem_files"]} == {"some-aime", "some-live"}
    assert [*check_files.registered(asked, inputs)] == []
    assert len([*check_files.registered(asked[:-1], inputs)]) == 1


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sha256": "0" * 64}, InputChanged, "not the pinned one"),
        ({"path": "absent.jsonl"}, UnusableInput, "cannot be read"),
        ({"split": "2020-01-01"}, UnusableInput, "no problem for the library"),
        ({"split": "2030-01-01"}, UnusableInput, "no problem for the test"),
        ({"characters": 5}, UnusableInput, "no problem for the library"),
    ],
)
def test_a_file_that_cannot_be_asked_is_refused_before_anything_is_run(
    entries: Any, models: Any, tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    files = [entries[0], {**entries[1], **change}]
    with pytest.raises(error, match=message):
        flywheel_files.load({"files": files})
    with pytest.raises(error, match=message):
        run(models("llama"), tmp_path, files=files, **SMALL)
    assert not (tmp_path / "work").exists()


def test_problems_that_do_not_fit_into_a_context_are_refused_before_anything_is_run(
    models: Any, tmp_path: Path
) -> None:
    path = tmp_path / "long.jsonl"
    old = [live(n, "2024-06-24", "yes") for n in range(12)]
    new = [live(n, "2024-08-31", "yes") for n in range(12, 14)]
    for row in old:
        row["turns"] = [f"{row['turns'][0]} {'corner ' * 200}"]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*old, *new]))
    files = [entry(path, "livebench", split="2024-08-31")]
    settings = {**SMALL, "flat_blocks": 12}
    with pytest.raises(UnusableInput, match="too many tokens with the blocks") as refused:
        run(models("llama"), tmp_path, files=files, **settings)
    assert refused.value.where == "long/q12"
    assert not (tmp_path / "work").exists()


def test_a_file_without_dates_is_not_split(entries: Any) -> None:
    with pytest.raises(UnusableInput, match="a problem has none"):
        flywheel_files.load({"files": [{**entries[0], "split": "2024-01-01"}]})


# -- other people's files -------------------------------------------------------------------------


@needs_shared
def test_slices_of_real_files_are_asked(models: Any, tmp_path: Path) -> None:
    """Of AIME 2025 and of LiveBench's AMPS_Hard, read where they lie."""
    files = [
        {**entry(SHARED / "aime2025/test2025-I.jsonl", "aime", problems=2), "name": "aime-2025-i"},
        {
            **entry(
                SHARED / "livebench/math/AMPS_Hard/question.jsonl", "livebench",
                split="2024-08-31", problems=2, library=3, characters=120,
            ),
            "name": "amps-hard",
        },
    ]  # fmt: skip
    made = run(models("llama"), tmp_path, files=files, **{**SMALL, "attempts": 1})
    assert complaints(made) == []
    summary = json.loads(KIND.summary_bytes(made.stage.model.name, made.rows))
    assert [(one["library"], one["problems"]) for one in summary["files"]] == [(0, 2), (3, 2)]
    assert summary["files"][1]["routed_flat"]["first"]["n"] == 2
