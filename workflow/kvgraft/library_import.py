"""Taking an archive into a library: each entry stands for itself, and nothing is taken on trust.

Its id, its blocks' digests and its programs are checked again before anything of an entry is kept;
given a session, its blocks are computed again too. A bad entry is refused by name and the others go
on. The form of archives is `kvgraft.library_archive`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvaudit import digests
from kvaudit.errors import BlockCorrupt, BlockNotFound, BlockRefused, UnusableInput
from kvgraft.errors import (
    ArchiveRefused,
    ContextFull,
    DepositRefused,
    EmptySpan,
    LibraryDamaged,
    ModelMismatch,
    ProfileMismatch,
)
from kvgraft.library import MANIFEST, Library
from kvgraft.library_archive import Archive
from kvgraft.library_deposit import captured, entry_of, programs, verified
from kvgraft.library_entry import Entry, Facts, Router, membership_of
from kvgraft.library_folder import BLOCKS, ENTRIES, block_name, entry_name

if TYPE_CHECKING:
    from kvaudit.kvb import BlockHeader
    from kvaudit.sandbox import Ran, Sandbox
    from kvgraft.session import Capture, Session

_AT_ONCE = 64
"""Entries between two looks at their programs' outputs, so that not all outputs are held."""
_BAD = (UnusableInput, LibraryDamaged, BlockRefused, DepositRefused, ContextFull, EmptySpan)
"""What speaks against one entry; any other error ends the import."""


@dataclass(frozen=True)
class Report:
    """What came of an archive.

    Attributes:
        taken: ids of the entries that are new in the library, as they are named there.
        present: ids of those that it held already.
        recomputed: ids, among these, whose blocks were computed again, under another profile.
        compared: entries whose blocks were computed again and are equal, byte for byte.
        refused: (member of the archive, reason) of everything that was not taken in.
    """

    taken: tuple[str, ...]
    present: tuple[str, ...]
    recomputed: tuple[str, ...]
    compared: int
    refused: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        refused = [{"member": name, "reason": reason} for name, reason in self.refused]
        return {**asdict(self), "refused": refused}


def import_archive(
    path: str | Path, into: str | Path, sandbox: Sandbox, session: Session | None = None
) -> Report:
    """Take the entries of an archive into a library, each only if all of it is sound.

    Every entry must have its id, every block its digests, every program must print again, in the
    sandbox, what it printed when it was deposited, and a template bound to the statement of the
    demonstration must give a program that prints its answer. With a session each block is computed
    again from its text: one of the session's profile must be equal byte for byte, and one of
    another profile is replaced by the computed one. Entries keep their order behind those of the
    library; the routing of an archive is taken over by a new library that took everything.

    Args:
        path: the archive.
        into: a library; made if absent, but not if every entry is refused.
        sandbox: where programs run.
        session: of the archive's model, and of the library's model and profile where there is a
            library; None takes blocks as they are, for which their digests alone then speak.

    Raises:
        ArchiveRefused: the archive is not in its form; nothing was changed.
        ModelMismatch, ProfileMismatch: archive, library and session do not fit together; nothing
            was changed.
        UnusableInput: `into` is a folder that holds something else, or a library that is damaged.
        StoreFull, StoreReadOnly: the library cannot be written to; what was taken before stays.
    """
    with Archive(path) as archive:
        facts = facts_of(archive)
        library = Library.open(into) if Library.is_at(into) else None
        if library is None:
            Library.check_free(into)
        _check_together(facts, library, session)
        return _Intake(archive, facts, Path(into), library, session).run(sandbox)


def facts_of(archive: Archive) -> Facts:
    """What the archive's library says of itself.

    Raises:
        ArchiveRefused: it does not conform.
    """
    try:
        return Facts.from_json(archive.document(MANIFEST), where=MANIFEST)
    except UnusableInput as error:
        raise ArchiveRefused(f"the archive's {MANIFEST} is refused: {error}") from error


def _check_together(facts: Facts, library: Library | None, session: Session | None) -> None:
    if library is not None and session is not None:
        library.check_session(session)
    if session is not None:
        name, sha256 = session.model.name, session.model.pin.sha256
    elif library is not None:
        name, sha256 = library.facts.model, library.facts.model_sha256
    else:
        return
    if facts.model_sha256 != sha256:
        raise ModelMismatch(
            "the archive is of another model",
            expected=f"{name} {sha256}",
            found=f"{facts.model} {facts.model_sha256}",
        )
    if session is None and library is not None and facts.profile != library.facts.profile:
        raise ProfileMismatch(
            "the archive's blocks were made under another execution profile",
            expected=library.facts.profile,
            found=facts.profile,
            hint="import with the model, so that its blocks are computed again",
        )


class _Intake:
    """One import: what it reads, where it writes, and what came of it so far."""

    def __init__(
        self,
        archive: Archive,
        facts: Facts,
        into: Path,
        library: Library | None,
        session: Session | None,
    ) -> None:
        self._archive, self._facts, self._into = archive, facts, into
        self._library, self._session = library, session
        self._held = {entry.id for entry in library.entries()} if library else set()
        self._is_new = library is None
        self._taken: list[str] = []
        self._present: list[str] = []
        self._recomputed: list[str] = []
        self._compared = 0
        self._refused: list[tuple[str, str]] = []

    def run(self, sandbox: Sandbox) -> Report:
        entries = self._entries()
        for at in range(0, len(entries), _AT_ONCE):
            asked: list[tuple[Entry, list[str]]] = []
            for entry in entries[at : at + _AT_ONCE]:
                with self._refusing(entry):
                    asked.append((entry, programs(entry.proposal)))
            runs = iter(sandbox.run_all([one for _, wanted in asked for one in wanted]))
            for entry, wanted in asked:
                own = list(itertools.islice(runs, len(wanted)))
                with self._refusing(entry):
                    self._take(entry, own)
        named = {block_name(block_id) for entry in entries for block_id in entry.block_ids}
        for name in self._archive.members:
            if name.startswith(f"{BLOCKS}/") and name not in named:
                self._refused.append((name, "no sound entry names the block"))
        if self._is_new and not self._refused:
            router = self._facts.router
            if router.entries == membership_of(entry.id for entry in entries):
                router = replace(router, entries=None)  # all are here, some under other ids
            self._opened().route_by(router)
        return Report(
            tuple(self._taken),
            tuple(self._present),
            tuple(self._recomputed),
            self._compared,
            tuple(self._refused),
        )

    @contextlib.contextmanager
    def _refusing(self, entry: Entry) -> Iterator[None]:
        try:
            yield
        except _BAD as error:
            self._refused.append((entry_name(entry.id), str(error)))

    def _entries(self) -> list[Entry]:
        """The sound ones, in their order; the others are refused."""
        out = []
        for name in self._archive.members:
            if not name.startswith(f"{ENTRIES}/"):
                continue
            try:
                entry = Entry.from_json(self._archive.document(name), where=name)
                if name != entry_name(entry.id):
                    raise LibraryDamaged(
                        "the member holds another entry than its name says", found=entry.id
                    )
                out.append(entry)
            except _BAD as error:
                self._refused.append((name, str(error)))
        return sorted(out, key=lambda entry: (entry.order, entry.id))

    def _take(self, entry: Entry, runs: Sequence[Ran]) -> None:
        shown = entry.demonstration
        noted = (entry.verification, *([shown.verification] if shown else []))
        found = verified(entry.proposal, runs)
        if found != noted:
            raise LibraryDamaged(
                "the program no longer prints all that it printed when it was deposited",
                expected=", ".join(one.output_sha256 for one in noted),
                found=", ".join(one.output_sha256 for one in found),
            )
        headers = self._checked_headers(entry)
        made = self._computed(entry, headers)
        if made and made[0].header.profile != headers[0].profile:
            moved = entry_of(entry.proposal, made, found)
            kept = self._keep(moved, lambda library: library.put(made))
            self._recomputed.append(kept)
        else:
            kept = self._keep(entry, lambda library: self._receive(entry, library))
            self._compared += bool(made)
        (self._present if kept in self._held else self._taken).append(kept)

    def _receive(self, entry: Entry, library: Library) -> None:
        for block_id in entry.block_ids:
            name = block_name(block_id)
            library.blocks.receive(block_id, functools.partial(self._archive.copy, name))

    def _checked_headers(self, entry: Entry) -> list[BlockHeader]:
        """The headers of an entry's blocks, if this library could have captured them."""
        made = [self._checked_header(entry.block_id, entry.statement, None)]
        if entry.demonstration:
            child = entry.demonstration
            made.append(self._checked_header(child.block_id, child.statement, made[0]))
        return made

    def _checked_header(
        self, block_id: str, statement: str, parent: BlockHeader | None
    ) -> BlockHeader:
        name = block_name(block_id)
        if name not in self._archive.members:
            raise BlockNotFound("the archive does not hold the entry's block", where=name)
        header = self._archive.block_header(name)
        deposit = header.provenance.get("deposit")
        noted = deposit.get("statement_sha256") if isinstance(deposit, dict) else None
        for what, expected, found in (
            ("id", block_id, header.id),
            ("model", self._facts.model_sha256, header.model.sha256),
            ("profile", self._facts.profile, header.profile),
            ("start", parent.start + parent.tokens.n if parent else 0, header.start),
            ("parent", parent.id if parent else None, header.parent),
            ("exactness", True, header.provenance.get("exact") is True),
            ("statement", digests.sha256_bytes(statement.encode("utf-8")), noted),
        ):
            if found != expected:
                raise BlockCorrupt(
                    f"the block's {what} is not that of the entry or its library",
                    where=name,
                    expected=expected,
                    found=found,
                )
        return header

    def _computed(self, entry: Entry, headers: Sequence[BlockHeader]) -> tuple[Capture, ...]:
        """The blocks computed again, if there is a session; refuses one with other content."""
        if self._session is None:
            return ()
        made = captured(self._session, entry.proposal)
        for ours, theirs in zip((one.header for one in made), headers, strict=True):
            same_profile = ours.profile == theirs.profile
            if ours.tokens != theirs.tokens or (same_profile and ours.state != theirs.state):
                raise BlockCorrupt(
                    "the block is not what the model computes for the entry's text",
                    where=block_name(theirs.id),
                    expected=f"{ours.tokens.n} tokens, {ours.state.bytes} bytes of state",
                    found="other tokens" if ours.tokens != theirs.tokens else "another state",
                )
        return made

    def _keep(self, entry: Entry, put: Callable[[Library], object]) -> str:
        library = self._opened()
        return library.place(entry, lambda: put(library)).id

    def _opened(self) -> Library:
        """The library; made when the first entry is about to be kept."""
        if self._library is None:
            facts = replace(self._facts, router=Router(self._facts.router.statistic))
            if self._session is not None:
                model, profile = self._session.model.pin, self._session.profile
                facts = Facts.of(model, profile, facts.router)
            library, made = Library.create_or_open(self._into, facts)
            if not made:  # another import, or a deposit, was quicker
                _check_together(self._facts, library, self._session)
                self._held = {entry.id for entry in library.entries()}
                self._is_new = False
            self._library = library
        return self._library
