"""The block file `.kvb`: a captured state with its tokens and identity, in a safetensors container.

Pure format: it can be read, checked and written without an engine. The container's metadata holds
the canonical header; tensors are `tokens` (int32) and `state` (bytes), in this order, without gaps.
The header lists the SHA-256 of every 4 MiB of `state`; the header's own SHA-256 is the block's id.
The format has one byte form only: everything that could vary is fixed and checked on reading.
Mapping a file is `kvaudit.kvb_map`; stores are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvaudit import canonical, digests, schemas
from kvaudit.errors import (
    BlockCorrupt,
    BlockOversize,
    BlockTrailingBytes,
    BlockTruncated,
    BlockWrongMagic,
    UnusableInput,
)

FORMAT = "kvb/1"
CHUNK_BYTES = 4 << 20
ALIGNMENT = 64
MAX_HEADER_BYTES = 16 << 20
MAX_TOKENS = 1 << 24
MAX_STATE_BYTES = 1 << 40

_KEY = "kvb"
_FORMAT = re.compile(r"^kvb/\d+$")


@dataclass(frozen=True)
class ModelIdentity:
    """Which model computed a state: name, SHA-256 of the GGUF file, architecture."""

    name: str
    sha256: str
    architecture: str


@dataclass(frozen=True)
class TokenIdentity:
    """Number of tokens, and the SHA-256 of their int32 little-endian bytes."""

    n: int
    sha256: str


@dataclass(frozen=True)
class StateIdentity:
    """Length of the state, chunk length, and the SHA-256 of each chunk in order."""

    bytes: int
    chunk_bytes: int
    chunks: tuple[str, ...]


@dataclass(frozen=True)
class BlockHeader:
    """Identity of a block. Equal content has an equal id: there is no wall clock in it.

    Attributes:
        model: the model.
        profile: digest of the execution profile, hex.
        engine: digest of the engine's shared libraries as one tree, hex.
        tokens: the span.
        state: the sequence state.
        start: own position of the first token; 0 unless the block continues a parent.
        parent: id of the block it continues, or None.
        provenance: any JSON object.
    """

    model: ModelIdentity
    profile: str
    engine: str
    tokens: TokenIdentity
    state: StateIdentity
    start: int
    parent: str | None
    provenance: Mapping[str, Any]
    format: str = FORMAT

    def to_json(self) -> dict[str, Any]:
        """The header as a JSON object (schema block-header.v1.json, field `header`)."""
        return {
            "format": self.format,
            "model": vars(self.model).copy(),
            "profile": self.profile,
            "engine": self.engine,
            "tokens": vars(self.tokens).copy(),
            "state": {**vars(self.state), "chunks": list(self.state.chunks)},
            "start": self.start,
            "parent": self.parent,
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, where: str = "header") -> BlockHeader:
        """Build a header from its JSON form, strictly validated.

        Raises:
            BlockWrongMagic: another format or version.
            BlockOversize: a length is out of bounds.
            BlockCorrupt: a field is missing, of the wrong kind, or at odds with another.
        """
        name = value.get("format") if isinstance(value, dict) else None
        if name != FORMAT:
            known = isinstance(name, str) and _FORMAT.match(name)
            raise BlockWrongMagic(
                "block of another format version" if known else "not a block header",
                where=where,
                expected=FORMAT,
                found=name,
                hint="a newer kvgraft may read it" if known else None,
            )
        _refuse_oversize(value, where)
        record = {"kind": "block-header", "version": 1, "id": "0" * 64, "header": value}
        try:
            schemas.validate(record, "block-header", where=where)
        except UnusableInput as error:
            raise BlockCorrupt(f"damaged header: {error}", where=where) from error
        header = cls(
            model=ModelIdentity(**value["model"]),
            profile=value["profile"],
            engine=value["engine"],
            tokens=TokenIdentity(**value["tokens"]),
            state=StateIdentity(**{**value["state"], "chunks": tuple(value["state"]["chunks"])}),
            start=value["start"],
            parent=value["parent"],
            provenance=value["provenance"],
        )
        header._check(where)
        return header

    def _check(self, where: str) -> None:
        n_chunks = -(-self.state.bytes // CHUNK_BYTES)
        if self.state.chunk_bytes != CHUNK_BYTES or len(self.state.chunks) != n_chunks:
            raise BlockCorrupt(
                "the chunk list does not fit the state's length",
                where=where,
                expected=f"{n_chunks} chunks of {CHUNK_BYTES} bytes",
                found=f"{len(self.state.chunks)} of {self.state.chunk_bytes}",
            )
        if (self.start == 0) != (self.parent is None):
            raise BlockCorrupt(
                "a block starts at position 0 or names its parent, and not both",
                where=where,
                found=f"start {self.start}, parent {self.parent}",
            )

    def canonical(self) -> bytes:
        """The header's canonical JSON (RFC 8785)."""
        return canonical.dumps(self.to_json())

    @property
    def id(self) -> str:
        """SHA-256 of the canonical header, hex: the block's name."""
        return digests.sha256_bytes(self.canonical())


def _refuse_oversize(value: Mapping[str, Any], where: str) -> None:
    for part, field, limit in (("tokens", "n", MAX_TOKENS), ("state", "bytes", MAX_STATE_BYTES)):
        inner = value.get(part)
        found = inner.get(field) if isinstance(inner, dict) else None
        if isinstance(found, int) and found > limit:
            raise BlockOversize(
                f"{part}.{field} is too large",
                where=where,
                expected=f"at most {limit}",
                found=found,
            )


def build(
    *,
    model: ModelIdentity,
    profile: str,
    engine: str,
    tokens: NDArray[np.int32],
    state: memoryview,
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
    """
    view = memoryview(state).cast("B")
    header = BlockHeader(
        model=model,
        profile=profile,
        engine=engine,
        tokens=TokenIdentity(len(tokens), token_digest(tokens)),
        state=StateIdentity(len(view), CHUNK_BYTES, tuple(chunk_digests(view))),
        start=start,
        parent=parent,
        provenance=dict(provenance or {}),
    )
    # Through the JSON form, so that what is written can be read back.
    return BlockHeader.from_json(canonical.loads(header.canonical(), where="header"))


def token_digest(tokens: NDArray[np.int32]) -> str:
    """SHA-256 of token ids as int32 little-endian bytes, hex."""
    return digests.sha256_bytes(np.ascontiguousarray(tokens, "<i4").tobytes())


def chunk_digests(view: memoryview, threads: int | None = None) -> list[str]:
    """SHA-256 of every chunk, hashed side by side; hashing releases the interpreter lock."""
    pieces = [view[i : i + CHUNK_BYTES] for i in range(0, len(view), CHUNK_BYTES)]
    if len(pieces) < 2:
        return [digests.sha256_bytes(piece) for piece in pieces]
    with ThreadPoolExecutor(max_workers=threads) as pool:
        return list(pool.map(digests.sha256_bytes, pieces))


def container_prefix(header: BlockHeader) -> bytes:
    """Everything in front of the tokens: length, JSON, and spaces that align `state`."""
    n_tokens = 4 * header.tokens.n
    # Written out by hand because the container keeps insertion order and RFC 8785 does not.
    text = canonical.dumps(
        {
            "__metadata__": {_KEY: header.canonical().decode("utf-8")},
            "state": {
                "data_offsets": [n_tokens, n_tokens + header.state.bytes],
                "dtype": "U8",
                "shape": [header.state.bytes],
            },
            "tokens": {"data_offsets": [0, n_tokens], "dtype": "I32", "shape": [header.tokens.n]},
        }
    )
    padding = -(8 + len(text) + n_tokens) % ALIGNMENT
    text += b" " * padding
    if len(text) > MAX_HEADER_BYTES:
        raise BlockOversize(
            "the header is too large", expected=f"at most {MAX_HEADER_BYTES}", found=len(text)
        )
    return len(text).to_bytes(8, "little") + text


def write_block(
    file: BinaryIO, header: BlockHeader, tokens: NDArray[np.int32], state: memoryview
) -> None:
    """Write a block; the same block has the same bytes everywhere.

    Raises:
        BlockCorrupt: tokens or state are not those of the header.
    """
    view = memoryview(state).cast("B")
    if len(view) != header.state.bytes or token_digest(tokens) != header.tokens.sha256:
        raise BlockCorrupt("tokens or state are not those of the header", where=header.id)
    file.write(container_prefix(header))
    file.write(np.ascontiguousarray(tokens, "<i4").tobytes())
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
    if size > MAX_HEADER_BYTES:
        raise BlockOversize(
            "the header length is too large, or this is no block file",
            where=where,
            expected=f"at most {MAX_HEADER_BYTES}",
            found=size,
        )
    if n_bytes < 8 + size:
        raise BlockTruncated(
            "the file ends inside its header", where=where, expected=8 + size, found=n_bytes
        )
    text = bytes(data[8 : 8 + size])
    if not text.startswith(b"{"):
        raise BlockWrongMagic("not a safetensors container", where=where, found=text[:8])
    header = _header(text, where)
    prefix = container_prefix(header)
    if data[: len(prefix)] != prefix:
        raise BlockCorrupt(
            "the container is not in its canonical form",
            where=where,
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


def _header(text: bytes, where: str) -> BlockHeader:
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
    except (UnusableInput, UnicodeEncodeError) as error:
        raise BlockCorrupt(f"damaged header: {error}", where=where) from error
    return BlockHeader.from_json(value, where=where)
