"""The block file `.kvb`: a captured state with its tokens and identity, in a safetensors container.

Pure format: it can be read, checked and written without an engine. The container's metadata holds
the canonical header; tensors are `tokens` (int32) and `state` (bytes), in this order, without gaps.
The header lists the SHA-256 of every 4 MiB of `state`; the header's own SHA-256 is the block's id.
The format has one byte form only: everything that could vary is fixed and checked on reading.
The header is `kvaudit.kvb_header`, mapping a file is `kvaudit.kvb_map`; stores are not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvaudit import canonical, digests
from kvaudit.errors import (
    BlockCorrupt,
    BlockOversize,
    BlockTrailingBytes,
    BlockTruncated,
    BlockWrongMagic,
    UnusableInput,
    printable,
)
from kvaudit.kvb_header import (
    CHUNK_BYTES,
    FORMAT,
    MAX_STATE_BYTES,
    MAX_TOKENS,
    BlockHeader,
    ModelIdentity,
    StateIdentity,
    TokenIdentity,
    chunk_digests,
    token_bytes,
    token_digest,
)

__all__ = [
    "ALIGNMENT",
    "CHUNK_BYTES",
    "FORMAT",
    "MAX_FILE_BYTES",
    "MAX_HEADER_BYTES",
    "MAX_STATE_BYTES",
    "MAX_TOKENS",
    "BlockHeader",
    "Layout",
    "ModelIdentity",
    "StateIdentity",
    "TokenIdentity",
    "build",
    "chunk_digests",
    "container_prefix",
    "parse_prefix",
    "token_digest",
    "write_block",
]

ALIGNMENT = 64
MAX_HEADER_BYTES = 16 << 20
MAX_FILE_BYTES = 8 + MAX_HEADER_BYTES + 4 * MAX_TOKENS + MAX_STATE_BYTES

_KEY = "kvb"


def build(
    *,
    model: ModelIdentity,
    profile: str,
    engine: str,
    tokens: NDArray[np.int32],
    state: bytes | bytearray | memoryview,
    start: int = 0,
    parent: str | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> BlockHeader:
    """A header over given content; chunks are hashed in threads.

    Args:
        model: identity of the model.
        profile: profile digest.
        engine: engine digest.
        tokens: int32 [n], ids of the span.
        state: bytes of the sequence state.
        start: own position of the first token.
        parent: id of the block it continues.
        provenance: any JSON object.

    Raises:
        BlockCorrupt, BlockOversize: the parts do not make a valid block.
        UnusableInput: the provenance has no canonical JSON form.
    """
    view = memoryview(state).cast("B")
    header = BlockHeader(
        model=model,
        profile=profile,
        engine=engine,
        tokens=TokenIdentity(len(tokens), token_digest(tokens)),
        state=StateIdentity(
            len(view),
            CHUNK_BYTES,
            tuple(chunk_digests(view)),
            tuple(chunk_digests(view, digest=digests.blake3_bytes)),
        ),
        start=start,
        parent=parent,
        provenance=dict(provenance or {}),
    )
    # Through the JSON form, so that what is written can be read back.
    return BlockHeader.from_json(canonical.loads(header.canonical(), where="header"))


def container_prefix(header: BlockHeader) -> bytes:
    """Everything in front of the tokens: length, JSON, and spaces that align `state`."""
    text = canonical.dumps(_container(header))
    padding = -(8 + len(text) + 4 * header.tokens.n) % ALIGNMENT
    text += b" " * padding
    if len(text) > MAX_HEADER_BYTES:
        raise BlockOversize(
            "the header is too large", expected=f"at most {MAX_HEADER_BYTES}", found=len(text)
        )
    return len(text).to_bytes(8, "little") + text


def _container(header: BlockHeader) -> dict[str, Any]:
    """The container's JSON object; a reader finds the tensors by their offsets, not their order."""
    tokens_end = 4 * header.tokens.n
    return {
        "__metadata__": {_KEY: header.canonical().decode("utf-8")},
        "tokens": {"data_offsets": [0, tokens_end], "dtype": "I32", "shape": [header.tokens.n]},
        "state": {
            "data_offsets": [tokens_end, tokens_end + header.state.bytes],
            "dtype": "U8",
            "shape": [header.state.bytes],
        },
    }


def write_block(
    file: BinaryIO,
    header: BlockHeader,
    tokens: NDArray[np.int32],
    state: bytes | bytearray | memoryview,
) -> None:
    """Write a block; the same block has the same bytes everywhere.

    The chunks of the state are not hashed a second time: `build` did, and every reader will.

    Raises:
        BlockCorrupt, BlockOversize: tokens or state are not those of the header, or no reader
            would accept the header. Nothing was written.
    """
    view = memoryview(state).cast("B")
    BlockHeader.from_json(header.to_json(), where="header")
    if len(view) != header.state.bytes or token_digest(tokens) != header.tokens.sha256:
        raise BlockCorrupt("tokens or state are not those of the header", where=header.id)
    file.write(container_prefix(header))
    file.write(token_bytes(tokens))
    file.write(view)


@dataclass(frozen=True)
class Layout:
    """Where a block's parts lie in its file, in bytes."""

    header: BlockHeader
    tokens_offset: int
    state_offset: int
    n_bytes: int


def parse_prefix(data: memoryview, n_bytes: int, *, where: str) -> Layout:
    """Check the container of a block file of `n_bytes`, given its first bytes.

    Args:
        data: the file, or at least its first 8 + MAX_HEADER_BYTES bytes.
        n_bytes: length of the whole file.
        where: the file's name for messages.

    Raises:
        BlockWrongMagic, BlockTruncated, BlockTrailingBytes, BlockOversize, BlockCorrupt.
    """
    if n_bytes < 8:
        raise BlockTruncated(
            "the file ends inside its length field", where=where, expected=8, found=n_bytes
        )
    size = int.from_bytes(data[:8], "little")
    if bytes(data[8:9]) not in (b"", b"{"):
        raise BlockWrongMagic(
            "not a safetensors container",
            where=where,
            expected="a length of 8 bytes, then {",
            found=bytes(data[:9]),
        )
    if size > MAX_HEADER_BYTES:
        raise BlockOversize(
            "the header length is too large",
            where=where,
            expected=f"at most {MAX_HEADER_BYTES}",
            found=size,
        )
    if n_bytes < 8 + size:
        raise BlockTruncated(
            "the file ends inside its header", where=where, expected=8 + size, found=n_bytes
        )
    text = bytes(data[8 : 8 + size])
    if not text:
        raise BlockWrongMagic("a safetensors container without its JSON", where=where)
    header = _read_container(text, where)
    prefix = container_prefix(header)
    if data[: len(prefix)] != prefix:
        raise BlockCorrupt(
            "the container is not in its canonical form",
            where=where,
            found="other order, spelling or padding of the same header",
            hint="written by other software, or damaged in its header",
        )
    state_offset = len(prefix) + 4 * header.tokens.n
    end = state_offset + header.state.bytes
    if n_bytes < end:
        raise BlockTruncated(
            "the file ends before its state does", where=where, expected=end, found=n_bytes
        )
    if n_bytes > end:
        raise BlockTrailingBytes(
            "the file goes on behind its state", where=where, expected=end, found=n_bytes
        )
    return Layout(header, len(prefix), state_offset, end)


def _read_container(text: bytes, where: str) -> BlockHeader:
    try:
        container = canonical.loads(text, where=where, max_bytes=MAX_HEADER_BYTES)
    except UnusableInput as error:
        raise BlockCorrupt(f"damaged header: {error.what}", where=where) from error
    metadata = container.get("__metadata__") if isinstance(container, dict) else None
    inner = metadata.get(_KEY) if isinstance(metadata, dict) else None
    if not isinstance(inner, str):
        raise BlockWrongMagic(
            "a container without a block header", where=where, expected="metadata key kvb"
        )
    try:
        value = canonical.loads(inner.encode("utf-8"), where=where, max_bytes=MAX_HEADER_BYTES)
    except UnusableInput as error:
        raise BlockCorrupt(f"damaged header: {error.what}", where=where) from error
    header = BlockHeader.from_json(value, where=where)
    try:
        written = _container(header)
    except UnusableInput as error:
        raise BlockCorrupt(f"damaged header: {error.what}", where=where) from error
    for field, wanted, found in _differences(written, container):
        raise BlockCorrupt(
            f"the container's {printable(field)} does not fit the block header",
            where=where,
            expected=wanted,
            found=found,
        )
    return header


def _differences(wanted: Any, found: Any, field: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ, by path; `true` is not 1."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in sorted(wanted.keys() | found.keys()):
            path = f"{field}.{key}" if field else str(key)
            if key == _KEY and key in wanted and key in found:
                if wanted[key] != found[key]:  # the same header, spelled otherwise
                    yield path, "its canonical JSON (RFC 8785)", "another spelling"
            else:
                yield from _differences(wanted.get(key), found.get(key), path)
    elif type(wanted) is not type(found) or wanted != found:
        yield field, wanted, found
