"""Whether the profiles of a stage's targets are those of the targets that they are said to be.

A target may differ from the configured profile in the parts that make it that target and in no
other, and must differ in one. This module must not know what was measured under a profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvaudit import digests, profiles
from kvaudit.errors import printable
from kvaudit.replay import plan
from kvaudit.replay.records import Records


def check_profiles(
    records: Records, targets: Sequence[str], registered: Mapping[str, Any]
) -> Iterator[str]:
    """What is wrong with the profiles that a replay stage lists.

    Args:
        records: all records of the stage.
        targets: the planned ones.
        registered: the configured profile's document.
    """
    used: dict[str, str] = {}
    for read in records.targets:
        if plan.crosses(read.target) and read.target in targets:
            used.setdefault(read.profile, read.target)
    listed = [row["digest"] for row in records.profiles]
    if sorted(listed) != sorted(used):
        yield "the profiles are not, each once, those of the targets that cross"
    for number, row in enumerate(records.profiles, start=1):
        profile, where = row["profile"], f"line {number}"
        if digests.sha256_json(profile) != row["digest"]:
            yield f"{where}: digest is not that of the profile"
        elif not profiles.well_formed(profile):
            yield f"{where}: the profile lacks what a profile says"
        elif row["digest"] in used:
            target = used[row["digest"]]
            yield from (f"{where}: {text}" for text in _target(profile, target, registered))


def _target(
    profile: Mapping[str, Any], target: str, registered: Mapping[str, Any]
) -> Iterator[str]:
    free = plan.TARGETS[target]
    if target not in plan.MUST_DIFFER:
        yield f"target {target} has no profile of its own"
        return
    for field in profiles.differences(profile, registered):
        if not any(field == name or field.startswith(f"{name}.") for name in free):
            yield f"{printable(field)} is not the registered one, which target {target} keeps"
    part, name = plan.MUST_DIFFER[target]
    if profile[part].get(name) == registered[part].get(name):
        yield f"{part}.{name} is the registered one, so that this is no target {target}"
