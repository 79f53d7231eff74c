"""What a sandboxed program can see, and as whom it runs: the command line of bubblewrap.

Inside there are the interpreter, its standard library, the system's shared libraries, three
devices and an empty /tmp; all but /tmp is read-only. There is no /proc at all: nothing of the
machine can leak through it, and it also works in containers that may not mount one. This module
must not know what programs print or how long they may take.

When root starts it, each worker becomes an own unprivileged user before bubblewrap starts: the
kernel does not bind root by RLIMIT_NPROC, and since older kernels (before 5.14) count processes by
user on the whole machine, one user for all would let runs side by side starve each other. Newer
kernels count per user namespace, so an ordinary user's runs are independent there as well; on older
ones everything the user runs counts, and a program that starts processes may fail.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import os
import platform
import shutil
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path

from kvaudit import seccomp
from kvaudit.errors import SandboxUnavailable

INSTALL = "apt-get install bubblewrap"
INSIDE = 65534  # user and group inside: nobody
_HOME = "/python"
# Raising the score needs no right, and every process inside inherits it. No /proc, no choice.
_FIRST_CHOICE = '{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"'
_PACKAGES = f"{_HOME}/packages"

# Users nobody has: 0x70000000 to 0x7fffffff is kept free by the conventions for user numbers on
# Linux (systemd's UIDS-GIDS). A process number has at most 22 bits, so each of its 64 workers has
# a user that no other process of the machine uses.
_FIRST_USER, _WORKERS_BITS = 0x70000000, 6
_numbers = itertools.count()
# Folders over which a private mount may be put; only the worker's own children see it.
_PLACES = ("/mnt", "/media", "/srv", "/opt")
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


@dataclass(frozen=True)
class Interpreter:
    """The files of the base interpreter, never those of a virtual environment."""

    binary: Path
    stdlib: Path
    library: Path | None  # libpython, where the interpreter is linked with it
    packages: tuple[Path, ...] = ()  # folders that programs may import, by their names

    @property
    def folder(self) -> str:
        """Where the standard library lies inside."""
        return f"{_HOME}/{self.stdlib.parent.name}/{self.stdlib.name}"

    def sources(self) -> tuple[tuple[Path, str], ...]:
        """Each path on this machine with its place inside."""
        found = [(self.binary, f"{_HOME}/bin/python3"), (self.stdlib, self.folder)]
        if self.library is not None:
            found.append((self.library, f"{_HOME}/lib/{self.library.name}"))
        found += [(package, f"{_PACKAGES}/{package.name}") for package in self.packages]
        return tuple(found)


def interpreter() -> Interpreter:
    """The base interpreter of this process."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    name = sysconfig.get_config_var("INSTSONAME") or ""
    library = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent", name)
    shared = ".so" in name and library.is_file()
    return Interpreter(
        Path(base).resolve(),
        Path(os.__file__).parent.resolve(),
        library.resolve().with_name(name) if shared else None,
    )


def bubblewrap() -> str:
    """The path of bubblewrap.

    Raises:
        SandboxUnavailable: not Linux, an architecture without a filter, or it is not installed.
    """
    if sys.platform != "linux":
        raise SandboxUnavailable(
            "programs are only run in a sandbox, and this system has none",
            expected="Linux with bubblewrap",
            found=sys.platform,
            hint=f"use a Linux machine or a virtual one; there: {INSTALL}",
        )
    if not seccomp.supported(platform.machine()):
        raise SandboxUnavailable(
            "there is no system-call filter for this architecture",
            expected="x86_64 or aarch64",
            found=platform.machine(),
        )
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable(
            "programs are only run in a sandbox, and bubblewrap is not installed",
            expected="bwrap on PATH",
            hint=INSTALL,
        )
    return os.path.realpath(found)


@dataclass(frozen=True)
class Worker:
    """What belongs to one thread of the pool.

    Attributes:
        python: the interpreter as the thread's children reach it.
        user: user and group they become; None for the user of this process.
        trouble: why root's interpreter was not made reachable; None where it was.
    """

    python: Interpreter
    user: int | None
    trouble: str | None


def worker(packages: tuple[Path, ...] = ()) -> Worker:
    """Makes the calling thread a worker; it must be a thread that does nothing else.

    A thread can have mounts of its own. Root's interpreter may lie in a folder that only root may
    enter (as below /root); such a thread binds it once to a place that its unprivileged children
    can reach, and no other thread or process of the machine sees that mount.
    """
    packages = tuple(package.resolve() for package in packages)
    python = dataclasses.replace(interpreter(), packages=packages)
    if os.getuid() != 0:
        return Worker(python, None, None)
    assert threading.current_thread() is not threading.main_thread()
    user = _user(next(_numbers))
    try:
        return Worker(_private(python), user, None)
    except OSError as error:
        trouble = f"the interpreter was not made reachable ({error.strerror})"
        return Worker(python, user, trouble)


def command(
    bwrap: str, python: Interpreter, files: dict[str, int], pipes: dict[str, int], tmp_bytes: int
) -> list[str]:
    """The command line up to and including the interpreter and its flags.

    It begins with a shell that makes itself, and so all that is inside, the first that the kernel
    ends when the machine runs out of memory, and becomes bubblewrap.

    Args:
        bwrap: path of bubblewrap.
        python: where the interpreter lies, as this thread sees it.
        files: path inside -> open descriptor whose content is copied there, read-only.
        pipes: "seccomp" and "status" -> the descriptors of the filter and of bubblewrap's report.
        tmp_bytes: size of /tmp.
    """
    walls = [
        "/bin/sh", "-c", _FIRST_CHOICE, "sh",
        bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session",
        "--as-pid-1", "--cap-drop", "ALL", "--uid", str(INSIDE), "--gid", str(INSIDE),
        "--hostname", "sandbox", "--clearenv",
        # Both are only for the start of the interpreter; the program finds no variable at all.
        # Without the second the order of a set of texts would differ from run to run.
        "--setenv", "LD_LIBRARY_PATH", f"{_HOME}/lib", "--setenv", "PYTHONHASHSEED", "0",
        *_system(),
    ]  # fmt: skip
    if python.packages:
        walls += ["--setenv", "PYTHONPATH", _PACKAGES]
    for source, place in python.sources():
        walls += ["--ro-bind", str(source), place]
    if (python.stdlib / "site-packages").is_dir():
        hidden = f"{python.folder}/site-packages"
        walls += ["--size", "4096", "--tmpfs", hidden, "--remount-ro", hidden]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        walls += ["--dev-bind", device, device, "--remount-ro", device]
    for place, descriptor in files.items():
        walls += ["--perms", "0444", "--file", str(descriptor), place]
    walls += ["--size", str(tmp_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]  # noqa: S108
    # The root of the sandbox is a tmpfs without a bound, and the program would own it.
    walls += ["--remount-ro", "/", "--seccomp", str(pipes["seccomp"])]
    walls += ["--json-status-fd", str(pipes["status"]), "--", f"{_HOME}/bin/python3"]
    # -I would be -E -P -s; -E is left out, or the seed of hashes would not be read.
    return [*walls, "-P", "-s", "-S", "-B"]


@functools.cache
def _system() -> tuple[str, ...]:
    """The system's shared libraries: the folder of this architecture, and that of the loader."""
    triplet = sysconfig.get_config_var("MULTIARCH") or "none"
    found: list[str] = []
    folders = [f"/usr/lib/{triplet}"]
    if not os.path.isdir(folders[0]):
        folders = ["/usr/lib64" if os.path.isdir("/usr/lib64") else "/usr/lib"]
    for folder in dict.fromkeys([*folders, "/usr/lib64"]):
        if os.path.islink(folder):
            found += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            found += ["--ro-bind", folder, folder]
    for folder, content in (("/lib", f"/lib/{triplet}"), ("/lib64", "/lib64")):
        if os.path.islink(folder):
            found += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(content):
            found += ["--ro-bind", content, content]
    return tuple(found)


def _user(number: int) -> int:
    """The user of one worker; a shared one where the user namespace lacks such high numbers."""
    user = _FIRST_USER | (os.getpid() << _WORKERS_BITS & 0xFFFFFFF) | number % (1 << _WORKERS_BITS)
    spans = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    mapped = any(int(first) <= user < int(first) + int(count) for first, _, count in spans)
    return user if mapped else INSIDE


def _private(python: Interpreter) -> Interpreter:
    """Binds the interpreter to a place that everyone may enter, for this thread alone.

    Raises:
        OSError: root may not mount here, as in most containers.
    """
    sources = [source for source, _ in python.sources()]
    try:
        place = next(
            Path(place)
            for place in _PLACES
            if os.path.isdir(place)
            and not os.path.islink(place)
            and not any(source.is_relative_to(place) for source in sources)
        )
    except StopIteration:
        raise OSError(0, f"none of {', '.join(_PLACES)} is a free folder") from None
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{name}: {os.strerror(code)}")

    def mount(
        source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None
    ) -> None:
        call("mount", source, target, kind, ctypes.c_ulong(flags), data)

    call("unshare", _CLONE_NEWNS)
    mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    mount(b"tmpfs", bytes(place), b"tmpfs", 0, b"mode=0755,size=65536")
    moved: list[Path] = []
    for index, source in enumerate(sources):
        # The last two parts of the name are those that `Interpreter.sources` reads.
        target = place / str(index) / source.parent.name / source.name
        target.parent.mkdir(parents=True)
        if source.is_dir():
            target.mkdir()
        else:
            target.touch()
        mount(bytes(source), bytes(target), None, _MS_BIND, None)
        moved.append(target)
    library = None if python.library is None else moved[2]
    packages = moved[len(moved) - len(python.packages) :]
    return Interpreter(moved[0], moved[1], library, tuple(packages))
