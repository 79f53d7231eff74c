# Relocated grafts, their control, and other explanations, one job a model (claims P1 to P5).
rule position:
    input:
        f"{RUN}/inputs.manifest.json",
    output:
        f"{RUN}/position/{{model}}/records/samples.jsonl",
        f"{RUN}/position/{{model}}/records/relocation.jsonl",
        f"{RUN}/position/{{model}}/records/keys.jsonl",
        f"{RUN}/position/{{model}}/records/explanations.jsonl",
        f"{RUN}/position/{{model}}/records/rotation.jsonl",
        f"{RUN}/position/{{model}}/records/chains.jsonl",
        f"{RUN}/position/{{model}}/records/prefixes.jsonl",
        f"{RUN}/position/{{model}}/records/compositions.jsonl",
        f"{RUN}/position/{{model}}/records/answers.jsonl",
        f"{RUN}/position/{{model}}/records/profiles.jsonl",
        f"{RUN}/position/{{model}}/summary.json",
        manifest=f"{RUN}/position/{{model}}/stage.manifest.json",
    log:
        f"{LOGS}/position/{{model}}.log",
    conda:
        "../envs/conda/engine.yaml"
    threads: THREADS
    params:
        config=config,
    script:
        "../workflow/stages/position.py"
