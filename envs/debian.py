"""Fetch packages of Debian for any architecture, and unpack them without installing them.

What a build or an emulated program needs of another architecture is taken from Debian's signed
archive: apt checks the signature of its lists and the digest of every package. Lists, state and
cache are private folders, so that nothing of the system changes and no privilege is needed; the
system gives its sources and keys alone.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from engine_wheel import BuildError


def _program(name: str, by_hand: str) -> str:
    found = shutil.which(name)
    if not found:
        raise BuildError(f"{name} is not on PATH, and packages come from Debian; {by_hand}")
    return found


def fetch(packages: Iterable[str], architecture: str, work: Path) -> list[Path]:
    """Download packages into a folder.

    Args:
        packages: names, without versions.
        architecture: as Debian names it, "amd64" or "arm64".
        work: an empty or absent folder; the packages lie in it.

    Returns:
        The files, sorted by name.

    Raises:
        BuildError: this is no Debian, or a package cannot be had.
    """
    wanted = list(packages)
    by_hand = f"on a Debian machine: apt-get download {' '.join(wanted)} ({architecture})"
    apt = _program("apt-get", by_hand)
    work.mkdir(parents=True, exist_ok=True)
    state = work / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    status = state / "status"
    status.touch()
    options = [
        *("-o", f"APT::Architecture={architecture}"),
        *("-o", f"APT::Architectures={architecture}"),
        *("-o", f"Dir::State={state / 'state'}", "-o", f"Dir::State::status={status}"),
        *("-o", f"Dir::Cache={state / 'cache'}", "-o", "APT::Sandbox::User="),
        *("-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3"),
    ]
    for command in (["update"], ["download", *wanted]):
        done = subprocess.run(
            [apt, "-qq", *options, *command],
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip())[-500:]
            raise BuildError(f"apt-get {command[0]} failed: {said}; {by_hand}")
    shutil.rmtree(state)
    found = sorted(work.glob("*.deb"))
    if len(found) != len(wanted):
        raise BuildError(f"{len(found)} of {len(wanted)} packages were fetched; {by_hand}")
    return found


def unpack(package: Path, into: Path) -> None:
    """Unpack a package's files below a folder; nothing of it is run.

    Raises:
        BuildError: it is no sound package.
    """
    command = [_program("dpkg-deb", "apt-get install dpkg"), "-x", str(package), str(into)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{package.name} cannot be unpacked: {done.stderr.strip()[-300:]}")


def version_of(package: Path) -> str:
    """The version of a package, as Debian writes it.

    Raises:
        BuildError: it is no sound package, or dpkg-deb is not installed.
    """
    command = [_program("dpkg-deb", "apt-get install dpkg"), "-f", str(package), "Version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{package.name} is no sound package: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()
