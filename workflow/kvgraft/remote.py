"""Fresh processes for the arms of an experiment that must share no memory with the capture.

`call` starts this module as a program, hands it one job as JSON and reads back its answer. The
child opens the model and the session anew, so that a restored block is all it can know. Variables
that a profile sets are not handed on: the child's own profile sets them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests
from kvaudit.errors import TypedError
from kvgraft.errors import EngineFailed
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import ProfileSettings
from kvgraft.session import Session
from kvgraft.store import BlockStore

TIMEOUT_S = 3600.0
ENGINE_FOLDER = "LLAMA_CPP_LIB_PATH"
"""Where llama-cpp-python looks for its libraries instead of in its own folder."""


@dataclass(frozen=True)
class Reading:
    """What reading one text gave.

    Attributes:
        logits: float32 [outputs, n_vocab].
        state: uint8, the whole state behind the text, where it was asked for and kept.
        state_sha256: its digest, None if it was not asked for.
        decoded_tokens: tokens that were decoded after any restore.
        restored_bytes: state bytes that were restored.
        prefill_s: seconds of the span's prefill, None where it was restored or read in one shot.
        restore_s: seconds of get, verification and restore; None without one.
        query_s: seconds of the rest.
        profile: digest of the profile in force.
        profile_json: the profile.
        exact: False where a block of another profile was restored.
    """

    logits: NDArray[np.float32]
    state: NDArray[np.uint8] | None
    state_sha256: str | None
    decoded_tokens: int
    restored_bytes: int
    prefill_s: float | None
    restore_s: float | None
    query_s: float
    profile: str
    profile_json: Mapping[str, Any]
    exact: bool

    @property
    def seconds(self) -> dict[str, float | None]:
        """The timings as a record holds them."""
        return {
            "prefill": _rounded(self.prefill_s),
            "restore": _rounded(self.restore_s),
            "query": _rounded(self.query_s),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def read_fresh(
    session: Session,
    span: list[int],
    query: list[int],
    *,
    one_shot: bool = False,
    sizes: list[int] | None = None,
    outputs: int | None = None,
    state: bool = False,
    after_span: Callable[[Session], None] | None = None,
) -> Reading:
    """Read span and query into an emptied session; logits of every query token.

    Args:
        session: emptied first, with its cached rows.
        span: token ids.
        query: token ids behind it.
        one_shot: read both as one text instead of the span first.
        sizes: batch sizes for a one-shot reading.
        outputs: how many of the query's last tokens to keep logits of; None for every one.
        state: also keep the state behind the query.
        after_span: called, outside the timings, when the span has been read on its own.
    """
    session.reset()
    begin = time.perf_counter()
    prefill_s = None
    if one_shot:
        logits = session.decode([*span, *query], split=sizes, outputs=outputs or len(query))
    else:
        session.prefill(span)
        prefill_s = time.perf_counter() - begin
        if after_span:
            after_span(session)
        begin = time.perf_counter()
        logits = session.decode(query, outputs=outputs)
    query_s = time.perf_counter() - begin
    decoded = len(span) + len(query)
    return _reading(session, logits, decoded, 0, prefill_s, None, query_s, state)


def read_grafted(
    session: Session,
    store: BlockStore,
    block_id: str,
    query: list[int],
    *,
    sizes: list[int] | None = None,
    outputs: int | None = None,
    state: bool = False,
) -> Reading:
    """Restore a block from the store into an emptied session and read the query behind it."""
    return read_restored(
        session, store, [block_id], query, sizes=sizes, outputs=outputs, state=state
    )


def read_restored(
    session: Session,
    store: BlockStore,
    block_ids: list[str],
    query: list[int],
    *,
    composed: bool = False,
    exact: bool = True,
    sizes: list[int] | None = None,
    outputs: int | None = None,
    state: bool = False,
) -> Reading:
    """Restore blocks from the store into an emptied session and read the query behind them.

    Args:
        session: emptied first, with its cached rows.
        store: where the blocks lie.
        block_ids: a chain from its root on, or the parts of a composition.
        query: token ids.
        composed: the blocks stand beside each other.
        exact: as in `Session.graft`.
        sizes: batch sizes of the query.
        outputs: how many of the query's last tokens to keep logits of; None for every one.
        state: also keep the state behind the query; a composition has none.
    """
    session.reset()
    begin = time.perf_counter()
    with ExitStack() as stack:
        blocks = [stack.enter_context(store.get(block_id)) for block_id in block_ids]
        restore = session.compose if composed else session.graft_chain
        receipt = restore(blocks, exact=exact)
    restore_s = time.perf_counter() - begin
    begin = time.perf_counter()
    logits = session.decode(query, split=sizes, outputs=outputs)
    query_s = time.perf_counter() - begin
    return _reading(
        session, logits, len(query), receipt.restored_bytes, None, restore_s, query_s, state
    )


def _reading(
    session: Session,
    logits: NDArray[np.float32],
    decoded: int,
    restored: int,
    prefill_s: float | None,
    restore_s: float | None,
    query_s: float,
    state: bool,
) -> Reading:
    captured = session.capture().state if state else None
    return Reading(
        logits,
        captured,
        None if captured is None else digests.sha256_bytes(captured.data),
        decoded,
        restored,
        prefill_s,
        restore_s,
        query_s,
        session.profile.digest,
        session.profile.to_json(),
        session.is_exact,
    )


def run_child(
    module: str,
    job: Mapping[str, Any] | Sequence[Any],
    settings: ProfileSettings,
    timeout_s: float = TIMEOUT_S,
    *,
    libraries: Path | None = None,
    interpreter: Path | None = None,
) -> Any:
    """Hand a job to a new process of a module and read back its answer, both JSON.

    Args:
        module: run as a program.
        job: for its standard input.
        settings: its variables are left to the child to set.
        timeout_s: seconds after which the child is ended.
        libraries: folder of another build of the engine for the child; None for this process's.
        interpreter: the Python that runs the child, for instance one of another architecture; None
            for this process's.

    Raises:
        EngineFailed: the child did not start, or ended without an answer; its message is in the
            error.
    """
    environment = {k: v for k, v in os.environ.items() if k not in settings.environment}
    if libraries is not None:
        environment[ENGINE_FOLDER] = str(libraries)
        if (libraries / "llama_cpp").is_dir():  # another version, with its own Python part
            before = environment.get("PYTHONPATH", "")
            path = f"{libraries}{os.pathsep}{before}" if before else str(libraries)
            environment["PYTHONPATH"] = path
    python = str(interpreter or sys.executable)
    try:
        done = subprocess.run(
            [python, "-m", module],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineFailed(
            "a process of the experiment did not end", expected=f"{timeout_s:.0f} s at most"
        ) from error
    except OSError as error:
        raise EngineFailed(
            "a process of the experiment does not start",
            where=python,
            found=error.strerror,
            hint="is this Python still there? an emulated one: python envs/emulated_python.py",
        ) from error
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise EngineFailed(f"a process of the experiment failed: {reason[0]}")
    return json.loads(done.stdout)


def call(
    model: FrozenModel, settings: ProfileSettings, jobs: list[dict[str, Any]], scratch: Path
) -> list[Reading]:
    """Run jobs, in order, in one new process.

    Args:
        model: its pin is handed over; the child checks the digest itself.
        settings: the child's profile settings.
        jobs: each {"do": "fresh" | "graft" | "restore", "keep_state": whether the state itself
            comes back and not only its digest, "with": arguments of `read_fresh`, `read_grafted`
            or `read_restored`}.
        scratch: folder for the logits on their way back.

    Raises:
        EngineFailed: the child ended without an answer; its message is in the error.
    """
    answer = scratch / f"answer-{os.getpid()}"
    job = {
        "pin": {**model.pin.to_json(), "source": {"path": str(model.path)}},
        "settings": settings.to_json(),
        "jobs": jobs,
        "answer": str(answer),
    }
    answers = run_child("kvgraft.remote", job, settings)
    readings: list[Reading] = []
    for index, fields in enumerate(answers):
        stem = f"{answer}.{index}"
        kept = _take(Path(f"{stem}.state.npy")) if jobs[index].get("keep_state") else None
        readings.append(Reading(_take(Path(f"{stem}.logits.npy")), kept, **fields))
    return readings


def _take(path: Path) -> Any:
    array = np.load(path)
    path.unlink()
    return array


def profile_in_force(model: FrozenModel, settings: ProfileSettings) -> Mapping[str, Any]:
    """The profile that a new process of these settings reads back from its engine."""
    job = {"do": "fresh", "with": {"span": [], "query": [0], "one_shot": True}}
    with tempfile.TemporaryDirectory(prefix="kvgraft-") as scratch:
        return call(model, settings, [job], Path(scratch))[0].profile_json


def main() -> int:
    """The child: one job from standard input, one answer to standard output."""
    job = json.load(sys.stdin)
    answers: list[dict[str, Any]] = []
    try:
        with (
            FrozenModel.open(ModelPin.from_json(job["pin"])) as model,
            Session(model, ProfileSettings(**job["settings"])) as session,
        ):
            for index, one in enumerate(job["jobs"]):
                given = one["with"]
                if one["do"] in ("graft", "restore"):
                    given["store"] = BlockStore(given["store"])
                    read = read_grafted if one["do"] == "graft" else read_restored
                    reading = read(session, **given)
                else:
                    reading = read_fresh(session, **given)
                np.save(f"{job['answer']}.{index}.logits.npy", reading.logits)
                if one.get("keep_state") and reading.state is not None:
                    np.save(f"{job['answer']}.{index}.state.npy", reading.state)
                fields = dict(vars(reading))
                del fields["logits"], fields["state"]
                answers.append(fields)
    except TypedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
