"""The inverted index ranks as a plain count over the texts does, whatever they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaudit.context import ranking
from kvgraft.lexical import LexicalIndex

WORD = st.sampled_from(["red", "green", "bell", "clock", "salt", "Salt.", "17", "the,", "what"])
TEXT = st.lists(WORD, max_size=30).map(" ".join)


def index_of(*texts: str) -> LexicalIndex:
    index = LexicalIndex()
    for text in texts:
        index.add(text)
    return index


@given(st.lists(TEXT, max_size=12), TEXT)
@settings(deadline=None)
def test_the_index_ranks_as_a_count_over_the_texts(texts: list[str], question: str) -> None:
    ranked = [list(entry) for entry in index_of(*texts).rank(question, 4)]
    assert ranked == ranking.rank(texts, question, 4)


def test_a_rare_word_outranks_common_ones() -> None:
    common = ["the bell and the clock of the tower"] * 6
    index = index_of(*common, "the clock of Tovamor")
    best, second = index.rank("What of the bell, the clock and the tower of Tovamor?")[:2]
    assert best[0] == 6
    assert best[1] > second[1]


def test_a_score_is_the_formula_in_millionths() -> None:
    # Two texts of three words each, one with the word twice: the lengths do not matter.
    index = index_of("salt salt bell", "clock bell tower")
    rarity = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    assert index.rank("salt") == [(0, round(1e6 * rarity * 2 * 2.2 / (2 + 1.2)))]


def test_words_that_tell_nothing_are_not_looked_up() -> None:
    index = index_of("what is the question", "the answer")
    assert index.rank("What is the answer to the question?") == []
    assert index.rank("") == []


def test_equal_scores_are_ordered_by_number_and_the_list_is_cut() -> None:
    index = index_of(*["one bell"] * 5)
    assert [number for number, _ in index.rank("bell", 3)] == [0, 1, 2]


def test_case_and_punctuation_do_not_matter() -> None:
    assert ranking.words("The Tova-mor's bell, no. 17!") == [
        *("the", "tova", "mor", "s", "bell", "no", "17"),
    ]
    assert index_of("SALT!").rank("salt?")[0][0] == 0


@pytest.mark.parametrize("times", [1, 65_535, 70_000])
def test_a_count_beyond_its_field_is_held_at_its_end(times: int) -> None:
    index = LexicalIndex()
    index.add_words(["salt"] * times)
    index.add_words(["bell"])
    assert index.rank("salt")[0][0] == 0


def test_sizes_are_those_of_what_is_held() -> None:
    index = index_of("red green red", "green blue")
    assert (len(index), index.n_words, index.n_postings) == (2, 3, 4)
    before = index.memory_bytes
    index.add("another text with new words")
    assert index.memory_bytes > before > 0
