"""The metadata of a crate: RO-Crate 1.1 with the profile Provenance Run Crate 0.5.

The run as a whole and every stage is a `CreateAction`: what it was made with, from, into, and when.
No agent is named, since no evidence says who it was. This module must not read files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from kvaudit import canonical, manifest
from kvaudit.claims import verdict_counts
from kvaudit.verify import Verdict

CONTEXT = "https://w3id.org/ro/crate/1.1/context"
TERMS = "https://w3id.org/ro/terms/workflow-run#"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
README = "README.md"
METADATA = "ro-crate-metadata.json"
RUN_FOLDER, SOURCE_FOLDER = "run", "source"
WORKFLOW = f"{SOURCE_FOLDER}/Snakefile"
SNAKEMAKE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
COMPLETED = "http://schema.org/CompletedActionStatus"

_FORMATS = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".parquet": "application/vnd.apache.parquet",
    ".f32": "application/octet-stream",
    ".py": "text/x-python",
    ".smk": "text/x-snakemake",
}

Entity = dict[str, Any]


class Sized(Protocol):
    """A file of the crate as the metadata needs it."""

    @property
    def size(self) -> int:
        """Its length in bytes."""

    @property
    def sha256(self) -> str:
        """Its digest."""


def read_verdict(data: bytes) -> Verdict:
    """The verdict that lies in the run.

    Raises:
        UnusableInput: the bytes are not canonical JSON of its schema.
    """
    return Verdict.from_json(manifest.parse(data, "verdict", where=manifest.VERDICT))


def to_bytes(graph: Iterable[Entity]) -> bytes:
    """The bytes of ro-crate-metadata.json: canonical JSON and one newline."""
    context = [CONTEXT, {"sha256": f"{TERMS}sha256"}]
    compact = [{key: _single(value) for key, value in entity.items()} for entity in graph]
    return canonical.dumps({"@context": context, "@graph": compact}) + b"\n"


def readme(inputs: Mapping[str, Any], verdict: Verdict) -> bytes:
    """README.md of the crate."""
    text = (
        f"# kvgraft run {inputs['configuration']['name']}\n\n"
        f"{_summary(verdict)}.\n\n"
        f"`{RUN_FOLDER}/` is the evidence, byte for byte: "
        f"`kvaudit verify {RUN_FOLDER}` checks it.\n"
        f"`{SOURCE_FOLDER}/` holds the workflow's files with their registered digests.\n"
        f"`{METADATA}` describes both.\n"
    )
    return text.encode()


def build(
    *,
    inputs: Mapping[str, Any],
    stages: Mapping[str, Mapping[str, Any]],
    verdict: Verdict,
    evidence: Mapping[str, Sized],
    sources: Mapping[str, Sized],
    about: Sized,
    licence: str,
) -> list[Entity]:
    """All entities of a crate, the descriptor and the root first.

    Args:
        inputs: the inputs manifest.
        stages: the stage manifests by folder, e.g. exactness/gemma-3-270m.
        verdict: as it lies in the run.
        evidence: the files of the run by their path in the crate, run/…
        sources: the workflow's files by their path in the crate, source/…
        about: README.md.
        licence: an SPDX identifier.
    """
    models = {model["name"]: _model(model) for model in inputs["models"]}
    claims = [_claim(verdict, index) for index in range(len(verdict.claims))]
    tools = {stage: _tool(stage, sources, inputs) for stage in _names(stages)}
    folders = [_folder(folder, evidence) for folder in sorted(stages)]
    actions = [
        _run_action(inputs, stages, models),
        *(_stage_action(f, stages[f], tools, models) for f in sorted(stages)),
    ]
    inside = {part["@id"] for entity in folders for part in entity["hasPart"]}
    top = [name for name in sorted(evidence) if name not in inside]
    files = [_file(name, evidence[name]) for name in sorted(evidence)]
    _describe_verdict(files, verdict, claims)
    described = {tool["@id"] for tool in tools.values()} | {WORKFLOW}
    others = [
        _source(name, sources[name], inputs) for name in sorted(sources) if name not in described
    ]
    ids = [entity["@id"] for entity in folders]
    licence_id = f"https://spdx.org/licenses/{licence}"
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"kvgraft run {inputs['configuration']['name']}",
        "description": f"Evidence of one run with its verdict: {_summary(verdict)}.",
        "datePublished": _time(max(stage["ended"] for stage in stages.values())),
        "license": _ref(licence_id),
        "conformsTo": [_ref(profile) for profile in PROFILES],
        "mainEntity": _ref(WORKFLOW),
        "mentions": [_ref(action["@id"]) for action in actions],
        "hasPart": [_ref(e) for e in [README, *top, *ids, *sorted(sources)]],
    }
    return [
        _descriptor(),
        root,
        _workflow(sources[WORKFLOW], inputs, tools, others, licence_id),
        *(_step(stage, index, tools) for index, stage in enumerate(tools)),
        *tools.values(),
        *actions,
        *folders,
        _readme(about),
        *files,
        *others,
        *models.values(),
        *claims,
        *_context(licence, licence_id, inputs),
    ]


def _descriptor() -> Entity:
    return {
        "@id": METADATA,
        "@type": "CreativeWork",
        "about": _ref("./"),
        "conformsTo": [
            _ref("https://w3id.org/ro/crate/1.1"),
            _ref("https://w3id.org/workflowhub/workflow-ro-crate/1.0"),
        ],
    }


def _workflow(
    file: Sized,
    inputs: Mapping[str, Any],
    tools: Mapping[str, Entity],
    parts: Iterable[Entity],
    licence_id: str,
) -> Entity:
    return {
        **_file(WORKFLOW, file),
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "kvgraft",
        "description": "From registered inputs to sealed evidence, one stage a rule.",
        "encodingFormat": "text/x-snakemake",
        "conformsTo": _ref("https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"),
        "programmingLanguage": _ref(SNAKEMAKE),
        "license": _ref(licence_id),
        "version": _version(inputs),
        "step": [_ref(f"#step/{stage}") for stage in tools],
        "hasPart": [_ref(e["@id"]) for e in tools.values()],
        "isBasedOn": [_ref(part["@id"]) for part in parts],
    }


def _step(stage: str, index: int, tools: Mapping[str, Entity]) -> Entity:
    return {
        "@id": f"#step/{stage}",
        "@type": "HowToStep",
        "name": stage,
        "position": index,
        "workExample": _ref(tools[stage]["@id"]),
    }


def _tool(stage: str, sources: Mapping[str, Sized], inputs: Mapping[str, Any]) -> Entity:
    """The script of a stage, or what stands for it where the source has no such file."""
    name = f"{SOURCE_FOLDER}/workflow/stages/{stage}.py"
    if name in sources:
        return {**_source(name, sources[name], inputs), "name": stage}
    return {
        "@id": f"#tool/{stage}",
        "@type": "SoftwareApplication",
        "name": stage,
        "softwareVersion": _version(inputs),
    }


def _run_action(
    inputs: Mapping[str, Any],
    stages: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, Entity],
) -> Entity:
    made = [_in_run(manifest.RUN), _in_run(manifest.VERDICT)]
    folders = [_in_run(f"{quote(folder)}/") for folder in sorted(stages)]
    return {
        "@id": "#run",
        "@type": "CreateAction",
        "name": f"run {inputs['configuration']['name']}",
        "description": "The whole run, from the registration of its inputs to its last stage.",
        "instrument": _ref(WORKFLOW),
        "object": [_ref(_in_run(manifest.INPUTS)), *(_ref(m["@id"]) for m in models.values())],
        "result": [_ref(entity) for entity in [*made, *folders]],
        "startTime": _time(inputs["created"]),
        "endTime": _time(max(stage["ended"] for stage in stages.values())),
        "actionStatus": COMPLETED,
    }


def _stage_action(
    folder: str,
    stage: Mapping[str, Any],
    tools: Mapping[str, Entity],
    models: Mapping[str, Entity],
) -> Entity:
    return {
        "@id": f"#stage/{quote(folder)}",
        "@type": "CreateAction",
        "name": f"{stage['stage']} of {stage['subject']}",
        "description": f"The stage {stage['stage']} on the model {stage['subject']}.",
        "instrument": _ref(tools[stage["stage"]]["@id"]),
        "object": [_ref(_in_run(manifest.INPUTS)), _ref(models[stage["subject"]]["@id"])],
        "result": [_ref(_in_run(f"{quote(folder)}/"))],
        "startTime": _time(stage["started"]),
        "endTime": _time(stage["ended"]),
        "actionStatus": COMPLETED,
    }


def _folder(folder: str, evidence: Mapping[str, Sized]) -> Entity:
    prefix = _in_run(f"{folder}/")
    return {
        "@id": quote(prefix),
        "@type": "Dataset",
        "name": folder,
        "description": f"What the stage {folder} left: records, what follows from them, manifest.",
        "hasPart": [_ref(quote(name)) for name in sorted(evidence) if name.startswith(prefix)],
    }


def _file(name: str, file: Sized) -> Entity:
    suffix = name[name.rfind(".") :] if "." in name else ""
    return {
        "@id": quote(name),
        "@type": "File",
        "name": name.partition("/")[2],
        "contentSize": str(file.size),
        "sha256": file.sha256,
        "encodingFormat": _FORMATS.get(suffix, "application/octet-stream"),
    }


def _source(name: str, file: Sized, inputs: Mapping[str, Any]) -> Entity:
    kind = ["File", "SoftwareSourceCode"]
    return {**_file(name, file), "@type": kind, "version": _version(inputs)}


def _readme(file: Sized) -> Entity:
    return {
        **_file(README, file),
        "name": README,
        "about": _ref("./"),
        "encodingFormat": "text/markdown",
    }


def _model(model: Mapping[str, Any]) -> Entity:
    return {
        "@id": f"#model/{quote(model['name'])}",
        "@type": "CreativeWork",
        "name": model["name"],
        "description": f"{model['architecture']}, {model['quantisation']}; the file is not here.",
        "identifier": f"sha256:{model['sha256']}",
        "sha256": model["sha256"],
        "size": str(model["bytes"]),
    }


def _claim(verdict: Verdict, index: int) -> Entity:
    claim = verdict.claims[index]
    return {
        "@id": f"#claim/{quote(claim.id)}/{quote(claim.model)}",
        "@type": "PropertyValue",
        "name": f"{claim.id} of {claim.model}: {claim.title}",
        "description": f"criterion: {claim.criterion}; measured: {claim.measured}",
        "propertyID": claim.id,
        "value": claim.verdict,
    }


def _describe_verdict(files: Iterable[Entity], verdict: Verdict, claims: Iterable[Entity]) -> None:
    for entity in files:
        if entity["@id"] == _in_run(manifest.VERDICT):
            entity["description"] = _summary(verdict)
            entity["about"] = _ref("#run")
            entity["mentions"] = [_ref(claim["@id"]) for claim in claims]
        elif entity["@id"] == _in_run(manifest.ATTESTATION):
            entity["encodingFormat"] = "application/vnd.dsse.envelope.v1+json"
            entity["description"] = "signed in-toto Statement v1; not verified here"
        elif entity["@id"] == _in_run(manifest.ATTESTATION_STAMP):
            entity["encodingFormat"] = "application/timestamp-reply"
            entity["description"] = "RFC 3161 time stamp of the attestation; not verified here"


def _context(licence: str, licence_id: str, inputs: Mapping[str, Any]) -> list[Entity]:
    snakemake = inputs["environment"]["packages"].get("snakemake")
    return [
        {
            "@id": licence_id,
            "@type": "CreativeWork",
            "name": licence,
            "description": f"The licence of SPDX identifier {licence}",
            "url": licence_id,
        },
        {
            "@id": SNAKEMAKE,
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "identifier": _ref("https://doi.org/10.1093/bioinformatics/bts480"),
            "url": _ref("https://snakemake.readthedocs.io"),
            **({} if snakemake is None else {"version": snakemake}),
        },
        *(
            {"@id": uri, "@type": "CreativeWork", "name": name, "version": uri.rpartition("/")[2]}
            for uri, name in PROFILES.items()
        ),
    ]


def _summary(verdict: Verdict) -> str:
    counts = verdict_counts(verdict.claims)
    return (
        f"{verdict.status}: {counts['holds']} claims hold, {counts['fails']} fail, "
        f"{counts['not run here']} not run here"
    )


def _names(stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The stages' names in the order in which they began."""
    first: dict[str, str] = {}
    for stage in stages.values():
        name = stage["stage"]
        first[name] = min(stage["started"], first.get(name, stage["started"]))
    return sorted(first, key=lambda name: (first[name], name))


def _version(inputs: Mapping[str, Any]) -> str:
    source = inputs["source"]
    return str(source["commit"] or f"tree {source['tree_sha256']}")


def _time(text: str) -> str:
    """ISO 8601 with the offset that the profile's pattern wants."""
    return f"{text.removesuffix('Z')}+00:00"


def _single(value: Any) -> Any:
    """A list of one as that one, as RO-Crate 1.1 wants its JSON-LD."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _in_run(name: str) -> str:
    """The path in the crate of what lies in the run."""
    return f"{RUN_FOLDER}/{name}"


def _ref(identifier: str) -> Entity:
    return {"@id": identifier}
