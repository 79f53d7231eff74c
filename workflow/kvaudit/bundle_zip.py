"""Reads a zip file that a stranger has made: stored or deflated members, one behind the other.

A zip file says everything twice, before each member and in the directory at its end. Here both
must agree, the members must lie back to back from the first byte, in the order of the directory,
and the file must end with it: no hidden member, no overlap, nothing in front or behind. This
module must not know where the members go, and it never writes.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from kvaudit.bundle_member import PIECE_BYTES, Member
from kvaudit.errors import UnusableInput

MAX_ENTRY_BYTES = 46 + 4096
"""One entry of the directory: its fixed part, name, extra fields and remark."""

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LARGE, _LARGE_COUNT = 0xFFFFFFFF, 0xFFFF
_DESCRIPTOR = 0x0008
_UTF8 = 0x0800
_FLAGS = 0x0002 | 0x0004 | _DESCRIPTOR | _UTF8
_STORED, _DEFLATED = 0, 8
_ZIP64, _OTHER_NAME = 0x0001, 0x7075


@dataclass(frozen=True)
class _Entry:
    """One entry of the directory; `shown` is its name for an error."""

    name: bytes
    shown: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    folder: bool


def members(file: BinaryIO, *, where: str, max_members: int) -> Iterator[Member]:
    """The members of a zip file, in its order.

    Args:
        file: seekable, at any position.
        where: what to call the archive in an error.
        max_members: more are refused, before any is read.

    Raises:
        UnusableInput: the file is not a whole, plain zip archive.
    """
    start, length, count = _directory(file, where)
    if count > max_members or length > max_members * MAX_ENTRY_BYTES:
        raise UnusableInput(
            "the archive has too many members",
            where=where,
            expected=f"at most {max_members}",
            found=count,
        )
    entries = _entries(file, start, length, count, where)
    expected = 0
    entry = next(entries, None)
    while entry is not None:
        after = next(entries, None)
        place = f"{where}: {entry.shown}"
        if entry.offset != expected:
            raise UnusableInput("members of the archive overlap or leave a gap", where=place)
        begin = _local(file, entry, place)
        expected = after.offset if after else start
        gap = expected - begin - entry.packed
        if gap not in ((12, 16, 20, 24) if entry.flags & _DESCRIPTOR else (0,)):
            raise UnusableInput("members of the archive overlap or leave a gap", where=place)
        text = _text(entry, where)
        yield Member(
            text.removesuffix("/") if entry.folder else text,
            entry.folder,
            entry.size,
            _content(file, entry, begin, gap, place),
        )
        entry = after
    if expected != start:
        raise UnusableInput("bytes of the archive belong to no member", where=where)


def _directory(file: BinaryIO, where: str) -> tuple[int, int, int]:
    """Where the directory starts, its length, and the number of its entries."""
    size = file.seek(0, os.SEEK_END)
    ended = size - _END.size
    signature, disk, first, here, count, length, start, remark = _read(file, _END, ended, where)
    if signature != b"PK\x05\x06" or remark:
        raise UnusableInput("the archive does not end with its directory", where=where)
    at = ended - _LOCATOR.size
    if at >= 0 and _peek(file, at) == b"PK\x06\x07":
        _, _, end64, _ = _read(file, _LOCATOR, at, where)
        fields = _read(file, _END64, end64, where)
        if fields[0] != b"PK\x06\x06" or end64 + 12 + fields[1] != at:
            raise UnusableInput("the archive does not end with its directory", where=where)
        disk, first, here, count, length, start = fields[4:10]
        ended = end64
    elif _LARGE in (length, start) or count == _LARGE_COUNT:
        raise UnusableInput("the archive does not end with its directory", where=where)
    if disk or first or here != count:
        raise UnusableInput("the archive is a part of several", where=where)
    if start + length != ended:
        raise UnusableInput("the archive does not start with its first member", where=where)
    return start, length, count


def _entries(file: BinaryIO, start: int, length: int, count: int, where: str) -> Iterator[_Entry]:
    offset = start
    for _ in range(count):
        fields = _read(file, _CENTRAL, offset, where)
        signature, made, _, flags, method, _, _, crc, packed, size = fields[:10]
        n_name, n_extra, n_remark, disk, _, attributes, begin = fields[10:]
        if signature != b"PK\x01\x02" or disk:
            raise UnusableInput("the archive's directory is damaged", where=where)
        if _CENTRAL.size + n_name + n_extra + n_remark > MAX_ENTRY_BYTES:
            raise UnusableInput("an entry of the archive's directory is too long", where=where)
        name = _bytes(file, n_name, where)
        extra = _bytes(file, n_extra, where)
        shown = name.decode("utf-8", "backslashreplace")
        place = f"{where}: {shown}"
        size, packed, begin = _large(extra, [size, packed, begin], place)
        if flags & ~_FLAGS:
            raise UnusableInput("a member is encrypted or of another kind", where=place)
        if method not in (_STORED, _DEFLATED):
            raise UnusableInput(
                "a member is compressed in another way",
                where=place,
                expected="stored or deflated",
                found=f"method {method}",
            )
        folder = name.endswith(b"/")
        _check_type(made, attributes, folder, place)
        if folder and (size or packed):
            raise UnusableInput("a folder has content", where=place)
        yield _Entry(name, shown, flags, method, crc, packed, size, begin, folder)
        offset += _CENTRAL.size + n_name + n_extra + n_remark
    if offset != start + length:
        raise UnusableInput("the archive's directory is damaged", where=where)


def _check_type(made: int, attributes: int, folder: bool, place: str) -> None:
    mode = attributes >> 16 if made >> 8 in (3, 19) else 0  # written under Unix or macOS
    wanted = stat.S_IFDIR if folder else stat.S_IFREG
    if stat.S_IFMT(mode) not in (0, wanted):
        found = "a symbolic link" if stat.S_ISLNK(mode) else f"mode {mode:o}"
        raise UnusableInput(
            "a member of the archive is refused",
            where=place,
            expected="a folder" if folder else "a regular file",
            found=found,
        )


def _local(file: BinaryIO, entry: _Entry, place: str) -> int:
    """Where the content begins, once the header before it agrees with the directory."""
    fields = _read(file, _LOCAL, entry.offset, place)
    signature, _, flags, method, _, _, crc, packed, size, n_name, n_extra = fields
    name = _bytes(file, n_name, place)
    extra = _bytes(file, n_extra, place)
    told = (crc, *_large(extra, [size, packed], place))
    agreed: tuple[tuple[int, ...], ...] = ((entry.crc, entry.size, entry.packed),)
    if entry.flags & _DESCRIPTOR:  # what the header did not know yet follows the content
        agreed += ((0, 0, 0),)
    same = (flags, method, name) == (entry.flags, entry.method, entry.name)
    if signature != b"PK\x03\x04" or not same or told not in agreed:
        raise UnusableInput("a member and the archive's directory disagree", where=place)
    begin: int = entry.offset + _LOCAL.size + n_name + n_extra
    return begin


def _large(extra: bytes, values: list[int], place: str) -> list[int]:
    """The values with those that do not fit into 32 bits taken from the extra field."""
    offset, found = 0, b""
    while offset + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, offset)
        if kind == _OTHER_NAME:
            raise UnusableInput("a member has a second name", where=place)
        if kind == _ZIP64:
            found = extra[offset + 4 : offset + 4 + length]
        offset += 4 + length
    if offset > len(extra):
        raise UnusableInput("an extra field is damaged", where=place)
    wide = []
    for value in values:
        if value == _LARGE:
            if len(found) < 8:
                raise UnusableInput("an extra field is damaged", where=place)
            value, found = int.from_bytes(found[:8], "little"), found[8:]
        wide.append(value)
    return wide


def _content(file: BinaryIO, entry: _Entry, begin: int, gap: int, place: str) -> Iterator[bytes]:
    file.seek(begin)
    inflater = zlib.decompressobj(-zlib.MAX_WBITS) if entry.method == _DEFLATED else None
    left, made, crc = entry.packed, 0, 0
    try:
        packed = b""
        while True:
            if not packed and left:
                packed = _bytes(file, min(left, PIECE_BYTES), place)
                left -= len(packed)
            if inflater is None:
                piece, packed = packed, b""
            else:
                if packed and inflater.eof:
                    raise UnusableInput("a member goes on behind its end", where=place)
                piece = inflater.decompress(packed, PIECE_BYTES)
                packed = inflater.unconsumed_tail or inflater.unused_data
            if not piece and not packed and not left:
                break
            made += len(piece)
            if made > entry.size:
                raise UnusableInput("a member is longer than announced", where=place)
            crc = zlib.crc32(piece, crc)
            yield piece
    except zlib.error:
        raise UnusableInput("a member cannot be decompressed", where=place) from None
    if made != entry.size or (inflater is not None and not inflater.eof):
        raise UnusableInput("a member is shorter than announced", where=place)
    if crc != entry.crc:
        raise UnusableInput("a member does not have its checksum", where=place)
    if gap:
        _check_descriptor(_bytes(file, gap, place), entry, place)


def _check_descriptor(data: bytes, entry: _Entry, place: str) -> None:
    wide = len(data) >= 20
    layout = "<L2Q" if wide else "<2LL"
    body = data[len(data) - struct.calcsize(layout) :]
    head = data[: len(data) - len(body)]
    if head not in (b"", b"PK\x07\x08") or struct.unpack(layout, body) != (
        entry.crc,
        entry.packed,
        entry.size,
    ):
        raise UnusableInput("a member and the archive's directory disagree", where=place)


def _text(entry: _Entry, where: str) -> str:
    try:
        return entry.name.decode("utf-8" if entry.flags & _UTF8 else "ascii")
    except UnicodeDecodeError:
        raise UnusableInput(
            "a member's name is not UTF-8", where=where, found=entry.shown
        ) from None


def _read(file: BinaryIO, layout: struct.Struct, offset: int, where: str) -> tuple[Any, ...]:
    if offset < 0:
        raise UnusableInput("the archive ends too early", where=where)
    file.seek(min(offset, 2**62))
    return layout.unpack(_bytes(file, layout.size, where))


def _peek(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(4)


def _bytes(file: BinaryIO, size: int, where: str) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise UnusableInput("the archive ends too early", where=where)
    return data
