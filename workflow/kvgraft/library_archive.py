"""A library as one file that another team can take in: writing it, and reading it with suspicion.

The archive is a plain tar with one byte form: `library.json`, then `entries/<id>.json`, then
`blocks/<id>.kvb`, each group sorted, every header without owner or time. A reader rebuilds each
header from name and length and compares all of its bytes, so that links, devices, other names,
extensions and compression have no form at all. What the members hold is checked by
`kvgraft.library_import`; sessions and programs that run are not known here.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from kvaudit import canonical, digests, kvb
from kvaudit.errors import UnusableInput
from kvgraft.errors import ArchiveRefused
from kvgraft.library import MANIFEST, MAX_DOCUMENT_BYTES, Library
from kvgraft.library_folder import block_name, entry_name

MAX_MEMBERS = 20_000
_SECTOR = tarfile.BLOCKSIZE
_END = bytes(2 * _SECTOR)
_ID = "([0-9a-f]{64})"
_NAME = re.compile(
    "|".join(re.escape(name("@")).replace("@", _ID) for name in (entry_name, block_name))
)
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Exported:
    """An archive that was written: where, how many entries and blocks, bytes, and its SHA-256."""

    path: str
    entries: int
    blocks: int
    bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return asdict(self)


# -- writing --------------------------------------------------------------------------------------


def export(library: Library, path: str | Path) -> Exported:
    """Write a library to a new archive, whole or not at all; equal libraries give equal bytes.

    Args:
        library: nobody writes to it meanwhile.
        path: a path that does not exist, in a folder that does.

    Raises:
        UnusableInput: the file exists already.
        BlockRefused, LibraryDamaged: an entry or its block is damaged; nothing is left behind.
        OSError: the folder is absent, full or not writable.
    """
    target = Path(path)
    with (
        library.locked(shared=True),
        tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.") as file,
    ):
        entries = [
            replace(entry, order=index) for index, entry in enumerate(library.entries(), start=1)
        ]
        block_ids = sorted({block_id for entry in entries for block_id in entry.block_ids})
        with open(file.fileno(), "wb", closefd=False) as out:
            _write(out, MANIFEST, _document(library.facts.to_json()))
            for entry in sorted(entries, key=lambda entry: entry.id):
                _write(out, entry_name(entry.id), _document(entry.to_json()))
            for block_id in block_ids:
                _write_block(out, library, block_id)
            out.write(_END)
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o644)
        try:
            os.link(file.name, target)  # unlike a rename, never replaces what is there
        except FileExistsError as error:
            raise UnusableInput(
                "the destination exists already", where=target, hint="remove it, or name another"
            ) from error
    size = target.stat().st_size
    return Exported(str(target), len(entries), len(block_ids), size, digests.sha256_file(target))


def _document(value: Any) -> bytes:
    return canonical.dumps(value) + b"\n"


def _header(name: str, size: int) -> bytes:
    """The one header of a member: a regular file of user 0, mode 0644, time 0."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _write_block(file: BinaryIO, library: Library, block_id: str) -> None:
    with library.blocks.get(block_id) as block:
        header = block.header
        size = len(kvb.container_prefix(header)) + 4 * header.tokens.n + header.state.bytes
        file.write(_header(block_name(block_id), size))
        kvb.write_block(file, header, block.tokens, block.state)
        file.write(bytes(-size % _SECTOR))


def _write(file: BinaryIO, name: str, data: bytes) -> None:
    file.write(_header(name, len(data)))
    file.write(data)
    file.write(bytes(-len(data) % _SECTOR))


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """Where a member's bytes lie."""

    name: str
    offset: int
    size: int


class Archive:
    """An archive whose form was checked from end to end; contents are not looked at.

    Raises:
        ArchiveRefused: not in the one form; names the first member or offset that is not.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        try:
            # Without O_NONBLOCK the opening of a pipe would wait for its writer.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            found = error.strerror if isinstance(error, OSError) else error
            raise ArchiveRefused("the archive cannot be opened", where=path, found=found) from error
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise ArchiveRefused("the archive is not a regular file", where=path)
            self.members = {one.name: one for one in self._index(status.st_size)}
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _index(self, end: int) -> Iterator[Member]:
        offset, last, count = 0, (-1, ""), 0
        while offset + len(_END) < end:
            header = self._bytes(offset, _SECTOR)
            member = self._member(header, offset)
            found = _NAME.fullmatch(member.name)
            group = 0 if member.name == MANIFEST else 1 if found and found[1] else 2
            if not found and group:
                raise self._refused("a member has no business in a library", offset, member.name)
            if (group, member.name) <= last or (not count and group):
                raise self._refused(
                    "a member stands twice, or not in the order of the form", offset, member.name
                )
            limit = MAX_DOCUMENT_BYTES if group < 2 else kvb.MAX_FILE_BYTES
            after = member.offset + member.size + -member.size % _SECTOR
            if member.size > limit or after + len(_END) > end:
                raise self._refused(
                    "a member is longer than it may be, or than the archive", offset, member.name
                )
            padding = self._bytes(member.offset + member.size, -member.size % _SECTOR)
            if any(padding):
                raise self._refused("something stands behind a member", offset, member.name)
            count += 1
            if count > MAX_MEMBERS:
                raise self._refused("the archive has too many members", offset, MAX_MEMBERS)
            offset, last = after, (group, member.name)
            yield member
        if not count or self._bytes(offset, len(_END) + 1) != _END:
            raise self._refused("the archive does not end as one", offset, f"{end} bytes")

    def _member(self, header: bytes, offset: int) -> Member:
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
            exact = info.size >= 0 and _header(info.name, info.size) == header
        except (tarfile.TarError, ValueError) as error:
            raise self._refused("not the header of a member", offset, error) from error
        if not exact:
            raise self._refused(
                "a member is not a plain file without owner and time", offset, info.name
            )
        return Member(info.name, offset + _SECTOR, info.size)

    def _refused(self, what: str, offset: int, found: object) -> ArchiveRefused:
        return ArchiveRefused(
            what,
            where=f"{self._path}, byte {offset}",
            found=found,
            hint="archives are written by kvgraft library export",
        )

    def _bytes(self, offset: int, size: int) -> bytes:
        pieces = []
        while size and (piece := os.pread(self._fd, size, offset)):
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def document(self, name: str) -> Any:
        """The JSON value of a member.

        Raises:
            UnusableInput: not a canonical document.
        """
        member = self.members[name]
        data = self._bytes(member.offset, member.size)
        return canonical.loads_document(data, where=name, max_bytes=MAX_DOCUMENT_BYTES)

    def block_header(self, name: str) -> kvb.BlockHeader:
        """The checked header of a block; its tokens and state are not looked at.

        Raises:
            BlockRefused: as `kvb.parse_prefix`.
        """
        member = self.members[name]
        length = int.from_bytes(self._bytes(member.offset, min(8, member.size)), "little")
        prefix = self._bytes(member.offset, min(member.size, 8 + min(length, kvb.MAX_HEADER_BYTES)))
        return kvb.parse_prefix(memoryview(prefix), member.size, where=name).header

    def copy(self, name: str, file: BinaryIO) -> None:
        """Write the bytes of a member to a file."""
        member = self.members[name]
        for at in range(0, member.size, _COPY_BYTES):
            file.write(self._bytes(member.offset + at, min(_COPY_BYTES, member.size - at)))
