"""DSSE v1: a payload, its type, and signatures over both, in one JSON envelope.

A signature counts for the key that made it, not for the id that stands beside it: the id is a hint,
as the specification says, and a key counts once. Where a reader is free by the specification
(unknown fields, the alphabet of base64, white space), this one is not: an envelope is canonical
JSON and one newline. This module must not know what a payload means.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvaudit import canonical, schemas
from kvaudit.attest.keys import SIGNATURE_BYTES, PrivateKey, PublicKey
from kvaudit.errors import SignatureInvalid, UnusableInput

# Bounds of the work for one envelope: each signature is tried with each key at most once.
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
MAX_ENVELOPE_BYTES = 6 * 1024 * 1024
MAX_SIGNATURES = 16
MAX_KEYS = 8

__all__ = [
    "Envelope",
    "SignatureInvalid",
    "Signed",
    "check_threshold",
    "open",
    "pae",
    "parse",
    "sign",
    "signers",
    "to_bytes",
]


@dataclass(frozen=True)
class Signed:
    """One signature of an envelope: the id that stands beside it, if any, and 64 bytes."""

    keyid: str | None
    signature: bytes


@dataclass(frozen=True)
class Envelope:
    """An envelope as it was read; nothing about it has been verified."""

    payload: bytes
    payload_type: str
    signatures: tuple[Signed, ...]


def pae(payload_type: str, payload: bytes) -> bytes:
    """The pre-authentication encoding: the bytes that are signed (DSSE v1, protocol.md)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(
    payload: bytes,
    payload_type: str,
    keys: Iterable[PrivateKey],
    onto: Sequence[Signed] = (),
) -> dict[str, Any]:
    """The envelope of a payload, signed by every key; write it with `to_bytes`.

    Args:
        payload: at most 4 MiB.
        payload_type: e.g. application/vnd.in-toto+json.
        keys: a key given twice signs once.
        onto: earlier signatures of the same payload, which stay; a key among them does not sign
            again.

    Raises:
        UnusableInput: no key, too many of them, or too long a payload.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UnusableInput(
            "the payload is too long to be signed",
            expected=f"at most {MAX_PAYLOAD_BYTES} bytes",
            found=f"{len(payload)} bytes",
        )
    data = pae(payload_type, payload)
    made = list(onto)
    for key in keys:
        if key.keyid not in {entry.keyid for entry in made}:
            made.append(Signed(key.keyid, key.sign(data)))
    if not 1 <= len(made) <= MAX_SIGNATURES:
        raise UnusableInput(
            "the number of signatures is out of range",
            expected=f"1 to {MAX_SIGNATURES}",
            found=len(made),
        )
    value = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": [_signature_json(entry) for entry in made],
    }
    schemas.validate(value, "dsse-envelope", where="the envelope")
    return value


def to_bytes(envelope: dict[str, Any]) -> bytes:
    """The bytes of an envelope's file: canonical JSON and one newline."""
    return canonical.dumps(envelope) + b"\n"


def parse(data: bytes, *, where: str = "the envelope") -> Envelope:
    """Reads an envelope strictly, and verifies nothing.

    Raises:
        UnusableInput: longer than 6 MiB, not canonical JSON of the schema, base64 with a stray
            character or bit, or two signatures with one key id.
    """
    value = canonical.loads_document(data, where=where, max_bytes=MAX_ENVELOPE_BYTES)
    schemas.validate(value, "dsse-envelope", where=where)
    payload = _decoded(value["payload"], f"{where}: payload")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UnusableInput(
            "the payload is too long", where=where, expected=f"at most {MAX_PAYLOAD_BYTES} bytes"
        )
    signatures = []
    for index, entry in enumerate(value["signatures"]):
        place = f"{where}: signatures/{index}"
        signature = _decoded(entry["sig"], place)
        if len(signature) != SIGNATURE_BYTES:
            raise UnusableInput(
                "the signature is none of Ed25519",
                where=place,
                expected=f"{SIGNATURE_BYTES} bytes",
                found=f"{len(signature)} bytes",
            )
        signatures.append(Signed(entry.get("keyid"), signature))
    named = [entry.keyid for entry in signatures if entry.keyid is not None]
    if len(named) != len({*named}):
        raise UnusableInput("two signatures have one key id", where=where)
    return Envelope(payload, value["payloadType"], tuple(signatures))


def check_threshold(keys: Sequence[PublicKey], threshold: int) -> tuple[PublicKey, ...]:
    """The different ones among `keys`.

    Raises:
        UnusableInput: they cannot reach `threshold`, or are more than 8.
    """
    trusted = tuple(dict.fromkeys(keys))
    if not 1 <= threshold <= len(trusted) <= MAX_KEYS:
        raise UnusableInput(
            "so many different keys cannot have signed",
            expected=f"a threshold from 1 to the number of different keys, at most {MAX_KEYS}",
            found=f"threshold {threshold} of {len(trusted)} different keys",
        )
    return trusted


def signers(
    envelope: bytes,
    payload_type: str,
    keys: Sequence[PublicKey],
    threshold: int = 1,
    *,
    where: str = "the envelope",
) -> tuple[bytes, tuple[PublicKey, ...]]:
    """The payload, and those of `keys` that have signed it.

    Args:
        envelope: the bytes of its file.
        payload_type: the only one that is accepted.
        keys: whom the reader trusts; a key given twice is one key.
        threshold: how many of them must have signed.
        where: what to call the envelope in an error.

    Raises:
        UnusableInput: as `parse`, or `keys` cannot reach `threshold`.
        SignatureInvalid: another payload type, too few signers, or a signature that names one of
            the keys and is not that key's over this payload.
    """
    trusted = check_threshold(keys, threshold)
    read = parse(envelope, where=where)
    if read.payload_type != payload_type:
        raise SignatureInvalid(
            "the envelope holds another kind of payload",
            where=where,
            expected=payload_type,
            found=read.payload_type,
        )
    found = _signed_by(read, trusted, where)
    if len(found) < threshold:
        named = ", ".join(str(entry.keyid) for entry in read.signatures)
        raise SignatureInvalid(
            "too few of the given keys have signed",
            where=where,
            expected=f"{threshold} of {', '.join(key.keyid for key in trusted)}",
            found=f"{len(found)}; the envelope names {named}",
        )
    return read.payload, found


def open(  # noqa: A001  the word of what it does, as `gzip.open`
    envelope: bytes, payload_type: str, keys: Sequence[PublicKey], threshold: int = 1
) -> bytes:
    """The payload of an envelope that `threshold` different keys have signed; as `signers`.

    Raises:
        UnusableInput: the envelope is malformed, or `keys` cannot reach `threshold`.
        SignatureInvalid: the signatures do not vouch for the payload.
    """
    return signers(envelope, payload_type, keys, threshold)[0]


def _signed_by(
    envelope: Envelope, trusted: tuple[PublicKey, ...], where: str
) -> tuple[PublicKey, ...]:
    data = pae(envelope.payload_type, envelope.payload)
    by_id = {key.keyid: key for key in trusted}
    found: set[PublicKey] = set()
    for entry in envelope.signatures:
        named = by_id.get(entry.keyid or "")
        if named is not None:
            if not named.verifies(entry.signature, data):
                raise SignatureInvalid(
                    "a signature is not that of the key it names over this payload",
                    where=where,
                    found=f"key {named.keyid}",
                    hint="the payload was changed after signing, or the signature is forged",
                )
            found.add(named)
            continue
        # An id that we do not know may be another implementation's name of a key that we do.
        for key in trusted:
            if key not in found and key.verifies(entry.signature, data):
                found.add(key)
                break
    return tuple(key for key in trusted if key in found)


def _signature_json(entry: Signed) -> dict[str, str]:
    sig = base64.b64encode(entry.signature).decode()
    return {"sig": sig} if entry.keyid is None else {"keyid": entry.keyid, "sig": sig}


def _decoded(text: str, where: str) -> bytes:
    """Base64 of the standard alphabet in its one spelling."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise UnusableInput("the text is not base64", where=where) from None
    if base64.b64encode(data).decode() != text:
        raise UnusableInput(
            "the text is not the usual spelling of its bytes in base64", where=where
        )
    return data
