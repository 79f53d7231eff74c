"""What the commands of `kvgraft` share: texts, models and blocks as users name them, and printing.

Results come back as values; only `emit` and `progress` write anything. No command is known here.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvaudit.errors import UnusableInput
from kvgraft.errors import EmptySpan, ModelMismatch, ProfileMismatch

if TYPE_CHECKING:
    from kvaudit.kvb import BlockHeader
    from kvaudit.kvb_map import MappedBlock
    from kvgraft.model import ModelPin
    from kvgraft.profile import ProfileSettings

MAX_TEXT_BYTES = 64 << 20


def version() -> str:
    """Version of the installed distribution; "0" in a source tree that is not installed."""
    try:
        return importlib.metadata.version("kvgraft")
    except importlib.metadata.PackageNotFoundError:
        return "0"


# -- what a user names ----------------------------------------------------------------------------


def default_store() -> str:
    """$KVGRAFT_STORE, or a folder in the user's data folder."""
    if named := os.environ.get("KVGRAFT_STORE"):
        return named
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return str(Path(base) / "kvgraft")


def read_text(text: str | None, file: str | None, *, what: str) -> str:
    """A text given as an argument, on standard input (`-`) or in a file.

    Args:
        text: the argument.
        file: path of a file that holds the text instead.
        what: "text" or "prompt", for messages.

    Raises:
        UnusableInput: not exactly one of them, not readable, too long, or not UTF-8.
        EmptySpan: there are no characters in it.
    """
    if (text is None) == (file is None):
        raise UnusableInput(f"give the {what} either as an argument or with --file")
    source = f"the {what}"
    try:
        if file is not None:
            source = file
            with open(file, "rb") as opened:
                data = opened.read(MAX_TEXT_BYTES + 1)
        elif text == "-":
            source = "standard input"
            data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
        else:
            data = os.fsencode(text or "")
        out = data.decode("utf-8")
    except OSError as error:
        raise UnusableInput(
            f"the {what} cannot be read", where=source, found=error.strerror
        ) from error
    except UnicodeDecodeError as error:
        raise UnusableInput(
            f"the {what} is not UTF-8", where=f"{source}, byte {error.start}"
        ) from error
    if len(data) > MAX_TEXT_BYTES:
        raise UnusableInput(
            f"the {what} is too long", where=source, expected=f"at most {MAX_TEXT_BYTES} bytes"
        )
    if not out:
        where = None if source == f"the {what}" else source
        raise EmptySpan(f"the {what} is empty", where=where, hint="give at least one character")
    return out


def model_pin(model: str) -> ModelPin:
    """The pin of an embedded model, or of a file; a copy of an embedded one has its name.

    Raises:
        ModelMismatch: neither a known name nor a readable file.
    """
    from kvgraft import pins

    known = pins.read()
    if model not in known and not os.path.lexists(model):
        raise ModelMismatch(
            "no embedded model has that name, and there is no such file",
            expected=f"{', '.join(sorted(known))}, or the path of a GGUF file",
            found=model,
        )
    pin = pins.resolve(model)
    for other in known.values():
        if other.sha256 == pin.sha256:
            return replace(pin, name=other.name, licence=other.licence)
    name = re.sub(r"[^a-z0-9._-]+", "-", pin.name).lstrip("._-")[:64]
    return replace(pin, name=name or "model")


def pin_of_block(header: BlockHeader, model: str | None) -> ModelPin:
    """The pin of the model that a block was captured with.

    Args:
        header: the block's.
        model: name or path that the user gives for it; None looks among the embedded models.

    Raises:
        ModelMismatch: another model, or none that is known.
    """
    from kvgraft import pins

    captured = f"{header.model.name} {header.model.sha256}"
    where = f"block {header.id[:12]}"
    if model is None:
        for pin in pins.read().values():
            if pin.sha256 == header.model.sha256:
                return pin
        raise ModelMismatch(
            "the block's model is none of the embedded ones",
            where=where,
            found=captured,
            hint="name its file: --model PATH",
        )
    pin = model_pin(model)
    if pin.sha256 != header.model.sha256:
        raise ModelMismatch(
            "the block was captured with another model",
            where=where,
            expected=captured,
            found=f"{pin.name} {pin.sha256}",
        )
    return pin


def settings_of_block(header: BlockHeader) -> ProfileSettings:
    """The profile settings that a block was captured under, from its provenance.

    Raises:
        ProfileMismatch: they are not recorded, or are none that this version knows.
    """
    from kvgraft.profile import ProfileSettings

    profile = header.provenance.get("profile")
    recorded = profile.get("settings") if isinstance(profile, Mapping) else None
    try:
        return ProfileSettings.from_json(recorded)
    except ValueError as error:
        raise ProfileMismatch(
            f"the block's provenance does not say under which settings to open it: {error}",
            where=f"block {header.id[:12]}",
            hint="capture the text again with this version",
        ) from error


def open_block(block: str, store: str) -> MappedBlock:
    """A block by path, id or unique prefix; its chunks are not verified yet.

    Raises:
        BlockNotFound: no such block, or several.
        BlockRefused: damaged outside its chunks, or not a block.
    """
    from kvaudit import kvb_map
    from kvgraft.store_url import open_store

    if block.endswith(".kvb") or os.sep in block:
        return kvb_map.open_block(block)
    opened = open_store(store)
    return opened.get(opened.find(block), verify=False)


# -- output ---------------------------------------------------------------------------------------


def replace_closed_streams() -> None:
    """Give a process that was started without standard streams ones that swallow everything."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def emit(text: str) -> None:
    """Write to standard output; a reader who has gone away changes nothing about the result."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def pretty(value: Any) -> str:
    """JSON for people and scripts."""
    import json

    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def fields(rows: Iterable[tuple[str, object]]) -> str:
    """Lines of a label and a value, values aligned; an empty label continues the one above."""
    pairs = list(rows)
    width = max((len(label) for label, _ in pairs), default=0)
    return "".join(f"{label:<{width}}  {value}".rstrip() + "\n" for label, value in pairs)


def progress(label: str) -> Callable[[int, int], None] | None:
    """A counter on standard error, if a person is watching it."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\r\x1b[K" if done >= total else ""
        sys.stderr.write(f"\r{label} {done}/{total}{end}")
        sys.stderr.flush()

    return show
