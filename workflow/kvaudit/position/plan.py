"""What the stage position measures: offsets, samples, and the conditions of the seven tests.

The stage plans by these functions and the verifier plans again by them, so that no record can be
left out, put in twice or relabelled. This module must not know an engine or any result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SECTION = (
    *("samples", "raw_samples", "min_tokens", "max_tokens", "query_tokens", "offsets"),
    *("probe_offset", "explanation_samples", "few_samples", "key_samples"),
)
"""Keys of the configuration's section that this stage reads."""

FAR_ROOM = 256
"""Tokens between the far offset and the end of the trained context."""
PAST_WINDOW = 88
"""Tokens by which a span passes the window."""
WRONG_BASE = 2.0
"""Factor of the wrong RoPE base."""
TOP = 8
"""Most likely tokens that a record lists."""

REGISTERED = "registered"
VARIANTS = ("f32_keys", "small_window", "wrong_base", "other_threads", "flash_attention")
"""Profiles derived from the registered one, each for one condition."""
SMALL_BATCH = 256
"""Batch of the small window cache. The engine gives that cache the window of each of its four
sequences and one batch (llama.cpp `llama_kv_cache_iswa`), and no more than the context: only with
a longer context and a shorter batch is it smaller than a full one. Cells are used again beyond its
size only; up to there it drops rows from states and cannot be re-rotated."""
ALLOWED = (
    *("type_k", "swa_full", "n_ctx", "n_batch"),
    *("rope_freq_base", "n_threads", "flash_attention"),
)
"""The settings in which a derived profile may differ."""

OWN, NEAR = "own", "near"


@dataclass(frozen=True)
class Condition:
    """One arm of one test, measured on several samples.

    Attributes:
        hypothesis: the explanation that is tested.
        name: of the condition, unique in its hypothesis.
        place: "own", "near" or "far": which offset.
        reference: what the KL is taken from: "own" and "near" are the fresh arms of the relocation
            curve at offset 0 and at the probe offset; another name is the logits of that condition
            of the same hypothesis; "" is a reference of this condition alone.
        variant: the profile that the compared logits were computed under.
        exact: False where keys were re-rotated, or rows lie in other cells than their own.
        refused: the session must refuse it.
        past_window: the span passes the model's sliding window.
        few: measured on few samples, because they are long or the machine is busy.
    """

    hypothesis: str
    name: str
    place: str
    reference: str = ""
    variant: str = REGISTERED
    exact: bool = False
    refused: bool = False
    past_window: bool = False
    few: bool = False

    def offset(self, section: Mapping[str, Any], trained_context: int) -> int:
        """Positions between the span's own position and the one it is measured at."""
        places = {OWN: 0, NEAR: section["probe_offset"], "far": far_offset(trained_context)}
        return int(places[self.place])

    def samples(self, section: Mapping[str, Any]) -> int:
        """How many samples it is measured on."""
        few = self.past_window or self.few
        return int(section["few_samples" if few else "explanation_samples"])


_C = Condition
_HALF, _WINDOW, _DOUBLE = "half_precision", "window_buffering", "double_rotation"
_FREQUENCY, _ANGLE, _ORDER = "frequency_mismatch", "large_angle", "reassociation"
HYPOTHESES = (_HALF, _WINDOW, "size_of_offset", _DOUBLE, _FREQUENCY, _ANGLE, _ORDER)

_ALWAYS = (
    _C(_HALF, "control", "near", variant="f32_keys", exact=True),
    _C(_HALF, "relocated", "near", "control", "f32_keys"),
    _C(_DOUBLE, "by_zero", "own", OWN),
    _C(_DOUBLE, "there_and_back", "own", OWN),
    _C(_DOUBLE, "four_steps", "near", NEAR),
    _C(_FREQUENCY, "wrong_base", "near", NEAR),
    _C(_FREQUENCY, "outside_wrong_base", "near", NEAR),
    _C(_ANGLE, "outside", "near", NEAR),
    _C(_ANGLE, "far_control", "far", OWN, exact=True),
    _C(_ANGLE, "far_relocated", "far", "far_control"),
    _C(_ANGLE, "far_outside", "far", "far_control"),
    _C(_ORDER, "other_cells", "own", OWN),
    _C(_ORDER, "other_threads", "own", OWN, "other_threads", exact=True, few=True),
    _C(_ORDER, "flash_attention", "own", OWN, "flash_attention", exact=True),
)
_SMALL = "small_window"
_WITH_WINDOW = (
    _C(_WINDOW, "small_against_full", "own", OWN, _SMALL, exact=True),
    _C(_WINDOW, "small_control", "near", "small_against_full", _SMALL, exact=True),
    _C(_WINDOW, "small_relocation", "near", variant=_SMALL, refused=True),
    _C(_WINDOW, "past_control", "near", exact=True, past_window=True),
    _C(_WINDOW, "past_relocated", "near", "past_control", past_window=True),
    _C(_WINDOW, "past_small_control", "near", variant=_SMALL, exact=True, past_window=True),
    _C(_WINDOW, "past_small_relocation", "near", variant=_SMALL, refused=True, past_window=True),
)


def conditions(window: int) -> tuple[Condition, ...]:
    """The conditions of a model whose sliding window is `window` tokens long, 0 without one."""
    return _ALWAYS + (_WITH_WINDOW if window else ())


def variants(window: int) -> tuple[str, ...]:
    """The derived profiles that such a model needs."""
    return tuple(name for name in VARIANTS if window or name != _SMALL)


def changes(variant: str, settings: Mapping[str, Any], base: float, window: int) -> dict[str, Any]:
    """What a variant changes in the registered settings.

    Args:
        variant: one of `VARIANTS`, or `REGISTERED`.
        settings: the registered ones.
        base: the model's RoPE base.
        window: its sliding window, 0 without one.
    """
    threads = 2 if settings.get("n_threads") == 1 else 1
    longer = max(settings.get("n_ctx", 0), 8 * window + 2 * SMALL_BATCH)
    by_variant: dict[str, dict[str, Any]] = {
        REGISTERED: {},
        "f32_keys": {"type_k": "f32"},
        _SMALL: {"swa_full": False, "n_ctx": longer, "n_batch": SMALL_BATCH},
        "wrong_base": {"rope_freq_base": base * WRONG_BASE},
        "other_threads": {"n_threads": threads},
        "flash_attention": {"flash_attention": True},
    }
    return by_variant[variant]


def far_offset(trained_context: int) -> int:
    """A multiple of 8 near the end of the trained context."""
    return max(8, (trained_context - FAR_ROOM) // 8 * 8)


def sample_name(seed: str, index: int) -> str:
    """The seed of one sample."""
    return f"{seed}/position/{index}"


def span_tokens(section: Mapping[str, Any], seed: str, index: int) -> int:
    """Length of a sample's span, drawn uniformly."""
    low, high = section["min_tokens"], section["max_tokens"]
    return int(low + drawn(f"{sample_name(seed, index)}/length", high - low + 1))


def drawn(name: str, bound: int) -> int:
    """A number from 0 to `bound - 1` that follows from the name alone."""
    found = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(found[:8], "big") % bound


def key_offsets(section: Mapping[str, Any], trained_context: int, cache: str) -> tuple[int, ...]:
    """Offsets at which keys are compared with the exact rotation, in a cache of a variant."""
    far = far_offset(trained_context)
    near = (
        section["offsets"]
        if cache == REGISTERED
        else (min(section["offsets"]), section["probe_offset"])
    )
    return tuple(sorted({*near, far}))


def key_arms(window: int) -> tuple[tuple[str, int], ...]:
    """(arm, cache section) pairs of the comparison: fresh keys of layer 0, all relocated ones."""
    own = 1 if window else 0
    return (("fresh", own), *(("relocated", section) for section in range(own + 1)))


def section_problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a configuration's section `position`, its schema apart."""
    where = "configuration.value.position"
    absent = sorted({*SECTION} - {*section})
    yield from (f"{where} has no {key}" for key in absent)
    if absent:
        return
    if section["min_tokens"] > section["max_tokens"]:
        yield f"{where}: min_tokens exceeds max_tokens"
    if section["probe_offset"] not in section["offsets"]:
        yield f"{where}: probe_offset is not among the offsets"
    if len(section["offsets"]) < 3 or sorted({*section["offsets"]}) != section["offsets"]:
        yield f"{where}: offsets are not three or more, ascending"
    if any(offset % 8 for offset in section["offsets"]):
        yield f"{where}: an offset is not a multiple of 8"
    for key in ("raw_samples", "explanation_samples", "few_samples", "key_samples"):
        if section[key] > section["samples"]:
            yield f"{where}: {key} exceeds samples"
    if section["key_samples"] > section["explanation_samples"]:
        yield f"{where}: key_samples exceeds explanation_samples"
