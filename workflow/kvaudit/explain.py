"""Walks from a claim down to the bytes that it rests on.

Claim, criterion and figure; the manifest of its stage; the record files that it was judged from,
with digests and lines; and the inputs that the stage used. The stage is checked again on the way,
so that nothing here is merely copied. This module must not know any stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvaudit import chain, claims, digests, manifest, stagekinds
from kvaudit.chain import Finding
from kvaudit.claims import Claim, Rule
from kvaudit.errors import UnusableInput, printable
from kvaudit.safefs import SafeRoot
from kvaudit.stagecheck import MAX_RECORD_BYTES, check_stage
from kvaudit.verify import hash_outputs

SHOWN = 4
"""Files of one folder, such as raw logits, that are printed one by one; --json has them all."""


@dataclass(frozen=True)
class File:
    """One file that a claim rests on; `rows` are its lines, None where it has no lines."""

    path: str
    sha256: str
    bytes: int
    intact: bool
    rows: int | None


@dataclass(frozen=True)
class Explanation:
    """What one claim about one model rests on.

    Attributes:
        claim: judged again.
        folder: of its stage.
        stage_sha256: of the stage's manifest.
        run_sha256: of the run manifest that names it; None where the run is not sealed.
        inputs_sha256: of the inputs manifest that it names.
        files: that the judgement reads.
        programs: recorded programs of the stage that were run again; None where it has none.
        programs_reason: why not all were.
        inputs: what the stage used: model, profiles, configuration, source, locks.
        findings: everything found in the stage and in the chain of manifests above it.
    """

    claim: Claim
    folder: str
    stage_sha256: str
    run_sha256: str | None
    inputs_sha256: str
    files: tuple[File, ...]
    programs: int | None
    programs_reason: str | None
    inputs: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, as the verifier's, for this claim and its stage alone."""
        failed = self.claim.verdict == "fails"
        return chain.FAILED if failed else chain.exit_code(self.findings)

    def to_json(self) -> dict[str, Any]:
        """A JSON object for `kvaudit explain --json`."""
        return {**asdict(replace(self, inputs={})), "inputs": dict(self.inputs)}


def explain(
    run_folder: str | Path, claim: str, *, model: str | None = None, programs: bool = True
) -> tuple[Explanation, ...]:
    """Explains a claim, for one model or for each that it is made about.

    Args:
        run_folder: the directory that holds inputs.manifest.json.
        claim: its id, e.g. "E1".
        model: a name; all models of the run otherwise.
        programs: whether recorded programs of its stage are run again, isolated.

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
            result = check_stage(root, folder, stage, documents.inputs, intact, programs=programs)
            own = [finding for finding in hashed if finding.file.startswith(f"{folder}/")]
            rerun = result.rerun
            explained.append(
                Explanation(
                    claim=next(one for one in result.claims if one.id == claim),
                    folder=folder,
                    stage_sha256=_digest(root, f"{folder}/{manifest.STAGE}"),
                    run_sha256=documents.run_sha256,
                    inputs_sha256=documents.inputs_sha256,
                    files=tuple(_files(root, folder, stage, wanted[folder], intact)),
                    programs=rerun.programs if rerun else None,
                    programs_reason=rerun.reason if rerun else None,
                    inputs=_inputs(documents.inputs, stage),
                    findings=tuple(dict.fromkeys((*documents.findings, *own, *result.findings))),
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
) -> Iterable[File]:
    outputs = stage["outputs"]
    for name in rule.files or stagekinds.KINDS[stage["stage"]].records:
        chosen = [path for path in sorted(outputs) if path.startswith(name)]
        for path in chosen if name.endswith("/") else [name]:
            entry = outputs.get(path)
            if entry is None:
                continue  # it is among the findings
            whole = f"{folder}/{path}"
            rows = None
            if path.endswith(".jsonl") and whole in intact:
                rows = root.read(whole, max_bytes=MAX_RECORD_BYTES).count(b"\n")
            yield File(whole, entry["sha256"], entry["bytes"], whole in intact, rows)


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


def render(explanation: Explanation) -> str:
    """The walk as plain text, ending in a newline."""
    claim = explanation.claim
    lines = [
        f"{claim.id} of {claim.model}: {claim.title}",
        f"  criterion  {claim.criterion}",
        f"  paper      {claim.paper}",
        f"  measured   {claim.measured}",
        f"  verdict    {claim.verdict}",
        "",
        "judged from these files",
        *_file_lines(explanation),
    ]
    if explanation.programs is not None:
        reason = f" ({explanation.programs_reason})" if explanation.programs_reason else ""
        lines.append(f"  {explanation.programs} recorded programs run again{reason}")
    sealed = explanation.run_sha256
    lines += [
        "",
        "which these manifests bind",
        f"  {explanation.folder}/{manifest.STAGE}  sha256 {explanation.stage_sha256}",
        f"  {manifest.RUN}  sha256 {sealed}" if sealed else "  the run is not sealed",
        f"  {manifest.INPUTS}  sha256 {explanation.inputs_sha256}",
        "",
        "and which were made with",
        *_input_lines(explanation.inputs),
    ]
    if explanation.findings:
        lines += ["", f"findings ({len(explanation.findings)}):"]
        lines += [f"  {f.severity}: {f.file}: {f.message}" for f in explanation.findings]
    return "\n".join(printable(line, limit=2000) for line in lines) + "\n"


def _file_lines(explanation: Explanation) -> Iterable[str]:
    others = 0
    for file in explanation.files:
        if file.rows is None:
            others += 1
            if others > SHOWN:
                continue
        what = f"{file.bytes:,} bytes"
        if file.rows is not None:
            what = f"{file.rows:,} row{'' if file.rows == 1 else 's'}"
            if file.rows:
                what += f", lines 1 to {file.rows:,}"
        yield f"  {file.path}  {what}  sha256 {file.sha256}" + ("" if file.intact else "  DAMAGED")
    if others > SHOWN:
        yield f"  and {others - SHOWN} more of the same kind (--json has them all)"


def _input_lines(inputs: Mapping[str, Any]) -> Iterable[str]:
    model = inputs["model"]
    if model is not None:
        yield f"  model {model['name']}, {model['bytes']:,} bytes  sha256 {model['sha256']}"
    for name, digest in inputs["profiles"].items():
        yield f"  profile {name}  sha256 {digest}"
    configuration, source = inputs["configuration"], inputs["source"]
    yield f"  configuration {configuration['name']}  sha256 {configuration['sha256']}"
    state = {None: "", True: ", modified", False: ", unmodified"}[source["dirty"]]
    yield f"  source tree  sha256 {source['tree_sha256']}"
    yield f"  commit {source['commit'] or 'not recorded'}{state}"
    for name, digest in sorted(inputs["locks"].items()):
        yield f"  lock {name}  sha256 {digest}"
    if inputs["registration"] is not None:
        found = inputs["registration"]
        yield f"  registration {found['number']}  sha256 {found['sha256']}"
