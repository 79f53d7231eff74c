"""What else can happen to a store: foreign states, stopped writers, odd folders, odd drivers."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kvb_samples as samples
import pytest

from kvaudit.errors import BlockChunkCorrupt, BlockNotFound, BlockRefused
from kvgraft.errors import StoreDamaged, StoreFull, StoreReadOnly
from kvgraft.store import BlockStore
from kvgraft.store_url import RemoteStore, open_store

WORKFLOW = Path(__file__).parents[2] / "workflow"
SAMPLES = Path(__file__).parents[1] / "kvb"
BLOCK_ID, DATA = samples.sample()


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path / "store")


def python(code: str, folder: Path, **options: Any) -> subprocess.Popen[str]:
    """A process that runs Python code in a folder, its output a pipe of text."""
    paths = os.pathsep.join([str(WORKFLOW), str(SAMPLES)])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


# -- writers ----------------------------------------------------------------------------------


def test_a_state_that_is_not_the_headers_is_never_stored(store: BlockStore) -> None:
    header, tokens, state = samples.make()
    other = bytes([state[0] ^ 1]) + state[1:]
    with pytest.raises(BlockChunkCorrupt, match="chunk 0 of the state is damaged"):
        store.put(header, tokens, other)
    assert list(store) == []
    assert list((store.root / "tmp").iterdir()) == []
    store.put(header, tokens, state)
    store.put(header, tokens, other)  # what is there is sound, and stays
    store.get(header.id).close()
    assert store.fsck().clean


HALF_WRITER = f"""
import sys, kvb_samples
from kvgraft.store import BlockStore
data = kvb_samples.sample()[1]
def fill(file):
    file.write(data[:100]); file.flush(); print("half", flush=True)
    sys.stdin.readline()
    file.write(data[100:])
BlockStore("store").receive({BLOCK_ID!r}, fill)
"""


@pytest.mark.parametrize("end", ["finishes", "killed"])
def test_gc_leaves_a_stopped_writer_its_temporary_until_it_is_dead(
    end: str, store: BlockStore
) -> None:
    with (
        python(HALF_WRITER, store.root.parent, stdin=subprocess.PIPE) as writer,
        contextlib.ExitStack() as at_last,
    ):
        at_last.callback(writer.kill)  # a stopped process would be waited for for ever
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        os.kill(writer.pid, signal.SIGSTOP)
        (part,) = (store.root / "tmp").iterdir()
        os.utime(part, (0, 0))
        assert store.gc(min_age_s=0).temporaries == 0
        report = store.fsck()
        assert report.clean
        assert (report.ok, report.temporaries) == (0, 1)
        assert not store.has(BLOCK_ID)
        if end == "killed":
            writer.kill()
            writer.wait()
        else:
            os.kill(writer.pid, signal.SIGCONT)
            writer.stdin.write("\n")
            writer.stdin.flush()
        assert writer.stdout.read() == ""
        writer.wait()
    report = store.gc(min_age_s=0)
    if end == "finishes":
        assert writer.returncode == 0
        assert report.temporaries == 0
        store.get(BLOCK_ID).close()
    else:
        assert report.temporaries == 1
        assert report.bytes_freed == 100
        with pytest.raises(BlockNotFound):
            store.get(BLOCK_ID)
    assert list((store.root / "tmp").iterdir()) == []


def test_refusals_leave_no_descriptor_and_no_mapping(store: BlockStore) -> None:
    header, tokens, state = samples.make()
    store.put(header, tokens, state)
    path = store.path(header.id)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        path.chmod(0o644)
        path.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
        with pytest.raises(BlockChunkCorrupt) as kept:
            store.get(header.id)
        with pytest.raises(BlockChunkCorrupt):
            store.put(header, tokens, bytes(len(state)))
        with pytest.raises(BlockRefused):
            store.receive(header.id, lambda file: file.write(DATA[:70]))
        assert not store.fsck().clean
        assert str(store.root) not in Path("/proc/self/maps").read_text()
        assert kept.value.__traceback__ is not None
        store.put(header, tokens, state)
    assert len(os.listdir("/proc/self/fd")) == before
    assert list((store.root / "tmp").iterdir()) == []


# -- folders ----------------------------------------------------------------------------------


def _loop(root: Path) -> None:
    root.mkdir()
    (root / "blocks").symlink_to("blocks")


def _file_for_tmp(root: Path) -> None:
    root.mkdir()
    (root / "tmp").touch()


def _dangling(root: Path) -> None:
    root.symlink_to("nowhere")


@pytest.mark.parametrize("make", [_loop, _file_for_tmp, _dangling])
def test_a_folder_that_is_no_store_is_a_typed_error(
    make: Callable[[Path], None], store: BlockStore
) -> None:
    make(store.root)
    with pytest.raises(StoreDamaged, match=r"not laid out as a store; at .*; found "):
        store.put(*samples.make())


def test_a_name_that_is_too_long_for_a_folder_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StoreDamaged, match="not laid out as a store"):
        BlockStore(tmp_path / ("x" * 300)).put(*samples.make())


def test_temporaries_on_another_file_system_are_refused_and_removed(store: BlockStore) -> None:
    other = Path("/dev/shm") / f"kvgraft-{uuid.uuid4().hex}"
    if not other.parent.is_dir() or other.parent.stat().st_dev == store.root.parent.stat().st_dev:
        pytest.skip("there is no second file system here")
    other.mkdir()
    try:
        store.root.mkdir()
        (store.root / "tmp").symlink_to(other)
        with pytest.raises(StoreDamaged, match=r"not laid out as a store; .*cross-device"):
            store.put(*samples.make())
        assert list(other.iterdir()) == []
        assert list(store) == []
    finally:
        other.rmdir()


def test_fsck_of_a_file_is_not_clean(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        report = BlockStore(tmp_path / name).fsck()
        assert report.damaged == ((".", "the folder cannot be listed; found Not a directory"),)
        assert not report.clean
        with pytest.raises(BlockRefused, match=r"cannot be opened; .*found Not a directory"):
            BlockStore(tmp_path / name).get(BLOCK_ID)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without rights")
def test_fsck_names_a_folder_that_it_may_not_list(store: BlockStore) -> None:
    folder = store.path(store.put(*samples.make())).parent
    folder.chmod(0)
    store.root.parent.chmod(0o755)
    code = (
        "import os\nfrom kvgraft.store import BlockStore\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "report = BlockStore('store').fsck()\nprint(report.damaged, report.clean)\n"
    )
    with python(code, store.root.parent) as other:
        assert other.stdout is not None
        output = other.stdout.read().strip()
    reason = "the folder cannot be listed; found Permission denied"
    assert output == f"(('blocks/{folder.name}', '{reason}'),) False"


# -- behind a URL -----------------------------------------------------------------------------


class DriverError(Exception):
    """What a driver raises that knows nothing of OSError."""


@pytest.fixture
def far(tmp_path: Path) -> RemoteStore:
    return RemoteStore(f"file://{tmp_path}/far", BlockStore(tmp_path / "cache"))


def _raise(*arguments: object, **options: object) -> None:
    raise DriverError("no\ncredentials")


@pytest.mark.parametrize(
    ("call", "use", "kind", "message"),
    [
        ("info", lambda one: one.get(BLOCK_ID), BlockRefused, "store cannot be read"),
        ("info", lambda one: one.has(BLOCK_ID), BlockRefused, "store cannot be read"),
        ("glob", list, BlockRefused, "store cannot be read"),
        ("put_file", lambda one: one.put(*samples.make()), StoreReadOnly, "does not take"),
        ("makedirs", lambda one: one.put(*samples.make()), StoreReadOnly, "does not take"),
    ],
)
def test_the_errors_of_a_driver_become_typed_ones(
    call: str,
    use: Callable[[RemoteStore], object],
    kind: type[Exception],
    message: str,
    far: RemoteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(far._files, call, _raise)
    with pytest.raises(kind, match=rf"{message}.*; found no\\ncredentials"):
        use(far)


@pytest.mark.parametrize("url", ["zip://", "reference://x", "jupyter://x", "data://x", "nope://x"])
def test_a_url_that_opens_nothing_is_a_typed_error(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVGRAFT_CACHE", str(tmp_path))
    with pytest.raises(BlockRefused, match=r"no way to reach that store|cannot be read"):
        list(open_store(url))


def test_a_remote_object_of_unknown_length_is_fetched_and_verified(
    far: RemoteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far.put(*samples.make())
    near = RemoteStore(far.url, BlockStore(tmp_path / "near"))
    monkeypatch.setattr(near._files, "info", lambda name: {"type": "file", "size": None})
    assert near.has(BLOCK_ID)
    near.get(BLOCK_ID).close()


@pytest.mark.parametrize(("error", "kind"), [(errno.ENOSPC, StoreFull), (errno.EROFS, None)])
def test_a_cache_without_room_is_not_taken_for_a_damaged_remote(
    error: int,
    kind: type[Exception] | None,
    far: RemoteStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far.put(*samples.make())
    near = RemoteStore(far.url, BlockStore(tmp_path / "near"))

    def fail(fd: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind or StoreReadOnly):
        near.get(BLOCK_ID)
    assert not near.cache.has(BLOCK_ID)
    assert list((near.cache.root / "tmp").iterdir()) == []


def test_readers_that_fetch_one_block_at_once_all_get_it(far: RemoteStore, tmp_path: Path) -> None:
    far.put(*samples.make())
    near = RemoteStore(far.url, BlockStore(tmp_path / "near"))

    def read(_: int) -> bool:
        with near.get(BLOCK_ID) as block:
            return block.verified and bytes(block.state) == DATA[-300:]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(32)))
    assert near.cache.fsck().clean
    assert list((near.cache.root / "tmp").iterdir()) == []
