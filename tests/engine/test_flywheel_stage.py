"""The flywheel runs end to end on a tiny model, with programs isolated, and the verifier agrees.

A tiny model solves nothing, so that a margin above 0 admits nothing; a margin of 0 admits all.
"""

from __future__ import annotations

import copy
import json
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tinyflywheel import Measured, run

from kvaudit import claims, digests, schemas
from kvaudit.flywheel import prompts, routing
from kvaudit.flywheel.kind import KIND
from kvaudit.flywheel.records import (
    ARMS,
    CALIBRATION,
    DEPOSITS,
    GENERATIONS,
    GROWTH,
    HEADERS,
    PROGRAMS,
    ROUTES,
    RUN,
)
from kvgraft.energy import Meter
from kvgraft.flywheel import Flywheel
from kvgraft.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("isolation")]

ENTRIES = ("deposited", "templated")


@pytest.fixture(scope="module")
def refusing(models: Any, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return run(models("llama"), tmp_path_factory.mktemp("refusing"))


@pytest.fixture(scope="module")
def admitting(models: Any, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return run(models("gemma3"), tmp_path_factory.mktemp("admitting"), margin=0, scored_tokens=24)


@pytest.fixture(params=["refusing", "admitting"])
def measured(request: pytest.FixtureRequest) -> Measured:
    found: Measured = request.getfixturevalue(request.param)
    return found


def inputs_of(stage: Flywheel) -> dict[str, Any]:
    with Session(stage.model, stage.settings) as session:
        own = copy.deepcopy(session.profile.to_json())
    stock = {**own, "settings": {**own["settings"], "name": "stock"}}
    pin = stage.model.pin
    return {
        "models": [{"name": stage.model.name, "sha256": pin.sha256}],
        "profiles": {
            stage.model.name: {
                one["settings"]["name"]: {"digest": digests.sha256_json(one), "profile": one}
                for one in (own, stock)
            }
        },
        "configuration": {
            "value": {
                "seed": "test",
                "flywheel": dict(stage.options),
                "profile": {"preset": "split-invariant", "n_ctx": 1024},
            }
        },
        "environment": {"python": platform.python_version()},
    }


# -- what the verifier says -----------------------------------------------------------------------


def test_the_auditor_finds_no_contradiction(measured: Measured) -> None:
    name = measured.stage.model.name
    assert KIND.check(name, measured.rows, inputs_of(measured.stage)) == []
    summary = json.loads(KIND.summary_bytes(name, measured.rows))
    schemas.validate(summary, "flywheel-summary", where="summary")
    assert summary["subject"] == name


def test_every_program_ends_again_as_it_did(measured: Measured) -> None:
    assert KIND.rerun is not None
    again = KIND.rerun(measured.rows)
    assert again.problems == ()
    assert again.reason is None
    assert len(measured.rows[PROGRAMS]) > 3


def test_every_arm_is_there(measured: Measured) -> None:
    assert {row["arm"] for row in measured.rows[GENERATIONS]} == {*ARMS}
    assert {*measured.rows[RUN][0]["seconds"]} == {
        *("alone", "deposits", "transfers", "recalls", "solved", "router", "flat"),
    }


F9 = ("adapt", "alone", "recall", "recall-examples", "adapt-flat")


def test_arms_that_are_left_out_are_not_asked_and_nothing_is_said_of_them(
    models: Any, tmp_path: Path
) -> None:
    made = run(models("llama"), tmp_path, arms=[*F9], adapt_attempts=1)
    name = made.stage.model.name
    assert {row["arm"] for row in made.rows[GENERATIONS]} == {*F9}
    assert [*made.rows[ROUTES], *made.rows[GROWTH], *made.library.entries()] == []
    inputs = inputs_of(made.stage)
    assert KIND.check(name, made.rows, inputs) == []
    summary = json.loads(KIND.summary_bytes(name, made.rows))
    schemas.validate(summary, "flywheel-summary", where="summary")
    assert summary["categories"]["routed_flat"]["first"]["n"] == 3
    said = claims.judge("flywheel", claims.Evidence(name, made.rows, 0, 0, 100, None))
    open_ = {one.id: one.measured for one in said if not one.measured.startswith("not asked: ")}
    assert open_ == {"F9": "3 instances asked from one prefix, 20 are needed to judge"}
    # Left out of the configuration, an arm cannot be in the records; nor the other way round.
    inputs["configuration"]["value"]["flywheel"] = {**made.stage.options, "arms": [*F9, "text"]}
    said_of = [one.message for one in KIND.check(name, made.rows, inputs)]
    assert said_of == [
        "text: are not the planned questions in their order",
        "arms are not the planned ones",
    ]


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Path]:
    """A folder of RAPL domains whose one counter grows, 0.5 J every 5 ms."""
    domain, ended = tmp_path / "powercap" / "intel-rapl:0", threading.Event()
    domain.mkdir(parents=True)
    (domain / "name").write_text("package-0\n")
    (domain / "max_energy_range_uj").write_text(f"{10**12}\n")
    (domain / "energy_uj").write_text("0\n")

    def grow() -> None:
        joules = 0
        while not ended.wait(0.005):
            joules += 500_000
            (domain / "new").write_text(f"{joules}\n")
            (domain / "new").rename(domain / "energy_uj")

    thread = threading.Thread(target=grow)
    thread.start()
    yield tmp_path / "powercap"
    ended.set()
    thread.join()


def test_where_a_meter_is_every_row_has_its_joules_for_one_solved(
    models: Any, tmp_path: Path, counter: Path
) -> None:
    asked = ["adapt", "recall"]
    meter = Meter(powercap=counter)
    made = run(models("llama"), tmp_path, meter, arms=asked, families=2, program_tokens=16)
    name, inputs = made.stage.model.name, inputs_of(made.stage)
    assert KIND.check(name, made.rows, inputs) == []
    whole = made.rows[RUN][0]["energy"]
    assert whole["meter"] == "RAPL, read every 2 s"
    parts = [row["joules"] for row in made.rows[GENERATIONS]]
    assert 0.0 < sum(parts) < whole["joules"]
    summary = json.loads(KIND.summary_bytes(name, made.rows))
    arms = summary["economy"]["arms"]
    assert arms["recall"]["joules"] == pytest.approx(sum(r["joules"] for r in made.of("recall")))
    assert "joules" not in arms["text"], "an arm that was not asked took none"
    made.rows[GENERATIONS][0]["joules"] = whole["joules"] + 1.0
    message = "the generations took more joules than the whole stage"
    assert message in [one.message for one in KIND.check(name, made.rows, inputs)]
    del made.rows[GENERATIONS][0]["joules"]
    message = "every generation has joules if there is an energy, and none otherwise"
    assert message in [one.message for one in KIND.check(name, made.rows, inputs)]


def test_a_second_run_gives_the_same_records_in_a_folder_made_anew(
    measured: Measured, tmp_path: Path
) -> None:
    stage, left = measured.stage, tmp_path / "work" / "library" / "entries" / "left.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    again = run(
        stage.model,
        tmp_path,
        margin=stage.options["margin"],
        scored_tokens=stage.options["scored_tokens"],
    )
    for file, rows in measured.rows.items():
        assert timeless(again.rows[file]) == timeless(rows), file
    assert not left.exists()
    assert again.library.entries() == measured.library.entries()


def timeless(value: Any) -> Any:
    """Without seconds; nothing else may differ."""
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key != "seconds"}
    return [timeless(one) for one in value] if isinstance(value, list) else value


# -- bytes ----------------------------------------------------------------------------------------


def test_a_grafted_question_has_the_bytes_of_one_behind_the_text(measured: Measured) -> None:
    for grafted, read in (("recall", "recall-text"), ("adapt", "adapt-text")):
        twins = {row["problem"]: row for row in measured.of(grafted) if row["attempt"] == 0}
        rows = measured.of(read)
        assert rows
        for row in rows:
            twin = twins[row["problem"]]
            assert row["logits_sha256"] == twin["logits_sha256"]
            assert (row["exact"], twin["exact"]) == (None, True)
            assert row["cached_tokens"] == 0 < twin["cached_tokens"]
            if read == "recall-text":
                assert row["text"] == twin["text"]


def test_a_relocated_block_is_never_called_exact(measured: Measured) -> None:
    moved = measured.of("recall-relocated", "adapt-relocated")
    assert moved
    assert {row["exact"] for row in moved} == {False}


# -- the library ----------------------------------------------------------------------------------


def test_the_library_holds_exactly_the_admitted_deposits(measured: Measured) -> None:
    admitted = [
        row for row in measured.rows[DEPOSITS] if row["admitted"] and row["variant"] in ENTRIES
    ]
    library, refuses = measured.library, measured.stage.options["margin"] > 0
    assert bool(admitted) != refuses
    assert [entry.id for entry in library.entries()] == [row["entry_id"] for row in admitted]
    for entry, row in zip(library.entries(), admitted, strict=True):
        assert (entry.statement, entry.answer, entry.text) == (
            row["statement"],
            row["answer"],
            row["text"],
        )
        assert entry.source.to_json() == row["source"]
        assert entry.block_id == row["block_id"]
        made = entry.admission
        assert made is not None
        assert made.instances == row["admission"]["instances"]
        shown = row["demonstration"]
        assert entry.block_ids == (row["block_id"], *([shown["block_id"]] if shown else []))
    held = {block_id for entry in library.entries() for block_id in entry.block_ids}
    assert {*library.blocks} == held
    assert library.blocks.fsck().clean
    size = sum(library.blocks.path(one).stat().st_size for one in held)
    assert measured.rows[RUN][0]["library"] == {"entries": len(admitted), "bytes": size}


def test_the_library_is_routed_by_what_was_calibrated(measured: Measured) -> None:
    router, (row,) = measured.library.facts.router, measured.rows[CALIBRATION]
    assert router.statistic == row["statistic"] == routing.STATISTIC
    assert (router.threshold, router.alpha) == (row["threshold"], row["alpha"])
    assert router.n_calibration == row["n"] == 2 * measured.stage.options["calibration"]
    scored = [one["score"] for one in measured.rows[ROUTES] if one["split"] == "calibration"]
    assert row["threshold"] <= max((one for one in scored if one is not None), default=0.0)


def test_a_block_of_the_library_grafts_into_a_session_of_its_settings(admitting: Measured) -> None:
    library = admitting.library
    entry = library.entries()[0]
    with library.open_session(admitting.stage.model) as session:
        blocks = library.chain(entry)
        assert session.graft_chain(blocks).exact
        assert entry.text in session.model.detokenize(session.tokens)
        for block in blocks:
            block.close()


def test_an_empty_library_routes_nothing(refusing: Measured) -> None:
    rows = refusing.rows[ROUTES]
    assert {(row["decision"], row["best"]) for row in rows} == {("abstain", None)}
    assert all(row["right"] for row in rows)
    assert all(row["scores"] == row["shortlist"] == [] for row in rows)


def test_exact_queries_are_recalled_and_all_others_scored(admitting: Measured) -> None:
    held = {row["name"] for row in admitting.rows[DEPOSITS] if row["chosen"] and row["admitted"]}
    assert len(held) == admitting.stage.options["families"]
    for row in admitting.rows[ROUTES]:
        assert (row["decision"] == "recall") == (row["query_kind"] == "exact")
        if row["decision"] == "recall":
            assert row["right"]
            assert row["scores"] == []
        elif row["shortlist"]:
            assert [one["deposit"] for one in row["scores"]] == [one[0] for one in row["shortlist"]]
            assert {one["deposit"] for one in row["scores"]} <= held
            assert {one["tokens"] for one in row["scores"]} == {24}


def test_growth_is_measured_at_every_size(measured: Measured) -> None:
    found = [(row["entries"], row["query"]) for row in measured.rows[GROWTH]]
    sizes, n = measured.stage.options["growth"], measured.stage.options["growth_queries"]
    assert found == [(size, query) for size in sizes for query in range(n)]
    assert all(1 <= row["candidates"] <= 3 for row in measured.rows[GROWTH])


# -- deposits -------------------------------------------------------------------------------------


def test_every_deposit_says_what_its_block_holds(measured: Measured) -> None:
    programs = {row["sha256"]: row for row in measured.rows[PROGRAMS]}
    headers = {row["id"]: row["header"] for row in measured.rows[HEADERS]}
    for row in measured.rows[DEPOSITS]:
        ids = measured.stage.model.tokenize(row["text"])
        assert headers[row["block_id"]]["tokens"]["n"] == len(ids)
        if row["variant"] in ENTRIES:
            program = programs[row["program_sha256"]]
            assert program["answer"] == row["answer"]
            assert row["text"] == prompts.block_text(
                row["statement"], program["program"], row["answer"]
            )
            assert row["source"]["author"] == "contest set"
