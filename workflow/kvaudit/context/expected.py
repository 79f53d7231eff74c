"""Which records a context stage must hold: the plan, drawn again from the configuration's seed.

No record can be left out, put in twice or relabelled. This module must not know which results
would be good ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvaudit import profiles
from kvaudit.context import plan
from kvaudit.context.records import (
    ACCESSES,
    ANSWERS,
    BLOCKS,
    GROWTH,
    HEADERS,
    INDEX,
    MEMORY,
    MEMORY_ARMS,
    NEEDLES,
    PROFILES,
)
from kvaudit.stagekind import Problem, Rows


def check(subject: str, rows: Rows, inputs: Mapping[str, Any]) -> list[Problem]:
    """Everything that a stage of this configuration must hold and does not.

    Where the configuration is unusable itself, nothing is found here: `chain` has reported it.
    """
    value = inputs["configuration"]["value"]
    section = value.get("context", {})
    if "seed" not in value or any(plan.section_problems(section)):
        return []
    seed = f"{value['seed']}/{subject}"
    found = [Problem(PROFILES, text) for text in _settings(rows, section)]
    for file, check_file in (
        (BLOCKS, _blocks),
        (HEADERS, _sources),
        (NEEDLES, _needles),
        (ANSWERS, _answers),
        (ACCESSES, _accesses),
        (MEMORY, _memory),
        (GROWTH, _growth),
        (INDEX, _index),
    ):
        found += [Problem(file, text) for text in check_file(rows, section, seed)]
    force = profiles.in_force(inputs, subject)
    if force is not None:
        for number, row in enumerate(rows[HEADERS]):
            if row["header"]["engine"] != force.engine:
                found.append(Problem(HEADERS, f"block {number}: engine is not the registered one"))
    return found


def _settings(rows: Rows, section: Mapping[str, Any]) -> Iterator[str]:
    for row in rows[PROFILES]:
        if profiles.n_ctx(row["profile"], "settings") != plan.n_ctx(section):
            yield f"n_ctx is not the planned {plan.n_ctx(section)}"


def _blocks(rows: Rows, section: Mapping[str, Any], seed: str) -> Iterator[str]:
    sized = plan.sized(section)
    if len(rows[BLOCKS]) != sized["blocks"]:
        yield f"{len(rows[BLOCKS])} blocks recorded, {sized['blocks']} planned"
    for row in rows[BLOCKS]:
        if row["tokens"] != sized["block_tokens"]:
            yield f"block {row['block']}: has {row['tokens']} tokens"


def _sources(rows: Rows, section: Mapping[str, Any], seed: str) -> Iterator[str]:
    for number, row in enumerate(rows[HEADERS]):
        if row["header"]["provenance"].get("source") != plan.block_source(seed, number):
            yield f"block {number}: its source is not the planned one"


def _needles(rows: Rows, section: Mapping[str, Any], seed: str) -> Iterator[str]:
    planned = [needle.to_json() for needle in plan.needles(section, seed)]
    if len(rows[NEEDLES]) != len(planned):
        yield f"{len(rows[NEEDLES])} needles recorded, {len(planned)} planned"
    for number, (row, needle) in enumerate(zip(rows[NEEDLES], planned, strict=False)):
        differing = sorted(key for key, value in needle.items() if row[key] != value)
        if differing:
            yield f"needle {number}: {', '.join(differing)} not as planned"


def _answers(rows: Rows, section: Mapping[str, Any], seed: str) -> Iterator[str]:
    found = [(row["needle"], row["arm"]) for row in rows[ANSWERS]]
    if found != plan.questions(section, seed):
        yield "are not the planned questions in their order"
    for number, row in enumerate(rows[ANSWERS], start=1):
        if len(row["tokens"]) > section["answer_tokens"]:
            yield f"line {number}: the answer is longer than planned"


def _accesses(rows: Rows, section: Mapping[str, Any], seed: str) -> Iterator[str]:
    planned = [
        (round_, turn, block)
        for round_ in range(section["accesses"])
        for turn, block in enumerate(plan.access_order(section, seed, round_))
    ]
    if [(row["round"], row["turn"], row["block"]) for row in rows[ACCESSES]] != planned:
        yield "are not the planned accesses in their drawn order"


def _memory(rows: Rows, section: Mapping[str, Any], seed: str) -> Iterator[str]:
    if [row["arm"] for row in rows[MEMORY]] != list(MEMORY_ARMS):
        yield "are not the two planned arms"
    for row in rows[MEMORY]:
        if [answer["needle"] for answer in row["answers"]] != plan.memory_needles(section):
            yield f"{row['arm']}: are not the planned questions"


def _growth(rows: Rows, section: Mapping[str, Any], seed: str) -> Iterator[str]:
    if len(rows[GROWTH]) != section["growth"]:
        yield f"{len(rows[GROWTH])} deposits recorded, {section['growth']} planned"
    if any(row["tokens"] != section["growth_tokens"] for row in rows[GROWTH]):
        yield "a small block has another length than planned"


def _index(rows: Rows, section: Mapping[str, Any], seed: str) -> Iterator[str]:
    if [row["entries"] for row in rows[INDEX]] != section["index_entries"]:
        yield "are not the planned sizes"
    if any(row["words"] != section["index_words"] for row in rows[INDEX]):
        yield "an entry has another number of words than planned"
    if not all(row["found"] for row in rows[INDEX]):
        yield "an index does not find an entry by its name"
