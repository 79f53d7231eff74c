"""Checks one finished exactness stage: records, summary, tables, raw logits, claims.

Reads only files whose digest has been found intact, and hashes them again as it reads. This
module must not know the criteria of the claims.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvaudit import claims, consistency, digests, expected, records, stats, summary, tables
from kvaudit.chain import Finding
from kvaudit.errors import UnusableInput
from kvaudit.safefs import SafeRoot

SUMMARY = "summary.json"
MAX_RECORD_BYTES = 64 * 1024 * 1024
MAX_LOGITS_BYTES = 64 * 1024 * 1024
_LOGITS = re.compile(r"logits/([0-9a-f]{64})\.f32\Z")


@dataclass(frozen=True)
class StageResult:
    """What was found in one stage, and its claims."""

    findings: tuple[Finding, ...]
    claims: tuple[claims.Claim, ...]
    records: int
    raw_logits: int


def check_stage(
    root: SafeRoot,
    folder: str,
    stage: Mapping[str, Any],
    inputs: Mapping[str, Any],
    intact: Mapping[str, str],
) -> StageResult:
    """Checks one stage.

    Args:
        root: the run directory.
        folder: the stage's folder in it.
        stage: its manifest.
        inputs: the inputs manifest.
        intact: {path in the run directory: SHA-256} of the outputs that are there undamaged.

    Raises:
        UnusableInput: a record file is no canonical JSON Lines of its schema.
    """
    checker = _Checker(root, folder, stage, inputs, intact)
    return checker.run()


class _Checker:
    def __init__(
        self,
        root: SafeRoot,
        folder: str,
        stage: Mapping[str, Any],
        inputs: Mapping[str, Any],
        intact: Mapping[str, str],
    ) -> None:
        self._root = root
        self._folder = folder
        self._stage = stage
        self._inputs = inputs
        self._intact = intact
        self._findings: list[Finding] = []
        self._vocabularies: set[int] = set()
        self._rows_read: set[str] = set()

    def run(self) -> StageResult:
        outputs = self._stage["outputs"]
        for name in (*records.KINDS, *tables.SOURCES, SUMMARY):
            if name not in outputs:
                self._report("incomplete", name, "is not among the outputs of its stage")
        for name in sorted(outputs):
            known = name in records.KINDS or name in tables.SOURCES or name == SUMMARY
            if not known and not _LOGITS.match(name):
                self._report("fails", name, "is listed, but nothing reads such a file")
        rows = {
            name: records.parse(
                self._read(name, MAX_RECORD_BYTES), kind, where=f"{self._folder}/{name}"
            )
            for name, kind in records.KINDS.items()
            if self._usable(name)
        }
        self._check_tables(rows)
        subject = self._stage["subject"]
        if len(rows) != len(records.KINDS):
            lost = ", ".join(sorted({*records.KINDS} - {*rows}))
            judged = claims.without_evidence(self._stage["stage"], subject, f"not usable: {lost}")
            return StageResult(tuple(self._findings), judged, sum(map(len, rows.values())), 0)
        typed = records.typed(rows)
        self._extend(consistency.check_records(subject, typed, self._inputs))
        self._extend(expected.check(subject, typed, self._inputs))
        self._check_counts(typed)
        self._check_summary(subject, typed)
        self._check_logits(typed)
        disagreements = consistency.check_raw(typed, self._logits)
        self._extend(disagreements)
        evidence = claims.Evidence(subject, typed, len(self._rows_read), len(disagreements))
        judged = claims.judge(self._stage["stage"], evidence)
        return StageResult(tuple(self._findings), judged, len(typed), len(self._rows_read))

    def _check_counts(self, typed: records.Records) -> None:
        kept = sum(sample.raw is not None for sample in typed.samples)
        planned = self._stage["parameters"]
        n_samples, n_raw = planned.get("samples"), planned.get("raw_samples")
        if isinstance(n_samples, int) and isinstance(n_raw, int):
            n_raw = min(n_raw, n_samples)
        for key, found, said in (
            ("samples", len(typed.samples), n_samples),
            ("raw_samples", kept, n_raw),
        ):
            if said != found:
                message = f"{key}: {found} recorded, the stage's parameters say {said!r}"
                self._report("fails", consistency.SAMPLES, message)

    def _check_summary(self, subject: str, typed: records.Records) -> None:
        if not self._usable(SUMMARY):
            return
        if self._read(SUMMARY, MAX_RECORD_BYTES) != summary.summary_bytes(subject, typed):
            self._report("fails", SUMMARY, "is not what the records make")

    def _check_tables(self, rows: Mapping[str, list[dict[str, Any]]]) -> None:
        for name, source in tables.SOURCES.items():
            if source in rows and self._usable(name):
                problem = tables.check_samples(
                    self._read(name, tables.MAX_TABLE_BYTES), rows[source]
                )
                if problem is not None:
                    self._report("fails", name, problem)

    def _check_logits(self, typed: records.Records) -> None:
        """Every named row is listed under its own digest, every listed one is named."""
        named = consistency.raw_digests(typed)
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

    def _extend(self, problems: list[consistency.Problem]) -> None:
        for problem in problems:
            self._report("fails", problem.file, problem.message)

    def _report(self, severity: Any, name: str, message: str) -> None:
        self._findings.append(Finding(severity, f"{self._folder}/{name}", message))
