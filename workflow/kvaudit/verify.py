"""Checks a run directory: every digest, statistic and claim recomputed from what lies in it.

`verify` reads only beneath the directory, follows no link and trusts nothing but the schemas. It
executes nothing but the programs that a stage records, and those in `kvaudit.sandbox` alone. This
module must not know how a stage computes, and imports no engine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kvaudit import atomic, canonical, chain, claims, manifest, schemas, stagekinds
from kvaudit.chain import FAILED, INCOMPLETE, VERIFIED, Finding
from kvaudit.claims import Claim
from kvaudit.errors import UnusableInput
from kvaudit.safefs import Listing, SafeRoot
from kvaudit.stagecheck import UNCOMPUTABLE, StageResult, check_stage, rerun_findings
from kvaudit.stagekind import Budget

# What is made from a finished run; the attestation and its stamp are for `kvaudit.attest` to check.
NOT_EVIDENCE = (manifest.VERDICT, manifest.ATTESTATION, manifest.ATTESTATION_STAMP)
_About = tuple[str, str]
"""Of a claim: its id and its model."""
_STATUS = {VERIFIED: "verified", FAILED: "failed", INCOMPLETE: "incomplete"}


@dataclass(frozen=True)
class Verdict:
    """What was found; a function of the run directory, and of whether programs can be run here.

    `programs` counts the recorded programs that were run again, None where no stage has any;
    `programs_reason` says why not all were, and is None where they were. `not_compared` names the
    claims of a verdict.json that rest on programs and were judged with programs on one side alone:
    what it says of them is what the records say, and was otherwise not confirmed here. `undecided`
    are those of the findings that leave open how programs end, on another release of Python.

    `exit_code` is 0 (verified), 1 (evidence or a claim fails) or 3 (incomplete); unusable input
    is an exception instead.
    """

    inputs_sha256: str
    run_sha256: str | None
    files: int
    bytes: int
    records: int
    raw_logits: int
    claims: tuple[Claim, ...]
    findings: tuple[Finding, ...]
    programs: int | None = None
    programs_reason: str | None = None
    not_compared: tuple[str, ...] = ()
    undecided: tuple[Finding, ...] = field(default=(), compare=False)

    @property
    def exit_code(self) -> int:
        """0, 1 or 3; a failure outweighs an absence."""
        failed = any(claim.verdict == "fails" for claim in self.claims)
        return FAILED if failed else chain.exit_code(self.findings)

    @property
    def status(self) -> str:
        """`verified`, `failed` or `incomplete`."""
        return _STATUS[self.exit_code]

    def to_json(self) -> dict[str, Any]:
        """The verdict as verdict.json holds it (schema verdict.v1.json)."""
        rerun = {"programs_rerun": self.programs, "rerun_reason": self.programs_reason}
        return {
            "kind": "verdict",
            "version": 1,
            "status": self.status,
            "exit_code": self.exit_code,
            "inputs_sha256": self.inputs_sha256,
            "run_sha256": self.run_sha256,
            "evidence": {
                "files": self.files,
                "bytes": self.bytes,
                "records": self.records,
                "raw_logits": self.raw_logits,
                **({} if self.programs is None else rerun),
                **({"not_compared": [*self.not_compared]} if self.not_compared else {}),
            },
            "claims": [asdict(claim) for claim in self.claims],
            "findings": [asdict(finding) for finding in self.findings],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Verdict:
        """The verdict out of `to_json`, whose value conforms to its schema."""
        evidence = value["evidence"]
        return cls(
            inputs_sha256=value["inputs_sha256"],
            run_sha256=value["run_sha256"],
            files=evidence["files"],
            bytes=evidence["bytes"],
            records=evidence["records"],
            raw_logits=evidence["raw_logits"],
            claims=tuple(Claim(**claim) for claim in value["claims"]),
            findings=tuple(Finding(**finding) for finding in value["findings"]),
            programs=evidence.get("programs_rerun"),
            programs_reason=evidence.get("rerun_reason"),
            not_compared=tuple(evidence.get("not_compared", ())),
        )


def reported(verdict: Verdict, failing: Sequence[str]) -> tuple[int, str]:
    """The exit code where claims are reported as failing, and a sentence about them.

    Args:
        verdict: of a run.
        failing: `CLAIM:MODEL` each; these claims and no others are to fail, where they are run.
    """
    said = {f"{claim.id}:{claim.model}": claim.verdict for claim in verdict.claims}
    found = {name for name, outcome in said.items() if outcome == "fails"}
    more = sorted(found - {*failing})
    fewer = sorted(name for name in {*failing} - found if said.get(name) != "not run here")
    if more or fewer:
        words = [f"not reported as failing: {', '.join(more)}"] if more else []
        words += [f"reported as failing, but not so: {', '.join(fewer)}"] if fewer else []
        return chain.FAILED, "; ".join(words)
    code = chain.exit_code(verdict.findings)
    return code, f"fail as reported: {', '.join(sorted(found)) or 'none was run here'}"


def verify(run_folder: str | Path, *, check_verdict: bool = True, programs: bool = True) -> Verdict:
    """Verifies a run directory.

    Args:
        run_folder: the directory that holds inputs.manifest.json.
        check_verdict: whether a verdict.json in it must equal the one recomputed, byte for byte;
            where programs were run on one of the two machines alone, but for what is measured by
            the claims that rest on them, which the verdict then names.
        programs: whether recorded programs are run again, isolated. Without it, or where this
            machine cannot isolate a program, the claims that rest on them are `not run here`.

    Raises:
        UnusableInput: something in the directory cannot be read as evidence at all: a link or
            device, a name that is not UTF-8, a manifest or record that is no canonical JSON of
            its schema, a length beyond its bound. Names the file.
        EvidenceIncomplete: the directory has no inputs manifest.
    """
    with SafeRoot(run_folder) as root:
        listing = root.walk()
        documents = chain.read(root, listing)
        findings = list(documents.findings)
        findings += _unlisted(listing, documents)
        intact, hashed = hash_outputs(root, listing, documents)
        findings += hashed
        budget = Budget()
        results = [
            check_stage(
                root, folder, stage, documents.inputs, intact, programs=programs, budget=budget
            )
            for folder, stage in documents.stages.items()
        ]
        verdict = _judge(listing, documents, results, findings)
        if check_verdict and manifest.VERDICT in listing.files:
            found = root.read(manifest.VERDICT, max_bytes=manifest.MAX_MANIFEST_BYTES)
            if found != verdict_bytes(verdict):
                recorded = _as_recorded(documents, results)
                apart = _differing_elsewhere(found, verdict, intact, recorded)
                if apart is None:
                    message = "is not what the verifier finds"
                    changed = Finding("fails", manifest.VERDICT, message)
                    return _judge(listing, documents, results, [*findings, changed])
                verdict = replace(verdict, not_compared=apart)
    return verdict


def verdict_bytes(verdict: Verdict) -> bytes:
    """The bytes of verdict.json: canonical JSON and one newline."""
    value = verdict.to_json()
    schemas.validate(value, "verdict", where=manifest.VERDICT)
    return canonical.dumps(value) + b"\n"


def _differing_elsewhere(
    found: bytes, verdict: Verdict, intact: Mapping[str, str], recorded: Mapping[_About, Claim]
) -> tuple[str, ...] | None:
    """The claims of a verdict.json that programs decide, and that were run on one machine alone.

    Args:
        found: bytes of verdict.json.
        verdict: of this machine.
        intact: the outputs that are there undamaged: what is incomplete of those is that programs
            leave something undecided on one machine.
        recorded: the claims of stages whose programs were left out here, judged as recorded; what
            the other side measured for them must be that.

    Returns:
        Them, or None where it differs by more: then it is not the verdict on this run.
    """
    try:
        value = canonical.loads(
            found, where=manifest.VERDICT, max_bytes=manifest.MAX_MANIFEST_BYTES
        )
        schemas.validate(value, "verdict", where=manifest.VERDICT)
        other = Verdict.from_json(value)
        if found != verdict_bytes(other):
            return None
    except UnusableInput:
        return None
    if other.programs_reason == verdict.programs_reason or len(other.claims) != len(verdict.claims):
        return None
    apart: list[str] = []
    alike: list[Claim] = []
    for mine, theirs in zip(verdict.claims, other.claims, strict=True):
        if theirs != mine and theirs in _excused(mine, theirs, recorded):
            apart.append(f"{mine.id} {mine.model}")
            theirs = mine
        alike.append(theirs)

    def settled(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(f for f in findings if f.severity != "incomplete" or f.file not in intact)

    same = replace(
        other,
        findings=settled(other.findings),
        claims=tuple(alike),
        programs=verdict.programs,
        programs_reason=verdict.programs_reason,
    )
    here = replace(verdict, findings=settled(verdict.findings))
    return tuple(apart) if here == same else None


def _as_recorded(documents: chain.Documents, results: Iterable[StageResult]) -> dict[_About, Claim]:
    """The claims of the stages whose programs were left out, as they are if those end as recorded.

    Where nothing can be computed there are none, so that nothing is taken for them.
    """
    found: dict[_About, Claim] = {}
    for stage, result in zip(documents.stages.values(), results, strict=True):
        if result.unconfirmed is not None:
            with contextlib.suppress(*UNCOMPUTABLE):
                judged = claims.judge(stage["stage"], result.unconfirmed)
                found |= {(claim.id, claim.model): claim for claim in judged}
    return found


def _excused(mine: Claim, theirs: Claim, recorded: Mapping[_About, Claim]) -> tuple[Claim, ...]:
    """What a claim may be on a machine that ran other programs, or none."""
    made = [recorded[mine.id, mine.model]] if (mine.id, mine.model) in recorded else []
    if theirs.measured.startswith(claims.PROGRAMS_NOT_RUN) and _rests_on_programs(mine):
        made.append(replace(mine, measured=theirs.measured, verdict="not run here"))
    return tuple(made) if "not run here" in (mine.verdict, theirs.verdict) else ()


def _rests_on_programs(claim: Claim) -> bool:
    """Whether a claim is one that is left unjudged without programs."""
    return any(
        rule.on_programs
        for stage in stagekinds.KINDS
        for rule in claims.rules(stage)
        if (rule.id, rule.title) == (claim.id, claim.title)
    )


def write_verdict(run_folder: str | Path, verdict: Verdict) -> None:
    """Writes verdict.json into the run directory, atomically; the one file the verifier writes."""
    atomic.write_bytes(Path(run_folder) / manifest.VERDICT, verdict_bytes(verdict))


def _judge(
    listing: Listing,
    documents: chain.Documents,
    results: Iterable[StageResult],
    findings: Iterable[Finding],
) -> Verdict:
    results = tuple(results)
    files = {path: size for path, size in listing.files.items() if path not in NOT_EVIDENCE}
    reruns = [result.rerun for result in results if result.rerun is not None]
    open_ = {
        finding
        for folder, result in zip(documents.stages, results, strict=True)
        if result.rerun is not None
        for finding in rerun_findings(folder, replace(result.rerun, problems=()))
    }
    every = {*findings, *(finding for result in results for finding in result.findings)}
    return Verdict(
        inputs_sha256=documents.inputs_sha256,
        run_sha256=documents.run_sha256,
        files=len(files),
        bytes=sum(files.values()),
        records=sum(result.records for result in results),
        raw_logits=sum(result.raw_logits for result in results),
        claims=tuple(claim for result in results for claim in result.claims),
        findings=tuple(sorted(every, key=_order)),
        programs=sum(rerun.programs for rerun in reruns) if reruns else None,
        programs_reason=next((rerun.reason for rerun in reruns if rerun.reason), None),
        undecided=tuple(sorted(open_, key=_order)),
    )


def _order(finding: Finding) -> tuple[str, bool, str, str]:
    """Manifests first within a severity: what is wrong there explains much of the rest."""
    return (
        finding.severity,
        not finding.file.endswith(".manifest.json"),
        finding.file,
        finding.message,
    )


def _unlisted(listing: Listing, documents: chain.Documents) -> list[Finding]:
    """Files and folders that no manifest accounts for."""
    listed = {manifest.INPUTS, manifest.RUN, *NOT_EVIDENCE, *documents.manifests}
    for folder, stage in documents.stages.items():
        listed |= {f"{folder}/{path}" for path in stage["outputs"]}
    folders = {
        "/".join(parts[:end])
        for parts in (path.split("/") for path in listed)
        for end in range(1, len(parts))
    }
    unread = tuple(f"{folder}/" for folder in documents.unreadable)
    findings = []
    for path in sorted({*listing.files} - listed):
        if not path.startswith(unread):
            findings.append(Finding("fails", path, "is not listed in any manifest"))
    for path in sorted(listing.folders - folders):
        if not f"{path}/".startswith(unread):
            findings.append(Finding("fails", path, "is a folder that no manifest accounts for"))
    return findings


def hash_outputs(
    root: SafeRoot, listing: Listing, documents: chain.Documents
) -> tuple[dict[str, str], list[Finding]]:
    """Hashes all listed outputs in parallel: {path: digest} of the intact ones, and the rest."""
    outputs: dict[str, Mapping[str, Any]] = {
        f"{folder}/{path}": entry
        for folder, stage in documents.stages.items()
        for path, entry in stage["outputs"].items()
    }
    findings: list[Finding] = []
    work: list[str] = []
    left = manifest.MAX_LISTED_BYTES
    for path, entry in sorted(outputs.items()):
        size = listing.files.get(path)
        if size is None:
            findings.append(Finding("incomplete", path, "is listed but absent"))
        elif size != entry["bytes"]:
            # Never read: a sparse file of any length costs nothing this way.
            message = f"has {size} bytes, its manifest says {entry['bytes']}"
            findings.append(Finding("fails", path, message))
        elif size > left:
            message = f"lies beyond the {manifest.MAX_LISTED_BYTES} bytes that are read of one run"
            findings.append(Finding("fails", path, message))
        else:
            left -= size
            work.append(path)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        found = pool.map(
            lambda path: root.sha256(path, expected_bytes=outputs[path]["bytes"]), work
        )
        for path, digest in zip(work, found, strict=True):
            if digest != outputs[path]["sha256"]:
                findings.append(Finding("fails", path, "does not have its listed SHA-256"))
    damaged = {finding.file for finding in findings}
    intact = {path: entry["sha256"] for path, entry in outputs.items() if path not in damaged}
    return intact, findings
