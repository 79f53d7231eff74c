"""Samples are computed again from their seed: the recorded passes, the changed is caught."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvaudit import digests
from kvaudit.exactness.consistency import BLOCKS, DETERMINISM, SAMPLES, SPLITS
from kvaudit.exactness.records import KINDS
from kvgraft import pins, stage
from kvgraft.errors import ProfileMismatch
from kvgraft.exactness import Experiment
from kvgraft.model import FrozenModel
from kvgraft.recheck_common import Progress, Rechecked, drawn
from kvgraft.recheck_exactness import OTHER_PROFILE, recheck_samples

OPTIONS = {
    "samples": 3,
    "raw_samples": 1,
    "min_tokens": 24,
    "max_tokens": 100,
    "determinism_lengths": [30],
    "split_lengths": [40, 120],
    "random_splits": 1,
    "single_tokens": 6,
}
CONFIG = {"preset": "split-invariant", "n_ctx": 768}
Rows = dict[str, list[dict[str, Any]]]


@dataclass
class Measured:
    """A stage that ran, and the inputs that it registered."""

    model: Any
    rows: Rows
    inputs: dict[str, Any]

    def checked(self, change: Callable[[Rows], Any] = lambda _: None, **given: Any) -> Rechecked:
        rows, inputs = copy.deepcopy(self.rows), copy.deepcopy(self.inputs)
        change(rows)
        return recheck_samples(self.model, rows, inputs, threads=1, **given)


@pytest.fixture(scope="module")
def measured(models: Any, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("rechecked")
    model = models("gemma3-q4_0")
    config = {"profile": CONFIG}
    experiment = Experiment(
        model, stage.settings(config), OPTIONS, f"test/{model.name}", folder, folder, print
    )
    rows = experiment.measure()
    profiles = stage.profiles_in_force(model, config)
    inputs = {
        "configuration": {"value": {"seed": "test", "profile": CONFIG, "exactness": OPTIONS}},
        "profiles": {model.name: profiles},
    }
    return Measured(model, {file: rows[Path(file).stem] for file in KINDS}, inputs)


def test_every_digest_comes_out_as_recorded(measured: Measured) -> None:
    found = measured.checked()
    assert (found.mode, found.disagreements, found.passed) == ("bytes", (), True)
    assert found.skipped == {OTHER_PROFILE: 1}  # the stock control
    assert found.checked == found.equal == found.n - 1
    assert found.same_tokens == found.tokens > 0


@pytest.mark.parametrize(
    ("file", "change", "what"),
    [
        (SAMPLES, lambda row: row["arms"]["graft"]["logits_sha256"], "graft: the logits have"),
        (SAMPLES, lambda row: row["arms"]["one_shot"], "one_shot: the state at the end has"),
        (SAMPLES, lambda row: row, "the state behind the span has another digest"),
        (DETERMINISM, lambda row: row["second"], "second: the state has another digest"),
        (SPLITS, lambda row: row, "the state_sha256 has another digest"),
    ],
)
def test_a_changed_digest_is_named(
    measured: Measured, file: str, change: Callable[[Any], Any], what: str
) -> None:
    def changed(rows: Rows) -> None:
        part = change(rows[file][1])
        if isinstance(part, list):
            part[2] = "0" * 64
        else:
            part["state_sha256"] = "0" * 64

    found = measured.checked(changed)
    (one,) = found.disagreements
    assert (one.file, one.line, one.anywhere) == (file, 2, False)
    assert one.what.startswith(what)
    assert not found.passed


def test_a_block_that_is_not_the_sample_s_is_caught(measured: Measured) -> None:
    def chunk(rows: Rows) -> None:
        rows[BLOCKS][0]["header"]["state"]["chunks"][0] = "0" * 64

    (one,) = measured.checked(chunk).disagreements
    assert one.what == "its block has another state than its header says"


def test_another_span_is_caught_on_every_machine(measured: Measured) -> None:
    def elsewhere(rows: Rows) -> None:
        rows[SAMPLES][0]["span_sha256"] = digests.sha256_bytes(b"another text")

    (one,) = measured.checked(elsewhere).disagreements
    assert one.anywhere
    assert one.what == "the tokens of its span are not those of the planned text"


def test_another_model_s_samples_are_caught(measured: Measured, models: Any) -> None:
    # The name decides the seeds of the texts, so that nothing but the weights is another.
    name = measured.model.name
    with FrozenModel.open(pins.for_file(models("gemma3").path, name)) as other:
        found = recheck_samples(other, measured.rows, measured.inputs, threads=1)
    assert found.mode == "bytes"
    assert not found.passed
    assert len(found.disagreements) == found.checked
    assert not any(one.anywhere for one in found.disagreements)


def test_elsewhere_bytes_are_not_compared_and_tokens_are(measured: Measured) -> None:
    inputs = copy.deepcopy(measured.inputs)
    entry = inputs["profiles"][measured.model.name]["split-invariant"]
    entry["profile"]["machine"]["architecture"] = "another"
    entry["digest"] = digests.sha256_json(entry["profile"])
    rows = copy.deepcopy(measured.rows)
    rows[SAMPLES][0]["arms"]["graft"]["logits_sha256"][0] = "0" * 64
    found = recheck_samples(measured.model, rows, inputs, threads=1)
    assert (found.mode, found.profile_differences) == ("tokens", ("machine.architecture",))
    assert found.passed
    assert found.same_tokens == found.tokens > 0


def test_a_sample_is_drawn_by_its_seed(measured: Measured) -> None:
    found = measured.checked(sample=2, seed="a")
    assert 0 < found.checked < found.n - 1
    assert found.passed
    assert drawn(100, 10, "a") == drawn(100, 10, "a") != drawn(100, 10, "b")
    assert drawn(3, 3, "a") == drawn(3, None, "a") == [0, 1, 2]


def test_another_likeliest_token_is_caught(measured: Measured) -> None:
    def sample(rows: Rows) -> None:
        rows[SAMPLES][1]["arms"]["graft"]["argmax"][0] += 1

    def fewer(rows: Rows) -> None:
        rows[SAMPLES][1]["arms"]["fresh"]["argmax"].pop()

    def split(rows: Rows) -> None:
        rows[SPLITS][1]["argmax"][1] += 1

    for change, what in ((sample, "graft: "), (fewer, "fresh: "), (split, "")):
        (one,) = measured.checked(change).disagreements
        assert (one.line, one.what) == (2, f"{what}another token is the likeliest")


def test_another_margin_and_another_divergence_are_caught(measured: Measured) -> None:
    def margin(rows: Rows) -> None:
        rows[SAMPLES][0]["top5_margin"][1] += 1e-3

    def arm(rows: Rows) -> None:
        rows[SAMPLES][0]["arms"]["graft"]["kl_from_fresh"][0] = 1e-3

    def control(rows: Rows) -> None:
        changed = next(row for row in rows[SPLITS] if row["control"])
        changed["kl"] *= 2

    for change, what in (
        (margin, "another margin of the likeliest token"),
        (arm, "graft: another divergence from the fresh computation"),
        (control, "another divergence from the reference"),
    ):
        (one,) = measured.checked(change).disagreements
        assert one.what == what


def test_another_profile_is_refused_before_anything_is_read(measured: Measured) -> None:
    inputs = copy.deepcopy(measured.inputs)
    entry = inputs["profiles"][measured.model.name]["split-invariant"]
    entry["profile"]["machine"]["architecture"] = "another"
    entry["digest"] = digests.sha256_json(entry["profile"])
    lines: list[str] = []
    with pytest.raises(ProfileMismatch, match="not the one that the run was made with") as error:
        recheck_samples(
            measured.model, measured.rows, inputs, threads=1, note=lines.append, bytes_only=True
        )
    assert error.value.found == "other machine.architecture"
    assert lines == []


def test_a_stock_run_is_refused(measured: Measured) -> None:
    inputs = copy.deepcopy(measured.inputs)
    entry = inputs["profiles"][measured.model.name]["split-invariant"]
    entry["profile"]["settings"]["min_rows"] = 1
    entry["digest"] = digests.sha256_json(entry["profile"])
    with pytest.raises(ProfileMismatch, match="one pass does not give the bytes of a decode"):
        recheck_samples(measured.model, measured.rows, inputs, threads=1)


def test_progress_is_told_every_few_seconds_with_what_is_left() -> None:
    lines: list[str] = []
    now = [0.0]
    progress = Progress(
        lines.append, "m, exactness", "texts", 4, 400, every_s=10.0, clock=lambda: now[0]
    )
    for second, rows in ((4.0, 50), (11.0, 50), (15.0, 50), (22.0, 50)):
        now[0] = second
        progress.read(rows)
        progress.done()
    assert lines == [
        "m, exactness: 1 of 4 texts, about 33 s left",
        "m, exactness: 3 of 4 texts, about 22 s left",
    ]
