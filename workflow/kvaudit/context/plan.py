"""What the stage context measures, drawn from the configuration's seed: needles, orders, controls.

The stage runs this plan and the verifier draws it again. This module must not know the engine, nor
any result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvaudit.estimate import generator

PAPER = {"blocks": 88, "block_tokens": 32_441}
"""The paper's own size, under `scale: paper`."""

RANKED = 5
"""Entries of a ranking that a record keeps."""

ALIGNMENT = 256
"""The engine rounds a context up to a multiple of this many tokens."""

MAX_PLANNED = 100_000
"""Blocks, accesses or index entries that a verifier draws again."""

SENTENCE = "The registry number of the {thing} is {code}."
QUESTION = (
    "\n\nQuestion: What is the registry number of the {thing}?\n"
    "Answer: The registry number of the {thing} is"
)

_STARTS = ("bral", "quess", "tov", "hald", "zimm", "ovr", "drax", "plim", "yont", "skeb", "murr")
_MIDDLES = ("a", "e", "i", "o", "u", "ia", "eo", "au")
_ENDS = ("ndra", "xil", "mor", "quet", "bbin", "rsk", "lloon", "vash", "tchim", "zzar", "ppel")
_OBJECTS = ("clock", "bell", "anchor", "organ", "lantern", "barge", "press", "loom", "compass")

_KEYS = {
    *("scale", "blocks", "block_tokens", "room", "needles", "absent", "answer_tokens", "accesses"),
    *("memory_questions", "growth", "growth_tokens", "index_entries", "index_words"),
    "keep_blocks",
}


@dataclass(frozen=True)
class Needle:
    """An invented thing with a number, and the question for it.

    Attributes:
        number: of the needle; the absent ones come behind the planted ones.
        name: the thing's name, a word that nothing else has.
        code: five digits.
        sentence: what is planted.
        question: what is asked; it never holds the code.
        block: the block that holds the sentence, None for an absent needle.
        place: where in its block, as a share of the block's text.
        wrong_block: a block without it, asked as a control; None for an absent needle.
    """

    number: int
    name: str
    code: str
    sentence: str
    question: str
    block: int | None
    place: float | None
    wrong_block: int | None

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return dict(vars(self))


def sized(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with the paper's size where its scale asks for it."""
    return {**section, **(PAPER if section["scale"] == "paper" else {})}


def n_ctx(section: Mapping[str, Any]) -> int:
    """Tokens of context: one block, with room for a question and its answer."""
    needed = sized(section)["block_tokens"] + section["room"]
    return int(-(-needed // ALIGNMENT) * ALIGNMENT)


def needles(section: Mapping[str, Any], seed: str) -> list[Needle]:
    """The planted needles, evenly from the first block to the last, then the absent ones.

    Args:
        section: the configuration's `context` section.
        seed: the name from which all draws derive.
    """
    blocks, planted = sized(section)["blocks"], section["needles"]
    total = planted + section["absent"]
    draw = generator(seed, "needles")
    things: dict[str, str] = {}
    codes: list[str] = []
    while len(things) < total:
        parts = [
            options[int(draw.integers(len(options)))] for options in (_STARTS, _MIDDLES, _ENDS)
        ]
        things.setdefault("".join(parts), _OBJECTS[int(draw.integers(len(_OBJECTS)))])
    while len(codes) < total:
        code = str(int(draw.integers(10_000, 100_000)))
        if code not in codes:
            codes.append(code)
    homes = [_home(index, planted, blocks) for index in range(planted)]
    made = []
    for number, ((name, object_), code) in enumerate(zip(things.items(), codes, strict=True)):
        thing = f"{name.title()} {object_}"
        block = homes[number] if number < planted else None
        place = wrong = None
        if block is not None:
            place = round((homes[:number].count(block) + 1) / (homes.count(block) + 1), 6)
            others = [other for other in range(blocks) if other != block]
            wrong = others[int(generator(seed, "wrong", number).integers(len(others)))]
        made.append(
            Needle(
                number,
                name,
                code,
                SENTENCE.format(thing=thing, code=code),
                QUESTION.format(thing=thing),
                block,
                place,
                wrong,
            )
        )
    return made


def _home(index: int, planted: int, blocks: int) -> int:
    """Block of a needle: the first for the first, the last for the last, whole-number rounding."""
    if planted == 1:
        return 0
    return (2 * index * (blocks - 1) + (planted - 1)) // (2 * (planted - 1))


def questions(section: Mapping[str, Any], seed: str) -> list[tuple[int, str]]:
    """(needle, arm) of every answer, in the order in which they are given."""
    asked = [(n, arm) for n in range(section["needles"]) for arm in ("routed", "wrong")]
    absent = range(section["needles"], section["needles"] + section["absent"])
    return asked + [(n, "absent") for n in absent]


def access_order(section: Mapping[str, Any], seed: str, round_: int) -> list[int]:
    """The blocks in the order of one round of accesses; round 0 warms up and does not count."""
    return [int(b) for b in generator(seed, "access", round_).permutation(sized(section)["blocks"])]


def memory_needles(section: Mapping[str, Any]) -> list[int]:
    """Needles asked for in the two processes whose memory is compared: evenly, first to last."""
    n = min(section["memory_questions"], section["needles"])
    return [_home(index, n, section["needles"]) for index in range(n)]


def block_source(seed: str, block: int) -> str:
    """Name from which a block's prose derives; its header names it as the source."""
    return f"{seed}/context/{block}"


def section_problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a configuration's section `context`, its schema apart."""
    where = "configuration.value.context"
    missing = sorted(_KEYS - {*section})
    if missing:
        yield f"{where} has no {', '.join(missing)}"
        return
    blocks = sized(section)["blocks"]
    if blocks < 2:
        yield f"{where}: a wrong block needs a second one"
    if section["needles"] + section["absent"] > len(_STARTS) * len(_MIDDLES) * len(_ENDS) // 2:
        yield f"{where} plans more needles than there are names"
    if blocks * section["accesses"] > MAX_PLANNED or section["growth"] > MAX_PLANNED:
        yield f"{where} plans more than can be checked"
    if sorted(set(section["index_entries"])) != section["index_entries"]:
        yield f"{where}: index_entries does not ascend"
