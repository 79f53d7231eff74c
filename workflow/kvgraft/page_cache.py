"""The kernel's page cache as a reader meets it: how much of a file is there, and dropping it.

Advice to drop a file is advice: only what is found resident afterwards says whether a read was
cold. This module knows files and nothing of what they hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path

import numpy as np


def resident(path: Path) -> float | None:
    """Share of a file's pages in memory, 0 … 1, or None where the kernel does not say.

    The file is mapped and not touched, so that looking does not load it (mincore(2)).
    """
    mincore = getattr(ctypes.CDLL(None), "mincore", None)
    size = path.stat().st_size
    if mincore is None or not size:
        return None
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    view = np.frombuffer(mapping, np.uint8)
    try:
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        failed = mincore(
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(size),
            pages.ctypes.data_as(ctypes.c_void_p),
        )
        return None if failed else float(np.mean(pages & 1))
    finally:
        del view
        mapping.close()


def drop(path: Path) -> None:
    """Write a file back and advise the kernel to forget it; harmless where it takes no advice."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
