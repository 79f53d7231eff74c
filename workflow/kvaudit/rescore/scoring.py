"""Scores rows: once by the publisher's rule, once by ours, and says where they part.

Two passes: the first finds what exact arithmetic cannot decide, the sandbox decides that in
batches, the second has everything. This module must not know any format, and prints nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvaudit.rescore import equality, extract, harness, symbolic
from kvaudit.rescore.equality import Judged, Oracle
from kvaudit.rescore.extract import Answer
from kvaudit.rescore.harness import AsPublished, Rule
from kvaudit.rescore.rows import Row

PARTIAL = frozenset({"zebra_puzzle", "olympiad"})
"""LiveBench tasks with partial credit: what it is worth is the publisher's to say, not ours."""
CLOSE = 1e-9
"""Scores are sums of few fractions; nearer ones are the same score."""


@dataclass(frozen=True)
class Scored:
    """One row with its scores.

    Attributes:
        row: what was published.
        rule: what the publisher's rule gives, where there is one.
        answer: what we take for the answer.
        ours: 1 or 0; None where the row is unscorable or our rules do not apply.
        why: by which of our rules, or why not.
        applies: False where our rules do not apply to the task.
    """

    row: Row
    rule: AsPublished | None
    answer: Answer
    ours: float | None
    why: str
    applies: bool = True

    @property
    def published(self) -> float | None:
        """The publisher's score of the row; that of the rule where the file has none."""
        if self.row.published is not None:
            return self.row.published
        return None if self.rule is None else self.rule.score

    @property
    def unscorable(self) -> bool:
        """Whether our rules apply and give no verdict."""
        return self.applies and self.ours is None

    def disagreements(self) -> list[str]:
        """Where the scores part, in words; empty where they agree."""
        found = []
        recorded, rule = self.row.published, None if self.rule is None else self.rule.score
        if self.unscorable:
            found.append(f"unscorable: {self.why}")
        elif None not in (self.ours, self.published) and not _same(self.ours, self.published):
            found.append(f"{_verdict(self.published)} as published, {_verdict(self.ours)} by us")
        if recorded is not None and rule is not None and not _same(recorded, rule):
            found.append(f"the file says {recorded:g}, the publisher's rule gives {rule:g}")
        return found


def score(rows: Sequence[Row], rule_name: str | None, workers: int | None = None) -> list[Scored]:
    """Scores every row.

    Args:
        rows: of one file.
        rule_name: the publisher's rule, if it is known.
        workers: sandboxes side by side.

    Raises:
        SandboxUnavailable, ToolMissing: algebra is needed, and this machine cannot isolate it.
    """
    rule = None if rule_name is None else harness.load(rule_name)
    oracle = Oracle()
    first = [_score(row, rule, oracle) for row in rows]
    if not oracle.asked:
        return first
    known = Oracle(symbolic.decide(oracle.asked, workers))
    return [_score(row, rule, known) for row in rows]


def rules(scored: Sequence[Scored]) -> Counter[str]:
    """By which rule the answers were found."""
    return Counter(item.answer.rule for item in scored)


def doubled(rows: Sequence[Row]) -> dict[tuple[str, str | None, int], int]:
    """Problem, task and sample that occur more than once, with their count.

    The task is part of the name because MathArena's files hold several models.
    """
    found = Counter((row.problem, row.task, row.sample) for row in rows)
    return {name: count for name, count in found.items() if count > 1}


def _score(row: Row, rule: Rule | None, oracle: Oracle) -> Scored:
    if row.trouble is not None:
        return Scored(row, None, Answer("", "none"), None, row.trouble)
    published = None if rule is None else rule.score(row, oracle)
    answer = extract.extract(row.generation, printed=row.printed, task=row.task)
    if row.task in PARTIAL:
        return Scored(row, published, answer, None, "partial credit is the publisher's own", False)
    if answer.rule == "none":
        return Scored(row, published, answer, 0.0, "no answer is found")
    judged = [equality.compare(gold, answer.text, oracle) for gold in row.golds]
    same, why = _best(judged)
    return Scored(row, published, answer, None if same is None else float(same), why)


def _best(judged: Sequence[Judged]) -> tuple[bool | None, str]:
    """The verdict over several golds, any of which is right."""
    for same in (True, None, False):
        for item in judged:
            if item.same is same:
                why = item.why if same is not None else f"not decided, {item.why}"
                return same, why
    return None, "no gold"


def _same(first: float | None, second: float | None) -> bool:
    return first is not None and second is not None and abs(first - second) < CLOSE


def _verdict(score: float | None) -> str:
    return {1.0: "right", 0.0: "wrong", None: "open"}.get(score, f"worth {score}")
