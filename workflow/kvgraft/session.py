"""A session: one llama.cpp context under one profile, in which a text is read or a block grafted.

The main path reads like its description: `prefill` a text, `capture` what the model computed,
later `graft` it into an empty context of the same profile, `decode` a question behind it. Sequence
0 holds the text at its own positions; sequence 1 is scratch for rows that fill a batch up; sequence
2 holds placeholder rows that keep the window cells aligned. Storage and files are not known here.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from kvaudit import kvb
from kvaudit.kvb_map import MappedBlock
from kvgraft import engine, state
from kvgraft.errors import (
    ContextFull,
    EmptySpan,
    EngineFailed,
    EngineOutOfMemory,
    GraftRefused,
    ModelMismatch,
    ProfileMismatch,
    SessionClosed,
    StateRefused,
)
from kvgraft.model import FrozenModel
from kvgraft.profile import KV_TYPES, ExecutionProfile, ProfileSettings, differences

TEXT, SCRATCH, PLACEHOLDER = 0, 1, 2
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
        self._api = engine.load(settings.environment).api
        self._ctx: Any = None
        self._batch: Any = None
        weights = model.handle(settings)
        with engine.buffers_logged() as buffers:
            self._open_context(weights)
        self._tokens: list[int] = []
        self._exact = True
        self._last: NDArray[np.float32] | None = None
        try:
            self._signature, self._n_sections = self._probe()
            self.profile = self._read_profile(buffers)
        except BaseException:
            self.close()
            raise

    # -- life ---------------------------------------------------------------------------------

    def _open_context(self, weights: Any) -> None:
        asked, api = self.settings, self._api
        needed = self._cache_bytes()
        if needed > psutil.virtual_memory().available:
            raise EngineOutOfMemory(
                f"a cache of {asked.n_ctx} tokens does not fit into memory",
                expected=f"at most {psutil.virtual_memory().available >> 20} MiB",
                found=f"{needed >> 20} MiB",
                hint="ask for a smaller n_ctx",
            )
        params = api.llama_context_default_params()
        params.n_ctx = asked.n_ctx
        params.n_batch = params.n_ubatch = asked.n_batch
        params.n_outputs_max = asked.n_outputs_max
        params.n_seq_max = 3
        params.n_threads = params.n_threads_batch = asked.n_threads
        params.flash_attn_type = int(asked.flash_attention)
        params.type_k, params.type_v = KV_TYPES[asked.type_k], KV_TYPES[asked.type_v]
        params.swa_full = asked.swa_full
        params.kv_unified = True
        params.no_perf = True
        params.rope_freq_base = asked.rope_freq_base
        params.rope_freq_scale = asked.rope_freq_scale
        self._ctx = api.llama_init_from_model(weights, params)
        if not self._ctx:
            reason = engine.log.tail()
            kind = EngineOutOfMemory if "alloc" in reason or "memory" in reason else EngineFailed
            raise kind(f"the engine does not open a context: {reason}", found=asked.to_json())
        self._memory = api.llama_get_memory(self._ctx)
        self._batch = api.llama_batch_init(asked.n_batch, 0, 1)

    def _cache_bytes(self) -> int:
        facts = self.model.facts
        width = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}
        row = facts.key_length * width[self.settings.type_k]
        row += facts.value_length * width[self.settings.type_v]
        return int(row * facts.n_head_kv * facts.n_layer * self.settings.n_ctx)

    def close(self) -> None:
        """Free the context; harmless when repeated."""
        if self._batch is not None:
            self._api.llama_batch_free(self._batch)
            self._batch = None
        if self._ctx:
            self._api.llama_free(self._ctx)
            self._ctx = None

    def __enter__(self) -> Session:
        self._require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if not self._ctx:
            raise SessionClosed("the session is closed", hint="open a new one")

    def _probe(self) -> tuple[tuple[object, ...], int]:
        """Layout of this context's state, from a one-token state of its own."""
        self._feed([0], None, 1, None)
        layout = state.parse(self._read_state().data)
        self.reset()
        return layout.signature(), len(layout.sections)

    def _read_profile(self, buffers: Mapping[str, Mapping[str, float]]) -> ExecutionProfile:
        api, ctx = self._api, self._ctx
        transposed = {part[0] for part in self._signature}  # type: ignore[index]
        types = {
            tensor[0]: tensor[2]
            for part in self._signature
            for tensor in part[1]  # type: ignore[index]
        }
        names = {number: name for name, number in KV_TYPES.items()}
        return ExecutionProfile(
            settings=self.settings,
            engine=engine.engine_facts(),
            machine=engine.machine_facts(),
            context={
                "n_ctx": int(api.llama_n_ctx(ctx)),
                "n_batch": int(api.llama_n_batch(ctx)),
                "n_ubatch": int(api.llama_n_ubatch(ctx)),
                "n_threads": int(api.llama_n_threads(ctx)),
                "flash_attention": transposed == {False},
                "type_k": names.get(types["k"], str(types["k"])),
                "type_v": names.get(types["v"], str(types["v"])),
                "window": int(api.llama_model_n_swa(self.model.handle(self.settings))),
            },
            buffers={
                "weights": sorted(self.model.weight_buffers(self.settings)),
                "cache": sorted(buffers.get("KV", {})),
                "compute": sorted(buffers.get("compute", {})),
            },
            environment=engine.environment_facts(),
        )

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
            split: batch sizes: None for the largest, one size, or a list of sizes.
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
        if not 1 <= wanted <= max(len(ids), 1):
            raise ValueError(f"outputs must be in 1 … {len(ids)}, not {wanted}")
        return self._checked_feed(ids, split, wanted, progress)

    def logits(self) -> NDArray[np.float32]:
        """Logits at the last decoded position, float32 [n_vocab].

        Raises:
            EmptySpan: nothing was decoded; a graft restores state, not logits.
        """
        self._require_open()
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
        self._require_open()
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
        for size in self._batches(len(ids), split, outputs):
            wanted = max(0, min(size, done + size - (len(ids) - outputs)))
            rows += self._decode_batch(ids[done : done + size], wanted)
            done += size
            if progress:
                progress(done, len(ids))
        self._last = rows[-1] if rows else None
        n_vocab = self.model.n_vocab
        return np.stack(rows) if rows else np.empty((0, n_vocab), np.float32)

    def _batches(self, n_tokens: int, split: Split, outputs: int) -> Iterator[int]:
        """Batch sizes: as asked, within n_batch, and within n_outputs_max where logits are kept."""
        sizes = itertools.repeat(split) if isinstance(split, int) else iter(split or ())
        left = n_tokens
        while left:
            size = min(next(sizes, self.settings.n_batch), self.settings.n_batch, left)
            if size < 1:
                raise ValueError("a batch holds at least one token")
            silent = left - outputs
            if size > silent and size - max(silent, 0) > self.settings.n_outputs_max:
                size = max(silent, 0) + self.settings.n_outputs_max
            left -= size
            yield size

    def _decode_batch(self, ids: Sequence[int], outputs: int) -> list[NDArray[np.float32]]:
        """One engine call: `ids` on the text sequence, filled up with scratch rows.

        Where logits are wanted at all, at least `min_rows` rows ask for them, because the output
        matrix is multiplied with those rows alone.
        """
        api, batch = self._api, self._batch
        n, start = len(ids), len(self._tokens)
        n_rows = max(n, self.settings.min_rows)
        marked = max(outputs, min(self.settings.min_rows, n)) if outputs else 0
        for row in range(n_rows):
            own = row < n
            batch.token[row] = ids[row] if own else ids[-1]
            batch.pos[row] = start + row if own else row - n
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = TEXT if own else SCRATCH
            batch.logits[row] = (row >= n - marked) if own else bool(outputs)
        batch.n_tokens = n_rows
        code = api.llama_decode(self._ctx, batch)
        if code != 0:
            self.reset()
            kind = ContextFull if code == 1 else EngineFailed
            raise kind(
                f"the engine did not decode a batch: {engine.log.tail()}",
                found=f"code {code}",
                hint="the context was cleared",
            )
        self._tokens += ids
        width = (self.model.n_vocab,)
        rows = [
            np.ctypeslib.as_array(api.llama_get_logits_ith(self._ctx, row), width).copy()
            for row in range(n - outputs, n)
        ]
        if n_rows > n:
            api.llama_memory_seq_rm(self._memory, SCRATCH, -1, -1)
        return rows

    # -- capture and graft --------------------------------------------------------------------

    def _read_state(self) -> NDArray[np.uint8]:
        api = self._api
        size = api.llama_state_seq_get_size(self._ctx, TEXT)
        buffer = np.empty(size, np.uint8)
        pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = api.llama_state_seq_get_data(self._ctx, pointer, size, TEXT)
        if written != size or not size:
            raise StateRefused(
                f"the engine did not write its state: {engine.log.tail()}",
                expected=size,
                found=written,
            )
        return buffer

    def capture(self, provenance: Mapping[str, Any] | None = None) -> Capture:
        """The state of everything the context holds, as a block that starts at position 0.

        Args:
            provenance: JSON object stored in the header; part of the block's identity.

        Raises:
            EmptySpan: the context is empty.
            StateRefused: the engine's state does not hold the expected positions.
        """
        self._require_open()
        if not self._tokens:
            raise EmptySpan("an empty context has no state to capture", hint="prefill a span first")
        buffer = self._read_state()
        self._check_positions(
            state.parse(buffer.data, n_sections=self._n_sections), len(self._tokens)
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
            GraftRefused: the context is not empty, the block needs its parent, or it was captured
                from an inexact session.
            ModelMismatch, ProfileMismatch: made by another model, or under another profile.
            BlockCorrupt: a chunk does not have its digest.
            StateRefused: the state does not fit this context. The context is left empty.
        """
        self._require_open()
        header = block.header
        self._check_graft(header, exact)
        if not block.verified:
            block.verify()
        layout = state.parse(block.state, n_sections=self._n_sections)
        if layout.signature() != self._signature:
            raise StateRefused(
                "the state's layout is not this context's",
                where=f"block {header.id[:12]}",
                hint="flash attention, cache types and model must be those of the capture",
            )
        self._check_positions(layout, header.tokens.n)
        ids = self.model.check_tokens(block.tokens.tolist())
        shift = 0
        try:
            shift = self._align_window(layout)
            self._set_state(block.state_address, header.state.bytes, TEXT)
        except BaseException:
            self.reset()
            raise
        self._tokens = list(ids)
        self._exact = (
            header.profile == self.profile.digest and header.provenance.get("exact") is True
        )
        return GraftReceipt(header.id, self._exact, header.tokens.n, header.state.bytes, shift)

    def _check_graft(self, header: kvb.BlockHeader, exact: bool) -> None:
        where = f"block {header.id[:12]}"
        held = max(
            self._api.llama_memory_seq_pos_max(self._memory, seq)
            for seq in (TEXT, SCRATCH, PLACEHOLDER)
        )
        if self._tokens or held >= 0:
            raise GraftRefused(
                "the context is not empty",
                expected="no cached positions",
                found=max(held + 1, len(self._tokens)),
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
            if index == 1 and section.n_cells < min(n_tokens, self._window()):
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

    def _window(self) -> int:
        return int(self._api.llama_model_n_swa(self.model.handle(self.settings)))

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
            self._set_state(address, len(filler), PLACEHOLDER)
        return shift

    def _set_state(self, address: int, size: int, sequence: int) -> None:
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
        read = self._api.llama_state_seq_set_data(self._ctx, pointer, size, sequence)
        if read != size:
            raise StateRefused(
                f"the engine did not accept the state: {engine.log.tail()}",
                expected=f"{size} bytes read",
                found=f"{read} bytes",
            )

    def reset(self) -> None:
        """Empty the context: positions and cached rows alike."""
        self._require_open()
        self._api.llama_memory_clear(self._memory, True)
        self._tokens = []
        self._exact = True
        self._last = None
