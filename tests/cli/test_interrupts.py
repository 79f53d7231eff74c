"""An interrupt ends a command at any moment as exit 130 and one line, and none is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kvgraft

WORKFLOW = str(Path(kvgraft.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": WORKFLOW, "OMP_NUM_THREADS": "1"}

# Put in front of the module path, it interrupts the process when a named module is imported.
INTERRUPTER = """
import os, signal, sys
wanted = os.environ["INTERRUPT_AT"]
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
"""


def ended(arguments: list[str], **variables: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        env={**ENVIRONMENT, **variables},
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("program", "module"),
    [
        ("kvgraft", "kvgraft.cli"),
        ("kvgraft", "argparse"),
        ("kvgraft", "kvgraft.cli_store"),
        ("kvgraft", "numpy"),
        ("kvaudit", "kvaudit.cli"),
        ("kvaudit", "argparse"),
        ("kvaudit", "kvaudit.verify"),
        ("kvaudit", "numpy"),
    ],
)
def test_an_interrupt_during_an_import_is_exit_130_and_one_line(
    program: str, module: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER)
    calls = {"kvgraft": ["store", "fsck"], "kvaudit": ["verify", str(tmp_path)]}
    found = ended(
        ["-m", program, *calls[program]],
        PYTHONPATH=f"{tmp_path}{os.pathsep}{WORKFLOW}",
        KVGRAFT_STORE=str(tmp_path / "store"),
        INTERRUPT_AT=module,
    )
    assert found == (130, "", f"{program}: interrupted\n")


def command(body: str) -> list[str]:
    """A process whose command is `body`, run as `kvgraft` and `kvaudit` run theirs."""
    head = (
        "import ctypes, operator, os, signal, sys, threading, time\nfrom functools import partial"
    )
    text = f"{head}\nfrom kvaudit import interrupts\nreader, writer = os.pipe()\n"
    text += f"def main():\n{textwrap.indent(textwrap.dedent(body), '    ')}\n    return 0\n"
    return ["-c", f"{text}sys.exit(interrupts.run('it', lambda: main))"]


LOST = {
    # No bytecode lies between the signal and the call that waits, so the handler runs behind it.
    "just before a call that waits": """
        kill = partial(ctypes.CDLL(None)["raise"], signal.SIGINT)
        list(map(operator.call, [kill, partial(os.read, reader, 1)]))
    """,
    "taken by another thread": """
        thread = partial(signal.pthread_kill, 0, signal.SIGINT)
        def other():
            time.sleep(0.3)
            ctypes.CDLL(None)["raise"](signal.SIGINT)
        threading.Thread(target=other, daemon=True).start()
        os.read(reader, 1)
    """,
    "thrown away by a callback": """
        ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGINT))()
        os.read(reader, 1)
    """,
    "while a lock is waited for": """
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    """,
    "before a command of few steps": """
        ctypes.CDLL(None)["raise"](signal.SIGINT)
    """,
}


@pytest.mark.parametrize("name", LOST)
def test_no_interrupt_is_lost(name: str) -> None:
    assert ended(command(LOST[name])) == (130, "", "it: interrupted\n")


def test_what_is_cleaned_up_after_an_interrupt_is_not_interrupted_by_its_repetition() -> None:
    body = """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(9)
    finally:
        os.kill(os.getpid(), signal.SIGINT)  # as a wrapper that passes it on
        time.sleep(0.3)
        print("clean", flush=True)
    """
    assert ended(command(body)) == (130, "clean\n", "it: interrupted\n")


def test_a_second_interrupt_ends_at_once_what_does_not_end() -> None:
    body = """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(9)
    finally:
        print("waiting", flush=True)
        time.sleep(50)
    """
    process = subprocess.Popen(
        [sys.executable, *command(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"waiting\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.8)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"it: interrupted\n")


def test_a_job_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    text = command("os.kill(os.getpid(), signal.SIGINT)\nprint('done')")
    ignoring = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{text[1]}"
    assert ended(["-c", ignoring]) == (0, "done\n", "")
