"""The stock profile stays selectable: exact under equal batches, and honest about the rest.

It loads the engine under other variables, so each test is a process of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tinywork import python

from kvgraft import remote
from kvgraft.profile import ProfileSettings, stock

WORK = """
import json, sys
import numpy as np
from kvgraft import pins
from kvgraft.errors import EngineUnavailable, ProfileMismatch
from kvgraft.model import FrozenModel
from kvgraft.profile import split_invariant, stock
from kvgraft.session import Session
from kvgraft.store import BlockStore

model_path, store_path, foreign = sys.argv[1:]
store = BlockStore(store_path)
ids = [int(i) for i in np.random.default_rng(0).integers(2, 258, 700)]
out = {"same_split": [], "other_split": [], "receipts": []}
with (
    FrozenModel.open(pins.for_file(model_path)) as model,
    Session(model, stock(n_ctx=768)) as session,
):
    out["profile"] = session.profile.to_json()
    out["split_invariant"] = session.profile.is_split_invariant
    for n in (50, 77, 300, 419, 647):
        session.reset()
        session.prefill(ids[:n])
        capture = session.capture()
        block_id = store.put(capture.header, capture.tokens, capture.state.data)
        fresh = session.decode(ids[n:n + 24]).tobytes()
        session.reset()
        with store.get(block_id) as block:
            out["receipts"].append(session.graft(block).exact)
        out["same_split"].append(session.decode(ids[n:n + 24]).tobytes() == fresh)
        session.reset()
        session.prefill(ids[:n])
        out["other_split"].append(session.decode(ids[n:n + 24], split=1).tobytes() == fresh)
    session.reset()
    with store.get(foreign) as block:
        try:
            session.graft(block)
        except ProfileMismatch as error:
            out["foreign"] = str(error)
        out["inexact"] = session.graft(block, exact=False).exact
    try:
        Session(model, split_invariant(n_ctx=768))
    except EngineUnavailable as error:
        out["second"] = str(error)
print(json.dumps(out))
"""


@pytest.fixture(scope="module", params=["gemma3-q4_k", "llama-q4_k"])
def found(
    request: pytest.FixtureRequest, models: Any, store: Any, _open_sessions: Any
) -> dict[str, Any]:
    from kvgraft.profile import split_invariant
    from kvgraft.session import Session

    with Session(models(request.param), split_invariant(n_ctx=768)) as session:
        session.prefill(range(2, 102))
        capture = session.capture()
    foreign = store.put(capture.header, capture.tokens, capture.state.data)
    done = python(WORK, models(request.param).path, store.root, foreign)
    assert done.returncode == 0, done.stderr[-2000:]
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def test_the_stock_profile_is_read_back(found: dict[str, Any]) -> None:
    profile = found["profile"]
    assert profile["settings"]["name"] == "stock"
    assert profile["environment"]["GGML_CPU_TILED_MM"] == "1"
    assert profile["context"]["flash_attention"] is False
    assert not found["split_invariant"]
    if "AVX2" in profile["machine"]["features"]:
        assert any("REPACK" in name for name in profile["buffers"]["weights"])


def test_a_graft_under_stock_kernels_is_exact_where_it_is_split_as_the_fresh_reading_was(
    found: dict[str, Any],
) -> None:
    assert found["same_split"] == [True] * 5
    assert found["receipts"] == [True] * 5


def test_stock_kernels_give_other_bytes_for_another_split(found: dict[str, Any]) -> None:
    assert not all(found["other_split"])


def test_a_block_of_the_split_invariant_profile_is_refused_unless_inexact(
    found: dict[str, Any],
) -> None:
    assert found["foreign"].startswith("the block was captured under another profile (fields: ")
    for field in ("environment.GGML_CPU_TILED_MM", "settings.tiled", "settings.repack"):
        assert field in found["foreign"]
    assert found["inexact"] is False


def test_a_second_profile_in_one_process_is_refused(found: dict[str, Any]) -> None:
    assert found["second"].startswith("the engine reads these variables once per process")


def test_a_stock_job_runs_in_a_process_of_its_own(models: Any, tmp_path: Path) -> None:
    settings: ProfileSettings = stock(n_ctx=256)
    job = {"do": "fresh", "with": {"span": [2, 3], "query": [4, 5], "state": True}}
    (reading,) = remote.call(models("llama"), settings, [job], tmp_path)
    assert reading.profile_json["settings"]["name"] == "stock"
    assert reading.logits.shape == (2, 384)
    assert list(tmp_path.iterdir()) == []
