"""The work behind `kvgraft store` and `kvgraft pin`: each function returns what came of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvaudit import kvb, kvb_map
from kvaudit.errors import TypedError, UnusableInput
from kvgraft import gguf_header, pins
from kvgraft.model import ModelPin
from kvgraft.store import BlockStore, FsckReport, GcReport
from kvgraft.store_url import RemoteStore, open_store


@dataclass(frozen=True)
class Entry:
    """One block of a store.

    Attributes:
        id: its id.
        header: None if it is damaged, or lies behind a URL and was not fetched yet.
        reason: why there is no header, or "".
    """

    id: str
    header: kvb.BlockHeader | None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        facts = self.header
        return {
            "id": self.id,
            "model": facts.model.name if facts else None,
            "tokens": facts.tokens.n if facts else None,
            "bytes": facts.state.bytes if facts else None,
            "reason": self.reason,
        }


def entries(root: str) -> Iterator[Entry]:
    """Every block of a store, by id; chunks are not verified and nothing is fetched."""
    store = open_store(root)
    local = store.cache if isinstance(store, RemoteStore) else store
    for block_id in store:
        if not local.has(block_id):
            yield Entry(block_id, None, "not fetched yet")
            continue
        try:
            with local.get(block_id, verify=False) as block:
                yield Entry(block_id, block.header)
        except TypedError as error:
            yield Entry(block_id, None, f"damaged: {error}")


def put(root: str, files: Iterable[str]) -> list[str]:
    """Take block files into a store: all of them, or none if one is not sound.

    Returns:
        Their ids, in the order of the files.

    Raises:
        BlockRefused: names the first file that is damaged or no block.
    """
    store = open_store(root)
    with contextlib.ExitStack() as stack:
        blocks = [stack.enter_context(kvb_map.open_block(file)) for file in files]
        for block in blocks:
            block.verify(thorough=True)
        return [store.put(block.header, block.tokens, block.state) for block in blocks]


@dataclass(frozen=True)
class Fetched:
    """A block that was written to a file."""

    id: str
    path: Path
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return {"id": self.id, "path": str(self.path), "bytes": self.bytes}


def get(root: str, block: str, destination: str) -> Fetched:
    """Write a verified block to a new file, whole or not at all.

    Args:
        root: the store.
        block: id or unique prefix.
        destination: a path that does not exist, or a folder for `<id>.kvb`.

    Raises:
        UnusableInput: the file exists already.
        BlockRefused: no such block, or damaged.
        OSError: the folder is absent, full or not writable.
    """
    store = open_store(root)
    block_id = store.find(block)
    target = Path(destination)
    if target.is_dir():
        target /= f"{block_id}.kvb"
    with (
        store.get(block_id) as found,
        tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.") as file,
    ):
        with open(file.fileno(), "wb", closefd=False) as out:
            kvb.write_block(out, found.header, found.tokens, found.state)
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o644)
        try:
            os.link(file.name, target)  # unlike a rename, never replaces what is there
        except FileExistsError as error:
            raise UnusableInput(
                "the destination exists already", where=target, hint="remove it, or name another"
            ) from error
        return Fetched(block_id, target, target.stat().st_size)


def fsck(root: str) -> FsckReport:
    """Verify every block of a local store."""
    return _local(root).fsck()


def gc(root: str, keep: list[str] | None, min_age_s: float) -> GcReport:
    """Remove what nobody needs from a local store.

    Args:
        root: the store.
        keep: ids or unique prefixes whose blocks, and their parents, alone are to stay; None keeps
            every block and removes temporaries only.
        min_age_s: younger temporaries stay.
    """
    store = _local(root)
    roots = None if keep is None else [store.find(one) for one in keep]
    return store.gc(roots, min_age_s=min_age_s)


def _local(root: str) -> BlockStore:
    store = open_store(root)
    if isinstance(store, RemoteStore):
        raise UnusableInput("fsck and gc look after a folder, not after a URL", where=root)
    return store


@dataclass(frozen=True)
class Pinned:
    """A pin that was written, and what its file holds."""

    pin: ModelPin
    into: Path
    architecture: str
    quantisation: str

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return {
            **self.pin.to_json(),
            "architecture": self.architecture,
            "quantisation": self.quantisation,
            "into": str(self.into),
        }


def pin(file: str, name: str, into: str, licence: str | None) -> Pinned:
    """Pin a model file of the user's own, if it is one whose state restores in full.

    Raises:
        ModelMismatch: the file cannot be read.
        ModelUnsupported: an architecture that is refused.
        UnusableInput: not a GGUF file, or a name or pins file that does not conform.
    """
    made = pins.for_file(Path(file).absolute(), name)
    if licence:
        made = replace(made, licence=licence)
    facts = gguf_header.facts(gguf_header.read_header(file))
    pins.add(into, made)
    return Pinned(made, Path(into), facts.architecture, facts.quantisation)
