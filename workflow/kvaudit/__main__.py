"""`python -m kvaudit`: the command line, interruptible from its first line on."""

from __future__ import annotations

import sys
from collections.abc import Callable

from kvaudit import interrupts


def main() -> int:
    """Runs the command with the arguments of the process; returns its exit code."""
    return interrupts.run("kvaudit", _load)


def _load() -> Callable[[], int]:
    from kvaudit.cli import main

    return main


if __name__ == "__main__":
    sys.exit(main())
