"""Rule register_inputs: what the run stands on, hashed before anything runs."""
# `snakemake` is put into the script by the rule that runs it.
# mypy: disable-error-code="name-defined"

from pathlib import Path
from typing import Any

from kvaudit import history, manifest
from kvaudit.prereg import pipeline
from kvgraft import flywheel_files, pins, plan, stage

with stage.logged(snakemake.log[0]) as note:
    config = dict(snakemake.params.config)
    plan.check(config["exactness"], config["profile"])
    problem_files = flywheel_files.registered(config)
    source = history.source_facts(".")
    known = pins.read(config["pins"] or None)
    pinned = {name: pins.find(known, name).sha256 for name in config["models"]}
    registration = pipeline.check_before_run(config, source, pinned)
    models: list[dict[str, Any]] = []
    profiles: dict[str, Any] = {}
    for model in stage.open_models(config):
        note(f"{model.name}: digest and architecture checked")
        models.append(stage.model_entry(model))
        profiles[model.name] = stage.profiles_in_force(model, config)
    inputs = manifest.build_inputs(
        configuration_name=config["name"],
        configuration=config,
        source=source,
        models=models,
        profiles=profiles,
        environment=manifest.environment(stage.PACKAGES, stage.locks(Path("."))),
        registration=registration,
        problem_files=problem_files,
    )
    manifest.write(snakemake.output[0], inputs)
