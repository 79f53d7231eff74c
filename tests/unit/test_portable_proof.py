"""The proof's table: one other digest anywhere is named, and nothing else is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ENVS = Path(__file__).parents[2] / "envs"
Found = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def proof() -> Iterator[ModuleType]:
    """The script, which imports its neighbours by their plain names."""
    sys.path.insert(0, str(ENVS))
    try:
        yield importlib.import_module("portable_proof")
    finally:
        sys.path.remove(str(ENVS))


@pytest.fixture
def found() -> Found:
    """Two builds that agree in everything."""
    one = {
        "tokens": "t" * 64,
        "logits: one batch, 1 thread": "a" * 64,
        "state: one batch, 1 thread": "b" * 64,
        "logits: batches of 7, 1 thread": "a" * 64,
        "block: file": "c" * 64,
        "fresh: logits": "a" * 64,
        "graft of portable: logits": "a" * 64,
        "graft of portable: state": "b" * 64,
    }
    return {"portable": dict(one), "portable-aarch64": dict(one)}


def test_builds_that_agree_are_equal(proof: ModuleType, found: Found) -> None:
    assert proof.differences(found) == []
    assert "DIFFERS" not in proof.table("m", found)
    assert proof.table("m", found).count("same") == len(found["portable"])


@pytest.mark.parametrize("what", ["tokens", "block: file", "graft of portable: state"])
def test_one_other_digest_is_named_with_its_build(
    proof: ModuleType, found: Found, what: str
) -> None:
    found["portable-aarch64"][what] = "0" * 64
    wrong = proof.differences(found)
    assert f"{what}: portable-aarch64 has {'0' * 64}" in wrong
    assert "0" * 12 + " DIFFERS" in proof.table("m", found)


def test_a_missing_reading_is_no_agreement(proof: ModuleType, found: Found) -> None:
    del found["portable-aarch64"]["fresh: logits"]
    assert "fresh: logits: portable-aarch64 has nothing" in proof.differences(found)


def test_builds_that_agree_on_bits_of_the_batch_split_do_not_pass(
    proof: ModuleType, found: Found
) -> None:
    for build in found.values():
        build["logits: batches of 7, 1 thread"] = "0" * 64
    assert proof.differences(found) == [
        "logits of portable depend on how the text is read",
        "logits of portable-aarch64 depend on how the text is read",
    ]


def test_another_machine_s_digests_are_compared_by_model(proof: ModuleType, found: Found) -> None:
    there = {"models": {"m": {"elsewhere": dict(found["portable"])}}}
    assert proof.unexpected({"m": found}, there) == []
    there["models"]["m"]["elsewhere"]["fresh: logits"] = "0" * 64
    assert proof.unexpected({"m": found}, there) == [
        "m, fresh: logits: aaaaaaaaaaaa here, 000000000000 there"
    ]
    assert proof.unexpected({"other": found}, there) == ["the file has none of these models"]
