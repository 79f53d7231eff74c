"""The reference run, copied once and put right after every attack, and who signed it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from kvaudit.attest import keys

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "audit")]
import forging  # noqa: E402

# The same inputs on every run; what one costs is measured by the processor's time, not the clock's.
settings.register_profile("adversary", deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="session")
def signers(tmp_path_factory: pytest.TempPathFactory) -> tuple[keys.PrivateKey, keys.PrivateKey]:
    """The author's key, which the auditor knows, and the attacker's."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("author", "attacker"):
        keys.generate(folder / f"{name}.pem")
    return keys.load_private(folder / "author.pem"), keys.load_private(folder / "attacker.pem")


@pytest.fixture(scope="session")
def _copy(
    tmp_path_factory: pytest.TempPathFactory,
    signers: tuple[keys.PrivateKey, keys.PrivateKey],
) -> forging.Snapshot:
    run = Path(shutil.copytree(forging.REFERENCE, tmp_path_factory.mktemp("reference") / "run"))
    forging.sign(run, signers[0])
    return forging.Snapshot(run)


@pytest.fixture
def snapshot(_copy: forging.Snapshot) -> Iterator[forging.Snapshot]:
    """The signed copy of the reference run; whatever a test does to it is undone."""
    try:
        yield _copy
    finally:
        _copy.restore()


@pytest.fixture
def run(snapshot: forging.Snapshot) -> Path:
    return snapshot.run
