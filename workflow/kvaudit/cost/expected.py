"""Which records the stage cost must hold, and what in them contradicts itself or the inputs.

Everything planned is drawn again from the configuration. This module must not know which results
would be good ones, and it never reads files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvaudit import profiles
from kvaudit.cost import plan
from kvaudit.cost.records import (
    ALTERNATIVES,
    CONDITIONS,
    MEMORY,
    PROFILES,
    TIMINGS,
    Records,
    Row,
)
from kvaudit.profiles import InForce
from kvaudit.stagekind import Problem

MAX_STEPS = 100_000
"""Planned timings beyond it are not drawn again."""

_NUMBERS = {
    *("repeats", "rounds", "short_tokens", "short_repeats", "long_tokens", "long_prefills"),
    *("one_shot_tokens", "alternative_repeats"),
}
_LISTS = {"lengths", "alternative_lengths", "memory_contexts"}
_MOST = 2**24


def section_problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a configuration's section `cost`, its schema apart."""
    where = "configuration.value.cost"
    for key in sorted(_NUMBERS | _LISTS):
        if key not in section:
            yield f"{where} has no {key}"
        elif not _is_sound(section[key], key in _LISTS):
            yield f"{where}: {key} is not what its schema allows"
            return
    for key in ("lengths", "alternative_lengths", "memory_contexts"):
        values = section.get(key, [])
        if sorted(set(values)) != list(values):
            yield f"{where}: {key} do not ascend"
    if {*section.get("alternative_lengths", [])} - {*section.get("lengths", [])}:
        yield f"{where}: alternative_lengths are not among lengths"
    most = max(section.get("repeats", 0), section.get("short_repeats", 0))
    if len(section.get("lengths", [])) * most * len(plan.ARMS) > MAX_STEPS:
        yield f"{where} plans too many timings to check"


def _is_sound(value: Any, is_list: bool) -> bool:
    """Whether a value can be planned with, whatever a damaged configuration holds."""
    if is_list:
        return isinstance(value, list) and all(_is_sound(one, False) for one in value)
    return type(value) is int and 0 <= value <= _MOST


def check(subject: str, records: Records, inputs: Mapping[str, Any]) -> list[Problem]:
    """Everything that a stage of this configuration and profile must hold and does not.

    Where configuration or profile are unusable themselves, nothing is found here: `chain` has
    reported them.
    """
    force = profiles.in_force(inputs, subject)
    section = inputs["configuration"]["value"].get("cost")
    if force is None or not isinstance(section, dict) or any(section_problems(section)):
        return []
    return _Check(subject, records, inputs, section, force).run()


class _Check:
    def __init__(
        self,
        subject: str,
        records: Records,
        inputs: Mapping[str, Any],
        section: Mapping[str, Any],
        force: InForce,
    ) -> None:
        self._subject, self._records, self._inputs = subject, records, inputs
        self._section, self._force = section, force
        self._configured = inputs["profiles"][subject][force.name]["profile"]["settings"]
        self._settings = {row["digest"]: row["profile"].get("settings") for row in records.profiles}

    def run(self) -> list[Problem]:
        records = self._records
        found = [Problem(CONDITIONS, text) for text in self._conditions()]
        derived = profiles.derived_problems(
            records.profiles, self._inputs, self._subject, plan.DERIVED
        )
        found += [Problem(PROFILES, text) for text in derived]
        for file, rows in (
            (TIMINGS, records.timings),
            (ALTERNATIVES, records.alternatives),
            (MEMORY, records.memory),
            (CONDITIONS, records.conditions),
        ):
            for number, row in enumerate(rows, start=1):
                if row["model"] != self._subject:
                    found.append(Problem(file, f"line {number}: model is not the stage's subject"))
        if found:
            return found  # cores and trained context, from which the plan follows, are not known
        self._cores = records.conditions[0]["cores"]
        self._trained = records.conditions[0]["n_ctx_train"]
        found += [Problem(TIMINGS, text) for text in self._timings()]
        found += [Problem(ALTERNATIVES, text) for text in self._alternatives()]
        found += [Problem(MEMORY, text) for text in self._memory()]
        return found + [Problem(PROFILES, text) for text in self._unused()]

    def _conditions(self) -> Iterator[str]:
        rows = self._records.conditions
        planned = plan.conditions(self._section, rows[0]["n_ctx_train"] if rows else 0)
        yield from _sequence([(row["part"], row["repeat"]) for row in rows], planned)
        for key in ("cores", "n_ctx_train", "text_sha256"):
            if len({row[key] for row in rows}) > 1:
                yield f"{key} is not the same in every line"

    def _profile(self, row: Row, changes: Mapping[str, Any]) -> Iterator[str]:
        """Whether a row's profile is the configured one with exactly these changes."""
        settings = self._settings.get(row["profile"])
        if settings is None:
            yield "its profile is not in records/profiles.jsonl"
        elif {**settings, "name": None} != {**self._configured, "name": None, **changes}:
            yield "its profile has other settings than planned"

    # -- timings ------------------------------------------------------------------------------

    def _timings(self) -> Iterator[str]:
        rows = self._records.timings
        planned = list(plan.timings(self._section, self._trained))
        yield from _sequence([(r["repeat"], r["tokens"], r["arm"]) for r in rows], planned)
        changes = plan.timing_settings(self._section, self._trained, self._cores)
        for number, row in enumerate(rows, start=1):
            for text in itertools.chain(self._profile(row, changes), self._timing(row)):
                yield f"line {number}: {text}"
        yield from self._blocks(rows)

    def _timing(self, row: Row) -> Iterator[str]:
        arm, n_rounds = row["arm"], plan.rounds(self._section, row["arm"])
        if {*row["seconds"]} != {*plan.PARTS[arm]}:
            yield f"{arm} has other parts than {', '.join(plan.PARTS[arm])}"
        elif any(len(values) != n_rounds for values in row["seconds"].values()):
            yield f"it has not {n_rounds} rounds"
        decoded = (row["tokens"] if "prefill" in plan.PARTS[arm] else 0) + (arm in plan.DECODING)
        restored = row["state_bytes"] if "restore" in plan.PARTS[arm] else 0
        for key, wanted in (("decoded_tokens", decoded), ("restored_bytes", restored)):
            if row[key] != wanted:
                yield f"{key} is {row[key]}, it must be {wanted}"
        if (arm in plan.DECODING) != bool(row["logits_sha256"]):
            yield "it has logits if and only if a token is read"
        if len(row["resident"]) != (n_rounds if arm in plan.READING else 0):
            yield "resident is not given once a round that reads a file"
        if row["file_bytes"] <= row["state_bytes"]:
            yield "its block file is not longer than the state in it"

    def _blocks(self, rows: Sequence[Row]) -> Iterator[str]:
        """One block a capture, which later rows of its length restore; one size a length."""
        current: dict[int, str] = {}
        seen: set[str] = set()
        sizes: dict[int, tuple[int, int]] = {}
        for number, row in enumerate(rows, start=1):
            n_tokens, block = row["tokens"], row["block_id"]
            if row["arm"] == "prefill":
                if block in seen:
                    yield f"line {number}: its block was there before"
                current[n_tokens] = block
                seen.add(block)
            elif current.get(n_tokens) != block:
                yield f"line {number}: its block is not the last one captured at this length"
            sizes.setdefault(n_tokens, (row["state_bytes"], row["file_bytes"]))
            if sizes[n_tokens][0] != row["state_bytes"]:
                yield f"line {number}: state_bytes is not that of other lines of this length"
        ordered = [sizes[n][0] for n in sorted(sizes)]
        if ordered != sorted(ordered):
            yield "a longer span has a smaller state"

    # -- alternatives and memory --------------------------------------------------------------

    def _alternatives(self) -> Iterator[str]:
        rows = self._records.alternatives
        planned = plan.alternatives(self._section, self._trained, self._force.window)
        yield from _sequence([(row["arm"], row["tokens"]) for row in rows], planned)
        fresh = {row["tokens"]: row["logits_sha256"] for row in rows if row["arm"] == plan.RESTART}
        for number, row in enumerate(rows, start=1):
            check = self._file if row["arm"] in plan.FILES else self._native
            for text in check(row):
                yield f"line {number}: {text}"
            if row["arm"] not in plan.FILES and row["fresh_sha256"] != fresh.get(row["tokens"]):
                yield f"line {number}: its fresh logits are not those of {plan.RESTART}"

    def _native(self, row: Row) -> Iterator[str]:
        small = row["arm"] == plan.SMALL_WINDOW
        window = self._force.window if small else 0
        yield from self._profile(
            row,
            plan.alternative_settings(
                self._section, self._trained, self._force.window, self._cores, not small
            ),
        )
        if not row["measured"] or row["reason"] is not None:
            yield "an arm of the engine itself is always measured"
        if row["disk_bytes"] is not None or row["differences"] is not None:
            yield "an arm without a file names one"
        if None in (
            row["held_first"],
            row["held_last"],
            row["reused_tokens"],
            row["decoded_tokens"],
        ):
            yield "what was held, reused and decoded is not said"
            return
        reused = row["tokens"] * plan.reusable(
            row["tokens"], row["held_first"], row["held_last"], window
        )
        if row["reused_tokens"] != reused:
            yield f"reused_tokens is {row['reused_tokens']}, what was held allows {reused}"
        if row["decoded_tokens"] != row["tokens"] + 1 - row["reused_tokens"]:
            yield "decoded_tokens is not what was not reused, and one more"
        if len(row["seconds"].get("request", ())) != self._section["alternative_repeats"]:
            yield "it has not the planned number of repeats"

    def _file(self, row: Row) -> Iterator[str]:
        given = ("disk_bytes", "differences", "notices_damage")
        absent = ("held_first", "held_last", "reused_tokens", "decoded_tokens", "profile")
        if any(row[key] is not None for key in (*absent, "logits_sha256", "fresh_sha256")):
            yield "it says what only an arm of the engine itself knows"
        if row["measured"] != (row["reason"] is None):
            yield "what was not measured has a reason, and nothing else has"
        if any((row[key] is not None) != row["measured"] for key in given):
            yield "it has figures if and only if it was measured"
        if row["arm"] != plan.SERVER and not row["measured"]:
            yield "only a server may be absent"
        n_repeats = self._section["alternative_repeats"] if row["measured"] else 0
        if any(len(row["seconds"].get(key, ())) != n_repeats for key in ("cold", "request")):
            yield "it has not the planned number of repeats"

    def _memory(self) -> Iterator[str]:
        rows = self._records.memory
        planned = plan.memory(self._section)
        yield from _sequence([(row["n_ctx"], row["swa_full"]) for row in rows], planned)
        for number, row in enumerate(rows, start=1):
            if (row["cache_mib"] is None) != (row["reason"] is not None):
                yield f"line {number}: it has a size or a reason why there is none"
            elif row["cache_mib"] is not None:
                changes = plan.memory_settings(row["n_ctx"], self._cores, row["swa_full"])
                for text in self._profile(row, changes):
                    yield f"line {number}: {text}"
            elif row["profile"] is not None:
                yield f"line {number}: a context that was not opened has no profile"

    def _unused(self) -> Iterator[str]:
        records = self._records
        rows = (*records.timings, *records.alternatives, *records.memory)
        used = {row["profile"] for row in rows}
        for number, row in enumerate(records.profiles, start=1):
            if row["digest"] not in used:
                yield f"line {number}: no record was made under this profile"


def _sequence(found: Sequence[Any], planned: Sequence[Any]) -> Iterator[str]:
    """What was measured must be what was planned, in its order."""
    if list(found) == list(planned):
        return
    absent, added = {*planned} - {*found}, {*found} - {*planned}
    for word, entries in (("is absent", absent), ("is not planned", added)):
        for entry in sorted(entries)[:5]:
            yield f"{', '.join(str(part) for part in entry)} {word}"
    if not absent and not added:
        yield "the lines are not in the planned order, each once"
