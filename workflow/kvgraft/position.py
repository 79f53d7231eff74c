"""The stage `position`: what becomes of a graft that is moved to another position.

Own position first (P1), then the relocation curve and its control (P2, P4): the span computed
freshly at offset M, and its block from offset 0 re-rotated to M, question behind both. The tests
of other explanations (P3) are `explanations`, chains and compositions (P5) `joined`. What the
records amount to is decided by `kvaudit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import atomic, digests, rotation, stats
from kvaudit.errors import UnusableInput
from kvaudit.position import joined as joined_rows
from kvaudit.position import plan as planned
from kvgraft.explanations import Explanations
from kvgraft.joined import Joined
from kvgraft.model import FrozenModel
from kvgraft.plan import QUERY_ROOM, SamplePlan
from kvgraft.position_bench import Bench, Note, Reading, Row, arm
from kvgraft.profile import ProfileSettings
from kvgraft.session import Capture, Session


@dataclass
class Experiment:
    """One model under one profile.

    Attributes:
        model: the opened model.
        settings: profile settings of every arm but those of the derived profiles.
        options: the configuration's `position` section.
        seed: name from which all draws derive.
        folder: the stage's folder; raw logits go to `logits/`.
        scratch: a folder outside the evidence for blocks.
        note: called with one line of progress.
    """

    model: FrozenModel
    settings: ProfileSettings
    options: Mapping[str, Any]
    seed: str
    folder: Path
    scratch: Path
    note: Note

    def measure(self) -> dict[str, list[Row]]:
        """All records of the stage, by name of the record file without folder and suffix."""
        check(self.options, self.settings, self.model)
        bench = Bench(self.model, self.settings, self.options, self.seed, self.scratch, self.note)
        rows: dict[str, list[Row]] = {"samples": [], "relocation": [], "keys": []}
        explanations = Explanations(bench)
        with Session(self.model, self.settings) as session:
            for sample in bench.samples:
                row, curve, keys = self._sample(bench, session, sample)
                rows["samples"].append(row)
                rows["relocation"] += curve
                rows["keys"] += keys
                self.note(f"relocation of sample {sample.index + 1}/{len(bench.samples)} done")
            explanations.registered(session)
            name = f"{self.seed}/joined"
            joined = Joined(
                self.model, self.settings, self.options, name, self.scratch, self.note
            ).measure(session)
        explanations.derived()
        rows["keys"] += explanations.keys
        rows["explanations"] = explanations.rows()
        rows["rotation"] = [self._demonstration()]
        rows |= joined
        rows["profiles"] = list(bench.profiles.values())
        return rows

    def _sample(
        self, bench: Bench, session: Session, sample: SamplePlan
    ) -> tuple[Row, list[Row], list[Row]]:
        """P1 and the relocation curve of one sample: (sample record, curve, key errors)."""
        captured: list[Capture] = []
        own = bench.fresh(session, sample, 0, keep=captured.append)
        block_id = bench.put(captured[0])
        graft = bench.grafted(session, sample, block_id, exact=True)
        bench.own[sample.index], bench.blocks[sample.index] = own, block_id
        top = _top(own.logits)
        header = captured[0].header
        row = {
            "kind": "position-sample",
            "version": 1,
            "model": self.model.name,
            "sample": sample.index,
            "seed": sample.seed,
            "profile": own.profile,
            "span_tokens": len(sample.span),
            "query_tokens": len(sample.query),
            "span_sha256": header.tokens.sha256,
            "query_sha256": digests.sha256_bytes(np.asarray(sample.query, "<i4").tobytes()),
            "block_id": block_id,
            "trained_context": bench.trained_context,
            "fresh": arm(own),
            "graft": arm(graft),
            "kl": graft.kl_from(own),
            "top": {"tokens": top, "fresh": _log_p(own.logits, top)},
        }
        raw = sample.index < self.options["raw_samples"]
        if raw:
            self._keep(own)
        keys = sample.index < self.options["key_samples"]
        curve, key_rows = [], []
        for offset in self.options["offsets"]:
            states: dict[str, Capture] = {}
            fresh = bench.fresh(session, sample, offset, keep=_into(states, "fresh", keys))
            moved = bench.grafted(
                session, sample, block_id, offset, keep=_into(states, "relocated", keys)
            )
            if offset == self.options["probe_offset"]:
                bench.near[sample.index] = fresh
            curve.append(self._curve_row(sample, offset, (own, fresh, moved), raw))
            for name, section in planned.key_arms(session.profile.context["window"]):
                if keys:
                    pair = (captured[0].state, states[name].state)
                    where = (name, section)
                    key_rows.append(
                        bench.key_row(sample.index, planned.REGISTERED, where, offset, pair)
                    )
        return row, curve, key_rows

    def _curve_row(
        self,
        sample: SamplePlan,
        offset: int,
        arms: tuple[Reading, Reading, Reading],
        raw: bool,
    ) -> Row:
        own, fresh, moved = arms
        keep = raw and offset == self.options["probe_offset"]
        if keep:
            self._keep(fresh)
            self._keep(moved)
        here, there = _top(own.logits), _top(fresh.logits)
        return {
            "kind": "position-relocation",
            "version": 1,
            "model": self.model.name,
            "sample": sample.index,
            "profile": fresh.profile,
            "offset": offset,
            "own_sha256": own.sha256,
            "fresh": arm(fresh),
            "relocated": arm(moved),
            "kl": {
                "relocated": moved.kl_from(fresh),
                "control": fresh.kl_from(own),
                "from_own": moved.kl_from(own),
            },
            "own_top": {
                "fresh": _log_p(fresh.logits, here),
                "relocated": _log_p(moved.logits, here),
            },
            "top": {
                "tokens": there,
                "fresh": _log_p(fresh.logits, there),
                "relocated": _log_p(moved.logits, there),
            },
            "raw": keep,
        }

    def _demonstration(self) -> Row:
        found = rotation.demonstration()
        return {
            "kind": "position-rotation",
            "version": 1,
            "model": self.model.name,
            "points": rotation.POINTS,
            "step": rotation.STEP,
            "pairs": found.pairs,
            "unequal": found.unequal,
            "max_error": found.max_error,
        }

    def _keep(self, reading: Reading) -> None:
        """Store raw logits under their own digest."""
        path = self.folder / "logits" / f"{reading.sha256}.f32"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            atomic.write_bytes(path, np.ascontiguousarray(reading.logits, "<f4").tobytes())


def check(options: Mapping[str, Any], settings: ProfileSettings, model: FrozenModel) -> None:
    """Refuse a configuration that cannot be measured, before anything runs.

    Raises:
        UnusableInput: names what does not fit.
    """
    problems = [*planned.section_problems(options), *joined_rows.section_problems(options)]
    window = model.facts.window or 0
    longest = max(options["max_tokens"], window + planned.PAST_WINDOW if window else 0)
    if longest + options["query_tokens"] + 64 > settings.n_ctx:
        problems.append(f"a span of {longest} tokens with its question does not fit into n_ctx")
    if window and options["max_tokens"] + options["query_tokens"] > window:
        problems.append(f"max_tokens and query_tokens exceed the model's window of {window}")
    room = settings.n_ctx - QUERY_ROOM
    prefix = options["prefix"]
    for name, needed in (
        ("chains", max(map(sum, options["chains"]))),
        ("prefix", prefix["tokens"] + prefix["tail_tokens"]),
        ("compositions", max(sum(layout[-1]) for layout in options["compositions"])),
    ):
        if needed > room:
            problems.append(f"{name}: {needed} tokens with a question do not fit into n_ctx")
    if problems:
        raise UnusableInput(f"the configuration breaks a rule: {problems[0]}", where="position")


def _into(states: dict[str, Capture], name: str, wanted: bool) -> Callable[[Capture], None] | None:
    """Keeps a capture under a name, where it is wanted at all."""

    def keep(capture: Capture) -> None:
        states[name] = capture

    return keep if wanted else None


def _top(logits: NDArray[np.float32]) -> list[int]:
    """The most likely tokens, the first of equals first."""
    return [int(token) for token in np.argsort(-logits, kind="stable")[: planned.TOP]]


def _log_p(logits: NDArray[np.float32], tokens: list[int]) -> list[float]:
    """Their log-probabilities to 9 digits."""
    log_p = stats.log_softmax(logits)
    return [stats.rounded(float(log_p[token]), 9) for token in tokens]
