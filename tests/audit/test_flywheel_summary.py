"""The summary of the stage flywheel on made-up records: figures as computed by hand."""

from __future__ import annotations

import pytest
from flywheel_rows import MODEL, Rows, deposit, head, large, problem, route, rows_of, said, small

from kvaudit import schemas, stats
from kvaudit.flywheel import routes, summary
from kvaudit.flywheel.figures import Found, most_frequent
from kvaudit.flywheel.records import DEPOSITS, GENERATIONS, KINDS, PROBLEMS, ROUTES


def test_records_and_summary_conform_to_their_schemas() -> None:
    for rows in (small(), large()):
        for name, kind in KINDS.items():
            for row in rows[name]:
                schemas.validate(row, kind, where=name)
        schemas.validate(summary.summarise(MODEL, rows), "flywheel-summary", where="summary")


def test_a_summary_of_no_records_conforms_too() -> None:
    nothing: Rows = {name: [] for name in KINDS}
    schemas.validate(summary.summarise(MODEL, nothing), "flywheel-summary", where="summary")


def test_ways_to_answer_are_counted_as_by_hand() -> None:
    made = summary.summarise(MODEL, small())["contest"]
    ways = made["ways"]
    rights = {name: (way["right"], way["n"]) for name, way in ways.items()}
    assert rights == {
        "pass_at_1": (0, 4),
        "vote": (1, 4),
        "code": (1, 4),
        "best_of_n": (2, 4),  # f0, and f3 by its second program
        # f0; f2 by the library. f1 is confident in a wrong answer; f3 has neither entry nor vote.
        "confident_library": (2, 4),
        # First answers agree nowhere but in f1 (5 and 5); f0, f2 by the library, f3 prints 8.
        "code_library": (2, 4),
    }
    assert (made["confident"]["right"], made["confident"]["n"], made["failing"]) == (1, 2, 2)
    assert (made["failing_by_library"]["right"], made["in_library"]) == (1, 3)


def test_tokens_of_a_system_are_its_own_attempts_and_its_recalls() -> None:
    ways = summary.summarise(MODEL, small())["contest"]["ways"]
    full, quick = ways["confident_library"], ways["code_library"]
    assert full["generations"] == 5 * 4 + 1  # one recall, of f2
    assert full["decoded_tokens"] == 20 * 10 + 4
    assert full["prompt_tokens"] == 20 * 20 + 30
    assert full["per_solved"] == {"decoded_tokens": 102.0, "all_tokens": 317.0, "seconds": 10.25}
    assert quick["generations"] == 2 * 4 + 2  # recalls of f0 and f2
    assert quick["decoded_tokens"] == 8 * 10 + 2 * 4
    assert ways["pass_at_1"]["per_solved"] is None
    interval = stats.wilson(2, 4)
    assert (full["low"], full["high"]) == (
        stats.rounded(interval.low),
        stats.rounded(interval.high),
    )


def test_pairs_are_compared_on_what_both_were_asked() -> None:
    made = summary.summarise(MODEL, small())["contest"]["comparisons"]
    pair = made["confident_library_pass_at_1"]
    assert pair["mcnemar"] == {"only_first": 2, "only_second": 0, "p": 0.5}
    assert pair["difference"]["estimate"] == 0.5
    # Each family has one problem: by family nothing changes but the draws.
    assert pair["by_family"]["n"] == pair["difference"]["n"] == 4


def test_recurrence_counts_only_what_the_router_leads_to() -> None:
    rows = small()
    made = summary.summarise(MODEL, rows)["recurrence"]
    assert (made["library"]["right"], made["library"]["n"]) == (3, 3)
    assert (made["deposited"]["right"], made["deposited"]["n"]) == (4, 4)
    assert (made["decoded_max"], made["decoded_mean"], made["seconds_median"]) == (4, 4.0, 0.5)
    rows[ROUTES][1].update(decision="abstain", right=False)
    made = summary.summarise(MODEL, rows)["recurrence"]
    assert (made["library"]["right"], made["library"]["n"]) == (2, 3)


def test_the_token_ratio_has_the_hard_problems_on_both_sides() -> None:
    made = summary.summarise(MODEL, small())["recurrence"]
    assert made["hard"] == 2  # f1 and f2
    assert made["hard_in_library"]["n"] == 2
    assert made["hard_own"]["decoded_tokens"] == 2 * 5 * 10
    assert made["hard_own_text"]["decoded_tokens"] == 2 * 3 * 10
    assert made["hard_recall"]["decoded_tokens"] == 2 * 4
    assert made["ratios"] == {
        "decoded": 12.5,
        "decoded_text": 7.5,
        "all": stats.rounded(300 / 68),
        "all_text": stats.rounded(180 / 68),
        "seconds": 10.0,
    }
    assert made["energy"] == {
        "meter": None,
        "reason": "no meter on this machine",
        "joules": None,
    }


def test_unfinished_attempts_and_the_price_of_a_solved_problem() -> None:
    made = summary.summarise(MODEL, small())["attempts"]
    assert (made["unfinished"], made["unfinished_share"]) == (3, 0.15)
    assert made["own"]["per_solved"]["all_tokens"] == 20 * 30 / 2
    assert made["library"]["per_solved"]["all_tokens"] == 34.0


def test_break_even_is_what_was_invested_over_what_a_recurrence_saves() -> None:
    made = summary.summarise(MODEL, small())["economy"]["break_even"]
    # Three entries; of their 15 own attempts 4 are right, all of them f0's.
    decoded = made["decoded"]
    assert (decoded["deposit_tokens"], decoded["failed_tokens"]) == (0, 11 * 10)
    assert decoded["admission_tokens"] == 3 * 2 * 2 * 10
    assert decoded["saved_per_recall"] == 46.0  # 50 by own attempts, 4 by a recall
    assert decoded["recurrences"] == stats.rounded(230 / 138)
    every = made["all"]
    assert (every["deposit_tokens"], every["failed_tokens"]) == (300, 11 * 30)
    assert every["admission_tokens"] == 3 * 2 * 2 * 30
    assert every["saved_per_recall"] == 150.0 - 34.0
    assert every["recurrences"] == stats.rounded((300 + 330 + 360) / (3 * 116))


def test_deposits_are_counted_by_source_and_admission() -> None:
    made = summary.summarise(MODEL, small())["deposits"]
    assert (made["deposited_by_solver"], made["deposited_supplied"]) == (1, 3)
    assert made["variants"]["deposited"] == {
        "n": 4,
        "tested": 4,
        "admitted": 3,
        "refused": 1,
        "chosen": 4,
    }
    assert (made["library_by_solver"], made["tokens"]) == (1, 300)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [((7, 100, 100), 100), ((3, 9, 9, 3), 3), ((None, None, 4), 4), ((None,), None), ((), None)],
)
def test_of_equally_frequent_answers_the_first_counts(
    answers: tuple[int | None, ...], expected: int | None
) -> None:
    assert most_frequent([{"answer": one} for one in answers]) == expected


def test_transfer_counts_the_first_attempt_that_passed_the_gate() -> None:
    ones = [problem("transfer", "f0", n, 60 + n) for n in range(5)]
    adapt = [
        # right at the second attempt; the first would have been right, but did not pass
        said("adapt", ones[0], 60, gate="unbound"),
        said("adapt", ones[0], 60, 1),
        # passed and wrong
        said("adapt", ones[1], 1),
        # never passed: abstained, though the second attempt printed the answer
        said("adapt", ones[2], None, gate="no program"),
        said("adapt", ones[2], 62, 1, gate="shape"),
        # passed and printed nothing: abstained
        said("adapt", ones[3], None),
        # right at once
        said("adapt", ones[4], 64),
    ]
    answers = [one["answer"] if n == 1 else None for n, one in enumerate(ones)]
    words = [said("alone-text", *pair) for pair in zip(ones, answers, strict=True)]
    alone = [said("alone", *pair) for pair in zip(ones[:2], answers[:2], strict=True)]
    generations = [*adapt, *alone, *words]
    rows = rows_of(**{PROBLEMS: ones, GENERATIONS: generations, DEPOSITS: [deposit("f0", 1)]})
    made = summary.summarise(MODEL, rows)["transfer"]["parametric"]
    assert (made["adapt"]["right"], made["adapt"]["n"]) == (2, 5)
    assert (made["abstained"], made["wrong"]) == (2, 1)
    assert made["gates"] == {"passed": 4, "no_program": 1, "shape": 1, "unbound": 1}
    assert made["attempts"] == [
        {"attempts": 1, "problems": 3, "passed": 3},
        {"attempts": 2, "problems": 2, "passed": 1},
    ]
    assert made["ungated_greedy"]["right"] == 2
    assert made["adapt_alone_text"]["mcnemar"] == {"only_first": 2, "only_second": 1, "p": 1.0}
    assert made["adapt_alone_text"]["difference"]["estimate"] == stats.rounded(0.2)
    assert made["adapt_alone_text"]["by_family"]["n"] == 1
    # Programs alone were asked of the first two: one right by adaptation, the other alone.
    assert (made["alone"]["right"], made["alone"]["n"]) == (1, 2)
    assert made["adapt_alone"]["mcnemar"] == {"only_first": 1, "only_second": 1, "p": 1.0}


def test_answers_of_another_problem_in_the_prefix_are_counted() -> None:
    ones = [problem("contest", f"f{n}", 0, 100 + n) for n in range(4)]
    group = [one["family"] for one in ones]
    given = (100, 102, 102, 7)  # right, f2's, right, of no deposit
    generations = [said("recall", one, one["answer"], deposits=[one["family"]]) for one in ones]
    generations += [
        said("recall-flat", one, answer, deposits=group)
        for one, answer in zip(ones, given, strict=True)
    ]
    rows = rows_of(
        **{
            PROBLEMS: ones,
            GENERATIONS: generations,
            DEPOSITS: [deposit(one["family"], one["answer"]) for one in ones],
        }
    )
    made = summary.summarise(MODEL, rows)["routed"]["recall"]["flat"]
    assert (made["first"]["right"], made["second"]["right"]) == (4, 2)
    assert (made["first_taken"], made["second_taken"]) == (0, 1)
    assert made["mcnemar"]["p"] == 0.5


def test_router_is_counted_by_kind_and_apart_where_the_library_has_no_entry() -> None:
    queries = [
        route(0, "exact", "f0", "recall"),
        route(1, "new", "f0", "adapt"),
        route(2, "new", "f1", "adapt", best="f0", right=False),
        route(3, "new", "f1", "abstain", right=False, score=-3.0),
        route(4, "new", "f3", "adapt", best="f0", right=False),  # its deposit was refused
        route(5, "paraphrase", "f3", "abstain", right=True, score=-4.0),
        route(6, "near miss", None, "adapt", score=-1.5),
        route(7, "near miss", None, "abstain", score=-5.0, right=True),
        route(8, "foreign", None, "abstain", best=None, score=None, right=True),
        route(9, "foreign", None, "adapt", split="calibration"),
    ]
    rows = {**small(), ROUTES: queries}
    made = summary.summarise(MODEL, rows)["router"]
    assert (made["queries"], made["not_own"]) == (9, 3)
    new = made["kinds"]["new"]
    assert new == {
        "n": 4,
        "with_entry": 3,
        "right": 1,
        "wrong": 1,
        "abstained": 1,
        "without_entry": 1,
        "without_entry_routed": 1,
    }
    assert made["kinds"]["paraphrase"]["without_entry_routed"] == 0
    bound = stats.clopper_pearson(1, 3)
    assert made["false_route"] == {
        "routed": 1,
        "n": 3,
        "rate": stats.rounded(1 / 3),
        "low": stats.rounded(bound.low),
        "high": stats.rounded(bound.high),
    }
    # Scored own queries with an entry: 1, 2, 3; near misses 6, 7; 8 has no candidate.
    points = {point["threshold"]: point for point in made["curve"]}
    assert points[-5.0]["coverage"] == 1.0
    assert points[-5.0]["false_route_rate"] == stats.rounded(1 / 3)
    # 1 and 3, whose best candidate is its own, of 1, 2, 3 and 6.
    assert points[-5.0]["accuracy_of_routed"] == 0.5
    assert points[-3.0]["coverage"] == stats.rounded(2 / 3)
    assert points[-1.0]["coverage"] == 0.0
    # Below all scores the query without a candidate is still not routed.
    assert made["curve"][0]["false_route_rate"] == stats.rounded(2 / 3)


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    queries = [
        route(n, "new", "f0", "adapt", score=-1.0 - n / 1000, right=True) for n in range(333)
    ]
    rows = {**small(), ROUTES: queries}
    every, made = routes.curve(Found(MODEL, rows)), summary.summarise(MODEL, rows)["router"]
    assert len(every) == 334
    assert len(made["curve"]) <= routes.MAX_POINTS
    assert made["curve"][0]["coverage"] == 1.0
    assert made["curve"][-1]["coverage"] == 0.0


def test_cost_of_a_query_is_the_median_at_each_size() -> None:
    rows = [
        {
            **head("flywheel-growth"),
            "entries": entries,
            "query": query,
            "candidates": 4,
            "scored_tokens": 50,
            "seconds": {"rank": 0.5 * entries, "graft": 0.25 * entries, "score": 0.25 * query},
        }
        for entries in (8, 32, 128)
        for query in (0, 0, 9)
    ]
    made = routes.growth(rows)
    assert [one["seconds"] for one in made["sizes"]] == [6.0, 24.0, 96.0]
    assert made["sizes"][1]["parts"] == {"rank": 16.0, "graft": 8.0, "score": 0.0}
    assert made["law"]["exponent"] == pytest.approx(1.0)
