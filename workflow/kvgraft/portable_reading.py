"""One build's readings of one text, for the proof that builds agree: digests and nothing else.

A child: jobs from standard input, their answers to standard output. It turns text into tokens,
reads them in several batch splits and with several threads, keeps the span's block in a store of
its own, and grafts the blocks that other builds have kept. What the digests amount to is decided by
`envs/portable_proof.py`, which starts it under every build.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvaudit import digests
from kvaudit.errors import TypedError, UnusableInput
from kvgraft.exactness import logits_bytes
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import ProfileSettings
from kvgraft.session import Session
from kvgraft.store import BlockStore

OUTPUTS = 2
"""Rows of logits of a reading: of its last tokens."""


def readings(model: FrozenModel, job: Mapping[str, Any]) -> dict[str, Any]:
    """{what: digest} of everything that a build computes by itself.

    Args:
        model: the opened model.
        job: `settings`, `span` and `query` as texts, `span_tokens` and `query_tokens` that
            are read of them, `cases` as [threads, batch size or null] each, and `store`, where
            the block is put.

    Raises:
        UnusableInput: a text has fewer tokens.
    """
    span, query = _tokens(model, job)
    text = [*span, *query]
    found: dict[str, Any] = {"tokens": digests.sha256_bytes(np.asarray(text, "<i4").tobytes())}
    threads = sorted({int(one[0]) for one in job["cases"]})
    for number in threads:
        settings = ProfileSettings(**job["settings"]).with_(n_threads=number)
        with Session(model, settings) as session:
            for n_threads, size in job["cases"]:
                if n_threads != number:
                    continue
                session.reset()
                logits = session.decode(text, split=size, outputs=OUTPUTS)
                name = f"{_split(size)}, {number} thread{'s' if number > 1 else ''}"
                found[f"logits: {name}"] = digests.sha256_bytes(logits_bytes(logits))
                found[f"state: {name}"] = digests.sha256_bytes(session.capture().state.data)
            if number == threads[-1]:
                found |= _block(session, span, query, BlockStore(job["store"]))
    return found


def _block(
    session: Session, span: Sequence[int], query: Sequence[int], store: BlockStore
) -> dict[str, Any]:
    """The span's block as a file, and the question behind it, freshly computed."""
    session.reset()
    session.prefill(span)
    capture = session.capture({"source": "portable proof"})
    block = store.put(capture.header, capture.tokens, capture.state.data)
    logits = session.decode(query, outputs=OUTPUTS)
    row = {
        "profile": session.profile.digest,
        "block_id": block,
        "state_sha256": digests.sha256_bytes(capture.state.data),
        "logits_sha256": [digests.sha256_bytes(logits_bytes(one)) for one in logits],
    }
    return {
        "profile": session.profile.digest,
        "block: id": block,
        "block: file": digests.sha256_file(store.path(block)),
        "fresh: logits": digests.sha256_bytes(logits_bytes(logits)),
        "fresh: state": digests.sha256_bytes(session.capture().state.data),
        "record": digests.sha256_json(row),
    }


def grafts(model: FrozenModel, job: Mapping[str, Any]) -> dict[str, Any]:
    """{what: digest} behind the blocks of other builds.

    Args:
        model: the opened model.
        job: as `readings`, with `stores`: {build: [folder, block id]}.

    Raises:
        UnusableInput: a text has fewer tokens.
        BlockRefused: a block is not in its store, or not sound.
        ModelMismatch, ProfileMismatch, GraftRefused: a block is not of this model or profile.
    """
    _, query = _tokens(model, job)
    found: dict[str, Any] = {}
    with Session(model, ProfileSettings(**job["settings"])) as session:
        for name, (folder, block_id) in job["stores"].items():
            session.reset()
            with BlockStore(folder).get(block_id) as block:
                session.graft(block)
            logits = session.decode(query, outputs=OUTPUTS)
            found[f"graft of {name}: logits"] = digests.sha256_bytes(logits_bytes(logits))
            state = session.capture().state
            found[f"graft of {name}: state"] = digests.sha256_bytes(state.data)
    return found


def _tokens(model: FrozenModel, job: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    span = model.tokenize(job["span"])[: job["span_tokens"]]
    query = model.tokenize(job["query"], begin=False)[: job["query_tokens"]]
    if (len(span), len(query)) != (job["span_tokens"], job["query_tokens"]):
        raise UnusableInput(f"the text has {len(span)} + {len(query)} tokens: too few")
    return span, query


def _split(size: int | None) -> str:
    if size is None:
        return "one batch"
    return "token by token" if size == 1 else f"batches of {size}"


def main() -> int:
    """The child: jobs of several models, one after another."""
    jobs = json.load(sys.stdin)
    answers = []
    for job in jobs:
        begin = time.perf_counter()
        try:
            with FrozenModel.open(ModelPin.from_json(job["pin"])) as model:
                found = (readings if job["do"] == "readings" else grafts)(model, job)
        except TypedError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            return error.exit_code
        answers.append({"found": found, "seconds": round(time.perf_counter() - begin, 3)})
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
