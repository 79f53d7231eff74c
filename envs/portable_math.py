"""The mathematical functions of the portable builds: one library's, for every processor.

The system's expf, sinf and the rest differ between processors and versions in their last bit.
Those of LLVM's libc are correctly rounded: there is one right result, whatever instructions find
it. Debian packages them for x86-64 and aarch64; here they are cut out of the package, and nothing
is installed.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from debian import fetch, unpack, version_of
from engine_wheel import BuildError, run

PACKAGE, VERSION = "libllvmlibc-19-dev", "19.1.7"
_ARCHIVE = "usr/lib/llvm-19/lib/libllvmlibc.a"
_ROUNDING = "ceil floor fma fmax fmin fmod lrint lround nearbyint rint round sqrt trunc"
_BOTH = f"{_ROUNDING} cos exp exp2 expm1 ldexp log log10 log1p log2 sin tan"
_SINGLE = "acosf asinf atan2f atanf coshf erff powf sincosf sinhf tanhf"
FUNCTIONS = tuple(
    sorted(
        {"frexp", *_SINGLE.split(), *_BOTH.split(), *(f"{name}f" for name in _BOTH.split())},
    )
)
"""What is linked in of the mathematical library."""

_INSIDE = f"__llvm_libc_{VERSION.replace('.', '_')}_"
"""Part of the names of its internal functions."""


def is_ours(symbol: str) -> bool:
    """Whether a symbol of a built library is of the functions that are linked in."""
    return _INSIDE in symbol or symbol in FUNCTIONS


def tool(name: str, prefix: str) -> str:
    """A program of binutils that reads the libraries of an architecture.

    Raises:
        BuildError: it is not installed.
    """
    if shutil.which(f"{prefix}{name}"):
        return f"{prefix}{name}"
    package = f"binutils-{prefix.rstrip('-').replace('_', '-')}" if prefix else "binutils"
    raise BuildError(
        f"{prefix}{name} is not on PATH (Debian and Ubuntu: apt-get install {package})"
    )


def archive(architecture: str, prefix: str, work: Path) -> Path:
    """The mathematical functions in one archive, for the linker.

    One object holds them and what they call; all other names in it are its own.

    Args:
        architecture: as Debian names it.
        prefix: how the names of its binutils begin; empty for this machine's own.
        work: folder for what is made.

    Raises:
        BuildError: the package is missing or has another version, or binutils are.
    """
    installed = Path("/", _ARCHIVE)
    if installed.exists() and not prefix:
        found = installed
    else:
        (package,) = fetch([PACKAGE], architecture, work / "debian")
        version = version_of(package)
        if not re.match(rf"(\d+:)?{re.escape(VERSION)}-", version):
            raise BuildError(
                f"Debian offers {PACKAGE} {version}, the portable arithmetic is made with "
                f"{VERSION}: take it from snapshot.debian.org and install it"
            )
        unpack(package, work)
        found = work / _ARCHIVE
    if _INSIDE.encode() not in found.read_bytes():
        raise BuildError(f"{found} is not version {VERSION}")
    work.mkdir(parents=True, exist_ok=True)
    names, whole, made = work / "names", work / "math.o", work / "libkvgraftmath.a"
    names.write_text("".join(f"{name}\n" for name in FUNCTIONS), encoding="ascii")
    wanted = [part for name in FUNCTIONS for part in ("-u", name)]
    run([tool("ld", prefix), "-r", "-o", str(whole), *wanted, str(found)])
    run([tool("objcopy", prefix), f"--keep-global-symbols={names}", str(whole)])
    run([tool("ar", prefix), "crD", str(made), str(whole)])
    return made
