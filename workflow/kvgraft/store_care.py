"""Care of a block store: `fsck` looks at everything in its folder, `gc` removes what nobody needs.

Called as methods of `kvgraft.store.BlockStore`. Neither ever changes a block.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvaudit import locks
from kvaudit.errors import TypedError
from kvgraft.store_common import PART, id_of_file, writing

if TYPE_CHECKING:
    from kvgraft.store import BlockStore


@dataclass(frozen=True)
class FsckReport:
    """State of a store.

    Attributes:
        ok: number of sound blocks.
        damaged: (id or name, reason) of each block that is not, and of each folder that cannot
            be listed.
        strays: files that are no blocks and no temporaries.
        orphans: ids whose parent is not in the store.
        temporaries: files of writers that live or died; no damage.
    """

    ok: int
    damaged: tuple[tuple[str, str], ...]
    strays: tuple[str, ...]
    orphans: tuple[str, ...]
    temporaries: int

    @property
    def clean(self) -> bool:
        """Nothing damaged, nothing foreign, no block without its parent."""
        return not (self.damaged or self.strays or self.orphans)


@dataclass(frozen=True)
class GcReport:
    """What a collection removed: blocks by id, number of dead temporaries, bytes freed."""

    blocks: tuple[str, ...]
    temporaries: int
    bytes_freed: int


def fsck(store: BlockStore) -> FsckReport:
    """Verify every block by both digests of each chunk, and name what does not belong."""
    ids: set[str] = set()
    parents: dict[str, str] = {}
    damaged: list[tuple[str, str]] = []
    strays: list[str] = []
    temporaries = 0
    unlisted: list[OSError] = []
    tree = [(Path(at), names) for at, *names in os.walk(store.root, onerror=unlisted.append)]
    for path in sorted(at / one for at, names in tree for one in itertools.chain(*names)):
        name = _printable_name(path, store.root)
        block_id = id_of_file(path.name)
        if path.is_dir() and not path.is_symlink() and not block_id:
            continue
        if path.parent == store.root / "tmp" and path.name.endswith(PART):
            temporaries += 1
        elif not block_id or path != store.path(block_id):
            strays.append(name)
        else:
            try:
                with store.get(block_id, verify=False) as block:
                    block.verify(thorough=True)
                    ids.add(block_id)
                    if block.header.parent is not None:
                        parents[block_id] = block.header.parent
            except TypedError as error:
                damaged.append((block_id, str(error)))
    for closed in unlisted:
        if not isinstance(closed, FileNotFoundError):  # no store yet
            name = _printable_name(Path(closed.filename), store.root)
            damaged.append((name, f"the folder cannot be listed; found {closed.strerror}"))
    orphans = sorted(child for child, parent in parents.items() if parent not in ids)
    return FsckReport(len(ids), tuple(damaged), tuple(strays), tuple(orphans), temporaries)


def _printable_name(path: Path, root: Path) -> str:
    return os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace")


def gc(store: BlockStore, roots: Iterable[str] | None, min_age_s: float) -> GcReport:
    """Remove temporaries of dead writers and, given roots, the blocks no root needs.

    A writer that lives holds a lock on its temporary, which therefore stays at any age. Given
    roots, nobody else should be putting: a block that is put between the look and the removal
    may be taken for one that no root needs. Blocks that are mapped stay readable.

    Args:
        store: the store.
        roots: ids to keep, with their parents; None keeps every block.
        min_age_s: younger temporaries stay even if nobody holds them.

    Raises:
        BlockNotFound: a root, or a parent of one, is not in the store; nothing was removed.
        BlockRefused: a root is damaged, so its parents are not known; nothing was removed.
        StoreReadOnly: the store cannot be written to.
    """
    doomed: list[str] = []
    if roots is not None:
        keep = _reachable(store, roots)
        doomed = [block_id for block_id in store if block_id not in keep]
    freed = temporaries = 0
    for path in (store.root / "tmp").glob(f"*{PART}"):
        size = _remove_if_dead(path, min_age_s)
        if size is not None:
            temporaries += 1
            freed += size
    with writing(store.root):
        for block_id in doomed:
            path = store.path(block_id)
            with contextlib.suppress(FileNotFoundError):  # another collection was quicker
                size = path.lstat().st_size
                path.unlink()
                freed += size
    return GcReport(tuple(doomed), temporaries, freed)


def _reachable(store: BlockStore, roots: Iterable[str]) -> set[str]:
    keep: set[str] = set()
    pending = list(roots)
    while pending:
        block_id = pending.pop()
        if block_id in keep:
            continue
        with store.get(block_id, verify=False) as block:
            keep.add(block_id)
            if block.header.parent is not None:
                pending.append(block.header.parent)
    return keep


def _remove_if_dead(path: Path, min_age_s: float) -> int | None:
    """Remove a temporary that no writer holds; its size, or None if it stays."""
    try:
        # Reading is enough for the lock, and a finished temporary is read-only already.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not locks.take(fd):
            return None
        status = os.fstat(fd)
        if time.time() - status.st_mtime < min_age_s:
            return None
        os.unlink(path)
        return status.st_size
    except OSError:
        return None
    finally:
        os.close(fd)
