"""The folder of a library: its names, its lock, and reading what lies in it with suspicion.

What an entry means is `kvgraft.library_entry`; who writes when is `kvgraft.library`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit import canonical, locks
from kvaudit.errors import EvidenceIncomplete, TypedError, UnusableInput
from kvaudit.safefs import SafeRoot
from kvgraft.errors import LibraryDamaged
from kvgraft.library_entry import Entry
from kvgraft.store_common import is_id, writing

MANIFEST = "library.json"
ENTRIES = "entries"
BLOCKS = "blocks"
CREATED = (BLOCKS, ENTRIES)
MAX_DOCUMENT_BYTES = 1 << 20

Status = tuple[int, ...]
"""What changes when a file does."""


def entry_name(entry_id: str) -> str:
    """The file of an entry, relative to a library or in an archive of one."""
    return f"{ENTRIES}/{entry_id}.json"


def block_name(block_id: str) -> str:
    """The file of a block in an archive of a library; where a store keeps it is the store's."""
    return f"{BLOCKS}/{block_id}.kvb"


@dataclass(frozen=True)
class Unreadable:
    """An entry's file that is not what its name says: the id in its name, and why."""

    id: str
    error: TypedError

    @property
    def name(self) -> str:
        """The file, relative to the library."""
        return entry_name(self.id)

    def to_json(self) -> dict[str, str]:
        """As printed by --json, in the place of an entry."""
        return {"id": self.id, "unreadable": str(self.error)}


def read(folder: SafeRoot, name: str, where: str) -> Any:
    """The value of a canonical document.

    Raises:
        EvidenceIncomplete: it is absent.
        UnusableInput: a link, too long, or not canonical.
    """
    data = folder.read(name, max_bytes=MAX_DOCUMENT_BYTES)
    return canonical.loads_document(data, where=where, max_bytes=MAX_DOCUMENT_BYTES)


def listed(root: Path) -> Iterator[tuple[str, Status]]:
    """Ids of entries by file name, each with what changes when the file does.

    Raises:
        LibraryDamaged: the folder of entries is a link or cannot be listed.
    """
    check_links(root)
    try:
        with os.scandir(root / ENTRIES) as found:
            for one in found:
                name, _, suffix = one.name.partition(".")
                if suffix == "json" and is_id(name):
                    with contextlib.suppress(FileNotFoundError):
                        status = one.stat(follow_symlinks=False)
                        yield name, (status.st_ino, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise LibraryDamaged(
            "the folder of entries cannot be listed", where=root, found=error.strerror
        ) from error


def load(folder: SafeRoot, root: Path, entry_id: str) -> Entry | Unreadable | None:
    """The entry of a file; None if it was removed meanwhile."""
    name = entry_name(entry_id)
    where = f"{root}/{name}"
    try:
        entry = Entry.from_json(read(folder, name, where), where=where)
        if entry.id != entry_id:
            raise LibraryDamaged(
                "the file holds another entry than its name says",
                where=where,
                expected=entry_id,
                found=entry.id,
            )
    except EvidenceIncomplete:
        return None
    except (UnusableInput, LibraryDamaged) as error:
        return Unreadable(entry_id, error)
    return entry


def check_links(root: Path, *, deep: bool = False) -> None:
    """Refuse a library of which a folder is a link: what is written would land elsewhere.

    Args:
        root: the library; what is absent is no link.
        deep: look at the folders of its block store too.

    Raises:
        LibraryDamaged: names the link.
    """
    folders = [root / name for name in CREATED]
    if deep:
        inner = root / BLOCKS / "blocks"
        folders += [inner, root / BLOCKS / "tmp"]
        if not any(folder.is_symlink() for folder in folders):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                folders += inner.iterdir()
    for folder in folders:
        if folder.is_symlink():
            raise LibraryDamaged(
                "a folder of the library is a link",
                where=folder,
                expected="a folder",
                hint="put the folder itself there",
            )


@contextlib.contextmanager
def locked(
    root: Path, *, shared: bool = False, seconds: float = locks.LOCK_SECONDS
) -> Iterator[None]:
    """Keep other writers out, or, if `shared`, only writers and not other readers.

    Raises:
        LockTimeout: another process holds the lock for longer than `seconds`.
        LibraryDamaged: a folder of the library is a link.
    """
    with writing(root):
        descriptor = locks.hold_folder(root, shared=shared, seconds=seconds)
    try:
        check_links(root, deep=True)
        yield
    finally:
        os.close(descriptor)  # and with it the lock
