"""States made by an enemy who knows the format: every digest is right, the content is not.

`CASES` change a real state. Run as a program this grafts each of them into a real session and
prints what happened, so that an engine that dies takes only this process with it:

    python crafted.py MODEL.gguf STORE
"""

from __future__ import annotations

import dataclasses
import json
import struct
import sys
from collections.abc import Callable, Iterator

import numpy as np

from kvaudit import kvb
from kvaudit.errors import TypedError
from kvgraft import pins, state
from kvgraft.model import FrozenModel
from kvgraft.profile import split_invariant
from kvgraft.session import Capture, Session
from kvgraft.store import BlockStore

N_TOKENS = 100
Craft = Callable[[bytearray, state.StateLayout], bytes | bytearray]


def _field(fmt: str, offset: int, value: int) -> Craft:
    def craft(data: bytearray, _layout: state.StateLayout) -> bytearray:
        struct.pack_into(fmt, data, offset, value)
        return data

    return craft


def _tensor(section: int, index: int, fmt: str, back: int, value: int) -> Craft:
    """Change a field in the header of a tensor; -1 stands for the last section or tensor."""

    def craft(data: bytearray, layout: state.StateLayout) -> bytearray:
        tensor = layout.sections[section].tensors[index]
        struct.pack_into(fmt, data, tensor.offset - back, value)
        return data

    return craft


def _flags(section: int, fmt: str, back: int, value: int) -> Craft:
    """Change the V-transposed flag (back 20) or the number of layers (back 16) of a section."""
    return _tensor(section, 0, fmt, back, value)


def _cell(section: int, cell: int, field: int, value: int) -> Craft:
    def craft(data: bytearray, layout: state.StateLayout) -> bytearray:
        part = layout.sections[section]
        first = part.tensors[0].offset - 12 - 8 - 12 * part.n_cells
        struct.pack_into("<i", data, first + 12 * cell + 4 * field, value)
        return data

    return craft


def _no_cells(section: int) -> Craft:
    """Empty one section as the engine would write it."""

    def craft(data: bytearray, layout: state.StateLayout) -> bytes:
        part = layout.sections[section]
        begin = part.tensors[0].offset - 12 - 8 - 12 * part.n_cells - 8
        last = part.tensors[-1]
        empty = struct.pack("<II", 1, 0)
        return bytes(data[:begin]) + empty + bytes(data[last.offset + last.n_bytes :])

    return craft


def _rows(value: int) -> Craft:
    """Rows of one byte value; 0xFF makes every half-precision element a NaN."""

    def craft(data: bytearray, layout: state.StateLayout) -> bytearray:
        for section in layout.sections:
            for tensor in section.tensors:
                data[tensor.offset : tensor.offset + tensor.n_bytes] = (
                    bytes([value]) * tensor.n_bytes
                )
        return data

    return craft


def _last_section_twice(data: bytearray, layout: state.StateLayout) -> bytes:
    first = layout.sections[-1].tensors[0]
    begin = first.offset - 12 - 8 - 12 * layout.sections[-1].n_cells - 8
    return bytes(data) + bytes(data[begin:])


CASES: dict[str, Craft] = {
    "wrong magic": _field("<I", 0, 0xAF143CD9),
    "sequence 1": _field("<i", 4, 1),
    "sequence far away": _field("<i", 4, 1 << 30),
    "no stream": _field("<I", 8, 0),
    "many streams": _field("<I", 8, 1 << 20),
    "all cells": _field("<I", 12, 0xFFFFFFFF),
    "one cell more": _field("<I", 12, N_TOKENS + 1),
    "one cell less": _field("<I", 12, N_TOKENS - 1),
    "no cells at all": _no_cells(0),
    "no cells in the last cache": _no_cells(-1),
    "negative position": _cell(0, 0, 0, -1),
    "position far away": _cell(0, N_TOKENS - 1, 0, (1 << 31) - 1),
    "position twice": _cell(0, 5, 0, 4),
    "window position twice": _cell(-1, 5, 0, 0),
    "cell of no sequence": _cell(0, 3, 1, 0),
    "cell of many sequences": _cell(0, 3, 1, 1 << 28),
    "cell of a negative sequence": _cell(-1, 3, 2, -1),
    "cell of an absent sequence": _cell(0, 3, 2, 200),
    "values not transposed": _flags(0, "<I", 20, 0),
    "flag beyond true": _flags(-1, "<I", 20, 7),
    "no layers": _flags(0, "<I", 16, 0),
    "one layer more": _flags(0, "<I", 16, 9),
    "layers without end": _flags(-1, "<I", 16, 0xFFFFFFFF),
    "another key type": _tensor(0, 0, "<i", 12, 0),
    "a type that does not exist": _tensor(0, 0, "<i", 12, 9999),
    "a negative type": _tensor(-1, -1, "<i", 12, -1),
    "keys without width": _tensor(0, 0, "<Q", 8, 0),
    "keys of half the width": _tensor(-1, 0, "<Q", 8, 32),
    "keys without end": _tensor(0, 0, "<Q", 8, (1 << 64) - 1),
    "elements without width": _tensor(0, -1, "<I", 8, 0),
    "elements of double width": _tensor(0, -1, "<I", 8, 4),
    "no elements": _tensor(-1, -1, "<I", 4, 0),
    "elements without end": _tensor(-1, -1, "<I", 4, 0xFFFFFFFF),
    "half the state": lambda data, _layout: data[: len(data) // 2],
    "all but a byte": lambda data, _layout: data[:-1],
    "a byte too many": lambda data, _layout: data + b"\0",
    "a cache too many": _last_section_twice,
    "eight bytes": lambda data, _layout: data[:8],
    "one byte": lambda data, _layout: data[:1],
    "zeros": lambda data, _layout: bytes(len(data)),
}
"""Refused, each of them."""

HARMLESS: dict[str, Craft] = {
    "the real one": lambda data, _layout: data,
    "rows of zeros": _rows(0),
    "rows of NaN": _rows(0xFF),
}
"""Accepted: rows may hold anything, and a wrong number in them harms nobody but its own answer."""


def blocks(real: Capture) -> Iterator[tuple[str, Capture]]:
    """Every case as a block whose identity and digests are right."""
    layout = state.parse(real.state.data)
    for name, craft in {**HARMLESS, **CASES}.items():
        made = np.frombuffer(bytes(craft(bytearray(real.state.tobytes()), layout)), np.uint8)
        chunks = kvb.build(
            model=real.header.model,
            profile=real.header.profile,
            engine=real.header.engine,
            tokens=real.tokens,
            state=made.data,
        ).state
        yield name, Capture(dataclasses.replace(real.header, state=chunks), real.tokens, made)


def main(model_path: str, store_path: str) -> None:
    """Graft every case; one line of JSON each, at once, so that a crash shows where it was."""
    store = BlockStore(store_path)
    with (
        FrozenModel.open(pins.for_file(model_path)) as model,
        Session(model, split_invariant(n_ctx=512)) as session,
    ):
        ids = list(range(2, 2 + N_TOKENS))
        session.prefill(ids)
        real = session.capture()
        expected = session.decode(ids[:5]).tobytes()
        for name, capture in blocks(real):
            block_id = store.put(capture.header, capture.tokens, capture.state.data)
            session.reset()
            answer = {"name": name, "error": "", "message": "", "alive": False}
            try:
                with store.get(block_id) as block:
                    session.graft(block)
                session.decode(ids[:5])
            except TypedError as error:
                answer.update(error=type(error).__name__, message=str(error))
            session.reset()
            session.prefill(ids)
            answer["alive"] = session.decode(ids[:5]).tobytes() == expected
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
