"""Hostile programs end as their named outcome, and nothing outside the sandbox changes.

These tests need bubblewrap and fail without it: a machine that cannot isolate cannot verify.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvaudit import sandbox_walls, seccomp
from kvaudit.errors import SandboxUnavailable, ToolMissing
from kvaudit.sandbox import Limits, Ran, Sandbox, last_integer, outcome

WORKFLOW = Path(sandbox_walls.__file__).parent.parent
LIMITS = Limits(wall_seconds=3.0, cpu_seconds=1)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS, workers=2) as made:
        yield made


@pytest.fixture
def key() -> Iterator[Path]:
    """An answer key that every user of the machine may read, change and remove."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="watched-"))
    folder.chmod(0o777)
    file = folder / "answers.json"
    file.write_text('{"answer": 42}')
    file.chmod(0o666)
    yield file
    shutil.rmtree(folder)


def digest_of_content(folder: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found = path.lstat()
        state.update(f"{path} {found.st_mode} {found.st_uid} {found.st_mtime_ns}".encode())
        if path.is_file():
            state.update(path.read_bytes())
    return state.hexdigest()


def digest_of_names(folders: list[Path]) -> str:
    """Names, sizes, modes, owners and times, but those of reading."""
    state = hashlib.sha256()
    for folder in folders:
        for place, _, names in sorted(os.walk(folder)):
            for name in ["", *sorted(names)]:
                found = os.lstat(os.path.join(place, name))
                fields = (found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns)
                state.update(f"{place}/{name} {fields}".encode())
    return state.hexdigest()


def processes_below(parent: int) -> list[str]:
    """State and name of each child of a process; a zombie's state is Z."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                name, _, rest = entry.joinpath("stat").read_text().rpartition(")")
                if int(rest.split()[1]) == parent:
                    found.append(f"{rest.split()[0]} {name}")
    return found


def processes_of(user: int) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"Uid:\t{user}\t" in entry.joinpath("status").read_text():
                    found.append(entry.name)
    return found


HOSTILE: dict[str, tuple[str, set[str]]] = {
    "fork bomb": ("import os\nwhile True: os.fork()", {"error"}),
    "fork bomb that hides its errors": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        {"timeout"},
    ),
    "threads without end": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=[9]).start()",
        {"timeout"},  # the threads that were started are waited for
    ),
    "memory bomb": ("x = bytearray(10 ** 10)", {"memory"}),
    "memory bomb in small pieces": ("x = []\nwhile True: x.append('a' * 10000)", {"memory"}),
    "memory bomb that doubles": ("x = [0]\nwhile True: x += x", {"memory"}),
    "memory through the map of a file": (
        "import mmap\nx = [mmap.mmap(-1, 1 << 26) for _ in range(99)]",
        {"error"},
    ),
    "memory in files that have no name": (
        "import os\nos.memfd_create('x')",
        {"error"},
    ),
    "ten gigabytes of output": ("while True: print('x' * 10000)", {"output flood"}),
    "ten gigabytes of complaints": (
        "import sys\nwhile True: sys.stderr.write('x' * 10000)",
        {"output flood"},
    ),
    "output of a child": (
        "import os\nos.fork()\nwhile True: os.write(1, b'x' * 10000)",
        {"output flood"},
    ),
    "sleep": ("import time\ntime.sleep(99)", {"timeout"}),
    "busy loop": ("while True: pass", {"timeout"}),
    "busy loop that ignores the signal": (
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        {"timeout"},
    ),
    "reading from nobody": ("print(input())", {"error"}),
    "a huge integer": ("x = 10 ** 10 ** 8\nprint(x)", {"timeout"}),
    "an integer too long to print": ("print(10 ** 5000)", {"error"}),
    "an integer too long to count": ("print(10 ** 50)", {"no answer"}),
    "output that is not UTF-8": (
        "import sys\nsys.stdout.buffer.write(b'\\xff\\xfe\\x00')",
        {"no answer"},
    ),
    "reading the answer key": ("print(open('KEY').read())", {"error"}),
    "reading the key through a link": (
        "import os\nos.symlink('KEY', 'link')\nprint(open('link').read())",
        {"error"},
    ),
    "reading the key through the parents": (
        "print(open('../../../../../..KEY').read())",
        {"error"},
    ),
    "reading the process table": ("print(open('/proc/1/environ').read())", {"error"}),
    "reading the disk": ("print(open('/dev/vda', 'rb').read(9))", {"error"}),
    "making the device of the disk": (
        "import os, stat\nos.mknod('d', stat.S_IFBLK | 0o600, os.makedev(254, 0))",
        {"error"},
    ),
    "changing the answer key": ("open('KEY', 'w').write('{}')", {"error"}),
    "writing through a link": (
        "import os\nos.symlink('WATCHED', 'out')\nopen('out/new', 'w').write('x')",
        {"error"},
    ),
    "exchanging a folder for a link": (
        "import os\nos.rmdir('/tmp')\nos.symlink('/', '/tmp')",
        {"error"},
    ),
    "changing the standard library": (
        "import os\nopen(os.path.dirname(os.__file__) + '/os.py', 'a').write('x')",
        {"error"},
    ),
    "changing the mode of a device": ("import os\nos.chmod('/dev/null', 0o600)", {"error"}),
    "a file too long": (
        "f = open('/tmp/x', 'wb')\nwhile True: f.write(bytes(65536))",
        {"error"},
    ),
    "many files": (
        "i = 0\nwhile True:\n    i += 1\n    open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))",
        {"error"},
    ),
    "empty files": (
        "i = 0\nwhile True:\n    i += 1\n    open(f'/tmp/{i}', 'wb').close()",
        {"memory"},
    ),
    "empty files from many processes": (
        "import os\ni = 0\nfor _ in range(3): os.fork()\n"
        "while True:\n    i += 1\n    os.mknod(f'{os.getpid()}-{i}')",
        {"memory"},
    ),
    "long names of one file": (
        "import os\ni = 0\nopen('a', 'w').close()\n"
        "while True:\n    i += 1\n    os.link('a', 'x' * 200 + str(i))",
        {"memory"},
    ),
    "folders in folders": (
        "import os\nwhile True:\n    os.mkdir('a')\n    os.chdir('a')",
        {"memory"},
    ),
    "a supervisor that never gets its turn": (
        "import os\nos.setpriority(os.PRIO_PROCESS, 1, 19)",
        {"error"},
    ),
    "a supervisor that is woken without end": (
        "import os, signal\nfor _ in range(3): os.fork()\nwhile True: os.kill(1, signal.SIGCHLD)",
        {"timeout"},
    ),
    "files in the root of the sandbox": ("open('/x', 'wb').write(bytes(1 << 20))", {"error"}),
    "network by number": (
        "import socket\nsocket.create_connection(('127.0.0.1', 22), 1)",
        {"error"},
    ),
    "network by name": (
        "import urllib.request\nurllib.request.urlopen('http://example.org', timeout=1)",
        {"error"},
    ),
    "the host of a virtual machine": (
        "import socket\nsocket.socket(socket.AF_VSOCK).connect((2, 22))",
        {"error"},
    ),
    "signals to everyone": (
        "import os, signal\nos.kill(-1, signal.SIGKILL)",
        {"error", "no answer"},
    ),
    "a deadly signal to itself": (
        "import os, signal\nprint(42)\nos.kill(os.getpid(), signal.SIGKILL)",
        {"error"},
    ),
    "zombie children": (
        "import os, time\nfor _ in range(9):\n    if not os.fork(): os._exit(0)\ntime.sleep(0.3)",
        {"no answer"},
    ),
    "orphans that outlive it": (
        "import os, time\nif not os.fork():\n    os.setsid()\n    os.fork()\n    time.sleep(99)",
        {"no answer"},
    ),
    "output closed": ("import os\nos.close(1)\nos.close(2)", {"no answer", "error"}),
    "all descriptors closed": ("import os\nos.closerange(0, 999)\nos._exit(0)", {"no answer"}),
    "higher limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))",
        {"error"},
    ),
    "limits of the supervisor": (
        "import resource\nresource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
        {"error"},
    ),
    "another root": ("import os\nos.chroot('/tmp')", {"error"}),
    "another user": ("import os\nos.setuid(0)", {"error"}),
    "not a program": ("this is not Python", {"error"}),
    "a zero byte": ("print(1)\0", {"error"}),
    "half a surrogate": ("print('\udc80')", {"error"}),
    "deep brackets": ("(" * 20000, {"error", "memory"}),
    "deep recursion": ("f = lambda: f()\nf()", {"error"}),
    "a crash of the interpreter": ("import ctypes\nctypes.string_at(0)", {"error"}),
    "an abort": ("import os\nos.abort()", {"error"}),
    "no output": ("", {"no answer"}),
    "a program that is too long": ("#" * (2 << 20), {"error"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_program_ends_as_its_outcome_and_changes_nothing(
    name: str, sandbox: Sandbox, key: Path
) -> None:
    program, expected = HOSTILE[name]
    program = program.replace("KEY", str(key)).replace("WATCHED", str(key.parent))
    before = digest_of_content(key.parent)
    ran = sandbox.run(program)
    assert outcome(ran, 42) in expected, ran
    assert ran.answer is None
    assert len(ran.output) <= sandbox.limits.output_bytes
    assert ran.seconds < sandbox.limits.wall_seconds + 1
    assert digest_of_content(key.parent) == before
    assert processes_below(os.getpid()) == []
    assert [n for user in users(sandbox) for n in processes_of(user)] == []


def users(sandbox: Sandbox) -> list[int]:
    """The users that the workers become, when the tests run as root."""
    found = sandbox._pool.submit(lambda: sandbox._here().user).result()
    return [] if found is None else [found]


def test_what_a_program_can_see_of_the_system_stays_as_it_is(sandbox: Sandbox) -> None:
    python = sandbox_walls.interpreter()
    folders = [python.stdlib, *map(Path, sandbox_walls._system()[1::3]), python.binary.parent]
    folders = [folder for folder in folders if folder.is_dir()]
    before = digest_of_names(folders)
    everywhere = (
        "import os\n"
        "for place, _, names in os.walk('/'):\n"
        "    for name in [*names, 'new']:\n"
        "        path = os.path.join(place, name)\n"
        "        for act in (os.remove, lambda p: os.chmod(p, 0o777), os.utime,\n"
        "                    lambda p: open(p, 'ab').write(b'x')):\n"
        "            try: act(path)\n"
        "            except OSError: pass\n"
        "print(42)"
    )
    assert outcome(sandbox.run(everywhere), 42) in {"answer", "timeout"}
    assert digest_of_names(folders) == before


def test_a_program_prints_its_answer(sandbox: Sandbox) -> None:
    ran = sandbox.run("import math\nprint('n choose k')\nprint(math.comb(9, 3))")
    assert (ran.ending, ran.answer, ran.exit_code) == ("printed", 84, 0)
    assert ran.output == b"n choose k\n84\n"
    assert outcome(ran, 84) == "answer"
    assert outcome(ran, 83) == "wrong"
    assert outcome(ran, None) == "answer"
    assert ran.to_json()["output_sha256"] == hashlib.sha256(ran.output).hexdigest()


def test_a_warning_on_standard_error_does_not_hide_the_answer(sandbox: Sandbox) -> None:
    ran = sandbox.run(
        "import sys\nprint(42)\nsys.stdout.flush()\nprint('careful', file=sys.stderr)"
    )
    assert (ran.answer, ran.complaint) == (42, b"careful\n")


def test_an_answer_before_an_error_does_not_count(sandbox: Sandbox) -> None:
    ran = sandbox.run("print(42)\n1 / 0")
    assert (ran.ending, ran.answer, ran.exit_code) == ("error", None, 1)
    assert b"ZeroDivisionError" in ran.complaint


def test_the_program_runs_as_a_script(sandbox: Sandbox) -> None:
    text = "def f(n): return g(n)\ndef g(n): return n + 1\nif __name__ == '__main__': print(f(41))"
    assert sandbox.run(text).answer == 42
    assert sandbox.run("import sys\nprint(42)\nsys.exit()").answer == 42
    assert sandbox.run("import sys\nsys.exit('no')").ending == "error"
    assert (
        sandbox.run("from multiprocessing import pool\nimport decimal, fractions\nprint(1)").answer
        == 1
    )


def test_a_program_that_catches_the_want_of_memory_goes_on(sandbox: Sandbox) -> None:
    text = "try: x = bytearray(1 << 40)\nexcept MemoryError: print(42)"
    assert sandbox.run(text).answer == 42


def test_no_signal_to_the_parent_does_anything(sandbox: Sandbox) -> None:
    text = (
        "import os, signal\n"
        "for number in set(signal.Signals):\n"
        "    os.kill(os.getppid(), number)\n"
        "print(42)"
    )
    assert sandbox.run(text).answer == 42


def test_a_program_finds_no_other_process_and_no_host(sandbox: Sandbox) -> None:
    text = (
        "import os\n"
        "found = 0\n"
        "for number in range(3, 70000):\n"
        "    try: os.kill(number, 0)\n"
        "    except ProcessLookupError: continue\n"
        "    except PermissionError: pass\n"
        "    found += 1\n"
        "print(os.getpid(), os.getppid(), os.path.exists('/proc'), os.path.exists('/sys'))\n"
        "print(found)"
    )
    assert sandbox.run(text).output == b"2 1 False False\n0\n"


def test_the_environment_is_empty_and_no_host_is_named(sandbox: Sandbox) -> None:
    ran = sandbox.run("import os\nprint(dict(os.environ), os.uname().nodename, os.getcwd())")
    assert ran.output == b"{} sandbox /tmp\n"


def test_runs_leave_nothing_for_the_next(sandbox: Sandbox) -> None:
    assert sandbox.run("open('/tmp/x', 'w').write('x')\nprint(1)").answer == 1
    for ran in sandbox.run_all(["import os\nprint(len(os.listdir('/tmp')))"] * 4):
        assert ran.answer == 0


def test_the_order_of_a_set_is_the_same_in_every_run(sandbox: Sandbox) -> None:
    text = "print(*{str(n) for n in range(50)})"
    assert len({ran.output for ran in sandbox.run_all([text] * 4)}) == 1


def test_open_files_of_the_caller_are_not_inherited(sandbox: Sandbox, key: Path) -> None:
    with key.open() as file:
        os.set_inheritable(file.fileno(), True)
        text = "import os\nfound = 0\nfor n in range(3, 70000):\n    try: os.fstat(n)\n"
        text += "    except OSError: continue\n    found += 1\nprint(found)"
        assert sandbox.run(text).answer == 0


def test_output_of_exactly_the_bound_is_no_flood() -> None:
    with Sandbox(Limits(output_bytes=20), workers=1) as narrow:
        assert narrow.run("print('7' * 15 + '    ')").ending == "printed"
        assert narrow.run("print('7' * 15 + '     ')").ending == "output flood"


def test_programs_run_side_by_side_and_answer_in_order() -> None:
    with Sandbox(workers=8) as pool:
        began = time.monotonic()
        runs = pool.run_all([f"import time\ntime.sleep(1)\nprint({n})" for n in range(8)])
        seconds = time.monotonic() - began
    assert [ran.answer for ran in runs] == list(range(8))
    assert seconds < 4


def test_a_fork_bomb_does_not_starve_the_program_beside_it() -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    forks = (
        "import os\n"
        "for _ in range(200):\n"
        "    child = os.fork()\n"
        "    if not child: os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "print(42)"
    )
    patient = Limits(cpu_seconds=20, wall_seconds=20)
    with Sandbox(patient, workers=1) as calm, Sandbox(workers=1) as wild:
        bombing = wild._pool.submit(wild._run, bomb)
        time.sleep(0.5)
        assert calm.run(forks).answer == 42
        assert bombing.result().ending == "timeout"


def test_a_program_may_have_as_many_files_as_its_bound_and_no_more() -> None:
    text = "import time\nfor i in range({}): open(f'/tmp/{{i}}', 'w').close()\n"
    text += "time.sleep(0.3)\nprint(42)"
    with Sandbox(Limits(tmp_files=50), workers=1) as narrow:
        assert narrow.run(text.format(50)).answer == 42
        ran = narrow.run(text.format(51))
    assert (ran.ending, ran.answer, ran.exit_code) == ("memory", None, None)


def test_empty_files_are_stopped_before_they_cost_the_kernel_much() -> None:
    def made(folder: Path) -> int:
        found = os.statvfs(folder)
        return found.f_files - found.f_ffree

    text = "import os\ni = 0\nfor _ in range(3): os.fork()\n"
    text += "while True:\n    i += 1\n    os.mknod(f'{os.getpid()}-{i}')"
    most = 0
    with Sandbox(workers=1) as box:
        bombing = box._pool.submit(box._run, text)
        while not bombing.done():
            for process in _family(os.getpid()):
                with contextlib.suppress(OSError):
                    inside = Path("/proc", str(process), "root")
                    if (inside / "program.py").exists():
                        most = max(most, made(inside / "tmp"))
        assert bombing.result().ending == "memory"
    assert most < 100_000  # a second of it makes more than a million


def test_the_kernel_ends_a_program_before_anything_else() -> None:
    with Sandbox(workers=1) as box:
        running = box._pool.submit(box._run, "import os, time\nos.fork()\ntime.sleep(1)")
        time.sleep(0.5)
        scores = {
            Path(f"/proc/{process}/oom_score_adj").read_text() for process in _family(os.getpid())
        }
        running.result()
    assert scores == {"1000\n"}
    assert Path("/proc/self/oom_score_adj").read_text() != "1000\n"


def test_only_programs_that_can_be_started_in_time_are_run() -> None:
    sleep = "import time\ntime.sleep(0.4)\nprint({})"
    with Sandbox(workers=1) as box:
        began = time.monotonic()
        runs = list(box.run_within((sleep.format(n) for n in range(100)), seconds=1.0))
        assert time.monotonic() - began < 3
        assert list(box.run_within(["print(1)"], seconds=-1.0)) == []
    assert 1 <= len(runs) <= 3
    assert [ran.answer for ran in runs] == list(range(len(runs)))


def test_workers_of_root_become_users_nobody_else_is() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with Sandbox(workers=2) as pool:
        sleep = "import time\ntime.sleep(1)"
        running = [pool._pool.submit(pool._run, sleep) for _ in range(2)]
        time.sleep(0.5)
        children = [
            path.stat().st_uid
            for path in Path("/proc").iterdir()
            if path.name.isdigit()
            and b"bwrap" in path.joinpath("cmdline").read_bytes()[:40]
            and int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
        ]
        assert len(set(children)) == 2
        assert 0 not in children
        assert {run.result().ending for run in running} == {"no answer"}


def test_mounts_of_the_machine_stay_as_they_are(sandbox: Sandbox) -> None:
    assert sandbox.run("print(1)").answer == 1
    mounts = Path("/proc/self/mountinfo").read_text()
    assert Path(f"/proc/{os.getppid()}/mountinfo").read_text() == mounts


def script(text: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env={"PYTHONPATH": str(WORKFLOW), "PATH": os.environ["PATH"]} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_programs_end_with_the_process_that_ran_them() -> None:
    text = (
        "from kvaudit.sandbox import *; import threading, time, os\n"
        "box = Sandbox(Limits(wall_seconds=60, cpu_seconds=60), workers=1)\n"
        "threading.Thread(target=box.run, args=['import time; time.sleep(50)']).start()\n"
        "time.sleep(0.5)\n"
        "print(1, flush=True)\n"
    )
    process = script(text)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    assert any("bwrap" in child for child in processes_below(process.pid))
    children = _family(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 5
    while any(_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(child) for child in children)


def _family(parent: int) -> list[int]:
    direct: list[int] = []
    with contextlib.suppress(OSError):  # it may have ended
        for task in Path(f"/proc/{parent}/task").iterdir():
            direct += map(int, task.joinpath("children").read_text().split())
    return direct + [n for child in direct for n in _family(child)]


def _alive(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_without_bubblewrap_nothing_is_run() -> None:
    text = (
        "from kvaudit.sandbox import Sandbox\n"
        "from kvaudit.errors import SandboxUnavailable\n"
        "try: Sandbox()\n"
        "except SandboxUnavailable as error: print(error.exit_code, error)"
    )
    process = script(text, PATH="")
    output, _ = process.communicate(timeout=60)
    assert output.startswith(
        "3 programs are only run in a sandbox, and bubblewrap is not installed"
    )
    assert "apt-get install bubblewrap" in output


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts another bwrap on PATH, in a folder that every user may enter."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="bwrap-"))
    place.chmod(0o755)

    def write(text: str) -> None:
        (place / "bwrap").write_text(text)
        (place / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")

    yield write
    shutil.rmtree(place)


def test_a_sandbox_that_cannot_isolate_is_refused_with_its_own_words(
    pretend: Callable[[str], None],
) -> None:
    pretend("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    with pytest.raises(SandboxUnavailable, match="No permissions to create new namespace") as error:
        Sandbox()
    assert "user namespaces are switched off" in str(error.value)
    assert isinstance(error.value, ToolMissing)


def test_a_bubblewrap_that_isolates_nothing_is_refused(pretend: Callable[[str], None]) -> None:
    pretend("#!/bin/sh\necho 0\nexit 0\n")
    with pytest.raises(SandboxUnavailable):
        Sandbox()


@pytest.mark.parametrize("missing", ["--unshare-all", "--seccomp", "--remount-ro", "--uid"])
def test_the_probe_notices_a_wall_that_is_missing(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sandbox_walls.command

    def weaker(*arguments: object, **named: object) -> list[str]:
        words = real(*arguments, **named)  # type: ignore[arg-type]
        while missing in words:
            place = words.index(missing)
            del words[place : place + (1 if missing == "--unshare-all" else 2)]
        return words

    monkeypatch.setattr(sandbox_walls, "command", weaker)
    with pytest.raises(SandboxUnavailable):
        Sandbox()


def test_the_probe_notices_that_the_bound_of_processes_does_not_bind_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root is not bound")
    monkeypatch.setattr(sandbox_walls, "_user", lambda number: 0)
    with pytest.raises(SandboxUnavailable, match="processes have no bound"):
        Sandbox()


def test_an_interpreter_that_only_root_can_reach_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root becomes another user")

    def forbidden(python: sandbox_walls.Interpreter) -> sandbox_walls.Interpreter:
        raise OSError(1, "unshare: Operation not permitted")

    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="private-"))  # mode 0700
    try:
        python = folder / "python3"
        python.touch()
        hidden = sandbox_walls.Interpreter(python, folder, None)
        monkeypatch.setattr(sandbox_walls, "interpreter", lambda: hidden)
        monkeypatch.setattr(sandbox_walls, "_private", forbidden)
        with pytest.raises(SandboxUnavailable) as error:
            Sandbox()
    finally:
        shutil.rmtree(folder)
    assert f"{python}: Permission denied" in str(error.value)
    assert "the interpreter was not made reachable" in str(error.value)
    assert "must be readable by other users" in str(error.value)


def test_an_ordinary_user_has_the_same_walls() -> None:
    if os.getuid() != 0 or not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("needs root, to become an ordinary user, and the system's Python")
    place = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="ordinary-"))
    try:
        shutil.copytree(WORKFLOW / "kvaudit", place / "kvaudit")
        for path in [place, *place.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        bomb = HOSTILE["fork bomb that hides its errors"][0]
        text = (
            "from kvaudit.sandbox import *\n"
            "box = Sandbox(Limits(wall_seconds=1))\n"
            f"print([ran.ending for ran in box.run_all(['print(1)', {bomb!r}])])"
        )
        done = subprocess.run(
            ["/usr/bin/python3", "-B", "-c", text],
            env={"PYTHONPATH": str(place), "PATH": os.environ["PATH"]},
            cwd="/",
            user=12345,
            group=12345,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        shutil.rmtree(place)
    assert done.stdout == "['printed', 'timeout']\n", done.stderr


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"12", 12),
        (b"12\n", 12),
        (b" 12 \r\n\n \n", 12),
        (b"x\n-7\n", -7),
        (b"+7", 7),
        (b"007", 7),
        (b"", None),
        (b"\n\n", None),
        (b"12\nend", None),
        (b"12.0", None),
        (b"1e3", None),
        (b"1_000", None),
        (b"x = 12", None),
        (b"12 13", None),
        (b"-", None),
        (b"9" * 15, 10**15 - 1),
        (b"9" * 16, None),
        ("١٢".encode(), None),
        (b"\xff\n5", 5),
    ],
)
def test_last_integer(output: bytes, expected: int | None) -> None:
    assert last_integer(output) == expected


def test_the_other_endings_are_outcomes_as_they_are() -> None:
    for ending in ("no answer", "error", "timeout", "memory", "output flood", "sandbox failure"):
        assert outcome(Ran(ending, None, b"", None, 0.0), 1) == ending


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_filter_stays_inside_it(machine: str) -> None:
    text = seccomp.program(machine)
    steps = [text[n : n + 8] for n in range(0, len(text), 8)]
    assert len(steps) < 4096
    for number, step in enumerate(steps):
        if step[0] & 7 == 5:  # a jump
            assert number + 1 + max(step[2], step[3]) < len(steps)
    assert steps[-1][:2] == b"\x06\x00"


def test_numbers_of_the_filter_are_those_of_the_kernel_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers here")
    words = [line.split() for line in header.read_text().splitlines() if "__NR_" in line]
    numbers = {word[1].removeprefix("__NR_"): int(word[2]) for word in words if len(word) == 3}
    for name, (number, _) in seccomp._DENIED.items():
        assert numbers.get(name, number) == number, name
    for name, number in seccomp._DENIED_X86.items():
        assert numbers[name] == number, name
