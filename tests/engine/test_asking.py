"""Asking a library: a repeated problem is read back, a new one adapted, and anything else abstains.

A tiny model knows nothing, so that what it says is put into its mouth where an answer is needed.
Routing, grafting and the programs are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tinywork import spying

from kvaudit import schemas
from kvaudit.errors import (
    BlockCorrupt,
    BlockNotFound,
    BlockRefused,
    UnusableInput,
)
from kvaudit.flywheel import prompts, routing
from kvaudit.sandbox import Limits, Sandbox
from kvgraft import asking, solving
from kvgraft.asking import Effort, Reply, ask, calibrate
from kvgraft.branches import Ask, Continuation
from kvgraft.errors import GraftRefused, ModelMismatch, ProfileMismatch
from kvgraft.library import Demonstration, Entry, Library, Proposal, Router, Source, prepare
from kvgraft.profile import split_invariant
from kvgraft.session import Session
from kvgraft.store import BlockStore

N_CTX = 1536
EFFORT = Effort.of_stage()
ATTEMPTS = EFFORT.adapt_attempts
CARDS = "How many pairs can be formed from {} cards?"
DOORS = "A hall has {} doors, each with {} locks. How many locks are there?"


def cards(n: int) -> tuple[str, str, int]:
    return CARDS.format(n), f"n = {n}\nprint(n * (n - 1) // 2)", n * (n - 1) // 2


def doors(d: int, k: int) -> tuple[str, str, int]:
    return DOORS.format(d, k), f"d = {d}\nk = {k}\nprint(d * k)", d * k


@pytest.fixture(scope="module")
def sandbox(isolation: None) -> Iterator[Sandbox]:
    with Sandbox(Limits(wall_seconds=2.0, cpu_seconds=2), workers=1) as made:
        yield made


@pytest.fixture(scope="module")
def session(models: Any) -> Iterator[Session]:
    with Session(models("llama"), split_invariant(n_ctx=N_CTX), asking.BRANCHES) as made:
        yield made


@pytest.fixture
def library(tmp_path: Path, session: Session, sandbox: Sandbox) -> Library:
    """Two entries, the second with a demonstration; the router is not calibrated."""
    made = Library.create(tmp_path / "library", session.model.pin, session.profile)
    source = Source.supplied("Ada")
    made.deposit(session, Proposal(*cards(17), source), sandbox)
    shown = Demonstration(*doors(5, 9))
    made.deposit(session, Proposal(*doors(12, 4), source, demonstration=shown), sandbox)
    return made


def calibrated(library: Library, threshold: float) -> None:
    library.route_by(Router(routing.STATISTIC, threshold, 0.05, 60))


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Ask]]:
    """Lets the model say texts, one for each time it is asked; returns what it was asked."""

    def put(*texts: str) -> list[Ask]:
        left, asked = list(texts), []

        def continue_text(session: Session, asks: Sequence[Ask]) -> list[Continuation]:
            asked.extend(asks)
            said = [left.pop(0) for _ in asks]
            return [
                Continuation(text, tuple(session.model.tokenize(text, begin=False)), "stop", "0")
                for text in said
            ]

        monkeypatch.setattr(solving, "continue_text", continue_text)
        return asked

    return put


def text_of(session: Session, tokens: Sequence[int]) -> str:
    return session.model.detokenize(list(tokens))


# -- a repeated problem ---------------------------------------------------------------------------


def test_a_repeated_problem_is_read_back_or_honestly_abstained_from(
    library: Library, session: Session, sandbox: Sandbox
) -> None:
    for entry in library.entries():
        reply = ask(library, session, entry.statement, sandbox)
        assert reply.entry_id == entry.id
        assert reply.route in ("recurrence", "abstained")
        if reply.route == "recurrence":
            assert reply.answer == entry.answer
        else:
            assert reply.answer is None
            assert f"the entry's verified answer is {entry.answer}" in reply.reason
        assert reply.cached_tokens == len(session.model.tokenize(entry.text))
        assert 0 < reply.decoded_tokens <= EFFORT.recall_tokens
        assert reply.exact
        assert reply.program is None
        assert reply == ask(library, session, entry.statement, sandbox)


@pytest.mark.parametrize("question", [CARDS.format(17), f"  {CARDS.format(17).upper()}\n"])
def test_a_problem_that_is_read_back_rightly_is_answered(
    question: str, library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    asked = says(" 136\n")
    entry = library.entries()[0]
    reply = ask(library, session, question, sandbox)
    assert (reply.answer, reply.entry_id, reply.route) == (136, entry.id, "recurrence")
    (one,) = asked
    question = text_of(session, one.tokens)
    assert question == prompts.recall_text(entry.statement, entry.program)
    assert (one.limit, one.stops, one.temperature) == (EFFORT.recall_tokens, ("\n",), 0.0)
    assert reply.prompt_tokens == len(one.tokens)
    assert reply.exact
    assert session.tokens == tuple(session.model.tokenize(entry.text))


@pytest.mark.parametrize("text", [" 135", " -136", "", " one hundred", "136,", " 1 36"])
def test_an_answer_that_is_misread_is_not_given(
    text: str, library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    says(text)
    reply = ask(library, session, CARDS.format(17), sandbox)
    assert (reply.answer, reply.route) == (None, "abstained")
    assert "the entry's verified answer is 136" in reply.reason
    assert reply.entry_id == library.entries()[0].id


# -- abstaining -----------------------------------------------------------------------------------


def test_without_a_calibration_only_repeated_problems_are_answered(
    library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    asked = says()
    reply = ask(library, session, CARDS.format(23), sandbox)
    assert (reply.answer, reply.route, reply.program) == (None, "abstained", None)
    assert "not calibrated" in reply.reason
    assert reply.entry_id == library.entries()[0].id
    assert (reply.decoded_tokens, reply.cached_tokens, reply.exact) == (0, 0, False)
    assert 0 < reply.prompt_tokens <= EFFORT.shortlist * EFFORT.scored_tokens
    assert asked == []


def test_a_question_below_the_threshold_abstains_and_says_its_score(
    library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    says()
    calibrated(library, 0.0)  # no mean of log-probabilities lies above
    reply = ask(library, session, CARDS.format(23), sandbox)
    assert (reply.answer, reply.route) == (None, "abstained")
    assert "does not explain the question: score -" in reply.reason
    assert "more than 0 is needed" in reply.reason


@pytest.mark.parametrize("question", ["", "?", "Whither?", "17 and 12", "\u6570" * 400])
def test_a_question_without_a_word_of_any_entry_abstains(
    question: str, library: Library, session: Session, sandbox: Sandbox
) -> None:
    calibrated(library, -1e9)
    reply = ask(library, session, question, sandbox)
    assert reply == Reply(None, None, "abstained", "no entry shares a word with the question")


def test_an_empty_library_abstains(tmp_path: Path, session: Session, sandbox: Sandbox) -> None:
    made = Library.create(tmp_path / "empty", session.model.pin, session.profile)
    for threshold in (None, -1e9):
        if threshold is not None:
            calibrated(made, threshold)
        assert ask(made, session, CARDS.format(17), sandbox).route == "abstained"


# -- a new problem --------------------------------------------------------------------------------


def test_a_new_problem_gets_the_entrys_program_with_its_numbers(
    library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    calibrated(library, -1e9)
    program = doors(7, 33)[1]
    asked = says(f"{program}\n")
    entry = library.entries()[1]
    reply = ask(library, session, DOORS.format(7, 33), sandbox)
    assert (reply.answer, reply.route, reply.program) == (231, "adapted", program)
    assert reply.entry_id == entry.id
    assert text_of(session, asked[0].tokens) == prompts.adapt_text(DOORS.format(7, 33))
    assert asked[0].stops == (prompts.STOP,)
    assert reply.exact
    # The block and its demonstration.
    assert entry.demonstration is not None
    assert text_of(session, session.tokens).endswith(entry.text + entry.demonstration.text)
    assert reply.cached_tokens == len(session.tokens)
    assert reply.prompt_tokens > len(asked[0].tokens)  # routing read some too
    assert reply.decoded_tokens == len(session.model.tokenize(f"{program}\n", begin=False))
    assert reply.to_json()["answer"] == 231


def test_attempts_go_on_until_the_gate_passes_and_differ(
    library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    calibrated(library, -1e9)
    tries = ["I do not know.", doors(33, 7)[1], doors(7, 33)[1], "print(231)"]
    asked = says(*tries)
    reply = ask(library, session, DOORS.format(7, 33), sandbox)
    assert (reply.answer, reply.program) == (231, tries[2])
    assert [one.temperature for one in asked] == [0.0, EFFORT.temperature, EFFORT.temperature]
    assert {one.limit for one in asked} == {EFFORT.program_tokens}
    assert len({one.seed for one in asked}) == 3
    assert len({one.tokens for one in asked}) == 1
    tokens = [session.model.tokenize(text, begin=False) for text in tries[:3]]
    assert reply.decoded_tokens == sum(map(len, tokens))


@pytest.mark.parametrize(
    ("program", "gate"),
    [
        ("The answer is 231.", "no program"),
        ("print(231)", "shape"),
        (doors(12, 4)[1], "unbound"),
        (doors(33, 7)[1], "unbound"),
    ],
)
def test_what_never_passes_the_gate_is_never_run(
    program: str, gate: str, library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    calibrated(library, -1e9)
    asked = says(*[program] * ATTEMPTS)
    nothing: Any = None  # to be run in
    reply = ask(library, session, DOORS.format(7, 33), nothing)
    assert (reply.answer, reply.program, reply.route) == (None, None, "abstained")
    assert reply.reason == f"no adapted program passed the gate in {ATTEMPTS} attempts: {gate}"
    assert len(asked) == ATTEMPTS


@pytest.mark.parametrize(
    ("program", "ending"),
    [("a = {}\nprint(10 // (a - 7))", "error"), ("a = {}\nwhile a == 7:\n    pass", "timeout")],
)
def test_a_program_that_does_not_print_abstains(
    program: str, ending: str, library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    statement = "What becomes of the wheel of {} spokes?"
    base = program.format(9)
    if ending == "timeout":
        base, program = f"{base}\nprint(5)", f"{program}\nprint(5)"
    library.deposit(session, Proposal(statement.format(9), base, 5, Source.supplied("A")), sandbox)
    calibrated(library, -1e9)
    says(program.format(7))
    reply = ask(library, session, statement.format(7), sandbox)
    assert (reply.answer, reply.route) == (None, "abstained")
    assert reply.reason == f"the adapted program ended with: {ending}"
    assert reply.program == program.format(7)


def test_a_real_tiny_model_adapts_nothing_and_repeats_itself(
    library: Library, session: Session, sandbox: Sandbox
) -> None:
    calibrated(library, -1e9)
    reply = ask(library, session, CARDS.format(23), sandbox)
    assert (reply.answer, reply.route) == (None, "abstained")
    assert reply.decoded_tokens > 0
    assert ask(library, session, CARDS.format(23), sandbox) == reply


# -- effort, room and what is said of the library --------------------------------------------------


def test_as_much_is_tried_as_the_stage_measures_with() -> None:
    section = json.loads(schemas.text("config"))["properties"]["flywheel"]["properties"]
    assert asdict(EFFORT) == {name: section[name]["default"] for name in asdict(EFFORT)}


def test_a_long_answer_is_read_back_whole_and_a_long_program_adapted_whole(
    library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    long = "n = 1234567890123\n" + "n = n + 0\n" * 60 + "print(n)"
    statement = "Which number follows {} in the book?"
    made = Proposal(statement.format(1234567890123), long, 1234567890123, Source.supplied("Ada"))
    library.deposit(session, made, sandbox)
    asked = says(" 1234567890123\n", long.replace("n = 1234567890123", "n = 9876543210987"))
    assert ask(library, session, made.statement, sandbox).answer == 1234567890123
    calibrated(library, -1e9)
    assert ask(library, session, statement.format(9876543210987), sandbox).answer == 9876543210987
    tokens = len(session.model.tokenize(long, begin=False))
    assert asked[0].limit >= len(session.model.tokenize(" 1234567890123\n", begin=False))
    assert asked[1].limit == 2 * tokens > EFFORT.program_tokens


def test_a_question_that_is_too_long_is_declined_like_any_other(
    library: Library, session: Session, sandbox: Sandbox
) -> None:
    calibrated(library, -1e9)
    reply = ask(library, session, CARDS.format(23) + " How many?" * N_CTX, sandbox)
    assert (reply.answer, reply.route) == (None, "abstained")
    assert "there is no room for the question behind the entry's block" in reply.reason
    assert reply.entry_id == library.entries()[0].id
    assert reply.prompt_tokens > 0


def test_an_entry_that_cannot_be_read_is_skipped_and_named(
    library: Library, session: Session, sandbox: Sandbox, says: Any
) -> None:
    says(" 136\n")
    one, two = library.entries()
    library.path(two.id).write_bytes(b"{}")
    reply = ask(library, session, one.statement, sandbox)
    assert (reply.answer, reply.route) == (136, "recurrence")
    (warning,) = reply.warnings
    assert warning.startswith(f"skipped entries/{two.id}.json: ")
    assert reply.to_json()["warnings"] == (warning,)


def test_an_answer_says_that_the_threshold_is_of_other_entries(
    library: Library, session: Session, sandbox: Sandbox
) -> None:
    calibrated(library, 0.0)
    question = CARDS.format(23)
    assert ask(library, session, question, sandbox).warnings == ()
    made = Proposal("What is 3 and 4?", "print(7)", 7, Source.supplied("Ada"))
    entry = library.deposit(session, made, sandbox)
    (warning,) = ask(Library.open(library.root), session, question, sandbox).warnings
    assert "calibrated on another set of entries" in warning
    library.remove(entry.id)
    assert ask(library, session, question, sandbox).warnings == ()
    # A library of an older version does not say on which.
    facts = replace(library.facts, router=replace(library.facts.router, entries=None))
    older = Library(library.root, facts)
    (warning,) = ask(older, session, question, sandbox).warnings
    assert warning.startswith("it is not known on which entries")


def test_a_calibration_declines_the_questions_that_it_was_made_from(
    library: Library, session: Session, sandbox: Sandbox
) -> None:
    foreign = [f"How many locks has a hall of {n} cards?" for n in range(3, 22)]
    found = calibrate(library, session, foreign, 0.05)
    assert found == Library.open(library.root).facts.router
    assert (found.alpha, found.n_calibration) == (0.05, 19)
    assert found.entries == library.membership()
    for question in foreign[:3]:
        assert ask(library, session, question, sandbox).route == "abstained"
    with pytest.raises(UnusableInput, match=r"at least 19 questions for 0\.05; found 18"):
        calibrate(library, session, foreign[:18], 0.05)
    with pytest.raises(UnusableInput, match="repeats an entry's statement"):
        calibrate(library, session, [CARDS.format(17)], 0.5)
    assert Library.open(library.root).facts.router == found


def test_a_calibration_names_the_entries_that_it_saw_and_none_that_came_meanwhile(
    library: Library, session: Session, sandbox: Sandbox
) -> None:
    made = Proposal("What is 3 and 4?", "print(7)", 7, Source.supplied("Ada"))
    late, before = prepare(session, made, sandbox), library.membership()

    class Foreign(list[str]):
        """Questions in the midst of which somebody else deposits an entry."""

        def __iter__(self) -> Iterator[str]:
            for number, question in enumerate(super().__iter__()):
                if number == 2:
                    Library.open(library.root).keep(late)
                yield question

    foreign = Foreign(f"How many locks has a hall of {n} cards?" for n in range(3, 22))
    assert calibrate(library, session, foreign, 0.05).entries == before != library.membership()
    (warning,) = ask(library, session, CARDS.format(23), sandbox).warnings
    assert "calibrated on another set of entries" in warning


def test_no_block_stays_open(
    library: Library,
    session: Session,
    sandbox: Sandbox,
    says: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Any] = []
    get = BlockStore.get

    def watching(store: BlockStore, block_id: str, *, verify: bool = True) -> Any:
        opened.append(get(store, block_id, verify=verify))
        return opened[-1]

    monkeypatch.setattr(BlockStore, "get", watching)
    calibrated(library, -1e9)
    says(" 136\n", doors(7, 33)[1])
    assert ask(library, session, CARDS.format(17), sandbox).route == "recurrence"
    assert ask(library, session, DOORS.format(7, 33), sandbox).route == "adapted"
    assert len(opened) >= 4
    for block in opened:
        with pytest.raises(BlockRefused, match="the block is closed"):
            bytes(block.state[:1])


# -- refusals -------------------------------------------------------------------------------------


def test_a_session_without_branches_is_refused(
    library: Library, models: Any, sandbox: Sandbox
) -> None:
    with (
        library.open_session(models("llama")) as bare,
        pytest.raises(GraftRefused, match="without branches") as asked,
    ):
        ask(library, bare, CARDS.format(17), sandbox)
    with (
        library.open_session(models("llama")) as bare,
        pytest.raises(GraftRefused) as calibrated,
    ):
        calibrate(library, bare, [CARDS.format(18)], 0.05)
    assert str(asked.value) == str(calibrated.value)


def test_a_session_of_another_model_or_profile_is_refused(
    library: Library, models: Any, sandbox: Sandbox
) -> None:
    for name, n_ctx, refusal in (("other", N_CTX, ModelMismatch), ("llama", 512, ProfileMismatch)):
        with (
            Session(models(name), split_invariant(n_ctx=n_ctx), 1) as other,
            pytest.raises(refusal),
        ):
            ask(library, other, CARDS.format(17), sandbox)
        with (
            Session(models(name), split_invariant(n_ctx=n_ctx), 1) as other,
            pytest.raises(refusal),
        ):
            calibrate(library, other, [CARDS.format(18)], 0.05)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


@pytest.fixture(params=[(17, "repeated"), (23, "new")], ids=lambda one: one[1])
def question(request: pytest.FixtureRequest) -> str:
    return CARDS.format(request.param[0])


def path_of(library: Library, entry: Entry) -> Path:
    return library.blocks.path(entry.block_id)


def test_a_damaged_block_is_an_error_and_no_answer(
    question: str, library: Library, session: Session, sandbox: Sandbox
) -> None:
    calibrated(library, -1e9)
    _flip(path_of(library, library.entries()[0]))
    with spying(session) as spy, pytest.raises(BlockCorrupt):
        ask(library, session, question, sandbox)
    assert "llama_state_seq_set_data" not in spy.calls
    assert session.tokens == ()


def test_a_missing_block_is_an_error_and_no_answer(
    question: str, library: Library, session: Session, sandbox: Sandbox
) -> None:
    path_of(library, library.entries()[0]).unlink()
    with pytest.raises(BlockNotFound):
        ask(library, session, question, sandbox)


def test_a_block_is_not_opened_for_a_question_that_it_is_no_candidate_for(
    library: Library, session: Session, sandbox: Sandbox
) -> None:
    _flip(path_of(library, library.entries()[0]))
    entry = library.entries()[1]
    assert ask(library, session, entry.statement, sandbox).entry_id == entry.id
