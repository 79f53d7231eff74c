"""RFC 3161 time stamps of a document, asked for and accepted as files: no network.

A time stamp says that the bytes of a registration, or of an attestation, existed at a time, by the
word of an authority whose root certificate the reader chooses. This module must not know what a
document states.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvaudit import digests, timestamp_signer
from kvaudit.errors import UnusableInput
from kvaudit.safefs import read_file

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

MAX_BYTES = 256 * 1024
"""Of a request, a reply, or a file of certificates."""
_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_SHA256 = "2.16.840.1.101.3.4.2.1"


class TimestampRefused(UnusableInput):
    """A time stamp proves nothing about the document beside it."""


class TimestampExpired(TimestampRefused):
    """A certificate of the time stamp was not valid at the time that it states."""


class TimestampForeign(TimestampRefused):
    """The time stamp is not signed by an authority under the given root certificates."""


class TimestampMismatch(TimestampRefused):
    """The time stamp is of another file, or answers another request."""


@dataclass(frozen=True)
class Stamp:
    """What a time stamp says.

    Attributes:
        time: by the authority's clock, UTC.
        nonce: of the request that it answers.
        accuracy: how far that clock may be off; nothing where the authority does not say.
    """

    time: datetime
    nonce: int | None
    accuracy: timedelta = timedelta(0)

    @property
    def latest(self) -> datetime:
        """The whole second, UTC, no later than which the document existed."""
        late = self.time.astimezone(UTC) + self.accuracy
        whole = late.replace(microsecond=0)
        return whole if whole == late else whole + timedelta(seconds=1)

    @property
    def text(self) -> str:
        """`latest`, as manifests write a time."""
        return self.latest.strftime(_FORMAT)

    @property
    def earliest_text(self) -> str:
        """The second before which the time stamp was not made."""
        return (self.time.astimezone(UTC) - self.accuracy).strftime(_FORMAT)


def request(document: bytes) -> bytes:
    """A request for a time stamp of a document: its SHA-256, a nonce, certificates wanted."""
    from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

    builder = TimestampRequestBuilder().data(document).hash_algorithm(HashAlgorithm.SHA256)
    return builder.nonce(nonce=True).cert_request(cert_request=True).build().as_bytes()


def read(token: bytes, document: bytes, *, where: str) -> Stamp:
    """What a time stamp says of a document, its signature not looked at.

    Raises:
        TimestampRefused: it is no time stamp, or the authority refused.
        TimestampMismatch: it is of another document.
    """
    return _matching(token, document, where)[1]


def verify(
    token: bytes,
    document: bytes,
    roots: Sequence[Certificate],
    *,
    where: str,
    asked: bytes | None = None,
) -> Stamp:
    """Checks a time stamp against root certificates; everything it needs is at hand.

    Args:
        token: the authority's reply, DER.
        document: the bytes that it must be of.
        roots: the certificates that the reader trusts.
        where: what to call the reply in an error.
        asked: the request, if it was kept; the nonces must agree then.

    Raises:
        TimestampRefused: it is no time stamp, or the authority refused.
        TimestampMismatch: it is of another document, or answers another request.
        TimestampExpired: a certificate was not valid at the time stated.
        TimestampForeign: it is not signed by an authority under the roots, or names another
            certificate than the one it is signed with.
    """
    from rfc3161_client import VerifierBuilder

    response, stamp = _matching(token, document, where)
    if asked is not None and _nonce(asked) != stamp.nonce:
        raise TimestampMismatch("the time stamp answers another request", where=where)
    _check_validity(_certificates(response, where), stamp, where)
    builder = VerifierBuilder()
    for root in dict.fromkeys(roots):
        builder = builder.add_root_certificate(root)
    try:
        builder.build().verify_message(response, document)
    except Exception as error:  # the library's own, and those of every parser beneath it
        _check_validity(roots, stamp, where)
        raise TimestampForeign(
            "the time stamp is not signed by an authority under the given roots",
            where=where,
            # Behind that stands how OpenSSL came to it, in its own words.
            found=str(error).partition(": ErrorStack")[0] or type(error).__name__,
            hint="--root names the authority's root certificate",
        ) from None
    _check_signer(response, where)
    return stamp


def load_roots(paths: Sequence[str | Path]) -> tuple[Certificate, ...]:
    """Root certificates, PEM (several a file) or DER.

    Raises:
        EvidenceIncomplete: a file is absent.
        UnusableInput: a file holds no certificate.
    """
    from cryptography import x509

    found: list[Certificate] = []
    for path in map(Path, paths):
        data = read_file(path, MAX_BYTES)
        try:
            if data.lstrip().startswith(b"-----"):
                found += x509.load_pem_x509_certificates(data)
            else:
                found.append(x509.load_der_x509_certificate(data))
        except (ValueError, x509.InvalidVersion):
            raise UnusableInput("the file holds no certificate", where=path) from None
    return tuple(dict.fromkeys(found))


def _matching(token: bytes, document: bytes, where: str) -> tuple[Any, Stamp]:
    from rfc3161_client import PKIStatus, decode_timestamp_response

    try:
        response = decode_timestamp_response(token)
        status = PKIStatus(response.status)
    except ValueError:
        raise TimestampRefused("the file is no RFC 3161 reply", where=where) from None
    if status is not PKIStatus.GRANTED:
        raise TimestampRefused(
            "the authority granted no time stamp", where=where, found=status.name.lower()
        )
    try:
        info = response.tst_info
        algorithm = info.message_imprint.hash_algorithm.dotted_string
        imprint = info.message_imprint.message.hex()
        stamp = Stamp(info.gen_time, info.nonce, _accuracy(info.accuracy))
        _ = stamp.text, stamp.earliest_text
    except (ValueError, OverflowError):
        raise TimestampRefused("the file is no RFC 3161 reply", where=where) from None
    if algorithm != _SHA256:
        raise TimestampMismatch(
            "the time stamp is not over a SHA-256", where=where, found=f"algorithm {algorithm}"
        )
    expected = digests.sha256_bytes(document)
    if imprint != expected:
        raise TimestampMismatch(
            "the time stamp is of another file", where=where, expected=expected, found=imprint
        )
    return response, stamp


def _accuracy(said: Any) -> timedelta:
    """How far the authority says that its clock may be off; any part of it may be absent."""
    if said is None:
        return timedelta(0)
    parts = (said.seconds, said.millis, said.micros)
    seconds, millis, micros = (part or 0 for part in parts)
    return timedelta(seconds=seconds, milliseconds=millis, microseconds=micros)


def _check_validity(certificates: Sequence[Certificate], stamp: Stamp, where: str) -> None:
    for certificate in certificates:
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not first <= stamp.time <= last:
            raise TimestampExpired(
                "a certificate of the time stamp was not valid at its time",
                where=where,
                expected=f"from {first:%Y-%m-%d} to {last:%Y-%m-%d}",
                found=stamp.text,
            )


def _certificates(response: Any, where: str) -> list[Certificate]:
    from cryptography import x509

    try:
        with warnings.catch_warnings():  # of what it will refuse one day; we look at dates alone
            warnings.simplefilter("ignore")
            return [x509.load_der_x509_certificate(c) for c in response.signed_data.certificates]
    except (ValueError, x509.InvalidVersion):
        raise TimestampRefused("a certificate of the reply is damaged", where=where) from None


def _check_signer(response: Any, where: str) -> None:
    """The certificate that the signature names is the one whose purpose was looked at."""
    from cryptography.hazmat.primitives.serialization import Encoding

    (signer,) = response.signed_data.signer_infos  # one: the library has looked
    fitting = [
        certificate.public_bytes(Encoding.DER)
        for certificate in _certificates(response, where)
        if (certificate.issuer, certificate.serial_number) == (signer.issuer, signer.serial_number)
    ]
    try:
        named = timestamp_signer.is_named(response.time_stamp_token(), fitting[0])
    except (ValueError, IndexError):
        named = False
    if not named or len(fitting) != 1:
        raise TimestampForeign(
            "the time stamp does not name the certificate that it is signed with",
            where=where,
            hint="an authority signs the digest of its certificate, too (RFC 3161, 2.4.2)",
        )


def _nonce(asked: bytes) -> int | None:
    from rfc3161_client._rust import parse_timestamp_request

    try:
        return parse_timestamp_request(asked).nonce
    except ValueError:
        raise TimestampRefused("the time stamp's request is damaged") from None
