"""A paged store over long text: route a question to one block, graft it, answer behind it.

The text may be of any length; the context holds one block at a time. Run as a program this module
is a fresh process that answers questions by paging, or by prefilling the block with no store at
all, and reports its peak memory. What the blocks are about is not known here.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests
from kvaudit.errors import TypedError
from kvgraft.errors import GraftRefused
from kvgraft.lexical import LexicalIndex
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import ProfileSettings
from kvgraft.remote import run_child
from kvgraft.session import Session
from kvgraft.store import BlockStore

TIMEOUT_S = 4 * 3600.0


@dataclass(frozen=True)
class Route:
    """Where a question goes: (block number, score in millionths) from the best down."""

    ranking: tuple[tuple[int, int], ...]
    seconds: float

    @property
    def block(self) -> int:
        """The best block; 0 where no block shares a word with the question."""
        return self.ranking[0][0] if self.ranking else 0


@dataclass(frozen=True)
class Visit:
    """One block brought into the context.

    Attributes:
        block_id: the block.
        exact: False where it is of another profile.
        restored_tokens: positions restored.
        restored_bytes: state bytes restored.
        get_s: seconds of opening it and verifying every chunk.
        restore_s: seconds of handing it to the engine.
    """

    block_id: str
    exact: bool
    restored_tokens: int
    restored_bytes: int
    get_s: float
    restore_s: float


@dataclass(frozen=True)
class Reply:
    """A greedy answer behind whatever the context holds.

    Attributes:
        query_tokens: tokens of the question.
        query_sha256: digest of their ids, int32 little-endian.
        tokens: ids of the answer.
        text: the answer.
        logits_sha256: digest of the logits behind the question, float32 [n_vocab].
        query_s: seconds of reading the question.
        generate_s: seconds of the answer.
    """

    query_tokens: int
    query_sha256: str
    tokens: tuple[int, ...]
    text: str
    logits_sha256: str
    query_s: float
    generate_s: float

    def to_json(self) -> dict[str, Any]:
        """As records hold it, its timings apart."""
        fields = {**vars(self), "tokens": list(self.tokens)}
        del fields["query_s"], fields["generate_s"]
        return fields


def reply(session: Session, prompt: str, n_tokens: int) -> Reply:
    """Read a question behind what the session holds, and answer it greedily.

    The digest is that of the logits from which the tokens were taken, one step behind the other.

    Args:
        session: holding a block.
        prompt: the question.
        n_tokens: most tokens of the answer.

    Raises:
        ContextFull: the question does not fit behind the block.
    """
    ids = session.model.tokenize(prompt, begin=False)
    begin = time.perf_counter()
    logits = session.decode(ids, outputs=1)[-1]
    read = time.perf_counter()
    seen, tokens = hashlib.sha256(), []
    for _ in range(min(n_tokens, session.room)):
        seen.update(np.ascontiguousarray(logits, "<f4").data)
        token = int(logits.argmax())
        if session.model.ends_generation(token):
            break
        tokens.append(token)
        logits = session.decode([token])[-1]
    done = time.perf_counter()
    return Reply(
        len(ids),
        digests.sha256_bytes(np.asarray(ids, "<i4").tobytes()),
        tuple(tokens),
        session.model.detokenize(tokens),
        seen.hexdigest(),
        read - begin,
        done - read,
    )


def logits_digest(logits: NDArray[np.float32]) -> str:
    """SHA-256 of one row of logits."""
    return digests.sha256_bytes(np.ascontiguousarray(logits, "<f4").tobytes())


class PagedStore:
    """Blocks of one long text, an index over them, and a session that holds one at a time.

    Args:
        session: of the profile that the blocks were made under.
        store: where they lie.
        block_ids: in the order of the text.

    Raises:
        BlockNotFound, BlockRefused: a block is absent, or its header or tokens are damaged.
    """

    def __init__(self, session: Session, store: BlockStore, block_ids: Sequence[str]) -> None:
        self._session = session
        self._store = store
        self._ids = tuple(block_ids)
        self.index = LexicalIndex()
        for block_id in self._ids:
            with store.get(block_id, verify=False) as block:
                self.index.add(session.model.detokenize(block.tokens.tolist()))

    def route(self, question: str, limit: int = 5) -> Route:
        """Rank the blocks for a question."""
        begin = time.perf_counter()
        ranking = tuple(self.index.rank(question, limit))
        return Route(ranking, time.perf_counter() - begin)

    def turn_to(self, number: int) -> Visit:
        """Empty the context and bring one block in, every byte verified first.

        Raises:
            BlockNotFound, BlockRefused: the block is absent or damaged.
            GraftRefused, ModelMismatch, ProfileMismatch: it does not belong here.
        """
        self._session.reset()
        begin = time.perf_counter()
        with self._store.get(self._ids[number]) as block:
            got = time.perf_counter()
            receipt = self._session.graft(block)
            done = time.perf_counter()
        if not receipt.exact:
            raise GraftRefused("the block is not exact", where=f"block {self._ids[number][:12]}")
        return Visit(
            self._ids[number],
            receipt.exact,
            receipt.restored_tokens,
            receipt.restored_bytes,
            got - begin,
            done - got,
        )

    def ask(self, question: str, n_tokens: int, *, block: int | None = None) -> tuple[Visit, Reply]:
        """Answer a question from one block: the best one, unless it is given.

        Raises:
            As `turn_to` and `reply`.
        """
        visit = self.turn_to(self.route(question, 1).block if block is None else block)
        return visit, reply(self._session, question, n_tokens)


# -- a process of its own, for its peak memory ------------------------------------------------


def peak_memory() -> tuple[int, str]:
    """Most bytes that this process ever had resident, and the meter that says so.

    The kernel's `VmHWM` belongs to the program that runs now; `ru_maxrss` may be inherited from
    the program that started it, and serves only where there is nothing else.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024, "VmHWM"
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "ru_maxrss"


def answer_elsewhere(
    model: FrozenModel,
    settings: ProfileSettings,
    questions: Sequence[Mapping[str, Any]],
    n_tokens: int,
    *,
    store: Path | None = None,
    block_ids: Iterable[str] = (),
) -> dict[str, Any]:
    """Answer questions in a new process, by paging through a store or without one.

    Args:
        model: its pin is handed over; the child checks the digest itself.
        settings: the child's profile settings.
        questions: each {"prompt": text}, without a store also {"span": tokens of the block}.
        n_tokens: most tokens of an answer.
        store: root of the store; None prefills the span of every question.
        block_ids: blocks of the long text, in order.

    Returns:
        {"profile": digest, "peak_bytes", "meter", "replies": [{"reply", "block", "block_id",
        "restored_bytes", "decoded_tokens"}, …]}.

    Raises:
        EngineFailed: the child ended without an answer; its message is in the error.
    """
    job = {
        "pin": {**model.pin.to_json(), "source": {"path": str(model.path)}},
        "settings": settings.to_json(),
        "store": None if store is None else str(store),
        "block_ids": list(block_ids),
        "questions": list(questions),
        "answer_tokens": n_tokens,
    }
    answer: dict[str, Any] = run_child("kvgraft.paged", job, settings, TIMEOUT_S)
    return answer


def main() -> int:
    """The child: one job from standard input, one answer to standard output."""
    job = json.load(sys.stdin)
    try:
        with (
            FrozenModel.open(ModelPin.from_json(job["pin"])) as model,
            Session(model, ProfileSettings(**job["settings"])) as session,
        ):
            replies = list(_paged(session, job) if job["store"] else _direct(session, job))
            peak, meter = peak_memory()
            answer = {"profile": session.profile.digest, "peak_bytes": peak, "meter": meter}
    except TypedError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    json.dump({**answer, "replies": replies}, sys.stdout)
    return 0


def _paged(session: Session, job: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    paged = PagedStore(session, BlockStore(job["store"]), job["block_ids"])
    for question in job["questions"]:
        visit, said = paged.ask(question["prompt"], job["answer_tokens"])
        yield {
            "reply": said.to_json(),
            "block_id": visit.block_id,
            "restored_bytes": visit.restored_bytes,
            "decoded_tokens": said.query_tokens + len(said.tokens),
        }


def _direct(session: Session, job: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for question in job["questions"]:
        session.reset()
        session.prefill(question["span"])
        said = reply(session, question["prompt"], job["answer_tokens"])
        yield {
            "reply": said.to_json(),
            "block_id": None,
            "restored_bytes": 0,
            "decoded_tokens": len(question["span"]) + said.query_tokens + len(said.tokens),
        }


if __name__ == "__main__":
    sys.exit(main())
