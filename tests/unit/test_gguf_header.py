"""Any bytes give a header or one typed refusal, in bounded time and memory."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvaudit.errors import TypedError, UnusableInput
from kvgraft import architectures, gguf_reader
from kvgraft.errors import ModelUnsupported
from kvgraft.gguf_header import GgufHeader, SkippedArray, facts, read_header
from kvgraft.gguf_types import FILE_TYPES, TENSOR_TYPES
from kvgraft.tiny import make_tiny_gguf

REPOSITORY = Path(__file__).parents[2]
SHARED = REPOSITORY.parent / "shared" / "data" / "gguf"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the shared data folder ../shared/data is absent"
)

U32, U64, F32, STRING, ARRAY, BOOL = 4, 10, 6, 8, 9, 7


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def tensor(
    name: str, dimensions: tuple[int, ...], kind: int, offset: int, rank: int | None = None
) -> bytes:
    rank = len(dimensions) if rank is None else rank
    return (
        text(name)
        + struct.pack(f"<I{len(dimensions)}Q", rank, *dimensions)
        + struct.pack("<IQ", kind, offset)
    )


def file_bytes(
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    *,
    data: int = 0,
    version: int = 3,
    magic: bytes = b"GGUF",
    architecture: str | None = "llama",
    counts: tuple[int, int] | None = None,
) -> bytes:
    if architecture is not None:
        keys = (key("general.architecture", STRING, text(architecture)), *keys)
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    head = magic + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join((*keys, *tensors))
    return head + bytes(-len(head) % 32) + bytes(data) if tensors else head


@pytest.fixture
def refusal(tmp_path: Path) -> Any:
    """Write bytes, read them, and return the one-line refusal."""

    def read(raw: bytes, kind: type[TypedError] = UnusableInput) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        with pytest.raises(TypedError) as caught:
            read_header(path)
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
        return str(caught.value)

    return read


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", "gemma3", quantisation="Q4_0")


def outcome(path: Path) -> str:
    """`header`, or the name of the typed refusal; any other exception fails the test."""
    try:
        facts(read_header(path))
    except TypedError as error:
        return type(error).__name__ if "\n" not in str(error) else f"several lines: {error}"
    return "header"


# What a good file says


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_header_agrees_with_the_reference_reader(tmp_path: Path, architecture: str) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", architecture)  # type: ignore[arg-type]
    header, reference = read_header(path), gguf.GGUFReader(path)
    for name, value in header.metadata.items():
        found = reference.fields[name].contents()
        if isinstance(value, SkippedArray):
            assert value.length == len(found)
        else:
            assert (list(value) if isinstance(value, tuple) else value) == found
    assert set(header.metadata) == {n for n in reference.fields if not n.startswith("GGUF.")}
    assert [
        (t.name, t.dimensions, t.type, header.data_offset + t.offset, t.bytes)
        for t in header.tensors
    ] == [
        (t.name, tuple(t.shape), t.tensor_type.name, t.data_offset, t.n_bytes)
        for t in reference.tensors
    ]


def test_tables_agree_with_the_gguf_package() -> None:
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        assert TENSOR_TYPES[kind.value] == (kind.name, block, size)
    for mix in gguf.LlamaFileType:
        if mix is not gguf.LlamaFileType.GUESSED:
            assert FILE_TYPES[mix.value] == re.sub("^(MOSTLY|ALL)_", "", mix.name)


def test_version_2_and_every_scalar_type_are_read(tmp_path: Path) -> None:
    values: dict[str, tuple[int, str, Any]] = {
        "u8": (0, "<B", 200),
        "i8": (1, "<b", -7),
        "u16": (2, "<H", 65000),
        "i16": (3, "<h", -300),
        "u32": (4, "<I", 1 << 31),
        "i32": (5, "<i", -(1 << 31)),
        "f32": (6, "<f", 0.5),
        "bool": (7, "<?", True),
        "u64": (10, "<Q", 1 << 63),
        "i64": (11, "<q", -(1 << 63)),
        "f64": (12, "<d", 1e300),
    }
    keys = [key(n, kind, struct.pack(form, v)) for n, (kind, form, v) in values.items()]
    keys += [
        key("pair", ARRAY, struct.pack("<IQ2I", U32, 2, 3, 4)),
        key("words", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("é")),
        key("none", ARRAY, struct.pack("<IQ", F32, 0)),
        key("many", ARRAY, struct.pack("<IQ", BOOL, 1025) + bytes(1025)),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes(tuple(keys), version=2))
    header = read_header(path)
    assert header.version == 2
    for name, (_, _, value) in values.items():
        assert header.metadata[name] == value
        assert type(header.metadata[name]) is type(value)
    assert header.metadata["pair"] == (3, 4)
    assert header.metadata["words"] == ("a", "é")
    assert header.metadata["none"] == ()
    assert header.metadata["many"] == SkippedArray("bool", 1025)


def test_weights_are_not_read(tmp_path: Path, small: Path) -> None:
    """A model whose data section is a hole of 4 TB is described without touching it."""
    size = 1 << 40
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes((), (tensor("w", (size,), 0, 0),)))
    os.truncate(path, path.stat().st_size + 4 * size)
    assert read_header(path).tensors[0].bytes == 4 * size


def test_a_link_to_a_model_is_followed(tmp_path: Path, small: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(small)
    assert read_header(tmp_path / "link.gguf").architecture == "gemma3"


# Malformed files, each with its own words

HUGE = (1 << 64) - 1
MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file ends inside the magic; .* expected 4 bytes; found 0 bytes"),
    "magic": (file_bytes(magic=b"GGML"), "wrong magic; at .*, byte 0; expected b'GGUF'"),
    "version 1": (file_bytes(version=1), "unknown version; .* expected 2 or 3; found 1"),
    "version 4": (file_bytes(version=4), "unknown version; .* found 4"),
    "big-endian": (file_bytes(version=3 << 24), r"unknown version \(the file is big-endian\)"),
    "tensor count": (
        file_bytes(counts=(HUGE, 1)),
        "too many tensors; .* found 18446744073709551615",
    ),
    "key count": (file_bytes(counts=(0, HUGE)), "too many keys; .* found 18446744073709551615"),
    "missing keys": (file_bytes(counts=(0, 2)), "the file ends inside the length of a key"),
    "no architecture": (file_bytes(architecture=None), "general.architecture is missing"),
    "architecture number": (
        file_bytes((key("general.architecture", U32, bytes(4)),), architecture=None),
        "general.architecture is missing; .* found 0",
    ),
    "empty architecture": (file_bytes(architecture=""), "general.architecture is missing"),
    "empty key": (file_bytes((key("", U32, bytes(4)),)), "a key is empty"),
    "key bytes": (file_bytes((key(b"\xff", U32, bytes(4)),)), "a key is not UTF-8"),
    "long key": (file_bytes((key("k" * 1025, U32, bytes(4)),)), "a key is too long; .* found 1025"),
    "double key": (
        file_bytes((key("k", U32, bytes(4)), key("k", U32, bytes(4)))),
        "a key appears twice; .* found k",
    ),
    "value type": (file_bytes((key("k", 13, bytes(8)),)), "k has an unknown type; .* found 13"),
    "bool": (file_bytes((key("k", BOOL, b"\x02"),)), "k is neither true nor false; .* found 2"),
    "short value": (file_bytes((key("k", U64, bytes(7)),)), "the file ends inside the value of k"),
    "string length": (
        file_bytes((key("k", STRING, struct.pack("<Q", HUGE)),)),
        "the value of k is too long; .* found 18446744073709551615",
    ),
    "string bytes": (
        file_bytes(
            (
                key(
                    "k",
                    STRING,
                    text(b"\xc3"),
                ),
            )
        ),
        "the value of k is not UTF-8",
    ),
    "string end": (
        file_bytes((key("k", STRING, struct.pack("<Q", 9) + b"abc"),)),
        "the file ends inside the value of k",
    ),
    "nested array": (
        file_bytes((key("k", ARRAY, struct.pack("<IQIQ", ARRAY, 1, U32, 0)),)),
        "array k has an unknown element type; .* found 9",
    ),
    "number array": (
        file_bytes((key("k", ARRAY, struct.pack("<IQ", U64, HUGE)),)),
        "array k is too long; .* found 18446744073709551615",
    ),
    "string array": (
        file_bytes((key("k", ARRAY, struct.pack("<IQ", STRING, HUGE)),)),
        "array k is too long",
    ),
    "string in array": (
        file_bytes(
            (key("k", ARRAY, struct.pack("<IQ", STRING, 65) + struct.pack("<Q", 1 << 62) * 65),)
        ),
        "the file ends inside k",
    ),
    "alignment zero": (
        file_bytes((key("general.alignment", U32, bytes(4)),)),
        "the alignment is not a power of two; .* found 0",
    ),
    "alignment 48": (
        file_bytes((key("general.alignment", U32, struct.pack("<I", 48)),)),
        "the alignment is not a power of two; .* found 48",
    ),
    "alignment word": (
        file_bytes((key("general.alignment", STRING, text("32")),)),
        "the alignment is not a power of two; .* found 32",
    ),
    "tensor name empty": (
        file_bytes((), (tensor("", (4,), 0, 0),), data=32),
        "tensor name is empty",
    ),
    "tensor name long": (
        file_bytes((), (tensor("n" * 64, (4,), 0, 0),), data=32),
        "a tensor name is too long; .* expected <= 63; found 64",
    ),
    "tensor twice": (
        file_bytes((), (tensor("w", (8,), 0, 0), tensor("w", (8,), 0, 32)), data=64),
        "a tensor name appears twice; .* found w",
    ),
    "rank zero": (file_bytes((), (tensor("w", (), 0, 0),), data=32), "w has an impossible rank"),
    "rank five": (
        file_bytes((), (tensor("w", (1,) * 5, 0, 0),), data=32),
        "w has an impossible rank; .* expected 1 to 4; found 5",
    ),
    "rank huge": (
        file_bytes((), (tensor("w", (1,), 0, 0, rank=(1 << 32) - 1),), data=32),
        "w has an impossible rank",
    ),
    "no elements": (file_bytes((), (tensor("w", (0, 4), 0, 0),)), "w has an impossible shape"),
    "overflow": (
        file_bytes((), (tensor("w", (1 << 33, 1 << 31), 0, 0),)),
        "w has an impossible shape",
    ),
    "tensor type": (
        file_bytes((), (tensor("w", (32,), 4, 0),), data=32),
        "w has an unknown type; .* found 4",
    ),
    "half a block": (
        file_bytes((), (tensor("w", (48,), 8, 0),), data=64),
        "rows of w do not fill whole Q8_0 blocks; .* expected a multiple of 32; found 48",
    ),
    "unaligned offset": (
        file_bytes((), (tensor("w", (8,), 0, 0), tensor("v", (8,), 0, 33)), data=99),
        "v is misplaced; .* expected 32; found 33",
    ),
    "overlap": (
        file_bytes((), (tensor("w", (8,), 0, 0), tensor("v", (8,), 0, 0)), data=64),
        "v is misplaced; .* expected 32; found 0",
    ),
    "beyond the end": (
        file_bytes((), (tensor("w", (1 << 40,), 0, 0),), data=32),
        "w lies beyond the end of the file",
    ),
    "one byte short": (
        file_bytes((), (tensor("w", (8,), 0, 0),), data=31),
        "the file ends before its tensors do; .* found 159 bytes",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused_with_its_reason(refusal: Any, case: str) -> None:
    raw, message = MALFORMED[case]
    found = refusal(raw)
    assert re.search(message, found), found
    assert found.startswith("not a readable GGUF file: ")


def test_names_from_the_file_cannot_break_the_message_into_lines(refusal: Any) -> None:
    assert r"'k\n\x1b[2J' has an unknown type" in refusal(file_bytes((key("k\n\x1b[2J", 99, b""),)))
    assert r"'\r' has an impossible rank" in refusal(file_bytes((), (tensor("\r", (), 0, 0),)))
    assert "k" * 79 + "… has an unknown type" in refusal(file_bytes((key("k" * 999, 99, b""),)))


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, message in (
        (tmp_path, "not a regular file"),
        (tmp_path / "pipe", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path / "absent", "cannot be opened; .*; found No such file or directory"),
        (tmp_path / "loop", "cannot be opened"),
        (Path("nul\0byte"), "cannot be opened"),
    ):
        with pytest.raises(UnusableInput, match=message):
            read_header(path)


# Which models are refused, and why


@pytest.mark.parametrize("architecture", sorted(architectures.REFUSED))
def test_architecture_without_a_full_kv_cache_is_refused_by_name(
    refusal: Any, architecture: str
) -> None:
    kind, reason = architectures.REFUSED[architecture]
    found = refusal(file_bytes(architecture=architecture), ModelUnsupported)
    assert f"{kind} architecture {architecture} is refused: {reason}" in found
    assert "use a causal decoder" in found


@pytest.mark.parametrize("architecture", ["mamba3", "LLAMA", "llama ", "(unknown)", "x\ny", "é"])
def test_unknown_architecture_is_refused_and_the_supported_ones_named(
    refusal: Any, architecture: str
) -> None:
    found = refusal(file_bytes(architecture=architecture), ModelUnsupported)
    assert "not known to keep all its memory in a KV cache" in found
    assert "such as llama, gemma3, gemma4, qwen3, phi3" in found


def test_no_architecture_is_both_supported_and_refused() -> None:
    assert not architectures.SUPPORTED & set(architectures.REFUSED)
    assert {"llama", "gemma3", "gemma4"} <= architectures.SUPPORTED


def test_an_unsupported_model_can_still_be_described(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes(architecture="mamba"))
    header = read_header(path, any_architecture=True)
    assert header.architecture == "mamba"
    with pytest.raises(ModelUnsupported, match="recurrent architecture mamba"):
        facts(header)


def with_metadata(header: GgufHeader, **changes: Any) -> GgufHeader:
    metadata = {**header.metadata, **{k.replace("__", "."): v for k, v in changes.items()}}
    return GgufHeader(
        header.version,
        header.architecture,
        {k: v for k, v in metadata.items() if v is not None},
        header.tensors,
        header.alignment,
        header.data_offset,
        header.file_bytes,
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"general__type": "adapter"}, ModelUnsupported, "not a model; expected model"),
        ({"split__count": 3}, ModelUnsupported, "split over several files"),
        ({"gemma3__attention.key_length_mla": 64}, ModelUnsupported, "compressed keys"),
        ({"gemma3__rope.dimension_sections": (8, 8, 0, 0)}, ModelUnsupported, "several positions"),
        ({"gemma3__block_count": None}, UnusableInput, "gemma3.block_count; expected a whole"),
        ({"gemma3__block_count": 0}, UnusableInput, "from 1 to 512; found 0"),
        ({"gemma3__block_count": 513}, UnusableInput, "from 1 to 512; found 513"),
        ({"gemma3__block_count": "two"}, UnusableInput, "found two"),
        ({"gemma3__block_count": True}, UnusableInput, "found True"),
        ({"gemma3__nextn_predict_layers": 2}, UnusableInput, "expected < 2; found 2"),
        ({"gemma3__embedding_length": 128}, UnusableInput, r"token_embd.weight; expected shape"),
        ({"gemma3__rope.freq_base": float("nan")}, UnusableInput, "found nan"),
        ({"gemma3__rope.freq_base": 0.0}, UnusableInput, "a positive number"),
        ({"gemma3__attention.sliding_window": -1}, UnusableInput, "found -1"),
        ({"tokenizer__ggml.tokens": None}, UnusableInput, r"expected shape \(64, 0\)"),
        ({"gemma3__attention.head_count": ()}, UnusableInput, "head_count"),
        ({"gemma3__attention.head_count": (2, "x")}, UnusableInput, "head_count"),
    ],
)
def test_facts_that_contradict_the_project_or_one_another_are_refused(
    small: Path, change: dict[str, Any], error: type[TypedError], message: str
) -> None:
    with pytest.raises(error, match=message):
        facts(with_metadata(read_header(small), **change))


def test_facts_take_the_largest_of_one_number_a_layer(small: Path) -> None:
    header = with_metadata(
        read_header(small),
        gemma3__attention__head_count=(2, 4),
        gemma3__attention__sliding_window=None,
        gemma3__nextn_predict_layers=1,
        general__file_type=1024,
    )
    found = facts(header)
    assert (found.n_head, found.window, found.n_layer) == (4, None, 1)
    assert found.quantisation == "Q4_0"


def test_a_vocabulary_without_weights_has_no_facts(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes())
    with pytest.raises(UnusableInput, match="a vocabulary but no weights"):
        facts(read_header(path))


# Any bytes at all


@needs_shared
def test_every_foreign_file_gives_a_header_or_a_typed_refusal() -> None:
    paths = [p for p in sorted(SHARED.rglob("*")) if p.is_file()]
    assert len(paths) > 130
    outcomes = {path.name: outcome(path) for path in paths}
    assert set(outcomes.values()) <= {"UnusableInput", "ModelUnsupported"}
    assert outcomes["ggml-vocab-bert-bge.gguf"] == "ModelUnsupported"
    assert outcomes["t5-base.gguf"] == "ModelUnsupported"


@needs_shared
def test_a_real_vocabulary_is_counted_without_being_built() -> None:
    header = read_header(SHARED / "ggml-vocab-llama-spm.gguf")
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedArray("string", 32000)
    assert header.metadata["tokenizer.ggml.scores"] == SkippedArray("float32", 32000)
    assert header.metadata["llama.embedding_length"] == 4096


def test_every_truncation_is_refused(small: Path, tmp_path: Path) -> None:
    raw, header = small.read_bytes(), read_header(small)
    last = header.tensors[-1]
    needed = header.data_offset + last.offset + last.bytes
    path = tmp_path / "m.gguf"
    lengths = {*range(0, header.data_offset, 61), header.data_offset, needed - 1}
    for length in sorted(lengths):
        path.write_bytes(raw[:length])
        assert outcome(path) == "UnusableInput", length
    path.write_bytes(raw[:needed])
    assert outcome(path) == "header"


def changes(size: int) -> st.SearchStrategy[list[tuple[int, int, bytes]]]:
    """Up to four edits: at a place, so many bytes give way to others."""
    numbers = st.sampled_from([0, 1, 63, 64, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, HUGE])
    return st.lists(
        st.tuples(
            st.integers(0, size),
            st.integers(0, 9),
            st.one_of(st.binary(max_size=9), numbers.map(lambda n: struct.pack("<Q", n))),
        ),
        min_size=1,
        max_size=4,
    )


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_mutated_files_give_a_header_or_a_typed_refusal(
    small: Path, tmp_path: Path, data: st.DataObject
) -> None:
    raw, end = small.read_bytes(), read_header(small).data_offset
    for at, removed, added in data.draw(changes(end)):
        raw = raw[:at] + added + raw[at + removed :]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    assert outcome(path) in {"header", "UnusableInput", "ModelUnsupported"}


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rest=st.binary(max_size=200), counts=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_random_bytes_behind_a_good_start_are_handled(
    tmp_path: Path, rest: bytes, counts: tuple[int, int]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes(counts=(counts[0], counts[1])) + rest)
    assert outcome(path) in {"UnusableInput", "ModelUnsupported"}


# The worst a file can cost


def worst_files() -> Iterator[tuple[str, bytes, int]]:
    """Name, bytes, and the size to extend the file to with a hole."""
    limit = gguf_reader.MAX_HEADER_BYTES
    strings = struct.pack("<IQ", STRING, gguf_reader.MAX_ARRAY_STRINGS)
    yield "a hole", file_bytes(counts=(1, gguf_reader.MAX_KEYS)), 10 << 30
    yield "empty strings", file_bytes((key("k", ARRAY, strings),), counts=(9, 9)), 10 << 30
    yield "long numbers", file_bytes((key("k", ARRAY, struct.pack("<IQ", 0, limit - 200)),)), limit
    numbers = b"".join(
        key(f"k{i}", ARRAY, struct.pack("<IQ", 2, 1024) + b"\x01\x02" * 1024) for i in range(9000)
    )
    yield "kept numbers", file_bytes((numbers,), counts=(0, 9001)), 0
    wide = ("a" * 500_000 + "🎉").encode()
    yield "wide strings", file_bytes(tuple(key(f"k{i}", STRING, text(wide)) for i in range(60))), 0
    names = b"".join(tensor(f"{i:063}", (1, 1, 1, 1), 24, i * 32) for i in range(1 << 16))
    yield "tensors", file_bytes((), (names,), counts=(1 << 16, 1)), 1 << 30


def test_the_worst_files_stay_within_two_seconds_and_200_megabytes(tmp_path: Path) -> None:
    script = (
        "import json, re, resource, sys, time\n"
        "from kvaudit.errors import TypedError\n"
        "from kvgraft.gguf_header import read_header\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "out = {}\n"
        "def peak():\n"
        "    with open('/proc/self/status') as status:\n"
        "        return int(re.search(r'VmHWM:\\s+(\\d+)', status.read())[1])\n"
        "start = peak()\n"
        "for path in sys.argv[1:]:\n"
        "    began = time.process_time()\n"
        "    try:\n"
        "        read_header(path)\n"
        "        said = 'header'\n"
        "    except TypedError as error:\n"
        "        said = str(error)\n"
        "    out[path] = [time.process_time() - began, peak() - start, said]\n"
        "json.dump(out, sys.stdout)\n"
    )
    paths = []
    for name, raw, size in worst_files():
        path = tmp_path / name
        path.write_bytes(raw)
        if size:
            os.truncate(path, size)
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", script, *paths],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "workflow")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert len(report) == 6
    for path, (seconds, kilobytes, said) in report.items():
        assert seconds < 2, (path, seconds)
        assert kilobytes < 200_000, (path, kilobytes)
        assert said == "header" or said.startswith("not a readable GGUF file"), said
    assert "too large" in report[str(tmp_path / "kept numbers")][2]
    assert "too long" in report[str(tmp_path / "wide strings")][2]
    assert report[str(tmp_path / "tensors")][2] == "header"
