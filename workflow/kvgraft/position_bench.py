"""What all measurements of the stage `position` share: samples, blocks, and ways to read them.

A span is computed freshly at an offset, or its block is restored and re-rotated; the question is
read behind it. What is compared with what is for `position` and `explanations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests, stats
from kvaudit.position import plan as planned
from kvgraft import rotated_keys, texts
from kvgraft.model import FrozenModel
from kvgraft.plan import SamplePlan
from kvgraft.profile import ProfileSettings
from kvgraft.rotated_keys import Rope
from kvgraft.session import Capture, Session
from kvgraft.store import BlockStore

Note = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """Logits behind a question and where they come from.

    Attributes:
        logits: float32 [n_vocab], at the question's last token.
        exact: whether the session vouched for them.
        profile: digest of the session's profile.
    """

    logits: NDArray[np.float32]
    exact: bool
    profile: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the logits."""
        return digests.sha256_bytes(np.ascontiguousarray(self.logits, "<f4").tobytes())

    @property
    def argmax(self) -> int:
        """The most likely token."""
        return stats.argmax(self.logits)

    def kl_from(self, reference: Reading) -> float:
        """KL(reference, this), nats."""
        return stats.kl_divergence(reference.logits, self.logits)


@dataclass
class Bench:
    """What every measurement of this stage shares.

    Attributes:
        model: the opened model.
        settings: the configured profile's.
        options: the configuration's `position` section.
        seed: name from which all draws derive.
        scratch: folder for blocks.
        note: called with one line of progress.
        samples: spans and questions.
        blocks: {sample: id of its block at its own position}.
        own: {sample: fresh at its own position}.
        near: {sample: fresh at the probe offset}.
        profiles: {digest: profile} of the derived profiles that were used.
    """

    model: FrozenModel
    settings: ProfileSettings
    options: Mapping[str, Any]
    seed: str
    scratch: Path
    note: Note
    samples: list[SamplePlan] = field(default_factory=list)
    blocks: dict[int, str] = field(default_factory=dict)
    own: dict[int, Reading] = field(default_factory=dict)
    near: dict[int, Reading] = field(default_factory=dict)
    profiles: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = BlockStore(self.scratch / "blocks")
        self.rope = Rope.of(self.model)
        self.samples = [self._sample(index) for index in range(self.options["samples"])]

    def _sample(self, index: int) -> SamplePlan:
        n_tokens = planned.span_tokens(self.options, self.seed, index)
        return self.sample_of(index, n_tokens, planned.sample_name(self.seed, index))

    def sample_of(self, index: int, n_tokens: int, name: str) -> SamplePlan:
        """A span of generated prose and the end of a question about it."""
        passage = texts.passage(name, n_words=n_tokens + 40)
        span = self.model.tokenize(passage.text)[:n_tokens]
        fact = passage.facts[planned.drawn(f"{name}/fact", len(passage.facts))]
        query = self.model.tokenize(f"\nQuestion: {fact.question}\nAnswer:", begin=False)
        kept = query[-self.options["query_tokens"] :]
        return SamplePlan(index, name, tuple(span), tuple(kept))

    @property
    def trained_context(self) -> int:
        """Tokens of context that the model was trained for."""
        return self.model.facts.n_ctx_train

    def fresh(
        self,
        session: Session,
        sample: SamplePlan,
        at: int,
        *,
        leading_cells: int = 0,
        keep: Callable[[Capture], None] | None = None,
    ) -> Reading:
        """Compute span and question with the span's first token at position `at`.

        Args:
            session: any; it is emptied.
            sample: what to read.
            at: position of the first token.
            leading_cells: as in `Session.reset`.
            keep: called with the span's captured state.
        """
        session.reset(at, leading_cells)
        session.prefill(sample.span)
        if keep:
            keep(session.capture({"source": sample.seed}))
        return self.ask(session, sample)

    def grafted(
        self,
        session: Session,
        sample: SamplePlan,
        block_id: str,
        *deltas: int,
        exact: bool = False,
        keep: Callable[[Capture], None] | None = None,
    ) -> Reading:
        """Restore a block at its own position, re-rotate it by each delta in turn, and ask."""
        session.reset()
        with self.store.get(block_id) as block:
            session.graft(block, exact=exact)
        for delta in deltas:
            session.relocate(delta, exact=False)
        if keep:
            keep(session.capture({"source": sample.seed}))
        return self.ask(session, sample)

    def ask(self, session: Session, sample: SamplePlan) -> Reading:
        """Read the question and keep the logits behind its last token."""
        logits = session.decode(sample.query, outputs=1)[-1]
        return Reading(logits, session.is_exact, session.profile.digest)

    def put(self, capture: Capture) -> str:
        """Store a captured block; its id."""
        return self.store.put(capture.header, capture.tokens, capture.state.data)

    def derived(self, variant: str) -> Session:
        """A session whose profile differs in what the variant says; the profile is listed."""
        facts = self.model.facts
        changes = planned.changes(
            variant, self.settings.to_json(), facts.rope_freq_base, facts.window or 0
        )
        session = Session(self.model, self.settings.with_(**changes))
        self.profiles[session.profile.digest] = {
            "kind": "profile",
            "version": 1,
            "digest": session.profile.digest,
            "profile": session.profile.to_json(),
        }
        return session

    def key_row(
        self, sample: int, cache: str, where: tuple[str, int], offset: int, states: tuple[Any, Any]
    ) -> Row:
        """How far keys are from the float64 rotation of the keys at their own positions."""
        own, moved = states
        return {
            "kind": "position-keys",
            "version": 1,
            "model": self.model.name,
            "sample": sample,
            "cache": cache,
            "arm": where[0],
            "section": where[1],
            "base": self.rope.bases[where[1]],
            "offset": offset,
            **rotated_keys.errors(own, moved, self.rope, offset, where),
        }


def arm(reading: Reading) -> Row:
    """An arm as records hold it."""
    return {
        "logits_sha256": reading.sha256,
        "argmax": reading.argmax,
        "exact": reading.exact,
    }
