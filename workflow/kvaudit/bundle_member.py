"""What a bundle's readers hand to the unpacker: one member at a time, its content in pieces.

This module must not know how an archive is laid out, nor where its members go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

PIECE_BYTES = 256 * 1024
"""No reader holds more of a member's content than this at once."""


@dataclass(frozen=True)
class Member:
    """One entry of an archive.

    Attributes:
        name: as the archive spells it, a folder without its last `/`; not yet found harmless.
        folder: whether it is a folder; otherwise it is a regular file.
        size: the announced length in bytes.
        pieces: the content, to be read before the next member is asked for.
    """

    name: str
    folder: bool
    size: int
    pieces: Iterator[bytes]


class Stream(Protocol):
    """A source of bytes that is read once, from its beginning to its end."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...
