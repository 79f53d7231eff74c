"""Reads files strictly beneath one directory that a stranger has filled.

Below the root no link is followed, nothing but regular files is opened, and nothing is read
further than a bound. The root itself is what the reader typed and may be reached by a link. This
module must not know what the files mean, and it never writes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kvaudit import atomic
from kvaudit.errors import EvidenceIncomplete, UnusableInput

MAX_ENTRIES = 200_000
MAX_LEVELS = 12
BUFFER_BYTES = 1024 * 1024

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_TYPES = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


@dataclass(frozen=True)
class Listing:
    """Everything beneath a root: regular files with their sizes in bytes, and folders.

    A file that `kvaudit.atomic` has not finished is none of them: a writer that was killed leaves
    it, and whoever walks must not take it for evidence.
    """

    files: dict[str, int]
    folders: frozenset[str]


class SafeRoot:
    """A directory, held open, whose content is read without ever leaving it.

    Safe to use from several threads. Use as a context manager.

    Raises:
        UnusableInput: `path` is absent or not a directory.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise UnusableInput(
                "the directory cannot be opened", where=path, found=_reason(error)
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the directory; closing twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def walk(self) -> Listing:
        """Every regular file and folder beneath the root, without opening a file.

        Raises:
            UnusableInput: a link, fifo, socket or device, a name that is not UTF-8, too many
                entries or too many levels; names the first one found in sorted order.
        """
        files: dict[str, int] = {}
        folders: set[str] = set()
        pending = [""]
        unfinished = 0
        while pending:
            prefix = pending.pop()
            for name, status in self._scan(prefix):
                path = f"{prefix}{name}"
                if len(files) + len(folders) + unfinished >= MAX_ENTRIES:
                    raise UnusableInput(
                        "the directory holds too many entries", expected=f"at most {MAX_ENTRIES}"
                    )
                if stat.S_ISREG(status.st_mode) and atomic.is_temporary(name):
                    unfinished += 1
                elif stat.S_ISREG(status.st_mode):
                    files[path] = status.st_size
                elif stat.S_ISDIR(status.st_mode):
                    if path.count("/") + 1 >= MAX_LEVELS:
                        raise UnusableInput(
                            "the directory is nested too deeply",
                            where=path,
                            expected=f"at most {MAX_LEVELS} levels",
                        )
                    folders.add(path)
                    pending.append(f"{path}/")
                else:
                    raise _refused(path, status.st_mode)
        return Listing(files, frozenset(folders))

    def read(self, path: str, *, max_bytes: int) -> bytes:
        """The whole content of one file.

        Args:
            path: relative, of plain segments joined by `/`.
            max_bytes: a longer file is refused unread.

        Raises:
            EvidenceIncomplete: the file is absent.
            UnusableInput: not a plain relative path, not a regular file, longer than
                `max_bytes`, or it changed its length while it was read.
        """
        with self._opened(path) as (descriptor, size):
            if size > max_bytes:
                raise UnusableInput(
                    "the file is too long",
                    where=path,
                    expected=f"at most {max_bytes} bytes",
                    found=f"{size} bytes",
                )
            pieces = list(_pieces(descriptor, size, path))
        return b"".join(pieces)

    def stream(self, path: str) -> Iterator[bytes]:
        """The content of one file in pieces of at most `BUFFER_BYTES`, however long it is.

        Raises:
            EvidenceIncomplete: the file is absent.
            UnusableInput: as `read`, but for the bound.
        """
        with self._opened(path) as (descriptor, size):
            yield from _pieces(descriptor, size, path)

    def sha256(self, path: str, *, expected_bytes: int) -> str | None:
        """The SHA-256 of one file, streamed; None, and nothing read, if its length is another.

        Raises:
            EvidenceIncomplete: the file is absent.
            UnusableInput: as `read`, but for the bound.
        """
        with self._opened(path) as (descriptor, size):
            if size != expected_bytes:
                return None
            hasher = hashlib.sha256()
            for piece in _pieces(descriptor, size, path):
                hasher.update(piece)
        return hasher.hexdigest()

    def _scan(self, prefix: str) -> list[tuple[str, os.stat_result]]:
        descriptor = self._folder(prefix.split("/")[:-1])
        try:
            found: list[tuple[str, os.stat_result]] = []
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    _check_name(prefix, entry.name)
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
                    if len(found) > MAX_ENTRIES:
                        raise UnusableInput(
                            "the directory holds too many entries",
                            expected=f"at most {MAX_ENTRIES}",
                        )
        except OSError as error:
            raise UnusableInput(
                "a folder cannot be read", where=prefix or ".", found=_reason(error)
            ) from None
        finally:
            os.close(descriptor)
        return sorted(found, key=lambda pair: pair[0])

    def _folder(self, parts: list[str]) -> int:
        """A new descriptor of the folder, one component opened at a time, no link followed."""
        if self._descriptor < 0:
            raise UnusableInput("the directory has been closed")
        descriptor = os.dup(self._descriptor)
        try:
            for index, part in enumerate(parts):
                path = "/".join(parts[: index + 1])
                status = _status(descriptor, part, path)
                if not stat.S_ISDIR(status.st_mode):
                    raise _refused(path, status.st_mode, expected="a folder")
                child = os.open(part, _OPEN | os.O_DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = child
        except OSError as error:
            os.close(descriptor)
            raise UnusableInput(
                "a folder cannot be opened", where="/".join(parts), found=_reason(error)
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, int]]:
        *parents, name = _split(path)
        folder = self._folder(parents)
        try:
            # The type is looked at before opening, because opening a device can already act.
            before = _status(folder, name, path)
            if not stat.S_ISREG(before.st_mode):
                raise _refused(path, before.st_mode)
            try:
                descriptor = os.open(name, _OPEN, dir_fd=folder)
            except OSError as error:
                raise UnusableInput(
                    "the file cannot be opened", where=path, found=_reason(error)
                ) from None
        finally:
            os.close(folder)
        try:
            after = os.fstat(descriptor)
            if (after.st_dev, after.st_ino) != (before.st_dev, before.st_ino):
                raise UnusableInput("the file was exchanged while it was opened", where=path)
            yield descriptor, after.st_size
        finally:
            os.close(descriptor)


def read_file(path: str | Path, max_bytes: int) -> bytes:
    """The whole content of one file that the reader has named.

    Raises:
        EvidenceIncomplete: it is absent.
        UnusableInput: it is not a regular file, or longer than `max_bytes`.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise EvidenceIncomplete("the file is absent", where=path)
    with SafeRoot(path.parent) as root:
        return root.read(path.name, max_bytes=max_bytes)


def lies_inside(path: str | Path, folder: str | Path) -> bool:
    """Whether a file of this name would lie in a folder, links above it followed."""
    return Path(path).parent.resolve().is_relative_to(Path(folder).resolve())


def _pieces(descriptor: int, size: int, path: str) -> Iterator[bytes]:
    left = size
    try:
        while left:
            piece = os.read(descriptor, min(left, BUFFER_BYTES))
            if not piece:
                break
            left -= len(piece)
            yield piece
        grew = bool(os.read(descriptor, 1))
    except OSError as error:
        raise UnusableInput("the file cannot be read", where=path, found=_reason(error)) from None
    if left or grew:
        raise UnusableInput("the file changed its length while it was read", where=path)


def _status(folder: int, name: str, path: str) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise EvidenceIncomplete("the file is absent", where=path) from None
    except OSError as error:
        raise UnusableInput(
            "the file cannot be looked at", where=path, found=_reason(error)
        ) from None


def _split(path: str) -> list[str]:
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\x00" in part for part in parts):
        raise UnusableInput("the path is not plain and relative", where=path)
    if len(parts) > MAX_LEVELS:
        raise UnusableInput("the path is too deep", where=path)
    return parts


def _check_name(prefix: str, name: str) -> None:
    try:
        os.fsencode(name).decode("utf-8")
    except UnicodeDecodeError:
        raise UnusableInput("a file name is not UTF-8", where=f"{prefix}{name}") from None


def _refused(path: str, mode: int, expected: str = "a regular file") -> UnusableInput:
    found = _TYPES.get(stat.S_IFMT(mode), "another kind of entry")
    if stat.S_ISREG(mode):
        found = "a regular file"
    return UnusableInput(
        "the entry is refused unopened", where=path, expected=expected, found=found
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return f"{errno.errorcode.get(error.errno, error.errno)}: {os.strerror(error.errno)}"
    return str(error)
