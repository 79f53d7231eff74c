"""The block format: one byte form, readable by safetensors, the same for ever."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from dataclasses import replace
from pathlib import Path

import blake3
import kvb_samples as samples
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from kvaudit import kvb
from kvaudit.errors import BlockCorrupt, BlockOversize
from kvaudit.kvb_map import open_block


@given(
    n_tokens=st.integers(1, 40),
    n_state=st.integers(1, 300),
    seed=st.integers(0, 1000),
    provenance=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4),
)
def test_what_is_written_is_read_back_from_an_aligned_state(
    tmp_path_factory: pytest.TempPathFactory,
    n_tokens: int,
    n_state: int,
    seed: int,
    provenance: dict[str, str],
) -> None:
    parts = header, tokens, state = samples.make(n_tokens, n_state, seed, provenance=provenance)
    path = tmp_path_factory.getbasetemp() / "round.kvb"
    path.write_bytes(samples.file_bytes(parts))
    with open_block(path, expected_id=header.id) as block:
        block.verify()
        assert block.header == header
        assert block.tokens.dtype == np.int32
        assert block.tokens.tolist() == tokens.tolist()
        assert bytes(block.state) == state
        assert block.state_address % kvb.ALIGNMENT == 0  # a mapping starts on a page
    assert samples.file_bytes(parts) == path.read_bytes()


def test_golden_bytes_of_format_version_1(tmp_path: Path) -> None:
    """These bytes hold on every machine and for every later version that knows kvb/1.

    The file is put together by hand, so that an error of the writer is not in both places.
    """
    tokens = np.array([1, 2, 70000], np.int32)
    stored = struct.pack("<3i", 1, 2, 70000)
    fields = {
        "engine": "c" * 64,
        "format": "kvb/1",
        "model": {"architecture": "llama", "name": "tiny-llama", "sha256": "a" * 64},
        "parent": None,
        "profile": "b" * 64,
        "provenance": {"exact": True, "source": "text"},
        "start": 0,
        "state": {
            "blake3": [blake3.blake3(b"state").hexdigest()],
            "bytes": 5,
            "chunk_bytes": 4194304,
            "chunks": [hashlib.sha256(b"state").hexdigest()],
        },
        "tokens": {"n": 3, "sha256": hashlib.sha256(stored).hexdigest()},
    }
    canonical = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    text = json.dumps(
        {
            "__metadata__": {"kvb": canonical},
            "state": {"data_offsets": [12, 17], "dtype": "U8", "shape": [5]},
            "tokens": {"data_offsets": [0, 12], "dtype": "I32", "shape": [3]},
        },
        separators=(",", ":"),
    )
    text = text.ljust(len(text) + -(8 + len(text) + 12) % 64)
    golden = struct.pack("<Q", len(text)) + text.encode() + stored + b"state"
    block_id = "5e06b9b6036c7f2b1843084c9329c7f8d8e4c203bc84ae2a120b170bf0db2c5a"
    assert hashlib.sha256(canonical.encode()).hexdigest() == block_id
    assert (
        hashlib.sha256(golden).hexdigest()
        == "e9a144ab48dcfcbbc7fbbc74adf7f4359d193cd62c318f498a2612a9fc59fcef"
    )

    header = kvb.build(
        model=samples.MODEL,
        profile=samples.PROFILE,
        engine=samples.ENGINE,
        tokens=tokens,
        state=b"state",
        provenance={"source": "text", "exact": True},
    )
    assert header.id == block_id
    assert samples.file_bytes((header, tokens, b"state")) == golden
    (tmp_path / "golden.kvb").write_bytes(golden)
    with open_block(tmp_path / "golden.kvb", expected_id=block_id) as block:
        block.verify()
        assert bytes(block.state) == b"state"


def test_safetensors_reads_the_same_tensors_and_metadata(tmp_path: Path) -> None:
    parts = header, tokens, state = samples.make(n_tokens=5, n_state=1000)
    data = samples.file_bytes(parts)
    path = tmp_path / "block.safetensors"
    path.write_bytes(data)

    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"kvb": header.canonical().decode()}
        assert sorted(file.keys()) == ["state", "tokens"]
        assert file.get_tensor("tokens").tolist() == tokens.tolist()
        assert file.get_tensor("tokens").dtype == np.int32
        assert file.get_tensor("state").tobytes() == state
    loaded = safetensors.numpy.load(data)
    assert loaded["state"].tobytes() == state
    described = dict(safetensors.deserialize(data))
    assert described["tokens"]["dtype"] == "I32"
    assert described["tokens"]["shape"] == [5]
    assert described["state"]["dtype"] == "U8"


def test_a_file_that_safetensors_writes_itself_is_refused_for_its_form(tmp_path: Path) -> None:
    header, tokens, state = samples.make()
    path = tmp_path / "block.kvb"
    path.write_bytes(
        safetensors.numpy.save(
            {"tokens": tokens, "state": np.frombuffer(state, np.uint8)},
            metadata={"kvb": header.canonical().decode()},
        )
    )
    with pytest.raises(BlockCorrupt, match=r"canonical form|does not fit the block header"):
        open_block(path)


def test_the_id_is_the_digest_of_the_canonical_header_and_depends_on_every_field() -> None:
    header, _, _ = samples.make(start=4, parent="d" * 64)
    assert header.id == hashlib.sha256(header.canonical()).hexdigest()
    assert json.loads(header.canonical()) == header.to_json()
    others = [
        replace(header, model=replace(header.model, name="x")),
        replace(header, model=replace(header.model, sha256="0" * 64)),
        replace(header, model=replace(header.model, architecture="gemma3")),
        replace(header, profile="0" * 64),
        replace(header, engine="0" * 64),
        replace(header, tokens=replace(header.tokens, n=8)),
        replace(header, tokens=replace(header.tokens, sha256="0" * 64)),
        replace(header, state=replace(header.state, bytes=301)),
        replace(header, state=replace(header.state, chunks=("0" * 64,))),
        replace(header, state=replace(header.state, blake3=("0" * 64,))),
        replace(header, start=5),
        replace(header, parent="e" * 64),
        replace(header, provenance={}),
    ]
    assert len({one.id for one in [header, *others]}) == len(others) + 1
    assert samples.make(start=4, parent="d" * 64)[0].id == header.id


def test_chunks_are_digests_of_4_mib_pieces_whatever_the_threads() -> None:
    n_state = 2 * kvb.CHUNK_BYTES + 3
    header, _, state = samples.make(n_state=n_state)
    expected = [
        hashlib.sha256(state[i : i + (4 << 20)]).hexdigest() for i in range(0, n_state, 4 << 20)
    ]
    assert list(header.state.chunks) == expected
    for threads in (1, 2, 7, None):
        assert kvb.chunk_digests(memoryview(state), threads) == expected
    assert list(header.state.blake3) == [
        blake3.blake3(state[i : i + (4 << 20)]).hexdigest() for i in range(0, n_state, 4 << 20)
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"n_state": 0}, "damaged header"),
        ({"n_tokens": 0}, "damaged header"),
        ({"parent": "d" * 64}, "starts behind it"),
        ({"start": -1, "parent": "d" * 64}, "damaged header"),
        ({"start": 1, "parent": "D" * 64}, "damaged header"),
        ({"start": 1, "parent": "d" * 64 + "\n"}, "damaged header"),
    ],
)
def test_build_refuses_what_no_reader_would_accept(changes: dict[str, object], text: str) -> None:
    with pytest.raises(BlockCorrupt, match=text):
        samples.make(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tokens", [np.array([2**32 + 1]), np.array([1.0]), np.zeros((2, 2), np.int32)]
)
def test_token_ids_are_never_narrowed_silently(tokens: np.ndarray) -> None:
    with pytest.raises(BlockCorrupt, match="token ids are a vector of int32"):
        kvb.token_digest(tokens)


def test_more_tokens_than_the_format_holds_are_refused() -> None:
    with pytest.raises(BlockOversize, match=r"tokens\.n is too large; .* found 16777217"):
        samples.make(n_tokens=(1 << 24) + 1)


def test_write_refuses_parts_of_another_block_and_writes_nothing() -> None:
    header, tokens, state = samples.make()
    buffer = io.BytesIO()
    for wrong in ((header, tokens[1:], state), (header, tokens + 1, state), (header, tokens, b"")):
        with pytest.raises(BlockCorrupt, match="tokens or state are not those of the header"):
            kvb.write_block(buffer, *wrong)
    with pytest.raises(BlockCorrupt, match="damaged header"):
        kvb.write_block(buffer, replace(header, profile="no digest"), tokens, state)
    big = replace(header, provenance={"text": "x" * kvb.MAX_HEADER_BYTES})
    with pytest.raises(BlockOversize, match="the header is too large"):
        kvb.write_block(buffer, big, tokens, state)
    assert buffer.getvalue() == b""
