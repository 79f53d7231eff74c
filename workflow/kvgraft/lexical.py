"""An inverted index over texts, ranked by BM25: which block should a question go to?

Postings are flat arrays of block numbers and counts, so that an entry costs bytes and not objects.
The formula is `kvaudit.context.ranking`; its plain count over the texts is the index's reference.
This module must not know what is stored under a number.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable

from kvaudit.context.ranking import sought, term_score, words

_MOST = 0xFFFF
"""Counts above it are held as it: such a word is as frequent as BM25 can tell."""


class LexicalIndex:
    """Texts by number, in the order in which they were added."""

    def __init__(self) -> None:
        self._postings: dict[str, tuple[array[int], array[int]]] = {}
        self._lengths: array[int] = array("I")
        self._total = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, text: str) -> int:
        """Index a text; returns its number."""
        return self.add_words(words(text))

    def add_words(self, found: Iterable[str]) -> int:
        """Index a text given as its words, in lower case; returns its number."""
        number, length = len(self._lengths), 0
        for word, count in Counter(found).items():
            held = self._postings.get(word)
            if held is None:
                held = self._postings[word] = (array("I"), array("H"))
            held[0].append(number)
            held[1].append(min(count, _MOST))
            length += count
        self._lengths.append(length)
        self._total += length
        return number

    def rank(self, question: str, limit: int = 5) -> list[tuple[int, int]]:
        """The best texts for a question.

        Returns:
            (number, score in millionths), from the highest score down, equal scores by number;
            texts that have none of the words sought are left out.
        """
        scores: dict[int, int] = {}
        n = len(self._lengths)
        for word in sought(question):
            held = self._postings.get(word)
            if held is None:
                continue
            numbers, counts = held
            for number, count in zip(numbers, counts, strict=True):
                added = term_score(count, len(numbers), n, self._lengths[number], self._total)
                scores[number] = scores.get(number, 0) + added
        best = sorted((-score, number) for number, score in scores.items() if score)
        return [(number, -score) for score, number in best[:limit]]

    @property
    def n_words(self) -> int:
        """Different words."""
        return len(self._postings)

    @property
    def n_postings(self) -> int:
        """Pairs of a word and a text that has it."""
        return sum(len(numbers) for numbers, _ in self._postings.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that the index takes: arrays with their spare room, words, the table."""
        size = sys.getsizeof(self._postings) + sys.getsizeof(self._lengths)
        for word, held in self._postings.items():
            size += sys.getsizeof(word) + sys.getsizeof(held)
            size += sys.getsizeof(held[0]) + sys.getsizeof(held[1])
        return size
