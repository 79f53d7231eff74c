"""Makes golden-v1.attestation.tsr, its root, and golden-v1.revoked.txt; run once a format version.

The stamp is of golden-v1.dsse.json, by an authority that is thrown away. Run from tests/audit, and
commit what it writes; never run it over old ones: files of every version must verify for ever.

    cd tests/audit && python ../data/make_golden_stamp.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, ".")
import authority

from kvaudit import timestamp
from kvaudit.attest import keys

FOLDER = Path(__file__).parent

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        honest = authority.authority(Path(scratch) / "tsa")
        envelope = (FOLDER / "golden-v1.dsse.json").read_bytes()
        reply = honest.stamp(Path(), data=envelope).read_bytes()
        (FOLDER / "golden-v1.attestation.tsr").write_bytes(reply)
        shutil.copy(honest.root, FOLDER / "golden-v1.attestation.root.pem")
    stamped = timestamp.read(reply, envelope, where="reply")
    first, second = (keys.load_public(FOLDER / f"golden-v1.{name}.pub").keyid for name in "ab")
    (FOLDER / "golden-v1.revoked.txt").write_text(
        "# key id, and the time from which its signatures do not count\n"
        f"{first}\n\n{second}  {stamped.text}  # the stamp is not from before that\n"
    )
