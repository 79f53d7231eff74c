"""Strict, bounded reader of the header of a GGUF model file, versions 2 and 3, little-endian.

It reads what comes before the weights and nothing else: no mapping, no trust in any count, no
array built beyond a short one. Whatever the bytes are, the outcome is a `GgufHeader` or one typed
refusal, within 32 MiB read and well under a second. llama.cpp aborts the process on some malformed
files, so this runs before it. It must not know llama.cpp; which architectures are supported is
said in `architectures`.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from kvaudit.errors import UnusableInput
from kvgraft.architectures import require_supported
from kvgraft.gguf_types import TENSOR_TYPES, GgufHeader, Scalar, SkippedArray, TensorInfo, Value

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

MAX_HEADER_BYTES = 32 << 20
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = 1 << 10
MAX_KEPT_BYTES = 8 << 20  # of all values kept; a number or string costs 64 more
MAX_ARRAY_STRINGS = 2 << 20  # in all arrays of a file together
MAX_TENSOR_NAME_BYTES = 63  # llama.cpp's GGML_MAX_NAME less the final zero
MAX_DIMENSIONS = 4
MAX_BYTES = 1 << 62
KEPT_NUMBERS = 1024
KEPT_STRINGS = 64

_SCALARS: dict[int, tuple[str, struct.Struct]] = {
    0: ("uint8", struct.Struct("<B")),
    1: ("int8", struct.Struct("<b")),
    2: ("uint16", struct.Struct("<H")),
    3: ("int16", struct.Struct("<h")),
    4: ("uint32", struct.Struct("<I")),
    5: ("int32", struct.Struct("<i")),
    6: ("float32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<B")),
    10: ("uint64", struct.Struct("<Q")),
    11: ("int64", struct.Struct("<q")),
    12: ("float64", struct.Struct("<d")),
}
_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def read_header(path: str | Path, *, any_architecture: bool = False) -> GgufHeader:
    """Read and check the header of a GGUF file.

    Bytes after the last tensor are accepted, as llama.cpp accepts them.

    Args:
        path: a regular file, or a link to one.
        any_architecture: read models that are not supported too, to describe them.

    Returns:
        The header; its tensors lie within the file.

    Raises:
        UnusableInput: if the file cannot be read, is malformed, or exceeds a bound of this module.
        ModelUnsupported: if the architecture's state does not restore in full.
    """
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer before we can refuse it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnusableInput(
            "the model file cannot be opened", where=str(path), found=reason
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnusableInput("the model is not a regular file", where=str(path))
        header = _read(_Cursor(descriptor, str(path), status.st_size))
    except OSError as error:
        raise UnusableInput(
            "the model file cannot be read", where=str(path), found=error.strerror
        ) from None
    finally:
        os.close(descriptor)
    if not any_architecture:
        require_supported(header.architecture, where=str(path))
    return header


class _Cursor:
    """A position in the header; reads the file on demand and never past its bounds."""

    def __init__(self, descriptor: int, path: str, file_bytes: int) -> None:
        self.descriptor = descriptor
        self.path = path
        self.file_bytes = file_bytes
        self.limit = min(file_bytes, MAX_HEADER_BYTES)
        self.data = bytearray()
        self.at = 0
        self.strings_left = MAX_ARRAY_STRINGS
        self.kept_left = MAX_KEPT_BYTES

    def refuse(
        self, what: str, *, expected: object = None, found: object = None, at: int | None = None
    ) -> NoReturn:
        offset = self.at if at is None else at
        raise UnusableInput(
            f"not a readable GGUF file: {what}",
            expected=expected,
            found=found,
            where=f"{self.path}, byte {offset}",
        )

    def need(self, count: int, what: str) -> None:
        """Make `count` bytes from the position available, or refuse."""
        end = self.at + count
        if end <= len(self.data):
            return
        if end > self.limit:
            if end > self.file_bytes:
                self.refuse(
                    f"the file ends inside {what}",
                    expected=f"{count} bytes",
                    found=f"{self.file_bytes - self.at} bytes",
                )
            self.refuse(f"the header is longer than {MAX_HEADER_BYTES} bytes, at {what}")
        while len(self.data) < end:
            more = os.read(self.descriptor, max(end - len(self.data), 1 << 20))
            if not more:
                self.refuse(f"the file ends inside {what}")
            self.data += more

    def number(self, layout: struct.Struct, what: str) -> int | float:
        self.need(layout.size, what)
        value: int | float = layout.unpack_from(self.data, self.at)[0]
        self.at += layout.size
        return value

    def u32(self, what: str) -> int:
        return int(self.number(_U32, what))

    def u64(self, what: str) -> int:
        return int(self.number(_U64, what))

    def string(self, what: str, longest: int) -> str:
        start = self.at
        length = self.u64(f"the length of {what}")
        if length > longest:
            self.refuse(f"{what} is too long", expected=f"<= {longest}", found=length, at=start)
        self.need(length, what)
        raw = bytes(self.data[self.at : self.at + length])
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"{what} is not UTF-8", at=start)
        self.at += length
        return text

    def skip_strings(self, count: int, what: str) -> None:
        """Pass over `count` strings; a vocabulary of 262,144 takes a few hundredths of a second."""
        unpack, layout_size = _U64.unpack_from, _U64.size
        data, at = self.data, self.at
        for _ in range(count):
            if at + layout_size > len(data):
                self.at = at
                self.need(layout_size, what)
            length: int = unpack(data, at)[0]
            at += layout_size + length
            if at > len(data):
                self.at = at - length
                self.need(length, what)
        self.at = at


def _read(cursor: _Cursor) -> GgufHeader:
    """The whole header from `cursor`, checked."""
    cursor.need(4, "the magic")
    if cursor.data[:4] != MAGIC:
        cursor.refuse("wrong magic", expected=MAGIC, found=bytes(cursor.data[:4]))
    cursor.at = 4
    version = cursor.u32("the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = " (the file is big-endian)" if swapped in VERSIONS else ""
        cursor.refuse(f"unknown version{kind}", expected="2 or 3", found=version, at=4)
    tensor_count = cursor.u64("the number of tensors")
    key_count = cursor.u64("the number of keys")
    if tensor_count > MAX_TENSORS:
        cursor.refuse("too many tensors", expected=f"<= {MAX_TENSORS}", found=tensor_count, at=8)
    if key_count > MAX_KEYS:
        cursor.refuse("too many keys", expected=f"<= {MAX_KEYS}", found=key_count, at=16)

    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        start = cursor.at
        key = cursor.string("a key", MAX_KEY_BYTES)
        if not key:
            cursor.refuse("a key is empty", at=start)
        if key in metadata:
            cursor.refuse("a key appears twice", found=key, at=start)
        metadata[key] = _value(cursor, _shown(key))

    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        cursor.refuse("the alignment is not a power of two", found=alignment)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        cursor.refuse("general.architecture is missing", expected="a name", found=architecture)

    tensors, end = _tensors(cursor, tensor_count, alignment)
    data_offset = -(-cursor.at // alignment) * alignment if tensors else cursor.at
    if data_offset + end > cursor.file_bytes:
        cursor.refuse(
            "the file ends before its tensors do",
            expected=f">= {data_offset + end} bytes",
            found=f"{cursor.file_bytes} bytes",
        )
    return GgufHeader(
        version=version,
        architecture=architecture,
        metadata=MappingProxyType(metadata),
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
        file_bytes=cursor.file_bytes,
    )


def _shown(name: str) -> str:
    """A name as it may stand in a message: printable, at most 80 characters."""
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= 80 else text[:79] + "…"


def _value(cursor: _Cursor, key: str) -> Value:
    """The value at the cursor; a long array is checked and passed over."""
    start = cursor.at
    kind = cursor.u32(f"the type of {key}")
    if kind != _ARRAY:
        return _scalar(cursor, kind, key, start)
    element = cursor.u32(f"the element type of {key}")
    count = cursor.u64(f"the length of {key}")
    if element == _STRING:
        # A string takes eight bytes at least, so a count that cannot fit is refused unread.
        if count > cursor.strings_left or 8 * count > cursor.limit - cursor.at:
            cursor.refuse(f"array {key} is too long", found=count, at=start)
        cursor.strings_left -= count
        if count > KEPT_STRINGS:
            cursor.skip_strings(count, key)
            return SkippedArray("string", count)
    elif element not in _SCALARS:
        cursor.refuse(f"array {key} has an unknown element type", found=element, at=start)
    else:
        name, layout = _SCALARS[element]
        size = layout.size * count
        if size > cursor.limit - cursor.at:
            cursor.refuse(f"array {key} is too long", found=count, at=start)
        if count > KEPT_NUMBERS:
            cursor.need(size, key)
            cursor.at += size
            return SkippedArray(name, count)
    return tuple(_scalar(cursor, element, key, start) for _ in range(count))


def _scalar(cursor: _Cursor, kind: int, key: str, start: int) -> Scalar:
    """A string, number or truth value at the cursor."""
    cursor.kept_left -= 64
    if cursor.kept_left < 0:
        cursor.refuse("the metadata are too large", expected=f"<= {MAX_KEPT_BYTES} bytes", at=start)
    if kind == _STRING:
        text_at = cursor.at
        text = cursor.string(f"the value of {key}", cursor.kept_left)
        cursor.kept_left -= cursor.at - text_at
        return text
    if kind not in _SCALARS:
        cursor.refuse(f"{key} has an unknown type", found=kind, at=start)
    value = cursor.number(_SCALARS[kind][1], f"the value of {key}")
    if kind != _BOOL:
        return value
    if value not in (0, 1):
        cursor.refuse(f"{key} is neither true nor false", found=value, at=start)
    return bool(value)


def _tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[tuple[TensorInfo, ...], int]:
    """All tensor descriptions and the end of the last one, bytes into the data section."""
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    expected = end = 0
    for _ in range(count):
        start = cursor.at
        name = cursor.string("a tensor name", MAX_TENSOR_NAME_BYTES)
        if not name or name in names:
            what = "a tensor name appears twice" if name else "a tensor name is empty"
            cursor.refuse(what, found=name, at=start)
        names.add(name)
        full_name, name = name, _shown(name)
        rank = cursor.u32(f"the rank of {name}")
        if not 1 <= rank <= MAX_DIMENSIONS:
            cursor.refuse(f"{name} has an impossible rank", expected="1 to 4", found=rank, at=start)
        dimensions = tuple(cursor.u64(f"a dimension of {name}") for _ in range(rank))
        kind = cursor.u32(f"the type of {name}")
        offset = cursor.u64(f"the offset of {name}")
        if kind not in TENSOR_TYPES:
            cursor.refuse(f"{name} has an unknown type", found=kind, at=start)
        type_name, block, block_bytes = TENSOR_TYPES[kind]
        elements = 1
        for dimension in dimensions:
            elements *= dimension
        if not 0 < elements <= MAX_BYTES:
            cursor.refuse(f"{name} has an impossible shape", found=dimensions, at=start)
        if dimensions[0] % block:
            cursor.refuse(
                f"rows of {name} do not fill whole {type_name} blocks",
                expected=f"a multiple of {block}",
                found=dimensions[0],
                at=start,
            )
        # The engine requires tensors in file order without gaps; that rules out overlaps too.
        if offset != expected:
            cursor.refuse(f"{name} is misplaced", expected=expected, found=offset, at=start)
        size = elements // block * block_bytes
        end = offset + size
        expected = -(-end // alignment) * alignment
        if end > cursor.file_bytes:
            cursor.refuse(
                f"{name} lies beyond the end of the file",
                expected=f"<= {cursor.file_bytes}",
                found=end,
                at=start,
            )
        tensors.append(TensorInfo(full_name, dimensions, type_name, offset, size))
    return tuple(tensors), end
