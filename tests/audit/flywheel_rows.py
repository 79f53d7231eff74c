"""Made-up records of a flywheel stage, for figures and claims that are checked by hand.

No model, engine or plan is behind them: an answer is stated and its outcome follows from it. There
are no programs, headers or profiles, because no figure reads them. `small` is countable by hand and
too little for any claim but the exact graft's; `large` has what every claim needs and lets it hold.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from typing import Any

from kvaudit.flywheel.blocks import CATEGORIES
from kvaudit.flywheel.check_deposits import AUTHOR
from kvaudit.flywheel.plan import OWN
from kvaudit.flywheel.records import (
    CALIBRATION,
    CODING,
    DEPOSITS,
    GATED,
    GENERATIONS,
    GROWTH,
    KINDS,
    PROBLEMS,
    READ,
    RECALLING,
    ROUTES,
    RUN,
    RUNNING,
)

MODEL = "tiny"

Row = dict[str, Any]
Rows = dict[str, list[Row]]

ALONE = CODING | {"text", "alone-text", "admission-alone", "solved-alone"}
"""Arms without a block."""

BLOCK_TOKENS = 100

FAMILIES = tuple(f"f{n}" for n in range(30))
HARD_CODED = FAMILIES[20:]
FEW, HALF = FAMILIES[::4], FAMILIES[::2]
"""Families of `large`, and those that some arms are limited to."""

EASY = FAMILIES[:5]
"""Families of `large` whose contest problem the frozen model solves."""

TRANSFERS, FEW_TRANSFERS, BASELINES = 6, 3, 2
"""New instances of a parametric and of a hard-coded family, and how many the baselines have."""

GROUP, SOLVED, NOT_OWN = 5, 10, 50
"""Blocks in one prefix; instances of a solved family; near misses, and as many foreign queries."""

# -- one record ---------------------------------------------------------------------------------


def digest_of(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def head(kind: str) -> Row:
    return {"kind": kind, "version": 1, "model": MODEL}


def rows_of(**files: list[Row]) -> Rows:
    """All record files, those that are not given without a row."""
    return {name: files.get(name, []) for name in KINDS}


def problem(role: str, family: str, n: int, answer: int, **changes: Any) -> Row:
    """The n-th instance of a family in a role; families take the categories in turn."""
    return {
        **head("flywheel-problem"),
        "role": role,
        "name": f"{family}/{role}/{n}",
        "family": family,
        "category": CATEGORIES[int(family[1:]) % len(CATEGORIES)],
        "tag": "parametric",
        "params": {"a": n},
        "statement": f"What is the {role} question {n} of family {family}?",
        "answer": answer,
        **changes,
    }


def said(arm: str, one: Row, answer: int | None, attempt: int = 0, **changes: Any) -> Row:
    """What was generated for a problem; by default behind its own family's block, if the arm has
    one, and past the gate, if there is one.

    The logits are those of the text in the context: equal where a block is restored as it was
    written and where its text is read, and others where it was moved or stands among others.
    """
    held = changes.get("deposits", [] if arm in ALONE else [one["family"]])
    flat, moved = arm.endswith("-flat"), arm.endswith("-relocated")
    reads = flat or arm in READ
    cached = 0 if reads else BLOCK_TOKENS * len(held)
    recall = arm in RECALLING
    context = arm if flat or moved else ""
    outcome = "answer" if answer == one["answer"] else "wrong"
    return {
        **head("flywheel-generation"),
        "arm": arm,
        "problem": one["name"],
        "attempt": attempt,
        "deposits": held,
        "temperature": 0.5 if attempt else 0.0,
        "seed": f"{MODEL}/{arm}/{one['name']}/{attempt}" if attempt else "",
        "prompt_sha256": digest_of("prompt", one["name"]),
        "prompt_tokens": (30 if recall else 20) + BLOCK_TOKENS * len(held) * reads,
        "cached_tokens": cached,
        "decoded_tokens": 4 if recall else 10,
        "tokens": list(range(changes.get("decoded_tokens", 4 if recall else 10))),
        "text": "" if answer is None else str(answer),
        "finish": "stop",
        "logits_sha256": digest_of("logits", one["name"], held, context),
        "exact": not moved if cached else None,
        "program_sha256": digest_of("program", answer) if arm in RUNNING else None,
        "gate": "passed" if arm in GATED else None,
        "answer": answer,
        "outcome": "no answer" if answer is None else outcome,
        "seconds": 0.5 if recall else 1.0,
        **changes,
    }


def deposit(family: str, answer: int | None, **changes: Any) -> Row:
    """A family's supplied deposit of its first contest problem, admitted and chosen."""
    name = changes.get("name", family)
    return {
        **head("flywheel-deposit"),
        "name": name,
        "family": family,
        "variant": "deposited",
        "problems": [f"{family}/contest/0"],
        "statement": f"What is the contest question 0 of family {family}?",
        "answer": answer,
        "program_sha256": digest_of("program", answer),
        "source": {
            "kind": "supplied",
            "author": AUTHOR,
            **dict.fromkeys(("solver", "attempt", "tokens", "model")),
        },
        "template": None,
        "demonstration": None,
        "block_id": digest_of("block", name),
        "entry_id": digest_of("entry", name),
        "text": f"Problem and program of {name}.",
        "tokens": BLOCK_TOKENS,
        "file_bytes": 1000 * BLOCK_TOKENS,
        "seconds": {"prefill": 0.5, "store": 0.25},
        "admission": {"instances": 2, "with_block": 2, "alone": 0, "margin": 0.5},
        "admitted": True,
        "chosen": True,
        **changes,
    }


def refused(family: str, answer: int | None, **changes: Any) -> Row:
    """A deposit that did not help."""
    admission = {"instances": 2, "with_block": 0, "alone": 0, "margin": 0.5}
    return deposit(
        family, answer, **{"entry_id": None, "admission": admission, "admitted": False, **changes}
    )


def by_solver() -> Row:
    """The source of a deposit whose program the frozen model wrote at once."""
    return {
        "kind": "solver",
        "author": None,
        "solver": "code",
        "attempt": 0,
        "tokens": 10,
        "model": MODEL,
    }


def route(number: int, kind: str, family: str | None, decision: str, **changes: Any) -> Row:
    """A query of the test split.

    Its best candidate is its own family's deposit, of a query without one that of f0. It is right
    if it is an own query and routed. An exact statement is known without a score.
    """
    exact = kind == "exact"
    best = changes.get("best", family or "f0")
    score = changes.get("score", None if exact else -1.0)
    scored = best is not None and score is not None
    return {
        **head("flywheel-route"),
        "query": number,
        "split": "test",
        "query_kind": kind,
        "statement": f"What is query {number}?",
        "family": family,
        "shortlist": [[best, 1_000_000]] if scored else [],
        "scores": [{"deposit": best, "score": score, "tokens": 12}] if scored else [],
        "best": best,
        "score": score,
        "decision": decision,
        "right": kind in OWN and decision != "abstain",
        "seconds": {"rank": 0.01, "graft": 0.0 if exact else 0.02, "score": 0.0 if exact else 0.1},
        **changes,
    }


def run(entries: int, size: int | None = None, **changes: Any) -> Row:
    """The run's own record: no meter, and a library of so many entries."""
    size = 1000 * BLOCK_TOKENS * entries if size is None else size
    return {
        **head("flywheel-run"),
        "energy": {"meter": None, "reason": "no meter on this machine", "joules": None},
        "python": platform.python_version(),
        "seconds": {"solve": 10.0, "transfer": 20.0},
        "library": {"entries": entries, "bytes": size},
        **changes,
    }


# -- few records --------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[tuple[int | None, ...], tuple[int | None, ...]]] = {
    # The first answer in words is wrong, the others and both programs are right.
    "f0": ((9, 100, 100), (100, 100)),
    # Words and programs agree, at once too, on a wrong answer.
    "f1": ((5, 5, 5), (5, None)),
    # All wrong, and they agree on nothing.
    "f2": ((None, 3, 4), (None, 6)),
    # Nothing in words; the second program is right.
    "f3": ((None, None, None), (8, 103)),
}
"""Family of `small` -> own answers in words and by program; the known ones are 100 to 103."""


def small() -> Rows:
    """Four problems, all of them recalled; the deposits of the first three were admitted.

    An own attempt reads 20 tokens, decodes 10 and takes a second; a recall reads 30, decodes 4 and
    takes half of one. The three attempts in words at f3 were cut off. Every deposit was tested on
    two instances, once with its block and once alone.
    """
    contest = [problem("contest", family, 0, 100 + n) for n, family in enumerate(ANSWERS)]
    tests = [problem("admission", family, n, 200 + n) for family in ANSWERS for n in range(2)]
    made: list[Row] = []
    for place, arm in enumerate(("text", "code")):
        for one in contest:
            cut: Row = {"finish": "limit"} if (arm, one["family"]) == ("text", "f3") else {}
            answers = ANSWERS[one["family"]][place]
            made += [said(arm, one, answer, n, **cut) for n, answer in enumerate(answers)]
    made += [said("admission-alone", one, None) for one in tests]
    made += [
        said("admission-with", one, None if one["family"] == "f3" else one["answer"])
        for one in tests
    ]
    made += [said("recall", one, one["answer"]) for one in contest]
    return rows_of(
        **{
            PROBLEMS: [*contest, *tests],
            GENERATIONS: made,
            DEPOSITS: [
                deposit("f0", 100, source=by_solver()),
                deposit("f1", 101),
                deposit("f2", 102),
                refused("f3", 103),
            ],
            ROUTES: [
                *(route(n, "exact", f"f{n}", "recall") for n in range(3)),
                route(3, "exact", "f3", "abstain", best=None, right=True),
            ],
            CALIBRATION: [calibrated(n=4, threshold=None)],
            RUN: [run(3)],
        }
    )


def calibrated(n: int, threshold: float | None, **changes: Any) -> Row:
    return {
        **head("flywheel-calibration"),
        "statistic": "mean log-probability",
        "alpha": 0.1,
        "n": n,
        "threshold": threshold,
        **changes,
    }


def grown(
    entries: int, query: int, *, candidates: int, scored_tokens: int, rank: float, graft: float
) -> Row:
    """What one query took in a library of so many entries."""
    return {
        **head("flywheel-growth"),
        "entries": entries,
        "query": query,
        "candidates": candidates,
        "scored_tokens": scored_tokens,
        "seconds": {"rank": rank, "graft": graft, "score": 0.1},
    }


# -- enough for every claim ---------------------------------------------------------------------


def large() -> Rows:
    """Thirty families, of which ten have their numbers in the code, and every claim holds.

    The frozen model solves five contest problems, in words and by program, and nothing else but
    the solved families. Programs are adapted right, if they name their numbers or are templates.
    A block among others gives the next one's answer; the method card misleads and is long.
    """
    contest = [_of(f, "contest", 0, 100 + n) for n, f in enumerate(FAMILIES)]
    tests = [_of(f, "admission", n, 200 + n) for f in FAMILIES for n in range(2)]
    new = [_of(f, "transfer", n, 300 + n) for f in FAMILIES for n in range(_transfers(f))]
    solved = [problem("solved", f, n, 400 + n) for f in ("s0", "s1") for n in range(SOLVED)]
    deposits = _large_deposits(contest)
    return rows_of(
        **{
            PROBLEMS: [*contest, *tests, *new, *solved],
            GENERATIONS: [
                *_own(contest),
                *_admission(tests),
                *_adapted(new),
                *_recalled(contest),
                *_baselines(new),
                *_solved(solved),
            ],
            DEPOSITS: deposits,
            ROUTES: _large_routes(contest, new),
            CALIBRATION: [calibrated(n=100, threshold=-2.0)],
            GROWTH: _growth(),
            RUN: [run(sum(row["entry_id"] is not None for row in deposits))],
        }
    )


def _of(family: str, role: str, n: int, answer: int) -> Row:
    tag = "hard-coded" if family in HARD_CODED else "parametric"
    return problem(role, family, n, answer, tag=tag)


def _transfers(family: str) -> int:
    return FEW_TRANSFERS if family in HARD_CODED else TRANSFERS


def _chosen(family: str) -> str:
    """The name of a family's chosen deposit: of a hard-coded one its template is."""
    return f"{family}/templated" if family in HARD_CODED else family


def _group(family: str) -> list[str]:
    """The families whose blocks share a prefix with this one's."""
    at = FAMILIES.index(family) // GROUP * GROUP
    return list(FAMILIES[at : at + GROUP])


def _right_if(condition: bool, one: Row, otherwise: int | None = None) -> int | None:
    return int(one["answer"]) if condition else otherwise


def _large_deposits(contest: Sequence[Row]) -> list[Row]:
    made: list[Row] = []
    for one in contest:
        family, answer = one["family"], one["answer"]
        if family not in HARD_CODED:
            source = {"source": by_solver()} if family in EASY else {}
            made.append(deposit(family, answer, **source))
            continue
        made.append(refused(family, answer, chosen=False))
        template = {"program": "a = {0}\nprint(a)", "shape": ["a"]}
        made.append(
            deposit(family, answer, name=_chosen(family), variant="templated", template=template)
        )
    apart = {"entry_id": None, "admission": None, "admitted": False, "chosen": False}
    for one in contest:
        if one["family"] in HALF:
            name = f"{one['family']}/examples"
            made.append(
                deposit(one["family"], one["answer"], name=name, variant="examples", **apart)
            )
    no_use = {"instances": SOLVED, "alone": SOLVED, "margin": 0.5}
    for family in ("s0", "s1"):
        admission = {**no_use, "with_block": SOLVED}
        made.append(
            deposit(family, 400, variant="solved", problems=[], **{**apart, "admission": admission})
        )
    card: Row = {"variant": "card", "problems": [], "answer": None, "program_sha256": None}
    made.append(
        {
            **deposit("s0", 0),
            **card,
            **apart,
            "name": "card",
            "admission": {**no_use, "with_block": 0},
        }
    )
    return made


def _own(contest: Sequence[Row]) -> list[Row]:
    """Five attempts in words and two programs, no two of which agree on a wrong answer."""
    made: list[Row] = []
    for arm, attempts, wrong in (("text", 5, 900), ("code", 2, 950)):
        for one in contest:
            for n in range(attempts):
                made.append(said(arm, one, _right_if(one["family"] in EASY, one, wrong + n), n))
    return made


def _admission(tests: Sequence[Row]) -> list[Row]:
    made = [said("admission-alone", one, None) for one in tests]
    for one in tests:
        hard = one["family"] in HARD_CODED
        made.append(said("admission-with", one, None if hard else one["answer"]))
    for one in tests:
        if one["family"] in HARD_CODED:
            held = [_chosen(one["family"])]
            made.append(said("admission-with", one, one["answer"], deposits=held))
    return made


def _adapted(new: Sequence[Row]) -> list[Row]:
    """New instances; a program with its numbers in the code does not pass the gate."""
    made: list[Row] = []
    for one in new:
        if one["family"] in HARD_CODED:
            made += [said("adapt", one, 960, n, gate="unbound") for n in range(2)]
        else:
            made.append(said("adapt", one, one["answer"]))
    for one in new:
        if one["family"] in HARD_CODED:
            held = [_chosen(one["family"])]
            made.append(said("adapt-templated", one, one["answer"], deposits=held))
    few = _first(new)
    made += [said("alone", one, None) for one in few]
    made += [said("alone-text", one, 970) for one in new]
    return made


def _first(new: Sequence[Row]) -> list[Row]:
    """The instances that the baselines are asked."""
    return [one for one in new if one["params"]["a"] < BASELINES]


def _recalled(contest: Sequence[Row]) -> list[Row]:
    made: list[Row] = []
    for arm in ("recall", "recall-text", "recall-relocated"):
        for one in contest:
            held = [_chosen(one["family"])]
            made.append(said(arm, one, one["answer"], deposits=held, decoded_tokens=3))
    known = {one["family"]: one["answer"] for one in contest}
    for one in contest:
        group = _group(one["family"])
        following = group[(group.index(one["family"]) + 1) % GROUP]
        held = [_chosen(family) for family in group]
        made.append(said("recall-flat", one, known[following], deposits=held))
    for one in contest:
        if one["family"] in HALF:
            held = [f"{one['family']}/examples"]
            made.append(said("recall-examples", one, 980, deposits=held))
    return made


def _baselines(new: Sequence[Row]) -> list[Row]:
    """Adaptation from a block read again, one among others and one moved: the second is wrong."""
    made: list[Row] = []
    for arm in ("adapt-text", "adapt-flat", "adapt-relocated"):
        for one in _first(new):
            hard = one["family"] in HARD_CODED
            gate: Row = {"gate": "unbound"} if hard else {}
            if arm == "adapt-flat":
                made.append(said(arm, one, 990, deposits=_group(one["family"]), **gate))
            elif one["family"] in FEW:
                made.append(said(arm, one, _right_if(not hard, one, 960), **gate))
    return made


def _solved(solved: Sequence[Row]) -> list[Row]:
    made = [said("solved-alone", one, one["answer"], decoded_tokens=2) for one in solved]
    made += [said("solved-with", one, one["answer"], gate="passed") for one in solved]
    for one in solved:
        made.append(said("solved-card", one, None, deposits=["card"], decoded_tokens=20))
    return made


def _large_routes(contest: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """All own queries reach their entry; two near misses and two foreign queries are routed."""
    own = [("exact", one["family"]) for one in contest]
    own += [("new", one["family"]) for one in new]
    own += [("paraphrase", one["family"]) for one in contest]
    made: list[Row] = []
    for n, (kind, family) in enumerate(own):
        decision = "recall" if kind == "exact" else "adapt"
        made.append(route(n, kind, family, decision, best=_chosen(family)))
    for kind in ("near miss", "foreign"):
        for n in range(NOT_OWN):
            routed = n < 2
            score = -1.5 if routed else -3.0 - n / 100
            decision = "adapt" if routed else "abstain"
            made.append(route(len(made), kind, None, decision, score=score, right=not routed))
    return made


def _growth() -> list[Row]:
    """Ranking grows with the library, the rest does not."""
    return [
        grown(entries, query, candidates=4, scored_tokens=50, rank=0.001 * entries, graft=0.02)
        for entries in (8, 32, 128)
        for query in range(3)
    ]
