"""Seven other explanations of the relocation residual, each put to a controlled test (P3).

Which conditions there are, on how many samples and against which reference is planned in
`kvaudit.position.plan`; here they are measured. What they amount to is decided by `kvaudit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import kvb
from kvaudit.position import plan as planned
from kvaudit.position.plan import OWN, REGISTERED, Condition
from kvgraft.errors import GraftRefused
from kvgraft.plan import SamplePlan
from kvgraft.position_bench import Bench, Reading, Row, arm
from kvgraft.rotated_keys import relocated_outside
from kvgraft.session import Capture, Session


class Explanations:
    """The tests on one model.

    Args:
        bench: after `registered` was called with its session, `derived` opens sessions of its own.

    Attributes:
        keys: records of key errors, beside those of the relocation curve.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.window = bench.model.facts.window or 0
        self._planned = {(c.hypothesis, c.name): c for c in planned.conditions(self.window)}
        self._rows: dict[tuple[str, str], list[Row]] = {key: [] for key in self._planned}
        self.keys: list[Row] = []

    def rows(self) -> list[Row]:
        """All records, in the order of the plan."""
        return [row for rows in self._rows.values() for row in rows]

    # -- under the registered profile ---------------------------------------------------------

    def registered(self, session: Session) -> None:
        """The tests that need no other profile behind the question."""
        self._double_rotation(session)
        self._frequency_mismatch(session)
        self._large_angle(session)
        for sample in self._samples():
            cells = self.bench.fresh(session, sample, 0, leading_cells=37)
            self._add("reassociation", "other_cells", sample, cells, self._reference(OWN, sample))
        if self.window:
            self._past_window(session)
        self.bench.note("explanations under the registered profile done")

    def _double_rotation(self, session: Session) -> None:
        bench, near = self.bench, self.bench.options["probe_offset"]
        paths = {
            "by_zero": (0,),
            "there_and_back": (near, -near),
            "four_steps": (near // 4,) * 3 + (near - near // 4 * 3,),
        }
        for sample in self._samples():
            for name, deltas in paths.items():
                found = bench.grafted(session, sample, bench.blocks[sample.index], *deltas)
                self._add_known("double_rotation", name, sample, found)

    def _frequency_mismatch(self, session: Session) -> None:
        bench, near = self.bench, self.bench.options["probe_offset"]
        with bench.derived("wrong_base") as wrong:
            for sample in self._samples():
                wrong.reset()
                with bench.store.get(bench.blocks[sample.index]) as block:
                    wrong.graft(block, exact=False)
                wrong.relocate(near, exact=False)
                turned = bench.put(wrong.capture({"source": sample.seed}))
                found = bench.grafted(session, sample, turned)
                self._add_known("frequency_mismatch", "wrong_base", sample, found)
                found = self._outside(session, sample, near, factor=planned.WRONG_BASE)
                self._add_known("frequency_mismatch", "outside_wrong_base", sample, found)

    def _large_angle(self, session: Session) -> None:
        bench, near = self.bench, self.bench.options["probe_offset"]
        far = planned.far_offset(bench.trained_context)
        for sample in self._samples():
            found = self._outside(session, sample, near)
            self._add_known("large_angle", "outside", sample, found)
            control = self._far(session, sample, far)
            found = self._outside(session, sample, far)
            self._add("large_angle", "far_outside", sample, found, control)

    def _far(self, session: Session, sample: SamplePlan, far: int) -> Reading:
        """Control and relocation at the far offset; returns the control."""
        bench, block_id = self.bench, self.bench.blocks[sample.index]
        states: dict[str, Capture] = {}

        def keep(name: str) -> Any:
            return lambda capture: states.update({name: capture})

        control = bench.fresh(session, sample, far, keep=keep("fresh"))
        self._add_known("large_angle", "far_control", sample, control)
        moved = bench.grafted(session, sample, block_id, far, keep=keep("relocated"))
        self._add("large_angle", "far_relocated", sample, moved, control)
        # An offset of the curve has its keys compared there.
        if far not in bench.options["offsets"]:
            self._compare_keys(REGISTERED, sample, far, self._own_state(block_id), states)
        return control

    def _past_window(self, session: Session) -> None:
        bench, near = self.bench, self.bench.options["probe_offset"]
        for sample in self._long_samples():
            captured: list[Capture] = []
            own = bench.fresh(session, sample, 0, keep=captured.append)
            block_id = bench.put(captured[0])
            control = bench.fresh(session, sample, near)
            self._add("window_buffering", "past_control", sample, control, own)
            moved = bench.grafted(session, sample, block_id, near)
            self._add("window_buffering", "past_relocated", sample, moved, control)

    # -- under derived profiles ---------------------------------------------------------------

    def derived(self) -> None:
        """The tests that change the profile."""
        with self.bench.derived("f32_keys") as session:
            self._half_precision(session)
        for variant in ("other_threads", "flash_attention"):
            with self.bench.derived(variant) as session:
                n = self._planned["reassociation", variant].samples(self.bench.options)
                for sample in self.bench.samples[:n]:
                    found = self.bench.fresh(session, sample, 0)
                    self._add_known("reassociation", variant, sample, found)
        if self.window:
            with self.bench.derived("small_window") as session:
                self._small_window(session)
        self.bench.note("explanations under derived profiles done")

    def _half_precision(self, session: Session) -> None:
        bench, near = self.bench, self.bench.options["probe_offset"]
        for sample in self._samples():
            captured: list[Capture] = []
            own = bench.fresh(session, sample, 0, keep=captured.append)
            block_id = bench.put(captured[0])
            control = bench.fresh(session, sample, near)
            self._add("half_precision", "control", sample, control, own)
            moved = bench.grafted(session, sample, block_id, near)
            self._add("half_precision", "relocated", sample, moved, control)
            if sample.index < bench.options["key_samples"]:
                self._key_curve(session, sample, block_id, captured[0].state)

    def _key_curve(
        self, session: Session, sample: SamplePlan, block_id: str, own: NDArray[np.uint8]
    ) -> None:
        """Key errors in an f32 cache, where no rounding to half precision hides the angle's."""
        bench = self.bench
        for offset in planned.key_offsets(bench.options, bench.trained_context, "f32_keys"):
            states = {}
            session.reset(offset)
            session.prefill(sample.span)
            states["fresh"] = session.capture()
            session.reset()
            with bench.store.get(block_id) as block:
                session.graft(block, at=offset, exact=False)
            states["relocated"] = session.capture()
            self._compare_keys("f32_keys", sample, offset, own, states)

    def _small_window(self, session: Session) -> None:
        bench, near = self.bench, self.bench.options["probe_offset"]
        for sample in self._samples():
            captured: list[Capture] = []
            own = bench.fresh(session, sample, 0, keep=captured.append)
            self._add_known("window_buffering", "small_against_full", sample, own)
            control = bench.fresh(session, sample, near)
            self._add("window_buffering", "small_control", sample, control, own)
            self._try_relocation(session, "small_relocation", sample, captured[0])
        for sample in self._long_samples():
            captured = []
            own = bench.fresh(session, sample, 0, keep=captured.append)
            control = bench.fresh(session, sample, near)
            self._add("window_buffering", "past_small_control", sample, control, own)
            self._try_relocation(session, "past_small_relocation", sample, captured[0])

    def _try_relocation(
        self, session: Session, name: str, sample: SamplePlan, capture: Capture
    ) -> None:
        """The engine cannot re-rotate a window cache that reuses cells: it must be refused."""
        near, found, refused = self.bench.options["probe_offset"], None, None
        block_id = self.bench.put(capture)
        session.reset()
        try:
            with self.bench.store.get(block_id) as block:
                session.graft(block, at=near, exact=False)
            found = self.bench.ask(session, sample)
        except GraftRefused as error:
            refused = type(error).__name__
        self._append(
            self._planned["window_buffering", name],
            sample,
            profile=session.profile.digest,
            reference=None,
            logits=None if found is None else arm(found),
            kl=None,
            refused=refused,
        )

    # -- shared -------------------------------------------------------------------------------

    def _samples(self) -> list[SamplePlan]:
        return self.bench.samples[: self.bench.options["explanation_samples"]]

    def _long_samples(self) -> Iterator[SamplePlan]:
        """Spans that pass the window, from seeds of their own."""
        for index in range(self.bench.options["few_samples"]):
            name = f"{planned.sample_name(self.bench.seed, index)}/long"
            yield self.bench.sample_of(index, self.window + planned.PAST_WINDOW, name)

    def _own_state(self, block_id: str) -> NDArray[np.uint8]:
        with self.bench.store.get(block_id) as block:
            return np.frombuffer(bytes(block.state), np.uint8)

    def _outside(
        self, session: Session, sample: SamplePlan, delta: int, *, factor: float = 1.0
    ) -> Reading:
        """Relocation with keys that were turned in float64 outside the engine."""
        bench = self.bench
        with bench.store.get(bench.blocks[sample.index]) as block:
            header, tokens = block.header, np.array(block.tokens, np.int32)
        own = self._own_state(header.id)
        moved = relocated_outside(own, bench.rope, delta, factor=factor)
        changed = kvb.build(
            model=header.model,
            profile=header.profile,
            engine=header.engine,
            tokens=tokens,
            state=moved.data,
            start=header.start + delta,
            provenance={**header.provenance, "exact": False, "outside": factor},
        )
        return bench.grafted(session, sample, bench.put(Capture(changed, tokens, moved)))

    def _compare_keys(
        self,
        cache: str,
        sample: SamplePlan,
        offset: int,
        own: NDArray[np.uint8],
        states: dict[str, Capture],
    ) -> None:
        if sample.index >= self.bench.options["key_samples"]:
            return
        for name, section in planned.key_arms(self.window):
            pair = (own, states[name].state)
            row = self.bench.key_row(sample.index, cache, (name, section), offset, pair)
            self.keys.append(row)

    def _reference(self, name: str, sample: SamplePlan) -> Reading:
        return (self.bench.own if name == OWN else self.bench.near)[sample.index]

    def _add_known(self, hypothesis: str, name: str, sample: SamplePlan, found: Reading) -> None:
        """Add a record whose reference is a fresh arm of the relocation curve."""
        reference = self._reference(self._planned[hypothesis, name].reference, sample)
        self._add(hypothesis, name, sample, found, reference)

    def _add(
        self, hypothesis: str, name: str, sample: SamplePlan, found: Reading, reference: Reading
    ) -> None:
        self._append(
            self._planned[hypothesis, name],
            sample,
            profile=found.profile,
            reference={**arm(reference), "profile": reference.profile},
            logits=arm(found),
            kl=found.kl_from(reference),
            refused=None,
        )

    def _append(self, condition: Condition, sample: SamplePlan, **fields: Any) -> None:
        options = self.bench.options
        self._rows[condition.hypothesis, condition.name].append(
            {
                "kind": "position-explanation",
                "version": 1,
                "model": self.bench.model.name,
                "hypothesis": condition.hypothesis,
                "condition": condition.name,
                "sample": sample.index,
                "offset": condition.offset(options, self.bench.trained_context),
                "span_tokens": len(sample.span),
                **fields,
            }
        )
