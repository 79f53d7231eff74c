"""Signs a run folder, and checks what was signed against what lies there.

Only a run that the verifier has recomputed is signed, and only with the verdict it found. The
check looks at no time stamp and reads no evidence before the signatures hold, and judges no claim:
that is `verify`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvaudit import atomic, canonical, manifest
from kvaudit.attest import dsse, stamp, statement
from kvaudit.attest.keys import PrivateKey, PublicKey
from kvaudit.attest.report import UNCHECKED, AttestationReport
from kvaudit.attest.revoked import Revoked
from kvaudit.attest.statement import PAYLOAD_TYPE, Statement, Subject
from kvaudit.chain import INCOMPLETE, Finding
from kvaudit.errors import (
    EvidenceIncomplete,
    InputChanged,
    SignatureInvalid,
    TypedError,
    UnusableInput,
)
from kvaudit.safefs import Listing, SafeRoot
from kvaudit.timestamp import TimestampRefused
from kvaudit.verify import Verdict, verdict_bytes, verify

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


class RunNotVerified(TypedError):
    """The run does not verify, so that there is nothing to sign; `exit_code` is the verifier's."""

    def __init__(self, what: str, *, exit_code: int, **details: Any) -> None:
        self.exit_code = exit_code
        super().__init__(what, **details)


@dataclass(frozen=True)
class Signing:
    """What `sign_run` has done: which keys signed now, and how many signatures there are now."""

    added: tuple[str, ...]
    signatures: int
    subjects: int
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """A JSON object for `kvaudit sign --json`."""
        return {
            "added": list(self.added),
            "signatures": self.signatures,
            "subjects": self.subjects,
            "status": self.verdict.status,
        }


def sign_run(
    run_folder: str | Path,
    keys: Sequence[PrivateKey],
    *,
    replace: bool = False,
    drop_stamp: bool = False,
    failed_claims: bool = False,
) -> Signing:
    """Verifies a run and writes attestation.dsse.json into it, atomically.

    Signatures of the same statement by other keys stay. Signing again with one key changes nothing.

    Args:
        run_folder: a sealed run with its verdict.json.
        keys: one or more.
        replace: whether an envelope of another statement, which the run no longer is, may be
            dropped with its signatures.
        drop_stamp: whether a time stamp that another signature makes void may be dropped.
        failed_claims: whether a run of sound evidence is signed although a claim fails; a negative
            result is a result.

    Raises:
        RunNotVerified: the verifier finds something, or a claim fails and that was not allowed.
        EvidenceIncomplete: there is no verdict.json.
        InputChanged: the folder changed while it was signed.
        LockTimeout: others sign or stamp the run all the time.
        UnusableInput: as `verify`; or an envelope of another statement or a time stamp lies there
            that may not be dropped, or something cannot be written.
    """
    verdict = verify(run_folder)
    _refuse_unverified(verdict, failed_claims)
    with SafeRoot(run_folder) as root:
        made = _statement(root, verdict)
        payload = made.to_bytes()
        with stamp.alone(run_folder):
            found = _earlier(root, payload, replace)
            earlier = tuple(entry for entry in found if _genuine(entry, keys, payload))
            envelope = dsse.sign(payload, PAYLOAD_TYPE, keys, onto=earlier)
            grows = len(envelope["signatures"]) > len(earlier)
            _write(root, Path(run_folder), envelope if grows else None, drop_stamp)
    before = {entry.keyid for entry in earlier}
    added = tuple(dict.fromkeys(key.keyid for key in keys if key.keyid not in before))
    return Signing(added, len(envelope["signatures"]), len(made.subjects), verdict)


def check_run(
    run_folder: str | Path,
    keys: Sequence[PublicKey],
    threshold: int = 1,
    *,
    roots: Sequence[Certificate] = (),
    revoked: Revoked | None = None,
) -> AttestationReport:
    """Checks the attestation of a run: signatures, their time stamp, then every file against it.

    Args:
        run_folder: a run folder; `verify` says whether its claims hold.
        keys: whom the reader trusts.
        threshold: how many different ones must have signed.
        roots: certificates that are trusted to stamp times; where there are any, a time stamp must
            be there, and without any, one is only looked at: it must be of this envelope.
        revoked: keys whose signatures count no longer, or only those stamped before a time.

    Raises:
        UnusableInput: the envelope or its statement is malformed or too long, the folder cannot be
            read, or `keys` cannot reach `threshold`.
    """
    report = AttestationReport(True, keys=len({*keys}), threshold=threshold)
    with SafeRoot(run_folder) as root:
        listing = root.walk()
        if manifest.ATTESTATION not in listing.files:
            absent = Finding("incomplete", manifest.ATTESTATION, "is absent: nobody has signed")
            return dataclasses.replace(report, findings=(absent,))
        data = root.read(manifest.ATTESTATION, max_bytes=dsse.MAX_ENVELOPE_BYTES)
        missing: list[Finding] = []
        try:
            payload, signers = dsse.signers(
                data, PAYLOAD_TYPE, keys, threshold, where=manifest.ATTESTATION
            )
            there = stamp.look(root)
            stamped = stamp.check(root, data, roots) if roots else None
            if roots and stamped is None:
                message = "is absent: no authority says when it was signed"
                missing.append(Finding("incomplete", manifest.ATTESTATION_STAMP, message))
            time = None if stamped is None else stamped.latest
            signers = _counting(signers, threshold, revoked or Revoked(), time)
        except TimestampRefused as error:
            invalid = Finding("fails", manifest.ATTESTATION_STAMP, _said(error))
            return dataclasses.replace(report, findings=(invalid,))
        except SignatureInvalid as error:
            invalid = Finding("fails", manifest.ATTESTATION, _said(error))
            return dataclasses.replace(report, findings=(invalid, *missing))
        signed = statement.parse(payload)
        missing += _differences(root, listing, signed)
        findings = sorted(missing, key=lambda found: found.file)
        return dataclasses.replace(
            report,
            signers=tuple(key.keyid for key in signers),
            subjects=len(signed.subjects),
            findings=tuple(findings),
            stamped=None if stamped is None else stamped.text,
            stamp_unchecked=there and not roots,
        )


def look(run_folder: str | Path) -> AttestationReport:
    """What can be said of a time stamp without a key: it must be of the attestation that is there.

    Raises:
        UnusableInput: one of them is too long, or no regular file.
    """
    with SafeRoot(run_folder) as root:
        try:
            stamp.look(root)
        except TimestampRefused as error:
            found = Finding("fails", manifest.ATTESTATION_STAMP, _said(error))
            return AttestationReport(checked=False, findings=(found,))
    return UNCHECKED


def _counting(
    signers: tuple[PublicKey, ...], threshold: int, revoked: Revoked, stamped: datetime | None
) -> tuple[PublicKey, ...]:
    """The signers that are not revoked.

    Raises:
        SignatureInvalid: they are fewer than needed.
    """
    reasons = {key: revoked.refuses(key.keyid, stamped) for key in signers}
    counting = tuple(key for key, reason in reasons.items() if reason is None)
    if len(counting) < threshold:
        refused = [f"key {key.keyid[:16]} {reason}" for key, reason in reasons.items() if reason]
        raise SignatureInvalid(
            "too few of the given keys have signed whose signatures count",
            expected=threshold,
            found=f"{len(counting)}; {'; '.join(refused)}",
        )
    return counting


def _differences(root: SafeRoot, listing: Listing, signed: Statement) -> Iterator[Finding]:
    """Where the folder is not what was signed; a file of another length is never read."""
    files = statement.evidence_files(listing)
    for path in sorted({*files} - {*signed.subjects}):
        yield Finding("fails", path, "is not among the files that were signed")
    for path in sorted({*signed.subjects} - {*files}):
        yield Finding("incomplete", path, "was signed and is absent")
    there = {path: files[path] for path in signed.subjects if path in files}
    same_length = {p: size for p, size in there.items() if size == signed.subjects[p].bytes}
    found = statement.hashed(root, same_length)
    for path in there:
        if found.get(path) != signed.subjects[path].sha256:
            yield Finding("fails", path, "is not the file that was signed")
    if found.get(manifest.VERDICT) is None:
        return
    data = root.read(manifest.VERDICT, max_bytes=manifest.MAX_MANIFEST_BYTES)
    try:
        same = canonical.dumps(statement.essentials(data)) == canonical.dumps(signed.predicate)
    except UnusableInput:
        same = False
    if not same:
        yield Finding("fails", manifest.VERDICT, "is not the verdict that was signed")


def _refuse_unverified(verdict: Verdict, failed_claims: bool) -> None:
    if verdict.findings:
        first = verdict.findings[0]
        raise RunNotVerified(
            f"the run does not verify and is not signed: {len(verdict.findings)} findings, first",
            where=first.file,
            found=first.message,
            hint="kvaudit verify names all; a stale verdict.json: kvaudit verify --write",
            exit_code=verdict.exit_code,
        )
    if verdict.programs_reason is not None:
        raise RunNotVerified(
            "not all recorded programs were run again, and the run is not signed",
            found=verdict.programs_reason,
            hint="sign where its programs can be run again",
            exit_code=INCOMPLETE,
        )
    failing = [
        f"{claim.id} of {claim.model}" for claim in verdict.claims if claim.verdict == "fails"
    ]
    if failing and not failed_claims:
        raise RunNotVerified(
            "claims of this run fail and it is not signed",
            found=", ".join(failing),
            hint="--failed-claims signs sound evidence of a negative result",
            exit_code=verdict.exit_code,
        )


def _write(root: SafeRoot, folder: Path, envelope: dict[str, Any] | None, drop_stamp: bool) -> None:
    """Writes a new envelope, if there is one, and drops a time stamp that is not of what is there.

    In this order: a full disk costs no stamp. A kill between the two leaves one of other bytes,
    which `verify` reports and the next signature or stamp removes.
    """
    stamped = folder / manifest.ATTESTATION_STAMP
    holds = stamp.holds(root)
    if envelope is not None and holds and not drop_stamp:
        raise UnusableInput(
            "the attestation is stamped, and another signature makes the time stamp void",
            where=stamped,
            hint="--drop-stamp drops it; a new one says a later time",
        )
    path = folder / manifest.ATTESTATION
    try:
        if envelope is not None:
            atomic.write_bytes(path, dsse.to_bytes(envelope))
        if envelope is not None or not holds:
            stamped.unlink(missing_ok=True)
    except OSError as error:
        raise UnusableInput(
            "the attestation cannot be written", where=path, found=error.strerror or error
        ) from None


def _said(error: TypedError) -> str:
    """The error without its place, which a finding names already."""
    said = type(error)(error.what, expected=error.expected, found=error.found, hint=error.hint)
    return said.message()


def _statement(root: SafeRoot, verdict: Verdict) -> Statement:
    """The statement of a run that was verified a moment ago, and has not changed since."""
    listing = root.walk()
    if manifest.VERDICT not in listing.files:
        raise EvidenceIncomplete(
            "the run has no verdict to sign", where=manifest.VERDICT, hint="kvaudit verify --write"
        )
    found = root.read(manifest.VERDICT, max_bytes=manifest.MAX_MANIFEST_BYTES)
    if found != verdict_bytes(verdict):
        raise RunNotVerified(
            "the verdict was not recomputed to the byte and is not signed",
            where=manifest.VERDICT,
            found=verdict.programs_reason,
            hint="sign where its programs can be run again",
            exit_code=INCOMPLETE,
        )
    files = statement.evidence_files(listing)
    digest_of = statement.hashed(root, files)
    expected = statement.listed(root, verdict)
    changed = sorted(
        path
        for path in {*files, *expected}
        if digest_of.get(path) is None or digest_of[path] != expected.get(path)
    )
    if changed:
        raise InputChanged(
            "the run changed while it was signed",
            where=", ".join(changed[:5]),
            hint="sign it when nothing writes to it",
        )
    subjects = {path: Subject(size, expected[path]) for path, size in files.items()}
    return Statement(subjects, statement.essentials(found))


def _genuine(entry: dsse.Signed, keys: Sequence[PrivateKey], payload: bytes) -> bool:
    """False for a signature in the name of one of our own keys that this key did not make."""
    data = dsse.pae(PAYLOAD_TYPE, payload)
    return all(
        key.public.verifies(entry.signature, data) for key in keys if key.keyid == entry.keyid
    )


def _earlier(root: SafeRoot, payload: bytes, replace: bool) -> tuple[dsse.Signed, ...]:
    """The signatures of this same statement that lie there already."""
    try:
        data = root.read(manifest.ATTESTATION, max_bytes=dsse.MAX_ENVELOPE_BYTES)
        envelope = dsse.parse(data, where=manifest.ATTESTATION)
    except EvidenceIncomplete:
        return ()
    except UnusableInput:
        if replace:
            return ()
        raise
    if (envelope.payload, envelope.payload_type) == (payload, PAYLOAD_TYPE):
        return envelope.signatures
    if replace:
        return ()
    raise UnusableInput(
        "another statement than this run's is signed there",
        where=manifest.ATTESTATION,
        hint="if the run has changed since, --replace drops that statement and its signatures",
    )
