"""The verdict as plain text: one table of claims, then what was found.

Every number comes from the verdict; this module must not compute one, and must not read files.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from kvaudit.chain import Finding
from kvaudit.claims import verdict_counts
from kvaudit.errors import printable
from kvaudit.verify import Verdict

HEAD = ("claim", "model", "criterion", "paper's figure", "this run", "verdict")
_COLOURS = {"holds": "\x1b[32m", "fails": "\x1b[31m", "not run here": "\x1b[33m"}
_RESET = "\x1b[0m"
_WIDEST = (12, 22, 38, 24, 38, 12)
MAX_FINDINGS = 50


def render(verdict: Verdict, *, colour: bool = False) -> str:
    """The whole report, ending in a newline.

    Args:
        verdict: what `verify` returned.
        colour: whether verdicts are coloured; only for a terminal.
    """
    rows = [
        (claim.id, claim.model, claim.criterion, claim.paper, claim.measured, claim.verdict)
        for claim in verdict.claims
    ]
    lines = _table(rows, colour) if rows else ["no claims: no stage of this run can be judged"]
    if verdict.findings:
        lines += ["", f"findings ({len(verdict.findings)}):"]
        lines += [finding_line(finding) for finding in verdict.findings[:MAX_FINDINGS]]
        if len(verdict.findings) > MAX_FINDINGS:
            lines.append(f"  and {len(verdict.findings) - MAX_FINDINGS} more (--json has them all)")
    counts = verdict_counts(verdict.claims)
    checked = (
        f"{verdict.files} files, {verdict.bytes} bytes, {verdict.records} records, "
        f"{verdict.raw_logits} rows of raw logits checked"
    )
    if verdict.programs is not None:
        checked += f"; {verdict.programs} programs run again"
    if verdict.programs_reason is not None:
        checked += f" ({printable(verdict.programs_reason, limit=500)})"
    apart = ", ".join(verdict.not_compared)
    uncompared = [f"of verdict.json not compared: {printable(apart, limit=4000)}"] if apart else []
    outcome = (
        f"{verdict.status}: {counts['holds']} claims hold, {counts['fails']} fail, "
        f"{counts['not run here']} not run here; {len(verdict.findings)} findings"
    )
    lines += [
        "",
        checked,
        *uncompared,
        f"inputs {verdict.inputs_sha256}",
        f"run    {verdict.run_sha256 or 'not sealed'}",
        outcome,
    ]
    return "\n".join(lines) + "\n"


def finding_line(finding: Finding) -> str:
    """One finding on one line, whatever its file name holds."""
    return f"  {finding.severity}: {printable(finding.file)}: {printable(finding.message)}"


def _table(rows: Sequence[tuple[str, ...]], colour: bool) -> list[str]:
    widths = [
        min(limit, max(len(HEAD[i]), *(len(row[i]) for row in rows)))
        for i, limit in enumerate(_WIDEST)
    ]
    rule = "  ".join("-" * width for width in widths)
    lines = [*_row(HEAD, widths), rule]
    for row in rows:
        cells = _row(tuple(printable(cell, limit=1000) for cell in row), widths)
        if colour:
            word = row[-1]
            cells[0] = cells[0].removesuffix(word) + _COLOURS.get(word, "") + word + _RESET
        lines += cells
    return [*lines, rule]


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    wrapped = [
        textwrap.wrap(cell, width, break_long_words=True) or [""]
        for cell, width in zip(cells, widths, strict=True)
    ]
    height = max(map(len, wrapped))
    return [
        "  ".join(
            (parts[line] if line < len(parts) else "").ljust(width)
            for parts, width in zip(wrapped, widths, strict=True)
        ).rstrip()
        for line in range(height)
    ]
