"""The rule of ToRA's harness, in our words: that of Qwen2.5-Math, which grew out of it, but nearer.

Without a box the answer is what the program printed, as the file says. Numbers are right within a
thousandth. With these the published figure of the 70B model comes out, and the answers that the
harness recorded. Not carried over: as for Qwen2.5-Math.
"""

from __future__ import annotations

from kvaudit.rescore.equality import Oracle
from kvaudit.rescore.harness import AsPublished, judged, qwen_math
from kvaudit.rescore.rows import Row

TOLERANCE = 1e-3


def score(row: Row, oracle: Oracle) -> AsPublished:
    """The score of a row."""
    text = row.generation
    if "boxed" not in text and row.printed is not None:
        text = row.printed.strip().rpartition("\n")[2]
    answer = qwen_math.clean(qwen_math.find(row.generation) if text is row.generation else text)
    found = [qwen_math.equal(answer, qwen_math.clean(g), oracle, _near) for g in row.golds]
    return judged(found, answer, "within a thousandth")


def _near(first: float, second: float) -> bool:
    return abs(first - second) < TOLERANCE
