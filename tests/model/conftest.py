"""The embedded models, opened once; tests that use them are marked `model`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvgraft import pins
from kvgraft.model import FrozenModel

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _importable_in_children() -> Iterator[None]:
    """Children find the packages of this checkout, installed or not."""
    before = os.environ.get("PYTHONPATH", "")
    with pytest.MonkeyPatch.context() as patch:
        workflow = str(REPOSITORY / "workflow")
        patch.setenv("PYTHONPATH", f"{workflow}{os.pathsep}{before}" if before else workflow)
        yield


@pytest.fixture(scope="session")
def embedded() -> Iterator[Callable[[str], FrozenModel]]:
    """Opens an embedded model by name."""
    opened: dict[str, FrozenModel] = {}

    def model(name: str) -> FrozenModel:
        if name not in opened:
            opened[name] = FrozenModel.open(pins.resolve(name))
        return opened[name]

    yield model
    for one in opened.values():
        one.close()
