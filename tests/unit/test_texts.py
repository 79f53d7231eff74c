"""Passages are reproducible, varied, and their facts can be checked by string comparison."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaudit.errors import UnusableInput
from kvgraft import texts
from kvgraft.texts import passage


def test_equal_seeds_give_equal_passages_and_numbers_are_not_strings() -> None:
    assert passage(7, 300) == passage(7, 300)
    assert passage("7", 300) != passage(7, 300)
    assert passage(8, 300) != passage(7, 300)


def test_a_passage_has_the_same_bytes_on_every_machine() -> None:
    text = passage("golden", 500).text
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "5c689704e6138154637c4a9af5a557d3e949b49dbb9bb608be1c4c3150f60506"
    )


def test_hash_randomisation_does_not_reach_the_text() -> None:
    script = (
        "from kvgraft.texts import passage; import sys; sys.stdout.write(passage('s', 400).text)"
    )
    workflow = str(Path(texts.__file__).parents[1])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": workflow, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {passage("s", 400).text.encode()}


@settings(max_examples=40, deadline=None)
@given(seed=st.one_of(st.integers(), st.text(max_size=8)), n_words=st.integers(1, 1500))
def test_every_fact_is_stated_once_and_answered_by_its_sentence(
    seed: int | str, n_words: int
) -> None:
    made = passage(seed, n_words)
    assert n_words <= len(made.text.split()) < n_words + 40
    assert made.text.startswith(made.facts[0].sentence)
    assert len({fact.question for fact in made.facts}) == len(made.facts)
    for fact in made.facts:
        assert made.text.count(fact.sentence) == 1
        assert fact.answer in fact.sentence
        assert fact.answer not in fact.question
        assert fact.question.endswith("?")
    assert made.text.isascii()


def test_facts_come_about_once_in_forty_words() -> None:
    made = [passage(seed, 800) for seed in range(20)]
    words = sum(len(p.text.split()) for p in made)
    assert 35 <= words / sum(len(p.facts) for p in made) <= 45


def test_fifty_long_passages_share_no_fact_and_few_sentences() -> None:
    made = [passage(seed, 750) for seed in range(50)]
    sentences = [set(p.text.replace("\n\n", " ").split(". ")) for p in made]
    for i, first in enumerate(sentences):
        for second in sentences[:i]:
            assert len(first & second) < 0.25 * len(first)
    stated = [fact.sentence for p in made for fact in p.facts]
    assert len(set(stated)) == len(stated)
    assert len({p.text[:60] for p in made}) == 50


@pytest.mark.parametrize("n_words", [0, -1, texts.MAX_WORDS + 1])
def test_an_impossible_length_is_refused(n_words: int) -> None:
    with pytest.raises(
        UnusableInput, match=r"no passage of this length; expected 1 to 50000 words"
    ):
        passage(1, n_words)
