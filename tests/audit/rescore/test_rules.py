"""The rules of docs/rescoring.md, each held to the cases of its tables."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from kvaudit.rescore import equality, expression, extract, symbolic
from kvaudit.rescore.equality import Judged, Oracle

PAGE = Path(__file__).parents[3] / "docs" / "rescoring.md"
VERDICTS = {"same": True, "other": False, "open": None}


def table(letter: str) -> list[tuple[str, ...]]:
    """The rows of the page's tables whose first cell is a rule of that letter."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if re.fullmatch(rf"\|?\s*{letter}\d+", cells[0]):
            found.append(tuple(c[1:-1] if c.startswith("`") else c.strip(" |") for c in cells[1:]))
    return found


EXTRACTED, JUDGED = table("E"), table("N")


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    """Every case of the page, with one round of the sandbox."""
    oracle = Oracle()
    for gold, answer, _ in JUDGED:
        equality.compare(gold, answer, oracle)
    known = Oracle(symbolic.decide(oracle.asked, 2))
    return [equality.compare(gold, answer, known) for gold, answer, _ in JUDGED]


def test_the_page_has_cases_for_every_rule_that_it_names() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"\*\*([EN]\d+)", text))
    cases = set(re.findall(r"^\| ([EN]\d+) \|", text, re.MULTILINE))
    assert named - cases == {"E4"}, "what was printed is no part of a text; it has its own test"
    assert len(JUDGED) > 80


@pytest.mark.parametrize(("text", "answer"), EXTRACTED)
def test_an_answer_is_found_where_the_page_says(text: str, answer: str) -> None:
    assert extract.extract(text).text == answer.strip("`")


@pytest.mark.parametrize("index", range(len(JUDGED)), ids=[f"{g} = {a}"[:50] for g, a, _ in JUDGED])
def test_two_answers_are_equal_where_the_page_says(judged: list[Judged], index: int) -> None:
    assert judged[index].same is VERDICTS[JUDGED[index][2]], judged[index].why


@pytest.mark.parametrize("index", range(len(JUDGED)), ids=[f"{a} = {g}"[:50] for g, a, _ in JUDGED])
def test_equality_that_needs_no_algebra_has_no_sides(index: int) -> None:
    gold, answer, verdict = JUDGED[index]
    if "{ABC}" in gold or gold == "B":
        pytest.skip("a gold of one letter is compared by its own rule")
    oracle = Oracle()
    back = equality.compare(answer, gold, oracle)
    if not oracle.asked and "+ C" not in answer:
        assert back.same is VERDICTS[verdict]


def test_what_a_program_printed_is_the_answer_of_a_text_without_one() -> None:
    text = "```python\nprint(4.0)\n```\n```output\n4.0\n```\nFour containers were imported."
    assert extract.extract(text, printed="3\n4.0\n") == extract.Answer("4.0", "printed")
    assert extract.extract(text + " \\boxed{5}", printed="4.0").text == "5"


def test_numbers_of_a_program_are_not_the_last_number() -> None:
    assert extract.extract("It is 3.\n```python\nx = 12\n```\n").text == "3"
    assert extract.extract("```python\nx = 12\n").rule == "none"


def test_nothing_is_asked_of_algebra_that_is_rational() -> None:
    oracle = Oracle()
    for gold, answer in (("540", r"\sqrt{324^2+(-432)^2}"), ("025", "25"), (r"\frac12", "0.5")):
        assert equality.compare(gold, answer, oracle).why == "exactly"
    assert not oracle.asked


def test_an_open_comparison_of_a_list_leaves_the_list_open() -> None:
    oracle = Oracle()
    assert equality.compare("1, \\sqrt{2}", "1, 2^{1/2}", oracle).same is None
    assert oracle.asked


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "open('/etc/passwd').read()",
        "().__class__.__bases__[0]",
        "lambda: 1",
        "\\input{/etc/passwd}",
        "\\def\\a{\\a}\\a",
    ],
)
def test_foreign_text_is_words_or_a_tree_and_never_runs(text: str) -> None:
    try:
        tree = expression.parse(text)
    except expression.Unreadable:
        return
    assert expression.names(tree)


def test_one_pair_that_takes_too_long_leaves_the_others_decided() -> None:
    started = time.monotonic()
    huge: expression.Tree = ["!", ["n", "900000000"]]
    pairs = {
        ("a", "huge"): (huge, ["*", huge, ["+", ["n", "1"], ["^", ["pi"], ["n", "0"]]]]),
        ("b", "quick"): (expression.parse("\\sqrt{8}"), expression.parse("2\\sqrt{2}")),
    }
    found = symbolic.decide(pairs, 1)
    assert found["b", "quick"].same is True
    assert found["a", "huge"].same is None
    assert time.monotonic() - started < 60
