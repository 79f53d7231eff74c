"""Forgeries that are consistent as far as digests go, up the whole chain, and fail all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic

from kvaudit import digests, manifest, tables
from kvaudit.verify import verify

Audit = Callable[..., tuple[int, str, str]]
MODEL = "tiny-a"
STAGE = f"exactness/{MODEL}"

Rows = list[dict[str, Any]]
SAMPLES = "records/samples.jsonl"
SPLITS = "records/splits.jsonl"
DETERMINISM = "records/determinism.jsonl"
BLOCKS = "records/blocks.jsonl"


def forge(run: Path, name: str, change: Callable[[Rows], object]) -> None:
    """Edits records, makes everything derived from them again, recomputes all digests."""
    rows = synthetic.read_rows(run, MODEL, name)
    change(rows)
    synthetic.write_rows(run, MODEL, name, rows)
    synthetic.derive(run, MODEL)
    synthetic.reseal(run)
    (run / manifest.VERDICT).unlink()


def set_in(*path: Any, value: Any) -> Callable[[Rows], object]:
    def change(rows: Rows) -> None:
        target: Any = rows
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = value

    return change


ZERO = "0" * 64
FORGERIES: dict[str, tuple[str, Callable[[Rows], object], str]] = {
    "argmax of raw logits": (
        SAMPLES,
        lambda rows: [arm["argmax"].__setitem__(-1, 1) for arm in rows[0]["arms"].values()],
        "argmax recorded 1",
    ),
    "margin of raw logits": (
        SAMPLES,
        set_in(0, "top5_margin", 2, value=9.0),
        "top5_margin is not that of the raw logits",
    ),
    "KL of equal logits": (
        SAMPLES,
        set_in(5, "arms", "graft", "kl_from_fresh", 0, value=1e-9),
        "equal logits with a KL other than 0",
    ),
    "argmax of equal logits": (
        SAMPLES,
        set_in(5, "arms", "graft", "argmax", 0, value=1),
        "equal logits with different argmax",
    ),
    "graft that differs": (
        SAMPLES,
        set_in(5, "arms", "graft", "logits_sha256", 0, value=ZERO),
        "5/6 equal",
    ),
    "raw logits of another position": (
        SAMPLES,
        set_in(0, "arms", "graft", "logits_sha256", 2, value=ZERO),
        "not those of the last position",
    ),
    "a sample dropped": (SAMPLES, lambda rows: rows.pop(), "parameters say 6"),
    "a sample dropped in the middle": (SAMPLES, lambda rows: rows.pop(3), "sample 3 belongs"),
    "a sample repeated": (
        SAMPLES,
        lambda rows: rows.__setitem__(5, {**rows[4], "sample": 5}),
        "two samples have one seed",
    ),
    "raw logits disowned": (SAMPLES, set_in(0, "raw", value=None), "raw_samples: 1 recorded"),
    "a graft in the same process": (
        SAMPLES,
        set_in(2, "arms", "graft", "process", value=0),
        "only 5 were restored",
    ),
    "a graft that restored nothing": (
        SAMPLES,
        set_in(2, "arms", "graft", "restored_bytes", value=0),
        "only 5 were restored",
    ),
    "a graft that decoded the span": (
        SAMPLES,
        set_in(2, "arms", "graft", "decoded_tokens", value=50),
        "only 5 were restored",
    ),
    "a reference that was restored": (
        SAMPLES,
        set_in(2, "arms", "fresh", "restored_bytes", value=100),
        "only 5 were restored",
    ),
    "an inexact graft": (SAMPLES, set_in(2, "exact", value=False), "only 5 were restored"),
    "another profile": (SAMPLES, set_in(0, "profile", value=ZERO), "profile is not registered"),
    "another model": (SAMPLES, set_in(0, "model", value="tiny-b"), "model is tiny-b"),
    "a span that is not the block's": (
        SAMPLES,
        set_in(0, "span_sha256", value=ZERO),
        "span_sha256 is not that of its block",
    ),
    "a state that is not the block's": (
        SAMPLES,
        set_in(0, "state_sha256", value=ZERO),
        "state_sha256 is not that of its block",
    ),
    "a block that does not exist": (SAMPLES, set_in(0, "block_id", value=ZERO), "its block is not"),
    "fewer positions": (
        SAMPLES,
        lambda rows: rows[5]["positions"].pop(),
        "positions are not among the query's",
    ),
    "unordered positions": (
        SAMPLES,
        lambda rows: rows[5]["positions"].reverse(),
        "positions do not ascend",
    ),
    "a list cut short": (
        SAMPLES,
        lambda rows: rows[5]["arms"]["graft"]["argmax"].pop(),
        "another length than positions",
    ),
    "an arm left out": (
        SAMPLES,
        lambda rows: rows[5]["arms"].pop("token_by_token"),
        "5/6 samples",
    ),
    "determinism that failed": (
        DETERMINISM,
        set_in(0, "second", "logits_sha256", value=ZERO),
        "its digests say otherwise",
    ),
    "determinism that failed, admitted": (
        DETERMINISM,
        lambda rows: rows[0].update(
            equal=False, second={**rows[0]["second"], "state_sha256": ZERO}
        ),
        "2/3 cases equal",
    ),
    "a determinism case left out": (DETERMINISM, lambda rows: rows.pop(), "no case new_process"),
    "a new process that was not": (
        DETERMINISM,
        set_in(2, "second", "process", value=0),
        "case new_process with processes 0 and 0",
    ),
    "a split that differs": (SPLITS, set_in(0, "logits_sha256", value=ZERO), "2/3 splits equal"),
    "a split whose state differs": (
        SPLITS,
        set_in(0, "state_sha256", value=ZERO),
        "2/3 splits equal",
    ),
    "a split of another length": (SPLITS, set_in(0, "tokens", value=99), "sum to 100"),
    "a split's KL": (SPLITS, set_in(3, "kl", value=0.5), "KL recorded 0.5"),
    "a split's KL called zero": (SPLITS, set_in(3, "kl", value=0), "KL recorded 0, from"),
    "a split's argmax": (SPLITS, set_in(3, "argmax", value=[1, 2]), "argmax"),
    "no control": (SPLITS, lambda rows: rows.pop(), "blind"),
    "a control called a case": (SPLITS, set_in(3, "control", value=False), "3/4 splits equal"),
    "no split under graft": (SPLITS, set_in(1, "grafted", value=False), "under graft"),
    "a block's id": (BLOCKS, set_in(0, "id", value=ZERO), "id is not the digest"),
    "a block's header": (
        BLOCKS,
        set_in(0, "header", "engine", value=ZERO),
        "id is not the digest",
    ),
    "a block too many": (BLOCKS, lambda rows: rows.append(rows[0]), "a block is listed twice"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_consistent_forgery_of_records_fails(run: Path, audit: Audit, name: str) -> None:
    file, change, message = FORGERIES[name]
    forge(run, file, change)
    code, out, err = audit("verify", run, "--json")
    verdict = json.loads(out)
    assert (code, err) == (1, "")
    told = [finding["message"] for finding in verdict["findings"]]
    told += [claim["measured"] for claim in verdict["claims"] if claim["verdict"] == "fails"]
    assert any(message in text for text in told), told


def test_the_forger_of_these_tests_is_good_enough(run: Path, audit: Audit) -> None:
    """Without an edit his work passes: what fails above fails for the edit."""
    forge(run, SAMPLES, lambda rows: None)
    assert audit("verify", run)[0] == 0


def test_forged_kl_and_digest_still_contradict_the_raw_logits(run: Path, audit: Audit) -> None:
    """The graft's row really differs; every record and digest is made to say that KL is 0."""
    row = synthetic.logits_of("another row")
    digest = digests.sha256_bytes(row.tobytes())
    (run / STAGE / f"logits/{digest}.f32").write_bytes(row.tobytes())

    def change(rows: Rows) -> None:
        rows[0]["raw"]["graft"] = digest
        rows[0]["arms"]["graft"]["logits_sha256"][-1] = digest
        rows[0]["arms"]["graft"]["argmax"][-1] = int(np.argmax(row))

    forge(run, SAMPLES, change)
    code, out, _ = audit("verify", run, "--json")
    verdict = json.loads(out)
    failing = {claim["id"] for claim in verdict["claims"] if claim["verdict"] == "fails"}
    assert code == 1
    assert {"E1", "E2"} <= failing
    assert any("KL recorded 0" in finding["message"] for finding in verdict["findings"])


def test_a_profile_that_is_not_split_invariant_is_not_passed(run: Path, audit: Audit) -> None:
    forge(run, SAMPLES, lambda rows: [row.update(split_invariant=False) for row in rows])
    code, out, _ = audit("verify", run, "--json")
    verdicts = {(c["id"], c["model"]): c["verdict"] for c in json.loads(out)["claims"]}
    assert code == 0
    assert verdicts["E3", MODEL] == "not run here"


@pytest.mark.parametrize("name", ["summary.json", "tables/samples.parquet"])
def test_forged_derivatives_fail(run: Path, audit: Audit, name: str) -> None:
    path = run / STAGE / name
    if name == "summary.json":
        synthetic.edit_json(path, lambda value: value["arms"]["graft"].update(equal=5))
    else:
        rows = synthetic.read_rows(run, MODEL, SAMPLES)
        rows[0]["arms"]["graft"]["seconds"]["restore"] = 0.001
        tables.write_samples(path, rows)
    synthetic.reseal(run)
    (run / manifest.VERDICT).unlink()
    code, out, _ = audit("verify", run)
    assert code == 1
    assert f"{STAGE}/{name}" in out


def test_white_space_in_a_summary_is_not_free(run: Path, audit: Audit) -> None:
    path = run / STAGE / "summary.json"
    path.write_bytes(json.dumps(json.loads(path.read_bytes())).encode() + b"\n")
    synthetic.reseal(run)
    (run / manifest.VERDICT).unlink()
    code, out, _ = audit("verify", run)
    assert code == 1
    assert "summary.json: is not what the records make" in out


STAGE_EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "parameters": (lambda v: v["parameters"].update(samples=5), "not what the configuration says"),
    "inputs_used": (lambda v: v["inputs_used"].update({MODEL: ZERO}), "is not registered"),
    "own model": (lambda v: v["inputs_used"].pop(MODEL), "does not name the stage's own model"),
    "time": (lambda v: v.update(started="2025-01-01T00:00:00Z"), "in this order"),
    "date": (lambda v: v.update(started="2026-13-01T00:00:00Z"), "not a date"),
    "subject": (lambda v: v.update(subject="tiny-b"), "do not fit its folder"),
}


@pytest.mark.parametrize("name", STAGE_EDITS)
def test_a_resealed_edit_of_a_stage_manifest_fails(run: Path, audit: Audit, name: str) -> None:
    change, message = STAGE_EDITS[name]
    synthetic.edit_json(run / STAGE / manifest.STAGE, change)
    synthetic.reseal(run)
    (run / manifest.VERDICT).unlink()
    code, out, _ = audit("verify", run)
    assert code == 1
    assert f"{STAGE}/{manifest.STAGE}" in out
    assert message in out


INPUT_EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "configuration": (
        lambda v: v["configuration"]["value"].update(x=1),
        "not the digest of configuration.value",
    ),
    "source": (lambda v: v["source"]["files"].update(x=ZERO), "not the digest of source.files"),
    "profile": (
        lambda v: v["profiles"][MODEL]["profile"].update(n_ctx=1),
        "digest is not that of the profile",
    ),
    "no profile": (lambda v: v["profiles"].pop(MODEL), "none is registered"),
    "two models": (lambda v: v["models"].append(v["models"][0]), "two models have one name"),
    "commit": (lambda v: v["source"].update(dirty=False), "do not go together"),
    "another model": (lambda v: v["models"][0].update(sha256=ZERO), "not the registered one"),
}


@pytest.mark.parametrize("name", INPUT_EDITS)
def test_a_resealed_edit_of_the_inputs_fails(run: Path, audit: Audit, name: str) -> None:
    change, message = INPUT_EDITS[name]
    synthetic.edit_json(run / manifest.INPUTS, change)
    synthetic.reseal(run)
    (run / manifest.VERDICT).unlink()
    code, out, _ = audit("verify", run)
    assert code == 1
    assert message in out


def test_the_end_of_the_run_is_not_free(run: Path, audit: Audit) -> None:
    (run / manifest.VERDICT).unlink()
    synthetic.edit_json(run / manifest.RUN, lambda v: v.update(ended="2026-01-01T00:02:01Z"))
    code, out, _ = audit("verify", run)
    assert code == 1
    assert "run.manifest.json: ended is" in out


def listed(run: Path, name: str, data: bytes) -> tuple[int, str]:
    """Adds a file, lists it, reseals; returns the verifier's answer."""
    (run / STAGE / name).write_bytes(data)
    synthetic.reseal(run)
    verdict = verify(run, check_verdict=False)
    return verdict.exit_code, " ".join(f"{f.file}: {f.message}" for f in verdict.findings)


def test_a_listed_file_that_nothing_reads_fails(run: Path) -> None:
    code, text = listed(run, "records/more.jsonl", b"{}\n")
    assert code == 1
    assert "nothing reads such a file" in text


def test_logits_that_no_record_names_fail(run: Path) -> None:
    data = synthetic.logits_of("stray").tobytes()
    code, text = listed(run, f"logits/{digests.sha256_bytes(data)}.f32", data)
    assert code == 1
    assert "no record names these logits" in text


def test_logits_under_another_name_fail(run: Path) -> None:
    code, text = listed(run, f"logits/{ZERO}.f32", b"1234")
    assert code == 1
    assert "its name is not its SHA-256" in text


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (np.full(64, np.nan, "<f4"), "five finite logits"),
        (np.zeros(4, "<f4"), "five finite logits"),
        (np.zeros(65, "<f4"), "another length than other logits"),
        (np.zeros(65, "u1"), "multiple of 4"),
    ],
)
def test_raw_logits_that_are_no_row_fail(
    run: Path, audit: Audit, row: np.ndarray, message: str
) -> None:
    data = row.tobytes()
    digest = digests.sha256_bytes(data)
    (run / STAGE / f"logits/{digest}.f32").write_bytes(data)

    def change(rows: Rows) -> None:
        rows[1]["raw"]["graft"] = digest
        rows[1]["arms"]["graft"]["logits_sha256"][-1] = digest

    forge(run, SAMPLES, change)
    code, out, err = audit("verify", run)
    assert (code, err) == (1, "")
    assert message in out


def test_raw_logits_named_but_not_listed_are_incomplete(run: Path, audit: Audit) -> None:
    (
        run / STAGE / f"logits/{synthetic.read_rows(run, MODEL, SAMPLES)[0]['raw']['graft']}.f32"
    ).unlink()
    forge(run, SAMPLES, lambda rows: None)
    code, out, _ = audit("verify", run)
    assert code == 3
    assert "not among the outputs" in out


@pytest.mark.parametrize(
    "data", [b"", b"PAR1PAR1", b"not a table", b"PAR1" + b"\xff" * 64 + b"PAR1"]
)
def test_a_hostile_table_fails_without_a_crash(run: Path, data: bytes) -> None:
    code, text = listed(run, "tables/samples.parquet", data)
    assert code == 1
    assert "not a readable Parquet file" in text


def test_a_table_with_free_bytes_fails(run: Path, pristine: Path) -> None:
    good = (pristine / STAGE / "tables/samples.parquet").read_bytes()
    code, text = listed(run, "tables/samples.parquet", good[:4] + b"hidden" + good[4:])
    assert code == 1
    assert "samples.parquet" in text


def test_a_table_with_other_values_fails(run: Path) -> None:
    rows = synthetic.read_rows(run, MODEL, SAMPLES)
    good = tables.sample_bytes(rows)
    assert tables.check_samples(good, rows) is None
    assert tables.check_samples(good, rows[:-1]) == "has 36 rows, its records make 30"
    other = [dict(row, seed="x") for row in rows]
    assert tables.check_samples(good, other) == "does not equal its records"


def test_records_must_be_canonical_even_when_resealed(run: Path, audit: Audit) -> None:
    path = run / STAGE / SAMPLES
    path.write_bytes(path.read_bytes().replace(b'"kind":', b'"kind": ', 1))
    synthetic.reseal(run)
    code, _, err = audit("verify", run)
    assert code == 2
    assert f"{STAGE}/{SAMPLES}, line 1" in err
