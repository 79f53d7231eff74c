"""The envelope: what counts as a signature, and what is not even read."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.signer import SSlibKey

from kvaudit import canonical
from kvaudit.attest import dsse, keys
from kvaudit.errors import SignatureInvalid, TypedError, UnusableInput

KIND = "application/vnd.kvgraft.test+json"
PAYLOAD = b'{"answer":42}\n'
DATA = Path(__file__).parents[1] / "data"


def made() -> keys.PrivateKey:
    secret = Ed25519PrivateKey.generate()
    return keys.PrivateKey(keys.PublicKey(secret.public_key().public_bytes_raw()), secret)


A, B, C = made(), made(), made()


def envelope(*signers: keys.PrivateKey) -> bytes:
    return dsse.to_bytes(dsse.sign(PAYLOAD, KIND, signers))


def edited(data: bytes, change: Callable[[Any], None]) -> bytes:
    value = json.loads(data)
    change(value)
    return canonical.dumps(value) + b"\n"


def test_the_encoding_is_that_of_the_specification() -> None:
    encoded = dsse.pae("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert dsse.pae("é", b"") == "DSSEv1 2 é 0 ".encode()


def test_a_signed_payload_is_opened_by_the_signers_key() -> None:
    assert dsse.open(envelope(A), KIND, [A.public]) == PAYLOAD
    assert dsse.open(envelope(A, B), KIND, [A.public, B.public], threshold=2) == PAYLOAD
    assert dsse.open(envelope(A, B), KIND, [C.public, B.public]) == PAYLOAD


def test_signing_twice_gives_the_same_bytes() -> None:
    assert envelope(A, B) == envelope(A, B, A)


def test_another_key_opens_nothing() -> None:
    with pytest.raises(SignatureInvalid, match="too few") as refused:
        dsse.open(envelope(A), KIND, [B.public])
    assert refused.value.exit_code == 1
    assert A.keyid in refused.value.message() or "…" in refused.value.message()


def test_a_threshold_counts_different_keys() -> None:
    with pytest.raises(SignatureInvalid, match="too few"):
        dsse.open(envelope(A), KIND, [A.public, B.public], threshold=2)
    with pytest.raises(UnusableInput, match="different keys"):
        dsse.open(envelope(A), KIND, [A.public, A.public], threshold=2)


@pytest.mark.parametrize("threshold", [0, -1, 3])
def test_a_threshold_that_cannot_be_met_is_a_mistake(threshold: int) -> None:
    with pytest.raises(UnusableInput, match="threshold"):
        dsse.open(envelope(A, B), KIND, [A.public, B.public], threshold=threshold)
    with pytest.raises(UnusableInput, match="threshold"):
        dsse.open(envelope(A, B), KIND, [])


def test_one_key_under_two_ids_counts_once() -> None:
    def twice(value: Any) -> None:
        value["signatures"].append({**value["signatures"][0], "keyid": "another"})

    data = edited(envelope(A), twice)
    assert dsse.open(data, KIND, [A.public]) == PAYLOAD
    with pytest.raises(SignatureInvalid, match="found 1"):
        dsse.open(data, KIND, [A.public, B.public], threshold=2)


def test_an_id_is_a_hint_and_not_needed() -> None:
    def nameless(value: Any) -> None:
        del value["signatures"][0]["keyid"]
        value["signatures"][1]["keyid"] = "what another tool calls it"

    data = edited(envelope(A, B), nameless)
    assert dsse.open(data, KIND, [A.public, B.public], threshold=2) == PAYLOAD


def test_a_signature_in_anothers_name_is_refused_even_beside_a_good_one() -> None:
    def swapped(value: Any) -> None:
        value["signatures"][1]["sig"] = value["signatures"][0]["sig"]

    with pytest.raises(SignatureInvalid, match="not that of the key it names"):
        dsse.open(edited(envelope(A, B), swapped), KIND, [A.public, B.public])


def test_signatures_of_strangers_count_for_nothing_and_harm_nothing() -> None:
    payload, signers = dsse.signers(envelope(C, A, B), KIND, [A.public])
    assert (payload, signers) == (PAYLOAD, (A.public,))


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.update(payload=base64.b64encode(b'{"answer":43}\n').decode()),
        lambda v: v.update(payloadType="application/vnd.kvgraft.other+json"),
    ],
)
def test_a_changed_payload_or_type_is_refused(change: Callable[[Any], None]) -> None:
    with pytest.raises(SignatureInvalid):
        dsse.open(edited(envelope(A), change), KIND, [A.public])


def test_the_type_is_signed_too() -> None:
    other = "application/vnd.kvgraft.other+json"
    data = edited(envelope(A), lambda value: value.update(payloadType=other))
    with pytest.raises(SignatureInvalid, match="not that of the key"):
        dsse.open(data, other, [A.public])


SIGNATURE = json.loads(envelope(A))["signatures"][0]["sig"]
JUNK: dict[str, Callable[[Any], None]] = {
    "a field more": lambda v: v.update(more=1),
    "a field more in a signature": lambda v: v["signatures"][0].update(cert="x"),
    "no signature": lambda v: v.update(signatures=[]),
    "seventeen signatures": lambda v: v.update(
        signatures=[{"keyid": str(i), "sig": SIGNATURE} for i in range(17)]
    ),
    "one id twice": lambda v: v["signatures"].append(v["signatures"][0]),
    "white space in base64": lambda v: v.update(payload=v["payload"][:4] + "\n" + v["payload"][4:]),
    "no padding": lambda v: v["signatures"][0].update(sig=SIGNATURE.rstrip("=")),
    "the URL alphabet": lambda v: v["signatures"][0].update(sig="_" * 86 + "=="),
    "a stray bit": lambda v: v["signatures"][0].update(sig=SIGNATURE[:85] + "B=="),
    "a short signature": lambda v: v["signatures"][0].update(sig="AAAA"),
    "a signature that is no text": lambda v: v["signatures"][0].update(sig=7),
    "a payload that is no text": lambda v: v.update(payload=None),
    "an empty id": lambda v: v["signatures"][0].update(keyid=""),
    "a type with a line break": lambda v: v.update(payloadType=KIND + "\n"),
    "not ASCII": lambda v: v.update(payload="é" * 8),
}


@pytest.mark.parametrize("name", JUNK)
def test_junk_in_an_envelope_is_refused_unverified(name: str) -> None:
    with pytest.raises(UnusableInput):
        dsse.open(edited(envelope(A), JUNK[name]), KIND, [A.public])


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data + b"\n",
        lambda data: data[:-1],
        lambda data: b" " + data,
        lambda data: data.replace(b'"payload":', b'"payload":"","payload":', 1),
        lambda data: b"[" * 100_000,
        lambda data: b"",
        lambda data: b"[]\n",
        lambda data: b"\xff" + data,
    ],
)
def test_no_byte_of_an_envelope_is_free(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(UnusableInput):
        dsse.open(change(envelope(A)), KIND, [A.public])


@given(st.data())
def test_any_changed_byte_of_an_envelope_is_refused(data: st.DataObject) -> None:
    original = envelope(A)
    place = data.draw(st.integers(0, len(original) - 1))
    mask = data.draw(st.integers(1, 255))
    changed = bytearray(original)
    changed[place] ^= mask
    try:
        opened = dsse.open(bytes(changed), KIND, [A.public])
    except TypedError:
        return
    # The key id alone is not signed: it is a hint.
    assert opened == PAYLOAD
    assert json.loads(changed)["signatures"][0]["keyid"] != A.keyid


@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    with pytest.raises(UnusableInput):
        dsse.open(data, KIND, [A.public])


def test_a_signature_of_a_hundred_megabytes_costs_nothing() -> None:
    start = time.monotonic()
    data = envelope(A).replace(SIGNATURE.encode(), b"A" * 100_000_000)
    with pytest.raises(UnusableInput, match="too long"):
        dsse.open(data, KIND, [A.public])
    assert time.monotonic() - start < 2


def test_the_dearest_envelope_takes_under_two_seconds_of_computing() -> None:
    signers = [made() for _ in range(dsse.MAX_SIGNATURES)]
    value = dsse.sign(b"x" * dsse.MAX_PAYLOAD_BYTES, KIND, signers)
    for index, entry in enumerate(value["signatures"]):
        entry["keyid"] = f"unknown {index}"  # so that each is tried with each key
    data = dsse.to_bytes(value)
    strangers = [made().public for _ in range(dsse.MAX_KEYS)]
    start = time.process_time()
    with pytest.raises(SignatureInvalid):
        dsse.open(data, KIND, strangers)
    assert time.process_time() - start < 2


def test_a_payload_beyond_the_bound_is_not_signed() -> None:
    with pytest.raises(UnusableInput, match="too long to be signed"):
        dsse.sign(b"x" * (dsse.MAX_PAYLOAD_BYTES + 1), KIND, [A])
    longest = dsse.to_bytes(dsse.sign(b"x" * dsse.MAX_PAYLOAD_BYTES, KIND, [A]))
    assert len(dsse.open(longest, KIND, [A.public])) == dsse.MAX_PAYLOAD_BYTES
    with pytest.raises(UnusableInput, match="number of signatures"):
        dsse.sign(PAYLOAD, KIND, [])


def test_earlier_signatures_stay_when_one_is_added() -> None:
    first = dsse.parse(envelope(A))
    both = dsse.to_bytes(dsse.sign(PAYLOAD, KIND, [B], onto=first.signatures))
    assert both == envelope(A, B)


def test_openssl_verifies_our_envelope(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    value = json.loads(envelope(A))
    (tmp_path / "pae").write_bytes(dsse.pae(KIND, base64.b64decode(value["payload"])))
    (tmp_path / "sig").write_bytes(base64.b64decode(value["signatures"][0]["sig"]))
    (tmp_path / "pub").write_bytes(A.public.pem())

    def verify() -> int:
        return subprocess.run(
            [
                *("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "pub"),
                *("-rawin", "-in", "pae", "-sigfile", "sig"),
            ],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        ).returncode

    assert verify() == 0
    (tmp_path / "pae").write_bytes(dsse.pae(KIND, PAYLOAD + b" "))
    assert verify() != 0


def other_key(key: keys.PublicKey, keyid: str) -> SSlibKey:
    return SSlibKey(keyid, "ed25519", "ed25519", {"public": key.raw.hex()})


def test_securesystemslib_verifies_our_envelope() -> None:
    other = OtherEnvelope.from_dict(json.loads(envelope(A, B)))
    assert other.payload == PAYLOAD
    assert other.pae() == dsse.pae(KIND, PAYLOAD)
    trusted = [other_key(key.public, key.keyid) for key in (A, B)]
    assert {*other.verify(trusted, 2)} == {A.keyid, B.keyid}


GOLDEN_KEYS = ("golden-v1.a.pub", "golden-v1.b.pub")


def test_the_golden_envelope_of_version_1_verifies_for_ever() -> None:
    public = [keys.load_public(DATA / name) for name in GOLDEN_KEYS]
    data = (DATA / "golden-v1.dsse.json").read_bytes()
    payload = dsse.open(data, "application/vnd.in-toto+json", public, threshold=2)
    assert json.loads(payload)["predicateType"] == "urn:kvgraft:attestation-verdict:v1"
