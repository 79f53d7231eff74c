"""What holds for every test, and what many need."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # envswork, which several folders share

from kvaudit import cli
from kvaudit.errors import SandboxUnavailable
from kvaudit.sandbox import Sandbox


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """What a shell starts in the background ignores signals, and so would every command here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hangup)


@pytest.fixture(scope="session")
def isolation() -> None:
    """Skips a test that runs programs where this machine cannot isolate them."""
    try:
        Sandbox(workers=1).close()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def audit(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process; returns exit code, standard output and standard error."""

    def command(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return command
