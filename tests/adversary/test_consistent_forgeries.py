"""The reference run forged with all digests made again: which independent check still catches it.

The rows are those of the table in docs/threat-model.md. A forgery in one stage is looked at by the
checks of that stage; `tests/audit/test_forgery.py` and its neighbours do many more on made runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import (
    LOGITS,
    MANIFESTS,
    MODEL,
    OTHER,
    PLAN,
    PROGRAM,
    SCORES,
    SIGNATURE,
    Forger,
    Rows,
    Snapshot,
    caught_by,
    manifests,
    reforge,
)

from kvaudit import digests, manifest
from kvaudit.attest import keys
from kvaudit.prereg import registration
from kvaudit.verify import verify, write_verdict

ZERO = "0" * 64
Signers = tuple[keys.PrivateKey, keys.PrivateKey]
NONE: frozenset[str] = frozenset()


def first(rows: Rows, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    return next(row for row in rows if wanted(row))


# -- exactness ------------------------------------------------------------------------------------


def kept(row: dict[str, Any]) -> bool:
    """Whether a sample's raw logits are among the evidence."""
    return row["raw"] is not None


def margin(of: Callable[[dict[str, Any]], bool]) -> Callable[[Forger], None]:
    def forge(forger: Forger) -> None:
        forger.edit("samples", lambda rows: first(rows, of)["top5_margin"].__setitem__(-1, 30.0))

    return forge


def wrong_argmax(forger: Forger) -> None:
    """In every arm alike, so that the arms still agree."""

    def change(rows: Rows) -> None:
        for arm in first(rows, kept)["arms"].values():
            arm["argmax"][-1] += 1

    forger.edit("samples", change)


def doctored(which: Callable[[Any], int]) -> Callable[[Forger], None]:
    """Other raw logits under their own digest, named by all arms; `which` of them is lowered."""

    def forge(forger: Forger) -> None:
        old = first(forger.rows("samples"), kept)["raw"]["fresh"]
        folder = forger.run / forger.folder / "logits"
        logits = np.frombuffer((folder / f"{old}.f32").read_bytes(), "<f4").copy()
        logits[which(logits)] -= 50.0
        new = digests.sha256_bytes(logits.tobytes())
        (folder / f"{old}.f32").unlink()
        (folder / f"{new}.f32").write_bytes(logits.tobytes())
        forger.replace("samples", old, new)

    return forge


def sample_left_out(forger: Forger) -> None:
    rows = forger.rows("samples")
    gone = rows.pop()
    assert not kept(gone)
    forger.write("samples", rows)
    used = {row["block_id"] for row in rows}
    blocks = forger.rows("blocks")
    used |= {row["header"]["parent"] for row in blocks if row["id"] in used}
    forger.write("blocks", [row for row in blocks if row["id"] in used])


def fewer_planned(forger: Forger) -> None:
    """The failed sample goes, and the configuration says that it was never planned."""
    sample_left_out(forger)

    def change(value: dict[str, Any]) -> None:
        value["configuration"]["value"]["exactness"]["samples"] -= 1

    forger.inputs(change)


def reseed(forger: Forger, seed: str) -> None:
    """Another seed in the configuration and in every record that names it."""
    old = forger.configuration["seed"]
    forger.inputs(lambda value: value["configuration"]["value"].update(seed=seed))
    forger.replace("samples", f'"seed":"{old}/', f'"seed":"{seed}/')


def back_dated(seed_follows: bool) -> Callable[[Forger], None]:
    """A registration that was written when the results were known."""

    def forge(forger: Forger) -> None:
        named = {"number": 1, "sha256": ZERO, "token_sha256": None}

        def change(value: dict[str, Any]) -> None:
            value["registration"] = named
            value["configuration"]["value"]["registration"] = 1

        forger.inputs(change)
        if seed_follows:
            reseed(forger, registration.seed_of(1, ZERO, None))

    return forge


def another_model(forger: Forger) -> None:
    def change(value: dict[str, Any]) -> None:
        first(value["models"], lambda model: model["name"] == MODEL)["sha256"] = ZERO

    forger.inputs(change)


def another_model_throughout(forger: Forger) -> None:
    """The digest in the blocks' headers too, whose ids change with it."""
    another_model(forger)
    relabel_blocks(forger, lambda header: header["model"].update(sha256=ZERO))


def relabel_blocks(forger: Forger, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes headers, and makes ids, parents and the samples' names of them follow."""
    rows, ids = forger.rows("blocks"), {}
    pending = list(rows)
    while pending:
        row = first(pending, lambda r: r["header"]["parent"] not in {p["id"] for p in pending})
        pending.remove(row)
        old = row["id"]
        change(row["header"])
        row["header"]["parent"] = ids.get(row["header"]["parent"], row["header"]["parent"])
        ids[old] = row["id"] = digests.sha256_json(row["header"])
    forger.write("blocks", rows)
    forger.edit(
        "samples",
        lambda samples: [s.update(block_id=ids.get(s["block_id"], s["block_id"])) for s in samples],
    )


def others_records(forger: Forger) -> None:
    """The other model did better: its records, under this one's name."""
    for name in ("samples", "splits", "determinism"):
        rows = Forger(forger.snapshot, "exactness", OTHER).rows(name)
        forger.write(name, [{**row, "model": MODEL} for row in rows])
    for path in (forger.run / forger.folder / "logits").iterdir():
        path.unlink()
    for path in (forger.run / f"exactness/{OTHER}/logits").iterdir():
        (forger.run / forger.folder / "logits" / path.name).write_bytes(path.read_bytes())


def forged_block(follows: bool) -> Callable[[Forger], None]:
    """A state that was never captured; its header and its id are in order."""

    def forge(forger: Forger) -> None:
        chosen = first(
            forger.rows("blocks"),
            lambda row: (
                len(row["header"]["state"]["chunks"]) == 1 and row["header"]["parent"] is None
            ),
        )["header"]["tokens"]["sha256"]

        def change(header: dict[str, Any]) -> None:
            if header["tokens"]["sha256"] == chosen:
                header["state"]["chunks"] = header["state"]["blake3"] = [ZERO]

        relabel_blocks(forger, change)
        if follows:
            path = forger.run / forger.folder / "records/samples.jsonl"
            rows = [json.loads(line) for line in path.read_bytes().splitlines()]
            for row in rows:
                if row["span_sha256"] == chosen:
                    row["state_sha256"] = ZERO
            forger.write("samples", rows)

    return forge


def control_kl(forger: Forger) -> None:
    forger.edit("splits", lambda rows: first(rows, lambda row: row["control"]).update(kl=9.0))


# -- position, cost, context ----------------------------------------------------------------------


def smaller_kl(forger: Forger) -> None:
    """The re-rotated state almost as good as a fresh one; only the sum of all logits says so."""
    forger.edit("relocation", lambda rows: [r["kl"].update(relocated=1e-9) for r in rows])


def other_count(forger: Forger) -> None:
    forger.edit("rotation", lambda rows: rows[0].update(unequal=rows[0]["unequal"] - 1))


def slower_prefill(forger: Forger) -> None:
    def change(rows: Rows) -> None:
        for row in rows:
            if row["arm"] == "prefill":
                seconds = row["seconds"]["prefill"]
                row["seconds"]["prefill"] = [None if s is None else s * 10 for s in seconds]

    forger.edit("timings", change)


def deposited_elsewhere(forger: Forger) -> None:
    forger.edit("answers", lambda rows: first(rows, lambda r: r["arm"] == "routed").update(block=5))


def needle_moved(forger: Forger) -> None:
    forger.edit("needles", lambda rows: rows[0].update(code="12345"))


# -- flywheel -------------------------------------------------------------------------------------


def right(forger: Forger, row: dict[str, Any]) -> int:
    found: int = first(forger.rows("problems"), lambda p: p["name"] == row["problem"])["answer"]
    return found


def wrong_text(row: dict[str, Any]) -> bool:
    return bool(row["arm"] == "text" and row["outcome"] == "wrong")


def outcome_alone(forger: Forger) -> None:
    forger.edit("generations", lambda rows: first(rows, wrong_text).update(outcome="answer"))


def outcome_and_answer(forger: Forger) -> None:
    def change(rows: Rows) -> None:
        row = first(rows, wrong_text)
        row.update(outcome="answer", answer=right(forger, row))

    forger.edit("generations", change)


def rewritten_text(forger: Forger) -> None:
    """What the model never wrote, scored rightly."""

    def change(rows: Rows) -> None:
        row = first(rows, wrong_text)
        answer = right(forger, row)
        row.update(outcome="answer", answer=answer, text=f" {answer}")

    forger.edit("generations", change)


def printed(forger: Forger, endings: tuple[str, ...] = ("error", "wrong")) -> None:
    """The record of a program, and all that follows from it; the program itself is as it was."""
    rows = forger.rows("generations")
    counted: dict[str, int] = {}
    for row in rows:
        counted[row["program_sha256"]] = counted.get(row["program_sha256"], 0) + 1
    chosen = first(
        rows,
        lambda row: (
            row["arm"] == "alone"  # of a `code` that is right, a deposit would have been made
            and row["outcome"] in endings
            and counted[row["program_sha256"]] == 1
        ),
    )
    answer = right(forger, chosen)
    output = f"{answer}\n"
    forger.edit(
        "programs",
        lambda programs: first(
            programs, lambda row: row["sha256"] == chosen["program_sha256"]
        ).update(
            ending="printed",
            answer=answer,
            output=output,
            output_sha256=digests.sha256_bytes(output.encode()),
        ),
    )
    chosen.update(outcome="answer", answer=answer)
    forger.write("generations", rows)


def printed_elsewhere(forger: Forger) -> None:
    """What failed here was right, it says, on a release of Python that the reader lacks."""
    printed(forger, ("error",))
    forger.edit("run", lambda rows: rows[0].update(python="3.9.1 (default) [GCC]"))
    forger.inputs(lambda value: value["environment"].update(python="3.9.1"))


def on_python(forger: Forger, release: str) -> None:
    """Names a release of Python for this model's programs, and for the run."""
    forger.edit("run", lambda rows: rows[0].update(python=f"{release} (main) [GCC]"))
    forger.inputs(lambda value: value["environment"].update(python=release))


def called_an_error(forger: Forger, release: str = "3.99.1") -> list[str]:
    """Right answers from one prefix become errors, it says, on another release of Python."""
    rows, programs = forger.rows("generations"), forger.rows("programs")
    kept = {row["program_sha256"] for row in rows if row["arm"] != "adapt-flat"}
    hidden = {
        row["program_sha256"]
        for row in rows
        if row["arm"] == "adapt-flat" and row["outcome"] == "answer"
    } - kept
    for row in rows:
        if row["program_sha256"] in hidden:
            row.update(outcome="error", answer=None)
    for row in programs:
        if row["sha256"] in hidden:
            nothing = digests.sha256_bytes(b"")
            row.update(ending="error", answer=None, output="", output_sha256=nothing)
    forger.write("generations", rows)
    forger.write("programs", programs)
    on_python(forger, release)
    return sorted(hidden)


def attempts_left_out(forger: Forger) -> None:
    def change(rows: Rows) -> None:
        rows[:] = [row for row in rows if not wrong_text(row)]

    forger.edit("generations", change)


def easier_problem(forger: Forger) -> None:
    """The problem is changed into the one that the model solved."""

    def change(rows: Rows) -> None:
        row = first(forger.rows("generations"), wrong_text)
        first(rows, lambda p: p["name"] == row["problem"]).update(answer=row["answer"])

    forger.edit("problems", change)


def threshold(forger: Forger) -> None:
    forger.edit("calibration", lambda rows: rows[0].update(threshold=rows[0]["threshold"] - 1))


def router_score(forger: Forger) -> None:
    """A query that was wrongly abstained from, scored above the threshold."""
    limit = forger.rows("calibration")[0]["threshold"]
    family = {row["name"]: row["family"] for row in forger.rows("deposits")}

    def change(rows: Rows) -> None:
        row = first(
            rows,
            lambda r: (
                r["split"] == "test"
                and r["decision"] == "abstain"
                and not r["right"]
                and r["best"] is not None
                and family[r["best"]] == r["family"]
            ),
        )
        score = round(limit + abs(limit) / 2, 6)
        first(row["scores"], lambda s: s["deposit"] == row["best"])["score"] = score
        row.update(score=score, decision="adapt", right=True)

    forger.edit("routes", change)


FORGERIES: dict[str, tuple[str, Callable[[Forger], None], frozenset[str] | set[str]]] = {
    "an argmax that the kept logits do not have": ("exactness", wrong_argmax, {LOGITS}),
    "a margin that the kept logits do not have": ("exactness", margin(kept), {LOGITS}),
    "kept logits doctored, argmax forgotten": (
        "exactness",
        doctored(lambda logits: int(np.argmax(logits))),
        {LOGITS},
    ),
    "kept logits doctored with care": (
        "exactness",
        doctored(lambda logits: int(np.argmin(logits))),
        NONE,
    ),
    "a margin whose logits were not kept": ("exactness", margin(lambda r: not kept(r)), NONE),
    "the size of a control's difference": ("exactness", control_kl, NONE),
    "a failed sample left out": ("exactness", sample_left_out, {PLAN}),
    "a failed sample left out of the plan too": ("exactness", fewer_planned, {PLAN}),
    "a seed that was liked better": ("exactness", lambda f: reseed(f, "liked"), {PLAN}),
    "a registration back-dated": ("exactness", back_dated(False), {MANIFESTS}),
    "a registration back-dated with its seed": ("exactness", back_dated(True), {PLAN}),
    "another model in the inputs": ("exactness", another_model, {SCORES, PLAN}),
    "another model in inputs and blocks": ("exactness", another_model_throughout, NONE),
    "the records of the other model": ("exactness", others_records, {SCORES, PLAN}),
    "a block forged": ("exactness", forged_block(False), {SCORES}),
    "a block forged with its sample": ("exactness", forged_block(True), NONE),
    "a smaller KL after a move": ("position", smaller_kl, {SCORES}),
    "another count of unequal angles": ("position", other_count, {SCORES}),
    "slower prefills": ("cost", slower_prefill, NONE),
    "a routed block that ranked second": ("context", deposited_elsewhere, {SCORES}),
    "a needle changed into another": ("context", needle_moved, {SCORES, PLAN}),
    "an outcome": ("flywheel", outcome_alone, {SCORES}),
    "an outcome and an answer": ("flywheel", outcome_and_answer, {SCORES}),
    "a text that the model never wrote": ("flywheel", rewritten_text, NONE),
    "what a program printed": ("flywheel", printed, {PROGRAM}),
    "what a program printed, on another Python": ("flywheel", printed_elsewhere, {PROGRAM}),
    "a right answer called an error, on another Python": ("flywheel", called_an_error, {PROGRAM}),
    "failed attempts left out": ("flywheel", attempts_left_out, {PLAN}),
    "a problem made easier": ("flywheel", easier_problem, {SCORES, PLAN}),
    "a lower threshold": ("flywheel", threshold, {SCORES}),
    "a score of the router": ("flywheel", router_score, NONE),
}
"""Stage, forgery, and what catches it beside the signature, which catches every one."""


@pytest.mark.parametrize("name", FORGERIES)
def test_a_consistent_forgery_is_caught_by_these_checks_and_no_others(
    snapshot: Snapshot, signers: Signers, name: str
) -> None:
    stage, forge, caught = FORGERIES[name]
    forger = Forger(snapshot, stage)
    forge(forger)
    reforge(snapshot.run, forger.folder)
    assert caught_by(snapshot, forger.folder, signers[0].public) == {*caught, SIGNATURE}


def test_the_untouched_copy_is_caught_by_nothing(snapshot: Snapshot, signers: Signers) -> None:
    reforge(snapshot.run, f"exactness/{MODEL}", f"flywheel/{MODEL}")
    assert snapshot.run.joinpath(manifest.RUN).read_bytes() == snapshot.files[manifest.RUN]
    assert caught_by(snapshot, f"exactness/{MODEL}", signers[0].public) == set()


@pytest.mark.slow
def test_what_reading_cannot_find_verifies_in_the_whole_run_and_is_not_what_was_signed(
    snapshot: Snapshot, signers: Signers
) -> None:
    """All of these forgeries together, and the verdict as the verifier itself writes it."""
    folders = set()
    for stage, forge, caught in FORGERIES.values():
        if caught == NONE and forge not in (another_model_throughout,):
            forger = Forger(snapshot, stage)
            forge(_OnTop(forger))
            folders.add(forger.folder)
    reforge(snapshot.run, *sorted(folders))
    assert manifests(snapshot.run) == ()
    found = verify(snapshot.run, programs=False, check_verdict=False)
    assert (found.exit_code, found.findings) == (0, ())
    write_verdict(snapshot.run, found)
    from kvaudit.attest.run import check_run

    named = {finding.file for finding in check_run(snapshot.run, [signers[0].public]).findings}
    assert {manifest.RUN, manifest.VERDICT} <= named
    assert {f"{folder}/{manifest.STAGE}" for folder in folders} <= named


class _OnTop(Forger):
    """A forger who goes on where the one before him stopped."""

    def __init__(self, other: Forger) -> None:
        super().__init__(other.snapshot, other.stage, other.model)

    def rows(self, name: str) -> Rows:
        path: Path = self.run / self.folder / f"records/{name}.jsonl"
        return [json.loads(line) for line in path.read_bytes().splitlines()]
