"""A plan of the pipeline that is not carried out, for the tests of what is planned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def dry_run(*arguments: str, checkout: Path = ROOT) -> tuple[int, str]:
    """Exit status and all output of Snakemake in a checkout."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--dry-run", "--nolock", *arguments],
        cwd=checkout,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
