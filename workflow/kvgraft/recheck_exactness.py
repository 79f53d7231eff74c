"""Computes the digests of an exactness stage again: text, tokens, logits, state, block.

The plan is drawn again from the registered seed, so that nothing of a sample is taken from its
record but what it is compared with. One reading of a sample gives the logits at every position of
its question, the state behind its span, hence its block, and the state at its end; under a
split-invariant profile every arm must have them. Texts of the determinism cases and of the batch
splits are read once too.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests, profiles, stats
from kvaudit.errors import UnusableInput
from kvaudit.exactness.consistency import BLOCKS, DETERMINISM, SAMPLES, SPLITS
from kvaudit.exactness.kind import KIND
from kvaudit.stagekind import Rows
from kvgraft import plan
from kvgraft.exactness import logits_bytes
from kvgraft.model import FrozenModel
from kvgraft.plan import SamplePlan
from kvgraft.recheck_common import (
    READ_AT_ONCE,
    Disagreement,
    Note,
    Progress,
    Rechecked,
    Row,
    differing,
    drawn,
    prefill,
    settings,
)
from kvgraft.session import Session

_DIGITS = 1e-9
"""Exponentials of the system differ between processors in their last bit."""
OTHER_PROFILE = "a control of another profile than the configured one"


def recheck_samples(
    model: FrozenModel,
    rows: Rows,
    inputs: Mapping[str, Any],
    sample: int | None = None,
    seed: str = "",
    threads: int | None = None,
    note: Note = lambda _: None,
    *,
    bytes_only: bool = False,
) -> Rechecked:
    """Recheck the records of one exactness stage.

    Args:
        model: whose they are.
        rows: the records of the stage exactness.
        inputs: the inputs manifest, which has configuration, seed and profile.
        sample: so many texts, drawn with `seed`; all without.
        seed: name from which the sample is drawn.
        threads: of the engine; every core without.
        note: called with lines of progress.
        bytes_only: whether an engine with another profile than the recorded one is refused.

    Raises:
        UnusableInput: the profile that the run registered cannot be read.
        ProfileMismatch: the recorded profile is not split-invariant; or another one is in force,
            with `bytes_only`.
    """
    force = profiles.in_force(inputs, model.name)
    if force is None:
        raise UnusableInput("the run registers no usable profile", where=model.name)
    recorded = inputs["profiles"][model.name][force.name]["profile"]
    value = inputs["configuration"]["value"]
    works = list(_works(model, rows, value[KIND.name], f"{value['seed']}/{model.name}"))
    taken = [works[number] for number in drawn(len(works), sample, seed)]
    with Session(model, settings(recorded, threads)) as session:
        differences = differing(session, recorded, bytes_only=bytes_only)
        total = sum(work.n_tokens for work in taken)
        progress = Progress(note, f"{model.name}, {KIND.name}", "texts", len(taken), total)
        reader = _Reader(session, rows, force.digest, not differences, progress)
        begin = time.perf_counter()
        for work in taken:
            work.check(reader)
            progress.done()
        seconds = time.perf_counter() - begin
    return Rechecked(
        model.name,
        KIND.name,
        "tokens" if differences else "bytes",
        differences,
        sum(len(rows[file]) for file in (SAMPLES, DETERMINISM, SPLITS)),
        reader.checked,
        reader.tokens,
        reader.same_tokens,
        reader.skipped,
        round(seconds, 6),
        round(reader.original_seconds, 6),
        tuple(reader.disagreements),
    )


@dataclass(frozen=True)
class _Work:
    """A text to read, and the records that it is compared with."""

    n_tokens: int
    check: Callable[[_Reader], None]


def _works(
    model: FrozenModel, rows: Rows, section: Mapping[str, Any], seed: str
) -> Iterator[_Work]:
    """Everything that the plan reads, drawn from the seed again."""
    for planned in plan.samples(model, section, seed):
        n_tokens = len(planned.span) + len(planned.query)
        yield _Work(n_tokens, lambda reader, one=planned: reader.sample(one))  # type: ignore[misc]
    for n_tokens in section["determinism_lengths"]:
        ids = plan.prose(model, f"{seed}/determinism/{n_tokens}", n_tokens)
        yield _Work(n_tokens, lambda reader, ids=ids: reader.determinism(ids))  # type: ignore[misc]
    for index, text in enumerate(plan.split_texts(model, section, seed)):
        yield _Work(
            2 * len(text),
            lambda reader, index=index, text=text: reader.splits(index, text),  # type: ignore[misc]
        )


@dataclass(frozen=True)
class _Reading:
    """The last logits of a text, their digest, and that of the state behind it."""

    logits: NDArray[np.float32]
    logits_sha256: str
    state_sha256: str


@dataclass
class _Reader:
    """Reads texts and compares records with what came of it."""

    session: Session
    rows: Rows
    profile: str
    exact: bool
    progress: Progress
    checked: int = 0
    tokens: int = 0
    same_tokens: int = 0
    original_seconds: float = 0.0
    skipped: Counter[str] = field(default_factory=Counter)
    disagreements: list[Disagreement] = field(default_factory=list)

    # -- samples ------------------------------------------------------------------------------

    def sample(self, planned: SamplePlan) -> None:
        """A sample's span, its block, its question in every arm."""
        found = self._lines(SAMPLES, sample=planned.index)
        self.session.reset()
        prefill(self.session, planned.span, self.progress)
        captured = self.session.capture({"source": planned.seed})
        logits = self.session.decode(planned.query, split=READ_AT_ONCE)
        end = digests.sha256_bytes(self.session.capture().state.data)
        self.progress.read(len(planned.query))
        for line, row in found:
            said = _texts(planned, row)
            wrong = list(self._sample(row, captured.header.to_json(), logits, end))
            state = digests.sha256_bytes(captured.state.data)
            if row["state_sha256"] != state:
                wrong.insert(0, "the state behind the span has another digest")
            self.original_seconds += sum(
                row["arms"]["fresh"]["seconds"][part] or 0.0 for part in ("prefill", "query")
            )
            self._note(SAMPLES, line, f"sample {planned.index}", said, wrong)

    def _sample(
        self, row: Row, header: Mapping[str, Any], logits: NDArray[np.float32], end: str
    ) -> Iterator[str]:
        """What another computation of a sample has other than its record."""
        listed = [one["header"] for _, one in self._lines(BLOCKS, id=row["block_id"])]
        if not listed:
            yield "its block's header is not recorded"
        for part in ("model", "tokens", "state"):
            if any(one[part] != header[part] for one in listed):
                yield f"its block has another {part} than its header says"
        said = [digests.sha256_bytes(logits_bytes(one)) for one in logits]
        likeliest = [stats.argmax(one) for one in logits]
        for name, arm in sorted(row["arms"].items()):
            if arm["logits_sha256"] != said:
                pairs = zip(arm["logits_sha256"], said, strict=False)
                at = next((n for n, (a, b) in enumerate(pairs) if a != b), len(said))
                yield f"{name}: the logits have another digest, entry {at}"
            if arm["state_sha256"] not in (None, end):
                yield f"{name}: the state at the end has another digest"
            if arm["argmax"] != likeliest:
                yield f"{name}: another token is the likeliest"
            if not _close(arm["kl_from_fresh"], [stats.kl_divergence(one, one) for one in logits]):
                yield f"{name}: another divergence from the fresh computation"
        if not _close(row["top5_margin"], [stats.top5_margin(one) for one in logits]):
            yield "another margin of the likeliest token"
        again = row["arms"]["fresh"]["argmax"]
        self.tokens += len(likeliest)
        self.same_tokens += sum(a == b for a, b in zip(again, likeliest, strict=False))

    # -- the other texts ----------------------------------------------------------------------

    def determinism(self, ids: Sequence[int]) -> None:
        """A text whose two computations are the cases of its length."""
        read = self._one_shot(ids)
        for line, row in self._lines(DETERMINISM, tokens=len(ids)):
            wrong = [
                f"{name}: the {part} has another digest"
                for name in ("first", "second")
                for part, now in (("logits", read.logits_sha256), ("state", read.state_sha256))
                if row[name][f"{part}_sha256"] != now
            ]
            self._note(DETERMINISM, line, f"{row['case']}, {len(ids)} tokens", None, wrong)

    def splits(self, index: int, text: Sequence[int]) -> None:
        """A text in every split, and with one token changed."""
        ids = list(text)
        changed = [*ids[:-2], (ids[-2] + 1) % self.session.model.n_vocab, ids[-1]]
        whole, other = self._one_shot(ids), self._one_shot(changed)
        for line, row in self._lines(SPLITS, sample=index):
            if row["profile"] != self.profile:
                self.skipped[OTHER_PROFILE] += 1
                continue
            read = other if row["control"] else whole
            wrong = [
                f"the {name} has another digest"
                for name, now in (
                    ("logits_sha256", read.logits_sha256),
                    ("state_sha256", read.state_sha256),
                    ("reference_sha256", whole.logits_sha256),
                    ("reference_state_sha256", whole.state_sha256),
                )
                if row[name] != now
            ]
            likeliest = [stats.argmax(one.logits) for one in (read, whole)]
            same = sum(a == b for a, b in zip(row["argmax"], likeliest, strict=False))
            if row["argmax"] != likeliest:
                wrong.append("another token is the likeliest")
            if not _close([row["kl"]], [stats.kl_divergence(whole.logits, read.logits)]):
                wrong.append("another divergence from the reference")
            self.tokens += 2
            self.same_tokens += same
            said = None
            if row["tokens"] != len(ids):
                said = f"the planned text has {len(ids)} tokens, {row['tokens']} are recorded"
            self._note(SPLITS, line, f"text {index}, {row['split'][:3]}", said, wrong)

    def _one_shot(self, ids: Sequence[int]) -> _Reading:
        """A text read as a whole."""
        self.session.reset()
        if len(ids) > 1:
            prefill(self.session, ids[:-1], self.progress)
        logits = self.session.decode(ids[-1:])[-1]
        self.progress.read(1)
        state = self.session.capture().state
        return _Reading(
            logits,
            digests.sha256_bytes(logits_bytes(logits)),
            digests.sha256_bytes(state.data),
        )

    # -- shared -------------------------------------------------------------------------------

    def _lines(self, file: str, **wanted: Any) -> list[tuple[int, Row]]:
        """Line numbers, from 1, and rows with these fields."""
        return [
            (number, row)
            for number, row in enumerate(self.rows[file], start=1)
            if all(row[key] == value for key, value in wanted.items())
        ]

    def _note(
        self, file: str, line: int, where: str, said: str | None, wrong: Sequence[str]
    ) -> None:
        """One record has been compared: `said` is wrong on every machine, `wrong` in its bytes."""
        self.checked += 1
        if said is not None:
            self.disagreements.append(Disagreement(file, line, where, said, anywhere=True))
        elif wrong and self.exact:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            what = f"{wrong[0]}{more}"
            self.disagreements.append(Disagreement(file, line, where, what, anywhere=False))


def _close(recorded: Sequence[float], now: Sequence[float]) -> bool:
    """Whether figures are the recorded ones, to the digits in which all processors agree."""
    return len(recorded) == len(now) and all(
        math.isclose(a, b, rel_tol=_DIGITS, abs_tol=_DIGITS)
        for a, b in zip(recorded, now, strict=True)
    )


def _texts(planned: SamplePlan, row: Row) -> str | None:
    """What of a sample's texts is not as planned, wherever it is read."""
    tokens = {
        part: digests.sha256_bytes(np.asarray(ids, "<i4").tobytes())
        for part, ids in (("span", planned.span), ("query", planned.query))
    }
    if row["seed"] != planned.seed:
        return "its seed is not the planned one"
    for part, digest in tokens.items():
        if row[f"{part}_sha256"] != digest:
            return f"the tokens of its {part} are not those of the planned text"
    return None
