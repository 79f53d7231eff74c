"""`kvgraft capture`, `graft` and `inspect` on tiny models: what they print and what they claim."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvaudit import kvb
from kvaudit.kvb_map import open_block

TEXT = "The keeper of the lighthouse wrote every name in a green book. " * 4
PROMPT = "What was written in the book?"


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_graft_is_byte_equal_to_a_fresh_reading_in_a_new_process(
    architecture: str, pristine: Any, command: Any
) -> None:
    block, model = getattr(pristine, f"{architecture}_id"), getattr(pristine, architecture)
    shared = ("--store", pristine.store, "--model", model, "--max-tokens", 9)
    done = command("graft", block, PROMPT, *shared, "--check", "--json")
    assert (done.code, done.err) == (0, "")
    found = done.json
    check = found["check"]
    assert check["equal"] is True
    assert check["graft_sha256"] == check["fresh_sha256"]
    assert check["rows"] == check["equal_rows"] == found["prompt_tokens"] + found["answer_tokens"]
    assert check["fresh_tokens"] == check["rows"] + found["restored_tokens"]
    assert check["first_different"] is None
    assert found["exact"] is True
    assert found["restored_bytes"] > 0
    assert found["block_id"] == block
    if architecture == "gemma3":
        assert found["restored_tokens"] > 64  # past the window

    plain = command("graft", block, PROMPT, *shared)
    assert (plain.code, plain.err) == (0, "")
    assert plain.out.count("\n") == found["answer"].count("\n") + 1
    assert all(c.isprintable() or c == "\n" for c in plain.out)
    shown = command("graft", block, PROMPT, *shared, "--check").out
    assert "check  equal: all" in shown
    assert shown.count(check["graft_sha256"]) == 2


def test_a_stock_graft_is_compared_in_the_same_batches(
    pristine: Any, command: Any, tmp_path: Path
) -> None:
    store = ("--store", tmp_path / "store")
    captured = command("capture", pristine.llama, TEXT, *store, "--profile", "stock", "--json").json
    assert captured["profile"]["name"] == "stock"
    done = command(
        "graft", captured["id"], PROMPT, *store, "--model", pristine.llama, "--check", "--json"
    )
    assert done.code == 0, done
    assert done.json["split_invariant"] is False
    assert done.json["check"]["equal"] is True


def test_a_state_that_was_changed_on_purpose_fails_the_check(
    pristine: Any, command: Any, forge: Any
) -> None:
    def change(state: bytearray) -> None:
        middle = len(state) // 2
        for index in range(middle, middle + 64):
            state[index] ^= 1

    path = forge(pristine.file(pristine.llama_id), state=change)
    done = command("graft", path, PROMPT, "--model", pristine.llama, "--check", "--max-tokens", 4)
    assert done.code == 1
    assert "check  DIFFERENT: " in done.out
    assert "position" in done.out


def test_capture_prints_id_tokens_and_bytes(pristine: Any, command: Any, tmp_path: Path) -> None:
    store = ("--store", tmp_path / "store")
    found = command("capture", pristine.llama, TEXT, *store, "--json").json
    with open_block(found["path"]) as block:
        block.verify()
        assert block.header.id == found["id"] == pristine.llama_id  # equal content, equal id
        assert block.header.tokens.n == found["tokens"]
        assert block.header.state.bytes == found["bytes"]
    out = command("capture", pristine.llama, TEXT, *store).out
    assert out.startswith(f"block    {found['id']}\n")
    assert f"tokens   {found['tokens']} of 2,048\n" in out
    assert f"bytes    {found['bytes']:,}\n" in out


def test_a_text_is_the_same_as_an_argument_on_stdin_and_in_a_file(
    pristine: Any, command: Any, tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    store = ("--store", tmp_path / "store", "--json")
    ids = {
        command("capture", pristine.llama, "-", *store, stdin=TEXT.encode()).json["id"],
        command("capture", pristine.llama, "--file", file, *store).json["id"],
        command("capture", pristine.llama, *store, TEXT).json["id"],  # options first
        command("capture", *store, pristine.llama, "--threads", 1, TEXT).json["id"],
    }
    assert ids == {pristine.llama_id}


def test_the_context_has_room_for_the_text_and_a_question(
    pristine: Any, command: Any, tmp_path: Path
) -> None:
    store = ("--store", tmp_path / "store", "--json")
    small = command("capture", pristine.llama, TEXT, *store, "--n-ctx", 256).json
    assert small["n_ctx"] == 256
    long = command("capture", pristine.llama, TEXT * 18, *store).json
    assert long["n_ctx"] >= long["tokens"] + 512 > 2048


def test_the_store_comes_from_the_environment(pristine: Any, command: Any, tmp_path: Path) -> None:
    done = command("store", "ls", "--json", env={"KVGRAFT_STORE": str(pristine.store)})
    assert {entry["id"] for entry in done.json} == {pristine.llama_id, pristine.gemma3_id}
    done = command("capture", pristine.llama, "a", env={"XDG_DATA_HOME": str(tmp_path)})
    assert f"store    {tmp_path}/kvgraft\n" in done.out
    assert (tmp_path / "kvgraft" / "blocks").is_dir()


def test_another_profile_is_grafted_inexactly_and_says_so(pristine: Any, command: Any) -> None:
    done = command(
        "graft",
        *(pristine.llama_id, PROMPT, "--store", pristine.store, "--model", pristine.llama),
        *("--inexact", "--check", "--json", "--max-tokens", 3),
        env={"OMP_WAIT_POLICY": "passive"},
    )
    assert done.code == 0, done
    assert done.json["exact"] is False
    assert done.json["check"]["equal"] is True  # this variable changes no bit
    assert done.err == (
        "kvgraft: inexact: the block is of another profile, or came from such a graft itself\n"
    )


def test_inspect_shows_header_layout_chunks_and_text(pristine: Any, command: Any) -> None:
    block, model = pristine.gemma3_id, ("--model", pristine.gemma3)
    store = ("--store", pristine.store)
    found = command("inspect", block[:10], *store, *model, "--json").json
    assert found["id"] == block
    assert found["header"]["model"]["architecture"] == "gemma3"
    full, window = found["layout"]["caches"]
    assert full["positions"] == [0, found["header"]["tokens"]["n"] - 1]
    assert window["positions"][0] > 0
    assert found["layout"]["state_offset"] % 64 == 0
    assert found["layout"]["file_bytes"] == pristine.file(block).stat().st_size
    assert found["damaged_chunks"] == []
    assert TEXT.startswith(found["text"])
    assert len(found["text"]) > 40
    out = command("inspect", pristine.file(block), *model).out
    assert f"block    {block}\n" in out
    assert "chunks   all 1 have their SHA-256 and BLAKE3\n" in out
    assert "cache 1: " in out


def test_inspect_works_without_engine_and_model(
    pristine: Any, command: Any, hiding: Callable[..., dict[str, str]]
) -> None:
    env = hiding("llama_cpp", "gguf", "psutil", "fsspec", "snakemake", "scipy", "pandas")
    store = ("--store", pristine.store)
    done = command("inspect", pristine.llama_id, *store, env=env)
    assert (done.code, done.err) == (0, "")
    assert "chunks   all 1 have their SHA-256 and BLAKE3\n" in done.out
    assert "not shown: the block's model is none of the embedded ones" in done.out
    for arguments in (["ls"], ["fsck"], ["gc"], ["put", pristine.file(pristine.llama_id)]):
        assert command("store", *arguments, *store, env=env).code == 0


def test_inspect_names_a_damaged_chunk_and_fails(
    prepared: Any, command: Any, damage: Callable[[Path, int], None]
) -> None:
    path = prepared.file(prepared.llama_id)
    damage(path, -100)
    done = command("inspect", path)
    assert done.code == 1
    assert "chunks   DAMAGED: 1 of 1, index 0\n" in done.out
    assert command("inspect", path, "--json").json["damaged_chunks"] == [0]


@pytest.mark.parametrize("field", ["chunks", "blake3"])
def test_inspect_checks_both_digests_of_a_chunk(
    field: str, pristine: Any, command: Any, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.kvb"
    with open_block(pristine.file(pristine.llama_id)) as block, path.open("wb") as file:
        wrong = replace(block.header.state, **{field: ("0" * 64,)})
        kvb.write_block(file, replace(block.header, state=wrong), block.tokens, block.state)
    assert command("inspect", path, "--json").json["damaged_chunks"] == [0]
    assert command("store", "put", path, "--store", tmp_path / "store").code == 2


def test_control_characters_of_a_text_do_not_reach_the_terminal(
    pristine: Any, command: Any, tmp_path: Path
) -> None:
    store = ("--store", tmp_path / "store")
    found = command("capture", pristine.llama, "a\x1b[31mb\n", *store, "--json").json
    out = command("inspect", found["id"], *store, "--model", pristine.llama).out
    assert "\x1b" not in out
    assert "a\\x1b[31mb\\n" in out


@pytest.mark.model
def test_the_embedded_model_answers_behind_a_block_byte_for_byte(
    command: Any, tmp_path: Path
) -> None:
    store = ("--store", tmp_path / "store")
    text = "The keeper of the lighthouse is called Anna. Her dog is called Bruno."
    block = json.loads(command("capture", "smollm2-135m", text, *store, "--json").out)["id"]
    prompt = " The keeper is called"
    done = command("graft", block, prompt, *store, "--check", "--max-tokens", 8, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["check"]["equal"] is True
    assert "Anna" in done.json["answer"]
    plain = command("graft", block, prompt, *store, "--max-tokens", 8)
    assert plain.out == done.json["answer"] + "\n"
    assert text in command("inspect", block, *store).out


@pytest.mark.model
def test_a_copy_of_an_embedded_model_is_known_by_its_digest(command: Any, tmp_path: Path) -> None:
    from kvgraft import model, pins

    copy = tmp_path / "copy.gguf"
    copy.symlink_to(model.locate(pins.resolve("smollm2-135m")))
    store = ("--store", tmp_path / "store")
    found = command("capture", copy, "A short text.", *store, "--json").json
    assert found["model"]["name"] == "smollm2-135m"
    assert command("graft", found["id"], " And", *store, "--max-tokens", 1).code == 0
