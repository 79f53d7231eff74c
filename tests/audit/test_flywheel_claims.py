"""The claims and plots of the stage flywheel on made-up records: every claim holds on one set of
records and can fail, and what was not asked is not judged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flywheel_rows import MODEL, Rows, digest_of, large, small

from kvaudit import claims
from kvaudit.flywheel import claims as flywheel_claims
from kvaudit.flywheel import plots, summary
from kvaudit.flywheel.records import DEPOSITS, GENERATIONS, PROBLEMS, ROUTES

Change = Callable[[Rows], object]


def evidence(rows: Rows, reason: str | None = None) -> claims.Evidence:
    return claims.Evidence(MODEL, rows, 0, 0, 100, reason)


def judged(rows: Rows, reason: str | None = None) -> dict[str, claims.Claim]:
    return {claim.id: claim for claim in claims.judge("flywheel", evidence(rows, reason))}


ALL = ("F1", "F10", "F2", "F3", "F4", "F5", "F5-templates", "F6", "F7", "F8", "F9", "F-exact")


def test_every_claim_holds_on_the_large_records() -> None:
    found = judged(large())
    assert sorted(found) == sorted(ALL)
    assert {name: claim.verdict for name, claim in found.items()} == dict.fromkeys(ALL, "holds"), {
        name: claim.measured for name, claim in found.items() if claim.verdict != "holds"
    }


def test_measured_texts_give_the_figures() -> None:
    found = judged(large())
    assert "30/30 = 100.0%" in found["F1"].measured
    assert "against 5/30 = 16.7%" in found["F1"].measured
    assert "25 gained, 0 lost, p 6e-08" in found["F1"].measured
    # 25 hard problems: 7 attempts of 10 decoded tokens against one of 3.
    assert "decoded 1,750 by own attempts, 75 by recall, 23.3x" in found["F3"].measured
    assert "energy not measured (no meter on this machine)" in found["F3"].measured
    # Programs alone are asked of the first two instances of each of 20 families, words of all six.
    assert "alone 0/40 = 0.0%" in found["F5"].measured
    assert "by program, 0/120 = 0.0%" in found["F5"].measured
    assert "90% with and at most 15% alone are reached" in found["F5"].measured
    assert "10/10 hard-coded families have a template" in found["F5-templates"].measured
    assert "false routes 4/100 = 4.0%" in found["F6"].measured
    assert "decoded tokens 10x [10x, 10x]" in found["F8"].measured
    # Four parametric families of logic and two hard-coded ones, two instances each.
    assert "logic 8/0/0 of 12" in found["F9"].measured
    # Every second family has a block of examples, every fourth a block moved or read again: of
    # these eight five are parametric.
    assert "blocks of several examples recalled 0/15" in found["F9"].measured
    assert "relocated: 30/30 10/16; text read again: 30/30 10/16" in found["F4"].measured


def every(file: str, arm: str, **changes: Any) -> Change:
    def change(rows: Rows) -> None:
        for row in rows[file]:
            if row.get("arm") == arm:
                row.update(changes)

    return change


def _wrong(arm: str, share: int = 1) -> Change:
    def change(rows: Rows) -> None:
        hit = [row for row in rows[GENERATIONS] if row["arm"] == arm]
        for row in hit[::share]:
            row.update(answer=998, outcome="wrong")

    return change


def _right(arm: str, **changes: Any) -> Change:
    def change(rows: Rows) -> None:
        answers = {row["name"]: row["answer"] for row in rows[PROBLEMS]}
        for row in rows[GENERATIONS]:
            if row["arm"] == arm:
                row.update(answer=answers[row["problem"]], outcome="answer", **changes)

    return change


def _routes(kind: str, share: int, **changes: Any) -> Change:
    def change(rows: Rows) -> None:
        for row in [row for row in rows[ROUTES] if row["query_kind"] == kind][::share]:
            row.update(changes)

    return change


def _cards(**changes: Any) -> Change:
    def change(rows: Rows) -> None:
        for row in rows[DEPOSITS]:
            if row["variant"] == "card":
                row.update(changes)

    return change


def _both(*changes: Change) -> Change:
    def change(rows: Rows) -> None:
        for one in changes:
            one(rows)

    return change


FAILING: dict[str, tuple[str, Change]] = {
    "the frozen model is as good at once": ("F1", _right("text")),
    "the library answers wrong": ("F1", _wrong("recall")),
    "code alone is as good": ("F2", _right("code")),
    "one in ten recalls is wrong": ("F3", _wrong("recall", 10)),
    "a recall needs eleven tokens": ("F3", every(GENERATIONS, "recall", decoded_tokens=11)),
    "own attempts are as short": (
        "F3",
        _both(
            every(GENERATIONS, "text", decoded_tokens=1),
            every(GENERATIONS, "code", decoded_tokens=1),
        ),
    ),
    "exact statements are not recognised": (
        "F3",
        _routes("exact", 1, decision="abstain", right=False),
    ),
    "one prefix is as good": ("F4", _right("recall-flat")),
    "alone is as good at new numbers": ("F5", _right("alone-text")),
    "adaptation is wrong": ("F5", _wrong("adapt")),
    "adaptation does not pass the gate": ("F5", every(GENERATIONS, "adapt", gate="shape")),
    "hard-coded programs transfer as well": ("F5-templates", _right("adapt", gate="passed")),
    "templates do not help": ("F5-templates", _wrong("adapt-templated")),
    "no template was found": (
        "F5-templates",
        lambda rows: rows.update(
            {GENERATIONS: [r for r in rows[GENERATIONS] if r["arm"] != "adapt-templated"]}
        ),
    ),
    "a tenth of the new queries go astray": ("F6", _routes("new", 10, best="f0", right=False)),
    "near misses are routed": ("F6", _routes("near miss", 2, decision="adapt", right=False)),
    "the block harms a solved family": ("F7", _wrong("solved-with", 3)),
    "the card is harmless": ("F8", _right("solved-card", decoded_tokens=2)),
    "the card is admitted": ("F8", _cards(admitted=True)),
    "the card was not tested": ("F8", _cards(admission=None)),
    "one prefix adapts as well": ("F9", _right("adapt-flat", gate="passed")),
    "the library reads more than it saves": (
        "F10",
        every(GENERATIONS, "recall", prompt_tokens=10_000),
    ),
    "one recall has other logits": (
        "F-exact",
        lambda rows: next(r for r in rows[GENERATIONS] if r["arm"] == "recall").update(
            logits_sha256=digest_of("other")
        ),
    ),
    "one recall has another text": (
        "F-exact",
        lambda rows: next(r for r in rows[GENERATIONS] if r["arm"] == "recall-text").update(
            text="other"
        ),
    ),
    "a recall is not marked exact": ("F-exact", every(GENERATIONS, "recall", exact=False)),
    "one recall has no text beside it": (
        "F-exact",
        lambda rows: rows[GENERATIONS].remove(
            next(r for r in rows[GENERATIONS] if r["arm"] == "recall-text")
        ),
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_every_claim_can_fail(case: str) -> None:
    name, change = FAILING[case]
    rows = copy.deepcopy(large())
    change(rows)
    assert judged(rows)[name].verdict == "fails", judged(rows)[name].measured


def test_a_family_that_the_model_does_not_solve_alone_is_no_solved_one() -> None:
    rows = copy.deepcopy(large())
    every(GENERATIONS, "solved-alone", answer=1, outcome="wrong")(rows)
    for name in ("F7", "F8"):
        assert judged(rows)[name].verdict == "not run here", judged(rows)[name].measured


def test_every_claim_has_a_case_in_which_it_fails() -> None:
    assert {name for name, _ in FAILING.values()} == set(ALL)


def test_too_few_questions_leave_claims_unjudged() -> None:
    found = judged(small())
    unjudged = {name for name, claim in found.items() if claim.verdict == "not run here"}
    assert unjudged == set(ALL) - {"F-exact"}
    least = flywheel_claims.MIN_PROBLEMS
    assert found["F1"].measured == f"4 contest problems, {least} are needed to judge"
    assert found["F-exact"].verdict == "fails"  # nothing was prefilled to compare with


def test_programs_that_were_not_run_again_leave_claims_unjudged() -> None:
    found = judged(large(), reason="no sandbox here")
    unjudged = {name for name, claim in found.items() if claim.verdict == "not run here"}
    assert unjudged == set(ALL) - {"F-exact"}  # it compares bytes of whatever blocks there are
    assert found["F5"].measured == "programs were not run again: no sandbox here"


def test_no_hard_problem_leaves_nothing_to_compare_with() -> None:
    rows = large()
    _right("code")(rows)
    assert judged(rows)["F3"].verdict == "not run here"


def test_a_difference_that_one_family_makes_is_not_enough() -> None:
    """All 120 instances differ, but in 2 of 20 families: by family the interval reaches 0."""
    rows = large()
    kept = {"f0", "f1"}
    families = {row["name"]: row["family"] for row in rows[PROBLEMS]}
    for row in rows[GENERATIONS]:
        if row["arm"] == "adapt" and families[row["problem"]] not in kept:
            row.update(answer=998, outcome="wrong")
    made = summary.summarise(MODEL, rows)["transfer"]["parametric"]["adapt_alone_text"]
    assert made["difference"]["low"] > 0.0
    assert made["by_family"]["low"] == 0.0
    assert judged(rows)["F5"].verdict == "fails"


# -- plots --------------------------------------------------------------------------------------


def test_equal_records_make_equal_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    by_model = {"tiny": large(), "other": large()}
    first, second = (plots.draw(by_model, tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == [
        "flywheel-arms.svg",
        "flywheel-abstention.svg",
        "flywheel-growth.svg",
    ]
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()
    assert "30/30" in first[0].read_text()


def test_plots_of_few_records_are_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert len(plots.draw({"tiny": small()}, tmp_path)) == 3
