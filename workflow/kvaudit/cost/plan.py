"""What the stage cost measures, in which order and under which settings: from the configuration.

The stage runs through these lists, the verifier holds its records against them, so that nothing can
be left out, put in twice or relabelled. This module must not know which results would be good ones,
and it never reads files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROOM = 64
"""Tokens of context kept free behind the longest span: one token is read there, and filled up."""
PADDING = 256
"""The engine pads contexts to a multiple of it."""

COMPUTED = ("prefill", "capture_put", "new_prefix", "one_shot")
"""Arms that need a span computed anew; they come first in a repeat. `new_prefix` is the first graft
of a block after it was stored, `one_shot` reads span and token in one call.
"""
RESTORED = ("graft", "graft_cold", "restore", "copy", "sha256")
"""Arms on a stored block; cheap, so each is measured in several rounds, which take turns."""
ARMS = (*COMPUTED, *RESTORED)
GRAFTS = ("new_prefix", "graft", "graft_cold")
"""Arms that verify and restore a block and read one token behind it."""
READING = (*GRAFTS, "restore", "copy", "sha256")
"""Arms that read a block's file."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "prefill": ("reset", "prefill", "token"),
    "capture_put": ("capture", "put"),
    "new_prefix": ("reset", "read", "restore", "token"),
    "one_shot": ("reset", "prefill"),
    "graft": ("reset", "read", "restore", "token"),
    "graft_cold": ("reset", "read", "restore", "token"),
    "restore": ("reset", "restore"),
    "copy": ("copy",),
    "sha256": ("sha256",),
}
"""Arm -> what is timed apart. `read` opens, maps and verifies a block."""
DECODING = ("prefill", "one_shot", *GRAFTS)
"""Arms that end with the logits of one token."""

LIVE, RESTART, ELSEWHERE = "live_prefix", "after_restart", "wrong_sequence"
NATIVE = (LIVE, RESTART, ELSEWHERE)
SMALL_WINDOW = "small_window"
"""Only of a model with a sliding window."""
SAVE_STATE, DISK_CACHE, SERVER = "save_state", "disk_cache", "server_slots"
FILES = (SAVE_STATE, DISK_CACHE, SERVER)
ALTERNATIVE_BATCH, MEMORY_BATCH = 256, 512
"""Batch sizes; the small window cache grows with them."""
CONTINUED = 32
"""Tokens read behind a prefix before it is asked for again in the live context."""
SEQUENCES = 4
"""Sequences a context is opened for; the small window cache holds a window for each."""

DERIVED = ("n_ctx", "n_threads", "n_batch", "swa_full")
"""Settings in which a derived profile may differ from the configured one."""

Step = tuple[int, int, str]
"""(repeat, tokens of the span, arm)."""


def fitting(lengths: Sequence[int], n_ctx_train: int) -> tuple[int, ...]:
    """The lengths that leave `ROOM` in the context that the model was trained for."""
    return tuple(n for n in lengths if n + ROOM <= n_ctx_train)


def repeats(section: Mapping[str, Any], n_tokens: int, arm: str) -> int:
    """How often an arm is measured at one length: short spans more often, long prefills less; in
    one call only where that could decide the crossover.
    """
    if arm == "one_shot" and n_tokens > section["one_shot_tokens"]:
        return 0
    if n_tokens <= section["short_tokens"]:
        return int(section["short_repeats"])
    if arm in COMPUTED and n_tokens >= section["long_tokens"]:
        return int(min(section["long_prefills"], section["repeats"]))
    return int(section["repeats"])


def rounds(section: Mapping[str, Any], arm: str) -> int:
    """How often an arm is measured within one repeat."""
    return int(section["rounds"]) if arm in RESTORED else 1


def order(repeat: int) -> tuple[str, ...]:
    """The arms of one repeat; those on a stored block take turns in going first."""
    turn = repeat % len(RESTORED)
    return (*COMPUTED, *RESTORED[turn:], *RESTORED[:turn])


def timings(section: Mapping[str, Any], n_ctx_train: int) -> Iterator[Step]:
    """The steps in their order: within a repeat all lengths, at each length all arms, so that a
    machine that slows down slows all of them alike.
    """
    for repeat in range(n_repeats(section, n_ctx_train)):
        for n_tokens in fitting(section["lengths"], n_ctx_train):
            for arm in order(repeat):
                if repeat < repeats(section, n_tokens, arm):
                    yield repeat, n_tokens, arm


def n_repeats(section: Mapping[str, Any], n_ctx_train: int) -> int:
    """The most repeats that any length has."""
    lengths = fitting(section["lengths"], n_ctx_train)
    return max((repeats(section, n, "graft") for n in lengths), default=0)


def conditions(section: Mapping[str, Any], n_ctx_train: int) -> list[tuple[str, int]]:
    """(part of the stage, repeat): load is noted before and after each of them."""
    repeated = [("timings", repeat) for repeat in range(n_repeats(section, n_ctx_train))]
    return [*repeated, ("alternatives", 0), ("memory", 0)]


def alternatives(
    section: Mapping[str, Any], n_ctx_train: int, window: int
) -> list[tuple[str, int]]:
    """(arm, tokens) of the native alternatives; a window of 0 leaves out the small one."""
    arms = (*NATIVE, *((SMALL_WINDOW,) if window else ()), *FILES)
    lengths = fitting(section["alternative_lengths"], n_ctx_train)
    return [(arm, n_tokens) for arm in arms for n_tokens in lengths]


def memory(section: Mapping[str, Any]) -> list[tuple[int, bool]]:
    """(n_ctx, swa_full) of the contexts that are opened for their size."""
    return [(n, full) for n in section["memory_contexts"] for full in (True, False)]


def text_tokens(section: Mapping[str, Any], n_ctx_train: int, window: int) -> int:
    """Tokens of the one text whose first tokens are every span."""
    longest = max(fitting(section["lengths"], n_ctx_train), default=0)
    return max(longest + ROOM, alternative_context(section, n_ctx_train, window))


def alternative_context(section: Mapping[str, Any], n_ctx_train: int, window: int) -> int:
    """n_ctx of the native alternatives: two sequences of the longest span, or a text that moves
    the window past it.
    """
    longest = max(fitting(section["alternative_lengths"], n_ctx_train), default=0)
    cache = padded(SEQUENCES * window + ALTERNATIVE_BATCH)
    return padded(cache + 2 * longest + 2 * ALTERNATIVE_BATCH + ROOM)


def padded(n_tokens: int) -> int:
    """The next multiple of the engine's padding."""
    return -(-n_tokens // PADDING) * PADDING


def timing_settings(section: Mapping[str, Any], n_ctx_train: int, cores: int) -> dict[str, Any]:
    """What the timings change in the configured profile."""
    longest = max(fitting(section["lengths"], n_ctx_train), default=0)
    return {"n_ctx": padded(longest + ROOM), "n_threads": cores}


def alternative_settings(
    section: Mapping[str, Any], n_ctx_train: int, window: int, cores: int, swa_full: bool
) -> dict[str, Any]:
    """What a native alternative changes in the configured profile."""
    return {
        "n_ctx": alternative_context(section, n_ctx_train, window),
        "n_threads": cores,
        "n_batch": ALTERNATIVE_BATCH,
        "swa_full": swa_full,
    }


def memory_settings(n_ctx: int, cores: int, swa_full: bool) -> dict[str, Any]:
    """What a context that is opened for its size changes in the configured profile."""
    return {"n_ctx": n_ctx, "n_threads": cores, "n_batch": MEMORY_BATCH, "swa_full": swa_full}


def reusable(n_tokens: int, first: int, last: int, window: int) -> bool:
    """Whether a sequence that holds positions first … last can go on behind its first n tokens.

    The rule of llama.cpp's server: all rows up to there, or with a cache that keeps only a window
    those of the window before it.

    Args:
        n_tokens: of the prefix, at least 1.
        first: lowest position held, -1 if none.
        last: highest position held, -1 if none.
        window: tokens of the window where the cache keeps no more, 0 where it keeps all.
    """
    lowest = max(0, n_tokens - window) if window else 0
    return 0 <= first <= lowest and last >= n_tokens - 1
