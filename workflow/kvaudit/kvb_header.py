"""Identity of a block: what its header says, what it must not say, and the digests in it.

The header's canonical JSON is what is hashed: its SHA-256 is the block's id. Every field is checked
against the schema and against the others, whether it was read or is about to be written. How a
header travels in a file is `kvaudit.kvb`; it is not known here.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import canonical, digests, profiles, schemas
from kvaudit.errors import BlockCorrupt, BlockOversize, BlockWrongMagic, UnusableInput

FORMAT = "kvb/1"
CHUNK_BYTES = 4 << 20
MAX_POSITION = 2**31 - 1
"""Positions are int32 in the engine."""
MAX_TOKENS = 1 << 24
MAX_STATE_BYTES = 1 << 40

Digest = Callable[[memoryview], str]

_FORMAT = re.compile(r"kvb/\d{1,9}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


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
    """Length of the state, chunk length, and two digests of each chunk in order.

    Attributes:
        bytes: length of the state.
        chunk_bytes: length of a chunk; the last one may be shorter.
        chunks: SHA-256 of each, hex: what anybody can check with common tools.
        blake3: BLAKE3 of each, hex: what a graft checks, several times faster (docs/adr/0006).
    """

    bytes: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    blake3: tuple[str, ...]


@dataclass(frozen=True)
class BlockHeader:
    """Identity of a block. Equal content has an equal id: there is no wall clock in it.

    Attributes:
        model: the model.
        profile: digest of the execution profile, hex.
        engine: digest of the engine's shared libraries as one tree, or of the definition of the
            portable arithmetic, hex.
        tokens: the span.
        state: the sequence state.
        start: own position of the first token: behind its parent's last, or any without one.
        parent: id of the block it continues, or None.
        provenance: any JSON object. Where it has a `profile`, that is the whole profile, and
            `profile` and `engine` of the header are what follows from it.
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
            "state": {
                **vars(self.state),
                "chunks": list(self.state.chunks),
                "blake3": list(self.state.blake3),
            },
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
            known = isinstance(name, str) and _FORMAT.fullmatch(name)
            raise BlockWrongMagic(
                "block of another format version" if known else "not a block header",
                where=where,
                expected=FORMAT,
                found=name,
                hint="a newer kvgraft may read it" if known else None,
            )
        _refuse_oversize(value, where)
        _refuse_other_than_digests(value, where)
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
            state=StateIdentity(
                value["state"]["bytes"],
                value["state"]["chunk_bytes"],
                tuple(value["state"]["chunks"]),
                tuple(value["state"]["blake3"]),
            ),
            start=value["start"],
            parent=value["parent"],
            provenance=value["provenance"],
        )
        header._check(where)
        return header

    def _check(self, where: str) -> None:
        n_chunks = -(-self.state.bytes // CHUNK_BYTES)
        listed = {len(self.state.chunks), len(self.state.blake3)}
        if self.state.chunk_bytes != CHUNK_BYTES or listed != {n_chunks}:
            raise BlockCorrupt(
                "the chunk list does not fit the state's length",
                where=where,
                expected=f"{n_chunks} chunks of {CHUNK_BYTES} bytes",
                found=f"{sorted(listed)} of {self.state.chunk_bytes}",
            )
        if self.start + self.tokens.n > MAX_POSITION:
            raise BlockOversize(
                "the block's positions are beyond what an engine counts",
                where=where,
                expected=f"an end of at most {MAX_POSITION}",
                found=self.start + self.tokens.n,
            )
        if self.start == 0 and self.parent is not None:
            raise BlockCorrupt(
                "a block that continues a parent starts behind it",
                where=where,
                expected="a start above 0",
                found=f"start 0, parent {self.parent}",
            )
        if "profile" in self.provenance:
            self._check_profile(self.provenance["profile"], where)

    def _check_profile(self, profile: Any, where: str) -> None:
        """The two digests that decide about a graft are those of the profile that is told."""
        try:
            found = digests.sha256_json(profile)
        except UnusableInput as error:
            raise BlockCorrupt(f"damaged header: {error.what}", where=where) from error
        if found != self.profile:
            raise BlockCorrupt(
                "the profile in the provenance is not that of the header's digest",
                where=where,
                expected=self.profile,
                found=found,
            )
        computes = profiles.told_engine(profile)
        if computes != self.engine:
            raise BlockCorrupt(
                "the engine is not that of the profile in the provenance",
                where=where,
                expected=computes or "a profile that names libraries or an arithmetic",
                found=self.engine,
            )

    @functools.cached_property
    def _canonical(self) -> bytes:
        return canonical.dumps(self.to_json())

    def canonical(self) -> bytes:
        """The header's canonical JSON (RFC 8785)."""
        return self._canonical

    @functools.cached_property
    def id(self) -> str:
        """SHA-256 of the canonical header, hex: the block's name."""
        return digests.sha256_bytes(self._canonical)


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


def _refuse_other_than_digests(value: Mapping[str, Any], where: str) -> None:
    """Ahead of the schema, which would take minutes to complain of millions of entries."""
    state = value.get("state")
    for field in ("chunks", "blake3"):
        listed = state.get(field) if isinstance(state, dict) else None
        for index, one in enumerate(listed if isinstance(listed, list) else ()):
            if not (isinstance(one, str) and _DIGEST.fullmatch(one)):
                raise BlockCorrupt(
                    f"damaged header: state.{field}/{index} is no digest",
                    where=where,
                    expected="64 hexadecimal digits",
                    found=one,
                )


def token_bytes(tokens: NDArray[np.int32]) -> bytes:
    """Token ids as int32 little-endian bytes, the form that is hashed and stored.

    Raises:
        BlockCorrupt: not int32 [n]; a wider type could lose bits without a sound.
    """
    if tokens.dtype != np.int32 or tokens.ndim != 1:
        raise BlockCorrupt(
            "token ids are a vector of int32",
            expected="int32 [n]",
            found=f"{tokens.dtype} {list(tokens.shape)}",
        )
    return tokens.astype("<i4", copy=False).tobytes()


def token_digest(tokens: NDArray[np.int32]) -> str:
    """SHA-256 of token ids as int32 little-endian bytes, hex."""
    return digests.sha256_bytes(token_bytes(tokens))


def chunk_digests(
    view: memoryview, threads: int | None = None, digest: Digest = digests.sha256_bytes
) -> list[str]:
    """Digest of every chunk, hashed side by side; hashing releases the interpreter lock.

    Args:
        view: bytes of a state; hashed where they lie, no copy is made.
        threads: how many side by side; None for one a core.
        digest: `digests.sha256_bytes` or `digests.blake3_bytes`.
    """
    pieces = [view[i : i + CHUNK_BYTES] for i in range(0, len(view), CHUNK_BYTES)]
    n_threads = min(threads or os.cpu_count() or 1, len(pieces))
    if n_threads < 2:
        return [digest(piece) for piece in pieces]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(digest, pieces))
