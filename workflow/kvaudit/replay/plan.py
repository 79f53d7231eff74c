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
    "portable-generic": frozenset(),
    "portable-aarch64": frozenset(),
}
"""Target -> the parts of the profile in which it may differ from the configured one."""

PORTABLE = ("portable-generic", "portable-aarch64")
"""Targets of a run under the portable profile: other builds of one arithmetic, for any x86-64
processor and for aarch64. Their profile is the configured one; `HOST_DIFFERS` tells them apart."""

HOST_DIFFERS: Mapping[str, str] = {
    "portable-generic": "libraries",
    "portable-aarch64": "architecture",
}
"""Portable target -> the fact of its host that is another than the origin's."""

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
    return target != SAME_BUILD and target not in PORTABLE


def builds(section: Mapping[str, Any]) -> dict[str, str]:
    """{target: name of the engine's build} of the targets that need another one."""
    return {
        target: target if target in PORTABLE else section[target]
        for target in section["targets"]
        if target in (*BUILT, *PORTABLE)
    }


def emulated(section: Mapping[str, Any]) -> bool:
    """Whether a target needs a Python for another architecture."""
    return "portable-aarch64" in section["targets"]


def preset_problems(section: Mapping[str, Any], portable: bool) -> Iterator[str]:
    """Targets that do not go with the configured profile: portable ones with no other."""
    for name in section["targets"]:
        if (name in PORTABLE) != portable and name != SAME_BUILD:
            yield f"target {name} is none of a run under {'the portable' if portable else 'this'}"


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
