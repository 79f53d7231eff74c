"""Reading beneath a directory that a stranger has filled."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kvaudit.errors import EvidenceIncomplete, UnusableInput
from kvaudit.safefs import MAX_LEVELS, SafeRoot


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "root"
    (inside / "a").mkdir(parents=True)
    (inside / "a/file").write_bytes(b"content")
    (tmp_path / "secret").write_bytes(b"secret")
    return inside


def test_files_and_folders_are_listed_with_sizes(root: Path) -> None:
    with SafeRoot(root) as safe:
        listing = safe.walk()
    assert listing.files == {"a/file": 7}
    assert listing.folders == {"a"}


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    with SafeRoot(tmp_path / "link") as safe:
        assert safe.read("a/file", max_bytes=7) == b"content"


@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc/passwd", "a/../a/file", "", ".", "a//file", "a/", "./a/file", "a\0b"],
)
def test_paths_that_are_not_plain_are_refused(root: Path, path: str) -> None:
    with SafeRoot(root) as safe, pytest.raises(UnusableInput, match="not plain"):
        safe.read(path, max_bytes=100)


def test_links_are_refused_wherever_they_stand(root: Path, tmp_path: Path) -> None:
    (root / "file").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    (root / "dangling").symlink_to("nowhere")
    with SafeRoot(root) as safe:
        for path in ("file", "folder/secret", "dangling"):
            with pytest.raises(UnusableInput, match="symbolic link"):
                safe.read(path, max_bytes=100)
        with pytest.raises(UnusableInput, match=r"dangling.*symbolic link"):
            safe.walk()


def test_a_fifo_is_refused_without_waiting_for_a_writer(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with SafeRoot(root) as safe:
        with pytest.raises(UnusableInput, match="a fifo"):
            safe.read("pipe", max_bytes=100)
        with pytest.raises(UnusableInput, match=r"pipe.*a fifo"):
            safe.walk()


def test_a_socket_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with SafeRoot(root) as safe, pytest.raises(UnusableInput, match="a socket"):
            safe.walk()


def test_a_device_is_refused_unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    real = os.open

    def spy(path: object, *arguments: object, **names: object) -> int:
        opened.append(path)
        return real(path, *arguments, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", spy)
    with SafeRoot("/dev") as safe, pytest.raises(UnusableInput, match="character device"):
        safe.read("null", max_bytes=100)
    assert opened == ["/dev"]


def test_names_that_are_not_utf8_are_refused_in_one_printable_line(root: Path) -> None:
    (Path(os.fsdecode(os.fsencode(root) + b"/bad\xff\nname"))).write_bytes(b"")
    with SafeRoot(root) as safe, pytest.raises(UnusableInput, match="not UTF-8") as caught:
        safe.walk()
    caught.value.message().encode()
    assert "\n" not in caught.value.message()


def test_a_long_file_is_refused_unread(root: Path) -> None:
    with open(root / "sparse", "wb") as file:
        file.truncate(10 * 1024**3)
    with SafeRoot(root) as safe:
        with pytest.raises(UnusableInput, match="too long"):
            safe.read("sparse", max_bytes=1024)
        assert safe.sha256("sparse", expected_bytes=5) is None


def test_an_absent_file_is_incomplete_evidence(root: Path) -> None:
    with SafeRoot(root) as safe, pytest.raises(EvidenceIncomplete, match="absent"):
        safe.read("a/other", max_bytes=1)


def test_a_folder_is_no_file_and_a_file_no_folder(root: Path) -> None:
    with SafeRoot(root) as safe:
        with pytest.raises(UnusableInput, match="a directory"):
            safe.read("a", max_bytes=1)
        with pytest.raises(UnusableInput, match="expected a folder"):
            safe.read("a/file/x", max_bytes=1)


def test_nesting_is_bounded(root: Path) -> None:
    deep = root.joinpath(*"x" * MAX_LEVELS)
    deep.mkdir(parents=True)
    with SafeRoot(root) as safe, pytest.raises(UnusableInput, match="nested too deeply"):
        safe.walk()


@pytest.mark.parametrize("path", ["nowhere", "root/a/file", "nul\0"])
def test_a_root_that_is_no_directory_is_refused(root: Path, tmp_path: Path, path: str) -> None:
    with pytest.raises(UnusableInput, match="cannot be opened"):
        SafeRoot(tmp_path / path)


def test_no_descriptor_is_leaked(root: Path) -> None:
    (root / "link").symlink_to("a")
    before = len(os.listdir("/proc/self/fd"))
    with SafeRoot(root) as safe:
        for path in ("a/file", "a", "link/file", "none/x", "a/file/x"):
            try:
                safe.read(path, max_bytes=100)
            except (UnusableInput, EvidenceIncomplete):
                continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_root_refuses(root: Path) -> None:
    safe = SafeRoot(root)
    safe.close()
    safe.close()
    with pytest.raises(UnusableInput, match="closed"):
        safe.walk()
