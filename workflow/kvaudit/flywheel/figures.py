"""Records of a flywheel stage by arm and problem, and the figures that every table is made of.

Rates, paired differences and token counts are counted here once, so that all rows of the table
count alike. This module must not know a claim, nor read files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from kvaudit import estimate, stats
from kvaudit.flywheel.answers import Answer
from kvaudit.flywheel.known import Known, Row
from kvaudit.flywheel.records import GATED, ROUTES

Verdict = Literal["right", "wrong", "abstained"]


class Found(Known):
    """The records of one stage, by what is asked of them; its subject names all resampling."""

    def of(self, role: str) -> list[str]:
        """Names of the problems in a role."""
        return [name for name, row in self.problems.items() if row["role"] == role]

    def rights(self, arm: str) -> dict[str, bool]:
        """Problem -> whether its first attempt gave the answer; of a gated arm behind the gate."""
        if arm in GATED:
            return {name: verdict(rows[:1]) == "right" for name, rows in self.arm(arm).items()}
        return {name: right(rows[0]) for name, rows in self.arm(arm).items()}

    @cached_property
    def recalled(self) -> dict[str, Row]:
        """Contest problem -> its recall, of those that the router led to the library's entry."""
        led = {
            row["family"]
            for row in self.rows[ROUTES]
            if row["query_kind"] == "exact" and row["decision"] == "recall" and row["right"]
        }
        return {
            name: rows[0]
            for name, rows in self.arm("recall").items()
            if (family := self.problems[name]["family"]) in self.in_library and family in led
        }

    def own_attempts(self, problem: str) -> list[Row]:
        """What the frozen model tried on a contest problem without any block."""
        return [*self.arm("text").get(problem, []), *self.arm("code").get(problem, [])]

    def paired(
        self, first: Mapping[str, bool], second: Mapping[str, bool], name: str
    ) -> dict[str, Any]:
        """Two ways to answer, on the problems that both were asked.

        Instances of one family stand or fall together. So a second interval takes a family for
        one sample; it is the wider one where they do.

        Args:
            first: problem -> whether it was answered.
            second: likewise.
            name: from which the resampling derives.
        """
        both = [problem for problem in self.problems if problem in first and problem in second]
        a, b = [first[problem] for problem in both], [second[problem] for problem in both]
        made: dict[str, Any] = {"first": rate(a), "second": rate(b)}
        if not both:
            return {**made, "difference": None, "by_family": None, "mcnemar": None}
        families: dict[str, list[float]] = {}
        for problem, x, y in zip(both, a, b, strict=True):
            families.setdefault(self.problems[problem]["family"], []).append(float(x) - float(y))
        means = [math.fsum(values) / len(values) for values in families.values()]
        seed = f"{self.subject}/flywheel/{name}"
        test = stats.mcnemar_exact(a, b)
        return {
            **made,
            "difference": interval(estimate.paired_difference(a, b, seed), len(both)),
            "by_family": interval(estimate.bootstrap_mean(means, f"{seed}/family"), len(means)),
            "mcnemar": {
                "only_first": test.only_first,
                "only_second": test.only_second,
                "p": stats.rounded(test.p),
            },
        }


# -- answers ----------------------------------------------------------------------------------


def right(row: Row) -> bool:
    """Whether a generation gave the known answer, as text or by its program."""
    return bool(row["outcome"] == "answer")


def adapted(attempts: Sequence[Row]) -> Row | None:
    """The attempt whose answer counts: the first that passed the gate."""
    return next((row for row in attempts if row["gate"] == "passed"), None)


def verdict(attempts: Sequence[Row]) -> Verdict:
    """What a gated arm says of a problem; a program that printed no integer is an abstention."""
    row = adapted(attempts)
    if row is None or row["answer"] is None:
        return "abstained"
    return "right" if right(row) else "wrong"


def most_frequent(attempts: Iterable[Row]) -> Answer | None:
    """The answer that most attempts give, of equally frequent ones the first; None without any."""
    given: list[Answer] = [row["answer"] for row in attempts if row["answer"] is not None]
    return Counter(given).most_common(1)[0][0] if given else None


# -- figures ----------------------------------------------------------------------------------


def rate(rights: Iterable[bool]) -> dict[str, Any]:
    """How many are right, with Wilson's 95% interval; no interval of nothing."""
    values = list(rights)
    n, k = len(values), sum(values)
    if not n:
        return {"right": 0, "n": 0, "low": None, "high": None}
    found = stats.wilson(k, n)
    return {
        "right": k,
        "n": n,
        "low": stats.rounded(found.low),
        "high": stats.rounded(found.high),
    }


def interval(found: estimate.Interval, n: int) -> dict[str, Any]:
    """A bootstrap estimate over `n` samples as it stands in a summary."""
    return {
        "n": n,
        "estimate": stats.rounded(found.estimate),
        "low": stats.rounded(found.low),
        "high": stats.rounded(found.high),
    }


def tokens(rows: Iterable[Row]) -> dict[str, Any]:
    """Tokens read, restored and decoded, seconds, and joules where a meter was, of all together."""
    taken = list(rows)
    joules = [row["joules"] for row in taken if "joules" in row]
    return {
        "generations": len(taken),
        "prompt_tokens": sum(row["prompt_tokens"] for row in taken),
        "cached_tokens": sum(row["cached_tokens"] for row in taken),
        "decoded_tokens": sum(row["decoded_tokens"] for row in taken),
        "seconds": stats.rounded(math.fsum(row["seconds"] for row in taken)),
        **({"joules": stats.rounded(math.fsum(joules))} if joules else {}),
    }


def spent(rights: Iterable[bool], rows: Iterable[Row]) -> dict[str, Any]:
    """A way to answer: its rate, what it took, and that for one solved problem."""
    made = {**rate(rights), **tokens(rows)}
    return {**made, "per_solved": per_solved(made, made["right"])}


def per_solved(took: Mapping[str, Any], solved: int) -> dict[str, float] | None:
    """Tokens, seconds and joules for one solved problem; None where none is.

    Restored tokens are in neither count: no computation went into them.
    """
    if not solved:
        return None
    return {
        "decoded_tokens": stats.rounded(took["decoded_tokens"] / solved),
        "all_tokens": stats.rounded(all_tokens(took) / solved),
        "seconds": stats.rounded(took["seconds"] / solved),
        **({"joules": stats.rounded(took["joules"] / solved)} if "joules" in took else {}),
    }


def all_tokens(took: Mapping[str, Any]) -> int:
    """Tokens that were computed: read or decoded."""
    return int(took["prompt_tokens"] + took["decoded_tokens"])


def ratio(above: float, below: float) -> float | None:
    """One for one of the other; None where there is no other."""
    return stats.rounded(above / below) if below else None


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return stats.rounded(math.fsum(values) / len(values)) if values else None


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return stats.rounded(stats.median(values)) if values else None
