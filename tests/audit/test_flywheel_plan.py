"""The plan of the stage flywheel: fair splits, distinct problems, all of it drawn from a seed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import flywheel_stage
import pytest

from kvaudit.flywheel import prompts
from kvaudit.flywheel.plan import (
    EXAMPLES,
    KNOWN,
    OWN,
    Plan,
    Query,
    admitted,
    needed,
    section_problems,
    template_of,
)
from kvaudit.problems.family import fields
from kvaudit.problems.foreign import TEMPLATES
from kvaudit.problems.registry import FAMILIES
from kvaudit.problems.solved import SOLVED

SECTION: dict[str, Any] = {
    **flywheel_stage.SECTION,
    "families": 30,
    "queries": 50,
    "calibration": 30,
    "transfers": 5,
    "few_transfers": 2,
}
SMALL = {**SECTION, "families": 3, "queries": 4, "calibration": 10}
SEEDS = ("a/gemma", "a/smollm", "b/gemma")

NEAR = {
    template_of(family.near_miss.format(**dict.fromkeys(family.names, 1))): family.name
    for family in FAMILIES
}
FOREIGN = {template_of(one.format(**dict.fromkeys(fields(one), 1))) for one in TEMPLATES}


@pytest.fixture(scope="module", params=[*itertools.product(("all", "few"), SEEDS)], ids="-".join)
def plan(request: pytest.FixtureRequest) -> Plan:
    size, seed = request.param
    return Plan(SECTION if size == "all" else SMALL, seed)


# -- problems -------------------------------------------------------------------------------------


def test_no_two_problems_of_a_family_share_numbers_or_a_name(plan: Plan) -> None:
    keys = Counter((p.instance.family.name, p.instance.key) for p in plan.problems)
    assert max(keys.values()) == 1
    names = Counter(p.instance.name for p in plan.problems)
    assert max(names.values()) == 1
    statements = Counter(" ".join(p.instance.statement.casefold().split()) for p in plan.problems)
    assert max(statements.values()) == 1


def test_every_family_has_its_problems_in_every_role(plan: Plan) -> None:
    assert len({*plan.families}) == plan.section["families"]
    for family in plan.families:
        hard = family.kind == "hard-coded"
        assert len(plan.of(family, "contest")) == 1
        assert len(plan.of(family.name, "known")) == KNOWN >= EXAMPLES
        assert len(plan.of(family, "admission")) == plan.section["admission"]
        transfers = plan.section["few_transfers" if hard else "transfers"]
        assert len(plan.of(family, "transfer")) == transfers
        assert plan.of(family, "solved") == plan.of(family, "solved-known") == []
    for family in SOLVED:
        assert len(plan.of(family, "solved")) == plan.section["solved"]
        assert len(plan.of(family, "solved-known")) == 1
    listed = [(one.instance.family.name, one.role) for one in plan.problems]
    assert listed == sorted(listed, key=[*dict.fromkeys(listed)].index)


def test_few_families_are_spread_over_the_kinds_of_the_contest() -> None:
    for n in (2, 3, 10, 30):
        plan = Plan({**SECTION, "families": n}, "a")
        assert len({family.name for family in plan.families}) == n
        assert [*plan.families] == sorted(plan.families, key=FAMILIES.index)
    assert Plan({**SECTION, "families": 99}, "a").families == FAMILIES
    assert len({family.category for family in Plan({**SECTION, "families": 5}, "a").families}) > 2
    assert {family.kind for family in Plan(SMALL, "a").families} == {"parametric", "hard-coded"}


def test_further_problems_for_a_growing_library_take_all_families_in_turn(plan: Plan) -> None:
    n = len(plan.families) + 2
    further = plan.further(n)
    assert [one.family for one in further] == [*plan.families, *plan.families[:2]]
    assert len({one.statement for one in further}) == n
    assert plan.further(2) == further[:2]


def test_groups_of_blocks_hold_every_family_once(plan: Plan) -> None:
    names = [family.name for family in plan.families]
    groups = plan.flat_groups(names)
    assert [name for group in groups for name in group] == names
    assert {len(group) for group in groups[:-1]} <= {plan.section["flat_blocks"]}
    assert {*plan.few} < {*plan.families}
    assert {*plan.half} < {*plan.families}


# -- queries --------------------------------------------------------------------------------------


def of(plan: Plan, split: str, kind: str) -> list[Query]:
    return [query for query in plan.queries if (query.split, query.kind) == (split, kind)]


def test_both_splits_have_the_planned_number_of_queries(plan: Plan) -> None:
    for split, n in (("calibration", "calibration"), ("test", "queries")):
        for kind in ("near miss", "foreign"):
            found = of(plan, split, kind)
            assert len(found) == len({one.statement for one in found}) == plan.section[n]
    for kind in OWN:
        assert of(plan, "calibration", kind) == []
    assert [query.number for query in plan.queries] == list(range(len(plan.queries)))


def test_the_splits_share_no_foreign_template(plan: Plan) -> None:
    one, two = (
        {template_of(query.statement) for query in of(plan, split, "foreign")}
        for split in ("calibration", "test")
    )
    assert one | two <= FOREIGN
    assert one
    assert two
    assert not one & two


def test_the_splits_share_no_family_of_near_misses(plan: Plan) -> None:
    one, two = (
        {NEAR[template_of(query.statement)] for query in of(plan, split, "near miss")}
        for split in ("calibration", "test")
    )
    assert one | two <= {family.name for family in plan.families}
    assert one
    assert two
    assert not one & two


def test_no_query_of_one_split_comes_in_the_other(plan: Plan) -> None:
    statements = Counter(query.statement for query in plan.queries)
    assert max(statements.values()) == 1


def test_own_queries_are_the_familys_problems(plan: Plan) -> None:
    for family in plan.families:
        mine = [query for query in plan.queries if query.family == family.name]
        transfers = plan.of(family, "transfer")
        assert [(one.kind, one.statement) for one in mine] == [
            ("exact", plan.of(family, "contest")[0].statement),
            *(("new", one.statement) for one in transfers),
            ("paraphrase", family.paraphrase.format(**transfers[0].params)),
        ]
    for query in plan.queries:
        assert (query.family is not None) == (query.kind in OWN)


def test_only_exact_queries_repeat_a_statement_that_is_deposited(plan: Plan) -> None:
    deposited = [plan.of(family, "contest")[0].statement for family in plan.families]
    for query in plan.queries:
        repeats = any(prompts.same_statement(query.statement, one) for one in deposited)
        assert repeats == (query.kind == "exact")


@pytest.mark.parametrize("seed", ["seed 4", "seed 10"])
def test_the_largest_splits_of_a_configuration_can_be_drawn(seed: str) -> None:
    """By these seeds one split has all templates without numbers, which can be asked only once."""
    plan = Plan({**SECTION, "queries": 150, "calibration": 150}, seed)
    for split, kind in itertools.product(("calibration", "test"), ("near miss", "foreign")):
        assert len(of(plan, split, kind)) == 150


# -- seeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [lambda p: p.problems, lambda p: p.queries])
def test_a_plan_is_the_same_twice_and_another_for_another_seed(part: Callable[[Plan], Any]) -> None:
    first = part(Plan(SMALL, "a/tiny"))
    assert part(Plan(dict(SMALL), "a/tiny")) == first
    others = [part(Plan(SMALL, seed)) for seed in ("a/tiny2", "b/tiny", "")]
    assert all(other != first for other in others)


def test_problems_of_a_role_do_not_depend_on_the_number_of_other_families() -> None:
    few, all_ = Plan(SMALL, "a"), Plan(SECTION, "a")
    for family in few.families:
        for role in ("contest", "known", "admission"):
            assert few.of(family, role) == all_.of(family, role)  # type: ignore[arg-type]


def test_every_attempt_has_a_seed_of_its_own() -> None:
    plan = Plan(SMALL, "a")
    names = itertools.product(("adapt", "text"), ("one/a/0", "one/a/1"), (0, 1, 2))
    assert len({plan.attempt_seed(*name) for name in names}) == 12


# -- small rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("with_block", "alone", "n", "margin", "result"),
    [
        (2, 0, 2, 0.5, True),
        (1, 0, 2, 0.5, True),
        (1, 1, 2, 0.5, False),
        (2, 2, 2, 0.5, False),
        (0, 0, 2, 0.5, False),
        (0, 0, 2, 0.0, True),
        (0, 1, 2, 0.0, False),
        (0, 0, 0, 0.0, False),
        (3, 0, 10, 0.3, True),
    ],
)
def test_admission(with_block: int, alone: int, n: int, margin: float, result: bool) -> None:
    assert admitted(with_block, alone, n, margin) is result


@pytest.mark.parametrize(
    ("n", "margin", "least"), [(100, 0.07, 7), (100, 0.29, 29), (4, 0.5, 2), (3, 0.0, 0), (7, 1, 7)]
)
def test_what_a_block_needs_to_win_by_is_what_admits_it(n: int, margin: float, least: int) -> None:
    assert needed(n, margin) == least
    assert admitted(least, 0, n, margin)
    assert not admitted(least - 1, 0, n, margin) or least == 0


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"families": 2}, []),
        ({"families": 1}, ["routing needs a second family"]),
        ({"baselines": 2}, []),
        ({"baselines": 3}, ["baselines are taken from the transfers"]),
        ({"transfers": 0}, ["baselines are taken from the transfers"]),
        ({"growth": [8]}, []),
        ({"growth": [8, 4]}, ["growth does not ascend"]),
        ({"growth": [4, 4]}, ["growth does not ascend"]),
        (
            {"families": 1, "baselines": 9, "growth": [2, 1]},
            ["second family", "baselines", "does not ascend"],
        ),
    ],
)
def test_what_does_not_fit_together_is_said(changes: dict[str, Any], found: list[str]) -> None:
    problems = [*section_problems({**SECTION, **changes})]
    assert len(problems) == len(found)
    for problem, text in zip(problems, found, strict=True):
        assert text in problem
        assert problem.startswith("configuration.value.flywheel")


@pytest.mark.parametrize("key", sorted(SECTION))
def test_a_missing_setting_is_named_and_nothing_else_is_looked_at(key: str) -> None:
    section = {name: value for name, value in SECTION.items() if name != key}
    assert [*section_problems(section)] == [f"configuration.value.flywheel has no {key}"]


def test_an_empty_section_names_all_that_is_missing() -> None:
    (problem,) = section_problems({})
    assert all(key in problem for key in SECTION)
