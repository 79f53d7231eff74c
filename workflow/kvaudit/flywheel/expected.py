"""Which records a flywheel stage must hold: the plan, drawn again from the configuration's seed.

No problem, attempt or query can be left out, put in twice or relabelled. How many attempts an
adaptation takes depends on the gate, and what is asked of a block depends on the deposits; both are
taken from the records, which `consistency` looks at. This module must not know which results would
be good ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvaudit import digests, profiles
from kvaudit.errors import UnusableInput
from kvaudit.flywheel import asked, check_files, files, routing
from kvaudit.flywheel.check_deposits import AUTHOR
from kvaudit.flywheel.known import Known, Row
from kvaudit.flywheel.plan import Plan, section_problems
from kvaudit.flywheel.records import (
    ARMS,
    CALIBRATION,
    DEPOSITS,
    ENTRIES,
    FILE_ARMS,
    GENERATIONS,
    GROWTH,
    HEADERS,
    PROBLEMS,
    PROGRAMS,
    RECALLING,
    ROUTES,
    RUN,
    RUNNING,
)
from kvaudit.problems.family import Family
from kvaudit.problems.solved import SOLVED
from kvaudit.stagekind import Problem, Rows

LOOPED = ("admission-with", "adapt", "adapt-templated")
"""Arms that try again until the gate passes."""

FEW = ("adapt-text", "adapt-relocated")
"""Arms that ask problems of few families."""

BASELINES = (*FEW, "adapt-flat", "alone")
"""Arms that ask few instances of a family."""

_VARIANTS = {
    "adapt-templated": "templated",
    "recall-examples": "examples",
    "solved-with": "solved",
}
"""Deposits that an arm needs; `deposited` ones otherwise."""

Question = tuple[str, tuple[str, ...]]
"""A problem and the deposits in its context."""


def check(subject: str, rows: Rows, inputs: Mapping[str, Any]) -> list[Problem]:
    """Everything that a stage of this configuration must hold and does not.

    Where the configuration is unusable itself, nothing is found here: `chain` has reported it.
    """
    value = inputs["configuration"]["value"]
    section = value.get("flywheel", {})
    if "seed" not in value or any(section_problems(section)):
        return []
    try:
        plan = Plan(section, f"{value['seed']}/{subject}")
        drawn = _Drawn(subject, rows, plan)
        drawn.plan.problems, drawn.plan.queries  # noqa: B018
    except UnusableInput as error:
        return [Problem(PROBLEMS, f"the configuration's plan cannot be drawn: {error}")]
    found: list[Problem] = []
    for file, check_file in (
        (PROBLEMS, _problems),
        (DEPOSITS, _deposits),
        (GENERATIONS, _order),
        (GENERATIONS, _attempts),
        (ROUTES, _routes),
        (CALIBRATION, _calibration),
        (PROGRAMS, _stopped),
        (GROWTH, _growth),
        (RUN, _arms),
    ):
        found += [Problem(file, text) for text in check_file(drawn)]
    force = profiles.in_force(inputs, subject)
    if force is not None:
        for number, row in enumerate(rows[HEADERS], start=1):
            if row["header"]["engine"] != force.engine:
                found.append(Problem(HEADERS, f"line {number}: engine is not the registered one"))
    return found


@dataclass(frozen=True)
class _Drawn(Known):
    """The plan, and the records, on which the questions depend."""

    plan: Plan

    @property
    def section(self) -> Mapping[str, Any]:
        return self.plan.section

    @cached_property
    def statements(self) -> dict[str, str]:
        return {p.instance.name: p.instance.statement for p in self.plan.problems}

    def of(self, family: str, variant: str) -> Row | None:
        """A family's deposit of a variant; the last, which took the place of a refused one."""
        return next(reversed(self.siblings(family, variant)), None)

    @cached_property
    def chosen(self) -> dict[str, str]:
        """Family -> name of its chosen deposit, in the order of the plan."""
        names = {row["family"]: row["name"] for row in self.rows[DEPOSITS] if row["chosen"]}
        return {f.name: names[f.name] for f in self.plan.families if f.name in names}

    @cached_property
    def tested(self) -> dict[str, str]:
        """Family -> name of the deposit that is adapted, in the order of the plan."""
        rows = {family.name: self.of(family.name, "deposited") for family in self.plan.families}
        return {family: row["name"] for family, row in rows.items() if row is not None}

    def group(self, held: Mapping[str, str], family: str) -> tuple[str, ...] | None:
        """Of families' deposits, those that share a prefix with a family's own."""
        for group in self.plan.flat_groups([*held]):
            if family in group:
                return tuple(held[name] for name in group)
        return None


def _problems(drawn: _Drawn) -> Iterator[str]:
    planned = drawn.plan.problems
    own = [row for row in drawn.rows[PROBLEMS] if row["role"] in files.ROLES]
    rows = drawn.rows[PROBLEMS][: len(drawn.rows[PROBLEMS]) - len(own)]
    yield from check_files.problems(drawn.section.get("files", ()), own)
    if len(rows) != len(planned):
        yield f"{len(rows)} problems recorded, {len(planned)} planned"
    for number, (row, problem) in enumerate(zip(rows, planned, strict=False), start=1):
        one = problem.instance
        wanted = {
            "role": problem.role,
            "name": one.name,
            "family": one.family.name,
            "category": one.family.category,
            "tag": one.family.kind,
            "params": dict(one.params),
            "statement": one.statement,
            "answer": one.answer,
        }
        differing = sorted(key for key, value in wanted.items() if row[key] != value)
        if differing:
            yield f"line {number}: {', '.join(differing)} not as planned"


# -- deposits ---------------------------------------------------------------------------------


def _deposits(drawn: _Drawn) -> Iterator[str]:
    arms = drawn.plan.arms
    templated, solved = "adapt-templated" in arms, "solved-with" in arms
    held = Counter((row["family"], row["variant"]) for row in drawn.rows[DEPOSITS])
    for family in drawn.plan.families:
        if held[family.name, "deposited"] not in (1, 2):
            yield f"{family.name} has not one deposit, or two where the first was refused"
        examples = "recall-examples" in arms and family in drawn.plan.half
        if held[family.name, "examples"] != examples:
            yield f"{family.name} has not the planned block of examples"
        if held[family.name, "templated"] > (templated and family.kind == "hard-coded"):
            yield f"{family.name} has a templated deposit too many"
    for family in SOLVED:
        if held[family.name, "solved"] != solved:
            yield f"{family.name} has not the planned deposits, {int(solved)}"
    if sum(n for (_, variant), n in held.items() if variant == "card") != solved:
        yield f"there are not {int(solved)} cards"
    own = {"solved": SOLVED, "card": SOLVED}
    for row in drawn.rows[DEPOSITS]:
        if row["variant"] == check_files.VARIANT:
            continue
        families: Sequence[Family] = own.get(row["variant"], drawn.plan.families)
        if row["family"] not in {family.name for family in families}:
            yield f"{row['name']}: its family is not planned for its variant"
        if row["admission"] and row["admission"]["margin"] != drawn.section["margin"]:
            yield f"{row['name']}: its margin is not the planned one"
        yield from _supplied(row, drawn)


def _supplied(row: Row, drawn: _Drawn) -> Iterator[str]:
    """A supplied program is the family's own, for the numbers of the problem."""
    # A template may name its numbers otherwise; what it prints is checked by running it.
    if row["source"]["author"] != AUTHOR or row["variant"] == "card" or row["template"]:
        return
    solved = row["variant"] == "solved"
    for one in drawn.plan.of(row["family"], "solved-known" if solved else "contest")[:1]:
        program = one.family.program(one.params)
        if row["program_sha256"] != digests.sha256_bytes(program.encode("utf-8")):
            yield f"{row['name']}: its program is not the contest set's for {one.name}"


# -- generations ------------------------------------------------------------------------------


def _order(drawn: _Drawn) -> Iterator[str]:
    """Every arm asks what is planned, in the planned order, with the planned blocks."""
    order = (*ARMS, *FILE_ARMS)
    found: dict[str, list[Question]] = {arm: [] for arm in order}
    last = 0
    for row in drawn.rows[GENERATIONS]:
        place = order.index(row["arm"])
        if place < last:
            yield f"{row['arm']} comes after {order[last]}"
            break
        last = place
    for row in drawn.rows[GENERATIONS]:
        one = (row["problem"], tuple(row["deposits"]))
        if not found[row["arm"]] or found[row["arm"]][-1] != one:
            found[row["arm"]].append(one)
    of_files = files.questions(drawn.rows[PROBLEMS], drawn.section["flat_blocks"])
    for arm in order:
        planned = of_files[arm] if arm in of_files else _asked(arm, drawn)
        if arm == "admission-with":
            # Deposits are tested one after another, in any order of the families.
            planned = sorted(planned, key=lambda one: one[1])
            found[arm] = sorted(found[arm], key=lambda one: one[1])
        if found[arm] != planned:
            yield f"{arm}: are not the planned questions in their order"


def _asked(arm: str, drawn: _Drawn) -> list[Question]:
    plan = drawn.plan
    made: list[Question] = []
    if arm not in plan.arms:
        return made
    if arm == "admission-with":
        for row in drawn.rows[DEPOSITS]:
            if row["variant"] in ENTRIES:
                mine = plan.of(row["family"], "admission")
                made += [(one.name, (row["name"],)) for one in mine]
        return made
    for family in SOLVED if arm.startswith("solved-") else plan.families:
        held = _held(arm, family, drawn)
        if held is not None:
            made += [(one.name, held) for one in _instances(arm, family, drawn)]
    return made


def _instances(arm: str, family: Family, drawn: _Drawn) -> Sequence[Any]:
    if arm in ("text", "code") or arm in RECALLING:
        return drawn.plan.of(family, "contest")
    if arm == "admission-alone":
        return drawn.plan.of(family, "admission")
    if arm.startswith("solved-"):
        return drawn.plan.of(family, "solved")
    asked = drawn.plan.of(family, "transfer")
    return asked[: drawn.section["baselines"]] if arm in BASELINES else asked


def _held(arm: str, family: Family, drawn: _Drawn) -> tuple[str, ...] | None:
    """The deposits in the context when a family's problem is asked; None if it is not asked."""
    if arm in ("text", "code", "admission-alone", "alone", "alone-text", "solved-alone"):
        return ()
    if arm.endswith("-flat"):
        held = drawn.chosen if arm in RECALLING else drawn.tested
        return drawn.group(held, family.name)
    if arm in RECALLING and arm != "recall-examples":
        return (drawn.chosen[family.name],) if family.name in drawn.chosen else None
    if arm == "adapt-templated" and family.kind != "hard-coded":
        return None
    if arm in FEW and family not in drawn.plan.few:
        return None
    if arm == "solved-card":  # one text for all families
        return tuple(one["name"] for one in drawn.rows[DEPOSITS] if one["variant"] == "card")
    row = drawn.of(family.name, _VARIANTS.get(arm, "deposited"))
    return None if row is None else (row["name"],)


def _attempts(drawn: _Drawn) -> Iterator[str]:
    section = drawn.section
    groups: dict[tuple[str, str, tuple[str, ...]], list[Row]] = {}
    for number, row in enumerate(drawn.rows[GENERATIONS], start=1):
        yield from (f"line {number} ({row['arm']}): {text}" for text in _attempt(row, drawn))
        key = (row["arm"], row["problem"], tuple(row["deposits"]))
        groups.setdefault(key, []).append(row)
    for (arm, problem, _), rows in groups.items():
        where = f"{arm}, {problem}"
        if [row["attempt"] for row in rows] != list(range(len(rows))):
            yield f"{where}: attempts do not count from 0"
        passed = [row["gate"] == "passed" for row in rows]
        if arm in LOOPED:
            most = section["adapt_attempts"]
            if any(passed[:-1]) or not (passed[-1] or len(rows) == most) or len(rows) > most:
                yield f"{where}: attempts do not go on until the gate passes, and no further"
            continue
        way = "attempts" if arm in ("text", "file-direct") else "code_attempts"
        n = section[way] if arm in ("text", "code", "file-direct", "file-code") else 1
        if len(rows) != n:
            yield f"{where}: {len(rows)} attempts recorded, {n} planned"


def _attempt(row: Row, drawn: _Drawn) -> Iterator[str]:
    arm, section = row["arm"], drawn.section
    greedy = row["attempt"] == 0
    seed = "" if greedy else drawn.plan.attempt_seed(arm, row["problem"], row["attempt"])
    if row["seed"] != seed:
        yield "seed is not the planned one"
    if row["temperature"] != (0 if greedy else section["temperature"]):
        yield "temperature is not the planned one"
    limit = "program_tokens" if arm in RUNNING else "answer_tokens"
    most = section["recall_tokens" if arm in RECALLING else limit]
    if len(row["tokens"]) != row["decoded_tokens"]:
        yield "decoded_tokens is not the number of its tokens"
    if row["decoded_tokens"] > most:
        yield f"decoded {row['decoded_tokens']} tokens, {most} planned at most"
    if row["finish"] == "limit" and row["decoded_tokens"] != most:
        yield "ended at its limit, but did not reach it"
    question = asked.question(drawn, row)
    if question is not None and row["prompt_sha256"] != digests.sha256_bytes(question.encode()):
        yield "prompt_sha256 is not that of the planned question"


# -- router -----------------------------------------------------------------------------------


def _routes(drawn: _Drawn) -> Iterator[str]:
    rows, planned = drawn.rows[ROUTES], drawn.plan.queries
    if len(rows) != len(planned):
        yield f"{len(rows)} queries recorded, {len(planned)} planned"
    statements = [entry["statement"] for entry in drawn.entries]
    limit, scored = drawn.section["shortlist"], drawn.section["scored_tokens"]
    for number, (row, query) in enumerate(zip(rows, planned, strict=False), start=1):
        wanted = {
            "query": query.number,
            "split": query.split,
            "query_kind": query.kind,
            "statement": query.statement,
            "family": query.family,
        }
        differing = sorted(key for key, value in wanted.items() if row[key] != value)
        if differing:
            yield f"line {number}: {', '.join(differing)} not as planned"
        n = len(routing.shortlist(statements, query.statement, limit))
        exact = row["decision"] == "recall" and not row["shortlist"]
        if len(row["shortlist"]) != n and not exact:
            yield f"line {number}: {len(row['shortlist'])} candidates, {n} planned"
        if any(one["tokens"] > scored for one in row["scores"]):
            yield f"line {number}: more tokens are scored than planned"


def _calibration(drawn: _Drawn) -> Iterator[str]:
    if any(row["alpha"] != drawn.section["alpha"] for row in drawn.rows[CALIBRATION]):
        yield "alpha is not the planned one"


def _stopped(drawn: _Drawn) -> Iterator[str]:
    for number, row in enumerate(drawn.rows[PROGRAMS], start=1):
        if row["ending"] == "timeout" and row["seconds"] < drawn.section["program_seconds"] / 2:
            # Seconds of processor time are rounded up, those of the clock include the start.
            yield f"line {number}: ended as timeout after {row['seconds']} s"


def _arms(drawn: _Drawn) -> Iterator[str]:
    if any(row.get("arms") != drawn.section.get("arms") for row in drawn.rows[RUN]):
        yield "arms are not the planned ones"


def _growth(drawn: _Drawn) -> Iterator[str]:
    section = drawn.section
    sizes: dict[int, list[int]] = {}
    for row in drawn.rows[GROWTH]:
        sizes.setdefault(row["entries"], []).append(row["query"])
    if [*sizes] != [*drawn.plan.growth]:
        yield "are not the planned sizes"
    new = sum(query.kind == "new" for query in drawn.plan.queries)
    planned = list(range(min(section["growth_queries"], new)))
    for size, queries in sizes.items():
        if queries != planned:
            yield f"{size} entries: are not the planned {len(planned)} queries in their order"
    for number, row in enumerate(drawn.rows[GROWTH], start=1):
        if row["candidates"] > section["shortlist"]:
            yield f"line {number}: has more candidates than planned"
        if row["scored_tokens"] > row["candidates"] * section["scored_tokens"]:
            yield f"line {number}: more tokens are scored than planned"
