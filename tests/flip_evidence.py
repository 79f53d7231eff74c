"""Flip one byte in each file of a run directory in turn: the verifier must fail and name the file.

Works on a copy, and asks the command `kvaudit verify` itself, in this process. Where in a file the
byte lies follows from the file's name, so that a failure can be repeated. Needs no engine.

    python tests/flip_evidence.py results/reference
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import sys
import tempfile
from pathlib import Path

from kvaudit import cli

VERIFIED, FAILED, UNUSABLE = 0, 1, 2


def verdict(run: Path) -> tuple[int, str]:
    """Exit code of `kvaudit verify` and everything it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = cli.main(["verify", str(run)])
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
    flip(path, at)
    code, printed = verdict(run)
    flip(path, at)
    named = [line.strip() for line in printed.splitlines() if name in line]
    good = code in {FAILED, UNUSABLE} and bool(named)
    print(f"{'caught' if good else 'MISSED'}  exit {code}  {name} byte {at}", flush=True)
    if not good:
        print(printed)
    return good


def main(arguments: list[str]) -> int:
    """Flip the files of the run directory given; 0 if every flip was caught."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(f"no run directory: {' '.join(arguments) or 'none was given'}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        shutil.copytree(arguments[0], run, symlinks=True)
        names = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
        # The untouched copy verifies before the flips and after them, or they would prove nothing.
        code, printed = verdict(run)
        if code != VERIFIED or not names:
            print(f"the untouched copy does not verify:\n{printed}", file=sys.stderr)
            return 1
        results = [caught(run, name) for name in names]
        code, printed = verdict(run)
        if code != VERIFIED:
            print(f"the restored copy does not verify:\n{printed}", file=sys.stderr)
            return 1
    print(f"{len(results)} files flipped, {sum(results)} caught")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
