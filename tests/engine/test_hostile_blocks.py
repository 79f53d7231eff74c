"""A block whose digests are right and whose state is crafted is refused; the process lives on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import crafted
import pytest
from tinywork import ARCHITECTURES


@pytest.fixture(scope="module")
def answers(models: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in ARCHITECTURES:
        done = subprocess.run(
            [
                sys.executable,
                crafted.__file__,
                models(name).path,
                tmp_path_factory.mktemp("hostile"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0, (lines[-1:], done.stderr[-2000:])
        found[name] = {line["name"]: line for line in lines}
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("case", crafted.CASES)
def test_a_crafted_state_is_refused_and_the_session_goes_on(
    answers: dict[str, dict[str, Any]], architecture: str, case: str
) -> None:
    answer = answers[architecture][case]
    assert answer["error"] == "StateRefused"
    assert answer["message"].isprintable()
    assert answer["alive"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("case", crafted.HARMLESS)
def test_rows_of_any_content_are_read_without_harm(
    answers: dict[str, dict[str, Any]], architecture: str, case: str
) -> None:
    assert answers[architecture][case] == {
        "name": case,
        "error": "",
        "message": "",
        "alive": True,
    }


def test_the_cases_were_run_from_files_of_their_own() -> None:
    assert Path(crafted.__file__).parent == Path(__file__).parent
    assert len(crafted.CASES) >= 40
