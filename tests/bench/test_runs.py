"""The benchmark runs from end to end on a tiny model; nothing here depends on a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from kvgraft import pins
from kvgraft.bench import server
from kvgraft.bench.work import Work
from kvgraft.errors import EngineFailed
from kvgraft.tiny import make_tiny_gguf

REPOSITORY = Path(__file__).parents[2]
REAL_SERVER = Path(sys.prefix) / "bin" / "llama-server"
SLOW_SERVER = """\
#!{python}
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{{}}")

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(
        tmp_path_factory.mktemp("model") / "tiny.gguf", architecture="gemma3", window=64
    )


@pytest.fixture
def work(tiny: Path, tmp_path: Path) -> Work:
    return Work(pins.for_file(tiny), tuple(range(2, 120)), (40, 80), 2, 256, 1, tmp_path)


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    path = f"{REPOSITORY / 'workflow'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {k: v for k, v in os.environ.items() if k != "GGML_CPU_TILED_MM"}
    return subprocess.run(
        [sys.executable, "-m", "kvgraft.bench", *map(str, arguments)],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def program(folder: Path, text: str) -> Path:
    path = folder / "llama-server"
    path.write_text(textwrap.dedent(text).format(python=sys.executable))
    path.chmod(0o755)
    return path


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def everyone(result: dict[str, Any]) -> list[dict[str, Any]]:
    ours = [one for preset in result["ours"].values() for one in preset["measured"]]
    return [*ours, *result["rivals"]]


@pytest.mark.slow
def test_a_quick_run_measures_everyone_at_every_length(tiny: Path, tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    done = bench("--models", tiny, "--quick", "--skip-server", "--json", target)
    assert done.returncode == 0, done.stderr
    value = json.loads(target.read_text())
    assert value["kind"] == "kvgraft-bench-speed"
    assert len(value["load"]["before"]) == len(value["load"]["after"]) == 3
    result = value["models"]["tiny"]
    found = {(one["who"], one["n_tokens"]): one for one in everyone(result)}
    assert {who for who, _ in found} == {
        "stock",
        "split-invariant",
        "save_state, pickled",
        "LlamaDiskCache",
    }
    for (who, n), one in found.items():
        assert n in (64, 160)
        assert len(one["seconds"]["cold"]) == 2
        assert all(seconds > 0 for times in one["seconds"].values() for seconds in times)
        assert one["disk_bytes"] > 0
        assert who in done.stdout
        if who in result["ours"]:
            assert one["verified"] is True
            assert one["differences"]["same_split"] == 0.0
            assert len(one["seconds"]["restore"]) == len(one["seconds"]["restore_unverified"]) == 10
    assert found["split-invariant", 160]["differences"]["one_shot"] == 0.0
    assert found["save_state, pickled", 64]["verified"] is False
    assert {f["name"] for f in result["figures"]} >= {"speed-up", "verification, %"}


@pytest.mark.slow
def test_a_quick_run_of_splits_counts_equal_cases(tiny: Path, tmp_path: Path) -> None:
    target = tmp_path / "splits.json"
    done = bench("splits", "--models", tiny, "--quick", "--count", 2, "--json", target)
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())["models"]["tiny"]["summary"]
    assert found["split-invariant"]["equal"] == found["split-invariant"]["cases"] == 2
    assert found["split-invariant"]["largest_kl"] == 0.0
    assert found["split-invariant"]["claimed"] is True
    assert found["stock"]["claimed"] is False
    assert set(found) == {line.split("  ")[0] for line in done.stdout.splitlines()} & set(found)


def test_without_a_server_the_run_says_how_to_get_one(tiny: Path, tmp_path: Path) -> None:
    done = bench("--models", tiny, "--server", tmp_path / "none", "--json", tmp_path / "b.json")
    assert done.returncode == 2
    assert "envs/server_build.py" in done.stderr
    assert "--skip-server" in done.stderr


def test_a_server_that_ends_at_once_is_reported_with_its_last_words(
    work: Work, tmp_path: Path
) -> None:
    fake = program(tmp_path, "#!/bin/sh\necho no such device\nexit 3\n")
    with (
        pytest.raises(EngineFailed, match=r"does not start.*no such device"),
        server.running(fake, work, tmp_path, tmp_path / "log"),
    ):
        pass


def test_a_server_that_never_answers_is_not_waited_for_and_ended(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "START_S", 0.3)
    fake = program(tmp_path, f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    with (
        pytest.raises(EngineFailed, match="does not start"),
        server.running(fake, work, tmp_path, tmp_path / "log"),
    ):
        pass
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_server_does_not_outlive_an_error(work: Work, tmp_path: Path) -> None:
    fake = program(tmp_path, SLOW_SERVER)
    seen: list[int] = []

    def fail() -> None:
        with server.running(fake, work, tmp_path, tmp_path / "log") as running:
            seen.append(running._process.pid)
            assert is_running(seen[0])
            raise ValueError("midway")

    with pytest.raises(ValueError, match="midway"):
        fail()
    assert not is_running(seen[0])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_server_does_not_outlive_a_benchmark_that_is_killed(tiny: Path, tmp_path: Path) -> None:
    fake = program(tmp_path, SLOW_SERVER)
    code = f"""
        import time
        from pathlib import Path
        from kvgraft import pins
        from kvgraft.bench import server
        from kvgraft.bench.work import Work
        folder = Path({str(tmp_path)!r})
        work = Work(pins.for_file({str(tiny)!r}), (2, 3), (1,), 1, 256, 1, folder)
        with server.running(Path({str(fake)!r}), work, folder, folder / "log") as running:
            print(running._process.pid, flush=True)
            time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "workflow")},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


@pytest.mark.skipif(not REAL_SERVER.is_file(), reason="make bench builds llama-server")
def test_the_real_server_restores_a_slot_in_another_process(work: Work) -> None:
    measured = server.measure(work, REAL_SERVER)
    assert [one.n_tokens for one in measured] == [40, 80]
    for one in measured:
        assert len(one.seconds["restore"]) == len(one.seconds["cold"]) == 2
        assert one.disk_bytes > 0
        assert one.verified is False
