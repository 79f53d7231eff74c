"""Outputs of NeMo-Skills: JSON Lines `output*.jsonl` of its generation and evaluation pipelines.

Fields that are read: `generation`, `expected_answer`, `predicted_answer`, and the score:
`symbolic_correct`, in older files `is_correct`. The source of the names is the documentation of the
project (docs/pipelines/generation.md) and its metrics for mathematics.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvaudit.rescore import lines
from kvaudit.rescore.adapters import Published, missing
from kvaudit.rescore.rows import Row
from kvaudit.safefs import SafeRoot


class NemoSkills:
    """See the module."""

    name = "nemo-skills"
    summary = "NeMo-Skills, JSON Lines with generation and expected_answer"
    rule: str | None = None
    above = 0

    def rows(self, root: SafeRoot, file: str) -> Iterator[Row]:
        """One row a line."""
        for number, value in lines.read(root, file):
            gold, generation = (lines.text(value.get(k)) for k in ("expected_answer", "generation"))
            if "expected_answer" not in value or "generation" not in value:
                field = "generation" if "expected_answer" in value else "expected_answer"
                raise missing(number, file, field, self.name)
            correct = value.get("symbolic_correct", value.get("is_correct"))
            yield Row(
                number,
                lines.text(value.get("id")) or lines.text(value.get("problem_id")) or f"{number}",
                () if gold is None else (gold,),
                generation or "",
                answer=lines.text(value.get("predicted_answer")),
                published=lines.score(correct),
                trouble=None if gold and generation is not None else "no gold, or no generation",
            )

    def published(self, root: SafeRoot, file: str) -> Published | None:
        """None: metrics.json holds several figures; give the one that is meant."""
        return None


ADAPTER = NemoSkills()
