"""Whatever stands in a header, a reader answers with a typed error, soon, or with another block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kvb_samples as samples
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvaudit import canonical, kvb
from kvaudit.errors import BlockCorrupt, BlockRefused, UnusableInput
from kvaudit.kvb_map import open_block

BLOCK_ID, DATA = samples.sample()
HEADER = samples.header_json(DATA)
CONTAINER = samples.container_of(DATA)

PATHS = [
    *[(key,) for key in HEADER],
    *[(key, inner) for key in ("model", "tokens", "state") for inner in HEADER[key]],
    ("state", "chunks", 0),
    ("state", "blake3", 0),
    ("extra",),
    ("tokens", "extra"),
]
ANY_TEXT = st.text(st.characters(), max_size=6)  # lone surrogates included
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(10**500), 10**500)
    | st.sampled_from([0, 1, 7, 7.0, 300, 2**31, 2**53, 2**63, 2**64, -1, 0.5, 1e17, 1e300])
    | st.floats()
    | ANY_TEXT
)
JSON = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
FRAGMENTS = [
    "",
    "[" * 70,
    '{"a":' * 70,
    "1e999",
    "-0",
    "9" * 500,
    "NaN",
    '"\\ud800"',
    "\\u0000",
    "\x00",
    "\ufeff",
    "}",
    '"',
    "\\",
    " ",
    '"start":0,',
]


def put(header: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    """A copy of the header with one value exchanged."""
    copy: dict[str, Any] = json.loads(json.dumps(header))
    at: Any = copy
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return copy


def file_of(inner: str) -> bytes:
    """A file whose header is any text, surrogates escaped as JSON may."""
    container = {**CONTAINER, "__metadata__": {"kvb": inner}}
    text = json.dumps(container, separators=(",", ":"), sort_keys=True)
    return samples.joined(text.encode(), samples.body_of(DATA))


def check(folder: Path, data: bytes) -> None:
    """Refused as the block it was; without an expected id, refused or another block."""
    path = folder / "mutated.kvb"
    path.write_bytes(data)
    with pytest.raises(BlockRefused) as caught:
        open_block(path, expected_id=BLOCK_ID)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000
    try:
        block = open_block(path)
    except BlockRefused:
        return
    with block:
        assert block.header.id != BLOCK_ID
        assert samples.body_of(data) == bytes(block.tokens) + bytes(block.state)


@given(path=st.sampled_from(PATHS), value=JSON)
@example(path=("provenance",), value=json.loads('{"a":' * 60 + "1" + "}" * 60))
@example(path=("provenance",), value={"x": "\ud800"})
@example(path=("provenance",), value={"\udfff": 10**400})
@example(path=("start",), value=-(2**63))
@example(path=("tokens", "n"), value=7.0)
def test_any_other_value_in_a_header_is_refused_or_another_block(
    tmp_path_factory: pytest.TempPathFactory, path: tuple[Any, ...], value: object
) -> None:
    changed = put(HEADER, path, value)
    spelled = json.dumps(changed, separators=(",", ":"), sort_keys=True)
    if spelled == json.dumps(HEADER, separators=(",", ":"), sort_keys=True):
        return
    check(tmp_path_factory.getbasetemp(), file_of(spelled))
    try:
        strict = canonical.dumps(changed).decode()
    except UnusableInput:
        return
    if strict.encode() != canonical.dumps(HEADER):
        check(tmp_path_factory.getbasetemp(), file_of(strict))


@given(data=st.data(), whole=st.booleans())
def test_any_fragment_in_a_header_or_container_is_refused_or_another_block(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, whole: bool
) -> None:
    text = canonical.dumps(CONTAINER if whole else HEADER).decode()
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(len(text), first + 20)))
    changed = text[:first] + data.draw(st.sampled_from(FRAGMENTS)) + text[last:]
    if changed == text:
        return
    mutated = samples.joined(changed.encode(), samples.body_of(DATA)) if whole else file_of(changed)
    if mutated != DATA:  # a space behind the container may be the padding
        check(tmp_path_factory.getbasetemp(), mutated)


@pytest.mark.parametrize("field", ["chunks", "blake3"])
@pytest.mark.parametrize("entry", [0, "", "x" * 64, "A" * 64, "a" * 64 + "\n", None, [], {}])
def test_an_entry_that_is_no_digest_is_named(field: str, entry: object, tmp_path: Path) -> None:
    state = {**HEADER["state"], field: [*HEADER["state"][field], entry]}
    (tmp_path / "bad.kvb").write_bytes(samples.with_header(DATA, state=state))
    with pytest.raises(BlockCorrupt, match=f"damaged header: state.{field}/1 is no digest"):
        open_block(tmp_path / "bad.kvb")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("entry", [0, "x", "a" * 64])
def test_a_header_of_many_entries_is_refused_in_seconds(entry: object, tmp_path: Path) -> None:
    """The schema alone needed four minutes for the 8 million entries that fit into a header."""
    listed = [entry] * (500_000 if entry != "a" * 64 else 100_000)
    state = {**HEADER["state"], "chunks": listed}
    (tmp_path / "long.kvb").write_bytes(samples.with_header(DATA, state=state))
    with pytest.raises(BlockCorrupt, match=r"is no digest|chunk list does not fit"):
        open_block(tmp_path / "long.kvb")


def nested(depth: int) -> dict[str, Any]:
    """An object of that many levels."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    assert isinstance(value, dict)
    return value


def test_writer_and_reader_agree_on_the_deepest_provenance(tmp_path: Path) -> None:
    deepest = canonical.MAX_DEPTH - 1  # the header is the first level
    parts = header, _, _ = samples.make(provenance=nested(deepest))
    (tmp_path / "deep.kvb").write_bytes(samples.file_bytes(parts))
    with open_block(tmp_path / "deep.kvb", expected_id=header.id) as block:
        block.verify(thorough=True)
    with pytest.raises(UnusableInput, match="nested too deeply"):
        samples.make(provenance=nested(deepest + 1))
    (tmp_path / "deeper.kvb").write_bytes(
        file_of(json.dumps({**HEADER, "provenance": nested(deepest + 1)}))
    )
    with pytest.raises(BlockCorrupt, match=r"damaged header: .*nested too deeply"):
        open_block(tmp_path / "deeper.kvb")


@pytest.mark.parametrize(
    "provenance", [{"x": "\ud800"}, {"x": float("nan")}, {"x": 2**53}, {1: 2}, {"x": object()}]
)
def test_build_refuses_a_provenance_without_canonical_form(provenance: Any) -> None:
    with pytest.raises(UnusableInput, match=r"no canonical JSON form|too large an integer"):
        samples.make(provenance=provenance)


@pytest.mark.parametrize("key", ["\x1b[2J\x00", "\u202e", "k" * 100_000])
def test_a_key_of_the_file_reaches_no_terminal_as_it_is(key: str, tmp_path: Path) -> None:
    (tmp_path / "key.kvb").write_bytes(samples.with_container(DATA, **{key: 1}))
    with pytest.raises(BlockCorrupt, match=r"the container's .* does not fit") as caught:
        open_block(tmp_path / "key.kvb")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a" * 300])
def test_a_name_that_no_system_holds_is_refused(name: str) -> None:
    with pytest.raises(BlockRefused, match="the block file cannot be opened") as caught:
        open_block(name)
    assert str(caught.value).isprintable()


def test_the_largest_header_is_the_readers_limit_too(tmp_path: Path) -> None:
    header, _, _ = samples.make(provenance={"text": "x" * 1000})
    spare = kvb.MAX_HEADER_BYTES - (len(kvb.container_prefix(header)) - 8)
    parts = header, _, _ = samples.make(provenance={"text": "x" * (1000 + spare - 64)})
    (tmp_path / "large.kvb").write_bytes(samples.file_bytes(parts))
    with open_block(tmp_path / "large.kvb", expected_id=header.id) as block:
        block.verify()
