"""Rule cost: time one model on all cores, records first, the summary from them second."""
# `snakemake` is put into the script by the rule that runs it.
# mypy: disable-error-code="name-defined"

import sys
import tempfile
from pathlib import Path

from kvgraft import stage
from kvgraft.cost import Cost

STAGE = "cost"

with stage.logged(snakemake.log[0]) as note:
    config = dict(snakemake.params.config)
    subject = snakemake.wildcards.model
    run = Path(snakemake.input[0]).parent
    opening = stage.enter(run, STAGE, subject, config)
    with tempfile.TemporaryDirectory(prefix="kvgraft-") as scratch:
        rows = Cost(
            model=opening.model,
            settings=stage.settings(config),
            options=config[STAGE],
            seed=f"{config['seed']}/{subject}",
            scratch=Path(scratch),
            note=note,
            server=Path(sys.prefix) / "bin" / "llama-server",
        ).measure()
    stage.close(run, STAGE, subject, opening, rows, config[STAGE])
