"""Which records a stage must hold: what its configuration planned and its profile implies.

Everything is drawn again from the configuration's seed (`plan`), so that no record can be left out,
put in twice or relabelled. This module must not know which results would be good ones, and it never
reads files.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit import digests, profiles
from kvaudit.exactness.consistency import BLOCKS, DETERMINISM, SAMPLES, SPLITS
from kvaudit.exactness.plan import planned_splits, raw_samples, runs, span_length
from kvaudit.exactness.records import CASES, BlockRecord, Records, Sample, Split
from kvaudit.profiles import InForce
from kvaudit.stagekind import Problem

MAX_PLANNED_TOKENS = 2**26
"""Tokens of all planned splits together; a plan beyond it is not drawn again."""

_SECTION = {
    *("samples", "raw_samples", "min_tokens", "max_tokens", "determinism_lengths"),
    *("split_lengths", "random_splits", "single_tokens"),
}
_RESTORED = ("graft", "token_by_token")
_ELSEWHERE = ("fresh_process", *_RESTORED)
_INVARIANT_ARMS = ("one_shot", "token_by_token")


def section_problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a configuration's section `exactness`, its schema apart."""
    for key in sorted(_SECTION - {*section}):
        yield f"configuration.value.exactness has no {key}"
    planned = sum(section.get("split_lengths", [])) * (section.get("random_splits", 0) + 5)
    if planned > MAX_PLANNED_TOKENS:
        yield f"configuration.value.exactness plans splits of {planned} tokens, too many to check"
    if section.get("min_tokens", 0) > section.get("max_tokens", 0):
        yield "configuration.value.exactness: min_tokens exceeds max_tokens"
    if section.get("max_tokens", 0) > MAX_PLANNED_TOKENS:
        yield "configuration.value.exactness: max_tokens is too many"


def check(subject: str, records: Records, inputs: Mapping[str, Any]) -> list[Problem]:
    """Everything that a stage of this configuration and profile must hold and does not.

    Where the profile is unusable itself, nothing is found here: `chain` has reported it.
    """
    force = profiles.in_force(inputs, subject)
    value = inputs["configuration"]["value"]
    if force is None:
        return []
    section, seed = value["exactness"], f"{value['seed']}/{subject}"
    model: Mapping[str, Any] = next(
        (model for model in inputs["models"] if model["name"] == subject), {}
    )
    found = [Problem(DETERMINISM, text) for text in _determinism(records, section, force)]
    found += [Problem(SAMPLES, text) for text in _samples(records, section, seed, force)]
    found += [Problem(SPLITS, text) for text in _splits(records, section, seed, force)]
    inexact = {sample.block_id for sample in records.samples if not sample.exact}
    for number, block in enumerate(records.blocks, start=1):
        for text in _block(block, model, force, block.id in inexact):
            found.append(Problem(BLOCKS, f"line {number}: {text}"))
    return found


# -- what is there ----------------------------------------------------------------------------


def _determinism(records: Records, section: Mapping[str, Any], force: InForce) -> Iterator[str]:
    planned = Counter(itertools.product(CASES, section["determinism_lengths"]))
    found = Counter((row.case, row.tokens) for row in records.determinism)
    for case, tokens in sorted((planned - found).keys()):
        yield f"the planned case {case} of {tokens} tokens is absent"
    for case, tokens in sorted((found - planned).keys()):
        yield f"the case {case} of {tokens} tokens is one too many"
    if any(row.profile != force.digest for row in records.determinism):
        yield "a case was not run under the configured profile"


def _samples(
    records: Records, section: Mapping[str, Any], seed: str, force: InForce
) -> Iterator[str]:
    if len(records.samples) != section["samples"]:
        yield f"{len(records.samples)} samples recorded, {section['samples']} planned"
    if {s.sample for s in records.samples if s.raw is not None} != raw_samples(section):
        yield "raw logits are not kept of the planned samples"
    for sample in records.samples:
        where = f"sample {sample.sample}"
        yield from (f"{where}: {text}" for text in _sample(sample, force))
        if sample.sample >= section["samples"]:
            yield f"{where}: is not planned"
            continue
        if sample.seed != f"{seed}/sample/{sample.sample}":
            yield f"{where}: its seed is not the configured one"
        # One token of room for other machines' powers.
        if abs(sample.span_tokens - span_length(sample.sample, section, seed)) > 1:
            yield f"{where}: its span has another length than planned"


def _sample(sample: Sample, force: InForce) -> Iterator[str]:
    if sample.profile != force.digest:
        yield "its profile is not the configured one"
    if sample.split_invariant != force.split_invariant:
        yield "split_invariant is not what its profile implies"
    if sample.past_window != (0 < force.window < sample.span_tokens):
        yield "past_window is not what its profile's window implies"
    for name in _INVARIANT_ARMS:
        if (name in sample.arms) != force.split_invariant:
            yield f"the arm {name} is {'absent' if force.split_invariant else 'not planned'}"
    fresh = sample.arms["fresh"]
    if fresh.process != 0:
        yield "fresh was not computed by the stage's own process"
    whole = sample.span_tokens + sample.query_tokens
    for name, arm in sample.arms.items():
        restored, decoded = (0, whole)
        if name in _RESTORED:
            restored, decoded = sample.state_bytes, sample.query_tokens
        if arm.restored_bytes != restored:
            yield f"{name}: restored {arm.restored_bytes} bytes, it must be {restored}"
        if arm.decoded_tokens != decoded:
            yield f"{name}: decoded {arm.decoded_tokens} tokens, it must be {decoded}"
        if (arm.process != fresh.process) != (name in _ELSEWHERE):
            yield f"{name}: was computed in the wrong process"
        if arm.state_sha256 is None:
            yield f"{name}: its end state is not recorded"


def _splits(
    records: Records, section: Mapping[str, Any], seed: str, force: InForce
) -> Iterator[str]:
    texts: dict[int, list[Split]] = {index: [] for index in range(len(section["split_lengths"]))}
    for number, split in enumerate(records.splits, start=1):
        own = force.window if split.profile in (force.digest, force.stock_digest) else 0
        if split.past_window != (0 < own < split.tokens):
            yield f"line {number}: past_window is not what its profile's window implies"
        if split.sample not in texts:
            yield f"line {number}: text {split.sample} is not planned"
        elif split.tokens != section["split_lengths"][split.sample]:
            yield f"line {number}: text {split.sample} has another length than planned"
        else:
            texts[split.sample].append(split)
    for index, rows in texts.items():
        n_tokens = section["split_lengths"][index]
        planned = planned_splits(n_tokens, index, section, seed) if force.split_invariant else []
        wanted = Counter((False, force.digest, force.name, *entry) for entry in planned)
        wanted[True, force.digest, force.name, ((n_tokens, 1),), False] += 1
        if index == 0 and force.stock_digest:
            tail = min(section["single_tokens"], n_tokens - 1)
            ended = runs([(n_tokens - tail, 1), (1, tail)])
            wanted[True, force.stock_digest, profiles.STOCK, ended, False] += 1
        found = Counter(
            (row.control, row.profile, row.profile_name, runs(row.split), row.grafted)
            for row in rows
        )
        for control, word in ((False, "splits"), (True, "controls")):
            absent = sum(n for key, n in (wanted - found).items() if key[0] == control)
            added = sum(n for key, n in (found - wanted).items() if key[0] == control)
            if absent or added:
                yield f"text {index}: {absent} planned {word} absent, {added} not planned"
        yield from (f"text {index}: {text}" for text in _references(rows, force))


def _references(rows: Iterable[Split], force: InForce) -> Iterator[str]:
    """Rows of one text have one reference each profile."""
    shared = set()
    for row in rows:
        stock = row.control and runs(row.split) != ((row.tokens, 1),)
        if not stock and row.profile == force.digest:
            shared.add((row.reference_sha256, row.reference_state_sha256, row.argmax[1]))
    if len(shared) > 1:
        yield "its splits are compared with different references"


def _block(
    block: BlockRecord, model: Mapping[str, Any], force: InForce, inexact: bool
) -> Iterator[str]:
    header = block.header
    provenance = header["provenance"]
    if any(header["model"][key] != model.get(key) for key in ("name", "sha256", "architecture")):
        yield "its model is not, in every field, the registered one"
    if header["profile"] != force.digest and not inexact:
        yield "its profile is not the configured one"
    if digests.sha256_json(provenance.get("profile")) != header["profile"]:
        yield "the profile in its provenance is not that of its digest"
    elif header["profile"] == force.digest and header["engine"] != force.engine:
        yield "engine is not the digest of its profile's libraries"
    if provenance.get("exact") is not True and not inexact:
        yield "its provenance does not say that it is exact"
