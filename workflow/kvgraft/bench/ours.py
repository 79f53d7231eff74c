"""The library's own arms: cold reading, capture and put, graft with and without verification.

Runs in a process of its own, because the engine reads its variables once per process. The restore
without verification exists here only, to say what verification costs: it claims that a mapped block
was verified when it was not.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests, kvb
from kvaudit.errors import BlockRefused
from kvgraft.bench.work import (
    N_DECODE,
    RESTORES_PER_ROUND,
    WARM_UP,
    Clock,
    Measured,
    Work,
    flip_byte,
    largest_difference,
)
from kvgraft.model import FrozenModel
from kvgraft.session import Session
from kvgraft.store import BlockStore


def measure(work: Work, preset: str) -> dict[str, Any]:
    """Every length under one profile; returns {"profile": ..., "measured": [...]} as JSON."""
    settings = work.settings(preset)
    with FrozenModel.open(work.pin) as model, Session(model, settings) as session:
        session.decode(work.ids[:WARM_UP], outputs=1)
        store = BlockStore(_root(work, preset))
        arms = [_Arms(session, store, work, n, preset) for n in work.lengths]
        return {
            "profile": session.profile.to_json(),
            "split_invariant": session.profile.is_split_invariant,
            "measured": [arm.run().to_json() for arm in arms],
        }


def _root(work: Work, preset: str) -> Path:
    return work.scratch / f"blocks-{preset}"


class _Arms:
    """All arms at one length."""

    def __init__(
        self, session: Session, store: BlockStore, work: Work, n_tokens: int, preset: str
    ) -> None:
        self._session, self._store, self._work, self._preset = session, store, work, preset
        self._n = n_tokens
        self._span, self._question = work.span(n_tokens), work.question(n_tokens)
        self._clock = Clock()
        self._block = ""

    def run(self) -> Measured:
        """Rounds of a cold reading, restores of both kinds in turn, and the limits."""
        fresh = restored = np.empty(0, np.float32)
        for number in range(self._work.repeats):
            fresh = self._cold(number)
            self._decode_rate()
            restored = self._restore(verify=True, clock=Clock())  # not timed: it warms up
            for turn in range(RESTORES_PER_ROUND):
                for verify in (True, False) if turn % 2 else (False, True):
                    self._restore(verify=verify, clock=self._clock)
            self._limits()
        self._session.reset()
        one_shot = self._session.decode([*self._span, self._question], outputs=1)[0]
        path = self._store.path(self._block)
        with self._store.get(self._block) as block:
            state_bytes = block.header.state.bytes
        return Measured(
            who=self._preset,
            n_tokens=self._n,
            seconds=self._clock.seconds,
            disk_bytes=path.stat().st_size,
            differences={
                "same_split": largest_difference(fresh, restored),
                "one_shot": largest_difference(one_shot, restored),
            },
            verified=self._notices_damage(path),
            extra={"state_bytes": state_bytes, "block": self._block},
        )

    def _cold(self, number: int) -> NDArray[np.float32]:
        """Read span and question; in between, outside that time, capture and store the span."""
        session, clock = self._session, self._clock
        session.reset()
        clock.time("prefill", lambda: session.prefill(self._span))
        capture = clock.time("capture", lambda: session.capture({"round": number}))
        if self._block:
            self._store.path(self._block).unlink()
        self._block = clock.time(
            "put", lambda: self._store.put(capture.header, capture.tokens, capture.state.data)
        )
        logits: NDArray[np.float32] = clock.time(
            "token", lambda: session.decode([self._question])[0]
        )
        clock.note("cold", clock.seconds["prefill"][-1] + clock.seconds["token"][-1])
        return logits

    def _decode_rate(self) -> None:
        following = self._work.ids[self._n + 1 : self._n + 1 + N_DECODE]

        def decode() -> None:
            for token in following:
                self._session.decode([token])

        self._clock.time("decode", decode)

    def _restore(self, *, verify: bool, clock: Clock) -> NDArray[np.float32]:
        self._session.reset()
        begin = time.perf_counter()
        with self._store.get(self._block, verify=verify) as block:
            if not verify:
                block.verified = True  # it was not: see above
            receipt = self._session.graft(block)
        middle = time.perf_counter()
        logits: NDArray[np.float32] = self._session.decode([self._question])[0]
        end = time.perf_counter()
        assert receipt.restored_tokens == self._n
        assert receipt.restored_bytes > 0
        clock.note("restore" if verify else "restore_unverified", end - begin)
        clock.note("graft" if verify else "graft_unverified", middle - begin)
        return logits

    def _limits(self) -> None:
        """What the same bytes cost when they are only copied, or only hashed in all threads."""
        with self._store.get(self._block) as block:
            _time_limits(self._clock, block.state)

    def _notices_damage(self, path: Path) -> bool:
        other = BlockStore(self._store.root.with_name("damaged"))
        damaged = other.path(self._block)
        flip_byte(path, damaged, -2000)
        try:
            other.get(self._block).close()
        except BlockRefused:
            return True
        finally:
            damaged.unlink()
        return False


def _time_limits(clock: Clock, state: memoryview) -> None:
    source = np.frombuffer(state, np.uint8)
    target = np.ones_like(source)
    for _ in range(RESTORES_PER_ROUND):
        clock.time("copy", lambda: np.copyto(target, source))
        clock.time("sha256", lambda: kvb.chunk_digests(state))
        clock.time("blake3", lambda: kvb.chunk_digests(state, digest=digests.blake3_bytes))


# -- memory ---------------------------------------------------------------------------------------


def measure_memory(work: Work, preset: str, block_id: str) -> dict[str, Any]:
    """Peak resident memory of restores beyond what the open, empty context holds.

    The first restore counts most: what it allocated and freed may stay resident, and would hide in
    every later one. Therefore a process measures one length only.

    Args:
        work: what `measure` ran on.
        preset: under which settings.
        block_id: a block that `measure` left in the store.

    Returns:
        {"state_bytes": ..., "peaks": [bytes, ...]}, without peaks where the kernel does not let a
        process reset its own.
    """
    settings = work.settings(preset)
    store = BlockStore(_root(work, preset))
    with FrozenModel.open(work.pin) as model, Session(model, settings) as session:
        # Imports, thread pools and the engine's own first-use buffers are not a restore's memory.
        session.prefill(work.ids[:WARM_UP])
        session.decode(work.ids[WARM_UP : WARM_UP + 1])
        capture = session.capture()
        warm = BlockStore(_root(work, "warm-up"))
        warm.put(capture.header, capture.tokens, capture.state.data)
        list(_peaks(session, warm, capture.header.id, 1))
        del capture
        with store.get(block_id, verify=False) as block:
            state_bytes = block.header.state.bytes
        return {"state_bytes": state_bytes, "peaks": list(_peaks(session, store, block_id, 3))}


def _peaks(session: Session, store: BlockStore, block_id: str, count: int) -> Iterator[int]:
    for _ in range(count):
        session.reset()
        gc.collect()
        try:
            Path("/proc/self/clear_refs").write_text("5")
            before = _status("VmRSS")
        except OSError:
            return
        with store.get(block_id) as block:
            session.graft(block)
        yield _status("VmHWM") - before


def _status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")
