"""Flip one byte in each file of a run directory in turn: the verifier must fail and name the file.

Works on a copy, and asks the command `kvaudit verify` itself, in this process. Where in a file the
byte lies follows from the file's name, so that a failure can be repeated. Needs no engine.

    python tests/flip_evidence.py results/reference
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from kvaudit import cli

VERIFIED, FAILED, UNUSABLE = 0, 1, 2
QUICK = "--no-programs"


def verdict(run: Path, *options: str) -> tuple[int, str]:
    """Exit code of `kvaudit verify` and everything it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = cli.main(["verify", *options, str(run)])
    return code, printed.getvalue()


def position(name: str, size: int) -> int:
    """The byte to flip: anywhere in the file, but the same one every time."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % size


def flip(path: Path, at: int) -> None:
    """Invert the lowest bit of one byte; doing it twice restores the file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def caught(run: Path, name: str) -> bool:
    """Whether the verifier fails on the flipped file and names it; prints what happened."""
    path = run / name
    at = position(name, path.stat().st_size)
    # Digests must do. Only a verdict cannot be compared in full where no program is run again.
    options = () if name == "verdict.json" else (QUICK,)
    flip(path, at)
    code, printed = verdict(run, *options)
    flip(path, at)
    named = [line.strip() for line in printed.splitlines() if name in line]
    good = code in {FAILED, UNUSABLE} and bool(named)
    print(f"{'caught' if good else 'MISSED'}  exit {code}  {name} byte {at}", flush=True)
    if not good:
        print(printed)
    return good


def flip_each(source: Path, names: list[str]) -> list[bool]:
    """Flip some files of a copy one after the other; nothing if the copy itself does not verify."""
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        shutil.copytree(source, run, symlinks=True)
        # The untouched copy verifies before the flips and after them, or they would prove nothing.
        results: list[bool] = []
        for check in ("before", "after"):
            code, printed = verdict(run, QUICK)
            if code != VERIFIED:
                print(f"{check} the flips the copy does not verify:\n{printed}", file=sys.stderr)
                return []
            results = results or [caught(run, name) for name in names]
    return results


def _shares(source: Path, names: list[str], n: int) -> tuple[list[Path], list[list[str]]]:
    return [source] * n, [names[i::n] for i in range(n)]


def main(arguments: list[str]) -> int:
    """Flip the files of the run directory given; 0 if every flip was caught."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(f"no run directory: {' '.join(arguments) or 'none was given'}", file=sys.stderr)
        return 2
    source = Path(arguments[0])
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file())
    workers = min(os.cpu_count() or 1, max(1, len(names)))
    with ProcessPoolExecutor(workers) as pool:
        results = [
            one for part in pool.map(flip_each, *_shares(source, names, workers)) for one in part
        ]
    if not results or len(results) != len(names):
        print("the untouched or the restored copy does not verify", file=sys.stderr)
        return 1
    print(f"{len(results)} files flipped, {sum(results)} caught")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
