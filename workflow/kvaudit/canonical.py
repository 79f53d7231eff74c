"""Strict JSON: one way to write a value (RFC 8785) and one suspicious way to read it.

Everything that is hashed is written by `dumps`, so that a value has one digest. Everything that
is read may be hostile: `loads` bounds size, depth and numbers and refuses what two readers could
understand in two ways. This module must not know what any document means.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import rfc8785

from kvaudit.errors import UnusableInput

MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 64
MAX_INTEGER = 2**53 - 1
MAX_NUMBER_CHARACTERS = 400

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def dumps(value: Any) -> bytes:
    """The canonical bytes of a JSON value (RFC 8785), without a final newline.

    Args:
        value: dicts with string keys, lists, tuples, strings, booleans, None, integers within
            ±(2**53-1) and finite floats that stay readable by `loads`.

    Raises:
        UnusableInput: the value has no canonical form, or one that `loads` would refuse.
    """
    _check_writable(value)
    try:
        return rfc8785.dumps(value)
    except (ValueError, TypeError, RecursionError, AttributeError) as error:
        raise UnusableInput("a value has no canonical JSON form", found=error) from None


def dump_lines(values: Iterable[Any]) -> bytes:
    """Canonical JSON Lines: every value on its own line, every line ended by a newline."""
    return b"".join(dumps(value) + b"\n" for value in values)


def loads(
    data: bytes, *, where: str, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> Any:
    """Reads one JSON value strictly.

    Args:
        data: UTF-8 without a byte order mark.
        where: what to call the document in an error.
        max_bytes: the longest document that is parsed.
        max_depth: the deepest nesting of arrays and objects.

    Raises:
        UnusableInput: empty, too long, too deep, not UTF-8, not JSON, a key twice in one object,
            NaN or Infinity, an integer outside ±(2**53-1), a float out of range, a number of more
            than 400 characters, or a lone surrogate.
    """
    if len(data) > max_bytes:
        raise UnusableInput(
            "the JSON document is too long",
            where=where,
            expected=f"at most {max_bytes} bytes",
            found=f"{len(data)} bytes",
        )
    if not data.strip():
        raise UnusableInput("the JSON document is empty", where=where)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableInput(
            "the JSON document is not UTF-8", where=where, found=f"byte {error.start}"
        ) from None
    if text.startswith("\ufeff"):
        raise UnusableInput("the JSON document starts with a byte order mark", where=where)
    _check_depth(data, where, max_depth)
    reader = _Reader(where)
    try:
        value = json.loads(
            text,
            object_pairs_hook=reader.pairs,
            parse_constant=reader.constant,
            parse_float=reader.floating,
            parse_int=reader.integer,
        )
    except json.JSONDecodeError as error:
        raise UnusableInput(
            "the document is not JSON", where=where, found=f"{error.msg}, character {error.pos}"
        ) from None
    except RecursionError:  # the depth check comes first; this is the belt to its braces
        raise UnusableInput("the JSON document is nested too deeply", where=where) from None
    if _SURROGATE_ESCAPE.search(text):
        _check_surrogates(value, where)
    return value


def loads_document(data: bytes, *, where: str, max_bytes: int = MAX_BYTES) -> Any:
    """Reads a document that must be canonical JSON and one newline, byte for byte.

    White space, key order and number spelling carry no meaning, so they must carry no freedom
    either: of all texts of one value only one is accepted.

    Raises:
        UnusableInput: as `loads`, or the bytes are not the canonical ones.
    """
    value = loads(data, where=where, max_bytes=max_bytes)
    if data != dumps(value) + b"\n":
        raise UnusableInput(
            "the document is not canonical JSON followed by one newline",
            where=where,
            hint="documents are written by kvaudit.atomic.write_json",
        )
    return value


def loads_lines(data: bytes, where: str, *, max_bytes: int = MAX_BYTES) -> list[dict[str, Any]]:
    """Reads canonical JSON Lines whose values are objects; an empty file has no lines.

    Raises:
        UnusableInput: as `loads`, naming the line; also for a blank line, a line that is not
            canonical, a value that is not an object, or a missing final newline.
    """
    if len(data) > max_bytes:
        raise UnusableInput(
            "the JSON Lines document is too long",
            where=where,
            expected=f"at most {max_bytes} bytes",
            found=f"{len(data)} bytes",
        )
    if not data:
        return []
    if not data.endswith(b"\n"):
        raise UnusableInput("the last line has no newline", where=where)
    values: list[dict[str, Any]] = []
    for number, line in enumerate(data[:-1].split(b"\n"), start=1):
        place = f"{where}, line {number}"
        value = loads(line, where=place, max_bytes=max_bytes)
        if not isinstance(value, dict):
            raise UnusableInput("the line is not a JSON object", where=place)
        if line != dumps(value):
            raise UnusableInput("the line is not canonical JSON", where=place)
        values.append(value)
    return values


class _Reader:
    """The hooks of one parse; they know where they are only for the error text."""

    def __init__(self, where: str) -> None:
        self._where = where

    def pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise UnusableInput("a key occurs twice", where=self._where, found=key)
                seen.add(key)
        return value

    def constant(self, text: str) -> NoReturn:
        raise UnusableInput("JSON has no such number", where=self._where, found=text)

    def integer(self, text: str) -> int:
        self._bounded(text)
        value = int(text)
        if abs(value) > MAX_INTEGER:
            raise UnusableInput(
                "an integer is out of range",
                where=self._where,
                expected=f"within ±{MAX_INTEGER}",
                found=text[:40],
            )
        return value

    def floating(self, text: str) -> float:
        self._bounded(text)
        value = float(text)
        if not math.isfinite(value):
            raise UnusableInput("a number is out of range", where=self._where, found=text[:40])
        return value

    def _bounded(self, text: str) -> None:
        if len(text) > MAX_NUMBER_CHARACTERS:
            raise UnusableInput(
                "a number is too long", where=self._where, found=f"{len(text)} characters"
            )


def _check_depth(data: bytes, where: str, max_depth: int) -> None:
    depth = 0
    for match in _BRACKET.finditer(_STRING.sub(b"", data)):
        depth += 1 if match.group() in b"[{" else -1
        if depth > max_depth:
            raise UnusableInput(
                "the JSON document is nested too deeply",
                where=where,
                expected=f"at most {max_depth} levels",
            )


def _walk(value: Any, max_depth: int) -> Iterator[Any]:
    """Every scalar and key below `value`, without recursion."""
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, dict | list | tuple):
            if depth >= max_depth:
                raise UnusableInput(
                    "a value is nested too deeply", expected=f"at most {max_depth} levels"
                )
            if isinstance(item, dict):
                stack.extend((key, depth + 1) for key in item)
                stack.extend((child, depth + 1) for child in item.values())
            else:
                stack.extend((child, depth + 1) for child in item)
        else:
            yield item


def _check_writable(value: Any) -> None:
    for item in _walk(value, MAX_DEPTH):
        # RFC 8785 prints integral floats below 1e21 as integers; the reader would refuse those.
        if isinstance(item, float) and MAX_INTEGER < abs(item) < 1e21:
            raise UnusableInput("a float would be read back as too large an integer", found=item)


def _check_surrogates(value: Any, where: str) -> None:
    for item in _walk(value, MAX_DEPTH + 1):
        if isinstance(item, str) and any("\ud800" <= c <= "\udfff" for c in item):
            raise UnusableInput("a string holds a lone surrogate", where=where, found=item)
