"""The claims of the stage exactness: D1, E1, E2 and E3. This module must not read files."""

from __future__ import annotations

from kvaudit import profiles, stats
from kvaudit.claims import Evidence, Outcome, holds, rule
from kvaudit.exactness import summary
from kvaudit.exactness.records import CASES, Sample

MIN_SAMPLES = 5
"""The paper's own count for its smaller model."""

_SAMPLES, _SPLITS = "records/samples.jsonl", "records/splits.jsonl"


@rule(
    "D1",
    stage="exactness",
    title="determinism",
    criterion="logits and state equal in the same context, a new context and a new process; "
    "fresh again equals fresh in every sample",
    paper="two fresh runs bit-equal",
    files=("records/determinism.jsonl", _SAMPLES),
)
def _d1(evidence: Evidence) -> tuple[str, Outcome]:
    cases = evidence.records.determinism
    equal = [
        (case.first.logits_sha256, case.first.state_sha256)
        == (case.second.logits_sha256, case.second.state_sha256)
        for case in cases
    ]
    absent = sorted(set(CASES) - {case.case for case in cases})
    samples = evidence.records.samples
    again = sum(
        _equal(s, "fresh_again") and _equal(s, "fresh_process") and _elsewhere(s, "fresh_process")
        for s in samples
    )
    measured = f"{sum(equal)}/{len(equal)} cases equal; {again}/{len(samples)} samples"
    if absent:
        return f"{measured}; no case {', '.join(absent)}", "fails"
    return measured, "holds" if all(equal) and again == len(samples) > 0 else "fails"


@rule(
    "E1",
    stage="exactness",
    title="SHA-256 of logits",
    criterion=f"graft equals fresh at every position in all of at least {MIN_SAMPLES} samples, "
    "restored in another process, only the query decoded",
    paper="5/5 (12B), 10/10 (31B)",
    files=(_SAMPLES,),
)
def _e1(evidence: Evidence) -> tuple[str, Outcome]:
    samples = evidence.records.samples
    equal = sum(_equal(sample, "graft") for sample in samples)
    ran = sum(_really_grafted(sample) for sample in samples)
    positions = sum(len(sample.positions) for sample in samples)
    measured = f"{equal}/{len(samples)} equal, {positions} positions"
    if ran != len(samples):
        measured += f"; only {ran} were restored in another process against a fresh reference"
    if len(samples) < MIN_SAMPLES:
        measured += "; too few samples"
    return measured, holds(equal == ran == len(samples) >= MIN_SAMPLES)


@rule(
    "E2",
    stage="exactness",
    title="distribution",
    criterion="KL median and p99 exactly 0, no argmax differs, Mann-Whitney p = 1.0, "
    "Cliff's delta 0; argmax and KL recomputed where raw logits are kept",
    paper="KL median = p99 = 0, 0/50, p = 1.0, delta 0",
    files=(_SAMPLES, _SPLITS, "logits/"),
)
def _e2(evidence: Evidence) -> tuple[str, Outcome]:
    samples = evidence.records.samples
    if not samples:
        return "no samples", "fails"
    graft = [summary.sample_kl(sample, "graft") for sample in samples]
    again = [summary.sample_kl(sample, "fresh_again") for sample in samples]
    median, p99 = stats.median(graft), stats.percentile(graft, 99.0)
    differ = sum(summary.argmax_differs(sample, "graft") for sample in samples)
    interval = stats.wilson(differ, len(samples))
    test = stats.mann_whitney(graft, again)
    delta = stats.cliffs_delta(graft, again)
    measured = (
        f"KL median {median:.3g}, p99 {p99:.3g}; argmax {differ}/{len(samples)} "
        f"[{interval.low:.1%}, {interval.high:.1%}]; p = {test.p:.3g}, delta {delta:.3g}; "
        f"{evidence.raw_rows} raw rows recomputed"
    )
    if evidence.raw_disagreements:
        measured += f", {evidence.raw_disagreements} disagree"
    if not evidence.raw_rows:
        return f"{measured}; nothing shows that the scores are those of logits", "fails"
    exact = median == p99 == 0.0 and differ == 0 and test.p == 1.0 and delta == 0.0
    return measured, holds(exact and evidence.raw_disagreements == 0)


@rule(
    "E3",
    stage="exactness",
    title="split invariance",
    criterion="every batch split, and token by token under graft, equals one-shot prefill in "
    "logits and state; at least one control differs",
    paper="- (beyond)",
    files=(_SAMPLES, _SPLITS),
)
def _e3(evidence: Evidence) -> tuple[str, Outcome]:
    samples, splits = evidence.records.samples, evidence.records.splits
    dependent = sum(not sample.split_invariant for sample in samples)
    if dependent:
        return f"the profile is not split-invariant ({dependent} samples)", "not run here"
    cases = [split for split in splits if not split.control]
    equal = sum(not split.differs for split in cases)
    seen = sum(split.differs for split in splits if split.control)
    controls = len(splits) - len(cases)
    whole = sum(_equal(s, "one_shot") and _equal(s, "token_by_token") for s in samples)
    measured = (
        f"{equal}/{len(cases)} splits equal; {whole}/{len(samples)} samples; "
        f"{seen}/{controls} controls differ"
    )
    if {split.profile_name for split in splits} == {profiles.PORTABLE}:
        # Their absence from another run is found by `expected`.
        measured += "; stock kernels not run here: the portable build has none"
    if not seen:
        measured += "; the comparison is blind"
    grafted = any(split.grafted for split in cases)
    if not grafted:
        measured += "; no split was taken under graft"
    complete = equal == len(cases) > 0 and whole == len(samples) > 0
    return measured, holds(complete and grafted and seen > 0)


def _equal(sample: Sample, arm: str) -> bool:
    """Whether an arm has fresh's logits at every compared position, and fresh's end state."""
    return (
        arm in sample.arms
        and sample.arms[arm].state_sha256 == sample.arms["fresh"].state_sha256
        and sample.arms[arm].logits_sha256 == sample.arms["fresh"].logits_sha256
        and len(sample.arms[arm].logits_sha256) == len(sample.positions)
    )


def _elsewhere(sample: Sample, arm: str) -> bool:
    return sample.arms[arm].process != sample.arms["fresh"].process


def _really_grafted(sample: Sample) -> bool:
    """Whether the graft restored a state and the reference did not.

    Cells left over in a context can make both sides equal without a graft; a fresh run that was
    itself restored would be compared with itself.
    """
    graft, fresh = sample.arms["graft"], sample.arms["fresh"]
    return (
        sample.exact
        and _elsewhere(sample, "graft")
        and graft.restored_bytes > 0
        and graft.decoded_tokens == sample.query_tokens
        and fresh.restored_bytes == 0
        and fresh.decoded_tokens > sample.query_tokens
    )
