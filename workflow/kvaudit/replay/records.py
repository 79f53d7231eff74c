"""The raw records of the stage replay, typed.

A record is what was computed, never a judgement on it. This module must not know which values
would be good ones; that is for `check` and `claims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SAMPLES = "records/samples.jsonl"
TARGETS = "records/targets.jsonl"
BLOCKS = "records/blocks.jsonl"
PROFILES = "records/profiles.jsonl"

KINDS: Mapping[str, str] = {
    SAMPLES: "replay-sample",
    TARGETS: "replay-target",
    BLOCKS: "block-header",
    PROFILES: "profile",
}
"""Record file, relative to the stage's folder -> kind of its lines."""

CURVES = ("graft_from_origin", "fresh_from_origin", "graft_from_fresh")
"""What a target's logits are compared with: KL(second, first) of the name, nats a position."""


@dataclass(frozen=True)
class Arm:
    """Logits behind a question and the tokens that follow; lists run over the question."""

    logits_sha256: tuple[str, ...]
    argmax: tuple[int, ...]
    answer: tuple[int, ...]
    log_p: tuple[float, ...]
    decoded_tokens: int
    restored_bytes: int


@dataclass(frozen=True)
class Sample:
    """One block and its fresh reading where it was made; see replay-sample.v1.json.

    `host` is None but in a portable run.
    """

    model: str
    sample: int
    seed: str
    profile: str
    span_tokens: int
    query_tokens: int
    span_sha256: str
    query_sha256: str
    block_id: str
    state_bytes: int
    state_sha256: str
    file_bytes: int
    file_sha256: str
    top: tuple[int, ...]
    fresh: Arm
    raw: bool
    host: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Own:
    """The block that the target computed itself for the same span."""

    block_id: str
    state_bytes: int
    state_sha256: str
    differing_bytes: int


@dataclass(frozen=True)
class Target:
    """One sample on one target; see replay-target.v1.json. `host` is None but in a portable run."""

    model: str
    target: str
    sample: int
    profile: str
    process: int
    exact: bool
    copy_bytes: int
    copy_sha256: str
    own: Own
    fresh: Arm
    graft: Arm
    kl: Mapping[str, tuple[float, ...]]
    seconds: Mapping[str, float]
    raw: bool
    host: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Records:
    """All records of one replay stage, in file order."""

    samples: tuple[Sample, ...]
    targets: tuple[Target, ...]
    blocks: tuple[Mapping[str, Any], ...]
    profiles: tuple[Mapping[str, Any], ...]

    def on(self, target: str) -> list[tuple[Target, Sample]]:
        """The rows of one target, each with the sample that it replays."""
        samples = {sample.sample: sample for sample in self.samples}
        return [
            (row, samples[row.sample])
            for row in self.targets
            if row.target == target and row.sample in samples
        ]


def typed(rows: Mapping[str, list[dict[str, Any]]]) -> Records:
    """The typed form of validated rows, by record file."""
    return Records(
        samples=tuple(_sample(row) for row in rows[SAMPLES]),
        targets=tuple(_target(row) for row in rows[TARGETS]),
        blocks=tuple(rows[BLOCKS]),
        profiles=tuple(rows[PROFILES]),
    )


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("kind", "version")}


def _arm(value: Mapping[str, Any]) -> Arm:
    fields: dict[str, Any] = {
        key: tuple(entry) if isinstance(entry, list) else entry for key, entry in value.items()
    }
    return Arm(**fields)


def _sample(row: Mapping[str, Any]) -> Sample:
    fields = _fields(row)
    return Sample(**{**fields, "top": tuple(row["top"]), "fresh": _arm(row["fresh"])})


def _target(row: Mapping[str, Any]) -> Target:
    fields = _fields(row)
    fields["own"] = Own(**row["own"])
    fields |= {name: _arm(row[name]) for name in ("fresh", "graft")}
    fields["kl"] = {name: tuple(values) for name, values in row["kl"].items()}
    return Target(**fields)
