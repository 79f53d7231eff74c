"""Answers what exact arithmetic leaves open, by sympy in the sandbox, in batches.

Foreign text reaches sympy only as trees that `expression` has read, and sympy is imported nowhere
but inside. This module must not know what a row or a score is.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from kvaudit.errors import ToolMissing
from kvaudit.rescore.equality import Found, Pair
from kvaudit.rescore.expression import Tree
from kvaudit.sandbox import Limits, Ran, Sandbox

BATCH = 16
"""Pairs a process: sympy's import takes half a second, a pair takes milliseconds."""
LIMITS = Limits(wall_seconds=20.0 + BATCH * 10.0, cpu_seconds=30, memory_bytes=512 << 20)
PACKAGES = ("sympy", "mpmath")


def packages() -> tuple[Path, ...]:
    """The folders of sympy and of what it needs.

    Raises:
        ToolMissing: one is not installed as a folder.
    """
    found = []
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        places = spec.submodule_search_locations if spec is not None else None
        if not places or not Path(places[0]).is_dir():
            raise ToolMissing(f"{name} is not installed", hint="install kvgraft again")
        found.append(Path(places[0]))
    return tuple(found)


def decide(
    pairs: Mapping[Pair, tuple[Tree, Tree]], workers: int | None = None
) -> dict[Pair, Found]:
    """Compares every pair.

    Raises:
        SandboxUnavailable, ToolMissing: no sandbox, or no sympy, on this machine.
    """
    if not pairs:
        return {}
    keys = sorted(pairs)
    batches = [keys[start : start + BATCH] for start in range(0, len(keys), BATCH)]
    with Sandbox(LIMITS, workers, packages()) as sandbox:
        runs = sandbox.run_all(_program(pairs[key] for key in batch) for batch in batches)
    found: dict[Pair, Found] = {}
    for batch, ran in zip(batches, runs, strict=True):
        found.update(zip(batch, _read(ran, len(batch)), strict=True))
    return found


def _program(pairs: Iterable[tuple[Tree, Tree]]) -> str:
    text = json.dumps([list(pair) for pair in pairs])
    return f"{Path(__file__).with_name('symbolic_child.py').read_text()}\nmain({text!r})\n"


def _read(ran: Ran, count: int) -> list[Found]:
    """The lines of one batch; a batch that broke off leaves the rest undecided."""
    found: list[Found] = []
    lines = ran.output.decode("utf-8", "replace").splitlines()
    for line in lines[:count]:
        try:
            same, values, trouble = json.loads(line)
            found.append(Found(same, (values[0], values[1]), str(trouble)))
        except (ValueError, TypeError, IndexError):
            break
    rest = Found(None, (None, None), f"the sandbox ended with: {ran.ending}")
    return found + [rest] * (count - len(found))
