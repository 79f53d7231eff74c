"""Energy meters: what a stretch of work took in joules, or why nobody can say.

RAPL counts the energy of whole processor packages and their memory, in counters that start again
at 0; they are read often enough that none does so twice unseen. An NVIDIA device states its power,
which is summed over time between readings. Either counts everything that ran there meanwhile, not
this process alone. This module must not know what is measured.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

POWERCAP = "/sys/class/powercap"
"""Where Linux shows RAPL, a folder a domain: `intel-rapl:0` a package, `intel-rapl:0:1` a part."""

INTERVAL_SECONDS = 2.0
"""Between readings. A counter of 262 kJ starts again after 20 minutes at 200 W."""

_PARTS = ("package", "dram")  # cores and graphics are within the package, psys holds all of them
_COMMAND_SECONDS = 10.0
_RAPL, _NVML = "RAPL", "NVML"


@dataclass(frozen=True)
class Reading:
    """What meters read.

    Attributes:
        meter: what was read; None where nothing was.
        reason: what the joules cover, or why there are none.
        joules: of the whole stretch.
    """

    meter: str | None
    reason: str
    joules: float | None

    def to_json(self) -> dict[str, Any]:
        """As a record holds it (schema flywheel-run.v1.json)."""
        return asdict(self)


class _Source(Protocol):
    """Something that is read again and again; `joules` is the sum so far."""

    name: str

    @property
    def covers(self) -> str: ...

    @property
    def joules(self) -> float: ...

    def read(self) -> None:
        """Raises OSError or ValueError where it cannot be read."""


class _Counters:
    """RAPL counters of all packages, and of their memory where it is counted apart."""

    name = _RAPL

    def __init__(self, domains: list[Path]) -> None:
        self._domains = domains
        self._ranges = [_integer(domain / "max_energy_range_uj") for domain in domains]
        self._last = [_integer(domain / "energy_uj") for domain in domains]
        self._total = 0
        self.covers = f"all that ran on {len(domains)} package and memory domains"

    @property
    def joules(self) -> float:
        return self._total / 1e6

    def read(self) -> None:
        for number, domain in enumerate(self._domains):
            now = _integer(domain / "energy_uj")
            self._total += now - self._last[number]
            if now < self._last[number]:
                self._total += self._ranges[number]
            self._last[number] = now


class _Power:
    """Power of all NVIDIA devices, as the mean of two readings over the time between them."""

    name = _NVML

    def __init__(self, command: str) -> None:
        self._command = command
        self.joules = self._bound = 0.0
        self._watts, self._at = self._now(), time.monotonic()

    @property
    def covers(self) -> str:
        return (
            f"the devices' power, exact to {self._bound:.3g} J if it rose or fell steadily between "
            "readings"
        )

    def read(self) -> None:
        watts, at = self._now(), time.monotonic()
        seconds = at - self._at
        self.joules += seconds * (watts + self._watts) / 2
        self._bound += seconds * abs(watts - self._watts) / 2
        self._watts, self._at = watts, at

    def _now(self) -> float:
        query = [self._command, "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                query, capture_output=True, check=True, text=True, timeout=_COMMAND_SECONDS
            )
        except subprocess.SubprocessError as error:
            raise ValueError(f"nvidia-smi: {type(error).__name__}") from error
        watts = sum(float(line) for line in done.stdout.split("\n") if line.strip())
        if not done.stdout.strip() or not math.isfinite(watts):
            raise ValueError("nvidia-smi states no power")
        return watts


class Meter:
    """Reads the meters of this machine over a `with` block, in a thread of its own.

    Args:
        devices: whether NVIDIA devices are counted; only where the work runs on them.
        powercap: folder of the RAPL domains.
        nvidia_smi: the program that states their power; looked for on PATH where None.
        interval: seconds between readings.
    """

    def __init__(
        self,
        *,
        devices: bool = False,
        powercap: str | Path = POWERCAP,
        nvidia_smi: str | None = None,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._devices, self._powercap, self._interval = devices, Path(powercap), interval
        self._nvidia_smi = nvidia_smi or shutil.which("nvidia-smi")
        self._sources: list[_Source] = []
        self._missing: list[str] = ["no meter was read"]
        self._ended, self._reading = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="energy", daemon=True)

    def __enter__(self) -> Self:
        self._missing = []
        self._open(_RAPL, self._rapl)
        if self._devices:
            self._open(_NVML, self._nvml)
        if not self._missing:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._read()

    def joules(self) -> float | None:
        """What was read so far, now included; None where a meter is missing.

        The joules of a part are the growth over it. A device's power is sampled every `interval`
        seconds, and whenever this is asked, so a part shorter than `interval` has an error of up
        to one sample.
        """
        self._read()
        return None if self._missing else math.fsum(source.joules for source in self._sources)

    def reading(self) -> Reading:
        """What was read, once the block has ended. A part that is missing leaves no joules, since
        the rest would pass for the whole.
        """
        if self._missing:
            return Reading(None, "; ".join(self._missing), None)
        names = " and ".join(source.name for source in self._sources)
        covers = "; ".join(source.covers for source in self._sources)
        joules = round(math.fsum(source.joules for source in self._sources), 6)
        return Reading(f"{names}, read every {self._interval:g} s", covers, joules)

    def _open(self, name: str, source: Callable[[], _Source]) -> None:
        try:
            self._sources.append(source())
        except (OSError, ValueError) as error:
            self._missing.append(_why(name, error))

    def _rapl(self) -> _Source:
        domains = sorted(self._powercap.glob("intel-rapl:*"))
        counted = [one for one in domains if _text(one / "name").startswith(_PARTS)]
        if not counted:
            raise ValueError("the machine shows no RAPL counter")
        return _Counters(counted)

    def _nvml(self) -> _Source:
        if self._nvidia_smi is None:
            raise ValueError("nvidia-smi is not installed")
        return _Power(self._nvidia_smi)

    def _follow(self) -> None:
        while not self._ended.wait(self._interval):
            self._read()

    def _read(self) -> None:
        with self._reading:  # the thread's readings and those that are asked for
            if self._missing:
                return
            for source in self._sources:
                try:
                    source.read()
                except (OSError, ValueError) as error:
                    why = _why(source.name, error)
                    self._missing.append(f"a meter could no longer be read: {why}")
                    return


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def _integer(path: Path) -> int:
    text = _text(path)
    if not text.isdigit() or len(text) > 20:
        raise ValueError(f"{path.name} holds no count")
    return int(text)


def _why(name: str, error: Exception) -> str:
    """The reason without a path of this machine."""
    if isinstance(error, PermissionError) and name == _RAPL:
        return "the RAPL counters are for the superuser alone"
    if isinstance(error, OSError):
        return f"{name} cannot be read: {error.strerror or type(error).__name__}"
    return str(error)
