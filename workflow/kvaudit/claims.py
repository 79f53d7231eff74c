"""Claims and how they are judged: from records alone.

A stage adds its claims with `rule`; nothing else has to change for the verifier to report them.
A claim is `holds`, `fails`, or `not run here` where this machine could not test it; it is never
passed by default. This module must not read files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["holds", "fails", "not run here"]


@dataclass(frozen=True)
class Evidence:
    """What the claims of one stage are judged from.

    `records` are the stage's, in the form that its kind gives them; `raw_rows` counts the raw logit
    rows that were recomputed, `raw_disagreements` those scores that did not agree with them.
    `programs_rerun` counts the recorded programs that were run again, and `rerun_reason` says why
    some were not: then a claim that rests on programs is `not run here`. It is None where all were.
    """

    subject: str
    records: Any
    raw_rows: int
    raw_disagreements: int
    programs_rerun: int = 0
    rerun_reason: str | None = None


@dataclass(frozen=True)
class Claim:
    """One claim about one model, judged."""

    id: str
    model: str
    title: str
    criterion: str
    paper: str
    measured: str
    verdict: Outcome


@dataclass(frozen=True)
class Rule:
    """A claim before it is judged; `judge` returns what was measured and the verdict.

    `files` are the files of the stage, relative to its folder, that the judgement reads; an entry
    that ends in `/` stands for a folder. Empty where the stage does not say: then all of its
    records. `on_programs` says that it rests on what recorded programs printed, and is judged only
    where they were run again. `concerns` says of which runs of the stage there is such a claim,
    None of all: a run that it does not concern has no such line in its verdict, so that a claim on
    something new leaves the verdicts of earlier runs as they were signed.
    """

    id: str
    stage: str
    title: str
    criterion: str
    paper: str
    judge: Callable[[Evidence], tuple[str, Outcome]]
    files: tuple[str, ...] = ()
    on_programs: bool = False
    concerns: Callable[[Evidence], bool] | None = None


_RULES: dict[tuple[str, str], Rule] = {}


def rule(
    id: str,
    *,
    stage: str,
    title: str,
    criterion: str,
    paper: str,
    files: tuple[str, ...] = (),
    on_programs: bool = False,
    concerns: Callable[[Evidence], bool] | None = None,
) -> Callable[[Callable[[Evidence], tuple[str, Outcome]]], Rule]:
    """Registers a judging function as the claim `id` of `stage`.

    Raises:
        ValueError: the stage has a claim of that id already.
    """

    def register(judge: Callable[[Evidence], tuple[str, Outcome]]) -> Rule:
        if (stage, id) in _RULES:
            raise ValueError(f"claim {id} of stage {stage} is registered twice")
        made = Rule(id, stage, title, criterion, paper, judge, files, on_programs, concerns)
        _RULES[stage, id] = made
        return made

    return register


def rules(stage: str) -> tuple[Rule, ...]:
    """The claims of a stage in the order of their ids."""
    return tuple(_RULES[key] for key in sorted(_RULES) if key[0] == stage)


def judge(stage: str, evidence: Evidence) -> tuple[Claim, ...]:
    """Judges all claims of one stage that concern the run."""
    return tuple(
        judge_one(entry, evidence)
        for entry in rules(stage)
        if entry.concerns is None or entry.concerns(evidence)
    )


PROGRAMS_NOT_RUN = "programs were not run again: "
"""What is measured begins so where a claim is left unjudged for that reason."""


def judge_one(entry: Rule, evidence: Evidence) -> Claim:
    """Judges one claim."""
    reason = evidence.rerun_reason
    if entry.on_programs and reason is not None:
        said = f"{PROGRAMS_NOT_RUN}{reason}"
        return _claim(entry, evidence.subject, said, "not run here")
    measured, verdict = entry.judge(evidence)
    return _claim(entry, evidence.subject, measured, verdict)


def without_evidence(stage: str, subject: str, reason: str) -> tuple[Claim, ...]:
    """The claims of a stage whose records cannot be used: none of them holds."""
    return tuple(_claim(entry, subject, reason, "fails") for entry in rules(stage))


def _claim(entry: Rule, subject: str, measured: str, verdict: Outcome) -> Claim:
    return Claim(entry.id, subject, entry.title, entry.criterion, entry.paper, measured, verdict)


def holds(condition: bool) -> Outcome:
    """`holds` or `fails`."""
    return "holds" if condition else "fails"


def verdict_counts(claims: Sequence[Claim]) -> dict[Outcome, int]:
    """How many claims hold, fail, and were not run here."""
    counts: dict[Outcome, int] = {"holds": 0, "fails": 0, "not run here": 0}
    for claim in claims:
        counts[claim.verdict] += 1
    return counts
