"""Folders that hold another build of the engine's libraries, for a process of its own.

`envs/engine_variant.py` compiles such a build and writes down where it lies; llama-cpp-python
loads it where LLAMA_CPP_LIB_PATH names the folder. This module checks the folder before and what a
process really loaded after; it must not load anything itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvaudit import digests
from kvaudit.profiles import is_portable
from kvgraft import portable
from kvgraft.errors import EngineNotInstalled, ProfileMismatch

LIBRARY = "libllama.so"


def read_note(path: str | Path) -> Path:
    """The folder that a note of `envs/engine_variant.py` names.

    Args:
        path: a file whose last line is the folder.

    Raises:
        EngineNotInstalled: there is no such note, or no library in the folder.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise EngineNotInstalled(
            "no build of the engine is noted", where=path, found=error.strerror, hint=_HINT
        ) from error
    named = [line for line in lines if line.strip()]
    folder = Path(named[-1].strip()) if named else Path(path)
    if not (folder / LIBRARY).is_file():
        raise EngineNotInstalled(
            "the build of the engine that is noted is not there",
            where=path,
            expected=LIBRARY,
            found=folder.name,
            hint=_HINT,
        )
    return folder


_HINT = "remove the note; the rule engine_variant builds it again"


def check_loaded(profile: Mapping[str, Any], folder: Path, own: Mapping[str, Any]) -> None:
    """That a process loaded the libraries of a folder, by their digests, and could call them.

    A library of another version has other structures. Called through this version's Python part
    it would compute garbage, or crash, so that it needs its own. A profile of the portable
    arithmetic names no libraries; its session has checked the folder and run the self-test, so that
    only the definition is compared here.

    Args:
        profile: in force in that process.
        folder: whose libraries it was to load.
        own: the part `engine` of this process's profile.

    Raises:
        ProfileMismatch: it loaded others, or those of another version by this one's Python part.
        NotPortable: the profile is portable, and the folder is not.
    """
    engine = profile["engine"]
    if is_portable(profile):
        if engine["arithmetic"] != (wanted := portable.read(folder).definition):
            raise ProfileMismatch(
                "the process computed another portable arithmetic than that of its folder",
                where=folder.name,
                expected=digests.sha256_json(wanted),
                found=digests.sha256_json(engine["arithmetic"]),
            )
        return
    loaded = engine["libraries"]
    other = "llama" in own and engine["llama"] != own["llama"]  # a portable `own` names none
    if other and engine["binding"] == own["binding"]:
        raise ProfileMismatch(
            "libraries of another version were called through this version's Python part",
            where=folder.name,
            expected=own["llama"],
            found=engine["llama"],
            hint="put the llama_cpp/ of that version beside them",
        )
    for path in sorted(folder.glob("lib*")):
        if path.name in loaded and loaded[path.name] != digests.sha256_file(path):
            raise ProfileMismatch(
                "the process did not load the build that it was given",
                where=path.name,
                expected=digests.sha256_file(path),
                found=loaded[path.name],
            )
    if LIBRARY not in loaded:
        raise ProfileMismatch("the process loaded no engine", expected=LIBRARY, found=None)
