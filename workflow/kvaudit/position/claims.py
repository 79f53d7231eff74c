"""The claims of relocation: P1 to P4. This module must not read files."""

from __future__ import annotations

from kvaudit import estimate
from kvaudit.claims import Evidence, Outcome, holds, rule
from kvaudit.position import hypotheses, relocation
from kvaudit.position.explanations import EXPLANATIONS, KEYS
from kvaudit.position.relocation import RELOCATION, SAMPLES

MIN_SAMPLES = 5
"""The smallest run in which byte equality is judged; the default run has 20 samples."""

ENOUGH = 10
"""Samples below which the size of a KL cannot be told: with 5 of them the 90% interval of a ratio
spans a factor of 2 to 5."""

MARGIN = 2.0
"""Two curves are of one size if the ratio of their means lies within 1/2 and 2. The KL of single
samples differs by more than that at one offset, the paper's own figures (0.015 and 0.014) by less,
and a mistaken position or frequency leaves ten times the control and more."""


@rule(
    "P1",
    stage="position",
    title="own position",
    criterion="KL exactly 0 and logits of equal SHA-256 in all of at least "
    f"{MIN_SAMPLES} samples grafted at their own position",
    paper="KL ~1e-27",
    files=(SAMPLES,),
)
def _p1(evidence: Evidence) -> tuple[str, Outcome]:
    samples = evidence.records[SAMPLES]
    equal = sum(
        row["kl"] == 0.0
        and row["fresh"]["logits_sha256"] == row["graft"]["logits_sha256"]
        and row["graft"]["exact"]
        for row in samples
    )
    measured = f"{equal}/{len(samples)} equal"
    if len(samples) < MIN_SAMPLES:
        measured += "; too few samples"
    return measured, holds(equal == len(samples) >= MIN_SAMPLES)


@rule(
    "P2",
    stage="position",
    title="relocation against control",
    criterion="equivalence: the 90% interval of mean KL relocated over mean KL control lies "
    f"within 1/{MARGIN:g} and {MARGIN:g}; neither is 0 at any offset; every relocated record is "
    f"marked inexact; at least {ENOUGH} samples",
    paper="relocated ~0.015, control 0.014, flat for M = 8 … 4096",
    files=(RELOCATION,),
)
def _p2(evidence: Evidence) -> tuple[str, Outcome]:
    rows = evidence.records
    curve = rows[RELOCATION]
    found = relocation.ratio(rows)
    if found is None:
        return "no control differs from fresh, nothing to compare with", "fails"
    inexact = sum(row["relocated"]["exact"] is False for row in curve)
    offsets = sorted({row["offset"] for row in curve})
    silent = [
        offset
        for offset in offsets
        for name in ("relocated", "control")
        if not any(kl > 0.0 for kl in relocation.by_sample(rows, name, offset))
    ]
    n = len({row["sample"] for row in curve})
    means = [estimate.bootstrap_mean(relocation.by_sample(rows, name), name) for name in _PAIR]
    measured = (
        f"relocated {means[0].estimate:.3g}, control {means[1].estimate:.3g} nats; ratio "
        f"{found.estimate:.3g} [{found.low:.3g}, {found.high:.3g}]; {inexact}/{len(curve)} marked "
        f"inexact; {n} samples, {len(offsets)} offsets"
    )
    if silent:
        measured += f"; KL 0 at offset {silent[0]}"
    if inexact != len(curve) or silent:
        return measured, "fails"
    if n < ENOUGH:
        return f"{measured}; too few samples to tell", "not run here"
    return measured, holds(1.0 / MARGIN < found.low <= found.high < MARGIN)


_PAIR = ("relocated", "control")


@rule(
    "P3",
    stage="position",
    title="seven other explanations",
    criterion="each of the seven is ruled out by the criterion in its row of the summary; "
    f"at least {ENOUGH} samples",
    paper="seven ruled out",
    files=(SAMPLES, RELOCATION, EXPLANATIONS, KEYS),
)
def _p3(evidence: Evidence) -> tuple[str, Outcome]:
    entries = hypotheses.table(evidence.records)
    left = [entry["hypothesis"] for entry in entries if entry["verdict"] != "ruled out"]
    measured = f"{len(entries) - len(left)}/{len(entries)} ruled out"
    if left:
        measured += f"; not {', '.join(left)}"
    if len(evidence.records[SAMPLES]) < ENOUGH:
        return f"{measured}; too few samples to tell", "not run here"
    return measured, holds(not left)


@rule(
    "P4",
    stage="position",
    title="residual and model size",
    criterion="the residual of a model of 31 billion parameters over that of 12 billion",
    paper="19 times smaller; the direction was predicted, the size was not",
    files=(RELOCATION,),
)
def _p4(evidence: Evidence) -> tuple[str, Outcome]:
    values = relocation.by_sample(evidence.records, "relocated")
    if not values:
        return "no relocation", "fails"
    found = estimate.bootstrap_mean(values, "P4")
    return (
        f"this model's residual is {found.estimate:.3g} [{found.low:.3g}, {found.high:.3g}] nats; "
        "models of the paper's sizes were not run",
        "not run here",
    )
