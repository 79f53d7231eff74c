"""What the stage replay measures: its targets, span lengths and kept logits, from a named seed.

The stage plans by these functions and the verifier plans again by them. This module must not know
an engine or any result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvaudit.errors import UnusableInput
from kvaudit.exactness.plan import length

SECTION = (
    *("targets", "isa", "engine", "device_layers", "samples", "min_tokens", "max_tokens"),
    *("answer_tokens", "raw_models"),
)
"""Fields of the configuration's section."""

SAME_BUILD = "process"
"""The target whose profile is the configured one: another process and another store."""

TARGETS: Mapping[str, frozenset[str]] = {
    SAME_BUILD: frozenset(),
    "isa": frozenset({"engine.libraries", "machine.features"}),
    "engine": frozenset({"engine", "machine.features", "machine.devices", "buffers"}),
    "device": frozenset({"settings.n_gpu_layers", "buffers"}),
}
"""Target -> the parts of the profile in which it may differ from the configured one."""

MUST_DIFFER: Mapping[str, tuple[str, str]] = {
    "isa": ("machine", "features"),
    "engine": ("engine", "libraries"),
    "device": ("settings", "n_gpu_layers"),
}
"""Target -> (part, field) that makes it another target at all."""

BUILT = ("isa", "engine")
"""Targets that run on another build of the engine; the section names it under the target's name."""

N_TOP = 8
"""Most likely tokens whose log-probabilities stand in the records."""


def section_problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a configuration's section `replay`, its schema apart."""
    for key in sorted({*SECTION} - {*section}):
        yield f"configuration.value.replay has no {key}"
    if section.get("min_tokens", 0) > section.get("max_tokens", 0):
        yield "configuration.value.replay: min_tokens exceeds max_tokens"
    for name in sorted({*section.get("targets", ())} - {*TARGETS}):
        yield f"configuration.value.replay: there is no target {name}"


def stage_seed(seed: str, subject: str) -> str:
    """The name from which a stage of one model draws; no other stage has the same texts."""
    return f"{seed}/{subject}/replay"


def sample_seed(index: int, seed: str) -> str:
    """The name from which a sample's text and question are drawn."""
    return f"{seed}/sample/{index}"


def span_length(index: int, section: Mapping[str, Any], seed: str) -> int:
    """Tokens of a sample's span: one in each stratum of a log-uniform draw."""
    return length(index, section["samples"], section["min_tokens"], section["max_tokens"], seed)


def keeps_raw(index: int, subject: str, section: Mapping[str, Any]) -> bool:
    """Whether a sample's raw logits are kept: of the middle one of each model that is listed."""
    return subject in section["raw_models"] and index == section["samples"] // 2


def crosses(target: str) -> bool:
    """Whether a target runs under another profile than the blocks were made under."""
    return target != SAME_BUILD


def builds(section: Mapping[str, Any]) -> dict[str, str]:
    """{target: name of the engine's build} of the targets that need another one."""
    return {target: section[target] for target in section["targets"] if target in BUILT}


def registered_verdict(run: str, registration: object | None) -> str:
    """The file that `snakemake replay` makes: the verdict of a registered run.

    Raises:
        UnusableInput: no registration is named; nothing is replayed that was not filed.
    """
    if registration is None:
        raise UnusableInput(
            "replay runs what is registered, and no registration is named",
            hint="snakemake replay --cores all --config registration=NUMBER",
        )
    return f"{run}/verdict.json"
