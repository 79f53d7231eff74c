"""Outputs of ToRA: JSON Lines whose generations hold a program, what it printed, and an answer.

Fields that are read: `idx`, `gt` and `code` (generations). In a generation the last ```python block
is the program, the ```output block behind it what it printed, and the boxed answer comes last.
There is no score in the file; the published accuracy is in the project's README and is given as
`--published`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from kvaudit.rescore.adapters import Published
from kvaudit.rescore.formats import qwen_math
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
        for row, _ in qwen_math.generations(root, file, self.name):
            programs = list(_PROGRAM.finditer(row.generation))
            end = programs[-1].end() if programs else 0
            printed = _PRINTED.search(row.generation, end)
            yield replace(
                row,
                program=programs[-1][1] if programs else None,
                printed=printed[1] if printed is not None else None,
                trouble=None if row.generation else "the generation is not a text",
            )

    def published(self, root: SafeRoot, file: str) -> Published | None:
        """None: the file comes without its figure."""
        return None


ADAPTER = Tora()
