"""Literals find their numbers through other instances, and through nothing else."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable

import pytest

from kvaudit.errors import UnusableInput
from kvaudit.estimate import generator
from kvgraft import template_code, templates
from kvgraft.errors import TemplateMismatch
from kvgraft.templates import Template, bind, find


def run(program: str) -> int | None:
    """What a program of this file prints; they are harmless, so they run here."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        return int(out.getvalue().split()[-1])
    except Exception:
        return None


class Runs:
    """Counts what is run."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, programs: list[str]) -> list[int | None]:
        self.count += len(programs)
        return [run(program) for program in programs]


def instances(
    statement: str, answer: Callable[..., int], *params: tuple[int, ...]
) -> list[tuple[str, int]]:
    """Statement and answer of every tuple of numbers."""
    return [(statement.format(*numbers), answer(*numbers)) for numbers in params]


def check(template: Template | None, fresh: list[tuple[str, int]]) -> Template:
    """The template gives the answer of instances that nobody has seen."""
    assert template is not None
    for statement, answer in fresh:
        assert run(bind(template, statement)) == answer, bind(template, statement)
    return template


def digits(n: int, m: int) -> int:
    return sum(1 for x in range(1, n + 1) if sum(map(int, str(x))) % m == 0)


UP_TO = "How many positive integers up to {} have a digit sum that is divisible by {}?"


def test_a_loop_bound_one_above_a_number_is_found() -> None:
    program = """\
count = 0
for x in range(1, 121):
    s = sum(int(d) for d in str(x))
    if s % 7 == 0:
        count += 1
print(count)
"""
    known = instances(UP_TO, digits, (200, 3), (95, 4), (333, 9))
    template = check(
        find(UP_TO.format(120, 7), program, known, Runs()),
        instances(UP_TO, digits, (777, 5), (40, 2), (1, 1)),
    )
    assert template.program == (
        "a = 120\nb = 7\n"
        + program.replace("range(1, 121)", "range(1, a + 1)").replace("% 7", "% b")
    )
    assert (template.names, template.positions) == (("a", "b"), (0, 1))


def test_a_product_of_two_numbers_is_found() -> None:
    def answer(p: int, q: int, n: int) -> int:
        return sum(x for x in range(1, n) if x % (p * q) == 1) % 1000

    text = "Add all numbers below {2} that leave 1 when divided by {0} and by {1}. Last 3 digits?"
    program = (
        "t = 0\nfor x in range(1, 5000):\n    if x % 91 == 1:\n        t += x\nprint(t % 1000)\n"
    )
    known = instances(text, answer, (3, 5, 900), (4, 9, 2000), (11, 2, 1234), (5, 6, 777))
    template = check(
        find(text.format(7, 13, 5000), program, known, Runs()),
        instances(text, answer, (8, 9, 4000), (2, 25, 3000)),
    )
    assert "if x % (b * c) == 1:" in template.program
    assert "print(t % 1000)" in template.program
    assert template.shape == ("a", 1, "b", "c", 3)


def test_the_same_number_twice_in_the_statement_is_told_apart_by_other_instances() -> None:
    text = "Divide {} to the power of {} by {}. What is the remainder?"
    program = "x = 7 ** 7\nprint(x % 11)\n"
    known = instances(text, lambda a, b, m: a**b % m, (3, 5, 100), (2, 9, 37), (10, 3, 7))
    template = check(
        find(text.format(7, 7, 11), program, known, Runs()),
        instances(text, lambda a, b, m: a**b % m, (5, 3, 41), (3, 11, 50)),
    )
    assert template.program == "a = 7\nb = 7\nc = 11\nx = a ** b\nprint(x % c)\n"


def test_a_number_that_always_stands_twice_is_one_parameter() -> None:
    text = "A square has {0} rows and {0} columns. How many squares has it of side {1}?"

    def answer(n: int, k: int) -> int:
        return (n - k + 1) ** 2

    known = instances(text, answer, (9, 2), (20, 7), (5, 5))
    program = "s = 8 - 3 + 1\nprint(s * s)\n"
    template = check(
        find(text.format(8, 3), program, known, Runs()), instances(text, answer, (31, 4))
    )
    assert template.shape == ("a", "a", "b")
    assert (template.names, template.positions) == (("a", "b"), (0, 2))
    with pytest.raises(TemplateMismatch, match="number 2 of the statement"):
        bind(template, "A square has 4 rows and 5 columns. How many squares has it of side 1?")


def test_a_constant_that_equals_a_number_by_accident_stays_a_constant() -> None:
    text = "What weekday number is it {} days after weekday {}?"
    program = "print((3 + 7) % 7)\n"
    known = instances(text, lambda n, d: (d + n) % 7, (10, 2), (25, 6), (100, 0))
    template = check(
        find(text.format(7, 3), program, known, Runs()),
        instances(text, lambda n, d: (d + n) % 7, (33, 5), (4, 1)),
    )
    assert template.program == "a = 7\nb = 3\nprint((b + a) % 7)\n"


def test_small_constants_next_to_small_numbers_stay_constants() -> None:
    text = "How many ways are there to climb {} stairs with steps of 1 up to {}?"

    def answer(n: int, k: int) -> int:
        f = [1]
        for i in range(1, n + 1):
            f.append(sum(f[max(0, i - k) : i]))
        return f[n]

    program = """\
f = [1]
for i in range(1, 11):
    t = 0
    for j in range(1, 3):
        if i - j >= 0:
            t += f[i - j]
    f.append(t)
print(f[-1])
"""
    known = instances(text, answer, (7, 3), (9, 4), (6, 5), (8, 2))
    template = check(
        find(text.format(10, 2), program, known, Runs()), instances(text, answer, (12, 3), (5, 4))
    )
    assert "range(1, a + 1)" in template.program
    assert "range(1, b + 1)" in template.program
    assert "f[-1]" in template.program


def test_negative_numbers_and_minus_one_are_literals_with_their_sign() -> None:
    text = "Let x run from {} to {} and y = x * {}. What is the largest y?"

    def answer(low: int, high: int, k: int) -> int:
        return max(x * k for x in range(low, high + 1))

    program = """\
best = -1000000
for x in range(9, -6, -1):
    best = max(best, x * -4)
print(best)
"""
    known = instances(text, answer, (-8, 3, -2), (-3, 12, 5), (-20, 1, -7))
    template = check(
        find(text.format(-5, 9, -4), program, known, Runs()),
        instances(text, answer, (-11, 2, -3), (-1, 5, 6)),
    )
    assert template.program == (
        "a = -5\nb = 9\nc = -4\nbest = -1000000\nfor x in range(b, a - 1, -1):\n"
        "    best = max(best, x * c)\nprint(best)\n"
    )


def test_a_positive_literal_may_be_a_negative_number_and_the_other_way_round() -> None:
    text = "A line goes through ({}, 0) with slope {}. Where does it meet the y axis?"
    known = instances(text, lambda x, m: -x * m, (-4, 6), (-9, 2), (-1, 12))
    template = check(
        find(text.format(-5, 3), "x = 5\nprint(- -3 * x)\n", known, Runs()),
        instances(text, lambda x, m: -x * m, (-6, 7), (4, 5)),
    )
    assert "x = -a" in template.program


def test_literals_inside_f_strings_are_bound_and_strings_are_left_alone() -> None:
    text = "How many whole boxes of {} do {} balls fill?"
    program = 'note = "12 balls, 120"\nprint(f"{120 // 12:3d} {120 // 12}")  # 12 balls\n'
    known = instances(text, lambda k, n: n // k, (7, 100), (3, 50), (9, 1000))
    template = check(
        find(text.format(12, 120), program, known, Runs()),
        instances(text, lambda k, n: n // k, (6, 77), (31, 9)),
    )
    assert '"12 balls, 120"' in template.program or "'12 balls, 120'" in template.program


def test_a_number_held_only_in_a_string_gives_no_template() -> None:
    text = "What is the sum of the digits of {} times {}?"

    def answer(n: int, k: int) -> int:
        return sum(map(int, str(n))) * k

    program = 'print(sum(int(d) for d in "2024") * 3)\n'
    known = instances(text, answer, (345, 2), (9071, 5), (88, 7))
    assert find(text.format(2024, 3), program, known, Runs()) is None


def test_a_parametric_program_is_its_own_template() -> None:
    program = """\
n = 120
m = 7
count = 0
for x in range(1, n + 1):
    if sum(int(d) for d in str(x)) % m == 0:
        count += 1
print(count)
"""
    known = instances(UP_TO, digits, (200, 3), (95, 4), (333, 9))
    template = find(UP_TO.format(120, 7), program, known, Runs())
    assert template is not None
    assert (template.program, template.shape) == (program, ("n", "m"))
    assert bind(template, UP_TO.format(55, 6)) == program.replace("120", "55").replace("7", "6")


def test_lines_that_name_numbers_move_to_the_top_in_the_order_of_the_statement() -> None:
    program = """\
import math
m = 7  # divides
n = 120
print(sum(1 for x in range(1, 121) if sum(map(int, str(x))) % m == 0))
"""
    known = instances(UP_TO, digits, (200, 3), (95, 4), (333, 9))
    template = check(
        find(UP_TO.format(120, 7), program, known, Runs()), instances(UP_TO, digits, (500, 11))
    )
    assert template.program.startswith("n = 120\nm = 7\nimport math\nprint(")
    assert "range(1, n + 1)" in template.program


def test_a_name_that_changes_later_is_kept_among_the_first_lines_and_nowhere_else() -> None:
    text = "Halve {} or add {} to it, {} times."

    def answer(s: int, a: int, n: int) -> int:
        for _ in range(n):
            s = s + a if s % 2 else s // 2
        return s

    program = """\
n = 56
s = 425
a = 87
for i in range(n):
    s = s + a if s % 2 else s // 2
print(s)
"""
    known = instances(text, answer, (300, 5, 9), (71, 33, 4), (999, 21, 12), (64, 7, 5))
    template = find(text.format(425, 87, 56), program, known, Runs())
    assert template is not None
    assert template.shape == ("s", "a", "n")
    assert template.program == "s = 425\na = 87\nn = 56\n" + program.split("\n", 3)[3]
    late = "t = []\n" + program
    template = check(
        find(text.format(425, 87, 56), late, known, Runs()), instances(text, answer, (88, 9, 6))
    )
    assert template.shape == ("b", "a", "n")
    assert "\ns = b\n" in template.program


@pytest.mark.parametrize(
    "program",
    [
        "n = 120\nn = 120 + n - 120 - 7\nprint(n)\n",
        "n = 1\nn = 120\nprint(n - 7)\n",
        "n = 120\nn = 7\nprint(120 - n)\n",
        "n = 120\nn = n + 1\nprint(n - 1 - 7)\n",  # bound twice
        "n = 120; k = 7\nprint(n - k)\n",  # two on a line
        "n, k = 120, 7\nprint(n - k)\n",
        "def f(n):\n    return n - 7\nn = 120\nprint(f(n))\n",  # the name means two things
        "from math import *\nn = 120\nprint(n - 7)\n",
        "a = 120\nprint(a - (lambda a: 7)(a))\n",
        "if True:\n    n = 120\nprint(n - 7)\n",
        "for a in [120]: print(a - 7)\n",
        "print(120 -7)\n",
        "def f():\n    return-7\nprint(120+f())\n",
        "print(120-7if 1 else 0)\n",
        "print(\n    120 -\n    7\n)\n",
        'é = "ü"; print(120 - 7)\n',
        "print(0x78 - 0b111)\n",
        "print(120 - 7)",
        "b = 1\na = 2\nprint(120 - 7 + a - b - 1)\n",
        "class A:\n    n = 120\nprint(A.n - 7)\n",
        "print(120 - 7)\r\n",
    ],
)
def test_whatever_the_layout_the_template_runs_and_shadows_nothing(program: str) -> None:
    text = "Take {1} from {0}."
    known = instances(text, lambda n, k: n - k, (50, 3), (10, 20), (99, 11))
    template = check(
        find("Take 7 from 120.", program, [(s, n) for s, n in known], Runs()),
        instances(text, lambda n, k: n - k, (77, 5), (3, 333), (0, 0), (5, 5)),
    )
    head = template.program.split("\n")[:2]
    assert [line.split(" = ")[1] for line in head] == ["7", "120"]


def test_a_literal_in_a_pattern_is_not_replaced_by_a_name_that_would_catch_everything() -> None:
    text = "What is {} modulo {}, with 7 for 0?"
    program = "match 21 % 7:\n    case 0: print(7)\n    case x: print(x)\n"
    known = instances(text, lambda n, m: n % m or 7, (22, 5), (20, 5), (40, 11))
    template = check(
        find(text.format(21, 7), program, known, Runs()),
        instances(text, lambda n, m: n % m or 7, (12, 6), (15, 4)),
    )
    assert "case 0: print(7)" in template.program


def test_every_number_that_varies_must_be_used() -> None:
    text = "{} hens lay {} eggs. How many hens?"
    known = instances(text, lambda h, e: h, (5, 2), (6, 3), (9, 7))
    assert find(text.format(4, 8), "print(4)\n", known, Runs()) is None


def test_a_number_that_never_varied_is_not_bound_and_its_change_is_refused() -> None:
    text = "What are the last 3 digits of {} squared?"
    known = instances(text, lambda n: n * n % 1000, (71,), (1234,), (999,))
    template = find(text.format(54), "print(54 ** 2 % 1000)\n", known, Runs())
    assert template is not None
    assert template.shape == (3, "a")
    with pytest.raises(TemplateMismatch, match="expected 3; found 2"):
        bind(template, "What are the last 2 digits of 71 squared?")


@pytest.mark.parametrize(
    "statement", ["How many?", "How many up to 5?", "How many up to 5, 6 and 7?"]
)
def test_another_count_of_numbers_is_refused(statement: str) -> None:
    template = Template("a = 1\nb = 2\nprint(a - b)\n", ("a", "b"))
    with pytest.raises(TemplateMismatch, match="another count"):
        bind(template, statement)


def test_a_reading_that_fails_the_check_is_not_replaced_by_another() -> None:
    text = "{} and {}?"
    # The instances of the search fit a sum; the one that is held apart does not.
    known = [*instances(text, lambda a, b: a + b, (1, 5), (8, 3)), ("4 and 9?", 36)]
    runs = Runs()
    assert find("2 and 7?", "print(2 + 7)\n", known, runs) is None
    few = runs.count
    known[-1] = ("4 and 9?", 13)
    assert find("2 and 7?", "print(2 + 7)\n", known, runs) is not None
    assert runs.count == 2 * few


def test_a_program_that_prints_nothing_of_use_has_no_template() -> None:
    text = "{} and {}?"
    known = instances(text, lambda a, b: a + b, (1, 5), (8, 3), (4, 4))
    for program in ("print('2 7')\n", "x = 2 + 7\n", "print(1/0, 2, 7)\n", "print(2 +\n", ""):
        assert find("2 and 7?", program, known, Runs()) is None


def test_hostile_programs_are_read_in_bounded_time_or_not_at_all() -> None:
    text = "{} and {}?"
    known = instances(text, lambda a, b: a * b + 1, (1, 5), (8, 3), (4, 4))
    runs = Runs()
    for program in (
        f"print({'(' * 500}2{')' * 500} + 7)\n",
        f"print({'-' * 4000}2 + 7)\n",
        "print(2 + 7)\n" * 3000,
        f"x = [{'2, 7, 3, 1, ' * 300}]\nprint(2 + 7)\n",
        f"print({'9' * 5000} + 2 + 7)\n",
        "print(2 + 7)\0",
        "print('\ud800', 2 + 7)\n",
        "print(2 + 7 + 3 + 8 + 1 + 6 + 14 + 9 - 5 + 15 - 13 + 4)\n",
    ):
        assert find("2 and 7?", program, known, runs) is None
    assert runs.count <= 8 * templates.MAX_TRIED * 2


def test_fewer_than_three_other_instances_are_refused() -> None:
    with pytest.raises(ValueError, match="3 other instances"):
        find("2?", "print(2)", [("3?", 3), ("4?", 4)], Runs())


def test_statements_with_other_counts_of_numbers_have_no_template() -> None:
    runs = Runs()
    known = [("3 and 4?", 7), ("4 and 5?", 9), ("6?", 6)]
    assert find("2 and 7?", "print(2 + 7)\n", known, runs) is None
    assert find("Two?", "print(2)\n", [("Three?", 3)] * 3, runs) is None
    assert find("2?", "print(2)\n", [("2?", 2)] * 3, runs) is None
    assert runs.count == 0


BODIES = ("{p} * x + {q}", "x % {p1} + {q} * {r}", "x * {pq} - {r}", "(x + {q}) // {p}")


@pytest.mark.parametrize("body", BODIES)
def test_a_template_agrees_with_instances_drawn_later_or_is_not_given(body: str) -> None:
    text = "Numbers {} and {} and {}?"

    def code(p: int, q: int, r: int) -> str:
        line = body.format(p=p, q=q, r=r, p1=p + 1, pq=p * q)
        return f"t = 0\nfor x in range(1, {r + 1}):\n    t += {line}\nprint(t % {p + q})\n"

    def answer(p: int, q: int, r: int) -> int:
        return run(code(p, q, r)) or 0

    draw = generator("templates", body)
    given = 0
    for _ in range(12):
        first, *others = (tuple(row) for row in draw.integers(3, 40, (20, 3)).tolist())
        known = instances(text, answer, *others[:9])
        template = find(text.format(*first), code(*first), known, Runs())
        if template is not None:
            check(template, instances(text, answer, *others[9:]))
            given += 1
    assert given >= 10


def test_a_template_survives_json_and_a_damaged_one_is_refused() -> None:
    template = Template("a = 1\nb = -2\nprint(a - b)\n", ("a", 7, "b", "a"))
    assert Template.from_json(template.to_json()) == template
    for damaged in (
        {},
        {"program": "a = 1\n", "shape": ["a", 1.5]},
        {"program": "a = 1\n", "shape": ["a", True]},
        {"program": "a = 1\n", "shape": "a"},
        {"program": "print(1)\n", "shape": ["a"]},
        {"program": "a = 1\nb = 2\n", "shape": ["b", "a"]},
        {"program": "a = f(1)\n", "shape": ["a"]},
    ):
        with pytest.raises(UnusableInput):
            Template.from_json(damaged)


def test_an_f_string_whose_literal_cannot_be_edited_in_place_is_written_out_anew() -> None:
    code = template_code.read('print(f"""é {1 +\n 2} {3=}""")\n')
    assert code is not None
    assert sorted(slot.value for slot in code.slots) == [1, 2, 3]
    texts = [{1: "a", 2: "b * 2", 3: "-c"}[slot.value] for slot in code.slots]
    made = template_code.rewrite(code, texts, {"a": 4, "b": 5, "c": 6})
    assert made is not None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(made, {})
    assert out.getvalue().split() == ["é", "14", "3=-6"]


def test_booleans_and_floats_are_no_integer_literals() -> None:
    code = template_code.read("x = True + 2.0 + 3j + 4\nassert math.inf\n")
    assert code is not None
    assert [slot.value for slot in code.slots] == [4]
