"""The stage `context`: a text of many blocks, of which the context holds one at a time.

The text is cut into blocks at own positions, each with its own begin token and some with a needle.
Blocks are computed once and kept in a work folder, so that a killed run goes on where it was. Then:
questions with controls, accesses at every depth, memory with and without the store, and growth.
What the records amount to is decided by `kvaudit`, not here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvaudit import kvb
from kvaudit.context import plan
from kvaudit.context.plan import Needle
from kvaudit.errors import UnusableInput
from kvgraft import context_growth, paged, texts
from kvgraft.context import cache_bytes
from kvgraft.context_work import WorkFolder
from kvgraft.model import FrozenModel
from kvgraft.paged import PagedStore
from kvgraft.plan import Tokenizer
from kvgraft.profile import ProfileSettings
from kvgraft.session import Session

Note = Callable[[str], None]
Row = dict[str, Any]

SENTENCE_ROOM_WORDS = 40
MAX_BATCH = 512
"""Most tokens of one batch: more only take more memory for what is computed in between."""
_SENTENCE_END = re.compile(r"\.(?=\s)")


@dataclass(frozen=True)
class BlockText:
    """One block of the long text.

    Attributes:
        tokens: ids, begin token included.
        text: what they say; the index and the verifier read it.
    """

    tokens: tuple[int, ...]
    text: str

    @property
    def sha256(self) -> str:
        """Digest of the tokens, as block headers name it."""
        return kvb.token_digest(np.asarray(self.tokens, np.int32))


def block_text(
    model: Tokenizer, source: str, n_tokens: int, planted: Mapping[str, float]
) -> BlockText:
    """Prose of exactly `n_tokens` tokens with sentences planted in it.

    Args:
        model: for its tokenizer.
        source: name from which the prose derives.
        n_tokens: of the block.
        planted: sentence -> where, as a share of the text; a sentence's end is waited for.

    Raises:
        UnusableInput: the block is too short for its sentences.
    """
    prose = texts.passage(source, n_words=n_tokens + SENTENCE_ROOM_WORDS).text
    length = len(model.detokenize(model.tokenize(prose)[:n_tokens]))
    ends = [match.end() for match in _SENTENCE_END.finditer(prose)]
    for sentence, share in sorted(planted.items(), key=lambda item: -item[1]):
        at = next((end for end in ends if end >= share * length), len(prose))
        prose = f"{prose[:at]} {sentence}{prose[at:]}"
    tokens = tuple(model.tokenize(prose)[:n_tokens])
    text = model.detokenize(tokens)
    for sentence in planted:
        if text.count(sentence) != 1:
            raise UnusableInput(
                "a block is too short for the sentences planted in it",
                where=source,
                expected=sentence,
                found=f"{n_tokens} tokens",
                hint="configure longer blocks or fewer needles",
            )
    return BlockText(tokens, text)


@dataclass
class PagedContext:
    """One model under one profile, with a folder for work that outlives the process.

    Attributes:
        model: the opened model.
        settings: of the configured profile; context, batch and threads are derived from it.
        options: the configuration's `context` section.
        seed: name from which all draws derive.
        work: root of the work folder, outside the evidence.
        note: called with one line of progress.
        n_threads: of every session.
    """

    model: FrozenModel
    settings: ProfileSettings
    options: Mapping[str, Any]
    seed: str
    work: Path
    note: Note
    n_threads: int = 1

    def __post_init__(self) -> None:
        sized = plan.sized(self.options)
        self.n_blocks, self.block_tokens = sized["blocks"], sized["block_tokens"]
        n_ctx = plan.n_ctx(self.options)
        self.derived = self.settings.with_(
            n_ctx=n_ctx,
            n_batch=min(self.settings.n_batch, MAX_BATCH),
            n_threads=self.n_threads,
        )
        self.needles = plan.needles(self.options, self.seed)
        self.folder: WorkFolder | None = None

    def measure(self) -> dict[str, list[Row]]:
        """All records of the stage, by kind of file.

        Raises:
            StageBusy: another process is at work on the same blocks.
            StoreFull: the disk has no room for all blocks; finished ones are kept.
        """
        blocks = [self._text(number) for number in range(self.n_blocks)]
        with Session(self.model, self.derived) as session:
            self.profile = session.profile.digest
            with WorkFolder(self.work, self._identity(blocks)) as work:
                self.folder = work
                block_rows, run = self._deposit(session, work, blocks)
                headers = [row.pop("header") for row in block_rows]
                ids = [row["block_id"] for row in block_rows]
                store = PagedStore(session, work.store, ids)
                answers = self._answers(store)
                accesses = self._accesses(session, store)
                growth = context_growth.grow(
                    session, work.scratch_store, self.options, self.seed, self._common
                )
                memory = self._memory(work, blocks, ids)
                profile = {
                    **{"kind": "profile", "version": 1, "digest": self.profile},
                    "profile": session.profile.to_json(),
                }
        self.note(f"simulating an index of {max(self.options['index_entries'])} entries")
        return {
            "blocks": block_rows,
            "headers": [
                {"kind": "block-header", "version": 1, "id": block_id, "header": header}
                for block_id, header in zip(ids, headers, strict=True)
            ],
            "needles": [
                {**self._common("context-needle"), **needle.to_json()} for needle in self.needles
            ],
            "answers": answers,
            "accesses": accesses,
            "memory": memory,
            "growth": growth,
            "index": [
                {**self._common("context-index"), **row}
                for row in context_growth.simulated_index(self.options, self.seed)
            ],
            "run": [run],
            "profiles": [profile],
        }

    def finish(self) -> None:
        """After the evidence is closed: remove the blocks, unless the configuration keeps them."""
        if self.folder is not None and not self.options["keep_blocks"]:
            self.folder.clear()

    def _common(self, kind: str) -> Row:
        return {"kind": kind, "version": 1, "model": self.model.name}

    def _text(self, number: int) -> BlockText:
        planted = {n.sentence: n.place for n in self.needles if n.block == number and n.place}
        source = plan.block_source(self.seed, number)
        return block_text(self.model, source, self.block_tokens, planted)

    def _identity(self, blocks: list[BlockText]) -> Row:
        """Everything that the blocks depend on."""
        return {
            "model": self.model.pin.sha256,
            "profile": self.profile,
            "seed": self.seed,
            "blocks": [block.sha256 for block in blocks],
        }

    # -- depositing ---------------------------------------------------------------------------

    def _deposit(
        self, session: Session, work: WorkFolder, blocks: list[BlockText]
    ) -> tuple[list[Row], Row]:
        """Every block computed, or found sound in the work folder."""
        most = cache_bytes(self.model, self.derived.with_(n_ctx=self.block_tokens))
        total = self.n_blocks * self.block_tokens
        self.note(
            f"{total} tokens in {self.n_blocks} blocks, {total / self.derived.n_ctx:.1f} times the "
            f"context of {self.derived.n_ctx}; at most {most * self.n_blocks >> 20} MiB on disk"
        )
        rows: list[Row] = []
        estimate: Row | None = None
        begin = time.perf_counter()
        known = {
            number: work.finished(number, block.sha256, self.profile)
            for number, block in enumerate(blocks)
        }
        left = sum(line is None for line in known.values())
        if left < self.n_blocks:
            self.note(f"resuming: {self.n_blocks - left} blocks are finished, {left} are not")
        # Small blocks come later, and take the same place for a while.
        small = self.options["growth"] * cache_bytes(
            self.model, self.derived.with_(n_ctx=self.options["growth_tokens"])
        )
        work.require_room(small + min(left, 1) * most)
        for number, block in enumerate(blocks):
            line = known[number]
            rows.append(
                self._computed(session, work, number, block)
                if line is None
                else self._block_row(number, block, line, resumed=True)
            )
            if line is not None:
                continue
            left -= 1
            if estimate is None:
                estimate = self._estimate(work, rows[-1], left, small)
            self.note(
                f"block {number + 1}/{self.n_blocks}: {rows[-1]['prefill_seconds']:.1f} s; "
                f"{left} left, about {left * (time.perf_counter() - begin) / _done(rows):.0f} s"
            )
        checked = time.perf_counter()
        report = work.store.fsck()
        run = {
            **self._common("context-run"),
            "profile": self.profile,
            "blocks": self.n_blocks,
            "tokens": total,
            "n_ctx": session.profile.context["n_ctx"],
            "resumed": sum(row["resumed"] for row in rows),
            "estimate": estimate,
            "deposit_seconds": round(checked - begin, 6),
            "disk_bytes": sum(row["file_bytes"] for row in rows),
            "fsck": {
                "ok": report.ok,
                "damaged": len(report.damaged),
                "seconds": round(time.perf_counter() - checked, 6),
            },
        }
        return rows, run

    def _estimate(self, work: WorkFolder, first: Row, left: int, small: int) -> Row:
        """Time and disk of all blocks that are left, from the first one computed here.

        Args:
            work: where they go.
            first: record of that block.
            left: blocks that are left.
            small: bytes that must stay free for the small blocks.
        """
        seconds = left * (first["prefill_seconds"] + first["deposit_seconds"])
        needed = left * first["file_bytes"]
        self.note(f"estimate for {left} blocks: {seconds:.0f} s, {needed >> 20} MiB on disk")
        free = work.require_room(needed + small)
        return {
            "blocks_left": left,
            "seconds": round(seconds, 6),
            "bytes": needed,
            "free_bytes": free,
        }

    def _computed(self, session: Session, work: WorkFolder, number: int, block: BlockText) -> Row:
        session.reset()
        begin = time.perf_counter()
        session.prefill(block.tokens)
        read = time.perf_counter()
        capture = session.capture({"source": plan.block_source(self.seed, number)})
        block_id = work.store.put(capture.header, capture.tokens, capture.state.data)
        line = {
            "block": number,
            "block_id": block_id,
            "prefill_seconds": round(read - begin, 6),
            "deposit_seconds": round(time.perf_counter() - read, 6),
            "file_bytes": work.store.path(block_id).stat().st_size,
        }
        work.note(line)
        line["header"] = capture.header.to_json()
        return self._block_row(number, block, line, resumed=False)

    def _block_row(self, number: int, block: BlockText, line: Row, *, resumed: bool) -> Row:
        return {
            **self._common("context-block"),
            "profile": self.profile,
            "block": number,
            "tokens": len(block.tokens),
            "tokens_sha256": block.sha256,
            "text": block.text,
            "block_id": line["block_id"],
            "state_bytes": line["header"]["state"]["bytes"],
            "file_bytes": line["file_bytes"],
            "prefill_seconds": line["prefill_seconds"],
            "deposit_seconds": line["deposit_seconds"],
            "resumed": resumed,
            "header": line["header"],
        }

    # -- questions ----------------------------------------------------------------------------

    def _answers(self, store: PagedStore) -> list[Row]:
        rows = []
        for number, arm in plan.questions(self.options, self.seed):
            needle = self.needles[number]
            route = store.route(needle.question, plan.RANKED)
            block = route.block
            if arm == "wrong":
                assert needle.wrong_block is not None
                block = needle.wrong_block
            visit, said = store.ask(needle.question, self.options["answer_tokens"], block=block)
            found = "found" if needle.code in said.text else "not found"
            self.note(f"needle {number} {arm}, block {block}: {found} {said.text!r}")
            rows.append(
                {
                    **self._common("context-answer"),
                    "profile": self.profile,
                    "needle": number,
                    "arm": arm,
                    "block": block,
                    "block_id": visit.block_id,
                    "ranking": [list(entry) for entry in route.ranking],
                    "exact": visit.exact,
                    "restored_tokens": visit.restored_tokens,
                    "restored_bytes": visit.restored_bytes,
                    **said.to_json(),
                    "seconds": {
                        "route": round(route.seconds, 6),
                        "get": round(visit.get_s, 6),
                        "restore": round(visit.restore_s, 6),
                        "query": round(said.query_s, 6),
                        "generate": round(said.generate_s, 6),
                    },
                }
            )
        return rows

    # -- access time --------------------------------------------------------------------------

    def _accesses(self, session: Session, store: PagedStore) -> list[Row]:
        """Every block in a drawn order, again and again: verify, restore, one token."""
        token = self.model.tokenize("\n", begin=False)[:1]
        rows = []
        for round_ in range(self.options["accesses"]):
            for turn, block in enumerate(plan.access_order(self.options, self.seed, round_)):
                visit = store.turn_to(block)
                begin = time.perf_counter()
                logits = session.decode(token)[-1]
                token_s = time.perf_counter() - begin
                rows.append(
                    {
                        **self._common("context-access"),
                        "profile": self.profile,
                        "round": round_,
                        "turn": turn,
                        "block": block,
                        "block_id": visit.block_id,
                        "restored_bytes": visit.restored_bytes,
                        "logits_sha256": paged.logits_digest(logits),
                        "seconds": {
                            "get": round(visit.get_s, 6),
                            "restore": round(visit.restore_s, 6),
                            "token": round(token_s, 6),
                        },
                    }
                )
        self.note(f"{len(rows)} accesses to {self.n_blocks} blocks")
        return rows

    # -- memory -------------------------------------------------------------------------------

    def _memory(self, work: WorkFolder, blocks: list[BlockText], ids: list[str]) -> list[Row]:
        """The same questions in two new processes: through the store, and by prefill alone."""
        asked = [self.needles[number] for number in plan.memory_needles(self.options)]
        rows = []
        for process, arm in enumerate(("store", "direct"), start=1):
            questions = [_question(needle, blocks if arm == "direct" else None) for needle in asked]
            answer = paged.answer_elsewhere(
                self.model,
                self.derived,
                questions,
                self.options["answer_tokens"],
                store=work.store.root if arm == "store" else None,
                block_ids=ids,
            )
            self.note(f"peak memory, {arm}: {answer['peak_bytes'] >> 20} MiB")
            rows.append(
                {
                    **self._common("context-memory"),
                    "arm": arm,
                    "process": process,
                    "profile": answer["profile"],
                    "peak_bytes": answer["peak_bytes"],
                    "meter": answer["meter"],
                    "answers": [
                        {"needle": needle.number, **reply.pop("reply"), **reply}
                        for needle, reply in zip(asked, answer["replies"], strict=True)
                    ],
                }
            )
        return rows


def _question(needle: Needle, blocks: list[BlockText] | None) -> Row:
    question: Row = {"prompt": needle.question}
    if blocks is not None:
        assert needle.block is not None
        question["span"] = list(blocks[needle.block].tokens)
    return question


def _done(rows: list[Row]) -> int:
    return max(1, sum(not row["resumed"] for row in rows))
