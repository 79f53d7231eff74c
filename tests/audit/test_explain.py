"""From a claim down to bytes: the right files, their digests, and nothing taken on trust."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import synthetic

from kvaudit import claims, digests, manifest, pack, records, stagekinds
from kvaudit.claims import Evidence, Rule
from kvaudit.explain import explain, render

Audit = Callable[..., tuple[int, str, str]]
REFERENCE = Path(__file__).parents[2] / "results/reference"


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
    assert "lines 1 to 6" in out
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
    assert audit("verify", pristine, "--explain", "E1", "--write")[0] == 2


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
