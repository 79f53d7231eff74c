"""Makes golden-v1.kvb, the block of format version 1 that every later version must read.

It was run once, when version 1 was fixed; the file it wrote is kept and never replaced. Run it
again only to see how a block is made on your machine, under another name:

    python tests/data/make_golden.py /tmp/golden.kvb

The model is the recipe below: its bytes follow from the arguments, so that it need not be kept.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from kvaudit import kvb
from kvgraft import pins
from kvgraft.model import FrozenModel
from kvgraft.profile import split_invariant
from kvgraft.session import Session
from kvgraft.tiny import make_tiny_gguf

TOKENS = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
SETTINGS = split_invariant(n_ctx=256)
PROVENANCE = {"source": "tests/data/make_golden.py"}


def make_model(folder: Path) -> FrozenModel:
    """The smallest tiny llama: one layer of width 32."""
    path = make_tiny_gguf(folder / "golden.gguf", "llama", n_layer=1, n_embd=32, vocab=258)
    return FrozenModel.open(pins.for_file(path, "golden"))


def main(target: str) -> None:
    """Write the block; refuses to replace a file."""
    with (
        tempfile.TemporaryDirectory() as folder,
        make_model(Path(folder)) as model,
        Session(model, SETTINGS) as session,
    ):
        session.prefill(TOKENS)
        made = session.capture(PROVENANCE)
        with open(target, "xb") as file:
            kvb.write_block(file, made.header, made.tokens, made.state.data)
    print(f"block {made.header.id}\nmodel {made.header.model.sha256}")


if __name__ == "__main__":
    main(sys.argv[1])
