#!/bin/sh
# Writes every envs/*.txt anew from its .in file: names, versions and hashes, no addresses.
# A release already locked stays unless LOCK_UPGRADE=--upgrade is given. Usage: lock.sh UV
set -eu
cd "$(dirname "$0")"
for name in audit engine dev package build models; do
    case $name in models) only=--no-deps ;; *) only= ;; esac
    "$1" pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
        --generate-hashes --no-header --no-emit-index-url $only ${LOCK_UPGRADE:-} \
        "$name.in" --output-file "$name.txt"
    echo "envs/$name.txt: $(grep -c '==' "$name.txt") packages"
done
