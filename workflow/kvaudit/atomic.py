"""Writes a file so that a reader, or a crash, sees the old content or the new, never a part.

A rename puts the new file where a name is, whatever has that name: it would make a plain file of
`/dev/null`, and cut a link off what it leads to. So only a regular file is replaced. A link, a
device, a pipe, a socket or a folder of that name is refused (`require_replaceable`) and stays as
it was; links above the name are followed. This module must not know what it writes.
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
from kvaudit.errors import UnusableInput

_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp", re.ASCII | re.DOTALL)
_TAIL_LENGTH = len(".12345678.tmp")
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def require_replaceable(path: str | Path) -> None:
    """Refuse a name that is taken by anything but a regular file.

    Every writer here asks it; a caller asks it too before work that takes long.

    Raises:
        UnusableInput: names what is there.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # a new name, or one that cannot be written, which is noticed then
        return
    if not stat.S_ISREG(mode):
        raise UnusableInput(
            "nothing but a regular file is replaced",
            where=path,
            expected="a new name, or that of a regular file",
            found=_KINDS.get(stat.S_IFMT(mode), "a special file"),
            hint="name another file",
        )


def write_bytes(path: str | Path, data: bytes) -> None:
    """Replaces the content of `path` in one step that survives a power cut.

    Raises:
        UnusableInput: as `require_replaceable`.
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
        UnusableInput: as `require_replaceable`.
        OSError: the folder is absent, full or not writable.
    """
    path = Path(path)
    require_replaceable(path)
    descriptor, temporary = _temporary(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            yield file
            file.flush()
            os.fsync(file.fileno())
            require_replaceable(path)  # it may have come while this was written
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
        UnusableInput: `value` has no canonical form; or as `require_replaceable`.
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
