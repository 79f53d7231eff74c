"""Rule replay_stage: make blocks of one model and read them on every target of the matrix."""
# `snakemake` is put into the script by the rule that runs it.
# mypy: disable-error-code="name-defined"

import tempfile
from pathlib import Path

from kvaudit.replay.plan import stage_seed
from kvgraft import engine_folder, stage
from kvgraft.replay import Experiment

STAGE = "replay"

with stage.logged(snakemake.log[0]) as note:
    config = dict(snakemake.params.config)
    subject = snakemake.wildcards.model
    run = Path(snakemake.input.inputs).parent
    opening = stage.enter(run, STAGE, subject, config)
    notes = zip(snakemake.params.built, snakemake.input.engines, strict=True)
    emulated = {
        target: Path(Path(path).read_text(encoding="utf-8").strip())
        for target, path in zip(("portable-aarch64",), snakemake.input.emulated, strict=False)
    }
    with tempfile.TemporaryDirectory(prefix="kvgraft-") as scratch:
        rows = Experiment(
            model=opening.model,
            settings=stage.settings(config),
            options=config[STAGE],
            seed=stage_seed(config["seed"], subject),
            folder=opening.folder,
            scratch=Path(scratch),
            engines={target: engine_folder.read_note(path) for target, path in notes},
            note=note,
            interpreters=emulated,
        ).measure()
    stage.close(run, STAGE, subject, opening, rows, config[STAGE])
