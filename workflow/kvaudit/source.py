"""The files that can change a result, and their digests, in a working tree.

Which files these are is decided here and nowhere else: `history` applies the same rule to a
commit. Documentation, tests and results are not among them. This module must not know git.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kvaudit import digests
from kvaudit.errors import UnusableInput

RELEVANT = ("Snakefile", "config", "envs", "manifests/pins", "rules", "workflow")
"""Files and folders of the repository that can change a result."""

_IGNORED_SUFFIXES = (".pyc", ".pyo")


def is_relevant(path: str) -> bool:
    """Whether a repository path counts; hidden entries, caches and build metadata do not.

    Args:
        path: relative to the repository, segments joined by `/`.
    """
    if not any(path == root or path.startswith(f"{root}/") for root in RELEVANT):
        return False
    parts = path.split("/")
    if any(p.startswith(".") or p == "__pycache__" or p.endswith(".egg-info") for p in parts):
        return False
    return not parts[-1].endswith(_IGNORED_SUFFIXES)


def source_files(repository: str | Path) -> dict[str, str]:
    """{path: SHA-256} of the relevant files of a working tree, sorted by path.

    Raises:
        UnusableInput: a relevant entry is a link or otherwise not a regular file.
    """
    root = Path(repository)
    return {path: digests.sha256_file(root / path) for path in sorted(_walk(root))}


def _walk(root: Path) -> Iterator[str]:
    pending = [name for name in RELEVANT if os.path.lexists(root / name)]
    while pending:
        path = pending.pop()
        if not is_relevant(path):
            continue
        mode = os.lstat(root / path).st_mode
        if stat.S_ISDIR(mode):
            pending.extend(f"{path}/{name}" for name in os.listdir(root / path))
        elif stat.S_ISREG(mode):
            yield path
        else:
            raise UnusableInput(
                "a source file is not a regular file",
                where=path,
                hint="links would let code change outside the registered tree",
            )
