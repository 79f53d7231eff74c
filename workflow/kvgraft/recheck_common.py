"""What rechecking a run's generations and its exactness samples has in common.

Results, what they amount to, and the lines of progress while an engine reads. What is read again is
`recheck_generations` and `recheck_exactness`; the run's folder is `recheck`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvaudit.errors import UnusableInput
from kvaudit.estimate import generator
from kvaudit.profiles import n_ctx
from kvgraft import profile
from kvgraft.errors import ProfileMismatch
from kvgraft.model import FrozenModel
from kvgraft.profile import MAX_THREADS, ProfileSettings
from kvgraft.session import Session

Row = Mapping[str, Any]
Note = Callable[[str], None]

_THREADS = frozenset({"settings.n_threads", "context.n_threads"})

LONG_CONTEXT = 32_768
"""Tokens of a context that is opened for any model, whatever it was trained for."""
READ_AT_ONCE = 64
"""Rows of one engine call. Any split gives the same bytes, and short calls let progress be told."""


@dataclass(frozen=True)
class Disagreement:
    """A record that does not come out as recorded.

    Attributes:
        file: of the record.
        line: in it, from 1.
        where: arm and problem, or which sample, in words.
        what: is not as recorded, in words.
        anywhere: whether no machine could agree: texts, tokens and counts contradict each other.
            Otherwise another kind of machine may compute other bytes.
    """

    file: str
    line: int
    where: str
    what: str
    anywhere: bool


@dataclass(frozen=True)
class Rechecked:
    """What rechecking one stage of one model came to.

    Attributes:
        model: its name.
        stage: "flywheel" or "exactness".
        mode: "bytes", or "tokens" where the profile in force is not the recorded one.
        profile_differences: fields in which it differs.
        n: records that could be checked.
        checked: of them.
        tokens: that were drawn again; of exactness, positions whose likeliest token was looked at.
        same_tokens: how many of them are the recorded ones.
        skipped: reason -> records.
        seconds: that checking took.
        original_seconds: that the same computations took, as recorded.
        disagreements: records that do not come out as recorded; in mode "tokens", in tokens.
    """

    model: str
    stage: str
    mode: str
    profile_differences: tuple[str, ...]
    n: int
    checked: int
    tokens: int
    same_tokens: int
    skipped: Mapping[str, int]
    seconds: float
    original_seconds: float
    disagreements: tuple[Disagreement, ...]

    @property
    def equal(self) -> int:
        """Records that come out as recorded."""
        return self.checked - len({(one.file, one.line) for one in self.disagreements})

    @property
    def passed(self) -> bool:
        """Whether something was checked, and nothing of it contradicts the records.

        Other tokens on another kind of machine say nothing.
        """
        counted = [one for one in self.disagreements if one.anywhere or self.mode == "bytes"]
        return self.checked > 0 and not counted

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {**asdict(self), "equal": self.equal, "passed": self.passed}


@dataclass
class Progress:
    """Tells how far a long check is, every few seconds.

    Attributes:
        note: called with a line.
        of: model and stage that are checked.
        what: that is counted, in the plural.
        n: of these, how many there are.
        rows: rows that the engine will read, about.
        every_s: seconds between two lines at least.
        clock: seconds.
    """

    note: Note
    of: str
    what: str
    n: int
    rows: int
    every_s: float = 10.0
    clock: Callable[[], float] = time.perf_counter
    _done: int = 0
    _read: int = 0
    _begun: float = field(init=False)
    _told: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self._told = self.clock()

    def read(self, rows: int) -> None:
        """So many more rows have been read."""
        self._read += rows
        self._tell()

    def done(self) -> None:
        """One more of these has been checked."""
        self._done += 1
        self._tell()

    def _tell(self) -> None:
        now = self.clock()
        if now - self._told < self.every_s or not self._read:
            return
        self._told = now
        left = (now - self._begun) * max(0, self.rows - self._read) / self._read
        self.note(f"{self.of}: {self._done} of {self.n} {self.what}, about {left:.0f} s left")


def settings(recorded: Mapping[str, Any], threads: int | None) -> ProfileSettings:
    """The settings of a recorded profile, with threads of our own: every core without a number.

    How long a context they may ask for is `require_bounded`'s to say.

    Raises:
        UnusableInput: they are not settings that this version knows, or the engine takes no such
            number of threads.
    """
    own = threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
    if not 1 <= own <= MAX_THREADS:
        raise UnusableInput(
            "the engine takes no such number of threads", expected=f"1 to {MAX_THREADS}", found=own
        )
    try:
        asked = ProfileSettings.from_json(recorded.get("settings"))
    except ValueError as error:
        raise UnusableInput(f"the recorded settings: {error}") from error
    return asked.with_(n_threads=own)


def require_bounded(model: FrozenModel, recorded: Iterable[Any]) -> None:
    """Recorded profiles ask for no context of any length.

    It is allocated as its settings say, so that a run could ask for all of the memory here. What
    the model was trained for is let pass, and `LONG_CONTEXT` tokens for every model: stages open
    contexts of a fixed size too.

    Args:
        model: whose profiles they are.
        recorded: any values; what is no profile is refused by `settings`.

    Raises:
        UnusableInput: one asks for more.
    """
    most = max(LONG_CONTEXT, model.facts.n_ctx_train)
    for size in (n_ctx(one, "settings") for one in recorded):
        if size is not None and size > most:
            raise UnusableInput(
                "the recorded settings ask for a longer context than is opened here",
                where=model.name,
                expected=f"n_ctx of at most {most}",
                found=size,
            )


def differing(
    session: Session, recorded: Mapping[str, Any], *, bytes_only: bool = False
) -> tuple[str, ...]:
    """Fields in which the profile in force is another than the recorded one, threads left out.

    Args:
        session: that reads again.
        recorded: the profile of the records.
        bytes_only: whether another profile is refused, since tokens alone are not enough.

    Raises:
        ProfileMismatch: it is not split-invariant, so that one pass proves nothing; or it is
            another one, with `bytes_only`.
    """
    found = {*profile.differences(recorded, session.profile.to_json())} - _THREADS
    if not session.profile.is_split_invariant:
        raise ProfileMismatch(
            "one pass does not give the bytes of a decode under this profile",
            where=session.model.name,
            expected="a split-invariant profile",
            found=session.settings.name,
            hint="docs/adr/0003 says why",
        )
    if found and bytes_only:
        raise ProfileMismatch(
            "the engine here is not the one that the run was made with",
            where=session.model.name,
            expected="the recorded profile",
            found=f"other {', '.join(sorted(found))}",
            hint="check out the commit that inputs.manifest.json names, and make portable",
        )
    return tuple(sorted(found))


def drawn(n: int, sample: int | None, seed: str) -> list[int]:
    """Numbers of the records to check: all, or a sample of them drawn by its name."""
    if sample is None or sample >= n:
        return list(range(n))
    return sorted(int(i) for i in generator(seed).permutation(n)[:sample])


def prefill(session: Session, ids: Sequence[int], progress: Progress) -> None:
    """Read a text in short calls, and tell how far it is."""
    before = 0

    def tell(done: int, _all: int) -> None:
        nonlocal before
        progress.read(done - before)
        before = done

    session.prefill(ids, split=READ_AT_ONCE, progress=tell)
