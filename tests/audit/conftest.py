"""A valid run directory, built once, and copies of it to damage."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from kvaudit import cli

sys.path.insert(0, str(Path(__file__).parent))
import synthetic

settings.register_profile("audit", deadline=None)  # a busy machine is no failure
settings.load_profile("audit")


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid run of two models with its verdict.json; read-only by convention."""
    run = synthetic.build(tmp_path_factory.mktemp("pristine") / "run")
    assert cli.main(["verify", str(run), "--write"]) == 0
    return run


@pytest.fixture
def run(pristine: Path, tmp_path: Path) -> Path:
    """A fresh copy of the valid run."""
    return Path(shutil.copytree(pristine, tmp_path / "run"))
