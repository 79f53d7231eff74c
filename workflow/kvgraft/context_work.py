"""A work folder that outlives a killed run: blocks, a journal of finished ones, and a lock.

It lies outside the evidence. A folder belongs to one plan under one profile, by digest, so that
nothing is taken up that a changed configuration would not have made. What is resumed is verified
again before it is used; this module must not know what the blocks are for.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvaudit import canonical, digests, locks
from kvaudit.errors import BlockNotFound, BlockRefused, LockTimeout, UnusableInput
from kvgraft.errors import StageBusy, StoreDamaged, StoreFull
from kvgraft.store import BlockStore

JOURNAL = "journal.jsonl"


class WorkFolder:
    """A context manager that holds the lock of one plan's folder.

    Args:
        root: folder of the stage and its model.
        plan: everything that the blocks depend on; its digest names the folder.

    Attributes:
        path: the plan's own folder.
        store: the blocks.
        scratch_store: a store that is emptied on entering and on leaving.

    Raises:
        StageBusy: another process holds the folder.
    """

    def __init__(self, root: Path, plan: Mapping[str, Any]) -> None:
        self.path = root / digests.sha256_json(plan)[:16]
        self.store = BlockStore(self.path / "store")
        self.scratch_store = BlockStore(self.path / "scratch")
        self._lock: int | None = None
        self._lines: dict[int, dict[str, Any]] = {}

    def __enter__(self) -> WorkFolder:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = locks.hold_folder(self.path, seconds=0.0)
        except (LockTimeout, OSError) as error:
            raise StageBusy(
                "another process is at work on these blocks",
                where=self.path,
                found=getattr(error, "strerror", "its lock is held"),
                hint="wait for it or end it; it may be left over from a run that was killed",
            ) from error
        try:
            shutil.rmtree(self.scratch_store.root, ignore_errors=True)
            if (self.store.root / "tmp").is_dir():
                self.store.gc(min_age_s=0.0)
            self._lines = self._read()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            shutil.rmtree(self.scratch_store.root, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def _read(self) -> dict[int, dict[str, Any]]:
        """The journal's whole lines; a line torn by a kill, and all behind it, does not count."""
        found: dict[int, dict[str, Any]] = {}
        journal = self.path / JOURNAL
        if not journal.is_file():
            if os.path.lexists(journal):
                raise StoreDamaged("the journal is not a file", where=journal, hint="remove it")
            return found
        data = journal.read_bytes()
        kept = 0
        for line in data.splitlines(keepends=True):
            try:
                row = canonical.loads(line, where=JOURNAL) if line.endswith(b"\n") else None
            except UnusableInput:
                row = None
            if not isinstance(row, dict) or not _is_entry(row):
                break
            found[row["block"]] = row
            kept += len(line)
        if kept < len(data):
            os.truncate(self.path / JOURNAL, kept)
        return found

    def note(self, row: Mapping[str, Any]) -> None:
        """Enter a finished block; it is on disk when this returns."""
        with open(self.path / JOURNAL, "ab") as file:
            file.write(json.dumps(row, sort_keys=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def finished(self, block: int, tokens_sha256: str, profile: str) -> dict[str, Any] | None:
        """The journal's line of a block whose bytes are sound, or None where it must be computed.

        Args:
            block: its number.
            tokens_sha256: digest of the tokens that it must hold.
            profile: digest of the profile that it must have been made under.
        """
        line = self._lines.get(block)
        if line is None:
            return None
        try:
            with self.store.get(line["block_id"]) as found:
                header = found.header
        except (BlockNotFound, BlockRefused):
            return None
        if (header.tokens.sha256, header.profile) != (tokens_sha256, profile):
            return None
        return {**line, "header": header.to_json()}

    def require_room(self, needed: int) -> int:
        """Bytes that are free here.

        Raises:
            StoreFull: fewer than `needed`.
        """
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise StoreFull(
                "the disk has no room for the blocks of this stage",
                where=self.path,
                expected=f"{needed} bytes free",
                found=f"{free} bytes",
                hint="make room, or configure fewer or shorter blocks; finished ones are kept",
            )
        return free

    def clear(self) -> None:
        """Remove the plan's folder; the lock goes with the context manager."""
        shutil.rmtree(self.path, ignore_errors=True)


def _is_entry(row: Mapping[str, Any]) -> bool:
    """Whether a journal's line says what `note` was given, in the right types."""
    numbers = [row.get(key) for key in ("prefill_seconds", "deposit_seconds")]
    return (
        type(row.get("block")) is int
        and isinstance(row.get("block_id"), str)
        and type(row.get("file_bytes")) is int
        and all(isinstance(value, int | float) and 0 <= value < 1e7 for value in numbers)
    )
