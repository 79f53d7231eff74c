"""What the scripts of envs/ have built on this machine, for tests that run where it is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_ABSENT = re.compile(
    r"[a-z ]+: (?:[\w-]+ is not built here|it is not unpacked here"
    r"|.* is not on PATH.*"  # a compiler or the emulator
    r"|this processor lacks .*|aarch64 is emulated on x86-64 only; .*"
    r"|no (?:portable build|variant) is known for .*)"
)
"""Why something that has no fault may not be there: nobody made it, or this machine cannot."""


def built(script: Path, *arguments: str) -> str:
    """What a script of envs/ prints for what is built already; `arguments` end with --if-built.

    Skips the test where it is not there. Whatever else the script ends with, or a build that is
    damaged, fails the test.
    """
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return done.stdout.strip()
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if not done.stdout and _ABSENT.fullmatch(last):
        pytest.skip(last)
    said = f"{done.stdout}{done.stderr}"[-2000:]
    pytest.fail(f"{script.name} {' '.join(arguments)} ended with {done.returncode}:\n{said}")
