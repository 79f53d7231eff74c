"""A library on disk: verified deposits with the blocks a model answers from, in one folder.

Layout: `library.json` (model, profile, settings, router), `entries/<id>.json`, and `blocks/`, which
is a block store. A block is stored before the entry that names it, and each in one step: whatever
moment a writer dies at, a deposit is there whole, or at most its block is, which `gc` removes.
Writers take turns by a lock on the folder; readers need none. How a question is routed and answered
is not known here; archives are `kvgraft.library_archive`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvaudit import atomic, locks
from kvaudit.errors import EvidenceIncomplete, UnusableInput
from kvaudit.safefs import SafeRoot
from kvgraft import library_care, library_folder
from kvgraft.errors import ModelMismatch, ProfileMismatch
from kvgraft.library_care import Checked
from kvgraft.library_deposit import Prepared, prepare
from kvgraft.library_entry import (
    Admission,
    Demonstrated,
    Demonstration,
    Entry,
    Facts,
    Proposal,
    Router,
    Source,
    Verification,
    membership_of,
)
from kvgraft.library_folder import CREATED, MANIFEST, MAX_DOCUMENT_BYTES, Status, Unreadable
from kvgraft.profile import ProfileSettings
from kvgraft.store import BlockStore
from kvgraft.store_common import writing

if TYPE_CHECKING:
    from kvaudit.kvb_map import MappedBlock
    from kvaudit.sandbox import Sandbox
    from kvgraft.library_archive import Exported
    from kvgraft.library_import import Report
    from kvgraft.model import FrozenModel, ModelPin
    from kvgraft.profile import ExecutionProfile
    from kvgraft.session import Capture, Session

__all__ = [
    "MANIFEST",
    "MAX_DOCUMENT_BYTES",
    "Admission",
    "Checked",
    "Demonstrated",
    "Demonstration",
    "Entry",
    "Facts",
    "Library",
    "Prepared",
    "Proposal",
    "Router",
    "Source",
    "Unreadable",
    "Verification",
    "prepare",
]


class Library:
    """A library that was opened; `create` or `open` one.

    Entries are read once and kept as long as their files do not change; safe for several threads
    and processes.

    Attributes:
        root: the folder.
        facts: what `library.json` said when it was opened, or this object last wrote.
        blocks: the store of its blocks.
    """

    def __init__(self, root: Path, facts: Facts) -> None:
        self.root = root
        self.facts = facts
        self.blocks = BlockStore(root / library_folder.BLOCKS)
        self._known: dict[str, tuple[Status, Entry]] = {}

    # -- opening ------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        root: str | Path,
        model: ModelPin,
        profile: ExecutionProfile,
        router: Router | None = None,
    ) -> Library:
        """Make an empty library for the blocks of one model under one profile.

        Args:
            root: a folder that is absent or empty.
            model: the model's pin.
            profile: of a session with the settings that every later session is to have.
            router: how questions are routed; None for one that is not calibrated yet.

        Raises:
            UnusableInput: the folder holds a library, or anything else, already.
            StoreFull, StoreReadOnly, StoreDamaged: it cannot be written.
        """
        return cls.create_from(root, Facts.of(model, profile, router or Router()))

    @classmethod
    def create_from(cls, root: str | Path, facts: Facts) -> Library:
        """As `create`, from what another library says of itself."""
        library = cls(Path(root), Facts.from_json(facts.to_json(), where=MANIFEST))
        cls.check_free(root)
        with writing(root):
            library.root.mkdir(parents=True, exist_ok=True)
        with library.locked():
            cls.check_free(root)
            with writing(root):
                for name in CREATED:
                    (library.root / name).mkdir(exist_ok=True)
                atomic.write_json(library.root / MANIFEST, library.facts.to_json())
        return library

    @classmethod
    def create_or_open(cls, root: str | Path, facts: Facts) -> tuple[Library, bool]:
        """As `create_from`; but if somebody else was quicker, open theirs.

        Returns:
            The library, and whether it was made here. If it was not, its facts may be others.
        """
        try:
            return cls.create_from(root, facts), True
        except UnusableInput:
            if not cls.is_at(root):
                raise
            return cls.open(root), False

    @staticmethod
    def check_free(root: str | Path) -> None:
        """Refuse a folder in which no library can be made.

        Raises:
            UnusableInput: it holds a library, or anything else, already.
        """
        try:
            held = sorted(os.listdir(root))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnusableInput(
                "a library is made in a folder", where=root, found=error.strerror
            ) from error
        # What a creator leaves who died, and nothing else, may be there.
        odd = [one for one in held if one not in CREATED and not one.startswith(f".{MANIFEST}")]
        if odd:
            raise UnusableInput(
                "a library is made in an empty folder",
                where=root,
                found="a library" if MANIFEST in odd else odd[0],
                hint="name another folder",
            )

    @classmethod
    def open(cls, root: str | Path) -> Library:
        """Open a library; its entries are not read yet.

        Raises:
            UnusableInput: there is no such folder or no library in it, or its `library.json` does
                not conform.
        """
        try:
            with SafeRoot(root) as folder:
                value = library_folder.read(folder, MANIFEST, f"{root}/{MANIFEST}")
        except EvidenceIncomplete as error:
            raise UnusableInput(
                "the folder holds no library", where=root, hint="kvgraft deposit makes one"
            ) from error
        return cls(Path(root), Facts.from_json(value, where=f"{root}/{MANIFEST}"))

    @staticmethod
    def is_at(root: str | Path) -> bool:
        """Whether a folder has a `library.json`; it is not looked into."""
        return (Path(root) / MANIFEST).exists()

    def open_session(self, model: FrozenModel, n_branches: int = 0) -> Session:
        """A session in which the library's blocks can be grafted exactly. Close it.

        Args:
            model: the library's.
            n_branches: as in `Session`; no part of the profile.

        Raises:
            ModelMismatch: another model.
            ProfileMismatch: on this machine, or with this engine, the profile is another one, or
                the settings ask for more than the model was trained for.
            TypedError: as `Session`.
        """
        from kvgraft.session import Session

        self._check_model(model.pin.sha256, model.name)
        settings = self.facts.profile_settings()
        check_settings(settings, model, where=self.root)
        session = Session(model, settings, n_branches)
        try:
            self.check_session(session)
        except BaseException:
            session.close()
            raise
        return session

    def check_session(self, session: Session) -> None:
        """Refuse a session whose blocks are not those of this library.

        Raises:
            ModelMismatch, ProfileMismatch: of another model or profile.
        """
        self._check_model(session.model.pin.sha256, session.model.name)
        self._check_profile(session.profile.digest)

    def _check_profile(self, digest: str) -> None:
        if digest != self.facts.profile:
            raise ProfileMismatch(
                "the library's blocks were made under another execution profile",
                where=self.root,
                expected=self.facts.profile,
                found=digest,
                hint="export the library and import it here: its blocks are then computed again",
            )

    def _check_model(self, sha256: str, name: str) -> None:
        if sha256 != self.facts.model_sha256:
            raise ModelMismatch(
                "the library is of another model",
                where=self.root,
                expected=f"{self.facts.model} {self.facts.model_sha256}",
                found=f"{name} {sha256}",
            )

    # -- reading ------------------------------------------------------------------------------

    def survey(self) -> tuple[tuple[Entry, ...], tuple[Unreadable, ...]]:
        """All entries in the order of their deposit, and those that cannot be read.

        Raises:
            LibraryDamaged: the folder of entries is a link or cannot be listed.
        """
        known: dict[str, tuple[Status, Entry]] = {}
        unreadable: list[Unreadable] = []
        with SafeRoot(self.root) as folder:
            for entry_id, status in library_folder.listed(self.root):
                have = self._known.get(entry_id)
                if have is None or have[0] != status:
                    found = library_folder.load(folder, self.root, entry_id)
                    if isinstance(found, Unreadable):
                        unreadable.append(found)
                    if not isinstance(found, Entry):
                        continue
                    have = (status, found)
                known[entry_id] = have
        self._known = known
        entries = sorted(
            (entry for _, entry in known.values()), key=lambda entry: (entry.order, entry.id)
        )
        return tuple(entries), tuple(sorted(unreadable, key=lambda one: one.id))

    def entries(self) -> tuple[Entry, ...]:
        """All entries in the order of their deposit; `survey` goes on where one is damaged.

        Raises:
            UnusableInput, LibraryDamaged: an entry is not what its name says; names it.
        """
        entries, unreadable = self.survey()
        if unreadable:
            raise unreadable[0].error
        return entries

    def membership(self) -> str:
        """Digest of the ids of the entries that can be read, whatever their order."""
        return membership_of(entry.id for entry in self.survey()[0])

    def entry(self, prefix: str) -> Entry:
        """The one entry whose id begins with `prefix`, at least 4 digits of it.

        Raises:
            EntryNotFound: none, or several.
            UnusableInput, LibraryDamaged: it is not what its name says.
        """
        entries, unreadable = self.survey()
        known: dict[str, Entry | Unreadable] = {one.id: one for one in entries} | {
            one.id: one for one in unreadable
        }
        found = known[library_care.find(known, prefix, self.root)]
        if isinstance(found, Unreadable):
            raise found.error
        return found

    def block(self, entry: Entry, *, verify: bool = True) -> MappedBlock:
        """The mapped block of an entry; as `BlockStore.get`."""
        return self.blocks.get(entry.block_id, verify=verify)

    def chain(self, entry: Entry, *, verify: bool = True) -> list[MappedBlock]:
        """The mapped block of an entry and, if it has a demonstration, its child behind it.

        What `Session.graft_chain` restores; close each. Errors as `BlockStore.get`, which then
        leave nothing mapped.
        """
        with contextlib.ExitStack() as opened:
            made = [
                opened.enter_context(self.blocks.get(block_id, verify=verify))
                for block_id in entry.block_ids
            ]
            opened.pop_all()
        return made

    def __len__(self) -> int:
        return sum(1 for _ in library_folder.listed(self.root))

    # -- writing ------------------------------------------------------------------------------

    def deposit(self, session: Session, proposal: Proposal, sandbox: Sandbox) -> Entry:
        """Run a proposal's program and, if it prints the answer, keep it with its block.

        The same proposal a second time changes nothing. The session is emptied before and after.

        Args:
            session: of the library's model and profile.
            proposal: what is to be kept.
            sandbox: where the program runs.

        Raises:
            DepositRefused: the program does not print the answer; nothing was kept.
            ModelMismatch, ProfileMismatch: the session is not of this library.
            UnusableInput: a text is empty or too long.
            TypedError: as `Session.prefill` and `BlockStore.put`.
        """
        self.check_session(session)
        return self.keep(prepare(session, proposal, sandbox))

    def keep(self, prepared: Prepared) -> Entry:
        """Store what `prepare` made in a session of this library's model and profile.

        Raises:
            ModelMismatch, ProfileMismatch: it was another session.
            TypedError: as `BlockStore.put`.
        """
        for made in prepared.captures:
            self._check_model(made.header.model.sha256, made.header.model.name)
            self._check_profile(made.header.profile)
        return self.place(prepared.entry, lambda: self.put(prepared.captures))

    def put(self, captures: Iterable[Capture]) -> None:
        """Store blocks; for `place`, which alone keeps them."""
        for made in captures:
            self.blocks.put(made.header, made.tokens, made.state.data)

    def place(self, entry: Entry, put: Callable[[], object]) -> Entry:
        """Store an entry that was checked, behind all others; one that is there already stays.

        Args:
            entry: the entry; its `order` is not looked at.
            put: stores its blocks; called while the library is locked. If it fails, those that
                no entry names are removed.
        """
        with self.locked():
            try:
                put()
            except BaseException:
                library_care.drop(self, [entry])
                raise
            held = self.entries()
            for one in held:
                if one.id == entry.id:
                    return one
            entry = replace(entry, order=held[-1].order + 1 if held else 1)
            self._write(entry)
        return entry

    def admit(self, prefix: str, admission: Admission) -> Entry:
        """Note what the block of an entry did for fresh instances; its id stays.

        Raises:
            EntryNotFound, UnusableInput, LibraryDamaged: as `entry`.
        """
        with self.locked():
            entry = replace(self.entry(prefix), admission=admission)
            self._write(entry)
        return entry

    def route_by(self, router: Router) -> None:
        """Note how questions are routed.

        Args:
            router: with a threshold and without `entries`, it is taken to be calibrated on the
                entries that are here now.

        Raises:
            UnusableInput: a field does not conform to the schema.
        """
        with self.locked(), writing(self.root):
            if router.threshold is not None and router.entries is None:
                router = replace(router, entries=self.membership())
            facts = replace(self.facts, router=router)
            Facts.from_json(facts.to_json(), where=MANIFEST)
            atomic.write_json(self.root / MANIFEST, facts.to_json())
        self.facts = facts

    def remove(self, *prefixes: str) -> tuple[str, ...]:
        """Remove entries and their blocks; as `kvgraft.library_care.remove`."""
        return library_care.remove(self, prefixes)

    def fsck(self) -> Checked:
        """Read every entry, verify every block; as `kvgraft.library_care.fsck`."""
        return library_care.fsck(self)

    def gc(self) -> tuple[str, ...]:
        """Remove what writers left that died; as `kvgraft.library_care.gc`."""
        return library_care.gc(self)

    # -- archives -----------------------------------------------------------------------------

    def export(self, path: str | Path) -> Exported:
        """Write the library to a new archive; as `kvgraft.library_archive.export`."""
        from kvgraft import library_archive

        return library_archive.export(self, path)

    @staticmethod
    def import_archive(
        path: str | Path, into: str | Path, sandbox: Sandbox, session: Session | None = None
    ) -> Report:
        """Take an archive into a library; as `kvgraft.library_import.import_archive`."""
        from kvgraft import library_import

        return library_import.import_archive(path, into, sandbox, session)

    # -- inside -------------------------------------------------------------------------------

    def path(self, entry_id: str) -> Path:
        """Where an entry lies or would lie."""
        return self.root / library_folder.entry_name(entry_id)

    def _write(self, entry: Entry) -> None:
        value = entry.to_json()
        Entry.from_json(value, where=f"entry {entry.id[:12]}")
        with writing(self.root):
            atomic.write_json(self.path(entry.id), value)

    def locked(
        self, *, shared: bool = False, seconds: float = locks.LOCK_SECONDS
    ) -> contextlib.AbstractContextManager[None]:
        """Keep other writers out, or, if `shared`, only writers and not other readers.

        Raises:
            LockTimeout: another process holds the lock for longer than `seconds`.
            LibraryDamaged: a folder of the library is a link.
        """
        return library_folder.locked(self.root, shared=shared, seconds=seconds)


def check_settings(settings: ProfileSettings, model: FrozenModel, *, where: object) -> None:
    """Refuse settings, of a stranger's library above all, that ask for memory without a use.

    Args:
        settings: what a session is to be opened with.
        model: for which.
        where: who says so.

    Raises:
        ProfileMismatch: more tokens of context, or in a batch, than the model was trained for.
    """
    usual, trained = ProfileSettings(), model.facts.n_ctx_train
    for name, most in (
        ("n_ctx", trained),
        ("n_batch", max(trained, usual.n_batch)),
        ("n_outputs_max", max(trained, usual.n_outputs_max)),
    ):
        if (found := getattr(settings, name)) > most:
            raise ProfileMismatch(
                f"the settings ask for more {name} than the model was trained for",
                where=where,
                expected=f"at most {most}",
                found=found,
            )
