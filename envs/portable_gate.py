"""Read a built library for what would make its bits depend on the processor.

A compiler may fuse a multiplication and an addition, which rounds once instead of twice, on the
processors that can and not on the others; it has been seen to do so although it was told not to.
Approximate reciprocals differ between makers, and the system's mathematical functions between
versions. So nothing is believed: the library's machine code is disassembled, and its imports are
read.

The mathematical functions that are linked in may fuse, for their results are correctly rounded
either way; docs/portable.md says how that was tried.

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

_FORBIDDEN = {
    "x86": re.compile(
        r"\t(?:\{\w+\} )?(v4?fn?m(?:add|sub)\w*|vfc?m(?:add|ul)c\w*|vdpbf16ps|v?dpp[sd]"
        r"|v?(?:rcp|rsqrt)(?:14|28)?[ps][sdh])\b"
    ),
    "arm": re.compile(
        r"\t(fn?m(?:add|sub|ad|sb)|fn?ml[as]|fml[as]l2?|fcmla|fmmla|bf(?:dot|mmla|mlal[bt])"
        r"|frecp[esx]|frsqrt[es])\b"
    ),
}
"""Mnemonics by kind of processor: fused, dot products in the order of the maker, approximate."""
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
        function: the symbol that holds it, or the imported one.
        instruction: mnemonic; None for an import.
    """

    library: str
    function: str
    instruction: str | None

    def __str__(self) -> str:
        if self.instruction is None:
            return f"{self.library} takes {self.function} from the system's libm"
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


def first_fused(library: Path, exempt: Callable[[str], bool]) -> Finding | None:
    """The first forbidden instruction outside the exempt functions, in the order of addresses."""
    kind, prefix = machine(library)
    forbidden = _FORBIDDEN[kind]
    command = [tool("objdump", prefix), "--disassemble", "--wide"]
    function, passed_over, seen = "", True, 0
    for line in _lines([*command, "--no-show-raw-insn", str(library)]):
        if named := _FUNCTION.match(line):
            function = named[1]
            passed_over = exempt(function)
            seen += 1
        elif not passed_over and (found := forbidden.search(line)):
            return Finding(library.name, function, found[1])
    if not seen:
        raise BuildError(f"{library.name} holds no functions: nothing could be checked")
    return None


def imported(library: Path) -> list[str]:
    """The symbols that a library takes from libm, sorted."""
    readelf = tool("readelf", "")
    versions: set[str] = set()
    file = ""
    for line in _lines([readelf, "--version-info", "--wide", str(library)]):
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        if file.startswith("libm.so") and (found := re.search(r"Name: \S+ .*Version: (\d+)", line)):
            versions.add(found[1])
    names = set()
    for line in _lines([readelf, "--dyn-syms", "--wide", str(library)]):
        found = re.search(r"\bUND (\S+?)@\S+ \((\d+)\)", line)
        if found and found[2] in versions:
            names.add(found[1])
    return sorted(names)


def first_finding(library: Path, exempt: Callable[[str], bool]) -> Finding | None:
    """What the gate has against a library; None if nothing."""
    tolerated = TOLERATED if library.name.startswith("libllama.so") else frozenset()
    for name in imported(library):
        if name not in tolerated:
            return Finding(library.name, name, None)
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
