"""The router: candidates by words, then by how well each candidate's block explains the query.

What a score means and what is decided by it is `kvaudit.flywheel.routing`. Libraries and stores are
not known here: a candidate brings its block.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvaudit.flywheel import prompts, routing
from kvaudit.kvb_map import MappedBlock
from kvgraft.branches import log_probabilities
from kvgraft.lexical import LexicalIndex
from kvgraft.session import Session

_HEAD = prompts.problem_text("").rstrip()
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Candidate:
    """One deposit as the router sees it: its name, its statement, and how to open its block."""

    name: str
    statement: str
    open: Callable[[], MappedBlock]


@dataclass(frozen=True)
class Routed:
    """What the router found for a query.

    Attributes:
        exact: name of the candidate whose statement the query repeats; nothing was scored then.
        shortlist: (name, BM25 score in millionths), best first.
        scores: score of each candidate that was looked at, see `routing.score`.
        scored_tokens: tokens read for the scores.
        rank_s, graft_s, score_s: seconds.
    """

    exact: str | None
    shortlist: tuple[tuple[str, int], ...]
    scores: dict[str, float]
    scored_tokens: int
    rank_s: float
    graft_s: float
    score_s: float


class BlockRouter:
    """Routes queries over candidates; the session is emptied by every query that is scored.

    Args:
        session: opened with branches, of the blocks' model and profile.
        candidates: with distinct names.
        shortlist: most candidates looked at.
        scored_tokens: most tokens of a query that are scored.
    """

    def __init__(
        self, session: Session, candidates: Sequence[Candidate], shortlist: int, scored_tokens: int
    ) -> None:
        self._session = session
        self._candidates = list(candidates)
        self._limit = shortlist
        self._scored = scored_tokens
        self._index = LexicalIndex()
        self._exact: dict[tuple[str, ...], str] = {}
        for candidate in candidates:
            self._index.add(routing.words_of(candidate.statement))
            self._exact.setdefault(prompts.folded(candidate.statement), candidate.name)

    def route(self, query: str) -> Routed:
        """Look for the deposit that a query belongs to.

        Raises:
            As `Session.graft` and `log_probabilities`.
        """
        begin = time.perf_counter()
        exact = self._exact.get(prompts.folded(query))
        ranked = routing.near(self._index.rank(routing.words_of(query), self._limit))
        rank_s = time.perf_counter() - begin
        shortlist = tuple((self._candidates[number].name, bm25) for number, bm25 in ranked)
        if exact is not None:
            return Routed(exact, shortlist, {}, 0, rank_s, 0.0, 0.0)
        graft_s = score_s = 0.0
        scores: dict[str, float] = {}
        tokens = 0
        for number, _ in ranked:
            candidate = self._candidates[number]
            begin = time.perf_counter()
            self._session.reset()
            with candidate.open() as block:
                self._session.graft(block)
            grafted = time.perf_counter()
            scores[candidate.name], n_tokens = self._score(query)
            tokens += n_tokens
            graft_s += grafted - begin
            score_s += time.perf_counter() - grafted
        return Routed(None, shortlist, scores, tokens, rank_s, graft_s, score_s)

    def _score(self, query: str) -> tuple[float, int]:
        model = self._session.model
        ids = model.tokenize(prompts.problem_text(query), begin=False)[: self._scored]
        head = len(model.tokenize(_HEAD, begin=False))
        wanted = [
            row >= head and bool(piece.strip()) and not _DIGIT.search(piece)
            for row, piece in enumerate(model.detokenize([token]) for token in ids)
        ]
        found = log_probabilities(self._session, ids, wanted)
        return routing.score(found.tolist()), len(ids)
