# Fresh against grafted contexts, one job a model (claims D1, E1, E2, E3).
rule exactness:
    input:
        f"{RUN}/inputs.manifest.json",
        ENGINE,
    output:
        f"{RUN}/exactness/{{model}}/records/samples.jsonl",
        f"{RUN}/exactness/{{model}}/records/determinism.jsonl",
        f"{RUN}/exactness/{{model}}/records/splits.jsonl",
        f"{RUN}/exactness/{{model}}/records/blocks.jsonl",
        f"{RUN}/exactness/{{model}}/tables/samples.parquet",
        f"{RUN}/exactness/{{model}}/summary.json",
        manifest=f"{RUN}/exactness/{{model}}/stage.manifest.json",
    log:
        f"{LOGS}/exactness/{{model}}.log",
    priority: 1
    conda:
        "../envs/conda/engine.yaml"
    threads: THREADS
    params:
        config=config,
    script:
        "../workflow/stages/exactness.py"
