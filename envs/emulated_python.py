"""A Python for aarch64 that runs on this x86-64 machine, under qemu's user emulation.

With it the portable libraries are tried on the other architecture without a second machine. The
interpreter and its libraries are Debian's packages, the modules are wheels for aarch64 with the
versions and hashes of this checkout's locks, and llama_cpp is the Python part of the locked source
distribution. All of it lies in the cache; nothing is installed into the system. Its compiled
libraries are the caller's to name, by LLAMA_CPP_LIB_PATH.

    python envs/emulated_python.py           unpack if need be, print the interpreter's path
    python envs/emulated_python.py --key     print the key and what it is made of
    python envs/emulated_python.py --if-built   print the path, or fail at once

The printed file is a script that starts the emulator, so that sys.executable in the emulated
program names it again and its own subprocesses are emulated too. On an aarch64 machine the path is
that of the Python which runs this.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from debian import fetch, unpack
from engine_variant import output_to_stderr
from engine_wheel import ENVS, PACKAGE, BuildError, cache_path, key_of, locked_requirement, run
from llama_source import Source, kept

EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
VERSION = "3.11"
SYSTEM = (
    *(f"python{VERSION}-minimal", f"libpython{VERSION}-minimal", f"libpython{VERSION}-stdlib"),
    *("libc6", "libgcc-s1", "libstdc++6", "libgomp1", "libcrypt1", "libuuid1", "zlib1g"),
    *("libbz2-1.0", "libdb5.3", "libexpat1", "libffi8", "liblzma5", "libsqlite3-0", "libssl3"),
    *("libncursesw6", "libtinfo6", "libreadline8", "libnsl2", "libtirpc3", "libgssapi-krb5-2"),
    *("libkrb5-3", "libk5crypto3", "libcom-err2", "libkrb5support0", "libkeyutils1"),
)
"""Debian's packages of the interpreter; bookworm's names."""
MODULES = (
    *("blake3", "cffi", "cryptography", "numpy", "pyarrow", "pycparser", "pyyaml", "psutil"),
    *("attrs", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py"),
    *("pandas", "python-dateutil", "tzdata", "scipy", "mpmath", "sympy", "zstandard"),
    *("rfc8785", "rfc3161-client", "securesystemslib", "typing-extensions"),
    *("fsspec", "gguf", "tqdm", "diskcache", "jinja2", "markupsafe", "packaging", "pluggy"),
)
"""The wheels that kvgraft, kvaudit and llama_cpp import, by their names in the locks."""
PLATFORMS = tuple(
    f"manylinux{name}_aarch64" for name in ("2014", "_2_17", "_2_26", "_2_27", "_2_28", "_2_31")
)
RECORD = "CONTENTS"
"""File of the cache folder: digest of the list of its files with their sizes."""


def requirements() -> str:
    """The lines of a requirements file: the modules with their versions and hashes."""
    lines = []
    for name in MODULES:
        for lock in ("audit.txt", "engine.txt", "package.txt"):
            try:
                lines.append(locked_requirement(ENVS / lock, name))
            except BuildError:
                continue
            break
        else:
            raise BuildError(f"no lock in {ENVS} holds {name}")
    return "".join(lines)


def facts() -> dict[str, str]:
    """Everything that decides what the emulated interpreter finds."""
    return {
        "python": VERSION,
        "system": " ".join(SYSTEM),
        "modules": requirements(),
        "engine": locked_requirement(ENVS / "engine.txt", PACKAGE),
    }


def listing(folder: Path) -> str:
    """Digest of the names and sizes of a folder's files, bytecode and the record left out."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts or path.name == RECORD or not path.is_file():
            continue
        digest.update(f"{path.relative_to(folder)}\t{path.stat().st_size}\n".encode())
    return digest.hexdigest()


def sound(folder: Path) -> bool:
    """Whether a folder holds what was unpacked: names and sizes."""
    try:
        recorded = (folder / RECORD).read_text(encoding="ascii").strip()
    except OSError:
        return False
    return recorded == listing(folder)


def build(source: Source, done: Path) -> None:
    """Unpack the interpreter and its modules into an empty folder."""
    print("Unpacking Python for aarch64: a minute, once a machine.", flush=True)
    system, modules = done / "system", done / "modules"
    for package in fetch(SYSTEM, "arm64", source.work / "debian"):
        unpack(package, system)
    wanted = source.work / "modules.txt"
    wanted.write_text(requirements(), encoding="utf-8")
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
            *("--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:"),
            *("--python-version", VERSION, "--implementation", "cp", *platforms),
            *("--target", str(modules), "-r", str(wanted)),
        ]
    )
    shutil.copytree(
        source.package / "llama_cpp",
        modules / "llama_cpp",
        ignore=shutil.ignore_patterns("*.so*", "server", "__pycache__"),
    )
    (said,) = source.package.glob("PKG-INFO")
    version = re.search(r"^Version: (\S+)$", said.read_text(encoding="utf-8"), re.MULTILINE)
    if version is None:
        raise BuildError(f"{PACKAGE}'s PKG-INFO names no version")
    described = modules / f"llama_cpp_python-{version[1]}.dist-info"
    described.mkdir()
    shutil.copyfile(said, described / "METADATA")
    (done / RECORD).write_text(listing(done) + "\n", encoding="ascii")


def emulator() -> str:
    """Path of qemu's user emulator for aarch64.

    Raises:
        BuildError: it is not installed.
    """
    for name in EMULATORS:
        found = shutil.which(name)
        if found:
            return found
    raise BuildError(
        f"{' or '.join(EMULATORS)} is not on PATH "
        "(Debian and Ubuntu: apt-get install qemu-user-static)"
    )


def interpreter(folder: Path, checkout: Path) -> Path:
    """The script that starts the emulated Python with a checkout's packages on its path.

    It lies in a virtual environment of its own, one for each checkout, because Python finds its
    modules beside the file that it was started by.
    """
    system = folder / "system"
    python = system / "usr" / "bin" / f"python{VERSION}"
    name = hashlib.sha256(str(checkout).encode()).hexdigest()[:16]
    # Outside the folder whose contents are recorded.
    environment = folder.with_name(folder.name + ".for") / name
    packages = environment / "lib" / f"python{VERSION}" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    started = environment / "bin" / "python"
    started.parent.mkdir(exist_ok=True)
    quoted = (shlex.quote(f"{one}") for one in (emulator(), system, python))
    starts = '#!/bin/sh\nexec {} -L {} -0 "$0" {} "$@"\n'.format(*quoted)
    texts = {
        environment / "pyvenv.cfg": f"home = {python.parent}\n"
        "include-system-site-packages = false\n",
        packages / "checkout.pth": f"{checkout / 'workflow'}\n{folder / 'modules'}\n",
        started: starts,
    }
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            written = path.with_name(f"{path.name}.{os.getpid()}")
            written.write_text(text, encoding="utf-8")
            written.chmod(0o755 if path == started else 0o644)
            written.replace(path)
    return started


def emulated(*, only_if_built: bool = False) -> Path:
    """The path of a Python for aarch64; on such a machine the one that runs this.

    Args:
        only_if_built: fail rather than fetch anything.

    Raises:
        BuildError: the machine is neither, the emulator is missing, or something cannot be had.
    """
    machine = platform.machine().lower()
    if machine in {"aarch64", "arm64"}:
        return Path(sys.executable)
    if machine not in {"x86_64", "amd64"}:
        raise BuildError(f"aarch64 is emulated on x86-64 only; this is {machine}")
    emulator()
    name = f"emulated-{key_of(facts())}"
    if only_if_built and not sound(cache_path() / name):
        raise BuildError("it is not unpacked here")
    folder = kept(name, sound, build)
    started = interpreter(folder, ENVS.parent)
    tried = subprocess.run(
        [str(started), "-c", "import platform; print(platform.machine())"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.stdout.strip() != "aarch64":
        raise BuildError(f"{started} does not run: {(tried.stderr or tried.stdout).strip()[-500:]}")
    return started


def main(arguments: list[str]) -> int:
    """Unpack if need be and print the path; returns the exit status."""
    try:
        if arguments == ["--key"]:
            print(key_of(facts()))
            print(json.dumps(facts(), indent=2, sort_keys=True))
            return 0
        if arguments not in ([], ["--if-built"]):
            raise BuildError("run it without arguments, or with --key or --if-built")
        with output_to_stderr() as answer:
            path = emulated(only_if_built=bool(arguments))
            answer.write(f"{path}\n")
    except BuildError as error:
        print(f"emulated python: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
