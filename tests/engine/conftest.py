"""Tiny models, sessions on them and a store, made once for all engine tests.

The engine reads its variables once per process. This process runs the split-invariant profile;
tests of the stock profile start processes of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import tinywork

from kvgraft import pins
from kvgraft.model import FrozenModel
from kvgraft.profile import ProfileSettings, split_invariant
from kvgraft.session import Session
from kvgraft.store import BlockStore
from kvgraft.tiny import make_tiny_gguf

Models = Callable[[str], FrozenModel]
Sessions = Callable[..., Session]


@pytest.fixture(scope="session", autouse=True)
def _importable_in_children() -> Iterator[None]:
    """Children find the packages of this checkout, installed or not."""
    before = os.environ.get("PYTHONPATH", "")
    with pytest.MonkeyPatch.context() as patch:
        workflow = str(tinywork.REPOSITORY / "workflow")
        patch.setenv("PYTHONPATH", f"{workflow}{os.pathsep}{before}" if before else workflow)
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """Opens a tiny model of the catalogue; each is made and loaded once."""
    folder = tmp_path_factory.mktemp("models")
    opened: dict[str, FrozenModel] = {}

    def model(name: str) -> FrozenModel:
        if name not in opened:
            path = make_tiny_gguf(folder / f"{name}.gguf", **tinywork.CATALOGUE[name])
            opened[name] = FrozenModel.open(pins.for_file(path))
        return opened[name]

    yield model
    for one in opened.values():
        one.close()


@pytest.fixture(scope="session")
def _open_sessions(models: Models) -> Iterator[dict[Any, Session]]:
    opened: dict[Any, Session] = {}
    yield opened
    for session in opened.values():
        session.close()


@pytest.fixture
def sessions(models: Models, _open_sessions: dict[Any, Session]) -> Sessions:
    """An empty session on a tiny model; contexts are shared by tests and emptied in between."""

    def session(name: str, **changes: Any) -> Session:
        key = (name, tuple(sorted(changes.items())))
        if key not in _open_sessions:
            _open_sessions[key] = Session(
                models(name), split_invariant(**{"n_ctx": tinywork.N_CTX, **changes})
            )
        _open_sessions[key].reset()
        return _open_sessions[key]

    return session


@pytest.fixture(scope="session")
def settings() -> ProfileSettings:
    """The settings of a session that was asked for without changes."""
    return split_invariant(n_ctx=tinywork.N_CTX)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> BlockStore:
    """One store for all blocks; equal blocks share a file."""
    return BlockStore(tmp_path_factory.mktemp("store"))
