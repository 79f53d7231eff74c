"""Care of a library: `fsck` names all that is wrong, `remove` takes entries out, `gc` sweeps.

An entry goes before its blocks, and each in one step, so that whoever dies in between leaves blocks
that no entry names; `gc` takes those. Called as methods of `kvgraft.library.Library`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvaudit import atomic
from kvgraft import library_folder
from kvgraft.errors import EntryNotFound
from kvgraft.library_entry import Entry
from kvgraft.library_folder import CREATED, ENTRIES, MANIFEST, entry_name, listed
from kvgraft.store import FsckReport
from kvgraft.store_common import writing

if TYPE_CHECKING:
    from kvgraft.library import Library


@dataclass(frozen=True)
class Checked:
    """State of a library.

    Attributes:
        entries: number of sound ones.
        unreadable: (file, reason) of each entry that is not.
        missing: (id of an entry, id of a block of it that the library does not hold).
        strays: files that have no business in a library.
        unnamed: blocks that no entry names; no damage, `gc` removes them.
        temporaries: files of writers that live or died; no damage.
        blocks: state of the block store.
    """

    entries: int
    unreadable: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, str], ...]
    strays: tuple[str, ...]
    unnamed: tuple[str, ...]
    temporaries: int
    blocks: FsckReport

    @property
    def clean(self) -> bool:
        """Nothing damaged, nothing foreign, no entry without its blocks."""
        return self.blocks.clean and not (self.unreadable or self.missing or self.strays)

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return {**asdict(self), "clean": self.clean}


def fsck(library: Library) -> Checked:
    """Read every entry, verify every block, and name everything that does not belong."""
    library_folder.check_links(library.root, deep=True)
    entries, unreadable = library.survey()
    held = set(library.blocks)
    missing = [
        (one.id, block_id) for one in entries for block_id in one.block_ids if block_id not in held
    ]
    strays, temporaries = [], 0
    known = {MANIFEST, *CREATED, *(entry_name(one) for one, _ in listed(library.root))}
    for prefix in ("", f"{ENTRIES}/"):
        for name in sorted(os.listdir(library.root / prefix)):
            if name.startswith(".") and name.endswith(".tmp"):
                temporaries += 1
            elif prefix + name not in known:
                strays.append(os.fsencode(prefix + name).decode("utf-8", "backslashreplace"))
    named = {block_id for one in entries for block_id in one.block_ids}
    return Checked(
        len(entries),
        tuple((one.name, str(one.error)) for one in unreadable),
        tuple(missing),
        tuple(strays),
        () if unreadable else tuple(sorted(held - named)),
        temporaries,
        library.blocks.fsck(),
    )


def remove(library: Library, prefixes: Sequence[str]) -> tuple[str, ...]:
    """Remove entries, readable or not, and those of their blocks that no entry names any more.

    Blocks of an entry that cannot be read are not known, and so stay until `gc`; so do all blocks
    while another entry cannot be read, for it may name them.

    Raises:
        EntryNotFound: a prefix of no entry or of several; nothing was removed.
        StoreReadOnly: the folder cannot be written to.
    """
    with library.locked():
        entries, unreadable = library.survey()
        known = {one.id: one for one in entries}
        ids = [*known, *(one.id for one in unreadable)]
        doomed = list(dict.fromkeys(find(ids, prefix, library.root) for prefix in prefixes))
        with writing(library.root):
            for entry_id in doomed:
                library.path(entry_id).unlink(missing_ok=True)
            atomic.sync_folder(library.root / ENTRIES)  # gone for good before what it names goes
            drop(library, [known[one] for one in doomed if one in known])
    return tuple(doomed)


def find(ids: Iterable[str], prefix: str, where: object) -> str:
    """The one id that begins with `prefix`, at least 4 digits of it.

    Raises:
        EntryNotFound: none, or several.
    """
    found = [one for one in ids if len(prefix) >= 4 and one.startswith(prefix)]
    if len(found) != 1:
        raise EntryNotFound(
            "no entry or several entries have an id that begins so",
            where=where,
            expected="at least 4 digits of one id",
            found=f"{prefix}: {len(found)} entries",
        )
    return found[0]


def drop(library: Library, gone: Iterable[Entry]) -> None:
    """Remove those blocks of entries that no entry of the library names; it is locked."""
    entries, unreadable = library.survey()
    if unreadable:
        return
    named = {block_id for one in entries for block_id in one.block_ids}
    for entry in gone:
        for block_id in reversed(entry.block_ids):  # a child is never left without its parent
            if block_id not in named:
                library.blocks.path(block_id).unlink(missing_ok=True)


def gc(library: Library) -> tuple[str, ...]:
    """Remove what writers left that died: temporaries, and blocks that no entry names.

    Returns:
        Ids of the removed blocks.

    Raises:
        UnusableInput, LibraryDamaged: an entry cannot be read, so its blocks are not known; nothing
            was removed.
    """
    with library.locked(), writing(library.root):
        entries = library.entries()
        for folder in (library.root, library.root / ENTRIES):
            for path in folder.glob(".*.tmp"):  # all dead: the lock is ours
                path.unlink(missing_ok=True)
        held = (itertools.takewhile(library.blocks.has, one.block_ids) for one in entries)
        roots = list(itertools.chain.from_iterable(held))
        return library.blocks.gc(roots, min_age_s=0).blocks
