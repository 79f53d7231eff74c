"""A release of Python that nobody made, or that the reader lacks, excuses no record.

What a forger states of himself, the release and how a program ended on it, is compared with what
happens here. What only another release can decide is left open: then the evidence is incomplete,
nothing is signed, and a registration is judged on none of it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from forging import MODEL, OTHER, REFERENCE, Forger, Snapshot, reforge
from test_consistent_forgeries import called_an_error, on_python, printed

from kvaudit import manifest, prereg, records
from kvaudit.attest import keys
from kvaudit.attest.run import RunNotVerified, sign_run
from kvaudit.chain import INCOMPLETE
from kvaudit.flywheel import rescoring
from kvaudit.flywheel.kind import KIND
from kvaudit.flywheel.records import PROGRAMS
from kvaudit.prereg import adjudicate, ledger
from kvaudit.prereg.errors import RunRefused
from kvaudit.verify import verify, write_verdict

REPOSITORY = REFERENCE.parents[1]
REGISTERED = REPOSITORY / "results/registered/0002-f9-transfer"
PATCHED = ".".join([*rescoring.HERE.split(".")[:2], "99"])
"""Of the minor version that runs here."""
RELEASES = ("3.99.1", PATCHED)


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize("release", RELEASES)
def test_no_release_of_python_makes_an_error_of_a_right_answer(
    snapshot: Snapshot, release: str
) -> None:
    """What a forger states of himself, release and ending, is a finding and never an excuse."""
    forger = Forger(snapshot, "flywheel")
    hidden = called_an_error(forger, release)
    reforge(snapshot.run, forger.folder)
    rows = KIND.typed(records.read_folder(snapshot.run / forger.folder, KIND.records))
    programs = [row for row in rows[PROGRAMS] if row["sha256"] in hidden]
    found = rescoring.rerun({**rows, PROGRAMS: programs})
    assert programs
    assert len(found.problems) + len(found.undecided) == len(programs)
    assert found.problems
    if release == PATCHED:
        assert (found.undecided, found.reason) == ((), None)


def registered(path: Path, forge: Callable[[Forger], object]) -> Path:
    """The registered run, forged in one model."""
    run = Path(shutil.copytree(REGISTERED, path))
    (run / manifest.ATTESTATION).unlink()
    forge(Forger(Snapshot(run), "flywheel"))
    other = Forger(Snapshot(run), "flywheel", OTHER)
    said = json.loads((run / manifest.INPUTS).read_bytes())["environment"]["python"]
    on_python(other, said)
    reforge(run, f"flywheel/{MODEL}", f"flywheel/{OTHER}")
    return run


def entry() -> ledger.Entry:
    chain = ledger.read(REPOSITORY / prereg.FOLDER)
    chain.require_sound()
    return chain.entry(2)


@pytest.mark.slow
@pytest.mark.usefixtures("isolation")
def test_a_registered_run_of_a_python_that_nobody_made_is_refused(tmp_path: Path) -> None:
    for number, release in enumerate(RELEASES):
        run = registered(
            tmp_path / f"run-{number}", lambda forger, r=release: called_an_error(forger, r)
        )
        with pytest.raises(RunRefused, match="does not verify") as caught:
            adjudicate.adjudicate(entry(), run)
        assert "ends as printed" in str(caught.value.found)


@pytest.mark.slow
@pytest.mark.usefixtures("isolation")
def test_what_another_python_leaves_open_is_judged_by_nobody(tmp_path: Path) -> None:
    """Verified it is not, signed neither, and what was predicted of it is not run."""

    def forge(forger: Forger) -> None:
        printed(forger, ("error",))
        on_python(forger, "3.99.1")

    run = registered(tmp_path / "run", forge)
    found = verify(run, check_verdict=False)
    assert (found.exit_code, found.findings) == (INCOMPLETE, found.undecided)
    write_verdict(run, found)
    outcome = adjudicate.adjudicate(entry(), run)
    judged = [*outcome["criteria"], *outcome["predictions"]]
    assert {one["verdict"] for one in judged} == {"not run"}
    assert all("may be the release's doing" in one["reason"] for one in judged)
    keys.generate(tmp_path / "key.pem")
    with pytest.raises(RunNotVerified):
        sign_run(run, [keys.load_private(tmp_path / "key.pem")], failed_claims=True)


def test_without_a_sandbox_a_filed_outcome_is_held_to_what_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    known = entry()
    outcome, parted = adjudicate.check(known, REGISTERED)
    judged = [*outcome["criteria"], *outcome["predictions"]]
    assert {one["verdict"] for one in judged} == {"not run"}
    assert all("bubblewrap" in one["reason"] for one in judged)
    assert parted == []
    assert known.outcome is not None
    first_, *others = known.outcome["criteria"]
    forged = {**known.outcome, "criteria": [{**first_, "verdict": "failed"}, *others]}
    _, parted = adjudicate.check(dataclasses.replace(known, outcome=forged), REGISTERED)
    assert [one.field for one in parted] == ["criteria[0].verdict"]
