"""A throw-away time-stamping authority, run by openssl: honest, expired or foreign, as needed."""

from __future__ import annotations

import datetime
import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime.datetime.now(datetime.UTC)
YEAR = datetime.timedelta(days=365)
SECTION = """[tsa]
serial = {folder}/serial
crypto_device = builtin
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha384, sha512
accuracy = secs:1
ess_cert_id_alg = sha256
"""


@dataclass(frozen=True)
class Authority:
    """Root and stamping certificate of an authority, in files."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root.pem"

    def stamp(self, request: Path, *, data: bytes | None = None, digest: str = "sha256") -> Path:
        """Answers a request, or one of its own making for `data`."""
        if data is not None:
            (self.folder / "data").write_bytes(data)
            request = self.folder / "own.tsq"
            self._openssl("-query", "-data", "data", f"-{digest}", "-cert", "-out", "own.tsq")
        self._openssl(
            *("-reply", "-config", "tsa.cnf", "-section", "tsa", "-queryfile", str(request)),
            *("-inkey", "tsa.key", "-signer", "tsa.pem", "-out", "reply.tsr"),
        )
        return self.folder / "reply.tsr"

    def stamp_at(self, data: bytes, time: datetime.datetime, *, names_itself: bool = True) -> Path:
        """A stamp that states any time, signed by the authority's key all the same.

        Args:
            data: what it is of.
            time: UTC.
            names_itself: whether it signs the digest of its certificate, as RFC 3161 asks.
        """
        digest = hashlib.sha256(data).digest()
        imprint = _der(0x30, _der(0x30, _SHA256 + b"\x05\x00") + _der(4, digest))
        said = f"{time:%Y%m%d%H%M%SZ}".encode()
        info = b"\x02\x01\x01\x06\x02\x2a\x03" + imprint + b"\x02\x01\x05" + _der(0x18, said)
        (self.folder / "info").write_bytes(_der(0x30, info))
        self._openssl(
            *("-sign", "-in", "info", "-binary", "-nodetach", "-md", "sha256"),
            *("-econtent_type", "1.2.840.113549.1.9.16.1.4", "-outform", "DER", "-out", "token"),
            *("-signer", "tsa.pem", "-inkey", "tsa.key", *(("-cades",) if names_itself else ())),
            tool="cms",
        )
        granted = _der(0x30, b"\x02\x01\x00")
        token = (self.folder / "token").read_bytes()
        (self.folder / "made.tsr").write_bytes(_der(0x30, granted + token))
        return self.folder / "made.tsr"

    def _openssl(self, *arguments: str, tool: str = "ts") -> None:
        subprocess.run(
            ["openssl", tool, *arguments], cwd=self.folder, check=True, capture_output=True
        )


_SHA256 = bytes.fromhex("0609608648016503040201")


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    octets = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes([tag, 128 + len(octets)]) + octets + content


def certificate(
    subject: str,
    issuer: str,
    key: rsa.RSAPrivateKey,
    signer: rsa.RSAPrivateKey,
    span: tuple[datetime.datetime, datetime.datetime],
    usage: x509.ExtendedKeyUsage | None,
) -> bytes:
    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(span[0])
        .not_valid_after(span[1])
        .add_extension(x509.BasicConstraints(usage is None, None), critical=True)
    )
    if usage is not None:
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def authority(
    folder: Path,
    *,
    root: tuple[datetime.datetime, datetime.datetime] = (NOW - YEAR, NOW + YEAR),
    leaf: tuple[datetime.datetime, datetime.datetime] = (NOW - YEAR, NOW + YEAR),
) -> Authority:
    folder.mkdir()
    keys = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
    (folder / "root.pem").write_bytes(certificate("root", "root", keys[0], keys[0], root, None))
    (folder / "tsa.pem").write_bytes(
        certificate(
            "stamps",
            "root",
            keys[1],
            keys[0],
            leaf,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]),
        )
    )
    (folder / "tsa.key").write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (folder / "serial").write_text("01\n")
    (folder / "tsa.cnf").write_text(SECTION.format(folder=folder))
    return Authority(folder)
