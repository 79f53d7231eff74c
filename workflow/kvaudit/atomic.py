"""Writes a file so that a reader, or a crash, sees the old content or the new, never a part.

This module must not know what it writes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kvaudit import canonical, locks

_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp", re.ASCII | re.DOTALL)
_TAIL_LENGTH = len(".12345678.tmp")


def write_bytes(path: str | Path, data: bytes) -> None:
    """Replaces the content of `path` in one step that survives a power cut.

    Raises:
        OSError: the folder is absent, full or not writable.
    """
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file in the folder of `path` that takes its place, synchronised, at the end of the block.

    On any error it is removed and `path` is as it was. A writer that is killed leaves it there:
    `is_temporary` tells its name, and `sweep` removes it.

    Raises:
        OSError: the folder is absent, full or not writable.
    """
    path = Path(path)
    descriptor, temporary = _temporary(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def is_temporary(name: str) -> bool:
    """Whether a file's name is one that this module gives to what it has not finished."""
    return _TEMPORARY.fullmatch(name) is not None


def sweep(path: str | Path) -> None:
    """Removes what writers of `path` that were killed have left; those that live keep theirs."""
    path = Path(path)
    with contextlib.suppress(OSError):
        for name in os.listdir(path.parent):
            if is_temporary(name) and name[1:-_TAIL_LENGTH] == path.name:
                _remove_abandoned(path.with_name(name))


def _remove_abandoned(temporary: Path) -> None:
    with contextlib.suppress(OSError):  # gone meanwhile, or not ours
        descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode) and locks.take(descriptor):
                os.unlink(temporary)
        finally:
            os.close(descriptor)


def _temporary(path: Path) -> tuple[int, str]:
    """A new file beside `path`, locked while it is written, so that `sweep` leaves it alone."""
    while True:
        descriptor, temporary = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=".tmp", dir=path.parent
        )
        try:
            held = locks.take(descriptor)
        except OSError:  # no locks on this file system: nobody sweeps there either
            return descriptor, temporary
        # Between the two calls somebody may have swept it away.
        if held and os.path.lexists(temporary):
            return descriptor, temporary
        os.close(descriptor)


def write_json(path: str | Path, value: Any) -> None:
    """Replaces `path` by the canonical JSON of `value` and one newline.

    Raises:
        UnusableInput: `value` has no canonical form.
        OSError: as `write_bytes`.
    """
    write_bytes(path, canonical.dumps(value) + b"\n")


def sync_folder(folder: str | Path) -> None:
    """Makes names that came, went or changed in a folder stay so, whatever happens afterwards.

    Raises:
        OSError: it is absent, or cannot be synchronised.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
