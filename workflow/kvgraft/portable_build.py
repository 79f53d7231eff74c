"""Where the portable build of the engine lies on this machine, and that a process loads it.

The folder is that of LLAMA_CPP_LIB_PATH where the variable is set, and otherwise the one that
`envs/engine_variant.py` of this checkout has built and cached. Nothing is compiled here: a build
takes minutes, and is asked for by name (`make portable`). What a folder must hold, and whether
what it computes is the portable arithmetic, is `portable` and `selftest`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kvgraft import portable
from kvgraft.errors import EngineNotInstalled
from kvgraft.portable import Arithmetic
from kvgraft.profile import PORTABLE

PRESET = PORTABLE
"""The preset of `kvgraft.profile.PRESETS` that needs the build, and the name of the build in
`envs/engine_variant.py`."""

_SCRIPT = Path(__file__).parents[2] / "envs" / "engine_variant.py"


def activate() -> Arithmetic:
    """Let this process load the portable build; harmless where it has.

    Raises:
        EngineNotInstalled: it is not built here.
        EngineUnavailable, NotPortable: as `portable.activate`.
    """
    return portable.activate(folder())


def folder() -> Path:
    """The folder of the portable build.

    Raises:
        EngineNotInstalled: it is not built here.
    """
    given = os.environ.get(portable.FOLDER_VARIABLE, "")
    if given:
        return Path(given)
    reason = "this is no checkout, which has envs/engine_variant.py"
    if _SCRIPT.is_file():
        done = subprocess.run(
            [sys.executable, str(_SCRIPT), PRESET, "--if-built"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return Path(done.stdout.strip())
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    raise EngineNotInstalled(
        "the portable build of the engine is not there",
        found=reason,
        hint=f"make portable builds it; or let {portable.FOLDER_VARIABLE} name its folder",
    )
