"""Hostile input: a clear error, or a row marked open; no hang, no crash, bounded memory."""

from __future__ import annotations

import io
import json
import resource
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvaudit import cli
from kvaudit.errors import EvidenceIncomplete, InputChanged, UnusableInput
from kvaudit.rescore import adapters, audit, equality, extract, lines
from kvaudit.rescore.equality import Oracle
from kvaudit.rescore.formats import archive, qwen_math
from kvaudit.rescore.rows import Row
from kvaudit.safefs import SafeRoot

ROW = {"idx": 0, "gt": "1", "code": ["\\boxed{1}"], "pred": ["1"], "score": [True]}
SECONDS = 2.0

OPEN = {
    "a power tower": "10**10**8",
    "a tower in LaTeX": "9^{9^{9^9}}",
    "a factorial": "123456789!",
    "five thousand digits": "9" * 5_000,
    "fifteen hundred digits": "9" * 1_500,
    "an exponent of many digits": "1e999999999",
    "an exponent beyond a float": "1e99999",
    "brackets in brackets": "(" * 400 + "1" + ")" * 400,
    "groups in groups": "{" * 900 + "1" + "}" * 900,
    "a thousand terms": "1+" * 900 + "1",
    "a thousand parts": ",".join(["1"] * 900),
    "a thousand equals": "=".join(["x"] * 900),
}
OTHER = {
    "not a number": "NaN",
    "a minus alone": "-",
    "an open root": "\\sqrt{",
    "a root of roots": "\\sqrt" * 250 + "2",
    "a null": "1\x00",
    "infinity": "\\infty",
    "a division by zero": "\\frac{1}{0}",
    "zero to zero's power": "0^0",
    "many signs": "-" * 40 + "2",
    "surrogates": "\ud800",
    "right to left": "\u202e1",
}


@pytest.mark.parametrize("answer", OPEN.values(), ids=OPEN)
def test_what_is_beyond_the_bounds_is_open_and_quick(answer: str) -> None:
    started = time.monotonic()
    assert equality.compare("1", answer, Oracle()).same is None
    assert equality.compare(answer, "1", Oracle()).same is None
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("answer", OTHER.values(), ids=OTHER)
def test_what_is_no_answer_is_not_equal_to_one(answer: str) -> None:
    started = time.monotonic()
    assert not equality.compare("1", answer, Oracle()).same
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 400_000,
        "\\boxed{" + "{" * 2_000_000,
        "answer is " * 300_000,
        "1," * 1_500_000,
        "-" * 3_000_000,
        "```" * 1_000_000,
        "<solution>" * 300_000,
        "$" * 2_000_000,
    ],
    ids=["boxes", "braces", "phrases", "commas", "minus", "fences", "marks", "dollars"],
)
def test_a_long_text_is_searched_in_two_seconds_of_processor_time(text: str) -> None:
    started = time.process_time()
    extract.extract(text)
    assert time.process_time() - started < SECONDS


BROKEN: dict[str, bytes] = {
    "not UTF-8": b'{"gt": "\xff"}\n',
    "not JSON": b"{,}\n",
    "a list": b"[1]\n",
    "a key twice": b'{"gt": "1", "gt": "2", "code": []}\n',
    "nested too deeply": b'{"gt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "no gold": b'{"code": ["1"]}\n',
    "no generations": b'{"gt": "1"}\n',
    "empty": b"",
    "blank lines": b"\n\n\n",
    "a gold that is a list": b'{"gt": [1], "code": ["1"]}\n',
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_not_of_its_format_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    assert cli.main(["rescore", "--format", "qwen-math", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_line_of_a_hundred_megabytes_is_refused_within_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnusableInput, match="the line is too long"):
        audit.run("qwen-math", path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 * 1024, f"{grown} KiB"


def test_many_short_lines_are_refused_beyond_the_bound_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n" * 50_000)
    monkeypatch.setattr(lines, "MAX_FILE_BYTES", 40_000)
    with pytest.raises(UnusableInput, match=r"the file is too long.*at most 40000 bytes"):
        audit.run("qwen-math", path)


def test_a_report_is_of_the_bytes_that_were_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(ROW) + "\n")

    class Slow(qwen_math.QwenMath):
        """Meanwhile somebody writes to the file."""

        def rows(self, root: SafeRoot, file: str) -> Iterator[Row]:
            path.write_text(json.dumps(ROW | {"gt": "2"}) + "\n")
            yield from super().rows(root, file)

    monkeypatch.setattr(adapters, "load", lambda name: Slow())
    with pytest.raises(InputChanged, match="changed while it was scored"):
        audit.run("qwen-math", path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "9" * 5_000, "1e999999"])
def test_a_number_that_is_none_harms_no_other_row(tmp_path: Path, number: str) -> None:
    path = tmp_path / "x.jsonl"
    bad = f'{{"idx": {number}, "gt": {number}, "code": ["\\\\boxed{{1}}"], "score": [{number}]}}'
    path.write_text(f"{json.dumps(ROW)}\n{bad}\n")
    report = audit.run("qwen-math", path)
    assert report.scored[0].ours == 1.0
    assert report.scored[1].ours != 1.0
    assert report.scored[1].row.published is None
    report.render()
    json.dumps(report.to_json(), allow_nan=False)


def test_a_row_that_is_there_twice_is_a_disagreement(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n" * 2)
    report = audit.run("qwen-math", path)
    assert report.exit_code == 1
    assert report.troubles() == ["problem 0, sample 0, occurs 2 times"]


def test_a_generation_that_is_no_text_is_unscorable_and_counts_as_wrong(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(ROW | {"code": [None]}) + "\n")
    report = audit.run("qwen-math", path)
    assert report.exit_code == 1
    assert report.figures()["ours"].percent == 0.0
    assert "unscorable" in report.render()


def test_control_characters_reach_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(ROW | {"idx": "\x1b[2J", "code": ["\\boxed{\x1b]0;x\x07}"]}) + "\n")
    assert "\x1b" not in audit.run("qwen-math", path).render()


@pytest.mark.parametrize("figure", ["101", "-1", "NaN", "1e1", "", "84,3", "9" * 100])
def test_a_figure_that_is_no_percentage_is_refused(tmp_path: Path, figure: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    with pytest.raises(UnusableInput, match="not a percentage"):
        audit.run("qwen-math", path, published=figure)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(UnusableInput):
        audit.run("qwen-math", tmp_path / "x.jsonl")
    with pytest.raises(EvidenceIncomplete):
        audit.run("qwen-math", tmp_path / "y.jsonl")


def damaged(data: bytes) -> dict[str, bytes]:
    """Archives that are none."""
    return {
        "cut": data[: len(data) // 2],
        "no header": zipped({"samples/a.json": b"{}"}),
        "another checksum": data.replace(b'"version"', b'"Version"', 1),
        "not a ZIP": b"PK\x03\x04" + b"\x00" * 100,
    }


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


WHOLE = zipped({"header.json": b'{"version": 2}', "samples/a.json": b'{"id": "a", "target": "1"}'})


@pytest.mark.parametrize("data", damaged(WHOLE).values(), ids=damaged(WHOLE))
def test_a_damaged_log_is_one_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.eval").write_bytes(data)
    with pytest.raises(UnusableInput):
        audit.run("inspect", tmp_path / "x.eval")


def test_a_member_that_unpacks_to_much_more_than_it_says_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 1 << 20)
    data = zipped({"header.json": b" " * (8 << 20)}, zipfile.ZIP_DEFLATED)
    (tmp_path / "x.eval").write_bytes(data)
    with pytest.raises(UnusableInput, match="too long"):
        audit.run("inspect", tmp_path / "x.eval")


def overlapping(shared: int) -> bytes:
    """An archive in which `shared` members have one local header, and with it one content."""
    content = b'{"id": "a", "target": "1"}' + b" " * 1_000_000
    names = [f"samples/{n:02}.json" for n in range(shared)]
    data = zipped({"header.json": b"{}", names[0]: content}, zipfile.ZIP_DEFLATED)
    (end,) = (i for i in range(len(data)) if data.startswith(b"PK\x05\x06", i))
    entries = [i for i in range(end) if data.startswith(b"PK\x01\x02", i)]
    header, entry = data[entries[0] : entries[1]], data[entries[1] : end]
    more = [entry.replace(names[0].encode(), name.encode()) for name in names]
    directory = b"".join([header, *more])
    count, start = len(more) + 1, entries[0]
    tail = count.to_bytes(2, "little") * 2 + len(directory).to_bytes(4, "little")
    return data[:start] + directory + data[end : end + 8] + tail + data[end + 16 :]


def test_members_that_share_bytes_are_refused(tmp_path: Path) -> None:
    data = overlapping(10)
    assert len(data) < 4_000
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert sum(member.file_size for member in file.infolist()) > 10_000_000
    (tmp_path / "x.eval").write_bytes(data)
    with pytest.raises(UnusableInput, match="two members of the archive share bytes"):
        audit.run("inspect", tmp_path / "x.eval")


def test_an_archive_that_unpacks_to_too_much_in_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample: dict[str, Any] = {
        "id": "a",
        "target": "1",
        "output": {"completion": "1" + " " * 10_000},
    }
    members = {f"samples/{n}.json": json.dumps(sample).encode() for n in range(20)}
    path = tmp_path / "x.eval"
    path.write_bytes(zipped({"header.json": b"{}", **members}, zipfile.ZIP_DEFLATED))
    assert len(audit.run("inspect", path).scored) == 20
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 100_000)
    with pytest.raises(UnusableInput, match="unpacks to too much"):
        audit.run("inspect", path)


def test_a_program_that_fights_is_ended_and_told() -> None:
    texts: dict[str, Callable[[str], bool]] = {
        "while True: pass": lambda ending: ending == "timeout",
        "x = [0] * 10**10": lambda ending: ending == "memory",
        "while True: print('x' * 1000)": lambda ending: ending == "output flood",
        "import socket; socket.socket()": lambda ending: ending == "error",
    }
    from kvaudit.rescore import programs
    from kvaudit.sandbox import Sandbox

    with Sandbox(programs.LIMITS, 2) as sandbox:
        for text, ran in zip(texts, sandbox.run_all(texts), strict=True):
            assert texts[text](ran.ending), (text, ran.ending)


def test_numbers_keep_their_spelling() -> None:
    value = lines.loads(b'{"a": 27.0, "b": 010e1}'.replace(b"010e1", b"1E+5"), where="x")
    assert value == {"a": "27.0", "b": "1E+5"}


def test_a_program_may_import_the_named_packages_and_change_nothing_in_them() -> None:
    from kvaudit.rescore import programs, symbolic
    from kvaudit.sandbox import Sandbox

    look = (
        "import os, sympy\nprint(sorted(os.listdir('/python/packages')))\n"
        "try:\n    open(sympy.__file__, 'a')\nexcept OSError: print('read-only')\n"
        "try:\n    import numpy\nexcept ImportError: print('nothing else')\nprint(sympy.sqrt(8))"
    )
    with Sandbox(programs.LIMITS, 1, symbolic.packages()) as sandbox:
        printed = sandbox.run(look).output.decode().splitlines()
        assert printed == ["['mpmath', 'sympy']", "read-only", "nothing else", "2*sqrt(2)"]
    with Sandbox(programs.LIMITS, 1) as sandbox:
        assert sandbox.run("import sympy").ending == "error"
