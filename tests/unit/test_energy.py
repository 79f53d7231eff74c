"""Joules are those of counters and stated power; where anything is missing there are none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvaudit import schemas
from kvgraft.energy import Meter

RANGE = 262_143_328_850
NEVER = 1000.0

Domain = Callable[..., Path]


@pytest.fixture
def domain(tmp_path: Path) -> Domain:
    """Makes a RAPL domain as Linux shows it, or changes its counter."""

    def make(number: str, energy: object, name: str = "package-0") -> Path:
        folder = tmp_path / "powercap" / f"intel-rapl:{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
        new = folder / "new"  # a counter is never seen half written
        new.write_text(f"{energy}\n")
        new.rename(folder / "energy_uj")
        return folder

    return make


def meter(tmp_path: Path, **changes: object) -> Meter:
    return Meter(**{"powercap": tmp_path / "powercap", "interval": NEVER, **changes})  # type: ignore[arg-type]


def smi(tmp_path: Path, says: str) -> str:
    """A program that states power as nvidia-smi does."""
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\nprintf '{says}'\n")
    path.chmod(0o755)
    return str(path)


def test_joules_are_the_growth_of_packages_and_memory_and_no_part_counts_twice(
    tmp_path: Path, domain: Domain
) -> None:
    parts = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}
    for number, name in parts.items():
        domain(number, 1_000_000, name)
    with meter(tmp_path) as found:
        for number, name in parts.items():
            domain(number, 3_500_000, name)
    read = found.reading()
    assert read.joules == 3 * 2.5
    assert read.meter == "RAPL, read every 1000 s"
    assert read.reason == "all that ran on 3 package and memory domains"


def test_a_counter_that_starts_again_goes_on(tmp_path: Path, domain: Domain) -> None:
    domain("0", RANGE - 1_000_000)
    with meter(tmp_path) as found:
        domain("0", 500_000)
    assert found.reading().joules == 1.5


def test_a_counter_is_read_while_the_work_goes_on(tmp_path: Path, domain: Domain) -> None:
    domain("0", RANGE - 1_000_000)
    with meter(tmp_path, interval=0.01) as found:
        for energy in (500_000, RANGE - 500_000, 250_000):  # starts again twice
            domain("0", energy)
            until = time.monotonic() + 10
            while found._sources[0]._last != [energy]:  # type: ignore[attr-defined]
                assert time.monotonic() < until
                time.sleep(0.005)
    assert found.reading().joules == pytest.approx((2 * RANGE - RANGE + 1_250_000) / 1e6)


def test_power_is_summed_over_time_with_the_bound_that_the_interval_implies(
    tmp_path: Path, domain: Domain
) -> None:
    domain("0", 0)
    begin = time.monotonic()
    with meter(tmp_path, devices=True, nvidia_smi=smi(tmp_path, "100.0\\n50.5\\n")) as found:
        time.sleep(0.2)
        smi(tmp_path, "200.5\\n50.0\\n")
    elapsed = time.monotonic() - begin
    read = found.reading()
    assert read.joules is not None
    assert 0.2 * 200 < read.joules <= elapsed * 200.5 + 1e-6
    assert read.meter == "RAPL and NVML, read every 1000 s"
    assert "the devices' power, exact to " in read.reason
    assert "0 J if" not in read.reason


def test_without_a_meter_there_are_no_joules_and_a_reason(tmp_path: Path) -> None:
    with meter(tmp_path) as found:
        pass
    assert found.reading().to_json() == {
        "meter": None,
        "reason": "the machine shows no RAPL counter",
        "joules": None,
    }
    assert Meter().reading().reason == "no meter was read"


@pytest.mark.parametrize("said", ["[N/A]\\n", "", "nan\\n"])
def test_a_device_that_states_no_power_leaves_no_joules_at_all(
    tmp_path: Path, domain: Domain, said: str
) -> None:
    domain("0", 0)
    with meter(tmp_path, devices=True, nvidia_smi=smi(tmp_path, said)) as found:
        domain("0", 5_000_000)
    read = found.reading()
    assert (read.meter, read.joules) == (None, None)
    assert read.reason


def test_a_missing_program_is_named(tmp_path: Path, domain: Domain) -> None:
    domain("0", 0)
    with meter(tmp_path, devices=True, nvidia_smi=str(tmp_path / "absent")) as found:
        pass
    assert found.reading().reason == "NVML cannot be read: No such file or directory"


def test_a_program_that_may_not_be_run_is_not_taken_for_a_counter(
    tmp_path: Path, domain: Domain
) -> None:
    domain("0", 0)
    forbidden = tmp_path / "nvidia-smi"
    forbidden.write_text("#!/bin/sh\n")
    forbidden.chmod(0o644)  # which not even the superuser can run
    with meter(tmp_path, devices=True, nvidia_smi=str(forbidden)) as found:
        pass
    assert found.reading().reason == "NVML cannot be read: Permission denied"


@pytest.mark.parametrize("held", ["-5", "", "many", "9" * 30])
def test_a_counter_without_a_count_is_no_meter(tmp_path: Path, domain: Domain, held: str) -> None:
    domain("0", held)
    with meter(tmp_path) as found:
        pass
    assert found.reading().reason == "energy_uj holds no count"


def test_a_counter_that_is_lost_on_the_way_leaves_no_joules(tmp_path: Path, domain: Domain) -> None:
    folder = domain("0", 0)
    with meter(tmp_path) as found:
        (folder / "energy_uj").unlink()
    read = found.reading()
    assert read.joules is None
    assert read.reason.startswith("a meter could no longer be read: ")
    assert str(tmp_path) not in read.reason


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser reads every file")
def test_counters_of_the_superuser_are_said_to_be_so(tmp_path: Path, domain: Domain) -> None:
    (domain("0", 0) / "energy_uj").chmod(0)
    with meter(tmp_path) as found:
        pass
    assert found.reading().reason == "the RAPL counters are for the superuser alone"


def test_a_reading_is_what_the_record_of_a_run_holds(tmp_path: Path, domain: Domain) -> None:
    domain("0", 0)
    for found in (meter(tmp_path), Meter(powercap=tmp_path / "none")):
        with found:
            domain("0", 1_000_000)
        row = {
            "kind": "flywheel-run",
            "version": 1,
            "model": "tiny",
            "energy": found.reading().to_json(),
            "python": "3.12.0",
            "seconds": {"solve": 1.0},
            "library": {"entries": 0, "bytes": 0},
        }
        schemas.validate(row, "flywheel-run", where="run")
