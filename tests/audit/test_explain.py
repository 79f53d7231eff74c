"""From a claim down to bytes: the right files, their digests, and nothing taken on trust."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic

from kvaudit import claims, cli, digests, manifest, pack, records, stagekinds
from kvaudit.claims import Evidence, Rule
from kvaudit.explain import Programs, explain
from kvaudit.explain_text import render
from kvaudit.explain_trace import judged
from kvaudit.flywheel import rescoring
from kvaudit.flywheel.records import DEPOSITS, GENERATIONS, PROGRAMS

Audit = Callable[..., tuple[int, str, str]]
EXPLAINED = ("--explain", "--json", "--no-programs", "--help")


def given_to(command: str) -> list[str]:
    """The options of a command, as its parser knows them."""
    (commands,) = cli._parser()._subparsers._group_actions  # type: ignore[union-attr]
    parser = commands.choices[command]  # type: ignore[index]
    return [action.option_strings[-1] for action in parser._actions if action.option_strings]


REFERENCE = Path(__file__).parents[2] / "results/reference"
MODELS = ("gemma-3-270m", "smollm2-135m")
MODEL = MODELS[0]
BY_FILE = ("position", "context", "flywheel")
"""Stages whose claims are judged from rows by file, so that it shows which rows they read."""


def test_a_claim_leads_to_the_bytes_it_rests_on(pristine: Path) -> None:
    (found,) = explain(pristine, "E1", model="tiny-a")
    assert found.claim.verdict == "holds"
    assert [file.path for file in found.files] == ["exactness/tiny-a/records/samples.jsonl"]
    for file in found.files:
        assert file.sha256 == digests.sha256_file(pristine / file.path)
        assert file.rows == len((pristine / file.path).read_bytes().splitlines())
        assert file.intact
    assert found.stage_sha256 == digests.sha256_file(pristine / found.folder / manifest.STAGE)
    assert found.run_sha256 == digests.sha256_file(pristine / manifest.RUN)
    assert found.inputs_sha256 == digests.sha256_file(pristine / manifest.INPUTS)
    inputs = manifest.read(pristine / manifest.INPUTS, "inputs")
    assert found.inputs["model"] == inputs["models"][0]
    assert found.inputs["source"]["tree_sha256"] == inputs["source"]["tree_sha256"]
    assert found.inputs["configuration"]["sha256"] == inputs["configuration"]["sha256"]


def test_the_text_names_every_digest(pristine: Path, audit: Audit) -> None:
    code, out, _ = audit("explain", pristine, "E2", "--model", "tiny-b")
    (found,) = explain(pristine, "E2", model="tiny-b")
    assert code == 0
    assert out == render(found)
    for digest in (found.stage_sha256, found.run_sha256, found.inputs_sha256):
        assert str(digest) in out
    assert "6 rows: any of lines 1 to 6" in out
    assert "logits/" in out
    assert "(--json has them all)" in out


def test_without_a_model_every_model_is_explained(pristine: Path, audit: Audit) -> None:
    code, out, _ = audit("explain", pristine, "D1", "--json")
    assert code == 0
    assert [one["claim"]["model"] for one in json.loads(out)] == ["tiny-a", "tiny-b"]


def test_a_bundle_is_explained_like_its_folder(
    pristine: Path, tmp_path: Path, audit: Audit
) -> None:
    pack.pack(pristine, tmp_path / "run.tar.zst")
    assert audit("explain", tmp_path / "run.tar.zst", "E1") == audit("explain", pristine, "E1")


def test_verify_explain_is_the_same_walk(pristine: Path, audit: Audit) -> None:
    assert audit("verify", pristine, "--explain", "E1") == audit("explain", pristine, "E1")


@pytest.mark.parametrize("option", [name for name in given_to("verify") if name not in EXPLAINED])
def test_verify_explain_refuses_every_option_that_it_would_not_heed(
    pristine: Path, audit: Audit, option: str
) -> None:
    value = () if option in ("--write",) else ("2",)
    code, _, err = audit("verify", pristine, "--explain", "E1", option, *value)
    assert (code, err.count("\n")) == (2, 1)
    assert "--explain goes with --json and --no-programs alone; found " in err
    assert option in err


def test_a_claim_that_is_not_made_is_one_clear_error(pristine: Path, audit: Audit) -> None:
    for arguments in (["E9"], ["E1", "--model", "nobody"]):
        code, _, err = audit("explain", pristine, *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert "D1, E1, E2, E3" in err


def test_the_claim_is_judged_again_and_not_copied(run: Path, audit: Audit) -> None:
    rows = synthetic.read_rows(run, "tiny-a", "records/samples.jsonl")
    rows[0]["arms"]["graft"]["logits_sha256"][0] = "0" * 64
    synthetic.write_rows(run, "tiny-a", "records/samples.jsonl", rows)
    code, out, _ = audit("explain", run, "E1", "--model", "tiny-a")
    assert code == 1
    assert "DAMAGED" in out
    synthetic.reseal(run)
    code, out, _ = audit("explain", run, "E1", "--model", "tiny-a")
    assert code == 1
    assert "5/6 equal" in out
    assert "DAMAGED" not in out
    assert audit("explain", run, "E1", "--model", "tiny-b")[0] == 0


def test_an_unsealed_run_is_incomplete(run: Path, audit: Audit) -> None:
    (run / manifest.RUN).unlink()
    code, out, _ = audit("explain", run, "E1", "--model", "tiny-a")
    assert code == 3
    assert "not sealed" in out


def test_every_file_that_a_claim_names_is_one_of_its_stage() -> None:
    for stage, kind in stagekinds.KINDS.items():
        for entry in claims.rules(stage):
            for name in entry.files:
                assert name in kind.records or name == "logits/", (stage, entry.id, name)


class Watched(Mapping[str, Any]):
    """Rows by file that remember which files were read."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = rows
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class WatchedFields:
    """Typed records that remember which of their fields were read."""

    def __init__(self, typed: Any, read: set[str] | None = None) -> None:
        self._typed = typed
        self.read: set[str] = set() if read is None else read

    def __getattr__(self, name: str) -> Any:
        found = getattr(type(self._typed), name, None)
        if callable(found):  # a method: its reads count too
            return lambda *arguments: found(WatchedFields(self._typed, self.read), *arguments)
        self.read.add(f"records/{name}.jsonl")
        return getattr(self._typed, name)


EXACT = [
    entry
    for stage in ("exactness", "position", "cost", "context")
    for entry in claims.rules(stage)
    if (stage, entry.id) != ("context", "C4")  # makes the whole summary, and takes its part
]


@pytest.mark.parametrize("entry", EXACT, ids=lambda entry: entry.id)
def test_a_claim_reads_the_files_that_it_names_and_no_other(entry: Rule) -> None:
    kind = stagekinds.KINDS[entry.stage]
    folder = REFERENCE / entry.stage / "gemma-3-270m"
    typed = kind.typed(records.read_folder(folder, kind.records))
    watched = Watched(typed) if isinstance(typed, dict) else WatchedFields(typed)
    entry.judge(Evidence("gemma-3-270m", watched, raw_rows=1, raw_disagreements=0))
    named = {name for name in entry.files if name.endswith(".jsonl")}
    if entry.id == "E2":  # its raw rows are those of both files, counted by the verifier
        named.remove("records/splits.jsonl")
    assert watched.read == named


def test_a_stage_that_names_no_files_rests_on_all_its_records(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(pristine, tmp_path / "run")
    entry = next(rule for rule in claims.rules("exactness") if rule.id == "E1")
    everything = Rule(**{**vars(entry), "files": ()})
    monkeypatch.setitem(claims._RULES, ("exactness", "E1"), everything)
    (found,) = explain(run, "E1", model="tiny-a")
    names = {file.path.removeprefix("exactness/tiny-a/") for file in found.files}
    assert names == {*stagekinds.KINDS["exactness"].records}


# -- which rows a claim rests on ----------------------------------------------------------------


def records_of(stage: str, model: str) -> Any:
    kind = stagekinds.KINDS[stage]
    return kind.typed(records.read_folder(REFERENCE / stage / model, kind.records))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "entry",
    [entry for stage in BY_FILE for entry in claims.rules(stage)],
    ids=lambda entry: entry.id,
)
def test_the_rows_that_a_claim_does_not_rest_on_can_be_taken_away(entry: Rule, model: str) -> None:
    rows = records_of(entry.stage, model)
    evidence = Evidence(model, rows, 0, 0)
    claim, trace = judged(entry, evidence)
    assert claim == claims.judge_one(entry, evidence)
    assert trace.rows
    assert claims.judge_one(entry, Evidence(model, trace.chosen(rows), 0, 0)) == claim


def test_a_sum_over_all_rows_rests_on_all_though_it_reads_more_of_some() -> None:
    """The longest prefixes are told at more length than the others, and all are counted."""
    entry = next(rule for rule in claims.rules("position") if rule.id == "P5")
    _, trace = judged(entry, Evidence(MODEL, records_of("position", MODEL), 0, 0))
    assert trace.ranges("records/prefixes.jsonl") == ((1, 20),)


def made_rule(judge: Callable[[Evidence], tuple[str, claims.Outcome]]) -> Rule:
    return Rule("X1", "made", "", "", "", judge)


def test_a_row_that_is_counted_but_not_read_further_is_not_left_out() -> None:
    rows: Any = {"records/x.jsonl": [{"a": n, "b": n} for n in range(4)], "records/y.jsonl": [{}]}

    def largest(evidence: Evidence) -> tuple[str, claims.Outcome]:
        best = max(evidence.records["records/x.jsonl"], key=lambda row: int(row["a"]))
        return f"{best['b']}", "holds"

    def counted(evidence: Evidence) -> tuple[str, claims.Outcome]:
        held = evidence.records["records/x.jsonl"]
        return f"{largest(evidence)[0]} of {len(held)}", "holds"

    def parted(evidence: Evidence) -> tuple[str, claims.Outcome]:
        held = evidence.records["records/x.jsonl"]
        return f"{1 / (len(held) - 1)}, {largest(evidence)[0]}", "holds"

    for judge, numbers in ((largest, (3,)), (counted, (0, 1, 2, 3)), (parted, (0, 1, 2, 3))):
        _, trace = judged(made_rule(judge), Evidence("tiny", rows, 0, 0))
        assert trace.rows == {"records/x.jsonl": numbers}


def test_a_row_read_as_a_whole_is_read_in_every_field() -> None:
    row = {"a": 1, "b": 2}
    for read in (
        dict,
        list,
        len,
        lambda one: {**one},
        lambda one: one | {},
        lambda one: one == row,
    ):

        def judge(
            evidence: Evidence, read: Callable[[Any], Any] = read
        ) -> tuple[str, claims.Outcome]:
            return f"{read(evidence.records['records/x.jsonl'][0])}", "holds"

        _, trace = judged(made_rule(judge), Evidence("tiny", {"records/x.jsonl": [row, row]}, 0, 0))
        assert trace.rows == {"records/x.jsonl": (0, 1) if read is len else (0,)}


def test_lines_are_told_as_ranges(audit: Audit) -> None:
    (found,) = explain(REFERENCE, "C4-time", model=MODEL)
    (file,) = found.files
    assert file.lines is not None
    assert file.rows is not None
    count = sum(last - first + 1 for first, last in file.lines)
    assert 0 < count < file.rows
    assert f"{file.rows} rows, of them {count}: lines {file.lines[0][0]} to " in render(found)


# -- programs -----------------------------------------------------------------------------------


def test_a_claim_that_rests_on_programs_is_not_run_here_unless_that_is_asked_for(
    audit: Audit,
) -> None:
    code, out, _ = audit("explain", REFERENCE, "F3", "--model", MODEL)
    assert code == 0
    assert "verdict    not run here" in out
    assert "not run again: --programs does" in out
    assert "with what is recorded of them: holds" in out
    assert "records/growth.jsonl" not in out  # F6 alone reads it


def test_a_claim_that_fails_by_its_records_fails_whatever_programs_do(pristine: Path) -> None:
    (found,) = explain(pristine, "E1", model="tiny-a")
    held = Programs(3, 0, "not run again", "holds")
    claim = replace(found.claim, verdict="not run here")
    assert replace(found, claim=claim, programs=held).exit_code == 0
    assert replace(found, claim=claim, programs=replace(held, as_recorded="fails")).exit_code == 1


def test_a_claim_that_rests_on_no_program_is_judged_and_none_is_run(audit: Audit) -> None:
    for more in ([], ["--programs"]):
        code, out, _ = audit("explain", REFERENCE, "F-exact", "--model", MODEL, *more)
        assert code == 0
        assert "verdict    holds" in out
        assert "programs " not in out


@pytest.mark.parametrize("claim", ["F1", "F3", "F4", "F6", "F8", "F9", "F10"])
def test_a_claim_on_the_library_rests_on_the_programs_that_admitted_it(claim: str) -> None:
    """As a forger would have it: what admitted nothing in truth, did by its record."""
    rows = records_of("flywheel", MODEL)
    entry = next(rule for rule in claims.rules("flywheel") if rule.id == claim)
    assert entry.on_programs
    _, trace = judged(entry, Evidence(MODEL, rows, 0, 0))
    named = {*rescoring.named(trace.chosen(rows), rows)}
    deciding = [row for row in rows[GENERATIONS] if row["arm"] in rescoring.LIBRARY_ARMS]
    assert named >= {row["program_sha256"] for row in (*deciding, *rows[DEPOSITS])} - {None}
    assert named <= {row["sha256"] for row in rows[PROGRAMS]}


@pytest.mark.slow
def test_only_the_programs_behind_a_claim_are_run_again() -> None:
    (found,) = explain(REFERENCE, "F3", model=MODEL, programs=True)
    assert found.programs is not None
    assert found.claim.verdict == found.programs.as_recorded == "holds"
    assert found.programs.rerun == found.programs.named
    listed = REFERENCE / found.folder / "records/programs.jsonl"
    assert 0 < found.programs.rerun < listed.read_bytes().count(b"\n")
