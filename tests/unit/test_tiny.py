"""Tiny models are reproducible, load in the engine, and show a wrong context in their logits.

The engine reads some variables once per process, so it runs in a process of its own here.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvaudit.errors import UnusableInput
from kvgraft import tiny
from kvgraft.gguf_header import facts, read_header
from kvgraft.tiny import make_tiny_gguf

QUANTISATIONS = ("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K")
TEXTS = (
    "The keeper of the north lighthouse.",
    " two  spaces\n\ttabs\r\n",
    "é ▁ 漢字 🎉 e\u0301 \u2028 \ufeff",
    "zero \x00 byte",
    "<|begin|> <|end|> <s> </s> <0x41>",
    "".join(chr(c) for c in range(1, 0x250)),
)

SCRIPT = r"""
import hashlib, json, os, sys
import numpy as np
import llama_cpp

work = json.load(sys.stdin)
out = {}
for path in work["paths"]:
    model = llama_cpp.Llama(path, n_ctx=512, n_batch=256, n_threads=1, n_threads_batch=1,
                            verbose=False, logits_all=True, swa_full=True)
    trips = []
    for text in work["texts"]:
        ids = model.tokenize(text.encode(), add_bos=False, special=False)
        trips.append(model.detokenize(ids).decode() == text)
    def last(tokens):
        model.reset()
        model._ctx.kv_cache_clear()
        model.eval(tokens)
        return np.array(model.scores[model.n_tokens - 1])
    base = work["tokens"]
    variants = {"base": base, "again": base}
    for name, (i, j) in work["swaps"].items():
        changed = list(base)
        changed[i], changed[j] = changed[j], changed[i]
        variants[name] = changed
    logits = {name: last(tokens) for name, tokens in variants.items()}
    out[path] = {
        "trips": trips,
        "finite": all(bool(np.isfinite(row).all()) for row in logits.values()),
        "spread": float(logits["base"].std()),
        "difference": {n: float(np.abs(row - logits["base"]).max()) for n, row in logits.items()},
    }
    model.close()
json.dump(out, sys.stdout)
"""


def _width(quantisation: str) -> int:
    return 256 if quantisation.endswith("_K") else 64


@pytest.fixture(scope="module")
def engine_report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tiny")
    paths = {
        f"{architecture}-{quantisation}": str(
            make_tiny_gguf(
                folder / f"{architecture}-{quantisation}.gguf",
                architecture,
                n_embd=_width(quantisation),
                quantisation=quantisation,
            )
        )
        for architecture in ("llama", "gemma3")
        for quantisation in QUANTISATIONS
    }
    # 200 tokens: the first ones lie far outside the window of 64.
    tokens = np.random.default_rng(1).integers(tiny.FIRST_BYTE, tiny.MIN_VOCABULARY, 200).tolist()
    work = {
        "paths": list(paths.values()),
        "texts": TEXTS,
        "tokens": tokens,
        "swaps": {"first": (0, 1), "middle": (100, 120), "late": (196, 197)},
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(work),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    return {name: report[path] for name, path in paths.items()}


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_a_tiny_model_computes_and_every_early_token_changes_the_last_logits(
    engine_report: dict[str, Any], architecture: str, quantisation: str
) -> None:
    report = engine_report[f"{architecture}-{quantisation}"]
    assert report["finite"]
    assert report["spread"] > 0.5
    assert report["difference"]["again"] == 0.0
    for swap in ("first", "middle", "late"):
        assert report["difference"][swap] > 0.01, swap


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_any_text_survives_tokenising(engine_report: dict[str, Any], architecture: str) -> None:
    assert engine_report[f"{architecture}-Q8_0"]["trips"] == [True] * len(TEXTS)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_bytes_are_a_function_of_the_arguments(
    tmp_path: Path, architecture: str, quantisation: str
) -> None:
    def digest(name: str, seed: int) -> str:
        path = make_tiny_gguf(
            tmp_path / name,
            architecture,  # type: ignore[arg-type]
            seed=seed,
            n_embd=_width(quantisation),
            quantisation=quantisation,
        )
        return hashlib.sha256(path.read_bytes()).hexdigest()

    assert digest("a.gguf", 3) == digest("b.gguf", 3)
    assert digest("c.gguf", 4) != digest("a.gguf", 3)


def test_weights_have_the_bytes_of_every_machine(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", "gemma3", quantisation="Q4_0")
    header = read_header(path)
    weights = hashlib.sha256(path.read_bytes()[header.data_offset :]).hexdigest()
    assert weights == "6ec4b70f8fb8d3048a29c402e008482faf6e5058410bba46b1e9055ad29e631e"


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_blocks_drawn_as_quants_are_centred_and_have_the_asked_for_spread(kind: str) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    blocks = tiny._random_k_blocks(np.random.PCG64(0), quantisation, 64, 512, 0.05)
    weights = gguf.quants.dequantize(blocks, quantisation)
    assert weights.shape == (64, 512)
    assert abs(float(weights.mean())) < 0.002
    assert float(weights.std()) == pytest.approx(0.05, rel=0.05)


def test_header_facts_are_those_asked_for(tmp_path: Path) -> None:
    path = make_tiny_gguf(
        tmp_path / "m.gguf",
        "gemma3",
        n_layer=6,
        n_embd=128,
        n_head=4,
        n_head_kv=1,
        head_dim=64,
        vocab=300,
        window=32,
        n_ctx=777,
        quantisation="Q4_1",
    )
    found = facts(read_header(path))
    assert (found.n_layer, found.n_embd, found.n_head, found.n_head_kv) == (6, 128, 4, 1)
    assert (found.key_length, found.window, found.n_ctx_train, found.vocab_size) == (
        64,
        32,
        777,
        300,
    )
    assert (found.architecture, found.quantisation) == ("gemma3", "Q4_1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"architecture": "t5"}, "no tiny model of this architecture; expected llama or gemma3"),
        ({"quantisation": "IQ1_S"}, "no tiny model of this quantisation"),
        ({"vocab": 257}, "no room for every byte; expected vocab >= 258; found 257"),
        ({"n_embd": 48}, "n_embd does not fill whole Q8_0 blocks"),
        ({"n_embd": 0}, "n_embd does not fill whole Q8_0 blocks"),
        ({"quantisation": "Q4_K"}, "n_embd does not fill whole Q4_K blocks"),
        ({"n_head": 4, "n_head_kv": 3}, "the heads do not divide"),
        ({"architecture": "gemma3", "window": 0}, "gemma3 needs a window"),
        ({"architecture": "gemma3", "window_pattern": 1}, "gemma3 needs a window"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnusableInput, match=message):
        make_tiny_gguf(tmp_path / "m.gguf", **arguments)
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("vocab", [258, 259, 300, 5000])
def test_vocabulary_has_the_asked_for_size_without_repeats(tmp_path: Path, vocab: int) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", vocab=vocab, quantisation="F32")
    tokens = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == len(set(tokens)) == vocab
