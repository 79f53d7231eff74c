"""The three manifests: inputs before a run, a stage on its exit, the run when it is sealed.

`build_inputs`, `close_stage` and `close_run` write them; `rehash` refuses inputs that have changed
since. Each manifest names its predecessor's digest. This module must not know what a stage
measures.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvaudit import atomic, canonical, digests, schemas
from kvaudit.errors import EvidenceIncomplete, InputChanged, UnusableInput
from kvaudit.safefs import SafeRoot
from kvaudit.source import source_files

INPUTS = "inputs.manifest.json"
STAGE = "stage.manifest.json"
RUN = "run.manifest.json"
VERDICT = "verdict.json"
ATTESTATION = "attestation.dsse.json"
ATTESTATION_STAMP = "attestation.dsse.tsr"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
MAX_LISTED_BYTES = 16 * 1024**3
"""The longest evidence that is read of one run; also what a bundle may unpack to."""


def now() -> str:
    """The present in UTC as manifests write it, e.g. 2026-01-31T12:00:00Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def environment(packages: Iterable[str], locks: Mapping[str, str | Path]) -> dict[str, Any]:
    """The software that a run stands on.

    Args:
        packages: distribution names; those not installed are left out.
        locks: name under which a lock is listed (its path in the repository) -> where it lies.
    """
    versions: dict[str, str] = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "locks": {name: digests.sha256_file(path) for name, path in locks.items()},
    }


def build_inputs(
    *,
    configuration_name: str,
    configuration: Mapping[str, Any],
    source: Mapping[str, Any],
    models: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, Any],
    environment: Mapping[str, Any],
    registration: Mapping[str, Any] | None = None,
    problem_files: Mapping[str, str] | None = None,
    created: str | None = None,
) -> dict[str, Any]:
    """The inputs manifest (schema inputs.v1.json), validated; write it with `write`.

    Args:
        configuration_name: e.g. "default".
        configuration: the whole configuration as used.
        source: {commit, dirty, files}, see `history.source_facts`; the tree digest is added.
        models: name, sha256, bytes, architecture and quantisation of each model.
        profiles: by model, the execution profiles that may be used, each with its `digest`.
        environment: see `environment`.
        registration: number and digest of the registration the run belongs to.
        problem_files: by a problem file's name, the digest of its rows that are asked.
        created: for tests; the present otherwise.

    Raises:
        UnusableInput: something does not conform to the schema.
    """
    value = {
        "kind": "inputs",
        "version": 1,
        "created": created or now(),
        "configuration": {
            "name": configuration_name,
            "sha256": digests.sha256_json(configuration),
            "value": configuration,
        },
        "source": {**source, "tree_sha256": digests.tree_digest(source["files"])},
        "models": list(models),
        "profiles": profiles,
        "environment": environment,
        "registration": registration,
    }
    if problem_files:
        value["problem_files"] = dict(problem_files)
    schemas.validate(value, "inputs", where=INPUTS)
    return value


def write(path: str | Path, value: Mapping[str, Any]) -> str:
    """Validates a manifest by its own kind and writes it atomically; returns the file's SHA-256.

    Raises:
        UnusableInput: it does not conform to its schema.
    """
    schemas.validate(value, str(value.get("kind")), where=str(path))
    atomic.write_json(path, value)
    return digests.sha256_bytes(canonical.dumps(value) + b"\n")


def parse(data: bytes, kind: str, *, where: str) -> dict[str, Any]:
    """Reads a manifest strictly: canonical bytes, then schema.

    Raises:
        UnusableInput: it is not canonical JSON or does not conform.
    """
    value: dict[str, Any] = canonical.loads_document(
        data, where=where, max_bytes=MAX_MANIFEST_BYTES
    )
    schemas.validate(value, kind, where=where)
    return value


def read(path: str | Path, kind: str) -> dict[str, Any]:
    """Reads a manifest from a file that the pipeline itself has written.

    Raises:
        UnusableInput: as `parse`, or the file is not regular or too long.
        EvidenceIncomplete: the file is absent.
    """
    path = Path(path)
    with SafeRoot(path.parent) as root:
        return parse(root.read(path.name, max_bytes=MAX_MANIFEST_BYTES), kind, where=path.name)


def registered(inputs: Mapping[str, Any]) -> dict[str, str]:
    """{name: SHA-256} of everything that a stage may name under `inputs_used`.

    The names are `configuration`, `source` (the tree), `registration` if there is one, the
    models' names, and the paths of source files and locks.
    """
    names: dict[str, str] = {**inputs["source"]["files"], **inputs["environment"]["locks"]}
    names.update({model["name"]: model["sha256"] for model in inputs["models"]})
    names["configuration"] = inputs["configuration"]["sha256"]
    names["source"] = inputs["source"]["tree_sha256"]
    if inputs["registration"] is not None:
        names["registration"] = inputs["registration"]["sha256"]
    return names


def rehash(inputs: Mapping[str, Any], paths: Mapping[str, str | Path]) -> dict[str, str]:
    """Hashes files again just before they are used.

    Args:
        inputs: the inputs manifest.
        paths: registered name (of a model, source file or lock) -> where the file lies now. The
            name `source` stands for the repository's folder and is compared file by file.

    Returns:
        {name: SHA-256} for the stage manifest's `inputs_used`.

    Raises:
        InputChanged: a file has another digest, is absent, or was never registered; names all.
    """
    known = registered(inputs)
    changed: list[str] = []
    for name, path in paths.items():
        if name == "source":
            changed += _differences(inputs["source"]["files"], source_files(path))
        elif name not in known:
            changed.append(f"{name} (not registered)")
        else:
            try:
                found = digests.sha256_file(path)
            except OSError as error:
                changed.append(f"{name} ({os.strerror(error.errno or 0)})")
                continue
            if found != known[name]:
                changed.append(name)
    if changed:
        raise InputChanged(
            f"inputs changed since they were registered: {', '.join(sorted(changed)[:20])}",
            where=INPUTS,
            hint="register the inputs again; results of the old ones are not results of these",
        )
    return {name: known[name] for name in paths}


def list_outputs(stage_folder: str | Path) -> dict[str, dict[str, Any]]:
    """{path: {bytes, sha256}} of everything in a stage's folder but its manifest.

    Raises:
        UnusableInput: an entry is not a regular file.
    """
    with SafeRoot(stage_folder) as root:
        listing = root.walk()
        outputs: dict[str, dict[str, Any]] = {}
        for path, size in sorted(listing.files.items()):
            if path == STAGE:
                continue
            digest = root.sha256(path, expected_bytes=size)
            if digest is None:
                raise UnusableInput("an output changed while it was hashed", where=path)
            outputs[path] = {"bytes": size, "sha256": digest}
    return outputs


def close_stage(
    run_folder: str | Path,
    stage: str,
    subject: str,
    *,
    parameters: Mapping[str, Any],
    inputs_used: Mapping[str, str],
    started: str,
    host: Mapping[str, Any],
    ended: str | None = None,
) -> dict[str, Any]:
    """Hashes what a stage has made and writes its manifest into <run>/<stage>/<subject>.

    Args:
        run_folder: where inputs.manifest.json lies.
        stage: e.g. "exactness".
        subject: the model's name.
        parameters: what the stage was asked to do; where a key also stands in the configuration's
            section of the stage's name, the verifier wants equal values.
        inputs_used: what `rehash` returned.
        started: `now()` before the first computation.
        host: load_before, load_after and cpus.
        ended: for tests; the present otherwise.

    Raises:
        UnusableInput: the manifest would not conform, or an input was never registered.
        EvidenceIncomplete: there is no inputs manifest or no output.
    """
    folder = Path(run_folder)
    data = _read_inputs(folder)
    known = registered(parse(data, "inputs", where=INPUTS))
    for name, digest in inputs_used.items():
        if known.get(name) != digest:
            raise UnusableInput("the stage used an input that is not registered", found=name)
    outputs = list_outputs(folder / stage / subject)
    if not outputs:
        raise EvidenceIncomplete("the stage made nothing", where=f"{stage}/{subject}")
    value = {
        "kind": "stage",
        "version": 1,
        "stage": stage,
        "subject": subject,
        "predecessor": digests.sha256_bytes(data),
        "parameters": parameters,
        "inputs_used": inputs_used,
        "started": started,
        "ended": ended or now(),
        "host": host,
        "outputs": outputs,
    }
    write(folder / stage / subject / STAGE, value)
    return value


def close_run(run_folder: str | Path) -> dict[str, Any]:
    """Seals a run: writes run.manifest.json over all stage manifests that belong to it.

    The result is a function of the files it names; `ended` is the end of the last stage and not
    the time of sealing, so that no byte of it is free and sealing twice changes nothing.

    Raises:
        EvidenceIncomplete: there is no inputs manifest or no stage.
        UnusableInput: a manifest is not usable, or a stage belongs to other inputs.
    """
    folder = Path(run_folder)
    predecessor = digests.sha256_bytes(_read_inputs(folder))
    stages: dict[str, str] = {}
    ends: list[str] = []
    with SafeRoot(folder) as root:
        for path in sorted(root.walk().files):
            if not path.endswith(f"/{STAGE}"):
                continue
            data = root.read(path, max_bytes=MAX_MANIFEST_BYTES)
            stage = parse(data, "stage", where=path)
            if stage["predecessor"] != predecessor:
                raise UnusableInput(
                    "the stage belongs to other inputs", where=path, hint="run the stage again"
                )
            stages[path.removesuffix(f"/{STAGE}")] = digests.sha256_bytes(data)
            ends.append(stage["ended"])
    if not stages:
        raise EvidenceIncomplete("the run has no finished stage", where=RUN)
    value = {
        "kind": "run",
        "version": 1,
        "predecessor": predecessor,
        "stages": stages,
        "ended": max(ends),
    }
    write(folder / RUN, value)
    return value


def _read_inputs(folder: Path) -> bytes:
    with SafeRoot(folder) as root:
        return root.read(INPUTS, max_bytes=MAX_MANIFEST_BYTES)


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [name for name in {*before, *after} if before.get(name) != after.get(name)]
