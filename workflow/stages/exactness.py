"""Rule exactness: run the experiment on one model, records first, derived files second."""
# `snakemake` is put into the script by the rule that runs it.
# mypy: disable-error-code="name-defined"

import tempfile
from pathlib import Path

from kvaudit import atomic, manifest, records, summary, tables
from kvgraft import stage
from kvgraft.exactness import Experiment

STAGE = "exactness"

with stage.logged(snakemake.log[0]) as note:
    config = dict(snakemake.params.config)
    subject = snakemake.wildcards.model
    run = Path(snakemake.input[0]).parent
    opening = stage.enter(run, STAGE, subject, config)
    with tempfile.TemporaryDirectory(prefix="kvgraft-") as scratch:
        experiment = Experiment(
            model=opening.model,
            settings=stage.settings(config),
            options=config[STAGE],
            seed=f"{config['seed']}/{subject}",
            folder=opening.folder,
            scratch=Path(scratch),
            note=note,
        )
        rows = experiment.measure()
    for path, kind in records.KINDS.items():
        records.write(opening.folder / path, kind, rows[Path(path).stem])
    tables.write_samples(opening.folder / "tables/samples.parquet", rows["samples"])
    found = records.read_folder(opening.folder)
    atomic.write_bytes(opening.folder / "summary.json", summary.summary_bytes(subject, found))
    manifest.close_stage(
        run,
        STAGE,
        subject,
        parameters=config[STAGE],
        inputs_used=opening.inputs_used,
        started=opening.started,
        host=opening.host(),
    )
