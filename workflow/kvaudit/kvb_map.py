"""A block file mapped into memory: opened and checked, then verified chunk by chunk in threads.

The mapping itself is handed on, by address, so that a state travels from the page cache into the
engine without a copy. A file that another process cuts short while it is mapped would end this
process with a bus error, and one that is written to would change after it was verified. Blocks are
immutable by construction: a store renames a finished file into place, leaves it read-only (0444),
never writes to it again, and replaces or removes only its name, which a mapping outlives.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests, kvb
from kvaudit.errors import (
    BlockChunkCorrupt,
    BlockCorrupt,
    BlockNotFound,
    BlockOversize,
    BlockRefused,
    BlockTruncated,
)


class MappedBlock:
    """A block file, mapped read-only. A context manager; use after `close` raises.

    Attributes:
        header: the checked header.
        path: where the file lies.
        verified: whether every chunk had its digest when `verify` looked.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, layout: kvb.Layout) -> None:
        self.path = path
        self.header = layout.header
        self.verified = False
        self._layout = layout
        self._mapping: mmap.mmap | None = mapping
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(mapping, np.uint8)

    def _array(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            raise BlockRefused("the block is closed", where=self.path, hint="open it again")
        return self._bytes

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Ids of the span, int32 [n], a view of the mapping."""
        part = self._array()[self._layout.tokens_offset : self._layout.state_offset]
        return part.view("<i4")

    @property
    def state(self) -> memoryview:
        """The sequence state, a view of the mapping; release it before `close`."""
        return self._array()[self._layout.state_offset :].data

    @property
    def state_address(self) -> int:
        """Address of the first byte of the state, for a C library; valid until `close`."""
        return int(self._array().ctypes.data) + self._layout.state_offset

    def verify(self, threads: int | None = None, *, thorough: bool = False) -> None:
        """Hash every chunk and compare with the header.

        Args:
            threads: side by side; None for one a core.
            thorough: check the SHA-256 too, not only the BLAKE3.

        Raises:
            BlockChunkCorrupt: names the first chunk that differs, and its byte range.
        """
        self.verified = False
        with self.state as state:  # let go at once: an error that is kept must not keep the mapping
            self._verify(state, threads, thorough)
        self.verified = True

    def _verify(self, state: memoryview, threads: int | None, thorough: bool) -> None:
        listed = self.header.state
        checks = [("BLAKE3", listed.blake3, digests.blake3_bytes)]
        if thorough:
            checks.append(("SHA-256", listed.chunks, digests.sha256_bytes))
        for name, expected, digest in checks:
            found = kvb.chunk_digests(state, threads, digest)
            for index, (want, have) in enumerate(zip(expected, found, strict=True)):
                if want != have:
                    first = index * kvb.CHUNK_BYTES
                    last = min(first + kvb.CHUNK_BYTES, len(state)) - 1
                    raise BlockChunkCorrupt(
                        f"chunk {index} of the state is damaged (bytes {first} … {last})",
                        chunk=index,
                        where=str(self.path),
                        expected=f"{name} {want}",
                        found=have,
                    )

    def close(self) -> None:
        """Unmap the file; harmless when repeated."""
        self._bytes = None
        if self._mapping is not None:
            # A view that is still held keeps the mapping alive; it ends with the last of them.
            with contextlib.suppress(BufferError):
                self._mapping.close()
            self._mapping = None

    def __enter__(self) -> MappedBlock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_block(path: str | Path, *, expected_id: str | None = None) -> MappedBlock:
    """Map a block file and check everything but the chunks of its state.

    Args:
        path: a regular file; links are not followed.
        expected_id: refuse a block of another id.

    Raises:
        BlockNotFound: there is no such file.
        BlockRefused: not a regular file, or not readable.
        BlockWrongMagic, BlockTruncated, BlockTrailingBytes, BlockOversize, BlockCorrupt: the
            container, its header or its tokens are not what the format wants.
    """
    path = Path(path)
    try:
        # Without O_NONBLOCK the opening of a pipe would wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise BlockNotFound("there is no such block file", where=path) from error
    except (OSError, ValueError) as error:  # ValueError: a name that no system can hold
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise BlockRefused("a link is not followed", where=path) from error
        found = error.strerror if isinstance(error, OSError) else error
        raise BlockRefused("the block file cannot be opened", where=path, found=found) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BlockRefused("not a regular file", where=path)
        if status.st_size == 0:
            raise BlockTruncated("the file is empty", where=path)
        if status.st_size > kvb.MAX_FILE_BYTES:
            raise BlockOversize(
                "the file is too large for a block",
                where=path,
                expected=f"at most {kvb.MAX_FILE_BYTES} bytes",
                found=status.st_size,
            )
        mapping = mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # no address space, or cut short since fstat
        raise BlockRefused("the block file cannot be mapped", where=path, found=error) from error
    finally:
        os.close(fd)
    try:
        layout = _checked_layout(mapping, path, expected_id)
        if hasattr(mmap, "MADV_WILLNEED"):  # read ahead: every byte is about to be hashed
            with contextlib.suppress(OSError):  # advice, and not every file system takes it
                mapping.madvise(mmap.MADV_WILLNEED)
    except BaseException:
        mapping.close()
        raise
    return MappedBlock(path, mapping, layout)


def _checked_layout(mapping: mmap.mmap, path: Path, expected_id: str | None) -> kvb.Layout:
    with memoryview(mapping) as view:
        layout = kvb.parse_prefix(view, len(view), where=str(path))
        found = digests.sha256_bytes(view[layout.tokens_offset : layout.state_offset])
    header = layout.header
    if found != header.tokens.sha256:
        raise BlockCorrupt(
            "the tokens do not have their recorded SHA-256",
            where=path,
            expected=header.tokens.sha256,
            found=found,
        )
    if expected_id is not None and header.id != expected_id:
        raise BlockCorrupt(
            "the file holds another block than its name says",
            where=path,
            expected=expected_id,
            found=header.id,
        )
    return layout
