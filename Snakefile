# kvgraft: from registered inputs to sealed evidence and a verdict per claim.
#
#   snakemake --cores all                                      the default run
#   snakemake --cores all --configfile config/smoke.yaml       the same in small
#   snakemake --cores all --config registration=1              what was filed as number 1
#
# Snakemake orders the work and is not the evidence: that is the manifests, which every stage
# writes and `kvaudit verify` checks.
import os

from kvaudit.prereg import pipeline
from snakemake.utils import min_version, validate

min_version("9.0")


configfile: "config/default.yaml"


REGISTERED = pipeline.take_over(config, workflow.config_settings.overwrite_config)
pipeline.require_runnable(REGISTERED, config.get("results", ""))

validate(config, "manifests/schema/config.v1.json")


include: "rules/common.smk"
include: "rules/engine.smk"
include: "rules/inputs.smk"
include: "rules/exactness.smk"
include: "rules/position.smk"
include: "rules/cost.smk"
include: "rules/context.smk"
include: "rules/flywheel.smk"
include: "rules/replay.smk"
include: "rules/seal.smk"


rule all:
    default_target: True
    input:
        f"{RUN}/verdict.json",
        [PLOTS] if DRAWN else [],
