"""The stage flywheel as the verifier knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvaudit.flywheel import claims as claims
from kvaudit.flywheel import consistency, expected, plan, plots, rescoring, summary
from kvaudit.flywheel.records import KINDS
from kvaudit.stagekind import Problem, Rows, StageKind


def _check(subject: str, rows: Rows, inputs: Mapping[str, Any]) -> list[Problem]:
    found = consistency.check_records(subject, rows, inputs)
    return found + expected.check(subject, rows, inputs)


KIND = StageKind(
    name="flywheel",
    records=KINDS,
    summary_kind="flywheel-summary",
    summarise=summary.summarise,
    check=_check,
    configuration_problems=plan.section_problems,
    rerun=rescoring.rerun,
    named_programs=rescoring.named,
    draw=plots.draw,
)
