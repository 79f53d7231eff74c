"""Rechecks a run with an engine: what its records say was computed is computed again.

Generations are read again in one pass each (`recheck_generations`), samples, determinism cases and
batch splits of the stage exactness once each (`recheck_exactness`). Under the portable profile this
gives the recorded bytes on every kind of machine; otherwise on the same kind alone, and elsewhere
tokens are compared. Records that are missing, too many, or contradict each other are refused before
an engine is loaded, by the verifier's own checks. What a run claims is not known here; `kvaudit
verify` judges that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvaudit import chain, profiles
from kvaudit.errors import EvidenceIncomplete, UnusableInput, printable
from kvaudit.safefs import SafeRoot
from kvaudit.stagecheck import UNCOMPUTABLE, listed_rows
from kvaudit.stagekind import Rows, StageKind
from kvaudit.stagekinds import KINDS
from kvgraft import pins, portable_build
from kvgraft.errors import NotPortable, ProfileMismatch
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.portable import FOLDER_VARIABLE
from kvgraft.recheck_common import Note, Rechecked, require_bounded
from kvgraft.recheck_exactness import recheck_samples
from kvgraft.recheck_generations import recheck_rows

STAGES = ("exactness", "flywheel")


def recheck(
    run_folder: str | Path,
    *,
    models: Sequence[str] = (),
    stages: Sequence[str] = (),
    sample: int | None = None,
    seed: str = "recheck",
    threads: int | None = None,
    portable: bool = False,
    note: Note = lambda _: None,
) -> list[Rechecked]:
    """Recheck a run's stages exactness and flywheel, as far as it has them.

    Args:
        run_folder: the directory of inputs.manifest.json.
        models: names; all without.
        stages: names among `STAGES`; all without.
        sample: records a model and stage, drawn with `seed`; all without.
        seed: name from which the sample is drawn.
        threads: of the engine; every core without. Their number changes no byte under a
            split-invariant profile (claim P3), and counts as no difference of the profile.
        portable: load the portable build, and take no other profile: bytes or nothing.
        note: called with lines of progress; each begins with the number of its part, a stage of
            a model, as [1/4].

    Raises:
        UnusableInput: the run cannot be read, records are not those its manifests name, or they
            contradict each other or the plan; or a profile asks for what no engine takes, or for
            too long a context.
        EvidenceIncomplete: it has none of the stages, or none of the models.
        ModelMismatch: the model's file is not the recorded one.
        ProfileMismatch: the recorded profile is not split-invariant; or, with `portable`, the run
            was made under another profile, or the build here has other arithmetic.
        EngineNotInstalled: with `portable`, the portable build is not there.
        NotPortable: the run was made with the portable build, which is neither asked for nor
            named by the environment; or the build that is there fails the self-test.
        EngineUnavailable: with `portable`, another engine is loaded in this process.
    """
    found: list[Rechecked] = []
    subjects = list(_subjects(run_folder, models, stages or STAGES))
    n_parts = sum(len(held) for _, _, held in subjects)

    def tell(text: str) -> None:
        note(f"[{len(found) + 1}/{n_parts}] {text}")

    for subject, inputs, held in subjects:
        if portable:
            _require_portable(inputs)
            portable_build.activate()
        entry = next(one for one in inputs["models"] if one["name"] == subject)
        with FrozenModel.open(_pin(inputs, entry)) as model:
            require_bounded(model, _recorded_profiles(inputs, subject, held))
            if not portable:
                _require_build(inputs)
            for stage, rows in held.items():
                name = f"{seed}/{subject}"
                if stage == "exactness":
                    one = recheck_samples(
                        model, rows, inputs, sample, name, threads, tell, bytes_only=portable
                    )
                else:
                    one = recheck_rows(
                        model, rows, sample, name, threads, tell, bytes_only=portable
                    )
                tell(
                    f"{subject}, {stage}: {one.equal} of {one.checked} as recorded, "
                    f"{one.seconds:.0f} s"
                )
                found.append(one)
    absent = {*models} - {one.model for one in found}
    if absent or not found:
        raise EvidenceIncomplete(
            "there is nothing to recheck",
            where=run_folder,
            expected=f"stage {' or '.join(stages or STAGES)}",
            found=f"none of {', '.join(sorted(absent))}" if absent else None,
            hint="a stage whose manifest is not the sealed one does not count: kvaudit verify",
        )
    return found


def _subjects(
    run_folder: str | Path, models: Sequence[str], stages: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Rows]]]:
    """Model after model: its name, the inputs manifest, and the records of its stages."""
    with SafeRoot(run_folder) as root:
        documents = chain.read(root, root.walk())
        for problem in chain.configuration_problems(documents.inputs):
            raise UnusableInput(problem, where=run_folder)
        held: dict[str, dict[str, str]] = {}
        for folder, stage in sorted(documents.stages.items()):
            if stage["stage"] in stages and (not models or stage["subject"] in models):
                held.setdefault(stage["subject"], {})[stage["stage"]] = folder
        for subject, folders in sorted(held.items()):
            for problem in profiles.problems(documents.inputs, subject):
                raise UnusableInput(f"the profiles of {printable(subject)}: {problem}")
            rows = {
                name: listed_rows(root, at, KINDS[name], documents.stages[at]["outputs"])
                for name, at in sorted(folders.items())
            }
            for name, at in sorted(folders.items()):
                _require_consistent(at, subject, KINDS[name], rows[name], documents.inputs)
            yield subject, documents.inputs, rows


def _recorded_profiles(
    inputs: Mapping[str, Any], subject: str, held: Mapping[str, Rows]
) -> Iterator[Any]:
    """Profiles of one model, registered or derived, under which something may be read again."""
    for entry in inputs["profiles"][subject].values():
        yield entry["profile"]
    for rows in held.values():
        for row in rows.get("records/profiles.jsonl", ()):
            yield row["profile"]


def _require_consistent(
    folder: str, subject: str, kind: StageKind, rows: Rows, inputs: Mapping[str, Any]
) -> None:
    """Refuse records that the verifier refuses: of these, equal bytes would say nothing."""
    try:
        problems = kind.check(subject, kind.typed(rows), inputs)
    except UNCOMPUTABLE as error:
        raise UnusableInput(
            "nothing can be computed from the records", where=folder, found=type(error).__name__
        ) from error
    if problems:
        raise UnusableInput(
            "the records contradict each other or the plan",
            where=f"{folder}/{problems[0].file}",
            found=problems[0].message,
            hint=f"kvaudit verify lists all {len(problems)}" if len(problems) > 1 else None,
        )


def _require_portable(inputs: Mapping[str, Any]) -> None:
    preset = inputs["configuration"]["value"]["profile"]["preset"]
    if preset != portable_build.PRESET:
        raise ProfileMismatch(
            "the run was not made with the portable profile",
            expected=portable_build.PRESET,
            found=preset,
            hint="without --portable it is rechecked by the installed engine: in bytes on a "
            "machine of the same kind, elsewhere in tokens",
        )


def _require_build(inputs: Mapping[str, Any]) -> None:
    """A run of the portable build needs it; the installed engine is none."""
    preset = inputs["configuration"]["value"]["profile"]["preset"]
    if preset == portable_build.PRESET and not os.environ.get(FOLDER_VARIABLE):
        raise NotPortable(
            "the run was made with the portable build, and the installed engine is not a "
            "portable build",
            hint="add --portable",
        )


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
