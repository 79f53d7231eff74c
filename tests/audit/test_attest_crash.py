"""Signing and stamping that is killed, crowded or out of space: nothing is lost, nothing stuck."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from authority import Authority, authority

from kvaudit import atomic, canonical, locks, manifest
from kvaudit.attest import dsse, keys
from kvaudit.attest.run import check_run, sign_run
from kvaudit.errors import UnusableInput

Audit = Callable[..., tuple[int, str, str]]
ATTESTATION, STAMP = manifest.ATTESTATION, manifest.ATTESTATION_STAMP
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
KILLED_AT_SYNC = """
import os, signal, sys
left = int(sys.argv.pop(1))
real = os.fsync
def sync(descriptor):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)
os.fsync = sync
from kvaudit import cli
sys.exit(cli.main(sys.argv[1:]))
"""
"""The command line, killed as it synchronises for the n-th time."""


def killed(at: int, *arguments: object) -> None:
    line = [sys.executable, "-c", KILLED_AT_SYNC, str(at), *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def litter(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if atomic.is_temporary(path.name))


@contextmanager
def full_disk() -> Iterator[None]:
    bound = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, bound[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bound)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("keys")
    for number in range(6):
        keys.generate(folder / f"{number}.pem")
    return [folder / f"{number}.pem" for number in range(6)]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("honest") / "tsa")


def test_a_killed_signature_is_no_evidence_and_the_next_one_clears_it(
    run: Path, pairs: list[Path], tmp_path: Path, audit: Audit
) -> None:
    killed(1, "sign", run, "--key", pairs[0])
    assert len(litter(run)) == 1
    assert audit("verify", run)[0] == 0
    assert audit("pack", run, tmp_path / "run.tar")[0] == 0
    assert b".tmp" not in (tmp_path / "run.tar").read_bytes()
    assert audit("sign", run, "--key", pairs[0])[0] == 0
    assert litter(run) == []
    assert audit("verify", run, "--key", f"{pairs[0]}.pub")[0] == 0


@needs_openssl
def test_a_killed_acceptance_is_taken_up_by_the_next(
    run: Path, pairs: list[Path], honest: Authority, audit: Audit
) -> None:
    sign_run(run, [keys.load_private(pairs[0])])
    reply = honest.stamp(Path(), data=(run / ATTESTATION).read_bytes())
    accept = ("timestamp", "accept", run, reply, "--root", honest.root)
    killed(1, *accept)
    trust = ("--key", f"{pairs[0]}.pub")
    assert (len(litter(run)), audit("verify", run, *trust)[0]) == (1, 0)
    assert audit(*accept)[0] == 0
    assert litter(run) == []
    assert audit("verify", run, *trust, "--root", honest.root)[0] == 0


@needs_openssl
def test_a_kill_between_envelope_and_stamp_is_reported_and_put_right_by_signing_again(
    run: Path, pairs: list[Path], honest: Authority, audit: Audit
) -> None:
    sign_run(run, [keys.load_private(pairs[0])])
    reply = honest.stamp(Path(), data=(run / ATTESTATION).read_bytes())
    assert audit("timestamp", "accept", run, reply, "--root", honest.root)[0] == 0
    killed(2, "sign", run, "--key", pairs[1], "--drop-stamp")  # the folder, after the rename
    code, out, _ = audit("verify", run)
    assert (code, f"fails: {STAMP}: the time stamp is of another file" in out) == (1, True)
    assert audit("sign", run, "--key", pairs[1])[0] == 0
    assert not (run / STAMP).exists()
    assert audit("verify", run, "--key", f"{pairs[1]}.pub")[0] == 0


def test_signers_at_one_time_lose_no_signature(run: Path, pairs: list[Path]) -> None:
    line = [sys.executable, "-m", "kvaudit", "sign", str(run), "--key"]

    def sign(pair: Path) -> int:
        return subprocess.run([*line, str(pair)], check=False, capture_output=True).returncode

    with ThreadPoolExecutor(len(pairs)) as pool:
        assert [*pool.map(sign, pairs)] == [0] * len(pairs)
    public = [keys.load_public(f"{pair}.pub") for pair in pairs]
    assert len(check_run(run, public, threshold=len(pairs)).signers) == len(pairs)


@pytest.mark.parametrize("what", ["a signature", "a time stamp"])
@needs_openssl
def test_who_signs_or_stamps_waits_for_whoever_holds_the_run(
    what: str, run: Path, pairs: list[Path], honest: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvaudit import cli

    sign_run(run, [keys.load_private(pairs[0])])
    reply = honest.stamp(Path(), data=(run / ATTESTATION).read_bytes())
    line = ["sign", str(run), "--key", str(pairs[1])]
    if what == "a time stamp":
        line = ["timestamp", "accept", str(run), str(reply), "--root", str(honest.root)]
    before = {path.name: path.read_bytes() for path in run.glob("attestation.*")}
    held = locks.hold_folder(run)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        assert {path.name: path.read_bytes() for path in run.glob("attestation.*")} == before
        os.close(held)

    monkeypatch.setattr("kvaudit.locks.time.sleep", sleep)
    assert cli.main(line) == 0
    assert len(waited) == 1


def test_a_temporary_that_somebody_writes_is_left_and_an_abandoned_one_goes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    (tmp_path / ".file.abcdefgh.tmp").write_bytes(b"abandoned")
    (tmp_path / ".another.abcdefgh.tmp").write_bytes(b"of another file")
    with atomic.replacing(path) as file:
        file.write(b"new")
        assert len(litter(tmp_path)) == 3
        atomic.sweep(path)
        assert len(litter(tmp_path)) == 2
    assert (path.read_bytes(), litter(tmp_path)) == (b"new", [".another.abcdefgh.tmp"])


def test_what_only_looks_like_a_temporary_is_still_found(run: Path, audit: Audit) -> None:
    for name in (".x.abcdefg.tmp", "x.abcdefgh.tmp", ".x.ABCDEFGH.tmp", "..abcdefgh.tmp"):
        (run / name).write_text("")
        code, out, _ = audit("verify", run)
        assert (code, f"{name}: is not listed in any manifest" in out) == (1, True)
        (run / name).unlink()
    (run / ".x.abcdefgh.tmp").symlink_to(run / manifest.RUN)
    assert audit("verify", run)[0] == 2


def test_an_unfinished_file_in_a_stage_is_no_output_of_it(run: Path) -> None:
    stage = run / "exactness/tiny-a"
    before = manifest.list_outputs(stage)
    (stage / "records/.determinism.jsonl.abcdefgh.tmp").write_bytes(b"half a line")
    assert manifest.list_outputs(stage) == before


def test_a_killed_pack_leaves_nothing_behind_the_next(run: Path, tmp_path: Path) -> None:
    from kvaudit.pack import pack

    into = tmp_path / "packed"
    into.mkdir()
    killed(1, "pack", run, into / "run.tar.zst")
    assert len(litter(into)) == 1
    pack(run, into / "run.tar.zst")
    assert [path.name for path in into.iterdir()] == ["run.tar.zst"]


def test_a_request_that_cannot_be_written_is_not_there(
    run: Path, pairs: list[Path], tmp_path: Path, audit: Audit
) -> None:
    sign_run(run, [keys.load_private(pairs[0])])
    with full_disk():
        code, _, err = audit("timestamp", "request", run, tmp_path / "mine.tsq")
    assert (code, "request cannot be written" in err) == (2, True)
    assert not list(tmp_path.glob("*mine.tsq*"))
    for inside in (run / "mine.tsq", run / "exactness" / "mine.tsq"):
        code, _, err = audit("timestamp", "request", run, inside)
        assert (code, "would lie inside the run" in err) == (2, True)
    assert audit("verify", run)[0] == 0
    assert audit("timestamp", "request", run, tmp_path / "mine.tsq")[0] == 0


def test_a_replaced_envelope_that_cannot_be_written_costs_no_stamp(
    run: Path, pairs: list[Path]
) -> None:
    sign_run(run, [keys.load_private(pairs[0])])
    value = dsse.parse((run / ATTESTATION).read_bytes())
    other = dsse.sign(value.payload + b" ", value.payload_type, [keys.load_private(pairs[1])])
    (run / ATTESTATION).write_bytes(dsse.to_bytes(other))
    (run / STAMP).write_bytes(canonical.dumps({}))
    before = {path.name: path.read_bytes() for path in run.glob("attestation.*")}
    with full_disk(), pytest.raises(UnusableInput, match="attestation cannot be written"):
        sign_run(run, [keys.load_private(pairs[0])], replace=True)
    assert {path.name: path.read_bytes() for path in run.glob("attestation.*")} == before


def test_a_killed_keygen_leaves_no_private_half_without_its_public_one(
    tmp_path: Path, audit: Audit
) -> None:
    path = tmp_path / "new" / "key.pem"
    killed(1, "keygen", path)
    assert [one.name for one in path.parent.iterdir()] == ["key.pem.pub"]
    code, _, err = audit("keygen", path)
    assert (code, "if a keygen was ended before it wrote the private half" in err) == (2, True)
    (path.parent / "key.pem.pub").unlink()
    assert audit("keygen", path)[0] == 0


def test_a_folder_that_another_keygen_uses_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new"
    first = keys._create

    def crowded(path: str, data: bytes, mode: int, undo: object) -> None:
        (folder / "theirs.pem").touch()
        first(path, data, mode, undo)  # type: ignore[arg-type]

    monkeypatch.setattr(keys, "_create", crowded)
    with pytest.raises(UnusableInput, match="cannot be written"):
        keys.generate(folder / ("k" * 300))
    assert [path.name for path in folder.iterdir()] == ["theirs.pem"]
