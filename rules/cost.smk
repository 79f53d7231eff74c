# Prefill, graft and the engine's own caches, timed (claims C1, C2, C3). A rule of all cores: nothing
# else may run beside it.
rule cost:
    input:
        f"{RUN}/inputs.manifest.json",
    output:
        f"{RUN}/cost/{{model}}/records/timings.jsonl",
        f"{RUN}/cost/{{model}}/records/alternatives.jsonl",
        f"{RUN}/cost/{{model}}/records/memory.jsonl",
        f"{RUN}/cost/{{model}}/records/conditions.jsonl",
        f"{RUN}/cost/{{model}}/records/profiles.jsonl",
        f"{RUN}/cost/{{model}}/summary.json",
        manifest=f"{RUN}/cost/{{model}}/stage.manifest.json",
    log:
        f"{LOGS}/cost/{{model}}.log",
    conda:
        "../envs/conda/engine.yaml"
    threads: workflow.cores
    params:
        config=config,
    script:
        "../workflow/stages/cost.py"
