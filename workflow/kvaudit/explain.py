"""Walks from a claim down to the bytes that it rests on.

Claim, criterion and figure; the manifest of its stage; the record files that it was judged from,
with digests and lines; the recorded programs behind those lines; and the inputs that the stage
used. The stage is checked again on the way, so that nothing here is merely copied; programs are run
again only where that is asked for, and only those that the claim rests on. `explain_text` prints
it. This module must not know any stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvaudit import chain, claims, digests, manifest, stagekinds
from kvaudit.chain import Finding
from kvaudit.claims import Claim, Evidence, Rule
from kvaudit.errors import UnusableInput
from kvaudit.explain_trace import Ranges, Trace, judged
from kvaudit.safefs import SafeRoot
from kvaudit.stagecheck import MAX_RECORD_BYTES, check_stage, rerun_findings
from kvaudit.stagekind import Budget, Rerun
from kvaudit.verify import hash_outputs

NOT_ASKED = "not run again: --programs does, and so does `kvaudit verify`"


@dataclass(frozen=True)
class File:
    """One file that a claim rests on.

    Attributes:
        path: in the run.
        sha256: in the manifest of its stage.
        bytes: its length.
        intact: whether the file has that digest.
        rows: its lines; None where it has none.
        lines: those of them that the claim rests on; None where that is not known, so that it may
            be any.
    """

    path: str
    sha256: str
    bytes: int
    intact: bool
    rows: int | None
    lines: Ranges | None


@dataclass(frozen=True)
class Programs:
    """The recorded programs that a claim rests on.

    Attributes:
        named: by the rows that it was judged from; None where the stage does not say, so that it
            may be any of the stage's.
        rerun: of those, how many were run again.
        reason: why not all were, None where they were.
        as_recorded: the verdict, if they print what is recorded.
    """

    named: int | None
    rerun: int
    reason: str | None
    as_recorded: claims.Outcome


@dataclass(frozen=True)
class Explanation:
    """What one claim about one model rests on.

    Attributes:
        claim: judged again; `not run here` where it rests on programs that were not run again.
        folder: of its stage.
        stage_sha256: of the stage's manifest.
        run_sha256: of the run manifest that names it; None where the run is not sealed.
        inputs_sha256: of the inputs manifest that it names.
        files: that the judgement reads.
        programs: that it rests on; None where it rests on none.
        inputs: what the stage used: model, profiles, configuration, source, locks.
        findings: everything found in the stage and in the chain of manifests above it.
    """

    claim: Claim
    folder: str
    stage_sha256: str
    run_sha256: str | None
    inputs_sha256: str
    files: tuple[File, ...]
    programs: Programs | None
    inputs: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, as the verifier's, for this claim and its stage alone."""
        as_recorded = self.programs.as_recorded if self.programs else self.claim.verdict
        failed = "fails" in (self.claim.verdict, as_recorded)
        return chain.FAILED if failed else chain.exit_code(self.findings)

    def to_json(self) -> dict[str, Any]:
        """A JSON object for `kvaudit explain --json`."""
        return {**asdict(replace(self, inputs={})), "inputs": dict(self.inputs)}


class _Judge:
    """Judges one claim of a stage and notes what it was judged from, for `check_stage`.

    Attributes:
        trace: what the judgement read; None as long as nothing was judged.
        programs: that the claim rests on; None where it rests on none.
        rerun: what became of running those again.
    """

    def __init__(self, rule: Rule, run_programs: bool) -> None:
        self._rule = rule
        self._run_programs = run_programs
        self.trace: Trace | None = None
        self.programs: Programs | None = None
        self.rerun = Rerun(0)

    def __call__(self, stage: str, evidence: Evidence) -> tuple[Claim, ...]:
        claim, self.trace = judged(self._rule, replace(evidence, rerun_reason=None))
        if not self._rule.on_programs:
            return (claim,)
        kind, named = stagekinds.KINDS[stage], None
        if kind.named_programs is not None:
            named = kind.named_programs(self.trace.chosen(evidence.records), evidence.records)
            if not named:
                return (claim,)
        self.rerun = Rerun(0, reason=NOT_ASKED)
        if self._run_programs and kind.rerun is not None:
            self.rerun = kind.rerun(evidence.records, Budget(), named)
        self.programs = Programs(
            None if named is None else len(named),
            self.rerun.programs,
            self.rerun.reason,
            claim.verdict,
        )
        return (claim if self.rerun.reason is None else replace(claim, verdict="not run here"),)


def explain(
    run_folder: str | Path, claim: str, *, model: str | None = None, programs: bool = False
) -> tuple[Explanation, ...]:
    """Explains a claim, for one model or for each that it is made about.

    Args:
        run_folder: the directory that holds inputs.manifest.json.
        claim: its id, e.g. "E1".
        model: a name; all models of the run otherwise.
        programs: whether the recorded programs that it rests on are run again, isolated. Without
            it, a claim that rests on programs is `not run here`.

    Raises:
        UnusableInput: the run has no such claim, or something in it is not usable as evidence.
        EvidenceIncomplete: the directory has no inputs manifest.
    """
    with SafeRoot(run_folder) as root:
        listing = root.walk()
        documents = chain.read(root, listing)
        wanted = {
            folder: rule
            for folder, stage in documents.stages.items()
            for rule in claims.rules(stage["stage"])
            if rule.id == claim and model in (None, stage["subject"])
        }
        if not wanted:
            raise _unknown(documents, claim, model)
        stages = {folder: documents.stages[folder] for folder in wanted}
        intact, hashed = hash_outputs(root, listing, replace(documents, stages=stages))
        explained = []
        for folder, stage in stages.items():
            judge = _Judge(wanted[folder], programs)
            result = check_stage(
                root, folder, stage, documents.inputs, intact, programs=False, judge=judge
            )
            own = [finding for finding in hashed if finding.file.startswith(f"{folder}/")]
            ran = rerun_findings(folder, judge.rerun)
            found = (*documents.findings, *own, *result.findings, *ran)
            explained.append(
                Explanation(
                    claim=next(one for one in result.claims if one.id == claim),
                    folder=folder,
                    stage_sha256=_digest(root, f"{folder}/{manifest.STAGE}"),
                    run_sha256=documents.run_sha256,
                    inputs_sha256=documents.inputs_sha256,
                    files=tuple(_files(root, folder, stage, wanted[folder], intact, judge.trace)),
                    programs=judge.programs,
                    inputs=_inputs(documents.inputs, stage),
                    findings=tuple(dict.fromkeys(found)),
                )
            )
    return tuple(explained)


def _unknown(documents: chain.Documents, claim: str, model: str | None) -> UnusableInput:
    ids = {rule.id for stage in documents.stages.values() for rule in claims.rules(stage["stage"])}
    models = sorted({stage["subject"] for stage in documents.stages.values()})
    return UnusableInput(
        "the run has no such claim",
        expected=f"one of {', '.join(sorted(ids))}; model {', '.join(models)}",
        found=claim if model is None else f"{claim} of {model}",
        hint="a stage whose manifest is absent or damaged has none: `kvaudit verify` says so",
    )


def _digest(root: SafeRoot, path: str) -> str:
    return digests.sha256_bytes(root.read(path, max_bytes=manifest.MAX_MANIFEST_BYTES))


def _files(
    root: SafeRoot,
    folder: str,
    stage: Mapping[str, Any],
    rule: Rule,
    intact: Mapping[str, str],
    trace: Trace | None,
) -> Iterable[File]:
    """The files that a rule names, or else those that it was seen to read, or else all records."""
    outputs = stage["outputs"]
    read = trace.rows if trace is not None else None
    for name in rule.files or read or stagekinds.KINDS[stage["stage"]].records:
        chosen = [path for path in sorted(outputs) if path.startswith(name)]
        for path in chosen if name.endswith("/") else [name]:
            entry = outputs.get(path)
            if entry is None:
                continue  # it is among the findings
            whole = f"{folder}/{path}"
            rows = None
            if path.endswith(".jsonl") and whole in intact:
                rows = root.read(whole, max_bytes=MAX_RECORD_BYTES).count(b"\n")
            lines = None if trace is None else trace.ranges(path)
            yield File(whole, entry["sha256"], entry["bytes"], whole in intact, rows, lines)


def _inputs(inputs: Mapping[str, Any], stage: Mapping[str, Any]) -> dict[str, Any]:
    subject, source = stage["subject"], inputs["source"]
    profiles = inputs["profiles"].get(subject, {})
    return {
        "model": next((one for one in inputs["models"] if one["name"] == subject), None),
        "profiles": {name: entry["digest"] for name, entry in sorted(profiles.items())},
        "configuration": {key: inputs["configuration"][key] for key in ("name", "sha256")},
        "source": {key: source[key] for key in ("commit", "dirty", "tree_sha256")},
        "locks": dict(inputs["environment"]["locks"]),
        "registration": inputs["registration"],
        "used": dict(stage["inputs_used"]),
    }
