"""A store of blocks in a folder: put, get, find, fsck and gc."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import kvb_samples as samples
import pytest

from kvaudit.errors import (
    BlockChunkCorrupt,
    BlockCorrupt,
    BlockNotFound,
    BlockRefused,
    BlockTrailingBytes,
    BlockTruncated,
    BlockWrongMagic,
    TypedError,
)
from kvgraft.errors import StoreDamaged
from kvgraft.store import BlockStore


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path / "store")


def overwrite(path: Path, data: bytes) -> None:
    """What only a fault does to a stored block."""
    path.chmod(0o644)
    path.write_bytes(data)


def chain(store: BlockStore, n: int, seed: int) -> list[str]:
    """Blocks of which each continues the one before it."""
    ids: list[str] = []
    for i in range(n):
        changes: dict[str, Any] = {"start": 7 * i, "parent": ids[-1]} if ids else {}
        ids.append(store.put(*samples.make(seed=seed + i, **changes)))
    return ids


def test_put_then_get_gives_the_same_block(store: BlockStore) -> None:
    header, tokens, state = samples.make(n_state=5_000_000)
    assert not store.has(header.id)
    assert store.put(header, tokens, memoryview(bytearray(state))) == header.id
    assert store.has(header.id)
    with store.get(header.id) as block:
        assert block.verified
        assert block.header == header
        assert block.tokens.tolist() == tokens.tolist()
        assert block.state == state
    with store.get(header.id, verify=False) as block:
        assert not block.verified


def test_a_block_lies_read_only_at_its_place_and_nothing_else_does(store: BlockStore) -> None:
    block_id = store.put(*samples.make())
    path = store.root / "blocks" / block_id[:2] / f"{block_id}.kvb"
    assert store.path(block_id) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert path.read_bytes() == samples.sample()[1]
    files = [one for one in store.root.rglob("*") if one.is_file()]
    assert files == [path]


def test_put_again_writes_nothing(store: BlockStore) -> None:
    block_id = store.put(*samples.make())
    before = store.path(block_id).stat()
    assert store.put(*samples.make()) == block_id
    after = store.path(block_id).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(store) == 1


def test_put_again_mends_a_damaged_block_and_readers_keep_the_old_file(store: BlockStore) -> None:
    block_id = store.put(*samples.make())
    path = store.path(block_id)
    overwrite(path, path.read_bytes()[:-1] + b"\0")
    held = store.get(block_id, verify=False)
    store.put(*samples.make())
    store.get(block_id).close()
    with held, pytest.raises(BlockChunkCorrupt):
        held.verify()


def test_put_replaces_a_link_by_the_block_and_leaves_its_target_alone(store: BlockStore) -> None:
    block_id = store.put(*samples.make())
    path = store.path(block_id)
    target = path.rename(store.root.parent / "target.kvb")
    path.symlink_to(target)
    assert not store.has(block_id)
    with pytest.raises(BlockRefused, match="a link is not followed"):
        store.get(block_id)
    store.put(*samples.make())
    assert not path.is_symlink()
    assert target.exists()


def test_a_put_of_parts_that_do_not_belong_together_leaves_nothing(store: BlockStore) -> None:
    header, tokens, state = samples.make()
    with pytest.raises(BlockCorrupt, match="tokens or state are not those of the header"):
        store.put(header, tokens + 1, state)
    with pytest.raises(BlockCorrupt, match="continues a parent starts behind it"):
        store.put(replace(header, parent="d" * 64), tokens, state)
    assert list(store) == []
    assert store.fsck() == BlockStore(store.root).fsck()
    assert store.fsck().temporaries == 0


BLOCK_ID, DATA = samples.sample()
DAMAGE: dict[str, tuple[bytes, type[TypedError], str]] = {
    "chunk": (DATA[:-1] + bytes([DATA[-1] ^ 1]), BlockChunkCorrupt, "chunk 0 of the state"),
    "cut": (DATA[:-1], BlockTruncated, "ends before its state does"),
    "longer": (DATA + b"x", BlockTrailingBytes, "goes on behind its state"),
    "other block": (samples.sample(seed=1)[1], BlockCorrupt, "another block than its name says"),
    "no block": (b"\0" * 500, BlockWrongMagic, "not a safetensors container"),
    "future": (
        samples.with_header(DATA, format="kvb/9"),
        BlockWrongMagic,
        "another format version",
    ),
    "empty": (b"", BlockTruncated, "the file is empty"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_block_is_refused_and_named_by_fsck(damage: str, store: BlockStore) -> None:
    data, kind, message = DAMAGE[damage]
    good = store.put(*samples.make(seed=9))
    block_id = store.put(*samples.make())
    overwrite(store.path(block_id), data)
    with pytest.raises(kind, match=message) as caught:
        store.get(block_id)
    report = store.fsck()
    assert report.ok == 1
    assert report.damaged == ((block_id, str(caught.value)),)
    assert not report.clean
    store.get(good).close()


def test_putting_receiving_and_fsck_check_both_digests(store: BlockStore) -> None:
    header, tokens, state = samples.make()
    crafted = replace(header, state=replace(header.state, chunks=("0" * 64,)))
    data = samples.file_bytes((crafted, tokens, state))
    with pytest.raises(BlockChunkCorrupt, match="expected SHA-256 0000"):
        store.receive(crafted.id, lambda file: file.write(data))
    with pytest.raises(BlockChunkCorrupt, match="expected SHA-256 0000"):
        store.put(crafted, tokens, state)
    assert list(store) == []
    store.path(crafted.id).parent.mkdir(parents=True, exist_ok=True)
    store.path(crafted.id).write_bytes(data)
    ((damaged, reason),) = store.fsck().damaged
    assert damaged == crafted.id
    assert "expected SHA-256 0000" in reason


@pytest.mark.parametrize(
    "text", ["", "ab", "A" * 64, "g" * 64, "a" * 63, "a" * 64 + "\n", "../" * 21 + "x", "\0" * 64]
)
def test_what_is_no_id_never_becomes_a_path(store: BlockStore, text: str) -> None:
    for use in (store.path, store.has, store.get):
        with pytest.raises(BlockNotFound, match="not a block id; expected 64 hexadecimal digits"):
            use(text)


def test_an_absent_block_and_an_absent_store_are_told_apart_from_damage(store: BlockStore) -> None:
    assert list(store) == []
    assert len(store) == 0
    assert not store.has("a" * 64)
    with pytest.raises(BlockNotFound, match="there is no such block file"):
        store.get("a" * 64)
    report = store.fsck()
    assert report.clean
    assert report.ok == 0
    assert store.gc(roots=[]).blocks == ()
    assert not store.root.exists(), "looking makes no folders"


def test_iteration_is_sorted_and_find_takes_a_unique_prefix(store: BlockStore) -> None:
    ids = sorted(store.put(*samples.make(seed=seed)) for seed in range(12))
    assert list(store) == ids
    assert len(store) == 12
    assert store.find(ids[3][:12]) == ids[3]
    assert store.find("f" * 64) == "f" * 64
    for prefix in (ids[3][:3], "zzzz", ""):
        with pytest.raises(BlockNotFound, match="at least 4 digits of one id"):
            store.find(prefix)


def test_fsck_names_strays_and_orphans_and_counts_temporaries(store: BlockStore) -> None:
    parent, child = chain(store, 2, seed=1)
    (store.root / "tmp" / "x.kvb.part").write_bytes(b"half")
    report = store.fsck()
    assert report.clean
    assert (report.ok, report.temporaries) == (2, 1)

    path = store.path(parent)
    misplaced = store.root / "blocks" / "00" / path.name
    misplaced.parent.mkdir(exist_ok=True)
    path.rename(misplaced)
    (store.root / "note.txt").touch()
    (store.root / "tmp" / "other").touch()
    (store.root / "blocks" / "loop").symlink_to(store.root)
    Path(os.fsdecode(os.fsencode(store.root) + b"/\xff")).touch()
    report = store.fsck()
    assert report.orphans == (child,)
    assert set(report.strays) == {
        f"blocks/00/{path.name}",
        "note.txt",
        "tmp/other",
        "blocks/loop",
        "\\xff",
    }
    assert not report.clean
    assert list(store) == [child], "a misplaced block is not offered"


def test_a_folder_in_the_place_of_a_block_is_damage_and_not_overwritten(store: BlockStore) -> None:
    header, tokens, state = samples.make()
    store.path(header.id).mkdir(parents=True)
    assert store.fsck().damaged[0][0] == header.id
    with pytest.raises(BlockRefused, match="not a regular file"):
        store.get(header.id)
    with pytest.raises(StoreDamaged, match="not laid out as a store"):
        store.put(header, tokens, state)
    assert store.fsck().temporaries == 0


def test_a_file_in_the_place_of_a_folder_is_a_damaged_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreDamaged, match="not laid out as a store"):
        BlockStore(tmp_path / "file").put(*samples.make())
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blocks").touch()
    with pytest.raises(StoreDamaged, match="not laid out as a store"):
        BlockStore(tmp_path / "store").put(*samples.make())


def test_gc_keeps_roots_with_their_parents_and_frees_the_rest(store: BlockStore) -> None:
    kept = chain(store, 3, seed=0)
    doomed = chain(store, 2, seed=50)
    size = sum(store.path(one).stat().st_size for one in doomed)
    held = store.get(doomed[0])
    assert store.gc().blocks == ()
    report = store.gc(roots=[kept[-1]])
    assert report.blocks == tuple(sorted(doomed))
    assert report.bytes_freed == size
    assert list(store) == sorted(kept)
    assert store.fsck().clean
    with held:
        held.verify()  # a mapping outlives the name of its file


def test_gc_removes_nothing_when_it_cannot_follow_a_root(store: BlockStore) -> None:
    first, second = chain(store, 2, seed=0)
    other = store.put(*samples.make(seed=77))
    with pytest.raises(BlockNotFound):
        store.gc(roots=[second, "0" * 64])
    data = store.path(second).read_bytes()
    overwrite(store.path(second), data[:40])
    with pytest.raises(BlockTruncated):
        store.gc(roots=[second])
    overwrite(store.path(second), data)
    store.path(first).unlink()
    with pytest.raises(BlockNotFound):
        store.gc(roots=[second])
    assert set(store) == {second, other}


def test_gc_takes_only_old_temporaries_and_no_links(store: BlockStore, tmp_path: Path) -> None:
    store.put(*samples.make())
    folder = store.root / "tmp"
    old, young, finished = (folder / f"{name}.kvb.part" for name in ("old", "young", "finished"))
    for one in (old, young, finished):
        one.write_bytes(b"1234")
    finished.chmod(0o444)
    for one in (old, finished):
        os.utime(one, (1, 1))
    outside = tmp_path / "outside"
    outside.write_bytes(b"keep")
    os.utime(outside, (1, 1))
    (folder / "link.kvb.part").symlink_to(outside)
    os.mkfifo(folder / "pipe.kvb.part")
    report = store.gc()
    assert (report.temporaries, report.bytes_freed) == (2, 8)
    assert young.exists()
    assert not old.exists()
    assert outside.read_bytes() == b"keep"


def test_receive_verifies_before_the_block_gets_its_name(store: BlockStore) -> None:
    store.receive(BLOCK_ID, lambda file: file.write(DATA))
    assert list(store) == [BLOCK_ID]
    for data, kind, message in DAMAGE.values():
        other = BlockStore(store.root.parent / "other")
        with pytest.raises(kind, match=message):
            other.receive(BLOCK_ID, lambda file, data=data: file.write(data))  # type: ignore[misc]
        assert list(other) == []
        assert other.fsck().temporaries == 0
