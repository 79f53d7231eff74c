"""A store behind a URL: what it holds is believed only after it was verified here."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import kvb_samples as samples
import pytest

from kvaudit.errors import BlockNotFound, BlockRefused, TypedError
from kvgraft.errors import StoreFull, StoreReadOnly
from kvgraft.store import BlockStore
from kvgraft.store_url import RemoteStore, open_store

BLOCK_ID, DATA = samples.sample()
NAME = f"blocks/{BLOCK_ID[:2]}/{BLOCK_ID}.kvb"


@pytest.fixture(params=["memory://{name}/blocks", "file://{path}/far", "dir::file://{path}/far"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """One URL per kind of file system: flat memory, a folder, and a folder seen through another."""
    (tmp_path / "far").mkdir()
    yield request.param.format(name=uuid.uuid4().hex, path=tmp_path)
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def cache(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path / "cache")


@pytest.fixture
def far(url: str, tmp_path: Path) -> RemoteStore:
    """A store that holds the sample block, seen by another machine."""
    store = RemoteStore(url, BlockStore(tmp_path / "elsewhere"))
    assert store.put(*samples.make()) == BLOCK_ID
    return store


def remote_file(store: RemoteStore) -> tuple[Any, str]:
    files, base = fsspec.core.url_to_fs(store.url)
    return files, f"{base}/{NAME}"


def replace_remote(store: RemoteStore, data: bytes) -> None:
    files, name = remote_file(store)
    with files.open(name, "wb") as file:
        file.write(data)


def temporaries(cache: BlockStore) -> list[Path]:
    return list((cache.root / "tmp").glob("*"))


def test_a_block_travels_through_the_url_byte_for_byte(far: RemoteStore, cache: BlockStore) -> None:
    files, name = remote_file(far)
    assert files.cat_file(name) == DATA
    near = RemoteStore(far.url, cache)
    assert near.has(BLOCK_ID)
    assert not cache.has(BLOCK_ID)
    with near.get(BLOCK_ID) as block:
        assert block.verified
        assert block.path == cache.path(BLOCK_ID) == near.path(BLOCK_ID)
    assert cache.path(BLOCK_ID).read_bytes() == DATA
    assert list(near) == [BLOCK_ID]
    assert len(near) == 1
    assert near.find(BLOCK_ID[:8]) == BLOCK_ID
    assert cache.fsck().clean
    assert temporaries(cache) == []


def test_what_was_fetched_is_not_fetched_again(far: RemoteStore, cache: BlockStore) -> None:
    near = RemoteStore(far.url, cache)
    near.get(BLOCK_ID).close()
    files, name = remote_file(far)
    files.rm(name)
    near.get(BLOCK_ID).close()
    assert near.has(BLOCK_ID)


def test_a_cache_that_is_empty_is_still_the_cache_that_was_given(
    far: RemoteStore, cache: BlockStore
) -> None:
    assert len(cache) == 0
    assert RemoteStore(far.url, cache).cache is cache


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "chunk 0 of the state is damaged"),
        (lambda data: data[:100], "the file ends inside its header"),
        (lambda data: data[:-1], "the file ends before its state does"),
        (lambda data: data + b"\0", "the file goes on behind its state"),
        (lambda data: b"", "the file is empty"),
        (lambda data: samples.sample(seed=1)[1], "another block than its name says"),
        (lambda data: b"<html>no such page</html>", "not a safetensors container"),
    ],
    ids=["chunk", "header cut", "state cut", "longer", "empty", "other", "error page"],
)
def test_a_damaged_remote_block_is_refused_and_not_kept(
    damage: Callable[[bytes], bytes], message: str, far: RemoteStore, cache: BlockStore
) -> None:
    replace_remote(far, damage(DATA))
    near = RemoteStore(far.url, cache)
    with pytest.raises(BlockRefused, match=message):
        near.get(BLOCK_ID)
    assert not cache.has(BLOCK_ID)
    assert temporaries(cache) == []
    assert cache.fsck().clean
    replace_remote(far, DATA)
    near.get(BLOCK_ID).close()


def test_an_upload_that_broke_off_is_made_again(far: RemoteStore, cache: BlockStore) -> None:
    replace_remote(far, DATA[:200])
    assert far.put(*samples.make()) == BLOCK_ID
    with RemoteStore(far.url, cache).get(BLOCK_ID) as block:
        assert block.verified


def test_a_damaged_cache_is_fetched_again_or_says_what_is_wrong(
    far: RemoteStore, cache: BlockStore
) -> None:
    near = RemoteStore(far.url, cache)
    near.get(BLOCK_ID).close()
    for _ in range(2):
        path = cache.path(BLOCK_ID)
        path.chmod(0o644)
        path.write_bytes(DATA[:-1] + b"\0")
        with near.get(BLOCK_ID) as block:
            assert block.verified
    path.chmod(0o644)
    path.write_bytes(DATA[:-1] + b"\0")
    files, name = remote_file(far)
    files.rm(name)
    with pytest.raises(BlockRefused, match="chunk 0 of the state is damaged"):
        near.get(BLOCK_ID)


def test_an_absent_block_is_not_found_and_no_id_is_no_path(url: str, cache: BlockStore) -> None:
    store = RemoteStore(url, cache)
    assert not store.has("0" * 64)
    assert list(store) == []
    with pytest.raises(BlockNotFound, match=r"no such block, here or there; .*found 0000"):
        store.get("0" * 64)
    for use in (store.get, store.has, store.path):
        with pytest.raises(BlockNotFound, match="not a block id"):
            use("../../etc/passwd")


def test_foreign_files_behind_the_url_are_not_listed(far: RemoteStore, cache: BlockStore) -> None:
    files, name = remote_file(far)
    folder = name.rsplit("/", 1)[0]
    misplaced = folder.rsplit("/", 1)[0] + "/zz"
    files.makedirs(misplaced, exist_ok=True)
    for foreign in (f"{folder}/note.kvb", f"{folder}/note.txt", f"{misplaced}/{BLOCK_ID}.kvb"):
        files.pipe_file(foreign, b"x")
    assert list(RemoteStore(far.url, cache)) == [BLOCK_ID]


@pytest.mark.parametrize("call", ["info", "open"])
def test_a_remote_store_that_does_not_answer_is_a_typed_error(
    call: str, far: RemoteStore, cache: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*arguments: object, **options: object) -> None:
        raise TimeoutError("no answer")

    near = RemoteStore(far.url, cache)
    monkeypatch.setattr(near._files, call, silent)
    with pytest.raises(BlockRefused, match=r"the remote store cannot be read; .*no answer"):
        near.get(BLOCK_ID)
    assert temporaries(cache) == []


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (PermissionError(13, "denied"), StoreReadOnly, "cannot be written to; .*found denied"),
        (OSError(28, "full"), StoreFull, "the store has no room for the block"),
        (OSError("quota of the bucket"), StoreReadOnly, "does not take the block; .*quota of"),
    ],
)
def test_an_upload_that_is_refused_is_a_typed_error(
    error: OSError,
    kind: type[TypedError],
    message: str,
    far: RemoteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(far._files, "put_file", refuse)
    with pytest.raises(kind, match=message):
        far.put(*samples.make(seed=3))


def test_open_store_tells_folders_from_urls(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVGRAFT_CACHE", str(tmp_path / "user"))
    assert isinstance(open_store(tmp_path / "store"), BlockStore)
    assert isinstance(open_store(str(tmp_path)), BlockStore)
    remote = open_store(url)
    assert isinstance(remote, RemoteStore)
    assert remote.cache.root == tmp_path / "user" / "blocks"
    with pytest.raises(BlockRefused, match="no way to reach that store: Protocol not known"):
        open_store("nowhere://x")
