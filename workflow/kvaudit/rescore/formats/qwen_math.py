"""Outputs of the Qwen2.5-Math evaluation harness: JSON Lines, one problem a line.

Fields that are read: `idx`, `gt` (gold), `code` (generations), `pred` (extracted answers) and
`score` (truth values), the last three lists of one length. The published accuracy stands beside it,
in `<stem>_<prompt>_metrics.json`, field `acc`, in percent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvaudit.errors import EvidenceIncomplete, UnusableInput
from kvaudit.rescore import lines
from kvaudit.rescore.adapters import Published, missing
from kvaudit.rescore.rows import Row
from kvaudit.safefs import SafeRoot

MAX_METRICS_BYTES = 1 << 20
# <split>_<prompt>_<number of problems>_seed…; the metrics file repeats the prompt at its end.
_NAME = re.compile(r"((?:.*/)?[^_/]+_([^/]+)_-?\d+_seed[^/]*)\.jsonl")


def generations(root: SafeRoot, file: str, name: str) -> Iterator[tuple[Row, Any]]:
    """One row a generation of a file that this harness, or one built on it, has written.

    Args:
        root: the folder of the file.
        file: in it.
        name: of the format, for errors.

    Yields:
        The row, and what the file gives as its score.

    Raises:
        UnusableInput: a line has no gold answer, or no list of generations.
    """
    for number, value in lines.read(root, file):
        gold, codes = lines.text(value.get("gt")), value.get("code")
        if gold is None or not isinstance(codes, list):
            raise missing(number, file, "gt" if gold is None else "code", name)
        problem = lines.text(value.get("idx")) or f"line {number}"
        for sample, code in enumerate(codes):
            generation = lines.text(code)
            row = Row(
                number,
                problem,
                (gold,),
                generation or "",
                sample,
                answer=lines.text(lines.at(value.get("pred"), sample)),
                trouble=None if generation is not None else "the generation is not a text",
            )
            yield row, lines.at(value.get("score"), sample)


class QwenMath:
    """See the module."""

    name = "qwen-math"
    summary = "Qwen2.5-Math harness, JSON Lines with code, pred and score"
    rule: str | None = "qwen-math"
    above = 0

    def rows(self, root: SafeRoot, file: str) -> Iterator[Row]:
        """One row a generation."""
        for row, score in generations(root, file, self.name):
            yield replace(row, published=lines.score(score))

    def published(self, root: SafeRoot, file: str) -> Published | None:
        """`acc` of the metrics file beside it, if there is one."""
        match = _NAME.fullmatch(file)
        if match is None:
            return None
        name = f"{match[1]}_{match[2]}_metrics.json"
        try:
            data = root.read(name, max_bytes=MAX_METRICS_BYTES)
        except EvidenceIncomplete:
            return None
        value = lines.loads(data, where=name)
        figure = value.get("acc") if isinstance(value, dict) else None
        if not isinstance(figure, lines.Spelled):
            raise UnusableInput("the metrics file has no number acc", where=name)
        return Published(str(figure), name)


ADAPTER = QwenMath()
