"""Locks on files and folders, for a bounded time. What a lock protects is not known here."""

from __future__ import annotations

import fcntl
import time

from kvgraft.errors import LockTimeout

LOCK_SECONDS = 60.0
"""How long a lock is waited for: what is done under one takes a fraction of this."""
_LOOK_SECONDS = 0.01


def hold(
    descriptor: int, where: object, *, shared: bool = False, seconds: float = LOCK_SECONDS
) -> None:
    """Lock what a descriptor is open on; the lock goes with the descriptor.

    Args:
        descriptor: of a file or folder.
        where: its name, for the error.
        shared: keep out only those that want it alone.
        seconds: how long others are waited for.

    Raises:
        LockTimeout: they still hold it.
        OSError: the file system has no locks.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LockTimeout(
                    "another process holds the lock",
                    where=where,
                    expected=f"it to be free within {seconds:g} seconds",
                    hint="wait for that process or end it, and try again; fuser names it",
                ) from None
            time.sleep(_LOOK_SECONDS)
