"""The kinds of stage that the verifier knows, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvaudit.exactness import kind as exactness
from kvaudit.stagekind import StageKind

KINDS: Mapping[str, StageKind] = {kind.name: kind for kind in (exactness.KIND,)}


def configured(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """The stages that a configuration runs; one that lists none has `exactness` alone."""
    return tuple(configuration.get("stages", ("exactness",)))
