"""What differs between two runs, and whether it matters.

Both runs are verified first, and the verifier's findings are counted. Then their inputs, claims,
records and summaries are compared field by field. A difference is one of *substance*, or one of
*circumstance*: a reading of the machine (`readings`), a date, a host's load, the release of Python
or of the system. Two runs are the same in substance if they used the same inputs, judge every claim
alike, and recorded the same but for readings. This module must not know any stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvaudit import canonical, chain, claims, readings
from kvaudit.claims import Claim
from kvaudit.readings import Difference
from kvaudit.safefs import SafeRoot
from kvaudit.stagecheck import MAX_RECORD_BYTES
from kvaudit.stagekind import SUMMARY
from kvaudit.stagekinds import KINDS
from kvaudit.verify import Verdict, verify

KEPT = 5
"""Differing rows of one record file that are kept with their fields."""
KEPT_FIELDS = 200
"""Differing fields that are kept of one document; the rest is counted."""


@dataclass(frozen=True)
class Fields:
    """Differing fields of one document: the first of substance, the first readings, and counts."""

    name: str
    substance: int
    readings: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class ClaimChange:
    """A claim that is judged or measured otherwise; None where a run does not make it.

    `matters` is whether the verdict changed; a measured text alone may differ by its timings.
    """

    id: str
    model: str
    a: tuple[str, str] | None
    b: tuple[str, str] | None
    matters: bool


@dataclass(frozen=True)
class Rows:
    """One record file: how many rows there are, and in how many the two runs differ.

    `substance` counts rows that differ in a field that is no reading, rows that one run lacks
    among them; `readings` counts those that differ in readings alone. `first` are the first rows
    of substance, by line.
    """

    file: str
    rows_a: int | None
    rows_b: int | None
    substance: int
    readings: int
    first: tuple[tuple[int, tuple[Difference, ...]], ...]


@dataclass(frozen=True)
class Comparison:
    """What differs between the runs a and b.

    `findings` counts what the verifier found wrong or absent in each, which no comparison mends;
    at most `unjudged` claims were not judged only because no program was run here.
    """

    status: tuple[str, str]
    findings: tuple[int, int]
    run_sha256: tuple[str | None, str | None]
    inputs: tuple[Fields, ...]
    claims: tuple[ClaimChange, ...]
    unjudged: int
    stages: tuple[tuple[str, str], ...]
    records: tuple[Rows, ...]
    summaries: tuple[Fields, ...]

    @property
    def same(self) -> bool:
        """Whether nothing of substance differs."""
        documents: tuple[Fields | Rows, ...] = (*self.inputs, *self.summaries, *self.records)
        return (
            not self.stages
            and self.status[0] == self.status[1]
            and not any(document.substance for document in documents)
            and not any(claim.matters for claim in self.claims)
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object for `kvaudit diff --json`."""
        return {"same_in_substance": self.same, **asdict(self)}


def diff(run_a: str | Path, run_b: str | Path, *, programs: bool = False) -> Comparison:
    """Compares two runs.

    Args:
        run_a: a run directory.
        run_b: the other.
        programs: whether recorded programs are run again in both; claims that rest on them are
            not judged otherwise, their records are compared all the same.

    Raises:
        UnusableInput: one of them cannot be read as evidence at all.
        EvidenceIncomplete: one of them has no inputs manifest.
    """
    verdicts = [verify(run, check_verdict=False, programs=programs) for run in (run_a, run_b)]
    with SafeRoot(run_a) as root_a, SafeRoot(run_b) as root_b:
        a, b = _Run(root_a), _Run(root_b)
        folders = sorted({*a.stages} & {*b.stages})
        stages = [(folder, "a") for folder in sorted({*a.stages} - {*b.stages})]
        stages += [(folder, "b") for folder in sorted({*b.stages} - {*a.stages})]
        return Comparison(
            status=(verdicts[0].status, verdicts[1].status),
            findings=(len(verdicts[0].findings), len(verdicts[1].findings)),
            run_sha256=(verdicts[0].run_sha256, verdicts[1].run_sha256),
            inputs=tuple(_inputs(a, b)),
            claims=tuple(_claims(*verdicts)),
            unjudged=_unjudged(verdicts, programs),
            stages=tuple(stages),
            records=tuple(rows for folder in folders for rows in _records(a, b, folder)),
            summaries=tuple(_summaries(a, b, folders)),
        )


class _Run:
    """A run that has been verified: its manifests, and its documents as far as they are usable."""

    def __init__(self, root: SafeRoot) -> None:
        self._root = root
        self._listing = root.walk()
        documents = chain.read(root, self._listing)
        self.inputs = documents.inputs
        self.stages = documents.stages

    def sha256(self, folder: str, name: str) -> str | None:
        """The listed digest of a file that is there."""
        entry = self.stages[folder]["outputs"].get(name)
        there = entry is not None and f"{folder}/{name}" in self._listing.files
        return entry["sha256"] if there else None

    def rows(self, folder: str, name: str) -> list[dict[str, Any]] | None:
        """The rows of a record file; None where it is absent."""
        path = f"{folder}/{name}"
        if path not in self._listing.files:
            return None
        return canonical.loads_lines(self._root.read(path, max_bytes=MAX_RECORD_BYTES), path)

    def document(self, folder: str, name: str) -> Any:
        """A JSON document; an empty object where it is absent."""
        path = f"{folder}/{name}"
        if path not in self._listing.files:
            return {}
        return canonical.loads(self._root.read(path, max_bytes=MAX_RECORD_BYTES), where=path)


def _inputs(a: _Run, b: _Run) -> Iterator[Fields]:
    """Configuration, source, models, profiles and registration matter, and so do locks and
    packages; dates, the commit's name beside an equal tree, Python and platform do not.
    """
    for name in ("configuration", "models", "profiles", "registration"):
        pair = [_named(run.inputs, name) for run in (a, b)]
        yield from _fields(name, readings.differences(pair[0], pair[1], readings.INPUTS))
    pair = [run.inputs["source"]["files"] for run in (a, b)]
    yield from _fields("source", readings.differences(pair[0], pair[1], readings.INPUTS))
    pair = [
        {key: run.inputs["environment"][key] for key in ("locks", "packages")} for run in (a, b)
    ]
    yield from _fields("environment", readings.differences(pair[0], pair[1], readings.INPUTS))
    pair = [
        {
            "created": run.inputs["created"],
            "commit": run.inputs["source"]["commit"],
            "dirty": run.inputs["source"]["dirty"],
            "python": run.inputs["environment"]["python"],
            "platform": run.inputs["environment"]["platform"],
            "stages": {
                folder: {key: stage[key] for key in ("started", "ended", "host")}
                for folder, stage in run.stages.items()
            },
        }
        for run in (a, b)
    ]
    found = readings.differences(pair[0], pair[1], readings.INPUTS)
    yield from _fields("circumstances", (_as_reading(one) for one in found))


def _named(inputs: Mapping[str, Any], name: str) -> Any:
    """A section of the inputs; models by name, so that their order is no matter."""
    if name == "models":
        return {model["name"]: model for model in inputs["models"]}
    return inputs[name] if name != "configuration" else inputs[name]["value"]


def _as_reading(found: Difference) -> Difference:
    return Difference(found.path, found.a, found.b, reading=True)


def _fields(name: str, found: Iterable[Difference]) -> Iterator[Fields]:
    """One entry, if anything differs."""
    counts = {True: 0, False: 0}
    kept: list[Difference] = []
    for one in found:
        counts[one.reading] += 1
        if counts[one.reading] <= KEPT_FIELDS:
            kept.append(one)
    if kept:
        kept.sort(key=lambda one: one.reading)
        yield Fields(name, counts[False], counts[True], tuple(kept))


def _claims(a: Verdict, b: Verdict) -> Iterator[ClaimChange]:
    def by_key(verdict: Verdict) -> dict[tuple[str, str], Claim]:
        return {(claim.model, claim.id): claim for claim in verdict.claims}

    left, right = by_key(a), by_key(b)
    for model, name in sorted({*left, *right}):
        pair = [claims.get((model, name)) for claims in (left, right)]
        said = [None if claim is None else (claim.verdict, claim.measured) for claim in pair]
        if said[0] != said[1]:
            verdicts = [None if one is None else one[0] for one in said]
            yield ClaimChange(name, model, said[0], said[1], verdicts[0] != verdicts[1])


def _unjudged(verdicts: Iterable[Verdict], programs: bool) -> int:
    """At most how many claims were not judged only because no program was run here.

    A claim of a stage with programs may be `not run here` for another reason as well.
    """
    if programs:
        return 0
    resting = {
        rule.id for stage, kind in KINDS.items() if kind.rerun for rule in claims.rules(stage)
    }
    return max(
        sum(claim.verdict == "not run here" and claim.id in resting for claim in verdict.claims)
        if verdict.programs_reason
        else 0
        for verdict in verdicts
    )


def _records(a: _Run, b: _Run, folder: str) -> Iterator[Rows]:
    for name in KINDS[a.stages[folder]["stage"]].records:
        digests = a.sha256(folder, name), b.sha256(folder, name)
        if digests[0] == digests[1] is not None:
            continue
        left, right = a.rows(folder, name), b.rows(folder, name)
        if left != right:
            yield _compared(f"{folder}/{name}", left, right)


def _compared(file: str, a: list[dict[str, Any]] | None, b: list[dict[str, Any]] | None) -> Rows:
    left, right = a or [], b or []
    substance, only_readings = abs(len(left) - len(right)), 0
    first: list[tuple[int, tuple[Difference, ...]]] = []
    for line, (one, other) in enumerate(zip(left, right, strict=False), start=1):
        if one == other:
            continue
        found = tuple(readings.differences(one, other, str(one.get("kind"))))
        matters = tuple(field for field in found if not field.reading)
        if not matters:
            only_readings += 1
            continue
        substance += 1
        if len(first) < KEPT:
            first.append((line, matters[:KEPT_FIELDS]))
    absent = (a is None) != (b is None)
    return Rows(
        file,
        None if a is None else len(a),
        None if b is None else len(b),
        substance + absent,
        only_readings,
        tuple(first),
    )


def _summaries(a: _Run, b: _Run, folders: Iterable[str]) -> Iterator[Fields]:
    for folder in folders:
        pair = [run.document(folder, SUMMARY) for run in (a, b)]
        kind = str(pair[0].get("kind")) if isinstance(pair[0], dict) else ""
        yield from _fields(f"{folder}/{SUMMARY}", readings.differences(pair[0], pair[1], kind))
