"""Blocks that continue each other, and blocks that stand beside each other, restore byte for byte;
layouts that would not are refused, and what is relocated says that it is not exact.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from tinywork import SHARP, draw, put, sha256

from kvaudit.errors import BlockNotFound
from kvgraft.context import Context
from kvgraft.errors import (
    ContextFull,
    EmptySpan,
    GraftRefused,
    ModelMismatch,
    ProfileMismatch,
)
from kvgraft.session import GraftReceipt, Session
from kvgraft.store import BlockStore

NAMES = (*SHARP, "llama", "gemma3", "gemma3-q4_k")
QUERY = draw(20, seed=9)

CHAINS = (
    (1, 1),
    (30, 40),  # inside the window of 64
    (70, 20),  # the child inside it, the parent past it
    (20, 100),  # the child past it, so that the parent's rows are out of sight
    (63, 65, 64),
    (257, 3, 80, 1),
    (100, 300, 250),
)
LAYOUTS = (
    ((0, 40), (256, 30)),
    ((0, 256), (256, 20)),
    ((256, 90), (512, 10)),
    ((0, 70), (256, 130), (512, 65)),
    ((0, 3), (512, 200)),
)
Span = tuple[int, int]


def chain(session: Session, store: BlockStore, lengths: tuple[int, ...]) -> list[str]:
    """Capture a text of these lengths piece by piece, each piece as the child of the one before."""
    session.reset()
    ids, parent, made = draw(sum(lengths)), None, []
    for end, n in zip(itertools.accumulate(lengths), lengths, strict=True):
        session.prefill(ids[end - n : end])
        capture = session.capture({"source": "test"}, parent=parent)
        made.append(put(store, capture))
        parent = capture.header
    return made


def restore(
    session: Session, store: BlockStore, ids: list[str], how: str, **options: Any
) -> GraftReceipt:
    """Empty the session and restore several stored blocks."""
    session.reset()
    with ExitStack() as stack:
        blocks = [stack.enter_context(store.get(one)) for one in ids]
        return getattr(session, how)(blocks, **options)


def apart(session: Session, store: BlockStore, layout: tuple[Span, ...]) -> list[str]:
    """Capture each span of a layout on its own."""
    made = []
    for number, (start, n) in enumerate(layout):
        session.reset(start)
        session.prefill(draw(n, seed=number))
        made.append(put(store, session.capture({"source": "test"})))
    return made


def fresh_layout(session: Session, layout: tuple[Span, ...]) -> str:
    """Compute a layout freshly; digest of the query's logits."""
    session.reset()
    for number, (start, n) in enumerate(layout):
        session.prefill_apart(draw(n, seed=number), start)
    return sha256(session.decode(QUERY))


# -- chains -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", CHAINS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_restored_chain_is_byte_equal_to_one_prefill(
    sessions: Any, store: BlockStore, name: str, lengths: tuple[int, ...]
) -> None:
    session = sessions(name)
    made = chain(session, store, lengths)
    assert store.chain(made[-1]) == made
    ids = draw(sum(lengths))
    session.reset()
    session.prefill(ids)
    fresh = sha256(session.decode(QUERY)), sha256(session.capture().state)
    receipt = restore(session, store, made, "graft_chain")
    assert receipt.exact
    assert session.is_exact
    assert receipt.block_ids == tuple(made)
    assert receipt.restored_tokens == len(ids)
    assert session.tokens == tuple(ids)
    assert (sha256(session.decode(QUERY)), sha256(session.capture().state)) == fresh


@pytest.mark.parametrize("name", SHARP)
def test_a_chain_goes_on_from_a_restored_one(sessions: Any, store: BlockStore, name: str) -> None:
    session = sessions(name)
    made = chain(session, store, (90, 50))
    with store.get(made[-1]) as block:
        header = block.header
    restore(session, store, made, "graft_chain")
    session.prefill(draw(70, seed=4))
    from_restored = session.capture({"source": "test"}, parent=header)
    session.reset()
    session.prefill(draw(140))
    session.prefill(draw(70, seed=4))
    assert session.capture({"source": "test"}, parent=header).header.id == from_restored.header.id


def test_a_child_holds_its_own_rows_alone(sessions: Any, store: BlockStore) -> None:
    session = sessions("llama-f32")
    parent, child = chain(session, store, (300, 10))
    with store.get(parent) as one, store.get(child) as other:
        assert other.header.parent == parent
        assert (other.header.start, other.header.tokens.n) == (300, 10)
        assert other.header.state.bytes < one.header.state.bytes / 20


def test_a_parent_that_was_changed_changes_the_logits(sessions: Any, store: BlockStore) -> None:
    """The comparison is not blind: the parent's rows take part."""
    session = sessions("llama-f32")
    made = chain(session, store, (40, 20))
    restore(session, store, made, "graft_chain")
    ours = sha256(session.decode(QUERY))
    ids = draw(60)
    session.reset()
    session.prefill([ids[0] ^ 1, *ids[1:]])
    assert sha256(session.decode(QUERY)) != ours


def test_a_broken_chain_is_refused(sessions: Any, store: BlockStore) -> None:
    session = sessions("llama")
    made, other = chain(session, store, (20, 20, 20)), chain(session, store, (25, 15))
    for ids, message in (
        ([], "at least one block"),
        (made[1:], "continues another one"),
        ([made[0], made[2]], "the chain is broken"),
        ([made[1], made[0]], "continues another one"),
        ([other[0], made[1]], "the chain is broken"),
    ):
        with pytest.raises(GraftRefused, match=message):
            restore(session, store, ids, "graft_chain")
    with store.get(made[1]) as block, pytest.raises(GraftRefused, match="continues another one"):
        session.graft(block)
    assert session.tokens == ()


def test_a_child_needs_its_parents_tokens(sessions: Any, store: BlockStore) -> None:
    session = sessions("llama")
    made = chain(session, store, (20, 20))
    with store.get(made[0]) as block:
        parent = block.header
    session.reset()
    session.prefill(draw(40, seed=3))
    with pytest.raises(GraftRefused, match="does not hold the parent's tokens"):
        session.capture(parent=parent)
    session.reset()
    session.prefill(draw(20))
    with pytest.raises(EmptySpan, match="nothing stands behind"):
        session.capture(parent=parent)
    foreign = sessions("other")
    foreign.reset()
    foreign.prefill(draw(30))
    with pytest.raises(ModelMismatch):
        foreign.capture(parent=parent)
    profile = sessions("llama", type_k="f32")
    profile.reset()
    profile.prefill(draw(30))
    with pytest.raises(ProfileMismatch):
        profile.capture(parent=parent)


def test_a_missing_parent_is_named(sessions: Any, store: BlockStore) -> None:
    made = chain(sessions("llama"), store, (22, 21))
    path = store.path(made[0])
    path.unlink()
    with pytest.raises(BlockNotFound):
        store.chain(made[1])


# -- composition ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_composition_is_byte_equal_to_a_fresh_computation_of_its_layout(
    sessions: Any, store: BlockStore, name: str, layout: tuple[Span, ...]
) -> None:
    session = sessions(name)
    made = apart(session, store, layout)
    fresh = fresh_layout(session, layout)
    receipt = restore(session, store, made, "compose")
    assert receipt.exact
    assert session.is_exact
    assert session.position == sum(layout[-1])
    assert sha256(session.decode(QUERY)) == fresh


@pytest.mark.parametrize("name", SHARP)
def test_an_unaligned_or_reordered_layout_gives_other_bits(
    sessions: Any, store: BlockStore, name: str
) -> None:
    """Why it is refused: forced with exact=False, it is marked and differs."""
    session = sessions(name)
    layout: tuple[Span, ...] = ((0, 40), (77, 130))
    made = apart(session, store, layout)
    fresh = fresh_layout(session, layout)
    receipt = restore(session, store, made, "compose", exact=False)
    assert not receipt.exact
    assert not session.is_exact
    assert sha256(session.decode(QUERY)) != fresh


def test_an_inexact_layout_is_refused(sessions: Any, store: BlockStore) -> None:
    session = sessions("llama")
    first, second, third = apart(session, store, ((0, 300), (256, 20), (512, 20)))
    (unaligned,) = apart(session, store, ((300, 10),))
    child = chain(session, store, (20, 20))[1]
    for ids, message in (
        ([], "at least one block"),
        ([third, second], "not in ascending order"),
        ([first, second], "hold the same positions"),
        ([first, first], "hold the same positions"),
        ([unaligned], "aligned position"),
        ([child], "continues another one"),
    ):
        with pytest.raises(GraftRefused, match=message):
            restore(session, store, ids, "compose")
        assert session.tokens == ()
    with pytest.raises(GraftRefused, match="not the one with the highest"):
        restore(session, store, [third, second], "compose", exact=False)


def test_a_composed_context_is_not_captured_as_a_text(sessions: Any, store: BlockStore) -> None:
    session = sessions("llama")
    made = apart(session, store, ((0, 20), (256, 20)))
    restore(session, store, made, "compose")
    with pytest.raises(GraftRefused, match="was composed"):
        session.capture()
    session.reset()
    session.prefill_apart(draw(5), 0)
    session.capture()
    session.prefill_apart(draw(5), 256)
    with pytest.raises(GraftRefused, match="was composed"):
        session.capture()


def test_what_does_not_fit_is_refused_and_leaves_the_context_empty(
    sessions: Any, store: BlockStore
) -> None:
    session = sessions("llama")
    made = apart(session, store, ((0, 500), (512, 300)))
    with pytest.raises(ContextFull, match="does not fit"):
        restore(session, store, made, "compose")
    assert session.tokens == ()
    assert session.position == 0
    with pytest.raises(ContextFull):
        session.reset(leading_cells=10_000)
    session.prefill(draw(500))
    with pytest.raises(ContextFull):
        session.prefill_apart(draw(300), 512)
    with pytest.raises(ValueError, match="at least 500"):
        session.prefill_apart(draw(3), 10)


# -- other positions --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_block_of_any_start_restores_exactly_at_its_own_position(
    sessions: Any, store: BlockStore, name: str
) -> None:
    session = sessions(name)
    for start in (8, 256, 1000):
        session.reset(start)
        session.prefill(draw(150))
        block_id = put(store, session.capture({"source": "test"}))
        fresh = sha256(session.decode(QUERY))
        session.reset()
        with store.get(block_id) as block:
            assert session.graft(block).exact
        assert session.position == start + 150
        assert sha256(session.decode(QUERY)) == fresh


@pytest.mark.parametrize("name", SHARP)
def test_relocation_needs_exact_false_and_marks_everything_behind_it(
    sessions: Any, store: BlockStore, name: str
) -> None:
    session = sessions(name)
    session.reset()
    session.prefill(draw(50))
    block_id = put(store, session.capture({"source": "test"}))
    own = session.decode(QUERY)
    session.reset()
    with store.get(block_id) as block, pytest.raises(GraftRefused, match="exact=False"):
        session.graft(block, at=128)
    with store.get(block_id) as block:
        assert session.graft(block, at=0).exact
        session.reset()
        receipt = session.graft(block, at=128, exact=False)
    assert not receipt.exact
    assert not session.is_exact
    assert session.position == 178
    moved = session.decode(QUERY)
    assert session.capture().header.provenance["exact"] is False
    session.reset(128)
    session.prefill(draw(50))
    fresh = session.decode(QUERY)
    assert sha256(moved) != sha256(fresh)
    # Rotated to the right place, not anywhere: logits span about six units.
    assert np.abs(moved - fresh).max() < 0.1
    assert np.abs(own - fresh).max() < 0.1


def test_relocation_there_and_back_rotates_twice(sessions: Any, store: BlockStore) -> None:
    session = sessions("llama-f32")
    session.reset()
    session.prefill(draw(50))
    before = session.capture().state
    session.relocate(96, exact=False)
    assert session.position == 146
    session.relocate(-96, exact=False)
    assert session.position == 50
    after = session.capture().state
    assert sha256(before) != sha256(after)
    with pytest.raises(ValueError, match="negative or too large"):
        session.relocate(-1, exact=False)
    with pytest.raises(GraftRefused):
        session.relocate(8)
    session.reset()
    with pytest.raises(EmptySpan):
        session.relocate(8, exact=False)


def test_a_cache_that_cannot_shift_refuses_relocation(sessions: Any) -> None:
    """The engine would end the process with an assertion."""
    session = sessions("gemma3", swa_full=False, n_ctx=2048)
    session.reset()
    session.prefill(draw(30))
    with pytest.raises(GraftRefused, match="cannot re-rotate"):
        session.relocate(8, exact=False)


def test_leading_cells_change_the_place_and_not_the_position(sessions: Any) -> None:
    session = sessions("llama-f32")
    for cells, exact in ((0, True), (256, True), (37, False)):
        session.reset(leading_cells=cells)
        assert session.is_exact is exact
        assert session.position == 0
    session.reset(leading_cells=37)
    session.prefill(draw(100))
    moved = session.decode(QUERY)
    session.reset()
    session.prefill(draw(100))
    here = session.decode(QUERY)
    assert 0 < np.abs(moved - here).max() < 1e-3
    session.reset(leading_cells=256)
    session.prefill(draw(100))
    assert sha256(session.decode(QUERY)) == sha256(here)


def test_a_failure_midway_leaves_an_empty_context(
    sessions: Any, store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine refusing the second block of a chain cannot be provoked: its call is replaced."""
    session = sessions("llama")
    made = chain(session, store, (20, 20))
    real, calls = Context.set_state, []

    def second_fails(self: Context, *given: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise GraftRefused("made to fail")
        real(self, *given)

    monkeypatch.setattr(Context, "set_state", second_fails)
    with pytest.raises(GraftRefused, match="made to fail"):
        restore(session, store, made, "graft_chain")
    assert session.tokens == ()
    assert session.position == 0
    assert session.room == session.capacity


def test_a_span_apart_at_an_unaligned_start_is_not_exact(sessions: Any) -> None:
    session = sessions("llama")
    session.reset()
    session.prefill_apart(draw(20), 37)
    assert not session.is_exact
    assert session.capture().header.provenance["exact"] is False


def test_a_full_context_refuses_relocation_and_keeps_its_text(sessions: Any) -> None:
    session = sessions("llama")
    session.reset()
    session.prefill(draw(session.capacity))
    before = sha256(session.capture().state)
    with pytest.raises(ContextFull):
        session.relocate(8, exact=False)
    assert session.is_exact
    assert sha256(session.capture().state) == before


def test_positions_beyond_int32_are_refused(sessions: Any, store: BlockStore) -> None:
    """The engine would wrap them around and answer as if nothing were wrong."""
    session = sessions("llama")
    for start in (2**31, 2**32, 2**40, -1):
        with pytest.raises(ValueError, match="negative or too large"):
            session.reset(start)
    (block_id,) = apart(session, store, ((0, 20),))
    with store.get(block_id) as block:
        with pytest.raises(ValueError, match="negative or too large"):
            session.graft(block, at=2**32 + 7, exact=False)
        session.reset()
        session.graft(block)
        with pytest.raises(ValueError, match="negative or too large"):
            session.relocate(2**31 - 300, exact=False)


def test_a_relocation_that_fails_leaves_an_empty_context(sessions: Any, store: BlockStore) -> None:
    session = sessions("llama")
    (block_id,) = apart(session, store, ((0, session.capacity),))
    session.reset()
    with store.get(block_id) as block, pytest.raises(ContextFull):
        session.graft(block, at=8, exact=False)
    assert session.tokens == ()
