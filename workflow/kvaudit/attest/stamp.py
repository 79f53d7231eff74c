"""A time stamp of a run's attestation: asked for and accepted as files, no network.

It is over the bytes of the envelope, so that it says of every signature in it that it existed then.
Another signature makes other bytes: all sign first, and one stamp follows. This module must not
know what was signed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvaudit import atomic, locks, manifest, timestamp
from kvaudit.attest import dsse
from kvaudit.errors import EvidenceIncomplete, TypedError, UnusableInput
from kvaudit.safefs import SafeRoot
from kvaudit.timestamp import Stamp, TimestampMismatch

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


def request(run_folder: str | Path) -> bytes:
    """A request for a time stamp of the run's attestation, to be sent to an authority.

    Raises:
        EvidenceIncomplete: the run is not signed.
        UnusableInput: its envelope is malformed.
    """
    with SafeRoot(run_folder) as root:
        return timestamp.request(_envelope(root))


def accept(
    run_folder: str | Path, reply: bytes, roots: Sequence[Certificate], *, where: str
) -> Stamp:
    """Checks an authority's reply and writes it beside the attestation, atomically.

    Args:
        run_folder: a signed run.
        reply: DER.
        roots: certificates that are trusted to stamp times.
        where: what to call the reply in an error.

    Raises:
        EvidenceIncomplete: the run is not signed.
        TimestampRefused: the reply proves nothing about this attestation, or is older than the run.
        LockTimeout: others sign or stamp the run all the time.
        UnusableInput: a time stamp of this very attestation is there, whoever made it, or it cannot
            be written. A file that is none is replaced.
    """
    path = Path(run_folder) / manifest.ATTESTATION_STAMP
    with alone(run_folder), SafeRoot(run_folder) as root:
        envelope = _envelope(root)
        stamp = _follows(root, timestamp.verify(reply, envelope, roots, where=where), where)
        if holds(root):
            raise UnusableInput(
                "the attestation has a time stamp already",
                where=path,
                hint="remove that file to take this reply in its place",
            )
        try:
            atomic.write_bytes(path, reply)
        except OSError as error:
            raise UnusableInput(
                "the time stamp cannot be written", where=path, found=error.strerror or error
            ) from None
    return stamp


def check(root: SafeRoot, envelope: bytes, roots: Sequence[Certificate]) -> Stamp | None:
    """The run's time stamp, verified; None where it has none.

    Raises:
        TimestampRefused: it proves nothing about this envelope, or is older than the run.
        UnusableInput: it is too long, or no regular file.
    """
    token = _token(root)
    if token is None:
        return None
    where = manifest.ATTESTATION_STAMP
    return _follows(root, timestamp.verify(token, envelope, roots, where=where), where)


def look(root: SafeRoot) -> bool:
    """Whether there is a time stamp; it must be one of the run's attestation, whoever made it.

    Raises:
        TimestampRefused: it is none, or of other bytes.
        UnusableInput: it is too long, or the envelope is.
    """
    token = _token(root)
    if token is None:
        return False
    where = manifest.ATTESTATION_STAMP
    try:
        envelope = root.read(manifest.ATTESTATION, max_bytes=dsse.MAX_ENVELOPE_BYTES)
    except EvidenceIncomplete:
        raise TimestampMismatch("nobody has signed what is stamped", where=where) from None
    _follows(root, timestamp.read(token, envelope, where=where), where)
    return True


def holds(root: SafeRoot) -> bool:
    """Whether a time stamp of the very envelope that is there lies beside it, whoever made it."""
    try:
        return look(root)
    except UnusableInput:
        return False


@contextmanager
def alone(run_folder: str | Path) -> Iterator[None]:
    """Nobody else signs or stamps the run meanwhile; what killed writers of it left is removed.

    Raises:
        LockTimeout: somebody does, for longer than is waited.
        UnusableInput: the folder cannot be locked.
    """
    try:
        descriptor = locks.hold_folder(run_folder)
    except OSError as error:
        raise UnusableInput(
            "the run cannot be locked", where=run_folder, found=error.strerror or error
        ) from None
    try:
        for name in (manifest.ATTESTATION, manifest.ATTESTATION_STAMP, manifest.VERDICT):
            atomic.sweep(Path(run_folder) / name)
        yield
    finally:
        os.close(descriptor)


def _token(root: SafeRoot) -> bytes | None:
    try:
        return root.read(manifest.ATTESTATION_STAMP, max_bytes=timestamp.MAX_BYTES)
    except EvidenceIncomplete:
        return None


def _follows(root: SafeRoot, stamp: Stamp, where: str) -> Stamp:
    """The stamp, which cannot be from before the end of the run whose evidence was signed."""
    try:
        data = root.read(manifest.RUN, max_bytes=manifest.MAX_MANIFEST_BYTES)
        ended = manifest.parse(data, "run", where=manifest.RUN)["ended"]
    except TypedError:  # the check of the files names it
        return stamp
    if stamp.text < ended:
        raise TimestampMismatch(
            "the time stamp is older than the run",
            where=where,
            expected=f"not before {ended}",
            found=stamp.text,
        )
    return stamp


def _envelope(root: SafeRoot) -> bytes:
    data = root.read(manifest.ATTESTATION, max_bytes=dsse.MAX_ENVELOPE_BYTES)
    dsse.parse(data, where=manifest.ATTESTATION)
    return data
