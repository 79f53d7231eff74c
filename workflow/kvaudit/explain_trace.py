"""Which rows a claim is judged from: it is judged over rows that note what is read of them.

So nothing has to be said by hand beside a claim, nor kept true there. To choose its rows a
judgement reads a few fields of all of them, and more of those that it chose. Whether the others are
left out rightly is not taken from that: the claim is judged without them, and must come out the
same to the letter, else every row of the file counts. This module must not know any stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvaudit.claims import Claim, Evidence, Rule, judge_one
from kvaudit.stagecheck import UNCOMPUTABLE
from kvaudit.stagekind import Rows

Ranges = tuple[tuple[int, int], ...]
"""Lines of a file, first and last of each run of them, from 1."""


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


@dataclass(frozen=True)
class Trace:
    """What one judgement read.

    Attributes:
        rows: {file: numbers from 0 of the rows that it rests on}, of the files that it read; None
            where the stage's records are not kept by file, so that nothing could be noted.
    """

    rows: Mapping[str, tuple[int, ...]] | None

    def chosen(self, rows: Rows) -> Rows:
        """The rows that the judgement rests on; every file is there, if only without a row."""
        return _only(rows, self.rows or {})

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


def judged(entry: Rule, evidence: Evidence) -> tuple[Claim, Trace]:
    """Judges a claim and finds the rows that it rests on: judged from those alone, it is the same.

    Args:
        entry: the claim.
        evidence: of its stage.
    """
    rows = evidence.records
    if not isinstance(rows, dict):
        return judge_one(entry, evidence), Trace(None)
    files = _Files(rows)
    claim = judge_one(entry, replace(evidence, records=files))
    kept = {name: tuple(range(len(rows[name]))) for name in sorted(files.read)}
    for name in kept:
        fewer = {**kept, name: _read_more(files[name])}
        try:
            same = judge_one(entry, replace(evidence, records=_only(rows, fewer))) == claim
        except UNCOMPUTABLE:
            same = False
        if same:
            kept = fewer
    return claim, Trace(kept)


def _only(rows: Rows, numbers: Mapping[str, Sequence[int]]) -> Rows:
    """The rows of these numbers; every file is there, if only without a row."""
    return {name: [held[n] for n in numbers.get(name, ())] for name, held in rows.items()}


def _read_more(rows: Sequence[_Row]) -> tuple[int, ...]:
    """Numbers of the rows of which more was read than of all; of all, if no more was of any."""
    if not rows:
        return ()
    looked = set.intersection(*(row.read for row in rows))
    more = tuple(number for number, row in enumerate(rows) if row.read > looked)
    return more or tuple(range(len(rows)))
