"""A throw-away time-stamping authority, run by openssl: honest, expired or foreign, as needed."""

from __future__ import annotations

import datetime
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

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(
            ["openssl", "ts", *arguments], cwd=self.folder, check=True, capture_output=True
        )


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
