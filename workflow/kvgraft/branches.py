"""Branches: several continuations of one text, decoded side by side in one batch.

The text may have been prefilled or grafted; a branch sees it and its own tokens, never another
branch, and is sampled from a seed of its own. It gives the bytes that it would give alone, and that
one prefill of its tokens behind the text would give (docs/adr/0010): it keeps its cells beforehand,
in the lanes of its positions, with placeholder rows of which one makes room for one token, and
begins with a copy of the text's last rows, so that no group of cells is torn. What is asked and
what an answer means is not known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvaudit.estimate import generator
from kvgraft.admission import ALIGNMENT
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
        limit: most tokens to generate, at least one.
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
        logits_sha256: digest of the logits from which the tokens were drawn, float32 [n_vocab]
            each, one behind the other; those that gave the model's end are the last of them.
    """

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    logits_sha256: str


@dataclass
class _Branch:
    ask: Ask
    sequence: int
    position: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    seen: Any = field(default_factory=hashlib.sha256)
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


@dataclass(frozen=True)
class Reread:
    """What a generation came to when it was read again in one pass.

    Attributes:
        step: the first at which another token is drawn, or the end; None where all are the same.
        logits_sha256: as in `Continuation`, of the logits that the given tokens have now.
    """

    step: int | None
    logits_sha256: str


def reread(session: Session, ask: Ask, tokens: Sequence[int], *, ended: bool) -> Reread:
    """Read what was asked and what was generated in one pass, and draw every token again.

    Under a split-invariant profile the logits are those of the generation, byte for byte.

    Args:
        session: opened with branches, holding what it held then.
        ask: what was continued, with its temperature and seed.
        tokens: that came.
        ended: whether the model's own end came behind them.

    Raises:
        As `continue_text`.
    """
    if not ask.tokens:
        raise EmptySpan("a branch reads at least one token")
    span = session.model.check_tokens([*ask.tokens, *tokens])
    if len(span) > session.room:
        raise _full(session, len(span))
    steps = len(tokens) + ended
    first = len(ask.tokens) - 1
    span = span[: first + steps]
    session.begin_branch(FIRST_BRANCH)
    rows = _read(session, FIRST_BRANCH, span, [row >= first for row in range(len(span))])
    session.drop_branch(FIRST_BRANCH)
    draws = generator(ask.seed) if ask.temperature > 0.0 else None
    seen, step = hashlib.sha256(), None
    for number, logits in enumerate(rows):
        seen.update(np.ascontiguousarray(logits, "<f4").data)
        token = _drawn(draws, ask.temperature, logits)
        inside = number < len(tokens)
        same = token == tokens[number] if inside else session.model.ends_generation(token)
        if not same and step is None:
            step = number
    return Reread(step, seen.hexdigest())


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
    session.begin_branch(FIRST_BRANCH)
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
    room, taken = session.room + session.tail_rows, 0
    for ask in asks[: max(1, min(session.n_branches, _widest(session)))]:
        if not ask.tokens or ask.limit < 1:
            raise EmptySpan("a branch reads at least one token and gives at least one", found=ask)
        needed = session.tail_rows + len(ask.tokens) + ask.limit
        longest = max(len(one.tokens) + one.limit for one in asks[: taken + 1])
        if needed > room or (taken and not session.holds_apart(longest)):
            break
        taken += 1
        room -= _kept(session, ask)
    if not taken:
        raise _full(session, len(asks[0].tokens) + asks[0].limit)
    return taken


def _kept(session: Session, ask: Ask) -> int:
    """Cells of a branch that others follow, from the tail on, so that these keep their lanes."""
    needed = session.tail_rows + len(ask.tokens) + ask.limit
    return -(-needed // ALIGNMENT) * ALIGNMENT


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
    tail = session.read_tail() if len(asks) > 1 else None
    for number, ask in enumerate(asks):
        branch = _Branch(ask, FIRST_BRANCH + number, session.position + len(ask.tokens))
        if ask.temperature > 0.0:
            branch.draws = generator(ask.seed)
        branches.append(branch)
        session.begin_branch(branch.sequence, tail if number else None)
        wanted = [*[False] * (len(ask.tokens) - 1), True]
        logits = _read(session, branch.sequence, ask.tokens, wanted)[-1]
        if number + 1 < len(asks):
            # One row for every token to come; those that only fill up stay until the end.
            fill = _kept(session, ask) - session.tail_rows - len(ask.tokens) - ask.limit
            session.reserve(branch.sequence, [*range(ask.limit), *[ask.limit] * fill])
        _take(session, branch, logits)
    while alive := [branch for branch in branches if branch.finish is None]:
        for branch in alive:
            session.release(branch.sequence, len(branch.tokens) - 1)
        rows = [RowIn(b.tokens[-1], b.position - 1, b.sequence, True) for b in alive]
        for branch, logits in zip(alive, session.decode_branches(rows), strict=True):
            _take(session, branch, logits)
    for branch in branches:
        session.drop_branch(branch.sequence)
    return [
        Continuation(b.text, tuple(b.tokens), b.finish or "limit", b.seen.hexdigest())
        for b in branches
    ]


def _read(
    session: Session, sequence: int, ids: Sequence[int], wanted: Sequence[bool]
) -> list[NDArray[np.float32]]:
    """Read the first tokens of a branch; logits of the rows that want them."""
    rows: list[NDArray[np.float32]] = []
    most = _widest(session)
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
    branch.seen.update(np.ascontiguousarray(logits, "<f4").data)
    token = _drawn(branch.draws, branch.ask.temperature, logits)
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


def _drawn(
    draws: np.random.Generator | None, temperature: float, logits: NDArray[np.float32]
) -> int:
    """The likeliest token, or one drawn from the softmax over the `TOP_K` likeliest."""
    if draws is None:
        return int(logits.argmax())
    likely = np.argpartition(logits, -TOP_K)[-TOP_K:] if len(logits) > TOP_K else None
    ids = np.arange(len(logits)) if likely is None else np.sort(likely)
    scores = logits[ids].astype(np.float64) / temperature
    weights = np.exp(scores - scores.max())
    bounds = np.cumsum(weights) / weights.sum()
    return int(ids[min(int(np.searchsorted(bounds, draws.random(), "right")), len(ids) - 1)])
