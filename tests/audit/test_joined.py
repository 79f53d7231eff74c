"""Row P5 in the verifier: consistent records pass, every edit is found or turns the claim."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from kvaudit import schemas
from kvaudit.claims import Evidence
from kvaudit.position import answers, joined
from kvaudit.position.part import Setting
from kvaudit.profiles import InForce

MODEL, PROFILE = "tiny", "aa" * 32
SECTION: dict[str, Any] = {
    "chains": [[30, 20], [300, 400]],
    "prefix": {"tokens": 50, "tail_tokens": 5, "prompts": 4, "checked": 2},
    "compositions": [[[0, 20], [256, 10]], [[0, 9], [256, 9], [512, 9]]],
    "answers": 2,
}
FORCE = InForce("split-invariant", PROFILE, "bb" * 32, 512, True, "cc" * 32)
SETTING = Setting(MODEL, {}, SECTION, "seed", FORCE, {})
Rows = dict[str, list[dict[str, Any]]]


def digest(*names: object) -> str:
    """A digest that follows from a name."""
    import hashlib

    return hashlib.sha256(repr(names).encode()).hexdigest()


def compared(name: str, *, differs: bool) -> dict[str, Any]:
    """The fields that compare a restored context with its reference."""
    return {
        "process": 1,
        "exact": True,
        "decoded_tokens": 9,
        "restored_bytes": 300,
        "logits_sha256": digest(name),
        "reference_sha256": digest(name, differs) if differs else digest(name),
        "kl": 0.01 if differs else 0.0,
        "argmax": [3, 3],
    }


def chain(case: int, *, control: bool) -> dict[str, Any]:
    lengths = SECTION["chains"][case]
    return {
        "kind": "position-chain",
        "case": case,
        "lengths": lengths,
        "past_window": sum(lengths) > 512,
        "block_ids": [digest("chain", case, i) for i in range(2)],
        "block_bytes": [200, 100],
        "whole_bytes": 280,
        **compared(f"chain {case}", differs=control),
        "state_sha256": digest("state", case),
        "reference_state_sha256": digest("state", case, control)
        if control
        else digest("state", case),
        "control": control,
    }


def composition(case: int, control: str) -> dict[str, Any]:
    layout = [
        [start + (joined.UNALIGNED if control == "unaligned" and start else 0), n]
        for start, n in SECTION["compositions"][case]
    ]
    return {
        "kind": "position-composition",
        "case": case,
        "layout": layout,
        "block_ids": [digest("part", case, i) for i in range(len(layout))],
        **compared(f"composition {case}", differs=bool(control)),
        "exact": not control,
        "control": control,
    }


def prefix(prompt: int) -> dict[str, Any]:
    checked = digest("prompt", prompt) if prompt < 2 else None
    return {
        "kind": "position-prefix",
        "prompt": prompt,
        "prefix_tokens": 50,
        "tail_tokens": 5,
        "parent_id": digest("parent"),
        "child_id": digest("child", prompt),
        "parent_bytes": 1000,
        "child_bytes": 100,
        "whole_bytes": 1080,
        "logits_sha256": checked,
        "reference_sha256": checked,
    }


def answer(question: int, needs: int, arm: str) -> dict[str, Any]:
    return {
        "kind": "position-answer",
        "question": question,
        "needs": needs,
        "arm": arm,
        "answer": [5, 6],
        "argmax": [5, 6 if arm == "joint" else 7],
        "log_likelihood": [-0.25, -1.5],
        "logits_sha256": digest(question, needs, arm),
        "codes": answers.draw("seed/joined", question).right(needs),
    }


def rows() -> Rows:
    """Records of which everything is right."""
    made: Rows = {
        joined.CHAINS: [chain(0, control=False), chain(0, control=True), chain(1, control=False)],
        joined.PREFIXES: [prefix(i) for i in range(4)],
        joined.COMPOSITIONS: [
            composition(0, ""),
            composition(0, "unaligned"),
            composition(1, ""),
            composition(1, "reordered"),
        ],
        joined.ANSWERS: [answer(q, n, a) for q in (0, 1) for n in (1, 2) for a in answers.ARMS],
    }
    for lines in made.values():
        for line in lines:
            line.update(version=1, model=MODEL, profile=PROFILE)
    return made


def problems(made: Rows) -> list[str]:
    return [problem.message for problem in joined.check(SETTING, made)]


def verdict(made: Rows) -> str:
    from kvaudit import claims

    entry = next(rule for rule in claims.rules("position") if rule.id == "P5")
    return entry.judge(Evidence(MODEL, made, 0, 0))[1]


def test_right_records_have_no_problem_and_the_claim_holds() -> None:
    made = rows()
    for file, kind in joined.RECORDS.items():
        for row in made[file]:
            schemas.validate(row, kind, where=file)
    assert problems(made) == []
    assert verdict(made) == "holds"
    summary = joined.summarise(made)["joined"]
    assert summary["prefix"]["saved"] == 0.675925925926
    assert summary["answers"]["joint, 1 block"]["right"] == 2
    assert summary["answers"]["composed, 2 blocks"]["right"] == 0
    assert summary["answers"]["composed, 2 blocks"]["nats_per_token"] == 0.875


def put(file: str, index: int, **fields: Any) -> Callable[[Rows], None]:
    """An edit of some fields of one row."""
    return lambda made: made[file][index].update(fields)


EDITS: dict[str, tuple[Callable[[Rows], None], str]] = {
    "a chain left out": (lambda made: made[joined.CHAINS].pop(), "the chains are not those"),
    "a control relabelled": (put(joined.CHAINS, 1, control=False), "the chains are not those"),
    "another model": (put(joined.CHAINS, 0, model="other"), "not the stage's subject"),
    "another profile": (put(joined.ANSWERS, 0, profile="dd" * 32), "not the configured one"),
    "the window denied": (put(joined.CHAINS, 2, past_window=False), "window implies"),
    "a block left out": (put(joined.CHAINS, 0, block_ids=["aa" * 32]), "not one block a piece"),
    "bytes made up": (put(joined.CHAINS, 0, restored_bytes=1), "are not those of its blocks"),
    "not exact": (put(joined.CHAINS, 0, exact=False), "not marked exact"),
    "the same process": (put(joined.CHAINS, 0, process=0), "process of its own"),
    "equal with a KL": (put(joined.COMPOSITIONS, 0, kl=1e-9), "a KL other than 0"),
    "equal with two argmax": (put(joined.COMPOSITIONS, 0, argmax=[1, 2]), "different argmax"),
    "other logits with no KL": (put(joined.CHAINS, 1, kl=0.0), "other logits with a KL of 0"),
    "nothing restored": (put(joined.COMPOSITIONS, 0, restored_bytes=0), "restored nothing"),
    "another question": (put(joined.CHAINS, 0, decoded_tokens=10), "not asked the same question"),
    "a child as large": (put(joined.PREFIXES, 0, child_bytes=1000), "do not go together"),
    "prompts alike": (
        put(joined.PREFIXES, 1, logits_sha256=digest("prompt", 0)),
        "have the same logits",
    ),
    "a prompt left out": (lambda made: made[joined.PREFIXES].pop(2), "the prompts are not those"),
    "another parent": (put(joined.PREFIXES, 1, parent_bytes=1), "have not one parent"),
    "a child twice": (put(joined.PREFIXES, 1, child_id=digest("child", 0)), "have one block"),
    "a longer tail": (put(joined.PREFIXES, 1, tail_tokens=6), "lengths are not those"),
    "a digest left out": (put(joined.PREFIXES, 1, logits_sha256=None), "of the wrong prompts"),
    "a layout left out": (
        lambda made: made[joined.COMPOSITIONS].pop(0),
        "the compositions are not those",
    ),
    "an inexact control called exact": (put(joined.COMPOSITIONS, 1, exact=True), "layout implies"),
    "a part left out": (put(joined.COMPOSITIONS, 2, block_ids=["aa" * 32]), "not one block a part"),
    "a question left out": (lambda made: made[joined.ANSWERS].pop(), "the questions are not those"),
    "another answer": (put(joined.ANSWERS, 1, answer=[5, 7]), "not that of the other arm"),
    "another code": (put(joined.ANSWERS, 0, codes=["12345"]), "not those that the seed draws"),
    "a longer answer": (put(joined.ANSWERS, 0, argmax=[1]), "another length than the answer"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_the_records_is_found(name: str) -> None:
    made = rows()
    change, message = EDITS[name]
    change(made)
    assert any(message in text for text in problems(made))


TURNS: dict[str, Callable[[Rows], None]] = {
    "a chain's logits": put(joined.CHAINS, 2, logits_sha256="ee" * 32, kl=0.1),
    "a chain's state": put(joined.CHAINS, 0, state_sha256="ee" * 32),
    "a composition": put(joined.COMPOSITIONS, 2, logits_sha256="ee" * 32, kl=0.1),
    "a checked prompt": put(joined.PREFIXES, 0, logits_sha256="ee" * 32),
    "a blind control": put(
        joined.CHAINS,
        1,
        logits_sha256=digest("chain 0"),
        reference_sha256=digest("chain 0"),
        kl=0,
        reference_state_sha256=digest("state", 0),
    ),
    "nothing saved": lambda made: (
        [row.update(child_bytes=2000) for row in made[joined.PREFIXES]] and None
    ),
    "no chain": lambda made: made[joined.CHAINS].clear(),
    "no prompt": lambda made: made[joined.PREFIXES].clear(),
    "no record": lambda made: [lines.clear() for lines in made.values()] and None,
}


@pytest.mark.parametrize("name", TURNS)
def test_a_difference_turns_the_claim(name: str) -> None:
    made = copy.deepcopy(rows())
    TURNS[name](made)
    assert verdict(made) == "fails"


def test_questions_are_drawn_alike_and_differ() -> None:
    drawn = [answers.draw("seed", index) for index in range(200)]
    assert drawn == [answers.draw("seed", index) for index in range(200)]
    assert len({one.codes for one in drawn}) == 200
    for one in drawn:
        assert one.things[0] != one.things[1]
        assert one.codes[0] != one.codes[1]
        assert all(len(code) == 5 for code in one.codes)
        assert one.codes[1] in one.sentence(1)
        assert [text for text, is_code in one.pieces(2) if is_code] == [f" {c}" for c in one.codes]
