"""A session reads, answers and refuses; what it refuses has not been computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tinywork import N_CTX, draw, python, read, sha256, spying

from kvgraft.branches import Ask, continue_text
from kvgraft.errors import (
    ContextFull,
    EmptySpan,
    EngineFailed,
    EngineOutOfMemory,
    SessionClosed,
    StateRefused,
    TokenOutOfVocabulary,
)
from kvgraft.profile import split_invariant
from kvgraft.session import Session


def test_decode_returns_one_row_of_logits_for_each_token(sessions: Any) -> None:
    session = sessions("llama")
    logits = session.decode(draw(7))
    assert logits.shape == (7, 384)
    assert logits.dtype == np.float32
    assert session.tokens == tuple(draw(7))
    assert np.array_equal(session.logits(), logits[-1])


def test_outputs_are_those_of_the_last_tokens(sessions: Any) -> None:
    session = sessions("llama")
    every = session.decode(draw(20))
    session.reset()
    assert np.array_equal(session.decode(draw(20), outputs=3), every[-3:])


def test_more_outputs_than_the_engine_keeps_at_once_come_in_several_batches(sessions: Any) -> None:
    session = sessions("llama", n_outputs_max=8)
    sizes: list[int] = []
    logits = session.decode(draw(50), outputs=21, progress=lambda done, _all: sizes.append(done))
    assert sizes == [37, 45, 50]
    assert np.array_equal(logits, sessions("llama").decode(draw(50), outputs=21))


@pytest.mark.parametrize("n_ctx", [2, 100, 255])
def test_a_text_longer_than_the_context_asked_for_is_read_in_batches_that_the_engine_takes(
    n_ctx: int, sessions: Any
) -> None:
    # The engine gives a context of 256 tokens at least, but cuts its batch to what was asked for,
    # and aborts the process at a longer one.
    session = sessions("llama", n_ctx=n_ctx)
    assert session.n_batch == session.profile.context["n_batch"] == n_ctx
    assert session.capacity > 250
    sizes: list[int] = []
    logits = session.decode(draw(250), outputs=1, progress=lambda done, _all: sizes.append(done))
    assert sizes == [*range(n_ctx, 250, n_ctx), 250]
    assert np.array_equal(logits, sessions("llama").decode(draw(250), outputs=1))
    session.reset()
    session.prefill_apart(draw(250), 0)
    assert session.tokens == tuple(draw(250))


def test_a_batch_that_the_engine_would_abort_at_is_refused_before_it(sessions: Any) -> None:
    session = sessions("llama", n_ctx=100)
    with pytest.raises(ValueError, match="101 rows do not fit into a batch of 100"):
        session._context.decode(draw(101), 0, 0)
    session.prefill(draw(101))


def test_branches_are_no_more_rows_than_a_batch_takes(models: Any) -> None:
    asks = [Ask((5, 6, 7), limit=3) for _ in range(9)]
    with Session(models("llama"), split_invariant(n_ctx=4), n_branches=9) as session:
        session.prefill(draw(40))
        found = continue_text(session, asks)
    assert len(found) == 9
    assert len({one.tokens for one in found}) == 1


@pytest.mark.parametrize("outputs", [0, 8, -1])
def test_outputs_beyond_the_span_are_refused(sessions: Any, outputs: int) -> None:
    session = sessions("llama")
    with pytest.raises(ValueError, match="outputs must be in 1 … 7"):
        session.decode(draw(7), outputs=outputs)
    assert session.tokens == ()


def test_progress_is_told_after_every_batch(sessions: Any) -> None:
    told: list[tuple[int, int]] = []
    sessions("llama").prefill(
        draw(100), split=[10, 50], progress=lambda done, total: told.append((done, total))
    )
    assert told == [(10, 100), (60, 100), (100, 100)]


def test_greedy_generation_is_the_argmax_of_each_step(sessions: Any) -> None:
    session = sessions("gemma3")
    session.decode(draw(30), outputs=1)
    made = list(session.generate(12))
    assert len(made) == 12 or session.model.ends_generation(int(session.logits().argmax()))
    session.reset()
    rows = session.decode([*draw(30), *made])
    assert made == [int(row.argmax()) for row in rows[29:-1]]


def test_a_reset_session_is_as_good_as_a_new_one(models: Any, sessions: Any) -> None:
    session = sessions("gemma3-f32")
    session.decode(draw(500, seed=9))
    session.reset()
    assert session.tokens == ()
    first = read(session, draw(100))
    with Session(models("gemma3-f32"), split_invariant(n_ctx=N_CTX)) as other:
        assert read(other, draw(100)) == first


def test_a_reset_overwrites_the_cached_rows_and_does_not_only_forget_them(sessions: Any) -> None:
    # Rows that stay would let a comparison within one context pass falsely.
    session = sessions("llama")
    session.prefill(draw(9))
    asked: list[bool] = []
    clear = session._context._api.llama_memory_clear

    def watched(memory: Any, data: bool) -> None:
        asked.append(data)
        clear(memory, data)

    with spying(session, llama_memory_clear=watched):
        session.reset()
    assert asked == [True]


# -- refusals ---------------------------------------------------------------------------------


def test_a_full_context_refuses_and_computes_nothing(sessions: Any) -> None:
    session = sessions("gemma3")
    assert session.capacity == N_CTX - 1
    session.prefill(draw(session.capacity - 4))
    with (
        spying(session) as spy,
        pytest.raises(
            ContextFull,
            match=r"the context has no room for the span; expected at most 4 more tokens; found 5 "
            r"\(open a session with a larger n_ctx\)",
        ),
    ):
        session.decode(draw(5))
    assert "llama_decode" not in spy.calls
    assert len(session.tokens) == session.capacity - 4
    filled = read(session, draw(4, seed=1))
    session.reset()
    session.prefill(draw(session.capacity - 4))
    assert read(session, draw(4, seed=1)) == filled
    with pytest.raises(ContextFull, match="expected at most 0 more tokens; found 1"):
        session.decode([5])


@pytest.mark.parametrize(("token", "index"), [(384, 2), (-1, 0), (1 << 31, 4)])
def test_a_token_out_of_vocabulary_is_named_and_nothing_is_computed(
    sessions: Any, token: int, index: int
) -> None:
    session = sessions("llama")
    session.prefill(draw(3))
    ids = draw(5)
    ids[index] = token
    for call in (session.prefill, session.decode):
        with pytest.raises(
            TokenOutOfVocabulary,
            match=f"token id outside the vocabulary; at token {index}; expected 0 … 383; "
            f"found {token}",
        ):
            call(ids)
    assert session.tokens == tuple(draw(3))


def test_an_empty_span_is_refused(sessions: Any) -> None:
    session = sessions("llama")
    for call in (session.prefill, session.decode):
        with pytest.raises(EmptySpan, match="a span of no tokens cannot be read"):
            call([])
    with pytest.raises(EmptySpan, match="an empty context has no state to capture"):
        session.capture()
    with pytest.raises(EmptySpan, match="there are no logits yet"):
        session.logits()
    session.prefill(draw(3))
    with pytest.raises(EmptySpan, match="there are no logits yet"):
        session.logits()


@pytest.mark.parametrize("split", [0, -1, [3, 0], [3, -2]])
def test_a_batch_of_no_tokens_is_refused_before_anything_is_computed(
    sessions: Any, split: Any
) -> None:
    session = sessions("llama")
    with pytest.raises(ValueError, match="a batch holds at least one token"):
        session.prefill(draw(9), split=split)
    assert session.tokens == ()
    assert session._context.held() == 0


def test_every_call_on_a_closed_session_is_refused(models: Any, store: Any) -> None:
    session = Session(models("llama"), split_invariant(n_ctx=N_CTX))
    session.prefill(draw(3))
    capture = session.capture()
    block_id = store.put(capture.header, capture.tokens, capture.state.data)
    session.close()
    session.close()
    with store.get(block_id) as block:
        calls: list[Any] = [
            lambda: session.prefill([5]),
            lambda: session.decode([5]),
            lambda: session.decode([]),
            session.logits,
            lambda: next(session.generate(1)),
            session.capture,
            lambda: session.graft(block),
            session.reset,
            session.__enter__,
        ]
        for call in calls:
            with pytest.raises(SessionClosed, match=r"the session is closed \(open a new one\)"):
                call()


def test_an_absurd_context_length_is_refused_before_it_is_allocated(models: Any) -> None:
    with pytest.raises(
        EngineOutOfMemory,
        match=r"a cache of 16777216 tokens does not fit into memory; expected at most \d+ MiB; "
        r"found 262144 MiB \(ask for a smaller n_ctx\)",
    ):
        Session(models("wide"), split_invariant(n_ctx=1 << 24, type_k="f32", type_v="f32"))


STARVED = """
import resource, sys
import psutil
from kvgraft import pins
from kvgraft.errors import EngineOutOfMemory
from kvgraft.model import FrozenModel
from kvgraft.profile import split_invariant
from kvgraft.session import Session
model = FrozenModel.open(pins.for_file(sys.argv[1]))
Session(model, split_invariant(n_ctx=256)).close()
used = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
try:
    Session(model, split_invariant(n_ctx=1 << 16))
except EngineOutOfMemory as error:
    print(error)
with Session(model, split_invariant(n_ctx=256)) as session:
    print(len(session.decode([5, 6, 7])))
"""


def test_an_allocation_that_fails_in_the_engine_is_out_of_memory_too(models: Any) -> None:
    done = python(STARVED, models("wide").path)
    first, second = done.stdout.splitlines()
    assert first.startswith("the engine does not open a context: "), done.stderr
    assert "alloc" in first
    assert second == "3"


@pytest.mark.parametrize(
    ("code", "kind"), [(1, ContextFull), (2, EngineFailed), (-3, EngineFailed)]
)
def test_a_batch_that_the_engine_refuses_clears_the_context(
    sessions: Any, code: int, kind: type[Exception]
) -> None:
    session = sessions("llama")
    session.prefill(draw(5))
    expected = sha256(session.decode(draw(3, seed=2)))
    message = f"the engine did not decode a batch: .* found code {code} .the context was cleared."
    refusing = spying(session, llama_decode=lambda _context, _batch: code)
    with refusing, pytest.raises(kind, match=message):
        session.decode(draw(3))
    assert session.tokens == ()
    assert session._context.held() == 0
    session.prefill(draw(5))
    assert sha256(session.decode(draw(3, seed=2))) == expected


def test_a_state_that_the_engine_does_not_write_in_full_is_refused(sessions: Any) -> None:
    session = sessions("llama")
    session.prefill(draw(5))
    message = r"the engine did not write its state.* found 17"
    short = spying(session, llama_state_seq_get_data=lambda *_: 17)
    with short, pytest.raises(StateRefused, match=message):
        session.capture()


def test_a_state_whose_ring_has_turned_is_refused(sessions: Any) -> None:
    session = sessions("gemma3-f32", swa_full=False, n_batch=192)
    refused = []
    for n in range(200, N_CTX, 8):
        session.reset()
        session.prefill(draw(n))
        try:
            session.capture()
        except StateRefused as error:
            refused.append(str(error))
    assert refused
    message = "the state does not hold the span's own positions; at section 1"
    assert all(text.startswith(message) for text in refused)
