"""How a question is ranked against blocks: words, and BM25 in whole numbers.

Scores are integers, so that an index and the verifier, which counts words anew, agree to the last
digit whatever the order of the sums. This module must not know what a block is made of.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

SATURATION = 1.2
LENGTH_WEIGHT = 0.75
UNIT = 1_000_000
"""Score of 1.0 in the formula."""

_WORD = re.compile(r"[a-z0-9]+")


def words(text: str) -> list[str]:
    """Lower-case runs of letters and digits, in their order."""
    return _WORD.findall(text.lower())


STOP = frozenset(
    words(
        "a an and answer are as at be by did do does for from had has have how in is it its many "
        "much of on or question that the this to was were what when where which who whom whose "
        "why with"
    )
)
"""Words of a question that tell no block from another; they are not looked up."""


def sought(question: str) -> list[str]:
    """The words that a question is ranked by, each once, in alphabetical order."""
    return sorted({*words(question)} - STOP)


def term_score(count: int, holders: int, n_blocks: int, length: int, total: int) -> int:
    """What one word of a question adds to a block's score, in millionths: BM25 as in
    S. Robertson and H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009),
    with the inverse document frequency ln(1 + (N - n + 0.5) / (n + 0.5)), which is never negative.

    Args:
        count: how often the block has the word, at least 1.
        holders: blocks that have it.
        n_blocks: blocks in all.
        length: words of the block.
        total: words of all blocks.
    """
    rarity = math.log(1.0 + (n_blocks - holders + 0.5) / (holders + 0.5))
    relative = length * n_blocks / total
    dampened = count + SATURATION * (1.0 - LENGTH_WEIGHT + LENGTH_WEIGHT * relative)
    return round(UNIT * rarity * count * (SATURATION + 1.0) / dampened)


def rank(texts: Sequence[str], question: str, limit: int) -> list[list[int]]:
    """The best blocks for a question, counted from the texts without any index.

    Returns:
        [block, score] from the highest score down, equal scores by block; none with a score of 0.
    """
    counts = [Counter(words(text)) for text in texts]
    lengths = [sum(count.values()) for count in counts]
    scores = [0] * len(texts)
    for word in sought(question):
        holders = [block for block, count in enumerate(counts) if word in count]
        for block in holders:
            scores[block] += term_score(
                counts[block][word], len(holders), len(texts), lengths[block], sum(lengths)
            )
    best = sorted((-score, block) for block, score in enumerate(scores) if score)
    return [[block, -score] for score, block in best[:limit]]
