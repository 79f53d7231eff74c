"""Row P5 as the verifier knows it: chains, shared prefixes, compositions, and what composing costs.

Checks the records against the plan of the configuration, sums them up, and judges the claim. This
module must not read files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvaudit import stats
from kvaudit.claims import Evidence, Outcome, holds, rule
from kvaudit.position.answers import ARMS, draw
from kvaudit.position.part import Part, Setting
from kvaudit.profiles import InForce
from kvaudit.stagekind import Problem, Rows

CHAINS = "records/chains.jsonl"
PREFIXES = "records/prefixes.jsonl"
COMPOSITIONS = "records/compositions.jsonl"
ANSWERS = "records/answers.jsonl"
RECORDS: Mapping[str, str] = {
    CHAINS: "position-chain",
    PREFIXES: "position-prefix",
    COMPOSITIONS: "position-composition",
    ANSWERS: "position-answer",
}
ALIGNMENT = 256
"""Starts of composed blocks are multiples of it (docs/adr/0007)."""
UNALIGNED = 37
"""How far the control moves every start but the first."""

Row = Mapping[str, Any]


def section_problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the part of the configuration's section that this row reads."""
    where = "configuration.value.position"
    missing = sorted({"chains", "prefix", "compositions", "answers"} - {*section})
    for key in missing:
        yield f"{where} has no {key}"
    if missing:
        return
    for key in sorted({"tokens", "tail_tokens", "prompts", "checked"} - {*section["prefix"]}):
        yield f"{where}.prefix has no {key}"
        return
    if section["prefix"]["checked"] > section["prefix"]["prompts"]:
        yield f"{where}.prefix: checked exceeds prompts"
    for case, layout in enumerate(section["compositions"]):
        if any(start % ALIGNMENT for start, _ in layout):
            yield f"{where}.compositions: a start of layout {case} is not a multiple of {ALIGNMENT}"
        ends = itertools.accumulate((start + n for start, n in layout), max)
        starts = [start for start, _ in layout[1:]]
        if any(start < end for start, end in zip(starts, ends, strict=False)):
            yield f"{where}.compositions: blocks of layout {case} overlap or do not ascend"
        if any(n < 1 for _, n in layout):
            yield f"{where}.compositions: a block of layout {case} is empty"


def check(setting: Setting, rows: Rows) -> Iterator[Problem]:
    """Records that contradict themselves or the configuration's section `position`."""
    section, force = setting.section, setting.force
    for file in RECORDS:
        for number, row in enumerate(rows[file], start=1):
            if row["model"] != setting.subject:
                yield Problem(file, f"line {number}: model is not the stage's subject")
            if row["profile"] != force.digest:
                yield Problem(file, f"line {number}: its profile is not the configured one")
    decoded = {row["decoded_tokens"] for file in (CHAINS, COMPOSITIONS) for row in rows[file]}
    if len(decoded) > 1:
        yield Problem(CHAINS, "chains and compositions were not asked the same question")
    for file, problems in (
        (CHAINS, _chains(rows[CHAINS], section, force)),
        (PREFIXES, _prefixes(rows[PREFIXES], section)),
        (COMPOSITIONS, _compositions(rows[COMPOSITIONS], section)),
        (ANSWERS, _answers(rows[ANSWERS], section, f"{setting.seed}/joined")),
    ):
        yield from (Problem(file, text) for text in problems)


def _chains(rows: Sequence[Row], section: Row, force: InForce) -> Iterator[str]:
    planned = [(case, False, lengths) for case, lengths in enumerate(section["chains"])]
    planned.insert(1, (0, True, section["chains"][0]))
    if [(row["case"], row["control"], row["lengths"]) for row in rows] != planned:
        yield "the chains are not those that the configuration plans"
    for number, row in enumerate(rows, start=1):
        where = f"line {number}"
        n_tokens = sum(row["lengths"])
        if row["past_window"] != (0 < force.window < n_tokens):
            yield f"{where}: past_window is not what its profile's window implies"
        if {len(row["block_ids"]), len(row["block_bytes"])} != {len(row["lengths"])}:
            yield f"{where}: it has not one block a piece"
        if row["restored_bytes"] != sum(row["block_bytes"]):
            yield f"{where}: the restored bytes are not those of its blocks"
        if row["exact"] is not True:
            yield f"{where}: it is not marked exact"
        yield from (f"{where}: {text}" for text in _compared(row))


def _prefixes(rows: Sequence[Row], section: Row) -> Iterator[str]:
    chosen = section["prefix"]
    if [row["prompt"] for row in rows] != list(range(chosen["prompts"])):
        yield "the prompts are not those that the configuration plans"
    if len({(row["parent_id"], row["parent_bytes"]) for row in rows}) > 1:
        yield "the prompts have not one parent"
    if len({row["child_id"] for row in rows}) != len(rows):
        yield "two prompts have one block"
    digests = [row["logits_sha256"] for row in rows if row["logits_sha256"] is not None]
    if len(set(digests)) != len(digests):
        yield "two prompts have the same logits"
    for number, row in enumerate(rows, start=1):
        if not row["child_bytes"] < row["parent_bytes"] <= row["whole_bytes"] + row["child_bytes"]:
            yield f"line {number}: the sizes of parent, child and whole do not go together"
        planned = (chosen["tokens"], chosen["tail_tokens"])
        if (row["prefix_tokens"], row["tail_tokens"]) != planned:
            yield f"line {number}: lengths are not those that the configuration plans"
        checked = row["prompt"] < chosen["checked"]
        if {row["logits_sha256"] is None, row["reference_sha256"] is None} != {not checked}:
            yield f"line {number}: digests are kept of the wrong prompts"


def _compositions(rows: Sequence[Row], section: Row) -> Iterator[str]:
    planned = [(case, "", layout) for case, layout in enumerate(section["compositions"])]
    first, last = planned[0], planned[-1]
    moved = [[start + (UNALIGNED if start else 0), n] for start, n in first[2]]
    planned.insert(1, (0, "unaligned", moved))
    if len(last[2]) > 2:
        planned.append((last[0], "reordered", last[2]))
    if [(row["case"], row["control"], row["layout"]) for row in rows] != planned:
        yield "the compositions are not those that the configuration plans"
    for number, row in enumerate(rows, start=1):
        if len(row["block_ids"]) != len(row["layout"]):
            yield f"line {number}: it has not one block a part"
        if row["exact"] != (row["control"] == ""):
            yield f"line {number}: exact is not what its layout implies"
        if row["control"] == "" and any(start % ALIGNMENT for start, _ in row["layout"]):
            yield f"line {number}: a start is not aligned"
        yield from (f"line {number}: {text}" for text in _compared(row))


def _compared(row: Row) -> Iterator[str]:
    if row["process"] < 1:
        yield "it was not restored in a process of its own"
    if row["logits_sha256"] == row["reference_sha256"]:
        if row["kl"] != 0.0:
            yield "equal logits with a KL other than 0"
        if row["argmax"][0] != row["argmax"][1]:
            yield "equal logits with different argmax"
    elif row["kl"] == 0.0:
        yield "other logits with a KL of 0"
    if row["restored_bytes"] < 1:
        yield "it restored nothing"


def _answers(rows: Sequence[Row], section: Row, seed: str) -> Iterator[str]:
    planned = [
        (question, needs, arm)
        for question in range(section["answers"])
        for needs in (1, 2)
        for arm in ARMS
    ]
    if [(row["question"], row["needs"], row["arm"]) for row in rows] != planned:
        yield "the questions are not those that the configuration plans"
    by_question: dict[tuple[int, int], Any] = {}
    for number, row in enumerate(rows, start=1):
        lengths = {len(row["answer"]), len(row["argmax"]), len(row["log_likelihood"])}
        if len(lengths) != 1:
            yield f"line {number}: a list has another length than the answer"
        if row["codes"] != draw(seed, row["question"]).right(row["needs"]):
            yield f"line {number}: its codes are not those that the seed draws"
        if by_question.setdefault((row["question"], row["needs"]), row["answer"]) != row["answer"]:
            yield f"line {number}: its answer is not that of the other arm"


# -- summary ----------------------------------------------------------------------------------


def differs(row: Row) -> bool:
    """Whether logits, or the state where it is recorded, have other bytes than the reference's."""
    return bool(
        row["logits_sha256"] != row["reference_sha256"]
        or row.get("state_sha256") != row.get("reference_state_sha256")
    )


def summarise(rows: Rows) -> dict[str, Any]:
    """The row's field of the stage's summary."""
    return {"joined": _joined(rows)}


def _joined(rows: Rows) -> dict[str, Any]:
    prefixes = rows[PREFIXES]
    parents = {row["parent_id"]: row["parent_bytes"] for row in prefixes}
    chained = sum(parents.values()) + sum(row["child_bytes"] for row in prefixes)
    whole = sum(row["whole_bytes"] for row in prefixes)
    checked = [row for row in prefixes if row["logits_sha256"] is not None]
    return {
        "chains": _equality(rows[CHAINS]),
        "compositions": _equality(rows[COMPOSITIONS]),
        "prefix": {
            "prompts": len(prefixes),
            "checked": len(checked),
            "equal": sum(not differs(row) for row in checked),
            "bytes_chained": chained,
            "bytes_whole": whole,
            "saved": stats.rounded(1.0 - chained / whole) if whole else 0.0,
        },
        "answers": {
            f"{arm}, {needs} block{'s' if needs > 1 else ''}": _quality(
                [r for r in rows[ANSWERS] if r["arm"] == arm and r["needs"] == needs]
            )
            for needs in (1, 2)
            for arm in ARMS
        },
    }


def _equality(rows: Sequence[Row]) -> dict[str, Any]:
    cases = [row for row in rows if not row["control"]]
    controls = [row for row in rows if row["control"]]
    return {
        "n": len(cases),
        "equal": sum(not differs(row) for row in cases),
        "controls": len(controls),
        "controls_different": sum(differs(row) for row in controls),
        "control_kl_max": stats.rounded(max(row["kl"] for row in controls)) if controls else None,
    }


def _quality(rows: Sequence[Row]) -> dict[str, Any]:
    right = sum(row["answer"] == row["argmax"] for row in rows)
    interval = stats.wilson(right, len(rows)) if rows else None
    values = [value for row in rows for value in row["log_likelihood"]]
    return {
        "n": len(rows),
        "right": right,
        "right_wilson95": (
            [stats.rounded(interval.low), stats.rounded(interval.high)] if interval else None
        ),
        "nats_per_token": stats.rounded(-sum(values) / len(values)) if values else None,
    }


@rule(
    "P5",
    stage="position",
    title="exact chains and composition",
    criterion="every chain equals one prefill in logits and state, every composition a fresh run "
    "of its layout, all restored in new processes; the checked prompts of a shared prefix equal "
    "theirs, and keeping it once saves bytes; a changed token, and at least one layout that the "
    "library refuses, differ",
    paper="- (beyond; the paper withdrew composition)",
    files=(CHAINS, PREFIXES, COMPOSITIONS, ANSWERS),
)
def _p5(evidence: Evidence) -> tuple[str, Outcome]:
    made = _joined(evidence.records)
    chains, compositions, prefix = made["chains"], made["compositions"], made["prefix"]
    answers = ", ".join(
        f"{name} {found['right']}/{found['n']}" for name, found in made["answers"].items()
    )
    seen = chains["controls_different"] + compositions["controls_different"]
    controls = chains["controls"] + compositions["controls"]
    measured = (
        f"{chains['equal']}/{chains['n']} chains, {compositions['equal']}/{compositions['n']} "
        f"compositions equal, {seen}/{controls} controls differ; {prefix['equal']}/"
        f"{prefix['checked']} prompts, {prefix['saved']:.0%} of {prefix['bytes_whole']:,} bytes "
        f"saved; right answers: {answers}"
    )
    equal = (
        chains["equal"] == chains["n"] > 0
        and compositions["equal"] == compositions["n"] > 0
        and prefix["equal"] == prefix["checked"] > 0
    )
    elsewhere = all(
        row["process"] > 0 for f in (CHAINS, COMPOSITIONS) for row in evidence.records[f]
    )
    sees = chains["controls_different"] == chains["controls"] > 0
    sees = sees and compositions["controls_different"] > 0
    return measured, holds(equal and elsewhere and sees and prefix["saved"] > 0)


PART = Part(RECORDS, check, summarise)
