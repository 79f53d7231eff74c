"""Rule position: relocation and its control on one model, records first, summary from them."""
# `snakemake` is put into the script by the rule that runs it.
# mypy: disable-error-code="name-defined"

import tempfile
from pathlib import Path

from kvgraft import stage
from kvgraft.position import Experiment

STAGE = "position"

with stage.logged(snakemake.log[0]) as note:
    config = dict(snakemake.params.config)
    subject = snakemake.wildcards.model
    run = Path(snakemake.input[0]).parent
    opening = stage.enter(run, STAGE, subject, config)
    with tempfile.TemporaryDirectory(prefix="kvgraft-") as scratch:
        rows = Experiment(
            model=opening.model,
            settings=stage.settings(config),
            options=config[STAGE],
            seed=f"{config['seed']}/{subject}",
            folder=opening.folder,
            scratch=Path(scratch),
            note=note,
        ).measure()
    stage.close(run, STAGE, subject, opening, rows, config[STAGE])
