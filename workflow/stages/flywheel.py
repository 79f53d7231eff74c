"""Rule flywheel: solve, verify, deposit, route, graft and answer; records first."""
# `snakemake` is put into the script by the rule that runs it.
# mypy: disable-error-code="name-defined"

from pathlib import Path

from kvgraft import stage
from kvgraft.flywheel import Flywheel

STAGE = "flywheel"

with stage.logged(snakemake.log[0]) as note:
    config = dict(snakemake.params.config)
    subject = snakemake.wildcards.model
    run = Path(snakemake.input[0]).parent
    opening = stage.enter(run, STAGE, subject, config)
    experiment = Flywheel(
        model=opening.model,
        settings=stage.settings(config),
        options=config[STAGE],
        seed=f"{config['seed']}/{subject}",
        # Outside the evidence: blocks and the library, made anew by every run.
        work=Path("work") / config["name"] / STAGE / subject,
        note=note,
    )
    rows = experiment.measure()
    stage.close(run, STAGE, subject, opening, rows, config[STAGE])
