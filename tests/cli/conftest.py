"""The real command in processes of its own, tiny models, and a store with blocks of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kvgraft
from kvaudit.kvb_map import open_block
from kvgraft.tiny import make_tiny_gguf

WORKFLOW = str(Path(kvgraft.__file__).parents[1])

# Put in front of the module path, it hides installed packages named in HIDE.
HIDER = """
import os, sys
from importlib.machinery import PathFinder
hidden = os.environ["HIDE"].split(",")
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, *more):
        return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, *more)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""

TEXT = "The keeper of the lighthouse wrote every name in a green book. " * 4


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Done]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KVGRAFT_", "GGML_", "OMP_"))}
    return {**kept, "PYTHONPATH": WORKFLOW, "OMP_NUM_THREADS": "1", **(extra or {})}


@pytest.fixture(scope="session")
def command() -> Command:
    """Runs `python -m kvgraft` and returns exit code, standard output and standard error."""

    def run(*arguments: object, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "kvgraft", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env=environment(env),
            timeout=300,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def refused(command: Command) -> Callable[..., str]:
    """Runs a command that must fail with one line, without a traceback; returns the line."""

    def run(code: int, *arguments: object, **given: Any) -> str:
        done = command(*arguments, **given)
        assert (done.code, done.out) == (code, ""), done
        assert done.err.startswith("kvgraft: ")
        assert done.err.count("\n") == 1
        return done.err

    return run


@pytest.fixture(scope="session")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """Variables under which packages look as if they were not installed."""
    folder = tmp_path_factory.mktemp("hider")
    (folder / "sitecustomize.py").write_text(HIDER)

    def variables(*packages: str) -> dict[str, str]:
        return {"PYTHONPATH": f"{folder}{os.pathsep}{WORKFLOW}", "HIDE": ",".join(packages)}

    return variables


@dataclass(frozen=True)
class Prepared:
    """Two tiny models, and a store with one block of each.

    `llama` and `gemma3` are model files, `llama_id` and `gemma3_id` blocks in `store`; the text of
    the gemma3 block is longer than the model's window.
    """

    llama: Path
    gemma3: Path
    store: Path
    llama_id: str
    gemma3_id: str

    def file(self, block_id: str) -> Path:
        return self.store / "blocks" / block_id[:2] / f"{block_id}.kvb"


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Prepared:
    """Made once; read-only by convention."""
    folder = tmp_path_factory.mktemp("prepared")
    ids = {}
    for architecture in ("llama", "gemma3"):
        path = make_tiny_gguf(folder / f"tiny-{architecture}.gguf", architecture)
        done = command("capture", path, TEXT, "--store", folder / "store", "--json")
        assert done.code == 0, done.err
        ids[architecture] = done.json["id"]
    return Prepared(
        folder / "tiny-llama.gguf",
        folder / "tiny-gemma3.gguf",
        folder / "store",
        ids["llama"],
        ids["gemma3"],
    )


@pytest.fixture
def prepared(pristine: Prepared, tmp_path: Path) -> Prepared:
    """A copy of the store to damage."""
    store = Path(shutil.copytree(pristine.store, tmp_path / "store"))
    return Prepared(pristine.llama, pristine.gemma3, store, pristine.llama_id, pristine.gemma3_id)


@pytest.fixture
def damage() -> Callable[[Path, int], None]:
    """Flips one bit of a block file, which a store leaves read-only; negative: from the end."""

    def flip(path: Path, offset: int) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)

    return flip


@pytest.fixture
def forge(tmp_path: Path) -> Callable[..., Path]:
    """Writes a well-formed block that differs from a given one; returns its path."""
    from kvaudit import kvb

    def write(
        source: Path, *, state: Callable[[bytearray], None] | None = None, **changes: Any
    ) -> Path:
        with open_block(source) as block:
            old, tokens = block.header, block.tokens.copy()
            data = bytearray(block.state)
        if state:
            state(data)
        fields = {
            "model": old.model,
            "profile": old.profile,
            "engine": old.engine,
            "start": old.start,
            "parent": old.parent,
            "provenance": old.provenance,
            **changes,
        }
        header = kvb.build(tokens=tokens, state=data, **fields)
        path = tmp_path / f"{header.id}.kvb"
        with path.open("wb") as file:
            kvb.write_block(file, header, tokens, data)
        return path

    return write
