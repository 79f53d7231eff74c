"""A sequence state is walked field by field, and anything that is not one is refused by name."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tinywork import ARCHITECTURES, WINDOW, draw

from kvgraft import state
from kvgraft.errors import StateRefused

N_TOKENS = 70  # past the window of 64
Change = Callable[[bytearray], object]


@pytest.fixture(scope="module")
def raw() -> dict[str, bytes]:
    return {}


@pytest.fixture
def real(sessions: Any, raw: dict[str, bytes]) -> Callable[[str], bytes]:
    """A state that the engine wrote for an architecture."""

    def bytes_of(name: str) -> bytes:
        if name not in raw:
            session = sessions(name)
            session.prefill(draw(N_TOKENS))
            raw[name] = session.capture().state.tobytes()
        return raw[name]

    return bytes_of


def test_a_llama_state_is_one_cache_of_all_positions(real: Callable[[str], bytes]) -> None:
    layout = state.parse(real("llama"), n_sections=1)
    (section,) = layout.sections
    assert section.positions.tolist() == list(range(N_TOKENS))
    assert section.v_transposed
    assert [(t.kind, t.layer) for t in section.tensors] == [("k", 0), ("k", 1), ("v", 0), ("v", 1)]
    # One key-value head of 32 half-precision elements.
    assert {(t.row_bytes, t.n_bytes) for t in section.tensors} == {(64, 64 * N_TOKENS)}
    assert section.tensors[-1].offset + section.tensors[-1].n_bytes == layout.n_bytes


def test_a_gemma3_state_is_a_full_cache_and_a_window_cache(real: Callable[[str], bytes]) -> None:
    full, window = state.parse(real("gemma3"), n_sections=2).sections
    assert full.positions.tolist() == list(range(N_TOKENS))
    assert window.positions.tolist() == list(range(N_TOKENS - WINDOW, N_TOKENS))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tensors_cover_the_state_up_to_its_headers(real: Callable[[str], bytes], name: str) -> None:
    data = real(name)
    layout = state.parse(data)
    expected = 8
    for section in layout.sections:
        expected += 8 + 12 * section.n_cells + 8
        expected += sum(12 + tensor.n_bytes for tensor in section.tensors)
    assert expected == len(data)


def test_the_signature_does_not_depend_on_the_number_of_cells(sessions: Any) -> None:
    session = sessions("gemma3")
    found = set()
    for n in (1, 5, 64, 65, 300):
        session.reset()
        session.prefill(draw(n))
        found.add(state.parse(session.capture().state.data).signature())
    assert len(found) == 1


# -- refusals ---------------------------------------------------------------------------------

FLAGS = 16 + 12 * N_TOKENS  # the V-transposed flag of the first section
K0 = FLAGS + 8  # the first layer's keys: type, row size
V0 = K0 + 2 * (12 + 64 * N_TOKENS)  # llama: behind two layers of keys


def _put(fmt: str, offset: int, *values: int) -> Change:
    return lambda data: struct.pack_into(fmt, data, offset, *values)


REFUSALS: dict[str, tuple[Change, str]] = {
    "wrong magic": (
        _put("<I", 0, 0xAF143CD7),
        "state has the wrong magic; expected 0xaf143cd8; found 0xaf143cd7",
    ),
    "another sequence": (
        _put("<i", 4, 3),
        "state is of another sequence; expected 0; found 3",
    ),
    "negative sequence": (_put("<i", 4, -1), "state is of another sequence"),
    "no stream": (_put("<I", 8, 0), "section 0 has several streams; expected 1; found 0"),
    "two streams": (_put("<I", 8, 2), "section 0 has several streams; expected 1; found 2"),
    "too many cells": (
        _put("<I", 12, (1 << 24) + 1),
        "section 0 has too many cells; expected 16777216; found 16777217",
    ),
    "most cells": (
        _put("<I", 12, 1 << 24),
        "state ends inside the cells of section 0; at byte 16; expected 201326592 bytes",
    ),
    "one cell more": (
        _put("<I", 12, N_TOKENS + 1),
        "a cell of section 0 is not owned by sequence 0 alone",
    ),
    "one cell less": (_put("<I", 12, N_TOKENS - 1), "section 0 has an impossible header"),
    "a cell of two sequences": (
        _put("<I", 16 + 4, 2),
        "a cell of section 0 is not owned by sequence 0 alone",
    ),
    "a cell of no sequence": (
        _put("<I", 16 + 12 + 4, 0),
        "a cell of section 0 is not owned by sequence 0 alone",
    ),
    "a cell of another sequence": (
        _put("<i", 16 + 12 * (N_TOKENS - 1) + 8, 1),
        "a cell of section 0 is not owned by sequence 0 alone",
    ),
    "flag beyond true": (
        _put("<I", FLAGS, 2),
        "section 0 has an impossible header; found (2, 2)",
    ),
    "no layer": (_put("<I", FLAGS + 4, 0), "section 0 has an impossible header; found (1, 0)"),
    "too many layers": (
        _put("<I", FLAGS + 4, 4097),
        "section 0 has an impossible header; found (1, 4097)",
    ),
    "oversize row": (
        _put("<Q", K0 + 4, 1 << 63),
        f"state ends inside layer 0 k; at byte {K0 + 12}; expected {N_TOKENS << 63} bytes",
    ),
    "oversize element": (_put("<I", V0 + 4, (1 << 32) - 1), "state ends inside layer 0 v"),
    "oversize elements": (_put("<I", V0 + 8, (1 << 32) - 1), "state ends inside layer 0 v"),
    "trailing byte": (
        lambda data: data.append(0),
        "bytes left over behind the state",
    ),
    "no section": (
        lambda data: data.__delitem__(slice(8, None)),
        "state has another number of caches than this context; expected 1; found 0",
    ),
    "nothing": (lambda data: data.clear(), "state ends inside the header; at byte 0"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_malformed_state_is_refused_by_name(real: Callable[[str], bytes], name: str) -> None:
    change, message = REFUSALS[name]
    data = bytearray(real("llama"))
    change(data)
    with pytest.raises(StateRefused, match=re.escape(message)):
        state.parse(data, n_sections=1)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_state_cut_at_any_byte_of_its_headers_is_refused(
    real: Callable[[str], bytes], name: str
) -> None:
    data = real(name)
    layout = state.parse(data)
    cuts = set(range(16 + 12 * N_TOKENS + 24)) | {len(data) - 1}
    for section in layout.sections:
        for tensor in section.tensors:
            ends = (tensor.offset, tensor.offset + tensor.n_bytes)
            cuts |= {cut for end in ends for cut in range(end - 14, end + 14) if cut < len(data)}
    # Several hundred cuts, on both sides of every field.
    assert len(cuts) > 900
    for cut in sorted(cuts):
        with pytest.raises(StateRefused, match=r"ends inside|another number of caches"):
            state.parse(data[:cut], n_sections=len(layout.sections))


def test_the_number_of_caches_is_the_contexts(real: Callable[[str], bytes]) -> None:
    with pytest.raises(StateRefused, match="bytes left over behind the state"):
        state.parse(real("gemma3"), n_sections=1)
    with pytest.raises(StateRefused, match=r"another number of caches .* expected 2; found 1"):
        state.parse(real("llama"), n_sections=2)
    three = real("gemma3") + real("llama")[8:]
    with pytest.raises(StateRefused, match="bytes left over behind the state"):
        state.parse(three)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_mutation_gives_a_layout_or_a_refusal(real: Callable[[str], bytes], name: str) -> None:
    data = real(name)
    small = st.integers(0, 16 + 12 * N_TOKENS + 40)
    anywhere = st.integers(0, len(data) - 1)
    extreme = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])
    edits = st.lists(st.tuples(small | anywhere, extreme | st.integers(0, 255)), max_size=8)

    @settings(max_examples=400, deadline=None)
    @given(edits=edits, cut=anywhere | st.just(len(data)), tail=st.binary(max_size=20))
    def check(edits: list[tuple[int, int]], cut: int, tail: bytes) -> None:
        changed = bytearray(data)
        for offset, value in edits:
            changed[offset] = value
        try:
            layout = state.parse(bytes(changed[:cut]) + tail)
        except StateRefused:
            return
        assert layout.n_bytes == cut + len(tail)
        assert all(
            t.offset + t.n_bytes <= layout.n_bytes for s in layout.sections for t in s.tensors
        )

    check()


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=200))
@example(body=b"")
@example(body=struct.pack("<II", 1, 0) * 2)
def test_any_bytes_behind_a_right_header_give_a_layout_or_a_refusal(body: bytes) -> None:
    with contextlib.suppress(StateRefused):
        state.parse(struct.pack("<Ii", state.MAGIC, 0) + body)


# -- placeholder ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_cells", [1, 7, 255])
def test_a_placeholder_is_a_valid_state_of_zero_rows_for_the_window_alone(
    real: Callable[[str], bytes], n_cells: int
) -> None:
    layout = state.parse(real("gemma3"))
    filler = state.placeholder(layout, [0, n_cells])
    empty, window = state.parse(filler, n_sections=2).sections
    assert empty.n_cells == 0
    assert window.positions.tolist() == list(range(n_cells))
    assert [t.shape_key for t in window.tensors] == [
        t.shape_key for t in layout.sections[1].tensors
    ]
    rows = np.concatenate(
        [np.frombuffer(filler, np.uint8, t.n_bytes, t.offset) for t in window.tensors]
    )
    assert not rows.any()


def test_a_placeholder_of_rows_that_are_not_transposed_is_valid_too(sessions: Any) -> None:
    session = sessions("gemma3", flash_attention=True)
    session.prefill(draw(N_TOKENS))
    layout = state.parse(session.capture().state.data)
    section = layout.sections[1]
    assert not section.v_transposed
    window = state.parse(state.placeholder(layout, [0, 9])).sections[1]
    assert [t.shape_key for t in window.tensors] == [t.shape_key for t in section.tensors]


# -- differences ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "index", "name"), [(0, 0, "layer 0 k"), (1, 0, "layer 0 k"), (1, 1, "layer 0 v")]
)
def test_a_difference_is_named_by_cache_layer_and_chunk(
    real: Callable[[str], bytes], section: int, index: int, name: str
) -> None:
    data = real("gemma3")
    tensor = state.parse(data).sections[section].tensors[index]
    changed = bytearray(data)
    changed[tensor.offset + 5] ^= 1
    changed[tensor.offset + 9] ^= 1
    found = state.first_difference(data, changed, chunk_bytes=1024)
    at = tensor.offset + 5
    assert found == state.Difference(section, name, at, at // 1024, 2)


def test_a_difference_outside_the_rows_is_named_header(real: Callable[[str], bytes]) -> None:
    data = real("llama")
    changed = bytearray(data)
    changed[16] ^= 1
    assert state.first_difference(data, changed) == state.Difference(0, "header", 16, 0, 1)


def test_equal_states_have_no_difference_and_a_longer_one_differs_where_it_goes_on(
    real: Callable[[str], bytes],
) -> None:
    data = real("llama")
    assert state.first_difference(data, bytearray(data)) is None
    found = state.first_difference(data, data + b"xyz")
    assert found is not None
    assert (found.offset, found.n_bytes) == (len(data), 3)


def test_two_texts_differ_first_in_the_first_layer_at_the_changed_token(sessions: Any) -> None:
    session = sessions("llama")
    ids = draw(N_TOKENS)
    session.prefill(ids)
    a = session.capture().state
    session.reset()
    session.prefill([*ids[:40], ids[40] ^ 1, *ids[41:]])
    b = session.capture().state
    found = state.first_difference(a.data, b.data)
    tensor = state.parse(a.data).sections[0].tensors[0]
    assert found is not None
    assert found.tensor == "layer 0 k"
    # Rows of the first layer's keys depend on their own token alone.
    assert (found.offset - tensor.offset) // tensor.row_bytes == 40
