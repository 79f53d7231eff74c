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

import json
import shutil
import sys
from pathlib import Path

from engine_wheel import ENVS, BuildError, build_facts, key_of, without_comments
from llama_source import Source, file_digest, kept

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
    if recorded.read_text(encoding="ascii").strip() == file_digest(program):
        return program
    print(f"{program} is damaged and will be built again", flush=True)
    return None


def build(source: Source, done: Path) -> None:
    """Compile the server."""
    print("Compiling llama.cpp's server: some minutes, once a machine.", flush=True)
    made = source.compile(CMAKE_OPTIONS, CMAKE_INCLUDE, PROGRAM)
    shutil.copy2(made / PROGRAM, done / PROGRAM)
    (done / "SHA256").write_text(file_digest(done / PROGRAM) + "\n", encoding="ascii")


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
        folder = kept(f"server-{key}", lambda place: sound_program(place) is not None, build)
        link(folder / PROGRAM)
    except BuildError as error:
        print(f"server: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
