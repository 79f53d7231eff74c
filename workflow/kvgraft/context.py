"""One llama.cpp context: the calls into the library and nothing of what they are for.

Rows go in with their positions, logits and state bytes come out. Sequence 0 holds the text;
sequence 1 is scratch for rows that fill a batch up; sequence 2 holds placeholder rows that keep
cells aligned; sequence 3 takes rows that are yet to join the text or to be written apart from it;
branches, which continue one text side by side, have the sequences behind it, and behind those one
more for each, whose placeholder rows keep the cells that the branch has yet to fill. What is
captured, grafted or refused is decided in `session`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from kvgraft import engine, portable, state
from kvgraft.errors import (
    ContextFull,
    EngineFailed,
    EngineOutOfMemory,
    SessionClosed,
    StateRefused,
)
from kvgraft.model import FrozenModel
from kvgraft.profile import KV_TYPES, ExecutionProfile, ProfileSettings

TEXT, SCRATCH, PLACEHOLDER, APART = 0, 1, 2, 3
FIRST_BRANCH = 4
_WIDTH = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}


@dataclass(frozen=True)
class RowIn:
    """One row of a batch: a token, its position, whose it is, and whether its logits are wanted."""

    token: int
    position: int
    sequence: int
    output: bool = False


class Context:
    """An open context; `close` frees it, after which every call raises `SessionClosed`.

    Args:
        model: the opened model.
        settings: what to ask of the engine.
        n_branches: sequences that may continue the text side by side. They change no row of the
            text itself, so that their number is no part of the profile.

    Attributes:
        profile: what is in force, read back.
        n_batch: most rows of one engine call. Fewer than asked for where `n_ctx` is smaller.
        layout: of a state of one token in this context.
        signature: layout of this context's states, see `state.StateLayout.signature`.
        n_sections: caches in a state: two where the model has a sliding window.

    Raises:
        EngineUnavailable: the library is missing, or loaded under other process-wide settings.
        NotPortable: the portable arithmetic was asked for, and the library does not compute it.
        EngineOutOfMemory: the context does not fit.
        EngineFailed: the engine refuses the context for another reason.
    """

    def __init__(self, model: FrozenModel, settings: ProfileSettings, n_branches: int = 0) -> None:
        self.settings = settings
        self.n_branches = n_branches
        self._api = engine.load(settings.environment).api
        self._host = portable.facts() if settings.is_portable else engine.facts()
        self._ctx: Any = None
        self._batch: Any = None
        self._n_vocab = 0
        weights = model.handle(settings)
        try:
            with engine.buffers_logged() as buffers:
                self._open(model, weights)
            self._n_vocab = model.n_vocab
            self.window = int(self._api.llama_model_n_swa(weights))
            self.decode([0], 0, 1)
            self.layout = state.parse(self.read_state().data)
            self.clear()
            self.signature = self.layout.signature()
            self.n_sections = len(self.layout.sections)
            self.profile = self._read_profile(self.layout, model.weight_buffers(settings), buffers)
        except BaseException:
            self.close()
            raise

    def _open(self, model: FrozenModel, weights: Any) -> None:
        asked, api = self.settings, self._api
        needed, free = cache_bytes(model, asked), psutil.virtual_memory().available
        # What is offloaded does not have to fit here; the engine says if it does not fit there.
        if needed > free and not asked.n_gpu_layers:
            raise EngineOutOfMemory(
                f"a cache of {asked.n_ctx} tokens does not fit into memory",
                expected=f"at most {free >> 20} MiB",
                found=f"{needed >> 20} MiB",
                hint="ask for a smaller n_ctx",
            )
        sequences = FIRST_BRANCH + 2 * self.n_branches
        if asked.n_outputs_max < sequences:  # the engine would abort the process
            raise EngineFailed(
                "a context gives at least one row of logits for every sequence",
                expected=f"n_outputs_max of at least {sequences}",
                found=asked.n_outputs_max,
                hint="ask for more outputs, or for fewer branches",
            )
        params = api.llama_context_default_params()
        params.n_ctx = asked.n_ctx
        params.n_batch = params.n_ubatch = asked.n_batch
        params.n_outputs_max = asked.n_outputs_max
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = asked.n_threads
        params.flash_attn_type = int(asked.flash_attention)
        params.type_k, params.type_v = KV_TYPES[asked.type_k], KV_TYPES[asked.type_v]
        params.swa_full = asked.swa_full
        params.kv_unified = True
        params.op_offload = asked.n_gpu_layers > 0
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
        self.n_batch = min(asked.n_batch, int(api.llama_n_batch(self._ctx)))

    def _read_profile(
        self,
        layout: state.StateLayout,
        weights: dict[str, float],
        buffers: dict[str, dict[str, float]],
    ) -> ExecutionProfile:
        """What is in force; attention and cache types are those of a state of this context."""
        api, ctx = self._api, self._ctx
        names = {number: name for name, number in KV_TYPES.items()}
        types = {t.kind: t.type_id for section in layout.sections for t in section.tensors}
        return ExecutionProfile(
            settings=self.settings,
            engine=self._host.engine,
            machine=self._host.machine,
            context={
                "n_ctx": int(api.llama_n_ctx(ctx)),
                "n_batch": int(api.llama_n_batch(ctx)),
                "n_ubatch": int(api.llama_n_ubatch(ctx)),
                "n_threads": int(api.llama_n_threads(ctx)),
                "flash_attention": not any(s.v_transposed for s in layout.sections),
                "type_k": names.get(types["k"], str(types["k"])),
                "type_v": names.get(types["v"], str(types["v"])),
                "window": self.window,
            },
            buffers={
                "weights": sorted(weights),
                "cache": sorted(buffers.get("KV", {})),
                "compute": sorted(buffers.get("compute", {})),
            },
            environment=self._host.environment,
        )

    def close(self) -> None:
        """Free the context; harmless when repeated."""
        if self._batch is not None:
            self._api.llama_batch_free(self._batch)
            self._batch = None
        if self._ctx:
            self._api.llama_free(self._ctx)
            self._ctx = None

    def require_open(self) -> None:
        """Raise `SessionClosed` after `close`."""
        if not self._ctx:
            raise SessionClosed("the session is closed", hint="open a new one")

    def clear(self) -> None:
        """Forget every position, and overwrite the cached rows with zeros."""
        self.require_open()
        self._api.llama_memory_clear(self._memory, True)

    def held(self) -> int:
        """Number of positions up to the highest that any sequence holds."""
        self.require_open()
        return 1 + max(
            int(self._api.llama_memory_seq_pos_max(self._memory, seq))
            for seq in range(FIRST_BRANCH + 2 * self.n_branches)
        )

    def holds_text(self) -> bool:
        """Whether the text sequence holds any position."""
        self.require_open()
        return int(self._api.llama_memory_seq_pos_max(self._memory, TEXT)) >= 0

    def decode(
        self, ids: Sequence[int], start: int, outputs: int, sequence: int = TEXT
    ) -> list[NDArray[np.float32]]:
        """One engine call: `ids` at positions start, start + 1, …, filled up with scratch rows.

        Args:
            ids: at most `n_batch` tokens.
            start: position of the first.
            outputs: how many of the last tokens to return logits for.
            sequence: whose rows they are; they see that sequence's rows alone.

        Returns:
            `outputs` arrays, float32 [n_vocab].

        Raises:
            ContextFull, EngineFailed: the engine refuses; the context was cleared.
        """
        first = len(ids) - outputs
        rows = [RowIn(token, start + row, sequence, row >= first) for row, token in enumerate(ids)]
        return self.decode_rows(rows)

    def decode_rows(self, rows: Sequence[RowIn]) -> list[NDArray[np.float32]]:
        """One engine call with rows of any sequences, filled up with scratch rows to `min_rows`.

        Where logits are wanted at all, at least `min_rows` rows ask for them, because the output
        matrix is multiplied with those rows alone.

        Args:
            rows: at most `n_batch`.

        Returns:
            The logits of the rows that want them, in their order, float32 [n_vocab] each.

        Raises:
            ContextFull, EngineFailed: the engine refuses; the context was cleared.
            ValueError: too many rows, of which the engine would abort the process.
        """
        self.require_open()
        if max(len(rows), self.settings.min_rows) > self.n_batch:
            raise ValueError(f"{len(rows)} rows do not fit into a batch of {self.n_batch}")
        api, batch = self._api, self._batch
        wanted = [number for number, row in enumerate(rows) if row.output]
        fillers = max(0, self.settings.min_rows - len(rows))
        scratch = [RowIn(rows[-1].token, position, SCRATCH) for position in range(fillers)]
        missing = self.settings.min_rows - len(wanted) if wanted else 0
        asking = {*wanted}
        for number in reversed(range(len(rows) + fillers)):
            if len(asking) >= len(wanted) + missing:
                break
            asking.add(number)
        for number, row in enumerate([*rows, *scratch]):
            batch.token[number] = row.token
            batch.pos[number] = row.position
            batch.n_seq_id[number] = 1
            batch.seq_id[number][0] = row.sequence
            batch.logits[number] = number in asking
        batch.n_tokens = len(rows) + len(scratch)
        code = api.llama_decode(self._ctx, batch)
        if code != 0:
            self.clear()
            kind = ContextFull if code == 1 else EngineFailed
            raise kind(
                f"the engine did not decode a batch: {engine.log.tail()}",
                found=f"code {code}",
                hint="the context was cleared",
            )
        logits = [
            np.ctypeslib.as_array(api.llama_get_logits_ith(self._ctx, r), (self._n_vocab,)).copy()
            for r in wanted
        ]
        if scratch:
            self.remove(SCRATCH)
        return logits

    def remove(self, sequence: int) -> None:
        """Take a sequence out of every cell; cells that nobody else holds become free."""
        self.require_open()
        self._api.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def reserve(self, branch: int, positions: Sequence[int]) -> None:
        """Let a branch's placeholder rows take the next cells of every cache.

        Args:
            branch: its sequence.
            positions: of the rows, by which `release` frees them.

        Raises:
            StateRefused: the engine has no room for them.
        """
        filler = state.placeholder(self.layout, [len(positions)] * self.n_sections, positions)
        address = ctypes.addressof((ctypes.c_uint8 * len(filler)).from_buffer(filler))
        self.set_state(address, len(filler), branch + self.n_branches)

    def release(self, branch: int, position: int = -1) -> None:
        """Free the cells of a branch's placeholder rows at one position; at all of them for -1."""
        self.require_open()
        end = -1 if position < 0 else position + 1
        self._api.llama_memory_seq_rm(self._memory, branch + self.n_branches, position, end)

    def share(self, source: int, target: int, first: int = -1, end: int = -1) -> None:
        """Let `target` hold the rows of `source` too, at own positions `first` … `end` - 1.

        -1 stands for the first position, and for the one behind the last.
        """
        self.require_open()
        self._api.llama_memory_seq_cp(self._memory, source, target, first, end)

    def can_shift(self) -> bool:
        """Whether the engine can re-rotate the keys of this cache."""
        self.require_open()
        return bool(self._api.llama_memory_can_shift(self._memory))

    @property
    def shift_rows(self) -> int:
        """Free cells that a shift needs for a moment."""
        return max(2, self.settings.min_rows)

    def shift(self, delta: int) -> None:
        """Re-rotate the text's keys by `delta` positions, before this returns.

        The engine only notes a shift and applies it ahead of its next batch, adding up what was
        noted; a batch of scratch rows makes it apply this one now. A shift by 0 it ignores.
        """
        self.require_open()
        self._api.llama_memory_seq_add(self._memory, TEXT, -1, -1, delta)
        self.decode([0] * self.shift_rows, 0, 0, SCRATCH)
        self.remove(SCRATCH)

    def read_state(self, sequence: int = TEXT) -> NDArray[np.uint8]:
        """A sequence's state, uint8 [n_bytes], normalised to sequence 0.

        Raises:
            StateRefused: the engine did not write all of it.
        """
        self.require_open()
        size = self._api.llama_state_seq_get_size(self._ctx, sequence)
        buffer = np.empty(size, np.uint8)
        pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = self._api.llama_state_seq_get_data(self._ctx, pointer, size, sequence)
        if written != size or not size:
            raise StateRefused(
                f"the engine did not write its state: {engine.log.tail()}",
                expected=size,
                found=written,
            )
        state.normalise(buffer.data, sequence)
        return buffer

    def set_state(self, address: int, size: int, sequence: int) -> None:
        """Let the engine read a state from memory, in place.

        Args:
            address: of the first byte.
            size: bytes.
            sequence: where its rows go.

        Raises:
            StateRefused: the engine read another number of bytes; the caller clears the context.
        """
        self.require_open()
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
        read = self._api.llama_state_seq_set_data(self._ctx, pointer, size, sequence)
        if read != size:
            raise StateRefused(
                f"the engine did not accept the state: {engine.log.tail()}",
                expected=f"{size} bytes read",
                found=f"{read} bytes",
            )


def cache_bytes(model: FrozenModel, settings: ProfileSettings) -> int:
    """Size of the K and V cache a context will ask for, from the model's header."""
    facts = model.facts
    row = facts.key_length * _WIDTH[settings.type_k] + facts.value_length * _WIDTH[settings.type_v]
    return int(row * facts.n_head_kv * facts.n_layer * settings.n_ctx)
