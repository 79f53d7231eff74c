"""The portable arithmetic: a build of the engine that gives the same bytes on every processor.

`envs/engine_variant.py` makes such builds; each folder holds the libraries, their digests, and the
definition of the arithmetic, which is the same in all of them. A profile of it names the
definition and nothing of the host. Whether a loaded library keeps to it is `selftest`'s to find
out, and nothing is called portable before that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvaudit import canonical, digests
from kvaudit.errors import TypedError
from kvgraft import engine
from kvgraft.engine import Facts
from kvgraft.errors import EngineUnavailable, NotPortable
from kvgraft.profile import PORTABLE, portable

FOLDER_VARIABLE = "LLAMA_CPP_LIB_PATH"
"""Where llama-cpp-python looks for its libraries instead of in its own folder."""
DEFINITION, RECORD = "ARITHMETIC.json", "SHA256"
LIBRARIES = ("libggml-base", "libggml-cpu", "libggml", "libllama")
PACKAGE = "llama-cpp-python"

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
        NotPortable: it holds no portable build, or a file is not the one that was built.
    """
    folder = Path(folder)
    try:
        text = (folder / DEFINITION).read_bytes()
        lines = (folder / RECORD).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotPortable(
            "the folder holds no portable build of the engine",
            where=folder.name,
            expected=f"{DEFINITION} and {RECORD}",
            found=getattr(error, "strerror", None) or error,
            hint=_HINT,
        ) from error
    recorded = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    files = [*folder.glob("lib*"), folder / DEFINITION]
    found = {path.name: digests.sha256_file(path) for path in files}
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
        EngineUnavailable: this process has loaded another one already.
    """
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


@lru_cache(maxsize=1)
def require() -> Arithmetic:
    """The portable build that is loaded, after its self-test has passed once in this process.

    Raises:
        EngineUnavailable: the engine does not load under the portable variables.
        NotPortable: another build is loaded, or an operator does not give its golden bytes; names
            the first.
    """
    from kvgraft import selftest

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
    selftest.require()
    return found


def facts() -> Facts:
    """What a profile says of the portable arithmetic: the same on every host.

    Raises:
        EngineUnavailable, NotPortable: as `require`.
    """
    from kvgraft import selftest

    arithmetic = require()
    return Facts(
        engine={
            "binding": f"{PACKAGE} {engine.library().python_version}",
            "arithmetic": dict(arithmetic.definition),
            "goldens": selftest.goldens().sha256,
        },
        machine={},
        # No accelerator and no OpenMP can have a say.
        environment={
            name: value
            for name, value in engine.environment_facts().items()
            if name.startswith(("GGML_", "LLAMA_"))
        },
    )
