"""Running recorded programs again takes a bounded time, and what it does not reach rests."""

from __future__ import annotations

import copy
import time

import flywheel_stage as made
import pytest

from kvaudit import digests
from kvaudit.flywheel import rescoring
from kvaudit.flywheel.records import PROGRAMS
from kvaudit.stagekind import Budget, Rerun, Rows

pytestmark = pytest.mark.usefixtures("isolation")


@pytest.fixture(scope="module")
def pristine() -> Rows:
    return made.made_rows()


def programs(rows: Rows, *ended: tuple[str, str]) -> Rows:
    """The records with these programs in the place of theirs: text and recorded ending."""
    out, like = copy.copy(rows), rows[PROGRAMS][0]
    nothing = {"answer": None, "output": "", "output_sha256": digests.sha256_bytes(b"")}
    out[PROGRAMS] = [
        {**like, **nothing, "program": text, "ending": ending, "sha256": f"{n:064x}"}
        for n, (text, ending) in enumerate(ended)
    ]
    return out


ENDLESS = ("while True: pass", "timeout")


def test_programs_that_never_end_are_not_run_for_ever(pristine: Rows) -> None:
    rows = programs(pristine, *[ENDLESS] * 200)
    budget = Budget(1.0)
    began = time.monotonic()
    found = rescoring.rerun(rows, budget)
    assert time.monotonic() - began < 60
    assert 0 < found.programs < 200
    assert found.reason == "the 1 seconds for the programs of all stages were over"
    assert found.problems == ()
    assert budget.left < 0
    began = time.monotonic()
    assert rescoring.rerun(rows, budget) == Rerun(0, reason=found.reason)  # the next stage
    assert time.monotonic() - began < 20


def test_what_was_found_in_time_stands(pristine: Rows) -> None:
    rows = programs(pristine, ("print(25)", "memory"), *[ENDLESS] * 200)
    found = rescoring.rerun(rows, Budget(2.0))
    assert [one.message for one in found.problems] == [
        "line 1: ended as memory, but ends as printed when it is run again"
    ]
    assert found.reason is not None


def test_a_program_that_no_second_look_reaches_is_not_judged(pristine: Rows) -> None:
    sleeper = "import time\ntime.sleep(2)\nprint(25)"
    found = rescoring.rerun(programs(pristine, (sleeper, "no answer")), Budget(1.5))
    assert (found.programs, found.problems) == (0, ())
    assert found.reason is not None
    assert rescoring.rerun(programs(pristine, (sleeper, "no answer"))).problems != ()


def test_one_reason_does_not_hide_the_other() -> None:
    over = "the 9 seconds for the programs of all stages were over"
    assert rescoring._reason(0, 0, Budget(9.0)) is None
    assert rescoring._reason(0, 3, Budget(9.0)) == over
    assert rescoring._reason(2, 0, Budget(9.0)) == "2 programs could not be isolated"
    assert rescoring._reason(2, 3, Budget(9.0)) == f"2 programs could not be isolated; {over}"
