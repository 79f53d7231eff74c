"""Outputs of MathArena: its released data sets as JSON Lines, or the run files of its repository.

A line of a data set `*_outputs` holds one attempt: `problem_idx`, `idx_answer`, `answer` (the
text), `gold_answer`, `parsed_answer`, `correct`. A run file, as one line, holds all attempts of a
problem: `idx`, `gold_answer`, and the lists `messages`, `answers` and `correct`. The source of the
names is the data sets' cards and the class that writes the run files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvaudit.rescore import lines
from kvaudit.rescore.adapters import Published, missing
from kvaudit.rescore.rows import Row
from kvaudit.safefs import SafeRoot


class MathArena:
    """See the module."""

    name = "matharena"
    summary = "MathArena, JSON Lines of a data set of outputs, or run files"
    rule: str | None = None
    above = 0

    def rows(self, root: SafeRoot, file: str) -> Iterator[Row]:
        """One row an attempt."""
        for number, value in lines.read(root, file):
            gold = lines.text(value.get("gold_answer"))
            if "gold_answer" not in value:
                raise missing(number, file, "gold_answer", self.name)
            golds = () if gold is None else (gold,)
            trouble = None if gold is not None else "a problem without a final answer"
            if isinstance(value.get("messages"), list):
                yield from _run(number, value, golds, trouble)
                continue
            generation = lines.text(value.get("answer"))
            if generation is None:
                raise missing(number, file, "answer", self.name)
            yield Row(
                number,
                lines.text(value.get("problem_idx")) or f"line {number}",
                golds,
                generation,
                lines.integer(value.get("idx_answer")) or 0,
                answer=lines.text(value.get("parsed_answer")),
                published=lines.score(value.get("correct")),
                task=lines.text(value.get("model_name")),
                trouble=trouble,
            )

    def published(self, root: SafeRoot, file: str) -> Published | None:
        """None: the site shows figures of one model each; give the one that is meant."""
        return None


def _run(
    number: int, value: dict[str, Any], golds: tuple[str, ...], trouble: str | None
) -> Iterator[Row]:
    for sample, messages in enumerate(value["messages"]):
        last = messages[-1] if isinstance(messages, list) and messages else None
        content = lines.text(last.get("content")) if isinstance(last, dict) else None
        answers, correct = (value.get(key) for key in ("answers", "correct"))
        yield Row(
            number,
            lines.text(value.get("idx")) or f"line {number}",
            golds,
            content or "",
            sample,
            answer=lines.text(lines.at(answers, sample)),
            published=lines.score(lines.at(correct, sample)),
            trouble=trouble or (None if content is not None else "the last message is not a text"),
        )


ADAPTER = MathArena()
