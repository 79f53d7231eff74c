"""Reading text under one profile: prefill, decode, logits, own positions and the room that is left.

A token's own position counts from the start that `reset` was given. Cells are `placement`, calls
into the library `context`; blocks are not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvaudit.kvb_header import MAX_POSITION
from kvgraft.admission import ALIGNMENT
from kvgraft.batches import Split, batches
from kvgraft.context import APART, FIRST_BRANCH, TEXT, Context, RowIn
from kvgraft.errors import ContextFull, EmptySpan
from kvgraft.model import FrozenModel
from kvgraft.placement import Placement
from kvgraft.profile import ProfileSettings

Progress = Callable[[int, int], None]

GROUP = 64
"""Cells whose weights a softmax may add up before it rounds: the 32-bit lanes of the widest vector
that SVE allows (16 on AVX-512; ggml/src/ggml-cpu/vec.cpp, ggml_vec_soft_max_f32)."""


class ReadingSession:
    """The part of a session that reads text; `session.Session` adds capture and graft.

    Args:
        model: the opened model.
        settings: what to ask of the engine; what came of it is `profile`.
        n_branches: continuations that `branches` may hold side by side.

    Raises:
        As `Session`.
    """

    def __init__(self, model: FrozenModel, settings: ProfileSettings, n_branches: int = 0) -> None:
        self.model = model
        self.settings = settings
        self._context = Context(model, settings, n_branches)
        self.profile = self._context.profile
        self._placement = Placement(self._context, reuses_cells=self._reuses_cells())
        self._forget()

    def close(self) -> None:
        """Free the context; harmless when repeated."""
        self._context.close()

    def __enter__(self) -> Self:
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
    def n_batch(self) -> int:
        """Most tokens of one engine call; a context of fewer tokens takes no larger batch."""
        return self._context.n_batch

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
            for at in range(0, len(ids), self.n_batch):
                batch = ids[at : at + self.n_batch]
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

    # -- branches, for the module of that name ------------------------------------------------

    @property
    def n_branches(self) -> int:
        """Continuations that may be held side by side."""
        return self._context.n_branches

    @property
    def tail_rows(self) -> int:
        """Rows of the text that share a group of cells with the rows behind it."""
        return (self._position - self._placement.origin) % GROUP if self._tokens else 0

    def read_tail(self) -> NDArray[np.uint8] | None:
        """State of the text's last `tail_rows` rows, for branches that cannot lie behind them."""
        if not self.tail_rows:
            return None
        self._context.share(TEXT, APART, self._position - self.tail_rows)
        try:
            return self._context.read_state(APART)
        finally:
            self._context.remove(APART)

    def begin_branch(self, sequence: int, tail: NDArray[np.uint8] | None = None) -> None:
        """Let a branch see the text; its own rows come at `position` and behind.

        Args:
            sequence: of the branch.
            tail: what `read_tail` gave, for a branch that does not lie behind the text: a copy of
                these rows then takes the next cells.

        Raises:
            StateRefused: there is no room for the copy; the context was cleared.
        """
        if not FIRST_BRANCH <= sequence < FIRST_BRANCH + self.n_branches:
            raise ValueError(f"sequence {sequence} is none of the session's branches")
        if tail is None:
            self._context.share(TEXT, sequence)
            return
        self._context.share(TEXT, sequence, end=self._position - self.tail_rows)
        try:
            self._context.set_state(tail.ctypes.data, tail.nbytes, APART)
        except BaseException:
            self.reset()
            raise
        self._context.share(APART, sequence)
        self._context.remove(APART)

    def decode_branches(self, rows: Sequence[RowIn]) -> list[NDArray[np.float32]]:
        """One batch of rows of branches; logits of those that want them, float32 [n_vocab].

        Raises:
            EngineFailed: the engine failed; the context was cleared.
        """
        try:
            return self._context.decode_rows(rows)
        except BaseException:
            self.reset()
            raise

    def reserve(self, sequence: int, positions: Sequence[int]) -> None:
        """Keep the next cells for a branch, by placeholder rows at these positions.

        Raises:
            StateRefused: there is no room for them; the context was cleared.
        """
        try:
            self._context.reserve(sequence, positions)
        except BaseException:
            self.reset()
            raise

    def release(self, sequence: int, position: int) -> None:
        """Free the cell that is kept for a branch at this position, so that its next row has it."""
        self._context.release(sequence, position)

    def drop_branch(self, sequence: int) -> None:
        """Forget a branch, and the cells that were kept for it; the text stays."""
        self._context.remove(sequence)
        self._context.release(sequence)

    def holds_apart(self, n_tokens: int) -> bool:
        """Whether branches of so many tokens can lie side by side, each in its own lanes.

        The cells of rows that have left the model's window can be given to others.
        """
        return not self._reuses_cells() and not 0 < self._context.window < max(GROUP, n_tokens + 1)

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
        most = self.settings.n_outputs_max
        for size in batches(len(ids), split, outputs, largest=self.n_batch, most_outputs=most):
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

    def _note_span(self, ids: Sequence[int], start: int) -> None:
        if not self._tokens:
            self._start = start
        self._tokens += ids
        self._position = start + len(ids)

    def _reuses_cells(self) -> bool:
        """Whether cells of a window cache are written again when their rows leave the window."""
        return self._context.window > 0 and not self.settings.swa_full
