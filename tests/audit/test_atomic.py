"""Only a regular file is replaced: a link, device, pipe, socket or folder of the name stays."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kvaudit import atomic, cli, plots
from kvaudit.attest import keys
from kvaudit.errors import TypedError, UnusableInput
from kvgraft import pins

RUN = Path(__file__).parents[2] / "results" / "reference-portable"


def _link(path: Path) -> None:
    path.with_name("target").write_text("kept")
    path.symlink_to("target")


def _socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # a socket's whole path is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)


def _device(path: Path) -> None:
    """A null device of our own: never try this on the machine's."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes a device")


TAKEN: dict[str, Callable[[Path], object]] = {
    "a symbolic link": _link,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a character device": _device,
}


@pytest.fixture(params=[*TAKEN, "a link to nothing"])
def taken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A name that is taken, and by what."""
    path = tmp_path / "out"
    if request.param == "a link to nothing":
        path.symlink_to("absent")
        return path, "a symbolic link"
    TAKEN[request.param](path)
    return path, request.param


def entries(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, device number and regular content of everything in a folder, links not followed."""
    found = {}
    for path in folder.iterdir():
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[path.name] = (status.st_mode, status.st_rdev, content)
    return found


def test_what_is_no_regular_file_is_refused_and_stays(taken: tuple[Path, str]) -> None:
    path, what = taken
    before = entries(path.parent)
    for write in (
        lambda: atomic.write_bytes(path, b"new"),
        lambda: atomic.write_json(path, {}),
        lambda: atomic.replacing(str(path)).__enter__(),
    ):
        with pytest.raises(UnusableInput, match=f"nothing but a regular file .*found {what}"):
            write()
        assert entries(path.parent) == before


def test_what_comes_while_a_file_is_written_stays_too(tmp_path: Path) -> None:
    path = tmp_path / "out"
    writing = atomic.replacing(path)
    writing.__enter__().write(b"new")
    os.mkfifo(path)
    with pytest.raises(UnusableInput, match="found a pipe"):
        writing.__exit__(None, None, None)
    assert [*entries(tmp_path)] == ["out"]
    assert path.is_fifo()


def test_a_new_name_and_a_regular_file_are_written_below_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for data in (b"first", b"second"):
        atomic.write_bytes(tmp_path / "link" / "out", data)
        assert (tmp_path / "real" / "out").read_bytes() == data


def test_a_command_refuses_it_in_one_line_before_it_works(
    taken: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, what = taken
    before = entries(tmp_path)
    for arguments in (
        ["verify", str(RUN), "--html", str(path)],
        ["rescore", "--format", "none", "absent", "--rows", str(path)],
    ):
        assert cli.main(arguments) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        assert f"found {what}" in printed.err
        assert entries(tmp_path) == before


def test_writers_of_new_files_take_no_name_that_is_taken(
    taken: tuple[Path, str], tmp_path: Path
) -> None:
    path, _ = taken
    before = entries(tmp_path)
    assert cli.main(["crate", str(RUN), "--into", str(path)]) == 2
    with pytest.raises(UnusableInput):
        keys.generate(path)
    pinned = pins.ModelPin("tiny", "0" * 64, 1, "unknown", {"path": "tiny.gguf"})
    with pytest.raises(TypedError):
        pins.add(path, pinned)
    assert entries(tmp_path) == before


def test_a_plot_never_follows_a_link(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = plots.draw(RUN, tmp_path / "plots")
    victim = tmp_path / "victim"
    victim.write_text("kept")
    drawn[-1].unlink()
    drawn[-1].symlink_to(victim)
    drawn[0].write_text("earlier")
    with pytest.raises(UnusableInput, match="found a symbolic link"):
        plots.draw(RUN, tmp_path / "plots")
    assert victim.read_text() == "kept"
    assert drawn[-1].is_symlink()
    assert len(drawn) == 1 or drawn[0].read_text() == "earlier"  # all of them, or none
