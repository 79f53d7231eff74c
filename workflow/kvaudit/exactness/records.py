"""The raw records of the stage exactness, typed.

A record is what was computed, never a judgement on it. This module must not know which values
would be good ones; that is for `consistency` and `claims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvaudit.errors import UnusableInput

KINDS: Mapping[str, str] = {
    "records/samples.jsonl": "exactness-sample",
    "records/determinism.jsonl": "exactness-determinism",
    "records/splits.jsonl": "exactness-split",
    "records/blocks.jsonl": "block-header",
}
"""Record file, relative to the stage's folder -> kind of its lines."""

ARMS = ("fresh", "fresh_again", "fresh_process", "graft", "one_shot", "token_by_token")
CASES = ("same_context", "new_context", "new_process")


@dataclass(frozen=True)
class Arm:
    """One way in which a sample's logits were computed; lists run over the compared positions."""

    process: int
    logits_sha256: tuple[str, ...]
    argmax: tuple[int, ...]
    decoded_tokens: int
    restored_bytes: int
    seconds: Mapping[str, float | None]
    kl_from_fresh: tuple[float, ...]
    state_sha256: str | None


@dataclass(frozen=True)
class Sample:
    """One span and its query; see exactness-sample.v1.json."""

    model: str
    sample: int
    seed: str
    profile: str
    exact: bool
    split_invariant: bool
    span_tokens: int
    query_tokens: int
    past_window: bool
    span_sha256: str
    query_sha256: str
    block_id: str
    state_bytes: int
    state_sha256: str
    file_bytes: int
    positions: tuple[int, ...]
    arms: Mapping[str, Arm]
    top5_margin: tuple[float, ...]
    raw: Mapping[str, str | None] | None


@dataclass(frozen=True)
class Observation:
    """One of the two runs of a determinism case."""

    logits_sha256: str
    state_sha256: str
    process: int


@dataclass(frozen=True)
class Determinism:
    """One computation done twice; see exactness-determinism.v1.json."""

    model: str
    case: str
    tokens: int
    profile: str
    first: Observation
    second: Observation
    equal: bool


@dataclass(frozen=True)
class Split:
    """One batch split against one-shot prefill; `split` is expanded to [size, count] pairs."""

    model: str
    sample: int
    profile: str
    profile_name: str
    tokens: int
    past_window: bool
    split: tuple[tuple[int, int], ...]
    grafted: bool
    logits_sha256: str
    reference_sha256: str
    state_sha256: str
    reference_state_sha256: str
    kl: float
    argmax: tuple[int, int]
    control: bool
    raw: Mapping[str, str] | None

    @property
    def differs(self) -> bool:
        """Whether logits or state have other bytes than the reference's."""
        return (
            self.logits_sha256 != self.reference_sha256
            or self.state_sha256 != self.reference_state_sha256
        )


@dataclass(frozen=True)
class BlockRecord:
    """A block's id and its header as written."""

    id: str
    header: Mapping[str, Any]


@dataclass(frozen=True)
class Records:
    """All records of one exactness stage, in file order."""

    samples: tuple[Sample, ...]
    determinism: tuple[Determinism, ...]
    splits: tuple[Split, ...]
    blocks: tuple[BlockRecord, ...]

    def __len__(self) -> int:
        return sum(
            map(len, (self.samples, self.determinism, self.splits, self.blocks)),
        )


def typed(rows: Mapping[str, list[dict[str, Any]]]) -> Records:
    """The typed form of validated rows.

    Args:
        rows: record file (a key of `KINDS`) -> its rows.

    Raises:
        UnusableInput: a record file is absent from `rows`.
    """
    missing = [name for name in KINDS if name not in rows]
    if missing:
        raise UnusableInput("a record file is absent", found=", ".join(missing))
    return Records(
        samples=tuple(_sample(row) for row in rows["records/samples.jsonl"]),
        determinism=tuple(_determinism(row) for row in rows["records/determinism.jsonl"]),
        splits=tuple(_split(row) for row in rows["records/splits.jsonl"]),
        blocks=tuple(BlockRecord(r["id"], r["header"]) for r in rows["records/blocks.jsonl"]),
    )


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("kind", "version")}


def _sample(row: Mapping[str, Any]) -> Sample:
    fields = _fields(row)
    fields["positions"] = tuple(row["positions"])
    fields["top5_margin"] = tuple(row["top5_margin"])
    fields["arms"] = {
        name: Arm(
            **{
                **arm,
                "logits_sha256": tuple(arm["logits_sha256"]),
                "argmax": tuple(arm["argmax"]),
                "kl_from_fresh": tuple(arm["kl_from_fresh"]),
            }
        )
        for name, arm in row["arms"].items()
    }
    return Sample(**fields)


def _determinism(row: Mapping[str, Any]) -> Determinism:
    fields = _fields(row)
    fields["first"] = Observation(**row["first"])
    fields["second"] = Observation(**row["second"])
    return Determinism(**fields)


def _split(row: Mapping[str, Any]) -> Split:
    fields = _fields(row)
    fields["argmax"] = (row["argmax"][0], row["argmax"][1])
    fields["split"] = tuple(
        (part[0], part[1]) if isinstance(part, list) else (part, 1) for part in row["split"]
    )
    return Split(**fields)
