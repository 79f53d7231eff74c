"""The system-call filter of the sandbox, assembled as a classic BPF program.

Namespaces hide the machine; this filter takes away what namespaces do not cover: sockets of every
family (AF_VSOCK and AF_ALG ignore the network namespace), memory that no limit counts (System V
segments, message queues, memfd), kernel keyrings, tracing, other turns at the processor, new
namespaces, and large young kernel interfaces. Everything else is allowed, so Python runs as usual.
This module must not know how the filter is loaded; it returns bytes.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

# linux/filter.h and linux/seccomp.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACES = 0x20000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000
_NEW_NAMESPACES |= 0x20000000 | 0x40000000

# Denied calls with their numbers on x86-64 and on arm64. Numbers from 424 on are the same there.
_DENIED: dict[str, tuple[int, int]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "setxattr": (188, 5),  # attributes of files in /tmp are kernel memory that no limit counts
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    # The supervisor inside is of the same user, and must get its turn to count files.
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "syslog": (103, 116),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "lookup_dcookie": (212, 18),
}
# Calls that only the old architecture has.
_DENIED_X86 = {"modify_ldt": 154, "iopl": 172, "ioperm": 173, "uselib": 134, "_sysctl": 156}


@dataclass(frozen=True)
class _Machine:
    column: int  # in _DENIED
    audit: int  # AUDIT_ARCH_* of linux/audit.h
    clone: int
    clone3: int
    prlimit: int


_MACHINES = {
    "x86_64": _Machine(0, 0xC000003E, 56, 435, 302),
    "aarch64": _Machine(1, 0xC00000B7, 220, 435, 261),
}


def supported(machine: str) -> bool:
    """Whether there is a filter for this `platform.machine()`."""
    return machine in _MACHINES


def program(machine: str) -> bytes:
    """The filter as an array of `struct sock_filter`, as `bwrap --seccomp` reads it.

    Args:
        machine: as `platform.machine()` names it.

    Raises:
        KeyError: there is no filter for it; see `supported`.
    """
    this = _MACHINES[machine]
    refuse = _ERRNO | errno.EPERM
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, this.audit, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    denied = [numbers[this.column] for numbers in _DENIED.values()]
    if machine == "x86_64":
        denied += _DENIED_X86.values()
        # The x32 interface is a second numbering of the same calls.
        steps += [_step(_AT_LEAST, 0x40000000, 0, 1), _step(_RETURN, _KILL)]
    for number in denied:
        steps += [_step(_EQUAL, number, 0, 1), _step(_RETURN, refuse)]
    steps += [
        # A filter cannot see the flags of clone3; told that it is absent, the C library uses clone.
        _step(_EQUAL, this.clone3, 0, 1),
        _step(_RETURN, _ERRNO | errno.ENOSYS),
        _step(_EQUAL, this.clone, 0, 4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        _step(_RETURN, refuse),
        _step(_RETURN, _ALLOW),
        # Limits of other processes are out of reach, above all those of the supervisor.
        _step(_EQUAL, this.prlimit, 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_EQUAL, 0, 1, 0),
        _step(_RETURN, refuse),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
