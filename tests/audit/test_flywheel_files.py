"""Problems of a user's files: how they are chosen, split, routed and judged."""

from __future__ import annotations

from typing import Any

import flywheel_rows
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.errors import UnusableInput
from kvaudit.flywheel import answers, check_files, file_tables, files, plan, wording
from kvaudit.flywheel.figures import Found
from kvaudit.flywheel.files import FileProblem
from kvaudit.flywheel.records import GENERATIONS, PROBLEMS

ENTRY: dict[str, Any] = {"name": "mine", "path": "f", "form": "livebench", "sha256": "0" * 64}
SPLIT = {**ENTRY, "split": "2024-06-01"}


def problem(number: int, release: str | None = None, answer: answers.Answer = 7) -> FileProblem:
    return FileProblem(f"q{number}", f"How many are {number}?", answer, release, "task")


@given(
    st.lists(st.sampled_from(["2024-05-31", "2024-06-01", "2025-01-01"]), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_both_sides_are_disjoint_dated_bounded_and_chosen_alike_a_second_time(
    dates: list[str], library: int, problems: int
) -> None:
    listed = [problem(n, date) for n, date in enumerate(dates)]
    entry = {**SPLIT, "library": library, "problems": problems}
    old = [date < "2024-06-01" for date in dates]
    if all(old) or not any(old):
        with pytest.raises(UnusableInput, match="no problem for the"):
            files.rows(entry, listed)
        return
    rows = files.rows(entry, listed)
    sides = [row["release"] < "2024-06-01" for row in rows]
    assert sides == sorted(sides, reverse=True)
    assert sum(sides) == min(library, sum(old))
    assert len(rows) - sum(sides) == min(problems, len(old) - sum(old))
    assert [row["role"] == files.LIBRARY for row in rows] == sides
    assert len({row["name"] for row in rows}) == len(rows)
    assert [*check_files.problems([entry], rows)] == []


def test_a_problem_whose_words_the_library_has_is_not_asked_again() -> None:
    old, new = problem(1, "2024-01-01"), problem(2, "2025-01-01")
    again = FileProblem("other", "  how MANY are 1? ", 8, "2025-01-01", "task")
    names = [row["name"] for row in files.rows(SPLIT, [old, again, new])]
    assert names == ["mine/q1", "mine/q2"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("How many \u00e9clairs are 3?", "How many e\u0301clairs are 3?"),
        ("How many are 3?", "How\u200b many are\u00ad 3?"),
        ("How many are 3?", "How\u200bmany are 3?"),
        ("How many are 3?", "How many are 3 ?."),
        ("How many are 3", "Ｈow many are ３"),
        ("Find $x + 1$, then stop.", "Find x+1 then stop."),
        ("Find \\(x\\).", "*Find* **x**"),
        ("Say \u201cyes\u201d.", 'SAY "yes"'),
    ],
)
def test_a_statement_in_another_dress_is_not_asked_again(old: str, new: str) -> None:
    """Neither behind a library that has it, nor twice in one test, nor twice in a library."""
    one = FileProblem("one", old, 7, "2024-01-01", "task")
    other = FileProblem("other", new, 7, "2025-01-01", "task")
    assert old != new
    held = files.rows(SPLIT, [one, other, problem(5, "2025-01-01")])
    assert [row["name"] for row in held] == ["mine/one", "mine/q5"]
    assert [row["name"] for row in files.rows(ENTRY, [one, other])] == ["mine/one"]
    again = FileProblem("again", new, 7, "2024-01-02", "task")
    held = files.rows(SPLIT, [one, again, problem(5, "2025-01-01")])
    assert [row["name"] for row in held] == ["mine/one", "mine/q5"]
    assert [*check_files.problems([SPLIT], held)] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 5!?", "What is 5?"),
        ("What is f'(2)?", "What is f(2)?"),
        ("What is 3-2?", "What is 3+2?"),
        ("What is 2*3*4?", "What is 234?"),
        ("Sort 1 2 3", "Sort 12 3"),
        ("What is 1.5?", "What is 15?"),
        ("What is x_1?", "What is x1?"),
    ],
)
def test_statements_that_ask_for_something_else_are_two(one: str, other: str) -> None:
    listed = [FileProblem(text, text, 7, None, "task") for text in (one, other)]
    assert len(files.rows(ENTRY, listed)) == 2


def test_a_duplicate_leaves_its_place_to_the_next_problem() -> None:
    listed = [problem(1), FileProblem("twin", "how many are 1", 7, None, "task"), problem(2)]
    names = [row["name"] for row in files.rows({**ENTRY, "problems": 2}, listed)]
    assert names == ["mine/q1", "mine/q2"]


def _without_four(held: list[dict[str, Any]]) -> None:
    del held[-4:]


def _other_answer(held: list[dict[str, Any]]) -> None:
    held[3]["answer"] = 99


def _other_statement(held: list[dict[str, Any]]) -> None:
    held[0]["statement"] += " And more?"


def _none(held: list[dict[str, Any]]) -> None:
    held.clear()


@pytest.mark.parametrize("change", [_without_four, _other_answer, _other_statement, _none])
def test_rows_that_were_chosen_after_the_registration_are_found(change: Any) -> None:
    """Those that are left follow the plan; only the registered digest knows of the others."""
    old = [problem(n, "2024-01-01") for n in range(3)]
    held = files.rows(SPLIT, [*old, *(problem(n, "2025-01-01") for n in range(3, 9))])
    inputs = {"problem_files": files.rows_digests(held)}
    head = flywheel_rows.head("flywheel-problem")
    assert [*check_files.registered([{**head, **row} for row in held], inputs)] == []
    change(held)
    assert not held or [*check_files.problems([SPLIT], held)] == []
    (found,) = check_files.registered(held, inputs)
    assert found == "mine: its problems are not those that inputs.manifest.json registers"


def test_a_file_that_was_never_registered_is_found() -> None:
    held = files.rows(ENTRY, [problem(1)])
    assert len([*check_files.registered(held, {})]) == 1
    assert [*check_files.registered([], {})] == [], "a run that asks no file registers none"


def test_an_integer_that_json_cannot_hold_is_an_answer_in_words() -> None:
    (row,) = files.rows(ENTRY, [problem(1, answer=10**17 + 1)])
    assert row["answer"] == "100000000000000001"


def test_without_a_split_all_are_asked_and_there_is_no_block() -> None:
    rows = files.rows(ENTRY, [problem(n) for n in range(3)])
    asked = files.questions(rows, flat_blocks=2)
    assert asked["file-direct"] == asked["file-code"] == [(f"mine/q{n}", ()) for n in range(3)]
    assert asked["file-recall"] == asked["file-routed"] == asked["file-flat"] == []


def test_every_problem_is_asked_behind_its_block_and_behind_the_group_that_holds_it() -> None:
    things = ("apples", "birds", "clocks", "dice", "eggs")
    old = [FileProblem(one, f"Count {one}.", 7, "2024-01-01", "task") for one in things]
    new = [
        FileProblem(f"new-{one}", f"Are {one} many?", "yes", "2025-01-01", "task")
        for one in ("eggs", "birds", "stones")
    ]
    asked = files.questions(files.rows(SPLIT, [*old, *new]), flat_blocks=2)
    birds, eggs = "mine/new-birds", "mine/new-eggs"  # of stones no block says a word
    assert asked["file-routed"] == [(birds, ("mine/1",)), (eggs, ("mine/4",))]
    assert asked["file-flat"] == [(birds, ("mine/0", "mine/1")), (eggs, ("mine/4",))]
    assert asked["file-code"] == [], "answers in words are not asked by program"


def test_a_problem_that_is_led_to_no_block_counts_as_not_solved_behind_one() -> None:
    """Three problems of the test, of which one has no word of the library; all answers right."""
    old = [FileProblem(one, f"Count {one}.", 7, "2024-01-01", "task") for one in ("dice", "eggs")]
    new = [
        FileProblem(f"new-{one}", f"Are {one} many?", 7, "2025-01-01", one)
        for one in ("dice", "eggs", "stones")
    ]
    held = files.rows(SPLIT, [*old, *new])
    asked = files.questions(held, flat_blocks=2)
    problems = {row["name"]: {**flywheel_rows.head("flywheel-problem"), **row} for row in held}
    said = [
        flywheel_rows.said(arm, problems[name], 7, deposits=[*blocks])
        for arm, questions in asked.items()
        for name, blocks in questions
    ]
    rows = {**flywheel_rows.rows_of(), PROBLEMS: [*problems.values()], GENERATIONS: said}
    (table,) = file_tables.tables(Found(flywheel_rows.MODEL, rows))
    counts = {arm: (table[arm]["right"], table[arm]["n"]) for arm in ("direct", "routed", "flat")}
    assert counts == {"direct": (3, 3), "routed": (2, 3), "flat": (2, 3)}
    assert table["routed"]["generations"] == table["flat"]["generations"] == 2
    assert table["routed_direct"]["mcnemar"]["only_second"] == 1
    assert table["categories"][-1]["routed"]["n"] == 1
    words = wording.files([table])
    assert "file mine (rows of the file not checked here): 3/3 alone" in words
    assert "2/3 routed and 2/3 flat (2 led to a block)" in words


def test_a_file_without_a_library_has_nothing_behind_blocks() -> None:
    (row,) = files.rows(ENTRY, [problem(1)])
    row = {**flywheel_rows.head("flywheel-problem"), **row}
    said = [flywheel_rows.said(arm, row, 7, deposits=[]) for arm in ("file-direct", "file-code")]
    rows = {**flywheel_rows.rows_of(), PROBLEMS: [row], GENERATIONS: said}
    (table,) = file_tables.tables(Found(flywheel_rows.MODEL, rows))
    counts = [table[arm]["n"] for arm in ("direct", "code", "recall", "routed", "flat")]
    assert counts == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("said", "wanted", "right"),
    [
        ("Yes,no , YES.", "yes, no, yes", True),
        (" **police-officer**", "police-officer", True),
        ("$\\frac{1}{2}$", "\\frac{1}{2}", True),
        ("yes, no", "yes, no, yes", False),
        ("", "yes", False),
        ("The answer is 25", 25, True),
        ("25th", 25, False),
        ("25", "25", True),
        ("23", "2*3", False),
        ("210", "2**10", False),
        ("xy", "x*y", False),
        ("2*3", "2*3", True),
        ("**2*3**", "2*3", True),
        ("(a)(b)", "(a)*(b)", False),
        ("2 3", "2 * 3", False),
        ("a", "a*", False),
        ('**`"Yes."`**.', "yes", True),
        ("**yes**, `no`.", "yes, no", True),
        ("$$x$$", "x", True),
        ("$5 and $6", "5 and 6", False),
    ],
)
def test_words_count_where_they_are_the_same_but_for_case_and_marks(
    said: str, wanted: answers.Answer, right: bool
) -> None:
    assert answers.is_right(answers.read("file-direct", said, wanted), wanted) is right


@given(
    st.one_of(st.text(max_size=300), st.text('a1 *$"`.,(', max_size=300)),
)
def test_what_is_read_of_words_is_one_line_and_is_read_the_same_again(text: str) -> None:
    found = answers.read("file-direct", text, "yes")
    assert found is None or (isinstance(found, str) and len(found) <= answers.MAX_WORDS)
    if isinstance(found, str):
        assert "\n" not in found
        assert answers.is_right(found, found)
        assert answers.words(answers.words(text)) == answers.words(text)
        assert answers.is_right(answers.read("file-direct", found, found), found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": [ENTRY, ENTRY]}, "mine is the name of another file or family"),
        ({"files": [{**ENTRY, "name": "snail-in-well"}]}, "snail-in-well is the name of"),
        ({"arms": ["admission-with"]}, "admission-alone, admission-with are asked together"),
        ({"arms": ["solved-alone"]}, "solved-card are asked together"),
        ({"arms": ["recall-text"]}, "recall-text needs recall"),
        ({"arms": ["router"]}, "router needs admission-with"),
    ],
)
def test_a_section_that_does_not_fit_together_is_said_to_be_so(
    change: dict[str, Any], message: str
) -> None:
    section = {**dict.fromkeys(plan._KEYS, 2), "growth": [1, 2]}
    assert [*plan.section_problems({**section, "arms": [], "files": [ENTRY]})] == []
    (found,) = plan.section_problems({**section, **change})
    assert message in found
