"""A comparison of two runs as plain text. This module must not compare, and must not read files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvaudit.diff import ClaimChange, Comparison, Fields, Rows
from kvaudit.errors import printable
from kvaudit.readings import Difference

SHOWN = 8
"""Fields of one document that are printed; --json has more."""


def render(comparison: Comparison) -> str:
    """The whole report, ending in a newline; its last line says whether it matters."""
    lines = [
        *(_run(comparison, which) for which in (0, 1)),
        *_section("inputs", map(_fields, comparison.inputs)),
        *_section("claims", map(_claim, comparison.claims)),
        *_section("stages", ([f"{name}: only in {run}"] for name, run in comparison.stages)),
        *_section("records", map(_rows, comparison.records)),
        *_section("summaries", map(_fields, comparison.summaries)),
        "",
    ]
    if comparison.unjudged:
        lines.append(
            f"up to {comparison.unjudged} claims were not judged: no program was run (--programs)"
        )
    if any(comparison.findings):
        lines.append(
            f"{comparison.findings[0]} and {comparison.findings[1]} findings of the verifier: "
            "what was compared is not sound evidence (kvaudit verify names them)"
        )
    lines.append(_outcome(comparison))
    return "\n".join(printable(line, limit=500) for line in lines) + "\n"


def _run(comparison: Comparison, which: int) -> str:
    sha256 = comparison.run_sha256[which] or "not sealed"
    found = comparison.findings[which]
    return f"{'ab'[which]}  {sha256}  {comparison.status[which]}" + (
        f", {found} findings" if found else ""
    )


def _outcome(comparison: Comparison) -> str:
    if not comparison.same:
        changed = sum(claim.matters for claim in comparison.claims)
        rows = sum(rows.substance for rows in comparison.records)
        return (
            f"the runs differ in substance: {sum(i.substance for i in comparison.inputs)} fields "
            f"of the inputs, {changed} verdicts, {rows} records"
        )
    documents: tuple[Fields | Rows, ...] = (
        *comparison.inputs,
        *comparison.records,
        *comparison.summaries,
    )
    if any(document.readings for document in documents):
        return "the same in substance: only readings of clock and machine differ"
    return "the same"


def _section(title: str, entries: Iterable[Iterable[str]]) -> Iterable[str]:
    lines = [line for entry in entries for line in entry]
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _fields(fields: Fields) -> Iterable[str]:
    yield f"{fields.name}: {_counts(fields.substance, fields.readings)}"
    shown = [one for one in fields.differences if not one.reading] or list(fields.differences)
    yield from (f"  {_said(one)}" for one in shown[:SHOWN])
    if len(shown) > SHOWN:
        yield f"  and {len(shown) - SHOWN} more"


def _claim(change: ClaimChange) -> Iterable[str]:
    verdicts = ["absent" if one is None else one[0] for one in (change.a, change.b)]
    if change.matters:
        yield f"{change.id} of {change.model}: {verdicts[0]} -> {verdicts[1]}"
    else:
        yield f"{change.id} of {change.model}: {verdicts[0]} in both, measured otherwise"
    for name, one in (("a", change.a), ("b", change.b)):
        if one is not None:
            yield f"  {name}: {one[1]}"


def _rows(rows: Rows) -> Iterable[str]:
    counts = [("absent" if n is None else f"{n:,}") for n in (rows.rows_a, rows.rows_b)]
    size = f"{counts[0]} rows" if counts[0] == counts[1] else f"{counts[0]} and {counts[1]} rows"
    yield f"{rows.file}: {size}; {_counts(rows.substance, rows.readings)}"
    for line, found in rows.first:
        for one in found[:SHOWN]:
            yield f"  line {line}, {_said(one)}"


def _counts(substance: int, only_readings: int) -> str:
    parts = []
    if substance:
        parts.append(f"{substance:,} of substance")
    if only_readings:
        parts.append(f"{only_readings:,} in readings alone")
    return ", ".join(parts)


def _said(one: Difference) -> str:
    return f"{one.path or 'the whole'}: {_value(one.a)} -> {_value(one.b)}"


def _value(value: Any) -> str:
    return printable(value if isinstance(value, str) else repr(value), limit=80)
