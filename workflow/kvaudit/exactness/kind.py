"""The stage exactness as the verifier knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvaudit.exactness import claims as claims
from kvaudit.exactness import consistency, expected, summary, tables
from kvaudit.exactness.records import KINDS, Records, typed
from kvaudit.stagekind import Problem, StageKind


def _check(subject: str, records: Records, inputs: Mapping[str, Any]) -> list[Problem]:
    found = consistency.check_records(subject, records, inputs)
    return found + expected.check(subject, records, inputs)


KIND = StageKind(
    name="exactness",
    records=KINDS,
    summary_kind="summary",
    summarise=summary.summarise,
    check=_check,
    typed=typed,
    configuration_problems=expected.section_problems,
    raw_digests=consistency.raw_digests,
    check_raw=consistency.check_raw,
    tables=tables.SOURCES,
    check_table=tables.check_samples,
)
