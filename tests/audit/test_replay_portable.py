"""Replay under the portable profile: one profile everywhere, and bytes claimed on every target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import replay_rows as made
import synthetic
from replay_rows import MODEL, WINDOW, Rows

from kvaudit import claims, digests, profiles, schemas
from kvaudit.claims import Evidence
from kvaudit.replay import plan
from kvaudit.replay.check import check
from kvaudit.replay.kind import KIND
from kvaudit.replay.records import BLOCKS, KINDS, SAMPLES, TARGETS, typed

MATRIX = ("process", "portable-generic", "portable-aarch64")


def profile() -> dict[str, Any]:
    """A portable profile of the real shape: it names an arithmetic and no host."""
    native = made.profile()
    settings = {**native["settings"], "name": "portable", "arithmetic": "portable", "min_rows": 1}
    context = synthetic.context_of(settings, WINDOW)
    del settings["n_threads"], context["n_threads"]
    engine = {
        "binding": "llama-cpp-python 0",
        "arithmetic": {"name": "portable"},
        "goldens": made.digest_of("goldens"),
    }
    return {**native, "settings": settings, "context": context, "engine": engine, "machine": {}}


def host(target: str) -> dict[str, Any]:
    """Where a target runs; the origin is the target `process`."""
    build = "origin" if target == "process" else target
    architecture = "aarch64" if target == "portable-aarch64" else "x86_64"
    return {
        "architecture": architecture,
        "features": [],
        "libraries": made.digest_of("libraries", build),
    }


def portable(rows: Rows) -> Rows:
    """Records as a run under the portable profile has them."""
    own = profile()
    for row in rows[BLOCKS]:
        header = row["header"]
        header["profile"] = digests.sha256_json(own)
        header["engine"] = profiles.engine_digest(own["engine"])
        header["provenance"]["profile"] = own
        row["id"] = digests.sha256_json(header)
    for row, block in zip(rows[SAMPLES], rows[BLOCKS], strict=True):
        row.update(block_id=block["id"], profile=digests.sha256_json(own), host=host("process"))
    for row in rows[TARGETS]:
        row.update(profile=digests.sha256_json(own), host=host(row["target"]))
        row["own"]["block_id"] = rows[SAMPLES][row["sample"]]["block_id"]
    return rows


@pytest.fixture
def rows() -> Rows:
    return portable(made.rows(targets=MATRIX)[0])


def problems(rows: Rows) -> list[str]:
    inputs = made.inputs(targets=list(MATRIX))
    inputs["configuration"]["value"]["profile"] = {"preset": "portable"}
    inputs["profiles"] = {
        MODEL: {"portable": {"digest": digests.sha256_json(profile()), "profile": profile()}}
    }
    return [problem.message for problem in check(MODEL, typed(rows), inputs)]


def verdicts(rows: Rows) -> dict[str, claims.Claim]:
    evidence = Evidence(MODEL, typed(rows), 0, 0)
    return {claim.id: claim for claim in claims.judge("replay", evidence)}


def of(rows: Rows, target: str, sample: int) -> Any:
    (found,) = [r for r in rows[TARGETS] if (r["target"], r["sample"]) == (target, sample)]
    return found


def test_sound_records_conform_and_hold_in_bytes_on_every_target(rows: Rows) -> None:
    for file, kind in KINDS.items():
        for row in rows[file]:
            schemas.validate(row, kind, where=file)
    assert problems(rows) == []
    KIND.summary_bytes(MODEL, typed(rows))
    found = verdicts(rows)
    assert {claim.verdict for claim in found.values()} == {"holds"}
    measured = found["R2-portable"].measured
    assert "portable-aarch64: bytes 10/10 copies, 10/10 recomputed" in measured
    assert "on aarch64; logits 10/10 grafts, 10/10 own computations" in measured


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.update(host=host("process")), "the architecture of its host are"),
        (lambda row: row.pop("host"), "names its host, or its origin does"),
        (lambda row: row.update(exact=False), "exact is not what the profiles say"),
        (
            lambda row: row.update(profile=made.digest_of("another")),
            "is not one that it may have",
        ),
    ],
)
def test_a_target_that_is_not_what_it_says_is_found(
    rows: Rows, change: Callable[[Any], Any], message: str
) -> None:
    change(of(rows, "portable-aarch64", 3))
    assert any(message in text for text in problems(rows))


def test_another_process_is_of_the_origin_s_host(rows: Rows) -> None:
    of(rows, "process", 2)["host"] = host("portable-generic")
    assert any("its host is not the origin's" in text for text in problems(rows))


@pytest.mark.parametrize("part", ["graft", "fresh"])
def test_one_other_byte_of_logits_breaks_r2(rows: Rows, part: str) -> None:
    of(rows, "portable-generic", 4)[part]["logits_sha256"][1] = made.digest_of("other")
    assert verdicts(rows)["R2-portable"].verdict == "fails"


def test_one_other_byte_of_state_breaks_r2(rows: Rows) -> None:
    own = of(rows, "portable-aarch64", 5)["own"]
    own.update(state_sha256=made.digest_of("other"), differing_bytes=1)
    assert verdicts(rows)["R2-portable"].verdict == "fails"


def test_targets_go_with_their_profile_alone() -> None:
    native = {**made.SECTION, "targets": ["process", "isa"]}
    ours = {**made.SECTION, "targets": list(MATRIX)}
    assert not list(plan.preset_problems(native, portable=False))
    assert not list(plan.preset_problems(ours, portable=True))
    assert len(list(plan.preset_problems(native, portable=True))) == 1
    assert len(list(plan.preset_problems(ours, portable=False))) == 2
    assert plan.builds(ours) == {name: name for name in MATRIX[1:]}
    assert plan.emulated(ours)
    assert not plan.emulated(native)
