"""A time stamp of a run's attestation: asked for and accepted as files, no network.

It is over the bytes of the envelope, so that it says of every signature in it that it existed then.
Another signature makes other bytes: all sign first, and one stamp follows. This module must not
know what was signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvaudit import atomic, manifest, timestamp
from kvaudit.attest import dsse
from kvaudit.errors import EvidenceIncomplete, UnusableInput
from kvaudit.safefs import SafeRoot
from kvaudit.timestamp import Stamp, TimestampRefused

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
        TimestampRefused: the reply proves nothing about this attestation.
        UnusableInput: a time stamp of this very attestation is there, whoever made it, or it cannot
            be written. A file that is none is replaced.
    """
    path = Path(run_folder) / manifest.ATTESTATION_STAMP
    with SafeRoot(run_folder) as root:
        envelope = _envelope(root)
        stamp = timestamp.verify(reply, envelope, roots, where=where)
        if _holds(root, envelope):
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
        TimestampRefused: it proves nothing about this envelope.
    """
    try:
        token = root.read(manifest.ATTESTATION_STAMP, max_bytes=timestamp.MAX_BYTES)
    except EvidenceIncomplete:
        return None
    return timestamp.verify(token, envelope, roots, where=manifest.ATTESTATION_STAMP)


def _holds(root: SafeRoot, envelope: bytes) -> bool:
    """Whether a time stamp of these very bytes lies there, whoever made it."""
    try:
        token = root.read(manifest.ATTESTATION_STAMP, max_bytes=timestamp.MAX_BYTES)
        timestamp.read(token, envelope, where=manifest.ATTESTATION_STAMP)
    except (EvidenceIncomplete, TimestampRefused):
        return False
    return True


def _envelope(root: SafeRoot) -> bytes:
    data = root.read(manifest.ATTESTATION, max_bytes=dsse.MAX_ENVELOPE_BYTES)
    dsse.parse(data, where=manifest.ATTESTATION)
    return data
