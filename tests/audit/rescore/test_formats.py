"""Every format on a small file of our own: what is read, what is reported, and how it exits."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from kvaudit import cli, records, schemas
from kvaudit.errors import UnusableInput
from kvaudit.rescore import adapters, audit
from kvaudit.rescore.report import Figure, agrees

QWEN = [
    {"idx": 0, "gt": "045", "code": ["so \\boxed{45^\\circ}"], "pred": ["45"], "score": [True]},
    {"idx": 1, "gt": "27.0", "code": ["The total is 27"], "pred": ["27"], "score": [True]},
    {"idx": 2, "gt": "3", "code": ["\\boxed{4}"], "pred": ["4"], "score": [False]},
]
TORA = [
    {
        "idx": 0,
        "gt": "18",
        "code": ["```python\nprint(9 * 2)\n```\n```output\n18\n```\n$\\boxed{18}$ dollars"],
        "pred": ["18"],
    },
    {
        "idx": 1,
        "gt": "3",
        "code": [
            "```python\nfrom sympy import sqrt\nprint(float(sqrt(8)))\n```\n"
            "```output\n2.8284271247461903\n```\n\\boxed{3}"
        ],
        "pred": ["3"],
    },
]
QUESTIONS = [
    {"question_id": "a", "task": "math_comp", "ground_truth": "025", "turns": ["?"]},
    {"question_id": "b", "task": "olympiad", "ground_truth": "1,2,3", "turns": ["?"]},
]
NEMO = [
    {"problem": "?", "expected_answer": "1/2", "generation": "\\boxed{0.5}"}
    | {"predicted_answer": "0.5", "symbolic_correct": True},
    {"problem": "?", "expected_answer": 7, "generation": "no", "predicted_answer": None}
    | {"is_correct": False},
]
ARENA = [
    {"problem_idx": "1", "model_name": "m", "idx_answer": 0, "answer": "\\boxed{70}"}
    | {"gold_answer": "70", "parsed_answer": "70", "correct": True},
    {"problem_idx": "1", "model_name": "m", "idx_answer": 1, "answer": "\\boxed{71}"}
    | {"gold_answer": "70", "parsed_answer": "71", "correct": True},
    {"idx": 2, "gold_answer": "5", "answers": ["5", "6"], "correct": [True, False], "N": 2}
    | {"messages": [[{"role": "assistant", "content": f"\\boxed{{{n}}}"}] for n in (5, 6)]},
]
SAMPLES = [
    {"id": "a", "epoch": 1, "target": "4", "output": {"completion": "\\boxed{4}"}}
    | {"scores": {"match": {"value": "C", "answer": "4"}}},
    {"id": 2, "epoch": 1, "target": ["0.5", "1/2"], "output": {"completion": "\\boxed{\\frac12}"}}
    | {"scores": {"match": {"value": "I", "answer": "0.5"}}},
]
HEADER = {
    "version": 2,
    "status": "success",
    "results": {"scores": [{"name": "match", "metrics": {"accuracy": {"value": 0.5}}}]},
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def log(path: Path, method: int) -> Path:
    members = {"header.json": HEADER}
    members |= {f"samples/{s['id']}_epoch_1.json": s for s in SAMPLES}
    if method != 93:
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, value in members.items():
                archive.writestr(name, json.dumps(value))
        return path
    path.write_bytes(zstandard_zip({n: json.dumps(v).encode() for n, v in members.items()}))
    return path


def zstandard_zip(members: dict[str, bytes]) -> bytes:
    """An archive packed by method 93: one of stored members, with both headers rewritten."""
    import zstandard

    packed = {n: zstandard.ZstdCompressor().compress(data) for n, data in members.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in packed.items():
            archive.writestr(name, data)
        entries = archive.infolist()
    whole = bytearray(buffer.getvalue())
    place = whole.index(b"PK\x01\x02")
    for entry in entries:
        content = members[entry.filename]
        check = zlib.crc32(content).to_bytes(4, "little")
        sizes = len(packed[entry.filename]).to_bytes(4, "little") + len(content).to_bytes(
            4, "little"
        )
        at = entry.header_offset
        whole[at + 8 : at + 10] = whole[place + 10 : place + 12] = (93).to_bytes(2, "little")
        whole[at + 14 : at + 26] = whole[place + 16 : place + 28] = check + sizes
        place += 46 + len(entry.filename.encode())
    return bytes(whole)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["rescore", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_qwen_file_agrees_with_the_figure_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "test_cot_-1_seed0_t0.0_s0_e-1.jsonl", QWEN)
    (tmp_path / f"{path.stem}_cot_metrics.json").write_text('{"acc": 66.7}')
    code, out, _ = run(capsys, "--format", "qwen-math", path)
    assert code == 0
    assert "66.7 %" in out
    assert "last number 1" in out


def test_a_flipped_score_and_another_figure_are_both_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", [*QWEN[:2], QWEN[2] | {"score": [True]}])
    code, out, _ = run(capsys, "--format", "qwen-math", path, "--published", "100.0")
    assert code == 1
    assert "right as published, wrong by us" in out
    assert "the file says 1, the publisher's rule gives 0" in out
    assert "published 100.0, our rules 66.6667" in out


def test_a_tora_program_runs_again_with_sympy_and_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t.jsonl", TORA)
    code, out, _ = run(capsys, "--format", "tora", path, "--published", "100", "--json")
    found = json.loads(out)
    schemas.validate(found, "rescore-report", where="the report")
    assert code == 0
    assert found["programs"]["ending"] == {"printed": 2}
    assert found["programs"]["recorded"] == {"same": 2}
    assert found["programs"]["answer"] == {"same": 1, "rounded": 1}


def test_a_program_that_prints_another_thing_than_the_file_says_is_a_disagreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = TORA[0] | {"code": [TORA[0]["code"][0].replace("9 * 2", "9 * 3")]}  # type: ignore[index]
    path = write(tmp_path / "t.jsonl", [forged])
    code, out, _ = run(capsys, "--format", "tora", path)
    assert code == 1
    assert "1 programs do not print what the file says" in out
    assert run(capsys, "--format", "tora", path, "--no-programs")[0] == 0


def test_programs_see_nothing_of_each_other(tmp_path: Path) -> None:
    leave = "open('/tmp/note', 'w').write('x'); import sys; sys.modules['shared'] = 1; print(1)"
    look = "import os, sys; print(int(os.path.exists('/tmp/note') or 'shared' in sys.modules))"
    rows = [
        {
            "idx": i,
            "gt": "1",
            "code": [f"```python\n{text}\n```\n```output\n{n}\n```\n\\boxed{{1}}"],
        }
        for i, (text, n) in enumerate([(leave, 1), (look, 0)] * 3)
    ]
    report = audit.run("tora", write(tmp_path / "t.jsonl", rows), workers=1)
    assert {item.recorded for item in report.reruns or ()} == {"same"}


def test_livebench_is_read_with_its_questions_and_judgments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "question.jsonl", QUESTIONS)
    texts = {"a": "It is 025", "b": "Answer: 1, 2, 4"}
    judged = [{"question_id": q, "model": "m", "score": s} for q, s in (("a", 1), ("b", 2 / 3))]
    write(tmp_path / "model_judgment" / "ground_truth_judgment.jsonl", judged)
    path = write(
        tmp_path / "model_answer" / "m.jsonl",
        [
            {"question_id": q, "model_id": "m", "choices": [{"turns": [t]}]}
            for q, t in texts.items()
        ],
    )
    code, out, _ = run(capsys, "--format", "livebench", path)
    assert code == 0, out
    assert "83.33 %" in out


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, 93])
def test_a_log_of_inspect_is_read_however_it_is_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: int
) -> None:
    code, out, _ = run(capsys, "--format", "inspect", log(tmp_path / "x.eval", method))
    assert code == 1
    assert "published" in out
    assert "50.0 %" in out
    assert "problem 2: wrong as published, right by us" in out


def test_a_log_of_inspect_may_be_one_json_document(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(HEADER | {"samples": SAMPLES}))
    assert [s.ours for s in audit.run("inspect", path).scored] == [1.0, 1.0]


def test_nemo_skills_with_new_and_old_names_of_the_score(tmp_path: Path) -> None:
    report = audit.run("nemo-skills", write(tmp_path / "n.jsonl", NEMO))
    assert [s.row.published for s in report.scored] == [1.0, 0.0]
    assert report.exit_code == 0


def test_matharena_with_single_attempts_and_whole_runs(tmp_path: Path) -> None:
    report = audit.run("matharena", write(tmp_path / "m.jsonl", ARENA))
    assert [s.row.sample for s in report.scored] == [0, 1, 0, 1]
    assert [i.row.sample for i, _ in report.disagreements()] == [1]


def test_rows_are_written_as_records_that_conform(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(tmp_path / "t.jsonl", TORA), tmp_path / "rows.jsonl"
    run(capsys, "--format", "tora", path, "--no-programs", "--rows", out)
    rows = records.parse(out.read_bytes(), "rescore-row", where="rows.jsonl")
    assert rows[0]["program"] == "print(9 * 2)"
    assert rows[0]["printed"] == "18"
    assert rows[0]["golds"] == ["18"]


def test_a_stranger_adds_a_format_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "site"
    (package / "foreign-1.0.dist-info").mkdir(parents=True)
    (package / "foreign-1.0.dist-info" / "METADATA").write_text("Name: foreign\nVersion: 1.0\n")
    (package / "foreign-1.0.dist-info" / "entry_points.txt").write_text(
        "[kvaudit.rescore]\nforeign = foreign_adapter:ADAPTER\ntora = foreign_adapter:ADAPTER\n"
    )
    (package / "foreign_adapter.py").write_text(
        "from kvaudit.rescore import lines\nfrom kvaudit.rescore.rows import Row\n"
        "class Adapter:\n"
        "    name, summary, rule, above = 'foreign', 'pairs', None, 0\n"
        "    def rows(self, root, file):\n"
        "        for number, value in lines.read(root, file):\n"
        "            yield Row(number, value['id'], (value['gold'],), value['text'])\n"
        "    def published(self, root, file):\n        return None\n"
        "ADAPTER = Adapter()\n"
    )
    monkeypatch.syspath_prepend(str(package))
    path = write(tmp_path / "f.jsonl", [{"id": "p", "gold": 1.50, "text": "\\boxed{3/2}"}])
    assert "foreign" in run(capsys, "--list")[1]
    assert run(capsys, "--format", "foreign", path)[0] == 0
    assert adapters.load("tora").summary.startswith("ToRA"), "ours cannot be replaced"


def test_a_foreign_adapter_that_cannot_be_imported_is_one_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = EntryPoint("broken", "no_such_module:ADAPTER", adapters.GROUP)
    monkeypatch.setattr(adapters, "_foreign", lambda: {"broken": broken})
    with pytest.raises(UnusableInput, match="cannot be imported"):
        adapters.load("broken")


@pytest.mark.parametrize(
    ("figure", "right", "of", "agreed"),
    [
        ("84.3", 1112, 1319, True),
        ("84.31", 1112, 1319, True),
        ("84.4", 1112, 1319, False),
        ("32.5", 13, 40, True),
        ("33", 13, 40, True),
        ("32", 13, 40, True),
        ("31", 13, 40, False),
        ("0", 0, 30, True),
        ("100%", 30, 30, True),
    ],
)
def test_a_figure_is_compared_to_the_places_it_shows(
    figure: str, right: int, of: int, agreed: bool
) -> None:
    assert agrees(figure, Figure(float(right), of, of)) is agreed
