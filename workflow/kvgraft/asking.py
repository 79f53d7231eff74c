"""Asking a library: route a question, restore one block, answer from it, or say why not.

The same statement again is read back from its block. A question that the router takes for the same
problem with other numbers gets the block's program adapted by the frozen model; what passes the
gate is run, and what it prints is the answer. Anything else abstains: a library does not guess.
How much is tried is what the stage flywheel measures with, so that its rates speak for this.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

from kvaudit import schemas
from kvaudit.errors import UnusableInput
from kvaudit.flywheel import calibration, prompts, routing
from kvaudit.sandbox import Sandbox
from kvgraft.errors import ContextFull, GraftRefused
from kvgraft.library import Library
from kvgraft.library_entry import Entry, Router, membership_of
from kvgraft.router import BlockRouter, Candidate
from kvgraft.session import Session
from kvgraft.solving import Known, Sampling, adapt, recall

BRANCHES = 4
MAX_WARNINGS = 20

Route = Literal["recurrence", "adapted", "abstained"]


@dataclass(frozen=True)
class Effort:
    """How much is tried for an answer; the fields of the stage's configuration of these names.

    Attributes:
        shortlist: candidates by words that the model scores.
        scored_tokens: most tokens of a question that are scored.
        recall_tokens: most tokens of an answer that is read back; more for a longer known answer.
        program_tokens: most tokens of an adapted program; twice the entry's own where that is more.
        adapt_attempts: attempts at an adaptation, the first of them greedy.
        temperature: of the others.
    """

    shortlist: int
    scored_tokens: int
    recall_tokens: int
    program_tokens: int
    adapt_attempts: int
    temperature: float

    @classmethod
    @functools.cache
    def of_stage(cls) -> Self:
        """The defaults of the stage flywheel, as the schema of configurations states them."""
        section = json.loads(schemas.text("config"))["properties"]["flywheel"]["properties"]
        return cls(**{field.name: section[field.name]["default"] for field in fields(cls)})

    def recall_limit(self, session: Session, answer: int) -> int:
        """Most tokens of a recall: a library's answer may have more digits than a contest's."""
        return max(self.recall_tokens, len(session.model.tokenize(f" {answer}\n", begin=False)))

    def program_limit(self, session: Session, program: str) -> int:
        """Most tokens of an adaptation: other numbers may be longer than the entry's."""
        return max(self.program_tokens, 2 * len(session.model.tokenize(program, begin=False)))


@dataclass(frozen=True)
class Reply:
    """What a library says to a question.

    Attributes:
        answer: None where it abstained.
        entry_id: the entry that was used or came nearest; None without one.
        route: how the answer was come by.
        reason: why, in words.
        program: the adapted program, if one passed the gate.
        decoded_tokens: generated.
        prompt_tokens: read, routing included.
        cached_tokens: restored from the block that was asked.
        exact: whether the restored state equals a fresh one byte for byte.
        warnings: what is wrong with the library: entries that were skipped because they cannot be
            read, each by name, and a calibration that was made on other entries.
    """

    answer: int | None
    entry_id: str | None
    route: Route
    reason: str
    program: str | None = None
    decoded_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    exact: bool = False
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def ask(
    library: Library,
    session: Session,
    question: str,
    sandbox: Sandbox,
    effort: Effort | None = None,
) -> Reply:
    """Ask a library.

    Args:
        library: whose router is calibrated, or nothing but repeated statements is answered.
        session: of the library's model and profile, opened with branches; it is emptied.
        question: a statement.
        sandbox: where an adapted program runs.
        effort: how much is tried; None for the stage's.

    Raises:
        ModelMismatch, ProfileMismatch: the session is not of this library.
        GraftRefused: the session was opened without branches.
        BlockCorrupt, BlockNotFound: the library's block is damaged.
    """
    _check(library, session)
    effort = effort or Effort.of_stage()
    sound, unreadable = library.survey()
    warnings = [f"skipped {one.name}: {one.error}" for one in unreadable[:MAX_WARNINGS]]
    if len(unreadable) > MAX_WARNINGS:
        warnings.append(f"skipped {len(unreadable) - MAX_WARNINGS} more that cannot be read")
    entries = {entry.id: entry for entry in sound}
    reply = _reply(library, session, entries, question, sandbox, effort)
    if reply.route != "recurrence" and (stale := _stale(library.facts.router, entries)):
        warnings.append(stale)
    return replace(reply, warnings=tuple(warnings))


def _check(library: Library, session: Session) -> None:
    """Refuse a session in which no question of this library can be scored."""
    library.check_session(session)
    if not session.n_branches:
        raise GraftRefused("a session without branches cannot be asked", hint="open it with some")


def calibrate(
    library: Library,
    session: Session,
    questions: Sequence[str],
    alpha: float,
    effort: Effort | None = None,
) -> Router:
    """Take a library's threshold from questions that none of its entries answers.

    A later such question, if it comes as these did, is routed with probability at most `alpha`. An
    entry that comes or goes meanwhile is none of those that the calibration names.

    Args:
        library: its `library.json` is written; every entry must be readable.
        session: of the library's model and profile, opened with branches; it is emptied.
        questions: as foreign as those that are to be declined; the more like the entries, the
            higher the threshold.
        alpha: the accepted probability.
        effort: as in `ask`.

    Returns:
        What `library.json` now says.

    Raises:
        UnusableInput: there are too few questions for a threshold, or one repeats an entry's
            statement; the library is as it was.
        UnusableInput, LibraryDamaged: an entry is not what its name says.
        TypedError: as `ask`.
    """
    _check(library, session)
    needed = calibration.needed(alpha)
    if len(questions) < needed:
        raise UnusableInput(
            "so few questions promise nothing about an error rate as low as this",
            expected=f"at least {needed} questions for {alpha:g}",
            found=len(questions),
            hint="add questions, or accept a higher --alpha; the library is as it was",
        )
    entries = {entry.id: entry for entry in library.entries()}
    router = _router(library, session, entries, effort or Effort.of_stage())
    bests: list[float | None] = []
    for question in questions:
        routed = router.route(question)
        if routed.exact is not None:
            raise UnusableInput(
                "a question of the calibration repeats an entry's statement",
                found=question,
                where=f"entry {routed.exact}",
                hint="give questions that no entry answers",
            )
        best = routing.best(routed.scores)
        bests.append(best and best[1])
    threshold = calibration.threshold_of(bests, alpha)
    seen = membership_of(entries)
    library.route_by(Router(routing.STATISTIC, threshold, alpha, len(questions), seen))
    return library.facts.router


def _router(
    library: Library, session: Session, entries: Mapping[str, Entry], effort: Effort
) -> BlockRouter:
    candidates = [
        Candidate(entry.id, entry.statement, functools.partial(library.block, entry))
        for entry in entries.values()
    ]
    return BlockRouter(session, candidates, effort.shortlist, effort.scored_tokens)


def _stale(router: Router, entries: Iterable[str]) -> str | None:
    """What is to be said of a threshold that was not calibrated on the entries that were asked."""
    if router.threshold is None or router.entries == membership_of(entries):
        return None
    if router.entries is None:
        return "it is not known on which entries the threshold was calibrated"
    return "the threshold was calibrated on another set of entries; its false-route rate may differ"


def _reply(
    library: Library,
    session: Session,
    entries: Mapping[str, Entry],
    question: str,
    sandbox: Sandbox,
    effort: Effort,
) -> Reply:
    router = _router(library, session, entries, effort)
    try:
        routed = router.route(question)
    except ContextFull as error:
        return Reply(None, None, "abstained", f"there is no room for the question: {error}")
    if routed.exact is not None:
        return _recalled(library, session, entries[routed.exact], effort)
    best, rules = routing.best(routed.scores), library.facts.router
    # A threshold of another statistic says nothing about these scores.
    threshold = rules.threshold if rules.statistic == routing.STATISTIC else None
    read = routed.scored_tokens
    if routing.decide(best, threshold) == "abstain":
        return Reply(
            None,
            best[0] if best else None,
            "abstained",
            _why(best, threshold),
            prompt_tokens=read,
        )
    assert best is not None
    return _adapted(library, session, entries[best[0]], question, sandbox, effort, read)


def _why(best: tuple[str, float] | None, threshold: float | None) -> str:
    if best is None:
        return "no entry shares a word with the question"
    if threshold is None:
        return "the library's router is not calibrated, and the question repeats no statement"
    return (
        f"the nearest entry does not explain the question: score {best[1]:.3g}, "
        f"more than {threshold:.3g} is needed"
    )


def _no_room(entry: Entry, error: ContextFull, restored: int, read: int, *, exact: bool) -> Reply:
    """A question that does not fit behind the entry's block is declined like any other."""
    return Reply(
        None,
        entry.id,
        "abstained",
        f"there is no room for the question behind the entry's block: {error}",
        prompt_tokens=read,
        cached_tokens=restored,
        exact=exact,
    )


def _recalled(library: Library, session: Session, entry: Entry, effort: Effort) -> Reply:
    session.reset()
    with library.block(entry) as block:
        receipt = session.graft(block)
    limit = effort.recall_limit(session, entry.answer)
    try:
        said = recall(session, Known(entry.statement, entry.program), limit)
    except ContextFull as error:
        return _no_room(entry, error, receipt.restored_tokens, 0, exact=receipt.exact)
    answer = prompts.first_integer(said.continuation.text)
    used: dict[str, Any] = {
        "decoded_tokens": len(said.continuation.tokens),
        "prompt_tokens": said.read_tokens,
        "cached_tokens": receipt.restored_tokens,
        "exact": receipt.exact,
    }
    if answer != entry.answer:
        # The entry knows what its program printed; a model that misreads it is not believed.
        return Reply(
            None,
            entry.id,
            "abstained",
            f"the model read back {answer}, the entry's verified answer is {entry.answer}",
            **used,
        )
    return Reply(answer, entry.id, "recurrence", "the question repeats an entry's problem", **used)


def _adapted(
    library: Library,
    session: Session,
    entry: Entry,
    question: str,
    sandbox: Sandbox,
    effort: Effort,
    read: int,
) -> Reply:
    session.reset()
    with contextlib.ExitStack() as opened:
        chain = library.chain(entry)
        for block in chain:
            opened.enter_context(block)
        receipt = session.graft_chain(chain)
    limit = effort.program_limit(session, entry.program)
    samplings = [
        Sampling(limit, effort.temperature if attempt else 0.0, f"{entry.id}/{attempt}")
        for attempt in range(effort.adapt_attempts)
    ]
    known = Known(entry.statement, entry.program)
    try:
        attempts = adapt(session, [known], [question], [samplings])[0]
    except ContextFull as error:
        return _no_room(entry, error, receipt.restored_tokens, read, exact=receipt.exact)
    last = attempts[-1]
    used: dict[str, Any] = {
        "decoded_tokens": sum(len(one.said.continuation.tokens) for one in attempts),
        "prompt_tokens": read + sum(one.said.read_tokens for one in attempts),
        "cached_tokens": receipt.restored_tokens,
        "exact": receipt.exact,
    }
    if last.gate != "passed":
        reason = f"no adapted program passed the gate in {len(attempts)} attempts: {last.gate}"
        return Reply(None, entry.id, "abstained", reason, **used)
    program = prompts.read_program(last.said.continuation.text)
    ran = sandbox.run(program)
    if ran.ending != "printed":
        reason = f"the adapted program ended with: {ran.ending}"
        return Reply(None, entry.id, "abstained", reason, program, **used)
    return Reply(
        ran.answer, entry.id, "adapted", "an entry's program with other numbers", program, **used
    )
