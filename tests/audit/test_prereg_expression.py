"""The language of criteria: what it accepts, what it says, and that it always comes to an end."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.prereg import evaluate, expression, fields
from kvaudit.prereg.errors import ExpressionInvalid, FieldMissing

SUMMARIES: dict[str, dict[str, Any]] = {
    "exactness/a": {"n": 4, "half": 0.5, "none": None, "yes": True, "name": "x", "list": [1, 2, 3]},
    "cost/b.c-2": {
        "rows": [
            {"tokens": 8, "ratio": 2.5, "deep": [{"v": 1}, {"v": 2}]},
            {"tokens": 512, "ratio": 40, "deep": [{"v": 3}, {"v": 4}]},
        ],
        "empty": [],
        "by": {"512": 1, "a-b": 2},
    },
}


def value(text: str) -> Any:
    return evaluate._value(expression.parse(text), SUMMARIES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exactness/a: n == 4", True),
        ("exactness/a: n == 4.0 and not half > 1", True),
        ("exactness/a: n != 4 or n < 1", False),
        ("exactness/a: 1 + 2 * 3 - 4 / 2", 5),
        ("exactness/a: -n + -(-half)", -3.5),
        ("exactness/a: (1 + 2) * 3 == 9 and yes", True),
        ('exactness/a: name == "x"', True),
        ("exactness/a: list[2] - list[0]", 2),
        ("exactness/a: sum(list) / len(list)", 2),
        ("exactness/a: max(list) > min(n, half, 9) and abs(-3) == 3", True),
        ("exactness/a: measured(n) and not measured(none)", True),
        ("cost/b.c-2: rows[tokens == 512].ratio", 40),
        ("cost/b.c-2: all(rows[*].ratio >= 2.5)", True),
        ("cost/b.c-2: any(rows[*].ratio > 40)", False),
        ("cost/b.c-2: count(rows[*].ratio / rows[*].tokens < 0.1)", 1),
        ('cost/b.c-2: by["512"] + by["a-b"]', 3),
        ("@cost/b.c-2:rows[0].tokens == 2 * @exactness/a:n", True),
        ("exactness/a: n < @cost/b.c-2:rows[0].tokens", True),
        ("cost/b.c-2: len(rows[0].deep)", 2),
        ("exactness/a: 1e-9 < 0.1", True),
    ],
)
def test_an_expression_has_its_value(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "exactness/a:",
        "exactness/a: n ==",
        "exactness/a: n = 4",
        "exactness/a: 1 < n < 9",
        "exactness/a: n n",
        "exactness/a: (n",
        "exactness/a: n)",
        "exactness/a: n[",
        "exactness/a: n[1.5]",
        "exactness/a: n[-1]",
        "exactness/a: n.",
        "exactness/a: __import__('os')",
        "exactness/a: open(n)",
        "exactness/a: n ** 9",
        "exactness/a: lambda: 1",
        "exactness/a: n if yes else n",
        'exactness/a: "unclosed',
        "exactness/a: min()",
        "exactness/a: abs(1, 2)",
        "exactness/a: 9007199254740993 == n",
        "exactness/a: 1e999 == n",
        "exactness/a: ñ == 1",
        "exactness/a: n == ٤",
        "n == 4",
        "Exactness/a: n == 4",
        "exactness/a: n == 4 \x00",
        "exactness/a: " + "(" * 30 + "n" + ")" * 30,
        "exactness/a: " + "-" * 30 + "n",
        "exactness/a: " + "not " * 30 + "yes",
        "exactness/a: " + "n+" * 300 + "n",
        "exactness/a: " + "n" * 2000,
    ],
)
def test_what_is_not_of_the_grammar_is_one_clear_error(text: str) -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        expression.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "exactness/a: n",
        "exactness/a: yes + 1 == 2",
        'exactness/a: name < "y"',
        "exactness/a: name == 1",
        "exactness/a: yes == 1",
        "exactness/a: list == 1",
        "exactness/a: not n",
        "exactness/a: all(yes)",
        "exactness/a: n == 4 and n",
        "exactness/a: len(n) == 1",
        "cost/b.c-2: all(rows[*].ratio > @exactness/a:list[*])",
        "cost/b.c-2: rows[*].ratio > 1",
        "exactness/a: 1e300 * 10 > 1",
    ],
)
def test_values_that_do_not_fit_are_no_verdict(text: str) -> None:
    with pytest.raises(ExpressionInvalid):
        evaluate.statement(expression.parse(text), SUMMARIES)


@pytest.mark.parametrize(
    "text",
    [
        "exactness/a: none == 1",
        "exactness/a: none.x == 1",
        "exactness/a: n / 0 == 1",
        "cost/b.c-2: all(empty[*].x == 1)",
        "cost/b.c-2: max(empty) == 1",
        "flywheel/z: n == 1",
        "exactness/a: n == 4 or none == 1",
    ],
)
def test_what_was_not_measured_is_neither_true_nor_false(text: str) -> None:
    with pytest.raises(evaluate.NotMeasured):
        evaluate.statement(expression.parse(text), SUMMARIES)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("exactness/a: m == 1", "m"),
        ("exactness/a: n == 4 or m == 1", "m"),
        ("exactness/a: n.x == 1", "n.x"),
        ("exactness/a: list[3] == 1", r"list\[3\]"),
        ("cost/b.c-2: rows[tokens == 9].ratio > 1", "tokens == 9"),
        ("cost/b.c-2: all(rows[*].ratios > 1)", r"rows\[\*\].ratios"),
    ],
)
def test_a_summary_without_the_field_names_field_and_file(text: str, field: str) -> None:
    with pytest.raises(FieldMissing, match=field) as caught:
        evaluate.statement(expression.parse(text), SUMMARIES)
    assert str(caught.value.where).endswith("/summary.json")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("exactness/a: samples.exact == samples.n", True),
        ("exactness/a: arms.graft.kl.max == 0", True),
        ("cost/a: all(lengths[*].grafts == lengths[*].grafts_equal)", True),
        ("cost/a: lengths[tokens == 512].tokens > 1", True),
        ("exactness/a: samples.exakt == samples.n", False),
        ("exactness/a: samples[0] == 1", False),
        ("exactness/a: nothing == 1", False),
        ("exactness/a: samples.n.deeper == 1", False),
        ("cost/a: lengths.tokens == 1", False),
        ("cost/a: all(lengths[*].token == 1)", False),
        ("cost/a: lengths[tokns == 512].tokens > 1", False),
        ("unknown/a: x == 1", False),
    ],
)
def test_a_slip_of_the_pen_is_found_before_the_run(text: str, fits: bool) -> None:
    first = next(expression.paths(expression.parse(text)))
    if fits:
        fields.check(first)
        return
    with pytest.raises(ExpressionInvalid):
        fields.check(first)


@given(
    st.text(max_size=300) | st.text('exactness/a: ()[]*.@"<>=!+-,0123456789ndlist', max_size=300)
)
def test_any_text_parses_or_is_refused_and_ends(text: str) -> None:
    started = time.monotonic()
    with contextlib.suppress(ExpressionInvalid, FieldMissing, evaluate.NotMeasured):
        evaluate.statement(expression.parse(text), SUMMARIES)
    assert time.monotonic() - started < 2


def test_the_longest_chains_do_not_exhaust_the_stack() -> None:
    long = "exactness/a: " + "+".join(["n"] * 190) + " > 1"
    assert evaluate.statement(expression.parse(long), SUMMARIES)
    lists = "cost/b.c-2: sum(" + "+".join(["rows[*].ratio"] * 50) + ") > 1"
    assert evaluate.statement(expression.parse(lists), SUMMARIES)
