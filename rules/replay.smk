# Blocks copied to a second store and read by other processes and other builds, one job a model
# (claims R1, R2). `snakemake replay` runs what a registration names, and nothing else.
from kvaudit.replay.plan import builds, emulated, registered_verdict

BUILDS = builds(config["replay"])
EMULATED = ["work/engines/emulated-python.path"] if emulated(config["replay"]) else []


rule replay_stage:
    input:
        inputs=f"{RUN}/inputs.manifest.json",
        engine=ENGINE,
        engines=[f"work/engines/{build}.txt" for build in BUILDS.values()],
        emulated=EMULATED,
    output:
        f"{RUN}/replay/{{model}}/records/samples.jsonl",
        f"{RUN}/replay/{{model}}/records/targets.jsonl",
        f"{RUN}/replay/{{model}}/records/blocks.jsonl",
        f"{RUN}/replay/{{model}}/records/profiles.jsonl",
        f"{RUN}/replay/{{model}}/summary.json",
        manifest=f"{RUN}/replay/{{model}}/stage.manifest.json",
    log:
        f"{LOGS}/replay/{{model}}.log",
    conda:
        "../envs/conda/engine.yaml"
    threads: THREADS
    params:
        config=config,
        built=list(BUILDS),
    script:
        "../workflow/stages/replay.py"


rule replay:
    input:
        lambda wildcards: registered_verdict(RUN, REGISTERED),
