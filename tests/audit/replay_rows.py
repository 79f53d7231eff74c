"""Records of a replay stage as the engine would give them, made of noise and without an engine."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
import synthetic

from kvaudit import digests, stats
from kvaudit.replay import plan
from kvaudit.replay.records import BLOCKS, CURVES, PROFILES, SAMPLES, TARGETS

MODEL, SEED, QUERY, WINDOW = "tiny-a", "synthetic", 3, 60
NAME = plan.stage_seed(SEED, MODEL)
SECTION: dict[str, Any] = {
    "targets": ["process", "isa"],
    "isa": "lower-isa",
    "engine": "folder",
    "device_layers": 0,
    "samples": 10,
    "min_tokens": 32,
    "max_tokens": 80,
    "answer_tokens": 4,
    "raw_models": [MODEL],
}
Rows = dict[str, list[dict[str, Any]]]


def digest_of(*parts: object) -> str:
    """A digest that stands for content which is not there."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def noise(*parts: object, size: float) -> Any:
    """float32 [QUERY, 64], a function of the parts alone."""
    seed = int(digest_of(*parts)[:16], 16)
    return np.random.default_rng(seed).normal(0, size, (QUERY, 64)).astype("<f4")


def profile(name: str = "split-invariant", **engine: Any) -> dict[str, Any]:
    """A small profile document of the real shape."""
    stock = name == "stock"
    settings = {
        "name": name,
        "tiled": stock,
        "min_rows": 2,
        "n_gpu_layers": 0,
        "n_threads": 1,
        "n_ctx": 2048,
        "n_batch": 2048,
        "swa_full": True,
        "flash_attention": False,
    }
    return {
        "settings": settings,
        "engine": {"libraries": {"libllama.so": digest_of("library")}, **engine},
        "machine": {"architecture": "x86_64", "features": ["AVX", "AVX2"]},
        "context": synthetic.context_of(settings, WINDOW),
        "buffers": {"weights": ["CPU_Mapped"]},
        "environment": {"GGML_CPU_TILED_MM": "0"},
    }


def lower_isa() -> dict[str, Any]:
    """The profile of target isa."""
    made = profile(libraries={"libllama.so": digest_of("older")})
    made["machine"]["features"] = ["AVX"]
    return made


def inputs(**section: Any) -> dict[str, Any]:
    """As much of an inputs manifest as the checks read."""
    registered = {
        name: {"digest": digests.sha256_json(profile(name)), "profile": profile(name)}
        for name in ("split-invariant", "stock")
    }
    value = {
        "seed": SEED,
        "profile": {"preset": "split-invariant"},
        "replay": {**SECTION, **section},
    }
    model = {"name": MODEL, "sha256": digest_of("model"), "architecture": "llama"}
    return {
        "configuration": {"value": value},
        "profiles": {MODEL: registered},
        "models": [model],
    }


def rows(size: float = 0.05, targets: tuple[str, ...] = ("process", "isa")) -> tuple[Rows, Any]:
    """All records of a stage in which everything is as expected, and raw logits by digest.

    Args:
        size: of the noise that stands between two builds.
        targets: of the matrix.
    """
    raw: dict[str, Any] = {}
    made: Rows = {SAMPLES: [], TARGETS: [], BLOCKS: [], PROFILES: []}
    for index in range(SECTION["samples"]):
        sample, block = _sample(index, raw)
        made[SAMPLES].append(sample)
        made[BLOCKS].append(block)
    for target in targets:
        for sample in made[SAMPLES]:
            made[TARGETS].append(_target(target, sample, len(made[TARGETS]) + 1, size, raw))
    if "isa" in targets:
        made[PROFILES].append(
            {
                "kind": "profile",
                "version": 1,
                "digest": digests.sha256_json(lower_isa()),
                "profile": lower_isa(),
            }
        )
    return made, raw


def origin(index: int) -> Any:
    """The origin's logits of a sample."""
    return noise("origin", index, size=2.0)


def arm(logits: Any, top: list[int], decoded: int, restored: int, raw: Any) -> dict[str, Any]:
    """An arm as a record holds it."""
    names = [digests.sha256_bytes(row.tobytes()) for row in logits]
    raw[names[-1]] = logits[-1]
    log_p = stats.log_softmax(logits[-1])
    best = [stats.argmax(row) for row in logits]
    return {
        "logits_sha256": names,
        "argmax": best,
        "answer": [best[-1], 1, 2, 3],
        "log_p": [round(float(log_p[token]), 9) for token in top],
        "decoded_tokens": decoded,
        "restored_bytes": restored,
    }


def _sample(index: int, raw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    span = plan.span_length(index, SECTION, NAME)
    logits = origin(index)
    top = [int(token) for token in np.argsort(-logits[-1], kind="stable")[: plan.N_TOP]]
    state = digest_of("state", index)
    header = {
        "format": "kvb/1",
        "model": {"name": MODEL, "sha256": digest_of("model"), "architecture": "llama"},
        "profile": digests.sha256_json(profile()),
        "engine": digests.tree_digest(profile()["engine"]["libraries"]),
        "tokens": {"n": span, "sha256": digest_of("span", index)},
        "start": 0,
        "parent": None,
        "state": {
            "bytes": 1000 + index,
            "chunk_bytes": 4194304,
            "chunks": [state],
            "blake3": [digest_of("blake3", index)],
        },
        "provenance": {
            "source": plan.sample_seed(index, NAME),
            "exact": True,
            "profile": profile(),
        },
    }
    sample = {
        "kind": "replay-sample",
        "version": 1,
        "model": MODEL,
        "sample": index,
        "seed": plan.sample_seed(index, NAME),
        "profile": header["profile"],
        "span_tokens": span,
        "query_tokens": QUERY,
        "span_sha256": digest_of("span", index),
        "query_sha256": digest_of("query", index),
        "block_id": digests.sha256_json(header),
        "state_bytes": 1000 + index,
        "state_sha256": state,
        "file_bytes": 5000 + index,
        "file_sha256": digest_of("file", index),
        "top": top,
        "fresh": arm(logits, top, span + QUERY, 0, raw),
        "raw": index == SECTION["samples"] // 2,
    }
    block = {
        "kind": "block-header",
        "version": 1,
        "id": sample["block_id"],
        "header": header,
    }
    return sample, block


def _target(
    target: str, sample: dict[str, Any], process: int, size: float, raw: Any
) -> dict[str, Any]:
    crosses = plan.crosses(target)
    index, first = sample["sample"], origin(sample["sample"])
    fresh = first + noise("fresh", target, index, size=size) if crosses else first
    graft = first + noise("graft", target, index, size=size) if crosses else first
    logits = {"origin": first, "fresh": fresh, "graft": graft}
    span, state = sample["span_tokens"], sample["state_bytes"]
    kl = {}
    for curve in CURVES:
        name, reference = curve.split("_from_")
        pairs = zip(logits[reference], logits[name], strict=True)
        kl[curve] = [stats.kl_divergence(p, q) for p, q in pairs]
    own = {key: sample[key] for key in ("block_id", "state_bytes", "state_sha256")}
    if crosses:
        own |= {"block_id": digest_of("own", index), "state_sha256": digest_of("there", index)}
    return {
        "kind": "replay-target",
        "version": 1,
        "model": MODEL,
        "target": target,
        "sample": index,
        "profile": digests.sha256_json(lower_isa() if crosses else profile()),
        "process": process,
        "exact": not crosses,
        "copy_bytes": sample["file_bytes"],
        "copy_sha256": sample["file_sha256"],
        "own": {**own, "differing_bytes": 700 if crosses else 0},
        "fresh": arm(fresh, sample["top"], span + QUERY, 0, raw),
        "graft": arm(graft, sample["top"], QUERY, state, raw),
        "kl": kl,
        "seconds": {"prefill": 1.0, "restore": 0.1},
        "raw": sample["raw"],
    }


def copied(made: Rows) -> Rows:
    """Rows that may be forged without harm to others."""
    return copy.deepcopy(made)
