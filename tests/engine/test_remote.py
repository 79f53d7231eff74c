"""A job in a new process answers like one here, and its errors come back as one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinywork import draw, put, sha256

from kvgraft import remote
from kvgraft.errors import EngineFailed
from kvgraft.profile import ProfileSettings
from kvgraft.remote import read_fresh, read_grafted


def test_a_fresh_reading_is_the_same_here_and_there(
    models: Any, sessions: Any, settings: ProfileSettings, tmp_path: Path
) -> None:
    span, query = draw(120)[:100], draw(120)[100:]
    here = read_fresh(sessions("gemma3-f32"), span, query, state=True)
    given = {"span": span, "query": query, "state": True}
    jobs: list[dict[str, Any]] = [
        {"do": "fresh", "keep_state": True, "with": given},
        {"do": "fresh", "with": {**given, "one_shot": True, "sizes": [1] * 120}},
    ]
    there, one_by_one = remote.call(models("gemma3-f32"), settings, jobs, tmp_path)
    assert sha256(there.logits) == sha256(here.logits) == sha256(one_by_one.logits)
    assert there.state is not None
    assert here.state is not None
    assert np.array_equal(there.state, here.state)
    assert one_by_one.state is None
    assert there.state_sha256 == here.state_sha256 == one_by_one.state_sha256
    assert there.profile == here.profile
    assert there.seconds["prefill"] is not None
    assert there.seconds["restore"] is None
    assert one_by_one.seconds["prefill"] is None
    assert list(tmp_path.iterdir()) == []


def test_a_grafted_reading_says_what_was_restored(sessions: Any, store: Any) -> None:
    session = sessions("llama")
    blocks: list[str] = []
    fresh = read_fresh(
        session,
        draw(50),
        draw(5, seed=1),
        after_span=lambda session: blocks.append(put(store, session.capture())),
    )
    grafted = read_grafted(session, store, blocks[0], draw(5, seed=1))
    assert sha256(grafted.logits) == sha256(fresh.logits)
    assert (fresh.decoded_tokens, grafted.decoded_tokens) == (55, 5)
    assert fresh.restored_bytes == 0
    with store.get(blocks[0]) as block:
        assert grafted.restored_bytes == block.header.state.bytes
    assert grafted.seconds["restore"] is not None
    assert grafted.seconds["prefill"] is None


def test_an_error_of_the_child_comes_back_in_one_line(
    models: Any, store: Any, settings: ProfileSettings, tmp_path: Path
) -> None:
    job = {"do": "graft", "with": {"store": str(store.root), "block_id": "0" * 64, "query": [5]}}
    with pytest.raises(
        EngineFailed,
        match=r"a process of the experiment failed: there is no such block file; at .*0000\.kvb",
    ):
        remote.call(models("llama"), settings, [job], tmp_path)


@pytest.mark.parametrize("mode", [None, 0o644])
def test_an_interpreter_that_does_not_start_is_named(
    settings: ProfileSettings, tmp_path: Path, mode: int | None
) -> None:
    stale = tmp_path / "emulated" / "python"
    if mode is not None:
        stale.parent.mkdir()
        stale.touch(mode)
    with pytest.raises(EngineFailed, match=r"does not start; at .*/emulated/python; found "):
        remote.run_child("kvgraft.remote", {}, settings, interpreter=stale)


def test_a_model_that_changed_is_refused_by_the_child_too(
    models: Any, settings: ProfileSettings, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(models("llama").path.read_bytes())
    from kvgraft import pins
    from kvgraft.model import FrozenModel

    model = FrozenModel.open(pins.for_file(path))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    job = {"do": "fresh", "with": {"span": [2], "query": [5]}}
    with pytest.raises(EngineFailed, match="model m does not have its pinned SHA-256"):
        remote.call(model, settings, [job], tmp_path)
