"""Exports a verified run as an RO-Crate: the evidence, the workflow, and what was made from what.

    ro-crate-metadata.json      what there is, as linked data (kvaudit.crate_graph)
    README.md                   the same in four lines
    run/                        the run folder, byte for byte; `kvaudit verify` accepts it
    source/                     Snakefile, rules and stage scripts with their registered digests

A crate is a function of the run, its source and the licence: two exports are the same bytes. This
module must not know the vocabulary of the metadata.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit import atomic, chain, crate_graph, digests, history, manifest, timestamp
from kvaudit.attest import dsse, statement
from kvaudit.crate_graph import METADATA, RUN_FOLDER, SOURCE_FOLDER
from kvaudit.errors import EvidenceIncomplete, InputChanged, UnusableInput
from kvaudit.safefs import SafeRoot
from kvaudit.verify import Verdict, verify

MAX_SOURCE_BYTES = 4 * 1024 * 1024

_WORKFLOW = re.compile(r"Snakefile|rules/[A-Za-z0-9_]+\.smk|workflow/stages/[A-Za-z0-9_]+\.py")
_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class File:
    """One file of a crate: its length in bytes, its digest, and how to get it."""

    size: int
    sha256: str
    read: Callable[[], bytes]


def export(
    run_folder: str | Path,
    into: str | Path,
    *,
    source: str | Path = ".",
    licence: str = "Apache-2.0",
) -> int:
    """Verifies the evidence of a run and writes its crate; returns the number of files.

    Recorded programs are not run again: that is `kvaudit verify`'s work, and what it found lies in
    verdict.json.

    Args:
        run_folder: a sealed run with its verdict.json.
        into: a new folder, or a new file ending in .zip.
        source: the source tree; files that have changed since are taken from the history of it.
        licence: an SPDX identifier; its letters are looked at, not SPDX's list.

    Raises:
        InputChanged: the evidence does not verify, or the registered source is not to be had.
        EvidenceIncomplete: something of the run, or its verdict, is absent.
        UnusableInput: `into` exists or cannot be written, or the run is unusable, or what lies
            there as attestation is none, or its time stamp is of another.
    """
    into = Path(into)
    if os.path.lexists(into):
        raise UnusableInput("the crate's place is taken", where=into, hint="name a new one")
    if not _LICENCE.fullmatch(licence):
        raise UnusableInput(
            "the licence cannot be an SPDX identifier",
            expected="letters, digits, `.`, `+` and `-`, at most 64, as in CC-BY-4.0",
            found=licence,
        )
    verdict = verify(run_folder, programs=False)
    if verdict.findings:
        first = verdict.findings[0]
        kind = EvidenceIncomplete if first.severity == "incomplete" else InputChanged
        raise kind(
            "the evidence does not verify and is not exported",
            where=first.file,
            found=first.message,
            hint="kvaudit verify names all",
        )
    with SafeRoot(run_folder) as root:
        documents = chain.read(root, root.walk())
        evidence = _evidence(root, verdict)
        sources = _sources(source, documents.inputs)
        stored = crate_graph.read_verdict(evidence[manifest.VERDICT].read())
        about = _held(crate_graph.readme(documents.inputs, stored))
        graph = crate_graph.build(
            inputs=documents.inputs,
            stages=documents.stages,
            verdict=stored,
            about=about,
            evidence={f"{RUN_FOLDER}/{name}": file for name, file in evidence.items()},
            sources={f"{SOURCE_FOLDER}/{name}": file for name, file in sources.items()},
            licence=licence,
        )
        metadata = crate_graph.to_bytes(graph)
        files = {
            METADATA: _held(metadata),
            crate_graph.README: about,
            **{f"{RUN_FOLDER}/{name}": file for name, file in sorted(evidence.items())},
            **{f"{SOURCE_FOLDER}/{name}": file for name, file in sorted(sources.items())},
        }
        try:
            _write_zip(into, files) if into.suffix == ".zip" else _write_folder(into, files)
        except OSError as error:
            raise UnusableInput(
                "the crate cannot be written", where=into, found=error.strerror or error
            ) from None
    return len(files)


def _evidence(root: SafeRoot, verdict: Verdict) -> dict[str, File]:
    """Every file of the run; each is compared with its digest again when it is copied."""
    listing = root.walk()
    if manifest.VERDICT not in listing.files:
        raise EvidenceIncomplete(
            "the run has no verdict to export",
            where=manifest.VERDICT,
            hint="kvaudit verify --write",
        )
    expected = statement.listed(root, verdict)
    # The stored verdict may differ from this one in what rests on programs; `verify` compared it.
    stored = root.read(manifest.VERDICT, max_bytes=manifest.MAX_MANIFEST_BYTES)
    expected[manifest.VERDICT] = digests.sha256_bytes(stored)
    if manifest.ATTESTATION in listing.files:
        envelope = root.read(manifest.ATTESTATION, max_bytes=dsse.MAX_ENVELOPE_BYTES)
        dsse.parse(envelope, where=manifest.ATTESTATION)
        expected[manifest.ATTESTATION] = digests.sha256_bytes(envelope)
        if manifest.ATTESTATION_STAMP in listing.files:
            token = root.read(manifest.ATTESTATION_STAMP, max_bytes=timestamp.MAX_BYTES)
            timestamp.read(token, envelope, where=manifest.ATTESTATION_STAMP)
            expected[manifest.ATTESTATION_STAMP] = digests.sha256_bytes(token)
    return {
        name: File(listing.files[name], digest, _reader(root, name, listing.files[name], digest))
        for name, digest in sorted(expected.items())
    }


def _reader(root: SafeRoot, name: str, size: int, digest: str) -> Callable[[], bytes]:
    def read() -> bytes:
        data = root.read(name, max_bytes=size)
        if digests.sha256_bytes(data) != digest:
            raise InputChanged("the run changed while it was exported", where=name)
        return data

    return read


def _held(data: bytes) -> File:
    return File(len(data), digests.sha256_bytes(data), lambda: data)


def _sources(repository: str | Path, inputs: Mapping[str, Any]) -> dict[str, File]:
    """The workflow's files with their registered digests, from the tree or from its history."""
    recorded = {
        name: digest
        for name, digest in inputs["source"]["files"].items()
        if _WORKFLOW.fullmatch(name)
    }
    if "Snakefile" not in recorded:
        raise EvidenceIncomplete("the run's source has no Snakefile", where=manifest.INPUTS)
    found: dict[str, File] = {}
    with SafeRoot(repository) as root:
        for name, digest in sorted(recorded.items()):
            for data in _candidates(root, repository, inputs["source"]["commit"], name):
                if digests.sha256_bytes(data) == digest:
                    found[name] = _held(data)
                    break
            else:
                raise InputChanged(
                    "the source tree has no file of the registered digest",
                    where=name,
                    expected=digest,
                    hint="--source REPO: a checkout of the run's commit, or one with its history",
                )
    return found


def _candidates(
    root: SafeRoot, repository: str | Path, commit: str | None, name: str
) -> Iterator[bytes]:
    with contextlib.suppress(EvidenceIncomplete, UnusableInput):
        tree = root.read(name, max_bytes=MAX_SOURCE_BYTES)
        yield tree
    data = None if commit is None else history.content(repository, commit, name)
    if data is not None:
        yield data


def _write_folder(into: Path, files: Mapping[str, File]) -> None:
    """Everything into a folder beside `into`, which then takes its name: all of it or nothing."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{into.name}.", suffix=".tmp", dir=into.parent))
    try:
        for name, file in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes(path, file.read())
        temporary.chmod(0o755)
        temporary.rename(into)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_zip(into: Path, files: Mapping[str, File]) -> None:
    """One zip archive: stored, not compressed, and without times, so that it has one form."""
    descriptor, temporary = tempfile.mkstemp(
        prefix=f".{into.name}.", suffix=".tmp", dir=into.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as target, zipfile.ZipFile(target, "w") as archive:
            for name, file in files.items():
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.create_system = 3
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, file.read())
        os.chmod(temporary, 0o644)
        os.link(temporary, into)
    finally:
        os.unlink(temporary)
