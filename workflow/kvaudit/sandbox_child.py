"""The first process inside the sandbox: sets the limits, starts the program, reports how it ended.

It is handed to the interpreter as a file and runs as process 1 of its own process namespace, so
that its end ends everything inside. It imports nothing of the project, because nothing of the
project can be seen from there. The program runs in a child, after the descriptor of the report is
closed; it can lie about itself (by its exit status) but not about the sandbox.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from types import ModuleType, TracebackType

PROGRAM = "/program.py"
MEMORY_EXIT = 253  # exit status of a program that ended by MemoryError
OPEN_FILES = 64
LOOK_SECONDS = 0.005  # between two looks at the number of files in /tmp


def confine(cpu: int, memory: int, processes: int, file_bytes: int) -> None:
    """Sets hard limits that this process and its descendants cannot raise again."""
    for limit, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_MEMLOCK, 0),
        # With 1, and not with 0, the kernel starts no crash handler outside (man 5 core).
        (resource.RLIMIT_CORE, 1),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 64),
    ):
        held = resource.getrlimit(limit)[1]
        bound = most if held == resource.RLIM_INFINITY else min(most, held)
        resource.setrlimit(limit, (bound, bound))
    # The second limit kills a program that ignores the signal of the first.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))


def files_in(folder: str) -> int:
    """Files, folders and links of the file system that a folder is the root of; names count."""
    found = os.statvfs(folder)
    return found.f_files - found.f_ffree


def supervise(program: int, report: int, files: int) -> None:
    """Reaps until `program` has ended, then writes "exit N" or "signal N" and its CPU seconds.

    A file without content costs kernel memory that no limit counts, so they are counted here: with
    more than `files` of them it writes "files N" instead. Its own end ends everything inside.
    """
    while True:
        # A signal that comes before the wait stays pending, because it is blocked.
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_SECONDS)
        if (count := files_in("/tmp")) > files:  # noqa: S108
            os.write(report, f"files {count} 0\n".encode())
            os._exit(0)
        process, status, usage = os.wait4(-1, os.WNOHANG)
        while process not in (0, program):
            process, status, usage = os.wait4(-1, os.WNOHANG)
        if process == program:
            break
    code = os.waitstatus_to_exitcode(status)
    word = f"exit {code}" if code >= 0 else f"signal {-code}"
    os.write(report, f"{word} {usage.ru_utime + usage.ru_stime:.3f}\n".encode())
    os._exit(0)


def last_words(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Reports an uncaught exception; running out of memory by its own exit status."""
    if issubclass(kind, MemoryError):
        os.write(2, b"MemoryError\n")
        os._exit(MEMORY_EXIT)
    sys.__excepthook__(kind, error, trace)


def start() -> bytes:
    """Returns the text of the program, in the child that is to run it."""
    report, cpu, memory, processes, file_bytes, files = (int(text) for text in sys.argv[1:])
    with open(PROGRAM, "rb") as file:
        source = file.read()
    # As process 1 it receives no signal from inside that it does not handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    confine(cpu, memory, processes, file_bytes)
    files += files_in("/tmp")  # noqa: S108 - the folder itself is one
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    os.write(report, b"ready\n")
    program = os.fork()
    if program:
        supervise(program, report, files)
    os.close(report)  # its number may be any
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.closerange(3, 1 << 16)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    sys.argv[:] = [PROGRAM]
    sys.excepthook = last_words
    return source


if __name__ == "__main__":
    text = start()
    module = sys.modules["__main__"] = ModuleType("__main__")
    # As text: a declared encoding would let it run as something else than what a reader sees.
    code = compile(text.decode("utf-8"), PROGRAM, "exec")
    exec(code, module.__dict__)  # noqa: S102 - what the sandbox is for
