"""What the flywheel writes can be read back: programs, numbers, and answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.flywheel import prompts
from kvaudit.flywheel.prompts import first_integer, numbers, read_answer, read_program
from kvaudit.problems.family import Instance, instance
from kvaudit.problems.registry import FAMILIES

NINES = "9" * 18


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def problem(request: pytest.FixtureRequest) -> Instance:
    return instance(request.param, "prompts")


# -- texts ----------------------------------------------------------------------------------------


def test_a_block_holds_problem_numbers_program_and_answer(problem: Instance) -> None:
    program = problem.family.program(problem.params)
    text = prompts.block_text(problem.statement, f"\n{program}\n\n", problem.answer)
    assert text == prompts.block_text(problem.statement, program, problem.answer)
    lines = text.splitlines()
    assert lines[0] == f"Problem: {problem.statement}"
    assert lines[1] == f"Numbers: {', '.join(map(str, problem.key))}"
    assert lines.count(f"Verified answer: {problem.answer}") == 2
    assert read_program(text.split("Program:\n")[1].split(prompts.STOP)[0]) == program
    assert text.endswith(f"\nVerified answer: {problem.answer}\n")


def test_a_demonstration_goes_on_where_a_block_ends(problem: Instance) -> None:
    program = problem.family.program(problem.params)
    text = prompts.demonstration_text(problem.statement, program, problem.answer)
    assert text.startswith(prompts.problem_text(problem.statement))
    question = prompts.adapt_text(problem.statement)
    assert text.startswith(question)
    assert read_program(text[len(question) :].split(prompts.STOP)[0]) == program
    question = prompts.recall_text(problem.statement, program)
    assert text.startswith(question)
    assert first_integer(text[len(question) :]) == problem.answer


def test_questions_begin_alike_and_end_where_the_answer_follows(problem: Instance) -> None:
    program = problem.family.program(problem.params)
    head = prompts.problem_text(problem.statement)
    recall, adapt = (
        prompts.recall_text(problem.statement, program),
        prompts.adapt_text(problem.statement),
    )
    assert recall.startswith(adapt)
    assert adapt.startswith(head)
    assert recall.endswith(f"{program}\nVerified answer:")
    assert adapt.endswith("\nProgram:\n")
    assert prompts.direct_text(problem.statement).endswith("\nAnswer:")
    assert prompts.code_text(problem.statement).endswith("\n```python\n")
    for question in (recall, adapt, head):
        assert str(problem.answer) not in question.replace(problem.statement, "").replace(
            program, ""
        )


def test_the_numbers_of_a_statement_are_its_parameters(problem: Instance) -> None:
    assert numbers(problem.statement) == problem.key


def test_a_statement_without_numbers_has_no_line_of_them() -> None:
    assert prompts.numbers_line("Which polygons tile the plane?") == ""
    assert prompts.adapt_text("Why?") == "\nProblem: Why?\nProgram:\n"
    assert prompts.numbers_line("Add 1,200 and -3.") == "Numbers: 1200, -3\n"


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("up to 1,000 by 7, 13 and 91.", (1000, 7, 13, 91)),
        ("1,234,567 and 12,34 and 0,100", (1234567, 12, 34, 0, 100)),
        ("3.5 m, 2.25, 1.2.3 and 4.", (4,)),
        ("2n + 1 of the 3rd, x2, A1, x_3, 50%", (2, 1, 3, 50)),
        ("(-3, 7), n-3, 10 - 3, 4-5, −8, $-9$", (-3, 7, 3, 10, 3, 4, 5, -8, -9)),
        ("$2^{10}$, 1/2, \\frac{3}{4}", (2, 10, 1, 2, 3, 4)),
        ("007 and " + "9" * 30, (7,)),
        ("no number, not even ٣ or ²", ()),
        ("", ()),
    ],
)
def test_the_numbers_of_a_statement(statement: str, expected: tuple[int, ...]) -> None:
    assert numbers(statement) == expected


@given(st.lists(st.integers(-(10**17), 10**17), max_size=8))
def test_whatever_number_is_written_is_read(found: list[int]) -> None:
    assert numbers("Of " + ", ".join(map(str, found)) + ".") == tuple(found)


@given(st.text(max_size=60))
def test_any_text_has_numbers(statement: str) -> None:
    assert all(abs(number) < 10**prompts.MAX_DIGITS for number in numbers(statement))


def test_a_statements_numbers_are_read_where_an_answer_would_not_be() -> None:
    assert numbers("On the 3rd day, 2n + 1 of (3,7).") == (3, 2, 1, 3, 7)
    assert read_answer("It is 12, on the 3rd day") == 12
    assert read_answer("It is 1,234,5") == 12345


# -- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("no number", ()),
        ("7", (7,)),
        ("007", (7,)),
        ("7 and 13, then 21.", (7, 13, 21)),
        ("1,234 and 12,345,678", (1234, 12345678)),
        ("(5) [6] {7} 8; 9: 10!", (5, 6, 7, 8, 9, 10)),
        ("the end is 12.", (12,)),
        ("12. 13", (12, 13)),
        ("3.14 is no integer", ()),
        ("31.4, 0.5, .5 and 5", (5,)),
        ("1.2.3", ()),
        ("-4", (-4,)),
        ("from -4 to 4", (-4, 4)),
        ("= -4", (-4,)),
        ("9-4", (9, 4)),
        ("n-4", (4,)),
        ("--4", (-4,)),
        ("-0", (0,)),
        ("x2, 2x, 2nd and a_3", ()),
        ("2^10 + 3*4 / 5 = 6%", (2, 10, 3, 4, 5, 6)),
        ("1e5", ()),
        ("0x1F", ()),
        ("5\n6\t7", (5, 6, 7)),
        (NINES, (int(NINES),)),
        (f"-{NINES}", (-int(NINES),)),
        (f"{NINES}9 and 5", (5,)),
        (f"-{NINES}9 and 5", (5,)),
        ("0" * 17 + "5", (5,)),
        ("0" * 18 + "5", ()),
        ("9" * 10_000, ()),
    ],
)
def test_the_answer_of_a_text_is_the_last_integer_it_names(
    text: str, found: tuple[int, ...]
) -> None:
    assert read_answer(text) == (found[-1] if found else None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (" 42", 42),
        (" 42\nProblem: 43", 42),
        ("42.", 42),
        ("42. The rest", 42),
        ("-42", -42),
        ("007", 7),
        ("0", 0),
        (NINES, int(NINES)),
        (f"-{NINES}", -int(NINES)),
        (f"{NINES}9", None),
        ("0" * 19, None),
        ("", None),
        (" \n ", None),
        (".", None),
        ("The answer is 42", None),
        ("42, I think", None),
        ("1,234", None),
        ("42.5", None),
        ("- 42", None),
        ("+42", None),
        ("4_2", None),
        ("42abc", None),
        ("**42**", None),
    ],
)
def test_a_recalled_answer_is_the_first_word(text: str, found: int | None) -> None:
    assert first_integer(text) == found


# -- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("print(1)", "print(1)"),
        ("\nprint(1)\n\n", "print(1)"),
        ("    print(1)", "    print(1)"),
        ("", ""),
        ("```python\nprint(1)\n```\nIt prints 1.", "print(1)"),
        ("Here it is:\n```\nprint(1)\n```", "print(1)"),
        ("```python\nprint(1)\n", "print(1)"),
        ("```python\nprint(1)\n```\n```python\nprint(2)\n```", "print(1)"),
        ("print(1)\n```", "print(1)\n```"),
        ("```Python\nprint(1)```", "```Python\nprint(1)```"),
        ("`print(1)`", "`print(1)`"),
    ],
)
def test_a_program_is_read_from_a_generation(text: str, program: str) -> None:
    assert read_program(text) == program


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("How many?", "How many?", True),
        ("How many?", " how\n  MANY? ", True),
        ("How many?", "How many", False),
        ("Add 5 and 6.", "Add 6 and 5.", False),
        ("Straße", "STRASSE", True),
    ],
)
def test_statements_are_one_but_for_spaces_and_case(first: str, second: str, same: bool) -> None:
    assert prompts.same_statement(first, second) is same
    assert prompts.same_statement(second, first) is same
