"""The stage position as the verifier sees it: forgeries are found, and its claims can fail."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from kvaudit import claims, digests, rotation, schemas, stats
from kvaudit.claims import Evidence
from kvaudit.position import hypotheses, plan, plots, relocation
from kvaudit.position.kind import KIND
from kvaudit.position.part import Setting, setting

MODEL, SEED, TRAINED, BASE = "tiny-a", "synthetic", 4096, 10_000.0
SECTION = {
    "samples": 10,
    "raw_samples": 1,
    "min_tokens": 30,
    "max_tokens": 40,
    "query_tokens": 6,
    "offsets": [8, 64, 512],
    "probe_offset": 64,
    "explanation_samples": 10,
    "few_samples": 2,
    "key_samples": 1,
}
PARTS = (relocation.PART, hypotheses.PART)
Rows = dict[str, list[dict[str, Any]]]
Logits = Any


def digest_of(*parts: object) -> str:
    """A digest that stands for content which is not there."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def noise(*parts: object, size: float = 0.05) -> Logits:
    """A float32 row [64], a function of the parts alone."""
    seed = int(digest_of(*parts)[:16], 16)
    return np.random.default_rng(seed).normal(0, size, 64).astype("<f4")


def profile(window: int, name: str = "split-invariant", **changes: Any) -> dict[str, Any]:
    """A small profile document of the real shape."""
    settings = {
        "name": name,
        "tiled": False,
        "min_rows": 2,
        "n_gpu_layers": 0,
        "n_threads": 1,
        "n_ctx": 2048,
        "n_batch": 2048,
        "type_k": "f16",
        "swa_full": True,
        "rope_freq_base": 0.0,
        "flash_attention": False,
    }
    settings |= changes
    return {
        "settings": settings,
        "engine": {"libraries": {"libllama.so": digest_of("library")}},
        "machine": {"architecture": "x86_64"},
        "context": synthetic.context_of(settings, window),
        "buffers": {"weights": ["CPU_Mapped"]},
        "environment": {"GGML_CPU_TILED_MM": "0"},
    }


def inputs_of(window: int) -> dict[str, Any]:
    """As much of an inputs manifest as the checks read."""
    registered = {
        name: {"digest": digests.sha256_json(one), "profile": one}
        for name in ("split-invariant", "stock")
        for one in (profile(window, name),)
    }
    value = {"seed": SEED, "profile": {"preset": "split-invariant"}, "position": SECTION}
    return {"configuration": {"value": value}, "profiles": {MODEL: registered}}


class Arms:
    """Makes records of logits, as the stage does."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.registered = digests.sha256_json(profile(window))
        settings = profile(window)["settings"]
        self.derived = {
            name: profile(window, **plan.changes(name, settings, BASE, window))
            for name in plan.variants(window)
        }
        self.own = {i: noise("own", i, size=1.0) for i in range(SECTION["samples"])}
        self.raw: dict[str, Logits] = {}

    def at(self, sample: int, offset: int, kind: str) -> Logits:
        """Logits of an arm of the curve: those of its reference with noise of one size."""
        fresh = self.own[sample] + noise("fresh", sample, offset)
        return fresh if kind == "fresh" else fresh + noise("moved", sample, offset)

    def arm(self, logits: Logits, exact: bool) -> dict[str, Any]:
        sha256 = digests.sha256_bytes(logits.tobytes())
        self.raw[sha256] = logits
        return {"logits_sha256": sha256, "argmax": stats.argmax(logits), "exact": exact}

    def rows(self) -> Rows:
        """All records of a stage in which everything is as the project expects it."""
        samples = [self._sample(i) for i in range(SECTION["samples"])]
        curve = [
            self._curve(i, offset)
            for i in range(SECTION["samples"])
            for offset in SECTION["offsets"]
        ]
        count = rotation.demonstration()
        return {
            "records/samples.jsonl": samples,
            "records/relocation.jsonl": curve,
            "records/explanations.jsonl": [
                self._condition(condition, sample)
                for condition in plan.conditions(self.window)
                for sample in range(condition.samples(SECTION))
            ],
            "records/keys.jsonl": self._keys(),
            "records/rotation.jsonl": [
                {
                    "kind": "position-rotation",
                    "version": 1,
                    "model": MODEL,
                    "points": rotation.POINTS,
                    "step": rotation.STEP,
                    "pairs": count.pairs,
                    "unequal": count.unequal,
                    "max_error": count.max_error,
                }
            ],
            "records/profiles.jsonl": [
                {
                    "kind": "profile",
                    "version": 1,
                    "digest": digests.sha256_json(one),
                    "profile": one,
                }
                for one in self.derived.values()
            ],
        }

    def _sample(self, i: int) -> dict[str, Any]:
        own, seed = self.own[i], f"{SEED}/{MODEL}"
        top = top_of(own)
        return {
            "kind": "position-sample",
            "version": 1,
            "model": MODEL,
            "sample": i,
            "seed": plan.sample_name(seed, i),
            "profile": self.registered,
            "span_tokens": plan.span_tokens(SECTION, seed, i),
            "query_tokens": 6,
            "span_sha256": digest_of("span", i),
            "query_sha256": digest_of("query", i),
            "block_id": digest_of("block", i),
            "trained_context": TRAINED,
            "fresh": self.arm(own, True),
            "graft": self.arm(own, True),
            "kl": 0.0,
            "top": {"tokens": top, "fresh": log_p(own, top)},
        }

    def _curve(self, i: int, offset: int) -> dict[str, Any]:
        own, fresh, moved = self.own[i], self.at(i, offset, "fresh"), self.at(i, offset, "moved")
        here, there = top_of(own), top_of(fresh)
        return {
            "kind": "position-relocation",
            "version": 1,
            "model": MODEL,
            "sample": i,
            "profile": self.registered,
            "offset": offset,
            "own_sha256": self.arm(own, True)["logits_sha256"],
            "fresh": self.arm(fresh, True),
            "relocated": self.arm(moved, False),
            "kl": {
                "relocated": stats.kl_divergence(fresh, moved),
                "control": stats.kl_divergence(own, fresh),
                "from_own": stats.kl_divergence(own, moved),
            },
            "own_top": {"fresh": log_p(fresh, here), "relocated": log_p(moved, here)},
            "top": {
                "tokens": there,
                "fresh": log_p(fresh, there),
                "relocated": log_p(moved, there),
            },
            "raw": i == 0 and offset == SECTION["probe_offset"],
        }

    def _condition(self, condition: plan.Condition, sample: int) -> dict[str, Any]:
        profile_digest = self.registered
        if condition.variant != plan.REGISTERED:
            profile_digest = digests.sha256_json(self.derived[condition.variant])
        logits, reference = self._pair(condition, sample)
        n_tokens = plan.span_tokens(SECTION, f"{SEED}/{MODEL}", sample)
        measured: dict[str, Any] = {"reference": None, "logits": None, "kl": None}
        if not condition.refused:
            measured = {
                "reference": {**self.arm(reference, True), "profile": profile_digest},
                "logits": self.arm(logits, condition.exact),
                "kl": stats.kl_divergence(reference, logits),
            }
        return {
            "kind": "position-explanation",
            "version": 1,
            "model": MODEL,
            "hypothesis": condition.hypothesis,
            "condition": condition.name,
            "sample": sample,
            "offset": condition.offset(SECTION, TRAINED),
            "span_tokens": self.window + plan.PAST_WINDOW if condition.past_window else n_tokens,
            "profile": profile_digest,
            **measured,
            "refused": "GraftRefused" if condition.refused else None,
        }

    def _pair(self, condition: plan.Condition, sample: int) -> tuple[Logits, Logits]:
        """(compared logits, reference); noise of one size but where the project expects another."""
        near = SECTION["probe_offset"]
        known = {
            plan.OWN: self.own[sample],
            plan.NEAR: self.at(sample, near, "fresh"),
            "": noise(condition.hypothesis, condition.name, sample, "reference", size=1.0),
        }
        if condition.reference in known:
            reference = known[condition.reference]
        else:
            planned = {(c.hypothesis, c.name): c for c in plan.conditions(self.window)}
            earlier = planned[condition.hypothesis, condition.reference]
            reference = self._pair(earlier, sample)[0]
        if condition.name in ("by_zero", "other_threads", "small_against_full"):
            return reference, reference
        size = 0.5 if condition.name.endswith("wrong_base") else 0.05
        return reference + noise(condition, sample, size=size), reference

    def _keys(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": "position-keys",
                "version": 1,
                "model": MODEL,
                "sample": sample,
                "cache": cache,
                "arm": arm,
                "section": section,
                "base": BASE,
                "offset": offset,
                "layers": 1 if arm == "fresh" else 3,
                "max_error": 1e-3,
                "rms_error": 2e-4,
            }
            for cache in (plan.REGISTERED, "f32_keys")
            for sample in range(SECTION["key_samples"])
            for offset in plan.key_offsets(SECTION, TRAINED, cache)
            for arm, section in plan.key_arms(self.window)
        ]


def top_of(logits: Logits) -> list[int]:
    """The eight most likely tokens."""
    return [int(i) for i in np.argsort(-logits, kind="stable")[:8]]


def log_p(logits: Logits, tokens: list[int]) -> list[float]:
    """Their log-probabilities to 9 digits."""
    found = stats.log_softmax(logits)
    return [stats.rounded(float(found[token]), 9) for token in tokens]


@pytest.fixture(scope="module", params=[0, 60], ids=["without window", "with window"])
def arms(request: pytest.FixtureRequest) -> Arms:
    return Arms(request.param)


@pytest.fixture(scope="module")
def good(arms: Arms) -> Rows:
    return arms.rows()


@pytest.fixture
def rows(good: Rows) -> Rows:
    """A copy that a test may damage."""
    return copy.deepcopy(good)


def place(window: int) -> Setting:
    found = setting(MODEL, inputs_of(window))
    assert found is not None
    return found


def problems(rows: Rows, window: int) -> list[Any]:
    return [problem for part in PARTS for problem in part.check(place(window), rows)]


def judged(rows: Rows) -> dict[str, claims.Claim]:
    """The claims P1 to P4; P5 has records of its own."""
    evidence = Evidence(MODEL, {**rows}, 3, 0)
    own = [one for one in claims.rules("position") if one.id < "P5"]
    return {
        one.id: claims.Claim(
            one.id, MODEL, one.title, one.criterion, one.paper, *one.judge(evidence)
        )
        for one in own
    }


def verdicts(rows: Rows) -> dict[str, str]:
    """Verdict of each of the seven tests."""
    return {entry["hypothesis"]: entry["verdict"] for entry in hypotheses.table(rows)}


def test_good_records_conform_pass_and_hold(arms: Arms, good: Rows) -> None:
    for part in PARTS:
        for path, kind in part.records.items():
            for row in good[path]:
                schemas.validate(row, kind, where=path)
    assert problems(good, arms.window) == []
    found = judged(good)
    assert {claim: found[claim].verdict for claim in found} == {
        "P1": "holds",
        "P2": "holds",
        "P3": "holds",
        "P4": "not run here",
    }


def test_raw_logits_bear_out_good_records_and_expose_others(arms: Arms, rows: Rows) -> None:
    assert set(relocation.raw_digests(rows)) <= {*arms.raw}
    assert relocation.check_raw(rows, arms.raw.get) == []
    kept = next(row for row in rows["records/relocation.jsonl"] if row["raw"])
    kept["kl"]["control"] *= 1.1
    assert len(relocation.check_raw(rows, arms.raw.get)) == 1


def test_the_summary_is_a_function_of_the_records(good: Rows) -> None:
    fields = [part.summarise(good) for part in PARTS]
    assert fields == [part.summarise(copy.deepcopy(good)) for part in PARTS]
    assert [point["offset"] for point in fields[0]["curve"]] == SECTION["offsets"]
    assert fields[0]["own_position"] == {"equal": 10, "kl_max": 0.0}
    # Parts added later have records of their own.
    if set(KIND.records) == {*good}:
        assert KIND.summary_bytes(MODEL, good)


# -- forgeries --------------------------------------------------------------------------------

Forgery = Callable[[Rows], Any]


def _edit(file: str, index: int, *path: str, to: Any) -> Forgery:
    def forge(rows: Rows) -> None:
        value: Any = rows[f"records/{file}.jsonl"][index]
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to(value[path[-1]]) if callable(to) else to

    return forge


def _drop(file: str, index: int) -> Forgery:
    return lambda rows: rows[f"records/{file}.jsonl"].pop(index)


def _double(file: str) -> Forgery:
    return lambda rows: rows[f"records/{file}.jsonl"].append(rows[f"records/{file}.jsonl"][0])


FILES = ("samples", "relocation", "explanations", "keys", "rotation", "profiles")
OTHER = digest_of("other")
FORGERIES: dict[str, Forgery] = {
    **{f"{file}: first line left out": _drop(file, 0) for file in FILES},
    **{f"{file}: first line doubled": _double(file) for file in FILES},
    "another model's sample": _edit("samples", 0, "model", to="tiny-b"),
    "another seed": _edit("samples", 1, "seed", to="elsewhere/position/1"),
    "another length": _edit("samples", 1, "span_tokens", to=lambda n: n + 1),
    "a longer question": _edit("samples", 1, "query_tokens", to=7),
    "a sample's profile": _edit("samples", 1, "profile", to=OTHER),
    "a graft said to be inexact": _edit("samples", 1, "graft", "exact", to=False),
    "KL of equal logits": _edit("samples", 1, "kl", to=1e-9),
    "argmax of equal logits": _edit("samples", 1, "graft", "argmax", to=lambda n: (n + 1) % 64),
    "own logits": _edit("samples", 1, "fresh", "logits_sha256", to=OTHER),
    "two samples of one span": _edit("samples", 1, "span_sha256", to=digest_of("span", 0)),
    "trained context": _edit("samples", 0, "trained_context", to=8192),
    "samples relabelled": _edit("relocation", 0, "sample", to=1),
    "an offset relabelled": _edit("relocation", 0, "offset", to=16),
    "a control that is smaller": _edit("relocation", 0, "kl", "control", to=lambda k: k / 100),
    "a residual that is smaller": _edit("relocation", 4, "kl", "relocated", to=lambda k: k / 100),
    "a residual below 0": _edit("relocation", 4, "kl", "relocated", to=-0.01),
    "argmax of fresh": _edit("relocation", 2, "fresh", "argmax", to=lambda n: (n + 1) % 64),
    "argmax of relocated": lambda rows: rows["records/relocation.jsonl"][2]["relocated"].update(
        argmax=rows["records/relocation.jsonl"][2]["top"]["tokens"][-1]
    ),
    "relocated made fresh": lambda rows: rows["records/relocation.jsonl"][2]["relocated"].update(
        logits_sha256=rows["records/relocation.jsonl"][2]["fresh"]["logits_sha256"]
    ),
    "raw rows hidden": _edit("relocation", 1, "raw", to=False),
    "a likelier token": _edit("relocation", 2, "top", "relocated", to=lambda p: [0.0, *p[1:]]),
    "another reference": _edit("explanations", 10, "reference", "logits_sha256", to=OTHER),
    "another condition's profile": _edit("explanations", 0, "profile", to=OTHER),
    "a condition relabelled": _edit("explanations", 0, "condition", to="relocated"),
    "an offset of a condition": _edit("explanations", 0, "offset", to=8),
    "a condition said to be exact": _edit("explanations", 12, "logits", "exact", to=True),
    "neither refused nor measured": _edit("explanations", 0, "kl", to=None),
    "refused and measured": _edit("explanations", 0, "refused", to="GraftRefused"),
    "an inconvenient sample called refused": lambda rows: rows["records/explanations.jsonl"][
        0
    ].update(refused="GraftRefused", logits=None, kl=None, reference=None),
    "a shorter span": _edit("explanations", 0, "span_tokens", to=8),
    "more layers of fresh keys": _edit("keys", 0, "layers", to=2),
    "rms above the largest error": _edit("keys", 0, "rms_error", to=0.5),
    "count of angle pairs": _edit("rotation", 0, "unequal", to=lambda n: n - 1),
    "error of angle pairs": _edit("rotation", 0, "max_error", to=1e-6),
    "a profile's digest": _edit("profiles", 0, "digest", to=OTHER),
    "another setting": _edit("profiles", 0, "profile", "settings", "type_k", to="q8_0"),
}


def test_every_forgery_is_found(arms: Arms, good: Rows) -> None:
    quiet = []
    for name, forge in FORGERIES.items():
        rows = copy.deepcopy(good)
        forge(rows)
        if not problems(rows, arms.window):
            quiet.append(name)
    assert quiet == []


def test_nothing_is_checked_where_the_configuration_is_unusable(good: Rows) -> None:
    inputs = inputs_of(0)
    del inputs["configuration"]["value"]["seed"]
    assert KIND.check(MODEL, good, inputs) == []


# -- claims can fail --------------------------------------------------------------------------


def _scaled(rows: Rows, curve: str, factor: float) -> None:
    for row in rows["records/relocation.jsonl"]:
        row["kl"][curve] *= factor


def test_p1_fails_on_one_unequal_sample_and_on_too_few(rows: Rows) -> None:
    rows["records/samples.jsonl"][2]["graft"]["logits_sha256"] = OTHER
    rows["records/samples.jsonl"][2]["kl"] = 1e-27
    assert judged(rows)["P1"].verdict == "fails"
    del rows["records/samples.jsonl"][2:]
    assert judged(rows)["P1"].verdict == "fails"


def test_few_samples_tell_no_size_but_a_missing_mark(good: Rows) -> None:
    few: Rows = {
        file: [row for row in rows if row.get("sample", 0) < 6] for file, rows in good.items()
    }
    few = copy.deepcopy(few)
    found = judged(few)
    assert found["P1"].verdict == "holds"
    assert found["P2"].verdict == found["P3"].verdict == "not run here"
    few["records/relocation.jsonl"][0]["relocated"]["exact"] = True
    assert judged(few)["P2"].verdict == "fails"


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_p2_fails_where_the_curves_are_of_different_size(rows: Rows, factor: float) -> None:
    _scaled(rows, "relocated", factor)
    assert judged(rows)["P2"].verdict == "fails"


def test_p2_fails_where_samples_scatter_too_much_to_tell(rows: Rows) -> None:
    for row in rows["records/relocation.jsonl"]:
        row["kl"]["relocated"] *= 6.0 if row["sample"] == 0 else 0.2
    assert judged(rows)["P2"].verdict == "fails"


def test_p2_fails_where_a_relocation_is_called_exact_or_nothing_differs(rows: Rows) -> None:
    unmarked = copy.deepcopy(rows)
    unmarked["records/relocation.jsonl"][3]["relocated"]["exact"] = True
    assert judged(unmarked)["P2"].verdict == "fails"
    for row in rows["records/relocation.jsonl"]:
        if row["offset"] == 64:
            row["kl"]["control"] = 0.0
    assert judged(rows)["P2"].verdict == "fails"
    _scaled(rows, "control", 0.0)
    assert judged(rows)["P2"].verdict == "fails"


@pytest.mark.parametrize(
    ("hypothesis", "condition", "factor"),
    [
        ("half_precision", "relocated", 0.1),
        ("double_rotation", "four_steps", 6.0),
        ("frequency_mismatch", "outside_wrong_base", 0.02),
        ("large_angle", "far_relocated", 100.0),
        ("large_angle", "outside", 0.1),
        ("large_angle", "far_outside", 0.1),
    ],
)
def test_a_test_can_come_out_the_other_way(
    rows: Rows, hypothesis: str, condition: str, factor: float
) -> None:
    for row in rows["records/explanations.jsonl"]:
        if (row["hypothesis"], row["condition"]) == (hypothesis, condition):
            row["kl"] *= factor
    assert verdicts(rows)[hypothesis] == "not ruled out"
    claim = judged(rows)["P3"]
    assert claim.verdict == "fails"
    assert hypothesis in claim.measured


def test_a_residual_that_grows_with_the_offset_is_its_explanation(rows: Rows) -> None:
    for row in rows["records/relocation.jsonl"]:
        row["kl"]["relocated"] *= row["offset"] / 64
    assert verdicts(rows)["size_of_offset"] == "not ruled out"


def test_wrong_keys_and_unequal_threads_are_not_ruled_out(rows: Rows) -> None:
    for row in rows["records/keys.jsonl"]:
        row["rms_error"] = 0.1
    for row in rows["records/explanations.jsonl"]:
        if row["condition"] == "other_threads":
            row["kl"] = 1e-3
    found = verdicts(rows)
    assert found["frequency_mismatch"] == found["reassociation"] == "not ruled out"


def test_window_buffering_is_not_ruled_out_where_a_small_cache_changes_bytes() -> None:
    rows = Arms(60).rows()
    for name, field, value in (
        ("small_against_full", "kl", 1e-3),
        ("small_relocation", "refused", None),
    ):
        changed = copy.deepcopy(rows)
        for row in changed["records/explanations.jsonl"]:
            if row["condition"] == name:
                row[field] = value
        assert verdicts(changed)["window_buffering"] == "not ruled out"


def test_without_conditions_nothing_is_ruled_out(rows: Rows) -> None:
    rows["records/explanations.jsonl"] = []
    found = verdicts(rows)
    assert found.pop("size_of_offset") == "ruled out"
    # A model without a window says so; the other five have nothing to stand on.
    found.pop("window_buffering")
    assert set(found.values()) == {"not ruled out"}
    assert judged(rows)["P3"].verdict == "fails"


# -- the parts --------------------------------------------------------------------------------

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=12, max_size=12)


@given(LOGITS, LOGITS)
def test_the_kl_of_listed_tokens_is_never_above_the_whole(p: list[float], q: list[float]) -> None:
    first, second = np.asarray(p, "<f4"), np.asarray(q, "<f4")
    top = top_of(first)
    least = relocation.coarse_kl(log_p(first, top), log_p(second, top))
    assert least <= stats.kl_divergence(first, second) + relocation.ROOM


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"offsets": [8, 64]}, "ascending"),
        ({"offsets": [8, 512, 64]}, "ascending"),
        ({"offsets": [8, 60, 64]}, "multiple of 8"),
        ({"probe_offset": 16}, "probe_offset"),
        ({"min_tokens": 50}, "min_tokens"),
        ({"few_samples": 11}, "few_samples"),
    ],
)
def test_a_section_that_does_not_fit_is_named(change: dict[str, Any], word: str) -> None:
    found = list(plan.section_problems({**SECTION, **change}))
    assert len(found) == 1
    assert word in found[0]
    assert list(plan.section_problems({})) != []


def test_span_lengths_are_drawn_over_the_whole_range() -> None:
    drawn = {plan.span_tokens(SECTION, "a", index) for index in range(400)}
    assert drawn == set(range(30, 41))


def test_plots_are_drawn_from_records_and_are_the_same_bytes_twice(
    good: Rows, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first = plots.draw({"one": good, "two": good}, tmp_path / "a")
    second = plots.draw({"one": good, "two": good}, tmp_path / "b")
    assert [path.suffix for path in first] == [".svg", ".svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    text = first[0].read_text()
    assert "KL (nats)" in text
    assert "two" in text
