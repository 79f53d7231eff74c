# After the stages: one manifest over all of them, then the verdict of the standalone verifier.
rule seal:
    input:
        expand(
            f"{RUN}/{{stage}}/{{model}}/stage.manifest.json",
            stage=config["stages"],
            model=config["models"],
        ),
    output:
        f"{RUN}/run.manifest.json",
    log:
        f"{LOGS}/seal.log",
    conda:
        "../envs/conda/engine.yaml"
    script:
        "../workflow/stages/seal.py"


rule verdict:
    input:
        f"{RUN}/run.manifest.json",
    output:
        f"{RUN}/verdict.json",
    log:
        f"{LOGS}/verdict.log",
    conda:
        "../envs/conda/audit.yaml"
    params:
        run=lambda wildcards, input: os.path.dirname(input[0]),
    shell:
        "kvaudit verify {params.run:q} --write 2>&1 | tee {log}"
