"""What the parts of a block store share: names of blocks, and errors of the system made typed."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator

from kvaudit.errors import BlockNotFound
from kvgraft.errors import StoreDamaged, StoreFull, StoreReadOnly

PART = ".kvb.part"
"""How the name of a temporary file ends."""

_LAYOUT = (
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EXDEV,  # a folder of the store is a link to another file system
)
_ID = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"([0-9a-f]{64})\.kvb")


def is_id(text: str) -> bool:
    """Whether `text` is a block id: 64 lower-case hexadecimal digits."""
    return bool(_ID.fullmatch(text))


def id_of_file(name: str) -> str | None:
    """The id in a block file's name, or None for any other name."""
    match = _FILE.fullmatch(name)
    return match[1] if match else None


def find_id(ids: Iterable[str], prefix: str, *, where: object) -> str:
    """The one id that begins with `prefix`, at least 4 digits of it.

    Raises:
        BlockNotFound: none, or several.
    """
    if is_id(prefix):
        return prefix
    matches = [one for one in ids if one.startswith(prefix)] if len(prefix) >= 4 else []
    if len(matches) != 1:
        raise BlockNotFound(
            "no block or several blocks have an id that begins so",
            where=where,
            expected="at least 4 digits of one id",
            found=f"{prefix}: {len(matches)} blocks",
        )
    return matches[0]


@contextlib.contextmanager
def writing(where: object) -> Iterator[None]:
    """Turn the errors of a full, closed or foreign folder into typed ones.

    Raises:
        StoreFull, StoreReadOnly, StoreDamaged: by the system's error number; others pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFull(
                "the store has no room for the block; nothing was left half-written",
                where=where,
                found=error.strerror,
                hint="make room, or run kvgraft store gc",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise StoreReadOnly(
                "the store cannot be written to", where=where, found=error.strerror
            ) from error
        if error.errno in _LAYOUT:
            raise StoreDamaged(
                "the store's folder is not laid out as a store",
                where=error.filename2 or error.filename or where,
                found=error.strerror,
            ) from error
        raise
