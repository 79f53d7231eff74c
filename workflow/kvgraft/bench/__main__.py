"""`python -m kvgraft.bench`: measure, print a table a model, keep every raw timing as JSON.

Wants an idle machine, and says so when it is not. `make bench` builds the rival server first.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvaudit import atomic
from kvaudit.errors import TypedError, UnusableInput
from kvgraft import pins
from kvgraft.bench import children, figures, report, server, splits
from kvgraft.bench.work import N_DECODE, Work, all_cores, context_size
from kvgraft.model import ModelPin

IDLE_LOAD = 0.5
SEED = "kvgraft/bench"
LENGTHS, REPEATS, COUNT = (256, 1000, 4000), 5, 30
QUICK_LENGTHS, QUICK_REPEATS, QUICK_COUNT, QUICK_LONGEST = (64, 160), 2, 3, 200
DEFAULT_JSON = "build/bench.json"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m kvgraft.bench", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=sorted(pins.read()),
        help="names or GGUF files, separated by commas (default: the embedded ones)",
    )
    common.add_argument("--json", type=Path, help=f"raw timings go here (default: {DEFAULT_JSON})")
    common.add_argument("--quick", action="store_true", help="small, to see that it works")
    speed = argparse.ArgumentParser(add_help=False)
    speed.add_argument("--lengths", type=_lengths, help="tokens of the spans: 256,1000,4000")
    speed.add_argument("--repeats", type=_positive, help="rounds (default: 5)")
    speed.add_argument("--skip-server", action="store_true", help="leave llama-server out")
    speed.add_argument(
        "--server",
        type=Path,
        default=Path(sys.prefix) / "bin" / "llama-server",
        help="llama-server to compare with (default: the one envs/server_build.py linked)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("speed", parents=[common, speed], help="the default")
    some = commands.add_parser("splits", parents=[common], help="which settings survive any split")
    some.add_argument("--count", type=_positive, help="cases a model (default: 30)")
    words = list(sys.argv[1:] if given is None else given)
    if not words or words[0] not in ("speed", "splits", "-h", "--help"):
        words.insert(0, "speed")
    return parser.parse_args(words)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(sorted({_positive(part) for part in text.split(",")}))


def main(given: Sequence[str] | None = None) -> int:
    """Run a measurement; returns the exit status, which no timing decides."""
    options = arguments(given)
    # Ending by SIGTERM must run every `finally`, so that no server is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    target = options.json or Path(DEFAULT_JSON)
    try:
        if options.json is None:
            target.parent.mkdir(exist_ok=True)
        elif not target.parent.is_dir():
            raise UnusableInput("there is no such folder", where=target.parent)
        atomic.require_replaceable(target)
        with _load() as load:
            models = _splits(options) if options.command == "splits" else _speed(options)
        kind = f"kvgraft-bench-{options.command}"
        value = {"kind": kind, "version": 1, "machine": _machine(), "load": load, "models": models}
        atomic.write_json(target, value)
    except TypedError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    print(f"raw timings: {target}")
    return 0


@contextmanager
def _load() -> Iterator[dict[str, Any]]:
    """Load averages before and after; warns if the machine is not idle."""
    before = os.getloadavg()
    load: dict[str, Any] = {"before": list(before), "began": int(time.time())}
    if before[0] > IDLE_LOAD:
        print(
            f"bench: the machine is not idle (load average {before[0]:.2f}); figures mean little",
            file=sys.stderr,
        )
    yield load
    load |= {"after": list(os.getloadavg()), "ended": int(time.time())}
    busy = " (NOT IDLE at the start)" if before[0] > IDLE_LOAD else ""
    print(f"load average before {before[0]:.2f}, after {load['after'][0]:.2f}{busy}")


def _machine() -> dict[str, Any]:
    return {
        "architecture": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": all_cores(),
    }


def _progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


# -- speed ----------------------------------------------------------------------------------------


def _speed(options: argparse.Namespace) -> dict[str, Any]:
    lengths = options.lengths or (QUICK_LENGTHS if options.quick else LENGTHS)
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    program = None if options.skip_server else options.server
    if program is not None and not program.is_file():
        raise UnusableInput(
            "there is no llama-server to compare with",
            where=program,
            hint="build it: python envs/server_build.py; or leave it out: --skip-server",
        )
    models: dict[str, Any] = {}
    for name in options.models:
        pin = pins.resolve(name)
        with tempfile.TemporaryDirectory(prefix="kvgraft-bench-") as scratch:
            models[pin.name] = _one_model(pin, lengths, repeats, Path(scratch), program)
        print(report.of_model(pin.name, models[pin.name]), flush=True)
    return models


def _one_model(
    pin: ModelPin, lengths: tuple[int, ...], repeats: int, scratch: Path, program: Path | None
) -> dict[str, Any]:
    n_tokens = max(lengths) + 1 + N_DECODE
    text = children.call("ids", pin=pin.to_json(), seed=SEED, n_tokens=n_tokens)
    work = Work(
        pin=ModelPin(pin.name, pin.sha256, pin.bytes, pin.licence, {"path": text["path"]}),
        ids=tuple(text["ids"]),
        lengths=lengths,
        repeats=repeats,
        n_ctx=context_size(lengths),
        n_threads=all_cores(),
        scratch=scratch,
    )
    ours: dict[str, Any] = {}
    for preset in figures.PRESETS:
        _progress(f"{pin.name}: {preset} profile")
        answer = children.call("ours", work=work.to_json(), preset=preset)
        for one in answer["measured"]:
            job = {"work": work.to_json(), "preset": preset, "block": one["extra"]["block"]}
            one["extra"] |= children.call("memory", **job)
        ours[preset] = answer
    _progress(f"{pin.name}: llama-cpp-python's save_state and LlamaDiskCache")
    rivals = children.call("rivals", work=work.to_json())["measured"]
    if program is not None:
        _progress(f"{pin.name}: llama-server")
        rivals += [one.to_json() for one in server.measure(work, program)]
    result = {
        "lengths": list(lengths),
        "repeats": repeats,
        "n_ctx": work.n_ctx,
        "n_threads": work.n_threads,
        "ours": ours,
        "rivals": rivals,
    }
    return {**result, "figures": [f.to_json() for f in figures.of_model(pin.name, result)]}


# -- splits ---------------------------------------------------------------------------------------


def _splits(options: argparse.Namespace) -> dict[str, Any]:
    count = options.count or (QUICK_COUNT if options.quick else COUNT)
    longest = QUICK_LONGEST if options.quick else splits.LONGEST
    chosen = splits.cases(count, longest=longest)
    models: dict[str, Any] = {}
    for name in options.models:
        pin = pins.resolve(name)
        answers: dict[str, Any] = {}
        for variant, settings in splits.variants(context_size([longest])).items():
            _progress(f"{pin.name}: {variant}")
            answers[variant] = children.call("splits", **splits.job(pin, settings, chosen))
        found = {variant: splits.summary(answer) for variant, answer in answers.items()}
        models[pin.name] = {"variants": answers, "summary": found}
        print(report.splits(pin.name, found, splits.SHORTEST, longest), flush=True)
    return models


if __name__ == "__main__":
    sys.exit(main())
