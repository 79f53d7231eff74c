"""A mapped block: no copy, no leak, nothing after close; and any flipped byte is found."""

from __future__ import annotations

import ctypes
import os
import tracemalloc
from pathlib import Path

import kvb_samples as samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit import kvb
from kvaudit.errors import BlockRefused
from kvaudit.kvb_map import open_block

BLOCK_ID, DATA = samples.sample()


def check(path: Path, block_id: str) -> None:
    """What every reader does before it believes a block."""
    with open_block(path, expected_id=block_id) as block:
        block.verify()


def test_any_flipped_byte_of_a_small_file_is_refused(tmp_path: Path) -> None:
    """All of them, one after the other: length, JSON, padding, tokens, state."""
    path = tmp_path / "flip.kvb"
    path.write_bytes(DATA)
    check(path, BLOCK_ID)
    fd = os.open(path, os.O_WRONLY)
    try:
        for offset, byte in enumerate(DATA):
            os.pwrite(fd, bytes([byte ^ (1 << offset % 8)]), offset)
            with pytest.raises(BlockRefused):
                check(path, BLOCK_ID)
            os.pwrite(fd, bytes([byte]), offset)
    finally:
        os.close(fd)
    check(path, BLOCK_ID)


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, bytes]:
    """A file of two chunks, its id and its bytes."""
    block_id, data = samples.sample(n_tokens=33, n_state=kvb.CHUNK_BYTES + 100)
    path = tmp_path_factory.mktemp("chunked") / "block.kvb"
    path.write_bytes(data)
    return path, block_id, data


@given(data=st.data(), mask=st.integers(1, 255), region=st.sampled_from(["front", "state", "end"]))
def test_any_change_of_any_byte_is_refused(
    chunked: tuple[Path, str, bytes], data: st.DataObject, mask: int, region: str
) -> None:
    path, block_id, whole = chunked
    front = len(whole) - kvb.CHUNK_BYTES - 100
    first, last = {
        "front": (0, front - 1),
        "state": (front, len(whole) - 1),
        "end": (len(whole) - 100, len(whole) - 1),
    }[region]
    offset = data.draw(st.integers(first, last), label="offset")
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, bytes([whole[offset] ^ mask]), offset)
        with pytest.raises(BlockRefused):
            check(path, block_id)
    finally:
        os.pwrite(fd, whole[offset : offset + 1], offset)
        os.close(fd)
    check(path, block_id)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_meet_a_typed_error_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.kvb"
    for content in (data, len(data).to_bytes(8, "little") + data, DATA[:8] + b"{" + data):
        path.write_bytes(content)
        with pytest.raises(BlockRefused):
            check(path, BLOCK_ID)


def test_the_address_points_at_the_state_in_the_mapping(tmp_path: Path) -> None:
    _, tokens, state = parts = samples.make(n_state=100_000)
    path = tmp_path / "block.kvb"
    path.write_bytes(samples.file_bytes(parts))
    with open_block(path) as block:
        assert ctypes.string_at(block.state_address, len(state)) == state
        view = block.state
        assert view.readonly
        assert not block.tokens.flags.writeable
        assert block.tokens.tolist() == tokens.tolist()
        view.release()


def test_verification_allocates_next_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "block.kvb"
    path.write_bytes(samples.file_bytes(samples.make(n_state=5 * kvb.CHUNK_BYTES)))
    open_block(path).close()  # what is imported on first use is not the block's
    tracemalloc.start()
    try:
        with open_block(path) as block:
            block.verify()
            assert block.verified
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < kvb.CHUNK_BYTES // 4


def test_nothing_is_given_out_after_close(tmp_path: Path) -> None:
    path = tmp_path / "block.kvb"
    path.write_bytes(DATA)
    block = open_block(path)
    block.close()
    block.close()
    for use in (
        lambda: block.tokens,
        lambda: block.state,
        lambda: block.state_address,
        lambda: block.verify(),
    ):
        with pytest.raises(BlockRefused, match=r"the block is closed; .*open it again"):
            use()
    assert block.header.id == BLOCK_ID


def test_a_view_that_outlives_its_block_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "block.kvb"
    path.write_bytes(DATA)
    with open_block(path) as block:
        state, tokens = block.state, block.tokens
    assert bytes(state) == DATA[-300:]
    assert tokens.tolist() == list(range(7))


def test_neither_opening_nor_refusing_leaks_files_or_mappings(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.kvb", tmp_path / "bad.kvb"
    good.write_bytes(DATA)
    bad.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    short = tmp_path / "short.kvb"
    short.write_bytes(DATA[:-1])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        check(good, BLOCK_ID)
        for wrong in (bad, short):
            with pytest.raises(BlockRefused):
                check(wrong, BLOCK_ID)
    assert len(os.listdir("/proc/self/fd")) == before
    maps = Path("/proc/self/maps").read_text()
    assert str(tmp_path) not in maps
