"""A forger with the project's own tools, and the auditor's checks told apart.

The forger edits what he likes in a run and has `reforge` make again all that derives from it:
tables, summary, stage manifest, run manifest, verdict. Every digest then fits. `caught_by` says
which of the verifier's independent checks speak all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvaudit import atomic, canonical, chain, digests, manifest, stats, verify
from kvaudit.attest import dsse, keys, statement
from kvaudit.attest.run import check_run
from kvaudit.chain import Finding
from kvaudit.context import expected as context_plan
from kvaudit.exactness import expected as exactness_plan
from kvaudit.exactness import tables
from kvaudit.flywheel import expected as flywheel_plan
from kvaudit.flywheel import rescoring
from kvaudit.flywheel.records import PROGRAMS
from kvaudit.safefs import SafeRoot
from kvaudit.stagecheck import check_stage
from kvaudit.stagekind import SUMMARY
from kvaudit.stagekinds import KINDS

REFERENCE = Path(__file__).parents[2] / "results/reference"
MODEL = "smollm2-135m"
OTHER = "gemma-3-270m"

MANIFESTS = "manifests"
DERIVED = "derived files"
SCORES = "re-scoring"
PLAN = "plan"
LOGITS = "raw logits"
PROGRAM = "programs"
SIGNATURE = "signature"

Rows = list[dict[str, Any]]

_PLANS = {
    "exactness": exactness_plan.check,
    "context": context_plan.check,
    "flywheel": flywheel_plan.check,
}
"""Checks that draw the plan again from the configuration; the other stages have one check for all
that their records must be."""


class Snapshot:
    """A run folder as it was, held in memory; `restore` puts right what has changed since."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.files = {name: (run / name).read_bytes() for name in self._names()}
        self._marks = {name: self._mark(name) for name in self.files}

    def _names(self) -> Iterator[str]:
        for path in sorted(self.run.rglob("*")):
            if not path.is_dir() or path.is_symlink():
                yield path.relative_to(self.run).as_posix()

    def _mark(self, name: str) -> tuple[int, int, int]:
        status = (self.run / name).lstat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def restore(self) -> None:
        there = {*self._names()}
        for name in there - {*self.files}:
            (self.run / name).unlink()
        for name, data in self.files.items():
            if name not in there or self._mark(name) != self._marks[name]:
                path = self.run / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.write_bytes(data)
                self._marks[name] = self._mark(name)

    def rows(self, name: str) -> Rows:
        return [json.loads(line) for line in self.files[name].splitlines()]


# -- the forger -----------------------------------------------------------------------------------


class Forger:
    """One stage of a run in the hands of somebody who can write every file of it."""

    def __init__(self, snapshot: Snapshot, stage: str, model: str = MODEL) -> None:
        self.snapshot, self.run, self.stage, self.model = snapshot, snapshot.run, stage, model
        self.folder = f"{stage}/{model}"

    def rows(self, name: str) -> Rows:
        return self.snapshot.rows(f"{self.folder}/records/{name}.jsonl")

    def write(self, name: str, rows: Rows) -> None:
        path = self.run / self.folder / f"records/{name}.jsonl"
        path.write_bytes(canonical.dump_lines(rows))

    def edit(self, name: str, change: Callable[[Rows], object]) -> None:
        rows = self.rows(name)
        change(rows)
        self.write(name, rows)

    def replace(self, name: str, old: str, new: str) -> None:
        """One text for another in every record of a file; the digests above follow."""
        path = self.run / self.folder / f"records/{name}.jsonl"
        data = path.read_bytes()
        assert old.encode() in data
        path.write_bytes(data.replace(old.encode(), new.encode()))

    def inputs(self, change: Callable[[dict[str, Any]], object]) -> None:
        value = json.loads((self.run / manifest.INPUTS).read_bytes())
        change(value)
        value["configuration"]["sha256"] = digests.sha256_json(value["configuration"]["value"])
        value["source"]["tree_sha256"] = digests.tree_digest(value["source"]["files"])
        atomic.write_json(self.run / manifest.INPUTS, value)

    @property
    def configuration(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run / manifest.INPUTS).read_bytes())
        found: dict[str, Any] = value["configuration"]["value"]
        return found


def _rows(run: Path, folder: str) -> dict[str, Rows]:
    """The records of a stage; their schemas, which cost most, are for the verifier to ask."""
    return {
        name: [json.loads(line) for line in (run / folder / name).read_bytes().splitlines()]
        for name in KINDS[folder.split("/")[0]].records
    }


def derive(run: Path, folder: str) -> None:
    """Makes tables and summary of a stage again from its records."""
    stage, subject = folder.split("/")
    kind = KINDS[stage]
    rows = _rows(run, folder)
    atomic.write_bytes(run / folder / SUMMARY, kind.summary_bytes(subject, kind.typed(rows)))
    for name, source in kind.tables.items():
        tables.write_samples(run / folder / name, rows[source])


def reforge(run: Path, *folders: str) -> None:
    """Makes everything above the records again, so that every digest of the run fits.

    Args:
        run: the run folder.
        folders: stages whose records were edited.
    """
    for folder in folders:
        derive(run, folder)
    data = (run / manifest.INPUTS).read_bytes()
    inputs = manifest.parse(data, "inputs", where=manifest.INPUTS)
    known, configuration = manifest.registered(inputs), inputs["configuration"]["value"]
    for path in sorted(run.glob(f"*/*/{manifest.STAGE}")):
        value = manifest.read(path, "stage")
        manifest.write(
            path,
            {
                **value,
                "predecessor": digests.sha256_bytes(data),
                "inputs_used": {name: known[name] for name in value["inputs_used"]},
                "parameters": configuration[value["stage"]],
                "outputs": manifest.list_outputs(path.parent),
            },
        )
    manifest.close_run(run)
    _rewrite_verdict(run)


def _rewrite_verdict(run: Path) -> None:
    """The verdict that he would like: all that the honest one says, of his own digests."""
    path = run / manifest.VERDICT
    value = json.loads(path.read_bytes())
    files = [file for file in run.rglob("*") if file.is_file()]
    evidence = [file for file in files if file.name not in verify.NOT_EVIDENCE]
    value["inputs_sha256"] = digests.sha256_file(run / manifest.INPUTS)
    value["run_sha256"] = digests.sha256_file(run / manifest.RUN)
    value["evidence"]["files"] = len(evidence)
    value["evidence"]["bytes"] = sum(file.stat().st_size for file in evidence)
    verify.write_verdict(run, verify.Verdict.from_json(value))


def sign(run: Path, *signers: keys.PrivateKey) -> None:
    """Puts a genuine signature of the folder as it is; nothing is verified, as a liar would."""
    with SafeRoot(run) as root:
        files = statement.evidence_files(root.walk())
        found = statement.hashed(root, files)
        subjects = {name: statement.Subject(size, str(found[name])) for name, size in files.items()}
    said = statement.essentials((run / manifest.VERDICT).read_bytes())
    payload = statement.Statement(subjects, said).to_bytes()
    envelope = dsse.sign(payload, statement.PAYLOAD_TYPE, signers)
    atomic.write_bytes(run / manifest.ATTESTATION, dsse.to_bytes(envelope))


# -- the auditor ----------------------------------------------------------------------------------


def manifests(run: Path) -> tuple[Finding, ...]:
    """What is wrong with manifests, listings and digests, before any record is read."""
    with SafeRoot(run) as root:
        listing = root.walk()
        documents = chain.read(root, listing)
        _, damaged = verify.hash_outputs(root, listing, documents)
        return (*documents.findings, *verify._unlisted(listing, documents), *damaged)


def findings(run: Path, folder: str) -> tuple[Finding, ...]:
    """What the verifier finds in one stage, programs apart."""
    with SafeRoot(run) as root:
        listing = root.walk()
        documents = chain.read(root, listing)
        intact, _ = verify.hash_outputs(root, listing, documents)
        stage = documents.stages[folder]
        found = check_stage(root, folder, stage, documents.inputs, intact, programs=False)
        return found.findings


def caught_by(snapshot: Snapshot, folder: str, trusted: keys.PublicKey) -> set[str]:
    """The checks that speak against a forged stage; each of them works without the others."""
    run = snapshot.run
    stage, subject = folder.split("/")
    kind = KINDS[stage]
    caught = set()
    if manifests(run):
        caught.add(MANIFESTS)
    rows = _rows(run, folder)
    typed = kind.typed(rows)
    inputs = manifest.read(run / manifest.INPUTS, "inputs")
    planned = _PLANS[stage](subject, typed, inputs) if stage in _PLANS else []
    drawn = {(f"{folder}/{one.file}", one.message) for one in planned}
    read = {(one.file, one.message) for one in findings(run, folder)}
    raw = {(f"{folder}/{p.file}", p.message) for p in kind.check_raw(typed, _reader(run / folder))}
    made = {one for one in read if one[0].endswith((SUMMARY, ".parquet"))}
    for name, said in ((PLAN, drawn & read), (LOGITS, raw & read), (DERIVED, made)):
        if said:
            caught.add(name)
    if read - drawn - raw - made:
        caught.add(SCORES)
    if stage == "flywheel" and _programs(snapshot, folder, rows):
        caught.add(PROGRAM)
    if check_run(run, [trusted]).findings:
        caught.add(SIGNATURE)
    return caught


def _reader(folder: Path) -> Callable[[str], Any]:
    def read(digest: str) -> Any:
        path = folder / f"logits/{digest}.f32"
        return stats.read_logits(path.read_bytes()) if path.exists() else None

    return read


def _programs(snapshot: Snapshot, folder: str, rows: Mapping[str, Rows]) -> tuple[str, ...]:
    """What running the programs again finds or leaves open, of those that the forger touched."""
    before = {canonical.dumps(row) for row in snapshot.rows(f"{folder}/{PROGRAMS}")}
    touched = [row for row in rows[PROGRAMS] if canonical.dumps(row) not in before]
    made = rescoring.rerun({**rows, PROGRAMS: touched})
    assert made.reason is None or made.undecided, made.reason
    return tuple(problem.message for problem in (*made.problems, *made.undecided))
