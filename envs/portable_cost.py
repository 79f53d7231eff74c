"""What the portable arithmetic costs: stock against the portable builds, by quantisation.

Copies of the embedded models are quantised anew into a temporary folder (from the embedded ones,
which are quantised themselves: good for speed, not for answers). Each build reads a text in one
batch, then goes on token by token, in a process of its own, one after the other, flash attention
off. Given are tokens a second by the clock, and a second of the processor's time, which means
something on a busy machine too. Each process starts afresh, and the best of its rounds counts.

    python envs/portable_cost.py                             both embedded models, one thread
    python envs/portable_cost.py --models a.gguf --types Q8_0,Q4_K --threads 2 --json cost.json

Nothing is built here; builds that are not there are left out of the table, and said. Each process
says which folder it has loaded the engine from, and a row of another one ends the measurement.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine_variant import VARIANTS, folder_name, sound
from engine_wheel import ENVS, BuildError, cache_path

TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q4_K": 15, "Q6_K": 18}
"""llama.cpp's numbers of the file types; blocks of 256 fall back where a row is no multiple."""
BUILDS = ("stock", "portable", "portable-clang", "portable-generic")
PREFILL, DECODE, ROUNDS = 256, 48, 3
EMBEDDED = ("smollm2-135m", "gemma-3-270m")
LOADED = "libraries"
"""Beside the timings: the folder that the engine was loaded from."""


def measure(path: Path, threads: int, prefill: int, decode: int, rounds: int) -> dict[str, Any]:
    """Read and go on, in this process, with the engine that it loads.

    Args:
        path: of the model.
        threads: of the engine.
        prefill: tokens that are read in one batch.
        decode: tokens that are read behind it, one by one.
        rounds: how often; the best counts.

    Returns:
        Best seconds of "prefill" and "decode", each by the clock and of processor time; and
        "libraries", the folder that the engine was loaded from.

    Raises:
        BuildError: the model cannot be loaded or decoded, or the engine is of several folders.
    """
    import llama_cpp as api

    quiet = api.llama_log_callback(lambda _level, _text, _data: None)
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    api.llama_backend_init()
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    if not model:
        raise BuildError(f"{path.name} cannot be loaded")
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    parameters = api.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = prefill + decode
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.flash_attn_type = 0
    context = api.llama_init_from_model(model, parameters)
    batch = api.llama_batch_init(prefill, 0, 1)
    tokens = [(i * 7919 + 13) % (vocabulary - 300) + 200 for i in range(prefill + decode)]

    def step(first: int, count: int) -> None:
        batch.n_tokens = count
        for i in range(count):
            batch.token[i], batch.pos[i] = tokens[first + i], first + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i == count - 1
        if api.llama_decode(context, batch) != 0:
            raise BuildError(f"{path.name} cannot be decoded")

    best: dict[str, Any] = {}
    for _ in range(rounds):
        api.llama_memory_clear(api.llama_get_memory(context), True)
        marks = [(time.perf_counter(), time.process_time())]
        step(0, prefill)
        marks.append((time.perf_counter(), time.process_time()))
        for i in range(decode):
            step(prefill + i, 1)
        marks.append((time.perf_counter(), time.process_time()))
        for name, begin, end in zip(("prefill", "decode"), marks, marks[1:], strict=False):
            took = [b - a for a, b in zip(begin, end, strict=True)]
            best[name] = [min(pair) for pair in zip(best.get(name, took), took, strict=True)]
    return best | {LOADED: str(loaded_folder())}


def loaded_folder() -> Path:
    """The folder that this process has loaded libllama and ggml's libraries from.

    Raises:
        BuildError: none, or several.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    paths = re.findall(r" (/.*/lib(?:llama|ggml[\w-]*)\.so[\d.]*)$", maps, re.MULTILINE)
    folders = sorted({Path(path).resolve().parent for path in paths})
    if len(folders) != 1:
        said = ", ".join(map(str, folders)) or "no folder"
        raise BuildError(f"the engine is loaded from {said} instead of from one folder")
    return folders[0]


def expect_loaded(build: str, folder: Path | None, found: Mapping[str, Any]) -> None:
    """That a process has measured the build that its row names.

    Args:
        build: name of the row.
        folder: of its libraries; None for the installed engine.
        found: as `measure` returns it.

    Raises:
        BuildError: it has loaded the engine from another folder.
    """
    if folder is None:
        installed = importlib.util.find_spec("llama_cpp")
        if installed is None or installed.origin is None:
            raise BuildError("llama_cpp is not installed")
        folder = Path(installed.origin).parent / "lib"
    if Path(found[LOADED]) != folder.resolve():
        raise BuildError(f"{build}: the engine was loaded from {found[LOADED]}, not from {folder}")


def quantise(source: Path, target: Path, kind: int) -> None:
    """Write a copy of a model in another file type.

    Raises:
        BuildError: llama.cpp does not make it.
    """
    import llama_cpp as api

    parameters = api.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread = kind, 1
    parameters.allow_requantize = parameters.pure = True
    given = str(source).encode(), str(target).encode()
    if api.llama_model_quantize(*given, ctypes.byref(parameters)) != 0 or not target.is_file():
        raise BuildError(f"{source.name} cannot be quantised to {target.stem}")


def child(job: Mapping[str, Any], folder: Path | None) -> Any:
    """Run one job in a process of its own, under the stock engine or the one of a folder.

    Args:
        job: arguments of `quantise` (`path`, `target`, `kind`) or of `measure`, by name.
        folder: of a portable build; None for the installed engine.

    Returns:
        What `measure` returns; None of `quantise`.

    Raises:
        BuildError: the process failed; its last line is in the error.
    """
    hidden = {"LLAMA_CPP_LIB_PATH", "GGML_CPU_TILED_MM", "GGML_CPU_DISABLE_FUSION"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    if folder is not None:
        environment |= json.loads((folder / "ARITHMETIC.json").read_bytes())["environment"]
        environment["LLAMA_CPP_LIB_PATH"] = str(folder)
    done = subprocess.run(
        [sys.executable, __file__, "--child"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"{job['path']}: {(done.stderr.strip().splitlines() or ['died'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def _answer() -> int:
    job = json.load(sys.stdin)
    if "kind" in job:
        quantise(Path(job["path"]), Path(job["target"]), job["kind"])
        print("null")
    else:
        given = [int(job[name]) for name in ("threads", "prefill", "decode", "rounds")]
        print(json.dumps(measure(Path(job["path"]), *given)))
    return 0


def builds() -> dict[str, Path | None]:
    """The builds that are there; None is the installed engine."""
    found: dict[str, Path | None] = {}
    for name in BUILDS:
        folder = cache_path() / folder_name(name) if name in VARIANTS else None
        if folder is not None and not sound(folder):
            print(f"{name} is not built: python envs/engine_variant.py {name}", file=sys.stderr)
            continue
        found[name] = folder
    return found


def model_file(name: str) -> Path:
    """The file of a pinned model, or the file of that name.

    Raises:
        BuildError: there is no such model, it is not installed, or not the pinned one.
    """
    if name.endswith(".gguf"):
        return Path(name)
    sys.path.insert(0, str(ENVS.parent / "workflow"))
    from kvaudit.errors import TypedError
    from kvgraft import pins
    from kvgraft.model import FrozenModel

    try:
        with FrozenModel.open(pins.resolve(name)) as model:
            return Path(model.path)
    except TypedError as error:
        raise BuildError(str(error)) from error


def row(name: str, kind: str, got: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
    """The lines of a table for one model in one file type.

    Args:
        name: of the model.
        kind: the file type.
        got: {build: as `measure` returns it}, "stock" among them, which the others are divided by.
        counts: tokens of "prefill" and "decode".

    Returns:
        One line for each build: tokens a second by the clock and of processor time, and the
        processor time as a multiple of stock's.
    """
    lines = []
    for build, best in got.items():
        cells = []
        for what, count in counts.items():
            clock, processor = (count / seconds for seconds in best[what])
            against = got["stock"][what][1]
            cells.append(f"{clock:.0f} | {processor:.0f} | {best[what][1] / against:.2f}")
        lines.append(f"| {name} | {kind} | {build} | {' | '.join(cells)} |")
    return lines


def main(given: Sequence[str]) -> int:
    """Measure and print a table; returns the exit status, which no figure decides."""
    if list(given) == ["--child"]:
        return _answer()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(EMBEDDED), help="names or GGUF files")
    parser.add_argument("--types", default=",".join(TYPES), help="file types")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prefill", type=int, default=PREFILL, help="tokens in one batch")
    parser.add_argument("--decode", type=int, default=DECODE, help="tokens one by one")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="raw timings go here")
    options = parser.parse_args(given)
    counts = {"prefill": options.prefill, "decode": options.decode}
    results: dict[str, Any] = {"load": {"before": os.getloadavg()}, "models": {}}
    print(f"load average {os.getloadavg()[0]:.1f}, {options.threads} thread(s)")
    print("| model | type | build | prefill/s | CPU | cost | decode/s | CPU | cost |")
    print("|---|---|---|---|---|---|---|---|---|")
    try:
        there = builds()
        for name in options.models.split(","):
            source = model_file(name)
            for kind in options.types.split(","):
                with tempfile.TemporaryDirectory(prefix="kvgraft-cost-") as scratch:
                    path = Path(scratch) / f"{kind}.gguf"
                    child({"path": str(source), "target": str(path), "kind": TYPES[kind]}, None)
                    job = {"path": str(path), "threads": options.threads, "rounds": options.rounds}
                    got = {build: child({**job, **counts}, at) for build, at in there.items()}
                for build, at in there.items():
                    expect_loaded(build, at, got[build])
                results["models"].setdefault(name, {})[kind] = got
                print("\n".join(row(name, kind, got, counts)), flush=True)
    except (BuildError, KeyError) as error:
        print(f"cost: {error}", file=sys.stderr)
        return 1
    results["load"]["after"] = os.getloadavg()
    print(f"load average {os.getloadavg()[0]:.1f} at the end")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
