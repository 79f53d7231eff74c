"""Rechecks the generations of a run with an engine: each is read again in one pass.

Under a split-invariant profile one prefill of context, question and answer gives the logits that
decoding token by token gave, so that a transcript is checked at the speed of a prefill: every token
is drawn again, and the rolling digest of the logits is compared. Blocks are not needed; their texts
are read. What a run claims is not known here; `kvaudit verify` judges that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvaudit import chain, digests, records
from kvaudit.errors import EvidenceIncomplete, UnusableInput
from kvaudit.estimate import generator
from kvaudit.flywheel.asked import Asked
from kvaudit.flywheel.kind import KIND
from kvaudit.flywheel.records import GENERATIONS, PROFILES
from kvaudit.safefs import SafeRoot
from kvaudit.stagecheck import MAX_RECORD_BYTES
from kvaudit.stagekind import Rows
from kvgraft import pins, profile
from kvgraft.branches import Ask, reread
from kvgraft.errors import ProfileMismatch
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import ProfileSettings
from kvgraft.session import Session

Row = Mapping[str, Any]
Note = Callable[[str], None]

RELOCATED = "its block was relocated, which gives other bits than any prefill"


@dataclass(frozen=True)
class Disagreement:
    """A generation that does not come out as recorded.

    Attributes:
        line: of records/generations.jsonl, from 1.
        arm: of the generation.
        problem: that was asked.
        what: in words, with the first step at which another token is drawn.
    """

    line: int
    arm: str
    problem: str
    what: str


@dataclass
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
        equal: generations that come out as recorded: tokens, and in mode "bytes" logits.
        skipped: reason -> generations.
        seconds: for checking, the contexts' prefill included.
        original_seconds: that the same generations took, as recorded.
        disagreements: of the others.
    """

    model: str
    mode: str
    profile_differences: tuple[str, ...] = ()
    n: int = 0
    checked: int = 0
    tokens: int = 0
    same_tokens: int = 0
    equal: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    original_seconds: float = 0.0
    disagreements: list[Disagreement] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all that was checked is as recorded; differing tokens say nothing elsewhere."""
        return not self.disagreements or self.mode == "tokens"

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {**asdict(self), "skipped": dict(self.skipped), "passed": self.passed}


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
        threads: of the engine; those of the recorded profile without. Other numbers give the same
            bytes under a split-invariant profile, but a profile that differs in that field.
        note: called with one line of progress.

    Raises:
        UnusableInput: the run cannot be read, or records are not those its manifests name.
        EvidenceIncomplete: it has no flywheel stage, or none of the models.
        ModelMismatch: the model's file is not the recorded one.
        ProfileMismatch: the recorded profile is not split-invariant.
    """
    found = []
    for rows, inputs, subject in _stages(run_folder, models):
        entry = next(one for one in inputs["models"] if one["name"] == subject)
        with FrozenModel.open(_pin(inputs, entry)) as model:
            found.append(recheck_rows(model, rows, sample, f"{seed}/{subject}", threads))
        one = found[-1]
        note(f"{subject}: {one.equal} of {one.checked} as recorded, {one.seconds:.0f} s")
    if not found:
        raise EvidenceIncomplete(
            "there are no generations to recheck", where=run_folder, expected="stage flywheel"
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
            rows: Rows = {}
            for name, kind in KIND.records.items():
                where = f"{folder}/{name}"
                if name not in stage["outputs"]:
                    raise EvidenceIncomplete("a record file is not listed", where=where)
                data = root.read(where, max_bytes=MAX_RECORD_BYTES)
                if digests.sha256_bytes(data) != stage["outputs"][name]["sha256"]:
                    raise UnusableInput("the records are not those of the manifest", where=where)
                rows[name] = records.parse(data, kind, where=where)
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
    settings = _settings(profiles[-1], threads)
    result = Rechecked(model.name, "bytes", n=len(generations))
    with Session(model, settings, n_branches=1) as session:
        in_force = session.profile.to_json()
        differing = profile.differences(profiles[-1], in_force)
        if not session.profile.is_split_invariant:
            raise ProfileMismatch(
                "one pass does not give the bytes of a decode under this profile",
                where=model.name,
                expected="a split-invariant profile",
                found=settings.name,
                hint="docs/adr/0003 says why",
            )
        if differing:
            result.mode, result.profile_differences = "tokens", tuple(differing)
        checker = _Checker(session, Asked.of(rows), result)
        begin = time.perf_counter()
        for context, numbers in _by_context(generations, taken, checker).items():
            checker.hold(context)
            for number in numbers:
                checker.check(number + 1, generations[number])
        result.seconds = round(time.perf_counter() - begin, 6)
    return result


def _settings(recorded: Mapping[str, Any], threads: int | None) -> ProfileSettings:
    settings = ProfileSettings(**recorded["settings"])
    return settings if threads is None else settings.with_(n_threads=threads)


def _by_context(
    generations: Sequence[Row], taken: Sequence[int], checker: _Checker
) -> dict[tuple[str, ...], list[int]]:
    """Line numbers, from 0, by the texts of their context, so that each is read once."""
    found: dict[tuple[str, ...], list[int]] = {}
    for number in taken:
        row = generations[number]
        texts = checker.asked.context(row)
        if row["exact"] is False:
            checker.result.skipped[RELOCATED] += 1
        elif texts is None or checker.asked.question(row) is None:
            checker.result.skipped["its question does not follow from the records"] += 1
        else:
            found.setdefault(tuple(texts), []).append(number)
    return found


@dataclass
class _Checker:
    session: Session
    asked: Asked
    result: Rechecked

    def hold(self, texts: Sequence[str]) -> None:
        """Let the session hold a context."""
        model = self.session.model
        self.session.reset()
        for number, text in enumerate(texts):
            self.session.prefill(model.tokenize(text, begin=not number))

    def check(self, line: int, row: Row) -> None:
        """Read one generation again."""
        model, result = self.session.model, self.result
        question = self.asked.question(row)
        assert question is not None
        ids = tuple(model.tokenize(question, begin=not self.session.tokens))
        ask = Ask(ids, max(1, len(row["tokens"])), (), row["temperature"], row["seed"])
        again = reread(self.session, ask, row["tokens"], ended=row["finish"] == "end")
        steps = len(row["tokens"]) + (row["finish"] == "end")
        result.checked += 1
        result.tokens += steps
        result.same_tokens += steps if again.step is None else again.step
        result.original_seconds = round(result.original_seconds + row["seconds"], 6)
        what = _difference(row, again.step, again.logits_sha256, bytes_=result.mode == "bytes")
        if digests.sha256_bytes(question.encode("utf-8")) != row["prompt_sha256"]:
            what = "the question is not the one whose digest is recorded"
        elif len(self.session.tokens) + len(ids) != row["prompt_tokens"] + row["cached_tokens"]:
            what = "question and context have another number of tokens than recorded"
        elif what is None and (text := model.detokenize(row["tokens"])) != row["text"]:
            cut = row["finish"] == "stop" and text.startswith(row["text"])
            what = None if cut else "the text is not that of the tokens"
        if what is None:
            result.equal += 1
        else:
            result.disagreements.append(Disagreement(line, row["arm"], row["problem"], what))


def _difference(row: Row, step: int | None, logits_sha256: str, *, bytes_: bool) -> str | None:
    if step is not None:
        n = len(row["tokens"])
        return f"another token is drawn at step {step}" if step < n else "the text does not end"
    if bytes_ and logits_sha256 != row["logits_sha256"]:
        return "the logits have another digest"
    return None
