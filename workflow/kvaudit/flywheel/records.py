"""The record files of the stage flywheel, the kinds of their lines, and its arms.

This module must not know what a good result is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROBLEMS = "records/problems.jsonl"
PROGRAMS = "records/programs.jsonl"
GENERATIONS = "records/generations.jsonl"
DEPOSITS = "records/deposits.jsonl"
HEADERS = "records/headers.jsonl"
ROUTES = "records/routes.jsonl"
CALIBRATION = "records/calibration.jsonl"
GROWTH = "records/growth.jsonl"
RUN = "records/run.jsonl"
PROFILES = "records/profiles.jsonl"

KINDS: Mapping[str, str] = {
    PROBLEMS: "flywheel-problem",
    PROGRAMS: "flywheel-program",
    GENERATIONS: "flywheel-generation",
    DEPOSITS: "flywheel-deposit",
    HEADERS: "block-header",
    ROUTES: "flywheel-route",
    CALIBRATION: "flywheel-calibration",
    GROWTH: "flywheel-growth",
    RUN: "flywheel-run",
    PROFILES: "profile",
}
"""Record file, relative to the stage's folder -> kind of its lines."""

ARMS = (
    *("text", "code", "admission-alone", "admission-with", "adapt", "adapt-templated"),
    *("alone", "alone-text", "recall", "recall-text", "recall-relocated", "recall-flat"),
    *("recall-examples", "adapt-text", "adapt-flat", "adapt-relocated"),
    *("solved-alone", "solved-with", "solved-card"),
)
"""Ways in which a text is generated, in the order of the generations."""

FILE_ARMS = ("file-direct", "file-code", "file-recall", "file-routed", "file-flat")
"""Ways in which a problem of a user's file is answered; they come behind the others."""

GATED = frozenset(arm for arm in ARMS if arm.startswith("adapt") or arm.endswith("-with"))
"""Arms whose program is an adaptation of a block's, so that the gate judges it."""

CODING = frozenset({"code", "alone", "file-code"})
"""Arms in which the frozen model writes a program of its own."""

RUNNING = GATED | CODING
"""Arms whose text is a program that is run; the answer is what it prints."""

RECALLING = frozenset(arm for arm in ARMS if arm.startswith("recall"))
"""Arms that ask for the answer of a problem which a block holds."""

READ = frozenset(arm for arm in ARMS if arm.endswith("-text")) - {"alone-text"}
"""Arms that read the text of a block instead of restoring its state."""

ENTRIES = ("deposited", "templated")
"""Variants of a deposit that a library takes."""

STOPPED = ("timeout", "memory", "output flood")
"""Endings of programs that were stopped; on a faster machine they may end otherwise."""

MAX_OUTPUT = 2000
"""Characters of a program's output that a record keeps."""


ROUTER = "router"
"""Name by which a configuration asks for the router's queries beside the arms."""


def shown(output: bytes) -> str:
    """A program's output as a record holds it; `output_sha256` is that of all its bytes."""
    return output.decode("utf-8", "replace")[:MAX_OUTPUT]


def in_library(deposit: Mapping[str, Any]) -> bool:
    """Whether a deposit is an entry of the stage's library, by which it is routed."""
    return bool(deposit["chosen"] and deposit["admitted"] and deposit["variant"] in ENTRIES)


MAX_INTEGER = 2**53 - 1


def kept(answer: int | None) -> int | None:
    """An answer as a record holds it: None where JSON could not hold it exactly."""
    return answer if answer is not None and abs(answer) <= MAX_INTEGER else None


def demonstrated(arm: str) -> bool:
    """Whether an arm restores the child of a deposit's block, where it has one, as well.

    A recall asks for the problem of the block itself; another one, solved behind it, would only
    stand in between.
    """
    return arm in GATED
