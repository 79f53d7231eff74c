"""Whether the records of a replay stage are those that were planned, and agree with each other.

A forger who edits a score and recomputes every digest above it still has to keep all of this. This
module must not know which results would be good ones, and it never reads files.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvaudit import digests, profiles, scores, stats
from kvaudit.position.relocation import ROOM, coarse_kl
from kvaudit.profiles import InForce
from kvaudit.replay import plan
from kvaudit.replay.derived import check_profiles
from kvaudit.replay.records import (
    BLOCKS,
    CURVES,
    PROFILES,
    SAMPLES,
    TARGETS,
    Arm,
    Records,
    Sample,
    Target,
)
from kvaudit.stagekind import Problem, RawReader

LEAST_KL = -1e-9
"""Rounding may leave a KL just below 0."""


@dataclass(frozen=True)
class Planned:
    """What a stage of one model was to run.

    Attributes:
        subject: the model's name.
        model: its entry in the inputs manifest.
        section: the configuration's `replay`.
        seed: name from which all draws derive.
        force: the configured profile.
        registered: its document.
    """

    subject: str
    model: Mapping[str, Any]
    section: Mapping[str, Any]
    seed: str
    force: InForce
    registered: Mapping[str, Any]


def planned(subject: str, inputs: Mapping[str, Any]) -> Planned | None:
    """The plan, or None where `chain` has reported that it cannot be known."""
    force = profiles.in_force(inputs, subject)
    value = inputs["configuration"]["value"]
    section = value.get("replay", {})
    if force is None or "seed" not in value or any(plan.section_problems(section)):
        return None
    model: Mapping[str, Any] = next((one for one in inputs["models"] if one["name"] == subject), {})
    registered = inputs["profiles"][subject][force.name]["profile"]
    seed = plan.stage_seed(value["seed"], subject)
    return Planned(subject, model, section, seed, force, registered)


def check(subject: str, records: Records, inputs: Mapping[str, Any]) -> list[Problem]:
    """Everything that contradicts the plan, the inputs or other records."""
    found = planned(subject, inputs)
    if found is None:
        return []
    portable = profiles.is_portable(found.registered)
    problems = [Problem(TARGETS, text) for text in plan.preset_problems(found.section, portable)]
    problems += [Problem(SAMPLES, text) for text in _samples(records, found)]
    problems += [Problem(BLOCKS, text) for text in _blocks(records, found)]
    problems += [Problem(TARGETS, text) for text in _targets(records, found)]
    problems += [
        Problem(PROFILES, text)
        for text in check_profiles(records, found.section["targets"], found.registered)
    ]
    return problems


# -- where the blocks were made ---------------------------------------------------------------


def _samples(records: Records, planned: Planned) -> Iterator[str]:
    section = planned.section
    if len(records.samples) != section["samples"]:
        yield f"{len(records.samples)} samples recorded, {section['samples']} planned"
    for index, sample in enumerate(records.samples):
        where = f"sample {sample.sample}"
        if sample.sample != index:
            yield f"{where}: stands where sample {index} belongs"
        if index < section["samples"]:
            yield from (f"{where}: {text}" for text in _sample(sample, index, planned))
    for name in ("block_id", "file_sha256"):
        if len({getattr(sample, name) for sample in records.samples}) != len(records.samples):
            yield f"two samples have one {name}"


def _sample(sample: Sample, index: int, planned: Planned) -> Iterator[str]:
    if sample.model != planned.subject:
        yield f"model is {sample.model}, the stage's subject {planned.subject}"
    if sample.profile != planned.force.digest:
        yield "its profile is not the configured one"
    if sample.seed != plan.sample_seed(index, planned.seed):
        yield "its seed is not the configured one"
    # One token of room for other machines' powers.
    if abs(sample.span_tokens - plan.span_length(index, planned.section, planned.seed)) > 1:
        yield "its span has another length than planned"
    if sample.raw != plan.keeps_raw(index, planned.subject, planned.section):
        yield "its raw logits are kept against the plan, or not kept"
    if sample.file_bytes < sample.state_bytes:
        yield "its block file is shorter than the state in it"
    if (sample.host is not None) != profiles.is_portable(planned.registered):
        yield "it names its host if and only if the profile does not"
    yield from _arm("fresh", sample.fresh, sample, planned, restored=False)
    if len(sample.top) != plan.N_TOP or len({*sample.top}) != len(sample.top):
        yield f"it lists other than {plan.N_TOP} most likely tokens, each once"
    elif sample.top[0] != sample.fresh.argmax[-1]:
        yield "the first of the most likely tokens is not the argmax"
    elif any(a < b for a, b in itertools.pairwise(sample.fresh.log_p)):
        yield "the most likely tokens are not in order"


def _arm(name: str, arm: Arm, sample: Sample, planned: Planned, *, restored: bool) -> Iterator[str]:
    if {len(arm.logits_sha256), len(arm.argmax)} != {sample.query_tokens}:
        yield f"{name}: a list has another length than the question"
    if len(arm.answer) != planned.section["answer_tokens"]:
        yield f"{name}: the continuation has another length than planned"
    if arm.answer[0] != arm.argmax[-1]:
        yield f"{name}: the continuation does not begin with the most likely token"
    tokens = sample.query_tokens if restored else sample.query_tokens + sample.span_tokens
    if arm.decoded_tokens != tokens:
        yield f"{name}: decoded {arm.decoded_tokens} tokens, it must be {tokens}"
    size = sample.state_bytes if restored else 0
    if arm.restored_bytes != size:
        yield f"{name}: restored {arm.restored_bytes} bytes, it must be {size}"
    if len(arm.log_p) != len(sample.top):
        yield f"{name}: log_p has another length than the most likely tokens"
        return
    rest = 1.0 - math.fsum(map(math.exp, arm.log_p))
    if rest < -ROOM:
        yield f"{name}: the listed tokens have more than probability 1"
    elif arm.argmax[-1] in sample.top:
        if arm.log_p[sample.top.index(arm.argmax[-1])] < max(arm.log_p):
            yield f"{name}: a listed token is likelier than the argmax"
    elif rest + ROOM < math.exp(max(arm.log_p)):
        yield f"{name}: the argmax is not listed, yet no other token can be as likely"


def _blocks(records: Records, planned: Planned) -> Iterator[str]:
    samples = {sample.block_id: sample for sample in records.samples}
    if Counter(row["id"] for row in records.blocks) != Counter(samples.keys()):
        yield "the blocks are not, each once, those of the samples"
    for number, row in enumerate(records.blocks, start=1):
        header = row["header"]
        if digests.sha256_json(header) != row["id"]:
            yield f"line {number}: id is not the digest of the header"
        elif row["id"] in samples:
            for text in _header(header, samples[row["id"]], planned):
                yield f"line {number}: {text}"


def _header(header: Mapping[str, Any], sample: Sample, planned: Planned) -> Iterator[str]:
    state, provenance = header["state"], header["provenance"]
    expected = {
        "model": {key: planned.model.get(key) for key in ("name", "sha256", "architecture")},
        "profile": planned.force.digest,
        "engine": planned.force.engine,
        "tokens": {"n": sample.span_tokens, "sha256": sample.span_sha256},
        "start": 0,
        "parent": None,
    }
    for field, value in expected.items():
        if header[field] != value:
            yield f"{field} is not that of its sample or of the inputs"
    if state["bytes"] != sample.state_bytes:
        yield "the state's length is not that of its sample"
    chunks = -(-state["bytes"] // state["chunk_bytes"])
    if {len(state["chunks"]), len(state["blake3"])} != {chunks}:
        yield "the number of chunks does not fit the state's length"
    elif chunks == 1 and state["chunks"][0] != sample.state_sha256:
        yield "its state is not that of its sample"
    if provenance.get("exact") is not True or provenance.get("source") != sample.seed:
        yield "its provenance is not that of an exact capture of its sample"
    if digests.sha256_json(provenance.get("profile")) != header["profile"]:
        yield "the profile in its provenance is not that of its digest"


# -- on the targets ---------------------------------------------------------------------------


def _targets(records: Records, planned: Planned) -> Iterator[str]:
    section = planned.section
    matrix = [(target, i) for target in section["targets"] for i in range(section["samples"])]
    found = [(row.target, row.sample) for row in records.targets]
    if found != matrix:
        absent = sum((Counter(matrix) - Counter(found)).values())
        added = sum((Counter(found) - Counter(matrix)).values())
        yield f"not the planned matrix in its order: {absent} rows absent, {added} not planned"
    if len({row.process for row in records.targets}) != len(records.targets):
        yield "two rows were read in one process"
    known = {row["digest"] for row in records.profiles}
    for target in section["targets"]:
        used = {row.profile for row in records.targets if row.target == target}
        if len(used) > 1:
            yield f"target {target}: its rows have several profiles"
        for profile in used - (known if plan.crosses(target) else {planned.force.digest}):
            yield f"target {target}: the profile {profile[:12]} is not one that it may have"
        for row, sample in records.on(target):
            where = f"target {target}, sample {row.sample}"
            yield from (f"{where}: {text}" for text in _target(row, sample, planned))


def _target(row: Target, sample: Sample, planned: Planned) -> Iterator[str]:
    if row.model != planned.subject:
        yield f"model is {row.model}, the stage's subject {planned.subject}"
    if row.exact != (row.profile == sample.profile):
        yield "exact is not what the profiles say"
    if row.raw != sample.raw:
        yield "raw logits are kept of the one and not of the other"
    yield from _host(row, sample)
    yield from _arm("fresh", row.fresh, sample, planned, restored=False)
    yield from _arm("graft", row.graft, sample, planned, restored=True)
    yield from _own(row, sample)
    if {len(values) for values in row.kl.values()} != {sample.query_tokens}:
        yield "a list of KL has another length than the question"
        return
    arms = {"origin": sample.fresh, "fresh": row.fresh, "graft": row.graft}
    if any(len(arm.logits_sha256) != sample.query_tokens for arm in arms.values()):
        return
    for name in CURVES:
        arm, reference = name.split("_from_")
        for text in _compared(arms[reference], arms[arm], row.kl[name]):
            yield f"{name}: {text}"


def _host(row: Target, sample: Sample) -> Iterator[str]:
    """A portable target is another build than the origin's, which no profile says."""
    if row.host is None or sample.host is None:
        if row.host is not sample.host:
            yield "names its host, or its origin does, and the other does not"
        return
    if row.target == plan.SAME_BUILD and row.host != sample.host:
        yield "its host is not the origin's, which another process of the same build has"
    fact = plan.HOST_DIFFERS.get(row.target)
    if fact is not None and row.host[fact] == sample.host[fact]:
        yield f"the {fact} of its host are the origin's, so that this is no target {row.target}"


def _own(row: Target, sample: Sample) -> Iterator[str]:
    own = row.own
    same = own.state_sha256 == sample.state_sha256
    if own.state_bytes != sample.state_bytes:
        yield "the block computed on the target has another length"
    if same != (own.differing_bytes == 0):
        yield "the number of differing bytes denies the digests"
    if own.differing_bytes > own.state_bytes:
        yield "more bytes differ than there are"
    if (same and row.profile == sample.profile) != (own.block_id == sample.block_id):
        yield "the id of the block computed on the target denies its contents"


def _compared(reference: Arm, arm: Arm, kl: Sequence[float]) -> Iterator[str]:
    pairs = zip(reference.logits_sha256, arm.logits_sha256, kl, strict=True)
    for position, (first, second, nats) in enumerate(pairs):
        if first == second and nats != 0.0:
            yield f"equal logits with a KL other than 0, entry {position}"
        elif first != second and nats == 0.0:
            yield f"other logits with a KL of 0, entry {position}"
        elif nats < LEAST_KL:
            yield f"KL is below 0, entry {position}"
        if first == second and reference.argmax[position] != arm.argmax[position]:
            yield f"equal logits with different argmax, entry {position}"
    if reference.logits_sha256[-1] == arm.logits_sha256[-1]:
        if reference.log_p != arm.log_p:
            yield "equal logits with different log-probabilities"
    elif len(reference.log_p) == len(arm.log_p):
        least = coarse_kl(reference.log_p, arm.log_p)
        if kl[-1] < least - ROOM:
            yield f"KL {kl[-1]!r} is below what its own log-probabilities ask for, {least!r}"


# -- raw logits -------------------------------------------------------------------------------


def _kept(records: Records) -> Iterator[tuple[str, dict[str, Arm], Target | None, Sample]]:
    """(where, arms by name, row, sample) of everything whose raw logits are kept."""
    samples = {sample.sample: sample for sample in records.samples if sample.raw}
    for sample in samples.values():
        yield f"sample {sample.sample}", {"origin": sample.fresh}, None, sample
    for row in records.targets:
        if row.raw and row.sample in samples:
            sample = samples[row.sample]
            arms = {"origin": sample.fresh, "fresh": row.fresh, "graft": row.graft}
            yield f"target {row.target}, sample {row.sample}", arms, row, sample


def raw_digests(records: Records) -> dict[str, str]:
    """{SHA-256 of raw logits: the record file that names it}."""
    named: dict[str, str] = {}
    for _, arms, row, _sample in _kept(records):
        for arm in arms.values():
            named.setdefault(arm.logits_sha256[-1], SAMPLES if row is None else TARGETS)
    return named


def check_raw(records: Records, read: RawReader) -> list[Problem]:
    """Recomputes KL, argmax and log-probabilities of records whose raw logits are kept."""
    found: list[Problem] = []
    for where, arms, row, sample in _kept(records):
        file = SAMPLES if row is None else TARGETS
        raw = {name: read(arm.logits_sha256[-1]) for name, arm in arms.items()}
        if any(logits is None for logits in raw.values()):
            continue
        for name, arm in arms.items():
            log_p = stats.log_softmax(raw[name])
            listed = zip(sample.top, arm.log_p, strict=False)
            if any(t >= len(log_p) or abs(log_p[t] - value) > ROOM for t, value in listed):
                text = f"{where}, {name}: a log-probability is not that of the raw logits"
                found.append(Problem(file, text))
        if row is None:
            if stats.argmax(raw["origin"]) != sample.fresh.argmax[-1]:
                found.append(Problem(file, f"{where}: argmax is not that of the raw logits"))
            continue
        for curve in CURVES:
            name, reference = curve.split("_from_")
            for text in scores.problems(
                raw[reference], raw[name], row.kl[curve][-1], arms[name].argmax[-1]
            ):
                found.append(Problem(file, f"{where}, {curve}: {text}"))
    return found
