"""All families of the contest set, by name. This module must not draw or ask problems."""

from __future__ import annotations

from kvaudit.errors import UnusableInput
from kvaudit.problems import counting, geometry, logic, numbers, sequences
from kvaudit.problems.family import Family

FAMILIES: tuple[Family, ...] = (
    *numbers.FAMILIES,
    *counting.FAMILIES,
    *sequences.FAMILIES,
    *geometry.FAMILIES,
    *logic.FAMILIES,
)

_BY_NAME = {family.name: family for family in FAMILIES}


def by_name(name: str) -> Family:
    """The family of that name.

    Raises:
        UnusableInput: there is none.
    """
    if name not in _BY_NAME:
        raise UnusableInput(
            "no family has this name", found=name, hint=f"families are {', '.join(_BY_NAME)}"
        )
    return _BY_NAME[name]
