"""Python for aarch64 under emulation, and the packages of Debian it is made of."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]
ENVS = REPOSITORY / "envs"


@pytest.fixture
def debian() -> Iterator[ModuleType]:
    """The script, which imports its neighbours by their plain names."""
    sys.path.insert(0, str(ENVS))
    try:
        yield importlib.import_module("debian")
    finally:
        sys.path.remove(str(ENVS))


def path_of(script: str, *arguments: str) -> Path:
    """What a script of envs prints; the test is skipped if it has not made it here."""
    done = subprocess.run(
        [sys.executable, str(ENVS / script), *arguments, "--if-built"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"not made here: python envs/{script} {' '.join(arguments)}")
    return Path(done.stdout.strip())


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
    python = path_of("emulated_python.py")
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
    python = path_of("emulated_python.py")
    engine = path_of("engine_variant.py", "portable-aarch64")
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
