"""The work behind `kvgraft capture` and `kvgraft graft`: each function returns what came of it.

What is printed, and which exit code follows, is decided in `kvgraft.cli`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests, kvb
from kvaudit.errors import UnusableInput
from kvaudit.kvb_map import MappedBlock
from kvgraft import cli_common
from kvgraft.errors import ContextFull, EmptySpan, GraftRefused, ProfileMismatch
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import PRESETS, ExecutionProfile, ProfileSettings
from kvgraft.store_url import open_store

DEFAULT_N_CTX = 2048
QUESTION_ROOM = 512
"""Tokens kept free behind a captured text, unless the context is chosen by hand."""
_INEXACT = "--inexact grafts it all the same, and no longer claims equal bytes"


# -- capture --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Captured:
    """A block that was put into a store."""

    id: str
    header: kvb.BlockHeader
    profile: ExecutionProfile
    store: str
    path: Path

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return {
            "id": self.id,
            "model": vars(self.header.model),
            "tokens": self.header.tokens.n,
            "bytes": self.header.state.bytes,
            "file_bytes": self.path.stat().st_size,
            "profile": {"name": self.profile.settings.name, "sha256": self.profile.digest},
            "n_ctx": self.profile.context["n_ctx"],
            "store": self.store,
            "path": str(self.path),
        }


def capture(
    pin: ModelPin, text: str, store: str, *, preset: str, n_ctx: int | None, n_threads: int | None
) -> Captured:
    """Read a text and put its state into a store.

    Args:
        pin: the model.
        text: what to read; the model's begin token is put in front of it.
        store: folder or URL.
        preset: name of the profile settings.
        n_ctx: tokens of context; None for the text and a question, within the model's training.
        n_threads: engine threads; None for the preset's own number.

    Raises:
        TypedError: as `FrozenModel.open`, `Session`, `Session.prefill` and `put` of the store.
    """
    from kvgraft.session import Session

    settings = _settings(preset, n_ctx=n_ctx, n_threads=n_threads)
    with FrozenModel.open(pin) as model:
        model.handle(settings)
        tokens = model.tokenize(text)
        if not tokens:
            raise EmptySpan("the text has no tokens")
        if n_ctx is None:
            settings = settings.with_(n_ctx=_roomy(len(tokens), model.facts.n_ctx_train))
        with Session(model, settings) as session:
            try:
                session.prefill(tokens, progress=cli_common.progress("prefill"))
            except ContextFull as error:
                error.hint = f"--n-ctx {len(tokens) + QUESTION_ROOM} has room for it"
                raise
            created = f"kvgraft {cli_common.version()}"
            made = session.capture({"source": "text", "created_by": created})
            profile = session.profile
    opened = open_store(store)
    block_id = opened.put(made.header, made.tokens, made.state.data)
    return Captured(block_id, made.header, profile, store, opened.path(block_id))


def _settings(preset: str, **asked: int | None) -> ProfileSettings:
    changes = {name: value for name, value in asked.items() if value is not None}
    try:
        return PRESETS[preset](**changes)
    except ValueError as error:
        raise UnusableInput(f"impossible settings: {error}") from error


def _roomy(n_tokens: int, n_ctx_train: int) -> int:
    """Context for a text and a question behind it, in whole 256s, not beyond the training."""
    wanted = max(DEFAULT_N_CTX, -(-(n_tokens + QUESTION_ROOM) // 256) * 256)
    return min(wanted, n_ctx_train)


# -- graft ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A graft against a fresh reading of the same tokens, in the same batches, in a new process.

    Attributes:
        rows: compared rows of logits: the prompt's last ones and one for each answered token.
        equal_rows: those whose bytes are equal.
        first_different: own position of the first row that is not, or None.
        graft_sha256: digest of all rows of the graft, float32 little-endian.
        fresh_sha256: the same of the fresh reading.
        fresh_tokens: tokens that the new process computed.
    """

    rows: int
    equal_rows: int
    first_different: int | None
    graft_sha256: str
    fresh_sha256: str
    fresh_tokens: int

    @property
    def equal(self) -> bool:
        """Whether every byte is."""
        return self.graft_sha256 == self.fresh_sha256

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return {**asdict(self), "equal": self.equal}


@dataclass(frozen=True)
class Grafted:
    """A greedy answer behind a restored block.

    Attributes:
        block_id: the block.
        model: name of the model.
        profile: digest of the profile in force.
        split_invariant: whether its bytes are independent of batches.
        exact: whether the block was made under this very profile.
        restored_tokens: positions restored.
        restored_bytes: bytes restored.
        prompt_tokens: length of the prompt.
        answer: text.
        answer_tokens: length of the answer.
        stopped: "end" (the model's own), "max-tokens" or "context-full".
        check: None unless asked for.
    """

    block_id: str
    model: str
    profile: str
    split_invariant: bool
    exact: bool
    restored_tokens: int
    restored_bytes: int
    prompt_tokens: int
    answer: str
    answer_tokens: int
    stopped: str
    check: Check | None

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return {**asdict(self), "check": self.check.to_json() if self.check else None}


def graft(
    block: MappedBlock,
    pin: ModelPin,
    prompt: str,
    *,
    max_tokens: int,
    check: bool = False,
    inexact: bool = False,
) -> Grafted:
    """Restore a block under its own settings, read a prompt behind it and answer greedily.

    Args:
        block: an opened block.
        pin: its model.
        prompt: what to read behind it.
        max_tokens: longest answer.
        check: compute the same text fresh in a new process and compare.
        inexact: accept a block of another profile.

    Raises:
        TypedError: as `FrozenModel.open`, `Session`, `Session.graft` and `Session.decode`.
    """
    from kvgraft.session import Session

    settings = cli_common.settings_of_block(block.header)
    if not block.verified:
        block.verify()
    span = block.tokens.tolist()
    with FrozenModel.open(pin) as model, Session(model, settings) as session:
        query = model.tokenize(prompt, begin=False)
        if not query:
            raise EmptySpan("the prompt has no tokens")
        room = session.capacity - len(span) - len(query)
        try:
            receipt = session.graft(block, exact=not inexact)
        except (ProfileMismatch, GraftRefused) as error:
            if error.hint and "exact=False" in error.hint:
                error.hint = _INEXACT
            raise
        if room < 0:
            raise ContextFull(
                "the context has no room for the prompt behind the block",
                expected=f"at most {session.capacity - len(span)} tokens",
                found=len(query),
                hint="capture the text again with a larger --n-ctx",
            )
        n_prompt_rows = min(len(query), settings.n_outputs_max) if check else 1
        rows = _RowDigests()
        rows.add(session.decode(query, outputs=n_prompt_rows))
        answer: list[int] = []
        show = cli_common.progress("answer")
        for token in session.generate(min(max_tokens, room)):
            if answer:
                rows.add([session.logits()])
            answer.append(token)
            if show:
                show(len(answer), max_tokens)
        if answer:
            rows.add([session.logits()])
        ended = model.ends_generation(int(session.logits().argmax()))
        text = model.detokenize(answer)
        profile = session.profile
    if ended and len(answer) < max_tokens:
        stopped = "end"
    else:
        stopped = "max-tokens" if len(answer) == max_tokens else "context-full"
    return Grafted(
        block_id=receipt.block_ids[-1],
        model=pin.name,
        profile=profile.digest,
        split_invariant=profile.is_split_invariant,
        exact=receipt.exact,
        restored_tokens=receipt.restored_tokens,
        restored_bytes=receipt.restored_bytes,
        prompt_tokens=len(query),
        answer=text,
        answer_tokens=len(answer),
        stopped=stopped,
        check=_check(model, profile, rows, span, query, answer) if check else None,
    )


class _RowDigests:
    """Digests of rows of logits, each alone and all together; the rows are not kept."""

    def __init__(self) -> None:
        self.each: list[str] = []
        self._all = hashlib.sha256()

    def add(self, rows: Iterable[NDArray[np.float32]]) -> None:
        for row in rows:
            data = np.ascontiguousarray(row, "<f4").tobytes()
            self.each.append(digests.sha256_bytes(data))
            self._all.update(data)

    @property
    def all(self) -> str:
        return self._all.hexdigest()


def _check(
    model: FrozenModel,
    profile: ExecutionProfile,
    rows: _RowDigests,
    span: list[int],
    query: list[int],
    answer: list[int],
) -> Check:
    """Read span, prompt and answer in a new process, split exactly as the graft's were."""
    from kvgraft import remote

    settings, n_rows = profile.settings, len(rows.each)
    text = [*span, *query, *answer]
    largest = min(settings.n_batch, profile.context["n_batch"])
    sizes = [*_batches(span, largest), *_batches(query, largest), *[1] * len(answer)]
    given = {"span": [], "query": text, "one_shot": True, "sizes": sizes, "outputs": n_rows}
    with tempfile.TemporaryDirectory(prefix="kvgraft-") as scratch:
        reading = remote.call(model, settings, [{"do": "fresh", "with": given}], Path(scratch))[0]
    if reading.profile != profile.digest:
        raise ProfileMismatch(
            "the new process runs under another profile, so nothing can be compared",
            expected=profile.digest,
            found=reading.profile,
        )
    fresh = _RowDigests()
    fresh.add(reading.logits)
    same = [a == b for a, b in zip(rows.each, fresh.each, strict=True)]
    first = None if all(same) else len(text) - n_rows + same.index(False)
    return Check(n_rows, sum(same), first, rows.all, fresh.all, reading.decoded_tokens)


def _batches(tokens: list[int], largest: int) -> list[int]:
    """Sizes of the batches in which a session reads tokens if nobody asks for others."""
    whole, rest = divmod(len(tokens), largest)
    return [largest] * whole + ([rest] if rest else [])
