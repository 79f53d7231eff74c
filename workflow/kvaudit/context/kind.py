"""The stage context as the verifier knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvaudit.context import claims as claims
from kvaudit.context import consistency, expected, plan, plots, summary
from kvaudit.context.records import KINDS
from kvaudit.stagekind import Problem, Rows, StageKind


def _check(subject: str, rows: Rows, inputs: Mapping[str, Any]) -> list[Problem]:
    found = consistency.check_records(subject, rows, inputs)
    return found + expected.check(subject, rows, inputs)


KIND = StageKind(
    name="context",
    records=KINDS,
    summary_kind="context-summary",
    summarise=summary.summarise,
    check=_check,
    configuration_problems=plan.section_problems,
    draw=plots.draw,
)
