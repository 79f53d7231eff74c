"""Blocks, libraries and model files of any bytes: a value or a typed error, at little cost."""

from __future__ import annotations

from typing import Any

import fuzzing
import pytest
import targets_blocks

EXAMPLES = 600
pytestmark = pytest.mark.timeout(3600)  # on a busy machine; see fuzzing


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, Any]]:
    return fuzzing.report("blocks", EXAMPLES)


@pytest.mark.parametrize("name", targets_blocks.targets())
def test_any_input_is_read_or_refused_at_little_cost(
    said: dict[str, dict[str, Any]], name: str
) -> None:
    fuzzing.check(said[name])
