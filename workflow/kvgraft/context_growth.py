"""How a store grows: deposits of small blocks one by one, and an index of invented entries.

Growth is measured on real blocks as far as that is cheap; beyond it the index alone is built in
memory, from words drawn as Zipf's law has them. This module fits nothing; that is for `kvaudit`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kvaudit.estimate import generator
from kvgraft import plan
from kvgraft.lexical import LexicalIndex
from kvgraft.session import Session
from kvgraft.store import BlockStore

Row = dict[str, Any]

ROUTES = 5
"""Times that a question is routed; the median counts."""

VOCABULARY = 50_000
"""Different words that simulated entries are drawn from, before each entry's own name."""

QUESTION = "What is the registry number of the narrow bridge beside the old market?"


def grow(
    session: Session,
    store: BlockStore,
    options: Mapping[str, Any],
    seed: str,
    common: Callable[[str], Row],
) -> list[Row]:
    """Deposit small blocks one by one; a row each with what it took and what there is then.

    Args:
        session: emptied for every block.
        store: empty.
        options: the configuration's `context` section.
        seed: name from which the texts derive.
        common: fields that every record of a kind has.
    """
    index = LexicalIndex()
    rows, disk = [], 0
    for number in range(options["growth"]):
        ids = plan.prose(session.model, f"{seed}/growth/{number}", options["growth_tokens"])
        text = session.model.detokenize(ids)
        session.reset()
        begin = time.perf_counter()
        session.prefill(ids)
        read = time.perf_counter()
        capture = session.capture({"source": f"{seed}/growth/{number}"})
        block_id = store.put(capture.header, capture.tokens, capture.state.data)
        put = time.perf_counter()
        index.add(text)
        indexed = time.perf_counter()
        disk += store.path(block_id).stat().st_size
        rows.append(
            {
                **common("context-growth"),
                "profile": session.profile.digest,
                "blocks": number + 1,
                "tokens": len(ids),
                "tokens_sha256": capture.header.tokens.sha256,
                "block_id": block_id,
                "disk_bytes": disk,
                "index_bytes": index.memory_bytes,
                "postings": index.n_postings,
                "seconds": {
                    "prefill": round(read - begin, 6),
                    "put": round(put - read, 6),
                    "index": round(indexed - put, 6),
                    "route": round(_route_seconds(index, QUESTION), 6),
                },
            }
        )
    return rows


def simulated_index(options: Mapping[str, Any], seed: str) -> Iterator[Row]:
    """An index at every configured size; entries are words by Zipf's law and one name each."""
    n_words, sizes = options["index_words"], options["index_entries"]
    draw = generator(seed, "index")
    ranks = 1.0 / np.arange(1, VOCABULARY + 1)
    edges = np.cumsum(ranks) / ranks.sum()
    index = LexicalIndex()
    seconds = 0.0
    for size in sizes:
        while len(index) < size:
            first = len(index)
            count = min(10_000, size - first)
            drawn = np.searchsorted(edges, draw.random((count, n_words - 1)))
            entries = [
                [f"n{first + at}", *(f"w{word}" for word in row)]
                for at, row in enumerate(np.minimum(drawn, VOCABULARY - 1).tolist())
            ]
            begin = time.perf_counter()
            for entry in entries:
                index.add_words(entry)
            seconds += time.perf_counter() - begin
        # One frequent word, three middling ones and the one name that decides.
        common, rare = f"w0 w30 w300 w3000 n{size // 2}", f"n{size // 2}"
        yield {
            "entries": size,
            "words": n_words,
            "different_words": index.n_words,
            "postings": index.n_postings,
            "memory_bytes": index.memory_bytes,
            "build_seconds": round(seconds, 6),
            "route_seconds": round(_route_seconds(index, common), 6),
            "route_by_name_seconds": round(_route_seconds(index, rare), 6),
            "found": index.rank(rare, 1)[0][0] == size // 2,
        }


def _route_seconds(index: LexicalIndex, question: str) -> float:
    taken = []
    for _ in range(ROUTES):
        begin = time.perf_counter()
        index.rank(question)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)
