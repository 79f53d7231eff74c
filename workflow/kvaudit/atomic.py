"""Writes a file so that a reader, or a crash, sees the old content or the new, never a part.

This module must not know what it writes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from kvaudit import canonical


def write_bytes(path: str | Path, data: bytes) -> None:
    """Replaces the content of `path` in one step that survives a power cut.

    The bytes go to a temporary file in the same folder, are synced, renamed over `path`, and the
    folder is synced. On any error the temporary is removed and `path` is as it was.

    Raises:
        OSError: the folder is absent, full or not writable.
    """
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(
        prefix=f".{path.name}.", suffix=".tmp", dir=path.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


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
