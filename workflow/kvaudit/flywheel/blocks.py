"""Tables of what a block does to an answer: one block against many, new numbers, blocks of no use.

Rows F4, F5, F7, F8 and F9. Arms are compared on the same problems; where a baseline had one
attempt, only the first attempt of the other arm counts. This module must not know a claim.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from kvaudit import estimate
from kvaudit.flywheel.figures import (
    Found,
    adapted,
    interval,
    rate,
    right,
    spent,
    tokens,
    verdict,
)
from kvaudit.flywheel.gate import Gate
from kvaudit.flywheel.known import Row
from kvaudit.flywheel.records import DEPOSITS

OTHERS = ("flat", "relocated", "text")
"""What a routed block is compared with: several blocks in one prefix, a block moved to other
positions, and the block's text read again."""

CATEGORIES = ("number theory", "counting", "sequences", "geometry", "logic")


# -- F4 ---------------------------------------------------------------------------------------


def routed(found: Found) -> dict[str, Any]:
    """F4: recall and adaptation from the routed block, against the other ways to have it there."""
    return {
        "recall": {other: _against(found, "recall", f"recall-{other}") for other in OTHERS},
        "adapt": {other: _against(found, "adapt", f"adapt-{other}") for other in OTHERS},
        "bytes": _bytes(found),
    }


def _against(found: Found, arm: str, other: str) -> dict[str, Any]:
    both = [name for name in found.arm(arm) if name in found.arm(other)]
    return {
        **found.paired(found.rights(arm), found.rights(other), f"F4/{other}"),
        "first_taken": sum(_taken(found, found.arm(arm)[name][0]) for name in both),
        "second_taken": sum(_taken(found, found.arm(other)[name][0]) for name in both),
        "first_tokens": tokens(found.arm(arm)[name][0] for name in both),
        "second_tokens": tokens(found.arm(other)[name][0] for name in both),
    }


def _taken(found: Found, row: Row) -> bool:
    """Whether a wrong answer is that of another family's deposit in the same context."""
    mine = found.problems[row["problem"]]
    others = {
        found.deposits[name]["answer"]
        for name in row["deposits"]
        if found.deposits[name]["family"] != mine["family"]
    }
    return row["answer"] is not None and row["answer"] != mine["answer"] and row["answer"] in others


def _bytes(found: Found) -> dict[str, int]:
    """How many recalls have the logits and the text of the same text prefilled."""
    grafted, prefilled = found.arm("recall"), found.arm("recall-text")
    pairs = [(rows[0], prefilled[n][0]) for n, rows in grafted.items() if n in prefilled]
    return {
        "recalls": len(grafted),
        "pairs": len(pairs),
        "equal_logits": sum(a["logits_sha256"] == b["logits_sha256"] for a, b in pairs),
        "equal_texts": sum(a["text"] == b["text"] for a, b in pairs),
        "exact": sum(rows[0]["exact"] is True for rows in grafted.values()),
    }


# -- F5 ---------------------------------------------------------------------------------------


def transfer(found: Found) -> dict[str, Any]:
    """F5: new numbers, by how the deposit's program holds its own."""
    tags = {name: row["tag"] for name, row in found.problems.items()}
    plain = {
        tag: {n: rows for n, rows in found.arm("adapt").items() if tags[n] == tag}
        for tag in ("parametric", "hard-coded")
    }
    templated = found.arm("adapt-templated")
    usual = {n: verdict(rows) == "right" for n, rows in plain["hard-coded"].items()}
    return {
        "parametric": _adapted(found, plain["parametric"], "parametric"),
        "hard_coded": _adapted(found, plain["hard-coded"], "hard-coded"),
        "templated": _adapted(found, templated, "templated"),
        "templated_plain": found.paired(
            {n: verdict(rows) == "right" for n, rows in templated.items()}, usual, "F5/templates"
        ),
        "templates": _templates(found),
    }


def _adapted(found: Found, arm: Mapping[str, list[Row]], name: str) -> dict[str, Any]:
    says = {problem: verdict(rows) for problem, rows in arm.items()}
    rights = {problem: said == "right" for problem, said in says.items()}
    rows = [row for attempts in arm.values() for row in attempts]
    gates = Counter(row["gate"] for row in rows)
    used = Counter(len(attempts) for attempts in arm.values())
    alone, words = found.rights("alone"), found.rights("alone-text")
    return {
        "adapt": spent(rights.values(), rows),
        "abstained": sum(said == "abstained" for said in says.values()),
        "wrong": sum(said == "wrong" for said in says.values()),
        "gates": {gate.replace(" ", "_"): gates[gate] for gate in get_args(Gate)},
        "attempts": [
            {"attempts": n, "problems": used[n], "passed": _passed(arm, n)} for n in sorted(used)
        ],
        "ungated_greedy": rate(right(attempts[0]) for attempts in arm.values()),
        "alone": rate(alone[problem] for problem in arm if problem in alone),
        "alone_text": rate(words[problem] for problem in arm if problem in words),
        "adapt_alone": found.paired(rights, alone, f"F5/{name}"),
        "adapt_alone_text": found.paired(rights, words, f"F5/{name}/text"),
        "families": _families(found, rights),
    }


def _passed(arm: Mapping[str, list[Row]], n: int) -> int:
    """Problems with so many attempts of which one passed the gate."""
    return sum(len(rows) == n and adapted(rows) is not None for rows in arm.values())


def _families(found: Found, rights: Mapping[str, bool]) -> list[dict[str, Any]]:
    made: dict[str, list[bool]] = {}
    for problem, one in rights.items():
        made.setdefault(found.problems[problem]["family"], []).append(one)
    return [
        {"family": family, "right": sum(values), "n": len(values)}
        for family, values in made.items()
    ]


def _templates(found: Found) -> dict[str, dict[str, int]]:
    """Families whose deposited program became a template; this takes no token of the model."""
    tags = {
        row["family"]: row["tag"] for row in found.problems.values() if row["role"] == "contest"
    }
    have = {
        row["family"]
        for row in found.rows[DEPOSITS]
        if row["template"] is not None or row["variant"] == "templated"
    }
    return {
        tag.replace("-", "_"): {
            "families": sum(one == tag for one in tags.values()),
            "with_template": sum(one == tag and name in have for name, one in tags.items()),
        }
        for tag in ("parametric", "hard-coded")
    }


# -- F7 and F8 --------------------------------------------------------------------------------


KNOWN_ALONE = 0.95
"""Share of a family's instances that a model must solve alone for the family to need no block."""


def solved(found: Found) -> dict[str, Any]:
    """F7 and F8: problems that the model solves alone, with a block of their own and with a card.

    A family of which it solves fewer than `KNOWN_ALONE` alone is none of those, and is left out;
    the others are named. The ratio of tokens is bootstrapped over the problems. The admission
    counts are added up over the cards that were deposited.
    """
    alone = found.rights("solved-alone")
    by_family: dict[str, list[bool]] = {}
    for problem, answered in alone.items():
        by_family.setdefault(found.problems[problem]["family"], []).append(answered)
    known = {name for name, all_ in by_family.items() if sum(all_) >= KNOWN_ALONE * len(all_)}
    arms = {
        key: {
            problem: rows
            for problem, rows in found.arm(f"solved-{key}").items()
            if found.problems[problem]["family"] in known
        }
        for key in ("alone", "with", "card")
    }
    rights = {
        key: {p: r for p, r in found.rights(f"solved-{key}").items() if p in arms[key]}
        for key in arms
    }
    return {
        "families": sorted(known),
        **{
            key: spent(rights[key].values(), [row for rows in arm.values() for row in rows])
            for key, arm in arms.items()
        },
        "with_alone": found.paired(rights["with"], rights["alone"], "F7"),
        "card_alone": found.paired(rights["card"], rights["alone"], "F8"),
        "card_tokens": _token_ratio(found, arms["card"], arms["alone"]),
        "admissions": [
            {
                "deposit": row["name"],
                "variant": row["variant"],
                "admission": row["admission"],
                "admitted": row["admitted"],
            }
            for row in found.rows[DEPOSITS]
            if row["variant"] in ("solved", "card")
        ],
    }


def falling_back(found: Found) -> dict[str, Any]:
    """F7: families solved alone, asked behind their block; what the gate refuses is answered by the
    frozen model alone, as a library that abstains leaves it to do.

    Returns:
        `pair` as `Found.paired` gives it, and of the first arm how many were `adapted`.
    """
    known = solved(found)["families"]
    alone = {
        problem: answered
        for problem, answered in found.rights("solved-alone").items()
        if found.problems[problem]["family"] in known
    }
    adapted = {
        problem: rows[0]["outcome"] == "answer"
        for problem, rows in found.arm("solved-with").items()
        if rows[0]["gate"] == "passed" and problem in alone
    }
    return {
        "pair": found.paired({**alone, **adapted}, alone, "F7/system"),
        "adapted": len(adapted),
    }


def _token_ratio(
    found: Found, first: Mapping[str, Sequence[Row]], second: Mapping[str, Sequence[Row]]
) -> dict[str, Any] | None:
    """Decoded tokens of one arm for one of the other, over the problems that both have."""
    both = [name for name in first if name in second]
    above = [float(first[name][0]["decoded_tokens"]) for name in both]
    below = [float(second[name][0]["decoded_tokens"]) for name in both]
    if not any(below):
        return None
    ratio = estimate.bootstrap_ratio(above, below, f"{found.subject}/flywheel/F8/tokens")
    # Infinite where hardly any problem took a token: no interval that JSON could hold.
    return interval(ratio, len(both)) if math.isfinite(ratio.high) else None


# -- F9 ---------------------------------------------------------------------------------------


def categories(found: Found) -> dict[str, Any]:
    """F9: routed against flat by category, and blocks of several worked examples.

    Routed and flat are first attempts behind the gate; alone is the program that the frozen model
    wrote. All three are counted on the problems that the flat arm was asked.
    """
    flat, one, alone = (found.rights(arm) for arm in ("adapt-flat", "adapt", "alone"))
    asked = [name for name in flat if name in one]
    return {
        "categories": [
            {
                "category": category,
                **{
                    key: rate(
                        arm[name]
                        for name in asked
                        if found.problems[name]["category"] == category and name in arm
                    )
                    for key, arm in (("routed", one), ("flat", flat), ("alone", alone))
                },
            }
            for category in CATEGORIES
        ],
        "routed_flat": found.paired(one, flat, "F9"),
        "examples_recall": found.paired(
            found.rights("recall-examples"), found.rights("recall"), "F9/examples"
        ),
    }
