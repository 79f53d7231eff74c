"""The work behind `kvgraft library`, `deposit` and `ask`: each function returns what came of it.

What is printed, and which exit code follows, is decided in `kvgraft.cli`.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvaudit.errors import UnusableInput
from kvgraft import cli_common
from kvgraft.errors import ContextFull, ModelMismatch
from kvgraft.library import (
    Demonstration,
    Entry,
    Library,
    Proposal,
    Source,
    Unreadable,
    check_settings,
    prepare,
)
from kvgraft.library_archive import Archive, Exported
from kvgraft.library_care import Checked
from kvgraft.library_entry import Facts, Router
from kvgraft.library_import import Report, facts_of, import_archive
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import PRESETS, ProfileSettings, smallest_batch

if TYPE_CHECKING:
    from kvaudit.sandbox import Sandbox
    from kvgraft.asking import Reply
    from kvgraft.session import Session

DEFAULT_N_CTX = 2048


def listing(root: str) -> tuple[Entry | Unreadable, ...]:
    """Every entry of a library, in the order of deposits, and behind them what is not readable."""
    entries, unreadable = Library.open(root).survey()
    return (*entries, *unreadable)


def remove(root: str, prefixes: Sequence[str]) -> tuple[str, ...]:
    """Remove entries by id or unique prefix, all or none; returns their ids."""
    return Library.open(root).remove(*prefixes)


def fsck(root: str) -> Checked:
    """Look at every entry and block of a library."""
    return Library.open(root).fsck()


def gc(root: str) -> tuple[str, ...]:
    """Remove what dead writers left; returns the ids of the blocks."""
    return Library.open(root).gc()


@dataclass(frozen=True)
class Shown:
    """One entry, and whether the library still holds its block and the child of it, if any."""

    entry: Entry
    has_block: bool
    has_child: bool | None

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        held = {"has_block": self.has_block, "has_child": self.has_child}
        return {**self.entry.to_json(), **held}


def show(root: str, prefix: str) -> Shown:
    """One entry by id or unique prefix; its blocks are not read."""
    library = Library.open(root)
    entry = library.entry(prefix)
    held = [library.blocks.has(block_id) for block_id in entry.block_ids]
    return Shown(entry, held[0], held[1] if entry.demonstration else None)


def export(root: str, destination: str) -> Exported:
    """Write a library to a new archive."""
    return Library.open(root).export(destination)


def take_in(file: str, root: str, model: str | None, *, with_model: bool) -> Report:
    """Take an archive into a library.

    Args:
        file: the archive.
        root: the library; made if absent.
        model: name or path of its model; None looks among the embedded ones.
        with_model: compute every block again; otherwise its digests are all that is checked.

    Raises:
        TypedError: as `import_archive`, `FrozenModel.open` and `Session`.
    """
    sandbox = _sandbox()
    if not with_model:
        return import_archive(file, root, sandbox)
    with Archive(file) as archive:
        facts = facts_of(archive)
    with (
        FrozenModel.open(_pin(facts, model)) as opened,
        _session_for(opened, facts, root) as session,
    ):
        return import_archive(file, root, sandbox, session)


@contextlib.contextmanager
def _session_for(model: FrozenModel, facts: Facts, root: str) -> Iterator[Session]:
    """A session of the library that is there, or with the settings of an archive."""
    from kvgraft.session import Session

    if Library.is_at(root):
        with Library.open(root).open_session(model) as session:
            yield session
        return
    settings = facts.profile_settings()
    check_settings(settings, model, where="the archive")
    rows = smallest_batch(platform.machine())
    if settings.name == "split-invariant" and settings.min_rows < rows:
        settings = settings.with_(min_rows=rows)  # the archive is of a machine with other kernels
    with Session(model, settings) as session:
        yield session


@dataclass(frozen=True)
class Deposited:
    """A deposit that is in a library: its entry, the library's folder, and whether it was made."""

    entry: Entry
    library: str
    is_new_library: bool

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return {
            "library": self.library,
            "is_new_library": self.is_new_library,
            "entry": self.entry.to_json(),
        }


def deposit(
    root: str, proposal: Proposal, model: str | None, *, preset: str, n_ctx: int | None
) -> Deposited:
    """Run a proposal's programs and keep it with its blocks.

    Args:
        root: the library; made on the first deposit, for which the model must be named.
        proposal: what is to be kept.
        model: name or path of the model; None takes the library's, among the embedded ones.
        preset: name of the settings of a new library.
        n_ctx: tokens of context of a new library; None for 2048.

    Raises:
        UnusableInput: a new library without a model, or impossible settings.
        TypedError: as `Library.deposit`, `FrozenModel.open` and `Session`.
    """
    from kvgraft.session import Session

    sandbox = _sandbox()
    if Library.is_at(root):
        library = Library.open(root)
        with _session(library, model) as session:
            entry = library.deposit(session, proposal, sandbox)
        return Deposited(entry, root, is_new_library=False)
    if model is None:
        raise UnusableInput(
            "there is no library yet", where=root, hint="--model MODEL makes one for that model"
        )
    pin, settings = cli_common.model_pin(model), _settings(preset, n_ctx or DEFAULT_N_CTX)
    with contextlib.ExitStack() as held:
        opened = held.enter_context(FrozenModel.open(pin))
        check_settings(settings, opened, where="--n-ctx")
        session = held.enter_context(Session(opened, settings))
        try:
            prepared = prepare(session, proposal, sandbox)
        except ContextFull as error:
            error.hint = "choose a larger --n-ctx; the library keeps it"
            raise
        # Only now, so that a refused first deposit leaves nothing to be stuck with.
        facts = Facts.of(pin, session.profile, Router())
        library, made = Library.create_or_open(root, facts)
        entry = library.keep(prepared)
    return Deposited(entry, root, is_new_library=made)


def proposal(
    statement: str,
    program: str,
    answer: int,
    author: str,
    example: Demonstration | None = None,
) -> Proposal:
    """What a user proposes on the command line."""
    source = Source.supplied(author)
    return Proposal(statement, program, answer, source, demonstration=example)


def example(statement: str | None, program: str | None, answer: int | None) -> Demonstration | None:
    """The demonstration that a user gives, in all three parts or none.

    Args:
        statement: as given.
        program: name of a file.
        answer: as given.

    Raises:
        UnusableInput: some of the parts are missing.
        TypedError: as `cli_common.read_text`.
    """
    if statement is None and program is None and answer is None:
        return None
    if statement is None or program is None or answer is None:
        raise UnusableInput(
            "an example has three parts",
            expected="--example-statement, --example-program and --example-answer, or none of them",
        )
    return Demonstration(
        cli_common.read_text(statement, None, what="example's statement"),
        cli_common.read_text(None, program, what="example's program"),
        answer,
    )


def ask(root: str, question: str, model: str | None) -> Reply:
    """Answer a question from a library.

    Args:
        root: the library.
        question: a problem in words.
        model: name or path of the library's model; None looks among the embedded ones.

    Raises:
        TypedError: as `kvgraft.asking.ask`, `FrozenModel.open` and `Session`.
    """
    library = Library.open(root)
    sandbox = _sandbox()
    from kvgraft import asking

    with _session(library, model, asking.BRANCHES) as session:
        return asking.ask(library, session, question, sandbox)


def calibrate(root: str, text: str, alpha: float, model: str | None) -> Router:
    """Take a library's threshold from questions that none of its entries answers.

    Args:
        root: the library.
        text: one question a line; empty lines are skipped.
        alpha: accepted probability that such a question is routed.
        model: name or path of the library's model; None looks among the embedded ones.

    Raises:
        TypedError: as `kvgraft.asking.calibrate`, `FrozenModel.open` and `Session`.
    """
    library = Library.open(root)
    from kvgraft import asking

    questions = [line for line in text.splitlines() if line.strip()]
    with _session(library, model, asking.BRANCHES) as session:
        return asking.calibrate(library, session, questions, alpha)


@contextlib.contextmanager
def _session(library: Library, model: str | None, n_branches: int = 0) -> Iterator[Session]:
    with (
        FrozenModel.open(_pin(library.facts, model)) as opened,
        library.open_session(opened, n_branches) as session,
    ):
        yield session


def _sandbox() -> Sandbox:
    from kvaudit.sandbox import Sandbox

    return Sandbox()


def _settings(preset: str, n_ctx: int) -> ProfileSettings:
    try:
        return PRESETS[preset](n_ctx=n_ctx)
    except ValueError as error:
        raise UnusableInput(f"impossible settings: {error}") from error


def _pin(facts: Facts, model: str | None) -> ModelPin:
    """The pin of a library's model, as a user names it or among the embedded ones."""
    from kvgraft import pins

    wanted = f"{facts.model} {facts.model_sha256}"
    if model is None:
        for pin in pins.read().values():
            if pin.sha256 == facts.model_sha256:
                return pin
        raise ModelMismatch(
            "the library's model is none of the embedded ones",
            found=wanted,
            hint="name its file: --model PATH",
        )
    pin = cli_common.model_pin(model)
    if pin.sha256 != facts.model_sha256:
        raise ModelMismatch(
            "the library is of another model", expected=wanted, found=f"{pin.name} {pin.sha256}"
        )
    return pin
