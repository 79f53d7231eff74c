"""The stage replay as the verifier knows it."""

from __future__ import annotations

from kvaudit.replay import check, plan, summary
from kvaudit.replay import claims as claims
from kvaudit.replay.records import KINDS, typed
from kvaudit.stagekind import StageKind

KIND = StageKind(
    name="replay",
    records=KINDS,
    summary_kind="replay-summary",
    summarise=summary.summarise,
    check=check.check,
    typed=typed,
    configuration_problems=plan.section_problems,
    raw_digests=check.raw_digests,
    check_raw=check.check_raw,
)
