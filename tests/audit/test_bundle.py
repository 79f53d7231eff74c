"""Bundles: a run in one file is verified like its folder, and a hostile one harms nobody."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import archives
import pytest
import zstandard
from archives import END, header, member, pax
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvaudit import bundle, canonical, manifest, pack
from kvaudit.errors import EvidenceIncomplete, TypedError, UnusableInput

Audit = Callable[..., tuple[int, str, str]]
WORKFLOW = Path(canonical.__file__).parents[1]
ENDINGS = (".tar", ".tar.zst", ".zip")


def squeezed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def unpacked(data: bytes, folder: Path, **bounds: int) -> dict[str, bytes]:
    """{name: content} of everything that unpacking `data` leaves in `folder`."""
    bundle.unpack(io.BytesIO(data), folder, where="bundle", **bounds)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made in this test."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    return place


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_bundle_has_the_verdict_of_its_folder_and_leaves_nothing(
    pristine: Path, tmp_path: Path, private: Path, audit: Audit, ending: str
) -> None:
    file = tmp_path / f"run{ending}"
    assert audit("pack", pristine, file)[0] == 0
    assert audit("verify", file, "--json")[:2] == audit("verify", pristine, "--json")[:2]
    assert not list(private.iterdir())


@pytest.mark.parametrize("ending", ENDINGS)
def test_packing_is_a_function_of_the_content(pristine: Path, tmp_path: Path, ending: str) -> None:
    moved = tmp_path / "moved"
    for path in sorted(pristine.rglob("*"), reverse=True):  # another order, mode and time
        target = moved / path.relative_to(pristine)
        if path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            target.chmod(0o600)
            os.utime(target, (1, 1))
    digests = [
        pack.pack(run, tmp_path / f"{name}{ending}")
        for name, run in (("a", pristine), ("b", moved))
    ]
    assert digests[0] == digests[1]


def test_a_packed_run_is_read_by_other_tools(pristine: Path, tmp_path: Path) -> None:
    names = {p.relative_to(pristine).as_posix() for p in pristine.rglob("*") if p.is_file()}
    for ending in ENDINGS:
        pack.pack(pristine, tmp_path / f"run{ending}")
    plain = zstandard.ZstdDecompressor().stream_reader((tmp_path / "run.tar.zst").open("rb")).read()
    assert plain == (tmp_path / "run.tar").read_bytes()
    with tarfile.open(tmp_path / "run.tar") as archive:
        tops = {name.split("/", 1)[0] for name in archive.getnames()}
        assert {name.split("/", 1)[1] for name in archive.getnames()} == names
    assert len(tops) == 1
    with zipfile.ZipFile(tmp_path / "run.zip") as found:
        assert found.testzip() is None
        assert {name.split("/", 1)[1] for name in found.namelist()} == names


def test_a_bundle_of_another_tool_is_read(
    pristine: Path, tmp_path: Path, private: Path, audit: Audit
) -> None:
    for name, form in (("pax", "pax"), ("gnu", "gnu"), ("posix", "ustar")):
        file = tmp_path / f"{name}.tar"
        done = subprocess.run(
            ["tar", f"--format={form}", "-C", pristine.parent, "-cf", file, f"./{pristine.name}"],
            check=False,
        )
        assert done.returncode == 0
        assert audit("verify", file)[0] == 0
    file = tmp_path / "flat.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(pristine.rglob("*")):
            archive.write(path, path.relative_to(pristine))
    assert audit("verify", file)[0] == 0


def test_a_damaged_member_is_found_by_the_same_verifier(
    run: Path, tmp_path: Path, private: Path, audit: Audit
) -> None:
    name = "exactness/tiny-a/records/samples.jsonl"
    (run / name).write_bytes((run / name).read_bytes().replace(b"tiny-a", b"tiny-b", 1))
    pack.pack(run, tmp_path / "run.tar.zst")
    code, out, _ = audit("verify", tmp_path / "run.tar.zst")
    assert code == 1
    assert name in out


def test_a_bundle_is_not_written_to(pristine: Path, tmp_path: Path, audit: Audit) -> None:
    pack.pack(pristine, tmp_path / "run.zip")
    code, _, err = audit("verify", tmp_path / "run.zip", "--write")
    assert (code, err.count("\n")) == (2, 1)


def test_pack_refuses_what_it_would_overwrite_or_cannot_name(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there.zip").write_bytes(b"mine")
    for target in (tmp_path / "there.zip", tmp_path / "run.rar", run / "run.zip"):
        with pytest.raises(UnusableInput):
            pack.pack(run, target)
    with pytest.raises(UnusableInput, match=r"\.tar\.zst.*run\.rar"):
        pack.pack(run, tmp_path / "run.rar")
    assert (tmp_path / "there.zip").read_bytes() == b"mine"
    (run / manifest.RUN).unlink()
    with pytest.raises(EvidenceIncomplete):
        pack.pack(run, tmp_path / "run.zip")
    assert not list(tmp_path.glob(".run*"))


NAMES = {
    "absolute": b"/etc/passwd",
    "parent": b"../escaped",
    "parent within": b"a/../../escaped",
    "dot within": b"a/./b",
    "double slash": b"a//b",
    "backslash": b"a\\..\\b",
    "drive": b"a\nb",
    "escape sequence": b"a\x1b[2Jb",
    "not UTF-8": b"a\xffb",
    "right to left": "a\u202eb".encode(),
    "too deep": b"/".join([b"d"] * 13),
    "too long a part": b"n" * 256,
    "too long": b"/".join([b"n" * 200] * 3),
    "empty": b"",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_that_could_leave_the_folder_or_mislead_is_refused(
    name: bytes, tmp_path: Path
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    data = member(b"L", name + b"\0", b"L") + member(b"short") + END
    with pytest.raises(UnusableInput):
        unpacked(data, inner)
    assert not list(inner.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]


HOSTILE = {
    "symbolic link": member(b"a", b"", b"2", link=b"/etc/passwd") + END,
    "hard link": member(b"a", b"", b"1", link=b"b") + END,
    "character device": member(b"a", b"", b"3") + END,
    "block device": member(b"a", b"", b"4") + END,
    "fifo": member(b"a", b"", b"6") + END,
    "sparse file": member(b"a", b"x", b"S") + END,
    "sparse by pax": pax("GNU.sparse.realsize", b"10000000000") + member(b"a") + END,
    "size by pax": pax("size", b"10000000000") + member(b"a") + END,
    "link by pax": pax("linkpath", b"/etc/passwd") + member(b"a") + END,
    "another encoding by pax": pax("hdrcharset", b"BINARY") + member(b"a") + END,
    "pax of a wrong length": member(b"p", b"99 path=b\n", b"x") + member(b"a") + END,
    "pax too long": header(b"p", 1 << 30, b"x"),
    "endless extended headers": member(b"g", b"", b"g") * 140_000,
    "name too long": header(b"p", 1 << 30, b"L"),
    "two names": pax("path", b"b") + member(b"L", b"c\0", b"L") + member(b"a") + END,
    "a name for nothing": member(b"L", b"c\0", b"L") + END,
    "twice": member(b"a") + member(b"a", b"y") + END,
    "in another case": member(b"a") + member(b"A") + END,
    "in another normal form": member("é".encode()) + member("e\u0301".encode()) + END,
    "folder in another case": member(b"d/a") + member(b"D/b") + END,
    "file and folder": member(b"a") + member(b"a/b") + END,
    "folder and file": member(b"a/b") + member(b"a") + END,
    "negative size": header(b"a", octal=b"-0000000001\0") + END,
    "size in binary": header(b"a", octal=b"\x80" + b"\xff" * 11) + END,
    "larger than announced": header(b"a", 1) + b"x" * 1024 + END,
    "cut short": (member(b"a", b"x" * 2000) + END)[:1200],
    "no end": member(b"a"),
    "one zero block": member(b"a") + bytes(512) + member(b"b") + END,
    "trailing garbage": member(b"a") + END + b"garbage",
    "another archive behind": member(b"a") + END + member(b"b") + END,
    "endless zeros": member(b"a") + bytes(3 << 20),
    "damaged header": member(b"a").replace(b"0000644", b"0000645") + END,
    "old format": member(b"a", magic=bytes(8)) + END,
    "folder with content": member(b"a/", b"x", b"5") + END,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("packed", [False, True], ids=["tar", "tar.zst"])
def test_a_hostile_tar_is_refused(data: bytes, packed: bool, tmp_path: Path) -> None:
    if not data.startswith(b"\x28\xb5") and b"ustar" not in data[:512] and not packed:
        pytest.skip("without the magic it is no tar at all")
    with pytest.raises(UnusableInput) as refused:
        unpacked(squeezed(data) if packed else data, tmp_path)
    assert "\n" not in str(refused.value)
    for path in tmp_path.rglob("*"):
        assert stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR)


def as_link(info: zipfile.ZipInfo) -> None:
    info.create_system, info.external_attr = 3, 0o120777 << 16


def named(name: str) -> Callable[[zipfile.ZipInfo], None]:
    def change(info: zipfile.ZipInfo) -> None:
        info.filename = name

    return change


TWO = archives.zip_of({"a": b"one", "b": b"two"})
HOSTILE_ZIPS = {
    "symbolic link": archives.zip_with(as_link, b"/etc/passwd"),
    "absolute": archives.zip_with(named("/etc/passwd")),
    "parent": archives.zip_with(named("../escaped")),
    "backslash": archives.zip_with(named("..\\escaped")),
    "overlap": archives.overlapping_zip(),
    "garbage in front": b"PKgarbage" + TWO,
    "garbage behind": TWO + b"garbage",
    "a remark behind": TWO[:-2] + b"\x07\x00garbage",
    "cut short": TWO[:-30],
    "damaged content": archives.zip_of({"a": b"content"}, zipfile.ZIP_STORED).replace(
        b"content", b"CONTENT"
    ),
    "another local name": TWO.replace(b"a", b"c", 1),
    "another method": archives.zip_of({"a": b"x" * 100}, zipfile.ZIP_BZIP2),
    "encrypted": TWO.replace(b"PK\3\4\x14\0\0\0", b"PK\3\4\x14\0\1\0").replace(
        b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"
    ),
    "in another case": archives.zip_of({"a": b"one", "A": b"two"}),
}


@pytest.mark.parametrize("data", HOSTILE_ZIPS.values(), ids=HOSTILE_ZIPS)
def test_a_hostile_zip_is_refused(data: bytes, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(UnusableInput):
        unpacked(data, inner)
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_with_one_name_twice_is_refused(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a", b"one")
        archive.writestr("a", b"two")
    with pytest.raises(UnusableInput, match="twice"):
        unpacked(sink.getvalue(), tmp_path)


def test_a_zip_written_to_a_pipe_is_read(tmp_path: Path) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise io.UnsupportedOperation

    sink = Pipe()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"content" * 100)
        archive.writestr("b", b"")
    assert unpacked(sink.getvalue(), tmp_path) == {"a": b"content" * 100, "b": b""}


BOMBS = {
    "tar.zst": squeezed(archives.tar_of({"a": bytes(200 << 20)})),
    "zip": archives.zip_of({"a": bytes(200 << 20)}),
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_before_it_is_unpacked(data: bytes, tmp_path: Path) -> None:
    assert len(data) < 300_000
    with pytest.raises(UnusableInput, match="unpacks to too much"):
        unpacked(data, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) == 0


def test_a_member_that_announces_less_than_it_is_stops_at_once(tmp_path: Path) -> None:
    data = archives.zip_of({"a": bytes(1 << 20)})
    entry = data.rfind(b"PK\1\2")
    lie = (10).to_bytes(4, "little")
    data = data[:22] + lie + data[26 : entry + 24] + lie + data[entry + 28 :]
    with pytest.raises(UnusableInput, match="longer than announced"):
        unpacked(data, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) <= 10


def test_the_bounds_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert manifest.MAX_LISTED_BYTES > 10 * 1024**3
    with pytest.raises(UnusableInput, match="too much"):
        unpacked(archives.tar_of({"a": bytes(11)}), tmp_path, max_bytes=10)
    monkeypatch.setattr(bundle, "KEPT_FREE_BYTES", 1 << 62)
    with pytest.raises(UnusableInput, match="no room"):
        unpacked(archives.tar_of({"b": b"x"}), tmp_path)
    monkeypatch.setattr(bundle, "MAX_MEMBERS", 3)
    monkeypatch.setattr(bundle, "KEPT_FREE_BYTES", 0)
    for many in (archives.tar_of, archives.zip_of):
        folder = tmp_path / many.__name__
        folder.mkdir()
        with pytest.raises(UnusableInput, match="too many"):
            unpacked(many({f"d{i}/e": b"" for i in range(3)}), folder)


def test_a_window_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    squeezer = compressor.compressobj()  # of unknown length, so that the window is kept
    data = squeezer.compress(archives.tar_of({"a": bytes(1000)})) + squeezer.flush()
    with pytest.raises(UnusableInput, match="decompressed"):
        unpacked(data, tmp_path)


@pytest.mark.parametrize("data", [b"", b"PK", b"\x28\xb5\x2f\xfd", b"Rar!\x1a", b"x" * 600])
def test_a_file_of_another_kind_is_one_clear_error(
    data: bytes, tmp_path: Path, private: Path, audit: Audit
) -> None:
    (tmp_path / "file").write_bytes(data)
    code, _, err = audit("verify", tmp_path / "file")
    assert (code, err.count("\n")) == (2, 1)
    assert not list(private.iterdir())


def test_what_is_no_file_is_refused(tmp_path: Path, audit: Audit) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "absent", "/dev/null"):
        code, _, err = audit("verify", path)
        assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize("kind", ENDINGS)
def test_no_damage_to_a_bundle_crashes_or_misleads(
    pristine: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    place = tmp_path_factory.mktemp("fuzz")
    small = place / "run"
    (small / "exactness").mkdir(parents=True)
    for name in (manifest.INPUTS, manifest.RUN):
        (small / name).write_bytes((pristine / name).read_bytes())
    pack.pack(small, place / f"run{kind}")
    whole = (place / f"run{kind}").read_bytes()

    @settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=3),
        st.integers(0, len(whole)),
        st.binary(max_size=20),
    )
    def check(edits: list[tuple[int, int]], cut: int, tail: bytes) -> None:
        data = bytearray(whole)
        for offset, value in edits:
            data[offset] = value
        with bundle._private_folder(place) as folder:
            with contextlib.suppress(TypedError):
                unpacked(bytes(data[:cut]) + tail if cut % 3 else bytes(data), folder)
            assert all(not path.is_symlink() for path in folder.rglob("*"))

    check()
    assert {path.name for path in place.iterdir()} == {"run", f"run{kind}"}


WAITS = """
import sys, threading, time
from kvaudit import bundle
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
with bundle.opened(sys.argv[1]) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_no_folder_behind(
    pristine: Path, tmp_path: Path, private: Path, number: signal.Signals
) -> None:
    pack.pack(pristine, tmp_path / "run.zip")
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, tmp_path / "run.zip"],
        cwd=WORKFLOW,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    mode = stat.S_IMODE(folder.parent.stat().st_mode)
    for _ in range(3):  # once more while it is being cleaned up
        process.send_signal(number)
    process.wait(timeout=30)
    process.stdout.close()
    assert folder.is_relative_to(private)
    assert mode == 0o700
    assert not list(private.iterdir())
    assert process.returncode != 0


PEAK = """
import resource, sys
from kvaudit import bundle
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with bundle.opened(sys.argv[1]):
    pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("kind", ENDINGS)
def test_memory_does_not_grow_with_the_bundle(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / manifest.RUN).write_bytes(b"{}")
    noise = os.urandom(1 << 20)
    with (run / "large").open("wb") as file:
        for index in range(150):
            file.write(bytes([index]) + noise)
    pack.pack(run, tmp_path / f"run{kind}")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / f"run{kind}"],
        cwd=WORKFLOW,
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) < 40 << 20


def test_pack_says_what_it_made(pristine: Path, tmp_path: Path, audit: Audit) -> None:
    code, out, _ = audit("pack", pristine, tmp_path / "run.tar.zst", "--json")
    said = json.loads(out)
    assert code == 0
    assert said["bytes"] == (tmp_path / "run.tar.zst").stat().st_size
    assert len(said["sha256"]) == 64


def test_an_error_within_leaves_no_folder_behind(
    pristine: Path, tmp_path: Path, private: Path
) -> None:
    pack.pack(pristine, tmp_path / "run.tar")

    def use() -> None:
        with bundle.opened(tmp_path / "run.tar") as folder:
            assert folder.is_relative_to(private)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert not list(private.iterdir())
