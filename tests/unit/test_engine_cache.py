"""The cache of compiled engines: what a build that was killed has left does not stay."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
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
