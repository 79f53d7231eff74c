"""The chain of registrations: every file looked at, every link checked, what hangs named.

Registrations are numbered from 1 without a gap, each names the digest of the one before, is signed,
and ends in one outcome. A change to any of them shows in its own signature, in the link of the next
one, or in both. This module must not know how a criterion is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvaudit import canonical, schemas, timestamp
from kvaudit.chain import Finding, exit_code
from kvaudit.errors import EvidenceIncomplete, TypedError, UnusableInput
from kvaudit.prereg import registration
from kvaudit.prereg.errors import RegistrationChanged
from kvaudit.prereg.registration import Registration
from kvaudit.safefs import SafeRoot

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from kvaudit.attest.keys import PublicKey


@dataclass(frozen=True)
class Trust:
    """Whom the reader trusts: signers' keys, of which one must have signed, and stamping roots.

    What is empty is not checked.
    """

    keys: Sequence[PublicKey] = ()
    roots: Sequence[Certificate] = ()


@dataclass(frozen=True)
class Entry:
    """One registration as it lies in its folder.

    Attributes:
        label: the folder's name.
        number: as the folder has it.
        registration: None where it cannot be read.
        stamp: when it is known to have existed; None without a time stamp.
        outcome: its outcome document, if there is a sound one.
        outcome_signed: whether an envelope lies beside it.
        findings: what is wrong with it; `file` is relative to the folder of registrations.
    """

    label: str
    number: int
    registration: Registration | None
    stamp: timestamp.Stamp | None = None
    outcome: Mapping[str, Any] | None = None
    outcome_signed: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def state(self) -> str:
        """`open`, which hangs, or how it ended."""
        return "open" if self.outcome is None else str(self.outcome["outcome"])


@dataclass(frozen=True)
class Ledger:
    """Every registration, by number, and what is wrong with the chain as a whole."""

    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...] = ()
    trust: Trust = field(default_factory=Trust)

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Those of the chain first, then the entries'."""
        return self.findings + tuple(one for entry in self.entries for one in entry.findings)

    @property
    def hanging(self) -> tuple[Entry, ...]:
        """Registrations without an outcome."""
        return tuple(entry for entry in self.entries if entry.outcome is None)

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, as the verifier's; what hangs is no fault."""
        return exit_code(self.all_findings)

    def entry(self, number: int) -> Entry:
        """The entry of a number, after `require_sound`.

        Raises:
            EvidenceIncomplete: there is none.
        """
        for one in self.entries:
            if one.number == number:
                return one
        raise EvidenceIncomplete(
            "there is no registration of this number", expected=f"{number:04d}"
        )

    def require_sound(self) -> None:
        """Refuses to build on a chain that is broken anywhere.

        Raises:
            RegistrationChanged: with the first finding.
        """
        findings = self.all_findings
        if findings:
            more = len(findings) - 1
            raise RegistrationChanged(
                findings[0].message,
                where=findings[0].file,
                hint=f"kvaudit prereg status shows {more} more" if more else None,
            )


def read(folder: str | Path, trust: Trust | None = None) -> Ledger:
    """Reads all registrations and checks how they hang together.

    Args:
        folder: of the registrations; an absent one holds none.
        trust: without keys, envelopes are compared with what they envelop and not verified;
            without roots, time stamps likewise.
    """
    trust = trust or Trust()
    folder = Path(folder)
    if not folder.is_dir():
        return Ledger((), (), trust)
    found = list(registration.numbered(folder))
    names = {path.name for _, path in found}
    findings = [
        Finding("fails", path.name, "is no registration: a folder NNNN-name is one")
        for path in sorted(folder.iterdir())
        if path.name not in names and not _stands_beside(path)
    ]
    entries = [_entry(number, path, trust) for number, path in found]
    findings += _number_findings([entry.number for entry in entries])
    linked = [_linked(entry, entries) for entry in entries]
    return Ledger(tuple(linked), tuple(findings), trust)


def _stands_beside(path: Path) -> bool:
    """Whether something may lie beside the registrations: a text on them, and our own scratch."""
    if path.name == registration.SCRATCH:
        return True
    return path.name == "README.md" and path.is_file() and not path.is_symlink()


def signed_payload(
    envelope: bytes, payload_type: str, document: bytes, keys: Sequence[PublicKey], where: str
) -> None:
    """Checks that an envelope holds exactly a document, and that one of `keys` has signed it.

    Raises:
        RegistrationChanged: it holds another document.
        SignatureInvalid: none of them has, or a signature is forged.
        UnusableInput: it is no envelope.
    """
    from kvaudit.attest import dsse

    parsed = dsse.parse(envelope, where=where)
    if parsed.payload_type != payload_type or parsed.payload != document:
        raise RegistrationChanged("was changed after it was signed", where=where)
    if keys:
        dsse.signers(envelope, payload_type, keys, where=where)


def _entry(number: int, path: Path, trust: Trust) -> Entry:
    label = path.name
    try:
        found = registration.load(path)
        with SafeRoot(path) as root:
            listing = root.walk()
            files = {
                name: root.read(name, max_bytes=registration.MAX_BYTES)
                for name in sorted({*listing.files} & registration.FILES)
            }
    except TypedError as error:
        severity: Any = "incomplete" if isinstance(error, EvidenceIncomplete) else "fails"
        return Entry(label, number, None, findings=(Finding(severity, label, str(error)),))
    findings = [
        Finding("fails", f"{label}/{name}", "does not belong into a registration")
        for name in sorted({*listing.files, *listing.folders} - registration.FILES)
        if name in listing.folders or not registration.is_temporary(name)
    ]
    document = files[registration.REGISTRATION]
    findings += _envelope_findings(
        label, files, registration.REGISTRATION, registration.ENVELOPE, trust
    )
    stamp = None
    if registration.TOKEN in files:
        where = f"{label}/{registration.TOKEN}"
        try:
            stamp = timestamp.read(files[registration.TOKEN], document, where=where)
            if stamp.text < found.value["filed"]:
                findings.append(Finding("fails", where, "is older than the filing"))
            if trust.roots:
                asked = files.get(registration.REQUEST)
                timestamp.verify(
                    files[registration.TOKEN], document, trust.roots, where=where, asked=asked
                )
        except TypedError as error:
            findings.append(Finding("fails", where, str(error)))
    outcome = None
    if registration.OUTCOME in files:
        where = f"{label}/{registration.OUTCOME}"
        try:
            outcome = parse_outcome(files[registration.OUTCOME], found, where)
        except TypedError as error:
            findings.append(Finding("fails", where, str(error)))
        findings += _envelope_findings(
            label, files, registration.OUTCOME, registration.OUTCOME_ENVELOPE, trust
        )
    elif registration.OUTCOME_ENVELOPE in files:
        where = f"{label}/{registration.OUTCOME}"
        findings.append(Finding("incomplete", where, "is absent, its signature is there"))
    signed = registration.OUTCOME_ENVELOPE in files
    return Entry(label, number, found, stamp, outcome, signed, tuple(findings))


def _envelope_findings(
    label: str, files: Mapping[str, bytes], name: str, envelope: str, trust: Trust
) -> Iterator[Finding]:
    where = f"{label}/{name}"
    if envelope not in files:
        if name == registration.OUTCOME and not trust.keys:
            return  # an outcome may go unsigned; who asks for signatures is told
        yield Finding("incomplete", where, f"is not signed: {envelope} is absent")
        return
    types = {
        registration.REGISTRATION: registration.PAYLOAD_TYPE,
        registration.OUTCOME: registration.OUTCOME_PAYLOAD_TYPE,
    }
    try:
        signed_payload(files[envelope], types[name], files[name], trust.keys, f"{label}/{envelope}")
    except RegistrationChanged:
        yield Finding("fails", where, "was changed after it was signed")
    except TypedError as error:
        yield Finding("fails", f"{label}/{envelope}", str(error))


def parse_outcome(data: bytes, found: Registration, where: str) -> Mapping[str, Any]:
    """The outcome of a registration.

    Raises:
        UnusableInput: the bytes are none of its schema, or of another registration.
    """
    value: Mapping[str, Any] = canonical.loads_document(
        data, where=where, max_bytes=registration.MAX_BYTES
    )
    schemas.validate(value, "registration-outcome", where=where)
    if value["registration"] != found.reference():
        raise UnusableInput("the outcome is of another registration, or of another time stamp")
    if value["closed"] < found.value["filed"]:
        raise UnusableInput("the outcome is older than the filing", found=value["closed"])
    return value


def _number_findings(numbers: Sequence[int]) -> Iterator[Finding]:
    for number in sorted({number for number in numbers if numbers.count(number) > 1}):
        yield Finding("fails", f"{number:04d}-*", "two registrations have one number")
    for number in sorted({*range(1, max(numbers, default=0))} - {*numbers}):
        yield Finding("incomplete", f"{number:04d}-*", "the registration of this number is missing")


def _linked(entry: Entry, entries: Sequence[Entry]) -> Entry:
    """An entry with what its links to earlier ones show."""
    found = entry.registration
    if found is None:
        return entry
    where = f"{entry.label}/{registration.REGISTRATION}"
    texts = [] if found.number == entry.number else ["has not the number of its folder"]
    named = found.value["predecessor"]
    if (named is None) != (found.number == 1):
        texts.append("names no predecessor" if named is None else "is the first and names another")
    elif named is not None and named["number"] != found.number - 1:
        texts.append(f"names registration {named['number']:04d} as the one before it")
    elif named is not None:
        texts += _link_problems(named, entries, "predecessor", found)
    superseded = found.value["supersedes"]
    if superseded is not None:
        if superseded["number"] >= found.number:
            texts.append("supersedes a registration that is not older")
        texts += _link_problems(superseded, entries, "superseded registration", found)
        if any(one.number == superseded["number"] and one.state != "amended" for one in entries):
            texts.append(f"supersedes {superseded['number']:04d}, which was not amended")
    findings = tuple(Finding("fails", where, text) for text in texts)
    return replace(entry, findings=entry.findings + findings)


def _link_problems(
    named: Mapping[str, Any], entries: Sequence[Entry], what: str, found: Registration
) -> Iterator[str]:
    number = named["number"]
    others = [one for one in entries if one.number == number]
    if not others:
        yield f"its {what} {number:04d} is missing"
    for other in others:
        if other.registration is None:
            continue
        if other.registration.sha256 != named["sha256"]:
            yield f"its {what} {other.label} has not the digest that it names"
        elif other.registration.value["filed"] > found.value["filed"]:
            yield f"is dated before its {what} {other.label}"
