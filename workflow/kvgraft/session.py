"""A session: one llama.cpp context under one profile, in which a text is read or a block grafted.

The main path reads like its description: `prefill` a text, `capture` what the model computed,
later `graft` it into an empty context of the same profile, `decode` a question behind it. A token's
index is its own position. Calls into the library are `context`; storage is not known here.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import kvb
from kvaudit.kvb_map import MappedBlock
from kvgraft import state
from kvgraft.context import PLACEHOLDER, TEXT, Context
from kvgraft.errors import (
    ContextFull,
    EmptySpan,
    GraftRefused,
    ModelMismatch,
    ProfileMismatch,
    StateRefused,
)
from kvgraft.model import FrozenModel
from kvgraft.profile import ProfileSettings, differences

ATTENTION_PADDING = 256
"""Attention length is rounded up to this many cells (llama-kv-cache.cpp, get_n_kv)."""

Progress = Callable[[int, int], None]
Split = int | Sequence[int] | None


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
        block_id: id of the block.
        exact: False if the block was made under another profile.
        restored_tokens: positions restored.
        restored_bytes: state bytes the engine read.
        placeholder_cells: rows put before the window cells to keep them aligned.
    """

    block_id: str
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
        self._tokens: list[int] = []
        self._exact = True
        self._last: NDArray[np.float32] | None = None

    def close(self) -> None:
        """Free the context; harmless when repeated."""
        self._context.close()

    def __enter__(self) -> Session:
        self._context.require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self) -> None:
        """Empty the context: positions and cached rows alike."""
        self._context.clear()
        self._forget()

    def _forget(self) -> None:
        self._tokens = []
        self._exact = True
        self._last = None

    # -- facts --------------------------------------------------------------------------------

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of the text so far; the index of each is its own position."""
        return tuple(self._tokens)

    @property
    def capacity(self) -> int:
        """Most tokens the context can hold: one fill-up batch must still fit behind them."""
        return int(self.profile.context["n_ctx"]) - (self.settings.min_rows - 1)

    @property
    def is_exact(self) -> bool:
        """False after a graft across profiles, until `reset`."""
        return self._exact

    # -- computing ----------------------------------------------------------------------------

    def prefill(
        self, tokens: Iterable[int], *, split: Split = None, progress: Progress | None = None
    ) -> None:
        """Read a span: compute its state at its own positions. No logits are kept.

        Args:
            tokens: ids; they continue what the context holds.
            split: batch sizes: None for the largest, one size, or a list of sizes. A size above
                `n_batch` is read in several calls.
            progress: called with (tokens done, tokens in all) after every batch.

        Raises:
            EmptySpan, TokenOutOfVocabulary, ContextFull, SessionClosed: nothing was computed.
            EngineFailed: the engine failed midway; the context was cleared.
        """
        self._checked_feed(tokens, split, 0, progress)

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

    def _checked_feed(
        self, tokens: Iterable[int], split: Split, outputs: int, progress: Progress | None
    ) -> NDArray[np.float32]:
        self._context.require_open()
        ids = self.model.check_tokens(tokens)
        if not ids:
            raise EmptySpan("a span of no tokens cannot be read")
        if len(self._tokens) + len(ids) > self.capacity:
            raise ContextFull(
                "the context has no room for the span",
                expected=f"at most {self.capacity - len(self._tokens)} more tokens",
                found=len(ids),
                hint="open a session with a larger n_ctx",
            )
        return self._feed(ids, split, outputs, progress)

    def _feed(
        self, ids: Sequence[int], split: Split, outputs: int, progress: Progress | None
    ) -> NDArray[np.float32]:
        rows: list[NDArray[np.float32]] = []
        done = 0
        for size in list(self._batches(len(ids), split, outputs)):
            wanted = max(0, min(size, done + size - (len(ids) - outputs)))
            rows += self._decode_batch(ids[done : done + size], wanted)
            done += size
            if progress:
                progress(done, len(ids))
        self._last = rows[-1] if rows else None
        n_vocab = self.model.n_vocab
        return np.stack(rows) if rows else np.empty((0, n_vocab), np.float32)

    def _batches(self, n_tokens: int, split: Split, outputs: int) -> Iterator[int]:
        """Batch sizes: as asked, within n_batch, and within n_outputs_max where logits are kept.

        What does not fit into one call is read in several before the next size is taken up.
        """
        sizes = itertools.repeat(split) if isinstance(split, int) else iter(split or ())
        left, rest = n_tokens, 0
        while left:
            rest = rest or next(sizes, self.settings.n_batch)
            if rest < 1:
                raise ValueError("a batch holds at least one token")
            size = min(rest, self.settings.n_batch, left)
            silent = left - outputs
            if size > silent and size - max(silent, 0) > self.settings.n_outputs_max:
                size = max(silent, 0) + self.settings.n_outputs_max
            left -= size
            rest -= size
            yield size

    def _decode_batch(self, ids: Sequence[int], outputs: int) -> list[NDArray[np.float32]]:
        try:
            rows = self._context.decode(ids, len(self._tokens), outputs)
        except BaseException:
            # Rows that nobody counts would take the places of the next ones.
            self._context.clear()
            self._forget()
            raise
        self._tokens += ids
        return rows

    # -- capture and graft --------------------------------------------------------------------

    def capture(self, provenance: Mapping[str, Any] | None = None) -> Capture:
        """The state of everything the context holds, as a block that starts at position 0.

        Args:
            provenance: JSON object stored in the header; part of the block's identity.

        Raises:
            EmptySpan: the context is empty.
            StateRefused: the engine's state does not hold the expected positions.
        """
        self._context.require_open()
        if not self._tokens:
            raise EmptySpan("an empty context has no state to capture", hint="prefill a span first")
        buffer = self._context.read_state()
        self._check_positions(
            state.parse(buffer.data, n_sections=self._context.n_sections), len(self._tokens)
        )
        tokens = np.asarray(self._tokens, np.int32)
        header = kvb.build(
            model=kvb.ModelIdentity(
                self.model.name, self.model.pin.sha256, self.model.facts.architecture
            ),
            profile=self.profile.digest,
            engine=self.profile.engine_digest,
            tokens=tokens,
            state=buffer.data,
            provenance={
                **(provenance or {}),
                "exact": self._exact,
                "profile": self.profile.to_json(),
            },
        )
        return Capture(header, tokens, buffer)

    def graft(self, block: MappedBlock, *, exact: bool = True) -> GraftReceipt:
        """Restore a block at its own position into this, empty, context.

        The block's chunks are verified first if they were not yet; the engine reads the mapping
        itself, no copy is made here.

        Args:
            block: an opened block.
            exact: False permits a block made under another profile; the session is then inexact.

        Raises:
            GraftRefused: the context is not empty, the block needs its parent, it was captured
                from an inexact session, or this session's window cache is not full-size.
            ModelMismatch, ProfileMismatch: made by another model, or under another profile.
            BlockCorrupt: a chunk does not have its digest.
            StateRefused: the state does not fit this context. The context is left empty.
        """
        self._context.require_open()
        header = block.header
        self._check_graft(header, exact)
        if not block.verified:
            block.verify()
        layout = state.parse(block.state, n_sections=self._context.n_sections)
        if layout.signature() != self._context.signature:
            raise StateRefused(
                "the state's layout is not this context's",
                where=f"block {header.id[:12]}",
                hint="flash attention, cache types and model must be those of the capture",
            )
        self._check_positions(layout, header.tokens.n)
        ids = self.model.check_tokens(block.tokens)
        shift = 0
        try:
            shift = self._align_window(layout)
            self._context.set_state(block.state_address, header.state.bytes, TEXT)
        except BaseException:
            self.reset()
            raise
        self._tokens = list(ids)
        self._exact = (
            header.profile == self.profile.digest
            and header.provenance.get("exact") is True
            and not self._reuses_cells()
        )
        return GraftReceipt(header.id, self._exact, header.tokens.n, header.state.bytes, shift)

    def _check_graft(self, header: kvb.BlockHeader, exact: bool) -> None:
        where = f"block {header.id[:12]}"
        held = max(self._context.held(), len(self._tokens))
        if held:
            raise GraftRefused(
                "the context is not empty",
                expected="no cached positions",
                found=held,
                hint="call reset(), or open a new session",
            )
        if header.parent is not None or header.start != 0:
            raise GraftRefused(
                "the block continues another one, which is not restored",
                where=where,
                expected="start 0 and no parent",
                found=f"start {header.start}, parent {header.parent}",
            )
        if header.model.sha256 != self.model.pin.sha256:
            raise ModelMismatch(
                "the block was captured with another model",
                where=where,
                expected=f"{self.model.name} {self.model.pin.sha256}",
                found=f"{header.model.name} {header.model.sha256}",
            )
        if exact and header.profile != self.profile.digest:
            theirs = header.provenance.get("profile")
            fields = (
                ", ".join(differences(self.profile.to_json(), theirs))
                if isinstance(theirs, Mapping)
                else "unknown"
            )
            raise ProfileMismatch(
                f"the block was captured under another profile (fields: {fields})",
                where=where,
                expected=self.profile.digest,
                found=header.profile,
                hint="open the session with the block's settings, or graft with exact=False",
            )
        if exact and header.provenance.get("exact") is not True:
            raise GraftRefused(
                "the block was captured from a session that was itself inexact",
                where=where,
                hint="graft with exact=False",
            )
        if exact and self._reuses_cells():
            raise GraftRefused(
                "a window cache that is not full-size reuses cells, so that rows behind a graft do "
                "not land where fresh ones do",
                where=where,
                hint="open the session with swa_full=True, or graft with exact=False",
            )
        if header.tokens.n > self.capacity:
            raise ContextFull(
                "the block does not fit into the context",
                where=where,
                expected=f"at most {self.capacity} tokens",
                found=header.tokens.n,
            )

    def _check_positions(self, layout: state.StateLayout, n_tokens: int) -> None:
        """The first cache must hold positions 0 … n-1, a window cache an unbroken tail of them."""
        for index, section in enumerate(layout.sections):
            first = 0 if index == 0 else n_tokens - section.n_cells
            if index == 1 and section.n_cells < min(n_tokens, self._context.window):
                first = -1
            expected = np.arange(first, first + section.n_cells, dtype=np.int32)
            complete = section.n_cells == n_tokens if index == 0 else first >= 0
            if not complete or not np.array_equal(section.positions, expected):
                raise StateRefused(
                    "the state does not hold the span's own positions",
                    where=f"section {index}",
                    expected=f"the last positions of 0 … {n_tokens - 1}",
                    found=f"{section.n_cells} cells",
                )

    def _reuses_cells(self) -> bool:
        """Whether cells of a window cache are written again when their rows leave the window."""
        return self._context.window > 0 and not self.settings.swa_full

    def _align_window(self, layout: state.StateLayout) -> int:
        """Reserve cells so that the window's rows land as in a fresh prefill, modulo the padding.

        A state keeps only the live rows of a window cache and the engine restores them from cell 0
        on; a fresh prefill has them at their own positions. Attention adds over cells in vector
        lanes, so that rows in other lanes give other bits (docs/adr/0004).
        """
        if len(layout.sections) < 2 or not layout.sections[1].n_cells:
            return 0
        shift = int(layout.sections[1].positions[0]) % ATTENTION_PADDING
        if shift:
            filler = state.placeholder(layout.sections[1], shift)
            address = ctypes.addressof((ctypes.c_uint8 * len(filler)).from_buffer(filler))
            self._context.set_state(address, len(filler), PLACEHOLDER)
        return shift
