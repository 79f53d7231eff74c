"""Block stores behind any fsspec URL, with a local store as their cache.

A remote object is fetched whole into the cache, verified there as any local block, and only then
handed out; a damaged one does not stay. Remote systems rename or not as they like, so a block is
uploaded under its final name in one call and is believed by nobody before its digests are checked.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import kvb
from kvaudit.errors import BlockNotFound, BlockRefused
from kvaudit.kvb_map import MappedBlock, open_block
from kvgraft.errors import StoreReadOnly
from kvgraft.model import cache_folder
from kvgraft.store import BlockStore


class RemoteStore:
    """`put`, `get`, `has` and iteration over a store behind a URL.

    Args:
        url: any URL fsspec knows, for instance `s3://bucket/blocks`.
        cache: the local store that holds what was fetched; the user's cache folder if None.
    """

    def __init__(self, url: str, cache: BlockStore | None = None) -> None:
        import fsspec

        self.url = url
        self.cache = cache or BlockStore(cache_folder() / "blocks")
        self._files, self._base = fsspec.core.url_to_fs(url)

    def _name(self, block_id: str) -> str:
        return f"{self._base}/blocks/{block_id[:2]}/{self.cache.path(block_id).name}"

    def has(self, block_id: str) -> bool:
        """Whether the block is in the cache or behind the URL."""
        return self.cache.has(block_id) or bool(self._files.exists(self._name(block_id)))

    def put(self, header: kvb.BlockHeader, tokens: NDArray[np.int32], state: memoryview) -> str:
        """Store a block in the cache and behind the URL; returns its id.

        Raises:
            StoreFull, StoreReadOnly: the cache or the remote side does not take it.
        """
        block_id = self.cache.put(header, tokens, state)
        name = self._name(block_id)
        if not self._files.exists(name):
            try:
                self._files.makedirs(os.path.dirname(name), exist_ok=True)
                self._files.put_file(str(self.cache.path(block_id)), name)
            except OSError as error:
                raise StoreReadOnly(
                    "the remote store does not take the block", where=self.url, found=error
                ) from error
        return block_id

    def get(self, block_id: str) -> MappedBlock:
        """The verified block, fetched if the cache does not hold it.

        Raises:
            BlockNotFound: neither here nor there.
            BlockRefused: what the URL holds is damaged; it is not kept.
        """
        if not self.cache.has(block_id):
            self._fetch(block_id)
        return self.cache.get(block_id)

    def _fetch(self, block_id: str) -> None:
        self.cache.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache.root, prefix="fetch-") as folder:
            local = Path(folder) / f"{block_id}.kvb"
            try:
                self._files.get_file(self._name(block_id), str(local))
            except FileNotFoundError as error:
                raise BlockNotFound("no such block", where=self.url, found=block_id) from error
            with open_block(local, expected_id=block_id) as block:
                block.verify()
                self.cache.put(block.header, block.tokens, block.state)

    def __iter__(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(self._files.glob(f"{self._base}/blocks/*/*.kvb")):
                yield Path(name).stem


def open_store(root: str | Path) -> Any:
    """A `BlockStore` for a folder, a `RemoteStore` for a URL.

    Raises:
        BlockRefused: a URL of a kind that fsspec does not know here.
    """
    if "://" not in str(root):
        return BlockStore(root)
    try:
        return RemoteStore(str(root))
    except (ImportError, ValueError) as error:
        raise BlockRefused(
            f"no way to reach that store: {error}",
            where=root,
            hint="install the fsspec package of that protocol",
        ) from error
