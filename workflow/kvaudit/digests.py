"""SHA-256 of bytes, files, JSON values and named trees; BLAKE3 where a block is verified in haste.

This module must not know what it hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvaudit import canonical

BUFFER_BYTES = 1024 * 1024


def sha256_bytes(data: bytes | bytearray | memoryview) -> str:
    """The SHA-256 of a byte string, 64 lower-case hexadecimal characters."""
    return hashlib.sha256(data).hexdigest()


def blake3_bytes(data: bytes | bytearray | memoryview) -> str:
    """The BLAKE3 of a byte string, 64 lower-case hexadecimal characters, in the calling thread."""
    from blake3 import blake3

    return blake3(data).hexdigest()


def sha256_file(path: str | Path) -> str:
    """The SHA-256 of a file's content, read in pieces of 1 MiB.

    Raises:
        OSError: the file cannot be read.
    """
    hasher = hashlib.sha256()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(view[:count])
    return hasher.hexdigest()


def sha256_json(value: Any) -> str:
    """The SHA-256 of a JSON value's canonical bytes (RFC 8785, no final newline)."""
    return sha256_bytes(canonical.dumps(value))


def tree_digest(entries: Mapping[str, str]) -> str:
    """The digest of a set of named contents: of the canonical JSON of {name: sha256}.

    Names are part of what is hashed, so a renamed or swapped file changes the digest.
    """
    return sha256_json(dict(entries))
