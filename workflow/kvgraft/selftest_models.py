"""The whole models of the self-test: random ones of llama and Gemma 3 in nine quantisations.

Each is made, read in one batch and again in several, and gives the digests of its file, of the last
logits and of its state. This module calls the engine below `context`, which asks for a self-test
that has passed.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvaudit import digests
from kvgraft import engine
from kvgraft.errors import EngineFailed
from kvgraft.profile import KV_TYPES
from kvgraft.selftest_ggml import draw

TOKENS = 70
WINDOW = 24
SPLIT = (33, 1, 1, 2, 7, 26)
"""Batches of the second reading, odd and single ones."""


@dataclass(frozen=True)
class _Case:
    architecture: str
    quantisation: str
    type_k: str = "f16"
    type_v: str = "f16"

    @property
    def name(self) -> str:
        """As in the goldens."""
        kinds = "" if (self.type_k, self.type_v) == ("f16", "f16") else f"/{self.type_k} keys"
        return f"model/{self.architecture}/{self.quantisation}{kinds}"


QUANTISATIONS = ("F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K")
CASES = (
    *(_Case(arch, kind) for arch in ("llama", "gemma3") for kind in QUANTISATIONS),
    _Case("llama", "F32", "f32", "f32"),
    _Case("gemma3", "Q8_0", "bf16", "bf16"),
    _Case("llama", "Q8_0", "q8_0", "f16"),
)


@dataclass(frozen=True)
class Found:
    """One digest of a model, by name.

    Attributes:
        name: as in the goldens.
        sha256: where the text is read in one batch.
        split_sha256: where it is read in several; the same of a file.
    """

    name: str
    sha256: str
    split_sha256: str


def run() -> Iterator[Found]:
    """The digests of every model, in a fixed order.

    Raises:
        EngineUnavailable: the engine is not installed, or was loaded with other variables.
        EngineFailed: it does not load, open or decode a model.
    """
    from kvgraft.tiny import make_tiny_gguf

    tokens = [2 + int(number % np.uint64(256)) for number in draw("tokens", TOKENS)]
    with tempfile.TemporaryDirectory(prefix="kvgraft-selftest-") as folder:
        for case in CASES:
            path = make_tiny_gguf(
                Path(folder) / "model.gguf",
                case.architecture,  # type: ignore[arg-type]
                quantisation=case.quantisation,
                n_embd=256 if case.quantisation.endswith("_K") else 64,
                vocab=258,
                window=WINDOW,
            )
            file = digests.sha256_file(path)
            yield Found(f"{case.name}/file", file, file)
            model = _load(path)
            try:
                whole = _read(model, case, tokens, (TOKENS,))
                again = _read(model, case, tokens, SPLIT)
            finally:
                engine.library().api.llama_model_free(model)
            for what, one, other in zip(("logits", "state"), whole, again, strict=True):
                yield Found(f"{case.name}/{what}", one, other)


def _load(path: Path) -> Any:
    api = engine.library().api
    params = api.llama_model_default_params()
    params.use_extra_bufts = False
    params.n_gpu_layers = 0
    model = api.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise EngineFailed(f"the engine does not load a random model: {engine.log.tail()}")
    return model


def _read(model: Any, case: _Case, tokens: Sequence[int], split: Sequence[int]) -> tuple[str, str]:
    """Digests of the logits at the last token, and of the state behind it."""
    api = engine.library().api
    params = api.llama_context_default_params()
    params.n_ctx = 256
    params.n_batch = params.n_ubatch = 256
    params.n_outputs_max = 1
    params.n_seq_max = 1
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = 0
    params.type_k, params.type_v = KV_TYPES[case.type_k], KV_TYPES[case.type_v]
    params.swa_full = params.kv_unified = params.no_perf = True
    params.op_offload = False
    context = api.llama_init_from_model(model, params)
    if not context:
        raise EngineFailed(f"the engine does not open a random model: {engine.log.tail()}")
    batch = api.llama_batch_init(256, 0, 1)
    try:
        done = 0
        for size in split:
            batch.n_tokens = size
            for row in range(size):
                batch.token[row], batch.pos[row] = tokens[done + row], done + row
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
                batch.logits[row] = done + row == len(tokens) - 1
            if api.llama_decode(context, batch) != 0:
                raise EngineFailed(f"a random model does not decode: {engine.log.tail()}")
            done += size
        n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        logits = np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (n_vocab,))
        state = np.empty(api.llama_state_seq_get_size(context, 0), np.uint8)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if api.llama_state_seq_get_data(context, pointer, len(state), 0) != len(state):
            raise EngineFailed("the engine does not write the state of a random model")
        return digests.sha256_bytes(logits.tobytes()), digests.sha256_bytes(state.data)
    finally:
        api.llama_batch_free(batch)
        api.llama_free(context)
