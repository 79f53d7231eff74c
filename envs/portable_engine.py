"""The portable builds of llama.cpp's libraries: the same bits on every processor.

ggml takes its plain C path, the compiler may fuse nothing, products of matrices come from
`portable/kernels.h`, and the mathematical functions from LLVM's libc, which rounds them correctly.
What decides the bits is written beside the libraries as ARITHMETIC.json, the same bytes in every
portable folder whatever its processor; what does not, instruction sets above all, is left out of
it. A build that does not pass the gate is not kept.

It is a part of engine_variant.py, which keeps the results.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import portable_math
from engine_wheel import (
    BUILD_VARIABLES,
    ENVS,
    PACKAGE,
    BuildError,
    compiler,
    locked_requirement,
    output_of,
    without_comments,
)
from llama_source import Source
from portable_gate import check

HERE = ENVS / "portable"
INCLUDE = HERE / "portable.cmake"
DEFINITION = "ARITHMETIC.json"
NAMES = ("portable", "portable-clang", "portable-generic", "portable-aarch64")

ENVIRONMENT = {"GGML_CPU_DISABLE_FUSION": "1", "GGML_CPU_TILED_MM": "0"}
FLAGS = ("-ffp-contract=off", "-fno-math-errno")
OPTIONS = (
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=generic",
    "-DGGML_NATIVE=OFF",
    "-DGGML_CPU_REPACK=OFF",
    "-DGGML_LLAMAFILE=OFF",
    "-DGGML_OPENMP=OFF",
)
DECIDING = ("hide.h", "kernels.h", "kernels.cpp", "kernels.cmake")
"""Files of `portable` that decide bits; the lanes_*.h give one meaning in several instruction
sets."""


@dataclass(frozen=True)
class Target:
    """One processor that the libraries are built for.

    Attributes:
        debian: its name in Debian.
        tools: how the names of its compiler and binutils begin; empty for this machine's own.
        flags: of the compiler; they choose instructions, -mno-fma among them, and DEFINITION does
            not name them. That they change no bits, the gate and the self-test see to.
        options: of CMake, likewise.
        clang: whether it is Clang that compiles it, and not this machine's usual compiler.
    """

    debian: str
    tools: str
    flags: tuple[str, ...]
    options: tuple[str, ...] = ()
    clang: bool = False


_V3 = Target("amd64", "", ("-march=x86-64-v3", "-mno-fma"), ("-DKVGRAFT_AVX512=ON",))
_GENERIC = Target("amd64", "", ("-march=x86-64",))
_ARM = Target("arm64", "", ("-march=armv8-a",))
_CROSS = Target("arm64", "aarch64-linux-gnu-", ("-march=armv8-a",))


def target_of(name: str) -> Target:
    """What a portable variant is built for on this machine.

    Raises:
        BuildError: the machine is neither x86-64 nor aarch64, or its processor is too old.
    """
    machine = platform.machine().lower()
    by_clang = name == "portable-clang"
    if machine in {"aarch64", "arm64"}:
        return replace(_ARM, clang=by_clang)
    if machine not in {"x86_64", "amd64"}:
        raise BuildError(f"no portable build is known for {machine}; known: x86-64, aarch64")
    if name == "portable-aarch64":
        return _CROSS
    missing = {"avx2", "fma", "bmi1", "bmi2"} - _processor_flags()
    if missing:
        raise BuildError(
            f"this processor lacks {', '.join(sorted(missing))}: the functions of "
            f"{portable_math.PACKAGE}, which every portable build holds, are compiled for them"
        )
    fast = name != "portable-generic" and "f16c" in _processor_flags()
    return replace(_V3 if fast else _GENERIC, clang=by_clang)


def _processor_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def compilers(target: Target) -> tuple[list[str], list[str]]:
    """The commands of the C and the C++ compiler of a target.

    Raises:
        BuildError: they are not installed.
    """
    if target.clang:
        commands, package = (["clang"], ["clang++"]), "clang"
    elif target.tools:
        commands = [f"{target.tools}gcc"], [f"{target.tools}g++"]
        package = "g++-aarch64-linux-gnu"
    else:
        cc = compiler("CC", ("cc", "gcc", "clang"))
        return cc, compiler("CXX", ("c++", "g++", "clang++"))
    for command in commands:
        if not shutil.which(command[0]):
            raise BuildError(
                f"{command[0]} is not on PATH (Debian and Ubuntu: apt-get install {package})"
            )
    return commands


def facts(name: str) -> dict[str, str]:
    """Everything that decides what the libraries of a portable variant contain.

    The host's own instruction set is not among it: a build is the same on all of its kind.

    Raises:
        BuildError: as `target_of` and `compilers`, or the engine is not locked.
    """
    target = target_of(name)
    cc, cxx = compilers(target)
    files = sorted(path for path in HERE.iterdir() if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    described = {
        "requirement": locked_requirement(ENVS / "engine.txt", PACKAGE),
        "tools": without_comments(ENVS / "build.txt"),
        "include": without_comments(ENVS / "llama-cpp.cmake"),
        "portable": digest.hexdigest(),
        "target": f"{target.debian} {' '.join(target.flags)}",
        "options": " ".join((*OPTIONS, *target.options, *FLAGS)),
        "math": " ".join((portable_math.PACKAGE, portable_math.VERSION, *portable_math.FUNCTIONS)),
        "cc": output_of([*cc, "--version"]).splitlines()[0],
        "cxx": output_of([*cxx, "--version"]).splitlines()[0],
        "libc": " ".join(platform.libc_ver()),
    }
    return described | {name: os.environ.get(name, "") for name in BUILD_VARIABLES}


def definition() -> bytes:
    """What decides the bits, as canonical JSON.

    Raises:
        BuildError: the engine is not locked by one source distribution.
    """
    locked = locked_requirement(ENVS / "engine.txt", PACKAGE)
    version = re.match(rf"{PACKAGE}==([^\s\\]+)", locked)
    hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", locked)
    if version is None or len(hashes) != 1:
        raise BuildError(f"engine.txt locks {PACKAGE} otherwise than by one source distribution")
    digests = (hashlib.sha256((HERE / name).read_bytes()).hexdigest() for name in DECIDING)
    value = {
        "name": "portable",
        "llama_cpp": {"package": PACKAGE, "version": version[1], "source_sha256": hashes[0]},
        "definitions": [
            *(option.removeprefix("-D") for option in OPTIONS),
            *FLAGS,
            *(f"{name} sha256:{digest}" for name, digest in zip(DECIDING, digests, strict=True)),
        ],
        "math": {
            "name": "llvm-libc",
            "version": portable_math.VERSION,
            "functions": list(portable_math.FUNCTIONS),
        },
        "environment": ENVIRONMENT,
    }
    # Strings and ASCII alone: sorted keys without spaces are RFC 8785's form of it.
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def build(name: str, source: Source, made_options: tuple[str, ...]) -> Path:
    """Compile a portable variant; returns the folder of the libraries.

    Args:
        name: one of `NAMES`.
        source: unpacked, with its tools.
        made_options: CMake options that every variant has.

    Raises:
        BuildError: it does not compile, or something it needs is missing.
    """
    target = target_of(name)
    cc, cxx = compilers(target)
    archive = portable_math.archive(target.debian, target.tools, source.work / "math")
    options = (
        *made_options,
        *OPTIONS,
        *target.options,
        f"-DCMAKE_C_COMPILER={';'.join(cc)}",
        f"-DCMAKE_CXX_COMPILER={';'.join(cxx)}",
        f"-DKVGRAFT_FLAGS={';'.join((*FLAGS, *target.flags))}",
        f"-DKVGRAFT_MATH={archive}",
    )
    return source.compile(options, INCLUDE, "llama")


def finish(done: Path) -> None:
    """Check the libraries that are to be kept, and write what decides their bits beside them.

    Raises:
        BuildError: the gate refuses one.
    """
    check(done, portable_math.is_ours)
    (done / DEFINITION).write_bytes(definition())
