"""Fuzzes parsers of foreign bytes in a process of their own, and measures what an input costs.

    python fuzzing.py GROUP EXAMPLES [TARGET …]

prints one line of JSON: for each target of the group how many inputs it took, the processor's
seconds of the dearest, by how many bytes the process grew most over one input (the drawing of it
left out: hypothesis keeps tables of all of Unicode), and what went wrong. A target may answer with
a value or a TypedError; anything else is a fault. Hypothesis draws the inputs, the same ones on
every machine; time is the processor's, so that a busy machine is no hang.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
for _place in (HERE, HERE.parent / "audit", HERE.parent / "kvb", HERE.parents[1] / "workflow"):
    if str(_place) not in sys.path:
        sys.path.insert(0, str(_place))

import mutations  # noqa: E402

from kvaudit import canonical  # noqa: E402
from kvaudit.errors import TypedError, UnusableInput  # noqa: E402

MAX_SECONDS = 2.0
MAX_BYTES = 200 * 1000 * 1000
ADDRESS_SPACE = 4 << 30
"""Beside what the process has when it begins: a wild allocation ends it, and not the machine."""

NUMBERS = [0, 1, 8, 63, 64, 127, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1]
WORDS = [
    *(b"\x00", b"\xff", b"\xff\xff\xff\xff", b"{", b"}", b"[" * 70, b'{"a":' * 70, b'"', b"\\"),
    *(b"\n", b",", b":", b"null", b"NaN", b"-0", b"1e999", b"9" * 500, b"9" * 5000, b"\\ud800"),
    *(b"../", b"/etc/passwd", b"\xef\xbb\xbf", b"\xc0\xaf", b"0" * 64, b" " * 64, b"\x1b[2J"),
]

Draw = st.SearchStrategy[Any]


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes:
        draw: inputs.
        run: parses one; a folder of its own is given as the second argument.
        share: of the examples that are asked for; more for what is quick, less for what is slow.
    """

    draw: Draw
    run: Callable[[Any, Path], object]
    share: float = 1.0


# -- inputs ---------------------------------------------------------------------------------------


@st.composite
def damaged(draw: Any, seeds: list[bytes]) -> bytes:
    """A seed with up to four pieces replaced, moved or doubled, or cut."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        removed = draw(st.sampled_from([0, 0, 1, 1, 2, 4, 8, 32]))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            added = draw(st.binary(max_size=9))
        elif kind == 1:
            added = draw(st.sampled_from(WORDS))
        elif kind == 2:
            width = draw(st.sampled_from([1, 2, 4, 8]))
            number = draw(st.sampled_from(NUMBERS)) % (1 << (8 * width))
            added, removed = number.to_bytes(width, "little"), width
        elif kind == 3:
            other = draw(st.integers(0, len(data)))
            added = data[other : other + draw(st.integers(0, 64))]
        else:
            added = b""
        data = data[:at] + added + data[at + removed :]
    if draw(st.integers(0, 7)) == 0:
        data = data[: draw(st.integers(0, len(data)))]
    return data


@st.composite
def altered(draw: Any, seeds: list[Any], repair: Callable[[Any], Any] | None = None) -> Any:
    """A JSON value with up to three values replaced or taken away, and digests put right."""
    value = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 3))):
        places = [*mutations.paths(value)]
        if not places:
            break
        at = draw(st.sampled_from(places))
        new = draw(st.sampled_from([*mutations.VALUES, *_EXTRA]))
        value = mutations.edited(value, at, new)
    if repair is not None:
        with contextlib.suppress(KeyError, TypeError, AttributeError, IndexError, UnusableInput):
            value = repair(value)
    return value


_EXTRA: list[Any] = [mutations._DELETED, 1e300, 2**31, "a" * 3000, {"a": {"b": []}}, [None] * 9]


def written(value: Any) -> bytes:
    """The canonical document of a value; where it has none, what json writes."""
    try:
        return canonical.dumps(value) + b"\n"
    except UnusableInput:
        return json.dumps(value).encode() + b"\n"


def documents(seeds: list[Any], repair: Callable[[Any], Any] | None = None) -> Draw:
    """Documents of altered values, and damaged ones."""
    texts = [written(seed) for seed in seeds]
    return altered(seeds, repair).map(written) | damaged(texts)


# -- one process ----------------------------------------------------------------------------------


class TooSlow(BaseException):
    """Above what hypothesis and the parsers catch."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Ends the block when it has cost a little more than it may."""

    def stop(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS * 2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.M)
    assert found, field
    return int(found[1]) * 1024


def _forget_peak() -> None:
    with contextlib.suppress(OSError):  # where it cannot be forgotten, growth is overstated
        Path("/proc/self/clear_refs").write_text("5")


def measure(target: Target, examples: int) -> dict[str, Any]:
    """Feeds a target; the first fault, shrunk, is in `fault`."""
    said: dict[str, Any] = {"examples": 0, "refused": 0, "seconds": 0.0, "bytes": 0, "fault": None}
    gc.collect()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        number = 0

        @settings(
            max_examples=max(5, int(examples * target.share)),
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(target.draw)
        def feed(data: Any) -> None:
            nonlocal number
            number += 1
            folder = place / str(number)
            folder.mkdir()
            _forget_peak()
            held = _status("VmRSS")
            before = time.process_time()
            try:
                with bounded():
                    target.run(data, folder)
            except TypedError as error:
                said["refused"] += 1
                assert "\n" not in str(error), "an error of more than one line"  # noqa: PT017
            except TooSlow:
                raise AssertionError(
                    f"took more than {MAX_SECONDS * 2} s: {data!r:.2000}"
                ) from None
            except BaseException as error:
                raise AssertionError(f"{error!r:.500} on {data!r:.2000}") from error
            spent = time.process_time() - before
            said["examples"] += 1
            said["seconds"] = max(said["seconds"], round(spent, 3))
            said["bytes"] = max(said["bytes"], _status("VmHWM") - held)
            assert spent < MAX_SECONDS, f"took {spent:.1f} s: {data!r:.2000}"

        try:
            feed()
        except Exception as error:  # ours, or that of hypothesis where it did not come again
            said["fault"] = f"{error}"
    return said


def main(arguments: list[str]) -> int:
    """One group of targets in this process."""
    group, examples, *only = arguments
    warnings.simplefilter("ignore")
    targets: Mapping[str, Target] = importlib.import_module(f"targets_{group}").targets()
    space = _status("VmSize") + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    said = {}
    for name in only or targets:
        target = targets[name]
        said[name] = measure(target, int(examples))
        print(name, said[name], file=sys.stderr, flush=True)
    print(json.dumps(said))
    return 0


def report(group: str, examples: int) -> dict[str, dict[str, Any]]:
    """What a group came to, in a new process."""
    examples = int(os.environ.get("KVAUDIT_FUZZ_EXAMPLES", examples))
    done = subprocess.run(
        [sys.executable, __file__, group, str(examples)],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(said: Mapping[str, Any]) -> None:
    """A target's report: inputs were taken, no fault, no hang, bounded memory."""
    assert said["fault"] is None, said["fault"]
    assert said["examples"] > 4
    assert said["seconds"] < MAX_SECONDS, said
    assert said["bytes"] < MAX_BYTES, said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
