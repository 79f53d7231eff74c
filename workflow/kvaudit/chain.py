"""The chain of manifests in a run directory: read, validated, and checked link by link.

inputs -> stage (names the inputs' digest) -> run (names the inputs' and every stage's digest).
This module must not know what a stage's outputs mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from kvaudit import canonical, digests, manifest, profiles, schemas, stagekinds
from kvaudit.errors import EvidenceIncomplete, UnusableInput, printable
from kvaudit.prereg.registration import inputs_problems
from kvaudit.safefs import Listing, SafeRoot

VERIFIED, FAILED, UNUSABLE, INCOMPLETE = 0, 1, 2, 3
"""Exit codes of everything that checks; `UNUSABLE` is that of an exception."""


@dataclass(frozen=True)
class Finding:
    """One thing that does not agree, or is not there; `file` is its path in the run directory."""

    severity: Literal["fails", "incomplete"]
    file: str
    message: str


def exit_code(findings: Iterable[Finding]) -> int:
    """`FAILED`, `INCOMPLETE` or `VERIFIED`; a failure outweighs an absence."""
    return worst(FAILED if one.severity == "fails" else INCOMPLETE for one in findings)


def worst(codes: Iterable[int]) -> int:
    """The code that stands for several checks together."""
    found = {*codes}
    return next((code for code in (FAILED, INCOMPLETE) if code in found), VERIFIED)


@dataclass(frozen=True)
class Documents:
    """The manifests of a run.

    `stages` maps a stage's folder to its manifest where the run vouches for it, `manifests` are
    the paths of all stage manifests that belong here, and `unreadable` are the folders of stages
    whose manifest is absent or damaged, so that nothing is known about what lies in them.
    """

    inputs: Mapping[str, Any]
    inputs_sha256: str
    run_sha256: str | None
    stages: Mapping[str, Mapping[str, Any]]
    manifests: frozenset[str]
    unreadable: frozenset[str]
    findings: tuple[Finding, ...]


def read(root: SafeRoot, listing: Listing) -> Documents:
    """Reads all manifests of a run and checks how they hang together.

    Raises:
        EvidenceIncomplete: there is no inputs manifest.
        UnusableInput: a manifest is not canonical JSON of its schema, or too long.
    """
    if manifest.INPUTS in listing.folders or manifest.INPUTS in listing.files:
        data = _read(root, manifest.INPUTS)
    else:
        raise EvidenceIncomplete(
            "the directory has no inputs manifest",
            expected=manifest.INPUTS,
            hint="is this the directory that a run wrote?",
        )
    inputs = manifest.parse(data, "inputs", where=manifest.INPUTS)
    inputs_sha256 = digests.sha256_bytes(data)
    findings = [Finding("fails", manifest.INPUTS, text) for text in _inputs(inputs)]
    stages: dict[str, Mapping[str, Any]] = {}
    unreadable: set[str] = set()
    run_sha256, run = None, None
    if manifest.RUN in listing.files or manifest.RUN in listing.folders:
        data = _read(root, manifest.RUN)
        run_sha256 = digests.sha256_bytes(data)
        run = manifest.parse(data, "run", where=manifest.RUN)
        promised: Mapping[str, str | None] = run["stages"]
        if run["predecessor"] != inputs_sha256:
            findings.append(
                Finding("fails", manifest.INPUTS, f"has not the digest that {manifest.RUN} names")
            )
    else:
        findings.append(Finding("incomplete", manifest.RUN, "is absent: the run is not sealed"))
        suffix = f"/{manifest.STAGE}"
        promised = {p.removesuffix(suffix): None for p in listing.files if p.endswith(suffix)}
    for folder, sha256 in sorted(promised.items()):
        path = f"{folder}/{manifest.STAGE}"
        if path not in listing.files and path not in listing.folders:
            unreadable.add(folder)
            message = f"is absent; {manifest.RUN} names it"
            findings.append(Finding("incomplete", path, message))
            continue
        data = _read(root, path)
        if sha256 is not None and digests.sha256_bytes(data) != sha256:
            unreadable.add(folder)
            message = f"has not the digest that {manifest.RUN} names"
            findings.append(Finding("fails", path, message))
            continue
        stage = manifest.parse(data, "stage", where=path)
        stages[folder] = stage
        findings += [Finding("fails", path, text) for text in _stage(folder, stage, inputs)]
        if stage["predecessor"] != inputs_sha256:
            message = f"has not the digest that {path} names"
            findings.append(Finding("fails", manifest.INPUTS, message))
    if run is not None and not unreadable:
        last = max(stage["ended"] for stage in stages.values())
        if run["ended"] != last:
            message = f"ended is {run['ended']}, the last stage ended {last}"
            findings.append(Finding("fails", manifest.RUN, message))
    planned = stagekinds.configured(inputs["configuration"]["value"])
    for folder in (f"{stage}/{model['name']}" for stage in planned for model in inputs["models"]):
        if folder not in promised:
            message = "is absent: the inputs name this stage and model, the run has no such stage"
            findings.append(Finding("incomplete", f"{folder}/{manifest.STAGE}", message))
    return Documents(
        inputs=inputs,
        inputs_sha256=inputs_sha256,
        run_sha256=run_sha256,
        stages=stages,
        manifests=frozenset(f"{folder}/{manifest.STAGE}" for folder in promised),
        unreadable=frozenset(unreadable),
        findings=tuple(findings),
    )


def _read(root: SafeRoot, path: str) -> bytes:
    return root.read(path, max_bytes=manifest.MAX_MANIFEST_BYTES)


def _inputs(inputs: Mapping[str, Any]) -> Iterator[str]:
    configuration, source = inputs["configuration"], inputs["source"]
    if digests.sha256_json(configuration["value"]) != configuration["sha256"]:
        yield "configuration.sha256 is not the digest of configuration.value"
    yield from configuration_problems(inputs)
    yield from inputs_problems(inputs)
    if digests.tree_digest(source["files"]) != source["tree_sha256"]:
        yield "source.tree_sha256 is not the digest of source.files"
    if (source["commit"] is None) != (source["dirty"] is None):
        yield "source.dirty and source.commit do not go together"
    names = [model["name"] for model in inputs["models"]]
    if len(set(names)) != len(names):
        yield "two models have one name"
    for name in sorted({*inputs["profiles"]} - {*names}):
        yield f"profiles names {name}, which is not a model of this run"
    for name in names:
        yield from (f"profiles of {name}: {text}" for text in profiles.problems(inputs, name))
    if _moment(inputs["created"]) is None:
        yield "created is not a date"


def configuration_problems(inputs: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the registered configuration, its digest apart."""
    configuration = inputs["configuration"]
    value = configuration["value"]
    try:
        schemas.validate(value, "config", where="configuration.value")
    except UnusableInput as error:
        yield str(error)
        return
    stages = stagekinds.configured(value)
    for key in sorted({"seed", "profile", *stages} - {*value}):
        yield f"configuration.value has no {key}"
    for name in stages:
        if name in value:
            yield from stagekinds.KINDS[name].configuration_problems(value[name])
    if "preset" not in value.get("profile", {"preset"}):
        yield "configuration.value.profile has no preset"
    if configuration["name"] != value["name"]:
        yield "configuration.name is not that of configuration.value"
    if sorted(value["models"]) != sorted(model["name"] for model in inputs["models"]):
        yield "models are not those of the configuration"


def _stage(folder: str, stage: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[str]:
    if folder != f"{stage['stage']}/{stage['subject']}":
        yield f"stage and subject do not fit its folder {folder}"
    known = manifest.registered(inputs)
    for name, sha256 in stage["inputs_used"].items():
        if known.get(name) != sha256:
            yield f"inputs_used: {name} is not registered with this digest"
    if stage["subject"] not in stage["inputs_used"]:
        yield "inputs_used does not name the stage's own model"
    locks = inputs["environment"]["locks"]
    needed = {"configuration", "source", stage["subject"], *locks}
    for name in sorted(needed - {*stage["inputs_used"], stage["subject"]}):
        yield f"inputs_used does not name {name}"
    for name in sorted({*stage["inputs_used"]} - needed):
        yield f"inputs_used names {name}, which such a stage does not use"
    yield from _parameters(stage, inputs["configuration"]["value"].get(stage["stage"]))
    times = [_moment(text) for text in (inputs["created"], stage["started"], stage["ended"])]
    if any(time is None for time in times):
        yield "started or ended is not a date"
    elif sorted(time for time in times if time is not None) != times:
        yield "started and ended do not follow the registration of the inputs in this order"


def _parameters(stage: Mapping[str, Any], section: Any) -> Iterator[str]:
    if not isinstance(section, dict):
        yield "parameters: the configuration has no such section"
        return
    parameters = stage["parameters"]
    for key in sorted({*section} | {*parameters}):
        if key not in section or key not in parameters:
            yield f"parameters: {printable(key)} is not in both, parameters and configuration"
        elif canonical.dumps(section[key]) != canonical.dumps(parameters[key]):
            yield f"parameters: {printable(key)} is not what the configuration says"


def _moment(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
