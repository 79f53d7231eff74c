"""Runs programs that a model or a stranger wrote, under bubblewrap, and says how each ended.

A program gets no network, no files but the interpreter's, no variables, an empty /tmp, and bounds
on time, memory, processes, file size and output. It is never run without these: the constructor
proves by a program of its own that they hold, or refuses. This module must not know what the
programs are for; whether an answer is right is decided by `outcome` from what the caller knows.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from kvaudit import sandbox_walls, seccomp
from kvaudit.errors import SandboxUnavailable
from kvaudit.sandbox_outcome import Ending, Limits, Outcome, Ran, last_integer, outcome
from kvaudit.sandbox_watch import Watch

__all__ = ["Ending", "Limits", "Outcome", "Ran", "Sandbox", "last_integer", "outcome"]

MAX_PROGRAM_BYTES = 1 << 20


class Sandbox:
    """A pool of threads that run programs, each in a sandbox of its own.

    Safe to use from several threads. Idle threads end with the process; `close` ends them sooner.

    Args:
        limits: bounds of every run.
        workers: programs that run side by side; the processors of this process when None.
        packages: folders of pure Python packages that programs may import, read-only; they are
            named by the caller, never found, and a program sees nothing beside them.

    Raises:
        SandboxUnavailable: the isolation is not there; the message says what is missing.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        packages: tuple[Path, ...] = (),
    ) -> None:
        self._bwrap = sandbox_walls.bubblewrap()
        self.limits = limits or Limits()
        self.workers = workers or len(os.sched_getaffinity(0))
        self._packages = packages
        self._filter = seccomp.program(platform.machine())
        self._start = Path(__file__).with_name("sandbox_child.py").read_bytes()
        self._workers = threading.local()
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox")
        try:
            self.probe()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads once their programs have ended."""
        self._pool.shutdown()

    def probe(self) -> None:
        """Proves that programs run here and that the walls hold, by a program that tries them.

        Raises:
            SandboxUnavailable: it did not run, or a wall does not hold; the message names it.
        """
        ran = self.run(Path(__file__).with_name("sandbox_probe.py").read_text())
        if ran.ending == "printed" and ran.answer == 0:
            return
        lines = ran.complaint.decode("utf-8", "replace").strip().splitlines()
        if ran.ending == "sandbox failure":
            what = "bubblewrap cannot isolate a program on this machine"
        else:
            what = "a wall of the sandbox does not hold"
        trouble = self._pool.submit(lambda: self._here().trouble).result()
        found = "; ".join([*lines[-3:], *([trouble] if trouble else [])]) or ran.ending
        raise SandboxUnavailable(what, found=found, hint=_hint(found))

    def run(self, program: str) -> Ran:
        """Runs one program; waits for a free worker, then at most the limit and a grace."""
        return self._pool.submit(self._run, program).result()

    def run_all(self, programs: Iterable[str]) -> list[Ran]:
        """Runs the programs side by side; the results are in the order of the programs."""
        return list(self._pool.map(self._run, programs))

    def run_within(self, programs: Iterable[str], seconds: float) -> Iterator[Ran]:
        """As `run_all`, but no program is started once `seconds` are over.

        Yields:
            Results in the order of the programs; the first that was not started, and all behind
            it, have none.
        """
        deadline = time.monotonic() + seconds

        def run(program: str) -> Ran | None:
            return self._run(program) if time.monotonic() < deadline else None

        for ran in self._pool.map(run, programs):
            if ran is None:
                return
            yield ran

    def _here(self) -> sandbox_walls.Worker:
        """The worker of this thread, one of the pool, as it may get mounts of its own."""
        found: sandbox_walls.Worker | None = getattr(self._workers, "worker", None)
        if found is None:
            found = self._workers.worker = sandbox_walls.worker(self._packages)
        return found

    def _run(self, program: str) -> Ran:
        source = program.encode("utf-8", "surrogatepass")
        if len(source) > MAX_PROGRAM_BYTES:
            return Ran("error", None, b"", None, 0.0, b"the program is too long")
        for pause in _PAUSES:
            ran = self._attempt(source)
            if ran.ending != "sandbox failure":
                return ran
            time.sleep(pause)  # a crowded machine; the program itself has not begun
        return self._attempt(source)

    def _attempt(self, source: bytes) -> Ran:
        started = time.monotonic()
        watch = Watch(self.limits, started)
        try:
            watch.launch(self._bwrap, self._here(), source, self._start, self._filter)
            watch.follow()
        except OSError as error:
            watch.failure = str(error).encode()
        finally:
            watch.stop()
        return watch.result(time.monotonic() - started)


_PAUSES = (0.2, 1.0)
"""Seconds before a sandbox that did not start is tried again."""


def _hint(found: str) -> str:
    """The next step for a reader whose sandbox does not start."""
    text = found.lower()
    if "uid map" in text or "new namespace" in text or "user namespaces" in text:
        return (
            "user namespaces are switched off here: allow them by user.max_user_namespaces, "
            "kernel.unprivileged_userns_clone or kernel.apparmor_restrict_unprivileged_userns, "
            "or by the security profile of the container"
        )
    if "permission denied" in text or "loading shared" in text:
        return (
            "the interpreter must be readable by other users: use one outside of root's home, "
            "or give this process the right to mount"
        )
    return "run `bwrap --unshare-all --ro-bind / / true` as an ordinary user to see what is refused"
