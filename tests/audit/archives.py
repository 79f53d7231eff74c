"""Archives made byte by byte, the hostile ones among them."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping

BLOCK = 512
END = bytes(2 * BLOCK)


def header(name: bytes, size: int = 0, kind: bytes = b"0", **fields: bytes) -> bytes:
    """One ustar header with a right checksum; `fields` replaces parts of it."""
    data = bytearray(BLOCK)
    data[: len(name)] = name
    data[100:108] = b"0000644\0"
    data[124:136] = fields.get("octal", b"%011o\0" % size)
    data[136:148] = b"%011o\0" % 0
    data[156:157] = kind
    data[257:265] = fields.get("magic", b"ustar\x0000")
    link = fields.get("link", b"")
    data[157 : 157 + len(link)] = link
    prefix = fields.get("prefix", b"")
    data[345 : 345 + len(prefix)] = prefix
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data)
    return bytes(data)


def member(name: bytes, content: bytes = b"x", kind: bytes = b"0", **fields: bytes) -> bytes:
    """A header and its content, filled up to whole blocks."""
    filled = content + bytes(-len(content) % BLOCK)
    return header(name, len(content), kind, **fields) + filled


def pax(key: str, value: bytes) -> bytes:
    """An extended header of one record."""
    body = b" " + key.encode() + b"=" + value + b"\n"
    size = len(body) + 1
    while len(str(size)) + len(body) != size:
        size += 1
    return member(b"pax", str(size).encode() + body, b"x")


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """A plain tar as Python's own module makes it."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def zip_of(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A plain zip as Python's own module makes it."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return sink.getvalue()


def zip_with(change: Callable[[zipfile.ZipInfo], None], content: bytes = b"x") -> bytes:
    """A zip of one member `a` whose entry is changed before it is written."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        info = zipfile.ZipInfo("a")
        change(info)
        archive.writestr(info, content)
    return sink.getvalue()


def overlapping_zip() -> bytes:
    """Two entries of the directory that share one local member: the heart of a zip bomb."""
    content = b"\0" * 1000
    crc = zlib.crc32(content)
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, crc, 1000, 1000, 1, 0) + b"a"
    entries = b"".join(
        struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, crc, 1000, 1000, 1, 0, 0, 0, 0, 0, 0
        )
        + name
        for name in (b"a", b"b")
    )
    start = len(local) + len(content)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, len(entries), start, 0)
    return local + content + entries + end
