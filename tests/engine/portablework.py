"""Builds of the portable arithmetic, and what a process of each reads, captures and grafts."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinywork import REPOSITORY

from envswork import built

ENGINES = REPOSITORY / "envs" / "engine_variant.py"
EMULATED = REPOSITORY / "envs" / "emulated_python.py"
NAMES = ("portable", "portable-clang", "portable-generic", "portable-aarch64")
"""The variants that are one arithmetic."""
ON_ARM = platform.machine() in ("aarch64", "arm64")


@dataclass(frozen=True)
class Build:
    """One build of the portable arithmetic.

    Attributes:
        name: of the variant.
        folder: of its libraries.
        python: an interpreter of its architecture.
    """

    name: str
    folder: Path
    python: str = sys.executable

    @property
    def is_emulated(self) -> bool:
        """Whether its instructions are not this processor's; threads then wait at length."""
        return self.python != sys.executable

    def run(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter on the libraries, as a process of its own."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("GGML_", "LLAMA_"))}
        return subprocess.run(
            [self.python, *map(str, arguments)],
            env={**environment, "LLAMA_CPP_LIB_PATH": str(self.folder), **variables},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )

    def read(self, model: object, **job: Any) -> Any:
        """What `READER` gives for a model and a job."""
        done = self.run("-c", READER, model, json.dumps(job))
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)


def build(name: str) -> Build:
    """A variant of `envs/engine_variant.py` that was built on this machine; else skips the test."""
    folder = Path(built(ENGINES, name, "--if-built"))
    if name == "portable-aarch64" and not ON_ARM:
        return Build(name, folder, built(EMULATED, "--if-built"))
    return Build(name, folder)


READER = """
import hashlib, json, sys, tempfile
from pathlib import Path
import numpy as np
from kvaudit.kvb_map import open_block
from kvgraft import pins
from kvgraft.model import FrozenModel
from kvgraft.profile import portable
from kvgraft.session import Session
from kvgraft.store import BlockStore

def sha256(data):
    return hashlib.sha256(data).hexdigest()

job = json.loads(sys.argv[2])
ids = [2 + (7 * i * i + 13 * i) % 256 for i in range(job["n"])]
query = ids[-8:]
out = {}
with FrozenModel.open(pins.for_file(sys.argv[1])) as model:
    with Session(model, portable(n_ctx=768, **job.get("changes", {}))) as session:
        out["profile"] = session.profile.to_json()
        out["invariant"] = session.profile.is_split_invariant
        for split in job["splits"]:
            session.reset()
            logits = session.decode(ids, split=split, outputs=8)
            state = session.capture().state
            out.setdefault("read", []).append([sha256(logits.tobytes()), sha256(state.data)])
        if "capture" in job:
            session.reset()
            session.prefill(ids[:-8])
            made = session.capture({"source": "test"})
            store = BlockStore(job["capture"])
            path = store.path(store.put(made.header, made.tokens, made.state.data))
            out["block"] = [str(path), sha256(path.read_bytes()), made.header.engine]
        if "graft" in job:
            session.reset()
            with open_block(job["graft"]) as block:
                out["exact"] = session.graft(block).exact
            logits = session.decode(query, split=1)
            out["grafted"] = [sha256(logits.tobytes()), sha256(session.capture().state.data)]
json.dump(out, sys.stdout)
"""


def splits(n: int) -> Sequence[Any]:
    """One batch, batches of 7 and 16, single tokens, and an uneven cut."""
    return [None, 7, 16, 1, [n // 2 + 1, 1, 2, 3, 5, n - n // 2 - 12]]
