"""What the pipeline asks of a registration: its configuration, before it plans anything.

A registered run takes nothing from the command line but where to write. This module must not know
what runs the pipeline.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from kvaudit import canonical, digests, history
from kvaudit.errors import InputChanged, UnusableInput
from kvaudit.prereg import FOLDER, registration
from kvaudit.prereg.draft import locks
from kvaudit.prereg.errors import TreeDiffers
from kvaudit.prereg.registration import Registration

ALLOWED = frozenset({"registration", "results"})


def take_over(
    config: MutableMapping[str, Any],
    overrides: Mapping[str, Any],
    folder: str | Path = FOLDER,
) -> Registration | None:
    """Puts the registered configuration in the place of another one, if a registration is named.

    Args:
        config: replaced in place.
        overrides: what was given on the command line, files of settings included.
        folder: of the registrations.

    Returns:
        The registration; None, and `config` as it was, where none is named.

    Raises:
        UnusableInput: another setting was given; also as `registration.find`.
        EvidenceIncomplete: there is no such registration.
        RegistrationInvalid: there are two, or this version cannot run it.
    """
    if "registration" not in config:
        return None
    number = config["registration"]
    if not isinstance(number, int) or isinstance(number, bool):
        raise UnusableInput("a registration is named by its number", found=number)
    found = registration.find(folder, number)
    others = sorted({*overrides} - ALLOWED)
    if others:
        raise UnusableInput(
            f"the configuration is that of registration {found.label}, and no other setting counts",
            expected="registration and results alone",
            found=", ".join(others),
        )
    found.check()
    results = overrides.get("results") or ""
    config.clear()
    config.update({**found.configuration(), "results": results})
    return found


def require_runnable(found: Registration | None, results: str, root: str | Path = ".") -> None:
    """Refuses a registered run that must not begin, before anything of an earlier one is removed.

    Args:
        found: the registration; nothing is refused where there is none.
        results: where to write, empty for the place that the run of a registration has.
        root: of the checkout.

    Raises:
        UnusableInput: the registration is closed, and its run would be written over.
        TreeDiffers: the source tree or its locks are not those registered.
    """
    if found is None:
        return
    if not results and (found.folder / registration.OUTCOME).exists():
        raise UnusableInput(
            f"registration {found.label} is closed, and its run is not made again in its place",
            hint=f"check it: kvaudit verify results/registered/{found.label}; another run: "
            # Filed behind the commit that it names, which therefore does not hold it.
            f"git checkout {found.value['source']['commit']}, "
            f"git checkout @{{-1}} -- {found.folder}, and "
            f"--config registration={found.number} results=FOLDER",
        )
    files = history.source_facts(root)["files"]
    stated = {model["name"]: model["sha256"] for model in found.value["models"]}
    found.check_before_run(files, stated, locks(files))


def check_before_run(
    config: Mapping[str, Any],
    source: Mapping[str, Any],
    models: Mapping[str, str],
    folder: str | Path = FOLDER,
) -> dict[str, Any] | None:
    """How the inputs manifest names the registration; refuses what could never be adjudicated.

    Args:
        config: of the run.
        source: {commit, dirty, files}, see `history.source_facts`.
        models: {name: SHA-256}, by their pins.
        folder: of the registrations.

    Returns:
        {number, sha256, token_sha256}; None for a run that belongs to no registration.

    Raises:
        InputChanged: the registration, or its time stamp, is another one than at the start.
        TreeDiffers: source tree, models, locks or Python are not those registered.
    """
    if "registration" not in config:
        return None
    found = registration.find(folder, config["registration"])
    wanted = {**found.configuration(), "results": config.get("results", "")}
    if canonical.dumps(wanted) != canonical.dumps(dict(config)):
        raise InputChanged(
            "the configuration is not that of the registration",
            where=found.label,
            expected=digests.sha256_json(wanted),
            found=digests.sha256_json(dict(config)),
        )
    found.check_before_run(source["files"], models, locks(source["files"]))
    python = found.value["target"].get("python")
    if python not in (None, platform.python_version()):
        raise TreeDiffers(
            f"the Python is not that of registration {found.label}",
            expected=python,
            found=platform.python_version(),
            hint="run it with the release that was registered",
        )
    return found.reference()
