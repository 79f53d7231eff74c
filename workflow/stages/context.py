"""Rule context: page a long text through a store of blocks, records first, derived files second."""
# `snakemake` is put into the script by the rule that runs it.
# mypy: disable-error-code="name-defined"

from pathlib import Path

from kvgraft import stage
from kvgraft.context_stage import PagedContext

STAGE = "context"

with stage.logged(snakemake.log[0]) as note:
    config = dict(snakemake.params.config)
    subject = snakemake.wildcards.model
    run = Path(snakemake.input[0]).parent
    opening = stage.enter(run, STAGE, subject, config)
    # Outside the evidence, and not emptied at the start: a killed run goes on from here.
    experiment = PagedContext(
        model=opening.model,
        settings=stage.settings(config),
        options=config[STAGE],
        seed=f"{config['seed']}/{subject}",
        work=Path("work") / config["name"] / STAGE / subject,
        note=note,
        n_threads=snakemake.threads,
    )
    rows = experiment.measure()
    stage.close(run, STAGE, subject, opening, rows, config[STAGE])
    experiment.finish()
