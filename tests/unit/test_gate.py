"""The gate lets a program through whose integers alone changed, each to the query's own."""

from __future__ import annotations

import pytest

from kvaudit.flywheel.gate import MAX_CHARACTERS, Gate, judge

KNOWN = "How many of the first 120 numbers are multiples of 7 or of 13?"
ASKED = "How many of the first 90 numbers are multiples of 4 or of 11?"
BASE = """\
n = 120
a = 7
b = 13
t = 0
for x in range(1, n + 1):
    if x % a == 0 or x % b == 0:
        t += 1
print(t)"""


def bound(n: int, a: int, b: int) -> str:
    return BASE.replace("120", str(n)).replace("= 7", f"= {a}").replace("13", str(b))


HARD = "print(sum(x % 7 == 0 or x % 13 == 0 for x in range(1, 121)))"
DEEP = "print(" + " + ".join(["1"] * 3000) + ")"
NESTED = "print(" + "(" * 20 + "1" + ")" * 20 + ")"


CASES: dict[str, tuple[str, Gate]] = {
    "numbers in their places": (bound(90, 4, 11), "passed"),
    "spaces, comments and empty lines": (
        "# new\n\n" + bound(90, 4, 11).replace(" = ", "=") + "  # x\n",
        "passed",
    ),
    "an integer written otherwise": (bound(90, 4, 11).replace("90", "0x5A"), "passed"),
    "the block's own numbers": (BASE, "unbound"),
    "one number left as it was": (bound(90, 7, 11), "unbound"),
    "two numbers swapped": (bound(90, 11, 4), "unbound"),
    "all numbers turned round": (bound(4, 11, 90), "unbound"),
    "a number that nobody asked for": (bound(91, 4, 11), "unbound"),
    "a negative number": (bound(90, -4, 11), "shape"),
    "another name": (bound(90, 4, 11).replace("t", "s").replace("prins", "print"), "shape"),
    "another operator": (bound(90, 4, 11).replace(" or ", " and "), "shape"),
    "one more line": (bound(90, 4, 11) + "\nprint(t)", "shape"),
    "one line less": (bound(90, 4, 11).replace("\nb = 11", ""), "shape"),
    "a fraction for an integer": (bound(90, 4, 11).replace("= 4", "= 4.0"), "shape"),
    "a truth value for an integer": (bound(90, 4, 11).replace("= 4", "= True"), "shape"),
    "a text for an integer": (bound(90, 4, 11).replace("= 4", '= "4"'), "shape"),
    "the answer alone": ("print(28)", "shape"),
    "only a comment": ("# 90, 4, 11", "shape"),
    "words": ("The answer is 28.", "no program"),
    "cut short": (bound(90, 4, 11)[:-2], "no program"),
    "nothing": ("", "no program"),
    "empty lines": (" \n\t\n", "no program"),
    "a zero byte": (bound(90, 4, 11) + "\0", "no program"),
    "half a character": (bound(90, 4, 11) + "#\udc80", "no program"),
    "too many digits for an integer": (bound(90, 4, 11).replace("90", "9" * 5000), "no program"),
    "too long": (bound(90, 4, 11) + " " * MAX_CHARACTERS, "no program"),
    "a sum of 3000 terms": (DEEP, "no program"),
    "parentheses 20 deep": (NESTED, "shape"),
    "lists 500 deep": ("[" * 500 + "]" * 500, "no program"),
    "signs 3000 deep": ("print(" + "-" * 3000 + "1)", "no program"),
    "other letters": (bound(90, 4, 11).replace("t ", "τ "), "shape"),
    "other letters in a comment": (bound(90, 4, 11) + "  # größer als 数", "passed"),
    "other digits": (bound(90, 4, 11).replace("90", "９０"), "no program"),
    "a name that Python folds": (
        bound(90, 4, 11).replace("print", "\uff50rint"),
        "passed",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_judged(name: str) -> None:
    program, judgement = CASES[name]
    assert judge(program, ASKED, BASE, KNOWN) == judgement
    assert judge(program, ASKED, BASE, KNOWN) == judgement


def test_a_program_of_the_largest_length_is_judged() -> None:
    program = bound(90, 4, 11)
    assert judge(program + " " * (MAX_CHARACTERS - len(program)), ASKED, BASE, KNOWN) == "passed"


def test_a_block_that_is_no_program_lets_nothing_pass() -> None:
    for base in ("", "Problem: none.", DEEP):
        assert judge(bound(90, 4, 11), ASKED, base, KNOWN) == "no program"
        assert judge(base, ASKED, base, KNOWN) == "no program"


def test_a_deep_program_is_judged_alike_whoever_asks() -> None:
    def asked_from(depth: int, program: str, base: str) -> Gate:
        if depth:
            return asked_from(depth - 1, program, base)
        return judge(program, "none", base, "none")

    for n, judgement in ((80, "passed"), (150, "no program"), (900, "no program")):
        for program in (f"print({'-' * n}1)", f"print({'+'.join(['1'] * n)})"):
            assert asked_from(0, program, program) == judgement
            assert asked_from(300, program, program) == judgement
            other = "shape" if judgement == "passed" else judgement
            assert asked_from(300, program, "print(1)") == other


@pytest.mark.filterwarnings("error")
def test_a_program_of_which_python_warns_is_judged_like_any_other() -> None:
    program = 'print(len("\\d"), {})'
    assert judge(program.format(8), "Of 8?", program.format(5), "Of 5?") == "passed"


# -- where the numbers stand ----------------------------------------------------------------------


def two(first: int, second: int) -> str:
    return f"a = {first}\nb = {second}\nprint(a * b // 2)"


PLACES: dict[str, tuple[str, str, str, str, Gate]] = {
    # Known statement, its program, the query, the adapted program.
    "equal numbers that stay equal": ("5 and 5", two(5, 5), "8 and 8", two(8, 8), "passed"),
    "equal numbers that part": ("5 and 5", two(5, 5), "8 and 9", two(8, 9), "passed"),
    "equal numbers, only one of them changed": (
        *("5 and 5", two(5, 5), "8 and 8", two(8, 5), "unbound"),
    ),
    "numbers that become equal": ("5 and 6", two(5, 6), "8 and 8", two(8, 8), "passed"),
    "numbers that become equal, one left": ("5 and 6", two(5, 6), "8 and 8", two(8, 6), "unbound"),
    "the known numbers the other way round": ("5 and 6", two(5, 6), "6 and 5", two(6, 5), "passed"),
    "the known numbers, not turned round": ("5 and 6", two(5, 6), "6 and 5", two(5, 6), "unbound"),
    "a number that is asked for again": ("5 and 6", two(5, 6), "5 and 9", two(5, 9), "passed"),
    "one constant equal to a number": ("2 and 7", two(2, 7), "9 and 4", two(9, 4), "passed"),
    "that constant not changed back": (*("2 and 7", two(2, 7), "9 and 4", two(9, 7), "unbound"),),
    "negative numbers": (*("-5 and 6", two(-5, 6), "-8 and 9", two(-8, 9), "passed"),),
    "a sign that goes": ("-5 and 6", two(-5, 6), "8 and 9", two(8, 9), "shape"),
    "a number without a place, unchanged": (
        *("1 of 5 and 6", two(5, 6), "1 of 8 and 9", two(8, 9), "passed"),
    ),
    "a number without a place, changed": (
        *("1 of 5 and 6", two(5, 6), "3 of 8 and 9", two(8, 9), "unbound"),
    ),
    "numbers changed inside the code": (KNOWN, HARD, ASKED, HARD, "unbound"),
    "more numbers than known, all of them there": (
        *("5 and 6", two(5, 6), "8, 9 and 2", two(8, 9), "passed"),
    ),
    "more numbers than known": ("5 and 6", two(5, 6), "8, 9 and 3", two(8, 9), "unbound"),
    "the same number more often than it stands": (
        *("5 and 6", two(5, 6), "8, 8 and 8", two(8, 8), "unbound"),
    ),
    "fewer numbers than known": ("5 and 6", two(5, 6), "only 8", two(8, 6), "passed"),
    "no numbers at all": ("none", "print(4)", "none", "print(4)", "passed"),
    "no numbers asked": ("none", "print(4)", "none", "print(5)", "passed"),
}


@pytest.mark.parametrize("name", PLACES)
def test_every_number_stands_where_its_counterpart_stood(name: str) -> None:
    known, base, asked, program, judgement = PLACES[name]
    assert judge(program, asked, base, known) == judgement


def test_a_constant_equal_to_a_number_may_take_its_place() -> None:
    """Which of two equal integers stands for the number cannot be read off one problem: the
    program is run, and may print a wrong answer. This is the gate's known limit.
    """
    program = two(2, 4).replace("// 2", "// 9")
    assert judge(program, "9 and 4", two(2, 7), "2 and 7") == "passed"
