"""`kvgraft problems`: the contest set and problem files from the command line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvaudit import manifest, records
from kvaudit.flywheel.records import PROBLEMS
from kvaudit.problems.family import instance
from kvaudit.problems.registry import FAMILIES, by_name
from kvgraft import flywheel_files

ROWS = [
    {"id": "I-1", "problem": "What is 1 + 1?", "answer": "2"},
    {
        "id": "I-2",
        "problem": f"Find a prime{', then another' * 20}, and then the last of them?",
        "answer": "two",
    },
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "aime.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("arguments", [[], ["ls"], ["show"], ["check"]], ids=" ".join)
def test_help_has_an_example(arguments: list[str], command: Any) -> None:
    done = command("problems", *arguments, "--help")
    assert (done.code, done.err) == (0, "")
    assert "example:\n  kvgraft problems " in done.out


def test_ls_lists_every_family_with_its_difficulty(command: Any) -> None:
    done = command("problems", "ls", "--json")
    assert [one["name"] for one in done.json] == [family.name for family in FAMILIES]
    assert {one["difficulty"] for one in done.json} <= {1, 2, 3, 4, 5}
    lines = command("problems", "ls").out.splitlines()
    assert len(lines) == 31
    assert lines[1].split() == ["multiples-of-either", "number", "theory", "parametric", "1"]


def test_show_gives_the_problem_that_family_and_seed_name(command: Any) -> None:
    made = instance(by_name("snail-in-well"), "one/7")
    done = command("problems", "show", "snail-in-well", "one/7", "--json")
    assert done.json["statement"] == made.statement
    assert (done.json["answer"], done.json["params"]) == (made.answer, dict(made.params))
    assert done.json["program"] == made.family.program(made.params)
    text = command("problems", "show", "snail-in-well", "one/7").out
    assert made.statement in text
    assert text.endswith(f"answer     {made.answer}\n")


def test_check_prints_the_digest_to_pin_and_holds_a_file_to_it(command: Any, file: Path) -> None:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    done = command("problems", "check", file, "--json")
    assert done.json == {
        "sha256": digest,
        "pinned": False,
        "problems": 2,
        "integer_answers": 1,
        "categories": {"aime": 2},
        "released": [],
    }
    done = command("problems", "check", file, "--sha256", digest)
    assert (done.code, done.out.splitlines()[0]) == (0, f"sha256    {digest}, as pinned")


@pytest.fixture
def run(tmp_path: Path, file: Path) -> Path:
    """As much of a run's folder as its own makers write before a model is asked of this file."""
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    entry = {"name": "mine", "path": str(file), "form": "aime", "sha256": sha256}
    value = {"stages": ["flywheel"], "models": ["tiny"], "flywheel": {"files": [entry]}}
    folder = tmp_path / "run"
    (folder / "flywheel/tiny/records").mkdir(parents=True)
    inputs = manifest.build_inputs(
        configuration_name="mine",
        configuration=value,
        source={"commit": None, "dirty": None, "files": {}},
        models=[
            {
                **{"name": "tiny", "sha256": sha256, "bytes": 1},
                **{"architecture": "llama", "quantisation": "F32"},
            }
        ],
        profiles={},
        environment=manifest.environment((), {}),
        registration=None,
    )
    manifest.write(folder / manifest.INPUTS, inputs)
    head = {"kind": "flywheel-problem", "version": 1, "model": "tiny"}
    rows = [{**head, **row} for row in flywheel_files.load(value["flywheel"])]
    records.write(folder / "flywheel/tiny" / PROBLEMS, "flywheel-problem", rows)
    return folder


def test_records_of_a_run_are_held_against_the_file_that_it_asked(
    command: Any, refused: Callable[..., str], file: Path, run: Path
) -> None:
    done = command("problems", "check", file, "--run", run)
    assert done.out.splitlines()[-1] == "run       tiny has 2, as the file has them"
    path = run / "flywheel/tiny" / PROBLEMS
    path.write_bytes(path.read_bytes().replace(b'"answer":2', b'"answer":3'))
    line = refused(2, "problems", "check", file, "--run", run)
    assert "a record is not the file's own" in line
    assert "problem 1 of the file, answer; expected 2; found 3" in line
    file.write_text(json.dumps(ROWS[0]) + "\n")
    assert "the run asked no such file" in refused(2, "problems", "check", file, "--run", run)


def _altered(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def _piped(path: Path) -> None:
    """A pipe that nobody writes to; whoever opens it as a file waits for ever."""
    path.unlink()
    os.mkfifo(path)


def _linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            lambda path: _altered(path, b" the last of them?", b" the last of these?"),
            2,
            "statement; expected …then the last of them?'; found …then the last of these?'",
        ),
        (lambda path: _altered(path, b'"release":null,', b""), 0, ""),
        (
            lambda path: path.write_bytes(path.read_bytes().splitlines(True)[0]),
            2,
            "as many problems of the file as its settings say; at flywheel/tiny/records/"
            "problems.jsonl; expected 2; found 1",
        ),
        (_piped, 2, "flywheel/tiny/records/problems.jsonl"),
        (_linked, 2, "flywheel/tiny/records/problems.jsonl"),
        (lambda path: path.unlink(), 3, "flywheel/tiny/records/problems.jsonl"),
    ],
    ids=["a late word", "no release", "a record less", "a pipe", "a link", "no records"],
)
def test_the_first_difference_between_a_run_and_its_file_is_named(
    command: Any,
    refused: Callable[..., str],
    file: Path,
    run: Path,
    change: Callable[[Path], Any],
    code: int,
    message: str,
) -> None:
    change(run / "flywheel/tiny" / PROBLEMS)
    if code:
        assert message in refused(code, "problems", "check", file, "--run", run)
    else:
        assert command("problems", "check", file, "--run", run).code == 0


def test_what_cannot_be_shown_or_read_is_refused_in_a_line(
    refused: Callable[..., str], file: Path
) -> None:
    assert "no family has this name" in refused(2, "problems", "show", "nothing", "1")
    assert "a seed is a line" in refused(2, "problems", "show", "snail-in-well", "")
    assert "cannot be read" in refused(2, "problems", "check", file.with_name("absent"))
    assert "not the pinned one" in refused(1, "problems", "check", file, "--sha256", "0" * 64)
    assert "unknown format" in refused(
        2, "problems", "check", file.rename(file.with_suffix(".txt")), "--form", "livebench"
    )
    file.write_text("{}\n")
    assert "line 1, id" in refused(2, "problems", "check", file)
