"""Which certificate a time stamp names as its signer's (RFC 5035, RFC 5816), read from its DER.

A stamp signs the digest of its signer's certificate, so that no other certificate of the same key
can be laid in its place (RFC 3161, 2.4.2). This module must not know what is stamped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

_OCTETS, _SEQUENCE, _SET, _CONTEXT_0 = 0x04, 0x30, 0x31, 0xA0
_VERSION_1 = bytes.fromhex("2a864886f70d010910020c")
_VERSION_2 = bytes.fromhex("2a864886f70d010910022f")
_HASHES: dict[bytes, Callable[[bytes], Any]] = {
    bytes.fromhex("608648016503040201"): hashlib.sha256,
    bytes.fromhex("608648016503040202"): hashlib.sha384,
    bytes.fromhex("608648016503040203"): hashlib.sha512,
}


def is_named(token: bytes, certificate: bytes) -> bool:
    """Whether the one signer of a token names this certificate, and no other, as its own.

    Args:
        token: a time stamp's ContentInfo, DER.
        certificate: DER.

    Raises:
        ValueError: the token is malformed, or its signer names no certificate.
    """
    _, wrapped = _parts(_only(_parts(token), _SEQUENCE))
    signed_data = _only(_parts(wrapped[1]), _SEQUENCE)
    signer = _only(_parts(_only(_parts(signed_data)[-1:], _SET)), _SEQUENCE)
    attributes = [content for tag, content in _parts(signer) if tag == _CONTEXT_0]
    if len(attributes) != 1:
        raise ValueError("the signer has no signed attributes")
    said: list[bool] = []
    for _, attribute in _parts(attributes[0]):
        (_, name), values = _parts(attribute)
        if name in (_VERSION_1, _VERSION_2):
            named = _parts(_only(_parts(_only([values], _SET)), _SEQUENCE))
            first = _parts(_only(named[:1], _SEQUENCE))
            said.append(_is_of(_parts(_only(first[:1], _SEQUENCE)), name, certificate))
    if not said:
        raise ValueError("the signer names no certificate")
    return all(said)


def _is_of(entry: list[tuple[int, bytes]], version: bytes, certificate: bytes) -> bool:
    """Whether an ESSCertID, or an ESSCertIDv2, holds the digest of a certificate."""
    made: Callable[[bytes], Any] = hashlib.sha256
    if version == _VERSION_1:
        made = hashlib.sha1
    elif entry[:1] and entry[0][0] == _SEQUENCE:
        (_, algorithm), *_ = _parts(entry[0][1])
        if algorithm not in _HASHES:
            raise ValueError("the certificate is named by an unknown digest")
        made, entry = _HASHES[algorithm], entry[1:]
    return bool(_only(entry[:1], _OCTETS) == made(certificate).digest())


def _only(parts: list[tuple[int, bytes]], tag: int) -> bytes:
    """The content of the single part, which must be of this kind."""
    if len(parts) != 1 or parts[0][0] != tag:
        raise ValueError("a part of the time stamp is of another kind")
    return parts[0][1]


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of every DER value in a row."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        if at + 2 > len(data) or data[at] & 0x1F == 0x1F:
            raise ValueError("a value of the time stamp is cut off, or its tag too long")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            octets = length & 0x7F
            if not 1 <= octets <= 4:
                raise ValueError("a length of the time stamp is not DER")
            length = int.from_bytes(data[at : at + octets])
            at += octets
        if at + length > len(data):
            raise ValueError("a value of the time stamp is cut off")
        found.append((tag, data[at : at + length]))
        at += length
    return found
