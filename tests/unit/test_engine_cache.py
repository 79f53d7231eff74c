"""The cache of compiled engines: what is damaged is built again, what is sound is only read.

What a build that was killed has left does not stay.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ENVS = Path(__file__).parents[2] / "envs"


@pytest.fixture
def engine_wheel() -> Iterator[ModuleType]:
    """The script, which imports its neighbours by their plain names."""
    sys.path.insert(0, str(ENVS))
    try:
        yield importlib.import_module("engine_wheel")
    finally:
        sys.path.remove(str(ENVS))


def test_a_new_build_removes_what_killed_ones_have_left_and_nothing_else(
    engine_wheel: ModuleType, tmp_path: Path
) -> None:
    killed = engine_wheel.new_work(tmp_path)
    (killed / "made").mkdir()
    (killed / "made" / "part.o").write_bytes(b"x")
    built = tmp_path / "lower-isa-0123"
    built.mkdir()
    work = engine_wheel.new_work(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([work, built])


# -- folders of libraries -------------------------------------------------------------------------


@pytest.fixture
def variants(engine_wheel: ModuleType) -> ModuleType:
    return importlib.import_module("engine_variant")


def test_help_is_printed_and_builds_nothing(
    variants: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert variants.main(["--help"]) == 0
    assert "python envs/engine_variant.py lower-isa --key" in capsys.readouterr().out


@pytest.fixture
def folder(variants: ModuleType, tmp_path: Path) -> Path:
    """A folder of the form that a portable build has."""
    made = tmp_path / "engine" / f"portable-{'0' * 32}"
    fill(variants, made)
    return made


def fill(variants: ModuleType, folder: Path, more: tuple[str, ...] = ("ARITHMETIC.json",)) -> None:
    libraries = (f"lib{name}.so" for name in variants.LIBRARIES)
    for name in (*libraries, *more):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    record(variants, folder)


def record(variants: ModuleType, folder: Path) -> None:
    lines = [f"{digest}  {name}\n" for name, digest in variants.digests_of(folder).items()]
    (folder / variants.RECORD).write_text("".join(lines))


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a changed library": lambda folder: (folder / "libllama.so").write_text("other"),
    "a record in another tongue": lambda folder: (folder / "SHA256").write_bytes(b"\xff"),
    "no record": lambda folder: (folder / "SHA256").unlink(),
    "a record that is a folder": replaced("SHA256", Path.mkdir),
    "a record that never ends": replaced("SHA256", lambda path: path.symlink_to("/dev/zero")),
    "a record that is waited for": replaced("SHA256", os.mkfifo),
    "a long record": lambda folder: os.truncate(folder / "SHA256", 1 << 30),
    "a folder": replaced("libx", Path.mkdir),
    "a link to nowhere": replaced("libx", lambda path: path.symlink_to("/nowhere")),
    "a link to itself": replaced("libx", lambda path: path.symlink_to("libx")),
    "a library that never ends": replaced("libx", lambda path: path.symlink_to("/dev/zero")),
    "a library that is waited for": replaced("libx", os.mkfifo),
    "a definition that is a folder": replaced("ARITHMETIC.json", Path.mkdir),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_said_to_be_damaged_and_built_again(
    variants: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    assert variants.sound(folder)
    DAMAGE[name](folder)
    assert not variants.sound(folder)
    assert capsys.readouterr().out == f"{folder} is damaged and will be built again\n"
    assert kept(variants, folder, monkeypatch) == 1
    assert variants.sound(folder)


@pytest.mark.parametrize("name", ["libllama.so", "libggml-cpu.so", "ARITHMETIC.json"])
def test_a_record_that_leaves_out_what_the_variant_has_makes_no_folder_sound(
    variants: ModuleType, folder: Path, name: str
) -> None:
    (folder / name).unlink()
    record(variants, folder)
    assert not variants.sound(folder)


@pytest.mark.parametrize(
    ("name", "more", "sound"),
    [
        ("lower-isa", (), True),
        ("lower-isa", ("ARITHMETIC.json",), False),
        ("previous", ("llama_cpp/__init__.py", "llama_cpp/llama_cpp.py"), True),
        ("previous", (), False),
        ("portable", ("ARITHMETIC.json", "libmore.so"), False),
        ("doctored-fma", ("ARITHMETIC.json",), True),
    ],
)
def test_a_folder_holds_what_its_variant_has(
    variants: ModuleType, tmp_path: Path, name: str, more: tuple[str, ...], sound: bool
) -> None:
    folder = tmp_path / f"{name}-{'0' * 32}"
    fill(variants, folder, more)
    assert variants.sound(folder) == sound


@pytest.mark.parametrize(
    "place", [Path.touch, os.mkfifo, lambda path: path.symlink_to("/nowhere"), Path.mkdir]
)
def test_whatever_lies_in_a_folder_s_place_is_replaced(
    variants: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[Path], object],
) -> None:
    folder = tmp_path / "engine" / f"portable-{'0' * 32}"
    folder.parent.mkdir()
    place(folder)
    assert kept(variants, folder, monkeypatch) == 1
    assert variants.sound(folder)


def kept(variants: ModuleType, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """How often `kept` builds until a folder is sound."""
    sources = importlib.import_module("llama_source")
    built = []

    @contextlib.contextmanager
    def unpacked(root: Path, _requirement: str | None) -> Iterator[object]:
        work = root / "building-0"
        work.mkdir()
        yield sources.Source(work, work, work, {})
        work.rmdir()

    def build(_source: object, done: Path) -> None:
        built.append(done)
        fill(variants, done)

    patch.setenv("KVGRAFT_CACHE", str(folder.parents[1]))
    patch.setattr(sources, "unpacked", unpacked)
    assert sources.kept(folder.name, variants.sound, build) == folder
    return len(built)


@pytest.fixture
def read_only(engine_wheel: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache of `folder`, on a file system that cannot be written, by root either."""

    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(engine_wheel.tempfile, "TemporaryFile", refuse)
    monkeypatch.setenv("KVGRAFT_CACHE", str(tmp_path))


@pytest.mark.usefixtures("read_only")
def test_a_sound_build_is_used_where_the_cache_cannot_be_written(
    variants: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(variants, "folder_name", lambda _: folder.name)
    assert variants.main(["portable", "--if-built"]) == 0
    assert capfd.readouterr().out == f"{folder}\n"
    assert variants.folder_of("portable") == folder
    (folder / "libllama.so").write_text("other")
    with pytest.raises(variants.BuildError, match=r"cannot be written \(Read-only file system\)"):
        variants.folder_of("portable")


@pytest.mark.parametrize(
    "variables",
    [{}, {"XDG_CACHE_HOME": "xdg"}, {"KVGRAFT_CACHE": "own"}, {"KVGRAFT_CACHE": ""}],
)
def test_a_build_is_looked_for_where_it_is_put(
    engine_wheel: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "KVGRAFT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    looked = importlib.import_module("llama_source").cache_path()
    assert not looked.exists()
    assert looked == engine_wheel.cache_root()
