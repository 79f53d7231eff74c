# Solve, verify, deposit, route, graft, answer, one job a model (claims F1 to F10). The longest
# stage, so that it begins first. Blocks and the library lie in work/.
rule flywheel:
    input:
        f"{RUN}/inputs.manifest.json",
        ENGINE,
    output:
        expand(
            f"{RUN}/flywheel/{{{{model}}}}/records/{{file}}.jsonl",
            file=[
                "problems",
                "programs",
                "generations",
                "deposits",
                "headers",
                "routes",
                "calibration",
                "growth",
                "run",
                "profiles",
            ],
        ),
        f"{RUN}/flywheel/{{model}}/summary.json",
        manifest=f"{RUN}/flywheel/{{model}}/stage.manifest.json",
    log:
        f"{LOGS}/flywheel/{{model}}.log",
    priority: 2
    conda:
        "../envs/conda/engine.yaml"
    threads: THREADS
    params:
        config=config,
    script:
        "../workflow/stages/flywheel.py"
