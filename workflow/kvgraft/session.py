"""A session: one llama.cpp context under one profile, in which a text is read or a block grafted.

The main path reads like its description: `prefill` a text, `capture` what the model computed,
later `graft` it into an empty context of the same profile, `decode` a question behind it. Blocks
may also continue each other (`graft_chain`) or stand beside each other (`compose`). What may be
restored is decided by `admission`, calls into the library are `context`; storage is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import kvb
from kvaudit.kvb_header import MAX_POSITION
from kvaudit.kvb_map import MappedBlock
from kvgraft import admission, state
from kvgraft.admission import ALIGNMENT
from kvgraft.batches import Split, batches
from kvgraft.context import APART, TEXT, Context
from kvgraft.errors import ContextFull, EmptySpan, GraftRefused, StateRefused
from kvgraft.model import FrozenModel
from kvgraft.placement import Placement, check_positions
from kvgraft.profile import ProfileSettings

Progress = Callable[[int, int], None]


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


class Session:
    """One context. A context manager; after `close` every call raises `SessionClosed`.

    Args:
        model: the opened model.
        settings: what to ask of the engine; what came of it is `profile`.

    Raises:
        EngineUnavailable: the library is missing, or loaded under other process-wide settings.
        EngineOutOfMemory: the context does not fit.
        EngineFailed: the engine refuses the context for another reason.
    """

    def __init__(self, model: FrozenModel, settings: ProfileSettings) -> None:
        self.model = model
        self.settings = settings
        self._context = Context(model, settings)
        self.profile = self._context.profile
        self._placement = Placement(self._context, reuses_cells=self._reuses_cells())
        self._forget()

    def close(self) -> None:
        """Free the context; harmless when repeated."""
        self._context.close()

    def __enter__(self) -> Session:
        self._context.require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self, start: int = 0, leading_cells: int = 0) -> None:
        """Empty the context: positions and cached rows alike.

        Args:
            start: own position of the next token.
            leading_cells: masked placeholder rows to put into the first cells. The text then lies
                in other cells than a graft would put it, so that the session is not exact unless
                their number is a multiple of 256.

        Raises:
            ContextFull: the context has fewer cells.
        """
        if leading_cells < 0:
            raise ValueError("leading_cells is not negative")
        self._check_position(start)
        if leading_cells > self.capacity:
            raise ContextFull(
                "the context has no room for the leading cells",
                expected=f"at most {self.capacity}",
                found=leading_cells,
            )
        self._context.clear()
        self._forget(start)
        if leading_cells:
            self._placement.skip([leading_cells] * self._context.n_sections)
            self._exact = leading_cells % ALIGNMENT == 0

    def _forget(self, start: int = 0) -> None:
        self._tokens: list[int] = []
        self._start = self._position = start
        self._placement.reset(start)
        self._is_joint = True
        self._exact = True
        self._last: NDArray[np.float32] | None = None

    # -- facts --------------------------------------------------------------------------------

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of the text so far, in the order of their positions."""
        return tuple(self._tokens)

    @property
    def position(self) -> int:
        """Own position of the next token."""
        return self._position

    @property
    def capacity(self) -> int:
        """Most tokens the context can hold: one fill-up batch must still fit behind them."""
        return int(self.profile.context["n_ctx"]) - (self.settings.min_rows - 1)

    @property
    def room(self) -> int:
        """Tokens for which there are cells left."""
        return self.capacity - max(self._placement.cells)

    @property
    def is_exact(self) -> bool:
        """False after a graft across profiles or a relocation, until `reset`."""
        return self._exact

    # -- computing ----------------------------------------------------------------------------

    def prefill(
        self, tokens: Iterable[int], *, split: Split = None, progress: Progress | None = None
    ) -> None:
        """Read a span: compute its state at its own positions. No logits are kept.

        Args:
            tokens: ids; they continue what the context holds, from `position` on.
            split: batch sizes: None for the largest, one size, or a list of sizes. A size above
                `n_batch` is read in several calls.
            progress: called with (tokens done, tokens in all) after every batch.

        Raises:
            EmptySpan, TokenOutOfVocabulary, ContextFull, SessionClosed: nothing was computed.
            EngineFailed: the engine failed midway; the context was cleared.
        """
        self._checked_feed(tokens, split, 0, progress)

    def prefill_apart(self, tokens: Iterable[int], start: int) -> None:
        """Read a span at reserved positions, blind to everything the context holds.

        Later tokens see it as well as the rest. This is how a layout of `compose` is computed
        freshly.

        Args:
            tokens: ids.
            start: own position of the first; not below `position`.

        Raises:
            As `prefill`.
        """
        ids = self._checked(tokens)
        if start < self._position:
            raise ValueError(f"start must be at least {self._position}, not {start}")
        self._check_position(start)
        gaps = self._placement.gaps([start] * self._context.n_sections)
        if len(ids) + max(gaps) > self.room:
            raise self._full(len(ids) + max(gaps))
        self._is_joint = not self._tokens
        try:
            self._placement.skip(gaps)
            for at in range(0, len(ids), self.settings.n_batch):
                batch = ids[at : at + self.settings.n_batch]
                self._context.decode(batch, start + at, 0, APART)
            self._context.share(APART, TEXT)
            self._context.remove(APART)
        except BaseException:
            self.reset()
            raise
        self._placement.advance(len(ids))
        self._note_span(ids, start)
        # A graft, or `reset(start)`, would put the rows of an unaligned start into other cells.
        self._exact &= start % ALIGNMENT == 0
        self._last = None

    def decode(
        self,
        tokens: Iterable[int],
        *,
        split: Split = None,
        outputs: int | None = None,
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """Read a span and return logits.

        Args:
            tokens: ids; they continue what the context holds.
            split: as in `prefill`; 1 feeds token by token.
            outputs: how many of the last tokens to return logits for; None for every one.
            progress: as in `prefill`.

        Returns:
            float32 [outputs, n_vocab], unnormalised log-probabilities.

        Raises:
            As `prefill`.
        """
        ids = list(tokens)
        wanted = len(ids) if outputs is None else outputs
        if ids and not 1 <= wanted <= len(ids):
            raise ValueError(f"outputs must be in 1 … {len(ids)}, not {wanted}")
        return self._checked_feed(ids, split, wanted, progress)

    def logits(self) -> NDArray[np.float32]:
        """Logits at the last decoded position, float32 [n_vocab].

        Raises:
            EmptySpan: nothing was decoded; a graft restores state, not logits.
        """
        self._context.require_open()
        if self._last is None:
            raise EmptySpan("there are no logits yet", hint="decode at least one token")
        return self._last

    def generate(self, n_tokens: int) -> Iterator[int]:
        """Greedy continuation: yields up to `n_tokens` ids, stops at an end-of-generation token."""
        for _ in range(n_tokens):
            token = int(self.logits().argmax())
            if self.model.ends_generation(token):
                return
            yield token
            self.decode([token])

    def _checked(self, tokens: Iterable[int]) -> list[int]:
        self._context.require_open()
        ids = self.model.check_tokens(tokens)
        if not ids:
            raise EmptySpan("a span of no tokens cannot be read")
        return ids

    def _check_position(self, start: int, n_tokens: int = 0) -> None:
        """Positions are int32 in the engine; beyond them it would wrap around silently."""
        if not 0 <= start <= MAX_POSITION - self.capacity - n_tokens:
            raise ValueError(f"position {start} is negative or too large")

    def _full(self, n_tokens: int) -> ContextFull:
        return ContextFull(
            "the context has no room for the span",
            expected=f"at most {self.room} more tokens",
            found=n_tokens,
            hint="open a session with a larger n_ctx",
        )

    def _checked_feed(
        self, tokens: Iterable[int], split: Split, outputs: int, progress: Progress | None
    ) -> NDArray[np.float32]:
        ids = self._checked(tokens)
        if len(ids) > self.room:
            raise self._full(len(ids))
        return self._feed(ids, split, outputs, progress)

    def _feed(
        self, ids: Sequence[int], split: Split, outputs: int, progress: Progress | None
    ) -> NDArray[np.float32]:
        rows: list[NDArray[np.float32]] = []
        done = 0
        settings = self.settings
        for size in batches(
            len(ids), split, outputs, largest=settings.n_batch, most_outputs=settings.n_outputs_max
        ):
            wanted = max(0, min(size, done + size - (len(ids) - outputs)))
            rows += self._decode_batch(ids[done : done + size], wanted)
            done += size
            if progress:
                progress(done, len(ids))
        self._last = rows[-1] if rows else None
        n_vocab = self.model.n_vocab
        return np.stack(rows) if rows else np.empty((0, n_vocab), np.float32)

    def _decode_batch(self, ids: Sequence[int], outputs: int) -> list[NDArray[np.float32]]:
        try:
            rows = self._context.decode(ids, self._position, outputs)
        except BaseException:
            # Rows that nobody counts would take the places of the next ones.
            self._context.clear()
            self._forget()
            raise
        self._tokens += ids
        self._position += len(ids)
        self._placement.advance(len(ids))
        return rows

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

    def _note_span(self, ids: Sequence[int], start: int) -> None:
        if not self._tokens:
            self._start = start
        self._tokens += ids
        self._position = start + len(ids)

    def _reuses_cells(self) -> bool:
        """Whether cells of a window cache are written again when their rows leave the window."""
        return self._context.window > 0 and not self.settings.swa_full
