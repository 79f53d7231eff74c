"""Errors shared by the audit and the engine side.

Every error says what was expected, what was found, where, and what to do next; callers match on
the class, people read the message. This module must not import anything of the project.
"""

from __future__ import annotations


class TypedError(Exception):
    """Base of every error this project raises on purpose.

    Args:
        what: one sentence: which rule was broken.
        expected: the value or property that was required.
        found: the value or property that was seen.
        where: a path, a field or an offset.
        hint: the next step for the reader.
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        expected: object = None,
        found: object = None,
        where: object = None,
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.where = where
        self.hint = hint
        super().__init__(self.message())

    def message(self) -> str:
        """The whole error on one line, control characters escaped."""
        parts = [self.what]
        if self.where is not None:
            parts.append(f"at {printable(self.where)}")
        if self.expected is not None:
            parts.append(f"expected {printable(self.expected)}")
        if self.found is not None:
            parts.append(f"found {printable(self.found)}")
        text = "; ".join(parts)
        return f"{text} ({self.hint})" if self.hint else text

    def __str__(self) -> str:
        return self.message()


def printable(value: object, limit: int = 200) -> str:
    """A printable form of `value`: no line breaks, no surrogates, bounded length."""
    text = value if isinstance(value, str) else str(value)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class UnusableInput(TypedError):
    """The input cannot be read as evidence at all (exit 2)."""


class EvidenceIncomplete(TypedError):
    """Evidence that the manifests promise is not there (exit 3)."""

    exit_code = 3


class ToolMissing(TypedError):
    """A program or library that only this command needs is not installed (exit 3)."""

    exit_code = 3


class SandboxUnavailable(ToolMissing):
    """This machine cannot isolate a program, and none is run without isolation (exit 3)."""


class LockTimeout(TypedError):
    """Another process holds a lock for longer than it is waited for."""


class InputChanged(TypedError):
    """A file no longer has the digest under which it was registered."""

    exit_code = 1


class SignatureInvalid(TypedError):
    """Signatures do not vouch for a payload: forged, of another key, or too few (exit 1)."""

    exit_code = 1


class BlockRefused(TypedError):
    """Base of the reasons why a block file is not accepted."""


class BlockCorrupt(BlockRefused):
    """Bytes of a block file do not agree with its header or the format."""


class BlockChunkCorrupt(BlockCorrupt):
    """One chunk of the state does not have its recorded digest; `chunk` is its index."""

    def __init__(self, what: str, *, chunk: int, **details: object) -> None:
        self.chunk = chunk
        super().__init__(what, **details)  # type: ignore[arg-type]


class BlockTruncated(BlockCorrupt):
    """The file ends before the state does."""


class BlockTrailingBytes(BlockCorrupt):
    """The file goes on after the state has ended."""


class BlockWrongMagic(BlockRefused):
    """The file is not a block container, or of an unknown format version."""


class BlockOversize(BlockRefused):
    """A length in the header exceeds what the format allows."""


class BlockNotFound(BlockRefused):
    """The store holds no block of that id."""
