"""Build kvaudit.pyz: the auditor's command, its schemas and its locked wheels in one file.

The wheels lie in it exactly as the lock's hashes name them, stored and not compressed again, beside
kvaudit's own modules; envs/zipapp_main.py starts it. So the bytes follow from the tree, the lock
and the kind of interpreter alone: two builds are equal, whatever zlib they run on. It is for one
release of Python and one kind of machine, because its wheels are; on Linux they are those of the
oldest C library that the lock has any for, so that a newer one does not make another file. Of a git
checkout it takes the files that git knows, of another folder all.

envs/kvaudit.pyz.sha256 holds the digest of one build, for the interpreter and machine that it
names, and of the sources it was made from. A build for the same from the same sources must have
that digest; from other sources the recorded one is stale, and --record records this one, in README
too; not from a checkout where something of that is not committed. It knows nothing of kvaudit but
where its files lie, and needs the standard library and pip alone.

    python envs/zipapp_build.py dist/kvaudit.pyz [--record]
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

ENVS = Path(__file__).resolve().parent
ROOT = ENVS.parent
LOCK = ENVS / "audit.txt"
MAIN = ENVS / "zipapp_main.py"
RECORD = ENVS / "kvaudit.pyz.sha256"
README = ROOT / "README.md"
GLIBC = (2, 28)
"""The oldest GNU C library that the wheels of a Linux build are for."""
SHEBANG = b"#!/usr/bin/env python3\n"
EPOCH = (1980, 1, 1, 0, 0, 0)
OWN = "kvaudit"
PACKAGE = ROOT / "workflow" / OWN
SCHEMAS = ROOT / "manifests" / "schema"
LEFT_OUT = re.compile(
    r"(^|/)tests?/|^pyarrow/(include|src)/|^[^/]+\.data/(scripts|headers|data)/"
    r"|\.(pyi|pxd|pyx|h|hpp|c|cc|a|lib)$"
)
"""Members of wheels that are not unpacked: tests, headers, sources of compiled modules."""


_RECORD = re.compile(
    r"# for (?P<for>[^\n]+)\n# sources (?P<sources>[0-9a-f]{64})\n"
    r"(?P<digest>[0-9a-f]{64})  kvaudit\.pyz\n"
)


class BuildError(Exception):
    """The file cannot be built; the message says what to do."""


def wheels(lock: Path) -> list[Path]:
    """The locked wheels for this interpreter, fetched unless they are there, hashes checked."""
    key = hashlib.sha256(
        f"{sys.version} {platform.platform()} {_platforms()}".encode() + lock.read_bytes()
    )
    folder = ROOT / "build" / f"wheels-{key.hexdigest()[:16]}"
    if not folder.is_dir():
        work = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        locked = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "-r", str(lock)]
        chosen = [part for name in _platforms() for part in ("--platform", name)]
        done = subprocess.run([*pip, *locked, *chosen, "--dest", str(work)], check=False)
        if done.returncode != 0:
            raise BuildError("pip could not fetch the wheels of envs/audit.txt")
        try:
            work.rename(folder)
        except OSError:  # another build was faster
            if not folder.is_dir():
                raise
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock.read_text(encoding="utf-8")))
    found = sorted(folder.glob("*.whl"))
    for wheel in found:
        if hashlib.sha256(wheel.read_bytes()).hexdigest() not in hashes:
            raise BuildError(f"{wheel} is not one of the lock: remove {folder} and try again")
    if not found:
        raise BuildError(f"{folder} holds no wheel: remove it and try again")
    return found


def _platforms() -> list[str]:
    """What pip may take wheels for: on Linux with the GNU library, that of `GLIBC` and older."""
    if not _is_gnu():
        return []
    machine = platform.machine()
    newest_first = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC[1], 16, -1)]
    return [*newest_first, f"manylinux2014_{machine}"]


def _is_gnu() -> bool:
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


def own_files() -> dict[str, bytes]:
    """{path below the site folder: content} of kvaudit itself."""
    files = {
        f"{OWN}/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes()
        for path in _there(PACKAGE)
        if path.suffix in (".py", ".typed")
    }
    schemas = (path for path in _there(SCHEMAS) if path.suffix == ".json")
    return files | {f"{OWN}/_schema/{path.name}": path.read_bytes() for path in schemas}


def _there(folder: Path) -> list[Path]:
    """The files below a folder: those that git knows where this is a checkout, else all."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    known = _git("ls-files", "-z", "--", str(folder))
    if known is None:
        return found
    names = {*known.split("\0")}
    return [path for path in found if path.relative_to(ROOT).as_posix() in names]


def _git(*arguments: str) -> str | None:
    """What git says of this folder; None where it is not the top of a checkout."""
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"this is a checkout, and git cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        raise BuildError(f"git cannot be asked: {done.stderr.strip()}")
    return done.stdout


def require_committed() -> None:
    """Refuses a checkout where something that a build is made from is not committed.

    Raises:
        BuildError: names the first of it.
    """
    record = RECORD.relative_to(ROOT).as_posix()
    said = _git("status", "--porcelain", "--", str(PACKAGE), str(SCHEMAS), str(ENVS), f":!{record}")
    if said:
        raise BuildError(f"not committed and not recorded: {said.splitlines()[0][3:]}")


def inventory(own: dict[str, bytes], found: list[Path]) -> dict[str, Any]:
    """What is unpacked: {path: [length, SHA-256, wheel or "", member in it]}, and for whom."""
    files: dict[str, list[Any]] = {
        name: [len(data), hashlib.sha256(data).hexdigest(), "", f"site/{name}"]
        for name, data in own.items()
    }
    for wheel in found:
        with zipfile.ZipFile(io.BytesIO(wheel.read_bytes())) as archive:
            for member in archive.namelist():
                if member.endswith("/") or LEFT_OUT.search(member):
                    continue
                name = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", member)
                if name in files or name.startswith(f"{OWN}/"):
                    raise BuildError(f"two wheels hold {name}")
                data = archive.read(member)
                digest = hashlib.sha256(data).hexdigest()
                files[name] = [len(data), digest, f"wheels/{wheel.name}", member]
    built_for = {
        "implementation": sys.implementation.name,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "system": sys.platform,
        "machine": platform.machine(),
    }
    return {"for": built_for, "glibc": list(GLIBC) if _is_gnu() else None, "files": files}


def sources() -> str:
    """The digest of everything that a build is made from, wheels as their lock names them."""
    files = own_files() | {path.name: path.read_bytes() for path in (LOCK, MAIN, Path(__file__))}
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()


def subject() -> str:
    """For whom a build by this interpreter is, in words."""
    name = f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}"
    libc = f" with glibc {GLIBC[0]}.{GLIBC[1]} or newer" if _is_gnu() else ""
    return f"{name} on {platform.system()} {platform.machine()}{libc}"


def recorded() -> dict[str, str]:
    """What envs/kvaudit.pyz.sha256 says: `for`, `sources`, `digest`; nothing where it is absent."""
    if not RECORD.exists():
        return {}
    match = _RECORD.fullmatch(RECORD.read_text(encoding="utf-8"))
    if match is None:
        raise BuildError(f"{RECORD} cannot be read: remove it and record it again")
    return match.groupdict()


def record(digest: str) -> None:
    """Writes envs/kvaudit.pyz.sha256, and the digest into README in place of the earlier one."""
    earlier = recorded().get("digest")
    text = f"# for {subject()}\n# sources {sources()}\n{digest}  kvaudit.pyz\n"
    RECORD.write_text(text, encoding="utf-8")
    if earlier is not None and README.exists():
        before = README.read_text(encoding="utf-8")
        README.write_text(before.replace(earlier, digest), encoding="utf-8")


def compared(digest: str) -> str:
    """How a build's digest stands to the recorded one, in a sentence.

    Raises:
        BuildError: it is of the same sources for the same interpreter, and another.
    """
    known = recorded()
    if not known:
        return "no digest is recorded"
    if known["for"] != subject():
        return f"the recorded digest is of the build for {known['for']}"
    if known["sources"] != sources():
        return "the recorded digest is of other sources; ARGS=--record records this one"
    if known["digest"] != digest:
        raise BuildError(
            f"the build has digest {digest}; {RECORD.name} says {known['digest']} of the same "
            "sources: remove the wheels in build/ and try again"
        )
    return "as recorded in envs/kvaudit.pyz.sha256"


def build(target: Path) -> str:
    """Writes the file and returns its SHA-256."""
    found, own = wheels(LOCK), own_files()
    value = inventory(own, found)
    members = {
        "__main__.py": MAIN.read_bytes(),
        "inventory.json": json.dumps(value, sort_keys=True, separators=(",", ":")).encode(),
    }
    members |= {f"site/{name}": data for name, data in own.items()}
    members |= {f"wheels/{wheel.name}": wheel.read_bytes() for wheel in found}
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with work.open("wb") as file:
            file.write(SHEBANG)
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name, data in sorted(members.items()):
                    member = zipfile.ZipInfo(name, date_time=EPOCH)
                    member.create_system = 3
                    member.external_attr = 0o100644 << 16
                    archive.writestr(member, data)
        work.chmod(0o755)
        work.replace(target)
    finally:
        work.unlink(missing_ok=True)
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: list[str]) -> int:
    """Build the file and print its digest; returns the exit status."""
    is_recorded = "--record" in arguments
    names = [one for one in arguments if one != "--record"]
    if len(names) != 1 or names[0].startswith("-"):
        print(__doc__)
        return 2
    target = Path(names[0])
    try:
        if is_recorded:
            require_committed()
        digest = build(target)
        if is_recorded:
            record(digest)
        said = compared(digest)
    except (BuildError, OSError) as error:
        print(f"kvaudit.pyz: {error}", file=sys.stderr)
        return 1
    print(f"{target}: {target.stat().st_size:,} bytes, for {subject()}\nsha256 {digest}\n{said}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
