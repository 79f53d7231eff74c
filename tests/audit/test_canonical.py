"""Strict JSON: one text for a value, and a clear refusal of every other text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit import canonical, digests
from kvaudit.errors import UnusableInput

HOSTILE = {
    "empty": b"",
    "blank": b" \n",
    "byte order mark": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{"a":"\xff"}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "truncated": b'{"a":',
    "trailing text": b"{} {}",
    "NaN": b'{"a":NaN}',
    "Infinity": b"[Infinity]",
    "minus Infinity": b"[-Infinity]",
    "1e400": b"[1e400]",
    "-1e400": b"[-1e400]",
    "integer beyond 2**53": b"[9007199254740992]",
    "negative integer beyond 2**53": b"[-9007199254740992]",
    "integer of 401 digits": b"[" + b"1" * 401 + b"]",
    "integer of a million digits": b"[" + b"1" * 1_000_000 + b"]",
    "float of 401 characters": b"[0." + b"1" * 400 + b"]",
    "duplicate key": b'{"a":1,"a":1}',
    "duplicate key by escape": b'{"a":1,"\\u0061":2}',
    "duplicate key, deep": b'[{"b":{"a":1,"a":2}}]',
    "deep arrays": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep and unclosed": b"[" * 1_000_000,
    "lone high surrogate": b'["\\ud800"]',
    "lone low surrogate": b'["\\udc00"]',
    "surrogate key": b'{"\\ud800":1}',
    "control character": b'["\x00"]',
    "single quotes": b"{'a':1}",
    "comment": b"{} // no",
    "trailing comma": b"[1,]",
    "escaped quotes without end": b'"' + b'\\"' * 500_000 + b"\\",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UnusableInput) as caught:
        canonical.loads(HOSTILE[name], where="the file")
    message = caught.value.message()
    assert "the file" in message
    assert "\n" not in message
    assert len(message) < 1000
    message.encode()


def test_length_is_bounded_before_parsing() -> None:
    with pytest.raises(UnusableInput, match="too long"):
        canonical.loads(b"[" * 100, where="x", max_bytes=99)


def test_brackets_in_strings_do_not_count_as_depth() -> None:
    text = "[" * 1000 + '\\"'
    assert canonical.loads(b'["' + b"[" * 1000 + b'\\\\"]', where="x") == ["[" * 1000 + "\\"]
    assert canonical.loads(canonical.dumps({text: text}), where="x") == {text: text}


def test_depth_has_an_exact_bound() -> None:
    ok = b"[" * canonical.MAX_DEPTH + b"]" * canonical.MAX_DEPTH
    canonical.loads(ok, where="x")
    with pytest.raises(UnusableInput, match="nested too deeply"):
        canonical.loads(b"[" + ok + b"]", where="x")


def test_paired_surrogate_escapes_are_read() -> None:
    assert canonical.loads(b'["\\ud83d\\ude00"]', where="x") == ["\U0001f600"]


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-canonical.MAX_INTEGER, canonical.MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda x: not canonical.MAX_INTEGER < abs(x) < 1e21
    )
    | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_every_value_has_one_text(value: object) -> None:
    text = canonical.dumps(value)
    again = canonical.loads(text, where="x")
    assert again == value
    assert canonical.dumps(again) == text
    assert canonical.loads_document(text + b"\n", where="x") == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_but_never_crash(data: bytes) -> None:
    try:
        canonical.loads(data, where="x")
    except UnusableInput as error:
        refusal = error.message()
    else:
        refusal = ""
    assert "\n" not in refusal


@pytest.mark.parametrize(
    "text",
    [b'{"a":1}', b'{"a": 1}\n', b'{"b":1,"a":2}\n', b'{"a":1.0}\n', b'{"a":1}\n\n', b'"\\u0061"\n'],
)
def test_a_document_has_no_insignificant_bytes(text: bytes) -> None:
    with pytest.raises(UnusableInput, match="canonical"):
        canonical.loads_document(text, where="x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":1}', "no newline"),
        (b'{"a":1}\n\n{"a":1}\n', "line 2"),
        (b'{"a":1}\r\n', "canonical"),
        (b'{"a":1}\n[1]\n', "line 2"),
        (b'{"a":1}\n{"a": 1}\n', "line 2"),
    ],
)
def test_lines_have_no_insignificant_bytes(text: bytes, message: str) -> None:
    with pytest.raises(UnusableInput, match=message):
        canonical.loads_lines(text, "x")


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 2**53, -(2**53), 1e17, "\ud800", {1: 2}, {"a": object()}, b"x"]
)
def test_what_cannot_be_read_back_is_not_written(value: object) -> None:
    with pytest.raises(UnusableInput):
        canonical.dumps(value)


def test_cyclic_values_are_refused() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(UnusableInput, match="nested"):
        canonical.dumps(cycle)


def test_tree_digest_binds_names_to_contents() -> None:
    one = digests.tree_digest({"a": "0" * 64, "b": "1" * 64})
    assert one == digests.tree_digest({"b": "1" * 64, "a": "0" * 64})
    assert one != digests.tree_digest({"a": "1" * 64, "b": "0" * 64})
    assert one != digests.tree_digest({"a": "0" * 64, "c": "1" * 64})
