"""A content-addressed store of blocks in a folder. `kvgraft.store_url` puts one behind a URL.

A block is written under a temporary name in the store's own file system, synchronised, renamed
into place and left read-only; it is never written again. Whatever moment a writer dies at, a block
is there whole or not at all. What a block contains is not known here.

Layout: `blocks/<first two hex>/<id>.kvb`, and `tmp/` for what is being written.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvaudit import atomic, kvb, locks
from kvaudit.errors import BlockNotFound, BlockRefused
from kvaudit.kvb_map import MappedBlock, open_block
from kvgraft import store_care
from kvgraft.store_care import FsckReport, GcReport
from kvgraft.store_common import PART, find_id, id_of_file, is_id, writing

__all__ = ["BlockStore", "FsckReport", "GcReport"]


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

    def chain(self, block_id: str) -> list[str]:
        """Ids of a block and of all it continues, from the root on: what `graft_chain` restores.

        Raises:
            BlockNotFound: a parent is not in the store.
            BlockRefused: a header is damaged, or the chain is longer than positions can be.
        """
        ids: list[str] = []
        wanted: str | None = block_id
        end: int | None = None
        while wanted is not None:
            with self.get(wanted, verify=False) as block:
                header = block.header
            # Starts must fall towards the root, so that no chain of hostile blocks is endless.
            if end is not None and header.start + header.tokens.n != end:
                raise BlockRefused(
                    "the chain of parents is broken",
                    where=f"block {header.id[:12]}",
                    expected=f"an end at position {end}",
                    found=header.start + header.tokens.n,
                )
            ids.append(wanted)
            wanted, end = header.parent, header.start
        return ids[::-1]

    def __iter__(self) -> Iterator[str]:
        for path in sorted((self.root / "blocks").glob("*/*.kvb")):
            block_id = id_of_file(path.name)
            if block_id and path.parent.name == block_id[:2]:
                yield block_id

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def find(self, prefix: str) -> str:
        """The one id that begins with `prefix`, at least 4 digits of it.

        Raises:
            BlockNotFound: none, or several.
        """
        return find_id(self, prefix, where=self.root)

    # -- writing ------------------------------------------------------------------------------

    def put(
        self,
        header: kvb.BlockHeader,
        tokens: NDArray[np.int32],
        state: bytes | bytearray | memoryview,
    ) -> str:
        """Store a block; a block that is already there, and sound, is left as it is.

        What was written is verified before it gets its name, so a state that is not the header's,
        or that changed since it was hashed, takes nobody's place.

        Args:
            header: from `kvb.build` or `Session.capture`.
            tokens: int32 [n].
            state: bytes of the state.

        Returns:
            The block's id.

        Raises:
            BlockCorrupt: header, tokens and state do not belong together; nothing is left behind.
            StoreFull: no room; nothing is left behind.
            StoreReadOnly: the folder cannot be written to.
            StoreDamaged: a file lies where the store needs a folder, or the reverse.
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
        self._place(block_id, fill)

    def _place(self, block_id: str, fill: Callable[[BinaryIO], object]) -> None:
        """Write, check both digests of every chunk, and only then give the block its name."""
        target = self.path(block_id)
        with writing(self.root):
            target.parent.mkdir(parents=True, exist_ok=True)
            fd, name = self._temporary()
            try:
                with os.fdopen(fd, "wb", buffering=0):
                    with open(fd, "wb", closefd=False) as file:
                        fill(file)
                    with open_block(name, expected_id=block_id) as block:
                        block.verify(thorough=True)
                    os.fsync(fd)
                    os.fchmod(fd, 0o444)
                    os.replace(name, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            for folder in (target.parent, target.parent.parent, self.root):
                atomic.sync_folder(folder)

    def _temporary(self) -> tuple[int, str]:
        """A new file in `tmp`, locked for the life of its writer: `gc` takes what nobody holds."""
        folder = self.root / "tmp"
        folder.mkdir(exist_ok=True)
        while True:
            fd, name = tempfile.mkstemp(dir=folder, suffix=PART)
            try:
                with contextlib.suppress(OSError):  # no locks here: age alone protects
                    locks.hold(fd, name)
            except BaseException:
                os.close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
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
        return store_care.fsck(self)

    def gc(self, roots: Iterable[str] | None = None, *, min_age_s: float = 60.0) -> GcReport:
        """Remove temporaries of dead writers and, given roots, the blocks no root needs.

        Args:
            roots: ids to keep, with their parents; None keeps every block.
            min_age_s: younger temporaries stay even if nobody holds them.

        Raises:
            BlockNotFound, BlockRefused, StoreReadOnly: as `kvgraft.store_care.gc`.
        """
        return store_care.gc(self, roots, min_age_s)
