"""Reads members of a foreign ZIP archive within bounds, also those packed with Zstandard.

Python before 3.14 cannot unpack method 93, which inspect_ai writes; sizes in the directory are
claims, so no more is unpacked than a bound allows, of one member and of all, and the checksum is
compared. This module must not know what the members are.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable
from itertools import pairwise

from kvaudit.errors import UnusableInput

ZSTANDARD = 93
MAX_MEMBERS = 200_000
MAX_MEMBER_BYTES = 64 * 1024 * 1024
MAX_UNPACKED_BYTES = 2 * 1024 * 1024 * 1024

_LOCAL_HEADER_BYTES = 30


class Archive:
    """An archive that lies in memory.

    Raises:
        UnusableInput: the bytes are no ZIP archive, or it has too many members, or two that share
            bytes.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._unpacked = data, where, 0
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = archive.infolist()
        # zipfile refuses a version of the format that it does not read with a RuntimeError.
        except (zipfile.BadZipFile, ValueError, RuntimeError, struct.error) as error:
            raise UnusableInput("the file is no ZIP archive", where=where, found=error) from None
        if len(members) > MAX_MEMBERS:
            raise UnusableInput(
                "the archive has too many members", where=where, expected=f"at most {MAX_MEMBERS}"
            )
        _check_apart(members, where)
        # Of two members with one name a reader would have to choose; the directory's last wins
        # in every common tool.
        self.members = {member.filename: member for member in members}

    def read(self, name: str) -> bytes:
        """The content of one member.

        Raises:
            UnusableInput: it is absent, encrypted, damaged, or longer than a member may be, or
                more was unpacked by now than an archive may hold.
        """
        place = f"{self._where}, member {name}"
        member = self.members.get(name)
        if member is None:
            raise UnusableInput("the archive lacks a member", where=place)
        if member.flag_bits & 1:
            raise UnusableInput("the member is encrypted", where=place)
        try:
            content = self._unpack(member)
        except (struct.error, ValueError, zlib.error, EOFError) as error:
            raise UnusableInput("the member cannot be unpacked", where=place, found=error) from None
        if len(content) > MAX_MEMBER_BYTES:
            raise UnusableInput(
                "the member is too long", where=place, expected=f"at most {MAX_MEMBER_BYTES} bytes"
            )
        self._unpacked += len(content)
        if self._unpacked > MAX_UNPACKED_BYTES:
            raise UnusableInput(
                "the archive unpacks to too much",
                where=place,
                expected=f"at most {MAX_UNPACKED_BYTES} bytes of all members",
            )
        if zlib.crc32(content) != member.CRC:
            raise UnusableInput("the member's checksum is another", where=place)
        return content

    def _unpack(self, member: zipfile.ZipInfo) -> bytes:
        """At most one byte more than a member may have."""
        begin = member.header_offset
        head = self._data[begin : begin + _LOCAL_HEADER_BYTES]
        mark, name, extra = struct.unpack("<4s22xHH", head)
        if mark != b"PK\x03\x04":
            raise ValueError("no local header")
        start = begin + _LOCAL_HEADER_BYTES + name + extra
        packed = self._data[start : start + member.compress_size]
        if member.compress_type == zipfile.ZIP_STORED:
            return packed[: MAX_MEMBER_BYTES + 1]
        if member.compress_type == zipfile.ZIP_DEFLATED:
            return zlib.decompressobj(-15).decompress(packed, MAX_MEMBER_BYTES + 1)
        if member.compress_type == ZSTANDARD:
            import zstandard

            unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 27)
            try:
                return unpacker.stream_reader(packed).read(MAX_MEMBER_BYTES + 1)
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from None
        raise ValueError(f"compression method {member.compress_type} is not read")


def _check_apart(members: Iterable[zipfile.ZipInfo], where: str) -> None:
    """Refuses members that share bytes: a few of them could unpack to any length."""
    ordered = sorted(members, key=lambda member: member.header_offset)
    for first, second in pairwise(ordered):
        if first.header_offset + _LOCAL_HEADER_BYTES + first.compress_size > second.header_offset:
            raise UnusableInput(
                "two members of the archive share bytes",
                where=where,
                expected="each member behind the one before",
                found=f"{second.filename} inside of {first.filename}",
            )
