"""Makes the sample blocks importable here too, and starts helper processes on a store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAMPLES = HERE.parent / "kvb"
WORKFLOW = HERE.parents[1] / "workflow"

sys.path.insert(0, str(SAMPLES))

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Start:
    """Starts `store_writer.py` with arguments; its standard output is a pipe of text."""

    def run(*arguments: object) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(WORKFLOW), str(SAMPLES)])
        return subprocess.Popen(
            [sys.executable, str(HERE / "store_writer.py"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )

    return run
