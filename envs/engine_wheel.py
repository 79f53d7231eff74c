"""Compile llama-cpp-python once a machine, and install it into the environment that runs this.

llama.cpp is compiled for the very processor it runs on, so a wheel of it must not be taken from a
cache that asks only for name and version, as pip's does: in a home directory shared by several
machines, or beside a build with other options, that wheel would crash or compute other bits. Here
a wheel is kept under a key made of everything that decides its contents: the locked source
distribution, the build tools, the options, the compiler, the C library and the instruction set the
compiler sees. The source and the tools are fetched with their hashes checked.

It knows nothing of kvgraft, and needs the standard library and pip alone.

    python envs/engine_wheel.py          build if need be, then install into this environment
    python envs/engine_wheel.py --key    print the key and what it is made of

The cache is $KVGRAFT_CACHE, or $XDG_CACHE_HOME/kvgraft, or ~/.cache/kvgraft. Variables that
reach the compiler (CC, CXX, CFLAGS, CXXFLAGS, LDFLAGS, CMAKE_ARGS) are honoured.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ENVS = Path(__file__).resolve().parent
PACKAGE = "llama-cpp-python"
CMAKE_INCLUDE = ENVS / "llama-cpp.cmake"
CMAKE_OPTIONS = ("-DLLAVA_BUILD=OFF",)
WORK = "building-"
"""How the folders of builds that go on, or were killed, begin."""
BUILD_VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CMAKE_ARGS")


class BuildError(Exception):
    """The engine cannot be built or installed; the message says what to do."""


def locked_requirement(lock: Path, package: str) -> str:
    """The requirement of one package, with its hashes, as it stands in a lock file."""
    kept: list[str] = []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if kept and not line.startswith(" "):
            break
        if kept or line.startswith(f"{package}=="):
            kept.append(line)
    if not kept:
        raise BuildError(f"{lock.name} does not lock {package}")
    return "\n".join(line for line in kept if not line.lstrip().startswith("#")) + "\n"


def without_comments(path: Path) -> str:
    """A file without its remarks, so that editing one does not compile everything again."""
    lines = (line.rstrip() for line in path.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def compiler(variable: str, names: tuple[str, ...]) -> list[str]:
    """The command of a compiler: the variable's if it is set, else the first that is installed."""
    command = shlex.split(os.environ.get(variable, ""))
    for candidate in (command[:1],) if command else ([name] for name in names):
        if shutil.which(candidate[0]):
            return command or list(candidate)
    wanted = shlex.join(command) if command else " or ".join(names)
    raise BuildError(
        f"no C++ compiler: {wanted} is not on PATH. The engine is compiled from source once; "
        "install a compiler (Debian and Ubuntu: apt-get install g++) and try again."
    )


def output_of(command: list[str]) -> str:
    """What a command prints; raises BuildError if it fails."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"{shlex.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def instruction_set(cc: list[str]) -> str:
    """Digest of the macros the compiler predefines on this processor, its extensions among them."""
    x86 = platform.machine().lower() in {"x86_64", "amd64", "i686"}
    native = "-march=native" if x86 else "-mcpu=native"
    macros = output_of([*cc, native, "-dM", "-E", "-x", "c", os.devnull])
    return hashlib.sha256("\n".join(sorted(macros.splitlines())).encode()).hexdigest()


def build_facts() -> dict[str, str]:
    """Everything that decides what the compiled engine contains."""
    cc = compiler("CC", ("cc", "gcc", "clang"))
    cxx = compiler("CXX", ("c++", "g++", "clang++"))
    facts = {
        "requirement": locked_requirement(ENVS / "engine.txt", PACKAGE),
        "tools": without_comments(ENVS / "build.txt"),
        "include": without_comments(CMAKE_INCLUDE),
        "options": " ".join(CMAKE_OPTIONS),
        "machine": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "cc": output_of([*cc, "--version"]).splitlines()[0],
        "cxx": output_of([*cxx, "--version"]).splitlines()[0],
        "instructions": instruction_set(cc),
    }
    return facts | {name: os.environ.get(name, "") for name in BUILD_VARIABLES}


def key_of(facts: dict[str, str]) -> str:
    """The cache key: 32 hexadecimal digits of the facts' digest."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def cache_path() -> Path:
    """The folder that `cache_root` makes, for looking alone: it may be absent or read-only."""
    base = os.environ.get("KVGRAFT_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kvgraft")
    return Path(base).resolve() / "engine"


def cache_root() -> Path:
    """The folder of compiled engines; made, and refused if it cannot be written."""
    root = cache_path()
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        reason = error.strerror
        raise BuildError(f"{root} cannot be written ({reason}); set KVGRAFT_CACHE") from None
    return root


def sound_wheel(folder: Path) -> Path | None:
    """The wheel of a cache folder, if it is there and its bytes are those that were built."""
    for wheel in sorted(folder.glob("*.whl")):
        recorded = folder / "SHA256"
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if recorded.is_file() and recorded.read_text(encoding="ascii").strip() == digest:
            return wheel
        print(f"{wheel} is damaged and will be built again", flush=True)
    return None


def new_work(root: Path) -> Path:
    """A folder to build in; what builds that were killed have left is removed first.

    The caller holds the lock of the cache folder, so that no other build goes on.
    """
    for left_behind in root.glob(f"{WORK}*"):
        shutil.rmtree(left_behind, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=WORK, dir=root))


def build_tools(work: Path) -> tuple[list[str], dict[str, str]]:
    """An environment in a work folder with the locked build tools.

    Returns:
        The command line of its pip, and the variables under which the tools are found.

    Raises:
        BuildError: a download failed or has another hash.
    """
    tools = work / "tools"
    venv.create(tools, with_pip=True, symlinks=True)
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(tools / "bin"), environment.get("PATH", "")])
    pip = [str(tools / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    locked = ["--require-hashes", "--no-deps", "-r", str(ENVS / "build.txt")]
    run([*pip, "install", "--quiet", *locked], environment)
    return pip, environment


def build(folder: Path) -> None:
    """Compile the wheel in a temporary environment and move it into place as one step."""
    work = new_work(folder.parent)
    try:
        pip, environment = build_tools(work)
        environment["CMAKE_ARGS"] = " ".join(
            (
                *CMAKE_OPTIONS,
                f"-DCMAKE_PROJECT_INCLUDE={CMAKE_INCLUDE}",
                environment.get("CMAKE_ARGS", ""),
            )
        ).strip()
        hashed = ["--require-hashes", "--no-deps"]
        requirement = work / "requirement.txt"
        requirement.write_text(locked_requirement(ENVS / "engine.txt", PACKAGE), encoding="utf-8")
        print("Compiling llama.cpp for this processor: a few minutes, once a machine.", flush=True)
        # pip's own cache is shut out: it does not ask with which options a wheel was built.
        source = ["--no-cache-dir", "--no-binary", PACKAGE, "--no-build-isolation"]
        done = work / "done"
        run([*pip, "wheel", *hashed, *source, "-w", str(done), "-r", str(requirement)], environment)
        (wheel,) = done.glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (done / "SHA256").write_text(digest + "\n", encoding="ascii")
        shutil.rmtree(folder, ignore_errors=True)
        done.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command with its output shown; raises BuildError if it fails."""
    status = subprocess.run(command, env=environment, check=False).returncode
    if status != 0:
        raise BuildError(f"exit status {status} from: {shlex.join(command)}")


def install(wheel: Path, key: str) -> None:
    """Install the wheel into the running environment, unless that very build is there already."""
    marker = Path(sys.prefix) / "engine-key"
    loads = [sys.executable, "-c", "import llama_cpp"]
    current = marker.is_file() and marker.read_text(encoding="ascii").strip() == key
    if current and subprocess.run(loads, capture_output=True, check=False).returncode == 0:
        return
    marker.unlink(missing_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run([*pip, "--no-index", "--no-deps", "--force-reinstall", str(wheel)])
    marker.write_text(key + "\n", encoding="ascii")


def main(arguments: list[str]) -> int:
    """Build if need be and install; returns the exit status."""
    try:
        facts = build_facts()
        key = key_of(facts)
        if arguments == ["--key"]:
            print(key)
            print(json.dumps(facts, indent=2, sort_keys=True))
            return 0
        if arguments or sys.prefix == sys.base_prefix:
            raise BuildError("run it without arguments, by the Python of a virtual environment")
        root = cache_root()
        with (root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second make waits instead of compiling too
            wheel = sound_wheel(root / key)
            if wheel is None:
                build(root / key)
                wheel = sound_wheel(root / key)
        if wheel is None:
            raise BuildError(f"{root / key} holds no sound wheel after the build")
        install(wheel, key)
    except BuildError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
