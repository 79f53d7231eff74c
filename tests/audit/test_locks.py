"""Locks of files and folders: taken at once, waited for, and given up with what holds them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvaudit import atomic, locks
from kvaudit.errors import LockTimeout


def test_a_folder_is_held_by_one_alone_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    held = locks.hold_folder(tmp_path)
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        assert not locks.take(other)
        assert not locks.take(other, shared=True)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(LockTimeout, match=f"holds the lock; at {tmp_path}; .* 0 seconds"):
            locks.hold_folder(tmp_path, seconds=0.0)
        assert len(os.listdir("/proc/self/fd")) == before
        os.close(held)
        assert locks.take(other)
    finally:
        os.close(other)


def test_readers_share_a_folder(tmp_path: Path) -> None:
    first, second = (locks.hold_folder(tmp_path, shared=True, seconds=0.0) for _ in range(2))
    os.close(first)
    with pytest.raises(LockTimeout):
        locks.hold_folder(tmp_path, seconds=0.0)
    os.close(second)


def test_what_is_no_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "absent"):
        with pytest.raises(OSError, match="directory"):
            locks.hold_folder(tmp_path / name)
        with pytest.raises(OSError, match="directory"):
            atomic.sync_folder(tmp_path / name)
