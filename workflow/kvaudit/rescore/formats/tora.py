"""Outputs of ToRA: JSON Lines whose generations hold a program, what it printed, and an answer.

Fields that are read: `idx`, `gt` and `code` (generations). In a generation the last ```python block
is the program, the ```output block behind it what it printed, and the boxed answer comes last.
There is no score in the file; the published accuracy is in the project's README and is given as
`--published`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvaudit.rescore import lines
from kvaudit.rescore.adapters import Published, missing
from kvaudit.rescore.rows import Row
from kvaudit.safefs import SafeRoot

_PROGRAM = re.compile(r"```python\n(.*?)\n?```", re.S)
_PRINTED = re.compile(r"```output\n(.*?)\n?```", re.S)


class Tora:
    """See the module."""

    name = "tora"
    summary = "ToRA program-of-thought, JSON Lines with programs in code"
    rule: str | None = "tora"
    above = 0

    def rows(self, root: SafeRoot, file: str) -> Iterator[Row]:
        """One row a generation."""
        for number, value in lines.read(root, file):
            gold, codes = lines.text(value.get("gt")), value.get("code")
            if gold is None or not isinstance(codes, list):
                raise missing(number, file, "gt" if gold is None else "code", self.name)
            problem = lines.text(value.get("idx")) or f"line {number}"
            for sample, code in enumerate(codes):
                generation = lines.text(code) or ""
                programs = list(_PROGRAM.finditer(generation))
                end = programs[-1].end() if programs else 0
                printed = _PRINTED.search(generation, end)
                yield Row(
                    number,
                    problem,
                    (gold,),
                    generation,
                    sample,
                    program=programs[-1][1] if programs else None,
                    printed=printed[1] if printed is not None else None,
                    answer=lines.text(lines.at(value.get("pred"), sample)),
                    trouble=None if generation else "the generation is not a text",
                )

    def published(self, root: SafeRoot, file: str) -> Published | None:
        """None: the file comes without its figure."""
        return None


ADAPTER = Tora()
