"""The stage position as the verifier knows it: the sum of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvaudit.position import claims as claims
from kvaudit.position import hypotheses, joined, plan, plots, relocation
from kvaudit.position.part import Part, setting
from kvaudit.stagekind import Problem, Rows, StageKind

PARTS: tuple[Part, ...] = (relocation.PART, hypotheses.PART, joined.PART)
"""A further part is entered here, with its fields in position-summary.v1.json."""

RECORDS: Mapping[str, str] = {file: line for part in PARTS for file, line in part.records.items()}


def _section_problems(section: Mapping[str, Any]) -> Iterator[str]:
    yield from plan.section_problems(section)
    yield from joined.section_problems(section)


def _check(subject: str, rows: Rows, inputs: Mapping[str, Any]) -> list[Problem]:
    found = setting(subject, inputs)
    if found is None:
        return []
    return [problem for part in PARTS for problem in part.check(found, rows)]


def _summarise(subject: str, rows: Rows) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "kind": "position-summary",
        "version": 1,
        "stage": "position",
        "subject": subject,
    }
    for part in PARTS:
        summary |= part.summarise(rows)
    return summary


KIND = StageKind(
    name="position",
    records=RECORDS,
    summary_kind="position-summary",
    summarise=_summarise,
    check=_check,
    configuration_problems=_section_problems,
    raw_digests=relocation.raw_digests,
    check_raw=relocation.check_raw,
    draw=plots.draw,
)
