"""Makes golden-v1.dsse.json and its two public keys; run once a format version, never again.

The private keys are written below for all to see: they vouch for nothing but this file.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvaudit.attest import dsse, keys
from kvaudit.attest.statement import PAYLOAD_TYPE, Statement, Subject

FOLDER = Path(__file__).parent

secrets = [Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (1, 2)]
signers = [keys.PrivateKey(keys.PublicKey(s.public_key().public_bytes_raw()), s) for s in secrets]
digest = "0123456789abcdef" * 4
statement = Statement(
    {"inputs.manifest.json": Subject(17, digest), "verdict.json": Subject(4, digest[::-1])},
    {
        "kind": "attestation-verdict",
        "version": 1,
        "status": "verified",
        "exit_code": 0,
        "inputs_sha256": digest,
        "run_sha256": digest,
        "verdict_sha256": digest[::-1],
        "evidence": {"files": 1, "bytes": 17, "records": 0, "raw_logits": 0},
        "claims": [{"id": "E1", "model": "tiny-a", "verdict": "holds"}],
    },
)
envelope = dsse.to_bytes(dsse.sign(statement.to_bytes(), PAYLOAD_TYPE, signers))
(FOLDER / "golden-v1.dsse.json").write_bytes(envelope)
for letter, signer in zip("ab", signers, strict=True):
    (FOLDER / f"golden-v1.{letter}.pub").write_bytes(signer.public.pem())
