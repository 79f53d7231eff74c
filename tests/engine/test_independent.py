"""The bytes are llama.cpp's own: a script that knows nothing of this project gets them too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tinywork import draw, graft, put, sha256

SCRIPT = Path(__file__).parents[1] / "data" / "bare_engine.py"


@pytest.mark.parametrize("name", ["llama-f32", "gemma3-f32", "gemma3-q4_k"])
@pytest.mark.parametrize("n", [50, 333])
def test_logits_behind_a_graft_are_those_of_the_bare_engine(
    sessions: Any, store: Any, name: str, n: int
) -> None:
    session = sessions(name)
    session.prefill(draw(n)[:-10])
    graft(session, store, put(store, session.capture()))
    grafted = sha256(session.decode(draw(n)[-10:], split=1, outputs=1))
    done = subprocess.run(
        [sys.executable, SCRIPT, session.model.path, json.dumps(draw(n)), "768"],
        env={"GGML_CPU_TILED_MM": "0", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == grafted, done.stderr[-2000:]
