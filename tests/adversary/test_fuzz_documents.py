"""Documents of any content: a value or a typed error, at little cost."""

from __future__ import annotations

from typing import Any

import fuzzing
import pytest
import targets_documents

EXAMPLES = 150
pytestmark = pytest.mark.timeout(3600)  # on a busy machine; see fuzzing


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, Any]]:
    return fuzzing.report("documents", EXAMPLES)


@pytest.mark.parametrize("name", targets_documents.targets())
def test_any_input_is_read_or_refused_at_little_cost(
    said: dict[str, dict[str, Any]], name: str
) -> None:
    fuzzing.check(said[name])
