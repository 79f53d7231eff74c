"""Answers of LiveBench: `<task>/model_answer/<model>.jsonl`, with what stands beside them.

`<task>/question.jsonl` has `question_id`, `ground_truth`, `turns` and `task`; the answers have
`question_id` and `choices[].turns`; `<task>/model_judgment/ground_truth_judgment.jsonl` has one
score a question and model. What a model was judged on and has no answer in the file is not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvaudit.errors import EvidenceIncomplete
from kvaudit.rescore import lines
from kvaudit.rescore.adapters import Published, missing
from kvaudit.rescore.rows import Row
from kvaudit.safefs import SafeRoot

QUESTIONS = "question.jsonl"
JUDGMENTS = "model_judgment/ground_truth_judgment.jsonl"


class LiveBench:
    """See the module."""

    name = "livebench"
    summary = "LiveBench, TASK/model_answer/MODEL.jsonl with its questions and judgments"
    rule: str | None = "livebench"
    above = 1

    def rows(self, root: SafeRoot, file: str) -> Iterator[Row]:
        """One row an answer."""
        questions = dict(_by_id(root, QUESTIONS, self.name))
        scores = _scores(root)
        for number, value in lines.read(root, file):
            problem, generation = lines.text(value.get("question_id")), _turn(value)
            if problem is None:
                raise missing(number, file, "question_id", self.name)
            question = questions.get(problem, {})
            gold = lines.text(question.get("ground_truth"))
            turns = question.get("turns")
            model = lines.text(value.get("model_id")) or ""
            trouble = None
            if gold is None:
                trouble = "there is no such question, or it has no gold"
            elif generation is None:
                trouble = "the answer is not one text"
            yield Row(
                number,
                problem,
                () if gold is None else (gold,),
                generation or "",
                published=scores.get((problem, model)),
                task=_task(question),
                question=lines.text(turns[-1]) if isinstance(turns, list) and turns else None,
                trouble=trouble,
            )

    def published(self, root: SafeRoot, file: str) -> Published | None:
        """None: the judgments are the publication; its mean is of their rows."""
        return None


def _by_id(root: SafeRoot, file: str, format: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, value in lines.read(root, file):
        name = lines.text(value.get("question_id"))
        if name is None:
            raise missing(number, file, "question_id", format)
        yield name, value


def _scores(root: SafeRoot) -> dict[tuple[str, str], float | None]:
    """Question and model -> score; where one was judged twice, the later judgment holds."""
    try:
        judged = list(_by_id(root, JUDGMENTS, "livebench"))
    except EvidenceIncomplete:
        return {}
    return {(n, lines.text(v.get("model")) or ""): lines.score(v.get("score")) for n, v in judged}


def _turn(value: dict[str, Any]) -> str | None:
    choices = value.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    turns = first.get("turns") if isinstance(first, dict) else None
    return lines.text(turns[-1]) if isinstance(turns, list) and turns else None


def _task(question: dict[str, Any]) -> str | None:
    """The task, with its kind where one task has two rules.

    A contest asks for a letter (amc) or a number (aime); puzzles had one answer until the release
    of November 2024.
    """
    task = lines.text(question.get("task"))
    gold = lines.text(question.get("ground_truth")) or ""
    if task == "math_comp":
        return "math_comp/amc" if len(gold) == 1 and gold in "ABCDE" else "math_comp/aime"
    released = lines.text(question.get("livebench_release_date")) or ""
    if task == "zebra_puzzle" and released < "2024-11-25":
        return "zebra_puzzle/one"
    return task


ADAPTER = LiveBench()
