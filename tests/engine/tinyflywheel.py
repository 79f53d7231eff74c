"""The stage flywheel on a tiny model, as several test files run it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tinywork import REPOSITORY

from kvaudit import records, schemas
from kvaudit.flywheel.records import GENERATIONS, KINDS
from kvgraft.energy import Meter
from kvgraft.flywheel import Flywheel
from kvgraft.library import Library
from kvgraft.profile import split_invariant

SETTINGS = split_invariant(n_ctx=1024)
Rows = dict[str, list[dict[str, Any]]]


def options(**changes: Any) -> dict[str, Any]:
    """The section of `config/smoke.yaml`, with the settings that it leaves at their defaults."""
    section = yaml.safe_load((REPOSITORY / "config/smoke.yaml").read_text())["flywheel"]
    known = json.loads(schemas.text("config"))["properties"]["flywheel"]["properties"]
    return {
        **{name: one["default"] for name, one in known.items() if "default" in one},
        **section,
        **changes,
    }


@dataclass
class Measured:
    """A stage that ran, and its records as written, validated and read again."""

    stage: Flywheel
    rows: Rows
    notes: list[str]

    @property
    def library(self) -> Library:
        return Library.open(self.stage.work / "library")

    def of(self, *arms: str) -> list[dict[str, Any]]:
        return [row for row in self.rows[GENERATIONS] if row["arm"] in arms]


def run(model: Any, folder: Path, meter: Meter | None = None, **changes: Any) -> Measured:
    notes: list[str] = []
    seed, work = f"test/{model.name}", folder / "work"
    stage = Flywheel(model, SETTINGS, options(**changes), seed, work, notes.append, meter)
    rows = stage.measure()
    for path, kind in KINDS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        records.write(folder / path, kind, rows[Path(path).stem])
    return Measured(stage, records.read_folder(folder, KINDS), notes)
