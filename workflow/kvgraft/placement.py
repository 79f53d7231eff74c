"""Where rows land: cells of a context's caches, counted so that a restore puts rows back in lane.

Attention adds over cells in vector lanes, so that a row in another lane gives other bits
(docs/adr/0004). A fresh computation has each row in a cell that follows from its own position; a
state keeps only the live rows of a window cache, and the engine restores them into the next free
cells. Masked placeholder rows make up the difference, modulo the attention padding. This module
knows cells and positions, nothing of models, profiles or admission.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from kvaudit.kvb_map import MappedBlock
from kvgraft import state
from kvgraft.admission import ALIGNMENT, name
from kvgraft.context import APART, PLACEHOLDER, TEXT, Context
from kvgraft.errors import ContextFull, StateRefused


class Placement:
    """The next free cell of each cache of one context.

    Args:
        context: an empty context.
        reuses_cells: a window cache is not full-size: its cells follow from nothing, and no row
            is moved for their sake.

    Attributes:
        cells: next free cell, by cache.
        origin: own position that belongs in cell 0.
    """

    def __init__(self, context: Context, *, reuses_cells: bool) -> None:
        self._context = context
        self._reuses_cells = reuses_cells
        self.reset(0)

    def reset(self, origin: int) -> None:
        """The context was emptied."""
        self.cells = [0] * self._context.n_sections
        self.origin = origin

    def advance(self, n_cells: int) -> None:
        """Rows were written behind the others, in every cache."""
        self.cells = [cell + n_cells for cell in self.cells]

    def gaps(self, positions: Sequence[int | None]) -> list[int]:
        """Cells to skip in each cache so that a position lands in the lane of a fresh computation.

        Args:
            positions: by cache, the first position to be written; None where nothing will be.
        """
        if self._reuses_cells:
            return [0] * len(positions)
        return [
            0 if position is None else (position - self.origin - cell) % ALIGNMENT
            for position, cell in zip(positions, self.cells, strict=True)
        ]

    def skip(self, n_cells: Sequence[int]) -> None:
        """Fill the next cells with masked rows.

        Raises:
            StateRefused: the engine has no room for them.
        """
        if not any(n_cells):
            return
        filler = state.placeholder(self._context.layout, n_cells)
        address = ctypes.addressof((ctypes.c_uint8 * len(filler)).from_buffer(filler))
        self._context.set_state(address, len(filler), APART)
        self._context.share(APART, PLACEHOLDER)
        self._context.remove(APART)
        self.cells = [a + b for a, b in zip(self.cells, n_cells, strict=True)]

    def restore(self, block: MappedBlock, layout: state.StateLayout, room: int) -> int:
        """Restore a block's rows behind what is there, and let the text hold them.

        Args:
            block: verified.
            layout: of its state.
            room: cells that are left.

        Returns:
            Placeholder rows put before it.

        Raises:
            ContextFull: more cells are needed than are left.
            StateRefused: the engine does not accept the state.
        """
        firsts = [int(s.positions[0]) if s.n_cells else None for s in layout.sections]
        gaps = self.gaps(firsts)
        needed = gaps[0] + layout.sections[0].n_cells
        if needed > room:
            raise ContextFull(
                "the block does not fit into the context",
                where=name(block.header),
                expected=f"at most {room} cells",
                found=needed,
            )
        self.skip(gaps)
        # A restore empties the sequence that it restores into.
        into = APART if self._context.holds_text() else TEXT
        self._context.set_state(block.state_address, block.header.state.bytes, into)
        if into == APART:
            self._context.share(APART, TEXT)
            self._context.remove(APART)
        held = [section.n_cells for section in layout.sections]
        self.cells = [a + b for a, b in zip(self.cells, held, strict=True)]
        return sum(gaps)


def check_positions(layout: state.StateLayout, start: int, n_tokens: int, window: int) -> None:
    """The first cache must hold a span's positions, a window cache an unbroken tail of them.

    Raises:
        StateRefused: it does not.
    """
    end = start + n_tokens
    for index, section in enumerate(layout.sections):
        first = start if index == 0 else end - section.n_cells
        if index == 1 and section.n_cells < min(n_tokens, window):
            first = -1
        expected = np.arange(first, first + section.n_cells, dtype=np.int32)
        complete = section.n_cells == n_tokens if index == 0 else first >= start
        if not complete or not np.array_equal(section.positions, expected):
            raise StateRefused(
                "the state does not hold the span's own positions",
                where=f"section {index}",
                expected=f"the last positions of {start} … {end - 1}",
                found=f"{section.n_cells} cells",
            )
