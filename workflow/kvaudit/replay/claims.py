"""The claims of the stage replay: R1 and R2. This module must not read files."""

from __future__ import annotations

from collections.abc import Callable

from kvaudit import estimate
from kvaudit.claims import Evidence, Outcome, holds, rule
from kvaudit.replay import plan, summary
from kvaudit.replay.records import PROFILES, SAMPLES, TARGETS, Records

LOGITS = "logits/"
MIN_SAMPLES = 10
"""The paper's own count."""

MARGIN = 2.0
"""A graft across targets may be this many times as far from where its block was made as the
target's own computation is."""


@rule(
    "R1",
    stage="replay",
    title="replay in another process",
    criterion="zero divergence: of copied blocks, restored in other processes of the same build, "
    f"all of at least {MIN_SAMPLES} give the origin's logits (SHA-256, every position), and the "
    "same continuation",
    paper="zero divergence, SHA-256 equal 10/10 (pre-registered, B200)",
    files=(SAMPLES, TARGETS),
)
def _r1(evidence: Evidence) -> tuple[str, Outcome]:
    records: Records = evidence.records
    pairs = records.on(plan.SAME_BUILD)
    if not pairs:
        return "the target process is not in the matrix", "not run here"
    equal = sum(
        summary.same_logits(row.graft, sample.fresh)
        and row.graft.answer == sample.fresh.answer
        and not any(row.kl["graft_from_origin"])
        for row, sample in pairs
    )
    ran = sum(row.exact and summary.is_usable(row, sample) for row, sample in pairs)
    measured = f"{equal}/{len(pairs)} equal, {sum(s.query_tokens for _, s in pairs)} positions"
    if ran != len(pairs):
        measured += f"; only {ran} were exact grafts of the whole block"
    if len(pairs) < MIN_SAMPLES:
        return f"{measured}; fewer than {MIN_SAMPLES} samples", _few(equal == ran == len(pairs))
    return measured, holds(equal == ran == len(pairs))


def _few(sound: bool) -> Outcome:
    """Too few samples cannot make a claim hold, but one bad sample breaks it."""
    return "not run here" if sound else "fails"


def _is_portable(evidence: Evidence) -> bool:
    records: Records = evidence.records
    return any(row.target in plan.PORTABLE for row in records.targets)


def _is_ordinary(evidence: Evidence) -> bool:
    return not _is_portable(evidence)


@rule(
    "R2",
    stage="replay",
    title="blocks on another target, bytes and function apart",
    criterion="same build: every copy has the file's bytes, and the block computed there the "
    "state's; across targets no claim on bytes: every block is usable and marked inexact, and "
    f"mean KL(origin, graft) is below {MARGIN:g} × mean KL(origin, the target's own computation) "
    f"at 95%; at least {MIN_SAMPLES} samples a target",
    paper="same architecture: 8/8 usable, bytes equal; across architectures function only",
    files=(SAMPLES, TARGETS, PROFILES, LOGITS),
    concerns=_is_ordinary,
)
def _r2(evidence: Evidence) -> tuple[str, Outcome]:
    return _on_targets(evidence, _across)


@rule(
    "R2-portable",
    stage="replay",
    title="blocks of the portable profile on another build or architecture",
    criterion="in another process, on the generic build and on the other architecture: every copy "
    "has the file's bytes, the block computed there the state's; on other builds also every logit "
    "and continuation of graft and own computation is the origin's, and every graft is exact; "
    f"at least {MIN_SAMPLES} samples a target",
    paper="- (beyond; across architectures the paper claims function only)",
    files=(SAMPLES, TARGETS, PROFILES, LOGITS),
    concerns=_is_portable,
)
def _r2_portable(evidence: Evidence) -> tuple[str, Outcome]:
    return _on_targets(evidence, _portable)


def _on_targets(
    evidence: Evidence, elsewhere: Callable[[summary.Pairs], tuple[str, Outcome]]
) -> tuple[str, Outcome]:
    """The same build judged as such, and every other target by `elsewhere`."""
    records: Records = evidence.records
    parts: list[str] = []
    outcomes: list[Outcome] = []
    for target in plan.TARGETS:
        if pairs := records.on(target):
            text, outcome = (_within if target == plan.SAME_BUILD else elsewhere)(pairs)
            parts.append(f"{target}: {text}")
            outcomes.append(outcome)
    present = {row.target for row in records.targets}
    if plan.SAME_BUILD not in present:
        parts.append("within one build not run")
        outcomes.append("not run here")
    if not present - {plan.SAME_BUILD}:
        parts.append("across targets not run")
        outcomes.append("not run here")
    worst: Outcome = "holds"
    if "not run here" in outcomes:
        worst = "not run here"
    return "; ".join(parts), "fails" if "fails" in outcomes else worst


def _portable(pairs: summary.Pairs) -> tuple[str, Outcome]:
    """Bytes and function on another build or architecture, under one profile."""
    text, outcome = _within(pairs)
    n = len(pairs)
    grafts, fresh = (
        sum(summary.same_logits(getattr(row, arm), sample.fresh) for row, sample in pairs)
        for arm in ("graft", "fresh")
    )
    answers = sum(
        row.graft.answer == row.fresh.answer == sample.fresh.answer for row, sample in pairs
    )
    exact = sum(row.exact for row, _ in pairs)
    where = sorted({str(row.host["architecture"]) for row, _ in pairs if row.host})
    text += (
        f", on {', '.join(where) or 'an unnamed host'}; logits {grafts}/{n} grafts, {fresh}/{n} "
        f"own computations, continuation {answers}/{n} the origin's; {exact}/{n} exact"
    )
    if grafts == fresh == answers == exact == n:
        return text, outcome
    return text, "fails"


def _within(pairs: summary.Pairs) -> tuple[str, Outcome]:
    copies = sum(summary.same_copy(*pair) for pair in pairs)
    blocks = sum(summary.same_block(*pair) for pair in pairs)
    usable = sum(summary.is_usable(*pair) for pair in pairs)
    n = len(pairs)
    text = f"bytes {copies}/{n} copies, {blocks}/{n} recomputed; usable {usable}/{n}"
    sound = copies == blocks == usable == n
    return text, holds(sound) if n >= MIN_SAMPLES else _few(sound)


def _across(pairs: summary.Pairs) -> tuple[str, Outcome]:
    n = len(pairs)
    blocks = sum(summary.same_block(*pair) for pair in pairs)
    usable = sum(summary.is_usable(*pair) and not pair[0].exact for pair in pairs)
    positions = sum(sample.query_tokens for _, sample in pairs)
    graft = estimate.bootstrap_mean(
        summary.by_sample(pairs, "graft_from_origin"), "replay/graft_from_origin"
    )
    answers = sum(row.graft.answer == sample.fresh.answer for row, sample in pairs)
    found = summary.ratio(pairs)
    text = (
        f"bytes {blocks}/{n} recomputed; function: usable {usable}/{n}, KL from origin "
        f"{graft.estimate:.3g} [{graft.low:.3g}, {graft.high:.3g}] nats, "
        f"argmax {summary.argmax_differ(pairs, 'graft')}/{positions} differ, "
        f"continuation {answers}/{n} equal, "
    )
    if found is None:
        near = not any(summary.by_sample(pairs, "graft_from_origin"))
        text += "the target computes the origin's logits"
    else:
        near = found.high < MARGIN
        text += (
            f"{found.estimate:.3g} [{found.low:.3g}, {found.high:.3g}] × the target's own residual"
        )
    if usable != n:
        return text, "fails"
    if n < MIN_SAMPLES:
        return f"{text}; too few samples", "not run here"
    return text, holds(near)
