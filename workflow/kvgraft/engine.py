"""The one place that loads llama.cpp, and what the loaded library says of itself.

Shared libraries, instruction set features and devices are read back from the process, never echoed
from a request. llama.cpp reads some variables once per process; `load` therefore refuses a second,
different set. This module knows nothing of models, sessions or files of this project.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kvaudit import digests
from kvgraft.errors import EngineNotInstalled, EngineUnavailable

_VARIABLE = re.compile(r"^(GGML|LLAMA|CUBLAS|CUDA|OMP|GOMP|KMP|HIP|ROCBLAS)_")
_FOLDER = "LLAMA_CPP_LIB_PATH"
"""Where llama-cpp-python looks for its libraries instead of in its own folder."""
_UNRELATED = {_FOLDER, "OMP_NUM_THREADS"}
"""Not bit-relevant: the libraries loaded are hashed, and the engine passes its own thread count."""
_COMPUTING = re.compile(r"^lib(llama|ggml[a-z0-9-]*|m|gomp|omp|cublas\w*|cudart)[-.]")
_BUFFER_LINE = re.compile(r"(\S+)\s+(model|KV|output|compute) buffer size\s*=\s*([\d.]+) MiB")

_REASON = r"error|fail|unable|cannot|exceed|require|not support|unsupported|invalid"

_latched: dict[str, str] | None = None


class _Log:
    """Last lines the engine logged; kept for error messages and for buffer types."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=4000)
        self._partial = ""

    def feed(self, text: str) -> None:
        whole = self._partial + text
        *lines, self._partial = whole.split("\n")
        self.lines.extend(lines)

    def tail(self, pattern: str = _REASON, limit: int = 3) -> str:
        """The last few lines that look like a reason."""
        hits = [line.strip() for line in self.lines if re.search(pattern, line, re.IGNORECASE)]
        return " / ".join(hits[-limit:]) or "the engine gave no reason"


log = _Log()


@dataclass(frozen=True)
class Engine:
    """The loaded library.

    Attributes:
        api: llama-cpp-python's low-level module.
        python_version: version of llama-cpp-python.
    """

    api: ModuleType
    python_version: str


def load(environment: Mapping[str, str]) -> Engine:
    """Load llama.cpp under the variables that a profile asks for.

    Args:
        environment: variables to set before the library reads them.

    Raises:
        EngineNotInstalled: llama-cpp-python is missing or does not load.
        EngineUnavailable: a variable is already set to another value, the library was loaded
            under other variables in this process, or LLAMA_CPP_LIB_PATH is empty.
    """
    global _latched
    wanted = dict(environment)
    if _latched is not None and _latched != wanted:
        raise EngineUnavailable(
            "the engine reads these variables once per process and has read others",
            expected=wanted,
            found=_latched,
            hint="open sessions of different profiles in different processes",
        )
    if _latched is None:
        for name, value in wanted.items():
            if os.environ.get(name, value) != value:
                raise EngineUnavailable(
                    f"the environment sets {name} against the profile",
                    expected=value,
                    found=os.environ[name],
                    hint=f"unset {name}",
                )
        os.environ.update(wanted)
        _latched = wanted
    return _load()


def library() -> Engine:
    """The engine for what no variable has a say in: vocabularies, freeing, versions.

    Raises:
        EngineUnavailable: as `load`.
    """
    return _load()


@lru_cache(maxsize=1)
def _load() -> Engine:
    if os.environ.get(_FOLDER) == "":
        # llama-cpp-python would look for its libraries in whatever folder this process is in.
        raise EngineUnavailable(
            f"{_FOLDER} is set, and empty",
            expected="a folder of the engine's libraries",
            hint="unset it for the installed engine; make portable prints the portable build's, or "
            "why there is none",
        )
    try:
        import llama_cpp
        from llama_cpp import llama_cpp as api
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineNotInstalled(
            f"llama-cpp-python does not load: {error}", hint=_remedy(error)
        ) from error

    @api.llama_log_callback  # type: ignore[untyped-decorator]
    def feed(_level: int, text: bytes, _data: object) -> None:
        log.feed(text.decode("utf-8", "replace"))

    global _keep
    _keep = feed  # the library keeps the pointer for the life of the process
    api.llama_log_set(feed, ctypes.c_void_p(0))
    api.llama_backend_init()
    return Engine(api, llama_cpp.__version__)


_keep: Any = None


def _remedy(error: Exception) -> str:
    """What to do where the engine does not load: its folder may be another one than it has."""
    absent = isinstance(error, ModuleNotFoundError)
    if os.environ.get(_FOLDER) and not absent:
        return f"unset {_FOLDER}, or let it name a built folder: {os.environ[_FOLDER]} is none"
    return (
        "install the engine: make engine-environment in a checkout; of an installed package it is "
        "the extra engine, pip install 'kvgraft[engine]'"
    )


@contextmanager
def buffers_logged() -> Iterator[dict[str, dict[str, float]]]:
    """Collect the buffer types, and their MiB, that the engine reports while the block runs.

    Yields:
        Filled on exit: {"model" | "KV" | "output" | "compute": {buffer type: MiB}}.
    """
    found: dict[str, dict[str, float]] = {}
    log.lines.clear()
    yield found
    for line in log.lines:
        if match := _BUFFER_LINE.search(line):
            kind = found.setdefault(match[2], {})
            kind[match[1]] = kind.get(match[1], 0.0) + float(match[3])


def _function(library: str, name: str, result: Any) -> Any:
    """A C function of a library that is already loaded."""
    for path in loaded_libraries():
        if path.name.startswith(library):
            function = getattr(ctypes.CDLL(str(path)), name)
            function.restype = result
            return function
    raise EngineUnavailable(f"no loaded library is named {library}*")


def loaded_libraries() -> list[Path]:
    """Paths of the shared libraries in this process that take part in computing a logit."""
    paths: set[Path] = set()
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and _COMPUTING.match(Path(fields[5]).name):
                paths.add(Path(fields[5]))
    return sorted(paths, key=lambda path: path.name)


@lru_cache(maxsize=1)
def engine_facts() -> dict[str, Any]:
    """Versions and the SHA-256 of each loaded library that computes, by file name."""
    engine = _load()
    return {
        "binding": f"llama-cpp-python {engine.python_version}",
        "llama": _text(_function("libllama", "llama_version", ctypes.c_char_p)),
        "ggml": _text(_function("libggml-base", "ggml_version", ctypes.c_char_p)),
        "ggml_commit": _text(_function("libggml-base", "ggml_commit", ctypes.c_char_p)),
        "libraries": {path.name: digests.sha256_file(path) for path in loaded_libraries()},
    }


@lru_cache(maxsize=1)
def machine_facts() -> dict[str, Any]:
    """Architecture, the features the library was built for, and the devices it sees."""
    engine = _load()
    info = engine.api.llama_print_system_info().decode("utf-8", "replace")
    features = sorted(
        name.strip()
        for name, value in re.findall(r"([A-Z][A-Z0-9_ ]*?)\s*=\s*(\d+)", info)
        if value != "0"
    )
    count = _function("libggml.", "ggml_backend_dev_count", ctypes.c_size_t)
    get = _function("libggml.", "ggml_backend_dev_get", ctypes.c_void_p)
    get.argtypes = [ctypes.c_size_t]
    devices = []
    for index in range(count()):
        device = get(index)
        devices.append(
            {
                "name": _text(_device_function("ggml_backend_dev_name"), device),
                "description": _text(_device_function("ggml_backend_dev_description"), device),
            }
        )
    return {"architecture": platform.machine(), "features": features, "devices": devices}


@dataclass(frozen=True)
class Facts:
    """What a profile says of libraries, machine and variables.

    Attributes:
        engine: as `engine_facts`.
        machine: as `machine_facts`.
        environment: as `environment_facts`.
    """

    engine: Mapping[str, Any]
    machine: Mapping[str, Any]
    environment: Mapping[str, str]


def facts() -> Facts:
    """What a profile says of the loaded libraries, this machine and this process's variables."""
    return Facts(engine_facts(), machine_facts(), environment_facts())


def _device_function(name: str) -> Any:
    function = _function("libggml-base", name, ctypes.c_char_p)
    function.argtypes = [ctypes.c_void_p]
    return function


def _text(function: Any, *arguments: Any) -> str:
    value: bytes = function(*arguments) or b""
    return value.decode("utf-8", "replace").strip()


def environment_facts() -> dict[str, str]:
    """The variables set in this process that the engine or its thread library may read."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if _VARIABLE.match(name) and name not in _UNRELATED
    }
