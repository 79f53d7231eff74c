"""What an attestation says of a run: an in-toto Statement v1 over every evidence file.

It is a function of the run folder alone and holds no time and no name of a signer, so that several
people who sign one run sign the same bytes. This module must not know how a statement is signed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kvaudit import canonical, chain, digests, manifest, schemas
from kvaudit.errors import UnusableInput
from kvaudit.safefs import Listing, SafeRoot
from kvaudit.verify import Verdict, verdict_bytes

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:kvgraft:attestation-verdict:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


@dataclass(frozen=True)
class Subject:
    """One evidence file: its length in bytes and its SHA-256."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Statement:
    """The subjects by name, and the verdict's essentials (schema attestation-verdict.v1.json)."""

    subjects: Mapping[str, Subject]
    predicate: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """The payload: canonical JSON and one newline, subjects sorted by name."""
        value = {
            "_type": STATEMENT_TYPE,
            "subject": [
                {
                    "name": name,
                    "digest": {"sha256": subject.sha256},
                    "annotations": {"bytes": subject.bytes},
                }
                for name, subject in sorted(self.subjects.items())
            ],
            "predicateType": PREDICATE_TYPE,
            "predicate": self.predicate,
        }
        _validate(value)
        return canonical.dumps(value) + b"\n"


def parse(payload: bytes) -> Statement:
    """Reads a statement whose signatures have been verified; it is read as strictly all the same.

    Raises:
        UnusableInput: not canonical JSON of the schemas, or subjects unsorted or twice.
    """
    value = canonical.loads_document(payload, where=f"{manifest.ATTESTATION}: payload")
    _validate(value)
    names = [entry["name"] for entry in value["subject"]]
    if names != sorted({*names}):
        raise UnusableInput(
            "the subjects are not sorted, or one occurs twice",
            where=f"{manifest.ATTESTATION}: payload",
        )
    subjects = {
        entry["name"]: Subject(entry["annotations"]["bytes"], entry["digest"]["sha256"])
        for entry in value["subject"]
    }
    return Statement(subjects, value["predicate"])


def evidence_files(listing: Listing) -> dict[str, int]:
    """{path: length} of what an attestation has to name: every file of the run but its own."""
    own = (manifest.ATTESTATION, manifest.ATTESTATION_STAMP)
    return {path: size for path, size in sorted(listing.files.items()) if path not in own}


def hashed(root: SafeRoot, files: Mapping[str, int]) -> dict[str, str | None]:
    """{path: SHA-256} of files of known length, in parallel; None where the length is another."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda path: root.sha256(path, expected_bytes=files[path]), files)
        return dict(zip(files, found, strict=True))


def listed(root: SafeRoot, verdict: Verdict) -> dict[str, str]:
    """{path: SHA-256} of every file of a verified run, as the chain under its verdict names them.

    Args:
        root: the run folder.
        verdict: what `verify` returned, without a finding.
    """
    names = {
        manifest.INPUTS: verdict.inputs_sha256,
        manifest.RUN: str(verdict.run_sha256),
        manifest.VERDICT: digests.sha256_bytes(verdict_bytes(verdict)),
    }
    data = root.read(manifest.RUN, max_bytes=manifest.MAX_MANIFEST_BYTES)
    run = manifest.parse(data, "run", where=manifest.RUN)
    for folder, stage in chain.read(root, root.walk()).stages.items():
        names[f"{folder}/{manifest.STAGE}"] = run["stages"][folder]
        for path, entry in stage["outputs"].items():
            names[f"{folder}/{path}"] = entry["sha256"]
    return names


def essentials(verdict_data: bytes) -> dict[str, Any]:
    """The predicate that belongs to a verdict.json.

    Raises:
        UnusableInput: the bytes are not canonical JSON of the verdict's schema.
    """
    value = manifest.parse(verdict_data, "verdict", where=manifest.VERDICT)
    kept = ("status", "exit_code", "inputs_sha256", "run_sha256", "evidence")
    return {
        "kind": "attestation-verdict",
        "version": 1,
        **{key: value[key] for key in kept},
        "verdict_sha256": digests.sha256_bytes(verdict_data),
        "claims": [
            {key: claim[key] for key in ("id", "model", "verdict")} for claim in value["claims"]
        ],
    }


def _validate(value: Any) -> None:
    where = f"{manifest.ATTESTATION}: payload"
    schemas.validate(value, "attestation-statement", where=where)
    schemas.validate(value["predicate"], "attestation-verdict", where=f"{where}: predicate")
