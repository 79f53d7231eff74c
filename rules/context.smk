# A long text paged through a store of blocks, one job a model, all cores (claims C4, C4-time,
# C4-memory). Blocks of an unfinished run lie in work/ and are taken up again.
rule context:
    input:
        f"{RUN}/inputs.manifest.json",
    output:
        expand(
            f"{RUN}/context/{{{{model}}}}/records/{{file}}.jsonl",
            file=[
                "blocks",
                "headers",
                "needles",
                "answers",
                "accesses",
                "memory",
                "growth",
                "index",
                "run",
                "profiles",
            ],
        ),
        f"{RUN}/context/{{model}}/summary.json",
        manifest=f"{RUN}/context/{{model}}/stage.manifest.json",
    log:
        f"{LOGS}/context/{{model}}.log",
    conda:
        "../envs/conda/engine.yaml"
    threads: workflow.cores
    params:
        config=config,
    script:
        "../workflow/stages/context.py"
