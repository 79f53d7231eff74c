"""Compile llama.cpp's libraries again with other options, once a machine.

The source is the very one the engine is compiled from (`llama_source`). Only the libraries that
kvgraft loads are built; they are kept beside the compiled engines under a key of their own, and
llama-cpp-python loads them where LLAMA_CPP_LIB_PATH names their folder. The installed engine is
not touched.

    python envs/engine_variant.py lower-isa          build if need be, print the folder
    python envs/engine_variant.py lower-isa --key    print the key and what it is made of
    python envs/engine_variant.py lower-isa --if-built   print the folder, or fail at once
    python envs/engine_variant.py portable       the same bits everywhere, see portable_engine

A variant is a row of `VARIANTS`; `folder` is one that lies where KVGRAFT_ENGINE says. Variables
that reach the compiler are honoured as by engine_wheel.py; CMAKE_BUILD_PARALLEL_LEVEL bounds the
number of compilers side by side.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import portable_engine
from engine_wheel import (
    ENVS,
    BuildError,
    build_facts,
    cache_path,
    key_of,
    without_comments,
)
from llama_source import Source, file_digest, kept

GIVEN, GIVEN_BY = "folder", "KVGRAFT_ENGINE"
"""The variant that is not built here, and the variable that names its folder."""
RECORD = "SHA256"
"""File of a cache folder: digest and name of every library, as sha256sum writes them."""
_RECORD_BYTES = 1 << 20
LIBRARIES = ("ggml-base", "ggml-cpu", "ggml", "llama")
COMMON = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",  # they find each other in the folder they lie in
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
)


@dataclass(frozen=True)
class Variant:
    """One set of options.

    Attributes:
        options: CMake options by kind of processor, "x86" or "arm".
        include: read by CMake after every project() call.
        requirement: another llama-cpp-python with its hashes; None for the locked one. Its Python
            part is kept beside the libraries, because the two belong together.
        portable: built by `portable_engine`, which has options of its own.
    """

    options: Mapping[str, tuple[str, ...]]
    include: Path = field(default=ENVS / "llama-cpp.cmake")
    requirement: str | None = None
    portable: bool = False


_NATIVE_OFF = ("-DGGML_NATIVE=OFF",)
VARIANTS: Mapping[str, Variant] = {
    # Another instruction set level of the same machine: on x86-64 that of 2012, with AVX and F16C
    # and without AVX2, FMA and all that came later; on Arm plain armv8-a.
    "lower-isa": Variant(
        {
            "x86": (
                *_NATIVE_OFF,
                *(f"-DGGML_{name}=ON" for name in ("SSE42", "AVX", "F16C")),
                *(f"-DGGML_{name}=OFF" for name in ("AVX2", "FMA", "BMI2", "AVX_VNNI", "AVX512")),
            ),
            "arm": (*_NATIVE_OFF, "-DGGML_CPU_ARM_ARCH=armv8-a"),
        }
    ),
    # The version before the locked one, for measuring again across an upgrade.
    "previous": Variant(
        {"x86": (), "arm": ()},
        requirement="llama-cpp-python==0.3.35 "
        "--hash=sha256:1139dbb54509074b70893fab8554e3b079aa9f4d312058ce4018ef0019e3de12\n",
    ),
    # One arithmetic in several instruction sets: the fastest of this machine, the same by Clang,
    # plain x86-64, and aarch64 (on an x86-64 machine by a cross compiler). On aarch64 all are one
    # but Clang's.
    **{name: Variant({}, portable=True) for name in portable_engine.NAMES},
}


def processor() -> str:
    """The kind of this processor: "x86" or "arm".

    Raises:
        BuildError: another one.
    """
    kinds = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}
    machine = platform.machine().lower()
    if machine not in kinds:
        raise BuildError(f"no variant is known for {machine}; known: {', '.join(kinds)}")
    return kinds[machine]


def options_of(variant: Variant) -> tuple[str, ...]:
    """The CMake options of a variant on this machine."""
    return (*COMMON, *variant.options[processor()])


def variant_facts(name: str) -> dict[str, str]:
    """Everything that decides what the libraries of a variant contain."""
    variant = VARIANTS[name]
    if variant.portable:
        return {"common": " ".join(COMMON), **portable_engine.facts(name)}
    facts = build_facts()
    return facts | {
        "variant": name,
        "requirement": variant.requirement or facts["requirement"],
        "options": " ".join(options_of(variant)),
        "include": without_comments(variant.include),
    }


def recorded(folder: Path) -> dict[str, str]:
    """{file name: SHA-256} as the build wrote it; empty without a record that can be read."""
    path = folder / RECORD
    try:
        if not path.is_file() or path.stat().st_size > _RECORD_BYTES:
            return {}
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = [line.split("  ", 1) for line in lines]
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def sound(folder: Path) -> bool:
    """Whether a folder holds exactly what was built, and that is all that its variant has."""
    if not os.path.lexists(folder):
        return False
    try:
        found = digests_of(folder)
        if found and found == recorded(folder) and _complete(found, folder.name):
            return True
    except OSError:
        pass  # a folder, a link to nowhere or a device in a file's place, or it may not be read
    print(f"{folder} is damaged and will be built again", flush=True)
    return False


def _complete(found: Collection[str], folder: str) -> bool:
    """Whether the files of a folder, whose name begins with its variant's, are those of one."""
    libraries = {name.split(".")[0] for name in found if name.startswith("lib")}
    if libraries != {f"lib{name}" for name in LIBRARIES} or "libllama.so" not in found:
        return False
    variant = VARIANTS.get(folder.rpartition("-")[0])
    if variant is None:  # a test's
        return True
    of_python = "llama_cpp/__init__.py" in found
    return (portable_engine.DEFINITION in found, of_python) == (
        variant.portable,
        variant.requirement is not None,
    )


def digests_of(folder: Path) -> dict[str, str]:
    """{path in a folder: SHA-256} of its libraries, of a Python part and of the arithmetic.

    Raises:
        OSError: one of them is no regular file, or cannot be read.
    """
    paths = [
        *folder.glob("lib*"),
        *folder.glob("llama_cpp/**/*.py"),
        *folder.glob(portable_engine.DEFINITION),
    ]
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in sorted(paths)}


def build(name: str, source: Source, done: Path) -> None:
    """Compile a variant and keep each library under the name that the others ask for."""
    variant = VARIANTS[name]
    print(f"Compiling llama.cpp's libraries, {name}: a few minutes, once a machine.", flush=True)
    if variant.portable:
        made = portable_engine.build(name, source, COMMON)
    else:
        made = source.compile(options_of(variant), variant.include, "llama")
    keep_libraries(made, done)
    if variant.portable:
        portable_engine.finish(done)
    if variant.requirement:
        part = source.package / "llama_cpp"
        for path in part.rglob("*.py"):
            target = done / "llama_cpp" / path.relative_to(part)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    lines = [f"{digest}  {path}\n" for path, digest in digests_of(done).items()]
    (done / RECORD).write_text("".join(lines), encoding="utf-8")


def keep_libraries(made: Path, done: Path) -> None:
    """Copy the libraries of a build folder under the names that they are asked for by."""
    for library in LIBRARIES:
        path = made / f"lib{library}.so"
        # libllama is loaded by its plain name, the others by their sonames.
        kept_as = path.name if library == "llama" else soname(path)
        shutil.copyfile(path.resolve(), done / kept_as)


def soname(path: Path) -> str:
    """The name under which a shared library is asked for: the last link but the file itself."""
    while path.is_symlink():
        following = path.parent / path.readlink()
        if not following.is_symlink():
            return path.name
        path = following
    return path.name


def given_folder() -> Path:
    """The folder of libraries that $KVGRAFT_ENGINE names: another version of the engine.

    Raises:
        BuildError: it names none.
    """
    given = os.environ.get(GIVEN_BY, "")
    if not given or not (Path(given) / "libllama.so").exists():
        raise BuildError(f"{GIVEN_BY} names no folder with libllama.so: {given or 'it is not set'}")
    return Path(given).resolve()


def folder_name(name: str) -> str:
    """The name of a variant's folder in the cache."""
    # Portable variants that are one on this machine are built once.
    stem = portable_engine.NAMES[0] if VARIANTS[name].portable else name
    return f"{stem}-{key_of(variant_facts(name))}"


def folder_of(name: str) -> Path:
    """The folder of a variant's libraries, built if need be.

    Raises:
        BuildError: there is no such variant, or it does not build.
    """
    if name == GIVEN:
        return given_folder()
    if name not in VARIANTS:
        raise BuildError(f"there is no variant {name}; there are {', '.join(VARIANTS)}")
    return kept(
        folder_name(name),
        sound,
        lambda source, done: build(name, source, done),
        VARIANTS[name].requirement,
    )


@contextmanager
def output_to_stderr() -> Iterator[TextIO]:
    """Turn the compiler's output away from standard output, which is for the answer alone."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        sys.stdout.flush()
        os.dup2(2, 1)
        yield answer


def main(arguments: list[str]) -> int:
    """Build if need be and print the folder; returns the exit status."""
    if {*arguments} & {"-h", "--help"}:
        print(__doc__, end="")
        return 0
    try:
        if len(arguments) == 2 and arguments[1] == "--key" and arguments[0] in VARIANTS:
            facts = variant_facts(arguments[0])
            print(key_of(facts))
            print(json.dumps(facts, indent=2, sort_keys=True))
            return 0
        if len(arguments) == 2 and arguments[1] == "--if-built" and arguments[0] in VARIANTS:
            built = cache_path() / folder_name(arguments[0])
            if not sound(built):
                raise BuildError(f"{arguments[0]} is not built here")
            print(built)
            return 0
        if len(arguments) != 1:
            raise BuildError("name one variant: " + ", ".join(VARIANTS))
        with output_to_stderr() as answer:
            folder = folder_of(arguments[0])
            answer.write(f"{folder}\n")
    except BuildError as error:
        print(f"variant: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
