"""Whether the records of an exactness stage agree with each other, the inputs and the raw logits.

A forger who edits a score and recomputes every digest above it still has to keep all of these
agreements. This module must not know which results would be good ones, and it never reads files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvaudit import digests, profiles, scores, stats
from kvaudit.exactness.records import Arm, BlockRecord, Determinism, Records, Sample, Split
from kvaudit.stagekind import Problem, RawReader

SAMPLES = "records/samples.jsonl"
DETERMINISM = "records/determinism.jsonl"
SPLITS = "records/splits.jsonl"
BLOCKS = "records/blocks.jsonl"


def check_records(subject: str, records: Records, inputs: Mapping[str, Any]) -> list[Problem]:
    """Everything in the records that contradicts other records or the inputs manifest.

    Args:
        subject: the model's name.
        records: all records of the stage.
        inputs: the inputs manifest.
    """
    models = {model["name"]: model["sha256"] for model in inputs["models"]}
    registered = profiles.digests_of(inputs["profiles"].get(subject, {}))
    blocks = {block.id: block for block in records.blocks}
    found: list[Problem] = []

    def report(file: str, where: str, messages: Iterator[str]) -> None:
        found.extend(Problem(file, f"{where}: {message}") for message in messages)

    for index, sample in enumerate(records.samples):
        where = f"sample {sample.sample}"
        if sample.sample != index:
            found.append(Problem(SAMPLES, f"{where}: stands where sample {index} belongs"))
        report(SAMPLES, where, _common(sample, subject, registered))
        report(SAMPLES, where, _sample(sample))
        report(SAMPLES, where, _sample_block(sample, blocks.get(sample.block_id)))
    report(SAMPLES, "samples", _distinct(records.samples))
    for number, case in enumerate(records.determinism, start=1):
        where = f"line {number}"
        report(DETERMINISM, where, _common(case, subject, registered))
        report(DETERMINISM, where, _determinism(case))
    for number, split in enumerate(records.splits, start=1):
        where = f"line {number}"
        report(SPLITS, where, _common(split, subject, registered))
        report(SPLITS, where, _split(split))
    used = {sample.block_id for sample in records.samples}
    used |= {str(block.header["parent"]) for block in records.blocks}
    for number, block in enumerate(records.blocks, start=1):
        report(BLOCKS, f"line {number}", _block(block, models.get(subject)))
        if block.id not in used:
            found.append(Problem(BLOCKS, f"line {number}: no sample uses this block"))
    if len(blocks) != len(records.blocks):
        found.append(Problem(BLOCKS, "a block is listed twice"))
    return found


def raw_digests(records: Records) -> dict[str, str]:
    """{SHA-256 of raw logits: the record file that names it first}."""
    names: dict[str, str] = {}
    for sample in records.samples:
        for digest in (sample.raw or {}).values():
            if digest is not None:
                names.setdefault(digest, SAMPLES)
    for split in records.splits:
        for digest in (split.raw or {}).values():
            names.setdefault(digest, SPLITS)
    return names


def check_raw(records: Records, read: RawReader) -> list[Problem]:
    """Recomputes argmax, KL and margin from raw logits and compares them with the records."""
    found: list[Problem] = []
    for sample in records.samples:
        if sample.raw is None:
            continue
        where = f"sample {sample.sample}"
        fresh = read(str(sample.raw["fresh"]))
        if fresh is None:
            continue
        for name in ("fresh", "graft", "token_by_token"):
            digest = sample.raw[name]
            if digest is None or name not in sample.arms:
                continue
            logits = read(digest)
            if logits is None:
                continue
            arm = sample.arms[name]
            differences = scores.problems(fresh, logits, arm.kl_from_fresh[-1], arm.argmax[-1])
            found.extend(Problem(SAMPLES, f"{where}, {name}: {m}") for m in differences)
        margin = stats.top5_margin(fresh)
        if not math.isclose(
            margin, sample.top5_margin[-1], rel_tol=scores.MARGIN_RELATIVE, abs_tol=1e-6
        ):
            found.append(Problem(SAMPLES, f"{where}: top5_margin is not that of the raw logits"))
    for number, split in enumerate(records.splits, start=1):
        if split.raw is None:
            continue
        logits, reference = read(split.raw["logits"]), read(split.raw["reference"])
        if logits is None or reference is None:
            continue
        messages = list(scores.problems(reference, logits, split.kl, split.argmax[0]))
        if stats.argmax(reference) != split.argmax[1]:
            messages.append("the reference's argmax is not that of the raw logits")
        found.extend(Problem(SPLITS, f"line {number}: {m}") for m in messages)
    return found


def _common(
    record: Sample | Determinism | Split, subject: str, profiles: frozenset[str]
) -> Iterator[str]:
    if record.model != subject:
        yield f"model is {record.model}, the stage's subject {subject}"
    if record.profile not in profiles:
        yield "its profile is not registered in inputs.manifest.json"


def _sample(sample: Sample) -> Iterator[str]:
    positions = sample.positions
    first, end = sample.span_tokens, sample.span_tokens + sample.query_tokens
    if any(a >= b for a, b in itertools.pairwise(positions)):
        yield "positions do not ascend"
    if len(positions) != sample.query_tokens or positions != tuple(range(first, end)):
        yield f"positions are not among the query's, all of them up to its last, {end - 1}"
    if len(sample.top5_margin) != len(positions):
        yield "top5_margin has another length than positions"
    fresh = sample.arms["fresh"]
    for name, arm in sample.arms.items():
        lengths = {len(arm.logits_sha256), len(arm.argmax), len(arm.kl_from_fresh)}
        if lengths != {len(positions)}:
            yield f"{name}: a list has another length than positions"
            continue
        if len(fresh.logits_sha256) == len(positions) == len(fresh.argmax):
            yield from (f"{name}: {message}" for message in _against_fresh(arm, fresh))
    if any(fresh.kl_from_fresh):
        yield "fresh: its KL from itself is not 0"
    for name, digest in (sample.raw or {}).items():
        if digest is None:
            continue
        if name not in sample.arms:
            yield f"raw logits are named for the absent arm {name}"
        elif sample.arms[name].logits_sha256[-1] != digest:
            yield f"{name}: the raw logits are not those of the last position"


def _against_fresh(arm: Arm, fresh: Arm) -> Iterator[str]:
    for index, digest in enumerate(arm.logits_sha256):
        if digest != fresh.logits_sha256[index]:
            continue
        if arm.kl_from_fresh[index] != 0.0:
            yield f"equal logits with a KL other than 0, entry {index}"
        if arm.argmax[index] != fresh.argmax[index]:
            yield f"equal logits with different argmax, entry {index}"


def _sample_block(sample: Sample, block: BlockRecord | None) -> Iterator[str]:
    if block is None:
        yield "its block is not in records/blocks.jsonl"
        return
    header = block.header
    state = header["state"]
    expected = {
        "profile": (header["profile"], sample.profile),
        "span_tokens": (header["start"] + header["tokens"]["n"], sample.span_tokens),
        "state_bytes": (state["bytes"], sample.state_bytes),
    }
    if header["parent"] is None:
        expected["span_sha256"] = (header["tokens"]["sha256"], sample.span_sha256)
    if len(state["chunks"]) == 1:
        expected["state_sha256"] = (state["chunks"][0], sample.state_sha256)
    # An inexact graft restores a block of another profile; every record of it says so.
    if not sample.exact:
        del expected["profile"]
    for field, (in_block, in_sample) in expected.items():
        if in_block != in_sample:
            yield f"{field} is not that of its block's header"
    if sample.file_bytes < sample.state_bytes:
        yield "its block file is shorter than the state in it"


def _distinct(samples: Sequence[Sample]) -> Iterator[str]:
    if len({sample.seed for sample in samples}) != len(samples):
        yield "two samples have one seed"
    if len({(sample.span_sha256, sample.query_sha256) for sample in samples}) != len(samples):
        yield "two samples have the same span and query"


def _determinism(case: Determinism) -> Iterator[str]:
    first, second = case.first, case.second
    equal = (first.logits_sha256, first.state_sha256) == (second.logits_sha256, second.state_sha256)
    if equal != case.equal:
        yield f"`equal` is {str(case.equal).lower()}, its digests say otherwise"
    if (case.case == "new_process") != (first.process != second.process):
        yield f"case {case.case} with processes {first.process} and {second.process}"


def _split(split: Split) -> Iterator[str]:
    total = sum(size * count for size, count in split.split)
    if total != split.tokens:
        yield f"the batch sizes sum to {total}, tokens is {split.tokens}"
    if split.logits_sha256 == split.reference_sha256:
        if split.kl != 0.0:
            yield "equal logits with a KL other than 0"
        if split.argmax[0] != split.argmax[1]:
            yield "equal logits with different argmax"
    if split.raw is not None and (
        split.raw["logits"] != split.logits_sha256
        or split.raw["reference"] != split.reference_sha256
    ):
        yield "the raw logits are not those of the record"


def _block(block: BlockRecord, model_sha256: str | None) -> Iterator[str]:
    header = block.header
    state = header["state"]
    if digests.sha256_json(header) != block.id:
        yield "id is not the digest of the header"
    if header["model"]["sha256"] != model_sha256:
        yield "its model is not the registered one"
    n_chunks = -(-state["bytes"] // state["chunk_bytes"])
    if {len(state["chunks"]), len(state["blake3"])} != {n_chunks}:
        yield "the number of chunks does not fit the state's length"
    if (header["parent"] is None) != (header["start"] == 0):
        yield "a block starts at position 0 if and only if it has no parent"
