"""Attacks on the reference run that are no consistent forgeries: what is left out, whose signature
it bears, and what is put there to harm the auditor.

Each is a row of docs/threat-model.md. Others are carried out on made runs, in tests/audit:
test_hostile.py (links, devices, names), test_bundle.py (archives), test_prereg_*.py
(registrations), test_sandbox.py (programs), test_zipapp.py (the verifier itself); and with an
engine in tests/engine/test_recheck.py.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import MODEL, OTHER, Forger, Snapshot, findings, manifests, reforge, sign

from kvaudit import bundle, digests, kvb, manifest
from kvaudit.attest import dsse, keys, statement
from kvaudit.attest.run import check_run
from kvaudit.errors import BlockCorrupt, UnusableInput
from kvaudit.flywheel import rescoring
from kvaudit.flywheel.records import DEPOSITS, GENERATIONS, PROGRAMS, RUN
from kvaudit.kvb_map import open_block
from kvaudit.sandbox_outcome import last_integer

Audit = Callable[..., tuple[int, str, str]]
Signers = tuple[keys.PrivateKey, keys.PrivateKey]


def messages(run: Path) -> str:
    return "\n".join(f"{one.severity} {one.file}: {one.message}" for one in manifests(run))


def unsealed(run: Path) -> None:
    """Digests above made again, of what is left."""
    reforge(run)


# -- what is left out -----------------------------------------------------------------------------


def test_a_model_that_failed_and_is_left_out_is_missed_by_name(run: Path) -> None:
    shutil.rmtree(run / f"flywheel/{OTHER}")
    unsealed(run)
    said = messages(run)
    assert f"incomplete flywheel/{OTHER}/stage.manifest.json: is absent" in said
    assert "the inputs name this stage and model" in said


def test_a_stage_left_out_of_the_configuration_too_is_what_only_a_signature_or_filing_finds(
    snapshot: Snapshot, signers: Signers
) -> None:
    """The run is whole in itself; its registration would not be: see
    test_prereg_adjudicate.py, `a_dropped_model_is_refused_although_the_run_is_whole_in_itself`.
    """
    shutil.rmtree(snapshot.run / "flywheel")
    forger = Forger(snapshot, "exactness")

    def change(value: dict[str, Any]) -> None:
        value["configuration"]["value"]["stages"].remove("flywheel")

    forger.inputs(change)
    unsealed(snapshot.run)
    assert messages(snapshot.run) == ""
    named = {one.file for one in check_run(snapshot.run, [signers[0].public]).findings}
    assert f"flywheel/{MODEL}/summary.json" in named


def test_records_that_were_taken_away_with_their_listing_are_incomplete(run: Path) -> None:
    (run / f"position/{MODEL}/records/chains.jsonl").unlink()
    unsealed(run)
    said = findings(run, f"position/{MODEL}")
    assert [(one.severity, one.message) for one in said] == [
        ("incomplete", "is not among the outputs of its stage")
    ]


def test_a_source_tree_put_in_order_afterwards_is_another_tree(run: Path) -> None:
    """Who edits the code and keeps its old digest is found by `verify --history` (test_history.py);
    who edits the digest breaks every stage that used it.
    """
    path = run / manifest.INPUTS
    value = json.loads(path.read_bytes())
    value["source"]["files"]["workflow/kvgraft/session.py"] = "0" * 64
    value["source"]["tree_sha256"] = digests.tree_digest(value["source"]["files"])
    manifest.write(path, value)
    said = messages(run)
    assert "inputs.manifest.json: has not the digest that run.manifest.json names" in said
    assert "inputs_used: source is not registered with this digest" in said


# -- keys and signatures --------------------------------------------------------------------------


def test_the_untouched_run_bears_the_authors_signature(run: Path, signers: Signers) -> None:
    assert check_run(run, [signers[0].public]).findings == ()


def test_a_run_signed_by_another_key_is_not_the_authors(run: Path, signers: Signers) -> None:
    author, attacker = signers
    sign(run, attacker)
    (said,) = check_run(run, [author.public]).findings
    assert "too few of the given keys have signed" in said.message
    assert attacker.keyid in said.message


def test_the_attackers_signature_in_the_authors_name_is_refused(
    run: Path, signers: Signers
) -> None:
    author, attacker = signers
    sign(run, attacker)
    value = json.loads((run / manifest.ATTESTATION).read_bytes())
    value["signatures"][0]["keyid"] = author.keyid
    (run / manifest.ATTESTATION).write_bytes(dsse.to_bytes(value))
    (said,) = check_run(run, [author.public]).findings
    assert "not that of the key it names" in said.message


def test_one_of_two_wanted_signers_is_not_enough(run: Path, signers: Signers) -> None:
    both = [key.public for key in signers]
    assert check_run(run, both, threshold=2).exit_code == 1
    sign(run, *signers)
    assert check_run(run, both, threshold=2).exit_code == 0


def test_an_attestation_taken_away_is_missed_by_whoever_gives_a_key(
    run: Path, signers: Signers
) -> None:
    (run / manifest.ATTESTATION).unlink()
    assert check_run(run, [signers[0].public]).exit_code == 3


def test_an_old_attestation_is_not_of_the_run_that_was_changed_since(
    snapshot: Snapshot, signers: Signers
) -> None:
    forger = Forger(snapshot, "cost")
    forger.edit("conditions", lambda rows: rows[0].update(load_before=0.0))
    reforge(snapshot.run, forger.folder)
    named = {one.file for one in check_run(snapshot.run, [signers[0].public]).findings}
    assert f"cost/{MODEL}/records/conditions.jsonl" in named


def test_a_lying_signer_is_found_by_the_verdict_that_anybody_recomputes(
    snapshot: Snapshot, signers: Signers
) -> None:
    """A signature says who; it does not say that it is so."""
    forger = Forger(snapshot, "context")
    forger.edit("needles", lambda rows: rows[0].update(code="12345"))
    reforge(snapshot.run, forger.folder)
    sign(snapshot.run, signers[0])
    assert check_run(snapshot.run, [signers[0].public]).findings == ()
    assert findings(snapshot.run, forger.folder)


# -- blocks ---------------------------------------------------------------------------------------


def test_a_forged_block_that_is_sound_in_itself_is_not_the_one_asked_for(tmp_path: Path) -> None:
    tokens = np.arange(7, dtype=np.int32)
    model = kvb.ModelIdentity("m", "0" * 64, "llama")
    made = [
        kvb.build(model=model, profile="1" * 64, engine="2" * 64, tokens=tokens, state=state)
        for state in (b"captured" * 50, b"invented" * 50)
    ]
    path = tmp_path / f"{made[0].id}.kvb"
    with path.open("wb") as file:
        kvb.write_block(file, made[1], tokens, b"invented" * 50)
    with open_block(path) as block:
        block.verify(thorough=True)  # nothing is wrong with it
    with pytest.raises(BlockCorrupt, match="another block than its name says"):
        open_block(path, expected_id=made[0].id)


def test_a_state_under_the_header_of_another_is_found_chunk_by_chunk(tmp_path: Path) -> None:
    tokens = np.arange(7, dtype=np.int32)
    model = kvb.ModelIdentity("m", "0" * 64, "llama")
    header = kvb.build(
        model=model, profile="1" * 64, engine="2" * 64, tokens=tokens, state=b"captured" * 50
    )
    path = tmp_path / "x.kvb"
    with path.open("wb") as file:
        kvb.write_block(file, header, tokens, b"invented" * 50)
    with open_block(path, expected_id=header.id) as block, pytest.raises(BlockCorrupt):
        block.verify()


# -- whoever wants to harm the auditor ------------------------------------------------------------


def test_a_recorded_program_that_attacks_does_nothing_and_is_found(
    snapshot: Snapshot, tmp_path: Path
) -> None:
    """It would write to the auditor's disk and then print the recorded answer."""
    canary = tmp_path / "canary"
    canary.write_text("alive")
    rows = snapshot.rows(f"flywheel/{MODEL}/{PROGRAMS}")
    row = next(one for one in rows if one["ending"] == "printed")
    program = f"open({str(canary)!r}, 'w').write('dead')\nprint({row['answer']})"
    output = f"{row['answer']}\n"
    assert last_integer(output.encode()) == row["answer"]
    hostile = row | {
        "program": program,
        "sha256": digests.sha256_bytes(program.encode()),
        "output": output,
        "output_sha256": digests.sha256_bytes(output.encode()),
    }
    run = snapshot.rows(f"flywheel/{MODEL}/{RUN}")
    made = rescoring.rerun({PROGRAMS: [hostile], GENERATIONS: [], DEPOSITS: [], RUN: run})
    assert made.reason is None
    assert canary.read_text() == "alive"
    assert [one.message for one in made.problems] == [
        f"line 1: ends as error with None instead of {row['answer']} when it is run again"
    ]


def bundled(run: Path, *more: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(run / manifest.INPUTS, f"run/{manifest.INPUTS}")
        for info in more:
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 1) -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "hostile",
    [
        (member("../outside"),),
        (member("/tmp/outside"),),
        (member("run/link", tarfile.SYMTYPE, "/etc"), member("run/link/outside")),
        (member("run/hard", tarfile.LNKTYPE, "/etc/passwd"),),
        (member("run/device", tarfile.CHRTYPE),),
        (member(f"run/{manifest.INPUTS.upper()}"),),
    ],
    ids=["up", "absolute", "through a link", "hard link", "device", "another case"],
)
def test_a_bundle_that_reaches_out_is_refused_and_leaves_nothing(
    run: Path, tmp_path: Path, audit: Audit, hostile: tuple[Any, ...], monkeypatch: Any
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setenv("TMPDIR", str(private))
    monkeypatch.setattr(bundle.tempfile, "tempdir", None)
    (tmp_path / "run.tar").write_bytes(bundled(run, *hostile))
    code, out, err = audit("verify", tmp_path / "run.tar")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["private", "run.tar"]


def test_a_file_that_nobody_listed_is_named_and_never_run(run: Path, tmp_path: Path) -> None:
    (run / f"exactness/{MODEL}/conftest.py").write_text(f"open({str(tmp_path / 'x')!r}, 'w')")
    assert "conftest.py: is not listed in any manifest" in messages(run)
    assert list(tmp_path.iterdir()) == []


def test_a_link_out_of_the_run_is_refused_unopened(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}")
    path = run / f"exactness/{MODEL}/summary.json"
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(UnusableInput, match="a symbolic link"):
        manifests(run)


def test_a_statement_is_never_taken_for_another_kind_of_payload(signers: Signers) -> None:
    """A signature under a registration cannot be shown as one under a run."""
    payload = b'{"kind":"registration"}\n'
    made = dsse.sign(payload, "application/vnd.kvgraft.registration+json", [signers[0]])
    value = {**made, "payloadType": statement.PAYLOAD_TYPE}
    for envelope in (made, value):
        with pytest.raises(dsse.SignatureInvalid):
            dsse.open(dsse.to_bytes(envelope), statement.PAYLOAD_TYPE, [signers[0].public])
