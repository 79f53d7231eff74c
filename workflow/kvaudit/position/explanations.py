"""The records of the seven tests, of the key errors and of the angle identity: their checks (P3).

Every condition is planned again, on its samples, against its reference and under its profile.
What the tests amount to is `hypotheses`; this module must not know which results would be good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from kvaudit import profiles, rotation
from kvaudit.position import plan
from kvaudit.position.part import Setting
from kvaudit.position.relocation import RELOCATION, SAMPLES, pair_problems
from kvaudit.stagekind import Problem, Rows

EXPLANATIONS = "records/explanations.jsonl"
KEYS = "records/keys.jsonl"
ROTATION = "records/rotation.jsonl"
PROFILES = "records/profiles.jsonl"

REFUSAL = "GraftRefused"

Row = Mapping[str, Any]


def check(setting: Setting, rows: Rows) -> Iterator[Problem]:
    """What is wrong with the records of the tests."""
    yield from _derived(setting, rows)
    yield from _rotation(setting, rows)
    samples = rows[SAMPLES]
    if not samples:
        yield Problem(SAMPLES, "holds no sample")
        return
    trained = samples[0]["trained_context"]
    yield from (Problem(KEYS, text) for text in _keys(setting, rows, trained))
    yield from _conditions(setting, rows, trained)


# -- profiles ---------------------------------------------------------------------------------


def variant_digests(rows: Rows, registered: Mapping[str, Any], window: int) -> dict[str, str]:
    """{variant: digest of the derived profile that has its changes and no others}."""
    found: dict[str, str] = {}
    for row in rows[PROFILES]:
        settings = row["profile"].get("settings")
        if not isinstance(settings, dict):
            continue
        for variant in plan.variants(window):
            if _is_variant(variant, settings, registered, window):
                found[variant] = row["digest"]
    return found


def _is_variant(variant: str, settings: Row, registered: Row, window: int) -> bool:
    base = settings.get("rope_freq_base")
    # The model's own base stands in no manifest: a wrong one is any that is asked for.
    wanted = plan.changes(variant, registered, 1.0, window)
    if variant == "wrong_base":
        wanted = {"rope_freq_base": base if base not in (0, 0.0, None) else "none"}
    expected = {**registered, **wanted}
    return all(settings.get(key) == expected.get(key) for key in {*settings, *expected})


def _derived(setting: Setting, rows: Rows) -> Iterator[Problem]:
    found = profiles.derived_problems(rows[PROFILES], setting.inputs, setting.subject, plan.ALLOWED)
    yield from (Problem(PROFILES, text) for text in found)
    window = setting.force.window
    known = variant_digests(rows, setting.registered, window)
    for name in sorted({*plan.variants(window)} - {*known}):
        yield Problem(PROFILES, f"no profile is listed that is the registered one but for {name}")


# -- conditions -------------------------------------------------------------------------------


def _conditions(setting: Setting, rows: Rows, trained: int) -> Iterator[Problem]:
    section, window = setting.section, setting.force.window
    planned = [
        (condition, sample)
        for condition in plan.conditions(window)
        for sample in range(condition.samples(section))
    ]
    wanted = [(c.hypothesis, c.name, sample) for c, sample in planned]
    found = [(r["hypothesis"], r["condition"], r["sample"]) for r in rows[EXPLANATIONS]]
    if found != wanted:
        yield Problem(EXPLANATIONS, "does not hold the planned conditions on their samples")
        return
    digests = {
        plan.REGISTERED: setting.force.digest,
        **variant_digests(rows, setting.registered, window),
    }
    references = _references(setting, rows)
    by_key = dict(zip(found, rows[EXPLANATIONS], strict=True))
    for (condition, sample), row in zip(planned, rows[EXPLANATIONS], strict=True):
        where = f"{condition.hypothesis} {condition.name}, sample {sample}"
        reference = references.get((condition.reference, sample))
        if condition.reference not in ("", plan.OWN, plan.NEAR):
            reference = _logits(by_key[condition.hypothesis, condition.reference, sample])
        own = digests.get(condition.variant)
        expected = {"profile": own, "offset": condition.offset(section, trained)}
        for text in _row(setting, condition, row, expected):
            yield Problem(EXPLANATIONS, f"{where}: {text}")
        compared = row["reference"] if condition.reference else None
        if compared is not None and reference not in (None, compared["logits_sha256"]):
            yield Problem(EXPLANATIONS, f"{where}: its reference is not the planned one")


def _logits(row: Row) -> str | None:
    return None if row["logits"] is None else str(row["logits"]["logits_sha256"])


def _references(setting: Setting, rows: Rows) -> dict[tuple[str, int], str]:
    """{(own or near, sample): digest of its logits}."""
    found = {(plan.OWN, row["sample"]): row["fresh"]["logits_sha256"] for row in rows[SAMPLES]}
    for row in rows[RELOCATION]:
        if row["offset"] == setting.section["probe_offset"]:
            found[plan.NEAR, row["sample"]] = row["fresh"]["logits_sha256"]
    return found


def _row(setting: Setting, condition: plan.Condition, row: Row, expected: Row) -> Iterator[str]:
    if row["model"] != setting.subject:
        yield f"model is {row['model']}, the stage's subject {setting.subject}"
    for field, value in expected.items():
        if row[field] != value:
            yield f"{field} is not the planned one"
    window = setting.force.window
    planned = window + plan.PAST_WINDOW
    if not condition.past_window:
        planned = plan.span_tokens(setting.section, setting.seed, row["sample"])
    if row["span_tokens"] != planned:
        yield "its span has another length than planned"
    measured = [row[field] is not None for field in ("logits", "kl", "reference")]
    if row["refused"] is not None:
        if any(measured):
            yield "was refused and measured"
        if not condition.refused:
            yield "was refused where it must be measured"
        return
    if not all(measured):
        yield "was neither refused nor measured"
        return
    if row["logits"]["exact"] != condition.exact:
        yield f"exact is {str(row['logits']['exact']).lower()}"
    yield from pair_problems(row["reference"], row["logits"], row["kl"])


# -- keys and angles --------------------------------------------------------------------------


def _keys(setting: Setting, rows: Rows, trained: int) -> Iterator[str]:
    section, window = setting.section, setting.force.window
    wanted = sorted(
        (cache, sample, offset, arm, part)
        for cache in (plan.REGISTERED, "f32_keys")
        for sample in range(section["key_samples"])
        if cache == plan.REGISTERED or sample < section["explanation_samples"]
        for offset in plan.key_offsets(section, trained, cache)
        for arm, part in plan.key_arms(window)
    )
    found = sorted(
        (row["cache"], row["sample"], row["offset"], row["arm"], row["section"])
        for row in rows[KEYS]
    )
    if found != wanted:
        yield "does not hold the planned comparisons, each once"
    for number, row in enumerate(rows[KEYS], start=1):
        if row["model"] != setting.subject:
            yield f"line {number}: model is {row['model']}"
        if row["rms_error"] > row["max_error"]:
            yield f"line {number}: rms_error exceeds max_error"
        if row["arm"] == "fresh" and row["layers"] != 1:
            yield f"line {number}: fresh keys of more than layer 0 are compared"


def _rotation(setting: Setting, rows: Rows) -> Iterator[Problem]:
    if len(rows[ROTATION]) != 1:
        yield Problem(ROTATION, "does not hold one line")
        return
    row, count = rows[ROTATION][0], rotation.demonstration()
    if row["model"] != setting.subject:
        yield Problem(ROTATION, f"model is {row['model']}, the stage's subject {setting.subject}")
    expected = {
        "points": rotation.POINTS,
        "step": rotation.STEP,
        "pairs": count.pairs,
        "unequal": count.unequal,
    }
    for field, value in expected.items():
        if row[field] != value:
            yield Problem(ROTATION, f"{field} recorded {row[field]}, recomputed {value}")
    if not math.isclose(row["max_error"], count.max_error, rel_tol=1e-12):
        yield Problem(ROTATION, "max_error is not the recomputed one")
