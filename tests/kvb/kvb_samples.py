"""Small blocks of fixed or seeded content, and containers that break one rule each."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import canonical, kvb

MODEL = kvb.ModelIdentity("tiny-llama", "a" * 64, "llama")
PROFILE = "b" * 64
ENGINE = "c" * 64

Parts = tuple[kvb.BlockHeader, NDArray[np.int32], bytes]


def make(n_tokens: int = 7, n_state: int = 300, seed: int = 0, **changes: Any) -> Parts:
    """A valid block: header, tokens, state; equal arguments give equal bytes."""
    state = random.Random(seed).randbytes(n_state)
    tokens = np.arange(seed, seed + n_tokens, dtype=np.int32)
    given: dict[str, Any] = {"provenance": {"source": "text"}, **changes}
    header = kvb.build(
        model=MODEL, profile=PROFILE, engine=ENGINE, tokens=tokens, state=state, **given
    )
    return header, tokens, state


def file_bytes(parts: Parts) -> bytes:
    """The bytes of the block's file."""
    buffer = io.BytesIO()
    kvb.write_block(buffer, *parts)
    return buffer.getvalue()


def sample(**changes: Any) -> tuple[str, bytes]:
    """Id and file of a valid block."""
    parts = make(**changes)
    return parts[0].id, file_bytes(parts)


def container_of(data: bytes) -> dict[str, Any]:
    """The JSON object in front of a block file's tensors."""
    size = int.from_bytes(data[:8], "little")
    value = canonical.loads(data[8 : 8 + size], where="container")
    assert isinstance(value, dict)
    return value


def body_of(data: bytes) -> bytes:
    """What follows the container's JSON: tokens and state."""
    return data[8 + int.from_bytes(data[:8], "little") :]


def joined(text: bytes, body: bytes, align: bool = True) -> bytes:
    """A file of any JSON text and body, the text padded as the format wants it."""
    if align:
        text += b" " * (-(8 + len(text) + 4 * 7) % kvb.ALIGNMENT)
    return len(text).to_bytes(8, "little") + text + body


def with_container(data: bytes, **changes: Any) -> bytes:
    """The file with top-level fields of its container replaced (None removes one)."""
    container = {**container_of(data), **changes}
    container = {key: value for key, value in container.items() if value is not None}
    return joined(canonical.dumps(container), body_of(data))


def with_header(data: bytes, **changes: Any) -> bytes:
    """The file with fields of its block header replaced, canonical again (None stays null)."""
    container = container_of(data)
    header = {
        **canonical.loads(container["__metadata__"]["kvb"].encode(), where="header"),
        **changes,
    }
    return with_container(data, __metadata__={"kvb": canonical.dumps(header).decode()})


def header_json(data: bytes) -> dict[str, Any]:
    """The block header of a file as JSON."""
    text = container_of(data)["__metadata__"]["kvb"]
    value = canonical.loads(text.encode(), where="header")
    assert isinstance(value, dict)
    return value
