"""What the stage flywheel asks, drawn from the configuration's seed: problems, queries, attempts.

The stage runs this plan and the verifier draws it again. This module must not know an engine, nor
any result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from kvaudit.flywheel import files
from kvaudit.flywheel.records import ARMS, ROUTER
from kvaudit.problems.family import Family, Instance, fresh
from kvaudit.problems.foreign import foreign, near_misses
from kvaudit.problems.registry import FAMILIES
from kvaudit.problems.solved import SOLVED

Role = Literal["contest", "known", "admission", "transfer", "solved-known", "solved"]

KNOWN = 6
"""Instances of a family whose answers are known at deposit time, the deposit's own apart: a
template is found and checked on them, and the first of them is the demonstration."""

EXAMPLES = 3
"""Worked instances in a block of several examples."""

Split = Literal["calibration", "test"]
QueryKind = Literal["exact", "new", "paraphrase", "near miss", "foreign"]
OWN: tuple[QueryKind, ...] = ("exact", "new", "paraphrase")
"""Kinds of queries that have an entry of their own, if the library admitted it."""

_KEYS = {
    *("families", "attempts", "code_attempts", "temperature", "answer_tokens", "program_tokens"),
    *("recall_tokens", "adapt_attempts", "admission", "margin", "transfers", "few_transfers"),
    *("baselines", "flat_blocks", "solved", "queries", "calibration", "alpha", "shortlist"),
    *("scored_tokens", "growth", "growth_queries", "program_seconds"),
}


TOGETHER = (
    ("admission-alone", "admission-with"),
    ("solved-alone", "solved-with", "solved-card"),
)
"""Arms that are counted against each other, so that one alone says nothing."""

NEEDS = {
    "recall-text": "recall",
    "adapt-text": "adapt",
    "adapt-templated": "adapt",
    ROUTER: "admission-with",
}
"""What is compared with another arm, or with entries that another arm admits."""


@dataclass(frozen=True)
class Problem:
    """An instance in its role."""

    role: Role
    instance: Instance


@dataclass(frozen=True)
class Query:
    """A question to the router.

    Attributes:
        number: place in the order of queries.
        split: `calibration` for those the threshold is taken from.
        kind: what it is.
        statement: what is asked.
        family: the family whose entry is the right one; None for a foreign query. A near miss names
            none: whatever it is routed to is wrong.
    """

    number: int
    split: Split
    kind: QueryKind
    statement: str
    family: str | None


@dataclass(frozen=True)
class Plan:
    """Everything drawn for one model.

    Attributes:
        section: the configuration's `flywheel` section.
        seed: name from which all draws derive, the model's among it.
    """

    section: Mapping[str, Any]
    seed: str

    @cached_property
    def arms(self) -> frozenset[str]:
        """What is asked: all arms and the router, unless the configuration names some."""
        return frozenset(self.section.get("arms", (*ARMS, ROUTER)))

    @cached_property
    def growth(self) -> tuple[int, ...]:
        """Sizes of the growing library; none where the router is not asked."""
        return tuple(self.section["growth"]) if ROUTER in self.arms else ()

    @cached_property
    def families(self) -> tuple[Family, ...]:
        """The first families of the contest set, spread over it."""
        n = min(self.section["families"], len(FAMILIES))
        return tuple(FAMILIES[index * len(FAMILIES) // n] for index in range(n))

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, family by family; no two of one family have the same numbers."""
        made: list[Problem] = []
        for family in self.families:
            transfers = "transfers" if family.kind == "parametric" else "few_transfers"
            made += self._drawn(
                family,
                [
                    ("contest", 1),
                    ("known", KNOWN),
                    ("admission", self.section["admission"]),
                    ("transfer", self.section[transfers]),
                ],
            )
        for family in SOLVED:
            made += self._drawn(family, [("solved-known", 1), ("solved", self.section["solved"])])
        return tuple(made)

    def _drawn(self, family: Family, roles: list[tuple[Role, int]]) -> list[Problem]:
        taken: set[tuple[int, ...]] = set()
        made: list[Problem] = []
        for role, n in roles:
            for one in fresh(family, f"{self.seed}/{role}", n, taken):
                taken.add(one.key)
                made.append(Problem(role, one))
        return made

    def of(self, family: Family | str, role: Role) -> list[Instance]:
        """A family's instances in a role."""
        name = family if isinstance(family, str) else family.name
        return [p.instance for p in self._by_family.get((name, role), [])]

    @cached_property
    def _by_family(self) -> dict[tuple[str, Role], list[Problem]]:
        found: dict[tuple[str, Role], list[Problem]] = {}
        for problem in self.problems:
            found.setdefault((problem.instance.family.name, problem.role), []).append(problem)
        return found

    @cached_property
    def queries(self) -> tuple[Query, ...]:
        """The router's queries: the calibration split, then the test split.

        Foreign templates and near misses of a family serve one split alone, so that a threshold is
        not fitted to the questions it is tested with.
        """
        if ROUTER not in self.arms:
            return ()
        made: list[tuple[Split, QueryKind, str, str | None]] = []
        half = self.section["calibration"]
        for split, n in (("calibration", half), ("test", self.section["queries"])):
            made += self._not_own(split, n)  # type: ignore[arg-type]
        for family in self.families:
            for kind, one in self._own(family):
                made.append(("test", kind, one, family.name))
        return tuple(Query(n, s, k, t, f) for n, (s, k, t, f) in enumerate(made))

    def _own(self, family: Family) -> Iterator[tuple[QueryKind, str]]:
        for one in self.of(family, "contest"):
            yield "exact", one.statement
        for one in self.of(family, "transfer"):
            yield "new", one.statement
        for one in self.of(family, "transfer")[:1]:
            yield "paraphrase", family.paraphrase.format(**one.params)

    def _not_own(self, split: Split, n: int) -> Iterator[tuple[Split, QueryKind, str, None]]:
        """`n` near misses of a split's families, and `n` foreign questions of its templates."""
        share = 0 if split == "calibration" else 1
        mine = {family.name for family in self.families[share::2]} or {self.families[0].name}
        near = [s for name, s in near_misses(self.seed, 60 * (n + 1)) if name in mine]
        yield from ((split, "near miss", statement, None) for statement in near[:n])
        others = foreign(f"{self.seed}/{split}", 3 * n + 60)  # templates without numbers come once
        known = {template_of(s): None for s in foreign(f"{self.seed}/templates", 30)}
        order = [*known]
        picked = [s for s in others if _place(template_of(s), order) % 2 == share]
        yield from ((split, "foreign", statement, None) for statement in picked[:n])

    def further(self, n: int) -> list[Instance]:
        """`n` instances for a library of that size: all families in turn."""
        rounds = -(-n // len(self.families))
        drawn = [fresh(family, f"{self.seed}/growth", rounds) for family in self.families]
        return [one for turn in zip(*drawn, strict=True) for one in turn][:n]

    def flat_groups(self, names: list[str]) -> list[list[str]]:
        """Families whose blocks are put into one prefix, group by group."""
        size = self.section["flat_blocks"]
        return [names[at : at + size] for at in range(0, len(names), size)]

    @property
    def few(self) -> tuple[Family, ...]:
        """Every fourth family, for the arms whose bytes are known from others, or of little news:
        a block's text read again, and a block at another place.
        """
        return self.families[::4]

    @property
    def half(self) -> tuple[Family, ...]:
        """Every second family, for blocks of several examples."""
        return self.families[::2]

    def attempt_seed(self, arm: str, problem: str, attempt: int) -> str:
        """Name from which the draws of one attempt derive."""
        return f"{self.seed}/{arm}/{problem}/{attempt}"


def template_of(statement: str) -> str:
    """A statement without its digits: the same for all questions of one foreign template."""
    return "".join(c for c in statement if not c.isdigit())


def _place(template: str, order: list[str]) -> int:
    return order.index(template) if template in order else len(template)


def admitted(with_block: int, alone: int, n: int, margin: float) -> bool:
    """The admission test: the block beats the frozen model by a share of the fresh instances."""
    return n > 0 and (with_block - alone) / n >= margin


def needed(n: int, margin: float) -> int:
    """By how many of `n` instances a block has to win: the least number that `admitted` takes.

    `margin` times `n` is not always it, since 0.07 times 100 is above 7 in binary.
    """
    return next(won for won in range(n + 1) if won / n >= margin)


def section_problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a configuration's section `flywheel`, its schema apart."""
    where = "configuration.value.flywheel"
    missing = sorted(_KEYS - {*section})
    if missing:
        yield f"{where} has no {', '.join(missing)}"
        return
    if section["families"] < 2:
        yield f"{where}: routing needs a second family"
    if section["baselines"] > min(section["transfers"], section["few_transfers"]):
        yield f"{where}: baselines are taken from the transfers, and are at most as many"
    if sorted(set(section["growth"])) != section["growth"]:
        yield f"{where}: growth does not ascend"
    arms = {*section.get("arms", ARMS)}
    for group in TOGETHER:
        if arms & {*group} not in (set(), {*group}):
            yield f"{where}: {', '.join(group)} are asked together or not at all"
    yield from files.section_problems(section, [family.name for family in (*FAMILIES, *SOLVED)])
    for arm, other in NEEDS.items():
        if arm in arms and other not in arms:
            yield f"{where}: {arm} needs {other}"
