"""The verifier on a made-up stage flywheel: what contradicts texts, programs, plan or deposits is
found, programs are run again in the sandbox, and where they cannot be, nothing is claimed of them.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flywheel_stage as made
import pytest
import synthetic

from kvaudit import digests, manifest, records, schemas
from kvaudit.flywheel import expected, gate, plan, prompts, rescoring
from kvaudit.flywheel.kind import KIND
from kvaudit.flywheel.records import (
    CALIBRATION,
    DEPOSITS,
    GENERATIONS,
    GROWTH,
    HEADERS,
    KINDS,
    MAX_OUTPUT,
    PROBLEMS,
    PROFILES,
    PROGRAMS,
    ROUTES,
    RUN,
    kept,
)
from kvaudit.sandbox import Ran
from kvaudit.stagekind import Rerun

Rows = dict[str, list[dict[str, Any]]]
Change = Callable[[Rows], object]

PRISTINE = made.made_rows()
FIRST, CODED, LAST = "multiples-of-either", "mixed-crew", "lines-in-plane"


isolated = pytest.mark.usefixtures("isolation")


PLAN = plan.Plan(made.SECTION, made.SEED)


@pytest.fixture(autouse=True)
def _drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is the same in every test, and most of the time goes into drawing it."""
    monkeypatch.setattr(expected, "Plan", lambda section, seed: PLAN)


@pytest.fixture
def rows() -> Rows:
    return copy.deepcopy(PRISTINE)


def problems(rows: Rows) -> list[str]:
    return made.texts(KIND.check(made.MODEL, rows, made.inputs()))


# -- what is right ----------------------------------------------------------------------------


def test_made_records_conform_and_nothing_is_found(rows: Rows, tmp_path: Path) -> None:
    for file, kind in KINDS.items():
        for number, row in enumerate(rows[file]):
            schemas.validate(row, kind, where=f"{file}, {number}")
        records.write(tmp_path / Path(file).name, kind, rows[file])
    assert problems(rows) == []
    assert KIND.summary_bytes(made.MODEL, rows) == KIND.summary_bytes(
        made.MODEL, copy.deepcopy(rows)
    )


def test_the_made_stage_takes_every_way_that_a_deposit_can_take(rows: Rows) -> None:
    ways = {
        (row["source"]["kind"], row["variant"], row["admitted"], row["chosen"])
        for row in rows[DEPOSITS]
        if row["variant"] in ("deposited", "templated")
    }
    assert ways == {
        ("solver", "deposited", True, True),
        ("solver", "deposited", False, False),
        ("supplied", "deposited", False, False),
        ("supplied", "deposited", True, True),
        ("supplied", "templated", True, True),
    }
    assert {row["gate"] for row in rows[GENERATIONS]} >= {"passed", "unbound", None}
    assert {row["decision"] for row in rows[ROUTES]} == {"recall", "adapt", "abstain"}


def test_an_answer_that_json_cannot_hold_exactly_is_none() -> None:
    assert kept(prompts.read_answer("It is 123456789012345678.")) is None
    assert kept(prompts.read_answer("It is -999.")) == -999
    assert kept(None) is None


# -- forgeries of records ---------------------------------------------------------------------


def edit(file: str, line: int, **changes: Any) -> Change:
    return lambda rows: rows[file][line].update(changes)


def of(arm: str, nth: int = 0, **changes: Any) -> Change:
    """Changes the nth generation of an arm."""
    return lambda rows: generation(rows, arm, nth).update(changes)


def generation(rows: Rows, arm: str, nth: int = 0) -> dict[str, Any]:
    return [row for row in rows[GENERATIONS] if row["arm"] == arm][nth]


def drop(arm: str, nth: int = 0) -> Change:
    return lambda rows: rows[GENERATIONS].remove(generation(rows, arm, nth))


def metered(rows: Rows, part: float) -> None:
    """Gives a stage 1000 joules for each generation, and every generation a part of that."""
    whole = 1000.0 * len(rows[GENERATIONS])
    rows[RUN][0]["energy"] = {"meter": "RAPL", "reason": "all that ran", "joules": whole}
    for row in rows[GENERATIONS]:
        row["joules"] = 1000.0 * part


def named(name: str, /, **changes: Any) -> Change:
    return lambda rows: deposit(rows, name).update(changes)


def deposit(rows: Rows, name: str) -> dict[str, Any]:
    return next(row for row in rows[DEPOSITS] if row["name"] == name)


def route(rows: Rows, **wanted: Any) -> dict[str, Any]:
    return next(row for row in rows[ROUTES] if wanted.items() <= row.items())


def counted_right(rows: Rows) -> None:
    """A wrong answer in words made right, text and all."""
    row = generation(rows, "text", 1)
    answer = next(one["answer"] for one in rows[PROBLEMS] if one["name"] == row["problem"])
    row.update(answer=answer, outcome="answer")


def program_made_right(rows: Rows) -> None:
    """A wrong program said to have printed the answer, in every record."""
    row = generation(rows, "code", 3)
    answer = next(one["answer"] for one in rows[PROBLEMS] if one["name"] == row["problem"])
    ran = next(one for one in rows[PROGRAMS] if one["sha256"] == row["program_sha256"])
    ran.update(answer=answer)
    row.update(answer=answer, outcome="answer")


def relabel(rows: Rows) -> None:
    row = generation(rows, "admission-with", 2)
    row.update(gate="passed")


def other_program(rows: Rows) -> None:
    row = generation(rows, "adapt")
    row.update(program_sha256=rows[PROGRAMS][0]["sha256"])


def unlisted(rows: Rows) -> None:
    key = generation(rows, "adapt")["program_sha256"]
    rows[PROGRAMS] = [row for row in rows[PROGRAMS] if row["sha256"] != key]


def surplus(rows: Rows) -> None:
    program = "print(0)"
    sha256 = hashlib.sha256(program.encode()).hexdigest()
    row = {**rows[PROGRAMS][0], "program": program, "sha256": sha256}
    rows[PROGRAMS] = sorted([*rows[PROGRAMS], row], key=lambda one: str(one["sha256"]))


def own_header(change: Callable[[dict[str, Any]], object], *, child: bool = False) -> Change:
    """A header changed, with its id everywhere: digests alone tell nothing."""

    def forge(rows: Rows) -> None:
        row = deposit(rows, FIRST)
        old = row["demonstration"]["block_id"] if child else row["block_id"]
        header = next(one for one in rows[HEADERS] if one["id"] == old)
        change(header["header"])
        new = digests.sha256_json(header["header"])
        header["id"] = new
        for one in rows[DEPOSITS]:
            if one["block_id"] == old:
                one["block_id"] = new
            if one["demonstration"] and one["demonstration"]["block_id"] == old:
                one["demonstration"]["block_id"] = new

    return forge


def admit_harmful(rows: Rows) -> None:
    row = deposit(rows, "method-card")
    row["admission"].update(with_block=row["admission"]["instances"], alone=0)
    row["admitted"] = True


def chosen_instead(rows: Rows) -> None:
    deposit(rows, f"{CODED}/templated")["chosen"] = False
    deposit(rows, CODED)["chosen"] = True


def score_raised(rows: Rows) -> None:
    row = route(rows, query_kind="new")
    row["scores"][0]["score"] = row["scores"][0]["score"] + 1.0


def near_miss_hidden(rows: Rows) -> None:
    """A near miss that the threshold lets through, said to have been abstained from."""
    row = next(
        r
        for r in rows[ROUTES]
        if r["query_kind"] == "near miss" and r["split"] == "test" and r["scores"]
    )
    row["scores"][0]["score"] = 9
    row.update(best=row["scores"][0]["deposit"], score=9)


def shorter_list(rows: Rows) -> None:
    row = next(r for r in rows[ROUTES] if len(r["shortlist"]) > 1 and r["scores"])
    row["shortlist"].pop()
    row["scores"].pop()


def other_numbers(rows: Rows) -> None:
    row = rows[PROBLEMS][0]
    row["params"] = {**row["params"], "n": row["params"]["n"] + 1}


def more_attempts(rows: Rows) -> None:
    row = generation(rows, "adapt")
    again = {
        **row,
        "attempt": 1,
        "temperature": made.SECTION["temperature"],
        "seed": f"{made.SEED}/adapt/{row['problem']}/1",
    }
    rows[GENERATIONS].insert(rows[GENERATIONS].index(row) + 1, again)


def gone_on(rows: Rows) -> None:
    """The text of a greedy attempt put in place of the only one that failed."""
    rows[GENERATIONS].remove(generation(rows, "admission-with", 3))


def demonstration_of_another(rows: Rows) -> None:
    row = deposit(rows, FIRST)
    row["demonstration"]["program_sha256"] = row["program_sha256"]


def swapped_arms(rows: Rows) -> None:
    a, b = generation(rows, "recall"), generation(rows, "recall-relocated")
    a["arm"], b["arm"] = b["arm"], a["arm"]


FORGERIES: dict[str, tuple[Change, str]] = {
    # problems
    "a problem left out": (lambda rows: rows[PROBLEMS].pop(3), "problems recorded, 38 planned"),
    "easier numbers": (other_numbers, "line 1: params not as planned"),
    "another answer": (edit(PROBLEMS, 0, answer=1), "line 1: answer not as planned"),
    "a hard-coded family relabelled": (edit(PROBLEMS, 11, tag="parametric"), "tag not as planned"),
    "two problems of one name": (
        lambda rows: rows[PROBLEMS].append(rows[PROBLEMS][0]),
        "two lines have one name",
    ),
    "another model's row": (of("text", model="other"), "model is not tiny"),
    "programs of another release of Python": (
        edit(RUN, 0, python="3.9.1 (default) [GCC]"),
        "programs ran on Python 3.9.1, the run is registered on 3.11.7",
    ),
    # generations
    "a text's answer made right": (counted_right, "answer is 97, the text says 7"),
    "an outcome made right": (of("text", 1, outcome="answer"), "by its text wrong"),
    "a program's answer made right": (program_made_right, "is not the last line of its output"),
    "a program's outcome made right": (of("code", 3, outcome="answer"), "by its program wrong"),
    "an error called no answer": (of("code", 0, outcome="no answer"), "by its program error"),
    "another program than the text's": (other_program, "program_sha256 is not that of the program"),
    "a gate opened": (relabel, "gate is passed, judged again unbound"),
    "a gate where nothing is adapted": (of("alone", gate="passed"), "gate is passed, judged again"),
    "an unknown problem": (of("alone", problem="no/such"), "no such problem is recorded"),
    "an unknown deposit": (of("recall", deposits=["nothing"]), "no such deposit is recorded"),
    "a deposit of another family": (
        of("adapt", deposits=[LAST]),
        "no deposit of the problem's family",
    ),
    "a text that goes on": (of("text", text=" 7\n8"), "behind the end of its line"),
    "a program that goes on": (
        of("code", text="for\n```"),
        "behind the end of its program",
    ),
    "a generation left out": (drop("alone", 1), "alone: are not the planned questions"),
    "a wrong recall left out": (drop("recall-relocated"), "recall-relocated: are not the planned"),
    "an attempt left out": (drop("text", 1), "1 attempts recorded, 2 planned"),
    "the first attempt left out": (drop("code"), "attempts do not count from 0"),
    "an attempt more": (more_attempts, "attempts do not go on until the gate passes"),
    "a failed attempt left out": (gone_on, "attempts do not go on until the gate passes"),
    "arms exchanged": (swapped_arms, "recall comes after recall-relocated"),
    "an arm out of order": (
        lambda rows: rows[GENERATIONS].append(rows[GENERATIONS].pop(0)),
        "text comes after solved-card",
    ),
    "another seed": (of("text", 1, seed="lucky"), "seed is not the planned one"),
    "a colder attempt": (of("text", 1, temperature=0), "temperature is not the planned one"),
    "another question": (of("alone", prompt_sha256="0" * 64), "not that of the planned question"),
    "a longer answer": (of("text", decoded_tokens=9), "decoded 9 tokens, 8 planned at most"),
    "an early end": (of("recall", finish="limit", decoded_tokens=2), "did not reach it"),
    "no tokens restored": (of("recall", cached_tokens=0), "cached_tokens is 0, its deposits'"),
    "tokens restored from nowhere": (of("alone", cached_tokens=5), "its deposits' blocks 0"),
    "a read text that was restored": (
        of("recall-text", cached_tokens=5, exact=True),
        "but its arm reads them",
    ),
    "a read text that is shorter": (
        of("recall-text", prompt_tokens=3),
        "reads another number of tokens than its twin",
    ),
    "many blocks that are few": (of("recall-flat", prompt_tokens=3), "reads fewer tokens than"),
    "a graft that is not said exact": (of("recall", exact=None), "if and only if something was"),
    "a relocated graft said exact": (of("recall-relocated", exact=True), "not said to be inexact"),
    "an exact graft with other logits": (
        of("recall-text", logits_sha256="0" * 64),
        "its twin is said to be exact, but had other logits",
    ),
    "equal logits with another text": (
        of("recall-text", text=" 3", answer=3, outcome="wrong"),
        "has the logits of its twin, but another text",
    ),
    "more tokens than the context": (of("alone", prompt_tokens=5000), "more than the context's"),
    # programs
    "a program not listed": (unlisted, "is named by a record, but not listed"),
    "a program that nobody named": (surplus, "is listed, but named by no record"),
    "programs not sorted": (lambda rows: rows[PROGRAMS].reverse(), "not sorted by their digest"),
    "a program changed": (edit(PROGRAMS, 0, program="print(1)"), "sha256 is not that of the"),
    "an answer without an end": (
        lambda rows: next(r for r in rows[PROGRAMS] if r["ending"] == "error").update(answer=1),
        "an answer if and only if it ended as printed",
    ),
    # deposits
    "a deposit left out": (lambda rows: rows[DEPOSITS].pop(1), "no such deposit is recorded"),
    "a refused deposit left out": (
        lambda rows: rows[DEPOSITS].remove(deposit(rows, LAST)),
        "is supplied, although an attempt printed the answer",
    ),
    "a deposit renamed": (named(FIRST, name="other"), "its name is not that of its family"),
    "another family's problem": (
        named(FIRST, problems=[PRISTINE[PROBLEMS][11]["name"]]),
        "does not hold its family's contest instance",
    ),
    "an answer added to a text": (
        lambda rows: deposit(rows, FIRST).update(text=deposit(rows, FIRST)["text"] + "See 12."),
        "its text is not that of its problem, program and answer",
    ),
    "an example without its answer": (
        lambda rows: deposit(rows, f"{FIRST}/examples").update(
            text=deposit(rows, f"{FIRST}/examples")["text"].replace("Verified answer", "Answer")
        ),
        "its text does not give the answer of",
    ),
    "an example left out": (
        lambda rows: deposit(rows, f"{FIRST}/examples")["problems"].pop(),
        "does not hold the family's 3 planned instances",
    ),
    "a helpful card": (named("method-card", text="Read the number."), "its text is not the card's"),
    "a wrong answer": (named(FIRST, answer=98), "its program did not print its answer"),
    "a supplied deposit said to be found": (
        named(CODED, source=PRISTINE[DEPOSITS][0]["source"]),
        "its source is not the first attempt that printed the answer",
    ),
    "a found deposit said to be supplied": (
        named(FIRST, source=made.SUPPLIED),
        "is supplied, although an attempt printed the answer",
    ),
    "a cheaper source": (
        lambda rows: deposit(rows, FIRST)["source"].update(tokens=1),
        "its source took 1 tokens, by the attempts",
    ),
    "another attempt": (
        lambda rows: deposit(rows, FIRST)["source"].update(attempt=0),
        "its source is not the first attempt that printed the answer",
    ),
    "another author": (
        lambda rows: deposit(rows, CODED)["source"].update(author="somebody"),
        "its author is not the contest set",
    ),
    "no template": (
        named(f"{CODED}/templated", template=None),
        "is templated, but has no template",
    ),
    "a template of other numbers": (
        lambda rows: deposit(rows, f"{CODED}/templated")["template"]["shape"].reverse(),
        "first lines do not set the numbers",
    ),
    "a template with a number fixed": (
        lambda rows: deposit(rows, f"{CODED}/templated")["template"].update(shape=["a", "b", 12]),
        "its template does not fit",
    ),
    "a template of another count": (
        lambda rows: deposit(rows, f"{CODED}/templated")["template"]["shape"].pop(),
        "another count of numbers",
    ),
    "a demonstration of the same numbers": (
        demonstration_of_another,
        "its demonstration's program did not print the known answer",
    ),
    "a demonstration of a test problem": (
        lambda rows: deposit(rows, FIRST)["demonstration"].update(
            problem=PRISTINE[PROBLEMS][7]["name"]
        ),
        "its demonstration is not the family's first known instance",
    ),
    "an admission counted up": (
        lambda rows: deposit(rows, CODED)["admission"].update(with_block=2),
        "admission: with_block is 2, counted 0",
    ),
    "the model alone counted down": (
        lambda rows: deposit(rows, SOLVED_NAME)["admission"].update(alone=0),
        "admission: alone is 0, counted 2",
    ),
    "fewer instances": (
        lambda rows: deposit(rows, FIRST)["admission"].update(instances=1),
        "admission: instances is 1, counted 2",
    ),
    "a refused deposit admitted": (named(LAST, admitted=True), "admitted is True, by the counts"),
    "a lower margin": (
        lambda rows: deposit(rows, FIRST)["admission"].update(margin=0.1),
        "its margin is not the planned one",
    ),
    "no admission test": (named(FIRST, admission=None), "was not tested for admission"),
    "the harmful card admitted": (admit_harmful, "admission: with_block is 4, counted 0"),
    "a refused one chosen": (chosen_instead, "chosen is not the deposit that its admissions lead"),
    "an entry made up": (named(CODED, entry_id="0" * 64), "if and only if it was admitted"),
    "an entry's id": (named(FIRST, entry_id="0" * 64), "entry_id is not that of its content"),
    "tokens made fewer": (named(FIRST, tokens=1), "tokens is not that of its blocks"),
    "files made shorter": (named(FIRST, file_bytes=10), "shorter than the states in them"),
    # headers
    "a header left out": (lambda rows: rows[HEADERS].pop(), "not exactly those of the deposits'"),
    "a header doubled": (
        lambda rows: rows[HEADERS].append(rows[HEADERS][0]),
        "not exactly those of the deposits'",
    ),
    "a header's id": (edit(HEADERS, 0, id="0" * 64), "id is not the digest of the header"),
    "a header's model": (
        own_header(lambda header: header["model"].update(sha256="0" * 64)),
        "its model is not the registered one",
    ),
    "a header's engine": (
        own_header(lambda header: header.update(engine="0" * 64)),
        "engine is not the registered one",
    ),
    "a header's profile": (
        own_header(lambda header: header.update(profile="0" * 64)),
        "its profile is not in",
    ),
    "an inexact block": (
        own_header(lambda header: header["provenance"].update(exact=False)),
        "does not say that it is exact",
    ),
    "a block of another statement": (
        own_header(lambda header: header["provenance"]["deposit"].update(statement_sha256="0")),
        "its block's provenance names another statement or source",
    ),
    "a child of nothing": (
        own_header(lambda header: header.update(start=0, parent=None), child=True),
        "its demonstration's block does not continue its own",
    ),
    "two texts of the same tokens": (
        own_header(
            lambda header: header["tokens"].update(
                sha256=PRISTINE[HEADERS][-1]["header"]["tokens"]["sha256"]
            )
        ),
        "two texts have the same tokens",
    ),
    # router
    "a query left out": (lambda rows: rows[ROUTES].pop(), "queries recorded, "),
    "an easier query": (edit(ROUTES, 0, statement="How many?"), "statement not as planned"),
    "a query moved to the test split": (edit(ROUTES, 0, split="test"), "split not as planned"),
    "a foreign query relabelled": (edit(ROUTES, 29, query_kind="new"), "query_kind not as planned"),
    "words counted otherwise": (
        lambda rows: route(rows, query_kind="new")["shortlist"][0].__setitem__(1, 7),
        "shortlist is not that of the words",
    ),
    "a candidate left out": (shorter_list, "1 candidates, 2 planned"),
    "a score raised": (score_raised, "best and its score are not those of the scores"),
    "a near miss hidden": (near_miss_hidden, "decision is abstain, by score and threshold adapt"),
    "a calibration score lowered": (
        lambda rows: [
            row.update(score=-99) for row in rows[ROUTES][:20] if row["score"] is not None
        ],
        "threshold is not that of the split's scores",
    ),
    "a wrong decision": (
        lambda rows: route(rows, decision="adapt").update(decision="abstain"),
        "decision is abstain, by score and threshold adapt",
    ),
    "a recall that was scored": (
        lambda rows: route(rows, decision="recall").update(
            scores=[{"deposit": FIRST, "score": 0, "tokens": 3}]
        ),
        "was scored, although it repeats a statement",
    ),
    "a route made right": (
        lambda rows: route(rows, right=True).update(right=False),
        "right is False, by its decision it is not",
    ),
    "more tokens scored": (
        lambda rows: [
            one.update(tokens=99) for one in route(rows, query_kind="paraphrase")["scores"]
        ],
        "more tokens are scored than planned",
    ),
    "a threshold moved": (edit(CALIBRATION, 0, threshold=-9), "not that of the split's scores"),
    "a laxer alpha": (edit(CALIBRATION, 0, alpha=0.4), "alpha is not the planned one"),
    "another statistic": (edit(CALIBRATION, 0, statistic="best"), "statistic is not"),
    "a larger split": (edit(CALIBRATION, 0, n=1000), "n is 1000, the split has"),
    # the rest
    "an output that no digest is of": (
        lambda rows: rows[PROGRAMS][0].update(output="Nothing."),
        "output_sha256 is not that of its output",
    ),
    "a size left out": (
        lambda rows: rows.update({GROWTH: [r for r in rows[GROWTH] if r["entries"] != 8]}),
        "are not the planned sizes",
    ),
    "a slow query left out": (
        lambda rows: rows[GROWTH].pop(),
        "16 entries: are not the planned 2 queries",
    ),
    "an easier query of a large library": (
        edit(GROWTH, 5, query=9),
        "16 entries: are not the planned 2 queries",
    ),
    "more candidates": (edit(GROWTH, 0, candidates=9), "has more candidates than planned"),
    "a larger library": (
        edit(RUN, 0, library={"entries": 9, "bytes": 10}),
        "the library has 9 entries, by the deposits 3",
    ),
    "an energy without a meter": (
        edit(RUN, 0, energy={"meter": None, "reason": "", "joules": 3}),
        "an energy if and only if there is a meter",
    ),
    "a whole that is less than its parts by half a thousandth": (
        lambda rows: metered(rows, part=1.0005),
        "the generations took more joules than the whole stage",
    ),
    "two runs": (lambda rows: rows[RUN].append(rows[RUN][0]), "holds one line a run"),
    "a profile too many": (
        lambda rows: rows[PROFILES].append(rows[PROFILES][0]),
        "is listed twice",
    ),
    "another setting": (
        lambda rows: rows[PROFILES][0]["profile"]["settings"].update(swa_full=False),
        "digest is not that of the profile",
    ),
}
SOLVED_NAME = "balls-in-box"


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(rows: Rows, name: str) -> None:
    change, message = FORGERIES[name]
    change(rows)
    found = problems(rows)
    assert any(message in one for one in found), found


def test_joules_that_were_rounded_up_row_by_row_are_no_forgery(rows: Rows) -> None:
    metered(rows, part=1 + 5e-10)  # half a millionth of a joule each
    assert problems(rows) == []


# -- programs run again -----------------------------------------------------------------------


def swap(rows: Rows, program: str, **recorded: Any) -> dict[str, Any]:
    """Puts a program in the place of one whose attempt was wrong; its record says what it likes."""
    row = generation(rows, "code", 3)
    old = next(one for one in rows[PROGRAMS] if one["sha256"] == row["program_sha256"])
    output = recorded.pop("output", "")
    old.update(
        program=program,
        sha256=hashlib.sha256(program.encode()).hexdigest(),
        output=output,
        output_sha256=hashlib.sha256(output.encode()).hexdigest(),
        **recorded,
    )
    row.update(program_sha256=old["sha256"], answer=old["answer"])
    rows[RUN][0]["python"] = sys.version
    outcome = "wrong" if old["ending"] == "printed" else old["ending"]
    row.update(outcome=recorded.pop("outcome", outcome))
    return row


def rerun_of(rows: Rows) -> list[str]:
    return made.texts(rescoring.rerun(rows).problems)


@isolated
def test_programs_run_again_end_as_recorded(rows: Rows) -> None:
    assert rescoring.rerun(rows) == Rerun(len(rows[PROGRAMS]))


@isolated
@pytest.mark.parametrize(
    ("program", "recorded", "message"),
    [
        (
            "print(2)",
            {"ending": "printed", "answer": 25, "output": "25\n"},
            "prints something else with 2 instead of 25",
        ),
        ("print(2)\nprint(25)", {"ending": "printed", "answer": 25, "output": "25\n"}, "else when"),
        ("1 / 0", {"ending": "printed", "answer": 25, "output": "25\n"}, "ends as error with None"),
        ("print(25)", {"ending": "error", "answer": None}, "ends as printed with 25"),
        ("print(25)", {"ending": "no answer", "answer": None}, "ends as printed with 25"),
        ("print(25)", {"ending": "timeout", "answer": None}, "ended as timeout, but ends as"),
        ("print(25)", {"ending": "memory", "answer": None}, "ended as memory, but ends as"),
    ],
)
def test_a_program_that_ends_otherwise_is_found(
    rows: Rows, program: str, recorded: dict[str, Any], message: str
) -> None:
    swap(rows, program, **recorded)
    found = rerun_of(rows)
    assert len(found) == 1
    assert message in found[0]


@isolated
def test_a_stopped_program_may_end_otherwise_but_never_be_right(rows: Rows) -> None:
    slow = "import time\ntime.sleep(0.5)\nprint(25)"
    row = swap(rows, slow, ending="timeout", answer=None)
    assert rerun_of(rows) == []
    row["outcome"] = "answer"
    assert "ended as timeout, but is counted as right" in rerun_of(rows)[0]
    assert any("by its program timeout" in one for one in problems(rows))


@isolated
def test_a_program_that_differs_each_time_shows_nothing_unless_it_was_right(rows: Rows) -> None:
    program = "import random\nprint(random.randrange(10 ** 12))"
    row = swap(rows, program, ending="printed", answer=25, output="25\n")
    assert rerun_of(rows) == []
    row["outcome"] = "answer"
    assert "counted as right, but ends in another way each time" in rerun_of(rows)[0]
    swap(rows, "print(object())\nprint(25)", ending="printed", answer=25, output="?\n25\n")
    row["outcome"] = "answer"
    assert rerun_of(rows) == []


@isolated
def test_what_a_record_shows_of_an_output_is_the_beginning_of_what_is_printed(rows: Rows) -> None:
    program = "for i in range(900): print(i)"
    printed = "".join(f"{i}\n" for i in range(900))
    swap(rows, program, ending="printed", answer=899, output=printed)
    row = next(one for one in rows[PROGRAMS] if one["program"] == program)
    row["output"] = printed[:MAX_OUTPUT]
    assert rerun_of(rows) == []
    row["output"] = "9" * MAX_OUTPUT
    assert "its output is not the beginning of what it prints" in rerun_of(rows)[0]


@isolated
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import datetime\nprint(datetime.date.today())\nprint(25)", "2020-02-02\n25\n"),
        ("print({'a', 'b'})\nprint(25)", "of another seed\n25\n"),
    ],
)
def test_another_day_or_order_of_a_set_is_not_held_against_a_record(
    rows: Rows, program: str, said: str
) -> None:
    swap(rows, program, ending="printed", answer=25, output=said)
    assert rerun_of(rows) == []
    swap(rows, program, ending="printed", answer=24, output=said)
    assert "with 25 instead of 24" in rerun_of(rows)[0]


@isolated
def test_bytes_are_held_against_a_record_of_the_same_release_of_python_alone(rows: Rows) -> None:
    swap(rows, "print(2)\nprint(25)", ending="printed", answer=25, output="25\n")
    assert len(rerun_of(rows)) == 1
    rows[RUN][0]["python"] = "2.7.18 (default) [GCC]"
    assert rescoring.rerun(rows) == Rerun(len(rows[PROGRAMS]))
    rows[RUN][0]["python"] = sys.version
    assert len(rerun_of(rows)) == 1


@isolated
@pytest.mark.parametrize(
    ("program", "recorded"),
    [
        ("import random\nrandom.seed(7)\nprint(random.randrange(99))", ("printed", 25)),
        ("print(f'{'a'}'); 1 / 0\nprint(25)", ("printed", 25)),
        ("import time\nprint(25)", ("error", None)),
    ],
)
def test_another_release_of_python_that_ends_otherwise_is_a_reason_and_no_forgery(
    rows: Rows, program: str, recorded: tuple[str, int | None]
) -> None:
    ending, answer = recorded
    swap(rows, program, ending=ending, answer=answer, output="25\n" if answer else "")
    assert len(rerun_of(rows)) == 1
    rows[RUN][0]["python"] = "3.9.1 (default) [GCC]"
    found = rescoring.rerun(rows)
    assert found.problems == ()
    (open_,) = found.undecided
    assert open_.file == PROGRAMS
    assert open_.message.endswith(
        f"when it is run again on Python {rescoring.HERE}; it was recorded on 3.9.1, "
        "and only there is it decided"
    )
    assert found.reason == (
        f"1 programs end otherwise on Python {rescoring.HERE} than on 3.9.1, which recorded them, "
        "and that may be the release's doing"
    )


@isolated
def test_what_follows_from_the_text_alone_is_held_against_any_release_and_names_both(
    rows: Rows,
) -> None:
    swap(rows, "print(2)", ending="printed", answer=25, output="25\n")
    rows[RUN][0]["python"] = "3.9.1 (default) [GCC]"
    (found,) = rerun_of(rows)
    assert found.endswith(
        "prints something else with 2 instead of 25 when it is run again "
        f"on Python {rescoring.HERE}; it was recorded on 3.9.1"
    )


@isolated
@pytest.mark.parametrize("python", ["3.9.1 (default) [GCC]", "3.11.99 (main) [GCC]", "none"])
def test_an_error_that_is_only_recorded_excuses_nothing_on_any_release(
    rows: Rows, python: str
) -> None:
    swap(rows, "print(25)", ending="error", answer=None, output="")
    rows[RUN][0]["python"] = python
    found = rescoring.rerun(rows)
    assert found.undecided == ()
    assert "ends as printed with 25 instead of None" in found.problems[0].message
    assert found.reason is None


@isolated
@pytest.mark.parametrize("program", ["import time\nprint(25)", "1 / 0", "print({'a', 'b'})\n1 / 0"])
def test_a_release_of_this_minor_version_excuses_nothing(rows: Rows, program: str) -> None:
    swap(rows, program, ending="printed", answer=8, output="8\n")
    rows[RUN][0]["python"] = ".".join([*rescoring.HERE.split(".")[:2], "99"]) + " (main) [GCC]"
    found = rescoring.rerun(rows)
    assert len(found.problems) == 1
    assert (found.undecided, found.reason) == ((), None)


def look(program: str, seconds: float, cpu_seconds: float | None) -> list[str]:
    """What is said of a program recorded as out of time that prints 25 here."""
    row = {"ending": "timeout", "answer": None, "output": "", "output_sha256": ""}
    ran = Ran("printed", 25, b"25\n", 0, seconds, b"", cpu_seconds)
    runs = [rescoring._Look.at(ran)]
    return [*rescoring._differences({**row, "program": program}, runs, False, True)]


def test_a_busy_machine_does_not_hide_that_a_program_ends_at_once() -> None:
    assert look("print(25)", 3.0, 0.01) != []
    assert look("print(25)", 3.0, 1.0) == []  # it may take five seconds elsewhere
    waits = "import time\ntime.sleep(3)\nprint(25)"
    assert look(waits, 3.0, 0.01) == []
    assert look(waits, 0.1, 0.01) != []


def test_without_isolation_nothing_is_run_and_nothing_is_said(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    found = rescoring.rerun(rows)
    assert (found.programs, found.problems) == (0, ())
    assert found.reason is not None
    assert "bubblewrap" in found.reason


# -- whole runs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed run that has the stage flywheel alone; read-only by convention."""
    return build(tmp_path_factory.mktemp("flywheel") / "run", PRISTINE)


def build(run: Path, rows: Rows, **environment: str) -> Path:
    run.mkdir()
    changes = {"configuration": made.CONFIGURATION, "profiles": {made.MODEL: made.REGISTERED}}
    registered = synthetic.inputs((made.MODEL,), **changes)
    registered["environment"] |= environment
    manifest.write(run / manifest.INPUTS, registered)
    folder = run / "flywheel" / made.MODEL
    (folder / "records").mkdir(parents=True)
    for name, kind in KINDS.items():
        records.write(folder / name, kind, rows[name])
    (folder / "summary.json").write_bytes(KIND.summary_bytes(made.MODEL, rows))
    known = manifest.registered(registered)
    used = (made.MODEL, "configuration", "source", *registered["environment"]["locks"])
    manifest.close_stage(
        run,
        "flywheel",
        made.MODEL,
        parameters=made.SECTION,
        inputs_used={name: known[name] for name in used},
        started=synthetic.STARTED,
        ended=synthetic.ENDED,
        host={"load_before": 0.25, "load_after": 0.5, "cpus": 2},
    )
    manifest.close_run(run)
    return run


Audit = Callable[..., tuple[int, str, str]]


def findings(verdict: dict[str, Any]) -> list[str]:
    return [one["message"] for one in verdict["findings"]]


@isolated
def test_a_verdict_says_how_many_programs_were_run_again(sealed: Path, audit: Audit) -> None:
    _, out, _ = audit("verify", sealed, "--json")
    verdict = json.loads(out)
    assert findings(verdict) == []
    assert verdict["evidence"]["programs_rerun"] == len(PRISTINE[PROGRAMS])
    assert verdict["evidence"]["rerun_reason"] is None
    _, out, _ = audit("verify", sealed)
    assert f"{len(PRISTINE[PROGRAMS])} programs run again\n" in out


@isolated
def test_a_forged_program_is_found_in_a_sealed_run(
    rows: Rows, tmp_path: Path, audit: Audit
) -> None:
    swap(rows, "print(24 + 2)", ending="printed", answer=25, output="25\n")
    rows[PROGRAMS].sort(key=lambda row: str(row["sha256"]))
    row = generation(rows, "code", 3)
    row["text"] = "print(24 + 2)"
    run = build(tmp_path / "run", rows)
    code, out, _ = audit("verify", run, "--json")
    assert code == 1
    assert [one for one in findings(json.loads(out)) if "with 26 instead of 25" in one]
    _, out, _ = audit("verify", run, "--json", "--no-programs")
    assert findings(json.loads(out)) == []


@isolated
def test_a_release_that_was_only_named_leaves_the_evidence_incomplete(
    rows: Rows, tmp_path: Path, audit: Audit
) -> None:
    """Nothing tells whoever names a Python that this machine lacks from one who had it."""
    program = "print(f'{'a'}'); 1 / 0\nprint(25)"
    swap(rows, program, ending="printed", answer=25, output="25\n")
    rows[PROGRAMS].sort(key=lambda row: str(row["sha256"]))
    generation(rows, "code", 3)["text"] = program
    rows[RUN][0]["python"] = "3.9.1 (default) [GCC]"
    run = build(tmp_path / "run", rows, python="3.9.1")
    audit("verify", run, "--write", "--no-programs")
    for more in ([], ["--no-programs"]):
        code, out, _ = audit("verify", run, "--json", *more)
        verdict = json.loads(out)
        assert not [claim for claim in verdict["claims"] if claim["verdict"] == "fails"]
        assert code == (0 if more else 3)
    _, out, _ = audit("verify", run)
    assert "it was recorded on 3.9.1, and only there is it decided" in out
    assert "is not what the verifier finds" not in out
    audit("verify", run, "--write")
    assert audit("verify", run)[0] == 3
    _, out, _ = audit("verify", run, "--json", "--no-programs")
    assert "is not what the verifier finds" not in findings(json.loads(out))


def test_programs_can_be_left_alone_and_claims_then_say_so(sealed: Path, audit: Audit) -> None:
    _, out, _ = audit("verify", sealed, "--json", "--no-programs")
    verdict = json.loads(out)
    assert findings(verdict) == []
    assert verdict["evidence"]["programs_rerun"] == 0
    assert "switched off" in verdict["evidence"]["rerun_reason"]
    rests = [one for one in verdict["claims"] if "programs were not run again" in one["measured"]]
    assert rests
    assert {one["verdict"] for one in rests} == {"not run here"}
    _, out, _ = audit("verify", sealed, "--no-programs")
    assert "0 programs run again (switched off" in out


def test_a_machine_without_isolation_gives_the_reason(
    sealed: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    code, out, _ = audit("verify", sealed, "--json")
    verdict = json.loads(out)
    assert findings(verdict) == []
    assert "bubblewrap" in verdict["evidence"]["rerun_reason"]
    assert code == (1 if any(one["verdict"] == "fails" for one in verdict["claims"]) else 0)


@isolated
@pytest.mark.parametrize("written_without", [False, True])
def test_a_verdict_holds_on_a_machine_without_isolation_and_the_other_way_round(
    sealed: Path, tmp_path: Path, audit: Audit, written_without: bool
) -> None:
    run = Path(shutil.copytree(sealed, tmp_path / "run"))
    here = ["--no-programs"] if written_without else []
    there = [] if written_without else ["--no-programs"]
    audit("verify", run, "--write", *here)
    _, out, _ = audit("verify", run, "--json", *there)
    verdict = json.loads(out)
    assert findings(verdict) == []
    apart = verdict["evidence"]["not_compared"]
    assert "F1 tiny" in apart
    assert "F-exact tiny" not in apart
    _, out, _ = audit("verify", run, *there)
    assert f"\nof verdict.json not compared: {', '.join(apart)}\n" in out
    _, out, _ = audit("verify", run, "--json", *here)
    assert "not_compared" not in json.loads(out)["evidence"]
    number = next(n for n, one in enumerate(verdict["claims"]) if one["id"] == "F1")
    for place in (0, number):  # one that rests on no program, and one that does
        forged = Path(shutil.copytree(run, tmp_path / f"forged-{place}"))
        synthetic.edit_json(
            forged / manifest.VERDICT,
            lambda value, place=place: value["claims"][place].update(criterion="none"),
        )
        _, out, _ = audit("verify", forged, "--json", *there)
        assert findings(json.loads(out)) == ["is not what the verifier finds"]
    # Whatever could be run here: what was measured there is what the records say.
    for changes in ({"measured": "30/30 = 100.0%"}, {"verdict": "holds", "measured": "30/30"}):
        synthetic.edit_json(
            run / manifest.VERDICT,
            lambda value, changes=changes: value["claims"][number].update(changes),
        )
        _, out, _ = audit("verify", run, "--json", *there)
        assert findings(json.loads(out)) == ["is not what the verifier finds"]


def test_a_run_whose_programs_were_not_run_again_is_not_signed(
    sealed: Path, tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(sealed, tmp_path / "run"))
    audit("keygen", tmp_path / "key.pem")
    monkeypatch.setenv("PATH", "")
    audit("verify", run, "--write")
    code, _, err = audit("sign", run, "--key", tmp_path / "key.pem", "--failed-claims")
    assert code == 3
    assert "not all recorded programs were run again, and the run is not signed" in err
    assert not (run / manifest.ATTESTATION).exists()


def test_records_too_deep_to_be_read_are_unusable_not_a_crash(
    rows: Rows, tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build(tmp_path / "run", rows)

    def too_deep(*_: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr(gate, "judge", too_deep)
    code, _, err = audit("verify", run)
    assert code == 2
    assert "nothing can be computed from the records" in err
