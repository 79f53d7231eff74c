"""The portable arithmetic: a build of the engine that gives the same bytes on every processor.

`envs/engine_variant.py` makes such builds; each folder holds the libraries, their digests, and the
definition of the arithmetic, which is the same in all of them. A profile of it names the
definition and nothing of the host. Whether a loaded library keeps to it is `selftest`'s to find
out, and nothing is called portable before that.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvaudit import canonical, digests
from kvaudit.errors import TypedError
from kvaudit.safefs import SafeRoot
from kvgraft import engine
from kvgraft.engine import Facts
from kvgraft.errors import EngineUnavailable, NotPortable
from kvgraft.profile import PORTABLE, portable

FOLDER_VARIABLE = "LLAMA_CPP_LIB_PATH"
"""Where llama-cpp-python looks for its libraries instead of in its own folder."""
DEFINITION, RECORD = "ARITHMETIC.json", "SHA256"
LIBRARIES = ("libggml-base", "libggml-cpu", "libggml", "libllama")
PACKAGE = "llama-cpp-python"
_TEXT_BYTES, _LIBRARY_BYTES = 1 << 20, 1 << 28
"""Far more than the definition or the record, and than a library, ever has."""

_OURS = re.compile(r"(GGML|LLAMA)_")
_WITHOUT_A_SAY = re.compile(
    rf"{FOLDER_VARIABLE}|LLAMA_(ARG|LOG|API|SERVER)_\w+|LLAMA_(CACHE|OFFLINE)", re.ASCII
)
"""Variables of llama.cpp's programs, which none of `LIBRARIES` reads, and where the package looks
for these: their files are checked."""

_AGAIN = "make portable builds it again"
_HINT = f"make portable, and name the folder it prints in {FOLDER_VARIABLE}"


@dataclass(frozen=True)
class Arithmetic:
    """A sound folder of a portable build.

    Attributes:
        folder: where its libraries lie.
        definition: what decides the arithmetic; the same for every processor.
    """

    folder: Path
    definition: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        """Digest of the definition's canonical JSON, hex."""
        return digests.sha256_json(self.definition)


def read(folder: str | Path) -> Arithmetic:
    """Check a folder against its own record.

    Raises:
        NotPortable: it holds no portable build, or a file is not the one that was built, or is no
            regular file of a size that can be.
    """
    folder = Path(folder)
    try:
        with SafeRoot(folder) as root:
            text = root.read(DEFINITION, max_bytes=_TEXT_BYTES)
            lines = root.read(RECORD, max_bytes=_TEXT_BYTES).decode("utf-8").splitlines()
            names = sorted(name for name in os.listdir(folder) if name.startswith("lib"))
            found = {name: _digest(root, name) for name in (*names, DEFINITION)}
    except NotPortable:
        raise
    except (OSError, UnicodeDecodeError, TypedError) as error:
        raise NotPortable(
            "the folder holds no portable build of the engine",
            where=folder.name,
            expected=f"{DEFINITION} and {RECORD}",
            found=error,
            hint=_HINT,
        ) from error
    recorded = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    if changed := sorted(n for n in {*found, *recorded} if found.get(n) != recorded.get(n)):
        raise NotPortable(
            "a file of the build is not the one that was built",
            where=changed[0],
            expected=recorded.get(changed[0]),
            found=found.get(changed[0]),
            hint=_AGAIN,
        )
    if {name.split(".")[0] for name in found} != {*LIBRARIES, DEFINITION.split(".")[0]}:
        raise NotPortable(
            "the build holds other libraries than the engine's",
            where=folder.name,
            expected=", ".join(LIBRARIES),
            found=", ".join(sorted(found)),
            hint=_AGAIN,
        )
    return Arithmetic(folder, _definition(text, folder))


def _digest(root: SafeRoot, name: str) -> str:
    try:
        return digests.sha256_bytes(root.read(name, max_bytes=_LIBRARY_BYTES))
    except TypedError as error:
        raise NotPortable(
            "an entry of the build is no file that can be read",
            where=name,
            expected=error.expected,
            found=error.found or error.what,
            hint=_AGAIN,
        ) from error


def _definition(text: bytes, folder: Path) -> Mapping[str, Any]:
    where = f"{folder.name}/{DEFINITION}"
    try:
        value = canonical.loads(text, where=where)
        sound = canonical.dumps(value) == text.rstrip(b"\n")
    except TypedError as error:
        raise NotPortable("the definition of the arithmetic is unreadable", where=where) from error
    named = value.get("name") if isinstance(value, dict) else None
    if not sound or named != PORTABLE:
        raise NotPortable(
            "the definition of the arithmetic is not one, or not in canonical form",
            where=where,
            expected=PORTABLE,
            found=named,
        )
    if value.get("environment") != portable().environment:
        raise NotPortable(
            "the build was made for other variables",
            where=where,
            expected=portable().environment,
            found=value.get("environment"),
        )
    return dict(value)


def activate(folder: str | Path) -> Arithmetic:
    """Let the engine that this process, or a child of it, loads be the one in a folder.

    Raises:
        NotPortable: as `read`.
        EngineUnavailable: this process has loaded another one already; or as
            `require_no_variables`.
    """
    require_no_variables()
    arithmetic = read(folder)
    own = arithmetic.folder.resolve()
    if "llama_cpp" in sys.modules and (at := _loaded_folder()) != own:
        raise EngineUnavailable(
            "the engine was loaded before, and is not the portable build",
            expected=own.name,
            found=at.name if at else "libraries of several folders",
            hint="activate the folder before anything loads the engine",
        )
    os.environ[FOLDER_VARIABLE] = str(own)
    return arithmetic


def require_no_variables() -> None:
    """No variable is set whose effect on the arithmetic is unknown.

    The arithmetic's own are set by `engine.load`, and those without a say may be set to anything;
    of any other that llama.cpp could read nobody has measured that the bytes stay.

    Raises:
        EngineUnavailable: names the first such variable.
    """
    for name in sorted(os.environ):
        own = name in portable().environment or _WITHOUT_A_SAY.fullmatch(name)
        if _OURS.match(name) and not own:
            raise EngineUnavailable(
                "a variable is set that may change what the engine computes, and the portable "
                "arithmetic has none but its own",
                where=name,
                expected=", ".join(sorted(portable().environment)),
                found=os.environ[name],
                hint=f"unset {name}",
            )


def _loaded_folder() -> Path | None:
    """The folder of the engine's libraries in this process; None without, or of several."""
    folders = {
        path.resolve().parent
        for path in engine.loaded_libraries()
        if path.name.split(".")[0] in LIBRARIES
    }
    return folders.pop() if len(folders) == 1 else None


def loaded() -> Arithmetic | None:
    """The portable build whose libraries this process has loaded; None for another build.

    Raises:
        NotPortable: a portable build that is damaged, or is called by another version's package.
    """
    folder = _loaded_folder()
    if folder is None or not (folder / DEFINITION).is_file():
        return None
    return _checked(folder)


@lru_cache(maxsize=1)
def _checked(folder: Path) -> Arithmetic:
    arithmetic = read(folder)
    built = arithmetic.definition.get("llama_cpp")
    version = built.get("version") if isinstance(built, dict) else None
    if version != (own := engine.library().python_version):
        raise NotPortable(
            f"the build is of another version than the {PACKAGE} that calls it",
            where=folder.name,
            expected=own,
            found=version,
            hint="make portable",
        )
    return arithmetic


def at_hand() -> Arithmetic:
    """The portable build that is loaded, or loads now; its folder is checked, nothing computed.

    Raises:
        EngineUnavailable: the engine does not load under the portable variables; or as
            `require_no_variables`.
        NotPortable: another build is loaded; or as `loaded`.
    """
    require_no_variables()
    engine.load(portable().environment)
    found = loaded()
    if found is None:
        at = _loaded_folder()
        raise NotPortable(
            "the engine that is loaded is not a portable build",
            expected=f"a folder with {DEFINITION}",
            found=at.name if at else None,
            hint=_HINT,
        )
    return found


@lru_cache(maxsize=1)
def require() -> Arithmetic:
    """The portable build that is loaded, after its self-test has passed once in this process.

    Raises:
        EngineUnavailable, NotPortable: as `at_hand`.
        NotPortable: an operator does not give its golden bytes; names the first.
    """
    from kvgraft import selftest

    found = at_hand()
    selftest.require()
    return found


def facts() -> Facts:
    """What a profile says of the portable arithmetic: the same on every host.

    Its own variables are named. Others, of accelerators and of OpenMP too, have no say.

    Raises:
        EngineUnavailable, NotPortable: as `require`.
    """
    from kvgraft import selftest

    require_no_variables()  # some are read whenever a context is opened
    arithmetic = require()
    return Facts(
        engine={
            "binding": f"{PACKAGE} {engine.library().python_version}",
            "arithmetic": dict(arithmetic.definition),
            "goldens": selftest.goldens().sha256,
        },
        machine={},
        environment={
            name: os.environ[name] for name in portable().environment if name in os.environ
        },
    )
