"""The stage cost as the verifier knows it."""

from __future__ import annotations

from kvaudit.cost import claims as claims
from kvaudit.cost import expected, plots, summary
from kvaudit.cost.records import KINDS, typed
from kvaudit.stagekind import StageKind

KIND = StageKind(
    name="cost",
    records=KINDS,
    summary_kind="cost-summary",
    summarise=summary.summarise,
    check=expected.check,
    typed=typed,
    configuration_problems=expected.section_problems,
    draw=plots.draw,
)
