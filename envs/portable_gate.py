"""Read a built library for what would make its bits depend on the processor.

A compiler may fuse a multiplication and an addition, which rounds once instead of twice, on the
processors that can and not on the others; it has been seen to do so although it was told not to.
Approximate reciprocals differ between makers, and the system's mathematical functions between
versions. So nothing is believed: the library's machine code is disassembled, and what it needs and
imports is read.

The mathematical functions that are linked in may fuse, for their results are correctly rounded
either way; docs/portable.md says how that was tried. They are told by their names alone: the gate
guards against compilers, not against a source that calls a fused function of its own `trunc`.

    python envs/portable_gate.py FOLDER ...     check the libraries of built folders
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine_wheel import BuildError
from portable_math import is_ours, tool

TOLERATED = frozenset({"pow", "logl", "nextafter", "nextafterf"})
"""Functions of libm that libllama may import, and ggml's libraries may not: llama.cpp's samplers,
which kvgraft never calls, take powers and, by Clang, the rest for random numbers. One other power
is in the graph of RWKV, which is refused."""

SYSTEM = frozenset(
    {
        *("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"),
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
        *("libpthread.so.0", "libdl.so.2", "librt.so.1"),  # empty since glibc 2.34
    }
)
"""What a library may need of the system; all else must lie beside it, to be checked like it."""


def _mnemonics(*patterns: str) -> re.Pattern[str]:
    # Whole words, because objdump writes prefixes before a mnemonic: `addr32 vfmadd213ss ...`.
    return re.compile(rf"(?<=[\t ])({'|'.join(patterns)})(?=[\t ]|$)")


_FORBIDDEN = {
    "x86": _mnemonics(
        r"v4?fn?m(?:add|sub)\w*",
        r"vfc?m(?:add|ul)c\w*",
        r"vdp(?:bf16|ph)ps|v?dpp[sd]|tdp\w+|tcmm\w+",
        r"v?(?:rcp|rsqrt)(?:14|28)?[ps][sdh]|vexp2p[sd]",
        r"vcvtne2?ps2bf16\w*",
        r"fsin|fcos|fsincos|fptan|fpatan|f2xm1|fyl2x|fyl2xp1",
        r"\(bad\)",
    ),
    "arm": _mnemonics(
        r"fn?m(?:add|sub|ad|sb)|b?fml[as]|fnml[as]",
        r"b?fml[as]l(?:2|[bt]|l[bt][bt])?|b?fmop[as]|fcmla",
        r"b?f(?:v?dot|mmla)",
        r"frecp[esx]|frsqrt[es]",
        r"\.inst",
    ),
}
"""Mnemonics by kind of processor: fused, dot products and tiles in the order of the maker,
approximate, computed inside the x87 unit, and what the disassembler does not know."""
_LONG = _mnemonics(r"f(?:i?(?:add|subr?|mul|divr?)|subr?p|divr?p|addp|mulp)[sl]?|fsqrt")
"""Arithmetic in the 80 bits of x87, which Arm does not have. Clang's libllama has some for its
random numbers, as in `TOLERATED`; it is looked for in the others."""
_START = frozenset(
    {
        *("_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"),
        *("__gmon_start__", "__cxa_finalize"),
    }
)
"""What the code around every library's beginning and end asks for if it is there."""
_FUNCTION = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
_MACHINES = {
    "X86-64": ("x86", "x86_64", "x86_64-linux-gnu-"),
    "AArch64": ("arm", "aarch64", "aarch64-linux-gnu-"),
}


@dataclass(frozen=True)
class Finding:
    """The first thing in a library that is forbidden.

    Attributes:
        library: file name.
        function: the symbol that holds it, or the imported one; None for a library that is needed.
        instruction: mnemonic; None for an import or a library.
        source: where an import comes from, or the library that is needed.
    """

    library: str
    function: str | None
    instruction: str | None = None
    source: str = "the system's libm"

    def __str__(self) -> str:
        if self.function is None:
            return f"{self.library} needs {self.source}"
        if self.instruction is None:
            return f"{self.library} takes {self.function} from {self.source}"
        return f"{self.library}: {self.function} holds {self.instruction}"


def _lines(command: list[str]) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as running:
        assert running.stdout is not None
        for line in running.stdout:
            yield line.rstrip("\n")
    if running.returncode != 0:
        raise BuildError(f"exit status {running.returncode} from: {' '.join(command)}")


def machine(library: Path) -> tuple[str, str]:
    """The kind of a library's processor, and how the names of the tools that read it begin.

    Raises:
        BuildError: it is no library of a known one.
    """
    command = [tool("readelf", ""), "--file-header", "--wide", str(library)]
    for line in _lines(command):
        if line.strip().startswith("Machine:"):
            for name, (kind, own, prefix) in _MACHINES.items():
                if name in line:
                    return kind, "" if platform.machine() == own else prefix
    raise BuildError(f"{library.name} is for no processor that the gate knows")


def has_symbols(library: Path) -> bool:
    """Whether a library says where its functions begin, those that are its own among them."""
    command = [tool("readelf", ""), "--section-headers", "--wide", str(library)]
    return any(" .symtab " in line for line in list(_lines(command)))


def first_fused(library: Path, exempt: Callable[[str], bool]) -> Finding | None:
    """The first forbidden instruction outside the exempt functions, in the order of addresses.

    Raises:
        BuildError: the library holds no symbol table, so that no function can be told, or no
            functions.
    """
    kind, prefix = machine(library)
    if not has_symbols(library):
        raise BuildError(f"{library.name} holds no symbol table: its functions cannot be told")
    forbidden = [_FORBIDDEN[kind]]
    if kind == "x86" and not _is_llama(library):
        forbidden.append(_LONG)
    command = [tool("objdump", prefix), "--disassemble", "--wide"]
    function, passed_over, seen = "", False, 0
    for line in _lines([*command, "--no-show-raw-insn", str(library)]):
        if named := _FUNCTION.match(line):
            function = named[1]
            passed_over = exempt(function)
            seen += 1
        elif not passed_over:
            for mnemonics in forbidden:
                if found := mnemonics.search(line):
                    return Finding(library.name, function, found[1])
    if not seen:
        raise BuildError(f"{library.name} holds no functions: nothing could be checked")
    return None


def _is_llama(library: Path) -> bool:
    return library.name.startswith("libllama.so")


def needed(library: Path) -> list[str]:
    """The libraries that a library needs, sorted: those it names, and those it has versions of."""
    readelf = tool("readelf", "")
    names = set()
    for line in _lines([readelf, "--dynamic", "--wide", str(library)]):
        if found := re.search(r"\((?:NEEDED|AUXILIARY|FILTER)\).*\[(.*)\]$", line):
            names.add(found[1])
    for line in _lines([readelf, "--version-info", "--wide", str(library)]):
        if found := re.search(r"\bFile: (\S+)", line):
            names.add(found[1])
    return sorted(names)


def _symbols(library: Path) -> Iterator[tuple[str, bool, str]]:
    """(name, whether it is defined here, number of its version or "") of each dynamic symbol."""
    for line in _lines([tool("readelf", ""), "--dyn-syms", "--wide", str(library)]):
        if found := re.search(r"\b(UND|ABS|\d+) ([^\s@]+)(?:@\S+(?: \((\d+)\))?)?$", line):
            yield found[2], found[1] != "UND", found[3] or ""


def imported(library: Path) -> list[str]:
    """The symbols that a library takes from libm, sorted."""
    versions: set[str] = set()
    file = ""
    for line in _lines([tool("readelf", ""), "--version-info", "--wide", str(library)]):
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        if file.startswith("libm.so") and (found := re.search(r"Name: \S+ .*Version: (\d+)", line)):
            versions.add(found[1])
    return sorted(
        name for name, own, version in _symbols(library) if not own and version in versions
    )


def unresolved(library: Path) -> list[str]:
    """The symbols that a library takes from wherever the process finds them, sorted.

    They have no version, and no library that it needs and that lies beside it defines them: linked
    without -lm, a function of libm is such a one.
    """
    asked = {name for name, own, version in _symbols(library) if not own and not version}
    asked -= _START
    beside = [library.parent / name for name in needed(library)] if asked else []
    for path in beside:
        if path.is_file():
            asked -= {name for name, own, _ in _symbols(path) if own}
    return sorted(asked)


def first_finding(library: Path, exempt: Callable[[str], bool]) -> Finding | None:
    """What the gate has against a library; None if nothing.

    Raises:
        BuildError: as `machine` and `first_fused`.
    """
    tolerated = TOLERATED if _is_llama(library) else frozenset()
    for name in needed(library):
        if name not in SYSTEM and not (library.parent / name).is_file():
            return Finding(library.name, None, source=name)
    for name in imported(library):
        if name not in tolerated:
            return Finding(library.name, name)
    for name in unresolved(library):
        return Finding(library.name, name, source="no library that it names")
    return first_fused(library, exempt)


def check(folder: Path, exempt: Callable[[str], bool]) -> None:
    """Check every library of a folder.

    Raises:
        BuildError: one holds something forbidden; the message names the first.
    """
    libraries = sorted(folder.glob("lib*.so*"))
    if not libraries:
        raise BuildError(f"{folder} holds no libraries")
    for library in libraries:
        found = first_finding(library, exempt)
        if found is not None:
            raise BuildError(f"{found}: the build is not portable")


def _passed(folder: Path) -> str:
    """What is true of a folder that passed: `first_finding` let libllama alone import anything."""
    taken = {name for library in folder.glob("lib*.so*") for name in imported(library)}
    mathematics = "no mathematics of the system"
    if taken:
        mathematics = f"of the system's mathematics libllama alone takes {', '.join(sorted(taken))}"
    return f"nothing fused or approximate but in the functions linked in; {mathematics}"


def main(arguments: list[str]) -> int:
    """Check folders; returns the exit status."""
    try:
        if not arguments:
            raise BuildError("name one folder of libraries or more")
        for name in arguments:
            check(Path(name), is_ours)
            print(f"{name}: {_passed(Path(name))}")
    except BuildError as error:
        print(f"gate: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
