"""A plan follows from its seed alone, and its sizes sum to its texts."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvaudit.exactness.plan import expand, generator, length, random_sizes, run_lengths
from kvgraft import plan

OPTIONS = {
    "samples": 7,
    "min_tokens": 16,
    "max_tokens": 200,
    "split_lengths": [40, 150],
    "random_splits": 3,
    "single_tokens": 8,
}


def whole(model: Any, seed: str) -> tuple[Any, ...]:
    texts = plan.split_texts(model, OPTIONS, seed)
    cuts = [list(plan.splits(text, i, OPTIONS, seed)) for i, text in enumerate(texts)]
    return plan.samples(model, OPTIONS, seed), texts, cuts


def test_the_same_seed_gives_the_same_plan_and_another_seed_another(models: Any) -> None:
    model = models("gemma3")
    assert whole(model, "a") == whole(model, "a")
    assert whole(model, "a") != whole(model, "b")


def test_a_plan_stays_what_it_was() -> None:
    # Draws come from SHA-256 and Mersenne Twister, which have one output on every machine.
    assert [length(i, 7, 16, 200, "a") for i in range(7)] == [18, 24, 38, 54, 92, 121, 199]
    assert random_sizes(300, generator("a", 1)) == (16, 26, 59, 40, 38, 59, 9, 53)


def test_lengths_are_spread_over_the_whole_range() -> None:
    lengths = [length(i, 50, 32, 1024, "s") for i in range(50)]
    assert lengths == sorted(lengths)
    assert lengths[0] < 36
    assert lengths[-1] > 950
    assert sum(n > 512 for n in lengths) >= 8


def test_samples_have_their_spans_and_questions(models: Any) -> None:
    samples = plan.samples(models("gemma3"), OPTIONS, "a")
    assert [sample.index for sample in samples] == list(range(7))
    for sample in samples:
        assert len(sample.span) == length(sample.index, 7, 16, 200, "a")
        text = models("gemma3").detokenize(sample.query)
        assert text.startswith("\nQuestion: ")
        assert text.endswith("?\nAnswer:")
        assert sample.span[0] == 0  # the begin token stands in front of the span only
        assert 0 not in sample.query


def test_every_split_covers_its_text(models: Any) -> None:
    for index, text in enumerate(plan.split_texts(models("llama"), OPTIONS, "a")):
        assert len(text) == OPTIONS["split_lengths"][index]  # type: ignore[index]
        splits = list(plan.splits(text, index, OPTIONS, "a"))
        assert all(sum(split.sizes) == len(text) for split in splits)
        assert all(min(split.sizes) >= 1 for split in splits)
        assert sum(split.grafted for split in splits) == 2
        assert any(set(split.sizes) == {1} for split in splits) == (index == 0)


@settings(deadline=None)
@given(n=st.integers(0, 3000), seed=st.integers())
def test_random_sizes_sum_to_the_length(n: int, seed: int) -> None:
    sizes = random_sizes(n, generator(seed))
    assert sum(sizes) == n
    assert all(1 <= size <= 130 for size in sizes)
    assert expand(run_lengths(sizes)) == sizes
