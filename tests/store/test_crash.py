"""A store keeps its promises when its writers are killed, race each other, or find no room."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kvb_samples as samples
import pytest

from kvaudit import kvb
from kvaudit.errors import BlockNotFound
from kvgraft.errors import StoreFull
from kvgraft.store import BlockStore

Start = Callable[..., "subprocess.Popen[str]"]

MIB = 1 << 20


def temporaries(store: BlockStore) -> list[Path]:
    return list((store.root / "tmp").glob("*"))


def test_kill_at_20_random_moments_tears_nothing(start: Start, tmp_path: Path) -> None:
    store = BlockStore(tmp_path / "store")
    draw = random.Random(2)
    died_writing = 0
    for _ in range(20):
        before = len(temporaries(store))
        with start("forever", store.root, 8 * MIB) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(draw.uniform(0.0, 0.08))
            writer.kill()
            announced = writer.stdout.read().split()
        assert writer.returncode == -9

        died_writing += len(temporaries(store)) - before
        report = store.fsck()
        assert report.clean, report
        assert report.temporaries == len(temporaries(store))
        stored = list(store)
        assert report.ok == len(stored)
        # What was announced is there; a name cut off by the kill is no announcement.
        assert {one for one in announced if len(one) == 64} <= set(stored)
        for block_id in stored:  # fsck verified all; this is the way a reader takes
            with store.get(block_id) as block:
                assert block.verified
                assert block.header.id == block_id
        store.gc(roots=stored[:1], min_age_s=3600)  # keeps the disk small, and the temporaries

    assert died_writing > 0, "no kill hit a write: the test has shown nothing"
    assert store.gc().temporaries == 0, "young temporaries are left alone by default"
    collected = store.gc(min_age_s=0)
    assert collected.temporaries == died_writing
    assert temporaries(store) == []
    assert store.fsck().clean
    store.put(*samples.make(n_state=8 * MIB))


def test_processes_that_put_the_same_and_other_blocks_agree(start: Start, tmp_path: Path) -> None:
    store = BlockStore(tmp_path / "store")
    shared = [1, 2, 3]
    own = [[10 + n, 20 + n] for n in range(4)]
    writers = [start("blocks", store.root, MIB, *shared, *mine, *shared[::-1]) for mine in own]
    while any(writer.poll() is None for writer in writers):
        store.gc(min_age_s=0)  # takes nothing from a living writer, however young
        for block_id in store:
            store.get(block_id).close()
    for writer in writers:
        output, _ = writer.communicate()
        assert (writer.returncode, output) == (0, "ready\n")

    expected = {
        samples.make(n_state=MIB, seed=seed)[0].id
        for seed in [*shared, *(s for o in own for s in o)]
    }
    assert set(store) == expected
    assert store.fsck().clean
    assert temporaries(store) == []


def test_a_living_writer_keeps_its_temporary_at_any_age(tmp_path: Path) -> None:
    store = BlockStore(tmp_path / "store")
    header, tokens, state = samples.make()
    seen = []

    def fill(file: object) -> None:
        (part,) = temporaries(store)
        os.utime(part, (0, 0))
        seen.append(store.gc(min_age_s=0).temporaries)
        kvb.write_block(file, header, tokens, state)  # type: ignore[arg-type]

    store.receive(header.id, fill)
    assert seen == [0]
    assert list(store) == [header.id]


# -- no room ----------------------------------------------------------------------------------


def test_a_put_beyond_the_size_limit_leaves_nothing_behind(start: Start, tmp_path: Path) -> None:
    store = BlockStore(tmp_path / "store")
    with start("limited", store.root, MIB, 4 * MIB) as writer:
        assert writer.stdout is not None
        refused, small = writer.stdout.read().splitlines()
    assert writer.returncode == 0
    assert refused.startswith(
        "StoreFull the store has no room for the block; nothing was left half-written; at "
    )
    assert refused.endswith("found File too large (make room, or run kvgraft store gc)")
    assert temporaries(store) == []
    assert list(store) == [small]
    assert store.fsck().clean


@pytest.fixture
def small_disk() -> Iterator[Path | None]:
    """A file system of 4 MiB where mounting is allowed, otherwise None."""
    folder = Path(tempfile.mkdtemp())
    mounted = (
        os.getuid() == 0
        and shutil.which("mount") is not None
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "kvgraft-test", str(folder)],
            capture_output=True,
        ).returncode
        == 0
    )
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def test_a_full_disk_is_a_typed_error_and_the_store_goes_on(
    small_disk: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real small disk; where none can be mounted, the system call reports one."""
    store = BlockStore((small_disk or tmp_path) / "store")
    first = store.put(*samples.make(n_state=MIB))
    with monkeypatch.context() as patch:
        if small_disk is None:
            patch.setattr(os, "fsync", _no_space)
        with pytest.raises(StoreFull, match=r"no room for the block; .*No space left on device"):
            store.put(*samples.make(n_state=6 * MIB, seed=1))
    assert temporaries(store) == []
    assert list(store) == [first]
    assert store.fsck().clean
    second = store.put(*samples.make(n_state=MIB, seed=2))
    assert store.fsck().ok == 2
    store.get(second).close()


def _no_space(fd: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_put_that_fails_at_any_step_leaves_no_block(
    call: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlockStore(tmp_path / "store")
    header, tokens, state = samples.make()

    def fail(*arguments: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError if error == errno.EIO else StoreFull):
        store.put(header, tokens, state)
    assert temporaries(store) == []
    with pytest.raises(BlockNotFound):
        store.get(header.id)


# -- no right to write ------------------------------------------------------------------------


def test_a_read_only_store_is_read_and_refuses_writers(start: Start) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        with start("unwritable", folder) as writer:
            assert writer.stdout is not None
            lines = writer.stdout.read().splitlines()
        assert writer.returncode == 0, lines
    finally:
        for path, _, _ in os.walk(folder):
            os.chmod(path, 0o755)
        shutil.rmtree(folder)
    refusal = "StoreReadOnly the store cannot be written to; at store{}; found Permission denied"
    assert lines == [
        "got True True",
        "same True",
        "put " + refusal.format(""),
        "gc " + refusal.format(""),
        "new " + refusal.format("/inner"),
        "clean True 1",
    ]
