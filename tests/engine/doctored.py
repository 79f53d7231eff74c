"""Builds that are all but portable, each with one fault: what the self-test must refuse.

Only the library of kernels is compiled again; the others are those of the portable build. Kept in
the cache beside the engines, like them. The gate, which would refuse them too, is not asked.

    python tests/engine/doctored.py doctored-fma              build if need be, print the folder
    python tests/engine/doctored.py doctored-fma --if-built   print the folder, or fail at once
    python tests/engine/doctored.py --all                     build all of them
"""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "envs"))
import engine_variant
import portable_engine
import portable_math
from engine_wheel import BuildError, cache_path, key_of
from llama_source import Source, kept

KERNELS = "ggml-cpu"


@dataclass(frozen=True)
class Fault:
    """What is done wrong in a build.

    Attributes:
        flags: of the compiler, behind those of the portable build.
        options: of CMake, likewise.
        mathematics: whether the portable functions are linked in; else they are the system's.
    """

    flags: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    mathematics: bool = True


_FUSING = () if platform.machine() in ("aarch64", "arm64") else ("-mfma",)
FAULTS = {
    "doctored-fma": Fault(flags=("-ffp-contract=fast", *_FUSING)),
    "doctored-math": Fault(mathematics=False),
    "doctored-repack": Fault(options=("-DGGML_CPU_REPACK=ON",)),
}


def facts(name: str) -> dict[str, str]:
    """Everything that decides what the libraries contain."""
    return portable_engine.facts("portable") | {"doctored": f"{name} {FAULTS[name]}"}


def folder_name(name: str) -> str:
    """Of the folder in the cache."""
    return f"{name}-{key_of(facts(name))}"


def build(name: str, source: Source, done: Path, portable: Path) -> None:
    """Compile the kernels with the fault, and put the libraries of the portable build beside."""
    fault, target = FAULTS[name], portable_engine.target_of("portable")
    cc, cxx = portable_engine.compilers(target)
    flags = (*portable_engine.FLAGS, *target.flags, *fault.flags)
    if fault.mathematics:
        archive = portable_math.archive(target.debian, target.tools, source.work / "math")
    else:
        archive = source.work / "none.a"
        archive.write_bytes(b"!<arch>\n")
    options = [
        *engine_variant.COMMON,
        *portable_engine.OPTIONS,
        *target.options,
        f"-DCMAKE_C_COMPILER={';'.join(cc)}",
        f"-DCMAKE_CXX_COMPILER={';'.join(cxx)}",
        f"-DKVGRAFT_FLAGS={';'.join(flags)}",
        f"-DKVGRAFT_MATH={archive}",
        *fault.options,
    ]
    made = source.compile(options, portable_engine.INCLUDE, KERNELS)
    for path in sorted(portable.iterdir()):
        shutil.copyfile(path, done / path.name)
    library = made / f"lib{KERNELS}.so"
    shutil.copyfile(library.resolve(), done / engine_variant.soname(library))
    digests = engine_variant.digests_of(done).items()
    lines = [f"{digest}  {path}\n" for path, digest in digests]
    (done / engine_variant.RECORD).write_text("".join(lines), encoding="utf-8")


def folder_of(name: str) -> Path:
    """The folder of a doctored build, built if need be."""
    sound = engine_variant.folder_of("portable")  # before the lock of the cache is held

    def make(source: Source, done: Path) -> None:
        build(name, source, done, sound)

    return kept(folder_name(name), engine_variant.sound, make)


def main(arguments: list[str]) -> int:
    """Build if need be and print the folder; returns the exit status."""
    try:
        if arguments == ["--all"]:
            with engine_variant.output_to_stderr() as answer:
                answer.writelines(f"{folder_of(name)}\n" for name in FAULTS)
        elif len(arguments) == 2 and arguments[0] in FAULTS and arguments[1] == "--if-built":
            folder = cache_path() / folder_name(arguments[0])
            if not engine_variant.sound(folder):
                raise BuildError(f"{arguments[0]} is not built here")
            print(folder)
        elif len(arguments) == 1 and arguments[0] in FAULTS:
            with engine_variant.output_to_stderr() as answer:
                answer.write(f"{folder_of(arguments[0])}\n")
        else:
            raise BuildError("name one: " + ", ".join(FAULTS))
    except BuildError as error:
        print(f"doctored: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
