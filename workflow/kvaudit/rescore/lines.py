"""Reads foreign JSON Lines line by line, within bounds, and keeps numbers as they are spelled.

What other harnesses write is not canonical: NaN, integers of any length and keys twice occur. A
number becomes its own text, so nothing is lost and nothing can overflow. What is not JSON at all is
refused, naming the line. This module must not know what a line means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from kvaudit.errors import UnusableInput
from kvaudit.safefs import SafeRoot

MAX_FILE_BYTES = 1 << 30
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_LINES = 200_000


class Spelled(str):
    """A number as the file spells it."""

    __slots__ = ()


Line = tuple[int, dict[str, Any]]


def read(root: SafeRoot, name: str) -> Iterator[Line]:
    """The objects of a JSON Lines file with their line numbers from 1; blank lines are passed.

    Raises:
        UnusableInput: the file is too long, or a line is too long, not UTF-8, not JSON, or not an
            object; names the line.
        EvidenceIncomplete: the file is absent.
    """
    for number, line in _split(root, name):
        if line.strip():
            place = f"{name}, line {number}"
            value = loads(line, where=place)
            if not isinstance(value, dict):
                raise UnusableInput("the line is not a JSON object", where=place)
            yield number, value


def loads(data: bytes, *, where: str) -> Any:
    """One JSON value; numbers, NaN and Infinity as `Spelled`.

    Raises:
        UnusableInput: not UTF-8, not JSON, a key twice in one object, or nested too deeply.
    """

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(found)
        if len(value) != len(found):
            raise UnusableInput("a key occurs twice in one object", where=where)
        return value

    try:
        return json.loads(
            data.decode("utf-8"),
            parse_int=Spelled,
            parse_float=Spelled,
            parse_constant=Spelled,
            object_pairs_hook=pairs,
        )
    except UnicodeDecodeError as error:
        raise UnusableInput(
            "the line is not UTF-8", where=where, found=f"byte {error.start}"
        ) from None
    except json.JSONDecodeError as error:
        raise UnusableInput(
            "the line is not JSON", where=where, found=f"{error.msg}, character {error.pos}"
        ) from None
    except RecursionError:
        raise UnusableInput("the line is nested too deeply", where=where) from None


def text(value: Any) -> str | None:
    """A text or a number as text; None for anything else."""
    if isinstance(value, bool):
        return str(value)
    return str(value) if isinstance(value, str) else None


def score(value: Any) -> float | None:
    """A score of 0 to 1: a truth value or a number; None for anything else."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, Spelled) and len(value) < 40:
        found = float(value)
        if math.isfinite(found) and 0.0 <= found <= 1.0:
            return found
    return None


def integer(value: Any) -> int | None:
    """A number of at most nine digits; None for anything else."""
    if isinstance(value, Spelled) and len(value) < 10 and value.isdigit():
        return int(value)
    return None


def at(values: Any, index: int) -> Any:
    """An element of a list; None where there is no list or it is shorter."""
    return values[index] if isinstance(values, list) and index < len(values) else None


def _split(root: SafeRoot, name: str) -> Iterator[tuple[int, bytes]]:
    rest, number, total = b"", 0, 0
    for piece in root.stream(name):
        total += len(piece)
        if total > MAX_FILE_BYTES:
            raise UnusableInput(
                "the file is too long", where=name, expected=f"at most {MAX_FILE_BYTES} bytes"
            )
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            number += 1
            yield number, _bounded(line, name, number)
        _bounded(rest, name, number + 1)
    if rest:
        yield number + 1, rest


def _bounded(line: bytes, name: str, number: int) -> bytes:
    if len(line) > MAX_LINE_BYTES or number > MAX_LINES:
        raise UnusableInput(
            "the file has too many lines" if number > MAX_LINES else "the line is too long",
            where=f"{name}, line {number}",
            expected=f"at most {MAX_LINES} lines of {MAX_LINE_BYTES} bytes",
        )
    return line
