"""Pins files: which model files are known by name, and the embedded ones.

A pin is an identity, never an address; see schema model-pins.v1.json.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from kvaudit import atomic, canonical, digests, schemas
from kvaudit.errors import UnusableInput
from kvgraft.errors import ModelMismatch
from kvgraft.model import ModelPin

_PACKAGED = Path(__file__).parent / "_pins" / "models.json"
_REPOSITORY = Path(__file__).parents[2] / "manifests" / "pins" / "models.json"
MAX_BYTES = 1 << 20


def read(path: str | Path | None = None) -> dict[str, ModelPin]:
    """All pins of a file by name; the embedded models' without one.

    Raises:
        ModelMismatch: the file is absent.
        UnusableInput: it does not conform to its schema.
    """
    if path is None:
        path = _PACKAGED if _PACKAGED.exists() else _REPOSITORY
    try:
        data = _read_bounded(Path(path))
    except OSError as error:
        raise ModelMismatch(
            "the pins file cannot be read",
            where=path,
            found=error.strerror,
            hint="make one: kvgraft pin FILE --name NAME --into PINS.json",
        ) from error
    value = canonical.loads(data, where=str(path), max_bytes=MAX_BYTES)
    schemas.validate(value, "model-pins", where=str(path))
    return {pin["name"]: ModelPin.from_json(pin) for pin in value["models"]}


def _read_bounded(path: Path) -> bytes:
    """A regular file's bytes; a device or pipe could be endless, or wait for a writer for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise UnusableInput(
                "a pins file is a regular file of bounded length",
                where=path,
                expected=f"at most {MAX_BYTES} bytes",
                found=f"{status.st_size} bytes, mode {stat.filemode(status.st_mode)}",
            )
        return file.read(MAX_BYTES + 1)


def find(pins: Mapping[str, ModelPin], name: str) -> ModelPin:
    """The pin of that name.

    Raises:
        ModelMismatch: there is none.
    """
    if name not in pins:
        raise ModelMismatch("no model is pinned under that name", expected=sorted(pins), found=name)
    return pins[name]


def for_file(path: str | Path, name: str | None = None) -> ModelPin:
    """A pin for a file of the user's own, made from what the file is now.

    Raises:
        ModelMismatch: it cannot be read, or is not a regular file.
    """
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe or a device would never end
            raise ModelMismatch("the model file is not a regular file", where=path)
        digest = digests.sha256_file(path)
    except OSError as error:
        raise ModelMismatch(
            "the model file cannot be read", where=path, found=error.strerror
        ) from error
    return ModelPin(
        name or path.stem.lower(), digest, status.st_size, "unknown", {"path": str(path)}
    )


def resolve(model: str) -> ModelPin:
    """A pin from what a user typed: the name of an embedded model, or a path to a GGUF file."""
    known = read()
    return known[model] if model in known else for_file(model)


def add(path: str | Path, pin: ModelPin) -> None:
    """Write a pin into a pins file; a pin of the same name is replaced."""
    known = read(path) if Path(path).exists() else {}
    known[pin.name] = pin
    value = {
        "kind": "model-pins",
        "version": 1,
        "models": [known[name].to_json() for name in sorted(known)],
    }
    schemas.validate(value, "model-pins", where=str(path))
    atomic.write_json(path, value)
