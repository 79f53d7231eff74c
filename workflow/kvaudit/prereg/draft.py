"""A draft: everything that a registration states of itself, and empty lists for its author.

What can be derived from the source tree and the configuration is derived here, once for the draft
and once more when it is filed. This module must not know the chain.
"""

from __future__ import annotations

import copy
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvaudit import atomic, canonical, digests, schemas
from kvaudit.errors import ToolMissing, UnusableInput
from kvaudit.history import source_facts
from kvaudit.prereg.registration import DERIVED, ENGINE, MAX_BYTES, Registration, matrix
from kvaudit.safefs import read_file
from kvaudit.source import is_relevant

KIND = "registration-draft"
SUFFIX = ".draft.json"
MAX_CONFIGURATION_BYTES = 1024 * 1024
DEFAULT_CONFIGURATION = "config/default.yaml"
EMBEDDED_PINS = "manifests/pins/models.json"

Json = dict[str, Any]


def configuration(paths: Sequence[str | Path], repository: str | Path) -> Json:
    """The whole configuration that a run of these files would have, without its derived keys.

    One `.json` file is taken as a whole configuration. YAML files are laid over
    config/default.yaml in the order given, as Snakemake does it. Absent keys get the defaults of
    schema config.v1.json.

    Raises:
        EvidenceIncomplete: a file is absent.
        ToolMissing: a file is YAML and pyyaml, which the auditor's install lacks, is absent.
        UnusableInput: a file cannot be read, or the result does not conform to the schema.
    """
    if not paths:
        raise UnusableInput("a draft needs a configuration", hint="--config FILE")
    kinds = {Path(path).suffix.lower() for path in paths}
    if kinds == {".json"} and len(paths) == 1:
        value = canonical.loads(
            read_file(Path(paths[0]), MAX_CONFIGURATION_BYTES),
            where=str(paths[0]),
            max_bytes=MAX_CONFIGURATION_BYTES,
        )
        if not isinstance(value, dict):
            raise UnusableInput("a configuration is an object", where=paths[0])
    elif kinds <= {".yaml", ".yml"}:
        default = Path(repository) / DEFAULT_CONFIGURATION
        value = {}
        for path in ([default] if default.exists() else []) + [Path(path) for path in paths]:
            _lay_over(value, _yaml(path))
    else:
        raise UnusableInput(
            "a configuration is one JSON file, or YAML files",
            found=", ".join(str(path) for path in paths),
        )
    return whole(value)


def whole(value: Mapping[str, Any]) -> Json:
    """A configuration with the schema's defaults filled in and its derived keys taken out.

    Raises:
        UnusableInput: it does not conform to schema config.v1.json.
    """
    filled: Json = copy.deepcopy(dict(value))
    _fill(filled, json.loads(schemas.text("config")))
    schemas.validate(filled, "config", where="configuration")
    return {key: part for key, part in filled.items() if key not in DERIVED}


def derived(
    config: Mapping[str, Any], repository: str | Path, datasets: Iterable[str]
) -> tuple[Json, bool | None]:
    """What follows from a configuration and a working tree, and whether the tree is modified.

    Args:
        config: as `configuration` returns it.
        repository: the working tree.
        datasets: paths of files in the source tree that hold data.

    Returns:
        source, configuration, models, datasets, locks and matrix of a registration; and `dirty`,
        None outside a git repository.

    Raises:
        EvidenceIncomplete: a pins file is absent.
        UnusableInput: a model has no pin, or a dataset is no file of the source tree.
    """
    facts = source_facts(repository)
    files: dict[str, str] = facts["files"]
    for path in datasets:
        if path not in files:
            raise UnusableInput(
                "a dataset is no file of the source tree, so that no run would register it",
                where=path,
                expected="a file below workflow, config, rules, envs or manifests/pins"
                if not is_relevant(path)
                else "a file that exists",
            )
    return {
        "source": {
            "commit": facts["commit"],
            "tree_sha256": digests.tree_digest(files),
            "files": files,
        },
        "configuration": {"sha256": digests.sha256_json(config), "value": dict(config)},
        "models": _models(config, Path(repository)),
        "datasets": {path: files[path] for path in sorted(datasets)},
        "locks": locks(files),
        "matrix": list(matrix(config)),
    }, facts["dirty"]


def locks(files: Mapping[str, str]) -> dict[str, str]:
    """The lock files among the files of a source tree."""
    return {
        path: sha256
        for path, sha256 in files.items()
        if path.startswith("envs/") and path.count("/") == 1 and path.endswith(".txt")
    }


def new(
    name: str,
    config: Mapping[str, Any],
    repository: str | Path,
    *,
    datasets: Iterable[str] = (),
    device: str = "",
    driver: str = "",
    supersedes: Registration | None = None,
) -> Json:
    """A draft (schema registration-draft.v1.json), its criteria and predictions empty.

    Args:
        name: of the registration.
        config: as `configuration` returns it.
        repository: the working tree.
        datasets: paths of files in the source tree that hold data.
        device: on which the run is to be made.
        driver: of the device.
        supersedes: an amended registration whose words are taken over.

    Raises:
        UnusableInput: as `derived`, or the name is not one.
    """
    facts, _ = derived(config, repository, datasets)
    written: Json = {
        "target": {
            "device": device,
            "driver": driver,
            "python": platform.python_version(),
            "engine": {"build": _engine(), "libraries": None},
        },
        "criteria": [],
        "predictions": [],
        "stopping_rule": "",
        "exclusions": [],
        "supersedes": None,
    }
    if supersedes is not None:
        written = {key: copy.deepcopy(supersedes.value[key]) for key in written}
        written["supersedes"] = {"number": supersedes.number, "sha256": supersedes.sha256}
    value = {"kind": KIND, "version": 1, "name": name, **facts, **written}
    schemas.validate(value, KIND, where="the draft")
    return value


def write(folder: str | Path, value: Mapping[str, Any]) -> Path:
    """Writes a draft for people to edit, NAME.draft.json, and returns its path.

    Raises:
        UnusableInput: there is a file of that name, or the folder cannot be written.
    """
    path = Path(folder) / f"{value['name']}{SUFFIX}"
    if path.exists():
        raise UnusableInput("there is a draft of this name already", where=path)
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    try:
        atomic.write_bytes(path, text.encode())
    except OSError as error:
        raise UnusableInput(
            "the draft cannot be written", where=path, found=error.strerror
        ) from None
    return path


def read(path: str | Path) -> Json:
    """Reads a draft that a person has edited.

    Raises:
        EvidenceIncomplete: the file is absent.
        UnusableInput: it is not JSON of schema registration-draft.v1.json.
    """
    path = Path(path)
    value = canonical.loads(read_file(path, MAX_BYTES), where=path.name, max_bytes=MAX_BYTES)
    schemas.validate(value, KIND, where=path.name)
    return dict(value)


def unfilled(value: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a draft that its author has left empty and a registration must state.

    Criteria or predictions may be empty, but not both; the list of exclusions may be, but no entry.
    """
    if not value["criteria"] and not value["predictions"]:
        yield "criteria and predictions (one is enough)"
    target = value["target"]
    for name in ("device", "driver"):
        if not target[name]:
            yield f"target/{name}"
    if not target["engine"]["build"]:
        yield "target/engine/build"
    if not value["stopping_rule"]:
        yield "stopping_rule"
    for at, text in enumerate(value["exclusions"]):
        if not text:
            yield f"exclusions/{at}"


def _models(config: Mapping[str, Any], repository: Path) -> list[Json]:
    path = repository / (config.get("pins") or EMBEDDED_PINS)
    value = canonical.loads(read_file(path, MAX_BYTES), where=str(path))
    schemas.validate(value, "model-pins", where=str(path))
    pins = {pin["name"]: pin for pin in value["models"]}
    for name in config["models"]:
        if name not in pins:
            raise UnusableInput(
                "a model has no pin", where=path, expected=", ".join(sorted(pins)), found=name
            )
    keys = ("name", "sha256", "bytes")
    return [{key: pins[name][key] for key in keys} for name in config["models"]]


def _engine() -> str:
    try:
        return f"{ENGINE} {importlib.metadata.version(ENGINE)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def _fill(value: Json, schema: Mapping[str, Any]) -> None:
    """Defaults first, then what lies in them: as Snakemake fills a configuration."""
    for key, part in schema.get("properties", {}).items():
        if "default" in part:
            value.setdefault(key, copy.deepcopy(part["default"]))
        if isinstance(value.get(key), dict):
            _fill(value[key], part)


def _lay_over(value: Json, over: Mapping[str, Any]) -> None:
    for key, part in over.items():
        if isinstance(part, dict) and isinstance(value.get(key), dict):
            _lay_over(value[key], part)
        else:
            value[key] = part


def _yaml(path: Path) -> Json:
    try:
        import yaml
    except ImportError:
        raise ToolMissing(
            "YAML cannot be read: pyyaml is not installed",
            where=path,
            hint="it comes with the engine's packages; or give one JSON file",
        ) from None
    try:
        value = yaml.safe_load(read_file(path, MAX_CONFIGURATION_BYTES).decode())
        canonical.dumps(value)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableInput("the configuration is not YAML", where=path, found=error) from None
    if not isinstance(value, dict):
        raise UnusableInput("a configuration is a mapping", where=path)
    return value
