"""The contest set: solvers agree, programs print the answer, statements carry their numbers."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable

import pytest

from kvaudit.errors import UnusableInput
from kvaudit.problems import foreign, solved
from kvaudit.problems.family import ANSWER_MAX, Family, Params, fields, fresh, guessable, instance
from kvaudit.problems.registry import FAMILIES, by_name

EVERY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
ALSO_TRIVIAL = pytest.mark.parametrize(
    "family", [*FAMILIES, *solved.SOLVED], ids=lambda family: family.name
)


def printed(program: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "program", "exec"), {})
    return out.getvalue()


@EVERY
def test_three_solvers_agree_on_a_thousand_instances(family: Family) -> None:
    answers = Counter(instance(family, f"agree/{i}").answer for i in range(1000))
    assert min(answers) >= 10
    assert max(answers) <= ANSWER_MAX
    # No constant guess does well, nor are answers all of one size.
    assert answers.most_common(1)[0][1] <= 60
    assert len(answers) >= 50


@EVERY
def test_the_solvers_are_three_different_functions(family: Family) -> None:
    assert len({id(solve) for solve in family.solvers}) == 3


@ALSO_TRIVIAL
def test_a_program_prints_exactly_the_answer(family: Family) -> None:
    for i in range(20):
        made = instance(family, f"program/{i}")
        started = time.perf_counter()
        assert printed(family.program(made.params)) == f"{made.answer}\n"
        assert time.perf_counter() - started < 0.2


@ALSO_TRIVIAL
def test_a_program_is_short(family: Family) -> None:
    for i in range(20):
        lines = family.program(instance(family, f"short/{i}").params).split("\n")
        assert len(lines) <= 7
        assert all(0 < len(line) <= 45 for line in lines)


@ALSO_TRIVIAL
def test_the_numbers_of_every_statement_are_its_parameters_in_order(family: Family) -> None:
    for i in range(20):
        made = instance(family, f"numbers/{i}")
        for text in (family.template, family.paraphrase, family.near_miss):
            assert fields(text) == family.names
            found = [int(digits) for digits in re.findall(r"\d+", text.format(**made.params))]
            assert tuple(found) == made.key
        assert made.statement == family.template.format(**made.params)
        assert set(made.params) == set(family.names)


@ALSO_TRIVIAL
def test_statements_are_short_and_differ(family: Family) -> None:
    texts = (family.template, family.paraphrase, family.near_miss)
    assert len(set(texts)) == 3
    assert all(len(text.split()) <= 40 for text in texts)
    assert 1 <= family.difficulty <= 5
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", family.name)


@EVERY
def test_an_answer_can_neither_be_guessed_nor_got_from_the_near_miss(family: Family) -> None:
    for i in range(100):
        made = instance(family, f"guess/{i}")
        assert not guessable(made.answer, made.key)
        assert family.near_solver(made.params) != made.answer


@pytest.mark.parametrize(
    ("answer", "values", "expected"),
    [
        (9, (50, 60), True),
        (50, (50, 60), True),
        (110, (50, 60), True),
        (10, (50, 60), True),
        (120, (50, 60), True),
        (150, (3, 50), True),
        (111, (50, 60), False),
    ],
)
def test_guessable(answer: int, values: tuple[int, ...], expected: bool) -> None:
    assert guessable(answer, values) is expected


def test_the_set_has_thirty_families_of_five_fields_and_a_third_of_them_hard_coded() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES) == 30
    assert set(Counter(family.category for family in FAMILIES).values()) == {6}
    hard = Counter(family.category for family in FAMILIES if family.kind == "hard-coded")
    assert len(hard) == 5
    assert hard.total() == 10
    assert {family.difficulty for family in FAMILIES} >= {1, 2, 3, 4}


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.kind == "parametric"], ids=lambda family: family.name
)
def test_a_parametric_program_names_its_numbers_and_never_repeats_them(family: Family) -> None:
    first, second = fresh(family, "parametric", 2)
    bodies = []
    for made in (first, second):
        lines = family.program(made.params).split("\n")
        heads, body = lines[: len(made.key)], lines[len(made.key) :]
        assert heads == [f"{name} = {made.params[name]}" for name in family.names]
        bodies.append(body)
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.kind == "hard-coded"], ids=lambda family: family.name
)
def test_a_hard_coded_program_holds_numbers_that_can_be_traced_to_the_statement(
    family: Family,
) -> None:
    changed = False
    for i in range(20):
        made = instance(family, f"hard/{i}")
        sources = set(made.key)
        for x in made.key:
            sources |= {x - 1, x + 1}
        for x, y in itertools.combinations(made.key, 2):
            sources |= {x + y, x * y}
        tree = ast.walk(ast.parse(family.program(made.params)))
        literals = {node.value for node in tree if isinstance(node, ast.Constant)}
        assert literals - {0, 1} <= sources
        changed |= not literals - {0, 1} <= set(made.key)
    # A careless author changes some number on the way into the code.
    assert changed


def test_an_instance_follows_from_its_family_and_seed() -> None:
    for family in FAMILIES:
        one, same, other = (instance(family, seed) for seed in ("a", "a", "b"))
        assert one == same
        assert one.key != other.key
        assert one.name == f"{family.name}/a"


@EVERY
def test_fresh_instances_are_distinct_and_not_taken(family: Family) -> None:
    first = fresh(family, "first", 60)
    taken = {made.key for made in first}
    second = fresh(family, "second", 60, taken)
    assert len(taken) == 60
    assert len(taken | {made.key for made in second}) == 120
    again = fresh(family, "second", 10, taken)
    assert again == second[:10]


def test_a_family_that_is_used_up_refuses() -> None:
    with pytest.raises(UnusableInput, match="too few new instances"):
        fresh(solved.SOLVED[0], "all", 991)


def test_families_are_found_by_name() -> None:
    assert all(by_name(family.name) is family for family in FAMILIES)
    with pytest.raises(UnusableInput, match="no family"):
        by_name("balls-in-box")


def test_foreign_problems_are_distinct_and_of_all_templates() -> None:
    assert len(set(foreign.TEMPLATES)) == 30
    assert sum(not fields(text) for text in foreign.TEMPLATES) == 4
    found = foreign.foreign("x", 200)
    assert len(set(found)) == len(found) == 200
    assert found[:50] == foreign.foreign("x", 50)
    assert foreign.foreign("y", 50) != found[:50]
    assert set(foreign.foreign("x", 30)) >= set(foreign.TEMPLATES[-4:])
    assert not any("{" in text for text in found)


def test_too_many_foreign_problems_are_refused() -> None:
    with pytest.raises(UnusableInput):
        foreign.foreign("x", 10**6)


def test_foreign_templates_are_no_families() -> None:
    def shape(text: str) -> str:
        return re.sub(r"\{\w+\}", "N", text)

    families = {shape(t) for f in FAMILIES for t in (f.template, f.paraphrase, f.near_miss)}
    assert not families & {shape(text) for text in foreign.TEMPLATES}


def test_near_misses_take_the_families_in_turn() -> None:
    found = foreign.near_misses("x", 75)
    assert [name for name, _ in found[:30]] == [family.name for family in FAMILIES]
    assert len(set(found)) == 75
    assert found[:10] == foreign.near_misses("x", 10)
    for name, statement in found:
        numbers = re.findall(r"\d+", statement)
        params = dict(zip(by_name(name).names, map(int, numbers), strict=True))
        assert by_name(name).near_miss.format(**params) == statement


def test_trivial_families_are_outside_the_set_and_answered_by_their_number() -> None:
    assert not {family.name for family in solved.SOLVED} & {family.name for family in FAMILIES}
    for family in solved.SOLVED:
        made = instance(family, "a")
        assert made.key == (made.answer,)
    assert len(solved.METHOD_CARD.split()) > 100


# Near misses whose answer is not plain, by full enumeration of small cases.


def _sweets(p: Params) -> int:
    shares = itertools.product(range(p["n"] + 1), repeat=p["k"])
    return sum(sum(own) == p["n"] and p["m"] in own for own in shares)


def _leads(p: Params) -> int:
    a, b, found = p["a"], p["b"], 0
    for north in itertools.combinations(range(a + b), b):
        steps = (1 if i in north else -1 for i in range(a + b))
        found += p["c"] in itertools.accumulate(steps)
    return found % 1000


def _round_table(p: Params) -> int:
    n, found = p["n"], 0
    for chairs in itertools.combinations(range(n), p["k"]):
        after = (*chairs[1:], chairs[0] + n)
        found += all(y - x > p["g"] for x, y in zip(chairs, after, strict=True))
    return found


def _coins(p: Params) -> int:
    least = [0]
    for amount in range(1, p["n"] + 1):
        coins = (coin for coin in (1, p["a"], p["b"]) if coin <= amount)
        least.append(1 + min(least[amount - coin] for coin in coins))
    return least[-1]


def _isosceles(p: Params) -> int:
    sides = itertools.combinations_with_replacement(range(p["m"], p["n"]), 3)
    return sum(x + y + z == p["n"] and x + y > z and len({x, y, z}) < 3 for x, y, z in sides)


def _two_faces(p: Params) -> int:
    sizes = (p["a"], p["b"], p["c"])
    cubes = itertools.product(*map(range, sizes))
    return sum(
        sum((x == 0) + (x == size - 1) for x, size in zip(cube, sizes, strict=True)) == 2
        for cube in cubes
    )


@pytest.mark.parametrize(
    ("name", "brute", "cases"),
    [
        ("sweets-to-children", _sweets, {"n": (3, 9), "k": (3, 4), "m": (1, 3)}),
        ("leading-steps", _leads, {"a": (2, 6), "b": (2, 6), "c": (1, 4)}),
        ("spaced-bags", _round_table, {"n": (5, 13), "k": (2, 4), "g": (1, 3)}),
        ("pence-payments", _coins, {"n": (40, 60), "a": (3, 7), "b": (8, 11)}),
        ("integer-triangles", _isosceles, {"n": (12, 18), "m": (1, 4)}),
        ("painted-block", _two_faces, {"a": (3, 6), "b": (3, 6), "c": (3, 6)}),
    ],
)
def test_near_miss_answers_are_those_of_full_enumeration(
    name: str, brute: Callable[[Params], int], cases: dict[str, tuple[int, int]]
) -> None:
    family = by_name(name)
    for values in itertools.product(*(range(low, high + 1) for low, high in cases.values())):
        params = dict(zip(cases, values, strict=True))
        if name == "leading-steps" and not params["c"] < params["b"] <= params["a"] + params["c"]:
            continue
        assert family.near_solver(params) == brute(params), params
