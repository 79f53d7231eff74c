"""A problem file is taken as pinned, in full, or refused with the line that is wrong."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kvaudit import schemas
from kvaudit.errors import InputChanged, UnusableInput
from kvgraft import flywheel_files, problems
from kvgraft.problems import UserProblem, load_aime, load_livebench

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the shared data folder ../shared/data is absent"
)

AIME = {"id": "I-1", "problem": "What is 1 + 1?", "answer": "2"}
LIVE = {
    "question_id": "aa",
    "category": "reasoning",
    "task": "spatial",
    "turns": ["How many corners has a cube?"],
    "ground_truth": "8",
    "livebench_release_date": "2024-07-26",
}

Write = Callable[..., tuple[Path, str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of rows (or bytes); gives its path and its digest."""

    def written(content: list[Any] | bytes, name: str = "file.jsonl") -> tuple[Path, str]:
        path = tmp_path / name
        if isinstance(content, list):
            content = b"".join(json.dumps(row).encode() + b"\n" for row in content)
        path.write_bytes(content)
        return path, hashlib.sha256(content).hexdigest()

    return written


# Digests of the files as their SOURCE.txt describes them.
AIME_FILES = {
    "test2025-I.jsonl": (15, "fcdf97fe9bf3768e586c4f3b3d34d98a763893847e72234aa41e1ed5c67d977a"),
    "test2025-II.jsonl": (15, "69d966f7badd83a681d30efa9b4d587b4c692e4892b6ea5dc57d11d3934bf79a"),
    "second-source.jsonl": (30, "b672f9c6660b68dd42f5fc705b17405f24eaa9991c98991d63463c6b683468a8"),
}
LIVEBENCH_FILES = {
    "math/AMPS_Hard": (150, "90757eab54bfbbce4b1b814e715fce912637094adf3169436327e3930d616ce7"),
    "math/math_comp": (146, "652fe0afd7c0c75458b7a08e2aac835076b513be4edd7bb18e2f39e5cc38b3c0"),
    "math/olympiad": (72, "2f28392a08a921a0e4b6cd12957d9f2e161fb9df3191b9ad9b04de8609171a65"),
    "reasoning/spatial": (50, "dee517361a762c045de84ea11df8a080c91390238a897017489b29fcf1bb9113"),
    "reasoning/web_of_lies_v2": (
        50,
        "f4f22a565bbd477cf64cf7b50a10bae479e41cd223360452ff13d36c95af50f3",
    ),
    "reasoning/zebra_puzzle": (
        100,
        "cd3a829ba2526c0af181a6072cce0aef3fa519b84d532d0bf92dbb48de3d7b9e",
    ),
}


def test_a_configuration_names_the_forms_that_are_read() -> None:
    section = json.loads(schemas.text("config"))["properties"]["flywheel"]["properties"]
    assert section["files"]["items"]["properties"]["form"]["enum"] == [*problems.LOADERS]


@needs_shared
def test_the_paper_configuration_names_problem_files_as_they_are() -> None:
    config = Path(__file__).parents[2] / "config/paper-problems.yaml"
    section = yaml.safe_load(config.read_text())["flywheel"]
    schema = json.loads(schemas.text("config"))["properties"]["flywheel"]
    assert {*section} <= {*schema["properties"]}
    for entry in section["files"]:
        entry["path"] = str(SHARED / Path(entry["path"]).relative_to("data"))
    counts = Counter((row["family"], row["role"]) for row in flywheel_files.load(section))
    assert counts == {
        ("aime-2025-i", "file-test"): 15,
        ("aime-2025-ii", "file-test"): 15,
        ("livebench-math-comp", "file-library"): 60,
        ("livebench-math-comp", "file-test"): 40,
        ("livebench-zebra-puzzle", "file-library"): 20,
        ("livebench-zebra-puzzle", "file-test"): 20,
    }


@needs_shared
@pytest.mark.parametrize("name", AIME_FILES)
def test_the_shared_aime_files_load_with_integer_answers(name: str) -> None:
    count, pin = AIME_FILES[name]
    found = load_aime(SHARED / "aime2025" / name, pin)
    assert len(found) == count
    assert all(isinstance(p.answer, int) and 0 <= p.answer <= 999 for p in found)


@needs_shared
def test_two_transcriptions_of_one_contest_agree_on_every_answer() -> None:
    first, second, both = (
        [p.answer for p in load_aime(SHARED / "aime2025" / name, pin)]
        for name, (_, pin) in AIME_FILES.items()
    )
    assert first + second == both


@needs_shared
@pytest.mark.parametrize("name", LIVEBENCH_FILES)
def test_the_shared_livebench_files_load_with_release_and_category(name: str) -> None:
    count, pin = LIVEBENCH_FILES[name]
    found = load_livebench(SHARED / "livebench" / name / "question.jsonl", pin)
    assert len(found) == count
    assert {p.category for p in found} == {name}
    assert all(p.release is not None and p.release.startswith("2024-") for p in found)


@needs_shared
def test_answers_that_are_no_integers_keep_their_text() -> None:
    def kinds(name: str) -> Counter[type]:
        _, pin = LIVEBENCH_FILES[name]
        found = load_livebench(SHARED / "livebench" / name / "question.jsonl", pin)
        return Counter(type(p.answer) for p in found)

    assert set(kinds("reasoning/web_of_lies_v2")) == {str}
    assert set(kinds("math/math_comp")) == {int, str}


def test_a_row_becomes_a_problem(write: Write) -> None:
    assert load_aime(*write([AIME])) == (UserProblem("I-1", "What is 1 + 1?", 2, None, "aime"),)
    more = {"id": 7, "problem": "?", "expected_answer": 3, "release": "2025-02-06", "category": "x"}
    assert load_aime(*write([more])) == (UserProblem("7", "?", 3, "2025-02-06", "x"),)
    assert load_livebench(*write([LIVE])) == (
        UserProblem("aa", "How many corners has a cube?", 8, "2024-07-26", "reasoning/spatial"),
    )


@pytest.mark.parametrize(
    ("given_answer", "answer"),
    [
        ("025", 25),
        (" -3 ", -3),
        (12, 12),
        (12.0, 12),
        (0.5, "0.5"),
        ("12.0", "12.0"),
        ("A", "A"),
        ("1, 2", "1, 2"),
        ("٣", "٣"),
        ("9" * 40, "9" * 40),
    ],
)
def test_an_integer_answer_is_an_integer_and_any_other_is_text(
    write: Write, given_answer: object, answer: object
) -> None:
    (found,) = load_aime(*write([{**AIME, "answer": given_answer}]))
    assert (type(found.answer), found.answer) == (type(answer), answer)


def test_the_three_formats_of_livebench_give_the_same_problems(
    write: Write, tmp_path: Path
) -> None:
    rows = [LIVE, {**LIVE, "question_id": "bb", "ground_truth": "no, yes"}]
    by_lines = load_livebench(*write(rows))
    by_array = load_livebench(*write(json.dumps(rows, indent=1).encode(), "file.json"))
    day = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)
    table = pa.Table.from_pylist([{**row, "livebench_release_date": day} for row in rows])
    parquet.write_table(table, tmp_path / "made")
    by_table = load_livebench(*write((tmp_path / "made").read_bytes(), "file.parquet"))
    assert by_lines == by_array == by_table
    assert len(by_lines) == 2


def test_a_changed_byte_is_a_changed_input(write: Write) -> None:
    path, pin = write([AIME])
    path.write_bytes(path.read_bytes().replace(b'"2"', b'"3"'))
    with pytest.raises(InputChanged, match="not the pinned one"):
        load_aime(path, pin)
    with pytest.raises(InputChanged):
        load_livebench(path, pin)


def test_the_pin_is_compared_before_anything_is_read_from_the_rows(write: Write) -> None:
    path, _ = write(b"{not json")
    with pytest.raises(InputChanged):
        load_aime(path, "0" * 64)


@pytest.mark.parametrize("pin", ["", "0" * 63, "A" * 64, "0" * 64 + "\n"])
def test_a_pin_that_is_no_digest_is_refused(write: Write, pin: str) -> None:
    with pytest.raises(UnusableInput, match="no SHA-256"):
        load_aime(write([AIME])[0], pin)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (b"{not json", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"id": "x", "id": "y"}', "a key occurs twice"),
        (b"\xff", "not UTF-8"),
        ({**AIME, "id": ""}, "line 3, id"),
        ({**AIME, "id": None}, "line 3, id"),
        ({**AIME, "id": True}, "line 3, id"),
        ({"id": "I-2", "answer": "1"}, "line 3, problem"),
        ({**AIME, "id": "I-2", "problem": ["x"]}, "line 3, problem"),
        ({"id": "I-2", "problem": "x"}, "line 3, expected_answer"),
        ({**AIME, "id": "I-2", "answer": None}, "line 3, answer"),
        ({**AIME, "id": "I-2", "answer": [1]}, "line 3, answer"),
        ({**AIME, "id": "I-2", "answer": " "}, "line 3, answer"),
        ({**AIME, "id": "I-2", "release": "2025-02-30"}, "line 3, release"),
        ({**AIME, "id": "I-2", "release": "soon"}, "line 3, release"),
        ({**AIME, "id": "I-2", "category": 1}, "line 3, category"),
        (AIME, "an id occurs twice"),
    ],
)
def test_a_bad_aime_line_is_refused_by_its_number(write: Write, row: object, says: str) -> None:
    line = row if isinstance(row, bytes) else json.dumps(row).encode()
    content = json.dumps(AIME).encode() + b"\n\n" + line  # the blank line counts
    with pytest.raises(UnusableInput, match=says) as caught:
        load_aime(*write(content))
    assert "line 3" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"turns": []}, "0 turns"),
        ({"turns": ["a", "b"]}, "2 turns"),
        ({"turns": "a"}, "line 2, turns"),
        ({"turns": [1]}, "line 2, turns"),
        ({"ground_truth": None}, "line 2, ground_truth"),
        ({"task": None}, "line 2, task"),
        ({"category": 3}, "line 2, category"),
        ({"livebench_release_date": 20240624}, "line 2, livebench_release_date"),
        ({"question_id": "aa"}, "first at .*line 1"),
    ],
)
def test_a_bad_livebench_line_is_refused_by_its_number(
    write: Write, change: dict[str, object], says: str
) -> None:
    with pytest.raises(UnusableInput, match=says):
        load_livebench(*write([LIVE, {**LIVE, "question_id": "bb", **change}]))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"", "file.jsonl"),
        (b"\n\n", "file.jsonl"),
        (b"[]", "file.json"),
        (b"{}", "file.json"),
        (b"PAR1 is not enough", "file.parquet"),
        (b"", "file.parquet"),
        (b"a,b", "file.csv"),
    ],
)
def test_a_file_without_problems_or_of_another_format_is_refused(
    write: Write, content: bytes, name: str
) -> None:
    with pytest.raises(UnusableInput):
        load_livebench(*write(content, name))


def test_what_is_no_readable_regular_file_is_refused(tmp_path: Path, write: Write) -> None:
    for path in (tmp_path, tmp_path / "absent", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(UnusableInput):
            load_aime(path, "0" * 64)


def test_a_file_of_unbounded_length_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "MAX_BYTES", 10)
    with pytest.raises(UnusableInput, match="bounded length"):
        load_aime(*write([AIME]))


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_loaded(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    for suffix in (".jsonl", ".json", ".parquet"):
        path = tmp_path_factory.getbasetemp() / f"any{suffix}"
        path.write_bytes(data)
        with pytest.raises(UnusableInput):
            load_livebench(path, hashlib.sha256(data).hexdigest())
