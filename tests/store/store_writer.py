"""What the other processes of the store's tests do: put for ever, put some, or put where it hurts.

usage: store_writer.py forever ROOT N_STATE | blocks ROOT N_STATE SEED… | limited ROOT LIMIT N_STATE
       | unwritable FOLDER
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import replace

import kvb_samples as samples

from kvaudit.errors import TypedError
from kvgraft.store import BlockStore


def forever(root: str, n_state: str) -> None:
    """Put blocks of one content under ever new ids, so that nearly all time goes into writing."""
    header, tokens, state = samples.make(n_state=int(n_state))
    store = BlockStore(root)
    print("ready", flush=True)
    for number in itertools.count():
        provenance = {"process": os.getpid(), "number": number}
        print(store.put(replace(header, provenance=provenance), tokens, state), flush=True)


def blocks(root: str, n_state: str, *seeds: str) -> None:
    """Put the blocks of some seeds, twice."""
    store = BlockStore(root)
    print("ready", flush=True)
    for seed in 2 * seeds:
        store.put(*samples.make(n_state=int(n_state), seed=int(seed)))


def limited(root: str, limit: str, n_state: str) -> None:
    """Put a block where no file may exceed `limit` bytes, then a small one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    store = BlockStore(root)
    try:
        store.put(*samples.make(n_state=int(n_state)))
    except TypedError as error:
        print(type(error).__name__, error)
    print(store.put(*samples.make(seed=1)))


def unwritable(folder: str) -> None:
    """As a user without rights: read and write a store whose folders are closed to writers."""
    os.chmod(folder, 0o755)
    os.chdir(folder)  # relative from here on: the folders above may be closed to that user
    store = BlockStore("store")
    block_id = store.put(*samples.make())
    for path, _, _ in os.walk("store"):
        os.chmod(path, 0o555)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    with store.get(block_id) as block:
        print("got", block.header.id == block_id, block.verified)
    print("same", store.put(*samples.make()) == block_id)
    attempts: dict[str, Callable[[], object]] = {
        "put": lambda: store.put(*samples.make(seed=1)),
        "gc": lambda: store.gc(roots=[]),
        "new": lambda: BlockStore("store/inner").put(*samples.make()),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except TypedError as error:
            print(name, type(error).__name__, error)
    print("clean", store.fsck().clean, len(store))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
