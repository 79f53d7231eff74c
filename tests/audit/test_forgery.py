"""Forgeries that are consistent as far as digests go, up the whole chain, and fail all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic

from kvaudit import digests, manifest, profiles, records
from kvaudit.errors import UnusableInput
from kvaudit.exactness import tables
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
CONTROL = 8
"""The line of the stock control: text 0 has 7 splits and another control before it."""


def each_arm(**changes: Any) -> Callable[[Rows], object]:
    """Changes every arm of sample 2 alike, so that the arms still agree."""
    return lambda rows: [arm.update(changes) for arm in rows[2]["arms"].values()]


def edit_block(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Edits the first block's header, its id, and the sample that names it."""

    def edit(run: Path) -> None:
        blocks = synthetic.read_rows(run, MODEL, BLOCKS)
        samples = synthetic.read_rows(run, MODEL, SAMPLES)
        change(blocks[0]["header"])
        samples[0]["block_id"] = blocks[0]["id"] = digests.sha256_json(blocks[0]["header"])
        synthetic.write_rows(run, MODEL, BLOCKS, blocks)
        forge(run, SAMPLES, lambda rows: rows.__setitem__(slice(None), samples))

    return edit


def failing_split(rows: Rows) -> None:
    """A split that differs, in the place of the control of text 0."""
    rows[0].update(control=True, logits_sha256=ZERO, kl=0.5)
    del rows[7]


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
    "a sample dropped": (SAMPLES, lambda rows: rows.pop(), "5 samples recorded, 6 planned"),
    "a sample dropped in the middle": (SAMPLES, lambda rows: rows.pop(3), "sample 3 belongs"),
    "a sample repeated": (
        SAMPLES,
        lambda rows: rows.__setitem__(5, {**rows[4], "sample": 5}),
        "two samples have one seed",
    ),
    "raw logits disowned": (
        SAMPLES,
        set_in(0, "raw", value=None),
        "raw logits are not kept of the planned samples",
    ),
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
    "a split that differs": (SPLITS, set_in(0, "logits_sha256", value=ZERO), "12/13 splits equal"),
    "a split whose state differs": (
        SPLITS,
        set_in(0, "state_sha256", value=ZERO),
        "12/13 splits equal",
    ),
    "a split of another length": (SPLITS, set_in(0, "tokens", value=99), "sum to 203"),
    "a split's KL": (SPLITS, set_in(CONTROL, "kl", value=0.5), "KL recorded 0.5"),
    "a split's KL called zero": (SPLITS, set_in(CONTROL, "kl", value=0), "KL recorded 0, from"),
    "a split's argmax": (SPLITS, set_in(CONTROL, "argmax", value=[1, 2]), "argmax"),
    "no control": (
        SPLITS,
        lambda rows: rows.__setitem__(slice(None), [r for r in rows if not r["control"]]),
        "blind",
    ),
    "a control called a case": (
        SPLITS,
        set_in(CONTROL, "control", value=False),
        "13/14 splits equal",
    ),
    "no split under graft": (
        SPLITS,
        lambda rows: [row.update(grafted=False) for row in rows],
        "under graft",
    ),
    "a block's id": (BLOCKS, set_in(0, "id", value=ZERO), "id is not the digest"),
    "a block's header": (
        BLOCKS,
        set_in(0, "header", "engine", value=ZERO),
        "id is not the digest",
    ),
    # counts: nothing left out, put in twice or relabelled
    "a determinism case twice": (DETERMINISM, lambda rows: rows.append(rows[0]), "one too many"),
    "determinism of another length": (
        DETERMINISM,
        lambda rows: [row.update(tokens=8) for row in rows],
        "the planned case new_context of 64 tokens is absent",
    ),
    "a split left out": (SPLITS, lambda rows: rows.pop(1), "text 0: 1 planned splits absent"),
    "a split twice": (SPLITS, lambda rows: rows.append(rows[0]), "0 planned splits absent, 1 not"),
    "a split instead of another": (
        SPLITS,
        lambda rows: rows.__setitem__(1, rows[0]),
        "1 planned splits absent, 1 not",
    ),
    "the one-shot for a split": (
        SPLITS,
        set_in(0, "split", value=[[203, 1]]),
        "1 planned splits absent, 1 not",
    ),
    "a graft called none": (SPLITS, set_in(6, "grafted", value=False), "1 planned splits absent"),
    "a failing split called a control": (SPLITS, failing_split, "1 planned controls absent, 1 not"),
    "no stock control": (SPLITS, lambda rows: rows.pop(CONTROL), "1 planned controls absent"),
    "a stock control by name": (
        SPLITS,
        set_in(7, "profile_name", value="stock"),
        "1 planned controls absent",
    ),
    "a text left out": (
        SPLITS,
        lambda rows: rows.__setitem__(slice(None), [r for r in rows if r["sample"] == 0]),
        "text 1: 6 planned splits absent",
    ),
    "a text too many": (SPLITS, set_in(0, "sample", value=2), "text 2 is not planned"),
    "a text of another length": (
        SPLITS,
        lambda rows: [r.update(tokens=8, split=[8]) for r in rows if r["sample"] == 1],
        "text 1 has another length than planned",
    ),
    "a reference of its own": (
        SPLITS,
        set_in(0, "reference_state_sha256", value=ZERO),
        "compared with different references",
    ),
    "a seed of one's choice": (SAMPLES, set_in(2, "seed", value="lucky"), "not the configured one"),
    "a shorter span": (
        SAMPLES,
        set_in(5, "span_tokens", value=32),
        "its span has another length than planned",
    ),
    # what the profile implies
    "split invariance denied": (
        SAMPLES,
        lambda rows: [row.update(split_invariant=False) for row in rows],
        "split_invariant is not what its profile implies",
    ),
    "no arm one_shot": (
        SAMPLES,
        lambda rows: rows[5]["arms"].pop("one_shot"),
        "one_shot is absent",
    ),
    "a window that is not passed": (
        SAMPLES,
        set_in(5, "past_window", value=False),
        "past_window is not what",
    ),
    "a split's window": (SPLITS, set_in(0, "past_window", value=False), "past_window is not what"),
    # arms
    "half a state restored": (
        SAMPLES,
        set_in(2, "arms", "graft", "restored_bytes", value=1),
        "graft: restored 1 bytes",
    ),
    "token by token from nothing": (
        SAMPLES,
        set_in(2, "arms", "token_by_token", "restored_bytes", value=0),
        "token_by_token: restored 0 bytes",
    ),
    "a restored one-shot": (
        SAMPLES,
        set_in(2, "arms", "one_shot", "restored_bytes", value=9),
        "one_shot: restored 9 bytes",
    ),
    "a fresh run that skipped tokens": (
        SAMPLES,
        set_in(2, "arms", "fresh", "decoded_tokens", value=4),
        "fresh: decoded 4 tokens",
    ),
    "one process": (
        SAMPLES,
        set_in(2, "arms", "fresh_process", "process", value=0),
        "fresh_process: was computed in the wrong process",
    ),
    "fresh elsewhere": (SAMPLES, each_arm(process=7), "not computed by the stage's own process"),
    "no end state": (SAMPLES, each_arm(state_sha256=None), "its end state is not recorded"),
    "a graft with another end state": (
        SAMPLES,
        set_in(2, "arms", "graft", "state_sha256", value=ZERO),
        "5/6 equal",
    ),
    "token by token to another end state": (
        SAMPLES,
        set_in(2, "arms", "token_by_token", "state_sha256", value=ZERO),
        "5/6 samples",
    ),
    "a position in the middle left out": (
        SAMPLES,
        lambda rows: [
            values.pop(1)
            for values in (
                rows[5]["positions"],
                rows[5]["top5_margin"],
                *(
                    arm[key]
                    for arm in {id(a): a for a in rows[5]["arms"].values()}.values()
                    for key in ("logits_sha256", "argmax", "kl_from_fresh")
                ),
            )
        ],
        "positions are not among the query's",
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


BLOCK_EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "provenance's profile": (
        lambda h: h["provenance"]["profile"]["settings"].update(min_rows=9),
        "the profile in its provenance is not that of its digest",
    ),
    "no provenance": (lambda h: h.update(provenance={}), "the profile in its provenance"),
    "engine": (lambda h: h.update(engine=ZERO), "engine is not the digest"),
    "model name": (lambda h: h["model"].update(name="tiny-b"), "not, in every field"),
    "architecture": (lambda h: h["model"].update(architecture="gpt2"), "not, in every field"),
    "inexact": (lambda h: h["provenance"].update(exact=False), "does not say that it is exact"),
    "profile": (lambda h: h.update(profile=ZERO), "its profile is not the configured one"),
}


@pytest.mark.parametrize("name", BLOCK_EDITS)
def test_a_consistent_forgery_of_a_block_fails(run: Path, audit: Audit, name: str) -> None:
    change, message = BLOCK_EDITS[name]
    edit_block(change)(run)
    code, out, err = audit("verify", run)
    assert (code, err) == (1, "")
    assert message in out


def test_a_profile_that_is_not_split_invariant_is_not_passed(tmp_path: Path) -> None:
    run = synthetic.build(tmp_path / "stock", preset=synthetic.STOCK)
    verdict = verify(run)
    assert verdict.exit_code == 0
    assert {c.verdict for c in verdict.claims if c.id == "E3"} == {"not run here"}
    assert {c.verdict for c in verdict.claims if c.id != "E3"} == {"holds"}
    rows = synthetic.rows_of(MODEL)[0][SPLITS]
    synthetic.write_rows(run, MODEL, SPLITS, rows)
    synthetic.derive(run, MODEL)
    synthetic.reseal(run)
    assert verify(run).exit_code == 1


def test_a_profile_implies_what_the_stage_takes_it_to_imply() -> None:
    good = synthetic.profile(MODEL)
    assert profiles.split_invariant(good)
    for part, change in (
        ("settings", {"tiled": True}),
        ("settings", {"min_rows": 1}),
        ("settings", {"n_gpu_layers": 1}),
        ("machine", {"architecture": "aarch64"}),
        ("context", {"flash_attention": True}),
        ("buffers", {"weights": ["CPU_REPACK"]}),
        ("buffers", {"weights": ["AMX"]}),
        ("environment", {"GGML_CPU_TILED_MM": "1"}),
    ):
        assert not profiles.split_invariant({**good, part: {**good[part], **change}})


def test_too_many_lines_are_not_read() -> None:
    with pytest.raises(UnusableInput, match="too many lines"):
        records.parse(b"{}\n" * 200_001, "block-header", where="x")


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
    "no parameter": (lambda v: v["parameters"].pop("samples"), "samples is not in both"),
    "more parameters": (lambda v: v["parameters"].update(x=1), "x is not in both"),
    "no parameters": (lambda v: v.update(parameters={}), "is not in both"),
    "no lock": (lambda v: v["inputs_used"].pop("envs/audit.txt"), "does not name envs/audit.txt"),
    "no source": (lambda v: v["inputs_used"].pop("source"), "does not name source"),
    "another input": (
        lambda v: v["inputs_used"].update({"tiny-b": synthetic.digest_of("model", "tiny-b")}),
        "names tiny-b, which such a stage does not use",
    ),
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
    code, out, _ = audit("verify", run, "--json")
    assert code == 1
    found = json.loads(out)["findings"]
    told = [entry["message"] for entry in found if entry["file"] == f"{STAGE}/{manifest.STAGE}"]
    assert any(message in text for text in told), told


INPUT_EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "configuration": (
        lambda v: v["configuration"]["value"].update(x=1),
        "not the digest of configuration.value",
    ),
    "source": (lambda v: v["source"]["files"].update(x=ZERO), "not the digest of source.files"),
    "profile": (
        lambda v: v["profiles"][MODEL]["stock"]["profile"].update(n_ctx=1),
        "digest is not that of the profile",
    ),
    "a bare digest": (
        lambda v: v["profiles"][MODEL]["split-invariant"].pop("profile"),
        "is not a digest with its profile",
    ),
    "an empty profile": (
        lambda v: v["profiles"][MODEL].update(
            stock={"digest": digests.sha256_json({}), "profile": {}}
        ),
        "lacks what a profile says",
    ),
    "a profile too many": (
        lambda v: v["profiles"][MODEL].update(more=v["profiles"][MODEL]["stock"]),
        "not exactly the configured preset and stock",
    ),
    "profiles exchanged": (
        lambda v: v["profiles"][MODEL].update(stock=v["profiles"][MODEL]["split-invariant"]),
        "the profile is named split-invariant",
    ),
    "a setting": (
        lambda v: v["configuration"]["value"]["profile"].update(n_ctx=512),
        "n_ctx is not what the configuration says",
    ),
    "a configuration of no schema": (
        lambda v: v["configuration"]["value"]["exactness"].update(samples="6"),
        "does not conform to schema config",
    ),
    "a configuration without a key": (
        lambda v: v["configuration"]["value"]["exactness"].pop("samples"),
        "has no samples",
    ),
    "an endless plan": (
        lambda v: v["configuration"]["value"]["exactness"].update(split_lengths=[2**52]),
        "too many to check",
    ),
    "a model dropped": (
        lambda v: v["configuration"]["value"].update(models=[MODEL]),
        "models are not those of the configuration",
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
