"""Registered profiles: what a profile of the portable arithmetic must say, and what it implies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import synthetic

from kvaudit import digests, profiles

MODEL = synthetic.MODELS[0]
Change = Callable[[dict[str, Any]], object]

ARITHMETIC = {"name": "portable", "definitions": ["-ffp-contract=off"], "math": {"name": "libm"}}


def portable() -> dict[str, Any]:
    """A profile of the portable arithmetic of the real shape."""
    made = copy.deepcopy(synthetic.profile(MODEL))
    del made["settings"]["n_threads"]
    made["settings"] |= {"name": "portable", "arithmetic": "portable", "min_rows": 1}
    made["engine"] = {
        "binding": "llama-cpp-python 0.3.36",
        "arithmetic": ARITHMETIC,
        "goldens": "0123456789abcdef" * 4,
    }
    made["machine"] = {}
    made["environment"] = {"GGML_CPU_DISABLE_FUSION": "1", "GGML_CPU_TILED_MM": "0"}
    return made


def registered(*named: tuple[str, dict[str, Any]], preset: str = "portable") -> dict[str, Any]:
    """An inputs manifest whose only model has these profiles."""
    entries = {
        name: {"digest": digests.sha256_json(profile), "profile": profile}
        for name, profile in named
    }
    made = synthetic.inputs((MODEL,), preset=synthetic.INVARIANT, profiles={MODEL: entries})
    made["configuration"]["value"]["profile"] = {"preset": preset, "n_ctx": 2048, "n_threads": 2}
    return made


def test_a_portable_run_registers_its_one_profile_whatever_the_threads_of_the_host() -> None:
    inputs = registered(("portable", portable()))
    assert list(profiles.problems(inputs, MODEL)) == []
    force = profiles.in_force(inputs, MODEL)
    assert force is not None
    assert (force.name, force.stock_digest, force.split_invariant) == ("portable", "", True)
    assert force.engine == digests.sha256_json(ARITHMETIC)
    assert force.digest == digests.sha256_json(portable())


def test_a_portable_run_has_no_stock_control_and_any_other_needs_one() -> None:
    stock = synthetic.profile(MODEL, synthetic.STOCK)
    with_control = registered(("portable", portable()), ("stock", stock))
    assert list(profiles.problems(with_control, MODEL)) == [
        "registered is not exactly the configured preset, which has no control"
    ]
    plain = synthetic.profile(MODEL)
    plain["settings"]["n_threads"] = 2
    alone = registered((synthetic.INVARIANT, plain), preset=synthetic.INVARIANT)
    assert list(profiles.problems(alone, MODEL)) == [
        "registered are not exactly the configured preset and stock"
    ]


def test_the_name_portable_belongs_to_the_arithmetic_alone() -> None:
    native = synthetic.profile(MODEL)
    native["settings"]["name"] = "portable"
    native["settings"]["n_threads"] = 2
    said = "portable: portable is the name of the portable arithmetic, and of no other"
    assert said in list(profiles.problems(registered(("portable", native)), MODEL))
    renamed = portable()
    renamed["settings"]["name"] = synthetic.INVARIANT
    stock = synthetic.profile(MODEL, synthetic.STOCK)
    entries = ((synthetic.INVARIANT, renamed), ("stock", stock))
    found = list(profiles.problems(registered(*entries, preset=synthetic.INVARIANT), MODEL))
    assert any("and of no other" in line for line in found), found


HOSTLY: dict[str, Change] = {
    "libraries": lambda p: p["engine"].update(libraries={"libllama.so": "0" * 64}),
    "a version": lambda p: p["engine"].update(llama="b1"),
    "no goldens": lambda p: p["engine"].pop("goldens"),
    "goldens that are no digest": lambda p: p["engine"].update(goldens="0" * 63),
    "goldens and a newline": lambda p: p["engine"].update(goldens="0" * 64 + "\n"),
    "another arithmetic": lambda p: p["engine"].update(arithmetic={"name": "mine"}),
    "an arithmetic in words": lambda p: p["engine"].update(arithmetic="portable"),
    "a machine": lambda p: p["machine"].update(architecture="x86_64"),
    "threads asked for": lambda p: p["settings"].update(n_threads=1),
    "threads in force": lambda p: p["context"].update(n_threads=1),
    "settings of no arithmetic": lambda p: p["settings"].pop("arithmetic"),
    "native settings": lambda p: p["settings"].update(arithmetic="native"),
}
"""What a profile of the portable arithmetic may not say, or must."""


@pytest.mark.parametrize("name", HOSTLY)
def test_a_portable_profile_names_its_arithmetic_and_nothing_of_the_host(name: str) -> None:
    assert profiles.well_formed(portable())
    changed = portable()
    HOSTLY[name](changed)
    assert not profiles.well_formed(changed)


def test_a_native_profile_does_not_call_its_settings_portable() -> None:
    native = synthetic.profile(MODEL)
    assert profiles.well_formed(native)
    native["settings"]["arithmetic"] = "portable"
    assert not profiles.well_formed(native)


def test_a_portable_profile_implies_split_invariance_from_one_row_on() -> None:
    good = portable()
    assert profiles.split_invariant(good)
    for part, change in (
        ("settings", {"tiled": True}),
        ("settings", {"swa_full": False}),
        ("settings", {"min_rows": 0}),
        ("settings", {"n_gpu_layers": 1}),
        ("context", {"flash_attention": True}),
        ("buffers", {"weights": ["CPU_REPACK"]}),
        ("environment", {"GGML_CPU_TILED_MM": "1"}),
    ):
        assert not profiles.split_invariant({**good, part: {**good[part], **change}})


def test_a_derived_profile_of_a_portable_one_may_not_change_its_arithmetic() -> None:
    inputs = registered(("portable", portable()))
    derived = portable()
    derived["settings"]["n_ctx"] = derived["context"]["n_ctx"] = 4096
    derived["context"] |= {"n_batch": 2048, "n_ubatch": 2048, "type_k": None, "type_v": None}

    def problems(profile: dict[str, Any]) -> list[str]:
        row = {"digest": digests.sha256_json(profile), "profile": profile}
        return list(profiles.derived_problems([row], inputs, MODEL, ("n_ctx", "n_threads")))

    for key in ("type_k", "type_v"):
        derived["context"].pop(key)
    derived["settings"]["flash_attention"] = False
    assert problems(derived) == ["line 1: setting flash_attention is not the registered one"]
    derived["settings"].pop("flash_attention")
    derived["engine"] = {**derived["engine"], "goldens": "f" * 64}
    assert "line 1: engine is not the registered one" in problems(derived)
