"""Records, what is derived from them, and the claims at their edges."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import synthetic

from kvaudit import atomic, canonical, claims, records, schemas
from kvaudit.errors import UnusableInput
from kvaudit.exactness import records as exactness_records
from kvaudit.exactness import summary, tables

MODEL = "tiny-a"


@pytest.fixture
def rows() -> synthetic.Rows:
    return synthetic.rows_of(MODEL)[0]


def outcomes(rows: synthetic.Rows, **changes: Any) -> dict[str, str]:
    typed = exactness_records.typed(rows)
    evidence = claims.Evidence(MODEL, typed, **{"raw_rows": 4, "raw_disagreements": 0, **changes})
    return {claim.id: claim.verdict for claim in claims.judge("exactness", evidence)}


def test_all_claims_hold_on_exact_records(rows: synthetic.Rows) -> None:
    assert outcomes(rows) == dict.fromkeys(("D1", "E1", "E2", "E3"), "holds")


def test_no_claim_holds_without_records() -> None:
    empty: synthetic.Rows = {name: [] for name in exactness_records.KINDS}
    assert set(outcomes(empty, raw_rows=0).values()) == {"fails"}
    lost = claims.without_evidence("exactness", MODEL, "damaged")
    assert [claim.verdict for claim in lost] == ["fails"] * 4


def test_four_samples_are_too_few(rows: synthetic.Rows) -> None:
    rows["records/samples.jsonl"] = rows["records/samples.jsonl"][:4]
    assert outcomes(rows)["E1"] == "fails"


def test_scores_without_raw_logits_do_not_hold(rows: synthetic.Rows) -> None:
    assert outcomes(rows, raw_rows=0)["E2"] == "fails"
    assert outcomes(rows, raw_disagreements=1)["E2"] == "fails"


@pytest.mark.parametrize("kl", [1e-30, -1e-17])
def test_one_kl_that_is_not_zero_fails(rows: synthetic.Rows, kl: float) -> None:
    rows["records/samples.jsonl"][3]["arms"]["graft"]["kl_from_fresh"][1] = kl
    assert outcomes(rows)["E2"] == "fails"


def test_one_argmax_that_differs_fails(rows: synthetic.Rows) -> None:
    arm = rows["records/samples.jsonl"][3]["arms"]["graft"]
    arm["argmax"] = [arm["argmax"][0] + 1, *arm["argmax"][1:]]
    assert outcomes(rows)["E2"] == "fails"


@pytest.mark.parametrize("arm", ["fresh_again", "fresh_process"])
def test_a_fresh_run_that_differs_is_no_determinism(rows: synthetic.Rows, arm: str) -> None:
    sample = rows["records/samples.jsonl"][3]
    sample["arms"][arm]["logits_sha256"] = ["0" * 64] * synthetic.QUERY
    assert outcomes(rows)["D1"] == "fails"


def test_a_claim_is_registered_once() -> None:
    def judge(evidence: claims.Evidence) -> tuple[str, claims.Outcome]:
        return "", "holds"

    with pytest.raises(ValueError, match="twice"):
        claims.rule("E1", stage="exactness", title="", criterion="", paper="")(judge)


def test_a_summary_is_a_function_of_records(rows: synthetic.Rows) -> None:
    made = summary.summarise(MODEL, exactness_records.typed(rows))
    assert made == summary.summarise(MODEL, exactness_records.typed(copy.deepcopy(rows)))
    assert made["samples"]["n"] == synthetic.SAMPLES
    assert made["arms"]["graft"]["equal"] == synthetic.SAMPLES
    assert made["arms"]["graft"]["median_seconds"]["prefill"] is None
    assert made["splits"] == {
        **{"n": 13, "equal": 13, "grafted": 4, "past_window": 7},
        **{"controls": 3, "controls_different": 3},
        "control_kl_max": pytest.approx(max(r["kl"] for r in rows["records/splits.jsonl"])),
    }
    schemas.validate(made, "summary", where="x")


def test_an_empty_stage_has_a_summary() -> None:
    made = summary.summarise(MODEL, exactness_records.Records((), (), (), ()))
    assert made["samples"]["n"] == 0
    assert made["graft_against_fresh_again"] is None


def test_a_row_that_does_not_conform_is_not_written(tmp_path: Path, rows: synthetic.Rows) -> None:
    bad = [{**rows["records/samples.jsonl"][0], "score": 1}]
    with pytest.raises(UnusableInput, match=r"line 1.*score"):
        records.write(tmp_path / "samples.jsonl", "exactness-sample", bad)
    assert list(tmp_path.iterdir()) == []


def test_records_are_read_back_as_written(tmp_path: Path, rows: synthetic.Rows) -> None:
    for name, kind in exactness_records.KINDS.items():
        path = tmp_path / Path(name).name
        records.write(path, kind, rows[name])
        assert records.parse(path.read_bytes(), kind, where=name) == rows[name]


def test_all_record_files_are_needed(rows: synthetic.Rows) -> None:
    del rows["records/splits.jsonl"]
    with pytest.raises(UnusableInput, match=r"splits\.jsonl"):
        exactness_records.typed(rows)


def test_run_length_splits_are_expanded(rows: synthetic.Rows) -> None:
    rows["records/splits.jsonl"][0]["split"] = [[1, 100]]
    rows["records/splits.jsonl"][1]["split"] = [30, 70]
    rows["records/splits.jsonl"][0]["split"] = [1] * 100 + [103]
    rows["records/splits.jsonl"][1]["split"] = [[30, 1], [173, 1]]
    splits = exactness_records.typed(rows).splits
    assert sum(size * count for size, count in splits[0].split) == 203
    assert splits[1].split == ((30, 1), (173, 1))


def test_a_table_has_one_text(rows: synthetic.Rows) -> None:
    samples = rows["records/samples.jsonl"]
    made = tables.sample_bytes(samples)
    assert made == tables.sample_bytes(copy.deepcopy(samples))
    assert tables.check_samples(made, samples) is None
    frame = tables.sample_frame(samples)
    assert len(frame) == synthetic.SAMPLES * len(exactness_records.ARMS)
    assert frame["equal_to_fresh"].all()


def test_an_empty_table_equals_its_records() -> None:
    assert tables.check_samples(tables.sample_bytes([]), []) is None


def test_a_failed_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    atomic.write_json(path, {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_bytes(path, b"new")
    assert path.read_bytes() == canonical.dumps({"a": 1}) + b"\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]
