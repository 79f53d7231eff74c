"""How a registration ends: an outcome is written into its folder once, and never changed.

Adjudicated on a run, amended before any result in favour of a new draft, or abandoned; the two
latter with a reason. This module must not know how a verdict is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvaudit import digests, manifest, schemas
from kvaudit.chain import Finding
from kvaudit.errors import UnusableInput
from kvaudit.prereg import RESULTS, draft, filing, ledger, registration
from kvaudit.prereg.registration import Registration
from kvaudit.safefs import SafeRoot

if TYPE_CHECKING:
    from kvaudit.attest.keys import PrivateKey

_LEVELS = ("*", "*/*")


def known_runs(results: str | Path, number: int) -> tuple[str, ...]:
    """Digests of the inputs manifests of runs of a registration, finished or not, sorted.

    Args:
        results: a folder of run folders, or of folders of them.
        number: of the registration.

    Raises:
        UnusableInput: an inputs manifest there cannot be read.
    """
    found = (digest for path, digest, named in _registered(results) if named["number"] == number)
    return tuple(sorted(set(found)))


def strays(results: str | Path, chain: ledger.Ledger) -> Iterator[Finding]:
    """Runs that name a registration which the chain does not have, or another of that number.

    Args:
        results: as for `known_runs`.
        chain: all registrations.

    Raises:
        UnusableInput: as `known_runs`.
    """
    there = {one.number: one.registration for one in chain.entries}
    for path, _, named in _registered(results):
        label, found = f"registration {named['number']:04d}", there.get(named["number"])
        if named["number"] not in there:
            yield Finding("incomplete", str(path), f"names {label}, which is missing")
        elif found is not None and found.sha256 != named["sha256"]:
            yield Finding("fails", str(path), f"names another {label} than lies there")


def _registered(results: str | Path) -> Iterator[tuple[Path, str, Mapping[str, Any]]]:
    """Every run of a registration: its inputs manifest, the digest of it, and what it names."""
    for level in _LEVELS:
        for path in sorted(Path(results).glob(f"{level}/{manifest.INPUTS}")):
            with SafeRoot(path.parent) as root:
                data = root.read(path.name, max_bytes=manifest.MAX_MANIFEST_BYTES)
            named = manifest.parse(data, "inputs", where=str(path))["registration"]
            if named is not None:
                yield path, digests.sha256_bytes(data), named


def close(
    folder: str | Path,
    found: Registration,
    value: Mapping[str, Any],
    keys: Sequence[PrivateKey] = (),
) -> Path:
    """Writes the outcome of an open registration and returns its path.

    Raises:
        RegistrationClosed: it has one already.
        RegistrationChanged: the chain is broken.
        UnusableInput: the value does not conform to schema registration-outcome.v1.json.
    """
    schemas.validate(value, "registration-outcome", where=registration.OUTCOME)
    with filing.locked(folder):
        filing.open_registration(folder, found.number, what="an outcome")
        names = (registration.OUTCOME, registration.OUTCOME_ENVELOPE)
        filing.write_signed(found.folder, names, value, registration.OUTCOME_PAYLOAD_TYPE, keys)
    return found.folder / registration.OUTCOME


def abandon(
    folder: str | Path,
    number: int,
    reason: str,
    *,
    keys: Sequence[PrivateKey] = (),
    results: str | Path = RESULTS,
) -> Path:
    """Abandons a registration; runs of it that are known are named, so that none is passed over.

    Raises:
        RegistrationClosed, RegistrationChanged, UnusableInput: as `close`.
        EvidenceIncomplete: there is no such registration.
    """
    filing.recover(folder)
    found = filing.open_registration(folder, number, what="abandoning").registration
    assert found is not None
    value = _without_run("abandoned", found, reason, known_runs(results, number))
    return close(folder, found, value, keys)


def amend(
    folder: str | Path,
    number: int,
    reason: str,
    *,
    into: str | Path,
    repository: str | Path = ".",
    keys: Sequence[PrivateKey] = (),
    results: str | Path = RESULTS,
) -> tuple[Path, Path]:
    """Closes a registration that has no result yet, and drafts the one that takes its place.

    Returns:
        The outcome's path and the new draft's.

    Raises:
        RegistrationClosed: there is an outcome, or a run is known.
        RegistrationChanged, UnusableInput, EvidenceIncomplete: as `abandon`.
    """
    filing.recover(folder)
    runs = known_runs(results, number)
    found = filing.open_registration(folder, number, what="an amendment", runs=runs).registration
    assert found is not None
    value = _without_run("amended", found, reason, ())
    drafted = draft.new(
        found.name,
        found.value["configuration"]["value"],
        repository,
        datasets=found.value["datasets"],
        supersedes=found,
    )
    path = draft.write(into, drafted)
    try:
        return close(folder, found, value, keys), path
    except BaseException:
        path.unlink()
        raise


def _without_run(
    outcome: str, found: Registration, reason: str, runs: Sequence[str]
) -> dict[str, Any]:
    if not reason.strip():
        raise UnusableInput("an outcome without a run has a reason", hint="--reason TEXT")
    return {
        "kind": "registration-outcome",
        "version": 1,
        "outcome": outcome,
        "registration": found.reference(),
        "closed": manifest.now(),
        "reason": reason.strip(),
        "runs": list(runs),
        "run": None,
        "criteria": [],
        "predictions": [],
    }
