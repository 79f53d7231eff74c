"""Reads a tar stream that a stranger has made: regular files and folders, nothing else.

Python's `tarfile` forgives much and reads extended headers of any length into memory; here every
header is bounded, and what two readers could understand in two ways is refused: sparse members,
links, sizes and names given twice, anything behind the end. This module must not know where the
stream comes from, and it never writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvaudit.bundle_member import PIECE_BYTES, Member, Stream
from kvaudit.errors import UnusableInput

BLOCK = 512
MAX_NAME_BYTES = 4096
MAX_PAX_BYTES = 64 * 1024
MAX_EXTENDED_BYTES = 64 * 1024 * 1024
"""All extended headers together: a few bytes of zstd can stand for any number of them."""
MAX_PADDING_BYTES = 1024 * 1024
"""Zero blocks behind the end; tar fills up to a record of 10 KiB, some tapes to more."""

_ZEROS = bytes(BLOCK)
_OCTAL = re.compile(rb" *([0-7]{1,11})[ \0]*\Z")
_PAX = re.compile(rb"([1-9][0-9]{0,5}) ([^=\n]{1,200})=")
_IGNORED_KEYS = frozenset(
    {"atime", "comment", "ctime", "gid", "gname", "mtime", "uid", "uname"},
)
_IGNORED_PREFIXES = ("LIBARCHIVE.", "SCHILY.xattr.")
_TYPES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a fifo",
    b"7": "a contiguous file",
    b"D": "a directory dump",
    b"K": "a long link name",
    b"M": "a continued member",
    b"S": "a sparse file",
    b"V": "a volume label",
}


def members(stream: Stream, *, where: str) -> Iterator[Member]:
    """The members of a tar stream, in its order.

    Args:
        stream: read to its end; everything behind the last member must be zero blocks.
        where: what to call the archive in an error.

    Raises:
        UnusableInput: the stream is not a whole, plain tar archive.
    """
    name: bytes | None = None
    extended = 0
    while True:
        header = _take(stream, BLOCK, where)
        if header == _ZEROS:
            if name is not None:
                raise UnusableInput("a long name belongs to no member", where=where)
            _check_end(stream, where)
            return
        kind, size = _checked(header, where)
        if kind in (b"x", b"g", b"L"):
            if kind != b"g" and name is not None:
                raise UnusableInput("a member has two long names", where=where)
            extended += BLOCK + size
            if extended > MAX_EXTENDED_BYTES:
                raise UnusableInput("the archive has too many extended headers", where=where)
            limit = MAX_NAME_BYTES if kind == b"L" else MAX_PAX_BYTES
            if size > limit:
                raise UnusableInput(
                    "an extended header is too long",
                    where=where,
                    expected=f"at most {limit} bytes",
                    found=f"{size} bytes",
                )
            data = _take(stream, size, where)
            _skip(stream, size, where)
            if kind == b"L":
                name = data.removesuffix(b"\0")
            else:
                found = _pax_path(data, where)
                if found is not None and kind == b"g":
                    raise UnusableInput("a global header names all members alike", where=where)
                name = name if kind == b"g" else found
            continue
        text = _text(_short_name(header) if name is None else name, where)
        name = None
        folder = kind == b"5"
        if folder and size:
            raise UnusableInput("a folder has content", where=f"{where}: {text}")
        if not folder and text.endswith("/"):
            raise UnusableInput("a file is named like a folder", where=f"{where}: {text}")
        yield Member(
            text.removesuffix("/") if folder else text,
            folder,
            size,
            _content(stream, size, f"{where}: {text}"),
        )


def _content(stream: Stream, size: int, where: str) -> Iterator[bytes]:
    left = size
    while left:
        piece = _take(stream, min(left, PIECE_BYTES), where)
        left -= len(piece)
        yield piece
    _skip(stream, size, where)


def _skip(stream: Stream, size: int, where: str) -> None:
    """Passes over the filling behind a content of `size` bytes."""
    _take(stream, -size % BLOCK, where)


def _take(stream: Stream, size: int, where: str) -> bytes:
    pieces: list[bytes] = []
    left = size
    while left:
        piece = stream.read(left)
        if not piece:
            raise UnusableInput("the archive ends too early", where=where)
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _check_end(stream: Stream, where: str) -> None:
    """A second zero block, then nothing but zeros."""
    if _take(stream, BLOCK, where) != _ZEROS:
        raise UnusableInput("a single zero block stands among the members", where=where)
    left = MAX_PADDING_BYTES
    while piece := stream.read(BLOCK):
        left -= len(piece)
        if left < 0 or piece.strip(b"\0"):
            raise UnusableInput("the archive goes on behind its end", where=where)


def _checked(header: bytes, where: str) -> tuple[bytes, int]:
    """Type and size of a member, once its header is found sound."""
    told = _octal(header[148:156], where, "checksum")
    if told != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise UnusableInput("a header of the archive is damaged", where=where)
    if header[257:263] != b"ustar\0" and header[257:265] != b"ustar  \0":
        raise UnusableInput("the archive is of an old format", where=where, expected="ustar")
    kind = b"0" if header[156:157] == b"\0" else header[156:157]
    if kind not in (b"0", b"5", b"x", b"g", b"L"):
        raise UnusableInput(
            "a member of the archive is refused",
            where=f"{where}: {_short_name(header).decode('utf-8', 'backslashreplace')}",
            expected="a regular file or a folder",
            found=_TYPES.get(kind, f"type {kind!r}"),
        )
    return kind, _octal(header[124:136], where, "size")


def _octal(field: bytes, where: str, what: str) -> int:
    match = _OCTAL.match(field)
    if match is None:
        raise UnusableInput(
            f"a {what} in the archive is not octal",
            where=where,
            found=field.hex(),
            hint="members of 8 GiB or more are not taken" if field[:1] >= b"\x80" else None,
        )
    return int(match.group(1), 8)


def _short_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0":  # GNU's own format keeps times where POSIX has the prefix
        prefix = header[345:500].partition(b"\0")[0]
        return prefix + b"/" + name if prefix else name
    return name


def _pax_path(data: bytes, where: str) -> bytes | None:
    """The `path` of an extended header, every record of which must be harmless."""
    path: bytes | None = None
    seen: set[str] = set()
    offset = 0
    while offset < len(data):
        match = _PAX.match(data, offset)
        if match is None:
            raise UnusableInput("an extended header cannot be read", where=where)
        end = offset + int(match.group(1))
        if end > len(data) or end <= match.end() or data[end - 1 : end] != b"\n":
            raise UnusableInput("an extended header cannot be read", where=where)
        key = match.group(2).decode("utf-8", "backslashreplace")
        if key in seen:
            raise UnusableInput("an extended header has a key twice", where=where, found=key)
        seen.add(key)
        if key == "path":
            path = data[match.end() : end - 1]
        elif key not in _IGNORED_KEYS and not key.startswith(_IGNORED_PREFIXES):
            raise UnusableInput(
                "an extended header is refused",
                where=where,
                found=key,
                hint="sparse files, links and sizes beside the header are not taken",
            )
        offset = end
    return path


def _text(name: bytes, where: str) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        shown = name.decode("utf-8", "backslashreplace")
        raise UnusableInput("a member's name is not UTF-8", where=where, found=shown) from None
