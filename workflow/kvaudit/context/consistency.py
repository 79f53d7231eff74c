"""Whether the records of a context stage agree with each other and with the inputs.

The texts of the blocks are among the records, so that needles, rankings and controls are looked at
again word by word. This module must not know which results would be good ones, nor the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvaudit import digests, profiles
from kvaudit.context import ranking
from kvaudit.context.plan import RANKED
from kvaudit.context.records import (
    ACCESSES,
    ANSWERS,
    BLOCKS,
    GROWTH,
    HEADERS,
    KINDS,
    MEMORY,
    NEEDLES,
    PROFILES,
    RUN,
)
from kvaudit.stagekind import Problem, Rows

DERIVED = ("n_ctx", "n_batch", "n_threads")
"""Settings that the stage may change."""

Row = Mapping[str, Any]


def check_records(subject: str, rows: Rows, inputs: Mapping[str, Any]) -> list[Problem]:
    """Everything in the records that contradicts other records or the inputs manifest.

    Args:
        subject: the model's name.
        rows: all records of the stage.
        inputs: the inputs manifest.
    """
    found: list[Problem] = []

    def report(file: str, messages: Iterator[str]) -> None:
        found.extend(Problem(file, message) for message in messages)

    for file, kind in KINDS.items():
        if kind in ("profile", "block-header"):
            continue
        for number, row in enumerate(rows[file], start=1):
            if row["model"] != subject:
                found.append(Problem(file, f"line {number}: model is not {subject}"))
    report(PROFILES, profiles.derived_problems(rows[PROFILES], inputs, subject, DERIVED))
    report(PROFILES, _profile(rows))
    for file in (BLOCKS, ANSWERS, ACCESSES, MEMORY, GROWTH, RUN):
        report(file, _same_profile(rows[file], rows[PROFILES]))
    report(HEADERS, _headers(subject, rows, inputs))
    report(BLOCKS, _blocks(rows))
    report(ANSWERS, _answers(rows))
    report(ACCESSES, _accesses(rows))
    report(MEMORY, _memory(rows))
    report(GROWTH, _growth(rows[GROWTH]))
    report(RUN, _run(rows))
    return found


def _profile(rows: Rows) -> Iterator[str]:
    if len(rows[PROFILES]) != 1:
        yield "the stage runs under exactly one derived profile"


def _same_profile(found: Sequence[Row], listed: Sequence[Row]) -> Iterator[str]:
    known = {row["digest"] for row in listed}
    for number, row in enumerate(found, start=1):
        if row["profile"] not in known:
            yield f"line {number}: its profile is not in {PROFILES}"


# -- blocks -----------------------------------------------------------------------------------


def _headers(subject: str, rows: Rows, inputs: Mapping[str, Any]) -> Iterator[str]:
    model: Row = next((m for m in inputs["models"] if m["name"] == subject), {})
    blocks = rows[BLOCKS]
    if [row["id"] for row in rows[HEADERS]] != [row["block_id"] for row in blocks]:
        yield "are not those of the blocks, in their order"
        return
    for number, (row, block) in enumerate(zip(rows[HEADERS], blocks, strict=True)):
        header, where = row["header"], f"block {number}"
        state, provenance = header["state"], header["provenance"]
        if digests.sha256_json(header) != row["id"]:
            yield f"{where}: id is not the digest of the header"
        if any(header["model"][key] != model.get(key) for key in ("name", "sha256")):
            yield f"{where}: its model is not the registered one"
        if (header["start"], header["parent"]) != (0, None):
            yield f"{where}: does not stand at its own position, without a parent"
        if len(state["chunks"]) != -(-state["bytes"] // state["chunk_bytes"]):
            yield f"{where}: the number of chunks does not fit the state's length"
        if digests.sha256_json(provenance.get("profile")) != header["profile"]:
            yield f"{where}: the profile in its provenance is not that of its digest"
        if provenance.get("exact") is not True:
            yield f"{where}: its provenance does not say that it is exact"
        for field, in_header in (
            ("profile", header["profile"]),
            ("tokens", header["tokens"]["n"]),
            ("tokens_sha256", header["tokens"]["sha256"]),
            ("state_bytes", state["bytes"]),
        ):
            if block[field] != in_header:
                yield f"{where}: {field} is not that of its record"


def _blocks(rows: Rows) -> Iterator[str]:
    blocks, needles = rows[BLOCKS], rows[NEEDLES]
    for number, block in enumerate(blocks):
        where = f"block {number}"
        if block["block"] != number:
            yield f"{where}: block {block['block']} stands in its place"
        if block["file_bytes"] < block["state_bytes"]:
            yield f"{where}: its file is shorter than the state in it"
        found = set(ranking.words(block["text"]))
        for needle in needles:
            what = f"{where}, needle {needle['number']}"
            if needle["block"] != number:
                if needle["name"] in found or needle["code"] in found:
                    yield f"{what}: its name or its code is in another block's text"
            elif block["text"].count(needle["sentence"]) != 1:
                yield f"{what}: its sentence is not in the text, once"
            elif block["text"].count(needle["code"]) != 1:
                yield f"{what}: its code is in the text more than once"
            else:
                yield from (f"{what}: {text}" for text in _place(block["text"], needle))
    if len({block["tokens_sha256"] for block in blocks}) != len(blocks):
        yield "two blocks have the same tokens"


def _place(text: str, needle: Row) -> Iterator[str]:
    """A sentence waits for the end of another, so that its place is met roughly."""
    if needle["place"] is None:
        yield "its sentence stands in the text, but has no place there"
        return
    off = text.index(needle["sentence"]) - needle["place"] * len(text)
    if not -0.2 * len(text) <= off <= max(400, 0.2 * len(text)):
        yield "its sentence stands elsewhere than planned"


# -- answers ----------------------------------------------------------------------------------


def _answers(rows: Rows) -> Iterator[str]:
    blocks = rows[BLOCKS]
    texts = [block["text"] for block in blocks]
    needles = {needle["number"]: needle for needle in rows[NEEDLES]}
    first: dict[tuple[str, str], tuple[Any, ...]] = {}
    for number, row in enumerate(rows[ANSWERS], start=1):
        where = f"line {number}"
        needle = needles.get(row["needle"])
        if needle is None or row["block"] >= len(blocks):
            yield f"{where}: no such needle or block is recorded"
            continue
        block = blocks[row["block"]]
        expected = ranking.rank(texts, needle["question"], RANKED)
        if row["ranking"] != expected:
            yield f"{where}: the ranking is not that of the texts"
        if row["arm"] != "wrong" and row["block"] != (expected[0][0] if expected else 0):
            yield f"{where}: was not answered from the block that ranks first"
        if row["arm"] == "wrong" and row["block"] != needle["wrong_block"]:
            yield f"{where}: was not answered from the needle's wrong block"
        yield from (f"{where}: {text}" for text in _restored(row, block))
        key = (row["block_id"], row["query_sha256"])
        said = (row["logits_sha256"], row["tokens"], row["text"], row["query_tokens"])
        if first.setdefault(key, said) != said:
            yield f"{where}: the same question behind the same block was answered otherwise"


def _restored(row: Row, block: Row) -> Iterator[str]:
    if row["block_id"] != block["block_id"]:
        yield "block_id is not that of its block"
    if row["restored_bytes"] != block["state_bytes"]:
        yield "restored_bytes is not its block's state"
    if row.get("restored_tokens", block["tokens"]) != block["tokens"]:
        yield "restored_tokens is not its block's"


def _accesses(rows: Rows) -> Iterator[str]:
    blocks = rows[BLOCKS]
    seen: dict[int, str] = {}
    for number, row in enumerate(rows[ACCESSES], start=1):
        if row["block"] >= len(blocks):
            yield f"line {number}: no such block is recorded"
            continue
        problems = _restored(row, blocks[row["block"]])
        yield from (f"line {number}: {text}" for text in problems)
        if seen.setdefault(row["block"], row["logits_sha256"]) != row["logits_sha256"]:
            yield f"line {number}: block {row['block']} gave other logits before"
    if len(set(seen.values())) != len(seen):
        yield "two blocks gave the same logits"


def _memory(rows: Rows) -> Iterator[str]:
    blocks = {block["block_id"]: block for block in rows[BLOCKS]}
    needles = {needle["number"]: needle for needle in rows[NEEDLES]}
    routed = {row["needle"]: row for row in rows[ANSWERS] if row["arm"] == "routed"}
    if len({row["process"] for row in rows[MEMORY]}) != len(rows[MEMORY]):
        yield "two arms ran in one process"
    if len({row["meter"] for row in rows[MEMORY]}) > 1:
        yield "the arms were not measured with one meter"
    for row in rows[MEMORY]:
        for answer in row["answers"]:
            where = f"{row['arm']}, needle {answer['needle']}"
            before, needle = routed.get(answer["needle"]), needles.get(answer["needle"])
            if before is None or needle is None or before["block"] >= len(rows[BLOCKS]):
                yield f"{where}: no such question is recorded"
                continue
            read = answer["query_tokens"] + len(answer["tokens"])
            wanted: tuple[Any, ...] = (before["block_id"], before["restored_bytes"], read)
            if row["arm"] == "direct":
                home = rows[BLOCKS][needle["block"]] if needle["block"] is not None else None
                wanted = (None, 0, read + (home["tokens"] if home else 0))
            elif answer["block_id"] not in blocks:
                yield f"{where}: its block is not recorded"
            if (
                answer["block_id"],
                answer["restored_bytes"],
                answer["decoded_tokens"],
            ) != wanted:
                yield f"{where}: restored or decoded something else than its arm does"
            if answer["query_sha256"] != before["query_sha256"]:
                yield f"{where}: another question than the one answered before"
            same = answer["logits_sha256"] == before["logits_sha256"]
            said = answer["tokens"] == before["tokens"] and answer["text"] == before["text"]
            if row["arm"] == "store" and same and not said:
                yield f"{where}: equal logits with another answer"


# -- growth and sizes -------------------------------------------------------------------------


def _growth(rows: Sequence[Row]) -> Iterator[str]:
    disk = held = postings = 0
    for number, row in enumerate(rows, start=1):
        if row["blocks"] != number:
            yield f"line {number}: has {row['blocks']} blocks"
        if row["disk_bytes"] <= disk or row["postings"] <= postings or row["index_bytes"] < held:
            yield f"line {number}: store or index did not grow"
        disk, held, postings = row["disk_bytes"], row["index_bytes"], row["postings"]
    if len({row["block_id"] for row in rows}) != len(rows):
        yield "a block was deposited twice"


def _run(rows: Rows) -> Iterator[str]:
    blocks = rows[BLOCKS]
    if len(rows[RUN]) != 1:
        yield "holds one line a run"
        return
    run = rows[RUN][0]
    for field, found in (
        ("blocks", len(blocks)),
        ("tokens", sum(block["tokens"] for block in blocks)),
        ("resumed", sum(block["resumed"] for block in blocks)),
        ("disk_bytes", sum(block["file_bytes"] for block in blocks)),
    ):
        if run[field] != found:
            yield f"{field} is {run[field]}, by the blocks {found}"
    if (run["fsck"]["ok"], run["fsck"]["damaged"]) != (len(blocks), 0):
        yield "the store did not hold exactly the blocks, all sound"
    for row in rows[PROFILES]:
        if profiles.n_ctx(row["profile"], "context") != run["n_ctx"]:
            yield "n_ctx is not that of the profile"
    if (run["estimate"] is None) != (run["resumed"] == run["blocks"]):
        yield "there is an estimate if and only if a block was computed"
