"""Tables of the contest problems: the frozen model's ways, the library, and what each one spent.

Rows F1, F2, F3 and F10. No system looks at the known answer when it decides whom to ask: two ways
that agree are confident, everything else goes to the library. This module must not know a claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvaudit.flywheel.answers import Answer
from kvaudit.flywheel.figures import (
    Found,
    all_tokens,
    mean,
    median,
    most_frequent,
    rate,
    ratio,
    right,
    spent,
    tokens,
)
from kvaudit.flywheel.known import Row
from kvaudit.flywheel.records import RUN


def asked(found: Found) -> list[str]:
    """The contest problems that the frozen model tries alone: all, or none."""
    return found.of("contest") if found.asked("text") or found.asked("code") else []


def contest(found: Found) -> dict[str, Any]:
    """F1 and F2: every way to answer the contest problems, and the systems with the library.

    Best-of-n has every attempt, in words and as program, and the known answer to pick with: no
    real system can do as well. `confident_library` answers by the most frequent answer where words
    and programs agree on it; `code_library` by the first program where the first answer in words is
    the same. Otherwise the library answers, and where it has no entry the frozen model does.
    """
    names = asked(found)
    text, code = ({n: found.arm(arm).get(n, []) for n in names} for arm in ("text", "code"))
    known = {name: found.problems[name]["answer"] for name in names}
    first = {
        way: {n: bool(rows[n]) and right(rows[n][0]) for n in names}
        for way, rows in (("text", text), ("code", code))
    }
    vote = {name: most_frequent(text[name]) for name in names}
    voted = {name: vote[name] is not None and vote[name] == known[name] for name in names}
    best = {name: any(map(right, [*text[name], *code[name]])) for name in names}
    agreed = _agreed(text, code)
    confident = {n: agreed[n] == known[n] for n in names if agreed[n] is not None}
    failing = [name for name in names if name not in confident]
    full, full_rows = _system(found, text, code, agreed, vote)
    firsts = {n: rows[:1] for n, rows in text.items()}, {n: rows[:1] for n, rows in code.items()}
    once = {name: most_frequent(rows) for name, rows in firsts[1].items()}
    quick, quick_rows = _system(found, *firsts, _agreed(*firsts), once)
    return {
        "problems": len(names),
        "in_library": sum(found.problems[name]["family"] in found.in_library for name in names),
        "ways": {
            "pass_at_1": spent(first["text"].values(), _all(firsts[0])),
            "vote": spent(voted.values(), _all(text)),
            "code": spent(first["code"].values(), _all(firsts[1])),
            "best_of_n": spent(best.values(), [*_all(text), *_all(code)]),
            "confident_library": spent(full.values(), full_rows),
            "code_library": spent(quick.values(), quick_rows),
        },
        "confident": rate(confident.values()),
        "failing": len(failing),
        "failing_by_library": rate(
            name in found.recalled and right(found.recalled[name]) for name in failing
        ),
        "comparisons": {
            "confident_library_pass_at_1": found.paired(full, first["text"], "F1"),
            "confident_library_best_of_n": found.paired(full, best, "F1/best"),
            "code_library_vote": found.paired(quick, voted, "F2/vote"),
            "code_library_code": found.paired(quick, first["code"], "F2/code"),
        },
    }


def _agreed(
    text: Mapping[str, list[Row]], code: Mapping[str, list[Row]]
) -> dict[str, Answer | None]:
    """Problem -> the answer that is the most frequent one of both ways, if there is one."""
    made: dict[str, Answer | None] = {}
    for name in text:
        said, printed = most_frequent(text[name]), most_frequent(code[name])
        made[name] = said if said == printed else None
    return made


def _system(
    found: Found,
    text: Mapping[str, list[Row]],
    code: Mapping[str, list[Row]],
    agreed: Mapping[str, Answer | None],
    otherwise: Mapping[str, Answer | None],
) -> tuple[dict[str, bool], list[Row]]:
    """Confident answers, then the library's, then the model's: what is right, and what it took."""
    rights: dict[str, bool] = {}
    used = [*_all(text), *_all(code)]
    for name in text:
        answer = agreed[name]
        if answer is None and name in found.recalled:
            used.append(found.recalled[name])
            answer = found.recalled[name]["answer"]
        elif answer is None:
            answer = otherwise[name]
        rights[name] = answer is not None and answer == found.problems[name]["answer"]
    return rights, used


def _all(by_problem: Mapping[str, list[Row]]) -> list[Row]:
    return [row for rows in by_problem.values() for row in rows]


def recurrence(found: Found) -> dict[str, Any]:
    """F3: problems that come again, and what they cost against own attempts at the hard ones.

    A problem is hard if no own attempt is right. The ratio is taken over the hard problems that
    the library has, from totals over the same problems on both sides.
    """
    names = found.of("contest")
    recalls = {name: rows[0] for name, rows in found.arm("recall").items()}
    library = [name for name in names if found.problems[name]["family"] in found.in_library]
    own = {name: found.own_attempts(name) for name in names}
    hard = [name for name in names if own[name] and not any(map(right, own[name]))]
    hard_recalled = [name for name in hard if name in found.recalled]
    # Over the whole library: what the router did not lead to its entry is not answered.
    answered = {n: n in found.recalled and right(found.recalled[n]) for n in library}
    tried = tokens(row for name in hard_recalled for row in own[name])
    words = tokens(row for name in hard_recalled for row in found.arm("text").get(name, []))
    back = tokens(found.recalled[name] for name in hard_recalled)
    decoded = [float(found.recalled[name]["decoded_tokens"]) for name in found.recalled]
    energy = found.rows[RUN][0]["energy"] if found.rows[RUN] else None
    return {
        "deposited": rate(right(row) for row in recalls.values()),
        "library": rate(answered.values()),
        "decoded_max": max(
            (row["decoded_tokens"] for row in found.recalled.values()), default=None
        ),
        "decoded_mean": mean(decoded),
        "seconds_median": median([float(row["seconds"]) for row in found.recalled.values()]),
        "hard": len(hard),
        "hard_in_library": rate(right(found.recalled[name]) for name in hard_recalled),
        "hard_own": tried,
        "hard_own_text": words,
        "hard_recall": back,
        "ratios": {
            "decoded": ratio(tried["decoded_tokens"], back["decoded_tokens"]),
            "decoded_text": ratio(words["decoded_tokens"], back["decoded_tokens"]),
            "all": ratio(all_tokens(tried), all_tokens(back)),
            "all_text": ratio(all_tokens(words), all_tokens(back)),
            "seconds": ratio(tried["seconds"], back["seconds"]),
        },
        "energy": _energy(energy),
    }


def _energy(measured: Mapping[str, Any] | None) -> dict[str, Any]:
    """The meter's reading over the stage, or why there is none."""
    if measured is None:
        return {"meter": None, "reason": "no record of the run", "joules": None}
    return {key: measured[key] for key in ("meter", "reason", "joules")}


def attempts(found: Found) -> dict[str, Any]:
    """F10: what the frozen model's own attempts took, how many were unfinished, and the library.

    An attempt is unfinished if the limit of tokens ended it. The attempts' solved problems are
    those that any of them solved, which favours them.
    """
    names = asked(found)
    own = [row for name in names for row in found.own_attempts(name)]
    solved = [any(map(right, found.own_attempts(name))) for name in names]
    library = [right(row) for row in found.recalled.values()]
    unfinished = sum(row["finish"] == "limit" for row in own)
    return {
        "own": spent(solved, own),
        "unfinished": unfinished,
        "unfinished_share": ratio(unfinished, len(own)),
        "library": spent(library, found.recalled.values()),
    }
