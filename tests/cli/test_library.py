"""`kvgraft deposit`, `library` and `ask`: what they print, refuse, and leave on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvgraft
from kvaudit import canonical, digests
from kvaudit.errors import ToolMissing
from kvaudit.sandbox import Sandbox
from kvgraft import cli_render
from kvgraft.asking import Reply
from kvgraft.cli_library import Shown
from kvgraft.library import Library
from kvgraft.templates import Template

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(kvgraft.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}
STATEMENT = "How many pairs can be formed from 17 cards?"
PROGRAM = "n = 17\nprint(n * (n - 1) // 2)\n"
OTHER = "A hall has 12 doors, each with 4 locks.\nHow many locks are there?"
Refused = Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def _isolation() -> None:
    try:
        Sandbox().close()
    except ToolMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def made(pristine: Any, command: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A library of two deposits on the tiny llama, and how the first command ended; read-only."""
    folder = tmp_path_factory.mktemp("library")
    root, program = folder / "lib", folder / "solve.py"
    program.write_text(PROGRAM)
    call = ("deposit", root, "--program", program, "--author", "Ada")
    first = command(
        *(*call, "--statement", STATEMENT, "--answer", 136, "--model", pristine.llama), "--json"
    )
    assert first.code == 0, first.err
    program.write_text("print(12 * 4)")
    second = command(*call, "--statement", OTHER, "--answer", 48, "--model", pristine.llama)
    assert second.code == 0, second.err
    entries = Library.open(root).entries()
    return SimpleNamespace(
        root=root, model=pristine.llama, first=first.json, second=second.out, entries=entries
    )


def test_deposits_make_and_fill_a_library(made: Any) -> None:
    one, two = made.entries
    assert made.first == {
        "library": str(made.root),
        "is_new_library": True,
        "entry": json.loads(canonical.dumps(one.to_json())),
    }
    assert (one.statement, one.program, one.answer) == (STATEMENT, PROGRAM, 136)
    assert one.source.to_json()["author"] == "Ada"
    assert made.second.splitlines() == [
        f"entry    {two.id}",
        "answer   48, printed by its program",
        f"block    {two.block_id}",
        f"library  {made.root}",
    ]


def test_the_block_of_a_deposit_is_one_like_any_other(made: Any, command: Any) -> None:
    store, one = ("--store", made.root / "blocks"), made.entries[0]
    shown = command("inspect", one.block_id[:8], *store, "--model", made.model).out
    assert "source    deposit\n" in shown.replace("source   ", "source    ").replace(
        "     ", "    "
    )
    assert f"Problem: {STATEMENT}" in shown
    graft = ("graft", one.block_id[:8], "Answer:", *store, "--model", made.model)
    done = command(*graft, "--check", "--max-tokens", 2, "--json")
    assert (done.code, done.json["exact"], done.json["check"]["equal"]) == (0, True, True)


def test_ls_lists_in_the_order_of_deposits(made: Any, command: Any) -> None:
    one, two = made.entries
    assert command("library", "ls", made.root).out.splitlines() == [
        f"{one.id}     136  {STATEMENT}",
        f"{two.id}      48  {OTHER.splitlines()[0]}\\nHow many locks are there?",
    ]
    found = command("library", "ls", made.root, "--json").json
    assert [entry["id"] for entry in found] == [one.id, two.id]


def test_show_shows_all_of_a_deposit(made: Any, command: Any) -> None:
    two = made.entries[1]
    lines = command("library", "show", made.root, two.id[:6]).out.splitlines()
    assert lines == [
        f"entry      {two.id}",
        "statement  A hall has 12 doors, each with 4 locks.",
        "           How many locks are there?",
        "program    print(12 * 4)",
        "answer     48",
        "source     supplied by Ada",
        f"output     sha256 {digests.sha256_bytes(b'48' + bytes([10]))}",
        "admission  not measured",
        f"block      {two.block_id}",
    ]
    found = command("library", "show", made.root, two.id, "--json").json
    held = {"has_block": True, "has_child": None}
    assert found == {**json.loads(canonical.dumps(two.to_json())), **held}


def test_an_example_is_kept_shown_and_carried(made: Any, command: Any, tmp_path: Path) -> None:
    root, program, example = tmp_path / "lib", tmp_path / "p.py", tmp_path / "e.py"
    program.write_text(PROGRAM)
    example.write_text(PROGRAM.replace("17", "9"))
    call = ("deposit", root, "--statement", STATEMENT, "--program", program, "--answer", 136)
    more = ("--example-statement", STATEMENT.replace("17", "9"), "--example-program", example)
    last = ("--example-answer", 36, "--author", "Ada", "--model", made.model)
    done = command(*call, *more, *last)
    assert done.code == 0, done.err
    (entry,) = Library.open(root).entries()
    shown = entry.demonstration
    assert shown is not None
    assert done.out.splitlines() == [
        f"entry    {entry.id}",
        "answer   136, printed by its program",
        "example  36, printed by its program",
        f"block    {entry.block_id}",
        f"child    {shown.block_id}, of the example",
        f"library  {root} (new)",
    ]
    lines = command("library", "show", root, entry.id).out.splitlines()
    assert lines[-6:] == [
        "example    How many pairs can be formed from 9 cards?",
        "program    n = 9",
        "           print(n * (n - 1) // 2)",
        "answer     36",
        f"output     sha256 {digests.sha256_bytes(b'36' + bytes([10]))}",
        f"child      {shown.block_id}",
    ]
    assert command("library", "show", root, entry.id, "--json").json["has_child"] is True
    assert command("library", "export", root, tmp_path / "a.tar").code == 0
    done = command("library", "import", tmp_path / "a.tar", tmp_path / "b", "--model", made.model)
    assert "blocks of 1 entries computed again and equal" in done.out
    Library.open(root).blocks.path(shown.block_id).unlink()
    assert command("library", "show", root, entry.id).out.endswith(f"{shown.block_id}  MISSING\n")


def test_a_template_is_shown(made: Any) -> None:
    entry = replace(made.entries[0], template=Template(PROGRAM, ("n", 2)))
    lines = cli_render.shown(Shown(entry, has_block=True, has_child=None)).splitlines()
    assert lines[-3:] == [
        "template   n = 17",
        "           print(n * (n - 1) // 2)",
        "numbers    n, 2",
    ]


@pytest.mark.parametrize("given", [(), ("--without-model",)])
def test_an_archive_travels(given: tuple[str], made: Any, command: Any, tmp_path: Path) -> None:
    archive, other = tmp_path / "lib.tar", tmp_path / "other"
    found = command("library", "export", made.root, archive, "--json").json
    assert found == {
        "path": str(archive),
        "entries": 2,
        "blocks": 2,
        "bytes": archive.stat().st_size,
        "sha256": digests.sha256_file(archive),
    }
    model = given or ("--model", made.model)
    done = command("library", "import", archive, other, *model)
    assert (done.code, done.err) == (0, "")
    compared = 0 if given else 2
    assert done.out.splitlines() == [
        *(f"taken    {entry.id}" for entry in made.entries),
        f"2 taken, 0 present, 0 refused; blocks of {compared} entries computed again and equal, "
        "of 0 replaced",
    ]
    again = command("library", "import", archive, other, *model, "--json").json
    assert (again["taken"], again["present"]) == ([], [entry.id for entry in made.entries])
    assert command("library", "export", other, tmp_path / "b.tar").code == 0
    assert (tmp_path / "b.tar").read_bytes() == archive.read_bytes()


def test_an_import_that_refuses_an_entry_ends_with_1(
    made: Any, command: Any, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(made.root, tmp_path / "lib"))
    two = made.entries[1]
    path = root / "entries" / f"{two.id}.json"
    value = json.loads(path.read_bytes())
    value["program"] = "import os\nprint(len(os.listdir('/home')))"
    other = ("kind", "version", "id", "admission", "order")
    value["id"] = digests.sha256_json({k: v for k, v in value.items() if k not in other})
    path.unlink()
    path.with_name(f"{value['id']}.json").write_bytes(canonical.dumps(value) + b"\n")
    assert command("library", "export", root, tmp_path / "bad.tar").code == 0
    call = ("library", "import", tmp_path / "bad.tar", tmp_path / "new", "--model", made.model)
    done = command(*call)
    assert done.code == 1
    assert f"REFUSED  entries/{value['id']}.json: the program does not print the answer" in done.out
    assert "1 taken, 0 present, 1 refused" in done.out
    assert [one.id for one in Library.open(tmp_path / "new").entries()] == [made.entries[0].id]


def test_a_program_that_prints_something_else_makes_no_library(
    made: Any, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text("print(135)")
    call = ("deposit", tmp_path / "lib", "--statement", STATEMENT, "--program", tmp_path / "p.py")
    line = refused(1, *call, "--answer", 136, "--author", "Ada", "--model", made.model)
    assert "the program does not print the answer" in line
    assert "expected 136; found the answer 135" in line
    assert not (tmp_path / "lib").exists()


REFUSED: list[tuple[list[str], str]] = [
    (["library"], "the following arguments are required: ACTION"),
    (["library", "ls", ""], "the name is empty"),
    (["library", "ls", "NONE"], "the directory cannot be opened; at"),
    (["library", "ls", "EMPTY"], "the folder holds no library; at"),
    (["library", "show", "LIB", "ab"], "no entry or several entries have an id that begins so"),
    (["library", "export", "LIB", "EMPTY/none/a.tar"], "No such file or directory"),
    (["library", "export", "LIB", "LIB/library.json"], "the destination exists already"),
    (["library", "import", "NONE", "NEW"], "the archive cannot be opened"),
    (["library", "import", "LIB", "NEW"], "the archive is not a regular file"),
    (["library", "import", "LIB/library.json", "NEW"], "the archive does not end as one"),
    (["ask", "LIB"], "the following arguments are required: QUESTION"),
    (["ask", "LIB", ""], "the question is empty"),
    (["ask", "NONE", "why?"], "the directory cannot be opened"),
    (["ask", "LIB", "why?"], "the library's model is none of the embedded ones"),
    (["ask", "LIB", "why?", "--model", "OTHER"], "the library is of another model"),
    (["deposit", "LIB"], "required: --statement, --program, --answer, --author"),
    (["DEPOSIT", "LIB", "--answer", "x"], "invalid int value: 'x'"),
    (["DEPOSIT", "LIB", "--answer", "136", "--example-answer", "3"], "an example has three parts"),
    (["DEPOSIT", "NEW", "--answer", "136"], "there is no library yet; at"),
    (["DEPOSIT", "LIB", "--answer", "136"], "the library's model is none of the embedded ones"),
    (["DEPOSIT", "LIB", "--answer", "136", "--model", "OTHER"], "the library is of another model"),
    (["DEPOSIT", "EMPTY/..", "--answer", "136", "--model", "MODEL"], "made in an empty folder"),
    (["LONG", "NEW", "--answer", "136", "--model", "MODEL", "--n-ctx", "256"], "larger --n-ctx"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_a_refusal_is_one_line(
    arguments: list[str],
    message: str,
    made: Any,
    pristine: Any,
    refused: Refused,
    tmp_path: Path,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "p.py").write_text(PROGRAM)
    names = {
        "LIB": made.root,
        "NONE": tmp_path / "none",
        "NEW": tmp_path / "new",
        "EMPTY": tmp_path / "empty",
        "OTHER": pristine.gemma3,
        "MODEL": made.model,
    }
    given: list[Any] = []
    for one in arguments:
        head, slash, rest = one.partition("/")
        given.append(f"{names[head]}{slash}{rest}" if head in names else one)
    if given[0] in ("DEPOSIT", "LONG"):
        statement = STATEMENT * (9 if given[0] == "LONG" else 1)
        more = ("--statement", statement, "--program", tmp_path / "p.py", "--author", "Ada")
        given = ["deposit", *given[1:], *more]
    assert message in refused(2, *given)
    assert len(Library.open(made.root)) == 2
    assert not (tmp_path / "new").exists()


def test_no_program_runs_where_there_is_no_isolation(
    made: Any, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    call = ("deposit", made.root, "--statement", STATEMENT, "--program", tmp_path / "p.py")
    line = refused(3, *call, "--answer", 136, "--author", "Ada", env={"PATH": ""})
    assert "bubblewrap" in line


def test_ask_says_how_it_answered(made: Any, command: Any) -> None:
    call = ("ask", made.root, STATEMENT, "--model", made.model)
    done = command(*call, "--json")
    assert done.code == 0, done.err
    assert done.json["route"] in ("recurrence", "adapted", "abstained")
    assert {"answer", "entry_id", "reason", "program", "exact"} <= set(done.json)
    lines = command(*call).out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["answer", "route", "entry", "reason"]


def test_a_declined_question_that_restored_nothing_has_no_bytes_to_be_exact() -> None:
    said = Reply(None, None, "abstained", "why")
    assert "exact   -\n" in cli_render.replied(said)
    assert "exact   no\n" in cli_render.replied(replace(said, cached_tokens=7))
    assert "exact   yes\n" in cli_render.replied(replace(said, cached_tokens=7, exact=True))


def test_a_question_that_is_too_long_is_declined_with_exit_0(
    made: Any, command: Any, tmp_path: Path
) -> None:
    done = command("ask", made.root, STATEMENT + " word" * 3000, "--model", made.model, "--json")
    assert (done.code, done.json["route"]) == (0, "abstained"), done


# -- care -----------------------------------------------------------------------------------------


@pytest.fixture
def copy(made: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.root, tmp_path / "copy"))


def test_rm_removes_deposits_and_gc_what_a_dead_writer_left(
    made: Any, copy: Path, command: Any, refused: Refused
) -> None:
    one, two = made.entries
    assert "no entry or several" in refused(2, "library", "rm", copy, one.id[:8], "00000000")
    done = command("library", "rm", copy, one.id[:8])
    assert (done.code, done.out) == (0, f"removed  {one.id}\n")
    assert Library.open(copy).entries() == (two,)
    Library.open(copy).path(two.id).unlink()  # as a removal does that dies behind it
    done = command("library", "fsck", copy)
    assert done.code == 0
    assert f"unnamed  {two.block_id}: no entry names this block\n" in done.out
    assert command("library", "gc", copy, "--json").json == {"removed": [two.block_id]}
    assert command("library", "gc", copy).out == "0 blocks removed\n"
    assert "required: ENTRY" in refused(2, "library", "rm", copy)


def test_what_cannot_be_read_is_named_and_stops_nothing_else(
    made: Any, copy: Path, command: Any
) -> None:
    one, two = made.entries
    Library.open(copy).path(two.id).write_bytes(b"{}")
    lines = command("library", "ls", copy).out.splitlines()
    assert lines[0] == f"{one.id}     136  {STATEMENT}"
    assert lines[1].startswith(f"{two.id}  UNREADABLE  ")
    found = command("library", "ls", copy, "--json").json
    assert [row["id"] for row in found] == [one.id, two.id]
    assert two.id in found[1]["unreadable"]
    done = command("library", "fsck", copy)
    assert done.code == 1
    assert f"UNREADABLE  entries/{two.id}.json: " in done.out
    assert "1 entries sound, 1 unreadable, 0 blocks missing" in done.out
    assert command("library", "fsck", copy, "--json").json["clean"] is False
    done = command("ask", copy, STATEMENT, "--model", made.model, "--json")
    assert (done.code, done.json["entry_id"]) == (0, one.id)
    assert done.json["warnings"][0].startswith(f"skipped entries/{two.id}.json: ")
    assert command("library", "show", copy, one.id).code == 0
    assert command("library", "rm", copy, two.id).code == 0
    assert command("library", "fsck", copy).code == 0


def test_a_library_is_calibrated_from_foreign_questions(
    made: Any, copy: Path, command: Any, refused: Refused, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("\n".join(f"How many cards has hall {n}?" for n in range(19)) + "\n\n")
    call = ("library", "calibrate", copy, foreign, "--model", made.model)
    lines = command(*call).out.splitlines()
    assert [line.split()[0] for line in lines] == ["threshold", "alpha", "questions", "entries"]
    assert lines[2].split() == ["questions", "19"]
    assert lines[3].split()[1] == Library.open(copy).membership()
    before = Library.open(copy).facts
    line = refused(2, *call, "--alpha", "0.04")
    assert "expected at least 24 questions for 0.04; found 19" in line
    assert Library.open(copy).facts == before
    assert "invalid probability value: '2'" in refused(2, *call, "--alpha", "2")
    foreign.write_text(STATEMENT)
    assert "repeats an entry's statement" in refused(2, *call, "--alpha", "0.5")


def side_by_side(calls: list[tuple[object, ...]]) -> list[tuple[int, str]]:
    """Exit code and standard error of commands that run at the same time."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "kvgraft", *map(str, call)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for call in calls
    ]
    found = [(one, one.communicate(timeout=120)[1]) for one in started]
    return [(one.returncode, err) for one, err in found]


def test_two_first_deposits_side_by_side_both_enter(made: Any, tmp_path: Path) -> None:
    calls: list[tuple[object, ...]] = []
    for n in (3, 5):
        program = tmp_path / f"{n}.py"
        program.write_text(f"print({n})")
        call = ("deposit", tmp_path / "lib", "--program", program, "--author", "Ada")
        calls.append((*call, "--statement", f"Say {n}", "--answer", n, "--model", made.model))
    assert side_by_side(calls) == [(0, ""), (0, "")]
    assert {entry.answer for entry in Library.open(tmp_path / "lib").entries()} == {3, 5}


def test_two_first_imports_side_by_side_both_end_well(
    made: Any, command: Any, tmp_path: Path
) -> None:
    command("library", "export", made.root, tmp_path / "a.tar")
    call = ("library", "import", tmp_path / "a.tar", tmp_path / "lib", "--model", made.model)
    assert side_by_side([call, call]) == [(0, ""), (0, "")]
    assert Library.open(tmp_path / "lib").entries() == made.entries


def test_a_context_beyond_the_model_is_refused(made: Any, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    call = ("deposit", tmp_path / "lib", "--statement", STATEMENT, "--program", tmp_path / "p.py")
    more = ("--answer", 136, "--author", "Ada", "--model", made.model, "--n-ctx", 1 << 24)
    assert "more n_ctx than the model was trained for" in refused(2, *call, *more)
    assert not (tmp_path / "lib").exists()


HELPED = [["deposit"], ["ask"], ["library"]]
HELPED += [
    ["library", action]
    for action in ("ls", "show", "export", "import", "rm", "fsck", "gc", "calibrate")
]


@pytest.mark.parametrize("arguments", HELPED, ids=" ".join)
def test_help_has_an_example_and_the_exit_codes(arguments: list[str], command: Any) -> None:
    done = command(*arguments, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"example:\n  kvgraft {arguments[0]}" in done.out
    assert "  2  unusable input" in done.out


def test_a_reply_reads_well() -> None:
    reply: Any = SimpleNamespace(
        answer=136,
        entry_id="ab" * 32,
        route="adapted",
        reason="every number\nis bound",
        program=PROGRAM,
        decoded_tokens=31,
        prompt_tokens=40,
        cached_tokens=210,
        exact=True,
        warnings=("skipped entries/x.json: it\nis odd",),
    )
    assert cli_render.replied(reply).splitlines() == [
        "answer   136",
        "route    adapted",
        f"entry    {'ab' * 32}",
        "reason   every number\\nis bound",
        "tokens   31 decoded, 40 read, 210 restored",
        "exact    yes",
        "warning  skipped entries/x.json: it\\nis odd",
        "program  n = 17",
        "         print(n * (n - 1) // 2)",
    ]
    reply.answer = reply.entry_id = reply.program = None
    reply.warnings = ()
    reply.route = "abstained"
    assert cli_render.replied(reply).startswith("answer  none\nroute   abstained\nentry   none\n")
