"""A content-addressed store of blocks in a folder. `kvgraft.store_url` puts one behind a URL.

A block is written under a temporary name in the store's own file system, synchronised, renamed
into place and left read-only; it is never written again. Whatever moment a writer dies at, a block
is there whole or not at all. What a block contains is not known here.

Layout: `blocks/<first two hex>/<id>.kvb`, and `tmp/` for what is being written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvaudit import kvb
from kvaudit.errors import BlockNotFound, BlockRefused, TypedError
from kvaudit.kvb_map import MappedBlock, open_block
from kvgraft.errors import StoreDamaged, StoreFull, StoreReadOnly

_ID = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"([0-9a-f]{64})\.kvb")
_PART = ".kvb.part"


@dataclass(frozen=True)
class FsckReport:
    """State of a store.

    Attributes:
        ok: number of sound blocks.
        damaged: (id or name, reason) of each block that is not.
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


class BlockStore:
    """Blocks by id in a local folder; `open_store` also takes URLs.

    Args:
        root: the folder; made on the first `put`.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    # -- reading ------------------------------------------------------------------------------

    def path(self, block_id: str) -> Path:
        """Where a block lies or would lie.

        Raises:
            BlockNotFound: not an id: 64 lower-case hexadecimal characters.
        """
        if not is_id(block_id):
            raise BlockNotFound("not a block id", expected="64 hexadecimal digits", found=block_id)
        return self.root / "blocks" / block_id[:2] / f"{block_id}.kvb"

    def has(self, block_id: str) -> bool:
        """Whether the block is there; its bytes are not looked at."""
        try:
            return stat.S_ISREG(self.path(block_id).lstat().st_mode)
        except OSError:
            return False

    def get(self, block_id: str, *, verify: bool = True) -> MappedBlock:
        """Map a block and verify all of its chunks in parallel threads.

        Args:
            block_id: the id.
            verify: False leaves the chunks to `Session.graft`, which verifies them itself.

        Raises:
            BlockNotFound, BlockRefused: absent, or damaged in any way; nothing stays mapped.
        """
        block = open_block(self.path(block_id), expected_id=block_id)
        if verify:
            try:
                block.verify()
            except BaseException:
                block.close()
                raise
        return block

    def __iter__(self) -> Iterator[str]:
        for path in sorted((self.root / "blocks").glob("*/*.kvb")):
            if (match := _FILE.fullmatch(path.name)) and path.parent.name == match[1][:2]:
                yield match[1]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def find(self, prefix: str) -> str:
        """The one id that begins with `prefix`, at least 4 digits of it.

        Raises:
            BlockNotFound: none, or several.
        """
        return find_id(self, prefix, where=self.root)

    # -- writing ------------------------------------------------------------------------------

    def put(self, header: kvb.BlockHeader, tokens: NDArray[np.int32], state: memoryview) -> str:
        """Store a block; a block that is already there, and sound, is left as it is.

        Args:
            header: from `kvb.build` or `Session.capture`.
            tokens: int32 [n].
            state: bytes of the state.

        Returns:
            The block's id.

        Raises:
            StoreFull: no room; nothing is left behind.
            StoreReadOnly: the folder cannot be written to.
        """
        block_id = header.id
        if not self._is_sound(block_id):
            self._place(block_id, lambda file: kvb.write_block(file, header, tokens, state))
        return block_id

    def receive(self, block_id: str, fill: Callable[[BinaryIO], object]) -> None:
        """Take in a whole block file from elsewhere; it is verified before it gets its name.

        Args:
            block_id: the id that the content must have.
            fill: writes the file's bytes.

        Raises:
            BlockRefused: not that block, or damaged; nothing is left behind.
            StoreFull, StoreReadOnly: as `put`.
        """

        def verify(path: Path) -> None:
            with open_block(path, expected_id=block_id) as block:
                block.verify()

        self._place(block_id, fill, verify)

    def _place(
        self,
        block_id: str,
        fill: Callable[[BinaryIO], object],
        check: Callable[[Path], None] | None = None,
    ) -> None:
        target = self.path(block_id)
        with writing(self.root):
            target.parent.mkdir(parents=True, exist_ok=True)
            fd, name = self._temporary()
            try:
                with os.fdopen(fd, "wb", buffering=0):
                    with open(fd, "wb", closefd=False) as file:
                        fill(file)
                    if check is not None:
                        check(Path(name))
                    os.fsync(fd)
                    os.fchmod(fd, 0o444)
                    os.replace(name, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            for folder in (target.parent, target.parent.parent, self.root):
                _sync_folder(folder)

    def _temporary(self) -> tuple[int, str]:
        """A new file in `tmp`, locked for the life of its writer: `gc` takes what nobody holds."""
        folder = self.root / "tmp"
        folder.mkdir(exist_ok=True)
        while True:
            fd, name = tempfile.mkstemp(dir=folder, suffix=_PART)
            with contextlib.suppress(OSError):  # no locks on this file system: age alone protects
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd, name
            os.close(fd)  # a `gc` without a minimal age was quicker than the lock

    def _is_sound(self, block_id: str) -> bool:
        try:
            self.get(block_id).close()
        except BlockRefused:
            return False
        return True

    # -- care ---------------------------------------------------------------------------------

    def fsck(self) -> FsckReport:
        """Open and verify every block, and name everything that does not belong."""
        ids: set[str] = set()
        parents: dict[str, str] = {}
        damaged: list[tuple[str, str]] = []
        strays: list[str] = []
        temporaries = 0
        for path in sorted(self.root.rglob("*")) if self.root.exists() else ():
            name = os.fsencode(path.relative_to(self.root)).decode("utf-8", "backslashreplace")
            match = _FILE.fullmatch(path.name)
            if path.is_dir() and not path.is_symlink() and not match:
                continue
            if path.parent == self.root / "tmp" and path.name.endswith(_PART):
                temporaries += 1
            elif not match or path.parent != self.path(match[1]).parent:
                strays.append(name)
            else:
                try:
                    with self.get(match[1]) as block:
                        ids.add(match[1])
                        if block.header.parent is not None:
                            parents[match[1]] = block.header.parent
                except TypedError as error:
                    damaged.append((match[1], str(error)))
        orphans = sorted(child for child, parent in parents.items() if parent not in ids)
        return FsckReport(len(ids), tuple(damaged), tuple(strays), tuple(orphans), temporaries)

    def gc(self, roots: Iterable[str] | None = None, *, min_age_s: float = 60.0) -> GcReport:
        """Remove temporaries of dead writers and, given roots, the blocks no root needs.

        A writer that lives holds a lock on its temporary, which therefore stays at any age. Given
        roots, nobody else should be putting: a block that is put between the look and the removal
        may be taken for one that no root needs. Blocks that are mapped stay readable.

        Args:
            roots: ids to keep, with their parents; None keeps every block.
            min_age_s: younger temporaries stay even if nobody holds them.

        Raises:
            BlockNotFound: a root, or a parent of one, is not in the store; nothing was removed.
            BlockRefused: a root is damaged, so its parents are not known; nothing was removed.
            StoreReadOnly: the store cannot be written to.
        """
        doomed: list[str] = []
        if roots is not None:
            keep = self._reachable(roots)
            doomed = [block_id for block_id in self if block_id not in keep]
        freed = temporaries = 0
        for path in (self.root / "tmp").glob(f"*{_PART}"):
            size = _remove_if_dead(path, min_age_s)
            if size is not None:
                temporaries += 1
                freed += size
        with writing(self.root):
            for block_id in doomed:
                path = self.path(block_id)
                with contextlib.suppress(FileNotFoundError):  # another collection was quicker
                    size = path.lstat().st_size
                    path.unlink()
                    freed += size
        return GcReport(tuple(doomed), temporaries, freed)

    def _reachable(self, roots: Iterable[str]) -> set[str]:
        keep: set[str] = set()
        pending = list(roots)
        while pending:
            block_id = pending.pop()
            if block_id in keep:
                continue
            with self.get(block_id, verify=False) as block:
                keep.add(block_id)
                if block.header.parent is not None:
                    pending.append(block.header.parent)
        return keep


def _remove_if_dead(path: Path, min_age_s: float) -> int | None:
    """Remove a temporary that no writer holds; its size, or None if it stays."""
    try:
        # Reading is enough for the lock; a writer may have died after it took its own write bits.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(fd)
        if time.time() - status.st_mtime < min_age_s:
            return None
        os.unlink(path)
        return status.st_size
    except OSError:
        return None
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_id(text: str) -> bool:
    """Whether `text` is a block id: 64 lower-case hexadecimal digits."""
    return bool(_ID.fullmatch(text))


def id_of_file(name: str) -> str | None:
    """The id in a block file's name, or None for any other name."""
    match = _FILE.fullmatch(name)
    return match[1] if match else None


def find_id(ids: Iterable[str], prefix: str, *, where: object) -> str:
    """The one id that begins with `prefix`, at least 4 digits of it.

    Raises:
        BlockNotFound: none, or several.
    """
    if is_id(prefix):
        return prefix
    matches = [one for one in ids if one.startswith(prefix)] if len(prefix) >= 4 else []
    if len(matches) != 1:
        raise BlockNotFound(
            "no block or several blocks have an id that begins so",
            where=where,
            expected="at least 4 digits of one id",
            found=f"{prefix}: {len(matches)} blocks",
        )
    return matches[0]


@contextlib.contextmanager
def writing(where: object) -> Iterator[None]:
    """Turn the errors of a full, closed or foreign folder into typed ones.

    Raises:
        StoreFull, StoreReadOnly, StoreDamaged: by the system's error number; others pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFull(
                "the store has no room for the block; nothing was left half-written",
                where=where,
                found=error.strerror,
                hint="make room, or run kvgraft store gc",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise StoreReadOnly(
                "the store cannot be written to", where=where, found=error.strerror
            ) from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            raise StoreDamaged(
                "the store's folder is not laid out as a store",
                where=error.filename2 or error.filename or where,
                found=error.strerror,
            ) from error
        raise
