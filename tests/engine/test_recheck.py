"""A transcript is read again in one pass: what was generated passes, what was changed is caught."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tinyflywheel import Measured, Rows, run

from kvaudit.flywheel.records import GENERATIONS, HEADERS, PROFILES
from kvgraft import cli_recheck
from kvgraft.errors import ProfileMismatch
from kvgraft.recheck_common import Rechecked
from kvgraft.recheck_generations import RELOCATED, recheck_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured(isolation: None, models: Any, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("recheck")
    return run(models("gemma3"), folder, margin=0, scored_tokens=24)


def checked(measured: Measured, change: Callable[[Rows], Any] = lambda _: None) -> Rechecked:
    rows = copy.deepcopy(measured.rows)
    change(rows)
    return recheck_rows(measured.stage.model, rows, threads=1)


def first(rows: Rows, **wanted: Any) -> tuple[int, dict[str, Any]]:
    """Line and row of the first generation with these fields and several tokens."""
    return next(
        (number, row)
        for number, row in enumerate(rows[GENERATIONS], start=1)
        if len(row["tokens"]) > 2 and all(row[key] == value for key, value in wanted.items())
    )


def test_every_generation_but_the_relocated_comes_out_as_recorded(measured: Measured) -> None:
    found = checked(measured)
    moved = sum(row["exact"] is False for row in measured.rows[GENERATIONS])
    assert moved
    assert (found.mode, found.disagreements, found.passed) == ("bytes", (), True)
    assert found.skipped == {RELOCATED: moved}
    assert found.equal == found.checked == found.n - moved
    arms = {row["arm"] for row in measured.rows[GENERATIONS] if row["exact"] is not False}
    assert {"text", "adapt", "recall", "recall-flat", "adapt-flat", "solved-card"} <= arms


def test_a_changed_token_is_named_with_its_step(measured: Measured) -> None:
    line, _ = first(measured.rows)

    def change(rows: Rows) -> None:
        tokens = rows[GENERATIONS][line - 1]["tokens"]
        tokens[1] = tokens[1] % 200 + 3

    (one,) = checked(measured, change).disagreements
    assert one.line == line
    assert one.what == "another token is drawn at step 1, and the text is not that of the tokens"


def test_a_changed_seed_and_a_changed_temperature_draw_other_tokens(measured: Measured) -> None:
    line, row = first(measured.rows, attempt=1)
    assert row["temperature"] > 0

    def seed(rows: Rows) -> None:
        rows[GENERATIONS][line - 1]["seed"] += "0"

    def greedy(rows: Rows) -> None:
        rows[GENERATIONS][line - 1]["temperature"] = 0.0

    for change in (seed, greedy):
        (one,) = checked(measured, change).disagreements
        assert one.line == line
        assert one.what.startswith("another token is drawn at step")


def test_another_models_generations_are_caught(measured: Measured, models: Any) -> None:
    found = recheck_rows(models("gemma3-q4_0"), measured.rows, threads=1)
    assert found.checked
    assert len(found.disagreements) == found.checked
    assert not found.passed


def test_a_digest_a_text_and_a_question_that_are_not_its_own_are_caught(
    measured: Measured,
) -> None:
    line, _ = first(measured.rows)
    for key, value, what in (
        ("logits_sha256", "0" * 64, "the logits have another digest"),
        ("text", "never said", "the text is not that of the tokens"),
        ("prompt_sha256", "0" * 64, "the question is not the one whose digest is recorded"),
        ("prompt_tokens", 9999, "question and context have"),
        ("decoded_tokens", 9999, "another number is recorded"),
        ("finish", "end", "the text does not end"),
    ):

        def change(rows: Rows, key: str = key, value: Any = value) -> None:
            rows[GENERATIONS][line - 1][key] = value

        (one,) = checked(measured, change).disagreements
        assert one.line == line
        assert what in one.what


@pytest.mark.parametrize(
    ("written", "text", "finish", "what"),
    [
        ("12\n", "12", "stop", None),
        ("12", "12", "limit", None),
        ("12\n", "1", "stop", "the text is not that of the tokens"),
        ("12\n", "12\n", "stop", "the text is not that of the tokens"),
        ("12", "12", "stop", "whether a stop text ended it is not what the tokens say"),
        ("12\n", "12", "limit", "whether a stop text ended it is not what the tokens say"),
        ("12\n3", "12", "stop", "tokens came behind the text that ends the generation"),
    ],
)
def test_a_text_ends_where_the_tokens_say(
    measured: Measured, written: str, text: str, finish: str, what: str | None
) -> None:
    line, row = first(measured.rows, arm="text")
    tokens = measured.stage.model.tokenize(written, begin=False)

    def change(rows: Rows) -> None:
        changed = {"tokens": tokens, "decoded_tokens": len(tokens), "text": text}
        rows[GENERATIONS][line - 1] |= {**changed, "finish": finish}

    assert row["tokens"] != tokens
    (one,) = checked(measured, change).disagreements
    drawn, _, said = one.what.partition(", and ")
    assert drawn.startswith("another token is drawn")
    assert (said or None) == what


def test_blocks_whose_headers_name_another_state_are_caught(measured: Measured) -> None:
    def chunks(rows: Rows) -> None:
        for row in rows[HEADERS]:
            row["header"]["state"]["chunks"][0] = "0" * 64

    found = checked(measured, chunks)
    whats = {one.what for one in found.disagreements}
    assert whats == {"its block has another state than its header says"}
    arms = {one.where.split(",")[0] for one in found.disagreements}
    assert {"recall", "adapt", "solved-card"} <= arms

    def child(rows: Rows) -> None:
        for row in rows[HEADERS]:
            if row["header"]["parent"] is not None:
                row["header"]["state"]["blake3"] = "0" * 64

    arms = {one.where.split(",")[0] for one in checked(measured, child).disagreements}
    assert "adapt" in arms
    assert "recall" not in arms


def test_a_sample_is_drawn_by_its_seed(measured: Measured) -> None:
    found = recheck_rows(measured.stage.model, measured.rows, 7, "a", threads=1)
    moved = sum(row["exact"] is False for row in measured.rows[GENERATIONS])
    assert (found.checked, found.skipped, found.passed) == (7, {RELOCATED: moved}, True)


def test_a_sample_is_drawn_among_what_can_be_read_again(measured: Measured) -> None:
    rows = copy.deepcopy(measured.rows)
    _, row = first(rows, exact=True)
    for other in rows[GENERATIONS]:
        other["exact"] = False
    row["exact"] = True
    found = recheck_rows(measured.stage.model, rows, 1, "a", threads=1)
    assert (found.checked, found.skipped) == (1, {RELOCATED: found.n - 1})
    row["exact"] = False
    found = recheck_rows(measured.stage.model, rows, 1, "a", threads=1)
    assert (found.checked, found.passed) == (0, False)
    assert "nothing was checked" in cli_recheck._render(found)


def test_a_profile_that_is_not_split_invariant_is_refused(measured: Measured) -> None:
    def change(rows: Rows) -> None:
        for row in rows[PROFILES]:
            row["profile"]["settings"]["min_rows"] = 1

    with pytest.raises(ProfileMismatch, match="one pass does not give the bytes of a decode"):
        checked(measured, change)


def test_what_no_machine_could_agree_with_fails_elsewhere_too(measured: Measured) -> None:
    line, _ = first(measured.rows)

    def elsewhere(rows: Rows) -> None:
        for row in rows[PROFILES]:
            row["profile"]["machine"]["architecture"] = "another"

    def digest(rows: Rows) -> None:
        elsewhere(rows)
        rows[GENERATIONS][line - 1]["logits_sha256"] = "0" * 64

    def text(rows: Rows) -> None:
        elsewhere(rows)
        rows[GENERATIONS][line - 1]["text"] = "never said"

    assert checked(measured, digest).passed
    assert not checked(measured, text).passed


def test_elsewhere_tokens_are_compared_and_the_fields_that_differ_are_named(
    measured: Measured,
) -> None:
    def change(rows: Rows) -> None:
        for row in rows[PROFILES]:
            row["profile"]["machine"]["architecture"] = "another"

    found = checked(measured, change)
    assert (found.mode, found.profile_differences) == ("tokens", ("machine.architecture",))
    assert found.same_tokens == found.tokens
