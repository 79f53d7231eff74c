#!/bin/sh
# One run of the pipeline at a time in a checkout, and one that was killed is taken up again.
# Usage: run.sh RESULTS [arguments of snakemake]
#
# The lock ends with this process and Snakemake, however they end. Whoever holds it may clear Snakemake's
# own lock, which a killed run leaves behind. Stages that outlive a killed run hold their own folders.
set -eu
results=$1
shift
mkdir -p .snakemake
exec 9>.snakemake/run.lock
if command -v flock >/dev/null; then
    flock -n 9 || { echo "another run is going on in this checkout" >&2; exit 1; }
    snakemake --unlock >/dev/null 2>&1 || true
fi
snakemake --cores all --rerun-incomplete "$@"
# Also when there was nothing to do: what lies there now is what is judged.
if [ -n "$results" ]; then
    kvaudit verify "$results"
fi
