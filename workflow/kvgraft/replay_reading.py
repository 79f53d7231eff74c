"""One sample read where its block was made, and on a target of the replay.

`at_origin` runs in the stage's own process. `on_target` starts this module as a program, under
another build of the engine where one is given: the child computes the span itself, and grafts the
block that was copied for it. What the readings amount to is decided by `kvaudit`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests
from kvaudit.errors import TypedError
from kvgraft import engine, remote
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.plan import SamplePlan
from kvgraft.profile import ProfileSettings
from kvgraft.remote import Reading, read_fresh, read_restored
from kvgraft.session import Capture, Session
from kvgraft.store import BlockStore


@dataclass(frozen=True)
class Arm:
    """What one reading gave.

    Attributes:
        logits: float32 [query tokens, n_vocab].
        answer: greedy continuation behind the query; ends of generation are not obeyed, so that
            its length is the configured one.
        decoded_tokens: tokens decoded up to the end of the query.
        restored_bytes: state bytes that were restored.
    """

    logits: NDArray[np.float32]
    answer: list[int]
    decoded_tokens: int
    restored_bytes: int


@dataclass(frozen=True)
class OnTarget:
    """What a target's process gave for one sample.

    Attributes:
        fresh: computed there.
        graft: behind the copied block.
        exact: whether the session vouched for the graft.
        own: block_id, state_bytes, state_sha256 and differing_bytes of the block computed there.
        copy_sha256: of the block's file as it lay there.
        copy_bytes: its length.
        profile: in force there.
        engine: versions and libraries that were loaded there.
        host: where it was read, as `host_facts` says.
        seconds: of the span's prefill, and of get, verification and restore.
    """

    fresh: Arm
    graft: Arm
    exact: bool
    own: Mapping[str, Any]
    copy_sha256: str
    copy_bytes: int
    profile: Mapping[str, Any]
    engine: Mapping[str, Any]
    host: Mapping[str, Any]
    seconds: Mapping[str, float]


def host_facts() -> dict[str, Any]:
    """Architecture, instruction set features and libraries of this process."""
    machine = engine.machine_facts()
    return {
        "architecture": machine["architecture"],
        "features": machine["features"],
        "libraries": digests.tree_digest(engine.engine_facts()["libraries"]),
    }


def at_origin(session: Session, sample: SamplePlan, n_answer: int) -> tuple[Capture, Arm]:
    """Read a span and its query, and capture the span's block in between."""
    capture, reading, answer = _fresh(session, sample.span, sample.query, sample.seed, n_answer)
    return capture, Arm(reading.logits, answer, reading.decoded_tokens, reading.restored_bytes)


def on_target(
    model: FrozenModel,
    settings: ProfileSettings,
    sample: SamplePlan,
    store: BlockStore,
    block_id: str,
    *,
    n_answer: int,
    exact: bool,
    libraries: Path | None,
    scratch: Path,
    interpreter: Path | None = None,
) -> OnTarget:
    """Read a sample in a new process of a target.

    Args:
        model: its pin is handed over; the child checks the digest itself.
        settings: the target's profile settings.
        sample: span and query.
        store: the second store, which holds the copied block.
        block_id: its id.
        n_answer: tokens of continuation.
        exact: False lets a block of another profile pass.
        libraries: folder of another build of the engine, or None.
        scratch: folder for the logits on their way back.
        interpreter: a Python of another architecture for the child, or None.

    Raises:
        EngineFailed: the child ended without an answer; its message is in the error.
    """
    stem = scratch / f"target-{sample.index}"
    job = {
        "pin": {**model.pin.to_json(), "source": {"path": str(model.path)}},
        "settings": settings.to_json(),
        "span": list(sample.span),
        "query": list(sample.query),
        "source": sample.seed,
        "store": str(store.root),
        "block_id": block_id,
        "n_answer": n_answer,
        "exact": exact,
        "answer": str(stem),
    }
    given = remote.run_child(
        "kvgraft.replay_reading", job, settings, libraries=libraries, interpreter=interpreter
    )
    for name in ("fresh", "graft"):
        given[name] = _arm(given[name], Path(f"{stem}.{name}.npy"))
    return OnTarget(**given)


def _arm(fields: Mapping[str, Any], path: Path) -> Arm:
    logits = np.load(path)
    path.unlink()
    return Arm(logits, **fields)


def _fresh(
    session: Session, span: Any, query: Any, source: str, n_answer: int
) -> tuple[Capture, Reading, list[int]]:
    captured: list[Capture] = []
    reading = read_fresh(
        session,
        list(span),
        list(query),
        after_span=lambda session: captured.append(session.capture({"source": source})),
    )
    return captured[0], reading, _continue(session, n_answer)


def _continue(session: Session, n_tokens: int) -> list[int]:
    """The most likely token, again and again."""
    answer = [int(session.logits().argmax())]
    while len(answer) < n_tokens:
        session.decode(answer[-1:])
        answer.append(int(session.logits().argmax()))
    return answer


def main() -> int:
    """The child: one job from standard input, one answer to standard output."""
    job = json.load(sys.stdin)
    store = BlockStore(job["store"])
    try:
        with (
            FrozenModel.open(ModelPin.from_json(job["pin"])) as model,
            Session(model, ProfileSettings(**job["settings"])) as session,
        ):
            own, fresh, answer = _fresh(
                session, job["span"], job["query"], job["source"], job["n_answer"]
            )
            graft = read_restored(
                session, store, [job["block_id"]], job["query"], exact=job["exact"]
            )
            continued = _continue(session, job["n_answer"])
            path = store.path(job["block_id"])
            result = {
                "fresh": _fields(fresh, answer),
                "graft": _fields(graft, continued),
                "exact": graft.exact,
                "own": _compared(own, store, job["block_id"]),
                "copy_sha256": digests.sha256_file(path),
                "copy_bytes": path.stat().st_size,
                "profile": session.profile.to_json(),
                "engine": engine.engine_facts(),
                "host": host_facts(),
                "seconds": {
                    name: fresh.seconds[name] or graft.seconds[name]
                    for name in ("prefill", "restore")
                },
            }
            for name, reading in (("fresh", fresh), ("graft", graft)):
                np.save(f"{job['answer']}.{name}.npy", reading.logits)
    except TypedError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    json.dump(result, sys.stdout)
    return 0


def _fields(reading: Reading, answer: list[int]) -> dict[str, Any]:
    return {
        "answer": answer,
        "decoded_tokens": reading.decoded_tokens,
        "restored_bytes": reading.restored_bytes,
    }


def _compared(own: Capture, store: BlockStore, block_id: str) -> dict[str, Any]:
    """The block computed here against the copied one."""
    with store.get(block_id) as block, block.state as copied:
        same_length = len(copied) == own.header.state.bytes
        differing = (
            int(np.count_nonzero(np.frombuffer(copied, np.uint8) != own.state))
            if same_length
            else own.header.state.bytes
        )
    return {
        "block_id": own.header.id,
        "state_bytes": own.header.state.bytes,
        "state_sha256": digests.sha256_bytes(own.state.data),
        "differing_bytes": differing,
    }


if __name__ == "__main__":
    sys.exit(main())
