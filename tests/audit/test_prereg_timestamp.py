"""RFC 3161 time stamps: a throw-away authority stamps a filing, and foreign ones are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prereg_world
import pytest
from authority import NOW, YEAR, Authority, authority
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prereg_world import World

from kvaudit import digests, timestamp
from kvaudit.attest import dsse
from kvaudit.errors import TypedError
from kvaudit.prereg import filing, ledger, registration
from kvaudit.prereg.errors import RegistrationClosed
from kvaudit.timestamp import (
    TimestampExpired,
    TimestampForeign,
    TimestampMismatch,
    TimestampRefused,
)

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

Audit = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("honest") / "tsa")


@pytest.fixture(scope="session")
def filed(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = prereg_world.build(tmp_path_factory.mktemp("filed"))
    world.file("first")
    world.file("second")
    return world


@pytest.fixture
def world(filed: World, tmp_path: Path) -> World:
    return prereg_world.copy(filed, tmp_path / "filed")


def accept(world: World, audit: Audit, reply: Path, root: Path) -> tuple[int, str, str]:
    return audit(
        *("prereg", "timestamp", "accept", 1, reply, "--root", root),
        *("--registrations", world.folder, "--results", world.root / "results"),
    )


def request(world: World, audit: Audit) -> Path:
    code, out, _ = audit("prereg", "timestamp", "request", 1, "--registrations", world.folder)
    assert code == 0
    assert "timestamp.tsq" in out
    return world.folder / "0001-first/timestamp.tsq"


def test_a_round_trip_with_an_authority_and_nothing_but_files(
    world: World, honest: Authority, audit: Audit
) -> None:
    before = registration.find(world.folder, 1)
    reply = honest.stamp(request(world, audit))
    code, out, _ = accept(world, audit, reply, honest.root)
    assert code == 0
    assert "the registration existed no later than 20" in out
    found = registration.find(world.folder, 1)
    assert found.token_sha256 is not None
    assert found.seed != before.seed
    assert (found.folder / registration.TOKEN).read_bytes() == reply.read_bytes()
    code, out, _ = audit(
        *("prereg", "status", "--registrations", world.folder),
        *("--key", f"{world.key}.pub", "--root", honest.root),
    )
    assert code == 0
    assert "stamped 20" in out
    _, out, _ = audit("prereg", "status", "--registrations", world.folder)
    assert "not verified: no --root given" in out


def test_a_second_time_stamp_and_a_second_request_come_too_late(
    world: World, honest: Authority, audit: Audit
) -> None:
    reply = honest.stamp(request(world, audit))
    accept(world, audit, reply, honest.root)
    code, _, err = accept(world, audit, reply, honest.root)
    assert code == 2
    assert "has a time stamp already" in err
    code, _, err = audit("prereg", "timestamp", "request", 1, "--registrations", world.folder)
    assert code == 2


def test_a_time_stamp_after_the_run_comes_too_late(
    world: World, honest: Authority, audit: Audit
) -> None:
    reply = honest.stamp(request(world, audit))
    found = registration.find(world.folder, 1)
    world.run(found, world.root / "results/registered" / found.label)
    code, _, err = accept(world, audit, reply, honest.root)
    assert code == 2
    assert "comes too late: there is a run" in err
    assert not (found.folder / registration.TOKEN).exists()


def test_a_long_registration_can_be_stamped(world: World, honest: Authority, audit: Audit) -> None:
    """One with a source tree of some thousand files, which a registration may well have."""

    def lengthen(value: dict[str, Any]) -> None:
        files = value["source"]["files"]
        files |= {f"workflow/part_{n:04}.py": "0" * 64 for n in range(4_000)}
        value["source"]["tree_sha256"] = digests.tree_digest(files)

    shutil.rmtree(world.folder / "0002-second")
    path = world.folder / "0001-first" / registration.REGISTRATION
    prereg_world.rewrite(path, lengthen)
    assert timestamp.MAX_BYTES < path.stat().st_size < registration.MAX_BYTES
    envelope = dsse.sign(path.read_bytes(), registration.PAYLOAD_TYPE, world.signer())
    path.with_name(registration.ENVELOPE).write_bytes(dsse.to_bytes(envelope))
    reply = honest.stamp(request(world, audit))
    assert accept(world, audit, reply, honest.root)[0] == 0
    assert registration.find(world.folder, 1).token_sha256 is not None


def refused(
    world: World, reply: Path, root: Path, kind: type[TimestampRefused], message: str
) -> None:
    roots = timestamp.load_roots([root])
    with pytest.raises(kind, match=message) as caught:
        filing.accept_token(
            world.folder, 1, reply.read_bytes(), ledger.Trust(roots=roots), where="reply.tsr"
        )
    assert caught.type is kind
    assert not (world.folder / "0001-first" / registration.TOKEN).exists()


def test_a_time_stamp_of_a_foreign_authority_is_refused(
    world: World, honest: Authority, audit: Audit, tmp_path: Path
) -> None:
    foreign = authority(tmp_path / "foreign")
    reply = foreign.stamp(request(world, audit))
    refused(world, reply, honest.root, TimestampForeign, "not signed by an authority under")


@pytest.mark.parametrize("which", ["leaf", "root"])
def test_an_expired_certificate_is_refused(
    world: World, audit: Audit, tmp_path: Path, which: str
) -> None:
    past = (NOW - 2 * YEAR, NOW - YEAR)
    expired = authority(tmp_path / "expired", **{which: past})
    reply = expired.stamp(request(world, audit))
    refused(world, reply, expired.root, TimestampExpired, "was not valid at its time")


def test_another_root_of_the_same_name_is_refused(
    world: World, honest: Authority, audit: Audit, tmp_path: Path
) -> None:
    namesake = authority(tmp_path / "namesake")
    reply = honest.stamp(request(world, audit))
    refused(world, reply, namesake.root, TimestampForeign, "not signed by an authority under")


def test_a_time_stamp_of_another_file_is_refused(
    world: World, honest: Authority, audit: Audit
) -> None:
    other = (world.folder / "0002-second" / registration.REGISTRATION).read_bytes()
    reply = honest.stamp(Path(), data=other)
    refused(world, reply, honest.root, TimestampMismatch, "of another file")


def test_a_time_stamp_over_another_hash_is_refused(world: World, honest: Authority) -> None:
    document = (world.folder / "0001-first" / registration.REGISTRATION).read_bytes()
    reply = honest.stamp(Path(), data=document, digest="sha512")
    refused(world, reply, honest.root, TimestampMismatch, "not over a SHA-256")


def test_an_answer_to_another_request_is_refused(
    world: World, honest: Authority, audit: Audit
) -> None:
    reply = honest.stamp(request(world, audit))
    request(world, audit)  # a new one, with another nonce
    refused(world, reply, honest.root, TimestampMismatch, "answers another request")


def test_a_time_stamp_before_the_filing_is_no_time_stamp_of_it(
    tmp_path: Path, honest: Authority, audit: Audit
) -> None:
    world = prereg_world.build(tmp_path)
    ahead = (NOW + YEAR).strftime("%Y-%m-%dT%H:%M:%SZ")
    world.file("first", ahead)
    reply = honest.stamp(request(world, audit))
    refused(world, reply, honest.root, TimestampRefused, "older than the filing")


def test_a_time_stamp_put_in_by_hand_shows(world: World, tmp_path: Path) -> None:
    foreign = authority(tmp_path / "foreign")
    other = (world.folder / "0002-second" / registration.REGISTRATION).read_bytes()
    shutil.copy(foreign.stamp(Path(), data=other), world.folder / "0001-first" / registration.TOKEN)
    chain = ledger.read(world.folder)
    assert chain.exit_code == 1
    assert "of another file" in chain.all_findings[0].message
    with pytest.raises(TypedError):
        filing.open_registration(world.folder, 1, what="x")


def test_a_time_stamp_of_an_authority_that_the_reader_does_not_trust_shows(
    world: World, honest: Authority, audit: Audit, tmp_path: Path
) -> None:
    reply = honest.stamp(request(world, audit))
    accept(world, audit, reply, honest.root)
    other = authority(tmp_path / "other")
    code, out, _ = audit(
        *("prereg", "status", "--registrations", world.folder, "--root", other.root)
    )
    assert code == 1
    assert "not signed by an authority under the given roots" in out


def test_a_stamped_registration_is_closed_like_any_other(
    world: World, honest: Authority, audit: Audit
) -> None:
    accept(world, audit, honest.stamp(request(world, audit)), honest.root)
    code, _, _ = audit(
        *("prereg", "abandon", 1, "--reason", "x", "--registrations", world.folder),
        *("--key", world.key, "--results", world.root / "results"),
    )
    assert code == 0
    with pytest.raises(RegistrationClosed):
        filing.request_token(world.folder, 1)
    # Without its time stamp the outcome is of another registration.
    (world.folder / "0001-first" / registration.TOKEN).unlink()
    assert "of another time stamp" in ledger.read(world.folder).all_findings[0].message


@pytest.mark.parametrize("data", [b"", b"x", b"0\x03\x02\x01\x02", b"\x30\x80" * 50, b"\xff" * 400])
def test_what_is_no_reply_is_one_clear_error(world: World, honest: Authority, data: bytes) -> None:
    path = honest.folder / "bad.tsr"
    path.write_bytes(data)
    refused(world, path, honest.root, TimestampRefused, "no RFC 3161 reply")


def test_what_is_no_certificate_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "root.pem"
    for data in (b"", b"-----BEGIN CERTIFICATE-----\n", b"0\x00"):
        path.write_bytes(data)
        with pytest.raises(TypedError, match="no certificate"):
            timestamp.load_roots([path])


@given(st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_reply_is_a_typed_error_and_never_accepted(
    filed: World, honest: Authority, data: st.DataObject
) -> None:
    document = (filed.folder / "0001-first" / registration.REGISTRATION).read_bytes()
    path = honest.folder / "kept.tsr"
    if not path.exists():
        shutil.copy(honest.stamp(Path(), data=document), path)
    reply = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        reply[data.draw(st.integers(0, len(reply) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = bytes(reply[: data.draw(st.integers(0, len(reply)) | st.just(len(reply)))])
    roots = timestamp.load_roots([honest.root])
    try:
        stamp = timestamp.verify(damaged, document, roots, where="reply")
    except TimestampRefused:
        return
    # Bytes outside what is signed may differ; what is signed may not.
    assert stamp == timestamp.verify(path.read_bytes(), document, roots, where="reply")
