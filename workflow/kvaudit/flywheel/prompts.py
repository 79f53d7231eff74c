"""The texts of the flywheel: what a block holds, what is asked, and what is read from an answer.

The stage writes by these functions and the verifier reads by them again. This module must not know
an engine, nor which answers are right.
"""

from __future__ import annotations

import re

from kvaudit.flywheel.records import CODING, GATED

STOP = "\nVerified"
"""Ends a program: what stands behind it in a block."""

# A decimal fraction is one token, so that its parts are not taken for integers.
_NUMBER = re.compile(
    r"(?P<fraction>[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)+)"
    r"|(?P<grouped>[1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9])"
    r"|(?P<plain>[0-9]+)"
)
_SIGN = re.compile(r"(?:^|[^\w)\]}\-\u2212])[-\u2212]$")
_SAID = re.compile(r"(?<![\w.])-?\d+(?![\w]|\.\d)")
_FENCE = re.compile(r"```[a-z]*\n(.*?)(?:```|\Z)", re.DOTALL)

MAX_DIGITS = 18


def block_text(statement: str, program: str, answer: int) -> str:
    """The text of a block: a problem, its numbers, its answer, and the program that printed it.

    The answer stands twice, because a small model reads it back more surely so.
    """
    return (
        f"Problem: {statement}\n{numbers_line(statement)}Verified answer: {answer}\n"
        f"Program:\n{program.strip()}\nVerified answer: {answer}\n"
    )


def demonstration_text(statement: str, program: str, answer: int) -> str:
    """The text of a block's child: the same problem with other numbers, solved."""
    return (
        f"{problem_text(statement)}{numbers_line(statement)}"
        f"Program:\n{program.strip()}\nVerified answer: {answer}\n"
    )


def problem_text(statement: str) -> str:
    """The head of every question; routing scores these tokens."""
    return f"\nProblem: {statement}\n"


def numbers_line(statement: str) -> str:
    """The numbers of a statement in their order, on a line of their own; empty if it has none."""
    found = ", ".join(str(number) for number in numbers(statement))
    return f"Numbers: {found}\n" if found else ""


def recall_text(statement: str, program: str) -> str:
    """A question whose problem a block holds: everything but the answer, which is to follow."""
    head = f"{problem_text(statement)}{numbers_line(statement)}"
    return f"{head}Program:\n{program.strip()}\nVerified answer:"


def worked_text(statement: str, answer: int | str) -> str:
    """The text of a block that holds a problem and its answer alone, without a program."""
    return f"Problem: {statement}\nVerified answer: {answer}\n"


def answer_text(statement: str) -> str:
    """A question behind such blocks, whose answer is to follow."""
    return f"{problem_text(statement)}Verified answer:"


def adapt_text(statement: str) -> str:
    """A question that a program is to answer, which is to follow; behind a block or alone."""
    return f"{problem_text(statement)}{numbers_line(statement)}Program:\n"


def direct_text(statement: str) -> str:
    """A question to the frozen model, answered in words."""
    return f"Question: {statement}\nAnswer:"


def code_text(statement: str) -> str:
    """A question to the frozen model, answered by a program of its own."""
    return f"Question: {statement}\nA short Python program that prints the answer:\n{FENCE}python\n"


FENCE = "```"
"""Ends a program that the frozen model writes alone."""


def stop(arm: str) -> str:
    """The text that ends a generation of an arm; it is no part of the text that is recorded."""
    if arm in CODING:
        return FENCE
    return STOP if arm in GATED else "\n"


def numbers(statement: str) -> tuple[int, ...]:
    """The integers of a statement in their order, repeated ones included.

    `1,000` is one number and `3.5` none. Digits that end a name (`x2`, `A1`) are part of it, those
    that begin a word (`2n`, `3rd`) are a number: a gate that overlooked one would let a program
    pass that is not bound to it. A minus sign counts where nothing that could be subtracted from
    stands right before it: `(-3, 7)` has -3, `n-3` and `10 - 3` have 3. Numbers of more than
    `MAX_DIGITS` digits are left out, and so are number words.
    """
    found = []
    for match in _NUMBER.finditer(statement):
        before = statement[max(0, match.start() - 2) : match.start()]
        if match["fraction"] or (before and (before[-1] in "._" or before[-1].isalpha())):
            continue
        digits = match[0].replace(",", "")
        if len(digits) <= MAX_DIGITS:
            found.append(-int(digits) if _SIGN.search(before) else int(digits))
    return tuple(found)


def read_answer(text: str) -> int | None:
    """The answer that a text in words gives: its last integer, None where it has none.

    Every comma is taken for one between thousands. Digits that touch a letter are no answer, as in
    `the 3rd`: a text may end so for other reasons. Longer integers are passed over as in `numbers`.
    """
    found = [match.group() for match in _SAID.finditer(text.replace(",", ""))]
    short = [one for one in found if len(one.lstrip("-")) <= MAX_DIGITS]
    return int(short[-1]) if short else None


def first_integer(text: str) -> int | None:
    """The answer that a recall gives: the first word, if it is an integer."""
    words = text.split()
    word = words[0].rstrip(".") if words else ""
    return int(word) if re.fullmatch(r"-?\d{1,18}", word) else None


def read_program(text: str) -> str:
    """The program in a generation: the first fenced part where there is one, else all of it."""
    fenced = _FENCE.search(text)
    return (fenced.group(1) if fenced else text).strip("\n")


def folded(statement: str) -> tuple[str, ...]:
    """A statement's words, whatever their case: equal for those that `same_statement` finds."""
    return tuple(statement.casefold().split())


def same_statement(first: str, second: str) -> bool:
    """Whether two statements are one but for spaces and case."""
    return folded(first) == folded(second)
