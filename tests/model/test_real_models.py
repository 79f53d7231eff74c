"""On both embedded models a graft is the fresh computation: same logits, same state, same bytes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvaudit import records
from kvgraft import plan, remote
from kvgraft.exactness import Experiment
from kvgraft.model import FrozenModel
from kvgraft.profile import ProfileSettings, split_invariant
from kvgraft.session import GraftReceipt, Session
from kvgraft.store import BlockStore

pytestmark = [pytest.mark.model, pytest.mark.slow]

GEMMA, SMOLLM = "gemma-3-270m", "smollm2-135m"
SETTINGS: ProfileSettings = split_invariant(n_ctx=1024, n_threads=1)
CASES = [(GEMMA, 203), (GEMMA, 700), (SMOLLM, 203), (SMOLLM, 600)]
BARE_ENGINE = Path(__file__).parents[1] / "data" / "bare_engine.py"
Embedded = Callable[[str], FrozenModel]


def sha256(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@dataclass(frozen=True)
class Case:
    """One span read fresh here, grafted here, and every other way in new processes."""

    model: FrozenModel
    n: int
    logits: str
    last: str
    state: str
    restored_bytes: int
    here: str
    receipt: GraftReceipt
    readings: dict[str, remote.Reading]
    text: list[int]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(
    request: pytest.FixtureRequest, embedded: Embedded, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    name, n = request.param
    model, folder = embedded(name), tmp_path_factory.mktemp("case")
    store = BlockStore(folder / "blocks")
    with Session(model, SETTINGS) as session:
        span = plan.prose(model, f"test/{n}", n)
        query = model.tokenize("\nQuestion: Who kept the chronicle?\nAnswer:", begin=False)
        session.prefill(span)
        capture = session.capture()
        store.put(capture.header, capture.tokens, capture.state.data)
        logits = session.decode(query)
        state = session.capture().state
        session.reset()
        with store.get(capture.header.id) as block:
            receipt = session.graft(block)
        here = sha256(session.decode(query))
    text = [*span, *query]
    # From the first token on where that is quick enough, else the last hundred.
    silent = [] if n < 300 else [len(text) - 100]
    graft = {"store": str(store.root), "block_id": capture.header.id, "query": query, "state": True}
    whole = {"span": span, "query": query, "one_shot": True, "state": True}
    ways: dict[str, dict[str, Any]] = {
        "graft": {"do": "graft", "with": graft},
        "graft, token by token": {"do": "graft", "with": {**graft, "sizes": [1] * len(query)}},
        "one shot": {"do": "fresh", "with": whole},
        "chunks": {"do": "fresh", "with": {**whole, "sizes": [7, 130, 1, 64] * 8}},
        "token by token": {"do": "fresh", "with": {**whole, "sizes": silent + [1] * len(text)}},
    }
    jobs = list(ways.values())
    # Grafts and fresh readings in processes apart: the grafting one has never read the span.
    answers = remote.call(model, SETTINGS, jobs[:2], folder)
    answers += remote.call(model, SETTINGS, jobs[2:], folder)
    return Case(
        model,
        n,
        sha256(logits),
        sha256(logits[-1]),
        sha256(state),
        len(capture.state),
        here,
        receipt,
        dict(zip(ways, answers, strict=True)),
        text,
    )


def test_graft_is_byte_equal_to_fresh_in_a_new_process(case: Case) -> None:
    for way in ("graft", "graft, token by token"):
        reading = case.readings[way]
        assert sha256(reading.logits) == case.logits, way
        assert reading.state_sha256 == case.state, way


def test_graft_is_byte_equal_to_fresh_in_the_same_process(case: Case) -> None:
    assert case.here == case.logits
    past_window = case.model.facts.window is not None and case.n > case.model.facts.window
    assert (case.receipt.placeholder_cells > 0) == past_window


def test_one_shot_chunks_and_token_by_token_are_byte_equal_in_a_new_process(case: Case) -> None:
    for way in ("one shot", "chunks", "token by token"):
        reading = case.readings[way]
        assert sha256(reading.logits) == case.logits, way
        assert reading.state_sha256 == case.state, way


def test_the_grafting_process_decoded_the_query_alone(case: Case) -> None:
    for way in ("graft", "graft, token by token"):
        assert case.readings[way].decoded_tokens == len(case.text) - case.n
        assert case.readings[way].restored_bytes == case.restored_bytes
    for way in ("one shot", "chunks", "token by token"):
        assert case.readings[way].restored_bytes == 0


def test_a_script_that_knows_nothing_of_this_project_gets_the_same_logits(case: Case) -> None:
    done = subprocess.run(
        [sys.executable, BARE_ENGINE, case.model.path, json.dumps(case.text), "1024"],
        env={"GGML_CPU_TILED_MM": "0", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == case.last, done.stderr[-2000:]


FIVE_LINES = """
import hashlib, json, sys
for row in map(json.loads, open(sys.argv[1] + "/records/samples.jsonl")):
    for arm, digest in (row["raw"] or {}).items():
        data = open(f"{sys.argv[1]}/logits/{digest}.f32", "rb").read()
        print(hashlib.sha256(data).hexdigest() == row["arms"][arm]["logits_sha256"][-1])
"""


@pytest.mark.parametrize("name", [GEMMA, SMOLLM])
def test_recorded_logit_digests_are_recomputed_by_five_lines_outside_the_project(
    embedded: Embedded, tmp_path: Path, name: str
) -> None:
    experiment = Experiment(
        model=embedded(name),
        settings=SETTINGS,
        options={"samples": 1, "raw_samples": 1, "min_tokens": 40, "max_tokens": 80},
        seed="test",
        folder=tmp_path / "evidence",
        scratch=tmp_path,
        note=lambda _line: None,
    )
    (tmp_path / "evidence" / "records").mkdir(parents=True)
    with Session(embedded(name), SETTINGS) as session:
        ((row, _block),) = experiment.samples(session)
    records.write(tmp_path / "evidence/records/samples.jsonl", "exactness-sample", [row])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", FIVE_LINES, tmp_path / "evidence"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["True"] * 3, done.stderr
    assert len(set(row["raw"].values())) == 1


def test_the_two_models_are_what_their_pins_say(embedded: Embedded) -> None:
    gemma, smollm = embedded(GEMMA).facts, embedded(SMOLLM).facts
    assert (gemma.architecture, gemma.window, gemma.n_layer) == ("gemma3", 512, 18)
    assert (smollm.architecture, smollm.window, smollm.n_layer) == ("llama", None, 30)
