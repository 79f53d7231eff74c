"""One run as seen from outside: starts bubblewrap, reads with a bound, ends everything in time.

A program that misbehaves is told by what is seen here and by the report of the supervisor inside,
never by what the program says of itself. This module must not know what can be seen inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from pathlib import Path

from kvaudit import sandbox_walls
from kvaudit.sandbox_child import MEMORY_EXIT, PROGRAM
from kvaudit.sandbox_outcome import Ending, Limits, Ran, last_integer

_GRACE_SECONDS = 5.0  # for the kernel to take down a killed sandbox
_REPORT_BYTES = 1 << 16


class Watch:
    """One run as seen from outside: the process of bubblewrap and what comes out of its pipes."""

    def __init__(self, limits: Limits, started: float) -> None:
        self.limits = limits
        self.deadline = started + limits.wall_seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.inner: int | None = None  # pidfd of the first process inside
        self.pipes: dict[str, int] = {}
        self.texts = {name: bytearray() for name in ("output", "complaint", "report", "status")}
        self.stopped: Ending | None = None
        self.finished = False  # every pipe is closed, so bubblewrap is about to end by itself
        self.failure = b""
        self.kills = _out_of_memory_kills()

    def launch(
        self,
        bwrap: str,
        worker: sandbox_walls.Worker,
        source: bytes,
        start: bytes,
        filter: bytes,
    ) -> None:
        """Starts bubblewrap with nothing but the pipes and the three files it needs."""
        theirs: dict[str, int] = {}
        try:
            for name in self.texts:
                self.pipes[name], theirs[name] = os.pipe()
            for name, content in (("program", source), ("start", start), ("seccomp", filter)):
                theirs[name] = _file(name, content)
            limits = self.limits
            command = sandbox_walls.command(
                bwrap,
                worker.python,
                {PROGRAM: theirs["program"], "/start.py": theirs["start"]},
                theirs,
                limits.tmp_bytes,
            )
            command += ["/start.py", str(theirs["report"]), str(limits.cpu_seconds)]
            command += [str(limits.memory_bytes), str(limits.processes), str(limits.file_bytes)]
            command.append(str(limits.tmp_files))
            user = worker.user
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=theirs["output"],
                stderr=theirs["complaint"],
                pass_fds=[theirs[n] for n in ("report", "status", "program", "start", "seccomp")],
                cwd="/",
                env={},
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)

    def follow(self) -> None:
        """Reads until every pipe is closed, time is over, or there is too much output."""
        with selectors.DefaultSelector() as selector:
            for name, descriptor in self.pipes.items():
                selector.register(descriptor, selectors.EVENT_READ, name)
            while selector.get_map():
                left = self.deadline - time.monotonic()
                if left <= 0:
                    self.stopped = "timeout"
                    return
                for key, _ in selector.select(left):
                    piece = os.read(key.fd, 65536)
                    text = self.texts[key.data]
                    if not piece:
                        selector.unregister(key.fd)
                    programs = key.data in ("output", "complaint")
                    most = self.limits.output_bytes + 1 if programs else _REPORT_BYTES
                    text += piece[: most - len(text)]
                    if key.data == "status" and self.inner is None:
                        self._meet(bytes(text))
                    if programs and self._flooded():
                        self.stopped = "output flood"
                        return
        self.finished = True

    def stop(self) -> None:
        """Ends whatever still runs, leaves no zombie, and closes the pipes."""
        if self.process is not None:
            if not self.finished:
                self._kill(self.process)
            try:
                self.process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for descriptor in self.pipes.values():
            os.close(descriptor)
        if self.inner is not None:
            os.close(self.inner)

    def result(self, seconds: float) -> Ran:
        """What the run comes to, from the report of the supervisor inside and the bounds here."""
        output = bytes(self.texts["output"][: self.limits.output_bytes])
        complaint = bytes(self.texts["complaint"][: self.limits.output_bytes])
        lines = self.texts["report"].decode("ascii", "replace").splitlines()
        if self.failure or not lines or lines[0] != "ready":
            return Ran("sandbox failure", None, b"", None, seconds, self.failure or complaint)
        if self.stopped is not None:
            return Ran(self.stopped, None, output, None, seconds, complaint)
        killed = _out_of_memory_kills() > self.kills
        if len(lines) < 2:
            # The supervisor itself was ended, which nothing inside can do.
            return Ran("memory" if killed else "error", None, output, None, seconds, complaint)
        word, number, cpu = lines[1].split()
        if word == "files":
            return Ran("memory", None, output, None, seconds, complaint)
        code = int(number) if word == "exit" else -int(number)
        ending: Ending
        if code == 0:
            answer = last_integer(output)
            ending = "no answer" if answer is None else "printed"
            return Ran(ending, answer, output, code, seconds, complaint, float(cpu))
        ending = "error"
        if code == MEMORY_EXIT or (code == -signal.SIGKILL and killed):
            ending = "memory"
        elif code == -signal.SIGXCPU or (
            code == -signal.SIGKILL and float(cpu) >= self.limits.cpu_seconds
        ):
            ending = "timeout"
        return Ran(ending, None, output, code, seconds, complaint, float(cpu))

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Ends every process inside, by ending the first one.

        That one is killed rather than bubblewrap, which then reaps it: an orphan would be left to
        the first process of the machine, and in a container that one may never reap.
        """
        if self.inner is None:
            process.kill()
            return
        with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
            signal.pidfd_send_signal(self.inner, signal.SIGKILL)

    def _flooded(self) -> bool:
        total = len(self.texts["output"]) + len(self.texts["complaint"])
        return total > self.limits.output_bytes

    def _meet(self, status: bytes) -> None:
        """Takes hold of the first process inside, if it still is bubblewrap's child."""
        line, newline, _ = status.partition(b"\n")
        if not newline or self.process is None:
            return
        try:
            number = int(json.loads(line)["child-pid"])
            held = os.pidfd_open(number)
        except (OSError, ValueError, KeyError):
            return  # then bubblewrap itself is killed, and its child with it
        try:
            # The name in brackets may hold anything; the parent is the second field after it.
            fields = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()
            ours = int(fields[1]) == self.process.pid
        except (OSError, IndexError, ValueError):
            ours = False
        if ours:
            self.inner = held
        else:
            os.close(held)


def _file(name: str, content: bytes) -> int:
    """A descriptor of a file in memory that holds `content`, at its beginning."""
    descriptor = os.memfd_create(name)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _out_of_memory_kills() -> int:
    """How often this kernel has killed a process for want of memory; 0 where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0
