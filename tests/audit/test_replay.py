"""The stage replay as the verifier sees it: forgeries are found, and R1 and R2 can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import replay_rows as made
from replay_rows import MODEL, Rows

from kvaudit import claims, digests, schemas
from kvaudit.claims import Evidence
from kvaudit.profiles import differences
from kvaudit.replay import plan
from kvaudit.replay.check import check, check_raw, raw_digests
from kvaudit.replay.kind import KIND
from kvaudit.replay.records import BLOCKS, KINDS, PROFILES, SAMPLES, TARGETS, typed


@pytest.fixture(scope="module")
def sound() -> tuple[Rows, Any]:
    """Records in which nothing is wrong, and their raw logits."""
    return made.rows()


@pytest.fixture
def rows(sound: tuple[Rows, Any]) -> Rows:
    """The same, to be forged."""
    return made.copied(sound[0])


def problems(rows: Rows, **section: Any) -> list[str]:
    return [problem.message for problem in check(MODEL, typed(rows), made.inputs(**section))]


def verdicts(rows: Rows) -> dict[str, claims.Claim]:
    evidence = Evidence(MODEL, typed(rows), 0, 0)
    return {claim.id: claim for claim in claims.judge("replay", evidence)}


def of(rows: Rows, target: str, sample: int) -> Any:
    """A target's row."""
    (found,) = [r for r in rows[TARGETS] if (r["target"], r["sample"]) == (target, sample)]
    return found


def test_sound_records_conform_agree_with_the_plan_and_hold(sound: tuple[Rows, Any]) -> None:
    rows, raw = sound
    for file, kind in KINDS.items():
        for row in rows[file]:
            schemas.validate(row, kind, where=file)
    assert problems(rows) == []
    assert {claim.verdict for claim in verdicts(rows).values()} == {"holds"}
    assert check_raw(typed(rows), raw.get) == []
    KIND.summary_bytes(MODEL, typed(rows))


def test_the_summary_says_bytes_and_function_apart(rows: Rows) -> None:
    summary = KIND.summarise(MODEL, typed(rows))
    same, other = summary["targets"]["process"], summary["targets"]["isa"]
    assert (same["blocks_equal"], same["graft_equal"], same["argmax_differ"]) == (10, 10, 0)
    assert (same["exact"], other["exact"]) == (10, 0)
    assert same["kl"]["graft_from_origin"]["mean"]["estimate"] == 0.0
    assert same["ratio"] is None
    assert (other["blocks_equal"], other["usable"], other["copies_equal"]) == (0, 10, 10)
    assert other["differing_share"] == pytest.approx(0.7, rel=0.02)
    mean = other["kl"]["graft_from_origin"]["mean"]
    assert 0.0 < mean["low"] < mean["estimate"] < mean["high"]


def _every(file: str, change: Callable[[Any], object]) -> Callable[[Rows], None]:
    def forge(rows: Rows) -> None:
        for row in rows[file]:
            change(row)

    return forge


def _one(target: str, change: Callable[[Any], object]) -> Callable[[Rows], None]:
    return lambda rows: change(of(rows, target, 3)) and None


def _set(row: Any, *path: Any) -> bool:
    """Put the last of `path` where the others lead to."""
    *way, key, value = path
    for step in way:
        row = row[step]
    row[key] = value
    return True


FORGERIES: dict[str, tuple[Callable[[Rows], object], str]] = {
    "a bad sample left out": (lambda r: r[SAMPLES].pop(), "9 samples recorded, 10 planned"),
    "a bad row left out": (
        lambda r: r[TARGETS].remove(of(r, "isa", 4)),
        "not the planned matrix in its order: 1 rows absent, 0 not planned",
    ),
    "a row put in twice": (
        lambda r: r[TARGETS].append(of(r, "isa", 4)),
        "not the planned matrix in its order: 0 rows absent, 1 not planned",
    ),
    "another text": (
        lambda r: _set(r[SAMPLES][2], "seed", "kvgraft 3/tiny-a/replay/sample/77"),
        "sample 2: its seed is not the configured one",
    ),
    "a shorter span": (
        lambda r: _set(r[SAMPLES][9], "span_tokens", 32),
        "sample 9: its span has another length than planned",
    ),
    "another profile of the origin": (
        lambda r: _set(r[SAMPLES][2], "profile", made.digest_of("better")),
        "sample 2: its profile is not the configured one",
    ),
    "raw logits of the best sample": (
        lambda r: _set(r[SAMPLES][2], "raw", True),
        "sample 2: its raw logits are kept against the plan, or not kept",
    ),
    "a block of another model": (
        lambda r: _set(r[BLOCKS][2], "header", "model", "sha256", made.digest_of("b")),
        "line 3: id is not the digest of the header",
    ),
    "a block that no sample has": (
        lambda r: r[BLOCKS].append(r[BLOCKS][0]),
        "the blocks are not, each once, those of the samples",
    ),
    "a fresh reading passed off as a graft": (
        _one("isa", lambda row: _set(row, "graft", "restored_bytes", 0)),
        "target isa, sample 3: graft: restored 0 bytes, it must be 1003",
    ),
    "more decoded than the question": (
        _one("isa", lambda row: _set(row, "graft", "decoded_tokens", 50)),
        "target isa, sample 3: graft: decoded 50 tokens, it must be 3",
    ),
    "all read in one process": (
        _every(TARGETS, lambda row: row.update(process=1)),
        "two rows were read in one process",
    ),
    "an inexact graft called exact": (
        _one("isa", lambda row: row.update(exact=True)),
        "target isa, sample 3: exact is not what the profiles say",
    ),
    "a KL of equal logits": (
        _one("process", lambda row: _set(row, "kl", "graft_from_origin", 0, 0.1)),
        "target process, sample 3: graft_from_origin: equal logits with a KL other than 0, entry 0",
    ),
    "a KL made 0": (
        _one("isa", lambda row: _set(row, "kl", "graft_from_origin", 1, 0.0)),
        "target isa, sample 3: graft_from_origin: other logits with a KL of 0, entry 1",
    ),
    "a KL made negative": (
        _one("isa", lambda row: _set(row, "kl", "graft_from_fresh", 1, -0.5)),
        "target isa, sample 3: graft_from_fresh: KL is below 0, entry 1",
    ),
    "a block's bytes called equal": (
        _one("isa", lambda row: _set(row, "own", "differing_bytes", 0)),
        "target isa, sample 3: the number of differing bytes denies the digests",
    ),
    "a flip of the argmax hidden": (
        _one("process", lambda row: _set(row, "graft", "argmax", 0, 63)),
        "target process, sample 3: graft_from_origin: equal logits with different argmax, entry 0",
    ),
    "a continuation of another text": (
        _one("isa", lambda row: _set(row, "graft", "answer", [60, 1, 2, 3])),
        "target isa, sample 3: graft: the continuation does not begin with the most likely token",
    ),
    "a shorter continuation": (
        _one("isa", lambda row: row["graft"]["answer"].pop()),
        "target isa, sample 3: graft: the continuation has another length than planned",
    ),
    "log-probabilities above 1": (
        _one("isa", lambda row: _set(row, "fresh", "log_p", [0.0] * 8)),
        "target isa, sample 3: fresh: the listed tokens have more than probability 1",
    ),
    "an unknown profile": (
        _one("isa", lambda row: row.update(profile=made.digest_of("x"))),
        "target isa: its rows have several profiles",
    ),
    "the target left unsaid": (
        lambda r: r[PROFILES].clear(),
        "the profiles are not, each once, those of the targets that cross",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named(rows: Rows, name: str) -> None:
    forge, message = FORGERIES[name]
    forge(rows)
    assert message in problems(rows)


def test_a_kl_that_its_own_log_probabilities_deny_is_found() -> None:
    rows, _ = made.rows(size=1.0)
    of(rows, "isa", 3)["kl"]["graft_from_origin"][-1] = 1e-6
    assert any("is below what its own log-probabilities ask for" in text for text in problems(rows))


def _with_profile(rows: Rows, change: Callable[[Any], object]) -> None:
    """Change the profile of target isa and every digest of it."""
    profile = made.lower_isa()
    change(profile)
    digest = digests.sha256_json(profile)
    rows[PROFILES][0] |= {"profile": profile, "digest": digest}
    for row in rows[TARGETS]:
        if row["target"] == "isa":
            row["profile"] = digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: p["settings"].update(flash_attention=True),
            "settings.flash_attention is not the registered one, which target isa keeps",
        ),
        (
            lambda p: p["engine"].update(llama="9.9"),
            "engine.llama is not the registered one, which target isa keeps",
        ),
        (
            lambda p: p["machine"].update(architecture="aarch64"),
            "machine.architecture is not the registered one, which target isa keeps",
        ),
        (
            lambda p: p["machine"].update(features=["AVX", "AVX2"]),
            "machine.features is the registered one, so that this is no target isa",
        ),
        (lambda p: p.pop("buffers"), "the profile lacks what a profile says"),
    ],
)
def test_a_target_of_another_kind_is_found_by_its_profile(
    rows: Rows, change: Callable[[Any], object], message: str
) -> None:
    _with_profile(rows, change)
    assert f"line 1: {message}" in problems(rows)


def test_the_same_build_called_another_one_is_found(rows: Rows) -> None:
    """A forger who has no second build replays his own twice."""
    for index in range(made.SECTION["samples"]):
        copy = {**of(rows, "process", index), "target": "isa"}
        rows[TARGETS][10 + index] = {**copy, "process": 11 + index}
    rows[PROFILES][0] |= {
        "profile": made.profile(),
        "digest": digests.sha256_json(made.profile()),
    }
    assert problems(rows) == [
        "line 1: machine.features is the registered one, so that this is no target isa"
    ]


def test_scores_of_kept_logits_are_recomputed(rows: Rows, sound: tuple[Rows, Any]) -> None:
    middle = made.SECTION["samples"] // 2
    row = of(rows, "isa", middle)
    row["kl"]["graft_from_origin"][-1] *= 0.5
    row["fresh"]["log_p"][2] -= 0.01
    found = [problem.message for problem in check_raw(typed(rows), sound[1].get)]
    where = f"target isa, sample {middle}"
    assert any(text.startswith(f"{where}, graft_from_origin: KL recorded") for text in found)
    assert f"{where}, fresh: a log-probability is not that of the raw logits" in found
    kept = {SAMPLES: 1, TARGETS: 2}
    named = list(raw_digests(typed(rows)).values())
    assert {file: named.count(file) for file in kept} == kept


def test_one_diverging_replay_breaks_r1(rows: Rows) -> None:
    row = of(rows, "process", 3)
    row["graft"]["logits_sha256"][0] = made.digest_of("other")
    assert verdicts(rows)["R1"].verdict == "fails"
    assert verdicts(rows)["R1"].measured.startswith("9/10 equal")


def test_a_copy_of_other_bytes_breaks_r2(rows: Rows) -> None:
    of(rows, "process", 3)["copy_sha256"] = made.digest_of("other")
    assert verdicts(rows)["R2"].verdict == "fails"
    assert "bytes 9/10 copies, 10/10 recomputed" in verdicts(rows)["R2"].measured


def test_other_bytes_across_targets_do_not_break_r2_but_lost_function_does(rows: Rows) -> None:
    found = verdicts(rows)["R2"]
    assert found.verdict == "holds"
    assert "isa: bytes 0/10 recomputed; function: usable 10/10" in found.measured
    for row in rows[TARGETS]:
        row["kl"]["graft_from_origin"] = [9 * nats for nats in row["kl"]["graft_from_origin"]]
    assert verdicts(rows)["R2"].verdict == "fails"


def test_a_graft_across_targets_that_calls_itself_exact_breaks_r2(rows: Rows) -> None:
    of(rows, "isa", 3)["exact"] = True
    assert verdicts(rows)["R2"].verdict == "fails"


def test_what_was_not_in_the_matrix_is_not_run_here() -> None:
    alone, _ = made.rows(targets=("process",))
    found = verdicts(alone)
    assert (found["R1"].verdict, found["R2"].verdict) == ("holds", "not run here")
    assert found["R2"].measured.endswith("across targets not run")
    across, _ = made.rows(targets=("isa",))
    assert verdicts(across)["R1"].verdict == "not run here"


def test_few_samples_cannot_hold_and_one_bad_one_still_fails(rows: Rows) -> None:
    rows[SAMPLES] = rows[SAMPLES][:5]
    rows[TARGETS] = [row for row in rows[TARGETS] if row["sample"] < 5]
    assert {claim.verdict for claim in verdicts(rows).values()} == {"not run here"}
    of(rows, "process", 3)["graft"]["logits_sha256"][0] = made.digest_of("other")
    assert verdicts(rows)["R1"].verdict == "fails"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_tokens": 100}, "min_tokens exceeds max_tokens"),
        ({"targets": ["moon"]}, "there is no target moon"),
    ],
)
def test_a_section_that_plans_nothing_is_refused(change: dict[str, Any], message: str) -> None:
    assert any(message in text for text in plan.section_problems({**made.SECTION, **change}))
    assert list(plan.section_problems({})) != []


def test_differences_between_profiles_have_dotted_names() -> None:
    a = {"x": {"y": 1, "z": 2}, "w": [1]}
    b = {"x": {"y": 1, "z": 3}, "v": 0}
    assert differences(a, b) == ["v", "w", "x.z"]
