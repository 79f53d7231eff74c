"""A run under the portable profile is sound evidence, and any portable build rechecks its bytes."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import portablework
import pytest
from portablework import NAMES, Build
from tinywork import REPOSITORY

from kvaudit import manifest
from kvaudit.verify import verify

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def portable_runs() -> Iterator[ModuleType]:
    """The script of the proof, which imports its neighbours by their plain names."""
    sys.path.insert(0, str(REPOSITORY / "envs"))
    try:
        yield importlib.import_module("portable_runs")
    finally:
        sys.path.remove(str(REPOSITORY / "envs"))


@dataclass(frozen=True)
class Made:
    """A run of tiny models, made without Snakemake under the build that is fastest here."""

    folder: Path
    build: Build

    def recheck(self, build: Build, *arguments: str) -> subprocess.CompletedProcess[str]:
        return build.run("-m", "kvgraft", "recheck", self.folder, "--portable", *arguments)


@pytest.fixture(scope="module")
def made(
    isolation: None, portable_runs: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Made:
    build = portablework.build("portable")
    work = tmp_path_factory.mktemp("portable")
    known = portable_runs.tiny_pins(work)
    config = portable_runs.configuration(work, known, ["exactness", "flywheel"])
    with contextlib.chdir(REPOSITORY):
        done = build.run("-m", "kvgraft.plain_run", work / "run", config)
    assert done.returncode == 0, done.stderr[-2000:]
    return Made(work / "run", build)


def test_the_run_is_verified_and_says_that_it_has_no_stock_control(made: Made) -> None:
    found = verify(made.folder, check_verdict=False)
    assert (found.status, found.findings) == ("verified", ())
    claims = {(claim.id, claim.model): claim for claim in found.claims}
    for model in ("tiny-gemma3", "tiny-llama"):
        assert {claims[name, model].verdict for name in ("D1", "E1", "E2", "E3")} == {"holds"}
        assert "stock kernels not run here" in claims["E3", model].measured
        assert claims["F-exact", model].verdict == "holds"
        assert claims["F1", model].verdict == "not run here"
    inputs = manifest.read(made.folder / manifest.INPUTS, "inputs")
    assert [*inputs["profiles"]["tiny-llama"]] == ["portable"]
    assert inputs["profiles"]["tiny-llama"]["portable"]["profile"]["machine"] == {}


@pytest.mark.parametrize("name", NAMES)
def test_every_digest_comes_out_again_under_every_build(made: Made, name: str) -> None:
    done = made.recheck(portablework.build(name), "--json", "--threads", "2")
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(found) == 4
    assert [f"[{number}/4]" in done.stderr for number in range(6)] == [False, *[True] * 4, False]
    assert {one["mode"] for one in found} == {"bytes"}
    assert all(one["passed"] and one["equal"] == one["checked"] > 0 for one in found)


def test_a_stage_and_a_model_can_be_rechecked_alone(made: Made) -> None:
    done = made.recheck(made.build, "--stage", "exactness", "--model", "tiny-llama")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("tiny-llama, exactness: ")
    assert "tiny-gemma3" not in done.stdout
    assert "generations" not in done.stdout


def run_kvgraft(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process without the engine's variables."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GGML_", "LLAMA_"))}
    return subprocess.run(
        [sys.executable, "-m", "kvgraft", *map(str, arguments)],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_portable_build_the_command_that_makes_one_is_named(
    made: Made, tmp_path: Path
) -> None:
    done = run_kvgraft("recheck", made.folder, "--portable", KVGRAFT_CACHE=str(tmp_path))
    assert done.returncode == 3
    assert "the portable build of the engine is not there" in done.stderr
    assert "make portable" in done.stderr


def test_the_installed_engine_does_not_pass_for_the_portable_one(made: Made) -> None:
    done = run_kvgraft("recheck", made.folder)
    assert done.returncode != 0
    assert "not a portable build (add --portable)" in done.stderr


def test_a_run_of_another_profile_is_refused() -> None:
    reference = REPOSITORY / "results" / "reference"
    if not reference.is_dir():
        pytest.skip("results/reference is not here")
    done = run_kvgraft("recheck", reference, "--portable")
    assert done.returncode == 2
    assert "the run was not made with the portable profile" in done.stderr
