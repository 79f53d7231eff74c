"""Work on tiny models that several test files share: catalogue, token draws, one round trip.

`SHARP` are the models whose weights are F32: no quantisation of activations hides a changed last
bit, so that they show differences which quantised models show at a few lengths only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests
from kvgraft.session import Capture, GraftReceipt, Session
from kvgraft.store import BlockStore

WINDOW = 64
N_CTX = 768
REPOSITORY = Path(__file__).parents[2]

CATALOGUE: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "gemma3": {"architecture": "gemma3", "window": WINDOW},
    "llama-f32": {"architecture": "llama", "quantisation": "F32", "n_layer": 4},
    "gemma3-f32": {"architecture": "gemma3", "quantisation": "F32", "n_layer": 6},
    "llama-q4_0": {"architecture": "llama", "quantisation": "Q4_0"},
    "gemma3-q4_0": {"architecture": "gemma3", "quantisation": "Q4_0"},
    "llama-q4_k": {"architecture": "llama", "quantisation": "Q4_K", "n_embd": 256},
    "gemma3-q4_k": {"architecture": "gemma3", "quantisation": "Q4_K", "n_embd": 256},
    "other": {"architecture": "llama", "seed": 1},
    "wide": {"n_layer": 8, "n_head": 8, "n_head_kv": 8, "vocab": 258},
}
"""Arguments of `make_tiny_gguf` by name."""

SHARP = ("llama-f32", "gemma3-f32")
ARCHITECTURES = ("llama", "gemma3")
LENGTHS = (1, 2, 31, 63, 64, 65, 66, 77, 127, 128, 129, 200, 255, 256, 257, 320, 321, 419, 511, 647)
"""Around the window of 64 and around multiples of the attention padding of 256."""


def draw(n: int, seed: int = 0) -> list[int]:
    """Token ids, none of them a control token; a shorter draw is a prefix of a longer one."""
    return [int(i) for i in np.random.default_rng(seed).integers(2, 258, n)]


def sha256(array: NDArray[Any]) -> str:
    """Digest of an array's bytes."""
    return digests.sha256_bytes(np.ascontiguousarray(array).tobytes())


def put(store: BlockStore, capture: Capture) -> str:
    """The capture's id, after it was stored."""
    return store.put(capture.header, capture.tokens, capture.state.data)


def graft(session: Session, store: BlockStore, block_id: str, **options: Any) -> GraftReceipt:
    """Empty the session and graft a stored block."""
    session.reset()
    with store.get(block_id) as block:
        return session.graft(block, **options)


@dataclass(frozen=True)
class Outcome:
    """Digests of the query's logits and of the state behind it."""

    logits: str
    state: str


def read(session: Session, query: Sequence[int], split: Any = None) -> Outcome:
    """Decode a query behind what the session holds."""
    logits = session.decode(query, split=split)
    return Outcome(sha256(logits), sha256(session.capture().state))


class Spy:
    """The engine's functions, some replaced, with a count of calls of each name."""

    def __init__(self, api: Any, **replaced: Any) -> None:
        self._api = api
        self._replaced = replaced
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return self._replaced.get(name) or getattr(self._api, name)


@contextlib.contextmanager
def spying(session: Session, **replaced: Any) -> Iterator[Spy]:
    """Put a spy between a session and the engine."""
    context: Any = session._context
    spy = Spy(context._api, **replaced)
    context._api = spy
    try:
        yield spy
    finally:
        context._api = spy._api


def python(
    code: str, *arguments: object, unset: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that has this repository's packages."""
    drop = {"GGML_CPU_TILED_MM", *unset}
    environment = {k: v for k, v in os.environ.items() if k not in drop}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
