"""Whether the records of a flywheel stage agree with each other and with the inputs.

Texts, programs and blocks' headers are among the records, so that answers are read again, programs
taken out of their texts again, and gates judged again. This module must not know which results
would be good ones, nor the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from kvaudit import digests, profiles
from kvaudit.flywheel import (
    answers,
    check_deposits,
    check_files,
    check_routes,
    gate,
    prompts,
    rescoring,
)
from kvaudit.flywheel.known import Known, Row
from kvaudit.flywheel.records import (
    CALIBRATION,
    DEPOSITS,
    GATED,
    GENERATIONS,
    HEADERS,
    KINDS,
    MAX_OUTPUT,
    PROBLEMS,
    PROFILES,
    PROGRAMS,
    READ,
    ROUTES,
    RUN,
    RUNNING,
    demonstrated,
)
from kvaudit.sandbox_outcome import last_integer
from kvaudit.stagekind import Problem, Rows

MAX_PROFILES = 2
"""Many blocks in one prefix need a longer context than a single one."""

ROUNDING_JOULES = 1e-6
"""By which a generation's joules, and the stage's, may differ from what was measured."""

ROUNDING_RATIO = 1e-9
"""Of a sum in float64 to what it sums."""

DERIVED = ("n_ctx", "n_batch", "n_threads")
"""Settings that the stage may change."""


def check_records(subject: str, rows: Rows, inputs: Mapping[str, Any]) -> list[Problem]:
    """Everything in the records that contradicts other records or the inputs manifest.

    Args:
        subject: the model's name.
        rows: all records of the stage.
        inputs: the inputs manifest.
    """
    found: list[Problem] = []

    def report(file: str, messages: Iterator[str]) -> None:
        found.extend(Problem(file, message) for message in messages)

    for file, kind in KINDS.items():
        if kind in ("profile", "block-header"):
            continue
        for number, row in enumerate(rows[file], start=1):
            if row["model"] != subject:
                found.append(Problem(file, f"line {number}: model is not {subject}"))
    for file in (PROBLEMS, DEPOSITS):
        names = [row["name"] for row in rows[file]]
        if len(set(names)) != len(names):
            found.append(Problem(file, "two lines have one name"))
    report(PROFILES, profiles.derived_problems(rows[PROFILES], inputs, subject, DERIVED))
    report(PROFILES, _profile(rows))
    report(HEADERS, check_deposits.headers(subject, rows, inputs))
    report(PROGRAMS, _programs(rows))
    report(GENERATIONS, _generations(subject, rows))
    report(PROBLEMS, check_files.registered(rows[PROBLEMS], inputs))
    report(DEPOSITS, check_deposits.deposits(subject, rows))
    report(DEPOSITS, check_files.deposits(Known(subject, rows)))
    report(ROUTES, check_routes.routes(Known(subject, rows)))
    report(CALIBRATION, check_routes.calibrated(rows))
    report(RUN, _run(rows, inputs["environment"]["python"]))
    return found


def _profile(rows: Rows) -> Iterator[str]:
    if not 1 <= len(rows[PROFILES]) <= MAX_PROFILES:
        yield f"the stage runs under one derived profile, or {MAX_PROFILES} at most"
    if len({row["header"]["profile"] for row in rows[HEADERS]}) > 1:
        yield "blocks were computed under different profiles"
    used = [
        r["cached_tokens"] + r["prompt_tokens"] + r["decoded_tokens"] for r in rows[GENERATIONS]
    ]
    largest = max(
        (profiles.n_ctx(row["profile"], "context") or 0 for row in rows[PROFILES]), default=0
    )
    if max(used, default=0) > largest:
        yield f"a generation has {max(used)} tokens, more than the context's {largest}"


# -- programs ---------------------------------------------------------------------------------


def _programs(rows: Rows) -> Iterator[str]:
    listed = [row["sha256"] for row in rows[PROGRAMS]]
    if listed != sorted(set(listed)):
        yield "are not sorted by their digest, each once"
    named = {row["program_sha256"] for row in rows[GENERATIONS]}
    for row in rows[DEPOSITS]:
        named.add(row["program_sha256"])
        if row["demonstration"] is not None:
            named.add(row["demonstration"]["program_sha256"])
    for digest in sorted(named - {*listed, None}):
        yield f"program {digest[:12]} is named by a record, but not listed"
    for digest in sorted({*listed} - named):
        yield f"program {digest[:12]} is listed, but named by no record"
    for number, row in enumerate(rows[PROGRAMS], start=1):
        yield from (f"line {number}: {text}" for text in _program(row))


def _program(row: Row) -> Iterator[str]:
    if digests.sha256_bytes(row["program"].encode("utf-8")) != row["sha256"]:
        yield "sha256 is not that of the program"
    if (row["answer"] is not None) != (row["ending"] == "printed"):
        yield "there is an answer if and only if it ended as printed"
    output = row["output"].encode("utf-8")
    whole = digests.sha256_bytes(output) == row["output_sha256"]
    # Else it is all that was printed, and of the same bytes.
    if not whole and len(row["output"]) < MAX_OUTPUT and "\ufffd" not in row["output"]:
        yield "output_sha256 is not that of its output"
    ended = row["ending"] in ("printed", "no answer")
    if whole and ended and row["answer"] != last_integer(output):
        yield "answer is not the last line of its output"


# -- generations ------------------------------------------------------------------------------


class _Generations(Known):
    """The records, by what a generation names."""

    @cached_property
    def first(self) -> dict[tuple[str, str, tuple[str, ...]], Row]:
        """First attempts by arm, problem and deposits."""
        return {
            (row["arm"], row["problem"], tuple(row["deposits"])): row
            for row in self.rows[GENERATIONS]
            if row["attempt"] == 0
        }

    def own(self, row: Row) -> Row | None:
        """The deposit in a generation's context that is of its problem's family."""
        family = self.problems[row["problem"]]["family"]
        held = [self.deposits[name] for name in row["deposits"]]
        return next((deposit for deposit in held if deposit["family"] == family), None)

    def length(self, deposit: Row, *, child: bool) -> int:
        """Tokens of a deposit's block, with its child's if there is one and it is asked for."""
        blocks = [deposit["block_id"]]
        if child and deposit["demonstration"] is not None:
            blocks.append(deposit["demonstration"]["block_id"])
        return sum(self.headers[one]["tokens"]["n"] for one in blocks if one in self.headers)


def _generations(subject: str, rows: Rows) -> Iterator[str]:
    known = _Generations(subject, rows)
    for number, row in enumerate(rows[GENERATIONS], start=1):
        where = f"line {number} ({row['arm']})"
        if row["problem"] not in known.problems:
            yield f"{where}: no such problem is recorded"
        elif not {*row["deposits"]} <= {*known.deposits}:
            yield f"{where}: no such deposit is recorded"
        else:
            checks = _program_answer if row["arm"] in RUNNING else _text_answer
            yield from (f"{where}: {text}" for text in checks(row, known))
            yield from (f"{where}: {text}" for text in _restored(row, known))


def _text_answer(row: Row, known: _Generations) -> Iterator[str]:
    if prompts.stop(row["arm"]) in row["text"]:
        yield "the text goes on behind the end of its line"
    right = known.problems[row["problem"]]["answer"]
    answer = answers.read(row["arm"], row["text"], right)
    if row["answer"] != answer:
        yield f"answer is {row['answer']}, the text says {answer}"
    if row["program_sha256"] is not None or row["gate"] is not None:
        yield "has a program or a gate, but its arm runs none"
    outcome = "no answer" if answer is None else "wrong"
    outcome = "answer" if answers.is_right(answer, right) else outcome
    if row["outcome"] != outcome:
        yield f"outcome is {row['outcome']}, by its text {outcome}"


def _program_answer(row: Row, known: _Generations) -> Iterator[str]:
    if prompts.stop(row["arm"]) in row["text"]:
        yield "the text goes on behind the end of its program"
    program = prompts.read_program(row["text"])
    if row["program_sha256"] != digests.sha256_bytes(program.encode("utf-8")):
        yield "program_sha256 is not that of the program in its text"
    ran = known.programs.get(row["program_sha256"])
    problem = known.problems[row["problem"]]
    if ran is not None:
        if row["answer"] != ran["answer"]:
            yield "answer is not what its program printed"
        outcome = ran["ending"]
        if outcome == "printed":
            outcome = "answer" if ran["answer"] == problem["answer"] else "wrong"
        if row["outcome"] != outcome:
            yield f"outcome is {row['outcome']}, by its program {outcome}"
    judged = None
    if row["arm"] in GATED:
        deposit = known.own(row)
        base = known.programs.get(deposit["program_sha256"]) if deposit else None
        if deposit is None or base is None:
            yield "no deposit of the problem's family, with a program, was in its context"
            return
        judged = gate.judge(program, problem["statement"], base["program"], deposit["statement"])
    if row["gate"] != judged:
        yield f"gate is {row['gate']}, judged again {judged}"


def _restored(row: Row, known: _Generations) -> Iterator[str]:
    arm, held = row["arm"], [known.deposits[name] for name in row["deposits"]]
    if (row["exact"] is None) != (row["cached_tokens"] == 0):
        yield "says whether its graft is exact if and only if something was restored"
    if arm.endswith("-relocated") and row["exact"] is not False:
        yield "a relocated graft is not said to be inexact"
    if arm in READ:
        yield from _read(row, known)
    elif arm.endswith("-flat"):
        lengths = [known.length(deposit, child=demonstrated(arm)) for deposit in held]
        if row["cached_tokens"]:
            yield "tokens were restored, but its arm reads them"
        if row["prompt_tokens"] <= sum(lengths) - len(held):  # each has a begin token of its own
            yield "reads fewer tokens than its deposits' blocks have"
    elif len(held) > 1:
        yield "more than one deposit was restored"
    else:
        lengths = [known.length(deposit, child=demonstrated(arm)) for deposit in held]
        if row["cached_tokens"] != sum(lengths):
            yield f"cached_tokens is {row['cached_tokens']}, its deposits' blocks {sum(lengths)}"


def _read(row: Row, known: _Generations) -> Iterator[str]:
    """A text that was read must be the one that its twin restored."""
    if row["cached_tokens"]:
        yield "tokens were restored, but its arm reads them"
    twin_arm = row["arm"].removesuffix("-text")
    twin = known.first.get((twin_arm, row["problem"], tuple(row["deposits"])))
    if twin is None:
        yield f"has no twin among the generations of {twin_arm}"
        return
    if row["prompt_sha256"] != twin["prompt_sha256"]:
        yield "asks another question than its twin"
    if row["prompt_tokens"] != twin["prompt_tokens"] + twin["cached_tokens"]:
        yield "reads another number of tokens than its twin has in all"
    same = row["logits_sha256"] == twin["logits_sha256"]
    if row["arm"] == "recall-text":
        if twin["exact"] and not same:
            yield "its twin is said to be exact, but had other logits"
        if same and row["text"] != twin["text"]:
            yield "has the logits of its twin, but another text"


def _run(rows: Rows, python: str) -> Iterator[str]:
    if len(rows[RUN]) != 1:
        yield "holds one line a run"
    entries = len({row["entry_id"] for row in rows[DEPOSITS]} - {None})
    for row in rows[RUN]:
        if (ran := rescoring.release(row["python"])) != python:
            yield f"programs ran on Python {ran}, the run is registered on {python}"
        if row["library"]["entries"] != entries:
            yield f"the library has {row['library']['entries']} entries, by the deposits {entries}"
        if (row["library"]["bytes"] > 0) != (entries > 0):
            yield "the library has bytes if and only if it has entries"
        if (row["energy"]["meter"] is None) != (row["energy"]["joules"] is None):
            yield "there is an energy if and only if there is a meter"
        parts = [one["joules"] for one in rows[GENERATIONS] if "joules" in one]
        if len(parts) != (row["energy"]["joules"] is not None) * len(rows[GENERATIONS]):
            yield "every generation has joules if there is an energy, and none otherwise"
        elif math.fsum(parts) > _most(row["energy"]["joules"] or 0.0, len(parts)):
            yield "the generations took more joules than the whole stage"
        if row["energy"]["meter"] is None and not row["energy"]["reason"]:
            yield "there is no meter, and no reason"


def _most(whole: float, parts: int) -> float:
    """Joules that so many parts of a whole can add up to, each and the whole rounded."""
    return whole * (1 + ROUNDING_RATIO) + (parts + 1) * ROUNDING_JOULES
