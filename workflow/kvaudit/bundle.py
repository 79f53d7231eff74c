"""A run as one file: unpacked into a private folder, handed to the verifier, and removed.

`opened` takes what a reader has downloaded: a folder, or a `.tar`, `.tar.zst` or `.zip` of one,
told by its first bytes and not by its name. Only regular files and folders are made, each once,
under names that mean the same on every file system. This module must not know what a run is beyond
the name of its inputs manifest and how long one may be.

Bounds, whatever the bundle says: an archive of any length is read in pieces of 256 KiB; beside
them there are the window of zstd (64 MiB at most) and some 200 bytes for each name (100,000 at
most), so that a bundle of 10 GB needs no more memory than one of 100 MB. On disk it takes what it
unpacks to, at most 16 GiB and at most 200 times its own length, and less than what is free.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kvaudit import bundle_tar, bundle_zip
from kvaudit.bundle_member import PIECE_BYTES, Member
from kvaudit.errors import UnusableInput
from kvaudit.manifest import INPUTS, MAX_LISTED_BYTES
from kvaudit.safefs import MAX_LEVELS

MAX_MEMBERS = 100_000
MAX_RATIO = 200
"""Unpacked over packed length; evidence, being text and noise, packs ten to thirty times."""
RATIO_FREE_BYTES = 64 * 1024**2
"""Unpacked length that needs no ratio: a small bundle of equal rows may pack very well."""
KEPT_FREE_BYTES = 256 * 1024**2
MAX_NAME_BYTES = 512
MAX_PART_BYTES = 255
ZSTD_WINDOW_BYTES = 64 * 1024**2
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def opened(
    path: str | Path,
    *,
    max_bytes: int = MAX_LISTED_BYTES,
    temporary: str | Path | None = None,
) -> Iterator[Path]:
    """The run folder of a bundle, or the folder itself where `path` is one.

    A bundle's single top folder is the run folder, unless the inputs manifest lies beside it. What
    was unpacked is removed at the end of the block: after an error, and after SIGINT, SIGTERM or
    SIGHUP too where this runs in the main thread.

    Args:
        path: a folder or a bundle.
        max_bytes: more is not unpacked.
        temporary: where the private folder is made; that of `TMPDIR` otherwise.

    Raises:
        UnusableInput: the file is no bundle, or one of the rules of this module is broken.
    """
    if os.path.isdir(path):
        yield Path(path)
        return
    with _file(path) as file, _private_folder(temporary) as folder:
        unpack(file, folder, where=os.path.basename(path), max_bytes=max_bytes)
        yield _top(folder)


def unpack(
    file: BinaryIO, folder: str | Path, *, where: str, max_bytes: int = MAX_LISTED_BYTES
) -> None:
    """Unpacks a bundle into an empty folder that nobody else writes to.

    Args:
        file: the bundle, seekable, unbuffered or buffered.
        folder: takes the members.
        where: what to call the bundle in an error.
        max_bytes: more is not unpacked.

    Raises:
        UnusableInput: as `opened`; what was written until then stays.
    """
    length = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(512)
    file.seek(0)
    sink = _Sink(Path(folder), where, max_bytes, length)
    if head.startswith(b"PK"):
        members = bundle_zip.members(file, where=where, max_members=MAX_MEMBERS)
        _take_all(sink, members)
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        _unpack_zstd(file, sink, where)
    elif head[257:262] == b"ustar":
        _take_all(sink, bundle_tar.members(file, where=where))
    else:
        raise UnusableInput(
            "the file is not a bundle",
            where=where,
            expected="a folder, or a .tar, .tar.zst or .zip of one",
            hint="unpack another format yourself and give the folder",
        )


def _unpack_zstd(file: BinaryIO, sink: _Sink, where: str) -> None:
    try:
        import zstandard
    except ImportError:
        raise UnusableInput(
            "a .tar.zst bundle needs the package zstandard", where=where, hint="install it"
        ) from None
    reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).stream_reader(
        file, read_size=PIECE_BYTES, read_across_frames=True, closefd=False
    )
    try:
        _take_all(sink, bundle_tar.members(reader, where=where))
    except zstandard.ZstdError as error:
        raise UnusableInput(
            "the bundle cannot be decompressed",
            where=where,
            found=error,
            hint=f"windows beyond {ZSTD_WINDOW_BYTES} bytes are refused",
        ) from None


def _take_all(sink: _Sink, members: Iterator[Member]) -> None:
    for member in members:
        sink.take(member)


class _Sink:
    """The folder that a bundle is unpacked into, and what its members may do there."""

    def __init__(self, folder: Path, where: str, max_bytes: int, packed_bytes: int) -> None:
        self._folder = folder
        self._where = where
        self._max_bytes = min(max_bytes, RATIO_FREE_BYTES + MAX_RATIO * packed_bytes)
        self._named_bytes = max_bytes
        self._written = 0
        self._members = 0
        # Folded name -> its spelling and whether it is a folder; names as digests of 16 bytes.
        self._seen: dict[bytes, bytes] = {}

    def take(self, member: Member) -> None:
        """Writes one member.

        Raises:
            UnusableInput: its name, its length or the space left does not allow it.
        """
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise self._too_many()
        parts = self._parts(member)
        if not parts:
            return
        self._register(parts, member)
        path = self._folder.joinpath(*parts)
        try:
            if member.folder:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                self._check_space(member)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write(path, member)
        except OSError as error:
            raise UnusableInput(
                "a member cannot be written",
                where=f"{self._where}: {member.name}",
                found=error.strerror or error,
                hint="TMPDIR names another place to unpack in",
            ) from None

    def _parts(self, member: Member) -> list[str]:
        """The segments of a member's name; none for the archive's own top."""
        name = member.name.removeprefix("./")
        if member.folder and name in (".", ""):
            return []
        parts = name.split("/")
        if (
            any(part in ("", ".", "..") for part in parts)
            or "\\" in name
            or not name.isprintable()
            or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES
            or any(len(part.encode("utf-8")) > MAX_PART_BYTES for part in parts)
        ):
            raise UnusableInput(
                "a member's name is refused",
                where=self._where,
                expected="a relative path of plain segments, no `..`, no backslash",
                found=member.name,
            )
        if len(parts) > MAX_LEVELS:
            raise UnusableInput(
                "a member lies too deep", where=self._where, expected=f"{MAX_LEVELS} levels"
            )
        return parts

    def _register(self, parts: list[str], member: Member) -> None:
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            folder = end < len(parts) or member.folder
            spelling = _short(path) + bytes([folder])
            before = self._seen.setdefault(_short(_folded(path)), spelling)
            if len(self._seen) > MAX_MEMBERS:
                raise self._too_many()
            if before is not spelling and not (folder and before == spelling):
                raise UnusableInput(
                    "a name of the bundle occurs twice, or differs from another in case alone",
                    where=self._where,
                    found=path,
                )

    def _too_many(self) -> UnusableInput:
        return UnusableInput(
            "the bundle has too many members", where=self._where, expected=f"at most {MAX_MEMBERS}"
        )

    def _check_space(self, member: Member) -> None:
        if self._written + member.size > self._max_bytes:
            bomb = self._max_bytes < self._named_bytes
            raise UnusableInput(
                "the bundle unpacks to too much",
                where=f"{self._where}: {member.name}",
                expected=f"at most {self._max_bytes} bytes"
                + (f" ({MAX_RATIO} times its own length)" if bomb else ""),
                found=f"{self._written + member.size} bytes",
            )
        status = os.statvfs(self._folder)
        free = status.f_bavail * status.f_frsize - KEPT_FREE_BYTES
        if member.size > free:
            raise UnusableInput(
                "the disk has no room for the bundle",
                where=f"{self._where}: {member.name}",
                expected=f"{member.size} bytes",
                found=f"{max(free, 0)} bytes",
                hint="TMPDIR names another place to unpack in",
            )

    def _write(self, path: Path, member: Member) -> None:
        left = member.size
        with open(os.open(path, _CREATE, 0o600), "wb", buffering=0) as file:
            for piece in member.pieces:
                left -= len(piece)
                if left < 0:
                    break
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) or 0 :]
        if left:
            raise UnusableInput(
                "a member has not its announced length", where=f"{self._where}: {member.name}"
            )
        self._written += member.size


def _short(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _folded(name: str) -> str:
    """One form of all names that some file system takes for the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _top(folder: Path) -> Path:
    """The run folder in what was unpacked."""
    entries = list(folder.iterdir())
    if len(entries) == 1 and entries[0].is_dir() and not (folder / INPUTS).exists():
        return entries[0]
    return folder


@contextlib.contextmanager
def _file(path: str | Path) -> Iterator[BinaryIO]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnusableInput(
            "the run cannot be opened",
            where=path,
            found=reason,
            hint="give a folder or a bundle that lies on this machine",
        ) from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnusableInput("the bundle is not a regular file", where=path)
        yield file


@contextlib.contextmanager
def _private_folder(place: str | Path | None) -> Iterator[Path]:
    """A new folder that only this user may enter; removed whatever happens but SIGKILL."""
    folder: Path | None = None
    with _signals_raise():
        try:
            with _signals_wait():
                try:
                    folder = Path(tempfile.mkdtemp(prefix="kvaudit-", dir=place)).resolve()
                except OSError as error:
                    raise UnusableInput(
                        "no temporary folder can be made",
                        where=place or tempfile.gettempdir(),
                        found=error.strerror or error,
                        hint="TMPDIR names another place to unpack in",
                    ) from None
            yield folder
        finally:
            try:
                with _signals_wait():
                    _remove(folder)
            except BaseException:  # a signal came just before the wait
                _remove(folder)
                raise


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Ending signals are held back until the block is left.

    By their handlers and not by a mask: a mask is of one thread, and another may take the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before: dict[signal.Signals, Any] = {}
    try:
        for number in _ENDING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, lambda came, _: arrived.append(came))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came in dict.fromkeys(arrived):
            signal.raise_signal(came)


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP end the process by SystemExit, so that folders are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: Any) -> None:
        sys.exit(128 + number)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, leave)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
