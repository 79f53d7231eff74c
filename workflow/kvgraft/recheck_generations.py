"""Reads the generations of a flywheel stage again: each in one pass.

Under a split-invariant profile one prefill of context, question and answer gives the logits that
decoding token by token gave, so that a transcript is checked at the speed of a prefill: every token
is drawn again, and the rolling digest of the logits is compared. Blocks are not needed; their texts
are read. Where two arms read the same, the engine reads it once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvaudit import digests
from kvaudit.flywheel import asked, prompts
from kvaudit.flywheel.kind import KIND
from kvaudit.flywheel.known import Known
from kvaudit.flywheel.records import GENERATIONS, PROFILES
from kvaudit.kvb import BlockHeader
from kvaudit.stagekind import Rows
from kvgraft.branches import Ask, Reread, reread
from kvgraft.model import FrozenModel
from kvgraft.recheck_common import (
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

_COMPARED = ("model", "start", "tokens", "state")
"""What of a block's header an engine gives again, whatever the size of its context."""
_WRONG_BLOCK = "its block has another state than its header says"
RELOCATED = "its block was relocated, which gives other bits than any prefill"


def recheck_rows(
    model: FrozenModel,
    rows: Rows,
    sample: int | None = None,
    seed: str = "",
    threads: int | None = None,
    note: Note = lambda _: None,
    *,
    bytes_only: bool = False,
) -> Rechecked:
    """Recheck the generations of one stage's records.

    Args:
        model: whose they are.
        rows: the records of the stage flywheel.
        sample: so many of the generations that can be read again, drawn with `seed`; all without.
        seed: name from which the sample is drawn.
        threads: of the engine; every core without.
        note: called with lines of progress.
        bytes_only: whether an engine with another profile than the recorded one is refused.

    Raises:
        ProfileMismatch: the recorded profile is not split-invariant; or another one is in force,
            with `bytes_only`.
    """
    generations = rows[GENERATIONS]
    profiles = sorted(
        (row["profile"] for row in rows[PROFILES]), key=lambda one: int(one["settings"]["n_ctx"])
    )
    known = Known(model.name, rows)
    readable, skipped = _readable(generations, known)
    contexts: dict[tuple[str, ...], list[int]] = {}
    for at in drawn(len(readable), sample, seed):
        number, texts = readable[at]
        contexts.setdefault(texts, []).append(number)  # so that each is read once
    with Session(model, settings(profiles[-1], threads), n_branches=1) as session:
        differences = differing(session, profiles[-1], bytes_only=bytes_only)
        checker = _Checker(session, known, exact=not differences)
        checker.progress = Progress(
            note,
            f"{model.name}, {KIND.name}",
            "generations",
            sum(map(len, contexts.values())),
            sum(_rows_read([generations[n] for n in numbers]) for numbers in contexts.values()),
        )
        begin = time.perf_counter()
        for context, numbers in contexts.items():
            checker.hold(context, [generations[number] for number in numbers])
            for number in numbers:
                checker.check(number + 1, generations[number])
        seconds = time.perf_counter() - begin
    return Rechecked(
        model.name,
        KIND.name,
        "tokens" if differences else "bytes",
        differences,
        len(generations),
        checker.checked,
        checker.tokens,
        checker.same_tokens,
        skipped,
        round(seconds, 6),
        round(checker.original_seconds, 6),
        tuple(checker.disagreements),
    )


def _readable(
    generations: Sequence[Row], known: Known
) -> tuple[list[tuple[int, tuple[str, ...]]], Counter[str]]:
    """Line number, from 0, and context of what can be read again; how many cannot, by reason.

    A sample is drawn among these, so that none of it can be nothing.
    """
    found: list[tuple[int, tuple[str, ...]]] = []
    skipped: Counter[str] = Counter()
    for number, row in enumerate(generations):
        texts = asked.context(known, row)
        if row["exact"] is False:
            skipped[RELOCATED] += 1
        elif texts is None or asked.question(known, row) is None:
            skipped["its question does not follow from the records"] += 1
        else:
            found.append((number, tuple(texts)))
    return found, skipped


def _rows_read(rows: Sequence[Row]) -> int:
    """Rows that the engine will read for the generations of one context, about."""
    whole = [row["prompt_tokens"] + row["cached_tokens"] for row in rows]
    different = {(row["prompt_sha256"], row["seed"]): row for row in rows}
    # What a grafted row read itself is its question; the rest of the longest is the context.
    questions = [row["prompt_tokens"] for row in rows if row["cached_tokens"]]
    question = min(questions, default=min(whole) // 2)
    return int(max(whole) + (len(different) - 1) * question)


@dataclass
class _Checker:
    session: Session
    known: Known
    exact: bool
    progress: Progress = field(init=False)
    checked: int = 0
    tokens: int = 0
    same_tokens: int = 0
    original_seconds: float = 0.0
    disagreements: list[Disagreement] = field(default_factory=list)
    _read: dict[Any, Reread] = field(default_factory=dict)
    _wrong_blocks: frozenset[str] = frozenset()

    def hold(self, texts: Sequence[str], rows: Sequence[Row]) -> None:
        """Let the session hold the context of some generations, and compare its blocks' headers."""
        model = self.session.model
        self.session.reset()
        self._read.clear()
        captured: list[BlockHeader] = []
        for number, text in enumerate(texts):
            prefill(self.session, model.tokenize(text, begin=not number), self.progress)
            parent = captured[-1] if captured else None
            captured.append(self.session.capture(parent=parent).header)
        self._wrong_blocks = frozenset(self._blocks(captured, rows) if self.exact else ())

    def _blocks(self, captured: Sequence[BlockHeader], rows: Sequence[Row]) -> Iterator[str]:
        """Names of the deposits, restored alone, whose blocks hold other tokens or states."""
        for (name,) in {tuple(row["deposits"]) for row in rows if len(row["deposits"]) == 1}:
            deposit = self.known.deposits[name]
            shown = deposit["demonstration"] or {}
            ids = [deposit["block_id"], shown.get("block_id")]
            for block, now in zip(ids, captured, strict=False):
                header, given = self.known.headers.get(block, {}), now.to_json()
                if any(header.get(part) != given[part] for part in _COMPARED):
                    yield name

    def check(self, line: int, row: Row) -> None:
        """Read one generation again."""
        question = asked.question(self.known, row)
        assert question is not None
        ids = tuple(self.session.model.tokenize(question, begin=not self.session.tokens))
        ask = Ask(ids, max(1, len(row["tokens"])), (), row["temperature"], row["seed"])
        ended = row["finish"] == "end"
        again = self._again(ask, tuple(row["tokens"]), ended)
        steps = len(row["tokens"]) + ended
        self.checked += 1
        self.tokens += steps
        self.same_tokens += steps if again.step is None else again.step
        self.original_seconds += row["seconds"]
        said = self._contradiction(row, question, len(ids))
        differs = None if again.step is None and not self.exact else _difference(row, again)
        block = _WRONG_BLOCK if self._wrong_blocks & {*row["deposits"]} else None
        what = ", and ".join(one for one in (differs, said, block) if one)
        if what:
            self.disagreements.append(
                Disagreement(
                    GENERATIONS,
                    line,
                    f"{row['arm']}, {row['problem']}",
                    what,
                    anywhere=said is not None,
                )
            )
        self.progress.done()

    def _again(self, ask: Ask, tokens: tuple[int, ...], ended: bool) -> Reread:
        """What the engine makes of it; what it read behind the same context is not read twice."""
        key = (ask, tokens, ended)
        if key not in self._read:
            self._read[key] = reread(self.session, ask, tokens, ended=ended)
            self.progress.read(len(ask.tokens) + len(tokens))
        return self._read[key]

    def _contradiction(self, row: Row, question: str, n_asked: int) -> str | None:
        """What is wrong with a row wherever it is read."""
        if digests.sha256_bytes(question.encode("utf-8")) != row["prompt_sha256"]:
            return "the question is not the one whose digest is recorded"
        read = len(self.session.tokens) + n_asked
        if read != row["prompt_tokens"] + row["cached_tokens"]:
            return f"question and context have {read} tokens, another number is recorded"
        if len(row["tokens"]) != row["decoded_tokens"]:
            return f"{len(row['tokens'])} tokens came, another number is recorded"
        return self._text(row)

    def _text(self, row: Row) -> str | None:
        """What is wrong with a row's text: it ends before the first stop text, and not sooner."""
        model, stop = self.session.model, prompts.stop(row["arm"])
        text, last = model.detokenize(row["tokens"]), model.detokenize(row["tokens"][:-1])
        if stop in last:
            return "tokens came behind the text that ends the generation"
        if (row["finish"] == "stop") != (stop in text):
            return "whether a stop text ended it is not what the tokens say"
        written = text.split(stop, 1)[0]
        return None if row["text"] == written else "the text is not that of the tokens"


def _difference(row: Row, again: Reread) -> str | None:
    if again.step is not None:
        if again.step < len(row["tokens"]):
            return f"another token is drawn at step {again.step}"
        return "the text does not end"
    if again.logits_sha256 != row["logits_sha256"]:
        return "the logits have another digest"
    return None
