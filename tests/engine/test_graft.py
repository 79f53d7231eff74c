"""A grafted context is, byte for byte, a freshly computed one, and a block that would not be is
refused before the engine sees it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinywork import LENGTHS, SHARP, Outcome, draw, graft, put, read, sha256, spying

from kvaudit import kvb
from kvaudit.errors import BlockChunkCorrupt
from kvaudit.kvb_map import open_block
from kvgraft import remote, state
from kvgraft.errors import (
    ContextFull,
    GraftRefused,
    ModelMismatch,
    ProfileMismatch,
    StateRefused,
    TokenOutOfVocabulary,
)
from kvgraft.placement import Placement
from kvgraft.profile import ProfileSettings, split_invariant
from kvgraft.session import Capture, Session
from kvgraft.store import BlockStore

NAMES = (*SHARP, "llama", "gemma3", "gemma3-q4_0", "gemma3-q4_k")
N_QUERY = 24


def capture_of(session: Session, n: int, query: int = N_QUERY) -> tuple[Capture, Outcome]:
    """Read n tokens fresh: the span's capture, and what a query behind it gives."""
    ids = draw(n + query)
    session.reset()
    session.prefill(ids[:n])
    capture = session.capture({"source": "test"})
    return capture, read(session, ids[n:])


# -- byte equality ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_graft_is_byte_equal_to_fresh_at_lengths_around_the_window(
    sessions: Any, store: BlockStore, name: str
) -> None:
    session = sessions(name)
    for n in LENGTHS:
        capture, fresh = capture_of(session, n)
        receipt = graft(session, store, put(store, capture))
        assert session.tokens == tuple(draw(n))
        assert receipt.restored_bytes == len(capture.state)
        assert receipt.restored_tokens == n
        assert receipt.exact
        assert read(session, draw(n + N_QUERY)[n:]) == fresh, n


@pytest.mark.parametrize("name", [*SHARP, "gemma3-q4_k"])
def test_graft_is_byte_equal_to_fresh_in_a_new_process(
    models: Any,
    sessions: Any,
    store: BlockStore,
    settings: ProfileSettings,
    tmp_path: Path,
    name: str,
) -> None:
    session = sessions(name)
    lengths = (40, 77, 300, 419, 647)
    jobs: list[dict[str, Any]] = []
    expected: list[Outcome] = []
    for n in lengths:
        capture, fresh = capture_of(session, n)
        query = draw(n + N_QUERY)[n:]
        given = {"store": str(store.root), "block_id": put(store, capture), "query": query}
        for sizes in (None, [1] * N_QUERY):
            jobs.append({"do": "graft", "with": {**given, "sizes": sizes, "state": True}})
            expected.append(fresh)
    readings = remote.call(models(name), settings, jobs, tmp_path)
    for job, reading, fresh in zip(jobs, readings, expected, strict=True):
        assert Outcome(sha256(reading.logits), str(reading.state_sha256)) == fresh, job
        assert reading.profile == session.profile.digest
        # The restored path ran: only the query was decoded, and the state was read.
        assert reading.decoded_tokens == N_QUERY
        assert reading.restored_bytes > 0


def test_without_the_placeholder_at_least_one_length_differs(
    sessions: Any, store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions("gemma3-f32")
    different: list[int] = []
    for n in range(65, 700, 12):
        capture, fresh = capture_of(session, n)
        block_id = put(store, capture)
        graft(session, store, block_id)
        assert read(session, draw(n + N_QUERY)[n:]) == fresh, n
        with monkeypatch.context() as patch:
            patch.setattr(Placement, "gaps", lambda _self, positions: [0] * len(positions))
            assert graft(session, store, block_id).placeholder_cells == 0
            if read(session, draw(n + N_QUERY)[n:]) != fresh:
                different.append(n)
    assert different


@pytest.mark.parametrize(("n", "cells"), [(64, 0), (65, 1), (300, 236), (320, 0), (321, 1)])
def test_the_placeholder_brings_the_window_to_its_own_place_modulo_256(
    sessions: Any, store: BlockStore, n: int, cells: int
) -> None:
    session = sessions("gemma3")
    capture, _ = capture_of(session, n)
    window = state.parse(capture.state.data).sections[1]
    assert cells == int(window.positions[0]) % 256
    assert graft(session, store, put(store, capture)).placeholder_cells == cells


@pytest.mark.parametrize("name", SHARP)
@pytest.mark.parametrize("n", [63, 77, 419])
def test_one_by_one_and_as_a_batch_behind_a_graft_are_equal(
    sessions: Any, store: BlockStore, name: str, n: int
) -> None:
    session = sessions(name)
    capture, fresh = capture_of(session, n)
    block_id = put(store, capture)
    for split in (1, 2, [3, 1, 20], None):
        graft(session, store, block_id)
        assert read(session, draw(n + N_QUERY)[n:], split) == fresh


@pytest.mark.parametrize("name", ["llama-f32", "gemma3-f32", "gemma3-q4_k"])
@pytest.mark.parametrize("n", [5, 64, 77, 300, 647])
def test_a_capture_behind_a_graft_is_the_fresh_block_itself(
    sessions: Any, store: BlockStore, name: str, n: int
) -> None:
    session = sessions(name)
    capture, _ = capture_of(session, n)
    again, _ = capture_of(session, n + 30)
    graft(session, store, put(store, capture))
    assert session.capture({"source": "test"}).header == capture.header
    session.prefill(draw(n + 30)[n:])
    assert session.capture({"source": "test"}).header.id == again.header.id


def test_a_block_of_a_block_is_byte_equal_too(sessions: Any, store: BlockStore) -> None:
    session = sessions("gemma3-f32")
    n = 0
    session.reset()
    for step in (50, 40, 1, 170, 256, 90):
        session.prefill(draw(n + step)[n:])
        n += step
        graft(session, store, put(store, session.capture()))
    behind = read(session, draw(n + N_QUERY)[n:])
    assert behind == capture_of(session, n)[1]


def test_one_changed_byte_of_a_block_changes_the_logits(sessions: Any, store: BlockStore) -> None:
    session = sessions("llama-f32")
    capture, fresh = capture_of(session, 100)
    changed = capture.state.copy()
    changed[state.parse(changed.data).sections[0].tensors[-1].offset + 1] ^= 4
    graft(session, store, put(store, reseal(capture, state=changed)))
    assert read(session, draw(124)[100:]).logits != fresh.logits


def test_an_unverified_block_is_verified_by_the_graft(sessions: Any, store: BlockStore) -> None:
    session = sessions("llama")
    block_id = put(store, capture_of(session, 50)[0])
    session.reset()
    with store.get(block_id, verify=False) as block:
        assert not block.verified
        session.graft(block)
        assert block.verified


# -- refusals ---------------------------------------------------------------------------------


def reseal(capture: Capture, **changes: Any) -> Capture:
    """A capture with other contents, whose digests are right again."""
    tokens = changes.pop("tokens", capture.tokens)
    content = changes.pop("state", capture.state)
    header = capture.header
    made = kvb.build(
        model=changes.pop("model", header.model),
        profile=changes.pop("profile", header.profile),
        engine=changes.pop("engine", header.engine),
        tokens=tokens,
        state=content.data,
        start=changes.pop("start", 0),
        parent=changes.pop("parent", None),
        provenance=changes.pop("provenance", header.provenance),
    )
    assert not changes
    return Capture(made, tokens, content)


@pytest.fixture
def refused(sessions: Any, store: BlockStore) -> Callable[..., None]:
    """Asserts a refusal by its message, that nothing was restored, and an empty session."""

    def check(
        session: Session, capture: Capture, kind: type[Exception], message: str, **options: Any
    ) -> None:
        block_id = put(store, capture)
        session.reset()
        with (
            spying(session) as spy,
            store.get(block_id) as block,
            pytest.raises(kind, match=message),
        ):
            session.graft(block, **options)
        assert "llama_state_seq_set_data" not in spy.calls
        assert session.tokens == ()
        assert session._context.held() == 0

    return check


def test_a_context_that_is_not_empty_is_refused(sessions: Any, store: BlockStore) -> None:
    session = sessions("gemma3")
    capture, fresh = capture_of(session, 70)
    block_id = put(store, capture)
    for grafted in (False, True):
        session.reset()
        with store.get(block_id) as block:
            if grafted:
                session.graft(block)
            else:
                session.prefill([5])
            held = session.tokens
            with pytest.raises(
                GraftRefused,
                match=r"the context is not empty; expected no cached positions; found \d+ "
                r"\(call reset\(\), or open a new session\)",
            ):
                session.graft(block)
            assert session.tokens == held
    # The refused graft has changed nothing: the first one still stands.
    assert read(session, draw(70 + N_QUERY)[70:]) == fresh


def test_a_block_that_continues_another_is_refused(
    sessions: Any, refused: Callable[..., None]
) -> None:
    session = sessions("llama")
    capture, _ = capture_of(session, 20)
    child = reseal(capture, start=10, parent="ab" * 32)
    refused(
        session,
        child,
        GraftRefused,
        f"the block continues another one, which is not restored; at block {child.header.id[:12]}; "
        f"expected a block without a parent; found start 10, parent {'ab' * 32}",
    )


@pytest.mark.parametrize("exact", [True, False])
def test_another_models_block_is_refused(
    sessions: Any, refused: Callable[..., None], exact: bool
) -> None:
    capture, _ = capture_of(sessions("other"), 20)
    session = sessions("llama")
    # Same shapes and same profile: nothing but the model's digest tells them apart.
    assert sessions("other").profile.digest == session.profile.digest
    refused(
        session,
        capture,
        ModelMismatch,
        f"the block was captured with another model; at block .* "
        f"expected llama {session.model.pin.sha256}; found other {capture.header.model.sha256}",
        exact=exact,
    )


def test_another_profile_is_refused_and_its_fields_are_named(
    sessions: Any, refused: Callable[..., None]
) -> None:
    capture, _ = capture_of(sessions("gemma3", n_ctx=1024), 80)
    session = sessions("gemma3")
    refused(
        session,
        capture,
        ProfileMismatch,
        re.escape(
            "the block was captured under another profile (fields: context.n_ctx, settings.n_ctx)"
        )
        + f"; at block .* expected {session.profile.digest}; found {capture.header.profile} "
        r"\(open the session with the block's settings, or graft with exact=False\)",
    )


def test_another_engine_build_is_refused(sessions: Any, refused: Callable[..., None]) -> None:
    session = sessions("llama")
    capture, _ = capture_of(session, 20)
    theirs = session.profile.to_json()
    theirs["engine"] = {**theirs["engine"], "ggml_commit": "0000000"}
    profile = dataclasses.replace(session.profile, engine=theirs["engine"])
    made_there = reseal(
        capture, profile=profile.digest, provenance={"exact": True, "profile": theirs}
    )
    refused(session, made_there, ProfileMismatch, r"profile \(fields: engine\.ggml_commit\)")
    silent = reseal(capture, profile=profile.digest, provenance={"exact": True})
    refused(session, silent, ProfileMismatch, r"profile \(fields: unknown\)")


def test_a_block_that_tells_no_profile_is_held_against_the_engine_too(
    sessions: Any, store: BlockStore, refused: Callable[..., None]
) -> None:
    session = sessions("llama")
    capture, _ = capture_of(session, 20)
    silent = reseal(capture, provenance={"exact": True})
    session.reset()
    assert graft(session, store, put(store, silent)).exact
    forged = reseal(capture, provenance={"exact": True}, engine="0" * 64)
    refused(session, forged, ProfileMismatch, "names another engine than its profile")
    session.reset()
    assert not graft(session, store, put(store, forged), exact=False).exact


def test_an_inexact_graft_marks_the_session_and_every_block_made_from_it(
    sessions: Any, store: BlockStore, refused: Callable[..., None]
) -> None:
    capture, _ = capture_of(sessions("gemma3", n_ctx=1024), 80)
    block_id = put(store, capture)
    session = sessions("gemma3")
    receipt = graft(session, store, block_id, exact=False)
    assert (receipt.exact, session.is_exact) == (False, False)
    session.decode(draw(4))
    assert not session.is_exact
    inexact = session.capture({"exact": True, "source": "a liar"})
    assert inexact.header.profile == session.profile.digest
    assert inexact.header.provenance["exact"] is False
    session.reset()
    assert session.is_exact
    refused(
        session,
        inexact,
        GraftRefused,
        r"captured from a session that was itself inexact; .* \(graft with exact=False\)",
    )
    assert not graft(session, store, put(store, inexact), exact=False).exact
    assert not session.is_exact
    assert session.capture().header.provenance["exact"] is False


@pytest.mark.parametrize(
    "changes",
    [{"type_k": "f32"}, {"type_v": "f32"}, {"type_k": "q8_0"}, {"flash_attention": True}],
    ids=str,
)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_state_of_another_layout_is_refused_even_as_inexact(
    sessions: Any, refused: Callable[..., None], name: str, changes: dict[str, Any]
) -> None:
    capture, _ = capture_of(sessions(name, **changes), 80)
    refused(
        sessions(name),
        capture,
        StateRefused,
        "the state's layout is not this context's; at block .* "
        r"\(flash attention, cache types and model must be those of the capture\)",
        exact=False,
    )


def test_positions_that_are_not_the_spans_own_are_refused(
    sessions: Any, refused: Callable[..., None]
) -> None:
    session = sessions("gemma3")
    capture, _ = capture_of(session, 80)
    layout = state.parse(capture.state.data)
    window_cells = layout.sections[0].tensors[-1]
    second = window_cells.offset + window_cells.n_bytes + 8
    for section, offset in ((0, 16), (1, second)):
        shifted = capture.state.copy()
        shifted[offset] ^= 1  # position 0 becomes 1, 16 becomes 17
        refused(
            session,
            reseal(capture, state=shifted),
            StateRefused,
            f"the state does not hold the span's own positions; at section {section}; "
            r"expected the last positions of 0 … 79; found \d+ cells",
        )


@pytest.mark.parametrize("n_tokens", [79, 81])
def test_tokens_that_do_not_match_the_state_are_refused(
    sessions: Any, refused: Callable[..., None], n_tokens: int
) -> None:
    session = sessions("gemma3")
    capture, _ = capture_of(session, 80)
    other = reseal(capture, tokens=np.asarray(draw(n_tokens), np.int32))
    refused(session, other, StateRefused, "does not hold the span's own positions; at section 0")


def test_a_block_with_a_token_out_of_vocabulary_is_refused(
    sessions: Any, refused: Callable[..., None]
) -> None:
    session = sessions("llama")
    capture, _ = capture_of(session, 10)
    tokens = capture.tokens.copy()
    tokens[7] = 384
    refused(
        session,
        reseal(capture, tokens=tokens),
        TokenOutOfVocabulary,
        "token id outside the vocabulary; at token 7; expected 0 … 383; found 384",
    )


def test_a_block_longer_than_the_context_is_refused(
    sessions: Any, refused: Callable[..., None]
) -> None:
    capture, _ = capture_of(sessions("llama", n_ctx=1024), 900)
    refused(
        sessions("llama"),
        capture,
        ContextFull,
        "the block does not fit into the context; .* expected at most 767 cells; found 900",
        exact=False,
    )


def test_a_block_that_fills_the_context_to_the_brim_is_restored(
    sessions: Any, store: BlockStore
) -> None:
    for name in ("llama-f32", "gemma3-f32"):
        session = sessions(name)
        n = session.capacity - 3
        capture, fresh = capture_of(session, n, query=3)
        graft(session, store, put(store, capture))
        assert read(session, draw(n + 3)[n:], split=1) == fresh


def test_a_damaged_chunk_is_named_and_the_engine_does_not_see_it(
    sessions: Any, tmp_path: Path
) -> None:
    session = sessions("llama", n_ctx=2048)
    capture, fresh = capture_of(session, 30)
    own = BlockStore(tmp_path)
    block_id = put(own, capture)
    path = own.path(block_id)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.chmod(0o644)
    path.write_bytes(data)
    session.reset()
    with (
        spying(session) as spy,
        open_block(path) as block,
        pytest.raises(
            BlockChunkCorrupt,
            match=r"chunk 0 of the state is damaged \(.*bytes 0 … \d+\)",
        ) as caught,
    ):
        session.graft(block)
    assert caught.value.chunk == 0
    assert "llama_state_seq_set_data" not in spy.calls
    assert session.tokens == ()
    session.prefill(draw(30))
    assert read(session, draw(30 + N_QUERY)[30:]) == fresh


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_state_that_the_engine_reads_only_in_part_is_refused_and_leaves_an_empty_session(
    sessions: Any, store: BlockStore, name: str
) -> None:
    session = sessions(name)
    capture, fresh = capture_of(session, 80)
    block_id = put(store, capture)
    context = session._context
    # The engine itself, given one byte less than there is.
    session.reset()
    short = len(capture.state) - 1
    message = f"the engine did not accept the state: .*; expected {short} bytes read; found 0 bytes"
    with store.get(block_id) as block, pytest.raises(StateRefused, match=message):
        context.set_state(block.state_address, short, 0)
    # An engine that says it has read one byte less.
    set_data = context._api.llama_state_seq_set_data
    session.reset()
    with (
        spying(session, llama_state_seq_set_data=lambda *given: set_data(*given) - 1),
        store.get(block_id) as block,
        pytest.raises(StateRefused, match="did not accept"),
    ):
        session.graft(block)
    assert session.tokens == ()
    assert context.held() == 0
    graft(session, store, block_id)
    assert read(session, draw(80 + N_QUERY)[80:]) == fresh


def test_a_window_cache_that_is_not_full_size_is_refused_and_its_graft_is_never_exact(
    sessions: Any, store: BlockStore, refused: Callable[..., None]
) -> None:
    session = sessions("gemma3-f32", swa_full=False, n_batch=192)
    different = 0
    for n in (300, 491, 500, 509):
        ids = draw(n + N_QUERY)
        session.reset()
        session.prefill(ids[:n])
        capture = session.capture()
        fresh = sha256(session.decode(ids[n:]))
        refused(
            session,
            capture,
            GraftRefused,
            r"a window cache that is not full-size reuses cells, .* \(open the session with "
            r"swa_full=True, or graft with exact=False\)",
        )
        assert not graft(session, store, put(store, capture), exact=False).exact
        different += sha256(session.decode(ids[n:])) != fresh
    # And rightly so: where the ring turns behind the graft, the bytes are others.
    assert different
    without_window = sessions("llama", swa_full=False)
    capture, outcome = capture_of(without_window, 300)
    assert graft(without_window, store, put(store, capture)).exact
    assert read(without_window, draw(300 + N_QUERY)[300:]) == outcome


def test_closing_the_block_after_the_graft_changes_nothing(models: Any, store: BlockStore) -> None:
    with Session(models("llama"), split_invariant(n_ctx=512)) as session:
        capture, fresh = capture_of(session, 200)
        block_id = put(store, capture)
        session.reset()
        block = store.get(block_id)
        session.graft(block)
        block.close()
        assert read(session, draw(200 + N_QUERY)[200:]) == fresh
