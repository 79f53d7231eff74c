"""`kvgraft store` and `kvgraft pin`: what they print, and what is there afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvaudit import digests
from kvaudit.kvb_map import open_block
from kvgraft import pins
from kvgraft.model import FrozenModel


def test_ls_lists_blocks_by_id(pristine: Any, command: Any) -> None:
    found = command("store", "ls", "--store", pristine.store, "--json").json
    assert [entry["id"] for entry in found] == sorted([pristine.llama_id, pristine.gemma3_id])
    by_id = {entry["id"]: entry for entry in found}
    with open_block(pristine.file(pristine.llama_id)) as block:
        assert by_id[pristine.llama_id] == {
            "id": pristine.llama_id,
            "model": "tiny-llama",
            "tokens": block.header.tokens.n,
            "bytes": block.header.state.bytes,
            "reason": "",
        }
    lines = command("store", "ls", "--store", pristine.store).out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(found[0]["id"])


def test_ls_of_a_store_that_is_not_made_yet_is_empty(command: Any, tmp_path: Path) -> None:
    done = command("store", "ls", "--store", tmp_path / "none", "--json")
    assert (done.code, done.json) == (0, [])


def test_ls_shows_a_damaged_block_and_goes_on(
    prepared: Any, command: Any, damage: Callable[[Path, int], None]
) -> None:
    damage(prepared.file(prepared.llama_id), 12)
    done = command("store", "ls", "--store", prepared.store)
    assert done.code == 0
    assert f"{prepared.llama_id}  damaged: " in done.out
    assert f"{prepared.gemma3_id}  " in done.out


def test_get_and_put_carry_a_block_to_another_store(
    pristine: Any, command: Any, tmp_path: Path
) -> None:
    store = ("--store", pristine.store)
    file = tmp_path / "block.kvb"
    found = command("store", "get", pristine.llama_id[:8], file, *store, "--json").json
    assert found == {
        "id": pristine.llama_id,
        "path": str(file),
        "bytes": pristine.file(pristine.llama_id).stat().st_size,
    }
    assert file.read_bytes() == pristine.file(pristine.llama_id).read_bytes()
    into_folder = command("store", "get", pristine.gemma3_id, tmp_path, *store).out
    assert into_folder == f"{tmp_path}/{pristine.gemma3_id}.kvb\n"
    other = ("--store", tmp_path / "other")
    done = command("store", "put", file, into_folder.strip(), *other)
    assert done.out.split() == [pristine.llama_id, pristine.gemma3_id]
    assert command("store", "put", file, *other, "--json").json == {"ids": [pristine.llama_id]}
    assert command("store", "fsck", *other).out.startswith("2 sound, 0 damaged")


def test_put_and_get_through_a_url(pristine: Any, command: Any, tmp_path: Path) -> None:
    url = ("--store", f"file://{tmp_path}/far")
    env = {"KVGRAFT_CACHE": str(tmp_path / "cache")}
    done = command("store", "put", pristine.file(pristine.llama_id), *url, env=env)
    assert done.out == f"{pristine.llama_id}\n"
    empty = {"KVGRAFT_CACHE": str(tmp_path / "empty")}
    listed = command("store", "ls", *url, env=empty)
    assert listed.out == f"{pristine.llama_id}  not fetched yet\n"
    done = command("store", "get", pristine.llama_id[:6], tmp_path / "a.kvb", *url, env=empty)
    assert done.code == 0
    assert (tmp_path / "a.kvb").read_bytes() == pristine.file(pristine.llama_id).read_bytes()


def test_fsck_names_damage_strays_and_orphans(
    prepared: Any, command: Any, forge: Callable[..., Path], damage: Callable[[Path, int], None]
) -> None:
    store = ("--store", prepared.store)
    clean = command("store", "fsck", *store, "--json")
    assert (clean.code, clean.json["clean"], clean.json["ok"]) == (0, True, 2)
    child = forge(prepared.file(prepared.gemma3_id), start=8, parent="0" * 64)
    assert command("store", "put", child, *store).code == 0
    damage(prepared.file(prepared.llama_id), -1)
    (prepared.store / "notes.txt").write_text("foreign")
    done = command("store", "fsck", *store)
    assert done.code == 1
    assert f"damaged  {prepared.llama_id}: chunk 0 of the state is damaged" in done.out
    assert "stray    notes.txt\n" in done.out
    assert f"orphan   {child.stem}: its parent is not in the store\n" in done.out
    assert done.out.endswith("2 sound, 1 damaged, 1 strays, 1 orphans, 0 temporaries\n")
    found = command("store", "fsck", *store, "--json")
    assert (found.code, found.json["clean"], found.json["strays"]) == (1, False, ["notes.txt"])


def test_gc_removes_dead_temporaries_and_what_is_not_kept(prepared: Any, command: Any) -> None:
    store = ("--store", prepared.store)
    dead, young = (prepared.store / "tmp" / f"{name}.kvb.part" for name in ("dead", "young"))
    dead.write_bytes(b"12345")
    young.write_bytes(b"1")
    hour_ago = time.time() - 3600
    os.utime(dead, (hour_ago, hour_ago))
    found = command("store", "gc", *store, "--json").json
    assert found == {"blocks": [], "temporaries": 1, "bytes_freed": 5}
    assert young.exists()
    done = command("store", "gc", "--keep", prepared.gemma3_id[:8], "--min-age", 0, *store)
    assert f"removed  {prepared.llama_id}\n" in done.out
    assert "1 blocks and 1 temporaries removed, " in done.out
    left = command("store", "ls", *store, "--json").json
    assert [entry["id"] for entry in left] == [prepared.gemma3_id]


def test_a_pin_opens_the_file_it_names(
    pristine: Any, command: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(pristine.llama.parent)
    into = tmp_path / "pins.json"
    done = command("pin", pristine.llama.name, "--name", "mine", "--into", into)
    assert f"sha256  {digests.sha256_file(pristine.llama)}\n" in done.out
    second = ("--name", "other", "--into", into, "--licence", "CC0-1.0", "--json")
    found = command("pin", pristine.gemma3, *second).json
    assert (found["name"], found["architecture"], found["licence"]) == (
        "other",
        "gemma3",
        "CC0-1.0",
    )
    known = pins.read(into)
    assert set(known) == {"mine", "other"}
    monkeypatch.chdir(tmp_path)  # a relative path was made absolute
    with FrozenModel.open(known["mine"]) as model:
        assert model.facts.architecture == "llama"
