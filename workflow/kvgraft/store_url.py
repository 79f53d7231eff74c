"""Block stores behind any fsspec URL, with a local store as their cache.

A remote object is fetched whole into the cache, verified there under a temporary name, and only
then becomes a block; a damaged one does not stay. Remote systems rename or not as they like, so a
block is uploaded under its final name in one call and is believed by nobody before its digests are
checked; one of another length, left by an upload that broke off, is uploaded again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvaudit import kvb
from kvaudit.errors import BlockNotFound, BlockRefused, TypedError
from kvaudit.kvb_map import MappedBlock
from kvgraft.errors import StoreReadOnly
from kvgraft.model import cache_folder
from kvgraft.store import BlockStore
from kvgraft.store_common import find_id, id_of_file, writing


class RemoteStore:
    """`put`, `get`, `has` and iteration over a store behind a URL.

    Args:
        url: any URL fsspec knows, for instance `s3://bucket/blocks`.
        cache: the local store that holds what was fetched; the user's cache folder if None.
    """

    def __init__(self, url: str, cache: BlockStore | None = None) -> None:
        import fsspec

        self.url = url
        # Not `cache or …`: an empty store has length 0 and would count as none.
        self.cache = BlockStore(cache_folder() / "blocks") if cache is None else cache
        self._files, self._base = fsspec.core.url_to_fs(url)

    def path(self, block_id: str) -> Path:
        """Where a block lies in the cache once it was fetched.

        Raises:
            BlockNotFound: not an id.
        """
        return self.cache.path(block_id)

    def _name(self, block_id: str) -> str:
        name = self.cache.path(block_id).name
        return f"{self._base.rstrip('/')}/blocks/{block_id[:2]}/{name}"

    def has(self, block_id: str) -> bool:
        """Whether the block is in the cache or behind the URL; its bytes are not looked at.

        Raises:
            BlockRefused: the remote store does not answer.
        """
        return self.cache.has(block_id) or self._length(self._name(block_id)) is not None

    def put(
        self,
        header: kvb.BlockHeader,
        tokens: NDArray[np.int32],
        state: bytes | bytearray | memoryview,
    ) -> str:
        """Store a block in the cache and behind the URL; returns its id.

        Raises:
            BlockRefused: the remote store does not answer.
            StoreFull, StoreReadOnly: the cache or the remote side does not take it.
        """
        block_id = self.cache.put(header, tokens, state)
        local, name = self.cache.path(block_id), self._name(block_id)
        if self._length(name) == local.stat().st_size:
            return block_id
        try:
            with writing(self.url):
                self._files.makedirs(os.path.dirname(name), exist_ok=True)
                self._files.put_file(str(local), name)
        except TypedError:
            raise
        except Exception as error:  # drivers raise what they like
            raise StoreReadOnly(
                "the remote store does not take the block", where=self.url, found=error
            ) from error
        return block_id

    def get(self, block_id: str, *, verify: bool = True) -> MappedBlock:
        """The verified block, fetched if the cache does not hold it, or holds it damaged.

        Args:
            block_id: the id.
            verify: False leaves the chunks to `Session.graft`, which verifies them itself.

        Raises:
            BlockNotFound: neither here nor there.
            BlockRefused: what the URL holds is damaged, and is not kept; or it does not answer.
            StoreFull, StoreReadOnly: the cache does not take it.
        """
        try:
            return self.cache.get(block_id, verify=verify)
        except BlockRefused as refused:
            length = self._length(self._name(block_id))
            if length is None and isinstance(refused, BlockNotFound):
                raise BlockNotFound(
                    "no such block, here or there", where=self.url, found=block_id
                ) from None
            if length is None:
                raise
        self.cache.receive(block_id, lambda file: self._download(block_id, file))
        return self.cache.get(block_id, verify=verify)

    def _download(self, block_id: str, file: BinaryIO) -> None:
        with self._reading():
            remote = self._files.open(self._name(block_id), "rb")
        with remote:
            while True:
                with self._reading():
                    piece = remote.read(kvb.CHUNK_BYTES)
                if not piece:
                    return
                file.write(piece)

    def _length(self, name: str) -> int | None:
        """Length of a remote object in bytes, -1 if unknown, None if there is none."""
        with self._reading():
            try:
                facts = self._files.info(name)
            except FileNotFoundError:
                return None
            if facts.get("type") != "file":
                return None
            size = facts.get("size")
            return -1 if size is None else int(size)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        # Kept apart from `writing`: an error of the far side must not be read as one of the cache.
        try:
            yield
        except Exception as error:  # drivers raise what they like
            raise BlockRefused(
                "the remote store cannot be read", where=self.url, found=error
            ) from error

    def find(self, prefix: str) -> str:
        """The one id behind the URL that begins with `prefix`, at least 4 digits of it.

        Raises:
            BlockNotFound: none, or several.
        """
        return find_id(self, prefix, where=self.url)

    def __iter__(self) -> Iterator[str]:
        with self._reading():
            try:
                names = list(self._files.glob(f"{self._base.rstrip('/')}/blocks/*/*.kvb"))
            except FileNotFoundError:
                names = []
        for name in sorted(names):
            folder, block_id = name.split("/")[-2], id_of_file(name.split("/")[-1])
            if block_id and block_id[:2] == folder:
                yield block_id

    def __len__(self) -> int:
        return sum(1 for _ in self)


def open_store(root: str | Path) -> BlockStore | RemoteStore:
    """A `BlockStore` for a folder, a `RemoteStore` for a URL.

    Raises:
        BlockRefused: a URL of a kind that fsspec does not know here, or that does not answer.
    """
    if "://" not in str(root):
        return BlockStore(root)
    try:
        return RemoteStore(str(root))
    except Exception as error:  # drivers raise what they like, and some connect at once
        raise BlockRefused(
            f"no way to reach that store: {error}",
            where=root,
            hint="is the URL right, and the fsspec package of its protocol installed?",
        ) from error
