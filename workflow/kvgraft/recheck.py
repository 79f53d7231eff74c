"""Rechecks the generations of a run with an engine: each is read again in one pass.

Under a split-invariant profile one prefill of context, question and answer gives the logits that
decoding token by token gave, so that a transcript is checked at the speed of a prefill: every token
is drawn again, and the rolling digest of the logits is compared. Blocks are not needed; their texts
are read. What a run claims is not known here; `kvaudit verify` judges that.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvaudit import chain, digests
from kvaudit.errors import EvidenceIncomplete, UnusableInput
from kvaudit.estimate import generator
from kvaudit.flywheel import asked
from kvaudit.flywheel.kind import KIND
from kvaudit.flywheel.known import Known
from kvaudit.flywheel.records import GENERATIONS, PROFILES
from kvaudit.safefs import SafeRoot
from kvaudit.stagecheck import listed_rows
from kvaudit.stagekind import Rows
from kvgraft import pins, profile
from kvgraft.branches import Ask, Reread, reread
from kvgraft.errors import ProfileMismatch
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import ProfileSettings
from kvgraft.session import Session

Row = Mapping[str, Any]
Note = Callable[[str], None]

_THREADS = frozenset({"settings.n_threads", "context.n_threads"})

RELOCATED = "its block was relocated, which gives other bits than any prefill"


@dataclass(frozen=True)
class Disagreement:
    """A generation that does not come out as recorded.

    Attributes:
        line: of records/generations.jsonl, from 1.
        arm: of the generation.
        problem: that was asked.
        what: in words, with the first step at which another token is drawn.
        anywhere: whether no machine could agree: question, token counts and text contradict each
            other. Otherwise another kind of machine may draw other tokens.
    """

    line: int
    arm: str
    problem: str
    what: str
    anywhere: bool


@dataclass(frozen=True)
class Rechecked:
    """What rechecking one model's generations came to.

    Attributes:
        model: its name.
        mode: "bytes", or "tokens" where the profile in force is not the recorded one.
        profile_differences: fields in which it differs.
        n: generations in the records.
        checked: of them.
        tokens: that were drawn again.
        same_tokens: how many of them are the recorded ones, up to each first difference.
        skipped: reason -> generations.
        seconds: for checking, the contexts' prefill included.
        original_seconds: that the same generations took, as recorded.
        disagreements: those that do not come out as recorded: tokens, and in mode "bytes" logits.
    """

    model: str
    mode: str
    profile_differences: tuple[str, ...]
    n: int
    checked: int
    tokens: int
    same_tokens: int
    skipped: Mapping[str, int]
    seconds: float
    original_seconds: float
    disagreements: tuple[Disagreement, ...]

    @property
    def equal(self) -> int:
        """Generations that come out as recorded."""
        return self.checked - len(self.disagreements)

    @property
    def passed(self) -> bool:
        """Whether something was checked, and nothing of it contradicts the records.

        Other tokens on another kind of machine say nothing.
        """
        counted = [one for one in self.disagreements if one.anywhere or self.mode == "bytes"]
        return self.checked > 0 and not counted

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {**asdict(self), "equal": self.equal, "passed": self.passed}


def recheck(
    run_folder: str | Path,
    *,
    models: Sequence[str] = (),
    sample: int | None = None,
    seed: str = "recheck",
    threads: int | None = None,
    note: Note = lambda _: None,
) -> list[Rechecked]:
    """Recheck the flywheel's generations of a run.

    Args:
        run_folder: the directory of inputs.manifest.json.
        models: names; all without.
        sample: generations a model, drawn with `seed`; all without.
        seed: name from which the sample is drawn.
        threads: of the engine; every core without. Their number changes no byte under a
            split-invariant profile (claim P3), and counts as no difference of the profile.
        note: called with one line of progress.

    Raises:
        UnusableInput: the run cannot be read, or records are not those its manifests name.
        EvidenceIncomplete: it has no flywheel stage, or none of the models.
        ModelMismatch: the model's file is not the recorded one.
        ProfileMismatch: the recorded profile is not split-invariant.
    """
    found: list[Rechecked] = []
    for rows, inputs, subject in _stages(run_folder, models):
        entry = next(one for one in inputs["models"] if one["name"] == subject)
        with FrozenModel.open(_pin(inputs, entry)) as model:
            found.append(recheck_rows(model, rows, sample, f"{seed}/{subject}", threads))
        one = found[-1]
        note(f"{subject}: {one.equal} of {one.checked} as recorded, {one.seconds:.0f} s")
    absent = {*models} - {one.model for one in found}
    if absent or not found:
        raise EvidenceIncomplete(
            "there are no generations to recheck",
            where=run_folder,
            expected="stage flywheel",
            found=f"none of {', '.join(sorted(absent))}" if absent else None,
        )
    return found


def _stages(
    run_folder: str | Path, models: Sequence[str]
) -> Iterator[tuple[Rows, Mapping[str, Any], str]]:
    with SafeRoot(run_folder) as root:
        documents = chain.read(root, root.walk())
        for folder, stage in sorted(documents.stages.items()):
            if stage["stage"] != KIND.name or (models and stage["subject"] not in models):
                continue
            rows = listed_rows(root, folder, KIND, stage["outputs"])
            yield rows, documents.inputs, stage["subject"]


def _pin(inputs: Mapping[str, Any], entry: Mapping[str, Any]) -> ModelPin:
    """The pin of a model's name, which must be of the file that the run registered."""
    pin = pins.find(pins.read(inputs["configuration"]["value"].get("pins") or None), entry["name"])
    if pin.sha256 != entry["sha256"]:
        raise UnusableInput(
            "the run was made with another file of this model",
            where=entry["name"],
            expected=entry["sha256"],
            found=pin.sha256,
            hint="pin the file that the run names with kvgraft pin",
        )
    return pin


def recheck_rows(
    model: FrozenModel,
    rows: Rows,
    sample: int | None = None,
    seed: str = "",
    threads: int | None = None,
) -> Rechecked:
    """Recheck the generations of one stage's records.

    Args:
        model: whose they are.
        rows: the records of the stage flywheel.
        sample: as `recheck`.
        seed: as `recheck`.
        threads: as `recheck`.

    Raises:
        ProfileMismatch: the recorded profile is not split-invariant.
    """
    generations = rows[GENERATIONS]
    taken = list(range(len(generations)))
    if sample is not None and sample < len(taken):
        taken = sorted(int(i) for i in generator(seed).permutation(len(taken))[:sample])
    profiles = sorted(
        (row["profile"] for row in rows[PROFILES]), key=lambda one: int(one["settings"]["n_ctx"])
    )
    known = Known(model.name, rows)
    contexts, skipped = _by_context(generations, taken, known)
    with Session(model, _settings(profiles[-1], threads), n_branches=1) as session:
        differing = {*profile.differences(profiles[-1], session.profile.to_json())} - _THREADS
        if not session.profile.is_split_invariant:
            raise ProfileMismatch(
                "one pass does not give the bytes of a decode under this profile",
                where=model.name,
                expected="a split-invariant profile",
                found=session.settings.name,
                hint="docs/adr/0003 says why",
            )
        checker = _Checker(session, known, exact=not differing)
        begin = time.perf_counter()
        for context, numbers in contexts.items():
            checker.hold(context)
            for number in numbers:
                checker.check(number + 1, generations[number])
        seconds = time.perf_counter() - begin
    return Rechecked(
        model.name,
        "tokens" if differing else "bytes",
        tuple(sorted(differing)),
        len(generations),
        checker.checked,
        checker.tokens,
        checker.same_tokens,
        skipped,
        round(seconds, 6),
        round(checker.original_seconds, 6),
        tuple(checker.disagreements),
    )


def _settings(recorded: Mapping[str, Any], threads: int | None) -> ProfileSettings:
    settings = ProfileSettings(**recorded["settings"])
    return settings.with_(n_threads=threads or len(os.sched_getaffinity(0)))


def _by_context(
    generations: Sequence[Row], taken: Sequence[int], known: Known
) -> tuple[dict[tuple[str, ...], list[int]], Counter[str]]:
    """Line numbers, from 0, by the texts of their context, so that each is read once; the rest."""
    found: dict[tuple[str, ...], list[int]] = {}
    skipped: Counter[str] = Counter()
    for number in taken:
        row = generations[number]
        texts = asked.context(known, row)
        if row["exact"] is False:
            skipped[RELOCATED] += 1
        elif texts is None or asked.question(known, row) is None:
            skipped["its question does not follow from the records"] += 1
        else:
            found.setdefault(tuple(texts), []).append(number)
    return found, skipped


@dataclass
class _Checker:
    session: Session
    known: Known
    exact: bool
    checked: int = 0
    tokens: int = 0
    same_tokens: int = 0
    original_seconds: float = 0.0
    disagreements: list[Disagreement] = field(default_factory=list)

    def hold(self, texts: Sequence[str]) -> None:
        """Let the session hold a context."""
        model = self.session.model
        self.session.reset()
        for number, text in enumerate(texts):
            self.session.prefill(model.tokenize(text, begin=not number))

    def check(self, line: int, row: Row) -> None:
        """Read one generation again."""
        question = asked.question(self.known, row)
        assert question is not None
        ids = tuple(self.session.model.tokenize(question, begin=not self.session.tokens))
        ask = Ask(ids, max(1, len(row["tokens"])), (), row["temperature"], row["seed"])
        ended = row["finish"] == "end"
        again = reread(self.session, ask, row["tokens"], ended=ended)
        steps = len(row["tokens"]) + ended
        self.checked += 1
        self.tokens += steps
        self.same_tokens += steps if again.step is None else again.step
        self.original_seconds += row["seconds"]
        said = self._contradiction(row, question, len(ids))
        drawn = None if again.step is None and not self.exact else _difference(row, again)
        if said or drawn:
            what = drawn or said or ""
            one = Disagreement(line, row["arm"], row["problem"], what, anywhere=said is not None)
            self.disagreements.append(one)

    def _contradiction(self, row: Row, question: str, n_asked: int) -> str | None:
        """What is wrong with a row wherever it is read."""
        if digests.sha256_bytes(question.encode("utf-8")) != row["prompt_sha256"]:
            return "the question is not the one whose digest is recorded"
        read = len(self.session.tokens) + n_asked
        if read != row["prompt_tokens"] + row["cached_tokens"]:
            return f"question and context have {read} tokens, another number is recorded"
        if len(row["tokens"]) != row["decoded_tokens"]:
            return f"{len(row['tokens'])} tokens came, another number is recorded"
        text = self.session.model.detokenize(row["tokens"])
        cut = row["finish"] == "stop" and text.startswith(row["text"])
        return None if cut or text == row["text"] else "the text is not that of the tokens"


def _difference(row: Row, again: Reread) -> str | None:
    if again.step is not None:
        if again.step < len(row["tokens"]):
            return f"another token is drawn at step {again.step}"
        return "the text does not end"
    if again.logits_sha256 != row["logits_sha256"]:
        return "the logits have another digest"
    return None
