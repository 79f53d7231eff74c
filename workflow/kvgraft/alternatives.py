"""Native alternatives to a graft on the same work: what the engine and its binding offer.

`Native` goes on behind a prefix as a program does that keeps no files: it asks the engine what its
memory still holds, and reads the rest again. The file caches are those of `kvgraft.bench`. Blocks
and sessions are not known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests
from kvaudit.cost import plan
from kvgraft.bench import children, server
from kvgraft.bench.rivals import CACHED, PICKLED
from kvgraft.bench.work import N_DECODE, Work, context_size
from kvgraft.context import APART, TEXT, Context
from kvgraft.errors import EngineFailed
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import ExecutionProfile, ProfileSettings

Row = dict[str, Any]

NO_SERVER = "llama-server is not installed"
FAILED_SERVER = "llama-server failed"
_ARMS = {PICKLED: plan.SAVE_STATE, CACHED: plan.DISK_CACHE, server.SERVER: plan.SERVER}


@dataclass(frozen=True)
class Served:
    """One request: a prefix and the token behind it.

    Attributes:
        first: lowest position that the sequence held before, -1 if none.
        last: highest position.
        reused: tokens of the prefix that were not read again.
        seconds: from looking at what is held to the logits.
        logits_sha256: of the token's logits.
    """

    first: int
    last: int
    reused: int
    seconds: float
    logits_sha256: str


class Native(Context):
    """A context whose sequences are cut back and continued, by the rules of llama.cpp's server."""

    def span(self, sequence: int) -> tuple[int, int]:
        """Lowest and highest position that a sequence holds; -1 if none."""
        self.require_open()
        first, last = self._api.llama_memory_seq_pos_min, self._api.llama_memory_seq_pos_max
        return int(first(self._memory, sequence)), int(last(self._memory, sequence))

    def cut(self, sequence: int, first: int) -> None:
        """Forget a sequence's positions from `first` on.

        Raises:
            EngineFailed: the engine cannot cut there.
        """
        self.require_open()
        if not self._api.llama_memory_seq_rm(self._memory, sequence, first, -1):
            raise EngineFailed("the engine does not cut a sequence back", found=first)

    def read(self, ids: Sequence[int], start: int, sequence: int) -> None:
        """Read a text in batches; no logits."""
        for at in range(0, len(ids), self.settings.n_batch):
            self.decode(ids[at : at + self.settings.n_batch], start + at, 0, sequence)

    def request(self, prefix: Sequence[int], token: int, sequence: int, window: int) -> Served:
        """The logits of `token` behind `prefix`, of which as much is reused as is held.

        Args:
            prefix: token ids; what the sequence holds began with them.
            token: the token behind it.
            sequence: in which it is asked for.
            window: tokens that a small window cache keeps, 0 for a full one.
        """
        begin = time.perf_counter()
        first, last = self.span(sequence)
        reused = len(prefix) if plan.reusable(len(prefix), first, last, window) else 0
        self.cut(sequence, reused)
        self.read(prefix[reused:], reused, sequence)
        logits: NDArray[np.float32] = self.decode([token], len(prefix), 1, sequence)[0]
        seconds = time.perf_counter() - begin
        return Served(first, last, reused, seconds, digests.sha256_bytes(logits.tobytes()))


@dataclass
class Alternatives:
    """All native alternatives of one model.

    Attributes:
        model: the opened model.
        settings: the configured profile settings; changed as planned.
        options: the configuration's `cost` section.
        text: the ids whose first ones are every span.
        scratch: a folder for files of the caches.
        cores: threads.
        server: llama-server, or None.
        note: called with one line of progress.
        keep_profile: lists a profile that was in force, returns its digest.
    """

    model: FrozenModel
    settings: ProfileSettings
    options: Mapping[str, Any]
    text: tuple[int, ...]
    scratch: Path
    cores: int
    server: Path | None
    note: Callable[[str], None]
    keep_profile: Callable[[ExecutionProfile], str]
    _served: dict[tuple[str, int], list[Served]] = field(init=False, default_factory=dict)
    _digests: dict[str, str] = field(init=False, default_factory=dict)

    def measure(self) -> list[Row]:
        """One row an arm and length, in the planned order."""
        self._window = self.model.facts.window or 0
        trained = self.model.facts.n_ctx_train
        self._lengths = plan.fitting(self.options["alternative_lengths"], trained)
        if not self._lengths:
            return []
        for n_tokens in self._lengths:
            for _ in range(self.options["alternative_repeats"]):
                self._live(n_tokens)
        self.note("live context, restart and wrong sequence done")
        if self._window:
            self._small_window()
            self.note("small window cache done")
        files = {(row["arm"], row["tokens"]): row for row in self._files()}
        return [
            files[key] if key in files else self._native_row(*key)
            for key in plan.alternatives(self.options, trained, self._window)
        ]

    # -- the engine's own memory --------------------------------------------------------------

    def _open(self, arms: Sequence[str], *, swa_full: bool) -> Native:
        trained = self.model.facts.n_ctx_train
        changes = plan.alternative_settings(
            self.options, trained, self._window, self.cores, swa_full
        )
        native = Native(self.model, self.settings.with_(**changes))
        for arm in arms:
            self._digests[arm] = self.keep_profile(native.profile)
        return native

    def _note(self, arm: str, n_tokens: int, served: Served) -> None:
        self._served.setdefault((arm, n_tokens), []).append(served)

    def _live(self, n_tokens: int) -> None:
        """After a restart nothing is there; then the text goes on and its prefix is asked for
        again; then it is asked for in another sequence of the same context.
        """
        prefix, token = self.text[:n_tokens], self.text[n_tokens]
        native = self._open(plan.NATIVE, swa_full=True)
        try:
            self._note(plan.RESTART, n_tokens, native.request(prefix, token, TEXT, 0))
            behind = self.text[n_tokens + 1 : n_tokens + 1 + plan.CONTINUED]
            native.read(behind, n_tokens + 1, TEXT)
            self._note(plan.LIVE, n_tokens, native.request(prefix, token, TEXT, 0))
            self._note(plan.ELSEWHERE, n_tokens, native.request(prefix, token, APART, 0))
        finally:
            native.close()

    def _small_window(self) -> None:
        """Read on until the rows before the longest span's window are gone; then ask for each."""
        native = self._open([plan.SMALL_WINDOW], swa_full=False)
        try:
            at, longest = 0, self._lengths[-1]
            end = native.settings.n_ctx - native.settings.n_batch
            while at < end and (at <= longest or self._still_reusable(native, longest)):
                native.read(self.text[at : at + native.settings.n_batch], at, TEXT)
                at += native.settings.n_batch
            held = native.span(TEXT)
            for n_tokens in self._lengths:
                prefix, token = self.text[:n_tokens], self.text[n_tokens]
                for _ in range(self.options["alternative_repeats"]):
                    if native.span(TEXT) != held:  # an earlier request has read the text anew
                        native.cut(TEXT, 0)
                    served = native.request(prefix, token, TEXT, self._window)
                    if not served.reused:
                        served = Served(*held, 0, served.seconds, served.logits_sha256)
                    self._note(plan.SMALL_WINDOW, n_tokens, served)
        finally:
            native.close()

    def _still_reusable(self, native: Native, n_tokens: int) -> bool:
        return plan.reusable(n_tokens, *native.span(TEXT), self._window)

    def _native_row(self, arm: str, n_tokens: int) -> Row:
        served = self._served[arm, n_tokens]
        fresh = {one.logits_sha256 for one in self._served[plan.RESTART, n_tokens]}
        first = served[0]
        return {
            **self._bare(arm, n_tokens),
            "profile": self._digests[arm],
            "held_first": first.first,
            "held_last": first.last,
            "reused_tokens": first.reused,
            "decoded_tokens": n_tokens + 1 - first.reused,
            "seconds": {"request": [_recorded(one.seconds) for one in served]},
            "logits_sha256": sorted({one.logits_sha256 for one in served}),
            "fresh_sha256": sorted(fresh),
        }

    # -- files --------------------------------------------------------------------------------

    def _files(self) -> Iterator[Row]:
        pin = self.model.pin
        path = {"path": str(self.model.path)}
        work = Work(
            pin=ModelPin(pin.name, pin.sha256, pin.bytes, pin.licence, path),
            ids=self.text[: self._lengths[-1] + 1 + N_DECODE],
            lengths=self._lengths,
            repeats=self.options["alternative_repeats"],
            n_ctx=context_size(self._lengths),
            n_threads=self.cores,
            scratch=self.scratch,
            n_gpu_layers=self.settings.n_gpu_layers,
        )
        for one in children.call("rivals", work=work.to_json())["measured"]:
            yield self._file_row(one)
        self.note("save_state and LlamaDiskCache done")
        yield from self._server(work)

    def _server(self, work: Work) -> Iterator[Row]:
        reason = NO_SERVER
        if self.server is not None and self.server.is_file():
            try:
                found = server.measure(work, self.server)
            except EngineFailed as error:
                self.note(f"{FAILED_SERVER}: {error}")
                reason = FAILED_SERVER
            else:
                yield from (self._file_row(one.to_json()) for one in found)
                return
        self.note(f"llama-server not measured: {reason}")
        for n_tokens in work.lengths:
            yield {**self._bare(plan.SERVER, n_tokens), "measured": False, "reason": reason}

    def _file_row(self, one: Mapping[str, Any]) -> Row:
        names = {"cold": "cold", "save": "save", "restore": "request"}
        return {
            **self._bare(_ARMS[one["who"]], one["n_tokens"]),
            "seconds": {
                names[name]: [_recorded(seconds) for seconds in values]
                for name, values in one["seconds"].items()
                if name in names
            },
            "differences": one["differences"],
            "disk_bytes": one["disk_bytes"],
            "notices_damage": one["verified"],
        }

    def _bare(self, arm: str, n_tokens: int) -> Row:
        """A row that says nothing yet."""
        return {
            "kind": "cost-alternative",
            "version": 1,
            "model": self.model.name,
            "arm": arm,
            "tokens": n_tokens,
            "profile": None,
            "measured": True,
            "reason": None,
            "held_first": None,
            "held_last": None,
            "reused_tokens": None,
            "decoded_tokens": None,
            "seconds": {},
            "logits_sha256": None,
            "fresh_sha256": None,
            "differences": None,
            "disk_bytes": None,
            "notices_damage": None,
        }


def _recorded(seconds: float) -> float:
    return max(1e-6, round(seconds, 6))
