"""Locks on files and folders, for a bounded time. What a lock protects is not known here."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from kvaudit.errors import LockTimeout

LOCK_SECONDS = 60.0
"""How long a lock is waited for: what is done under one takes a fraction of this."""
_LOOK_SECONDS = 0.01


def take(descriptor: int, *, shared: bool = False) -> bool:
    """Lock at once what a descriptor is open on; whether it was free. `hold` waits and says why.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
    deadline = time.monotonic() + seconds
    while not take(descriptor, shared=shared):
        if time.monotonic() >= deadline:
            raise LockTimeout(
                "another process holds the lock",
                where=where,
                expected=f"it to be free within {seconds:g} seconds",
                hint="wait for that process or end it, and try again; fuser names it",
            )
        time.sleep(_LOOK_SECONDS)


def hold_folder(folder: str | Path, *, shared: bool = False, seconds: float = LOCK_SECONDS) -> int:
    """A descriptor that holds a folder's lock until it is closed, or until this process ends.

    Raises:
        LockTimeout: as `hold`.
        OSError: the folder cannot be opened, or its file system has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        hold(descriptor, folder, shared=shared, seconds=seconds)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
