"""Filing: a draft becomes a registration, numbered, chained, signed, and never changed again.

Nothing is filed that could not be run: the working tree must be that of a commit and of the draft,
and every criterion must read fields that a summary can have. This module must not know how a run
is judged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvaudit import atomic, canonical, locks, manifest, schemas, timestamp
from kvaudit.errors import TypedError, UnusableInput
from kvaudit.history import commit_files
from kvaudit.prereg import draft, ledger, registration
from kvaudit.prereg.errors import RegistrationClosed, RegistrationInvalid, TreeDiffers
from kvaudit.prereg.registration import Registration
from kvaudit.safefs import read_file

if TYPE_CHECKING:
    from kvaudit.attest.keys import PrivateKey

_CHECKED = ("source", "configuration", "models", "datasets", "locks", "matrix")


def file(
    path: str | Path,
    keys: Sequence[PrivateKey],
    *,
    folder: str | Path,
    repository: str | Path = ".",
    filed: str | None = None,
) -> Registration:
    """Files a draft as the next registration of the chain.

    Args:
        path: the draft, filled in.
        keys: who signs it; at least one.
        folder: of the registrations; made if it is absent.
        repository: the working tree that the draft was made from.
        filed: for tests; the present otherwise.

    Raises:
        RegistrationChanged: the chain is broken, so that nothing can be hung onto it.
        TreeDiffers: the working tree has uncommitted changes, is no git repository, or is not the
            draft's.
        ExpressionInvalid: a criterion or prediction does not parse or reads what no summary has.
        RegistrationInvalid: the draft contradicts itself, is dated before its predecessor, or is
            filed already and open.
        UnusableInput: the draft is not filled in; names every field that is empty.
    """
    written = draft.read(path)
    if empty := list(draft.unfilled(written)):
        raise UnusableInput(
            "the draft is not filled in",
            where=Path(path).name,
            found=f"empty: {', '.join(empty)}",
            hint="fill them in",
        )
    _check_tree(written, repository)
    with _writing(folder):
        os.makedirs(folder, exist_ok=True)
    with locked(folder):
        chain = ledger.read(folder)
        chain.require_sound()
        last = chain.entries[-1] if chain.entries else None
        value = {
            **written,
            "kind": "registration",
            "number": last.number + 1 if last else 1,
            "filed": filed or manifest.now(),
            "predecessor": None,
        }
        if last is not None and last.registration is not None:
            value["predecessor"] = {
                "number": last.number,
                "sha256": last.registration.sha256,
            }
            if value["filed"] < last.registration.value["filed"]:
                raise RegistrationInvalid(
                    "the filing is dated before its predecessor",
                    expected=f"not before {last.registration.value['filed']}",
                    found=value["filed"],
                    hint="is the clock right?",
                )
        check_supersedes(value, chain)
        _check_new(value, chain)
        schemas.validate(value, "registration", where=Path(path).name)
        for problem in registration.problems(value):
            raise RegistrationInvalid(problem, where=Path(path).name)
        return _write(Path(folder), value, keys)


def check_supersedes(value: Mapping[str, Any], chain: ledger.Ledger) -> None:
    """Refuses a draft that takes the place of a registration which was not amended for it.

    Raises:
        RegistrationInvalid: it is absent, another one, not amended, or superseded already.
    """
    named = value["supersedes"]
    if named is None:
        return
    entry = next((one for one in chain.entries if one.number == named["number"]), None)
    if entry is None or entry.registration is None or entry.registration.sha256 != named["sha256"]:
        raise RegistrationInvalid("the draft supersedes a registration that is not there")
    if entry.state != "amended":
        raise RegistrationInvalid(
            "the draft supersedes a registration that was not amended",
            where=entry.label,
            found=entry.state,
            hint="kvaudit prereg amend closes it",
        )
    for other in chain.entries:
        if other.registration is not None and other.registration.value["supersedes"] == named:
            raise RegistrationInvalid(
                "the amended registration is superseded already", where=other.label
            )


def _check_new(value: Mapping[str, Any], chain: ledger.Ledger) -> None:
    """Refuses what is registered already and open: one run would have two seeds to choose from.

    A later commit of the same source tree makes no other registration.

    Raises:
        RegistrationInvalid: names the registration.
    """
    stated = _stated(value)
    for entry in chain.hanging:
        if entry.registration is not None and _stated(entry.registration.value) == stated:
            raise RegistrationInvalid(
                "the draft is filed already, and its registration is open",
                where=entry.label,
                hint="run that one, or change the draft",
            )


def _stated(value: Mapping[str, Any]) -> bytes:
    """What a registration states, without its place in the chain and the commit of its tree."""
    place = ("number", "filed", "predecessor")
    source = {key: part for key, part in value["source"].items() if key != "commit"}
    rest = {key: part for key, part in value.items() if key not in place}
    return canonical.dumps({**rest, "source": source})


def accept_token(
    folder: str | Path,
    number: int,
    token: bytes,
    trust: ledger.Trust,
    *,
    where: str,
    runs: Sequence[str] = (),
) -> timestamp.Stamp:
    """Adds a time stamp to a registration; its seed is another one from then on.

    Args:
        folder: of the registrations.
        number: which one.
        token: the authority's reply.
        trust: the roots to check it against.
        where: what to call the reply in an error.
        runs: digests of runs of the registration that are known.

    Raises:
        RegistrationClosed: there is a time stamp, a run or an outcome already.
        TimestampRefused: and its kinds, as `timestamp.verify`; also if it is older than the filing.
    """
    with locked(folder):
        found = open_registration(folder, number, what="a time stamp", runs=runs).registration
        assert found is not None
        if found.token_sha256 is not None:
            raise RegistrationClosed("the registration has a time stamp already", where=found.label)
        document = _document(found)
        request = found.folder / registration.REQUEST
        asked = read_file(request, timestamp.MAX_BYTES) if request.exists() else None
        stamp = timestamp.verify(token, document, trust.roots, where=where, asked=asked)
        if stamp.text < found.value["filed"]:
            raise timestamp.TimestampRefused(
                "the time stamp is older than the filing",
                where=where,
                expected=f"not before {found.value['filed']}",
                found=stamp.text,
                hint="is the clock right?",
            )
        with _writing(found.folder):
            atomic.write_bytes(found.folder / registration.TOKEN, token)
        return stamp


def request_token(folder: str | Path, number: int) -> Path:
    """Writes the request for a time stamp of a registration and returns its path.

    Raises:
        RegistrationClosed: there is a time stamp or an outcome already.
    """
    with locked(folder):
        found = open_registration(folder, number, what="a time stamp").registration
        assert found is not None
        if found.token_sha256 is not None:
            raise RegistrationClosed("the registration has a time stamp already", where=found.label)
        path = found.folder / registration.REQUEST
        document = _document(found)
        with _writing(found.folder):
            atomic.write_bytes(path, timestamp.request(document))
        return path


def _document(found: Registration) -> bytes:
    """The bytes that a time stamp of a registration is of."""
    return read_file(found.folder / registration.REGISTRATION, registration.MAX_BYTES)


def open_registration(
    folder: str | Path, number: int, *, what: str, runs: Sequence[str] = ()
) -> ledger.Entry:
    """The entry of a registration that is still open, in a chain that is sound.

    Args:
        folder: of the registrations.
        number: which one.
        what: what is asked for, to say that it comes too late.
        runs: digests of runs that are known; there must be none.

    Raises:
        RegistrationChanged: the chain is broken.
        RegistrationClosed: the registration has an outcome, or a run is known.
        EvidenceIncomplete: there is no such registration.
    """
    chain = ledger.read(folder)
    chain.require_sound()
    entry = chain.entry(number)
    if entry.outcome is not None:
        raise RegistrationClosed(
            f"{what} comes too late: the registration is closed",
            where=entry.label,
            found=entry.state,
        )
    if runs:
        raise RegistrationClosed(
            f"{what} comes too late: there is a run of the registration",
            where=entry.label,
            found=f"inputs manifest {runs[0]}",
            hint="it can be adjudicated, or abandoned with a reason",
        )
    return entry


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Holds the folder of registrations, so that no two processes file one number.

    What a process left there that was killed is removed first, or finished.

    Raises:
        UnusableInput: the folder is absent, another process holds it, or it cannot be written.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UnusableInput(
            "the folder of registrations cannot be opened", where=folder, found=error.strerror
        ) from None
    try:
        if not locks.take(descriptor):
            raise UnusableInput("another process is filing", where=folder)
        _recover(Path(folder))
        yield
    finally:
        os.close(descriptor)


def recover(folder: str | Path) -> None:
    """Removes or finishes what a process left that was killed; nothing where there is no folder.

    Raises:
        UnusableInput: as `locked`.
    """
    if Path(folder).is_dir():
        with locked(folder):
            pass


def _recover(folder: Path) -> None:
    with _writing(folder):
        if (folder / registration.SCRATCH).exists():
            shutil.rmtree(folder / registration.SCRATCH)
        for _, path in registration.numbered(folder):
            for left in path.iterdir():
                if registration.is_temporary(left.name) and not left.is_dir():
                    left.unlink()
            _finish_outcome(path)


def _finish_outcome(folder: Path) -> None:
    """Writes the outcome that an envelope holds where a kill came between the two.

    An envelope that holds none of this registration stays alone, and `ledger` reports it.
    """
    from kvaudit.attest import dsse

    path = folder / registration.OUTCOME
    envelope = folder / registration.OUTCOME_ENVELOPE
    if os.path.lexists(path) or not envelope.is_file():
        return
    try:
        data = dsse.parse(read_file(envelope, dsse.MAX_ENVELOPE_BYTES), where=str(envelope)).payload
        ledger.parse_outcome(data, registration.load(folder), str(path))
    except TypedError:
        return
    atomic.write_bytes(path, data)


@contextmanager
def _writing(folder: str | Path) -> Iterator[None]:
    """Says in one line why something cannot be written."""
    try:
        yield
    except OSError as error:
        raise UnusableInput(
            "the registration cannot be written", where=folder, found=error.strerror or error
        ) from None


def write_signed(
    folder: Path,
    names: tuple[str, str],
    value: Mapping[str, Any],
    payload_type: str,
    keys: Sequence[PrivateKey],
) -> None:
    """Writes a document and, if there are keys, its envelope: both, or none of them.

    The envelope comes first. It holds the document, so that one which a kill left alone is enough
    to finish (`locked`).

    Args:
        folder: that exists, and holds neither of them.
        names: of the document and of the envelope.
        value: the document.
        payload_type: of the envelope.
        keys: who signs; may be none.

    Raises:
        UnusableInput: it cannot be written.
    """
    from kvaudit.attest import dsse

    data = canonical.dumps(value) + b"\n"
    document, envelope = (folder / name for name in names)
    with _writing(folder):
        try:
            if keys:
                atomic.write_bytes(envelope, dsse.to_bytes(dsse.sign(data, payload_type, keys)))
            atomic.write_bytes(document, data)
        except BaseException:
            document.unlink(missing_ok=True)
            envelope.unlink(missing_ok=True)
            raise


def _write(folder: Path, value: Mapping[str, Any], keys: Sequence[PrivateKey]) -> Registration:
    if not keys:
        raise UnusableInput("a registration is signed", hint="--key FILE; kvaudit keygen makes one")
    target = folder / f"{value['number']:04d}-{value['name']}"
    scratch = folder / registration.SCRATCH
    try:
        with _writing(folder):
            os.mkdir(scratch)
            names = (registration.REGISTRATION, registration.ENVELOPE)
            write_signed(scratch, names, value, registration.PAYLOAD_TYPE, keys)
            os.rename(scratch, target)
            atomic.sync_folder(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return registration.load(target)


def _check_tree(written: dict[str, Any], repository: str | Path) -> None:
    """The draft's facts are those of a committed working tree; the commit is set to this one's."""
    found, dirty = draft.derived(written["configuration"]["value"], repository, written["datasets"])
    if dirty is None:
        raise TreeDiffers(
            "the working tree belongs to no commit, so that nobody could check it out",
            where=repository,
            hint="file from a git repository",
        )
    files = found["source"]["files"]
    if dirty:
        names = registration.differences(commit_files(repository, found["source"]["commit"]), files)
        raise TreeDiffers(
            "the working tree has changes that are not committed",
            where=", ".join(names[:10]),
            hint="commit them, and draft again if they are to be part of the registration",
        )
    different = registration.differences(written["source"]["files"], files)
    if different:
        raise TreeDiffers(
            "the working tree is not the draft's",
            where=", ".join(different[:10]),
            hint="check out the draft's commit, or draft again",
        )
    written["source"]["commit"] = found["source"]["commit"]
    for key in _CHECKED:
        if canonical.dumps(written[key]) != canonical.dumps(found[key]):
            raise TreeDiffers(
                f"the draft's {key} is not what its configuration and the working tree give",
                where=key,
                hint="draft again; criteria and predictions can be copied",
            )
