"""Adjudication: what a registered run shows, criterion by criterion and prediction by prediction.

The run is verified first: every byte of its summaries is made again from its records, so that what
the criteria read is what the records say. A claim that fails there is a result like any other; a
finding about the evidence is not, and such a run is refused. So is one whose source tree, models,
data, configuration, seed or order are not those that were filed; that is said first, because it
explains the rest. Where not all recorded programs could be run again, or end otherwise on another
release of Python, what reads their stages is `not run`. This module writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit import canonical, chain, digests, manifest, schemas, stagekinds
from kvaudit.claims import PROGRAMS_NOT_RUN, verdict_counts
from kvaudit.errors import UnusableInput
from kvaudit.prereg import evaluate, expression, ledger, registration
from kvaudit.prereg.errors import RunRefused
from kvaudit.prereg.registration import ENGINE, Criterion, Prediction, Registration
from kvaudit.safefs import SafeRoot
from kvaudit.stagekind import SUMMARY
from kvaudit.verify import Verdict, verify

MAX_SHOWN = 20
MAX_NAMED = 12
MISSED = "direction right but magnitude wrong"

Json = dict[str, Any]

_COUNTS = ("claims_held", "claims_failed", "claims_not_run")


@dataclass(frozen=True)
class Difference:
    """A field of an outcome: as it was filed, and as the run gives it."""

    field: str
    filed: Any
    given: Any


def adjudicate(
    entry: ledger.Entry,
    run_folder: str | Path,
    *,
    allow_missing: bool = False,
    closed: str | None = None,
) -> Json:
    """The outcome of a registration on a run (schema registration-outcome.v1.json).

    Args:
        entry: of the registration, from a chain that is sound.
        run_folder: of the run.
        allow_missing: judge a run that lacks whole cells of the matrix; what reads them is
            `not run`, and the outcome lists them.
        closed: the time of the verdict; the present otherwise.

    Raises:
        RunRefused: the run does not verify, or is not one of this registration; names everything
            that differs.
        FieldMissing: a summary lacks a field of a criterion.
        ExpressionInvalid: a criterion cannot be judged on such a summary.
        UnusableInput, EvidenceIncomplete: as `kvaudit.verify.verify`.
    """
    return _judged(entry, run_folder, allow_missing, closed)[0]


def check(
    entry: ledger.Entry,
    run_folder: str | Path,
    *,
    allow_missing: bool = False,
    known: Sequence[str] = (),
) -> tuple[Json, list[Difference]]:
    """Adjudicates a run again and compares with the outcome that was filed.

    Args:
        entry: of the registration, which has an outcome.
        run_folder: of the run.
        allow_missing: as for `adjudicate`.
        known: digests of the runs of the registration that are at hand; each must be named.

    Returns:
        What the run gives here, and where the filed outcome is another one. What programs leave
        open here is compared as it is recorded.

    Raises:
        RunRefused, FieldMissing, ExpressionInvalid, UnusableInput, EvidenceIncomplete: as
            `adjudicate`.
    """
    filed = entry.outcome
    assert filed is not None
    given, recorded = _judged(entry, run_folder, allow_missing, None)
    parted = differences(filed, {**given, "runs": filed["runs"]}, recorded)
    unnamed = sorted({*known, *given["runs"]} - {*filed["runs"]})
    if unnamed:
        parted.append(Difference("runs", filed["runs"], [*filed["runs"], *unnamed]))
    ended = _ended(run_folder)
    if not ended <= filed["closed"] <= given["closed"]:
        span = f"a time from {ended} to {given['closed']}"
        parted.append(Difference("closed", filed["closed"], span))
    return given, parted


def _judged(
    entry: ledger.Entry, run_folder: str | Path, allow_missing: bool, closed: str | None
) -> tuple[Json, Json]:
    """The outcome, and the same as if all programs ended as recorded."""
    found = entry.registration
    assert found is not None
    found.check()
    verdict = verify(run_folder)
    with SafeRoot(run_folder) as root:
        inputs = chain.read(root, root.walk()).inputs
    different = [*_not_as_filed(entry, found, inputs)]
    if different:
        raise RunRefused(
            f"the run is not one of registration {found.label}",
            where=run_folder,
            found="; ".join(different[:MAX_NAMED]),
            hint=f"{len(different)} differences" if len(different) > 1 else None,
        )
    missing = _missing(run_folder, found)
    _require_verified(verdict, missing if allow_missing else ())
    summaries = _evidence(run_folder, verdict)
    counts = verdict_counts(verdict.claims)
    value: Json = {
        "kind": "registration-outcome",
        "version": 1,
        "outcome": "adjudicated",
        "registration": found.reference(),
        "closed": closed or manifest.now(),
        "reason": None,
        "runs": [verdict.inputs_sha256],
        "run": {
            "inputs_sha256": verdict.inputs_sha256,
            "run_sha256": verdict.run_sha256,
            "platform": inputs["environment"]["platform"],
            "claims_held": counts["holds"],
            "claims_failed": counts["fails"],
            "claims_not_run": counts["not run here"],
            "programs_rerun": verdict.programs,
            "rerun_reason": verdict.programs_reason,
            "missing": list(missing),
        },
    }
    recorded = {**value, **_verdicts(found, summaries, {})}
    value |= _verdicts(found, summaries, _left_open(summaries, verdict.programs_reason))
    schemas.validate(value, "registration-outcome", where=registration.OUTCOME)
    return value, recorded


def _verdicts(
    found: Registration, summaries: evaluate.Summaries, open_: Mapping[str, str]
) -> dict[str, list[Json]]:
    return {
        "criteria": [_criterion(one, summaries, open_) for one in found.criteria()],
        "predictions": [_prediction(one, summaries, open_) for one in found.predictions()],
    }


def _left_open(cells: Iterable[str], reason: str | None) -> dict[str, str]:
    """The cells that record programs, and why those do not bear them out here."""
    if reason is None:
        return {}
    kinds = stagekinds.KINDS
    return {cell: reason for cell in cells if kinds[cell.split("/")[0]].rerun is not None}


def _ended(run_folder: str | Path) -> str:
    """When the last stage of a run ended; a verdict on it is not older."""
    with SafeRoot(run_folder) as root:
        documents = chain.read(root, root.walk())
    ends = (stage["ended"] for stage in documents.stages.values())
    return str(max((documents.inputs["created"], *ends)))


def differences(
    outcome: Mapping[str, Any], again: Mapping[str, Any], recorded: Mapping[str, Any] | None = None
) -> list[Difference]:
    """Where a filed outcome is not what adjudicating the same run gives, the clock apart.

    Whether programs could be run here, and how many in the time for them, is no property of the
    run. Only where that differs may the claims that rest on them differ; never how many there are.
    A verdict that is left open for it here is to be the one that the records give.

    Args:
        outcome: as it was filed.
        again: what the run gives.
        recorded: the same as if all programs ended as recorded; `again` otherwise.
    """
    recorded = recorded or again
    free = _free(outcome["run"] or {}, again["run"])
    for part in ("criteria", "predictions") if free else ():
        if len(outcome[part]) == len(again[part]):
            rows = zip(outcome[part], again[part], recorded[part], strict=True)
            again = {**again, part: [_wanted(*one) for one in rows]}

    def core(value: Mapping[str, Any]) -> Json:
        run = value["run"]
        if free and run is not None:
            kept = {key: part for key, part in run.items() if key not in free}
            run = {**kept, "claims": sum(run[key] for key in _COUNTS)}
        return {**value, "closed": None, "run": run}

    return list(_parted(core(outcome), core(again), ""))


_OPEN = ("verdict", "reason", "quantity", "baseline")
"""Fields of a criterion or prediction that programs leave open."""


def _wanted(filed: Json, given: Json, recorded: Json) -> Json:
    """What a criterion or prediction is to be in a filed outcome, where other programs were run."""
    if _is_open(filed):
        return {**given, **{key: filed[key] for key in _OPEN if key in filed}}
    return recorded if _is_open(given) else given


def _is_open(one: Json) -> bool:
    return one["verdict"] == "not run" and (one["reason"] or "").startswith(PROGRAMS_NOT_RUN)


def _free(filed: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a run that rest on what this machine could do."""
    same_reason = filed.get("rerun_reason") == given["rerun_reason"]
    as_many = filed.get("programs_rerun") == given["programs_rerun"]
    if same_reason and (as_many or given["rerun_reason"] is None):
        return ()
    return ("programs_rerun", "rerun_reason", *_COUNTS)


def _parted(filed: Any, given: Any, field: str) -> Iterator[Difference]:
    if isinstance(filed, dict) and isinstance(given, dict) and {*filed} == {*given}:
        for key in sorted(filed):
            yield from _parted(filed[key], given[key], f"{field}.{key}" if field else key)
    elif isinstance(filed, list) and isinstance(given, list) and len(filed) == len(given):
        for at, (one, other) in enumerate(zip(filed, given, strict=True)):
            yield from _parted(one, other, f"{field}[{at}]")
    elif canonical.dumps(filed) != canonical.dumps(given):
        yield Difference(field, filed, given)


def _missing(run_folder: str | Path, found: Registration) -> tuple[str, ...]:
    """Cells of the matrix that a sealed run does not have at all."""
    with SafeRoot(run_folder) as root:
        documents = chain.read(root, root.walk())
    if documents.run_sha256 is None:
        return ()
    present = {path.removesuffix(f"/{manifest.STAGE}") for path in documents.manifests}
    return tuple(cell for cell in found.value["matrix"] if cell not in present)


def _require_verified(verdict: Verdict, missing: tuple[str, ...]) -> None:
    absent = {f"{cell}/{manifest.STAGE}" for cell in missing}
    findings = [
        finding
        for finding in verdict.findings
        if finding not in verdict.undecided
        and (finding.file not in absent or finding.severity != "incomplete")
    ]
    if findings:
        more = f"{len(findings)} findings; kvaudit verify lists them"
        raise RunRefused(
            "the run does not verify, so that it shows nothing",
            where=findings[0].file,
            found=findings[0].message,
            hint=more if len(findings) > 1 else None,
        )


def _evidence(run_folder: str | Path, verdict: Verdict) -> evaluate.Summaries:
    """The summaries, the very bytes that were verified."""
    summaries: dict[str, Mapping[str, Any]] = {}
    with SafeRoot(run_folder) as root:
        documents = chain.read(root, root.walk())
        same = (documents.inputs_sha256, documents.run_sha256)
        for cell, stage in documents.stages.items():
            path = f"{cell}/{SUMMARY}"
            data = root.read(path, max_bytes=manifest.MAX_MANIFEST_BYTES)
            if digests.sha256_bytes(data) != stage["outputs"][SUMMARY]["sha256"]:
                raise UnusableInput("a summary changed while the run was judged", where=path)
            summaries[cell] = canonical.loads_document(data, where=path)
    if same != (verdict.inputs_sha256, verdict.run_sha256):
        raise UnusableInput("the run changed while it was judged", where=run_folder)
    return summaries


def _not_as_filed(
    entry: ledger.Entry, found: Registration, inputs: Mapping[str, Any]
) -> Iterator[str]:
    """Everything about a run's inputs that is not what was filed."""
    named = inputs["registration"]
    if named is None:
        yield "it names no registration"
    else:
        for key, value in found.reference().items():
            if named.get(key) != value:
                yield f"registration {key}: {named.get(key)} and not {value}"
    value = found.value
    different = registration.differences(value["source"]["files"], inputs["source"]["files"])
    for path in different[:MAX_NAMED]:
        kind = "data" if path in value["datasets"] else "source tree"
        yield f"{kind}: {path}"
    if len(different) > MAX_NAMED:
        yield f"source tree: {len(different) - MAX_NAMED} more files"
    stated = {model["name"]: model["sha256"] for model in value["models"]}
    used = {model["name"]: model["sha256"] for model in inputs["models"]}
    for name in registration.differences(stated, used):
        yield f"model: {name} is {used.get(name)} and not {stated.get(name)}"
    for path in registration.differences(value["locks"], inputs["environment"]["locks"]):
        yield f"environment lock: {path}"
    yield from _configuration_differences(found, inputs["configuration"]["value"])
    yield from _target_differences(value["target"], inputs)
    if inputs["created"] < value["filed"]:
        yield f"time: its inputs were hashed at {inputs['created']}, before the filing"
    if entry.stamp is not None and inputs["created"] < entry.stamp.earliest_text:
        yield f"time: its inputs were hashed at {inputs['created']}, before the time stamp"


def _configuration_differences(found: Registration, used: Mapping[str, Any]) -> Iterator[str]:
    wanted = found.configuration()
    if used.get("seed") != wanted["seed"]:
        yield f"seed, and with it the order of samples: {used.get('seed')}"
    for key in sorted(({*wanted} | {*used}) - {"seed", "results"}):
        if key not in wanted or key not in used:
            yield f"configuration: {key} is not in both"
        elif canonical.dumps(wanted[key]) != canonical.dumps(used[key]):
            yield f"configuration: {key}"


def _target_differences(target: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[str]:
    version = inputs["environment"]["packages"].get(ENGINE)
    if target["engine"]["build"].startswith(f"{ENGINE} ") and (
        target["engine"]["build"] != f"{ENGINE} {version}"
    ):
        yield f"engine: {ENGINE} {version} and not {target['engine']['build']}"
    python, used_python = target.get("python"), inputs["environment"]["python"]
    if python not in (None, used_python):
        yield f"python: {used_python} and not {python}"
    libraries = target["engine"]["libraries"] or {}
    for model, known in sorted(inputs["profiles"].items()):
        for name, profile in sorted(known.items()):
            used = profile["profile"]["engine"].get("libraries", {})
            for library, sha256 in libraries.items():
                if used.get(library) != sha256:
                    yield f"engine: {library} of profile {name} of {model}"


def _reason_open(open_: Mapping[str, str], *nodes: expression.Node) -> str | None:
    """Why what nodes read is left open; None where it is not."""
    read = {path.subject for node in nodes for path in expression.paths(node)}
    reasons = [reason for cell, reason in open_.items() if cell in read]
    return f"{PROGRAMS_NOT_RUN}{reasons[0]}" if reasons else None


def _criterion(one: Criterion, summaries: evaluate.Summaries, open_: Mapping[str, str]) -> Json:
    verdict, reason = "not run", _reason_open(open_, one.node)
    try:
        if reason is None:
            verdict = "held" if evaluate.statement(one.node, summaries) else "failed"
    except evaluate.NotMeasured as error:
        reason = str(error)
    return {
        "id": one.id,
        "verdict": verdict,
        "reason": reason,
        "read": _read(summaries, one.node),
    }


def _prediction(one: Prediction, summaries: evaluate.Summaries, open_: Mapping[str, str]) -> Json:
    verdict, reason = "not run", _reason_open(open_, one.quantity, one.baseline)
    quantity, baseline = None, None
    try:
        if reason is None:
            quantity = evaluate.quantity(one.quantity, summaries)
            baseline = evaluate.quantity(one.baseline, summaries)
            verdict = judge(one, quantity, baseline)
    except evaluate.NotMeasured as error:
        reason = str(error)
    return {
        "id": one.id,
        "verdict": verdict,
        "reason": reason,
        "quantity": quantity,
        "baseline": baseline,
        "read": _read(summaries, one.quantity, one.baseline),
    }


def judge(one: Prediction, quantity: float, baseline: float) -> str:
    """The verdict of a prediction: the direction counts first, then the interval."""
    right = quantity > baseline if one.direction == "above" else quantity < baseline
    if not right:
        return "failed"
    return "held" if one.low <= quantity <= one.high else MISSED


def _read(summaries: evaluate.Summaries, *nodes: expression.Node) -> Json:
    """What the paths led to, for people; a long list is cut and an object is only counted."""
    shown: Json = {}
    for node in nodes:
        for path in expression.paths(node):
            try:
                shown[str(path)] = _shown(evaluate.look_up(path, summaries))
            except evaluate.NotMeasured as error:
                shown[str(path)] = error.what
    return shown


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    if not isinstance(value, list):
        return value
    return ["…" if isinstance(item, dict | list) else item for item in value[:MAX_SHOWN]]
