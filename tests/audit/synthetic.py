"""Builds a small, valid run directory through the public functions, without any engine.

The logits are real float32 rows of a small vocabulary; all claims hold on it. Tests then damage
or forge it. `reseal` is what a patient forger does: recompute every digest above an edit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvaudit import canonical, digests, manifest, records
from kvaudit.exactness import plan, tables
from kvaudit.exactness import records as exactness_records
from kvaudit.exactness.kind import KIND
from kvaudit.profiles import engine_digest

MODELS = ("tiny-a", "tiny-b")
VOCABULARY = 64
SAMPLES = 6
RAW = 6
QUERY = 3
WINDOW = 60
SECTION = {
    "samples": SAMPLES,
    "raw_samples": RAW,
    "min_tokens": 32,
    "max_tokens": 80,
    "determinism_lengths": [64],
    "split_lengths": [203, 50],
    "random_splits": 2,
    "single_tokens": 5,
}
INVARIANT, STOCK, PORTABLE = "split-invariant", "stock", "portable"
SEED = "synthetic"
CREATED, STARTED, ENDED = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"

Rows = dict[str, list[dict[str, Any]]]


def digest_of(*parts: object) -> str:
    """A digest that stands for content which the verifier never sees."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def logits_of(*parts: object) -> np.ndarray:
    """One float32 row [VOCABULARY], a function of the parts alone."""
    seed = int(digest_of(*parts)[:16], 16)
    return np.random.default_rng(seed).normal(0, 3, VOCABULARY).astype("<f4")


def context_of(settings: dict[str, Any], window: int) -> dict[str, Any]:
    """The context that such settings lead to."""
    asked = ("n_ctx", "n_threads", "flash_attention", "type_k", "type_v")
    facts = {key: settings[key] for key in asked if key in settings}
    batch = min(settings["n_batch"], settings["n_ctx"])
    window_and_batch = {"window": window, "n_batch": batch, "n_ubatch": batch}
    return {"flash_attention": False, **facts, **window_and_batch}


def profile(model: str, name: str = INVARIANT) -> dict[str, Any]:
    """A small profile document of the real shape."""
    stock = name == STOCK
    made: dict[str, Any] = {
        "settings": {
            "name": name,
            "tiled": stock,
            "swa_full": True,
            "min_rows": 1 if stock else 2,
            "n_gpu_layers": 0,
            "n_ctx": 2048,
            "n_batch": 2048,
            "n_threads": 1,
        },
        "engine": {"libraries": {"libllama.so": digest_of("library")}},
        "machine": {"architecture": "x86_64", "model": model},
        "context": {"flash_attention": False, "window": WINDOW},
        "buffers": {"weights": ["CPU_Mapped", "CPU_REPACK"] if stock else ["CPU_Mapped"]},
        "environment": {"GGML_CPU_TILED_MM": "1" if stock else "0"},
    }
    if name == PORTABLE:
        made["settings"] |= {"arithmetic": PORTABLE, "min_rows": 1}
        del made["settings"]["n_threads"]
        engine = {"arithmetic": {"name": PORTABLE}, "goldens": digest_of("goldens")}
        made |= {"engine": {"binding": "llama-cpp-python 0", **engine}, "machine": {}}
    return made


def profiles(model: str, preset: str) -> dict[str, Any]:
    """The profiles of one model as they are registered."""
    return {
        name: {"digest": digests.sha256_json(profile(model, name)), "profile": profile(model, name)}
        for name in ({preset, STOCK} if preset != PORTABLE else {PORTABLE})
    }


def inputs(
    models: tuple[str, ...] = MODELS, preset: str = INVARIANT, **changes: Any
) -> dict[str, Any]:
    """An inputs manifest value for the models."""
    values: dict[str, Any] = {
        "configuration_name": "synthetic",
        "configuration": {
            "name": "synthetic",
            "seed": SEED,
            "models": list(models),
            "profile": {"preset": preset, "n_ctx": 2048, "n_threads": 1, "n_gpu_layers": 0},
            "exactness": SECTION,
        },
        "source": {"commit": None, "dirty": None, "files": {"Snakefile": digest_of("Snakefile")}},
        "models": [
            {
                "name": model,
                "sha256": digest_of("model", model),
                "bytes": 1000,
                "architecture": "llama",
                "quantisation": "Q4_1",
            }
            for model in models
        ],
        "profiles": {model: profiles(model, preset) for model in models},
        "environment": {
            "python": "3.11.7",
            "platform": "synthetic",
            "packages": {"numpy": "2"},
            "locks": {"envs/audit.txt": digest_of("lock")},
        },
        "created": CREATED,
    }
    return manifest.build_inputs(**{**values, **changes})


def rows_of(model: str, preset: str = INVARIANT) -> tuple[Rows, dict[str, bytes]]:
    """Record rows of one stage, and raw logits by digest."""
    raw: dict[str, bytes] = {}

    def keep(row: np.ndarray) -> str:
        data = row.tobytes()
        raw[digests.sha256_bytes(data)] = data
        return digests.sha256_bytes(data)

    document = profile(model, preset)
    digest = digests.sha256_json(document)
    samples, blocks = [], []
    for index in range(SAMPLES):
        span = plan.span_length(index, SECTION, f"{SEED}/{model}")
        header = {
            "format": "kvb/1",
            "model": {"name": model, "sha256": digest_of("model", model), "architecture": "llama"},
            "profile": digest,
            "engine": engine_digest(document["engine"]),
            "tokens": {"n": span, "sha256": digest_of(model, index, "span")},
            "start": 0,
            "parent": None,
            "state": {
                "bytes": 512 * span,
                "chunk_bytes": 4 * 1024 * 1024,
                "chunks": [digest_of(model, index, "state")],
                "blake3": [digest_of(model, index, "state", "blake3")],
            },
            "provenance": {"source": "synthetic", "exact": True, "profile": document},
        }
        block_id = digests.sha256_json(header)
        blocks.append({"kind": "block-header", "version": 1, "id": block_id, "header": header})
        samples.append(_sample_row(model, index, span, digest, block_id, keep, preset))
    determinism = [
        {
            "kind": "exactness-determinism",
            "version": 1,
            "model": model,
            "case": case,
            "tokens": n_tokens,
            "profile": digest,
            "first": _observation(model, 0),
            "second": _observation(model, int(case == "new_process")),
            "equal": True,
        }
        for n_tokens in SECTION["determinism_lengths"]
        for case in exactness_records.CASES
    ]
    splits = []
    for index, n_tokens in enumerate(SECTION["split_lengths"]):
        planned = plan.planned_splits(n_tokens, index, SECTION, f"{SEED}/{model}")
        if preset != STOCK:
            for runs, grafted in planned:
                splits.append(_split_row(model, index, preset, runs, keep, grafted=grafted))
        whole = ((n_tokens, 1),)
        splits.append(_split_row(model, index, preset, whole, keep, control="token"))
        if index == 0 and preset != PORTABLE:
            splits.append(_split_row(model, index, STOCK, planned[-1][0], keep, control=STOCK))
    return {
        "records/samples.jsonl": samples,
        "records/determinism.jsonl": determinism,
        "records/splits.jsonl": splits,
        "records/blocks.jsonl": blocks,
    }, raw


def _observation(model: str, process: int) -> dict[str, Any]:
    return {
        "logits_sha256": digest_of(model, "d1 logits"),
        "state_sha256": digest_of(model, "d1 state"),
        "process": process,
    }


def _sample_row(
    model: str,
    index: int,
    span: int,
    profile: str,
    block_id: str,
    keep: Callable[..., str],
    preset: str,
) -> dict[str, Any]:
    rows = [logits_of(model, index, position) for position in range(QUERY)]
    hashes = [digests.sha256_bytes(row.tobytes()) for row in rows]
    margins, tops = [], []
    for row in rows:
        ordered = np.sort(row.astype(np.float64))
        margins.append(float(ordered[-1] - ordered[-5]))
        tops.append(int(np.argmax(row)))
    arms = {}
    for name in exactness_records.ARMS:
        if preset == STOCK and name in ("one_shot", "token_by_token"):
            continue
        restored = name in ("graft", "token_by_token")
        arms[name] = {
            "process": {"fresh_process": 1, "graft": 2, "token_by_token": 2}.get(name, 0),
            "logits_sha256": hashes,
            "argmax": tops,
            "decoded_tokens": QUERY if restored else span + QUERY,
            "restored_bytes": 512 * span if restored else 0,
            "seconds": {
                "prefill": None if restored else 0.5 + index,
                "restore": 0.25 if restored else None,
                "query": 0.125,
            },
            "kl_from_fresh": [0.0] * QUERY,
            "state_sha256": digest_of(model, index, "after"),
        }
    kept = None
    if index < RAW:
        keep(rows[-1])
        kept = {
            name: hashes[-1] if name in arms else None
            for name in ("fresh", "graft", "token_by_token")
        }
    return {
        "kind": "exactness-sample",
        "version": 1,
        "model": model,
        "sample": index,
        "seed": f"{SEED}/{model}/sample/{index}",
        "profile": profile,
        "exact": True,
        "split_invariant": preset != STOCK,
        "span_tokens": span,
        "query_tokens": QUERY,
        "past_window": span > WINDOW,
        "span_sha256": digest_of(model, index, "span"),
        "query_sha256": digest_of(model, index, "query"),
        "block_id": block_id,
        "state_bytes": 512 * span,
        "state_sha256": digest_of(model, index, "state"),
        "file_bytes": 512 * span + 1024,
        "positions": list(range(span, span + QUERY)),
        "arms": arms,
        "top5_margin": margins,
        "raw": kept,
    }


def _split_row(
    model: str,
    index: int,
    name: str,
    split: plan.Runs,
    keep: Callable[..., str],
    *,
    grafted: bool = False,
    control: str = "",
) -> dict[str, Any]:
    reference = logits_of(model, "split", index, control == STOCK)
    row = reference.copy()
    if control:
        row[: VOCABULARY // 2] += np.float32(0.01)
    n_tokens = sum(size * count for size, count in split)
    p, q = (x.astype(np.float64) for x in (reference, row))
    log_p = p - p.max() - np.log(np.exp(p - p.max()).sum())
    log_q = q - q.max() - np.log(np.exp(q - q.max()).sum())
    state = digest_of(model, "split state", index, control == STOCK)
    return {
        "kind": "exactness-split",
        "version": 1,
        "model": model,
        "sample": index,
        "profile": digests.sha256_json(profile(model, name)),
        "profile_name": name,
        "tokens": n_tokens,
        "past_window": n_tokens > WINDOW,
        "split": [list(part) for part in split],
        "grafted": grafted,
        "logits_sha256": digests.sha256_bytes(row.tobytes()),
        "reference_sha256": digests.sha256_bytes(reference.tobytes()),
        "state_sha256": digest_of(state) if control else state,
        "reference_state_sha256": state,
        "kl": float(np.sum(np.exp(log_p) * (log_p - log_q))),
        "argmax": [int(np.argmax(row)), int(np.argmax(reference))],
        "control": bool(control),
        "raw": {"logits": keep(row), "reference": keep(reference)} if control == STOCK else None,
    }


def write_stage(run: Path, model: str, rows: Rows, raw: Mapping[str, bytes]) -> None:
    """Writes everything of one stage but its manifest: records first, what is derived second."""
    folder = run / "exactness" / model
    for name in ("records", "logits", "tables"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, kind in exactness_records.KINDS.items():
        records.write(folder / name, kind, rows[name])
    for digest, data in raw.items():
        (folder / "logits" / f"{digest}.f32").write_bytes(data)
    tables.write_samples(folder / "tables/samples.parquet", rows["records/samples.jsonl"])
    made = KIND.summary_bytes(
        model, exactness_records.typed(records.read_folder(folder, exactness_records.KINDS))
    )
    (folder / "summary.json").write_bytes(made)


def close(run: Path, model: str, **changes: Any) -> None:
    """Closes one stage."""
    registered = manifest.read(run / manifest.INPUTS, "inputs")
    known = manifest.registered(registered)
    used = (model, "configuration", "source", *registered["environment"]["locks"])
    values: dict[str, Any] = {
        "parameters": SECTION,
        "inputs_used": {name: known[name] for name in used if name in known},
        "started": STARTED,
        "ended": ENDED,
        "host": {"load_before": 0.25, "load_after": 0.5, "cpus": 2},
    }
    manifest.close_stage(run, "exactness", model, **{**values, **changes})


def build(
    run: Path, models: tuple[str, ...] = MODELS, preset: str = INVARIANT, **changes: Any
) -> Path:
    """A whole valid run directory at `run`, without verdict.json."""
    run.mkdir(parents=True, exist_ok=True)
    manifest.write(run / manifest.INPUTS, inputs(models, preset, **changes))
    for model in models:
        rows, raw = rows_of(model, preset)
        write_stage(run, model, rows, raw)
        close(run, model)
    manifest.close_run(run)
    return run


def read_rows(run: Path, model: str, name: str) -> list[dict[str, Any]]:
    """The rows of one record file."""
    return canonical.loads_lines((run / "exactness" / model / name).read_bytes(), name)


def write_rows(run: Path, model: str, name: str, rows: list[dict[str, Any]]) -> None:
    """Replaces one record file, without any check."""
    path = run / "exactness" / model / name
    path.write_bytes(b"".join(canonical.dumps(row) + b"\n" for row in rows))


def derive(run: Path, model: str) -> None:
    """Makes summary and table again from the records, as a forger of records would."""
    folder = run / "exactness" / model
    rows = read_rows(run, model, "records/samples.jsonl")
    tables.write_samples(folder / "tables/samples.parquet", rows)
    made = KIND.summary_bytes(
        model, exactness_records.typed(records.read_folder(folder, exactness_records.KINDS))
    )
    (folder / "summary.json").write_bytes(made)


def reseal(run: Path) -> None:
    """Recomputes every digest of the chain, whatever the manifests say now."""
    inputs_sha256 = digests.sha256_file(run / manifest.INPUTS)
    stages, ends = {}, []
    for path in sorted(run.glob(f"*/*/{manifest.STAGE}")):
        value = json.loads(path.read_bytes())
        value["predecessor"] = inputs_sha256
        value["outputs"] = manifest.list_outputs(path.parent)
        path.write_bytes(canonical.dumps(value) + b"\n")
        stages[path.parent.relative_to(run).as_posix()] = digests.sha256_file(path)
        ends.append(value["ended"])
    sealed = {
        "kind": "run",
        "version": 1,
        "predecessor": inputs_sha256,
        "stages": stages,
        "ended": max(ends),
    }
    (run / manifest.RUN).write_bytes(canonical.dumps(sealed) + b"\n")


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    """Applies a change to a JSON document and writes it canonically."""
    value = json.loads(path.read_bytes())
    change(value)
    path.write_bytes(canonical.dumps(value) + b"\n")
