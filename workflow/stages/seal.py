"""Rule seal: one manifest over the finished stages."""
# `snakemake` is put into the script by the rule that runs it.
# mypy: disable-error-code="name-defined"

from pathlib import Path

from kvaudit import manifest
from kvgraft import stage

with stage.logged(snakemake.log[0]):
    manifest.close_run(Path(snakemake.output[0]).parent)
