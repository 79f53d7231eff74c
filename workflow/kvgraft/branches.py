"""Branches: several continuations of one text, decoded side by side in one batch.

The text may have been prefilled or grafted; a branch sees it and its own tokens, never another
branch. Each is sampled from a seed of its own, so that it does not depend on who else is decoded,
up to the last bits: rows of other branches lie between its own, and sums then round otherwise. A
fresh text and a grafted one give equal bytes, because their branches lie alike. What is asked and
what an answer means is not known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvaudit.estimate import generator
from kvgraft.context import FIRST_BRANCH, RowIn
from kvgraft.errors import ContextFull, EmptySpan
from kvgraft.session import Session

Finish = Literal["stop", "end", "limit"]

TOP_K = 40


@dataclass(frozen=True)
class Ask:
    """What a branch continues with.

    Attributes:
        tokens: ids read behind the text, at least one.
        limit: most tokens to generate.
        stops: texts that end the generation; they are cut off.
        temperature: 0 for the likeliest token, otherwise of the softmax over the `TOP_K` likeliest.
        seed: name from which the draws derive.
    """

    tokens: tuple[int, ...]
    limit: int
    stops: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: str = ""


@dataclass(frozen=True)
class Continuation:
    """What a branch gave.

    Attributes:
        text: generated, without the stop text.
        tokens: ids generated, those of the stop text included.
        finish: a stop text, the model's own end, or the limit.
        first_sha256: digest of the logits from which the first token was drawn.
    """

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    first_sha256: str


@dataclass
class _Branch:
    ask: Ask
    sequence: int
    position: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    first: str = ""
    draws: np.random.Generator | None = None


def continue_text(session: Session, asks: Sequence[Ask]) -> list[Continuation]:
    """Continue what a session holds once for every ask; the session's own text stays as it is.

    Asks beyond the session's branches, or its room, wait for a free place.

    Args:
        session: opened with `n_branches` of at least 1, its text prefilled or grafted.
        asks: in any number.

    Raises:
        EmptySpan: an ask has no tokens.
        TokenOutOfVocabulary: nothing was read.
        ContextFull: there is no room for one ask alone.
        EngineFailed: the engine failed; the context was cleared.
    """
    for ask in asks:
        session.model.check_tokens(ask.tokens)
    waiting = list(range(len(asks)))
    done: list[Continuation | None] = [None] * len(asks)
    while waiting:
        taken = _fitting(session, [asks[number] for number in waiting])
        numbers, waiting = waiting[:taken], waiting[taken:]
        found = _decode(session, [asks[number] for number in numbers])
        for number, continuation in zip(numbers, found, strict=True):
            done[number] = continuation
    return [one for one in done if one is not None]


def log_probabilities(
    session: Session, span: Sequence[int], wanted: Sequence[bool]
) -> NDArray[np.float64]:
    """Log-probabilities of tokens of a span, read behind what a session holds.

    The first token has none: a graft restores no logits of the text's last one.

    Args:
        session: opened with branches, its text prefilled or grafted.
        span: token ids, at least two.
        wanted: for every token, whether its log-probability is asked for.

    Returns:
        float64 [number of tokens wanted, the first left out], in nats.

    Raises:
        As `continue_text`.
    """
    if len(span) < 2:
        raise EmptySpan("a span of fewer than two tokens has no log-probability")
    if len(span) > session.room:
        raise _full(session, len(span))
    rows = _read(session, FIRST_BRANCH, span, [*wanted[1:], False])
    session.drop_branch(FIRST_BRANCH)
    targets = [token for token, want in zip(span[1:], wanted[1:], strict=True) if want]
    return np.asarray(
        [_log_p(row, token) for row, token in zip(rows, targets, strict=True)], np.float64
    )


def _log_p(logits: NDArray[np.float32], token: int) -> float:
    """Log-probability of a token; exponentials in float32, their sum in float64."""
    highest = logits.max()
    total = np.exp(logits - highest).sum(dtype=np.float64)
    return float(logits[token]) - float(highest) - float(np.log(total))


def _fitting(session: Session, asks: Sequence[Ask]) -> int:
    """How many of the first asks have room side by side; at least one."""
    room, taken = session.room, 0
    for ask in asks[: max(1, min(session.n_branches, _widest(session)))]:
        if not ask.tokens:
            raise EmptySpan("a branch continues with at least one token")
        room -= len(ask.tokens) + ask.limit
        if room < 0:
            break
        taken += 1
    if not taken:
        raise _full(session, len(asks[0].tokens) + asks[0].limit)
    return taken


def _widest(session: Session) -> int:
    """Most rows of one batch that all ask for logits."""
    return min(session.n_batch, session.settings.n_outputs_max)


def _full(session: Session, needed: int) -> ContextFull:
    return ContextFull(
        "the context has no room for a branch",
        expected=f"at most {session.room} tokens",
        found=needed,
        hint="open a session with a larger n_ctx",
    )


def _decode(session: Session, asks: Sequence[Ask]) -> list[Continuation]:
    branches = []
    for number, ask in enumerate(asks):
        branch = _Branch(ask, FIRST_BRANCH + number, session.position + len(ask.tokens))
        if ask.temperature > 0.0:
            branch.draws = generator(ask.seed)
        branches.append(branch)
        last = len(ask.tokens) - session.settings.min_rows
        wanted = [row >= last for row in range(len(ask.tokens))]
        logits = _read(session, branch.sequence, ask.tokens, wanted)[-1]
        branch.first = hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()
        _take(session, branch, logits)
    while alive := [branch for branch in branches if branch.finish is None]:
        rows = [RowIn(b.tokens[-1], b.position - 1, b.sequence, True) for b in alive]
        for branch, logits in zip(alive, session.decode_branches(rows), strict=True):
            _take(session, branch, logits)
    for branch in branches:
        session.drop_branch(branch.sequence)
    return [Continuation(b.text, tuple(b.tokens), b.finish or "limit", b.first) for b in branches]


def _read(
    session: Session, sequence: int, ids: Sequence[int], wanted: Sequence[bool]
) -> list[NDArray[np.float32]]:
    """Read the tokens of a new branch; logits of the rows that want them."""
    session.begin_branch(sequence)
    rows: list[NDArray[np.float32]] = []
    most = min(session.settings.n_batch, session.settings.n_outputs_max)
    for at in range(0, len(ids), most):
        rows += session.decode_branches(
            [
                RowIn(ids[row], session.position + row, sequence, wanted[row])
                for row in range(at, min(at + most, len(ids)))
            ]
        )
    return rows


def _take(session: Session, branch: _Branch, logits: NDArray[np.float32]) -> None:
    """Draw a branch's next token and see whether it ends there."""
    token = _drawn(branch, logits)
    if session.model.ends_generation(token):
        branch.finish = "end"
        return
    branch.tokens.append(token)
    branch.position += 1
    # A character may be split over tokens, so that the text is made anew from all of them.
    branch.text = session.model.detokenize(branch.tokens)
    ends = [at for stop in branch.ask.stops if (at := branch.text.find(stop)) >= 0]
    if ends:
        branch.text, branch.finish = branch.text[: min(ends)], "stop"
    elif len(branch.tokens) >= branch.ask.limit:
        branch.finish = "limit"


def _drawn(branch: _Branch, logits: NDArray[np.float32]) -> int:
    if branch.draws is None:
        return int(logits.argmax())
    likely = np.argpartition(logits, -TOP_K)[-TOP_K:] if len(logits) > TOP_K else None
    ids = np.arange(len(logits)) if likely is None else np.sort(likely)
    scores = logits[ids].astype(np.float64) / branch.ask.temperature
    weights = np.exp(scores - scores.max())
    bounds = np.cumsum(weights) / weights.sum()
    return int(ids[min(int(np.searchsorted(bounds, branch.draws.random(), "right")), len(ids) - 1)])
