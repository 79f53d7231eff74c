"""Every way in which a block file can be wrong has its own error, and its text says which."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import kvb_samples as samples
import pytest

from kvaudit import canonical, digests, kvb, profiles
from kvaudit.errors import (
    BlockChunkCorrupt,
    BlockCorrupt,
    BlockNotFound,
    BlockOversize,
    BlockRefused,
    BlockTrailingBytes,
    BlockTruncated,
    BlockWrongMagic,
    TypedError,
)
from kvaudit.kvb_map import open_block

BLOCK_ID, DATA = samples.sample()
HEADER = samples.header_json(DATA)
CONTAINER = samples.container_of(DATA)
BODY = samples.body_of(DATA)
TOKENS, STATE = CONTAINER["tokens"], CONTAINER["state"]


def length(n: int) -> bytes:
    return n.to_bytes(8, "little") + DATA[8:]


def header(**changes: object) -> bytes:
    return samples.with_header(DATA, **changes)


def telling(profile: object, **changes: object) -> dict[str, object]:
    """Fields of a header that tells its profile, the digests that follow from it among them."""
    fields = {"profile": digests.sha256_json(profile), "engine": profiles.told_engine(profile)}
    return {**fields, "provenance": {"profile": profile}, **changes}


PROFILE = {"name": "x", "engine": {"libraries": {"libggml": "d" * 64}}}
TELLING = telling(PROFILE)


def told(profile: object = PROFILE, **changes: object) -> bytes:
    """A file that tells another profile than its digests are of."""
    other = {**profile, **changes} if isinstance(profile, dict) else profile
    return header(**{**TELLING, "provenance": {"profile": other}})


def container(**changes: object) -> bytes:
    return samples.with_container(DATA, **changes)


def text(json_text: bytes) -> bytes:
    return samples.joined(json_text, BODY)


def inner(json_text: str) -> bytes:
    return container(__metadata__={"kvb": json_text})


def spelled(old: bytes, new: bytes) -> bytes:
    """The container's JSON text with one spelling exchanged."""
    json_text = canonical.dumps(CONTAINER)
    assert json_text.count(old) == 1, json_text
    return text(json_text.replace(old, new))


CASES: dict[str, tuple[bytes, type[TypedError], str]] = {
    # magic and version
    "gguf": (
        b"GGUF\3\0\0\0" + bytes(100),
        BlockWrongMagic,
        "not a safetensors container; .*expected a length of 8 bytes, then {; found b'GGUF",
    ),
    "zeros": (bytes(100), BlockWrongMagic, "not a safetensors container"),
    "array": (text(b"[1]"), BlockWrongMagic, "not a safetensors container"),
    "leading space": (
        text(b" " + canonical.dumps(CONTAINER)),
        BlockWrongMagic,
        "not a safetensors",
    ),
    "plain safetensors": (container(__metadata__=None), BlockWrongMagic, "without a block header"),
    "metadata of others": (
        container(__metadata__={"format": "pt"}),
        BlockWrongMagic,
        "without a block header",
    ),
    "metadata no text": (
        text(canonical.dumps({**CONTAINER, "__metadata__": {"kvb": HEADER}})),
        BlockWrongMagic,
        "without a block header",
    ),
    "future version": (
        header(format="kvb/2"),
        BlockWrongMagic,
        "block of another format version; at .*; expected kvb/1; found kvb/2 .a newer kvgraft",
    ),
    "version 0": (header(format="kvb/0"), BlockWrongMagic, "block of another format version"),
    "version by newline": (header(format="kvb/1\n"), BlockWrongMagic, "not a block header"),
    "no format": (header(format=None), BlockWrongMagic, "not a block header"),
    "format of wrong kind": (header(format=["kvb/1"]), BlockWrongMagic, "not a block header"),
    "header no object": (inner("[]"), BlockWrongMagic, "not a block header"),
    # damaged header
    "header no json": (inner("{"), BlockCorrupt, "damaged header: the document is not JSON"),
    "header key twice": (
        inner('{"format":"kvb/1","format":"kvb/1"}'),
        BlockCorrupt,
        "a key occurs twice",
    ),
    "header NaN": (inner('{"start":NaN}'), BlockCorrupt, "JSON has no such number"),
    "header deep": (inner("[" * 1000), BlockCorrupt, "nested too deeply"),
    "container no json": (text(b'{"a"'), BlockCorrupt, "damaged header: the document is not JSON"),
    "container deep": (text(b'{"a":' + b"[" * 5000), BlockCorrupt, "nested too deeply"),
    "container not utf-8": (text(b'{"\xff":1}'), BlockCorrupt, "not UTF-8"),
    "container key twice": (
        text(b'{"a":1,"a":1}'),
        BlockCorrupt,
        "damaged header: a key occurs twice",
    ),
    "field missing": (
        inner(canonical.dumps({k: v for k, v in HEADER.items() if k != "engine"}).decode()),
        BlockCorrupt,
        "damaged header: .*engine",
    ),
    "field too many": (header(extra=1), BlockCorrupt, "damaged header: .*extra"),
    "digest upper case": (header(profile="B" * 64), BlockCorrupt, "damaged header: .*profile"),
    "digest short": (header(engine="c" * 63), BlockCorrupt, "damaged header: .*engine"),
    "model no object": (header(model="tiny"), BlockCorrupt, "damaged header: .*model"),
    "provenance no object": (header(provenance=[]), BlockCorrupt, "damaged header: .*provenance"),
    "profile told otherwise": (told(name="other"), BlockCorrupt, "is not that of the header's"),
    "profile told as nothing": (told(None), BlockCorrupt, "is not that of the header's digest"),
    "libraries told otherwise": (
        header(**telling(PROFILE, engine="0" * 64)),
        BlockCorrupt,
        "the engine is not that of the profile",
    ),
    "arithmetic told otherwise": (
        header(**telling({"engine": {"arithmetic": {"name": "a"}}}, engine="c" * 64)),
        BlockCorrupt,
        "the engine is not that of the profile",
    ),
    "profile told without an engine": (
        header(**telling({"engine": {"libraries": {"a": 1}}}, engine="c" * 64)),
        BlockCorrupt,
        "expected a profile that names libraries or an arithmetic",
    ),
    "provenance without canonical form": (
        inner(canonical.dumps({**HEADER, "provenance": {"x": 7}}).decode().replace("7}", "1e17}")),
        BlockCorrupt,
        "damaged header: a float would be read back",
    ),
    "parent at 0": (header(parent="d" * 64), BlockCorrupt, "continues a parent starts behind it"),
    "start beyond int32": (header(start=2**31), BlockOversize, "positions are beyond"),
    "start negative": (header(start=-1, parent="d" * 64), BlockCorrupt, "damaged header: .*start"),
    "start a fraction": (header(start=0.5), BlockCorrupt, "damaged header: .*start"),
    "start true": (header(start=True, parent="d" * 64), BlockCorrupt, "damaged header: .*start"),
    "chunk missing": (
        header(state={**HEADER["state"], "chunks": HEADER["state"]["chunks"] * 2}),
        BlockCorrupt,
        r"chunk list does not fit .*expected 1 chunks of 4194304 bytes; found \[1, 2\] of",
    ),
    "chunk length other": (
        header(state={**HEADER["state"], "chunk_bytes": 1024}),
        BlockCorrupt,
        r"chunk list does not fit .*found \[1\] of 1024",
    ),
    # not canonical
    "header spaced": (
        inner(canonical.dumps(HEADER).decode().replace(",", ", ")),
        BlockCorrupt,
        "container's __metadata__.kvb does not fit .*expected its canonical JSON .RFC 8785.",
    ),
    "header key order": (
        inner(
            '{"tokens":'
            + canonical.dumps(HEADER["tokens"]).decode()
            + ","
            + canonical.dumps({k: v for k, v in HEADER.items() if k != "tokens"}).decode()[1:]
        ),
        BlockCorrupt,
        "container's __metadata__.kvb does not fit",
    ),
    "header float for int": (
        inner(canonical.dumps(HEADER).decode().replace('"start":0', '"start":0.0')),
        BlockCorrupt,
        "container's __metadata__.kvb does not fit|damaged header: .*start",
    ),
    "metadata more": (
        container(__metadata__={**CONTAINER["__metadata__"], "note": "x"}),
        BlockCorrupt,
        "container's __metadata__.note does not fit",
    ),
    "container spaced": (
        spelled(b'"dtype":"U8"', b'"dtype": "U8"'),
        BlockCorrupt,
        "container is not in its canonical form",
    ),
    "container escaped": (
        spelled(b'"dtype":"U8"', b'"dtype":"\\u00558"'),
        BlockCorrupt,
        "container is not in its canonical form",
    ),
    "container float": (
        spelled(b"[0,28]", b"[0.0,28]"),
        BlockCorrupt,
        "container is not in its canonical form",
    ),
    "padding a tab": (
        DATA.replace(b"} ", b"}\t", 1),
        BlockCorrupt,
        "container is not in its canonical form",
    ),
    "padding short": (
        samples.joined(canonical.dumps(CONTAINER), BODY, align=False),
        BlockCorrupt,
        "container is not in its canonical form",
    ),
    "padding long": (
        samples.joined(canonical.dumps(CONTAINER) + b" " * 64, BODY),
        BlockCorrupt,
        "container is not in its canonical form",
    ),
    # lengths and layout
    "length 2**63": (
        length(2**63),
        BlockOversize,
        "header length is too large.*9223372036854775808",
    ),
    "length 2**64-1": (length(2**64 - 1), BlockOversize, "header length is too large"),
    "length 16 MiB + 1": (length((16 << 20) + 1), BlockOversize, "expected at most 16777216"),
    "length 16 MiB": (length(16 << 20), BlockTruncated, "the file ends inside its header"),
    "length 0": (length(0), BlockWrongMagic, "container without its JSON"),
    "tokens huge": (
        header(tokens={**HEADER["tokens"], "n": 2**24 + 1}),
        BlockOversize,
        "tokens.n is too large; .*expected at most 16777216; found 16777217",
    ),
    "tokens huger": (
        header(tokens={**HEADER["tokens"], "n": 2**53 - 1}),
        BlockOversize,
        "tokens.n",
    ),
    "tokens beyond integers": (
        inner(canonical.dumps(HEADER).decode().replace('"n":7', '"n":' + "9" * 5000)),
        BlockCorrupt,
        "damaged header: a number is too long",
    ),
    "tokens negative": (
        header(tokens={**HEADER["tokens"], "n": -7}),
        BlockCorrupt,
        "damaged header: .*tokens",
    ),
    "tokens none": (
        header(tokens={**HEADER["tokens"], "n": 0}),
        BlockCorrupt,
        "damaged header: .*tokens",
    ),
    "tokens true": (
        header(tokens={**HEADER["tokens"], "n": True}),
        BlockCorrupt,
        "damaged header: .*tokens",
    ),
    "state huge": (
        header(state={**HEADER["state"], "bytes": 2**40 + 1}),
        BlockOversize,
        "state.bytes is too large; .*expected at most 1099511627776",
    ),
    "state negative": (
        header(state={**HEADER["state"], "bytes": -1}),
        BlockCorrupt,
        "damaged header: .*state",
    ),
    "offsets overlap": (
        container(state={**STATE, "data_offsets": [0, 300]}),
        BlockCorrupt,
        r"container's state.data_offsets does not fit .*expected \[28, 328\]; found \[0, 300\]",
    ),
    "offsets out of order": (
        container(tokens={**TOKENS, "data_offsets": [28, 0]}),
        BlockCorrupt,
        r"container's tokens.data_offsets does not fit .*expected \[0, 28\]; found \[28, 0\]",
    ),
    "state in front": (
        container(
            state={**STATE, "data_offsets": [0, 300]}, tokens={**TOKENS, "data_offsets": [300, 328]}
        ),
        BlockCorrupt,
        r"data_offsets does not fit the block header",
    ),
    "offsets negative": (
        container(tokens={**TOKENS, "data_offsets": [-28, 0]}),
        BlockCorrupt,
        r"tokens.data_offsets does not fit .*found \[-28, 0\]",
    ),
    "offsets with a gap": (
        container(state={**STATE, "data_offsets": [32, 332]}),
        BlockCorrupt,
        r"state.data_offsets does not fit",
    ),
    "offsets huge": (
        container(state={**STATE, "data_offsets": [28, 2**53 - 1]}),
        BlockCorrupt,
        r"state.data_offsets does not fit",
    ),
    "shape other": (
        container(tokens={**TOKENS, "shape": [8]}),
        BlockCorrupt,
        r"tokens.shape does not fit .*expected \[7\]; found \[8\]",
    ),
    "shape of two": (
        container(state={**STATE, "shape": [30, 10]}),
        BlockCorrupt,
        "state.shape does not fit",
    ),
    "dtype of tokens": (
        container(tokens={**TOKENS, "dtype": "F32"}),
        BlockCorrupt,
        "tokens.dtype does not fit the block header; .*expected I32; found F32",
    ),
    "dtype of state": (
        container(state={**STATE, "dtype": "I8"}),
        BlockCorrupt,
        "state.dtype does not fit .*expected U8; found I8",
    ),
    "tensor missing": (container(state=None), BlockCorrupt, "container's state does not fit"),
    "tensor too many": (
        container(more={"dtype": "U8", "shape": [0], "data_offsets": [328, 328]}),
        BlockCorrupt,
        "container's more does not fit",
    ),
    # contents
    "tokens damaged": (
        samples.joined(canonical.dumps(CONTAINER), b"\x01" + BODY[1:]),
        BlockCorrupt,
        "the tokens do not have their recorded SHA-256",
    ),
    "tokens digest other": (
        header(tokens={**HEADER["tokens"], "sha256": "0" * 64}),
        BlockCorrupt,
        "the tokens do not have their recorded SHA-256; .*expected 0000",
    ),
    "trailing byte": (DATA + b"\0", BlockTrailingBytes, "the file goes on behind its state"),
    "trailing block": (DATA + DATA, BlockTrailingBytes, "the file goes on behind its state"),
    "empty": (b"", BlockTruncated, "the file is empty"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_file_is_refused_by_its_own_error(case: str, tmp_path: Path) -> None:
    data, kind, message = CASES[case]
    path = tmp_path / "wrong.kvb"
    path.write_bytes(data)
    with pytest.raises(kind, match=message) as caught:
        open_block(path)
    assert type(caught.value) is kind
    assert str(path) in str(caught.value) or "…" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_samples_are_sound_before_they_are_damaged(tmp_path: Path) -> None:
    for data in (DATA, container(), header(), text(canonical.dumps(CONTAINER))):
        assert data == DATA
    (tmp_path / "block.kvb").write_bytes(DATA)
    with open_block(tmp_path / "block.kvb", expected_id=BLOCK_ID) as block:
        block.verify()
    portable = {"engine": {"arithmetic": {"name": "portable"}, "libraries": None}}
    for data in (told(), header(**telling(portable))):
        (tmp_path / "block.kvb").write_bytes(data)
        with open_block(tmp_path / "block.kvb") as block:
            block.verify()


def test_a_block_of_another_id_than_expected_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"{'0' * 64}.kvb"
    path.write_bytes(DATA)
    message = f"another block than its name says; .*expected {'0' * 64}; found {BLOCK_ID}"
    with pytest.raises(BlockCorrupt, match=message):
        open_block(path, expected_id="0" * 64)
    # A consistent header with one other digit is another block, so only its id can refuse it.
    path.write_bytes(header(profile="b" * 63 + "a"))
    open_block(path).close()
    with pytest.raises(BlockCorrupt, match="another block than its name says"):
        open_block(path, expected_id=BLOCK_ID)


def test_a_file_cut_anywhere_is_truncated_and_says_where(tmp_path: Path) -> None:
    path = tmp_path / "cut.kvb"
    path.write_bytes(DATA)
    size = int.from_bytes(DATA[:8], "little")
    for n_bytes in range(len(DATA) - 1, -1, -1):  # every boundary is among them
        os.truncate(path, n_bytes)
        with pytest.raises(BlockTruncated) as caught:
            open_block(path, expected_id=BLOCK_ID)
        place = (
            "the file is empty"
            if n_bytes == 0
            else "the file ends inside its length field"
            if n_bytes < 8
            else "the file ends inside its header"
            if n_bytes < 8 + size
            else "the file ends before its state does"
        )
        assert str(caught.value).startswith(place)


@pytest.mark.parametrize("chunk", [0, 1, 2])
@pytest.mark.parametrize("threads", [1, 2, None])
def test_a_damaged_chunk_is_named_with_its_bytes(
    chunk: int, threads: int | None, tmp_path: Path
) -> None:
    n_state = 2 * kvb.CHUNK_BYTES + 1000
    block_id, data = samples.sample(n_state=n_state)
    state_offset = len(data) - n_state
    damaged = bytearray(data)
    damaged[state_offset + chunk * kvb.CHUNK_BYTES + 17] ^= 0x40
    path = tmp_path / "damaged.kvb"
    path.write_bytes(damaged)
    last = [4194303, 8388607, n_state - 1][chunk]
    message = f"chunk {chunk} of the state is damaged (bytes {chunk * 4194304} … {last})"
    with open_block(path, expected_id=block_id) as block:
        with pytest.raises(BlockChunkCorrupt, match=re.escape(message)) as caught:
            block.verify(threads)
        assert not block.verified
    assert caught.value.chunk == chunk
    assert isinstance(caught.value, BlockCorrupt)


def test_of_two_damaged_chunks_the_first_is_named(tmp_path: Path) -> None:
    block_id, data = samples.sample(n_state=3 * kvb.CHUNK_BYTES)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    damaged[-2 * kvb.CHUNK_BYTES] ^= 1
    (tmp_path / "damaged.kvb").write_bytes(damaged)
    with (
        open_block(tmp_path / "damaged.kvb", expected_id=block_id) as block,
        pytest.raises(BlockChunkCorrupt, match="chunk 1 of the state is damaged"),
    ):
        block.verify()


def test_a_thorough_look_also_finds_a_sha256_that_the_state_does_not_have(tmp_path: Path) -> None:
    """The two lists of a crafted header need not speak of the same bytes."""
    path = tmp_path / "two.kvb"
    path.write_bytes(header(state={**HEADER["state"], "chunks": ["0" * 64]}))
    with open_block(path) as block:
        block.verify()
        with pytest.raises(BlockChunkCorrupt, match=r"chunk 0 of .*expected SHA-256 0000"):
            block.verify(thorough=True)
    path.write_bytes(header(state={**HEADER["state"], "blake3": ["0" * 64]}))
    with open_block(path) as block:
        for thorough in (False, True):
            with pytest.raises(BlockChunkCorrupt, match=r"chunk 0 of .*expected BLAKE3 0000"):
                block.verify(thorough=thorough)


def _link(path: Path) -> None:
    target = path.with_name("target.kvb")
    target.write_bytes(DATA)
    path.symlink_to(target)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has little room
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda path: None, BlockNotFound, "there is no such block file"),
        (_link, BlockRefused, "a link is not followed"),
        (lambda path: path.symlink_to("nowhere"), BlockRefused, "a link is not followed"),
        (lambda path: path.mkdir(), BlockRefused, "not a regular file"),
        (os.mkfifo, BlockRefused, "not a regular file"),
        (_socket, BlockRefused, "the block file cannot be opened"),
        (lambda path: path.touch(), BlockTruncated, "the file is empty"),
    ],
    ids=["absent", "link", "dangling link", "directory", "fifo", "socket", "empty"],
)
def test_what_is_no_regular_file_is_refused_at_once(
    make: Callable[[Path], object], kind: type[TypedError], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd.kvb"
    make(path)
    with pytest.raises(kind, match=message) as caught:
        open_block(path)
    assert type(caught.value) is kind


def test_a_device_is_refused() -> None:
    with pytest.raises(BlockRefused, match="not a regular file"):
        open_block("/dev/zero")


def test_a_sparse_giant_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "giant.kvb"
    path.write_bytes(DATA)
    os.truncate(path, 1 << 39)
    with pytest.raises(BlockTrailingBytes, match="the file goes on behind its state"):
        open_block(path)
    os.truncate(path, kvb.MAX_FILE_BYTES + 1)
    with pytest.raises(BlockOversize, match="the file is too large for a block"):
        open_block(path)
