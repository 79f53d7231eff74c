"""A profile says what the loaded library does, and its digest moves with everything that counts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tinywork import N_CTX, python

from kvaudit import digests
from kvaudit.profiles import differences
from kvgraft import engine, remote
from kvgraft.errors import EngineFailed, EngineUnavailable
from kvgraft.profile import ProfileSettings, split_invariant, stock
from kvgraft.session import Session


def test_the_context_length_is_read_back_after_padding(sessions: Any) -> None:
    session = sessions("llama", n_ctx=300)
    assert session.profile.settings.n_ctx == 300
    assert session.profile.context["n_ctx"] == 512
    assert session.capacity == 511


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_flash_attention_is_read_back_from_the_layout_of_the_state(
    sessions: Any, name: str
) -> None:
    on, off = sessions(name, flash_attention=True).profile, sessions(name).profile
    assert on.context["flash_attention"] is True
    assert off.context["flash_attention"] is False
    assert off.is_split_invariant
    assert not on.is_split_invariant


@pytest.mark.parametrize(
    ("k", "v"), [("f32", "f16"), ("f16", "f32"), ("bf16", "bf16"), ("q8_0", "f16")]
)
def test_cache_types_are_read_back(sessions: Any, k: str, v: str) -> None:
    context = sessions("llama", type_k=k, type_v=v).profile.context
    assert (context["type_k"], context["type_v"]) == (k, v)


def test_quantised_values_without_flash_attention_are_the_engines_refusal(models: Any) -> None:
    with pytest.raises(EngineFailed, match=r"the engine does not open a context: .*V cache"):
        Session(models("llama"), split_invariant(n_ctx=N_CTX, type_v="q8_0"))


def test_the_window_is_the_models(sessions: Any) -> None:
    assert sessions("gemma3").profile.context["window"] == 64
    assert sessions("llama").profile.context["window"] == 0


def test_no_weight_lies_in_a_repacked_buffer_unless_asked_for(sessions: Any) -> None:
    plain, repacked = sessions("llama-q4_k").profile, sessions("llama-q4_k", repack=True).profile
    assert plain.buffers["weights"]
    assert not any("REPACK" in name for name in plain.buffers["weights"])
    assert plain.is_split_invariant
    assert plain.buffers["cache"]
    assert plain.buffers["compute"]
    if "AVX2" in plain.machine["features"]:  # the kernels for K-quants that this engine has
        assert any("REPACK" in name for name in repacked.buffers["weights"])
        assert not repacked.is_split_invariant


def test_engine_facts_are_the_digests_of_the_files_in_this_process(sessions: Any) -> None:
    profile = sessions("llama").profile
    paths = {path.name: path for path in engine.loaded_libraries()}
    assert any(name.startswith("libllama") for name in paths)
    assert any(name.startswith("libggml-cpu") for name in paths)
    assert profile.engine["libraries"] == {
        name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in paths.items()
    }
    assert profile.engine["binding"].startswith("llama-cpp-python ")
    assert all(profile.engine[key] for key in ("llama", "ggml"))
    assert profile.machine["architecture"]
    assert profile.machine["devices"]


def test_the_digest_is_that_of_the_canonical_json(sessions: Any) -> None:
    profile = sessions("llama").profile
    assert profile.digest == digests.sha256_json(profile.to_json())
    assert profile.engine_digest == digests.tree_digest(profile.engine["libraries"])


def test_the_digest_changes_with_each_setting_that_can_change_a_bit(sessions: Any) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"n_ctx": 1024},
        {"n_batch": 256},
        {"n_outputs_max": 32},
        {"n_threads": 2},
        {"flash_attention": True},
        {"type_k": "f32"},
        {"type_v": "f32"},
        {"swa_full": False},
        {"repack": True},
        {"min_rows": 4},
        {"n_gpu_layers": 1},
        {"rope_freq_base": 20_000.0},
        {"rope_freq_scale": 0.5},
    ]
    found = {sessions("llama", **change).profile.digest for change in changes}
    assert len(found) == len(changes)


def test_the_profile_is_the_same_in_another_process(
    models: Any, sessions: Any, settings: ProfileSettings
) -> None:
    here = sessions("gemma3").profile.to_json()
    there = remote.profile_in_force(models("gemma3"), settings)
    assert differences(here, there) == []
    assert digests.sha256_json(there) == sessions("gemma3").profile.digest


def test_a_variable_that_the_engine_reads_is_part_of_the_profile(
    models: Any, sessions: Any, settings: ProfileSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    there = remote.profile_in_force(models("llama"), settings)
    here = sessions("llama").profile.to_json()
    assert differences(here, there) == ["environment.LLAMA_ATTN_ROT_DISABLE"]


def test_the_engine_is_not_loaded_twice_under_different_variables(models: Any) -> None:
    with pytest.raises(
        EngineUnavailable,
        match=r"reads these variables once per process .* expected \{'GGML_CPU_TILED_MM': '1'\}; "
        r"found \{'GGML_CPU_TILED_MM': '0'\} \(open sessions of different profiles in different",
    ):
        Session(models("llama"), stock())


LOADING = """
from kvgraft import engine
from kvgraft.errors import EngineUnavailable
from kvgraft.profile import split_invariant, stock
try:
    engine.load(stock().environment)
except EngineUnavailable as error:
    print(error)
"""


def test_a_variable_set_against_the_profile_is_refused_before_the_engine_loads() -> None:
    done = python(LOADING, GGML_CPU_TILED_MM="0")
    assert done.stdout.splitlines() == [
        "the environment sets GGML_CPU_TILED_MM against the profile; expected 1; found 0 "
        "(unset GGML_CPU_TILED_MM)",
    ], done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_ctx": 0}, "n_ctx must be an integer in 1 … 16777216, not 0"),
        ({"n_batch": 1 << 17}, "n_batch must be an integer in 1 … 65536"),
        ({"n_threads": 1.5}, "n_threads must be an integer"),
        ({"type_k": "q4_0"}, "type_k must be one of"),
        ({"n_outputs_max": 1}, "n_outputs_max must be at least min_rows"),
        ({"n_batch": 1}, "n_batch must be at least min_rows"),
        ({"n_ctx": 1}, "n_ctx must be at least min_rows"),
        ({"min_rows": 65}, "min_rows must be an integer in 1 … 64"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_invariant(**changes)


WORDS_FIRST = """
import sys
from kvgraft import pins
from kvgraft.model import FrozenModel
from kvgraft.profile import stock
from kvgraft.session import Session
with FrozenModel.open(pins.for_file(sys.argv[1])) as model:
    ids = model.tokenize("words before weights")
    with Session(model, stock(n_ctx=256)) as session:
        session.prefill(ids)
        print(session.profile.settings.name, model.detokenize(ids))
"""


def test_tokenizing_first_leaves_every_profile_open(models: Any) -> None:
    done = python(WORDS_FIRST, str(models("llama").path))
    assert done.stdout.strip() == "stock words before weights"
