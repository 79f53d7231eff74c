"""A run signed and checked: what the attestation binds, and what is never signed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic

from kvaudit import canonical, digests, manifest
from kvaudit.attest import dsse, keys, statement
from kvaudit.attest.report import AttestationReport
from kvaudit.attest.run import check_run, sign_run
from kvaudit.errors import EvidenceIncomplete, SignatureInvalid, UnusableInput
from kvaudit.verify import verdict_bytes, verify

Audit = Callable[..., tuple[int, str, str]]
SUMMARY = "exactness/tiny-a/summary.json"
ATTESTATION = manifest.ATTESTATION
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three key pairs."""
    folder = tmp_path_factory.mktemp("keys")
    for name in "abc":
        keys.generate(folder / f"{name}.pem")
    return [folder / f"{name}.pem" for name in "abc"]


@pytest.fixture(scope="session")
def once_signed(
    pristine: Path, pairs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The valid run, signed by the first key; read-only by convention."""
    folder = Path(shutil.copytree(pristine, tmp_path_factory.mktemp("signed") / "run"))
    sign_run(folder, [keys.load_private(pairs[0])])
    return folder


@pytest.fixture
def signed(once_signed: Path, tmp_path: Path) -> Path:
    """A fresh copy of it."""
    return Path(shutil.copytree(once_signed, tmp_path / "signed"))


def public(*pairs: Path) -> list[keys.PublicKey]:
    return [keys.load_public(f"{pair}.pub") for pair in pairs]


def found(report: AttestationReport) -> list[tuple[str, str]]:
    return [(finding.severity, finding.file) for finding in report.findings]


def test_a_signed_run_holds_for_the_signers_key(once_signed: Path, pairs: list[Path]) -> None:
    report = check_run(once_signed, public(pairs[0]))
    assert report.findings == ()
    assert report.exit_code == 0
    assert report.signers == (public(pairs[0])[0].keyid,)
    assert report.render().startswith("attestation: holds;")


def test_every_evidence_file_is_a_subject_by_its_own_digest(once_signed: Path) -> None:
    payload = dsse.parse((once_signed / ATTESTATION).read_bytes()).payload
    value = json.loads(payload)
    files = {p.relative_to(once_signed).as_posix(): p for p in once_signed.rglob("*")}
    there = {name: path for name, path in files.items() if path.is_file()}
    del there[ATTESTATION]
    subjects = {entry["name"]: entry["digest"]["sha256"] for entry in value["subject"]}
    assert subjects == {name: digests.sha256_file(path) for name, path in there.items()}
    assert {manifest.INPUTS, manifest.RUN, manifest.VERDICT, SUMMARY} <= {*subjects}
    assert value["predicate"]["verdict_sha256"] == subjects[manifest.VERDICT]
    assert value["_type"] == "https://in-toto.io/Statement/v1"


def test_signing_changes_no_verdict_and_nothing_else(
    once_signed: Path, pristine: Path, audit: Audit
) -> None:
    assert verdict_bytes(verify(once_signed)) == (pristine / manifest.VERDICT).read_bytes()
    code, out, _ = audit("verify", once_signed)
    assert code == 0
    assert "attestation: present, NOT checked" in out
    assert not [p.name for p in once_signed.iterdir() if p.name.startswith(".")]


def test_a_run_without_attestation_says_nothing_of_one(pristine: Path, audit: Audit) -> None:
    assert "attestation" not in audit("verify", pristine)[1]


def test_an_attestation_that_was_not_checked_is_never_called_checked(
    once_signed: Path, pairs: list[Path], audit: Audit
) -> None:
    unchecked = json.loads(audit("verify", once_signed, "--json")[1])["attestation"]
    assert unchecked["checked"] is False
    assert unchecked["signers"] == []
    code, out, _ = audit("verify", once_signed, "--json", "--key", f"{pairs[0]}.pub")
    assert code == 0
    assert json.loads(out)["attestation"]["checked"] is True


def test_another_key_is_told_apart(once_signed: Path, pairs: list[Path], audit: Audit) -> None:
    code, out, err = audit("verify", once_signed, "--key", f"{pairs[1]}.pub")
    assert (code, err) == (1, "")
    assert "attestation: does not hold (1):" in out
    assert "too few of the given keys have signed" in out
    assert public(pairs[0])[0].keyid in out


def test_an_absent_attestation_is_incomplete_where_a_key_is_given(
    pristine: Path, pairs: list[Path], audit: Audit
) -> None:
    code, out, _ = audit("verify", pristine, "--key", f"{pairs[0]}.pub")
    assert code == 3
    assert "nobody has signed" in out


def test_a_threshold_needs_so_many_signers(signed: Path, pairs: list[Path], audit: Audit) -> None:
    both = ("--key", f"{pairs[0]}.pub", "--key", f"{pairs[1]}.pub", "--threshold", "2")
    assert audit("verify", signed, *both)[0] == 1
    code, out, _ = audit("sign", signed, "--key", pairs[1])
    assert code == 0
    assert "2 signatures" in out
    assert audit("verify", signed, *both)[0] == 0


@pytest.mark.parametrize("keys_given", [(0, 0), (0,)])
def test_one_key_given_twice_is_one_key(
    once_signed: Path, pairs: list[Path], audit: Audit, keys_given: tuple[int, ...]
) -> None:
    given = [part for i in keys_given for part in ("--key", f"{pairs[i]}.pub")]
    code, out, err = audit("verify", once_signed, *given, "--threshold", "2")
    assert (code, out) == (2, "")
    assert "1 different keys" in err


def test_a_threshold_without_a_key_is_a_mistake(once_signed: Path, audit: Audit) -> None:
    assert audit("verify", once_signed, "--threshold", "2")[0] == 2


def test_a_file_changed_after_signing_is_named(signed: Path, pairs: list[Path]) -> None:
    path = signed / SUMMARY
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    assert found(check_run(signed, public(pairs[0]))) == [("fails", SUMMARY)]


def test_a_file_of_another_length_is_never_read(signed: Path, pairs: list[Path]) -> None:
    with (signed / SUMMARY).open("r+b") as file:
        file.truncate(2**40)
    assert found(check_run(signed, public(pairs[0]))) == [("fails", SUMMARY)]


def test_evidence_added_after_signing_is_named(signed: Path, pairs: list[Path]) -> None:
    (signed / "exactness/tiny-a/records/more.jsonl").write_text("{}\n")
    report = check_run(signed, public(pairs[0]))
    assert found(report) == [("fails", "exactness/tiny-a/records/more.jsonl")]


def test_evidence_removed_after_signing_is_named(signed: Path, pairs: list[Path]) -> None:
    (signed / SUMMARY).unlink()
    assert found(check_run(signed, public(pairs[0]))) == [("incomplete", SUMMARY)]


def test_a_consistent_forgery_that_verifies_is_caught_by_the_signature_alone(
    signed: Path, pairs: list[Path], audit: Audit
) -> None:
    """Every digest and the verdict made again: only the key is missing."""
    inputs = json.loads((signed / manifest.INPUTS).read_bytes())
    inputs["created"] = "2025-12-31T00:00:00Z"  # back-dated; no other document depends on it
    (signed / manifest.INPUTS).write_bytes(canonical.dumps(inputs) + b"\n")
    synthetic.reseal(signed)
    assert audit("verify", signed, "--write")[0] == 0
    assert audit("verify", signed)[0] == 0
    code, out, _ = audit("verify", signed, "--key", f"{pairs[0]}.pub")
    assert code == 1
    for name in (manifest.INPUTS, manifest.RUN, manifest.VERDICT):
        assert f"fails: {name}: is not the file that was signed" in out


def test_a_forger_cannot_move_the_signature_to_the_forged_statement(
    signed: Path, pairs: list[Path]
) -> None:
    envelope = dsse.parse((signed / ATTESTATION).read_bytes())
    forged = json.loads(envelope.payload)
    forged["predicate"]["claims"][0]["verdict"] = "not run here"
    value = dsse.sign(
        canonical.dumps(forged) + b"\n",
        statement.PAYLOAD_TYPE,
        [keys.load_private(pairs[2])],
        onto=envelope.signatures,
    )
    (signed / ATTESTATION).write_bytes(dsse.to_bytes(value))
    report = check_run(signed, public(pairs[0]))
    assert report.exit_code == 1
    assert "not that of the key it names" in report.findings[0].message


def sign_statement(folder: Path, pair: Path, change: Callable[[dict[str, object]], None]) -> None:
    """What a signer who lies would do: another statement under a genuine signature."""
    value = json.loads(dsse.parse((folder / ATTESTATION).read_bytes()).payload)
    change(value)
    payload = canonical.dumps(value) + b"\n"
    made = dsse.sign(payload, statement.PAYLOAD_TYPE, [keys.load_private(pair)])
    (folder / ATTESTATION).write_bytes(dsse.to_bytes(made))


def test_a_signed_verdict_that_is_not_the_runs_is_named(signed: Path, pairs: list[Path]) -> None:
    sign_statement(signed, pairs[0], lambda v: v["predicate"]["claims"].pop())  # type: ignore[attr-defined, index]
    assert found(check_run(signed, public(pairs[0]))) == [("fails", manifest.VERDICT)]


def test_a_statement_that_leaves_a_file_out_is_not_enough(signed: Path, pairs: list[Path]) -> None:
    sign_statement(signed, pairs[0], lambda v: v["subject"].pop(0))  # type: ignore[attr-defined]
    assert len(check_run(signed, public(pairs[0])).findings) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["subject"].append(v["subject"][0]),
        lambda v: v["subject"].reverse(),
        lambda v: v.update(subject=[]),
        lambda v: v.update(predicateType="https://slsa.dev/provenance/v1"),
        lambda v: v["subject"][0]["digest"].update(md5="0" * 32),
    ],
)
def test_a_malformed_statement_is_unusable_though_it_is_signed(
    signed: Path, pairs: list[Path], change: Callable[[dict[str, object]], None]
) -> None:
    sign_statement(signed, pairs[0], change)
    with pytest.raises(UnusableInput):
        check_run(signed, public(pairs[0]))


def test_a_subject_outside_the_folder_is_never_looked_for(signed: Path, pairs: list[Path]) -> None:
    def escape(value: dict[str, object]) -> None:
        value["subject"][0]["name"] = "../../etc/passwd"  # type: ignore[index]
        value["subject"].sort(key=lambda entry: entry["name"])  # type: ignore[attr-defined]

    sign_statement(signed, pairs[0], escape)
    report = check_run(signed, public(pairs[0]))
    assert ("incomplete", "../../etc/passwd") in found(report)


def test_an_envelope_of_a_hundred_megabytes_is_refused_unread(
    signed: Path, pairs: list[Path], audit: Audit
) -> None:
    with (signed / ATTESTATION).open("r+b") as file:
        file.truncate(100_000_000)
    code, out, err = audit("verify", signed, "--key", f"{pairs[0]}.pub")
    assert (code, out) == (2, "")
    assert f"too long; at {ATTESTATION}" in err


def test_a_link_in_place_of_the_attestation_is_refused(signed: Path, pairs: list[Path]) -> None:
    (signed / ATTESTATION).rename(signed.parent / "kept")
    (signed / ATTESTATION).symlink_to(signed.parent / "kept")
    with pytest.raises(UnusableInput, match="symbolic link"):
        check_run(signed, public(pairs[0]))


def test_a_run_that_does_not_verify_is_not_signed(
    run: Path, pairs: list[Path], audit: Audit
) -> None:
    (run / SUMMARY).write_text("{}")
    code, out, err = audit("sign", run, "--key", pairs[0])
    assert (code, out) == (1, "")
    assert SUMMARY in err
    assert not (run / ATTESTATION).exists()


def test_a_run_without_a_verdict_is_not_signed(run: Path, pairs: list[Path], audit: Audit) -> None:
    (run / manifest.VERDICT).unlink()
    code, _, err = audit("sign", run, "--key", pairs[0])
    assert code == 3
    assert "kvaudit verify --write" in err
    (run / manifest.RUN).unlink()
    assert audit("sign", run, "--key", pairs[0])[0] == 3


def test_a_stale_verdict_is_not_signed(run: Path, pairs: list[Path], audit: Audit) -> None:
    synthetic.edit_json(run / manifest.VERDICT, lambda v: v["claims"].pop())
    code, _, err = audit("sign", run, "--key", pairs[0])
    assert code == 1
    assert "is not what the verifier finds" in err


def test_a_failing_claim_is_signed_only_when_that_is_said(
    tmp_path: Path, pairs: list[Path], audit: Audit
) -> None:
    folder = synthetic.build(tmp_path / "run", models=("tiny-a",))
    rows = synthetic.read_rows(folder, "tiny-a", "records/determinism.jsonl")
    rows[0]["equal"] = False
    rows[0]["second"]["logits_sha256"] = synthetic.digest_of("another")
    synthetic.write_rows(folder, "tiny-a", "records/determinism.jsonl", rows)
    synthetic.derive(folder, "tiny-a")
    synthetic.reseal(folder)
    assert audit("verify", folder, "--write")[0] == 1
    code, _, err = audit("sign", folder, "--key", pairs[0])
    assert code == 1
    assert "D1 of tiny-a" in err
    assert audit("sign", folder, "--key", pairs[0], "--failed-claims")[0] == 0
    code, out, _ = audit("verify", folder, "--key", f"{pairs[0]}.pub")
    assert code == 1
    assert "attestation: holds" in out


def test_a_second_signer_keeps_the_first_signature(signed: Path, pairs: list[Path]) -> None:
    before = dsse.parse((signed / ATTESTATION).read_bytes())
    sign_run(signed, [keys.load_private(pairs[1])])
    after = dsse.parse((signed / ATTESTATION).read_bytes())
    assert after.payload == before.payload
    assert after.signatures[:1] == before.signatures
    assert len(check_run(signed, public(*pairs), threshold=2).signers) == 2


def test_signing_again_with_one_key_changes_nothing(
    signed: Path, pairs: list[Path], audit: Audit
) -> None:
    before = (signed / ATTESTATION).read_bytes()
    for more in ((), ("--replace",)):
        code, out, _ = audit("sign", signed, "--key", pairs[0], *more)
        assert code == 0
        assert "signed this run already" in out
    assert (signed / ATTESTATION).read_bytes() == before


def test_a_forged_signature_in_our_name_gives_way_to_ours(signed: Path, pairs: list[Path]) -> None:
    good = (signed / ATTESTATION).read_bytes()
    value = json.loads(good)
    value["signatures"][0]["sig"] = "A" * 86 + "=="
    (signed / ATTESTATION).write_bytes(dsse.to_bytes(value))
    sign_run(signed, [keys.load_private(pairs[0])])
    assert (signed / ATTESTATION).read_bytes() == good


def test_a_statement_of_what_the_run_no_longer_is_is_dropped_only_when_that_is_said(
    signed: Path, pairs: list[Path], audit: Audit
) -> None:
    inputs = json.loads((signed / manifest.INPUTS).read_bytes())
    inputs["created"] = "2025-12-31T00:00:00Z"
    (signed / manifest.INPUTS).write_bytes(canonical.dumps(inputs) + b"\n")
    synthetic.reseal(signed)
    assert audit("verify", signed, "--write")[0] == 0
    code, _, err = audit("sign", signed, "--key", pairs[1])
    assert code == 2
    assert "--replace" in err
    assert audit("sign", signed, "--key", pairs[1], "--replace")[0] == 0
    assert check_run(signed, public(pairs[1])).findings == ()
    assert check_run(signed, public(pairs[0])).exit_code == 1


def test_signing_uses_the_password_of_the_key(run: Path, tmp_path: Path, audit: Audit) -> None:
    keys.generate(tmp_path / "locked.pem", b"correct horse")
    (tmp_path / "password").write_text("correct horse\n")
    (tmp_path / "wrong").write_text("wrong\n")
    locked = ("sign", run, "--key", tmp_path / "locked.pem")
    assert audit(*locked)[0] == 2
    assert audit(*locked, "--password-file", tmp_path / "wrong")[0] == 2
    assert audit(*locked, "--password-file", tmp_path / "password")[0] == 0


def test_a_bad_key_is_one_line_and_costs_no_verification(
    once_signed: Path, pairs: list[Path], audit: Audit, tmp_path: Path
) -> None:
    (tmp_path / "junk.pub").write_text("junk")
    for key, code in ((tmp_path / "junk.pub", 2), (pairs[0], 2), (tmp_path / "absent.pub", 3)):
        found_code, out, err = audit("verify", once_signed, "--key", key)
        assert (found_code, out) == (code, "")
        assert err.count("\n") == 1


def test_the_golden_statement_of_version_1_is_read_for_ever() -> None:
    payload = dsse.parse((DATA / "golden-v1.dsse.json").read_bytes()).payload
    read = statement.parse(payload)
    assert read.to_bytes() == payload
    assert {*read.subjects} == {"inputs.manifest.json", "verdict.json"}


def test_errors_have_the_verifiers_exit_codes() -> None:
    assert SignatureInvalid("x").exit_code == 1
    assert EvidenceIncomplete("x").exit_code == 3


@pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("openssl", "sha256sum", "python3", "bash")),
    reason="a tool of the documented lines is not installed",
)
def test_the_documented_lines_check_a_run_without_this_project(
    signed: Path, pairs: list[Path], tmp_path: Path
) -> None:
    text = (Path(__file__).parents[2] / "docs/attestation.md").read_text()
    lines = text.split("```sh\n", 1)[1].split("```", 1)[0]

    def follow(pair: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", lines],
            cwd=tmp_path,
            env={**os.environ, "RUN": str(signed), "PUB": f"{pair}.pub"},
            capture_output=True,
            text=True,
            check=False,
        )

    done = follow(pairs[0])
    assert (done.returncode, done.stdout) == (0, "Signature Verified Successfully\n")
    assert follow(pairs[1]).returncode != 0
    (signed / SUMMARY).write_text("{}")
    assert f"{SUMMARY}: FAILED" in follow(pairs[0]).stdout
