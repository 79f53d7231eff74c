"""What the exactness stage measures: spans, questions and batch splits, drawn from a named seed.

Everything follows from the configuration's seed, so that a plan can be made again anywhere; what
the verifier draws again is `kvaudit.exactness.plan`. Spans and questions are the project's own
generated prose. Nothing here touches the engine except to turn text into tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kvaudit.errors import UnusableInput
from kvaudit.exactness.plan import expand, generator, planned_splits, span_length
from kvgraft import texts

QUERY_ROOM = 64


class Tokenizer(Protocol):
    """The part of a model that a plan needs."""

    def tokenize(self, text: str, *, begin: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Text of token ids."""
        ...


@dataclass(frozen=True)
class SamplePlan:
    """One span and one question, about a fact in it where the span is long enough to tell one.

    Attributes:
        index: number of the sample.
        seed: the seed's name, from which everything else follows.
        span: token ids of the span, begin token included.
        query: token ids of the question.
    """

    index: int
    seed: str
    span: tuple[int, ...]
    query: tuple[int, ...]


@dataclass(frozen=True)
class SplitPlan:
    """One way to cut a text into batches.

    Attributes:
        index: number of the text.
        tokens: the whole text.
        sizes: batch sizes; they sum to the number of tokens.
        grafted: the first batch is not read but restored from a block of it.
    """

    index: int
    tokens: tuple[int, ...]
    sizes: tuple[int, ...]
    grafted: bool = False


def samples(model: Tokenizer, settings: Mapping[str, Any], seed: str) -> list[SamplePlan]:
    """The samples of a run.

    Args:
        model: for its tokenizer.
        settings: the configuration's `exactness` section.
        seed: the name from which all draws derive.
    """
    plans: list[SamplePlan] = []
    n_samples = settings["samples"]
    for index in range(n_samples):
        name = f"{seed}/sample/{index}"
        n_tokens = span_length(index, settings, seed)
        passage = texts.passage(name, n_words=n_tokens + 40)
        ids = model.tokenize(passage.text)[:n_tokens]
        read = model.detokenize(ids)
        told = [fact for fact in passage.facts if fact.sentence in read] or passage.facts[:1]
        fact = told[generator(name, "fact").randrange(len(told))]
        query = model.tokenize(f"\nQuestion: {fact.question}\nAnswer:", begin=False)
        plans.append(SamplePlan(index, name, tuple(ids), tuple(query)))
    return plans


def prose(model: Tokenizer, seed: str, n_tokens: int) -> list[int]:
    """The first `n_tokens` tokens of generated prose, begin token included."""
    return model.tokenize(texts.passage(seed, n_words=n_tokens + 40).text)[:n_tokens]


def split_texts(model: Tokenizer, settings: Mapping[str, Any], seed: str) -> list[tuple[int, ...]]:
    """The texts whose batch splits are compared, one for each configured length."""
    return [
        tuple(prose(model, f"{seed}/split/{n_tokens}", n_tokens))
        for n_tokens in settings["split_lengths"]
    ]


def splits(
    tokens: tuple[int, ...], index: int, settings: Mapping[str, Any], seed: str
) -> Iterator[SplitPlan]:
    """The splits of one text, as `kvaudit.exactness.plan` has them."""
    for batches, grafted in planned_splits(len(tokens), index, settings, seed):
        yield SplitPlan(index, tokens, expand(batches), grafted)


def check(settings: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
    """Refuse a configuration whose parts do not fit together, before anything runs.

    Args:
        settings: the configuration's `exactness` section.
        profile: its `profile` section.

    Raises:
        UnusableInput: names the first rule that is broken.
    """
    longest = max(*settings["split_lengths"], *settings["determinism_lengths"])
    for rule, holds in (
        ("raw_samples is at most samples", settings["raw_samples"] <= settings["samples"]),
        ("min_tokens is at most max_tokens", settings["min_tokens"] <= settings["max_tokens"]),
        (
            f"max_tokens and {QUERY_ROOM} tokens of question fit into n_ctx",
            settings["max_tokens"] + QUERY_ROOM <= profile["n_ctx"],
        ),
        ("every length fits into n_ctx", longest < profile["n_ctx"]),
        ("every length is one batch, at most n_batch", longest <= profile["n_batch"]),
    ):
        if not holds:
            raise UnusableInput(f"the configuration breaks a rule: {rule}", where="exactness")
