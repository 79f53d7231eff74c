# Before anything runs: hash the configuration, source, locks and models, and read back the
# execution profiles in force. A changed source file makes the run start anew.
rule register_inputs:
    input:
        list(source_files(".")),
        ENGINE,
    output:
        f"{RUN}/inputs.manifest.json",
    log:
        f"{LOGS}/register_inputs.log",
    conda:
        "../envs/conda/engine.yaml"
    threads: THREADS
    params:
        config=config,
    script:
        "../workflow/stages/register_inputs.py"
