"""llama.cpp's source from the locked llama-cpp-python, and what is compiled from it, kept.

What the package itself does not build (the server, other builds of the libraries) is compiled here
from the very source it carries: fetched with its hash checked, with the same tools. Results are
kept beside the compiled engines, each under a key of its own with the SHA-256 of its files.

It knows nothing of kvgraft and of what is compiled; the standard library and pip are all it needs.
"""

from __future__ import annotations

import fcntl
import hashlib
import shlex
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine_wheel import (
    ENVS,
    PACKAGE,
    BuildError,
    build_tools,
    cache_path,
    cache_root,
    locked_requirement,
    new_work,
    run,
)


@dataclass(frozen=True)
class Source:
    """Unpacked source with the tools to compile it.

    Attributes:
        package: the folder of llama-cpp-python.
        llama: the folder of llama.cpp in it.
        work: a folder to build in; removed with the source.
        environment: variables under which the tools are found.
    """

    package: Path
    llama: Path
    work: Path
    environment: Mapping[str, str]

    def compile(self, options: Sequence[str], include: Path, target: str) -> Path:
        """Configure and compile one target; returns the folder that its files are put into.

        Raises:
            BuildError: the source does not configure or compile.
        """
        made = self.work / "made"
        given = shlex.split(self.environment.get("CMAKE_ARGS", ""))
        run(
            [
                *("cmake", "-G", "Ninja", "-S", str(self.llama), "-B", str(made)),
                *options,
                f"-DCMAKE_PROJECT_INCLUDE={include}",
                *given,
            ],
            dict(self.environment),
        )
        run(["cmake", "--build", str(made), "--target", target], dict(self.environment))
        return made / "bin"


@contextmanager
def unpacked(parent: Path, requirement: str | None = None) -> Iterator[Source]:
    """Fetch and unpack the source in a temporary folder.

    Args:
        parent: the cache folder, whose lock is held.
        requirement: line of a requirements file with its hashes; None for the locked one.

    Raises:
        BuildError: a download failed or has another hash.
    """
    work = new_work(parent)
    try:
        pip, environment = build_tools(work)
        wanted = work / "requirement.txt"
        wanted.write_text(
            requirement or locked_requirement(ENVS / "engine.txt", PACKAGE), encoding="utf-8"
        )
        hashed = ["--quiet", "--require-hashes", "--no-deps"]
        source = ["--no-binary", PACKAGE, "--no-build-isolation", "-d", str(work / "fetched")]
        run([*pip, "download", *hashed, *source, "-r", str(wanted)], environment)
        (archive,) = (work / "fetched").glob("*.tar.gz")
        # Pythons before 3.11.4 have no filter; the archive has the locked hash.
        checked = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        shutil.unpack_archive(archive, work / "source", **checked)  # type: ignore[arg-type]
        (llama,) = (work / "source").glob("*/vendor/llama.cpp")
        yield Source(llama.parents[1], llama, work, environment)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hex.

    Raises:
        OSError: it is no regular file, or cannot be read. A fifo or a device is not waited for.
    """
    if not path.is_file():
        raise OSError(f"{path} is no regular file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _removed(folder: Path) -> None:
    """Remove what lies in a folder's place, whatever it is."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.unlink(missing_ok=True)


def kept(
    name: str,
    is_sound: Callable[[Path], bool],
    build: Callable[[Source, Path], None],
    requirement: str | None = None,
) -> Path:
    """The folder of the cache with a name, built if it is absent or damaged.

    A second caller waits instead of compiling too. What is there is used wherever it can be read;
    the cache is written only for a build.

    Args:
        name: of the folder; holds the key.
        is_sound: whether a folder holds what was built, bytes and all.
        build: compiles the source and puts the results into an empty folder.
        requirement: as in `unpacked`.

    Raises:
        BuildError: nothing sound came of the build, or the cache cannot be written.
    """
    folder = cache_path() / name
    if is_sound(folder):
        return folder
    root = cache_root()
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_sound(folder):
            with unpacked(root, requirement) as source:
                done = source.work / "done"
                done.mkdir()
                build(source, done)
                _removed(folder)
                done.rename(folder)
    if not is_sound(folder):
        raise BuildError(f"{folder} holds nothing sound after the build")
    return folder
