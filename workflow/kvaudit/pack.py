"""Packs a run folder into one file whose bytes follow from its content alone.

Names sorted, no times, owners or modes, one top folder named by the digest of the run manifest; so
one run makes one bundle, wherever it lay (of one release of zstd or zlib: they compress as they
like). This module must not judge what it packs: `kvaudit verify` does.
"""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kvaudit import atomic, digests, manifest
from kvaudit.errors import EvidenceIncomplete, UnusableInput
from kvaudit.safefs import Listing, SafeRoot, lies_inside

ENDINGS = (".tar", ".tar.zst", ".zip")
ZSTD_LEVEL = 12
_ZERO_BLOCK = bytes(512)


def pack(run_folder: str | Path, target: str | Path) -> str:
    """Writes a run into `target` and returns the file's SHA-256.

    Args:
        run_folder: a sealed run; links and devices in it are refused.
        target: ends in `.tar`, `.tar.zst` or `.zip`, does not exist and lies outside the run.

    Raises:
        UnusableInput: another ending, the file is there already, or something cannot be packed.
        EvidenceIncomplete: the run is not sealed.
    """
    target = Path(target)
    if not target.name.endswith(ENDINGS):
        raise UnusableInput(
            "the bundle's name has no known ending",
            expected=", ".join(ENDINGS),
            found=target.name or target,
            hint="the ending says how it is packed",
        )
    if os.path.lexists(target):
        raise UnusableInput("the bundle exists already", where=target, hint="remove it first")
    with SafeRoot(run_folder) as root:
        listing = root.walk()
        if manifest.RUN not in listing.files:
            raise EvidenceIncomplete(
                "the run is not sealed", where=run_folder, expected=manifest.RUN
            )
        sealed = root.read(manifest.RUN, max_bytes=manifest.MAX_MANIFEST_BYTES)
        top = f"run-{digests.sha256_bytes(sealed)[:16]}"
        if lies_inside(target, run_folder):
            raise UnusableInput("the bundle would lie inside the run", where=target)
        try:
            atomic.sweep(target)
            with atomic.replacing(target) as file:
                _write(root, listing, top, target.name, file)
        except OSError as error:
            raise UnusableInput(
                "the bundle cannot be written", where=target, found=error.strerror or error
            ) from None
    return digests.sha256_file(target)


def _write(root: SafeRoot, listing: Listing, top: str, name: str, file: BinaryIO) -> None:
    if name.endswith(".zip"):
        _write_zip(root, listing, top, file)
    elif name.endswith(".tar"):
        _write_tar(root, listing, top, file)
    else:
        import zstandard

        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True, threads=0)
        with compressor.stream_writer(file, closefd=False) as packed:
            _write_tar(root, listing, top, packed)


def _write_tar(root: SafeRoot, listing: Listing, top: str, file: BinaryIO) -> None:
    for path, size in sorted(listing.files.items()):
        member = tarfile.TarInfo(f"{top}/{path}")
        member.size, member.mode = size, 0o644
        try:
            header = member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
        except ValueError:  # a name too long for the plain header, or a file of 8 GiB
            header = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        file.write(header)
        for piece in _content(root, path, size):
            file.write(piece)
        file.write(bytes(-size % len(_ZERO_BLOCK)))
    file.write(_ZERO_BLOCK * 2)


def _write_zip(root: SafeRoot, listing: Listing, top: str, file: BinaryIO) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, size in sorted(listing.files.items()):
            member = zipfile.ZipInfo(f"{top}/{path}", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            member.create_system = 3
            member.external_attr = (stat.S_IFREG | 0o644) << 16
            member.file_size = size
            with archive.open(member, "w") as packed:
                for piece in _content(root, path, size):
                    packed.write(piece)


def _content(root: SafeRoot, path: str, size: int) -> Iterator[bytes]:
    left = size
    for piece in root.stream(path):
        left -= len(piece)
        yield piece
    if left:
        raise UnusableInput("the file changed its length while it was packed", where=path)
