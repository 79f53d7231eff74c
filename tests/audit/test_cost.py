"""The verifier on made-up records of the stage cost: what contradicts the plan is found, every
claim can fail, and what was not measured is not passed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic

from kvaudit import claims, digests, records, schemas
from kvaudit.cost import expected, plan, summary
from kvaudit.cost.kind import KIND
from kvaudit.cost.records import (
    ALTERNATIVES,
    CONDITIONS,
    MEMORY,
    PROFILES,
    TIMINGS,
    Records,
    page_cache,
)
from kvaudit.errors import UnusableInput

MODEL, WINDOW, CORES, TRAINED = "tiny", 64, 2, 8192
SECTION: dict[str, Any] = {
    "lengths": [8, 64, 256, 1024, 4096, 8192],  # the last leaves no room
    "repeats": 3,
    "rounds": 2,
    "short_tokens": 64,
    "short_repeats": 4,
    "long_tokens": 4096,
    "long_prefills": 2,
    "one_shot_tokens": 64,
    "alternative_lengths": [256, 1024],
    "alternative_repeats": 2,
    "memory_contexts": [2048, 65536],
}
BYTES = 1000
"""Of state, a token."""
Rows = dict[str, list[dict[str, Any]]]


def digest_of(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def profile(**changes: Any) -> dict[str, Any]:
    settings = {
        "name": "split-invariant",
        "tiled": False,
        "min_rows": 2,
        "n_gpu_layers": 0,
        "n_ctx": 2048,
        "n_batch": 2048,
        "n_threads": 1,
        "swa_full": True,
    }
    settings = {"flash_attention": False, **settings, **changes}
    return {
        "settings": settings,
        "engine": {"libraries": {"libllama.so": digest_of("library")}},
        "machine": {"architecture": "x86_64"},
        "context": synthetic.context_of(settings, WINDOW),
        "buffers": {"weights": ["CPU_Mapped"]},
        "environment": {"GGML_CPU_TILED_MM": "0"},
    }


def inputs(section: dict[str, Any] | None = None) -> dict[str, Any]:
    own, control = profile(), profile(name="stock", tiled=True)
    return {
        "models": [{"name": MODEL, "sha256": digest_of("model")}],
        "profiles": {
            MODEL: {
                one["settings"]["name"]: {"digest": digests.sha256_json(one), "profile": one}
                for one in (own, control)
            }
        },
        "configuration": {
            "value": {
                "profile": {"preset": "split-invariant"},
                "seed": "synthetic",
                "cost": section or SECTION,
            }
        },
    }


def seconds_of(arm: str, n_tokens: int, repeat: int, number: int) -> dict[str, float]:
    """Made-up times: 1 ms a token of prefill, 20 ns a byte and 4 ms of a graft, 2% of noise."""
    state, noise = n_tokens * BYTES, 1 + 0.01 * ((repeat + number) % 3)
    parts = {
        "reset": 0.01,
        "prefill": n_tokens * 1e-3,
        "token": 0.02,
        "capture": 0.002,
        "put": 0.004,
        "read": 0.002 + state * (4e-9 if arm == "graft_cold" else 1e-9),
        "restore": 0.002 + state * 1e-9,
        "copy": state * 1e-9,
        "sha256": 0.003 + state * 2e-9,
    }
    return {part: round(parts[part] * noise, 6) for part in plan.PARTS[arm]}


def _timings() -> list[dict[str, Any]]:
    changed = profile(**plan.timing_settings(SECTION, TRAINED, CORES))
    rows, block = [], {}
    for repeat, n_tokens, arm in plan.timings(SECTION, TRAINED):
        if arm == "prefill":
            block[n_tokens] = digest_of("block", n_tokens, repeat)
        n_rounds, parts = plan.rounds(SECTION, arm), plan.PARTS[arm]
        times = [seconds_of(arm, n_tokens, repeat, number) for number in range(n_rounds)]
        resident = 0.0 if arm == "graft_cold" else 1.0
        rows.append(
            {
                "kind": "cost-timing",
                "version": 1,
                "model": MODEL,
                "profile": digests.sha256_json(changed),
                "repeat": repeat,
                "tokens": n_tokens,
                "arm": arm,
                "seconds": {part: [one[part] for one in times] for part in parts},
                "decoded_tokens": n_tokens * ("prefill" in parts) + (arm in plan.DECODING),
                "restored_bytes": n_tokens * BYTES if "restore" in parts else 0,
                "state_bytes": n_tokens * BYTES,
                "file_bytes": n_tokens * BYTES + 4096,
                "block_id": block[n_tokens],
                "resident": [resident] * n_rounds if arm in plan.READING else [],
                "logits_sha256": [digest_of("logits", n_tokens)] if arm in plan.DECODING else [],
            }
        )
    return rows


def _alternatives() -> list[dict[str, Any]]:
    rows = []
    for arm, n_tokens in plan.alternatives(SECTION, TRAINED, WINDOW):
        row: dict[str, Any] = {
            "kind": "cost-alternative",
            "version": 1,
            "model": MODEL,
            "arm": arm,
            "tokens": n_tokens,
            "measured": True,
            "reason": None,
            **dict.fromkeys(("profile", "held_first", "held_last", "reused_tokens")),
            **dict.fromkeys(("decoded_tokens", "logits_sha256", "fresh_sha256", "differences")),
            **dict.fromkeys(("disk_bytes", "notices_damage")),
        }
        if arm in plan.FILES:
            times = {"cold": [n_tokens * 1e-3] * 2, "save": [0.1], "request": [0.5, 0.6]}
            differences = {"same_split": 0, "one_shot": 0.25}
            row |= {"seconds": times, "differences": differences}
            row |= {"disk_bytes": n_tokens * BYTES * 9, "notices_damage": False}
        else:
            held = {plan.LIVE: (0, n_tokens + 32), plan.SMALL_WINDOW: (n_tokens + 9, 5000)}
            first, last = held.get(arm, (-1, -1))
            reused = n_tokens if arm == plan.LIVE else 0
            full = arm != plan.SMALL_WINDOW
            changed = profile(**plan.alternative_settings(SECTION, TRAINED, WINDOW, CORES, full))
            logits = [digest_of("native", n_tokens)]
            row |= {
                "profile": digests.sha256_json(changed),
                "held_first": first,
                "held_last": last,
                "reused_tokens": reused,
                "decoded_tokens": n_tokens + 1 - reused,
                "seconds": {"request": [0.02 + (n_tokens - reused) * 1e-3] * 2},
                "logits_sha256": logits,
                "fresh_sha256": logits,
            }
        rows.append(row)
    return rows


def rows_of() -> Rows:
    """Records on which everything agrees and every claim holds."""
    conditions = [
        {
            "kind": "cost-conditions",
            "version": 1,
            "model": MODEL,
            "part": part,
            "repeat": repeat,
            "load_before": 0.25,
            "load_after": 1.5,
            "cores": CORES,
            "n_ctx_train": TRAINED,
            "text_sha256": digest_of("text"),
        }
        for part, repeat in plan.conditions(SECTION, TRAINED)
    ]
    documents = [profile(**plan.timing_settings(SECTION, TRAINED, CORES))]
    for full in (True, False):
        changes = plan.alternative_settings(SECTION, TRAINED, WINDOW, CORES, full)
        documents.append(profile(**changes))
    memory = []
    for n_ctx, full in plan.memory(SECTION):
        documents.append(profile(**plan.memory_settings(n_ctx, CORES, full)))
        memory.append(
            {
                "kind": "cost-memory",
                "version": 1,
                "model": MODEL,
                "n_ctx": n_ctx,
                "swa_full": full,
                "profile": digests.sha256_json(documents[-1]),
                "cache_mib": n_ctx * BYTES * 2 / 2**20 if full else n_ctx * BYTES / 2**20,
                "reason": None,
            }
        )
    return {
        TIMINGS: _timings(),
        ALTERNATIVES: _alternatives(),
        MEMORY: memory,
        CONDITIONS: conditions,
        PROFILES: [
            {"kind": "profile", "version": 1, "digest": digests.sha256_json(d), "profile": d}
            for d in documents
        ],
    }


@pytest.fixture
def rows() -> Rows:
    return copy.deepcopy(_VALID)


_VALID = rows_of()


def typed(rows: Rows) -> Records:
    found: Records = KIND.typed(rows)
    return found


def problems(rows: Rows) -> list[str]:
    return [f"{p.file}: {p.message}" for p in expected.check(MODEL, typed(rows), inputs())]


def judged(rows: Rows) -> dict[str, claims.Claim]:
    evidence = claims.Evidence(MODEL, typed(rows), 0, 0)
    return {claim.id: claim for claim in claims.judge("cost", evidence)}


def timing(rows: Rows, arm: str, n_tokens: int, repeat: int = 0) -> dict[str, Any]:
    return next(
        row
        for row in rows[TIMINGS]
        if (row["arm"], row["tokens"], row["repeat"]) == (arm, n_tokens, repeat)
    )


def alternative(rows: Rows, arm: str, n_tokens: int = 256) -> dict[str, Any]:
    return next(r for r in rows[ALTERNATIVES] if (r["arm"], r["tokens"]) == (arm, n_tokens))


# -- nothing to find --------------------------------------------------------------------------


def test_valid_records_conform_agree_and_hold(rows: Rows, tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    for path, kind in KIND.records.items():
        records.write(tmp_path / path, kind, rows[path])
    found = typed(records.read_folder(tmp_path, KIND.records))
    assert expected.check(MODEL, found, inputs()) == []
    value = json.loads(KIND.summary_bytes(MODEL, found))
    schemas.validate(value, "cost-summary", where="summary")
    assert {claim.id: claim.verdict for claim in judged(rows).values()} == {
        "C1": "holds",
        "C1-limit": "holds",
        "C2": "holds",
        "C3": "holds",
    }


def test_a_length_beyond_the_trained_context_is_not_planned(rows: Rows) -> None:
    assert {row["tokens"] for row in rows[TIMINGS]} == {8, 64, 256, 1024, 4096}


def test_arms_and_lengths_take_turns_within_each_repeat() -> None:
    steps = list(plan.timings(SECTION, TRAINED))
    assert len(steps) == len(set(steps))
    assert [repeat for repeat, _, _ in steps] == sorted(repeat for repeat, _, _ in steps)
    assert plan.order(0) != plan.order(1)
    assert {*plan.order(0)} == {*plan.order(1)} == {*plan.ARMS}
    prefills = [n for _, n, arm in steps if arm == "prefill"]
    assert [prefills.count(n) for n in (8, 64, 256, 1024, 4096)] == [4, 4, 3, 3, 2]
    assert [n for _, n, arm in steps if arm == "graft"].count(4096) == 3


@pytest.mark.parametrize(
    ("n_tokens", "first", "last", "window", "wanted"),
    [
        (100, 0, 99, 0, True),
        (100, 0, 98, 0, False),
        (100, 1, 200, 0, False),
        (100, -1, -1, 0, False),
        (100, 36, 200, 64, True),
        (100, 37, 200, 64, False),
        (50, 0, 200, 64, True),
        (50, 1, 200, 64, False),
    ],
)
def test_what_can_be_reused(
    n_tokens: int, first: int, last: int, window: int, wanted: bool
) -> None:
    assert plan.reusable(n_tokens, first, last, window) is wanted


# -- forgeries --------------------------------------------------------------------------------

Change = Callable[[Rows], object]

FORGERIES: dict[str, tuple[Change, str]] = {
    "a slow repeat left out": (
        lambda r: r[TIMINGS].remove(timing(r, "graft", 1024, 1)),
        "timings.jsonl: 1, 1024, graft is absent",
    ),
    "a fast repeat put in twice": (
        lambda r: r[TIMINGS].append(copy.deepcopy(r[TIMINGS][-1])),
        "not in the planned order, each once",
    ),
    "a cold reading relabelled": (
        lambda r: timing(r, "graft_cold", 256).update(arm="graft"),
        "0, 256, graft_cold is absent",
    ),
    "arms measured one after the other": (
        lambda r: r[TIMINGS].sort(key=lambda row: row["arm"]),
        "not in the planned order",
    ),
    "a round left out": (
        lambda r: timing(r, "graft", 256)["seconds"]["token"].pop(),
        "it has not 2 rounds",
    ),
    "a part left out": (
        lambda r: timing(r, "graft", 256)["seconds"].pop("read"),
        "graft has other parts than reset, read, restore, token",
    ),
    "a prefill that read fewer tokens": (
        lambda r: timing(r, "prefill", 256).update(decoded_tokens=12),
        "decoded_tokens is 12, it must be 257",
    ),
    "a graft that restored nothing": (
        lambda r: timing(r, "graft", 256).update(restored_bytes=0),
        "restored_bytes is 0, it must be 256000",
    ),
    "a graft without logits": (
        lambda r: timing(r, "graft", 256).update(logits_sha256=[]),
        "it has logits if and only if a token is read",
    ),
    "a new prefix that is an old block": (
        lambda r: timing(r, "prefill", 256, 1).update(
            block_id=timing(r, "prefill", 256, 0)["block_id"]
        ),
        "its block was there before",
    ),
    "another block restored": (
        lambda r: timing(r, "graft", 256).update(block_id=digest_of("other")),
        "its block is not the last one captured at this length",
    ),
    "a smaller state": (
        lambda r: timing(r, "copy", 256).update(state_bytes=100),
        "state_bytes is not that of other lines of this length",
    ),
    "cache states not told": (
        lambda r: timing(r, "graft_cold", 256).update(resident=[]),
        "resident is not given once a round",
    ),
    "a load left out": (
        lambda r: r[CONDITIONS].pop(2),
        "conditions.jsonl: timings, 2 is absent",
    ),
    "another number of cores": (
        lambda r: r[CONDITIONS][1].update(cores=64),
        "cores is not the same in every line",
    ),
    "a smaller trained context": (
        lambda r: [row.update(n_ctx_train=2048) for row in r[CONDITIONS]],
        "0, 4096, copy is not planned",
    ),
    "another profile": (
        lambda r: timing(r, "graft", 256).update(profile=r[PROFILES][1]["digest"]),
        "its profile has other settings than planned",
    ),
    "an unlisted profile": (
        lambda r: timing(r, "graft", 256).update(profile=digest_of("none")),
        "its profile is not in records/profiles.jsonl",
    ),
    "a profile nobody used": (
        lambda r: r[PROFILES].append(_profile_row(profile(n_ctx=512))),
        "no record was made under this profile",
    ),
    "a profile with other kernels": (
        lambda r: r[PROFILES].append(_profile_row(profile(tiled=True))),
        "setting tiled is not the registered one",
    ),
    "a reuse that nothing held allows": (
        lambda r: alternative(r, plan.RESTART).update(reused_tokens=256, decoded_tokens=1),
        "reused_tokens is 256, what was held allows 0",
    ),
    "a reuse not counted": (
        lambda r: alternative(r, plan.LIVE).update(decoded_tokens=257),
        "decoded_tokens is not what was not reused",
    ),
    "an alternative compared with something else": (
        lambda r: alternative(r, plan.LIVE).update(fresh_sha256=[digest_of("other")]),
        "its fresh logits are not those of after_restart",
    ),
    "an alternative left out": (
        lambda r: r[ALTERNATIVES].pop(0),
        "live_prefix, 256 is absent",
    ),
    "a rival said not to be there": (
        lambda r: alternative(r, plan.SAVE_STATE).update(
            measured=False,
            reason="no",
            seconds={},
            disk_bytes=None,
            differences=None,
            notices_damage=None,
        ),
        "only a server may be absent",
    ),
    "a rival's repeat left out": (
        lambda r: alternative(r, plan.DISK_CACHE)["seconds"]["cold"].pop(),
        "it has not the planned number of repeats",
    ),
    "a cache size without its context": (
        lambda r: r[MEMORY][0].update(cache_mib=None),
        "it has a size or a reason why there is none",
    ),
    "a context size left out": (lambda r: r[MEMORY].pop(), "65536, False is absent"),
    "another model": (
        lambda r: r[MEMORY][0].update(model="other"),
        "model is not the stage's subject",
    ),
}


def _profile_row(document: dict[str, Any]) -> dict[str, Any]:
    digest = digests.sha256_json(document)
    return {"kind": "profile", "version": 1, "digest": digest, "profile": document}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(rows: Rows, name: str) -> None:
    change, wanted = FORGERIES[name]
    change(rows)
    assert any(wanted in text for text in problems(rows)), problems(rows)


def test_an_arm_with_other_parts_does_not_conform(rows: Rows, tmp_path: Path) -> None:
    del timing(rows, "graft", 256)["seconds"]["read"]
    with pytest.raises(UnusableInput, match="'read' is a required property"):
        records.write(tmp_path / "timings.jsonl", KIND.records[TIMINGS], rows[TIMINGS])


def test_records_that_conform_and_make_no_sense_end_no_verifier(rows: Rows) -> None:
    timing(rows, "graft", 256)["seconds"]["token"].pop()
    for row in rows[ALTERNATIVES]:
        row.update(seconds={}, logits_sha256=[digest_of("x")], fresh_sha256=None)
        row.update(reused_tokens=None, held_first=None)
    assert problems(rows)
    KIND.summary_bytes(MODEL, typed(rows))
    assert judged(rows)["C3"].verdict == "fails"


def test_no_records_at_all_are_found(rows: Rows) -> None:
    empty: Rows = {name: [] for name in rows}
    assert problems(empty)
    assert all(claim.verdict != "holds" for claim in judged(empty).values())
    KIND.summary_bytes(MODEL, typed(empty))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"lengths": [64, 8]}, "lengths do not ascend"),
        ({"alternative_lengths": [128]}, "alternative_lengths are not among lengths"),
        ({"repeats": 1000, "lengths": list(range(8, 72))}, "too many timings"),
    ],
)
def test_a_section_that_does_not_fit_is_refused(changes: dict[str, Any], wanted: str) -> None:
    assert any(wanted in text for text in expected.section_problems({**SECTION, **changes}))
    assert list(expected.section_problems(SECTION)) == []
    for broken in ("many", [8, "9"], True, -1, None):
        found = list(expected.section_problems({**SECTION, "lengths": broken}))
        assert found == ["configuration.value.cost: lengths is not what its schema allows"]
    short = {key: value for key, value in SECTION.items() if key != "rounds"}
    assert list(expected.section_problems(short)) == ["configuration.value.cost has no rounds"]


# -- claims that fail, and claims that were not tested ----------------------------------------


def slower(rows: Rows, arm: str, part: str, factor: float, n_tokens: int | None = None) -> None:
    for row in rows[TIMINGS]:
        if row["arm"] == arm and n_tokens in (None, row["tokens"]):
            row["seconds"][part] = [round(s * factor, 6) for s in row["seconds"][part]]


def test_c1_fails_where_one_length_is_slower(rows: Rows) -> None:
    slower(rows, "graft", "token", 20.0, 256)
    assert judged(rows)["C1"].verdict == "fails"


def test_c1_fails_where_the_ratio_does_not_grow(rows: Rows) -> None:
    for n_tokens in (1024, 4096):
        slower(rows, "graft", "token", n_tokens / 100, n_tokens)
    claim = judged(rows)["C1"]
    assert claim.verdict == "fails"
    assert "slope" in claim.measured


@pytest.mark.parametrize("arm", ["graft", "new_prefix", "graft_cold", "prefill"])
def test_c1_fails_where_logits_differ_once(rows: Rows, arm: str) -> None:
    timing(rows, arm, 1024, 1)["logits_sha256"] = [digest_of("x")]
    assert judged(rows)["C1"].verdict == "fails"


def test_a_second_digest_in_one_row_is_a_difference(rows: Rows) -> None:
    timing(rows, "graft", 1024, 1)["logits_sha256"].append(digest_of("x"))
    assert judged(rows)["C1"].verdict == "fails"


def test_c1_limit_fails_beyond_twice_the_larger_limit(rows: Rows) -> None:
    slower(rows, "graft", "read", 3.0, 4096)
    claim = judged(rows)["C1-limit"]
    assert claim.verdict == "fails"
    assert "sha256" in claim.measured
    slower(rows, "copy", "copy", 9.0, 4096)  # a slower copy is then the limit
    claim = judged(rows)["C1-limit"]
    assert claim.verdict == "holds"
    assert "copy" in claim.measured


@pytest.mark.parametrize("arm", ["graft", "graft_cold"])
def test_c2_fails_where_recomputing_wins_at_a_long_length(rows: Rows, arm: str) -> None:
    slower(rows, arm, "restore", 1e4, 1024)
    assert judged(rows)["C2"].verdict == "fails"


def test_c2_is_not_passed_where_the_kernel_kept_the_file(rows: Rows) -> None:
    for row in rows[TIMINGS]:
        if row["arm"] == "graft_cold":
            row["resident"] = [1.0] * len(row["resident"])
    assert problems(rows) == []  # honest, and no fault of the records
    claim = judged(rows)["C2"]
    assert claim.verdict == "not run here"
    assert "did not drop" in claim.measured


def test_short_runs_pass_nothing(rows: Rows) -> None:
    rows[TIMINGS] = [row for row in rows[TIMINGS] if row["tokens"] <= 256]
    verdicts = {claim.id: claim.verdict for claim in judged(rows).values()}
    assert verdicts["C1"] == verdicts["C1-limit"] == verdicts["C2"] == "not run here"


@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        (plan.LIVE, {"reused_tokens": 0, "decoded_tokens": 257}),
        (plan.LIVE, {"logits_sha256": [digest_of("x")]}),
        (plan.RESTART, {"reused_tokens": 256, "decoded_tokens": 1}),
        (plan.ELSEWHERE, {"reused_tokens": 256, "decoded_tokens": 1}),
        (plan.SMALL_WINDOW, {"reused_tokens": 256, "decoded_tokens": 1}),
        (plan.SAVE_STATE, {"notices_damage": True}),
        (plan.SERVER, {"notices_damage": True}),
    ],
)
def test_c3_fails_where_an_alternative_does_better_or_worse(
    rows: Rows, arm: str, changes: dict[str, Any]
) -> None:
    alternative(rows, arm).update(changes)
    assert judged(rows)["C3"].verdict == "fails"


def test_c3_names_a_server_that_was_not_measured(rows: Rows) -> None:
    for n_tokens in (256, 1024):
        alternative(rows, plan.SERVER, n_tokens).update(
            measured=False, reason="not installed", seconds={}, disk_bytes=None,
            differences=None, notices_damage=None,
        )  # fmt: skip
    assert problems(rows) == []
    claim = judged(rows)["C3"]
    assert claim.verdict == "holds"
    assert claim.measured.endswith("not measured: server_slots")


# -- figures ----------------------------------------------------------------------------------


def test_the_speed_up_is_a_ratio_within_a_repeat(rows: Rows) -> None:
    found = summary.ratios(typed(rows), 1024, "graft")
    assert len(found) == 3
    bare = (1.024 + 0.02) / (0.004 + 2 * 1024 * BYTES * 1e-9 + 0.02)
    assert found[0] == pytest.approx(bare, rel=0.02)
    assert len(summary.ratios(typed(rows), 4096, "graft")) == 2  # as often as it was prefilled


@pytest.mark.parametrize(
    ("ratio", "relation", "tokens"),
    [
        ({8: 0.5, 64: 2.0, 256: 9.0}, "at", math.sqrt(8 * 64)),
        ({8: 1.5, 64: 2.0, 256: 9.0}, "below", 8),
        ({8: 0.1, 64: 0.2, 256: 0.3}, "above", 256),
        ({8: 2.0, 64: 0.5, 256: 2.0}, "at", math.sqrt(64 * 256)),
    ],
)
def test_the_crossover_is_interpolated_in_logarithms(
    rows: Rows, ratio: dict[int, float], relation: str, tokens: float
) -> None:
    kept = [r for r in rows[TIMINGS] if r["tokens"] in ratio and r["arm"] in ("prefill", "graft")]
    for row in kept:
        held = ratio[row["tokens"]] if row["arm"] == "prefill" else 1.0
        row["seconds"] = {
            part: [held if part == "token" else 1e-6] * len(values)
            for part, values in row["seconds"].items()
        }
    rows[TIMINGS] = kept
    found = summary.crossover(typed(rows), "graft")
    assert found is not None
    assert found.relation == relation
    assert found.tokens == pytest.approx(tokens, rel=1e-3)
    assert found.low <= found.tokens * 1.001


def test_reading_in_one_call_decides_the_crossover_where_it_is_the_cheaper_way(rows: Rows) -> None:
    before = summary.crossover(typed(rows), "graft")
    slower(rows, "one_shot", "prefill", 0.01)
    after = summary.crossover(typed(rows), "graft")
    assert before is not None
    assert after is not None
    assert before.relation == after.relation == "at"
    assert before.tokens < 64 < after.tokens < 256


@pytest.mark.parametrize(
    ("resident", "state"),
    [
        (0.0, "cold"),
        (0.05, "cold"),
        (0.5, "partly"),
        (0.95, "warm"),
        (1.0, "warm"),
        (None, "unknown"),
    ],
)
def test_the_state_of_the_page_cache(resident: float | None, state: str) -> None:
    assert page_cache(resident) == state


def test_a_blocks_share_of_the_full_cache(rows: Rows) -> None:
    value = json.loads(KIND.summary_bytes(MODEL, typed(rows)))
    assert {row["share_of_full_cache"] for row in value["lengths"]} == {0.5}
    assert [row["ratio"] for row in value["memory"]] == [2, 2]
    assert value["alternatives"][0]["survives_restart"] is False
    assert value["alternatives"][0]["speed_up"] == pytest.approx(0.276 / 0.02)
    assert value["alternatives"][-1]["survives_restart"] is True
