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
        # A claim that fails is a result: the verdict is there, and says so.
        "kvaudit verify {params.run:q} --write 2>&1 | tee {log} || test ${{PIPESTATUS[0]}} -eq 1"


# For the eye, outside the evidence: anyone can draw it again.
rule plots:
    input:
        f"{RUN}/verdict.json",
    output:
        directory(PLOTS),
    log:
        f"{LOGS}/plots.log",
    conda:
        "../envs/conda/engine.yaml"
    params:
        run=lambda wildcards, input: os.path.dirname(input[0]),
    shell:
        "kvaudit plots {params.run:q} --into {output:q} > {log:q} 2>&1"
