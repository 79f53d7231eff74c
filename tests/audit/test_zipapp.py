"""kvaudit.pyz: one file of the same bytes at every build, which verifies on a plain Python."""

from __future__ import annotations

import json
import os
import py_compile
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Start = Callable[..., subprocess.CompletedProcess[str]]


def build(target: Path) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "envs/zipapp_build.py", target],
        check=False,
        capture_output=True,
        text=True,
    )
    if "could not fetch" in done.stderr:
        pytest.skip("the locked wheels are not at hand and cannot be fetched")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("zipapp") / "kvaudit.pyz"
    build(target)
    return target


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def start(archive: Path, cache: Path) -> Start:
    """Starts the file with a Python that sees none of this environment's packages."""

    def command(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return subprocess.run(
            [sys._base_executable, archive, *map(str, arguments)],  # type: ignore[attr-defined]
            check=False,
            capture_output=True,
            text=True,
            env={**kept, "KVAUDIT_CACHE": str(cache), **variables},
        )

    return command


INTERRUPTER = """
import os, signal, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "kvaudit.cli":
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
"""
pytestmark = pytest.mark.slow


def test_two_builds_are_equal(archive: Path, tmp_path: Path) -> None:
    said = build(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == archive.read_bytes()
    digest = subprocess.run(
        ["sha256sum", archive], check=True, capture_output=True, text=True
    ).stdout.split()[0]
    assert f"sha256 {digest}\n" in said


def test_it_verifies_with_its_own_packages_alone(
    start: Start, pristine: Path, tmp_path: Path
) -> None:
    done = start("verify", pristine, "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "verified: 8 claims hold" in done.stdout
    again = start("pack", pristine, tmp_path / "run.tar.zst")
    assert again.stderr == ""  # unpacked once
    assert start("verify", tmp_path / "run.tar.zst").returncode == 0
    assert len(start("schema").stdout.split()) > 40


def test_the_cache_is_private_and_what_was_packed(start: Start, cache: Path, archive: Path) -> None:
    start("schema")
    (folder,) = (cache / "pyz").iterdir()
    for path in (cache / "pyz", folder):
        assert path.stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(archive) as held:
        files = json.loads(held.read("inventory.json"))["files"]
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert found == {*files}


def test_a_damaged_cache_is_made_again(start: Start, cache: Path) -> None:
    start("schema")
    (folder,) = (cache / "pyz").iterdir()
    module = folder / "kvaudit/report.py"
    original = module.read_bytes()
    for damage in (original + b"#", None):
        module.write_bytes(damage) if damage else module.unlink()
        done = start("schema")
        assert done.returncode == 0
        assert "is damaged" in done.stderr
        assert module.read_bytes() == original
    (folder / "extra.py").write_bytes(b"")
    assert "is damaged" in start("schema").stderr
    assert not (folder / "extra.py").exists()
    module.write_bytes(original.replace(b"t", b"T", 1))  # of the same length
    assert "is damaged" not in start("schema").stderr
    assert "is damaged" in start("schema", KVAUDIT_CHECK="1").stderr
    assert module.read_bytes() == original


def test_where_files_are_checked_a_compiled_module_is_not_taken_for_its_text(
    start: Start, cache: Path, tmp_path: Path
) -> None:
    start("schema")
    (folder,) = (cache / "pyz").iterdir()
    (compiled,) = (folder / "kvaudit/__pycache__").glob("schemas.*.pyc")
    kept = compiled.read_bytes()
    forged = tmp_path / "forged.py"
    forged.write_text("raise SystemExit('forged')\n")
    code = Path(py_compile.compile(str(forged), doraise=True) or "").read_bytes()[16:]
    compiled.write_bytes(kept[:16] + code)  # the head says time and length of the sound text
    try:
        assert start("schema").stderr == "forged\n"
        done = start("schema", KVAUDIT_CHECK="1")
        assert (done.returncode, done.stderr) == (0, "")
        assert compiled.read_bytes() == kept[:16] + code
    finally:
        compiled.write_bytes(kept)


def test_an_interrupt_is_exit_130_and_one_line(start: Start, tmp_path: Path) -> None:
    start("schema")
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER)
    done = start("schema", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kvaudit: interrupted\n")


def test_a_cache_that_others_can_write_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "pyz").mkdir()
    (tmp_path / "pyz").chmod(0o777)
    done = start("schema", KVAUDIT_CACHE=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "can be written by others" in done.stderr


def test_every_wheel_is_one_of_the_lock(archive: Path) -> None:
    import hashlib

    lock = (ROOT / "envs/audit.txt").read_text()
    with zipfile.ZipFile(archive) as held:
        wheels = [name for name in held.namelist() if name.startswith("wheels/")]
        for name in wheels:
            assert f"--hash=sha256:{hashlib.sha256(held.read(name)).hexdigest()}" in lock
        assert {entry.date_time for entry in held.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        own = {name for name in held.namelist() if name.startswith("site/")}
    locked = re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)
    assert len(wheels) >= len(locked) - 2  # markers leave some out
    assert all(name.startswith("site/kvaudit/") for name in own)


def test_another_python_is_told_so(archive: Path, tmp_path: Path, start: Start) -> None:
    other = tmp_path / "other.pyz"
    with zipfile.ZipFile(archive) as held, zipfile.ZipFile(other, "w") as made:
        made.writestr("__main__.py", held.read("__main__.py"))
        inventory = held.read("inventory.json").replace(b'"python":"3.', b'"python":"2.')
        made.writestr("inventory.json", inventory)
    done = subprocess.run(
        [sys.executable, other, "schema"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "this file is for" in done.stderr
