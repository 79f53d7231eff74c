"""The kinds of stage that the verifier knows, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvaudit.context import kind as context
from kvaudit.cost import kind as cost
from kvaudit.exactness import kind as exactness
from kvaudit.flywheel import kind as flywheel
from kvaudit.position import kind as position
from kvaudit.replay import kind as replay
from kvaudit.stagekind import StageKind

KINDS: Mapping[str, StageKind] = {
    kind.name: kind
    for kind in (
        exactness.KIND,
        position.KIND,
        cost.KIND,
        context.KIND,
        flywheel.KIND,
        replay.KIND,
    )
}


def configured(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """The stages that a configuration runs; one that lists none has `exactness` alone."""
    return tuple(configuration.get("stages", ("exactness",)))
