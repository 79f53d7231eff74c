"""Under the default profile every way to cut a text into batches gives the same bytes.

The models are of several quantisations, because each has kernels of its own; lengths go past the
window. Profiles that are said not to be split-invariant are shown to be so, or nothing here would
mean much.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinywork import N_CTX, SHARP, Outcome, draw, graft, put, read, sha256

NAMES = (*SHARP, "llama", "gemma3", "llama-q4_0", "gemma3-q4_0", "llama-q4_k", "gemma3-q4_k")


def outcome(session: Any, n: int, split: Any) -> Outcome:
    session.reset()
    logits = session.decode(draw(n), split=split, outputs=min(n, 8))
    return Outcome(sha256(logits), sha256(session.capture().state))


def sizes() -> st.SearchStrategy[list[int]]:
    """Batch sizes: few rows often, because kernels change at 2, 4 and 8 rows."""
    return st.lists(st.integers(1, 9) | st.integers(1, 200), min_size=1, max_size=60)


@pytest.mark.parametrize("name", NAMES)
def test_any_split_of_any_length_gives_the_bytes_of_one_batch(
    sessions: Any, store: Any, name: str
) -> None:
    session = sessions(name)
    assert session.profile.is_split_invariant

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(n=st.integers(1, 200) | st.integers(200, 700), split=sizes(), cut=st.integers(1, 699))
    def check(n: int, split: list[int], cut: int) -> None:
        whole = outcome(session, n, None)
        assert outcome(session, n, split) == whole
        if cut >= n:
            return
        session.reset()
        session.prefill(draw(n)[:cut], split=split)
        graft(session, store, put(store, session.capture()))
        tail = draw(n)[cut:]
        logits = session.decode(tail, split=split, outputs=min(len(tail), 8))
        found = Outcome(sha256(logits), sha256(session.capture().state))
        if len(tail) >= min(n, 8):
            assert found == whole
        else:
            assert found.state == whole.state

    check()


@pytest.mark.parametrize("name", NAMES)
def test_token_by_token_from_the_first_token_on_gives_the_bytes_of_one_batch(
    sessions: Any, name: str
) -> None:
    session = sessions(name)
    n = 150
    assert outcome(session, n, 1) == outcome(session, n, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"type_k": "f32", "type_v": "f32"},
        {"type_k": "bf16", "type_v": "bf16"},
        {"type_k": "q8_0"},
        {"min_rows": 4},
        {"n_ctx": 700},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", SHARP)
def test_every_profile_that_calls_itself_split_invariant_is(
    sessions: Any, store: Any, name: str, changes: dict[str, Any]
) -> None:
    session = sessions(name, **changes)
    assert session.profile.is_split_invariant
    for n in (70, 333, 600):
        ids = draw(n + 24)
        session.reset()
        session.prefill(ids[:n])
        block_id = put(store, session.capture())
        fresh = read(session, ids[n:])
        session.reset()
        session.prefill(ids[:n], split=[1, 2, 3, 4, 5, 7, 9, 17, 33])
        assert read(session, ids[n:], split=1) == fresh
        graft(session, store, block_id)
        assert read(session, ids[n:], split=[5, 1, 1]) == fresh


def test_two_threads_give_the_bytes_of_one(sessions: Any) -> None:
    one, two = sessions("gemma3-f32"), sessions("gemma3-f32", n_threads=2)
    assert two.profile.is_split_invariant
    assert two.profile.digest != one.profile.digest
    # Few batches: on a machine that is busy elsewhere, threads wait for each other at length.
    whole = outcome(one, 333, None)
    assert outcome(two, 333, None) == whole
    assert outcome(two, 333, [100, 200, 1]) == whole


def test_flash_attention_is_not_split_invariant(sessions: Any) -> None:
    session = sessions("llama-f32", flash_attention=True)
    assert not session.profile.is_split_invariant
    assert any(outcome(session, n, 7) != outcome(session, n, None) for n in (100, 300, 600))


def test_batches_of_one_row_are_not_split_invariant(sessions: Any) -> None:
    session = sessions("llama-f32", min_rows=1)
    assert not session.profile.is_split_invariant
    lengths = range(100, 700, 60)
    assert any(outcome(session, n, 1) != outcome(session, n, None) for n in lengths)


def test_repacked_weights_are_not_split_invariant(sessions: Any) -> None:
    session = sessions("gemma3-q4_k", repack=True)
    if session.profile.is_split_invariant:
        pytest.skip("this engine has no repacked kernels for this machine")
    assert any(outcome(session, n, [5, 3]) != outcome(session, n, None) for n in (50, 100, 300))


def test_other_sequences_of_the_session_leave_no_trace(sessions: Any) -> None:
    session = sessions("llama")
    session.decode(draw(5), split=1)
    assert session._context._api.llama_memory_seq_pos_max(session._context._memory, 1) == -1
    assert session.profile.context["n_ctx"] == N_CTX
