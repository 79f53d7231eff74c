"""Figures of a summary in words, as claims quote them, and the two tests that claims ask of a pair.

Arguments are objects of the summary's schema. This module must not know any claim, nor how a figure
was counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEVEL = 0.05
"""Of McNemar's test."""

Figures = Mapping[str, Any]


def above(pair: Figures, key: str = "difference") -> bool:
    """Whether the interval of first less second lies above 0; `key` may be `by_family`."""
    return pair[key] is not None and pair[key]["low"] > 0.0


def beats(pair: Figures) -> bool:
    """Whether the first of two ways is the better one by McNemar's test."""
    found = pair["mcnemar"]
    return found is not None and found["only_first"] > found["only_second"] and found["p"] < LEVEL


def part(counted: Figures) -> float:
    """A rate as a number; 0 of nothing."""
    return float(counted["right"] / counted["n"]) if counted["n"] else 0.0


def rate(counted: Figures) -> str:
    """A rate with its interval."""
    if not counted["n"]:
        return "0/0"
    ends = f"[{counted['low']:.1%}, {counted['high']:.1%}]"
    return f"{counted['right']}/{counted['n']} = {part(counted):.1%} {ends}"


def count(counted: Figures) -> str:
    """A rate without its interval."""
    return f"{counted['right']}/{counted['n']}"


def interval(found: Figures, form: str) -> str:
    """An estimate with its interval, each in a format of its own."""
    estimate, low, high = (form.format(found[key]) for key in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}]"


def difference(pair: Figures) -> str:
    """The paired difference with both intervals."""
    found, family = pair["difference"], pair["by_family"]
    if found is None:
        return "no pairs"
    ends = f"[{family['low']:+.1%}, {family['high']:+.1%}]"
    return f"difference {interval(found, '{:+.1%}')}, by family {ends}"


def mcnemar(pair: Figures) -> str:
    """The discordant pairs and p."""
    found = pair["mcnemar"]
    if found is None:
        return "no pairs"
    return f"{found['only_first']} gained, {found['only_second']} lost, p {found['p']:.2g}"


def spent(made: Figures) -> str:
    """What a way took, and that for one solved problem."""
    per = made["per_solved"]
    each = "nothing solved" if per is None else f"{per['all_tokens']:,.0f} for each solved"
    return (
        f"{made['right']}/{made['n']} in {made['decoded_tokens']:,} decoded and "
        f"{made['prompt_tokens']:,} read ({each})"
    )


def energy(found: Figures) -> str:
    """The meter's reading, or why there is none."""
    if found["joules"] is None:
        return f"not measured ({found['reason']})"
    return f"{found['joules']:,.0f} J in the whole stage ({found['meter']})"


def files(tables: Sequence[Figures]) -> str:
    """What each problem file of the user came to; nothing where there is none."""
    return "".join(
        f"; file {made['file']} (rows of the file not checked here): "
        f"{count(made['direct'])} alone, {count(made['vote'])} voting, "
        f"{count(made['code'])} by program where the answer is an integer, "
        f"{count(made['routed'])} routed and {count(made['flat'])} flat "
        f"({made['routed']['generations']} led to a block), {count(made['recall'])} recalled"
        for made in tables
    )


def number(value: float | None) -> str:
    """Three digits; a dash where there is no value."""
    return "-" if value is None else f"{value:,.3g}"


def share(value: float | None) -> str:
    """A share in percent; a dash where there is no value."""
    return "-" if value is None else f"{value:.1%}"
