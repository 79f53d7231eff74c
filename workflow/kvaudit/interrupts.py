"""Makes an interrupt end a command at any moment: as exit 130, with one line.

The interpreter alone loses some: one that arrives just before a system call that waits (its handler
runs only after the call), one that another thread takes, and one whose exception is raised where it
is thrown away, in a callback of a foreign library. Here a thread is told of every interrupt by the
interpreter's wake-up descriptor, and repeats it to the main thread until its exception was raised
for good. This module must not know what is interrupted; it imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

INTERRUPTED = 130
AGAIN_SECONDS = 0.05
SECOND_SECONDS = 0.5
"""An interrupt this soon after the first is the same one, repeated from here or by a wrapper."""


def run(program: str, load: Callable[[], Callable[[], int]]) -> int:
    """Runs the command of a process that has nothing else to do; returns its exit code.

    A second interrupt, while the first is being cleaned up after, ends the process at once.

    Args:
        program: its name, for the one line.
        load: imports the command and returns its function; an interrupt may come meanwhile.
    """
    try:
        with insisting(lambda: _give_up(program)):
            return load()()
    except KeyboardInterrupt:
        _say(program)
        return INTERRUPTED


@contextlib.contextmanager
def insisting(again: Callable[[], None]) -> Iterator[None]:
    """Within it an interrupt raises `KeyboardInterrupt` in the main thread, sooner or later.

    Behind it an interrupt ends the process silently, as the system does it. Where interrupts are
    ignored (as of a job in the background), or it is not the main thread, nothing is changed.

    Args:
        again: called at an interrupt after one that was raised.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    pending = threading.Event()
    raised = threading.Event()
    when = 0.0

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal when
        if not raised.is_set():
            raised.set()
            when = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - when > SECOND_SECONDS:
            again()

    def unraisable(lost: Any) -> None:
        if lost.exc_type is not None and issubclass(lost.exc_type, KeyboardInterrupt):
            raised.clear()
            pending.set()
        else:
            sys.__unraisablehook__(lost)

    def insist() -> None:
        main = threading.main_thread().ident
        assert main is not None
        while pending.wait():
            pending.clear()
            while not raised.wait(AGAIN_SECONDS):
                signal.pthread_kill(main, signal.SIGINT)

    def listen() -> None:
        while True:
            if signal.SIGINT in os.read(reader, 64):
                pending.set()

    before, hook = signal.set_wakeup_fd(writer, warn_on_full_buffer=False), sys.unraisablehook
    sys.unraisablehook = unraisable
    signal.signal(signal.SIGINT, take)
    for work in (insist, listen):
        threading.Thread(target=work, name=f"interrupts: {work.__name__}", daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.set_wakeup_fd(before)
        sys.unraisablehook = hook


def _give_up(program: str) -> None:
    _say(program)
    os._exit(INTERRUPTED)


def _say(program: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{program}: interrupted\n")
        sys.stderr.flush()
