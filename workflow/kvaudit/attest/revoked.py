"""Keys that a reader trusts no longer: a list that he keeps, or that a project publishes.

One key a line: its id and, if what it signed before is to count still, the time from which it does
not. A clock is not asked: what was signed before is shown by a time stamp alone. This module must
not know what is signed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kvaudit.errors import UnusableInput
from kvaudit.safefs import read_file

MAX_BYTES = 256 * 1024
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LINE = re.compile(r"([0-9a-f]{64})(?:[ \t]+(\S+))?")


@dataclass(frozen=True)
class Revoked:
    """Key ids -> the time from which their signatures do not count; None where none ever does."""

    since: Mapping[str, datetime | None] = field(default_factory=dict)

    def refuses(self, keyid: str, stamped: datetime | None) -> str | None:
        """Why a signature does not count, or None where it does.

        Args:
            keyid: of the key that made it.
            stamped: a time no later than which it existed, UTC; None where none is known.
        """
        if keyid not in self.since:
            return None
        since = self.since[keyid]
        if since is None:
            return "is revoked"
        if stamped is None:
            return f"is revoked from {_text(since)}, and no time stamp was checked"
        if stamped >= since:
            return f"is revoked from {_text(since)}, and is stamped no later than {_text(stamped)}"
        return None


def load(*paths: str | Path) -> Revoked:
    """Reads lists: `KEYID` or `KEYID 2026-01-31T12:00:00Z` a line; `#` begins a remark.

    A key of several lists is revoked from the earliest time that one of them says.

    Raises:
        EvidenceIncomplete: there is no such file.
        UnusableInput: a line is neither or ends strangely, a key is twice in one list, or a list
            is too long.
    """
    since: dict[str, datetime | None] = {}
    for path in paths:
        for keyid, time in _read(path).items():
            before = since.get(keyid, time)
            since[keyid] = None if before is None or time is None else min(before, time)
    return Revoked(since)


def _read(path: str | Path) -> dict[str, datetime | None]:
    data = read_file(path, MAX_BYTES).replace(b"\r\n", b"\n")
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise UnusableInput("the list of revoked keys is not plain text", where=path) from None
    since: dict[str, datetime | None] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path}: line {number}"
        # Another program may end a line there: the key after a remark would be part of it here.
        if _CONTROL.search(line) is not None:
            raise UnusableInput(
                "the line has a control character",
                where=where,
                expected="lines that end in LF or CR LF, and no other but the tab",
            )
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise UnusableInput(
                "the line names no key",
                where=where,
                expected="a key id of 64 hexadecimal digits and, if need be, a time",
                found=text,
            )
        keyid, time = match.groups()
        if keyid in since:
            raise UnusableInput("the key is revoked twice", where=where, found=keyid)
        since[keyid] = None if time is None else _time(time, where)
    return since


def _time(text: str, where: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise UnusableInput(
            "the time cannot be read", where=where, expected="2026-01-31T12:00:00Z", found=text
        ) from None


def _text(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
