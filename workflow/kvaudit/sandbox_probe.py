"""Tries every wall of the sandbox from inside; prints how many do not hold, and names them.

It is run as a program in the sandbox, never imported; zero on the last line means that all hold.
It imports nothing of the project, because nothing of the project can be seen from there.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial

NOBODY = 65534
SEEN = {"python", "usr", "lib", "lib64", "dev", "tmp", "program.py", "start.py"}


def refused(action: Callable[[], object], kind: type[BaseException]) -> bool:
    """Whether the action fails by that kind of error."""
    try:
        action()
    except kind:
        return True
    return False


def socket_of(family: int) -> None:
    """Tries to make a socket."""
    import socket

    socket.socket(family, socket.SOCK_STREAM)


def write_in(place: str) -> None:
    """Tries to make a file in a folder."""
    with open(f"{place}/probe", "wb"):
        pass


def children(most: int) -> int:
    """How many processes can be started, but no more than `most`; they wait for the end."""
    for count in range(most):
        try:
            child = os.fork()
        except OSError:
            return count
        if child == 0:
            while True:
                signal.pause()
    return most


def walls() -> dict[str, bool]:
    """What must hold, by the sentence that is true when it does not."""
    here = os.path.dirname(os.__file__)
    memory, processes = (
        resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC)
    )
    users = {os.getuid(), os.geteuid(), os.getgid(), os.getegid(), *os.getgroups()}
    found = {
        "it runs as another user than nobody": users == {NOBODY},
        "variables are visible": not os.environ,
        "the process numbers of the machine are visible": os.getppid() == 1,
        "files of the machine are visible": set(os.listdir("/")) <= SEEN,
        "descriptors are inherited": refused(lambda: os.fstat(3), OSError),
        "memory has no bound": memory > 0 and refused(lambda: bytearray(memory), MemoryError),
    }
    for family in (1, 2, 38, 40):  # AF_UNIX, AF_INET, AF_ALG, AF_VSOCK
        name = f"a socket of family {family} can be made"
        found[name] = refused(partial(socket_of, family), PermissionError)
    for place in ("/", "/dev", "/usr", "/usr/lib", "/python", "/python/bin", here):
        name = f"a file can be written in {place}"
        found[name] = refused(partial(write_in, place), OSError)
    found["processes have no bound"] = processes > 0 and children(processes) < processes
    return found


if __name__ == "__main__":
    broken = [sentence for sentence, holds in walls().items() if not holds]
    sys.stderr.write("; ".join(broken))
    sys.stdout.write(f"{len(broken)}\n")
