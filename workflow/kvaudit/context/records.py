"""The record files of the stage context and the kinds of their lines."""

from __future__ import annotations

from collections.abc import Mapping

BLOCKS = "records/blocks.jsonl"
HEADERS = "records/headers.jsonl"
NEEDLES = "records/needles.jsonl"
ANSWERS = "records/answers.jsonl"
ACCESSES = "records/accesses.jsonl"
MEMORY = "records/memory.jsonl"
GROWTH = "records/growth.jsonl"
INDEX = "records/index.jsonl"
RUN = "records/run.jsonl"
PROFILES = "records/profiles.jsonl"

KINDS: Mapping[str, str] = {
    BLOCKS: "context-block",
    HEADERS: "block-header",
    NEEDLES: "context-needle",
    ANSWERS: "context-answer",
    ACCESSES: "context-access",
    MEMORY: "context-memory",
    GROWTH: "context-growth",
    INDEX: "context-index",
    RUN: "context-run",
    PROFILES: "profile",
}
"""Record file, relative to the stage's folder -> kind of its lines."""

ARMS = ("routed", "wrong", "absent")
MEMORY_ARMS = ("store", "direct")
