"""The stage `exactness`: is a grafted context, byte for byte, a freshly computed one?

Records first: determinism (D1), samples with six arms (E1, E2), batch splits (E3). A determinism
failure stops the stage, because nothing after it would mean anything. What the records amount to
is decided by `kvaudit`, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import atomic, digests, stats
from kvaudit.exactness.plan import raw_samples, run_lengths
from kvgraft import plan, remote, state
from kvgraft.errors import DeterminismFailed, ProfileMismatch
from kvgraft.model import FrozenModel
from kvgraft.profile import ProfileSettings, stock_control
from kvgraft.remote import Reading
from kvgraft.session import Capture, Session
from kvgraft.store import BlockStore

Note = Callable[[str], None]
Row = dict[str, Any]


@dataclass
class Experiment:
    """One model under one profile, with a place for blocks and one for raw logits.

    Attributes:
        model: the opened model.
        settings: profile settings of every arm but the stock control.
        options: the configuration's `exactness` section.
        seed: name from which all draws derive.
        folder: the stage's folder; raw logits go to `logits/`.
        scratch: a folder outside the evidence for blocks and transfers.
        note: called with one line of progress.
    """

    model: FrozenModel
    settings: ProfileSettings
    options: Mapping[str, Any]
    seed: str
    folder: Path
    scratch: Path
    note: Note

    def __post_init__(self) -> None:
        self.store = BlockStore(self.scratch / "blocks")
        self._processes = 0

    # -- D1 -----------------------------------------------------------------------------------

    def determinism(self, session: Session) -> Iterator[Row]:
        """Two fresh computations each: in one context, in two contexts, in two processes.

        Raises:
            DeterminismFailed: they differ; says in which layer's state the first byte does.
        """
        self._profile = session.profile.digest
        for n_tokens in self.options["determinism_lengths"]:
            ids = plan.prose(self.model, f"{self.seed}/determinism/{n_tokens}", n_tokens)
            first = _observe(session, ids, 0)
            yield self._case("same_context", ids, first, _observe(session, ids, 0))
            with Session(self.model, self.settings) as other:
                yield self._case("new_context", ids, first, _observe(other, ids, 0))
            answer = self._call([{**_one_shot(ids), "keep_state": True}])[0]
            assert answer.state is not None
            second = Observed(answer.logits[-1], answer.state, self._processes)
            yield self._case("new_process", ids, first, second)

    def _case(self, case: str, ids: list[int], first: Observed, second: Observed) -> Row:
        row = {
            "kind": "exactness-determinism",
            "version": 1,
            "model": self.model.name,
            "case": case,
            "tokens": len(ids),
            "profile": self.profile,
            "first": first.to_json(),
            "second": second.to_json(),
            "equal": first.digests == second.digests,
        }
        self.note(f"D1 {case}, {len(ids)} tokens: {'equal' if row['equal'] else 'DIFFERENT'}")
        if not row["equal"]:
            raise DeterminismFailed(
                f"two fresh computations of {len(ids)} tokens differ ({case})",
                where=describe_difference(first.state, second.state),
                expected=first.digests,
                found=second.digests,
                hint="nothing else would mean anything; look for another profile or a busy device",
            )
        return row

    # -- E1, E2 -------------------------------------------------------------------------------

    def samples(self, session: Session) -> Iterator[tuple[Row, Row]]:
        """Every sample in six arms: yields (sample record, block record)."""
        self._profile = session.profile.digest
        for sample in plan.samples(self.model, self.options, self.seed):
            span, query = list(sample.span), list(sample.query)
            captured: list[Capture] = []

            def keep(
                session: Session, into: list[Capture] = captured, seed: str = sample.seed
            ) -> None:
                into.append(session.capture({"source": seed}))

            fresh = remote.read_fresh(session, span, query, state=True, after_span=keep)
            capture = captured[0]
            self.store.put(capture.header, capture.tokens, capture.state.data)
            readings = {
                "fresh": (0, fresh),
                "fresh_again": (0, remote.read_fresh(session, span, query, state=True)),
            }
            graft = {
                "store": str(self.store.root),
                "block_id": capture.header.id,
                "query": query,
                "state": True,
            }
            again = {"span": span, "query": query, "state": True}
            jobs = [{"do": "graft", "with": graft}, {"do": "fresh", "with": again}]
            names = ["graft", "fresh_process"]
            if session.profile.is_split_invariant:
                readings["one_shot"] = (
                    0,
                    remote.read_fresh(session, span, query, one_shot=True, state=True),
                )
                jobs.insert(1, {"do": "graft", "with": {**graft, "sizes": [1] * len(query)}})
                names.insert(1, "token_by_token")
            for name, reading in zip(names, self._call(jobs), strict=True):
                readings[name] = (self._processes, reading)
            self._require_determinism(sample.index, readings)
            row = self._sample_row(sample, capture, readings, session)
            equal = row["arms"]["graft"]["logits_sha256"] == row["arms"]["fresh"]["logits_sha256"]
            self.note(
                f"sample {sample.index + 1}/{self.options['samples']}, {len(span)} tokens: "
                f"{'equal' if equal else 'DIFFERENT'}"
            )
            yield row, block_row(capture)

    def _require_determinism(self, index: int, readings: Mapping[str, tuple[int, Reading]]) -> None:
        """Fresh computations of one sample must agree, or its graft has nothing to agree with."""
        fresh = readings["fresh"][1]
        for name in ("fresh_again", "fresh_process"):
            other = readings[name][1]
            same_logits = logits_bytes(fresh.logits) == logits_bytes(other.logits)
            if same_logits and fresh.state_sha256 == other.state_sha256:
                continue
            where = f"sample {index}"
            if fresh.state is not None and other.state is not None:
                where = f"{where}, {describe_difference(fresh.state, other.state)}"
            raise DeterminismFailed(
                f"two fresh computations differ (fresh, {name})",
                where=where,
                expected=fresh.state_sha256,
                found=other.state_sha256,
                hint="nothing else would mean anything; look for another profile or a busy device",
            )

    def _sample_row(
        self,
        sample: plan.SamplePlan,
        capture: Capture,
        readings: Mapping[str, tuple[int, Reading]],
        session: Session,
    ) -> Row:
        n_span, n_query = len(sample.span), len(sample.query)
        fresh = readings["fresh"][1].logits
        raw: dict[str, str | None] | None = None
        if sample.index in raw_samples(self.options):
            raw = {
                arm: self._keep(readings[arm][1].logits[-1]) if arm in readings else None
                for arm in ("fresh", "graft", "token_by_token")
            }
        window = session.profile.context["window"]
        header = capture.header
        return {
            "kind": "exactness-sample",
            "version": 1,
            "model": self.model.name,
            "sample": sample.index,
            "seed": sample.seed,
            "profile": session.profile.digest,
            "exact": readings["graft"][1].exact,
            "split_invariant": session.profile.is_split_invariant,
            "span_tokens": n_span,
            "query_tokens": n_query,
            "past_window": 0 < window < n_span,
            "span_sha256": header.tokens.sha256,
            "query_sha256": digests.sha256_bytes(np.asarray(sample.query, "<i4").tobytes()),
            "block_id": header.id,
            "state_bytes": header.state.bytes,
            "state_sha256": digests.sha256_bytes(capture.state.data),
            "file_bytes": self.store.path(header.id).stat().st_size,
            "positions": list(range(n_span, n_span + n_query)),
            "arms": {
                name: _arm(process, reading, fresh) for name, (process, reading) in readings.items()
            },
            "top5_margin": [stats.top5_margin(row) for row in fresh],
            "raw": raw,
        }

    # -- E3 -----------------------------------------------------------------------------------

    def splits(self, session: Session) -> Iterator[Row]:
        """Each text in many batch splits, with and without a graft, against one prefill of it.

        Two controls show that the comparison sees a difference: one changed token, and the stock
        kernels read token by token. The portable arithmetic has no other kernels to compare with.
        """
        self._profile = session.profile.digest
        for index, tokens in enumerate(plan.split_texts(self.model, self.options, self.seed)):
            ids = list(tokens)
            reference = remote.read_fresh(session, [], ids, one_shot=True, outputs=1, state=True)
            if session.profile.is_split_invariant:
                for split in plan.splits(tokens, index, self.options, self.seed):
                    yield self._split_row(split, self._read_split(session, split), reference, "")
            changed = [*ids[:-2], (ids[-2] + 1) % self.model.n_vocab, ids[-1]]
            other = remote.read_fresh(session, [], changed, one_shot=True, outputs=1, state=True)
            whole = plan.SplitPlan(index, tokens, (len(ids),))
            yield self._split_row(whole, other, reference, "one token changed")
            if index == 0 and not self.settings.is_portable:
                yield self._stock_control(index, tokens)
            self.note(f"splits of {len(ids)} tokens done")

    def _read_split(self, session: Session, split: plan.SplitPlan) -> Reading:
        ids, sizes = list(split.tokens), list(split.sizes)
        if not split.grafted:
            return remote.read_fresh(
                session, [], ids, one_shot=True, sizes=sizes, outputs=1, state=True
            )
        session.reset()
        session.prefill(ids[: sizes[0]])
        capture = session.capture({"source": f"{self.seed}/split/{split.index}"})
        block_id = self.store.put(capture.header, capture.tokens, capture.state.data)
        return remote.read_grafted(
            session, self.store, block_id, ids[sizes[0] :], sizes=sizes[1:], outputs=1, state=True
        )

    def _stock_control(self, index: int, tokens: tuple[int, ...]) -> Row:
        """Stock kernels in a process of their own: one prefill against single tokens at the end."""
        ids = list(tokens)
        tail = min(self.options["single_tokens"], len(ids) - 1)
        sizes = (len(ids) - tail, *[1] * tail)
        jobs = [_one_shot(ids), _one_shot(ids, list(sizes))]
        reference, other = self._call(jobs, stock_control(self.settings))
        split = plan.SplitPlan(index, tokens, sizes)
        return self._split_row(split, other, reference, "stock kernels")

    def _split_row(
        self,
        split: plan.SplitPlan,
        reading: Reading,
        reference: Reading,
        control: str,
    ) -> Row:
        p, q = reference.logits[-1], reading.logits[-1]
        window = reading.profile_json["context"]["window"]
        if not control and stats.argmax(p) != stats.argmax(q):
            self.note(f"split {split.sizes[:4]}… of {len(split.tokens)} tokens changes the argmax")
        return {
            "kind": "exactness-split",
            "version": 1,
            "model": self.model.name,
            "sample": split.index,
            "profile": reading.profile,
            "profile_name": reading.profile_json["settings"]["name"],
            "tokens": len(split.tokens),
            "past_window": 0 < window < len(split.tokens),
            "split": [list(pair) for pair in run_lengths(split.sizes)],
            "grafted": split.grafted,
            "logits_sha256": _sha256(q),
            "reference_sha256": _sha256(p),
            "state_sha256": reading.state_sha256,
            "reference_state_sha256": reference.state_sha256,
            "kl": _kl(p, q),
            "argmax": [stats.argmax(q), stats.argmax(p)],
            "control": bool(control),
            "raw": None,
        }

    # -- shared -------------------------------------------------------------------------------

    def _call(self, jobs: list[Row], settings: ProfileSettings | None = None) -> list[Reading]:
        self._processes += 1
        readings = remote.call(self.model, settings or self.settings, jobs, self.scratch)
        for reading in readings:
            if settings is None and reading.profile != self.profile:
                raise ProfileMismatch(
                    "a new process has another profile in force",
                    expected=self.profile,
                    found=reading.profile,
                )
        return readings

    def _keep(self, logits: NDArray[np.float32]) -> str:
        """Store one position's raw logits under their own digest; equal ones share a file."""
        digest = _sha256(logits)
        path = self.folder / "logits" / f"{digest}.f32"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            atomic.write_bytes(path, logits_bytes(logits))
        return digest

    @property
    def profile(self) -> str:
        """Digest of the profile in force; taken from the session that a part is measured in."""
        return self._profile

    def measure(self) -> dict[str, list[Row]]:
        """All records of the stage, by kind of file."""
        with Session(self.model, self.settings) as session:
            determinism = list(self.determinism(session))
            pairs = list(self.samples(session))
            splits = list(self.splits(session))
        return {
            "determinism": determinism,
            "samples": [sample for sample, _ in pairs],
            "blocks": list({row["id"]: row for _, row in pairs}.values()),
            "splits": splits,
        }


@dataclass(frozen=True)
class Observed:
    """Last logits and whole state of one fresh computation."""

    logits: NDArray[np.float32]
    state: NDArray[np.uint8]
    process: int

    @property
    def digests(self) -> tuple[str, str]:
        """SHA-256 of logits and of state."""
        return _sha256(self.logits), digests.sha256_bytes(self.state.data)

    def to_json(self) -> Row:
        """As a record holds it."""
        logits, state_ = self.digests
        return {"logits_sha256": logits, "state_sha256": state_, "process": self.process}


def _one_shot(ids: list[int], sizes: list[int] | None = None) -> Row:
    """A job for another process: read a text, keep the last logits and the state's digest."""
    given = {"span": [], "query": ids, "one_shot": True, "sizes": sizes, "outputs": 1}
    return {"do": "fresh", "with": {**given, "state": True}}


def _observe(session: Session, ids: list[int], process: int) -> Observed:
    session.reset()
    logits = session.decode(ids, outputs=1)[-1]
    return Observed(logits, session.capture().state, process)


def describe_difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> str:
    """Where two states first differ, in words."""
    found = state.first_difference(a.data, b.data)
    if found is None:
        return "the states are equal, only the logits differ"
    return (
        f"cache {found.section}, {found.tensor}, byte {found.offset} (chunk {found.chunk}), "
        f"{found.n_bytes} bytes in all"
    )


def _arm(process: int, reading: Reading, fresh: NDArray[np.float32]) -> Row:
    return {
        "process": process,
        "logits_sha256": [_sha256(row) for row in reading.logits],
        "argmax": [stats.argmax(row) for row in reading.logits],
        "decoded_tokens": reading.decoded_tokens,
        "restored_bytes": reading.restored_bytes,
        "seconds": reading.seconds,
        "kl_from_fresh": [_kl(p, q) for p, q in zip(fresh, reading.logits, strict=True)],
        "state_sha256": reading.state_sha256,
    }


def block_row(capture: Capture) -> Row:
    """The header of a captured block, as a record."""
    return {
        "kind": "block-header",
        "version": 1,
        "id": capture.header.id,
        "header": capture.header.to_json(),
    }


def logits_bytes(logits: NDArray[np.float32]) -> bytes:
    """Logits as their digests are taken: float32, little-endian."""
    return np.ascontiguousarray(logits, "<f4").tobytes()


def _kl(p: NDArray[np.float32], q: NDArray[np.float32]) -> float:
    """KL(p, q) in nats, to the digits in which the exponentials of all processors agree."""
    return stats.rounded(stats.kl_divergence(p, q))


def _sha256(logits: NDArray[np.float32]) -> str:
    return digests.sha256_bytes(logits_bytes(logits))
