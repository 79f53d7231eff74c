"""kvaudit.pyz: one file of the same bytes at every build, which verifies on a plain Python."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from repositories import git

ROOT = Path(__file__).parents[2]
Start = Callable[..., subprocess.CompletedProcess[str]]


def build(target: Path, *options: str, root: Path = ROOT, **settings: Any) -> str:
    done = subprocess.run(
        [sys.executable, root / "envs/zipapp_build.py", target, *options],
        check=False,
        capture_output=True,
        text=True,
        **settings,
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


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """What a build is made from, in another folder, with other times and modes."""
    root, taken = tmp_path / "another folder", builder()
    shutil.copytree(ROOT / "envs", root / "envs")
    for path in (*taken._there(taken.PACKAGE), *taken._there(taken.SCHEMAS)):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    (ROOT / "build").mkdir(exist_ok=True)
    (root / "build").symlink_to(ROOT / "build")  # the wheels are there already
    (root / "README.md").write_text("The digest is -.\n")
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700)
            os.utime(path, (1, 1))
    return root


def test_a_build_in_another_folder_time_zone_locale_and_umask_is_equal(
    archive: Path, elsewhere: Path, tmp_path: Path
) -> None:
    other = {**os.environ, "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7"}
    build(tmp_path / "b.pyz", root=elsewhere, cwd="/", env=other, umask=0o077)
    assert (tmp_path / "b.pyz").read_bytes() == archive.read_bytes()


def builder(root: Path = ROOT) -> Any:
    spec = importlib.util.spec_from_file_location("zipapp_build", root / "envs/zipapp_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_recorded_digest_is_that_of_this_tree(archive: Path) -> None:
    """If this fails: make kvaudit.pyz ARGS=--record, with the Python that the record names."""
    known = builder().recorded()
    assert known["sources"] == builder().sources(), "the recorded digest is of other sources"
    if known["for"] == builder().subject():
        assert known["digest"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert known["digest"] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_build_is_recorded_with_its_sources_and_readme_follows(
    archive: Path, elsewhere: Path, tmp_path: Path
) -> None:
    module, target = builder(elsewhere), tmp_path / "kvaudit.pyz"
    module.record("0" * 64)
    (elsewhere / "README.md").write_text(f"The digest is {'0' * 64}.\n")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    said = build(target, "--record", root=elsewhere)
    assert f"sha256 {digest}\nas recorded in envs/kvaudit.pyz.sha256\n" in said
    assert (elsewhere / "README.md").read_text() == f"The digest is {digest}.\n"
    done = subprocess.run(["sha256sum", "--check", module.RECORD], check=False, cwd=tmp_path)
    assert done.returncode == 0


def test_a_build_of_other_sources_is_not_held_against_the_record(elsewhere: Path) -> None:
    module = builder(elsewhere)
    module.RECORD.unlink()
    assert module.compared("1" * 64) == "no digest is recorded"
    module.record("0" * 64)
    assert module.compared("0" * 64).startswith("as recorded")
    with pytest.raises(module.BuildError, match="of the same sources"):
        module.compared("1" * 64)
    (elsewhere / "workflow/kvaudit/more.py").touch()
    assert "is of other sources" in module.compared("1" * 64)
    text = module.RECORD.read_text()
    module.RECORD.write_text(text.replace("# for ", "# for another than "))
    assert "is of the build for another than" in module.compared("0" * 64)
    module.RECORD.write_text(text.replace("# sources", "# source"))
    with pytest.raises(module.BuildError, match="cannot be read"):
        module.recorded()


def test_a_build_of_a_checkout_takes_what_git_knows_and_records_what_is_committed(
    elsewhere: Path,
) -> None:
    git(elsewhere, "init")
    git(elsewhere, "add", "workflow", "manifests", "envs")
    module = builder(elsewhere)
    with pytest.raises(module.BuildError, match="not committed"):
        module.require_committed()
    git(elsewhere, "commit", "-m", "all")
    module.require_committed()
    before = module.sources()
    stray = elsewhere / "workflow/kvaudit/stray.py"
    for path in (stray, elsewhere / "manifests/schema/stray.v1.json", elsewhere / "envs/stray.py"):
        path.write_text("{}")
        assert module.sources() == before
        with pytest.raises(module.BuildError, match=r"and not recorded: .*stray"):
            module.require_committed()
        path.unlink()
    module.record("0" * 64)
    module.require_committed()  # the record itself may change
    (elsewhere / "workflow/kvaudit/__main__.py").write_text("")
    assert module.sources() != before
    done = subprocess.run(
        [sys.executable, elsewhere / "envs/zipapp_build.py", elsewhere / "x.pyz", "--record"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "__main__.py" in done.stderr
    assert not (elsewhere / "x.pyz").exists()


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


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(b'"python":"3.', b'"python":"2.'), (b'"glibc":[2,28]', b'"glibc":[2,1000]')],
)
def test_another_python_or_c_library_is_told_so(
    archive: Path, tmp_path: Path, ours: bytes, theirs: bytes
) -> None:
    other = tmp_path / "other.pyz"
    with zipfile.ZipFile(archive) as held, zipfile.ZipFile(other, "w") as made:
        made.writestr("__main__.py", held.read("__main__.py"))
        inventory = held.read("inventory.json")
        if ours not in inventory:
            pytest.skip("the build is for another C library")
        made.writestr("inventory.json", inventory.replace(ours, theirs))
    done = subprocess.run(
        [sys.executable, other, "schema"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "this file is for" in done.stderr
