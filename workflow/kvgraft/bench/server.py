"""llama.cpp's own server as a rival: slot save and restore, over HTTP on the loopback interface.

A server is started for the cold readings and the save, another one for the restores, so that a
restored file is all the second can know. It is told the same model file, context, threads, batch
and cache settings as everyone else. Every wait is bounded, and no server outlives its `with`.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvgraft.bench.work import Clock, Measured, Work, flip_byte
from kvgraft.errors import EngineFailed
from kvgraft.profile import ProfileSettings

SERVER = "llama-server slots"
HOST = "127.0.0.1"
START_S, ANSWER_S, STOP_S = 120.0, 900.0, 10.0
N_PROBS = 20


class Server:
    """A running server with one slot.

    Args:
        process: the server.
        port: where it listens.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request; the answer's JSON.

        Raises:
            EngineFailed: no answer in time, or not status 200.
        """
        data = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise EngineFailed(f"llama-server does not answer {path}: {error}") from error
        if answer.status != 200:
            raise EngineFailed(
                f"llama-server refuses {path}", expected=200, found=content[:300].decode("utf-8")
            )
        return json.loads(content)

    def slot(self, action: str, **body: Any) -> Any:
        """Save, restore or erase the slot."""
        return self.ask("POST", f"/slots/0?action={action}", body)

    def complete(self, ids: list[int], *, reuse: bool, predict: int = 1, probs: int = 0) -> Any:
        """A greedy completion of token ids; `reuse` takes what the slot holds as its prefix."""
        body = {
            "prompt": ids,
            "n_predict": predict,
            "temperature": 0.0,
            "cache_prompt": reuse,
            "id_slot": 0,
            "n_probs": probs,
        }
        return self.ask("POST", "/completion", body)

    def top(self, ids: list[int], *, reuse: bool) -> dict[int, float]:
        """Log-probabilities of the most likely next tokens by id."""
        answer = self.complete(ids, reuse=reuse, probs=N_PROBS)
        rows = answer["completion_probabilities"][0]["top_logprobs"]
        return {row["id"]: row["logprob"] for row in rows}

    def wait_until_ready(self) -> None:
        """Wait for the model to be loaded.

        Raises:
            EngineFailed: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(EngineFailed):
                self.ask("GET", "/health")
                return
            time.sleep(0.05)
        raise EngineFailed(
            "llama-server does not start",
            found=f"status {self._process.poll()}",
            hint="see its log",
        )

    def close(self) -> None:
        """Close the connection; the process is `running`'s."""
        self._connection.close()


@contextlib.contextmanager
def running(program: Path, work: Work, slots: Path, log: Path) -> Iterator[Server]:
    """A server that has loaded the model; it is gone when the block is left.

    Raises:
        EngineFailed: it does not start; its last lines are in the error.
    """
    port = _free_port()
    command = [str(program), "--host", HOST, "--port", str(port)]
    command += ["--model", str(work.pin.source["path"]), "--ctx-size", str(work.n_ctx)]
    command += ["--threads", str(work.n_threads), "--threads-batch", str(work.n_threads)]
    command += ["--n-gpu-layers", str(work.n_gpu_layers)]
    command += ["--batch-size", "512", "--ubatch-size", "512", "--parallel", "1"]
    command += ["--flash-attn", "off", "--swa-full", "--fit", "off", "--offline"]
    command += ["--cache-ram", "0", "--ctx-checkpoints", "0", "--slot-save-path", str(slots)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_environment(),
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        server = Server(process, port)
        try:
            try:
                server.wait_until_ready()
            except EngineFailed as error:
                lines = log.read_text("utf-8", "replace").splitlines()[-3:]
                raise EngineFailed(f"{error.what}: {' / '.join(lines)}", where=program) from error
            yield server
        finally:
            server.close()
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)


def _environment() -> dict[str, str]:
    """Without the variables that a session of this process may have set for its own profile."""
    own = ProfileSettings().environment
    return {name: value for name, value in os.environ.items() if name not in own}


def _die_with_parent() -> None:
    """Linux: the kernel ends the server if the benchmark is killed and cannot do it itself."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def measure(work: Work, program: Path) -> list[Measured]:
    """Every length: cold readings and a save on one server, restores on another."""
    slots = work.scratch / "slots"
    slots.mkdir(exist_ok=True)
    log = work.scratch / "llama-server.log"
    lengths = [_Length(work, n, slots) for n in work.lengths]
    with running(program, work, slots, log) as server:
        for length in lengths:
            length.save(server)
    with running(program, work, slots, log) as server:
        for length in lengths:
            length.restore(server)
        return [length.measured(server) for length in lengths]


class _Length:
    """The server's arms at one length."""

    def __init__(self, work: Work, n_tokens: int, slots: Path) -> None:
        self._work = work
        self._n = n_tokens
        self._span = work.span(n_tokens)
        self._whole = [*self._span, work.question(n_tokens)]
        self._clock = Clock()
        self._name = f"span-{n_tokens}.bin"
        self._file = slots / self._name
        self._tops: dict[str, dict[int, float]] = {}

    def save(self, server: Server) -> None:
        """Cold readings, then the span alone, saved."""
        for _ in range(self._work.repeats):
            server.slot("erase")
            answer = self._clock.time("cold", lambda: server.complete(self._whole, reuse=False))
            _expect_evaluated(answer, len(self._whole))
        server.slot("erase")
        self._tops["one_shot"] = server.top(self._whole, reuse=False)
        server.slot("erase")
        server.complete(self._span, reuse=True, predict=0)
        saved = self._clock.time("save", lambda: server.slot("save", filename=self._name))
        assert saved["n_saved"] == self._n, saved
        self._tops["same_split"] = server.top(self._whole, reuse=True)

    def restore(self, server: Server) -> None:
        """Restores, each into an emptied slot."""
        server.slot("erase")
        server.slot("restore", filename=self._name)
        self._tops["restored"] = server.top(self._whole, reuse=True)
        for _ in range(self._work.repeats):
            server.slot("erase")
            begin = time.perf_counter()
            server.slot("restore", filename=self._name)
            answer = server.complete(self._whole, reuse=True)
            self._clock.note("restore", time.perf_counter() - begin)
            _expect_evaluated(answer, 1)

    def measured(self, server: Server) -> Measured:
        """What came of it."""
        disk_bytes = self._file.stat().st_size
        restored = self._tops["restored"]
        return Measured(
            who=SERVER,
            n_tokens=self._n,
            seconds=self._clock.seconds,
            disk_bytes=disk_bytes,
            differences={
                name: largest_gap(self._tops[name], restored) for name in ("same_split", "one_shot")
            },
            verified=self._notices_damage(server),
            extra={"top_log_probabilities": len(restored)},
        )

    def _notices_damage(self, server: Server) -> bool:
        flip_byte(self._file, self._file, -2000)
        server.slot("erase")
        try:
            server.slot("restore", filename=self._name)
        except EngineFailed:
            return True
        return False


def _expect_evaluated(answer: Any, n_tokens: int) -> None:
    """A restore that was silently not used would be no restore, and a cold reading no cold one."""
    found = answer["timings"]["prompt_n"]
    if found != n_tokens:
        raise EngineFailed(
            "llama-server did not evaluate what it was to", expected=n_tokens, found=found
        )


def largest_gap(a: dict[int, float], b: dict[int, float]) -> float:
    """Largest difference of log-probabilities; of tokens in one list only, to the other's last."""
    low_a, low_b = min(a.values()), min(b.values())
    return max(abs(a.get(token, low_a) - b.get(token, low_b)) for token in a.keys() | b.keys())
