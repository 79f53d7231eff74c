"""Exact beyond one block (row P5): chains, a shared prefix kept once, composition, and its price.

Chains and compositions are restored in a process of their own and compared with one prefill, or a
fresh computation of the same layout, in this one. What composing costs in quality is measured on
questions that need one block and questions that need two, against one joint prefill of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvaudit import digests, stats
from kvaudit.position import answers
from kvaudit.position.joined import UNALIGNED
from kvgraft import plan, remote, texts
from kvgraft.admission import ALIGNMENT
from kvgraft.model import FrozenModel
from kvgraft.profile import ProfileSettings
from kvgraft.session import Session
from kvgraft.store import BlockStore

Row = dict[str, Any]


@dataclass
class Joined:
    """The measurements of row P5 on one model.

    Attributes:
        model: the opened model.
        settings: profile settings.
        options: the configuration's `position` section.
        seed: name from which all draws derive.
        scratch: a folder for blocks and transfers.
        note: called with one line of progress.
    """

    model: FrozenModel
    settings: ProfileSettings
    options: Mapping[str, Any]
    seed: str
    scratch: Path
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        self._store = BlockStore(self.scratch / "joined")
        query = "\nQuestion: What does the text tell?\nAnswer:"
        self._query = self.model.tokenize(query, begin=False)
        self._processes = 0

    def measure(self, session: Session) -> dict[str, list[Row]]:
        """All records, by kind of file."""
        return {
            "chains": list(self.chains(session)),
            "prefixes": list(self.prefixes(session)),
            "compositions": list(self.compositions(session)),
            "answers": list(self.answers(session)),
        }

    # -- chains -------------------------------------------------------------------------------

    def chains(self, session: Session) -> Iterator[Row]:
        """A text captured piece by piece, restored in another process, against one prefill of it.

        The first case is also compared with a prefill of which one token was changed, to show
        that the comparison sees a difference.
        """
        for case, lengths in enumerate(self.options["chains"]):
            ids = plan.prose(self.model, f"{self.seed}/chain/{case}", sum(lengths))
            made = self._capture_chain(session, ids, lengths)
            whole_bytes = self._bytes_of_whole(session, ids)
            restored = self._call(made, state=True)
            reference = self._fresh(session, ids, lengths)
            row = self._chain_row(case, lengths, made, restored, reference, control=False)
            yield {**row, "whole_bytes": whole_bytes}
            if case == 0:
                changed = [*ids[:-1], (ids[-1] + 1) % self.model.n_vocab]
                reference = self._fresh(session, changed, lengths)
                row = self._chain_row(case, lengths, made, restored, reference, control=True)
                yield {**row, "whole_bytes": whole_bytes}
            self.note(f"P5 chain of {lengths} tokens done")

    def _capture_chain(self, session: Session, ids: list[int], lengths: list[int]) -> list[str]:
        session.reset()
        made: list[str] = []
        parent = None
        for end, n in zip(itertools.accumulate(lengths), lengths, strict=True):
            session.prefill(ids[end - n : end])
            capture = session.capture({"source": self.seed}, parent=parent)
            made.append(self._store.put(capture.header, capture.tokens, capture.state.data))
            parent = capture.header
        return made

    def _fresh(self, session: Session, ids: list[int], lengths: list[int]) -> remote.Reading:
        """The text in one prefill, then the query.

        Where the batch split changes bits, the text is split as the chain was.
        """
        if session.profile.is_split_invariant:
            return remote.read_fresh(session, ids, self._query, state=True)
        whole = [*ids, *self._query]
        sizes = [*lengths, len(self._query)]
        return remote.read_fresh(
            session, [], whole, one_shot=True, sizes=sizes, outputs=len(self._query), state=True
        )

    def _bytes_of_whole(self, session: Session, ids: list[int]) -> int:
        session.reset()
        session.prefill(ids)
        return int(session.capture().header.state.bytes)

    def _chain_row(
        self,
        case: int,
        lengths: list[int],
        made: list[str],
        restored: remote.Reading,
        reference: remote.Reading,
        *,
        control: bool,
    ) -> Row:
        window = restored.profile_json["context"]["window"]
        return {
            "kind": "position-chain",
            "version": 1,
            "model": self.model.name,
            "case": case,
            "profile": restored.profile,
            "lengths": list(lengths),
            "past_window": 0 < window < sum(lengths),
            "block_ids": made,
            "block_bytes": [self._state_bytes(one) for one in made],
            **self._comparison(restored, reference.logits),
            "state_sha256": restored.state_sha256,
            "reference_state_sha256": reference.state_sha256,
            "control": control,
        }

    def _comparison(self, restored: remote.Reading, reference: NDArray[np.float32]) -> Row:
        p, q = reference[-1], restored.logits[-1]
        return {
            "process": self._processes,
            "exact": restored.exact,
            "decoded_tokens": restored.decoded_tokens,
            "restored_bytes": restored.restored_bytes,
            "logits_sha256": _sha256(restored.logits),
            "reference_sha256": _sha256(reference),
            "kl": stats.kl_divergence(p, q),
            "argmax": [stats.argmax(q), stats.argmax(p)],
        }

    def _state_bytes(self, block_id: str) -> int:
        with self._store.get(block_id, verify=False) as block:
            return int(block.header.state.bytes)

    def _call(self, ids: list[str], **options: Any) -> remote.Reading:
        self._processes += 1
        given = {"store": str(self._store.root), "block_ids": ids, "query": self._query, **options}
        job = {"do": "restore", "with": given}
        return remote.call(self.model, self.settings, [job], self.scratch)[0]

    # -- one prefix, many prompts -------------------------------------------------------------

    def prefixes(self, session: Session) -> Iterator[Row]:
        """Prompts that share a prefix: what the store keeps with chains and without.

        The prefix is captured once; every prompt grafts it, goes on, and captures its own rows.
        The first prompts are also restored and compared with one prefill.
        """
        chosen = self.options["prefix"]
        prefix = plan.prose(self.model, f"{self.seed}/prefix", chosen["tokens"])
        session.reset()
        session.prefill(prefix)
        parent = session.capture({"source": self.seed})
        root = self._store.put(parent.header, parent.tokens, parent.state.data)
        whole_store = BlockStore(self.scratch / "whole")
        for prompt in range(chosen["prompts"]):
            name = f"{self.seed}/prompt/{prompt}"
            tail = plan.prose(self.model, name, chosen["tail_tokens"] + 1)[1:]
            session.reset()
            with self._store.get(root) as block:
                session.graft(block)
            session.prefill(tail)
            child = session.capture({"source": name}, parent=parent.header)
            whole = session.capture({"source": name})
            child_id = self._store.put(child.header, child.tokens, child.state.data)
            whole_id = whole_store.put(whole.header, whole.tokens, whole.state.data)
            row: Row = {
                "kind": "position-prefix",
                "version": 1,
                "model": self.model.name,
                "profile": session.profile.digest,
                "prompt": prompt,
                "prefix_tokens": len(prefix),
                "tail_tokens": len(tail),
                "parent_id": root,
                "child_id": child_id,
                "parent_bytes": self._store.path(root).stat().st_size,
                "child_bytes": self._store.path(child_id).stat().st_size,
                "whole_bytes": whole_store.path(whole_id).stat().st_size,
                "logits_sha256": None,
                "reference_sha256": None,
            }
            if prompt < chosen["checked"]:
                restored = remote.read_restored(session, self._store, [root, child_id], self._query)
                reference = self._fresh(session, [*prefix, *tail], [len(prefix), len(tail)])
                row["logits_sha256"] = _sha256(restored.logits)
                row["reference_sha256"] = _sha256(reference.logits)
            yield row
        self.note(f"P5 {chosen['prompts']} prompts of one prefix done")

    # -- composition --------------------------------------------------------------------------

    def compositions(self, session: Session) -> Iterator[Row]:
        """Blocks computed apart, composed in another process, against a fresh run of the layout.

        Two controls show why the library refuses what it refuses: starts that are not aligned, and
        another order of loading.
        """
        for case, layout in enumerate(self.options["compositions"]):
            parts = self._parts(layout)
            made = self._apart(session, layout, parts)
            reference = self._fresh_layout(session, layout, parts)
            restored = self._call(made, composed=True)
            yield self._composition_row(case, layout, made, restored, reference, "")
            if case == 0:
                yield self._unaligned(session, layout, parts)
            if len(layout) > 2 and case == len(self.options["compositions"]) - 1:
                turned = [*made[-2::-1], made[-1]]
                restored = self._call(turned, composed=True, exact=False)
                yield self._composition_row(case, layout, made, restored, reference, "reordered")
            self.note(f"P5 composition of {len(layout)} blocks done")

    def _unaligned(self, session: Session, layout: list[list[int]], parts: list[list[int]]) -> Row:
        """The same blocks with every start but the first moved off the alignment."""
        moved = [[start + (UNALIGNED if start else 0), n] for start, n in layout]
        made = self._apart(session, moved, parts)
        reference = self._fresh_layout(session, moved, parts)
        restored = self._call(made, composed=True, exact=False)
        return self._composition_row(0, moved, made, restored, reference, "unaligned")

    def _parts(self, layout: list[list[int]]) -> list[list[int]]:
        return [
            plan.prose(self.model, f"{self.seed}/part/{start}", n_tokens)
            for start, n_tokens in layout
        ]

    def _apart(
        self, session: Session, layout: list[list[int]], parts: list[list[int]]
    ) -> list[str]:
        made = []
        for (start, _), ids in zip(layout, parts, strict=True):
            session.reset(start)
            session.prefill(ids)
            capture = session.capture({"source": self.seed})
            made.append(self._store.put(capture.header, capture.tokens, capture.state.data))
        return made

    def _fresh_layout(
        self, session: Session, layout: list[list[int]], parts: list[list[int]]
    ) -> NDArray[np.float32]:
        session.reset()
        for (start, _), ids in zip(layout, parts, strict=True):
            session.prefill_apart(ids, start)
        return session.decode(self._query)

    def _composition_row(
        self,
        case: int,
        layout: list[list[int]],
        made: list[str],
        restored: remote.Reading,
        reference: NDArray[np.float32],
        control: str,
    ) -> Row:
        return {
            "kind": "position-composition",
            "version": 1,
            "model": self.model.name,
            "case": case,
            "profile": restored.profile,
            "layout": layout,
            "block_ids": made,
            **self._comparison(restored, reference),
            "control": control,
        }

    # -- what it costs ------------------------------------------------------------------------

    def answers(self, session: Session) -> Iterator[Row]:
        """Questions that need one block and two, behind a joint prefill and a composition."""
        for index in range(self.options["answers"]):
            asked = answers.draw(self.seed, index)
            prose = [texts.passage(f"{self.seed}/answer/{index}/{i}", 30).text for i in (0, 1)]
            written = [f"{prose[i]} {asked.sentence(i)}" for i in (0, 1)]
            parts = [self.model.tokenize(text) for text in written]
            second = -(-len(parts[0]) // ALIGNMENT) * ALIGNMENT
            joint = self.model.tokenize(f"{written[0]}\n{written[1]}")
            for needs in (1, 2):
                question = self.model.tokenize(asked.question(needs), begin=False)
                answer, marked = self._answer(asked.pieces(needs))
                for arm in answers.ARMS:
                    session.reset()
                    if arm == "joint":
                        session.prefill(joint)
                    else:
                        session.prefill_apart(parts[0], 0)
                        session.prefill_apart(parts[1], second)
                    logits = session.decode([*question, *answer], outputs=len(answer) + 1)[:-1]
                    row = self._answer_row(index, needs, arm, answer, marked, logits, session)
                    yield {**row, "codes": asked.right(needs)}
        self.note(f"P5 {self.options['answers']} pairs of questions done")

    def _answer(self, pieces: list[tuple[str, bool]]) -> tuple[list[int], list[bool]]:
        """Tokens of an answer, and which of them belong to a code."""
        ids: list[int] = []
        marked: list[bool] = []
        for text, is_code in pieces:
            part = self.model.tokenize(text, begin=False)
            ids += part
            marked += [is_code] * len(part)
        return ids, marked

    def _answer_row(
        self,
        index: int,
        needs: int,
        arm: str,
        answer: list[int],
        marked: list[bool],
        logits: NDArray[np.float32],
        session: Session,
    ) -> Row:
        best = [stats.argmax(row) for row in logits]
        likelihood = [
            float(stats.log_softmax(row)[token]) for row, token in zip(logits, answer, strict=True)
        ]
        code = [i for i, is_code in enumerate(marked) if is_code]
        return {
            "kind": "position-answer",
            "version": 1,
            "model": self.model.name,
            "profile": session.profile.digest,
            "question": index,
            "needs": needs,
            "arm": arm,
            "answer": [answer[i] for i in code],
            "argmax": [best[i] for i in code],
            "log_likelihood": [stats.rounded(likelihood[i]) for i in code],
            "logits_sha256": _sha256(logits),
        }


def _sha256(logits: NDArray[np.float32]) -> str:
    return digests.sha256_bytes(np.ascontiguousarray(logits, "<f4").tobytes())
