"""Ed25519 keys as files: made once, never overwritten, and private where they are private.

A private key is PEM PKCS#8 that its owner alone can read, with a password or without; its public
half lies beside it as `.pub`, PEM SubjectPublicKeyInfo. A key is named by the SHA-256 of that
structure's DER bytes. This module must not know what is signed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError
from securesystemslib.signer import (  # type: ignore[attr-defined]  # its __all__ is missing
    CryptoSigner,
    Signature,
    SSlibKey,
)

from kvaudit import digests
from kvaudit.errors import EvidenceIncomplete, UnusableInput

PUBLIC_SUFFIX = ".pub"
SIGNATURE_BYTES = 64
MAX_KEY_BYTES = 16 * 1024
MAX_PASSWORD_BYTES = 1000

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True)
class PublicKey:
    """An Ed25519 public key; equal `raw` bytes (32) are one key, whatever file they lie in."""

    raw: bytes

    @property
    def keyid(self) -> str:
        """The SHA-256 of the DER SubjectPublicKeyInfo, in hexadecimal."""
        return digests.sha256_bytes(
            self._key().public_bytes(
                serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def pem(self) -> bytes:
        """The content of a `.pub` file."""
        return self._key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether `signature` (64 bytes) is this key's over `data`."""
        key = SSlibKey.from_crypto(self._key(), keyid=self.keyid)
        try:
            key.verify_signature(Signature(self.keyid, signature.hex()), data)
        except (UnverifiedSignatureError, VerificationError):
            return False
        return True

    def _key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.raw)


@dataclass(frozen=True)
class PrivateKey:
    """An Ed25519 private key; its secret is in no representation of it."""

    public: PublicKey
    _secret: Ed25519PrivateKey = field(repr=False, compare=False)

    @property
    def keyid(self) -> str:
        """The public half's."""
        return self.public.keyid

    def sign(self, data: bytes) -> bytes:
        """The signature (64 bytes) over `data`."""
        public = SSlibKey.from_crypto(self._secret.public_key(), keyid=self.keyid)
        return bytes.fromhex(CryptoSigner(self._secret, public).sign(data).signature)


def generate(path: str | Path, password: bytes | None = None) -> None:
    """Makes a key pair: the private half at `path` (mode 0600), the public one at `path` + `.pub`.

    Args:
        path: a file that does not exist. Folders above it that do not exist are made, for their
            owner alone (mode 0700); those that do are left as they are.
        password: encrypts the private half; None leaves it readable to whoever reads the file.

    Raises:
        UnusableInput: one of the files exists, the folder cannot be written, or the password is
            empty or too long. Nothing is left behind then.
    """
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        _check_password(password)
        encryption = serialization.BestAvailableEncryption(password)
    secret = Ed25519PrivateKey.generate()
    private = secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    public = PublicKey(secret.public_key().public_bytes_raw()).pem()
    with contextlib.ExitStack() as undo:
        _make_folders(Path(path).parent, undo)
        # The private half last: where it is, the public one is too, whenever this is killed.
        for target, data, mode in (
            (os.fspath(path) + PUBLIC_SUFFIX, public, 0o644),
            (os.fspath(path), private, 0o600),
        ):
            _create(target, data, mode, undo)
        undo.pop_all()


def load_private(path: str | Path, password: bytes | None = None) -> PrivateKey:
    """Reads a private key that its owner alone can read.

    Raises:
        EvidenceIncomplete: there is no such file.
        UnusableInput: group or others can access the file, it is no Ed25519 private key in PEM, or
            the password is missing, wrong, or given for a key that has none.
    """
    data, mode = _read(path)
    if mode & _OTHERS:
        raise UnusableInput(
            "the private key can be read or changed by others",
            where=path,
            expected="mode 0600",
            found=f"mode {stat.S_IMODE(mode):04o}",
            hint=f"chmod 600 {path}; if others could read it, make a new one",
        )
    if b"PRIVATE KEY-----" not in data:
        raise UnusableInput("the file holds no private key in PEM form", where=path)
    encrypted = is_encrypted(data)
    if encrypted and password is None:
        raise UnusableInput("the private key has a password", where=path, hint="--password-file")
    if not encrypted and password is not None:
        raise UnusableInput("a password is given, and the private key has none", where=path)
    if password is not None:
        _check_password(password)
    try:
        secret = serialization.load_pem_private_key(data, password)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        problem = "the password is wrong, or" if encrypted else "the file is no private key:"
        raise UnusableInput(f"{problem} the private key is damaged", where=path) from None
    if not isinstance(secret, Ed25519PrivateKey):
        raise UnusableInput(
            "the private key is of another kind",
            where=path,
            expected="Ed25519",
            hint="kvaudit keygen makes one",
        )
    return PrivateKey(PublicKey(secret.public_key().public_bytes_raw()), secret)


def load_public(path: str | Path) -> PublicKey:
    """Reads a public key.

    Raises:
        EvidenceIncomplete: there is no such file.
        UnusableInput: it is no Ed25519 public key in PEM.
    """
    data, _ = _read(path)
    if b"PRIVATE KEY-----" in data:
        raise UnusableInput(
            "the file holds a private key where a public one is expected",
            where=path,
            hint=f"its public half is {path}{PUBLIC_SUFFIX}",
        )
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise UnusableInput("the file holds no public key in PEM form", where=path) from None
    if not isinstance(key, Ed25519PublicKey):
        raise UnusableInput("the public key is of another kind", where=path, expected="Ed25519")
    return PublicKey(key.public_bytes_raw())


def is_encrypted(data: bytes) -> bool:
    """Whether the bytes of a private key's file need a password."""
    return b"BEGIN ENCRYPTED PRIVATE KEY-----" in data


def needs_password(path: str | Path) -> bool:
    """Whether the private key at `path` has a password; raises as `load_private`."""
    return is_encrypted(_read(path)[0])


def _check_password(password: bytes) -> None:
    if not 1 <= len(password) <= MAX_PASSWORD_BYTES:
        raise UnusableInput(
            "the password cannot be used",
            expected=f"1 to {MAX_PASSWORD_BYTES} bytes",
            found=f"{len(password)} bytes",
        )


def _make_folders(folder: Path, undo: contextlib.ExitStack) -> None:
    """Every missing folder down to this one, of mode 0700 whatever the umask; `undo` removes them.

    `os.makedirs` would give its mode to the last of them alone.
    """
    missing = [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    for one in reversed(missing):
        try:
            one.mkdir(mode=0o700)
            undo.callback(_remove_empty, one)
            one.chmod(0o700)
        except FileExistsError:  # somebody else made it just now: it is not ours to change
            continue
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UnusableInput(
                "the key's folder cannot be made", where=one, found=reason
            ) from None


def _remove_empty(folder: Path) -> None:
    """Somebody else may have put a key of his own into it meanwhile: it is his then."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _create(path: str, data: bytes, mode: int, undo: contextlib.ExitStack) -> None:
    """A new file of exactly this mode, synchronised; `undo` removes it again."""
    try:
        descriptor = os.open(path, _NEW, mode)
        undo.callback(os.unlink, path)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        private = path.removesuffix(PUBLIC_SUFFIX)
        half = private != path and not os.path.lexists(private)
        raise UnusableInput(
            "the file exists, and no key is ever overwritten",
            where=path,
            hint="choose another; if a keygen was ended before it wrote the private half, remove it"
            if half
            else "choose another",
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnusableInput("the key cannot be written", where=path, found=reason) from None


def _read(path: str | Path) -> tuple[bytes, int]:
    """Content and mode of a small regular file; a key may be reached by a link."""
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        raise EvidenceIncomplete("there is no such key", where=path) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnusableInput("the key cannot be read", where=path, found=reason) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise UnusableInput("the key is not a regular file", where=path)
        data = os.read(descriptor, MAX_KEY_BYTES + 1)
    except OSError as error:
        raise UnusableInput("the key cannot be read", where=path, found=error.strerror) from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_KEY_BYTES:
        raise UnusableInput(
            "the key's file is too long", where=path, expected=f"at most {MAX_KEY_BYTES} bytes"
        )
    return data, mode
