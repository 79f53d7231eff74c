"""Answers from a frozen model: read back from a block, adapted from one, or the model's own.

A session holds what the model shall see; these functions ask and read. Whether an answer is right
is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvaudit.flywheel import gate, prompts
from kvaudit.flywheel.gate import Gate
from kvgraft.branches import Ask, Continuation, continue_text
from kvgraft.session import Session


@dataclass(frozen=True)
class Sampling:
    """How many tokens are generated, and how they are drawn.

    Attributes:
        limit: most tokens.
        temperature: 0 for the likeliest token.
        seed: name from which the draws derive.
    """

    limit: int
    temperature: float = 0.0
    seed: str = ""


@dataclass(frozen=True)
class Said:
    """One generation with its question.

    Attributes:
        question: the text behind what the session holds.
        read_tokens: tokens of the question.
        continuation: what came.
    """

    question: str
    read_tokens: int
    continuation: Continuation


@dataclass(frozen=True)
class Known:
    """What an adaptation starts from: the problem that the session's block solves."""

    statement: str
    program: str


def ask_all(
    session: Session,
    questions: Sequence[str],
    samplings: Sequence[Sampling],
    stops: tuple[str, ...],
    *,
    begin: bool = False,
) -> list[Said]:
    """Ask several questions of what a session holds, side by side.

    Args:
        session: opened with branches.
        questions: texts.
        samplings: one for each.
        stops: texts that end a generation.
        begin: put the model's begin token in front; for a session that holds nothing.
    """
    model = session.model
    read = [model.tokenize(question, begin=begin) for question in questions]
    asks = [
        Ask(tuple(ids), one.limit, stops, one.temperature, one.seed)
        for ids, one in zip(read, samplings, strict=True)
    ]
    return [
        Said(question, len(ids), found)
        for question, ids, found in zip(questions, read, continue_text(session, asks), strict=True)
    ]


def recall(session: Session, known: Known, limit: int) -> Said:
    """Read the answer of a block's own problem back from it."""
    question = prompts.recall_text(known.statement, known.program)
    return ask_all(session, [question], [Sampling(limit)], ("\n",))[0]


@dataclass(frozen=True)
class Adapted:
    """One attempt to adapt a program: its number, what came, and the gate's judgement."""

    attempt: int
    said: Said
    gate: Gate


def adapt(
    session: Session,
    known: Sequence[Known],
    statements: Sequence[str],
    samplings: Sequence[Sequence[Sampling]],
) -> list[list[Adapted]]:
    """Adapt programs to new statements, side by side, until the gate lets each pass.

    Args:
        session: holds the blocks.
        known: for each statement what the block that it is adapted from solves.
        statements: the new ones.
        samplings: for each of them one for every attempt that may be made.

    Returns:
        For each statement its attempts; only the last may have passed.
    """
    made: list[list[Adapted]] = [[] for _ in statements]
    for attempt in range(max(map(len, samplings), default=0)):
        open_ = [
            number
            for number, attempts in enumerate(made)
            if attempt < len(samplings[number]) and not (attempts and attempts[-1].gate == "passed")
        ]
        said = ask_all(
            session,
            [prompts.adapt_text(statements[number]) for number in open_],
            [samplings[number][attempt] for number in open_],
            (prompts.STOP,),
        )
        for number, one in zip(open_, said, strict=True):
            program = prompts.read_program(one.continuation.text)
            base = known[number]
            judged = gate.judge(program, statements[number], base.program, base.statement)
            made[number].append(Adapted(attempt, one, judged))
    return made
