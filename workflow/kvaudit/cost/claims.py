"""The claims of the stage cost: C1, C2, C3, and the graft against its raw limit.

This module must not read files.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvaudit import stats
from kvaudit.claims import Evidence, Outcome, holds, rule
from kvaudit.cost import plan, summary
from kvaudit.cost.records import ALTERNATIVES, MEMORY, TIMINGS, Records, Row, is_cold, seconds
from kvaudit.cost.summary import Crossover

TABLE_FROM = 256
"""Tokens: the shortest length of the table in C1."""
PAPER_SHORTEST = 748
"""Tokens: the shortest prompt whose restore the paper compares with computing it again."""
LIMIT_FROM, LIMIT = 4000, 2.0
"""From so many tokens on, the fixed costs of a graft (a header, a few calls) are small beside its
bytes; twice the limit leaves room for one pass that verifies and one that restores.
"""


@rule(
    "C1",
    stage="cost",
    title="graft and one token against prefill and one token",
    criterion=f"faster at every length of at least {TABLE_FROM} tokens, by a ratio that grows with "
    "the length (95% interval of its slope above 0), logits byte-equal",
    paper="11,994 tokens: 85.6x (fresh prefix 83.7x)",
    files=(TIMINGS,),
)
def _c1(evidence: Evidence) -> tuple[str, Outcome]:
    records: Records = evidence.records
    lengths = [n for n in records.lengths() if n >= TABLE_FROM]
    graft = {n: summary.ratios(records, n, "graft") for n in lengths}
    if not lengths or not all(graft.values()):
        return f"not measured at {TABLE_FROM} tokens and more", "not run here"
    counts = [summary.logits_equal(records, n) for n in lengths]
    equal, grafts = sum(same for same, _ in counts), sum(count for _, count in counts)
    fit = summary.growth(records)
    longest = lengths[-1]
    new = summary.ratios(records, longest, "new_prefix")
    measured = (
        f"{lengths[0]:,} tokens {stats.median(graft[lengths[0]]):.3g}x, {longest:,} tokens "
        f"{stats.median(graft[longest]):.3g}x [{min(graft[longest]):.3g}, "
        f"{max(graft[longest]):.3g}]"
    )
    if new:
        measured += f" (new prefix {stats.median(new):.3g}x)"
    measured += f"; {equal}/{grafts} grafts with equal logits"
    faster = all(stats.median(values) > 1.0 for values in graft.values())
    if fit is None:
        measured += "; too few lengths to tell whether the ratio grows"
        return measured, "not run here" if faster and equal == grafts else "fails"
    measured += f"; slope {fit.slope:.3g} [{fit.low:.3g}, {fit.high:.3g}]"
    return measured, holds(faster and fit.low > 0.0 and equal == grafts > 0)


@rule(
    "C1-limit",
    stage="cost",
    title="verified graft against its raw limit",
    criterion=f"at every length of at least {LIMIT_FROM} tokens within {LIMIT:g} times the larger "
    "of parallel SHA-256 and copy of the same bytes, page cache warm",
    paper="- (beyond)",
    files=(TIMINGS,),
)
def _c1_limit(evidence: Evidence) -> tuple[str, Outcome]:
    records: Records = evidence.records
    found = {n: summary.limit(records, n) for n in records.lengths() if n >= LIMIT_FROM}
    if not found or not all(found.values()):
        return f"not measured at {LIMIT_FROM} tokens and more", "not run here"
    limits = {n: value for n, value in found.items() if value}
    measured = ", ".join(f"{n:,} tokens {v['ratio']:.3g}x {v['by']}" for n, v in limits.items())
    return measured, holds(all(value["ratio"] <= LIMIT for value in limits.values()))


@rule(
    "C2",
    stage="cost",
    title="restore against recompute",
    criterion=f"restore from disk wins at every length of at least {PAPER_SHORTEST} tokens, page "
    "cache warm and cold, shown at one length or more; the crossover is stated",
    paper="748 tokens 1.7x, 5,977 tokens 8.7x",
    files=(TIMINGS,),
)
def _c2(evidence: Evidence) -> tuple[str, Outcome]:
    records: Records = evidence.records
    warm, cold = (summary.crossover(records, arm) for arm in ("graft", "graft_cold"))
    lengths = [n for n in records.lengths() if n >= PAPER_SHORTEST]
    if warm is None or cold is None or not lengths:
        return f"not measured at {PAPER_SHORTEST} tokens and more", "not run here"
    pairs = [
        (n, *(stats.median(found) for found in both))
        for n in lengths
        if all(both := [summary.ratios(records, n, arm) for arm in ("graft", "graft_cold")])
    ]
    measured = f"crossover {_said(warm)} warm, {_said(cold)} cold"
    if pairs:
        first = pairs[0]
        measured += f"; {first[0]:,} tokens {first[1]:.3g}x warm, {first[2]:.3g}x cold"
    if len(pairs) != len(lengths):
        return f"{measured}; a length was not measured", "fails"
    if not all(a > 1.0 and b > 1.0 for _, a, b in pairs):
        return measured, "fails"
    if not all(is_cold(records.at(n, "graft_cold")) for n in lengths):
        return (
            f"{measured}; the kernel did not drop the files, cold reads were warm",
            "not run here",
        )
    return measured, "holds"


@rule(
    "C3",
    stage="cost",
    title="what the engine's own caches need",
    criterion="the engine goes on behind a prefix only in its live context and sequence: there it "
    "decodes one token, byte-equal; after a restart, in another sequence, and with a small window "
    "cache that has moved on it decodes the whole prefix; no state file notices a changed byte, "
    "while grafts of the same length are byte-equal",
    paper="needs a full-size window cache (19.7-25.5 GB at 64k) and pinning to the slot",
    files=(TIMINGS, ALTERNATIVES, MEMORY),
)
def _c3(evidence: Evidence) -> tuple[str, Outcome]:
    records: Records = evidence.records
    rows = {(row["arm"], row["tokens"]): row for row in records.alternatives}
    lengths = sorted({n for _, n in rows})
    if not lengths:
        return "not measured", "not run here"
    live = [rows[plan.LIVE, n] for n in lengths if (plan.LIVE, n) in rows]
    again = [
        row
        for (arm, _), row in rows.items()
        if arm in (plan.RESTART, plan.ELSEWHERE, plan.SMALL_WINDOW)
    ]
    files = [row for (arm, _), row in rows.items() if arm in plan.FILES and row["measured"]]
    kept = sum(row["reused_tokens"] == row["tokens"] for row in live)
    equal = sum(bool(summary.equals_fresh(row)) for row in live)
    lost = sum(row["reused_tokens"] == 0 for row in again)
    blind = sum(row["notices_damage"] is False for row in files)
    grafts = [summary.logits_equal(records, n) for n in lengths]
    exact = all(same == count > 0 for same, count in grafts)
    measured = (
        f"live {kept}/{len(live)} reused, {equal} byte-equal; {lost}/{len(again)} elsewhere read "
        f"again; {blind}/{len(files)} state files checked nothing{_times(records, rows, lengths)}"
        f"{_memory(records)}"
    )
    absent = sorted({row["arm"] for row in rows.values() if not row["measured"]})
    if absent:
        measured += f"; not measured: {', '.join(absent)}"
    complete = kept == equal == len(live) > 0 and lost == len(again) > 0 and blind == len(files) > 0
    return measured, holds(complete and exact)


def _times(records: Records, rows: dict[tuple[str, int], Row], lengths: Sequence[int]) -> str:
    """Seconds at the longest of the lengths, side by side."""
    longest = lengths[-1]
    parts = [
        f"{arm} {stats.median(rows[arm, longest]['seconds']['request']):.3g} s"
        for arm in (plan.LIVE, plan.RESTART, plan.SMALL_WINDOW, *plan.FILES)
        if (arm, longest) in rows and "request" in rows[arm, longest]["seconds"]
    ]
    graft = records.at(longest, "graft")
    if graft:
        parts.append(f"graft {stats.median([seconds(row) for row in graft]):.3g} s")
    return f"; {longest:,} tokens: {', '.join(parts)}"


def _memory(records: Records) -> str:
    sizes = [row for row in summary.memory(records) if row["ratio"] is not None]
    if not sizes:
        return ""
    last = sizes[-1]
    return (
        f"; cache at n_ctx {last['n_ctx']:,}: {last['full_mib']:.0f} MiB full, "
        f"{last['small_mib']:.0f} MiB small"
    )


def _said(found: Crossover) -> str:
    if found.relation == "at":
        return f"at {found.tokens:.0f} [{found.low:.0f}, {found.high:.0f}] tokens"
    return f"{found.relation} {found.tokens:.0f} tokens"
