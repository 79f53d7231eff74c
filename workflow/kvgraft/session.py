"""A session: one llama.cpp context under one profile, in which a text is read or a block grafted.

The main path reads like its description: `prefill` a text, `capture` what the model computed,
later `graft` it into an empty context of the same profile, `decode` a question behind it. Blocks
may also continue each other (`graft_chain`) or stand beside each other (`compose`). What may be
restored is decided by `admission`, calls into the library are `context`; storage is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import kvb
from kvaudit.kvb_map import MappedBlock
from kvgraft import admission, state
from kvgraft.admission import ALIGNMENT
from kvgraft.context import APART, TEXT
from kvgraft.errors import EmptySpan, GraftRefused, StateRefused
from kvgraft.placement import check_positions
from kvgraft.reading import ReadingSession


@dataclass(frozen=True)
class Capture:
    """What a session computed for a span, ready to be stored.

    Attributes:
        header: identity, digests and provenance; its digest is the block's id.
        tokens: int32 [n_tokens].
        state: uint8 [state_bytes], the sequence state, normalised to sequence 0.
    """

    header: kvb.BlockHeader
    tokens: NDArray[np.int32]
    state: NDArray[np.uint8]


@dataclass(frozen=True)
class GraftReceipt:
    """Evidence that a graft ran.

    Attributes:
        block_ids: ids of the blocks, in the order of their positions.
        exact: False if a block was made under another profile, or not restored at its own position.
        restored_tokens: positions restored.
        restored_bytes: state bytes the engine read.
        placeholder_cells: rows put between the restored ones to keep them aligned.
    """

    block_ids: tuple[str, ...]
    exact: bool
    restored_tokens: int
    restored_bytes: int
    placeholder_cells: int


class Session(ReadingSession):
    """One context. A context manager; after `close` every call raises `SessionClosed`.

    Args:
        model: the opened model.
        settings: what to ask of the engine; what came of it is `profile`.
        n_branches: as in `ReadingSession`.

    Raises:
        EngineUnavailable: the library is missing, or loaded under other process-wide settings.
        EngineOutOfMemory: the context does not fit.
        EngineFailed: the engine refuses the context for another reason.
    """

    # -- capture and graft --------------------------------------------------------------------

    def capture(
        self,
        provenance: Mapping[str, Any] | None = None,
        *,
        parent: kvb.BlockHeader | None = None,
    ) -> Capture:
        """The state of everything the context holds, or of what stands behind a parent, as a block.

        Args:
            provenance: JSON object stored in the header; part of the block's identity.
            parent: header of a block whose tokens the context holds at their own positions; the
                new block holds only the rows behind it, and names it.

        Raises:
            EmptySpan: there is nothing to capture.
            GraftRefused: the context does not hold the parent's tokens, or it was composed.
            ModelMismatch, ProfileMismatch: the parent is of another model or profile.
            StateRefused: the engine's state does not hold the expected positions.
        """
        self._context.require_open()
        if not self._tokens:
            raise EmptySpan("an empty context has no state to capture", hint="prefill a span first")
        if not self._is_joint:
            raise GraftRefused(
                "the context was composed, and its rows are not those of one text",
                hint="capture the parts before they are composed",
            )
        start = self._start if parent is None else self._end_of(parent)
        tokens = np.asarray(self._tokens[start - self._start :], np.int32)
        if parent is None:
            buffer = self._context.read_state()
        else:
            self._context.share(TEXT, APART, start)
            try:
                buffer = self._context.read_state(APART)
            finally:
                self._context.remove(APART)
        layout = state.parse(buffer.data, n_sections=self._context.n_sections)
        check_positions(layout, start, len(tokens), self._context.window)
        header = kvb.build(
            model=kvb.ModelIdentity(
                self.model.name, self.model.pin.sha256, self.model.facts.architecture
            ),
            profile=self.profile.digest,
            engine=self.profile.engine_digest,
            tokens=tokens,
            state=buffer.data,
            start=start,
            parent=parent.id if parent else None,
            provenance={
                **(provenance or {}),
                "exact": self._exact,
                "profile": self.profile.to_json(),
            },
        )
        return Capture(header, tokens, buffer)

    def _end_of(self, parent: kvb.BlockHeader) -> int:
        """Own position behind a parent, whose tokens the context must hold at their places."""
        admission.check_identity(parent, self.model, self.profile, exact=self._exact)
        first, end = parent.start - self._start, parent.start + parent.tokens.n
        held = np.asarray(self._tokens[max(first, 0) : end - self._start], np.int32)
        if first < 0 or kvb.token_digest(held) != parent.tokens.sha256:
            raise GraftRefused(
                "the context does not hold the parent's tokens at their own positions",
                where=admission.name(parent),
                expected=f"positions {parent.start} … {end - 1}",
            )
        if end == self._position:
            raise EmptySpan(
                "nothing stands behind the parent", where=admission.name(parent), found=end
            )
        return end

    def graft(
        self, block: MappedBlock, *, exact: bool = True, at: int | None = None
    ) -> GraftReceipt:
        """Restore a block into this, empty, context.

        The block's chunks are verified first if they were not yet; the engine reads the mapping
        itself, no copy is made here.

        Args:
            block: an opened block.
            exact: False permits a block made under another profile, or another position; the
                session is then inexact.
            at: position of its first token; None for its own. Any other needs exact=False: the
                engine re-rotates the keys, which gives other bits than a fresh computation there.

        Raises:
            GraftRefused: the context is not empty, the block needs its parent, it was captured
                from an inexact session, this session's window cache is not full-size, or it is
                to be relocated.
            ModelMismatch, ProfileMismatch: made by another model, or under another profile.
            BlockCorrupt: a chunk does not have its digest.
            StateRefused: the state does not fit this context. The context is left empty.
        """
        delta = 0 if at is None else at - block.header.start
        self._check_position(at or 0, block.header.tokens.n)
        if delta:
            self._check_relocation(exact)
        admission.check_root(block.header)
        receipt = self._restore([block], block.header.start, exact)
        if not delta:
            return receipt
        try:
            self.relocate(delta, exact=False)
        except BaseException:
            self.reset()
            raise
        return replace(receipt, exact=False)

    def graft_chain(self, blocks: Sequence[MappedBlock], *, exact: bool = True) -> GraftReceipt:
        """Restore blocks that continue each other into this, empty, context.

        Equal, byte for byte, to one prefill of their tokens.

        Args:
            blocks: from the root on, as `BlockStore.chain` lists them.
            exact: as in `graft`.

        Raises:
            GraftRefused: as `graft`, or a block does not continue the one before it.
            ModelMismatch, ProfileMismatch, BlockCorrupt, StateRefused: as `graft`.
        """
        headers = [block.header for block in blocks]
        admission.check_chain(headers)
        return self._restore(blocks, headers[0].start, exact)

    def compose(self, blocks: Sequence[MappedBlock], *, exact: bool = True) -> GraftReceipt:
        """Restore blocks that were computed apart, each at its own reserved position.

        What is decoded next sees all of them; they did not see each other. Equal, byte for byte,
        to a fresh computation of the same layout (`prefill_apart`).

        Args:
            blocks: in ascending order of their starts, which are multiples of 256.
            exact: as in `graft`; False also lets unaligned starts pass, and another order of all
                but the last.

        Raises:
            GraftRefused: as `graft`, or the layout is not exact.
            ModelMismatch, ProfileMismatch, BlockCorrupt, StateRefused: as `graft`.
        """
        headers = [block.header for block in blocks]
        admission.check_layout(headers, exact=exact)
        receipt = self._restore(blocks, 0, exact)
        starts = [header.start for header in headers]
        if starts != sorted(starts) or any(start % ALIGNMENT for start in starts):
            self._exact = False
        self._is_joint = len(blocks) == 1
        return replace(receipt, exact=self._exact)

    def relocate(self, delta: int, *, exact: bool = True) -> None:
        """Re-rotate everything the context holds by `delta` positions; the session is then inexact.

        Two calls rotate twice. The engine ignores a rotation by 0.

        Raises:
            GraftRefused: `exact` is not False, or the engine cannot shift this cache.
            EmptySpan: the context is empty.
            ContextFull: no cells are left for the rows with which a rotation is applied.
            ValueError: a position would be negative.
            EngineFailed: the engine failed; the context was cleared.
        """
        self._check_relocation(exact)
        if not self._tokens:
            raise EmptySpan("an empty context cannot be relocated")
        self._check_position(self._start + delta, self._position - self._start)
        if self.room < self._context.shift_rows:
            raise self._full(self._context.shift_rows)
        self._exact = False
        try:
            self._context.shift(delta)
        except BaseException:
            self.reset()
            raise
        self._start += delta
        self._placement.origin += delta
        self._position += delta
        self._last = None

    def _check_relocation(self, exact: bool) -> None:
        if exact:
            raise GraftRefused(
                "rows at another position than their own do not equal fresh ones",
                hint="relocate with exact=False, or compute the span at that position",
            )
        if not self._context.can_shift():
            raise GraftRefused(
                "the engine cannot re-rotate the keys of this cache",
                hint="with a sliding window, open the session with swa_full=True",
            )

    def _restore(self, blocks: Sequence[MappedBlock], origin: int, exact: bool) -> GraftReceipt:
        """Restore blocks one behind the other; `origin` is the position that belongs in cell 0."""
        self._context.require_open()
        headers = [block.header for block in blocks]
        held = max(self._context.held(), len(self._tokens))
        if held:
            raise GraftRefused(
                "the context is not empty",
                expected="no cached positions",
                found=held,
                hint="call reset(), or open a new session",
            )
        self._check_position(headers[-1].start, headers[-1].tokens.n)
        for header in headers:
            admission.check_identity(header, self.model, self.profile, exact=exact)
        if exact and self._reuses_cells():
            raise GraftRefused(
                "a window cache that is not full-size reuses cells, so that rows behind a graft do "
                "not land where fresh ones do",
                where=admission.name(headers[0]),
                hint="open the session with swa_full=True, or graft with exact=False",
            )
        layouts = [self._verified_layout(block) for block in blocks]
        spans = [self.model.check_tokens(block.tokens) for block in blocks]
        self._forget(origin)
        fillers = 0
        try:
            for block, layout, ids in zip(blocks, layouts, spans, strict=True):
                fillers += self._placement.restore(block, layout, self.room)
                self._note_span(ids, block.header.start)
        except BaseException:
            self.reset()
            raise
        self._exact = admission.is_exact(headers, self.profile) and not self._reuses_cells()
        return GraftReceipt(
            tuple(header.id for header in headers),
            self._exact,
            len(self._tokens),
            sum(header.state.bytes for header in headers),
            fillers,
        )

    def _verified_layout(self, block: MappedBlock) -> state.StateLayout:
        """Verify a block's chunks, if nobody did yet, and the layout of what they hold."""
        if not block.verified:
            block.verify()
        layout = state.parse(block.state, n_sections=self._context.n_sections)
        if layout.signature() != self._context.signature:
            raise StateRefused(
                "the state's layout is not this context's",
                where=admission.name(block.header),
                hint="flash attention, cache types and model must be those of the capture",
            )
        n_tokens = block.header.tokens.n
        check_positions(layout, block.header.start, n_tokens, self._context.window)
        return layout
