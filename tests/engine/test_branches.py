"""Branches continue one text side by side, each as if alone, and leave the text as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tinywork import ARCHITECTURES, WINDOW, draw, graft, put, sha256

from kvgraft import branches
from kvgraft.branches import Ask, Continuation, continue_text, log_probabilities, reread
from kvgraft.errors import ContextFull, EmptySpan, EngineFailed
from kvgraft.profile import split_invariant
from kvgraft.session import Session
from kvgraft.store import BlockStore

N_CTX, BRANCHES = 1024, 4
TEXT = draw(150)
ASKS = [Ask(tuple(draw(n, seed)), 10) for seed, n in ((1, 7), (2, 20), (3, 1), (4, 70))]


@pytest.fixture(scope="module")
def _opened(models: Any) -> Iterator[Callable[..., Session]]:
    made: dict[Any, Session] = {}

    def session(name: str = "llama", n_branches: int = BRANCHES, **changes: Any) -> Session:
        key = (name, n_branches, *sorted(changes.items()))
        if key not in made:
            settings = split_invariant(**{"n_ctx": N_CTX, **changes})
            made[key] = Session(models(name), settings, n_branches)
        return made[key]

    yield session
    for one in made.values():
        one.close()


@pytest.fixture
def opened(_opened: Callable[..., Session]) -> Callable[..., Session]:
    """A session with branches that holds `TEXT`."""

    def session(*arguments: Any, **changes: Any) -> Session:
        made = _opened(*arguments, **changes)
        made.reset()
        made.prefill(TEXT)
        return made

    return session


@pytest.fixture(params=ARCHITECTURES)
def session(request: pytest.FixtureRequest, opened: Callable[..., Session]) -> Session:
    return opened(request.param)


def held(session: Session) -> tuple[Any, ...]:
    """What a session holds, its rows and its room among it."""
    state = sha256(session.capture().state.data)
    return session.tokens, session.position, session.room, session.is_exact, state


# -- what a branch sees ---------------------------------------------------------------------------


def test_a_branch_gives_the_same_bytes_alone_and_among_others(session: Session) -> None:
    alone = [continue_text(session, [ask])[0] for ask in ASKS]
    together = continue_text(session, ASKS)
    backwards = continue_text(session, ASKS[::-1])[::-1]
    assert len({one.tokens for one in alone}) == len(ASKS)
    assert alone == together == backwards


def digest_of_one_prefill(session: Session, ask: Ask, found: Continuation) -> str:
    """Digest of the logits that one prefill of text, question and continuation gives."""
    session.reset()
    session.prefill(TEXT)
    drawn = len(found.tokens) + (found.finish == "end")
    logits = session.decode([*ask.tokens, *found.tokens], outputs=len(found.tokens) + 1)
    return sha256(np.ascontiguousarray(logits[:drawn], "<f4"))


def test_every_branch_has_the_logits_of_one_prefill_of_its_tokens(session: Session) -> None:
    asks = [*ASKS, *(Ask(tuple(draw(n, n)), 40 + n, temperature=0.9, seed="x") for n in (5, 30))]
    for ask, found in zip(asks, continue_text(session, asks), strict=True):
        assert found.logits_sha256 == digest_of_one_prefill(session, ask, found)


def test_a_branch_longer_than_the_window_waits_for_a_place_alone(
    opened: Callable[..., Session],
) -> None:
    session = opened("gemma3")
    asks = [Ask(tuple(draw(WINDOW, 3)), 20), *ASKS, Ask(tuple(draw(3)), WINDOW)]
    for ask, found in zip(asks, continue_text(session, asks), strict=True):
        assert found.logits_sha256 == digest_of_one_prefill(session, ask, found)


def test_a_generation_read_again_in_one_pass_gives_its_draws_and_its_digest(
    session: Session,
) -> None:
    asks = [*ASKS[:2], *(Ask(tuple(draw(n, n)), 30, (), 0.9, "seed") for n in (5, 80))]
    for ask, found in zip(asks, continue_text(session, asks), strict=True):
        before = held(session)
        ended = found.finish == "end"
        again = reread(session, ask, found.tokens, ended=ended)
        assert (again.step, again.logits_sha256) == (None, found.logits_sha256)
        at = len(found.tokens) // 2
        other = [*found.tokens]
        other[at] = other[at] % 250 + 3
        assert reread(session, ask, other, ended=ended).step == at
        if ask.temperature:
            assert (
                reread(session, replace(ask, seed="x"), found.tokens, ended=ended).step is not None
            )
        assert reread(session, ask, found.tokens, ended=not ended) != again
        assert held(session) == before


def test_a_branch_alone_is_what_the_session_itself_generates(session: Session) -> None:
    for ask in ASKS:
        branch = continue_text(session, [ask])[0]
        session.reset()
        session.prefill(TEXT)
        session.decode(ask.tokens)
        assert branch.tokens == tuple(session.generate(ask.limit))
        session.reset()
        session.prefill(TEXT)


def test_what_another_branch_says_does_not_change_a_bit(session: Session) -> None:
    neighbour, mine = ASKS[1], ASKS[0]
    other = Ask(tuple(draw(len(neighbour.tokens), 9)), neighbour.limit)
    found = continue_text(session, [neighbour, mine]), continue_text(session, [other, mine])
    assert found[0][0] != found[1][0]
    assert found[0][1] == found[1][1]


def test_a_branch_sees_every_part_of_the_text(session: Session) -> None:
    before = continue_text(session, ASKS[:1])[0]
    for place in (0, 75, len(TEXT) - 1):
        changed = [*TEXT]
        changed[place] = changed[place] % 250 + 3
        session.reset()
        session.prefill(changed)
        assert continue_text(session, ASKS[:1])[0].logits_sha256 != before.logits_sha256


def test_without_a_text_a_branch_is_all_there_is(opened: Callable[..., Session]) -> None:
    session = opened()
    session.reset()
    found = continue_text(session, ASKS[:1])[0]
    assert (session.tokens, session.position) == ((), 0)
    session.decode(ASKS[0].tokens)
    assert found.tokens == tuple(session.generate(ASKS[0].limit))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_behind_a_graft_and_behind_a_prefill_branches_are_equal_to_the_byte(
    architecture: str, opened: Callable[..., Session], store: BlockStore
) -> None:
    session = opened(architecture)
    block = put(store, session.capture())
    asks = [*ASKS, Ask(ASKS[1].tokens, 10, temperature=0.9, seed="graft")]
    fresh = continue_text(session, asks)
    assert graft(session, store, block).exact
    assert continue_text(session, asks) == fresh


# -- what it leaves -------------------------------------------------------------------------------


def test_text_rows_and_room_are_what_they_were(session: Session) -> None:
    before = held(session)
    continue_text(session, ASKS)
    log_probabilities(session, draw(30, 5), [True] * 30)
    assert held(session) == before
    again = session.decode(draw(9, 6))
    session.reset()
    session.prefill(TEXT)
    assert session.decode(draw(9, 6)).tobytes() == again.tobytes()


# -- drawing --------------------------------------------------------------------------------------


def drawn(session: Session, seed: str, temperature: float = 1.0, limit: int = 16) -> Continuation:
    ask = Ask(ASKS[0].tokens, limit, temperature=temperature, seed=seed)
    return continue_text(session, [ask])[0]


def test_draws_repeat_from_their_seed_and_differ_for_another(session: Session) -> None:
    first = drawn(session, "a")
    assert drawn(session, "a") == first
    others = [drawn(session, seed) for seed in "bcd"]
    assert len({first.tokens, *(other.tokens for other in others)}) == 4
    # What the first token is drawn from is the same.
    assert len({drawn(session, seed, limit=1).logits_sha256 for seed in "abcd"}) == 1


def test_a_draw_among_others_is_the_draw_alone(session: Session) -> None:
    asks = [Ask(ASKS[0].tokens, 16, temperature=1.0, seed=seed) for seed in "abcd"]
    assert [one.tokens for one in continue_text(session, asks)] == [
        drawn(session, seed).tokens for seed in "abcd"
    ]


def test_a_low_temperature_comes_to_the_likeliest_token(session: Session) -> None:
    assert drawn(session, "a", 1e-4).tokens == drawn(session, "a", 0.0).tokens


def test_only_the_likeliest_tokens_are_drawn(session: Session) -> None:
    logits = session.decode(ASKS[0].tokens)[-1]
    likely = {int(i) for i in np.argsort(logits)[-branches.TOP_K :]}
    session.reset()
    session.prefill(TEXT)
    asks = [Ask(ASKS[0].tokens, 1, temperature=50.0, seed=str(n)) for n in range(60)]
    first = [one.tokens[0] for one in continue_text(session, asks) if one.tokens]
    assert {*first} <= likely
    assert len({*first}) > branches.TOP_K // 2


# -- ends -----------------------------------------------------------------------------------------


def test_a_stop_text_ends_a_branch_and_is_cut_off(session: Session) -> None:
    whole = continue_text(session, [Ask(ASKS[0].tokens, 20)])[0]
    assert (whole.finish, len(whole.tokens)) == ("limit", 20)
    characters = [c for c in whole.text if c != "\ufffd" and whole.text.index(c) > 2]
    stop = characters[0]
    asks = [Ask(ASKS[0].tokens, 20, stops) for stops in ((stop,), ("never said", stop), ("never",))]
    cut, among, never = continue_text(session, asks)
    assert (cut.finish, cut.text) == ("stop", whole.text[: whole.text.index(stop)])
    assert (among.finish, among.text, among.tokens) == ("stop", cut.text, cut.tokens)
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    assert stop in session.model.detokenize(cut.tokens)
    assert stop not in session.model.detokenize(cut.tokens[:-1])
    assert (never.finish, never.tokens) == ("limit", whole.tokens)


def test_of_several_stop_texts_the_first_in_the_text_cuts(session: Session) -> None:
    text = continue_text(session, [Ask(ASKS[1].tokens, 20)])[0].text
    letters = [c for c in dict.fromkeys(text) if c != "\ufffd"]
    early, late = letters[1], letters[3]
    found = continue_text(session, [Ask(ASKS[1].tokens, 20, (late, early))])[0]
    assert found.text == text[: text.index(early)]


def test_a_limit_counts_generated_tokens(session: Session) -> None:
    for limit in (1, 2, 5):
        found = continue_text(session, [Ask(ASKS[0].tokens, limit)])[0]
        assert (found.finish, len(found.tokens)) == ("limit", limit)
        assert found.text == session.model.detokenize(found.tokens)


def test_the_models_own_end_is_no_token_of_the_branch(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = continue_text(session, ASKS[:1])[0]
    end = next(token for token in whole.tokens[2:] if token not in whole.tokens[:2])
    monkeypatch.setattr(type(session.model), "ends_generation", lambda _, token: token == end)
    found, other = continue_text(session, ASKS[:2])
    assert found.finish == "end"
    assert found.tokens == whole.tokens[: whole.tokens.index(end)]
    assert found.text == session.model.detokenize(found.tokens)
    assert end not in other.tokens
    monkeypatch.setattr(type(session.model), "ends_generation", lambda _, token: True)
    one = continue_text(session, [replace(ASKS[0], limit=1)])[0]
    assert one == Continuation("", (), "end", continue_text(session, ASKS[:1])[0].logits_sha256)


# -- room -----------------------------------------------------------------------------------------


def test_a_branch_that_does_not_fit_is_refused_and_nothing_changes(session: Session) -> None:
    before, room = held(session), session.room
    tokens = tuple(draw(room - 3, 8))
    assert len(continue_text(session, [Ask(tokens, 3)])[0].tokens) == 3
    for ask in (Ask(tokens, 4), Ask(tuple(draw(room + 1, 8)), 1), Ask((5,), room)):
        with pytest.raises(ContextFull, match=f"at most {room} tokens"):
            continue_text(session, [ask])
        assert held(session) == before
    with pytest.raises(ContextFull):
        log_probabilities(session, draw(room + 1, 8), [True] * (room + 1))
    assert held(session) == before


def test_a_branch_reads_and_gives_at_least_one_token(session: Session) -> None:
    before = held(session)
    with pytest.raises(EmptySpan):
        continue_text(session, [Ask((), 3)])
    with pytest.raises(EmptySpan):
        continue_text(session, [Ask((5,), 0)])
    with pytest.raises(EmptySpan):
        log_probabilities(session, [5], [True])
    assert held(session) == before
    assert continue_text(session, []) == []


@pytest.fixture
def waves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many branches were decoded side by side, time after time."""
    found: list[int] = []
    decode = branches._decode

    def counted(session: Session, asks: Any) -> Any:
        found.append(len(asks))
        return decode(session, asks)

    monkeypatch.setattr(branches, "_decode", counted)
    return found


def test_asks_beyond_the_branches_wait(session: Session, waves: list[int]) -> None:
    asks = [Ask(tuple(draw(5 + n, n)), 6) for n in range(2 * BRANCHES + 1)]
    alone = [continue_text(session, [ask])[0].tokens for ask in asks]
    waves.clear()
    assert [one.tokens for one in continue_text(session, asks)] == alone
    assert waves == [BRANCHES, BRANCHES, 1]


def test_asks_beyond_the_room_wait(opened: Callable[..., Session], waves: list[int]) -> None:
    session = opened()
    long = session.room // 2 - 50
    # A branch that others follow keeps cells up to a multiple of 256.
    asks = [Ask(tuple(draw(n, n)), 10) for n in (long, long, 4, long, 5)]
    alone = [continue_text(session, [ask])[0] for ask in asks]
    waves.clear()
    assert continue_text(session, asks) == alone
    assert waves == [1, 2, 2]


def test_asks_beyond_the_rows_of_a_batch_wait(
    opened: Callable[..., Session], waves: list[int]
) -> None:
    wanted = [one.tokens for one in continue_text(opened(), ASKS)]
    narrow = opened(n_branches=6, n_batch=4)
    waves.clear()
    assert [one.tokens for one in continue_text(narrow, [*ASKS, *ASKS[:2]])] == wanted + wanted[:2]
    assert waves == [4, 2]


def test_a_session_of_fewer_outputs_than_sequences_is_refused(models: Any) -> None:
    for n_branches, n_outputs_max in ((1, 5), (BRANCHES, 11)):
        settings = split_invariant(n_ctx=N_CTX, n_outputs_max=n_outputs_max)
        with pytest.raises(EngineFailed, match=f"n_outputs_max of at least {4 + 2 * n_branches}"):
            Session(models("llama"), settings, n_branches)


def test_a_session_without_branches_cannot_be_continued(opened: Callable[..., Session]) -> None:
    session = opened(n_branches=0)
    before = held(session)
    with pytest.raises(ValueError, match="none of the session's branches"):
        continue_text(session, ASKS)
    assert held(session) == before


# -- log-probabilities ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 40, 200])
def test_log_probabilities_are_those_of_the_sessions_logits(session: Session, n: int) -> None:
    span = draw(n, 7)
    wanted = [row % 3 != 1 for row in range(n)]
    found = log_probabilities(session, span, wanted)
    logits = session.decode(span).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = [log_p[row - 1, span[row]] for row in range(1, n) if wanted[row]]
    assert found.dtype == np.float64
    assert found.shape == (len(expected),)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert (found < 0).all()


def test_log_probabilities_do_not_depend_on_which_are_wanted(
    opened: Callable[..., Session],
) -> None:
    span = draw(60, 7)
    every = log_probabilities(opened(), span, [True] * 60)
    some = [row % 4 == 2 for row in range(60)]
    few = log_probabilities(opened(n_outputs_max=12), span, some)
    assert few.tobytes() == every[np.flatnonzero(some) - 1].tobytes()
    last = log_probabilities(opened(), span, [*[False] * 59, True])
    assert last.tobytes() == every[-1:].tobytes()
    assert log_probabilities(opened(), span, [False] * 60).shape == (0,)
