"""The one record that every adapter turns other people's outputs into.

A row is one generation for one problem. It keeps what the publisher wrote as it was written; no
score of ours is in it. This module must not know any format.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "rescore-row"


@dataclass(frozen=True)
class Row:
    """One generation.

    Attributes:
        line: in the source, from 1; of an archive, the number of the member.
        problem: the publisher's name of the problem.
        sample: from 0, where a problem has several generations.
        golds: right answers as they are given; any of them is right.
        generation: the model's text.
        program: the program in it that was run, if there is one.
        printed: what the publisher says that it printed.
        answer: the answer that the publisher extracted, where it is recorded.
        published: the publisher's score of this row, 0 to 1.
        task: what the publisher's rule depends on, as LiveBench's tasks.
        question: the text of the problem, where the publisher's rule needs it.
        trouble: why the row cannot be scored; then `generation` may be empty.
    """

    line: int
    problem: str
    golds: tuple[str, ...]
    generation: str
    sample: int = 0
    program: str | None = None
    printed: str | None = None
    answer: str | None = None
    published: float | None = None
    task: str | None = None
    question: str | None = None
    trouble: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as a record of kind `rescore-row`; lone surrogates are escaped."""
        value = {key: _encodable(item) for key, item in asdict(self).items()}
        value["golds"] = [_encodable(gold) for gold in self.golds]
        return value


def _encodable(item: Any) -> Any:
    if isinstance(item, str):
        return item.encode("utf-8", "backslashreplace").decode("utf-8")
    return item
