"""When a run was signed, and keys that are trusted no longer."""

from __future__ import annotations

import datetime
import json
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from authority import NOW, YEAR, Authority, authority
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from rfc3161_client import decode_timestamp_response
from synthetic import ENDED as ENDED_TEXT

from kvaudit import manifest, timestamp, timestamp_signer
from kvaudit.attest import keys, revoked
from kvaudit.attest.run import sign_run
from kvaudit.errors import UnusableInput
from kvaudit.timestamp import Stamp

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

Audit = Callable[..., tuple[int, str, str]]
STAMP = manifest.ATTESTATION_STAMP
DATA = Path(__file__).parents[1] / "data"
GOLDEN = "2026-11-30T05:20:24Z"
ENDED = datetime.datetime.strptime(ENDED_TEXT, "%Y-%m-%dT%H:%M:%S%z")
HOUR, SECOND = datetime.timedelta(hours=1), datetime.timedelta(seconds=1)


def text(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("honest") / "tsa")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "a.pem"
    keys.generate(path)
    return path


@pytest.fixture(scope="module")
def once_signed(pristine: Path, pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(pristine, tmp_path_factory.mktemp("signed") / "run"))
    sign_run(folder, [keys.load_private(pair)])
    return folder


@pytest.fixture
def signed(once_signed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once_signed, tmp_path / "signed"))


@pytest.fixture
def stamped(signed: Path, honest: Authority, tmp_path: Path, audit: Audit) -> Path:
    """Signed and stamped by the commands, as files that are carried to the authority and back."""
    assert audit("timestamp", "request", signed, tmp_path / "a.tsq")[0] == 0
    reply = honest.stamp(tmp_path / "a.tsq")
    code, out, err = audit("timestamp", "accept", signed, reply, "--root", honest.root)
    assert (code, err) == (0, "")
    assert out.startswith("accepted: its signatures existed no later than 20")
    return signed


def list_of(folder: Path, *lines: str) -> Path:
    (folder / "revoked.txt").write_text("# keys of ours\n" + "".join(f"{one}\n" for one in lines))
    return folder / "revoked.txt"


def test_a_stamped_run_says_when_it_was_signed_at_the_latest(
    stamped: Path, pair: Path, honest: Authority, audit: Audit
) -> None:
    trust = ("--key", f"{pair}.pub", "--root", honest.root)
    code, out, _ = audit("verify", stamped, *trust)
    assert code == 0
    _, found, _ = audit("verify", stamped, *trust, "--json")
    time = json.loads(found)["attestation"]["stamped"]
    assert f"files signed, no later than {time}, by 1 of 1 given keys" in out
    # The authority's clock may be off by one second, by its own word.
    assert text(NOW) <= time <= text(datetime.datetime.now(datetime.UTC) + SECOND)


def test_a_stamp_that_nobody_looked_at_is_never_called_checked(
    stamped: Path, pair: Path, honest: Authority, audit: Audit
) -> None:
    code, out, _ = audit("verify", stamped, "--key", f"{pair}.pub")
    assert code == 0
    assert "no later than" not in out  # nobody is trusted to say when
    assert "; time stamp present, NOT checked (no --root was given)\n" in out
    _, out, _ = audit("verify", stamped, "--key", f"{pair}.pub", "--json")
    found = json.loads(out)["attestation"]
    assert (found["stamped"], found["stamp_unchecked"]) == (None, True)
    assert (
        "NOT checked"
        not in audit(*("verify", stamped, "--key", f"{pair}.pub", "--root", honest.root))[1]
    )


def test_a_run_without_a_stamp_is_incomplete_where_a_root_is_given(
    signed: Path, pair: Path, honest: Authority, audit: Audit
) -> None:
    code, out, _ = audit("verify", signed, "--key", f"{pair}.pub", "--root", honest.root)
    assert code == 3
    assert f"incomplete: {STAMP}: is absent: no authority says when it was signed" in out
    assert audit("verify", signed, "--key", f"{pair}.pub")[0] == 0


def test_signatures_are_checked_before_their_stamp(
    stamped: Path, honest: Authority, tmp_path: Path, audit: Audit
) -> None:
    keys.generate(tmp_path / "b.pem")
    (stamped / STAMP).write_bytes(b"no stamp")
    code, out, _ = audit("verify", stamped, "--key", tmp_path / "b.pem.pub", "--root", honest.root)
    assert code == 1
    assert f"fails: {manifest.ATTESTATION}: too few of the given keys" in out
    assert STAMP not in out


@pytest.mark.parametrize(
    ("micros", "accuracy", "earliest", "latest"),
    [
        (0, 0, "2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        (1, 0, "2026-01-31T12:00:00Z", "2026-01-31T12:00:01Z"),
        (0, 1_000_000, "2026-01-31T11:59:59Z", "2026-01-31T12:00:01Z"),
        (999_999, 1, "2026-01-31T12:00:00Z", "2026-01-31T12:00:01Z"),
        (999_999, 2, "2026-01-31T12:00:00Z", "2026-01-31T12:00:02Z"),
    ],
)
def test_a_stamp_proves_no_time_before_its_fraction_and_its_accuracy(
    micros: int, accuracy: int, earliest: str, latest: str
) -> None:
    time = datetime.datetime(2026, 1, 31, 12, 0, 0, micros, datetime.UTC)
    stamp = Stamp(time, None, datetime.timedelta(microseconds=accuracy))
    assert (stamp.earliest_text, stamp.text) == (earliest, latest)
    key, at = "0" * 64, datetime.datetime.strptime(latest, "%Y-%m-%dT%H:%M:%S%z")
    assert revoked.Revoked({key: at}).refuses(key, stamp.latest) is not None
    assert revoked.Revoked({key: at + SECOND}).refuses(key, stamp.latest) is None


def test_openssl_finds_the_same_stamp_over_the_envelope(stamped: Path, honest: Authority) -> None:
    done = subprocess.run(
        [
            *("openssl", "ts", "-verify", "-in", stamped / STAMP),
            *("-data", stamped / manifest.ATTESTATION, "-CAfile", honest.root),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "Verification: OK" in done.stdout + done.stderr


def test_a_stamp_is_no_evidence_and_travels_with_the_run(
    stamped: Path, pair: Path, honest: Authority, tmp_path: Path, audit: Audit
) -> None:
    assert audit("verify", stamped)[0] == 0
    assert audit("pack", stamped, tmp_path / "run.tar.zst")[0] == 0
    trust = ("--key", f"{pair}.pub", "--root", honest.root)
    code, out, _ = audit("verify", tmp_path / "run.tar.zst", *trust)
    assert (code, "no later than" in out) == (0, True)


def test_a_foreign_expired_or_borrowed_stamp_fails(
    signed: Path, pair: Path, honest: Authority, tmp_path: Path, audit: Audit
) -> None:
    trust = ("--key", f"{pair}.pub", "--root", honest.root)
    foreign = authority(tmp_path / "foreign")
    expired = authority(tmp_path / "expired", leaf=(NOW - 2 * YEAR, NOW - YEAR))
    data = (signed / manifest.ATTESTATION).read_bytes()
    for reply, root, words in (
        (foreign.stamp(Path(), data=data), honest.root, "not signed by an authority"),
        (expired.stamp(Path(), data=data), expired.root, "was not valid at its time"),
        (honest.stamp(Path(), data=b"another"), honest.root, "is of another file"),
    ):
        code, _, err = audit("timestamp", "accept", signed, reply, "--root", root)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err
        assert not (signed / STAMP).exists()
        shutil.copyfile(reply, signed / STAMP)
        code, out, _ = audit("verify", signed, *trust[:2], "--root", root)
        assert code == 1
        assert f"fails: {STAMP}: the time stamp" in out or "a certificate of the time stamp" in out
        assert words in out
        (signed / STAMP).unlink()


def test_a_run_is_stamped_once_and_by_those_who_have_signed(
    stamped: Path, run: Path, honest: Authority, tmp_path: Path, audit: Audit
) -> None:
    reply = tmp_path / "again.tsr"
    shutil.copyfile(stamped / STAMP, reply)
    code, _, err = audit("timestamp", "accept", stamped, reply, "--root", honest.root)
    assert (code, "has a time stamp already" in err) == (2, True)
    assert "remove that file to take this reply in its place" in err
    assert audit("timestamp", "request", run, tmp_path / "none.tsq")[0] == 3  # nobody signed
    code, _, err = audit("timestamp", "request", stamped, reply)
    assert (code, "cannot be written" in err) == (2, True)  # never overwritten


def test_a_file_that_is_no_stamp_does_not_keep_a_good_one_out(
    signed: Path, pair: Path, honest: Authority, tmp_path: Path, audit: Audit
) -> None:
    envelope = (signed / manifest.ATTESTATION).read_bytes()
    foreign = authority(tmp_path / "foreign")
    trust = ("--key", f"{pair}.pub", "--root", honest.root)
    for blocking, taken in (
        (b"", True),
        (b"\x30\x80", True),
        (honest.stamp(Path(), data=b"another").read_bytes(), True),
        (foreign.stamp(Path(), data=envelope).read_bytes(), False),
    ):
        (signed / STAMP).write_bytes(blocking)
        reply = honest.stamp(Path(), data=envelope)
        code, _, err = audit("timestamp", "accept", signed, reply, "--root", honest.root)
        assert (code, "remove that file" in err) == ((0, False) if taken else (2, True))
        if not taken:
            (signed / STAMP).unlink()
            assert audit("timestamp", "accept", signed, reply, "--root", honest.root)[0] == 0
        assert audit("verify", signed, *trust)[0] == 0


def test_a_signature_that_cannot_be_written_leaves_envelope_and_stamp(
    stamped: Path, pair: Path, tmp_path: Path
) -> None:
    keys.generate(tmp_path / "b.pem")
    before = {path.name: path.read_bytes() for path in stamped.glob("attestation.*")}
    bound = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, bound[1]))
    try:
        with pytest.raises(UnusableInput, match="attestation cannot be written"):
            sign_run(stamped, [keys.load_private(tmp_path / "b.pem")], drop_stamp=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bound)
    assert {path.name: path.read_bytes() for path in stamped.glob("attestation.*")} == before
    assert STAMP in before


def test_a_stamp_from_before_the_run_proves_nothing(
    signed: Path, pair: Path, tmp_path: Path, audit: Audit
) -> None:
    span = (ENDED - YEAR, NOW + YEAR)
    old = authority(tmp_path / "old", root=span, leaf=span)
    envelope = (signed / manifest.ATTESTATION).read_bytes()
    trust = ("--key", f"{pair}.pub", "--root", old.root)
    for time, good in ((ENDED - SECOND, False), (ENDED, True)):
        reply = old.stamp_at(envelope, time)
        code, _, err = audit("timestamp", "accept", signed, reply, "--root", old.root)
        assert (code, "is older than the run" in err) == ((0, False) if good else (2, True))
        shutil.copyfile(reply, signed / STAMP)
        for given in (trust, trust[:2], ()):
            code, out, _ = audit("verify", signed, *given)
            assert (code, "is older than the run" in out) == ((0, False) if good else (1, True))
        (signed / STAMP).unlink()


def test_a_stamp_names_the_certificate_that_it_is_signed_with(
    signed: Path, honest: Authority, tmp_path: Path, audit: Audit
) -> None:
    envelope = (signed / manifest.ATTESTATION).read_bytes()
    for named in (False, True):
        reply = honest.stamp_at(envelope, NOW, names_itself=named)
        code, _, err = audit("timestamp", "accept", signed, reply, "--root", honest.root)
        assert (code, "does not name the certificate" in err) == (
            (0, False) if named else (2, True)
        )
        done = subprocess.run(
            [
                *("openssl", "ts", "-verify", "-in", reply, "-CAfile", honest.root),
                *("-data", signed / manifest.ATTESTATION),
            ],
            check=False,
            capture_output=True,
        )
        assert (done.returncode == 0) is named  # openssl is of the same opinion


def test_the_signer_is_named_by_the_digest_of_the_whole_certificate(
    signed: Path, honest: Authority
) -> None:
    token = tsp(honest.stamp(Path(), data=(signed / manifest.ATTESTATION).read_bytes()))
    certificate = x509.load_pem_x509_certificate((honest.folder / "tsa.pem").read_bytes())
    der = certificate.public_bytes(serialization.Encoding.DER)
    assert timestamp_signer.is_named(token, der)
    assert not timestamp_signer.is_named(token, der[:-1] + bytes([der[-1] ^ 1]))
    for cut in range(0, len(token), 7):
        with pytest.raises(ValueError):
            timestamp_signer.is_named(token[:cut], der)


def tsp(reply: Path) -> bytes:
    token: bytes = decode_timestamp_response(reply.read_bytes()).time_stamp_token()
    return token


@pytest.mark.parametrize("keyed", [False, True])
def test_a_stamp_is_looked_at_whoever_reads(
    signed: Path, pair: Path, honest: Authority, audit: Audit, keyed: bool
) -> None:
    trust = ("--key", f"{pair}.pub") if keyed else ()
    for junk, words in (
        (b"", "is no RFC 3161 reply"),
        (bytes(1000), "is no RFC 3161 reply"),
        (honest.stamp(Path(), data=b"another").read_bytes(), "is of another file"),
    ):
        (signed / STAMP).write_bytes(junk)
        code, out, _ = audit("verify", signed, *trust)
        assert code == 1
        assert f"attestation: does not hold (1):\n  fails: {STAMP}: the" in out
        assert words in out
    (signed / STAMP).write_bytes(bytes(timestamp.MAX_BYTES + 1))
    code, out, err = audit("verify", signed, *trust)
    assert (code, out, f"too long; at {STAMP}" in err) == (2, "", True)
    envelope = (signed / manifest.ATTESTATION).read_bytes()
    reply = honest.stamp(Path(), data=envelope)
    assert audit("timestamp", "accept", signed, reply, "--root", honest.root)[0] == 0
    assert audit("verify", signed, *trust)[0] == 0


def test_a_stamp_of_nothing_fails_and_keeps_no_signature_out(
    run: Path, pair: Path, honest: Authority, audit: Audit
) -> None:
    shutil.copyfile(honest.stamp(Path(), data=b"another"), run / STAMP)
    code, out, _ = audit("verify", run)
    assert (code, "nobody has signed what is stamped" in out) == (1, True)
    assert audit("sign", run, "--key", pair)[0] == 0
    assert not (run / STAMP).exists()
    assert audit("verify", run, "--key", f"{pair}.pub")[0] == 0


def test_a_later_signature_does_not_make_a_stamp_void_unnoticed(
    stamped: Path, pair: Path, honest: Authority, tmp_path: Path, audit: Audit
) -> None:
    keys.generate(tmp_path / "b.pem")
    before = (stamped / manifest.ATTESTATION).read_bytes()
    code, _, err = audit("sign", stamped, "--key", tmp_path / "b.pem")
    assert (code, "another signature makes the time stamp void" in err) == (2, True)
    assert (stamped / manifest.ATTESTATION).read_bytes() == before
    assert audit("sign", stamped, "--key", pair)[0] == 0  # nothing to do, nothing dropped
    assert (stamped / STAMP).exists()
    assert audit("sign", stamped, "--key", tmp_path / "b.pem", "--replace")[0] == 2
    assert audit("sign", stamped, "--key", tmp_path / "b.pem", "--drop-stamp")[0] == 0
    assert not (stamped / STAMP).exists()
    both = ("--key", f"{pair}.pub", "--key", tmp_path / "b.pem.pub", "--threshold", 2)
    assert audit("verify", stamped, *both)[0] == 0


def test_the_golden_stamp_and_list_of_version_1_are_read_for_ever() -> None:
    envelope = (DATA / "golden-v1.dsse.json").read_bytes()
    roots = timestamp.load_roots([DATA / "golden-v1.attestation.root.pem"])
    token = (DATA / "golden-v1.attestation.tsr").read_bytes()
    stamp = timestamp.verify(token, envelope, roots, where="golden")
    assert (stamp.text, stamp.accuracy) == (GOLDEN, SECOND)
    first, second = (keys.load_public(DATA / f"golden-v1.{name}.pub").keyid for name in "ab")
    gone = revoked.load(DATA / "golden-v1.revoked.txt")
    assert gone.since == {first: None, second: stamp.latest}
    assert gone.refuses(first, stamp.latest) == "is revoked"
    assert gone.refuses(second, stamp.latest - SECOND) is None
    assert gone.refuses(second, stamp.latest) is not None


# -- revoked keys -------------------------------------------------------------------------------


def test_a_revoked_key_counts_no_longer(
    signed: Path, pair: Path, tmp_path: Path, audit: Audit
) -> None:
    keyid = keys.load_public(f"{pair}.pub").keyid
    gone = list_of(tmp_path, f"{keyid}  # lost")
    code, out, _ = audit("verify", signed, "--key", f"{pair}.pub", "--revoked", gone)
    assert code == 1
    assert f"0; key {keyid[:16]} is revoked" in out
    other = list_of(tmp_path, "0" * 64)
    assert audit("verify", signed, "--key", f"{pair}.pub", "--revoked", other)[0] == 0


def test_a_signature_from_before_the_revocation_counts_if_a_stamp_says_so(
    stamped: Path, pair: Path, honest: Authority, tmp_path: Path, audit: Audit
) -> None:
    keyid = keys.load_public(f"{pair}.pub").keyid
    signer, root = ("--key", f"{pair}.pub"), ("--root", honest.root)
    later = ("--revoked", list_of(tmp_path, f"{keyid} {text(NOW + HOUR)}"))
    assert audit("verify", stamped, *signer, *later, *root)[0] == 0
    code, out, _ = audit("verify", stamped, *signer, *later)
    assert (code, "and no time stamp was checked" in out) == (1, True)
    (stamped / STAMP).rename(tmp_path / "kept.tsr")
    code, out, _ = audit("verify", stamped, *signer, *later, *root)
    assert (code, "and no time stamp was checked" in out) == (1, True)
    (tmp_path / "kept.tsr").rename(stamped / STAMP)
    earlier = ("--revoked", list_of(tmp_path, f"{keyid} {text(NOW - HOUR)}"))
    code, out, _ = audit("verify", stamped, *signer, *earlier, *root)
    assert (code, "and is stamped no later than 20" in out) == (1, True)


def test_others_can_make_up_for_a_revoked_signer(
    signed: Path, pair: Path, tmp_path: Path, audit: Audit
) -> None:
    keys.generate(tmp_path / "b.pem")
    assert audit("sign", signed, "--key", tmp_path / "b.pem")[0] == 0
    trust = ("--key", f"{pair}.pub", "--key", tmp_path / "b.pem.pub")
    gone = ("--revoked", list_of(tmp_path, keys.load_public(f"{pair}.pub").keyid))
    code, out, _ = audit("verify", signed, *trust, *gone)
    assert (code, "signed by 1 of 2 given keys" in out) == (0, True)
    assert audit("verify", signed, *trust, *gone, "--threshold", 2)[0] == 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["abc"], "line 2; expected a key id"),
        (["0" * 64 + " yesterday"], "the time cannot be read"),
        (["0" * 64 + " 2026-13-01T00:00:00Z"], "the time cannot be read"),
        (["0" * 64 + " 2026-01-01T00:00:00Z more"], "names no key"),
        (["0" * 64, "0" * 64 + " 2026-01-01T00:00:00Z"], "revoked twice"),
    ],
)
def test_a_list_that_cannot_be_read_is_one_clear_error(
    signed: Path, pair: Path, tmp_path: Path, audit: Audit, lines: list[str], words: str
) -> None:
    gone = list_of(tmp_path, *lines)
    code, _, err = audit("verify", signed, "--key", f"{pair}.pub", "--revoked", gone)
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x0c", "\x1e", "\x00"])
def test_a_line_end_that_hides_a_key_in_a_remark_is_refused(tmp_path: Path, end: str) -> None:
    path = tmp_path / "revoked.txt"
    path.write_bytes(f"# keys of ours{end}{'0' * 64}{end}".encode())
    with pytest.raises(UnusableInput, match="control character"):
        revoked.load(path)
    path.write_bytes(b"# ours\t\r\n" + b"0" * 64 + b"\t# lost\r\n")
    assert revoked.load(path).since == {"0" * 64: None}


def test_several_lists_count_together_and_the_earliest_time_of_a_key(
    signed: Path, pair: Path, tmp_path: Path, audit: Audit
) -> None:
    keyid = keys.load_public(f"{pair}.pub").keyid
    lists = []
    for name, line in (("a", keyid), ("b", "1" * 64), ("c", f"{keyid} {text(NOW)}")):
        (tmp_path / name).mkdir()
        lists.append(list_of(tmp_path / name, line))
    given = [part for path in lists for part in ("--revoked", path)]
    for order in (given, [*given[2:], *given[:2]]):
        code, out, _ = audit("verify", signed, "--key", f"{pair}.pub", *order)
        assert (code, f"key {keyid[:16]} is revoked\n" in out) == (1, True)
    later = list_of(tmp_path, f"{keyid} {text(NOW + HOUR)}")
    for both in ((lists[2], later), (later, lists[2])):
        found = revoked.load(*both).since[keyid]
        assert found is not None
        assert text(found) == text(NOW)


def test_an_absent_or_binary_list_is_not_an_empty_one(
    signed: Path, pair: Path, tmp_path: Path, audit: Audit
) -> None:
    signer = ("--key", f"{pair}.pub", "--revoked")
    assert audit("verify", signed, *signer, tmp_path / "nowhere")[0] == 3
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UnusableInput, match="not plain text"):
        revoked.load(tmp_path / "binary")
    for option in ("--revoked", "--root"):
        code, _, err = audit("verify", signed, option, tmp_path / "nowhere")
        assert (code, f"{option} needs --key" in err) == (2, True)
