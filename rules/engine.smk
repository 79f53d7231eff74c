# Another build of the engine, once a machine: `envs/engine_variant.py` compiles it or finds it in
# its cache. The note names the folder; stages and replay targets load it from there. What it is
# made of is an input, so that a note of other kernels than these is not taken.
rule engine_variant:
    input:
        build_sources,
    output:
        "work/engines/{variant}.txt",
    log:
        "logs/engines/{variant}.log",
    conda:
        "../envs/conda/engine.yaml"
    threads: workflow.cores
    shell:
        "python envs/engine_variant.py {wildcards.variant:q} > {output:q} 2> {log:q}"


# A Python for aarch64 on this machine, for the replay target of that architecture.
rule emulated_python:
    output:
        "work/engines/emulated-python.path",
    log:
        "logs/engines/emulated-python.log",
    conda:
        "../envs/conda/engine.yaml"
    shell:
        "python envs/emulated_python.py > {output:q} 2> {log:q}"
