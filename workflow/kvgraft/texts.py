"""Seeded English-like prose with facts and questions, in the project's own words.

A passage is a chronicle of invented towns. Each fact is one sentence about a place or person that
occurs in no other fact of the passage, so its question has one answer. Draws come from SHA-256 in
counter mode rather than from a library's generator, so a seed gives the same text on every machine
and every version of Python. This module knows no model and no tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvaudit.errors import UnusableInput

WORDS_PER_FACT = 40
MAX_WORDS = 50_000

T = TypeVar("T")


@dataclass(frozen=True)
class Fact:
    """A question about a passage, its answer, and the sentence that gives it.

    Attributes:
        question: one sentence that ends in a question mark.
        answer: a few words that occur in `sentence` as they stand.
        sentence: a sentence of the passage, word for word.
    """

    question: str
    answer: str
    sentence: str


@dataclass(frozen=True)
class Passage:
    """A text and the facts that it states, in the order in which it states them."""

    text: str
    facts: tuple[Fact, ...]


def passage(seed: int | str, n_words: int) -> Passage:
    """Compose the passage that belongs to a seed.

    Args:
        seed: any number or string; equal ones give equal passages.
        n_words: the least number of words, separated by white space; the text ends with the
            sentence that reaches it.

    Returns:
        The passage: its first sentence states a fact, then about one in `WORDS_PER_FACT` words.

    Raises:
        UnusableInput: if `n_words` is not from 1 to `MAX_WORDS`.
    """
    if not 1 <= n_words <= MAX_WORDS:
        raise UnusableInput(
            "no passage of this length", expected=f"1 to {MAX_WORDS} words", found=n_words
        )
    draw = _Draw(f"kvgraft passage {type(seed).__name__} {seed}")
    names = _names(draw)
    fact_forms, filler_forms = draw.deck(_FACTS), draw.deck(_FILLERS)
    facts: list[Fact] = []
    paragraphs: list[list[str]] = [[]]
    words = since_fact = 0
    while words < n_words:
        if not facts or since_fact >= WORDS_PER_FACT - 5:
            fact = _fact(draw, names, next(fact_forms))
            facts.append(fact)
            sentence, since_fact = fact.sentence, 0
        else:
            # States nothing that a question asks for.
            slots = {name: draw.of(choices) for name, choices in _SLOTS.items()}
            sentence = next(filler_forms).format(**slots)
        if len(paragraphs[-1]) >= 4 + draw.below(4):
            paragraphs.append([])
        paragraphs[-1].append(sentence)
        count = len(sentence.split())
        words += count
        since_fact += count
    return Passage("\n\n".join(" ".join(p) for p in paragraphs if p), tuple(facts))


class _Draw:
    """Uniform draws from SHA-256 of a seed and a counter."""

    def __init__(self, seed: str) -> None:
        self._seed = seed.encode("utf-8", "backslashreplace")
        self._counter = 0

    def below(self, bound: int) -> int:
        """A number from 0 to `bound - 1`; 64 bits make the bias of the remainder negligible."""
        block = hashlib.sha256(self._seed + b"/%d" % self._counter).digest()
        self._counter += 1
        return int.from_bytes(block[:8], "big") % bound

    def of(self, choices: Sequence[str]) -> str:
        return choices[self.below(len(choices))]

    def deck(self, choices: Sequence[T]) -> Iterator[T]:
        """All choices in a drawn order, again and again, each time in another order."""
        while True:
            rest = list(choices)
            while rest:
                yield rest.pop(self.below(len(rest)))


def _names(draw: _Draw) -> Iterator[tuple[str, str]]:
    """Endless pairs of a place and a person, none of which repeats."""
    seen: set[str] = set()

    def fresh(*parts: Sequence[str]) -> str:
        while True:
            name = "".join(draw.of(part) for part in parts).title()
            if name not in seen:
                seen.add(name)
                return name
            # Longer names never run out.
            parts = (parts[0], _MIDDLES, *parts[1:])

    while True:
        place = fresh(_PLACE_STARTS, _PLACE_ENDS)
        yield place, f"{draw.of(_FIRST_NAMES)} {fresh(_SURNAME_STARTS, _SURNAME_ENDS)}"


def _fact(draw: _Draw, names: Iterator[tuple[str, str]], form: tuple[str, str, str]) -> Fact:
    """A fact about a place and a person that the passage has not named before."""
    place, person = next(names)
    sentence, question, answers = form
    slots = {"place": place, "person": person, "answer": _answer(draw, answers)}
    return Fact(question.format(**slots), slots["answer"], sentence.format(**slots))


def _answer(draw: _Draw, kind: str) -> str:
    match kind:
        case "count":
            return str(11 + draw.below(980))
        case "year":
            return str(1203 + draw.below(700))
        case "thing":
            return f"{draw.of(_COLOURS)} {draw.of(_THINGS)}"
        case "day":
            return f"{draw.of(_WEEKDAYS)} {draw.of(_DAY_PARTS)}"
        case "trade":
            return f"{draw.of(_GOODS)} {draw.of(_TRADES)}"
        case _:
            return f"{draw.of(_GOODS)} and {draw.of(_MORE_GOODS)}"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split(";"))


_PLACE_STARTS = _words(
    "ald bran cor dun elm fen gar hal iver jor kel lin mor nar orm pel quil ros sel tam ul ven "
    "wex yar zel ash bir cal dray eth"
)
_MIDDLES = _words("a e i o u en er in ol")
_PLACE_ENDS = _words(
    "bridge bury combe dale den ferry field ford gate haven holm hurst keld ley marsh mere minster "
    "moor mouth ness port sands stead stoke thorpe ton wall water wick worth"
)
_FIRST_NAMES = _words(
    "Ada Bruno Clara Doran Edith Felix Greta Hugo Ines Jonas Kira Lorenz Mara Nils Olga Pavel Rosa "
    "Stefan Tilda Ugo Vera Willem Yara Zeno Agnes Boris Celia Dario Elena Fabian"
)
_SURNAME_STARTS = _words(
    "ab bel car del esk farn gold hart ing jes kern lam mel nor ost pram quen rud sand thorn "
    "ulm vas wend yor zand birk crow dorn fen grim"
)
_SURNAME_ENDS = _words(
    "acre beck berg by cott croft den er ett feld gard hill ing kin land ler low man mark mond ner "
    "rick sen shaw ster stone tree vik way wood"
)
_COLOURS = _words("black blue brown crimson golden green grey pink purple red silver white yellow")
_THINGS = _words(
    "anchor basket bell book bottle box candle chair clock coat cup drum flag glove hammer key "
    "kettle ladder lantern map mirror needle oar plate ring rope saddle shovel violin whistle"
)
_WEEKDAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_DAY_PARTS = _words("morning afternoon evening")
_GOODS = _words(
    "barley butter candle charcoal cheese cider clay copper flax glass honey leather linen "
    "paper pepper rope salt silk slate soap steel sugar tea timber tin wax wheat wool"
)
_MORE_GOODS = _words("almonds apples beans bricks figs hops lentils nuts oats onions pears plums")
_TRADES = _words("broker carrier cutter dealer maker merchant packer seller sorter weigher")

_FACTS: tuple[tuple[str, str, str], ...] = (
    (
        "The toll house of {place} counted {answer} carts in its first week.",
        "How many carts did the toll house of {place} count in its first week?",
        "count",
    ),
    (
        "The school at {place} was built in the year {answer} by {person}.",
        "In which year was the school at {place} built?",
        "year",
    ),
    (
        "{person} of {place} kept the {answer} under the kitchen stairs.",
        "What did {person} of {place} keep under the kitchen stairs?",
        "thing",
    ),
    (
        "In {place} the council meets every {answer}, and {person} takes the notes.",
        "When does the council of {place} meet?",
        "day",
    ),
    (
        "Before moving to {place}, {person} earned a living as a {answer}.",
        "As what did {person} earn a living before moving to {place}?",
        "trade",
    ),
    (
        "The warehouse of {place} holds nothing but {answer}, as {person} found out.",
        "What does the warehouse of {place} hold?",
        "pair",
    ),
    (
        "According to {person}, the tower of {place} has {answer} steps.",
        "How many steps does the tower of {place} have?",
        "count",
    ),
    (
        "The sign above the inn at {place} shows a {answer}, painted by {person}.",
        "What does the sign above the inn at {place} show?",
        "thing",
    ),
    (
        "{person} crossed the pass to {place} with a load of {answer}.",
        "With what load did {person} cross the pass to {place}?",
        "pair",
    ),
    (
        "The ferry to {place} runs on {answer} only, unless {person} is ill.",
        "When does the ferry to {place} run?",
        "day",
    ),
    (
        "A flood took the old mill of {place} in {answer}, as {person} recorded.",
        "In which year did a flood take the old mill of {place}?",
        "year",
    ),
    (
        "The only {answer} in {place} is {person}, who works alone.",
        "What is the work of {person} in {place}?",
        "trade",
    ),
    (
        "The library of {place} lent {answer} volumes to {person} over a lifetime.",
        "How many volumes did the library of {place} lend to {person}?",
        "count",
    ),
    (
        "As a wedding gift the people of {place} gave {person} a {answer}.",
        "What did the people of {place} give {person} as a wedding gift?",
        "thing",
    ),
)

_SLOTS: dict[str, Sequence[str]] = {
    "weather": _phrases(
        "The rain stopped before noon;The wind turned to the north;Mist lay on the lower fields;"
        "The first frost came early;A warm spell followed;Clouds hung over the ridge;"
        "The river stood high;Snow closed the upper road;The evening was clear and still"
    ),
    "people": _phrases(
        "the farmers;the older children;two travellers;the night watch;the masons;a few neighbours;"
        "the boatmen;the shepherds;visitors from the coast;the bakers;the apprentices"
    ),
    "did": _phrases(
        "walked home along the hedge;sat down by the well;argued about the price of seed;"
        "mended what the storm had broken;sang until the lamps went out;waited for the post;"
        "shared bread and old stories;cleared the ditch beside the road;carried water up the hill;"
        "repaired the gate with borrowed nails;counted the sheep twice"
    ),
    "object": _phrases(
        "the long bench;a letter without a name;the broken cart;the south wall;an empty barrel;"
        "the narrow path;a bundle of dry reeds;the low roof;the garden door;a heap of flat stones"
    ),
    "manner": _phrases(
        "quietly;without hurry;with great care;for a long time;in good humour;as usual;once more;"
        "to everyone's surprise;by the light of the fire;without a word"
    ),
    "reason": _phrases(
        "because nobody had asked them not to;since the work was nearly done;"
        "though it was already late;while the dogs slept;as their parents had done;"
        "until the bread was ready;before the market opened;after the bells had fallen silent;"
        "so that the winter would find them ready;whenever the weather allowed it"
    ),
    "thought": _phrases(
        "nothing in the valley ever happened twice;a good road was worth more than a good horse;"
        "the stars were closer in autumn;rivers remember their old beds;"
        "silence was the best kind of advice;every tool has its own season;"
        "old songs should be sung slowly;bread tastes better when it is shared"
    ),
    "season": _words("spring summer autumn winter"),
}

_FILLERS: tuple[str, ...] = (
    "{weather}, and {people} {did}.",
    "{weather}, so {people} moved {object} {manner}.",
    "Some said that {thought}.",
    "In {season} {people} {did}, {reason}.",
    "Nobody touched {object} that {season}, {reason}.",
    "It was often said in those parts that {thought}, and {people} agreed {manner}.",
    "Later {people} came back for {object} and {did}.",
    "On such days {people} {did} {manner}.",
    "There was talk of {object}, but {people} only laughed.",
    "Towards the end of {season} {object} was painted {manner}, {reason}.",
    "What became of {object} is not written down anywhere.",
    "Most of {season} passed {manner}, and {people} {did}.",
    "Whoever passed {object} thought that {thought}.",
    "One page of the chronicle is about {object} and nothing else.",
)
