"""Layout of llama.cpp's per-sequence state, read and checked before the engine sees a byte.

The engine's own reader trusts what it is given: a crafted state can trip an assertion and kill the
process, and a state of another layout can be accepted as silent garbage. This module walks every
length field of a state, so that a session can compare it with the layout its own context writes.
It knows the byte format and nothing of models, files or contexts.

Format (llama.cpp `llama-context.cpp` state_seq_get_data, `llama-kv-cache.cpp` state_write): magic
u32, sequence id i32, then one section per cache (one, or two for models with a sliding window: all
layers without a window first). A section: streams u32 (1), cells u32, and unless it is empty: per
cell position i32, number of sequence ids u32 (1), sequence id i32; then V-transposed u32, layers
u32, per layer K type i32, row bytes u64, cells x row; per layer V type i32, and either row bytes
u64 (flash attention) or element bytes u32, elements u32 (V transposed), then the data.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvgraft.errors import StateRefused

MAGIC = 0xAF143CD8
_CELL = np.dtype([("pos", "<i4"), ("n_seq", "<u4"), ("seq", "<i4")])
_MAX_CELLS = 1 << 24
_MAX_LAYERS = 1 << 12

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Tensor:
    """One layer's keys or values inside a state.

    Attributes:
        kind: "k" or "v".
        layer: index within its section.
        type_id: ggml type number.
        row_bytes: bytes of one cell's row (for transposed values: element bytes x elements).
        elements: elements of a row where V is transposed, else 0.
        offset: first data byte in the state.
        n_bytes: length of the data.
    """

    kind: str
    layer: int
    type_id: int
    row_bytes: int
    elements: int
    offset: int
    n_bytes: int

    @property
    def shape_key(self) -> tuple[str, int, int, int, int]:
        """What must agree between two contexts for the rows to mean the same."""
        return (self.kind, self.layer, self.type_id, self.row_bytes, self.elements)


@dataclass(frozen=True)
class Section:
    """One cache's part of a state.

    Attributes:
        offset: of its first cell in the state; 0 where it has none.
        positions: int32 [cells], the own positions, in cell order.
        v_transposed: True where flash attention is off (values stored transposed).
        tensors: every layer's K, then every layer's V.
    """

    offset: int
    positions: NDArray[np.int32]
    v_transposed: bool
    tensors: tuple[Tensor, ...]

    @property
    def n_cells(self) -> int:
        """Number of cached positions."""
        return len(self.positions)


@dataclass(frozen=True)
class StateLayout:
    """The parsed structure of one sequence state: one or two sections."""

    sections: tuple[Section, ...]
    n_bytes: int

    def signature(self) -> tuple[object, ...]:
        """What two layouts must share to be exchangeable, independent of the number of cells."""
        return tuple(
            (section.v_transposed, tuple(t.shape_key for t in section.tensors))
            for section in self.sections
            if section.n_cells
        )


class _Cursor:
    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.offset = 0

    def take(self, fmt: str, field: str) -> tuple[int, ...]:
        size = struct.calcsize(fmt)
        self._need(size, field)
        values = struct.unpack_from(fmt, self.view, self.offset)
        self.offset += size
        return values

    def skip(self, size: int, field: str) -> int:
        self._need(size, field)
        start = self.offset
        self.offset += size
        return start

    def _need(self, size: int, field: str) -> None:
        left = len(self.view) - self.offset
        if size > left:
            raise StateRefused(
                f"state ends inside {field}",
                where=f"byte {self.offset}",
                expected=f"{size} bytes",
                found=f"{left} bytes",
            )


def parse(state: Buffer, *, n_sections: int | None = None, sequence: int = 0) -> StateLayout:
    """Walk a sequence state and check every length in it.

    Args:
        state: the bytes; read in place, never copied.
        n_sections: how many sections the context writes; None accepts one or two.
        sequence: the id that the header and every cell must have.

    Raises:
        StateRefused: a field is out of range, a cell belongs to another sequence than 0, or bytes
            are missing or left over.
    """
    view = memoryview(state).cast("B")
    cursor = _Cursor(view)
    magic, seq = cursor.take("<Ii", "the header")
    if magic != MAGIC:
        raise StateRefused("state has the wrong magic", expected=hex(MAGIC), found=hex(magic))
    if seq != sequence:
        raise StateRefused("state is of another sequence", expected=sequence, found=seq)
    sections: list[Section] = []
    while cursor.offset < len(view):
        if len(sections) == (n_sections or 2):
            raise StateRefused(
                "bytes left over behind the state",
                where=f"byte {cursor.offset}",
                found=f"{len(view) - cursor.offset} bytes",
            )
        sections.append(_section(cursor, len(sections), sequence))
    if not sections or (n_sections is not None and len(sections) != n_sections):
        raise StateRefused(
            "state has another number of caches than this context",
            expected=n_sections or "1 or 2",
            found=len(sections),
        )
    return StateLayout(tuple(sections), len(view))


def _section(cursor: _Cursor, index: int, sequence: int) -> Section:
    name = f"section {index}"
    streams, n_cells = cursor.take("<II", name)
    if streams != 1:
        raise StateRefused(f"{name} has several streams", expected=1, found=streams)
    if n_cells > _MAX_CELLS:
        raise StateRefused(f"{name} has too many cells", expected=_MAX_CELLS, found=n_cells)
    if n_cells == 0:
        return Section(0, np.empty(0, np.int32), False, ())
    start = cursor.skip(n_cells * _CELL.itemsize, f"the cells of {name}")
    cells = np.frombuffer(cursor.view, dtype=_CELL, count=n_cells, offset=start)
    if (cells["n_seq"] != 1).any() or (cells["seq"] != sequence).any():
        raise StateRefused(f"a cell of {name} is not owned by sequence {sequence} alone")
    transposed, n_layer = cursor.take("<II", name)
    if transposed > 1 or not 0 < n_layer <= _MAX_LAYERS:
        raise StateRefused(f"{name} has an impossible header", found=(transposed, n_layer))
    tensors = [_rows(cursor, "k", i, n_cells) for i in range(n_layer)]
    read_v = _transposed if transposed else _rows
    tensors += [read_v(cursor, "v", i, n_cells) for i in range(n_layer)]
    return Section(start, cells["pos"].astype(np.int32), bool(transposed), tuple(tensors))


def _rows(cursor: _Cursor, kind: str, layer: int, n_cells: int) -> Tensor:
    name = f"layer {layer} {kind}"
    type_id, row = cursor.take("<iQ", name)
    n_bytes = row * n_cells
    return Tensor(kind, layer, type_id, row, 0, cursor.skip(n_bytes, name), n_bytes)


def _transposed(cursor: _Cursor, kind: str, layer: int, n_cells: int) -> Tensor:
    name = f"layer {layer} {kind}"
    type_id, element, elements = cursor.take("<iII", name)
    row = element * elements
    n_bytes = row * n_cells
    return Tensor(kind, layer, type_id, row, elements, cursor.skip(n_bytes, name), n_bytes)


def normalise(state: Buffer, sequence: int) -> None:
    """Rewrite a state of another sequence, in place, as one of sequence 0.

    Raises:
        StateRefused: as `parse`.
    """
    if sequence == 0:
        return
    view = memoryview(state).cast("B")
    layout = parse(view, sequence=sequence)
    struct.pack_into("<Ii", view, 0, MAGIC, 0)
    for section in layout.sections:
        cells = np.frombuffer(view, _CELL, section.n_cells, section.offset)
        cells["seq"] = 0


def placeholder(
    layout: StateLayout, n_cells: Sequence[int], positions: Sequence[int] | None = None
) -> mmap.mmap:
    """A state of zero rows, restored into a sequence of its own to take up cells.

    It moves what is restored behind it to cells that are congruent, modulo the attention padding,
    to those of a fresh computation. The rows are masked for every other sequence, so that they
    add exact zeros and nothing else.

    Args:
        layout: any state of the context, for its types and row sizes.
        n_cells: rows wanted in each of its caches.
        positions: of the rows, the same in every cache; 0, 1, 2, … without.

    Returns:
        A complete sequence state. A private anonymous mapping, because zeros that are only read
        take no memory there.
    """
    parts: list[tuple[bytes, int]] = [(struct.pack("<Ii", MAGIC, 0), 0)]
    for section, wanted in zip(layout.sections, n_cells, strict=True):
        parts.append((struct.pack("<II", 1, wanted), 0))
        if not wanted:
            continue
        cells = np.zeros(wanted, _CELL)
        cells["pos"] = np.arange(wanted) if positions is None else positions
        cells["n_seq"] = 1
        head = struct.pack("<II", int(section.v_transposed), len(section.tensors) // 2)
        parts.append((cells.tobytes() + head, 0))
        for tensor in section.tensors:
            if tensor.elements:
                element = tensor.row_bytes // tensor.elements
                prefix = struct.pack("<iII", tensor.type_id, element, tensor.elements)
            else:
                prefix = struct.pack("<iQ", tensor.type_id, tensor.row_bytes)
            parts.append((prefix, tensor.row_bytes * wanted))
    size = sum(len(prefix) + zeros for prefix, zeros in parts)
    out = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    offset = 0
    for prefix, zeros in parts:
        out[offset : offset + len(prefix)] = prefix
        offset += len(prefix) + zeros
    return out


@dataclass(frozen=True)
class Difference:
    """Where two states of one layout first differ.

    Attributes:
        section: 0 for the cache without a window, 1 for the window cache.
        tensor: for instance "layer 3 k", or "header" for anything outside the rows.
        offset: first differing byte of the state.
        chunk: index of the 4 MiB chunk that holds it.
        n_bytes: how many bytes differ in all.
    """

    section: int
    tensor: str
    offset: int
    chunk: int
    n_bytes: int


def first_difference(a: Buffer, b: Buffer, *, chunk_bytes: int = 4 << 20) -> Difference | None:
    """The first place where two states differ, named by layer; None if they are equal.

    States of different length are reported at the first differing byte of their common part.
    """
    left = np.frombuffer(memoryview(a).cast("B"), np.uint8)
    right = np.frombuffer(memoryview(b).cast("B"), np.uint8)
    common = min(len(left), len(right))
    unequal = np.flatnonzero(left[:common] != right[:common])
    extra = abs(len(left) - len(right))
    if not len(unequal) and not extra:
        return None
    offset = int(unequal[0]) if len(unequal) else common
    section, name = 0, "header"
    for index, part in enumerate(parse(a).sections):
        for tensor in part.tensors:
            if tensor.offset <= offset < tensor.offset + tensor.n_bytes:
                section, name = index, f"layer {tensor.layer} {tensor.kind}"
    return Difference(section, name, offset, offset // chunk_bytes, len(unequal) + extra)
