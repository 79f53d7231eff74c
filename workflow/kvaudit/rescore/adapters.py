"""Which formats there are, and how a stranger adds one.

An adapter is an object with four attributes and two methods; see `Adapter`. Those of this package
are found by name in `formats`; others are found by entry points of the group `kvaudit.rescore`,
whose value is such an object. docs/rescoring.md shows a whole one. This module must not know any
format.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from kvaudit.errors import UnusableInput
from kvaudit.rescore.rows import Row
from kvaudit.safefs import SafeRoot

GROUP = "kvaudit.rescore"
_OWN = {
    "qwen-math": "kvaudit.rescore.formats.qwen_math",
    "tora": "kvaudit.rescore.formats.tora",
    "livebench": "kvaudit.rescore.formats.livebench",
    "inspect": "kvaudit.rescore.formats.inspect_log",
    "matharena": "kvaudit.rescore.formats.matharena",
    "nemo-skills": "kvaudit.rescore.formats.nemo_skills",
}


@dataclass(frozen=True)
class Published:
    """A figure that somebody published: in percent, as it is spelled, and where it stands."""

    figure: str
    where: str


class Adapter(Protocol):
    """What reads one format. It reads files through `SafeRoot` and by no other way.

    Attributes:
        name: for `--format`.
        summary: one line for `kvaudit rescore --list`.
        rule: name of the publisher's rule in `kvaudit.rescore.harness`, or None where only the
            publisher's own scores are known.
        above: how many folders above the file's own the root lies; 0 where the file stands alone.
    """

    name: str
    summary: str
    rule: str | None
    above: int

    def rows(self, root: SafeRoot, file: str) -> Iterator[Row]:
        """The rows of a file, in its order.

        Raises:
            UnusableInput: the file is not of this format; names the line and the field.
        """
        ...

    def published(self, root: SafeRoot, file: str) -> Published | None:
        """The figure that was published with the file, where it lies beside or inside it."""
        ...


def names() -> tuple[str, ...]:
    """Every format that is known, sorted."""
    return tuple(sorted({*_OWN, *_foreign()}))


def load(name: str) -> Adapter:
    """The adapter of a format; a foreign one cannot take the place of one of ours.

    Raises:
        UnusableInput: there is none of this name, or a foreign one cannot be imported.
    """
    if name in _OWN:
        adapter: Adapter = importlib.import_module(_OWN[name]).ADAPTER
        return adapter
    point = _foreign().get(name)
    if point is None:
        raise UnusableInput(
            "there is no such format",
            found=name,
            expected=", ".join(names()),
            hint=f"others are added by an entry point of the group {GROUP}",
        )
    try:
        foreign: Adapter = point.load()
    except Exception as error:
        raise UnusableInput(
            "the adapter cannot be imported", where=point.value, found=error
        ) from None
    return foreign


def _foreign() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def missing(line: int, file: str, field: str, format: str) -> UnusableInput:
    """The error of a line that lacks what its format must have."""
    return UnusableInput(
        f"the line is not of the format {format}",
        where=f"{file}, line {line}",
        expected=f"a field {field}",
        hint="kvaudit rescore --list names the formats",
    )
