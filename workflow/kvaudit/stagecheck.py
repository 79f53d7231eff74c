"""Checks one finished stage: records, summary, tables, raw logits, programs, claims.

Reads only files whose digest has been found intact, and hashes them again as it reads. This
module must not know the criteria of the claims.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvaudit import claims, digests, records, stats
from kvaudit.chain import Finding, configuration_problems
from kvaudit.claims import Evidence
from kvaudit.errors import EvidenceIncomplete, UnusableInput, printable
from kvaudit.safefs import SafeRoot
from kvaudit.stagekind import SUMMARY, Budget, Problem, Rerun, Rows, StageKind
from kvaudit.stagekinds import KINDS

MAX_TABLE_BYTES = 256 * 1024 * 1024

MAX_RECORD_BYTES = 64 * 1024 * 1024
MAX_LOGITS_BYTES = 64 * 1024 * 1024
SWITCHED_OFF = "switched off by the caller"
UNCOMPUTABLE = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
_LOGITS = re.compile(r"logits/([0-9a-f]{64})\.f32\Z")

Judge = Callable[[str, claims.Evidence], tuple[claims.Claim, ...]]
"""(stage, evidence) -> claims of this stage, judged."""


@dataclass(frozen=True)
class StageResult:
    """What was found in one stage, and its claims."""

    findings: tuple[Finding, ...]
    claims: tuple[claims.Claim, ...]
    records: int
    raw_logits: int
    rerun: Rerun | None = None
    """Of the stage's programs; None where it records none, or nothing usable."""
    unconfirmed: Evidence | None = None
    """What the claims are judged from, as recorded; None unless programs were left out, for a
    reason that the rerun gives."""


def check_stage(
    root: SafeRoot,
    folder: str,
    stage: Mapping[str, Any],
    inputs: Mapping[str, Any],
    intact: Mapping[str, str],
    *,
    programs: bool = True,
    budget: Budget | None = None,
    judge: Judge = claims.judge,
) -> StageResult:
    """Checks one stage.

    Args:
        root: the run directory.
        folder: the stage's folder in it.
        stage: its manifest.
        inputs: the inputs manifest.
        intact: {path in the run directory: SHA-256} of the outputs that are there undamaged.
        programs: whether recorded programs are run again, isolated.
        budget: time for that, shared with the other stages; None for one of its own.
        judge: of the claims; all of the stage unless another says otherwise.

    Raises:
        UnusableInput: a record file is no canonical JSON Lines of its schema.
    """
    shared = (budget or Budget()) if programs else None
    checker = _Checker(root, folder, stage, inputs, intact, shared, judge)
    return checker.run()


def listed_rows(root: SafeRoot, folder: str, kind: StageKind, outputs: Mapping[str, Any]) -> Rows:
    """The records of a stage, which must be those that its manifest lists.

    Args:
        root: the run directory.
        folder: the stage's folder in it.
        kind: of the stage.
        outputs: of its manifest.

    Raises:
        UnusableInput: a record file is not the one that the manifest names, or not readable.
        EvidenceIncomplete: a record file is not listed, or absent.
    """
    out: Rows = {}
    for name, line in kind.records.items():
        where = f"{folder}/{name}"
        if name not in outputs:
            raise EvidenceIncomplete("a record file is not listed", where=where)
        data = root.read(where, max_bytes=MAX_RECORD_BYTES)
        if digests.sha256_bytes(data) != outputs[name]["sha256"]:
            raise UnusableInput(
                "the records are not those that the manifest names",
                where=where,
                hint="kvaudit verify says what else does not agree",
            )
        out[name] = records.parse(data, line, where=where)
    return out


def rerun_findings(folder: str, rerun: Rerun) -> list[Finding]:
    """What running the programs of a stage again found against its records, or left open."""
    return [
        *(Finding("fails", f"{folder}/{one.file}", one.message) for one in rerun.problems),
        *(Finding("incomplete", f"{folder}/{one.file}", one.message) for one in rerun.undecided),
    ]


class _Checker:
    def __init__(
        self,
        root: SafeRoot,
        folder: str,
        stage: Mapping[str, Any],
        inputs: Mapping[str, Any],
        intact: Mapping[str, str],
        budget: Budget | None,
        judge: Judge,
    ) -> None:
        self._root = root
        self._folder = folder
        self._kind = KINDS[stage["stage"]]
        self._stage = stage
        self._inputs = inputs
        self._intact = intact
        self._budget = budget
        self._judge = judge
        self._findings: list[Finding] = []
        self._vocabularies: set[int] = set()
        self._rows_read: set[str] = set()
        self._rerun_made: Rerun | None = None

    def run(self) -> StageResult:
        kind, outputs = self._kind, self._stage["outputs"]
        needed = (*kind.records, *kind.tables, SUMMARY)
        for name in needed:
            if name not in outputs:
                self._report("incomplete", name, "is not among the outputs of its stage")
        for name in sorted({*outputs} - {*needed}):
            if not _LOGITS.match(name):
                self._report("fails", name, "is listed, but nothing reads such a file")
        rows = {
            name: records.parse(
                self._read(name, MAX_RECORD_BYTES), line, where=f"{self._folder}/{name}"
            )
            for name, line in kind.records.items()
            if self._usable(name)
        }
        self._check_tables(rows)
        subject, n_records = self._stage["subject"], sum(map(len, rows.values()))
        if len(rows) != len(kind.records):
            lost = ", ".join(sorted({*kind.records} - {*rows}))
            judged = claims.without_evidence(kind.name, subject, f"not usable: {lost}")
            return StageResult(tuple(self._findings), judged, n_records, 0)
        try:
            return self._judged(kind, rows, n_records)
        except UNCOMPUTABLE as error:
            # Schemas bound what a field is, not what a stranger makes of several together.
            cause = f"{type(error).__name__}: {printable(error)}"
            if not self._findings:
                raise UnusableInput(
                    f"nothing can be computed from the records: {cause}",
                    where=self._folder,
                    hint="a record is missing, or holds values that no measurement gives",
                ) from error
            # Records that contradict each other need not make figures; the findings say what does.
            self._report("fails", SUMMARY, f"cannot be computed from these records ({cause})")
            judged = claims.without_evidence(kind.name, subject, "not usable: see the findings")
            return StageResult(
                tuple(self._findings), judged, n_records, len(self._rows_read), self._rerun_made
            )

    def _judged(
        self, kind: StageKind, rows: dict[str, list[dict[str, Any]]], n_records: int
    ) -> StageResult:
        subject = self._stage["subject"]
        typed = kind.typed(rows)
        # Nothing can be planned from a configuration of no schema; `chain` has reported it.
        if not any(configuration_problems(self._inputs)):
            self._extend(kind.check(subject, typed, self._inputs))
        self._check_summary(subject, typed)
        self._check_logits(kind.raw_digests(typed))
        disagreements = kind.check_raw(typed, self._logits)
        self._extend(disagreements)
        rerun = self._rerun(typed)
        evidence = claims.Evidence(
            subject,
            typed,
            len(self._rows_read),
            len(disagreements),
            rerun.programs if rerun else 0,
            rerun.reason if rerun else None,
        )
        judged = self._judge(kind.name, evidence)
        recorded = replace(evidence, rerun_reason=None) if evidence.rerun_reason else None
        return StageResult(
            tuple(self._findings), judged, n_records, len(self._rows_read), rerun, recorded
        )

    def _rerun(self, typed: Any) -> Rerun | None:
        if self._kind.rerun is None:
            return None
        rerun = Rerun(0, reason=SWITCHED_OFF)
        if self._budget is not None:
            rerun = self._kind.rerun(typed, self._budget)
        self._rerun_made = rerun
        self._findings += rerun_findings(self._folder, rerun)
        return rerun

    def _check_summary(self, subject: str, typed: Any) -> None:
        if not self._usable(SUMMARY):
            return
        try:
            made = self._kind.summary_bytes(subject, typed)
        except UnusableInput as error:
            if not self._findings:
                raise
            self._report("fails", SUMMARY, f"the records make none of its schema: {error}")
            return
        if self._read(SUMMARY, MAX_RECORD_BYTES) != made:
            self._report("fails", SUMMARY, "is not what the records make")

    def _check_tables(self, rows: Mapping[str, list[dict[str, Any]]]) -> None:
        check = self._kind.check_table
        for name, source in self._kind.tables.items():
            if check and source in rows and self._usable(name):
                problem = check(self._read(name, MAX_TABLE_BYTES), rows[source])
                if problem is not None:
                    self._report("fails", name, problem)

    def _check_logits(self, named: Mapping[str, str]) -> None:
        """Every named row is listed under its own digest, every listed one is named."""
        outputs = self._stage["outputs"]
        for name in sorted(outputs):
            match = _LOGITS.match(name)
            if match is None:
                continue
            if outputs[name]["sha256"] != match.group(1):
                self._report("fails", name, "its name is not its SHA-256")
            if match.group(1) not in named:
                self._report("fails", name, "no record names these logits")
        for digest, source in sorted(named.items()):
            if f"logits/{digest}.f32" not in outputs:
                message = f"is named in {source}, but not among the outputs"
                self._report("incomplete", f"logits/{digest}.f32", message)

    def _logits(self, digest: str) -> Any:
        """Raw logits by digest: float32 [n_vocab], or None where they cannot be used."""
        name = f"logits/{digest}.f32"
        if not self._usable(name) or self._stage["outputs"][name]["sha256"] != digest:
            return None
        try:
            logits = stats.read_logits(self._read(name, MAX_LOGITS_BYTES))
        except ValueError as error:
            self._report("fails", name, str(error))
            return None
        if logits.size < 5 or not np.all(np.isfinite(logits)):
            self._report("fails", name, "is not a row of at least five finite logits")
            return None
        self._vocabularies.add(logits.size)
        if len(self._vocabularies) > 1:
            self._report("fails", name, "has another length than other logits of its stage")
            return None
        self._rows_read.add(digest)
        return logits

    def _usable(self, name: str) -> bool:
        return f"{self._folder}/{name}" in self._intact

    def _read(self, name: str, max_bytes: int) -> bytes:
        path = f"{self._folder}/{name}"
        data = self._root.read(path, max_bytes=max_bytes)
        if digests.sha256_bytes(data) != self._intact[path]:
            raise UnusableInput("the file changed while it was verified", where=path)
        return data

    def _extend(self, problems: list[Problem]) -> None:
        for problem in problems:
            self._report("fails", problem.file, problem.message)

    def _report(self, severity: Any, name: str, message: str) -> None:
        self._findings.append(Finding(severity, f"{self._folder}/{name}", message))
