"""The texts of the flywheel: what a block holds, what is asked, and what is read from an answer.

The stage writes by these functions and the verifier reads by them again. This module must not know
an engine, nor which answers are right.
"""

from __future__ import annotations

import re

STOP = "\nVerified"
"""Ends a program: what stands behind it in a block."""

_INTEGER = re.compile(r"(?<![\w.])-?\d+(?![\w]|\.\d)")
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


def numbers(text: str) -> tuple[int, ...]:
    """The integers that a text names, in order; those of more than 18 digits are left out."""
    found = (match.group() for match in _INTEGER.finditer(text.replace(",", "")))
    return tuple(int(one) for one in found if len(one.lstrip("-")) <= MAX_DIGITS)


def read_answer(text: str) -> int | None:
    """The answer that a text in words gives: its last integer, None where it has none."""
    found = numbers(text)
    return found[-1] if found else None


def first_integer(text: str) -> int | None:
    """The answer that a recall gives: the first word, if it is an integer."""
    words = text.split()
    word = words[0].rstrip(".") if words else ""
    return int(word) if re.fullmatch(r"-?\d{1,18}", word) else None


def read_program(text: str) -> str:
    """The program in a generation: the first fenced part where there is one, else all of it."""
    fenced = _FENCE.search(text)
    return (fenced.group(1) if fenced else text).strip("\n")


def same_statement(first: str, second: str) -> bool:
    """Whether two statements are one but for spaces and case."""
    return first.casefold().split() == second.casefold().split()
