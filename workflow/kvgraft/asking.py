"""Asking a library: route a question, restore one block, answer from it, or say why not.

The same statement again is read back from its block. A question that the router takes for the same
problem with other numbers gets the block's program adapted by the frozen model; what passes the
gate is run, and what it prints is the answer. Anything else abstains: a library does not guess.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from kvaudit.flywheel import prompts, routing
from kvaudit.sandbox import Sandbox
from kvgraft.errors import GraftRefused
from kvgraft.library import Library
from kvgraft.library_entry import Entry
from kvgraft.router import BlockRouter, Candidate
from kvgraft.session import Session
from kvgraft.solving import Known, Sampling, adapt, recall

SHORTLIST = 3
SCORED_TOKENS = 64
RECALL_TOKENS = 12
PROGRAM_TOKENS = 160
ATTEMPTS = 4
TEMPERATURE = 0.7
BRANCHES = 4

Route = Literal["recurrence", "adapted", "abstained"]


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

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def ask(library: Library, session: Session, question: str, sandbox: Sandbox) -> Reply:
    """Ask a library.

    Args:
        library: whose router is calibrated, or nothing but repeated statements is answered.
        session: of the library's model and profile, opened with branches; it is emptied.
        question: a statement.
        sandbox: where an adapted program runs.

    Raises:
        ModelMismatch, ProfileMismatch: the session is not of this library.
        GraftRefused: the session was opened without branches.
        BlockCorrupt, BlockNotFound: the library's block is damaged.
    """
    library.check_session(session)
    if not session.n_branches:
        raise GraftRefused("a session without branches cannot be asked", hint="open it with some")
    entries = {entry.id: entry for entry in library.entries()}
    router = BlockRouter(
        session,
        [
            Candidate(entry.id, entry.statement, lambda entry=entry: library.block(entry))  # type: ignore[misc]
            for entry in entries.values()
        ],
        SHORTLIST,
        SCORED_TOKENS,
    )
    routed = router.route(question)
    if routed.exact is not None:
        return _recalled(library, session, entries[routed.exact])
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
    return _adapted(library, session, entries[best[0]], question, sandbox, read)


def _why(best: tuple[str, float] | None, threshold: float | None) -> str:
    if best is None:
        return "no entry shares a word with the question"
    if threshold is None:
        return "the library's router is not calibrated, and the question repeats no statement"
    return (
        f"the nearest entry does not explain the question: score {best[1]:.3g}, "
        f"more than {threshold:.3g} is needed"
    )


def _recalled(library: Library, session: Session, entry: Entry) -> Reply:
    session.reset()
    receipt = session.graft(library.block(entry))
    said = recall(session, Known(entry.statement, entry.program), RECALL_TOKENS)
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
    library: Library, session: Session, entry: Entry, question: str, sandbox: Sandbox, read: int
) -> Reply:
    session.reset()
    receipt = session.graft_chain(library.chain(entry))
    samplings = [
        Sampling(PROGRAM_TOKENS, TEMPERATURE if attempt else 0.0, f"{entry.id}/{attempt}")
        for attempt in range(ATTEMPTS)
    ]
    known = Known(entry.statement, entry.program)
    attempts = adapt(session, [known], [question], [samplings])[0]
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
