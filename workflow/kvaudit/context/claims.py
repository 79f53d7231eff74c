"""The claims of the stage context: C4, C4-memory and C4-time. This module must not read files."""

from __future__ import annotations

from typing import Any

from kvaudit.claims import Evidence, Outcome, holds, rule
from kvaudit.context import summary
from kvaudit.context.records import ACCESSES, ANSWERS, ARMS, BLOCKS, MEMORY, NEEDLES, RUN

MEMORY_MARGIN = 0.05
"""Largest change of peak memory by the store, as a share."""

MIN_NEEDLES = 7
"""The paper's own count."""


@rule(
    "C4",
    stage="context",
    title="needles through pages",
    criterion=f"each of at least {MIN_NEEDLES} planted needles routed to its block and its code "
    "given from the grafted block; no code given from a wrong block or of an absent needle; every "
    "graft exact; the text longer than the context",
    paper="7/7; 2,854,766 tokens in 88 blocks, 87.1 times the window",
    files=(BLOCKS, NEEDLES, ANSWERS, RUN),
)
def _c4(evidence: Evidence) -> tuple[str, Outcome]:
    made = summary.summarise(evidence.subject, evidence.records)
    router = made["router"]
    pages, routed, wrong, absent = made["pages"], *(made["answers"][a] for a in ARMS)
    exact = all(row["exact"] for row in evidence.records[ANSWERS])
    measured = (
        f"{routed['code_found']}/{routed['n']} found, {routed['routed_right']}/{routed['n']} "
        f"routed right; wrong block {wrong['code_found']}/{wrong['n']}, absent "
        f"{absent['code_found']}/{absent['n']}; without the needle another one's code in "
        f"{wrong['other_code'] + absent['other_code']}/{wrong['n'] + absent['n']}; "
        f"router's margin {_margin(router['margin_planted_min'])} or more, absent "
        f"{_margin(router['margin_absent_max'])} or less; "
        f"{pages['tokens']:,} tokens in {pages['blocks']} blocks, {pages['multiple']:.3g} times "
        f"the context, {pages['disk_bytes'] / 1e6:,.0f} MB"
    )
    if not exact:
        measured += "; a graft was not exact"
    if routed["n"] < MIN_NEEDLES:
        measured += "; too few needles"
    return measured, holds(
        routed["code_found"] == routed["routed_right"] == routed["n"] >= MIN_NEEDLES
        and wrong["code_found"] == absent["code_found"] == 0
        and wrong["n"] > 0
        and absent["n"] > 0
        and exact
        and pages["multiple"] > 1.0
    )


def _margin(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


@rule(
    "C4-time",
    stage="context",
    title="access time against depth",
    criterion="the 95% interval of the slope of access time against depth contains 0; one point "
    "a block, the median of its counted accesses; verify, restore and one token",
    paper="0.29 s an access at any depth",
    files=(ACCESSES,),
)
def _c4_time(evidence: Evidence) -> tuple[str, Outcome]:
    made: dict[str, Any] = summary.access(evidence.records[ACCESSES])
    fit, whole = made["per_block"], made["whole_depth_share"]
    if fit is None or whole is None:
        return "fewer than three blocks, no slope", "not run here"
    measured = (
        f"{made['median_seconds'] * 1e3:.3g} ms; slope {fit['slope'] * 1e6:.3g} µs a block "
        f"[{fit['low'] * 1e6:.3g}, {fit['high'] * 1e6:.3g}], over the whole depth "
        f"{whole['slope']:+.1%} [{whole['low']:+.1%}, {whole['high']:+.1%}]; "
        f"{made['counted']} accesses"
    )
    return measured, holds(fit["low"] <= 0.0 <= fit["high"])


@rule(
    "C4-memory",
    stage="context",
    title="peak memory with the store",
    criterion="peak resident memory of a process that pages through the store is within "
    f"{MEMORY_MARGIN:.0%} of one that prefills the blocks and has no store, both giving the same "
    "answers",
    paper="no extra accelerator memory (25,595 MB peak)",
    files=(MEMORY,),
)
def _c4_memory(evidence: Evidence) -> tuple[str, Outcome]:
    made = summary.memory(evidence.records)
    if made["ratio"] is None:
        return "one of the two processes is not recorded", "fails"
    peaks = made["peak_bytes"]
    measured = (
        f"{peaks['store'] / 1e6:,.0f} MB with, {peaks['direct'] / 1e6:,.0f} MB without: "
        f"{made['ratio'] - 1.0:+.1%}; {made['equal_tokens']}/{made['answers']} answers equal, "
        f"{made['equal_logits']}/{made['answers']} in the bytes of their logits"
    )
    within = abs(made["ratio"] - 1.0) <= MEMORY_MARGIN
    return measured, holds(within and made["equal_tokens"] == made["answers"] > 0)
