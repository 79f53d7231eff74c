"""The records of a flywheel stage, by what other records name: one index for all who look them up.

This module must not know what a record has to be, nor which results would be good ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvaudit.flywheel.records import (
    ARMS,
    DEPOSITS,
    GENERATIONS,
    HEADERS,
    PROBLEMS,
    PROGRAMS,
    ROUTER,
    RUN,
    in_library,
)
from kvaudit.stagekind import Rows

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """The records of one stage.

    Attributes:
        subject: the model's name.
        rows: all records of the stage.
    """

    subject: str
    rows: Rows

    @cached_property
    def problems(self) -> dict[str, Row]:
        """Problems by name, in the plan's order."""
        return {row["name"]: row for row in self.rows[PROBLEMS]}

    @cached_property
    def deposits(self) -> dict[str, Row]:
        """Deposits by name, in the order of the records."""
        return {row["name"]: row for row in self.rows[DEPOSITS]}

    @cached_property
    def programs(self) -> dict[str, Row]:
        """Programs by their digest."""
        return {row["sha256"]: row for row in self.rows[PROGRAMS]}

    @cached_property
    def headers(self) -> dict[str, Row]:
        """Headers by the id of their block."""
        return {row["id"]: row["header"] for row in self.rows[HEADERS]}

    @cached_property
    def arms(self) -> dict[str, dict[str, list[Row]]]:
        """Arm -> problem -> attempts, in the order of the records."""
        found: dict[str, dict[str, list[Row]]] = {}
        for row in self.rows[GENERATIONS]:
            found.setdefault(row["arm"], {}).setdefault(row["problem"], []).append(row)
        return found

    def arm(self, name: str) -> dict[str, list[Row]]:
        """Problem -> attempts of one arm; empty where it was not run."""
        return self.arms.get(name, {})

    def asked(self, *names: str) -> bool:
        """Whether the stage says that it ran these arms; all, where it names none."""
        run = self.rows[RUN][0] if self.rows[RUN] else {}
        return {*names} <= {*run.get("arms", (*ARMS, ROUTER))}

    @property
    def entries(self) -> list[Row]:
        """The deposits that are in the library, in their order."""
        return [row for row in self.rows[DEPOSITS] if in_library(row)]

    @cached_property
    def in_library(self) -> dict[str, Row]:
        """Family -> its deposit, of the families that the library has an entry of."""
        return {row["family"]: row for row in self.entries}

    def family(self, name: str, role: str) -> list[Row]:
        """A family's problems in a role."""
        rows = self.rows[PROBLEMS]
        return [row for row in rows if (row["family"], row["role"]) == (name, role)]

    def siblings(self, family: str, variant: str) -> list[Row]:
        """A family's deposits of a variant."""
        rows = self.rows[DEPOSITS]
        return [row for row in rows if (row["family"], row["variant"]) == (family, variant)]
