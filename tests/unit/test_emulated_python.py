"""Python for aarch64 under emulation, and the packages of Debian it is made of."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from envswork import built

REPOSITORY = Path(__file__).parents[2]
ENVS = REPOSITORY / "envs"


@pytest.fixture
def envs() -> Iterator[None]:
    """The scripts import their neighbours by their plain names."""
    sys.path.insert(0, str(ENVS))
    try:
        yield
    finally:
        sys.path.remove(str(ENVS))


@pytest.fixture
def debian(envs: None) -> ModuleType:
    return importlib.import_module("debian")


def answer(python: Path, program: str, **variables: str) -> dict[str, str]:
    """The JSON that a program prints as its last line."""
    done = subprocess.run(
        [str(python), "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    value: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return value


def test_it_is_aarch64_and_so_are_the_processes_that_it_starts() -> None:
    python = Path(built(ENVS / "emulated_python.py", "--if-built"))
    inner = "import platform; print(platform.machine())"
    found = answer(
        python,
        "import json, platform, subprocess, sys\n"
        f"inner = subprocess.run([sys.executable, '-c', {inner!r}], capture_output=True, text=True)"
        "\nprint(json.dumps({'machine': platform.machine(), 'executable': sys.executable,"
        " 'inner': inner.stdout.strip(), 'python': sys.version.rpartition('.')[0][:4]}))",
    )
    assert found["machine"] == found["inner"] == "aarch64"
    assert Path(found["executable"]) == python
    assert found["python"] == "3.11"


def test_it_imports_this_checkout_and_the_engine_of_its_architecture() -> None:
    python = Path(built(ENVS / "emulated_python.py", "--if-built"))
    engine = Path(built(ENVS / "engine_variant.py", "portable-aarch64", "--if-built"))
    found = answer(
        python,
        "import json, kvgraft.session, kvaudit, llama_cpp, numpy, pyarrow\n"
        "maps = open('/proc/self/maps').read().split()\n"
        "print(json.dumps({'checkout': kvgraft.session.__file__,"
        " 'engine': next(path for path in maps if path.endswith('libllama.so'))}))",
        LLAMA_CPP_LIB_PATH=str(engine),
    )
    assert Path(found["checkout"]).is_relative_to(REPOSITORY / "workflow")
    assert Path(found["engine"]).parent == engine


def test_without_apt_the_message_says_what_to_fetch(
    debian: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(debian.BuildError, match=r"apt-get download libx \(arm64\)"):
        debian.fetch(["libx"], "arm64", tmp_path / "work")


def test_a_damaged_package_is_refused(debian: ModuleType, tmp_path: Path) -> None:
    if not debian.shutil.which("dpkg-deb"):
        pytest.skip("this is no Debian")
    damaged = tmp_path / "libx_1_arm64.deb"
    damaged.write_bytes(b"!<arch>\nno package")
    with pytest.raises(debian.BuildError, match=r"libx_1_arm64\.deb"):
        debian.unpack(damaged, tmp_path / "into")
    with pytest.raises(debian.BuildError, match=r"libx_1_arm64\.deb"):
        debian.version_of(damaged)


def test_the_emulator_is_started_from_a_cache_and_a_path_with_spaces_and_quotes(
    envs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = importlib.import_module("emulated_python")
    tools, cache = tmp_path / "my tools", tmp_path / "a cache of 'mine' $HOME"
    tools.mkdir()
    emulator = tools / script.EMULATORS[0]
    emulator.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    emulator.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    folder = cache / "emulated-0123"
    started = script.interpreter(folder, tmp_path / "checkout")
    assert started.is_relative_to(cache)
    done = subprocess.run(
        [str(started), "-c", "a program"], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        *("-L", f"{folder}/system", "-0", str(started)),
        *(f"{folder}/system/usr/bin/python{script.VERSION}", "-c", "a program"),
    ]


@pytest.mark.parametrize(
    "said",
    [
        "variant: portable-clang is not built here",
        "doctored: doctored-fma is not built here",
        "emulated python: it is not unpacked here",
        "variant: clang is not on PATH (Debian and Ubuntu: apt-get install clang)",
    ],
)
def test_a_test_of_what_is_not_built_here_is_skipped(tmp_path: Path, said: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.exit({said!r})\n", encoding="utf-8")
    with pytest.raises(pytest.skip.Exception, match=re.escape(said)):
        built(script, "--if-built")


@pytest.mark.parametrize(
    "program",
    [
        "raise FileNotFoundError('portable is not built here')",
        "import sys\nsys.exit('variant: name one variant: portable')",
        "import sys\nsys.exit('emulated python: /cache/python does not run: no such file')",
        "import sys\nprint('it is damaged')\nsys.exit('variant: portable is not built here')",
        "raise SystemExit(3)",
    ],
    ids=["traceback", "misuse", "broken", "damaged", "silent"],
)
def test_a_script_that_fails_for_another_reason_fails_the_test(
    tmp_path: Path, program: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{program}\n", encoding="utf-8")
    with pytest.raises(pytest.fail.Exception, match=r"script\.py --if-built ended with [13]"):
        built(script, "--if-built")
