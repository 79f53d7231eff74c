"""From a proposal to what a library keeps of it: the check of its programs, and its blocks.

Folders are not known here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvaudit import digests
from kvaudit.errors import TypedError
from kvgraft import templates
from kvgraft.errors import DepositRefused, TemplateMismatch
from kvgraft.library_entry import Demonstrated, Demonstration, Entry, Proposal, Source, Verification

if TYPE_CHECKING:
    from kvaudit.sandbox import Ran, Sandbox
    from kvgraft.session import Capture, Session


@dataclass(frozen=True)
class Prepared:
    """A proposal that was checked, with its blocks, for some library to keep.

    Attributes:
        entry: what the library will say of it; its `order` is 0.
        captures: the block, in memory, and behind it its child if there is a demonstration.
    """

    entry: Entry
    captures: tuple[Capture, ...]


def prepare(session: Session, proposal: Proposal, sandbox: Sandbox) -> Prepared:
    """Run a proposal's programs and, if they print the answers, compute its blocks.

    The session is emptied before and after.

    Raises:
        DepositRefused: a program does not print its answer, or the template does not fit.
        UnusableInput: a text is empty or too long.
        TypedError: as `Session.prefill`.
    """
    found = verified(proposal, sandbox.run_all(programs(proposal)))
    made = captured(session, proposal)
    return Prepared(entry_of(proposal, made, found), made)


def entry_of(
    proposal: Proposal, captures: Sequence[Capture], verifications: Sequence[Verification]
) -> Entry:
    """The entry of a proposal that was checked.

    Args:
        proposal: what was proposed.
        captures: as `captured` made them.
        verifications: as `verified` found them.

    Raises:
        UnusableInput: a field does not conform to the schema.
    """
    kept = zip(texts(proposal), (made.header.id for made in captures), verifications, strict=True)
    text, block_id, verification = next(kept)
    shown, demonstrated = proposal.demonstration, None
    if shown:
        demonstrated = Demonstrated(shown.statement, shown.program, shown.answer, *next(kept))
    return Entry.made(
        proposal,
        text=text,
        block_id=block_id,
        verification=verification,
        demonstration=demonstrated,
    )


def programs(proposal: Proposal) -> list[str]:
    """What has to run: the program, that of a demonstration, and that of a template.

    Raises:
        DepositRefused: the template does not fit the statement that it is tried on.
    """
    out = [part.program for part in _parts(proposal)]
    if proposal.template:
        try:
            out.append(templates.bind(proposal.template, _parts(proposal)[-1].statement))
        except TemplateMismatch as error:
            raise DepositRefused(f"the template does not fit: {error}") from error
    return out


def _parts(proposal: Proposal) -> list[Proposal | Demonstration]:
    return [proposal, *([proposal.demonstration] if proposal.demonstration else [])]


def verified(proposal: Proposal, runs: Sequence[Ran]) -> tuple[Verification, ...]:
    """What the runs of `programs` say of the deposit and its demonstration, if all is right.

    A template's own run is checked too; it leaves nothing to be kept.

    Raises:
        DepositRefused: one did not print its answer.
    """
    parts = _parts(proposal)
    found = [
        _verified(part.program, part.answer, ran, what)
        for part, ran, what in zip(
            parts, runs, ("program", "demonstration's program"), strict=False
        )
    ]
    if proposal.template:
        _verified(proposal.template.program, parts[-1].answer, runs[-1], "template's program")
    return tuple(found)


def _verified(program: str, answer: int, ran: Ran, what: str) -> Verification:
    if ran.ending != "printed" or ran.answer != answer:
        found = f"the answer {ran.answer}" if ran.ending == "printed" else ran.ending
        raise DepositRefused(
            f"the {what} does not print the answer",
            where=f"program {digests.sha256_bytes(program.encode('utf-8'))[:12]}",
            expected=answer,
            found=found,
        )
    return Verification(ran.ending, ran.answer, digests.sha256_bytes(ran.output))


def texts(proposal: Proposal) -> tuple[str, ...]:
    """What the model reads: for the block, and behind it for the child of a demonstration.

    The usual texts, unless the proposal has one of its own.
    """
    from kvaudit.flywheel import prompts

    text, shown = proposal.text, proposal.demonstration
    if text is None:
        text = prompts.block_text(proposal.statement, proposal.program, proposal.answer)
    if shown is None:
        return (text,)
    if isinstance(shown, Demonstrated):
        return text, shown.text
    return text, prompts.demonstration_text(shown.statement, shown.program, shown.answer)


def captured(session: Session, proposal: Proposal) -> tuple[Capture, ...]:
    """The block of a deposit's text and, if there is a demonstration, the child of that.

    Raises:
        TypedError: as `captured_texts`.
    """
    statements = [part.statement for part in _parts(proposal)]
    written = zip(statements, texts(proposal), strict=True)
    return captured_texts(session, proposal.source, [*written])


def captured_texts(
    session: Session, source: Source, written: Sequence[tuple[str, str]]
) -> tuple[Capture, ...]:
    """The blocks of texts: what a session computes for them from position 0 on.

    The session is emptied before and after. In the header of each block stand the source and the
    digest of its statement; a child is read, without a begin token, behind what its parent holds.

    Args:
        session: of the model.
        source: of all of them.
        written: statement and text of each block, every one but the first a child of the last.

    Raises:
        TypedError: as `Session.prefill` and `Session.capture`.
    """
    session.reset()
    made: list[Capture] = []
    try:
        for statement, text in written:
            session.prefill(session.model.tokenize(text, begin=not made))
            provenance = {
                "source": "deposit",
                "deposit": {
                    "statement_sha256": digests.sha256_bytes(statement.encode("utf-8")),
                    "source": source.to_json(),
                },
            }
            made.append(session.capture(provenance, parent=made[-1].header if made else None))
    finally:
        with contextlib.suppress(TypedError):  # a closed session says so itself
            session.reset()
    return tuple(made)
