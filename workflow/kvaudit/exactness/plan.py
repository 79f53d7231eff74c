"""What the stage exactness measures: span lengths, raw samples and batch splits, from a named seed.

The stage plans by these functions and the verifier plans again by them. This module must not know
an engine or any result.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

LARGEST_BATCH = 130
"""Largest of a random batch split."""

Runs = tuple[tuple[int, int], ...]
"""Batch sizes as (size, count), neighbours different."""


def generator(*names: object) -> random.Random:
    """A generator seeded by the SHA-256 of the names: the same on every machine."""
    text = "/".join(str(name) for name in names)
    return random.Random(hashlib.sha256(text.encode()).digest())  # noqa: S311


def length(index: int, n_samples: int, low: int, high: int, seed: str) -> int:
    """Span length of a sample: log-uniform over low … high, one sample in each of n strata."""
    position = (index + generator(seed, "length", index).random()) / n_samples
    return int(min(high, max(low, int(low * (high / low) ** position + 0.5))))


def span_length(index: int, section: Mapping[str, Any], seed: str) -> int:
    """`length` as the configuration's section has it."""
    n_samples, low, high = section["samples"], section["min_tokens"], section["max_tokens"]
    return length(index, n_samples, low, high, seed)


def raw_samples(section: Mapping[str, Any]) -> set[int]:
    """The samples whose raw logits are kept: evenly spread over them, hence over the lengths."""
    n, kept = section["samples"], section["raw_samples"]
    return {(2 * i + 1) * n // (2 * kept) for i in range(kept)}


def planned_splits(
    n_tokens: int, index: int, section: Mapping[str, Any], seed: str
) -> list[tuple[Runs, bool]]:
    """The splits of one text: random ones, even chunks, single tokens at the end, under graft.

    The first text is also read token by token from its first token on.

    Returns:
        (batch sizes, whether the first batch is restored from a block) of each.
    """
    draw = generator(seed, "splits", index)
    # At most half of the text, so that no split is the one prefill it is compared with.
    half = max(1, n_tokens // 2)
    planned = [
        (run_lengths(random_sizes(n_tokens, draw, min(LARGEST_BATCH, half))), False)
        for _ in range(section["random_splits"])
    ]
    even = min(100, half)
    planned.append((runs([(even, n_tokens // even), (n_tokens % even, 1)]), False))
    tail = min(section["single_tokens"], n_tokens - 1)
    ended = runs([(n_tokens - tail, 1), (1, tail)])
    planned.append((ended, False))
    if index == 0:
        planned.append((((1, n_tokens),), False))
    grafted = run_lengths((n_tokens - tail, *random_sizes(tail, draw)))
    planned.append((grafted, True))
    planned.append((ended, True))
    return planned


def random_sizes(n: int, draw: random.Random, largest: int = LARGEST_BATCH) -> tuple[int, ...]:
    """Batch sizes of 1 … `largest` that sum to n."""
    sizes: list[int] = []
    left = n
    while left:
        sizes.append(min(left, draw.randint(1, largest)))
        left -= sizes[-1]
    return tuple(sizes)


def run_lengths(sizes: Iterable[int]) -> Runs:
    """Batch sizes in their one form."""
    return runs((size, 1) for size in sizes)


def runs(pairs: Iterable[tuple[int, int]]) -> Runs:
    """Batch sizes in their one form: equal neighbours together, nothing empty."""
    filled = (pair for pair in pairs if pair[0] and pair[1])
    groups = itertools.groupby(filled, key=lambda pair: pair[0])
    return tuple((size, sum(count for _, count in group)) for size, group in groups)


def expand(batches: Runs) -> tuple[int, ...]:
    """The sizes themselves."""
    return tuple(size for size, count in batches for _ in range(count))
