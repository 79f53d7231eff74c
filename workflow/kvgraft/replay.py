"""The stage `replay`: blocks made here, copied, and read by other processes and other builds.

First every block is made and its question read, in one process (the origin). Then, target by
target, each block's file is copied into a second store and a process of the target grafts it. A
target other than `process` runs under another profile: its grafts are asked for with exact=False
and marked inexact, and its bytes and its function are recorded apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvaudit import atomic, digests, stats
from kvaudit.errors import UnusableInput
from kvaudit.replay import plan as planned
from kvaudit.replay.records import CURVES
from kvgraft import engine, plan
from kvgraft.engine_folder import check_loaded
from kvgraft.errors import ProfileMismatch
from kvgraft.exactness import block_row, logits_bytes
from kvgraft.model import FrozenModel
from kvgraft.plan import QUERY_ROOM, SamplePlan
from kvgraft.profile import ProfileSettings
from kvgraft.replay_reading import Arm, OnTarget, at_origin, host_facts, on_target
from kvgraft.session import Capture, Session
from kvgraft.store import BlockStore

Note = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """A sample where its block was made."""

    sample: SamplePlan
    capture: Capture
    fresh: Arm
    top: list[int]


@dataclass
class Experiment:
    """One model under one profile, replayed on targets.

    Attributes:
        model: the opened model.
        settings: profile settings of the origin.
        options: the configuration's `replay` section.
        seed: name from which all draws derive (`kvaudit.replay.plan.stage_seed`).
        folder: the stage's folder; raw logits go to `logits/`.
        scratch: a folder outside the evidence for both stores.
        engines: target -> folder of the build that it runs on, where that is another one.
        note: called with one line of progress.
        interpreters: target -> the Python that it runs in, where that is another one.
    """

    model: FrozenModel
    settings: ProfileSettings
    options: Mapping[str, Any]
    seed: str
    folder: Path
    scratch: Path
    engines: Mapping[str, Path]
    note: Note
    interpreters: Mapping[str, Path] = field(default_factory=dict)

    def measure(self) -> dict[str, list[Row]]:
        """All records of the stage, by name of the record file without folder and suffix."""
        check(self.options, self.settings)
        self.store = BlockStore(self.scratch / "origin")
        origins = self._make()
        profiles: dict[str, Row] = {}
        targets: list[Row] = []
        for target in self.options["targets"]:
            second = BlockStore(self.scratch / target)
            for origin in origins:
                copy_block(self.store, second, origin.capture.header.id)
                found = self._read(target, origin, second)
                targets.append(self._target_row(target, origin, found, len(targets) + 1))
                if planned.crosses(target):
                    row = _profile_row(found.profile)
                    profiles[row["digest"]] = row
                self._report(targets[-1])
            shutil.rmtree(second.root)
        return {
            "samples": [self._sample_row(origin) for origin in origins],
            "targets": targets,
            "blocks": [block_row(origin.capture) for origin in origins],
            "profiles": list(profiles.values()),
        }

    # -- the origin ---------------------------------------------------------------------------

    def _make(self) -> list[Origin]:
        """Every block, made and stored, and its question read."""
        origins = []
        with Session(self.model, self.settings) as session:
            self.profile = session.profile
            for sample in plan.samples(self.model, self.options, self.seed):
                capture, fresh = at_origin(session, sample, self.options["answer_tokens"])
                self.store.put(capture.header, capture.tokens, capture.state.data)
                top = np.argsort(-fresh.logits[-1], kind="stable")[: planned.N_TOP]
                origins.append(Origin(sample, capture, fresh, [int(token) for token in top]))
        self.note(f"{len(origins)} blocks made")
        return origins

    def _sample_row(self, origin: Origin) -> Row:
        header = origin.capture.header
        sample = origin.sample
        path = self.store.path(header.id)
        return {
            "kind": "replay-sample",
            "version": 1,
            "model": self.model.name,
            "sample": sample.index,
            "seed": sample.seed,
            "profile": self.profile.digest,
            "span_tokens": len(sample.span),
            "query_tokens": len(sample.query),
            "span_sha256": header.tokens.sha256,
            "query_sha256": digests.sha256_bytes(np.asarray(sample.query, "<i4").tobytes()),
            "block_id": header.id,
            "state_bytes": header.state.bytes,
            "state_sha256": digests.sha256_bytes(origin.capture.state.data),
            "file_bytes": path.stat().st_size,
            "file_sha256": digests.sha256_file(path),
            "top": origin.top,
            "fresh": _arm(origin.fresh, origin.top),
            "raw": self._keep(sample.index, origin.fresh),
            **self._where(host_facts()),
        }

    def _where(self, host: Row) -> Row:
        """The host, which a portable profile does not name and every other does."""
        return {"host": host} if self.settings.is_portable else {}

    # -- a target -----------------------------------------------------------------------------

    def _read(self, target: str, origin: Origin, store: BlockStore) -> OnTarget:
        libraries = self.engines.get(target)
        found = on_target(
            self.model,
            self._settings_on(target),
            origin.sample,
            store,
            origin.capture.header.id,
            n_answer=self.options["answer_tokens"],
            exact=not planned.crosses(target),
            libraries=libraries,
            scratch=self.scratch,
            interpreter=self.interpreters.get(target),
        )
        if libraries is not None:
            check_loaded(found.profile, libraries, self.profile.engine)
            # A portable profile names no libraries; which were loaded shows the target.
            check_loaded({"engine": found.engine}, libraries, engine.engine_facts())
        same = digests.sha256_json(found.profile) == self.profile.digest
        if same == planned.crosses(target):
            raise ProfileMismatch(
                f"target {target} runs under {'the' if same else 'another than the'} profile of "
                "the origin",
                expected="another one" if same else self.profile.digest,
                found=digests.sha256_json(found.profile),
                hint="a target other than process needs another build or another device",
            )
        return found

    def _settings_on(self, target: str) -> ProfileSettings:
        if target != "device":
            return self.settings
        return self.settings.with_(n_gpu_layers=self.options["device_layers"])

    def _target_row(self, target: str, origin: Origin, found: OnTarget, process: int) -> Row:
        arms = {"origin": origin.fresh, "fresh": found.fresh, "graft": found.graft}
        kl = {}
        for curve in CURVES:
            name, reference = curve.split("_from_")
            pairs = zip(arms[reference].logits, arms[name].logits, strict=True)
            kl[curve] = [stats.kl_divergence(p, q) for p, q in pairs]
        raw = [self._keep(origin.sample.index, arm) for arm in (found.fresh, found.graft)]
        return {
            "kind": "replay-target",
            "version": 1,
            "model": self.model.name,
            "target": target,
            "sample": origin.sample.index,
            "profile": digests.sha256_json(found.profile),
            "process": process,
            "exact": found.exact,
            "copy_bytes": found.copy_bytes,
            "copy_sha256": found.copy_sha256,
            "own": dict(found.own),
            "fresh": _arm(found.fresh, origin.top),
            "graft": _arm(found.graft, origin.top),
            "kl": kl,
            "seconds": dict(found.seconds),
            "raw": all(raw),
            **self._where(dict(found.host)),
        }

    def _report(self, row: Row) -> None:
        equal = row["own"]["differing_bytes"] == 0
        nats = sum(row["kl"]["graft_from_origin"]) / len(row["kl"]["graft_from_origin"])
        self.note(
            f"{row['target']}, sample {row['sample'] + 1}/{self.options['samples']}: block "
            f"{'equal' if equal else 'of other bytes'}, graft {nats:.3g} nats from the origin"
        )

    def _keep(self, index: int, arm: Arm) -> bool:
        """Keep the last position's raw logits if the plan asks for it."""
        if not planned.keeps_raw(index, self.model.name, self.options):
            return False
        data = logits_bytes(arm.logits[-1])
        path = self.folder / "logits" / f"{digests.sha256_bytes(data)}.f32"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            atomic.write_bytes(path, data)
        return True


def copy_block(source: BlockStore, target: BlockStore, block_id: str) -> None:
    """Copy a block's file, byte for byte, as a person who carries a store elsewhere does."""
    path = target.path(block_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source.path(block_id), path)


def check(options: Mapping[str, Any], settings: ProfileSettings) -> None:
    """Refuse a configuration whose parts do not fit together, before anything runs.

    Raises:
        UnusableInput: names the rule that is broken.
    """
    for problem in planned.preset_problems(options, settings.is_portable):
        raise UnusableInput(
            "a target does not go with the configured profile", where="replay", found=problem
        )
    longest = options["max_tokens"] + QUERY_ROOM + options["answer_tokens"]
    for rule, holds in (
        ("min_tokens is at most max_tokens", options["min_tokens"] <= options["max_tokens"]),
        ("max_tokens, question and continuation fit into n_ctx", longest <= settings.n_ctx),
        (
            "target device has another number of layers on the accelerator",
            "device" not in options["targets"] or options["device_layers"] != settings.n_gpu_layers,
        ),
    ):
        if not holds:
            raise UnusableInput(f"the configuration breaks a rule: {rule}", where="replay")


def _arm(arm: Arm, top: list[int]) -> Row:
    log_p = stats.log_softmax(arm.logits[-1])
    return {
        "logits_sha256": [digests.sha256_bytes(logits_bytes(row)) for row in arm.logits],
        "argmax": [stats.argmax(row) for row in arm.logits],
        "answer": arm.answer,
        "log_p": [round(float(log_p[token]), 9) for token in top],
        "decoded_tokens": arm.decoded_tokens,
        "restored_bytes": arm.restored_bytes,
    }


def _profile_row(profile: Mapping[str, Any]) -> Row:
    return {
        "kind": "profile",
        "version": 1,
        "digest": digests.sha256_json(profile),
        "profile": dict(profile),
    }
