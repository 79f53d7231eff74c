"""Which rows a claim is judged from: it is judged over rows that note what is read of them.

So nothing has to be said by hand beside a claim, nor kept true there. To choose its rows a
judgement reads a few fields of all of them; a row that it rests on is one of which it reads more.
This module must not know any stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kvaudit.claims import Evidence
from kvaudit.stagekind import Rows

Ranges = tuple[tuple[int, int], ...]
"""Lines of a file, first and last of each run of them, from 1."""

_REASON = "rerun_reason"


class _Row(dict[str, Any]):
    """A row that notes the fields that are read; reading it as a whole reads all of them."""

    __slots__ = ("read",)
    __hash__ = None  # as of every dict

    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._whole()
        return super().__iter__()

    def keys(self) -> Any:
        return self._whole().keys()

    def values(self) -> Any:
        return self._whole().values()

    def items(self) -> Any:
        return self._whole().items()

    def copy(self) -> dict[str, Any]:
        return self._whole().copy()

    def __or__(self, other: Any) -> Any:
        return self._whole() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._whole()

    def __eq__(self, other: object) -> bool:
        return self._whole() == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _whole(self) -> dict[str, Any]:
        self.read.update(super().keys())
        return dict(super().items())


class _Files(Mapping[str, list[_Row]]):
    """Rows by file that note which files are read."""

    def __init__(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._rows = {name: [_Row(row) for row in held] for name, held in rows.items()}
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> list[_Row]:
        self.read.add(name)
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class _Asked(Evidence):
    """Evidence that notes whether the judgement asked if programs were run again."""

    def __getattribute__(self, name: str) -> Any:
        if name == _REASON:
            object.__setattr__(self, "asked", True)
        return object.__getattribute__(self, name)


@dataclass(frozen=True)
class Trace:
    """What one judgement read.

    Attributes:
        rows: {file: numbers from 0 of the rows that it rests on}, of the files that it read; None
            where the stage's records are not kept by file, so that nothing could be noted.
        programs: whether it asked if programs were run again.
    """

    rows: Mapping[str, tuple[int, ...]] | None
    programs: bool

    def chosen(self, rows: Rows) -> Rows:
        """The rows that the judgement rests on; every file is there, if only without a row."""
        found = self.rows or {}
        return {name: [held[n] for n in found.get(name, ())] for name, held in rows.items()}

    def ranges(self, name: str) -> Ranges | None:
        """The lines of a file that it rests on; None where nothing was noted of the file."""
        if self.rows is None or name not in self.rows:
            return None
        made: list[tuple[int, int]] = []
        for line in (number + 1 for number in self.rows[name]):
            if made and made[-1][1] == line - 1:
                made[-1] = (made[-1][0], line)
            else:
                made.append((line, line))
        return tuple(made)


class Watch:
    """Evidence to judge a claim from, once; `trace` says what was read of it afterwards."""

    def __init__(self, evidence: Evidence) -> None:
        given = {field.name: getattr(evidence, field.name) for field in fields(Evidence)}
        self._files = _Files(evidence.records) if isinstance(evidence.records, dict) else None
        if self._files is not None:
            given["records"] = self._files
        self.evidence: Evidence = _Asked(**given)

    def trace(self) -> Trace:
        """What has been read until now."""
        programs = "asked" in vars(self.evidence)
        if self._files is None:
            return Trace(None, programs)
        read = sorted(self._files.read)
        return Trace({name: _rested_on(self._files[name]) for name in read}, programs)


def _rested_on(rows: Sequence[_Row]) -> tuple[int, ...]:
    """Numbers of the rows of which more was read than of all; of all, if no more was of any."""
    if not rows:
        return ()
    looked = set.intersection(*(row.read for row in rows))
    more = tuple(number for number, row in enumerate(rows) if row.read > looked)
    return more or tuple(range(len(rows)))
