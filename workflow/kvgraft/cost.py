"""The stage `cost`: what a prefill costs, what a graft costs, and what the engine offers itself.

Records first: the timed arms of `kvaudit.cost.plan`, the native alternatives of `alternatives`, and
the sizes of caches. What they amount to is decided by `kvaudit`, not here. Wants the machine to
itself: two busy programs slow each other far beyond their share.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests, kvb
from kvaudit.cost import plan
from kvaudit.errors import UnusableInput
from kvgraft import engine, page_cache
from kvgraft.alternatives import Alternatives
from kvgraft.bench.work import WARM_UP, all_cores
from kvgraft.context import Context
from kvgraft.errors import EngineOutOfMemory
from kvgraft.model import FrozenModel
from kvgraft.plan import prose
from kvgraft.profile import ExecutionProfile, ProfileSettings
from kvgraft.session import Session
from kvgraft.store import BlockStore

Note = Callable[[str], None]
Row = dict[str, Any]
Seconds = dict[str, float]

CLOCK_STEP = 1e-6
"""Seconds are recorded to this step; what takes less counts as one."""


def recorded(seconds: float) -> float:
    """Seconds as a record holds them."""
    return max(CLOCK_STEP, round(seconds, 6))


@dataclass
class Cost:
    """One model on all cores.

    Attributes:
        model: the opened model.
        settings: the configured profile settings; size and threads are changed as planned.
        options: the configuration's `cost` section.
        seed: name from which the text derives.
        scratch: a folder outside the evidence, on the disk that is measured.
        note: called with one line of progress.
        cores: threads of every reading.
        server: llama-server to compare with; left out where it is not there.
    """

    model: FrozenModel
    settings: ProfileSettings
    options: Mapping[str, Any]
    seed: str
    scratch: Path
    note: Note
    cores: int = field(default_factory=all_cores)
    server: Path | None = None

    def measure(self) -> dict[str, list[Row]]:
        """All records of the stage, by kind of file.

        Raises:
            UnusableInput: no length fits into the context that the model was trained for.
        """
        trained, window = self.model.facts.n_ctx_train, self.model.facts.window or 0
        if not plan.fitting(self.options["lengths"], trained):
            raise UnusableInput(
                "no length fits into the model's trained context",
                where="cost: lengths",
                expected=f"at most {trained - plan.ROOM}",
                found=list(self.options["lengths"]),
            )
        n_tokens = plan.text_tokens(self.options, trained, window)
        self._text = prose(self.model, f"{self.seed}/cost", n_tokens)
        self._conditions: list[Row] = []
        self._profiles: dict[str, Row] = {}
        changes = plan.timing_settings(self.options, trained, self.cores)
        with Session(self.model, self.settings.with_(**changes)) as session:
            self.keep_profile(session.profile)
            timings = list(self._timings(session))
        alternatives = Alternatives(
            self.model,
            self.settings,
            self.options,
            tuple(self._text),
            self.scratch,
            self.cores,
            self.server,
            self.note,
            self.keep_profile,
        )
        with self._noted("alternatives", 0):
            native = alternatives.measure()
        with self._noted("memory", 0):
            memory = list(self._memory())
        return {
            "timings": timings,
            "alternatives": native,
            "memory": memory,
            "conditions": self._conditions,
            "profiles": list(self._profiles.values()),
        }

    def keep_profile(self, profile: ExecutionProfile) -> str:
        """List a profile that was in force; returns its digest."""
        row = {"kind": "profile", "version": 1, "digest": profile.digest}
        self._profiles.setdefault(profile.digest, {**row, "profile": profile.to_json()})
        return profile.digest

    def _noted(self, part: str, repeat: int) -> _Conditions:
        """Load before and after what runs inside, as a row of conditions."""
        row = {
            "kind": "cost-conditions",
            "version": 1,
            "model": self.model.name,
            "part": part,
            "repeat": repeat,
            "cores": self.cores,
            "n_ctx_train": self.model.facts.n_ctx_train,
            "text_sha256": digests.sha256_bytes(np.asarray(self._text, "<i4").tobytes()),
        }
        return _Conditions(row, self._conditions)

    def _timings(self, session: Session) -> Iterator[Row]:
        arms = _Arms(session, BlockStore(self.scratch / "blocks"), self._text, self.seed)
        arms.warm_up()
        trained = self.model.facts.n_ctx_train
        steps = plan.timings(self.options, trained)
        n_repeats = plan.n_repeats(self.options, trained)
        for repeat, of_repeat in itertools.groupby(steps, key=lambda step: step[0]):
            with self._noted("timings", repeat):
                for n_tokens, planned in itertools.groupby(of_repeat, key=lambda step: step[1]):
                    names = [arm for _, _, arm in planned]
                    yield from self._turn(arms, repeat, n_tokens, names)
            self.note(f"timings, repeat {repeat + 1}/{n_repeats} done")

    def _turn(self, arms: _Arms, repeat: int, n_tokens: int, names: list[str]) -> Iterator[Row]:
        """All arms of one length in one repeat; several rounds of the cheap ones take turns."""
        rounds: dict[str, list[_Round]] = {name: [] for name in names}
        for number in range(max(plan.rounds(self.options, name) for name in names)):
            for name in names:
                if number < plan.rounds(self.options, name):
                    rounds[name].append(arms.run(name, n_tokens, repeat))
        block = arms.block(n_tokens)
        for name, found in rounds.items():
            logits = {one.logits_sha256 for one in found if one.logits_sha256}
            yield {
                "kind": "cost-timing",
                "version": 1,
                "model": self.model.name,
                "profile": arms.profile,
                "repeat": repeat,
                "tokens": n_tokens,
                "arm": name,
                "seconds": {
                    part: [recorded(one.seconds[part]) for one in found]
                    for part in plan.PARTS[name]
                },
                "decoded_tokens": found[-1].decoded,
                "restored_bytes": found[-1].restored,
                "state_bytes": block.state_bytes,
                "file_bytes": block.file_bytes,
                "block_id": block.id,
                "resident": [one.resident for one in found] if name in plan.READING else [],
                "logits_sha256": sorted(logits),
            }

    # -- memory -------------------------------------------------------------------------------

    def _memory(self) -> Iterator[Row]:
        for n_ctx, full in plan.memory(self.options):
            changes = plan.memory_settings(n_ctx, self.cores, full)
            reason, digest, size = None, None, None
            try:
                with engine.buffers_logged() as buffers:
                    context = Context(self.model, self.settings.with_(**changes))
                context.close()
                digest, size = self.keep_profile(context.profile), sum(buffers["KV"].values())
            except EngineOutOfMemory:
                reason = "it does not fit into this machine's memory"
            self.note(f"cache of {n_ctx} tokens, swa_full {full}: {size or reason}")
            yield {
                "kind": "cost-memory",
                "version": 1,
                "model": self.model.name,
                "n_ctx": n_ctx,
                "swa_full": full,
                "profile": digest,
                "cache_mib": size,
                "reason": reason,
            }


class _Conditions:
    """Notes load around what runs inside its `with`."""

    def __init__(self, row: Row, rows: list[Row]) -> None:
        self._row, self._rows = row, rows

    def __enter__(self) -> None:
        self._row["load_before"] = _load()

    def __exit__(self, *_: object) -> None:
        self._rows.append({**self._row, "load_after": _load()})


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


@dataclass(frozen=True)
class _Block:
    id: str
    state_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class _Round:
    """One measurement of one arm."""

    seconds: Seconds
    decoded: int = 0
    restored: int = 0
    resident: float | None = None
    logits_sha256: str = ""


class _Arms:
    """The timed arms on one session and one store."""

    def __init__(self, session: Session, store: BlockStore, text: list[int], seed: str) -> None:
        self._session, self._store, self._text, self._seed = session, store, text, seed
        self._blocks: dict[int, _Block] = {}
        self._put: dict[int, Seconds] = {}
        self._target = np.empty(0, np.uint8)
        self.profile = session.profile.digest

    def block(self, n_tokens: int) -> _Block:
        """The block last stored at this length."""
        return self._blocks[n_tokens]

    def warm_up(self) -> None:
        """What happens once only, thread pools and first-use buffers, is not an arm's."""
        n_tokens = min(WARM_UP, self._session.capacity - 1, len(self._text) - 1)
        self.run("prefill", n_tokens, -1)
        for name in ("graft", "restore", "copy", "sha256"):
            self.run(name, n_tokens, -1)

    def run(self, name: str, n_tokens: int, repeat: int) -> _Round:
        """One measurement."""
        if name == "prefill":
            return self._prefill(n_tokens, repeat)
        if name == "capture_put":
            return _Round(self._put[n_tokens])
        if name == "one_shot":
            return self._one_shot(n_tokens)
        if name in ("copy", "sha256"):
            return self._raw(name, n_tokens)
        if name == "graft_cold":
            page_cache.drop(self._store.path(self._blocks[n_tokens].id))
        return self._restore(n_tokens, verified=name != "restore")

    def _reset(self) -> float:
        begin = time.perf_counter()
        self._session.reset()
        return time.perf_counter() - begin

    def _token(self, n_tokens: int) -> tuple[float, str]:
        """Seconds to read the one token behind the span, and the digest of its logits."""
        begin = time.perf_counter()
        logits: NDArray[np.float32] = self._session.decode([self._text[n_tokens]])[0]
        return time.perf_counter() - begin, digests.sha256_bytes(logits.tobytes())

    def _prefill(self, n_tokens: int, repeat: int) -> _Round:
        """Read span and token; in between, outside that time, capture and store the span."""
        seconds = {"reset": self._reset()}
        begin = time.perf_counter()
        self._session.prefill(self._text[:n_tokens])
        seconds["prefill"] = time.perf_counter() - begin
        begin = time.perf_counter()
        capture = self._session.capture({"source": f"{self._seed}/cost", "repeat": repeat})
        middle = time.perf_counter()
        block_id = self._store.put(capture.header, capture.tokens, capture.state.data)
        end = time.perf_counter()
        self._put[n_tokens] = {"capture": middle - begin, "put": end - middle}
        if n_tokens in self._blocks:
            self._store.path(self._blocks[n_tokens].id).unlink()
        size = self._store.path(block_id).stat().st_size
        self._blocks[n_tokens] = _Block(block_id, capture.header.state.bytes, size)
        seconds["token"], logits = self._token(n_tokens)
        return _Round(seconds, decoded=n_tokens + 1, logits_sha256=logits)

    def _one_shot(self, n_tokens: int) -> _Round:
        """Read span and token in one call."""
        seconds = {"reset": self._reset()}
        begin = time.perf_counter()
        logits = self._session.decode(self._text[: n_tokens + 1], outputs=1)[0]
        seconds["prefill"] = time.perf_counter() - begin
        digest = digests.sha256_bytes(logits.tobytes())
        return _Round(seconds, decoded=n_tokens + 1, logits_sha256=digest)

    def _restore(self, n_tokens: int, *, verified: bool) -> _Round:
        """Restore the block into the emptied context and read one token.

        Without verification no token is read. That way exists here only, to say what the rest
        costs: it claims that a mapped block was verified when it was not.
        """
        block_id = self._blocks[n_tokens].id
        seconds = {"reset": self._reset()}
        share = page_cache.resident(self._store.path(block_id))
        begin = time.perf_counter()
        with self._store.get(block_id, verify=verified) as block:
            if not verified:
                block.verified = True
            middle = time.perf_counter()
            receipt = self._session.graft(block)
            end = time.perf_counter()
        assert receipt.restored_tokens == n_tokens
        seconds |= {"read": middle - begin, "restore": end - middle}
        if not verified:
            return _Round(seconds, restored=receipt.restored_bytes, resident=share)
        seconds["token"], logits = self._token(n_tokens)
        return _Round(seconds, 1, receipt.restored_bytes, share, logits)

    def _raw(self, name: str, n_tokens: int) -> _Round:
        """What the same bytes cost when they are only copied, or only hashed in all threads."""
        block_id = self._blocks[n_tokens].id
        share = page_cache.resident(self._store.path(block_id))
        with self._store.get(block_id) as block, block.state as state:
            source = np.frombuffer(state, np.uint8)
            if len(self._target) < len(source):
                self._target = np.ones(len(source), np.uint8)  # written: its pages are there
            target = self._target[: len(source)]
            begin = time.perf_counter()
            if name == "copy":
                np.copyto(target, source)
            else:
                kvb.chunk_digests(state)
            seconds = time.perf_counter() - begin
            del source
        return _Round({name: seconds}, resident=share)
