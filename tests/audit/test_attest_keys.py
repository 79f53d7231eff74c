"""Keys as files: what is made, what is refused, and that nothing is overwritten."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kvaudit import digests
from kvaudit.attest import keys
from kvaudit.errors import EvidenceIncomplete, UnusableInput

Audit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keys.generate(tmp_path / "key.pem")
    return tmp_path / "key.pem"


def public_of(key: Path) -> Path:
    return Path(f"{key}.pub")


def test_a_private_key_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys.generate(tmp_path / "key.pem")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "key.pem.pub").stat().st_mode) == 0o644


def test_missing_folders_are_made_for_their_owner_alone_and_others_are_left(
    tmp_path: Path, audit: Audit
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    path = there / "new" / "deeper" / "key.pem"
    before = os.umask(0)
    try:
        assert audit("keygen", path)[0] == 0
    finally:
        os.umask(before)
    made = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:3]}
    assert made == {path.parent: 0o700, path.parents[1]: 0o700, there: 0o755}
    assert keys.load_private(path).public == keys.load_public(public_of(path))


def test_folders_are_not_left_behind_where_no_key_is_made(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="cannot be written"):
        keys.generate(tmp_path / "new" / ("k" * 300))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("above", ["a file", "a dangling link"])
def test_a_folder_that_cannot_be_made_is_one_clear_error(
    tmp_path: Path, above: str, audit: Audit
) -> None:
    place = tmp_path / "above"
    place.touch() if above == "a file" else place.symlink_to(tmp_path / "nowhere")
    code, _, err = audit("keygen", place / "keys" / "key.pem")
    assert (code, err.count("\n")) == (2, 1)
    assert "the key's folder cannot be made" in err
    assert not (tmp_path / "nowhere").exists()


def test_both_halves_are_read_back_and_the_id_is_that_of_the_der_bytes(key: Path) -> None:
    private, public = keys.load_private(key), keys.load_public(public_of(key))
    assert private.public == public
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", public_of(key), "-outform", "DER"],
        check=True,
        capture_output=True,
    ).stdout
    assert public.keyid == digests.sha256_bytes(der)
    assert public.verifies(private.sign(b"data"), b"data")
    assert not public.verifies(private.sign(b"data"), b"date")


def test_a_secret_is_in_no_representation(key: Path) -> None:
    private = keys.load_private(key)
    assert "secret" not in repr(private)
    assert repr(private) == f"PrivateKey(public={private.public!r})"


@pytest.mark.parametrize("existing", ["key.pem", "key.pem.pub"])
def test_no_key_is_overwritten_and_no_half_is_left(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("mine")
    with pytest.raises(UnusableInput, match="no key is ever overwritten"):
        keys.generate(tmp_path / "key.pem")
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "mine"


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "key.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnusableInput):
        keys.generate(tmp_path / "key.pem")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o622, 0o666])
def test_a_private_key_that_others_can_touch_is_refused(key: Path, mode: int) -> None:
    key.chmod(mode)
    with pytest.raises(UnusableInput, match=r"by others.*chmod 600"):
        keys.load_private(key)


def test_a_password_is_needed_and_must_be_right(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    keys.generate(path, b"correct horse")
    assert b"ENCRYPTED" in path.read_bytes()
    assert keys.load_private(path, b"correct horse").public == keys.load_public(public_of(path))
    with pytest.raises(UnusableInput, match="password is wrong"):
        keys.load_private(path, b"wrong")
    with pytest.raises(UnusableInput, match="has a password"):
        keys.load_private(path)


def test_a_password_for_a_key_without_one_is_a_mistake(key: Path) -> None:
    with pytest.raises(UnusableInput, match="has none"):
        keys.load_private(key, b"x")


@pytest.mark.parametrize("password", [b"", b"x" * 1001])
def test_unusable_passwords_are_refused(tmp_path: Path, password: bytes) -> None:
    with pytest.raises(UnusableInput, match="password"):
        keys.generate(tmp_path / "key.pem", password)
    assert not list(tmp_path.iterdir())


def test_the_halves_are_not_taken_for_each_other(key: Path) -> None:
    with pytest.raises(UnusableInput, match="private key where a public one"):
        keys.load_public(key)
    public_of(key).chmod(0o600)
    with pytest.raises(UnusableInput, match="no private key"):
        keys.load_private(public_of(key))


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "key.pem"
    path.touch(0o600)
    path.write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(UnusableInput, match="another kind"):
        keys.load_private(path)
    path.write_bytes(
        other.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with pytest.raises(UnusableInput, match="another kind"):
        keys.load_public(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"junk",
        b"-----BEGIN PUBLIC KEY-----\n",
        b"-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n",
        b"\x00" * 20_000,
    ],
)
def test_junk_is_no_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "junk"
    path.touch(0o600)
    path.write_bytes(content)
    for load in (keys.load_public, keys.load_private):
        with pytest.raises(UnusableInput):
            load(path)


def test_what_is_no_regular_file_is_no_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(UnusableInput):
            keys.load_private(path)
    with pytest.raises(EvidenceIncomplete, match="no such key"):
        keys.load_public(tmp_path / "absent")


def test_keygen_says_where_the_key_is_and_its_id(tmp_path: Path, audit: Audit) -> None:
    code, out, err = audit("keygen", tmp_path / "key.pem")
    assert (code, err) == (0, "")
    assert keys.load_public(tmp_path / "key.pem.pub").keyid in out
    code, out, err = audit("keygen", tmp_path / "key.pem")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_keygen_takes_a_password_from_a_file_and_never_from_a_pipe(
    tmp_path: Path, audit: Audit
) -> None:
    (tmp_path / "password").write_text("correct horse\nsecond line\n")
    assert audit("keygen", tmp_path / "a.pem", "--password-file", tmp_path / "password")[0] == 0
    keys.load_private(tmp_path / "a.pem", b"correct horse")
    (tmp_path / "password").write_text("\n")
    assert audit("keygen", tmp_path / "b.pem", "--password-file", tmp_path / "password")[0] == 2
    code, _, err = audit("keygen", tmp_path / "b.pem", "--password")
    assert code == 2
    assert "no terminal" in err
    assert not (tmp_path / "b.pem").exists()
