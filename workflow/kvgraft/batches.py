"""How a span is cut into engine calls: as asked, within the batch and the output buffer.

Pure arithmetic; nothing here knows an engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

Split = int | Sequence[int] | None
"""Batch sizes: None for the largest, one size for all, or a list of sizes."""


def batches(
    n_tokens: int, split: Split, outputs: int, *, largest: int, most_outputs: int
) -> list[int]:
    """Sizes of the calls that read a span.

    What does not fit into one call is read in several before the next size is taken up.

    Args:
        n_tokens: of the span.
        split: as asked; what a list leaves over is read in the largest batches.
        outputs: how many of the last tokens keep logits.
        largest: most tokens of one call.
        most_outputs: most tokens with logits of one call.

    Raises:
        ValueError: a size below 1.
    """
    sizes = itertools.repeat(split) if isinstance(split, int) else iter(split or ())
    made: list[int] = []
    left, rest = n_tokens, 0
    while left:
        rest = rest or next(sizes, largest)
        if rest < 1:
            raise ValueError("a batch holds at least one token")
        size = min(rest, largest, left)
        silent = left - outputs
        if size > silent and size - max(silent, 0) > most_outputs:
            size = max(silent, 0) + most_outputs
        left -= size
        rest -= size
        made.append(size)
    return made
