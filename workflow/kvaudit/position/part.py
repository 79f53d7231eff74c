"""One part of the stage position: its record files, its checks and its piece of the summary.

The stage is the sum of its parts, which `kind` lists. This module must not know any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvaudit import profiles
from kvaudit.position import plan
from kvaudit.profiles import InForce
from kvaudit.stagekind import Problem, Rows


@dataclass(frozen=True)
class Setting:
    """What a stage of one model was to run under.

    Attributes:
        subject: the model's name.
        inputs: the inputs manifest.
        section: the configuration's `position`.
        seed: name from which all draws derive.
        force: the configured profile.
        registered: its settings.
    """

    subject: str
    inputs: Mapping[str, Any]
    section: Mapping[str, Any]
    seed: str
    force: InForce
    registered: Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of the stage.

    Attributes:
        records: record file -> kind of its lines.
        check: (setting, rows) -> what contradicts the plan, the inputs or other records.
        summarise: rows -> the part's fields of the summary.
    """

    records: Mapping[str, str]
    check: Callable[[Setting, Rows], Iterator[Problem]]
    summarise: Callable[[Rows], dict[str, Any]]


def setting(subject: str, inputs: Mapping[str, Any]) -> Setting | None:
    """The setting of a stage, or None where `chain` has reported that it cannot be known."""
    force = profiles.in_force(inputs, subject)
    value = inputs["configuration"]["value"]
    section = value.get("position", {})
    if force is None or "seed" not in value or any(plan.section_problems(section)):
        return None
    registered = inputs["profiles"][subject][force.name]["profile"]["settings"]
    return Setting(subject, inputs, section, f"{value['seed']}/{subject}", force, registered)
