"""Makes tests/data/golden-registration-v1: an abandoned, an adjudicated and an open registration.

Run once per format version, from tests/audit, and commit what it writes; never run it over an old
one: files of every version must verify for ever.

    cd tests/audit && python ../data/make_golden_registration.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, ".")
import authority
import prereg_world

from kvaudit import prereg, timestamp
from kvaudit.prereg import adjudicate, closing, filing, ledger, registration

TARGET = Path(__file__).parent / "golden-registration-v1"

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        world = prereg_world.build(Path(scratch))
        honest = authority.authority(Path(scratch) / "tsa")
        world.file("first")
        closing.abandon(
            *(world.folder, 1, "an example"), keys=world.signer(), results=world.root / "results"
        )
        world.file("second", "2026-01-02T00:00:00Z")
        request = filing.request_token(world.folder, 2)
        filing.accept_token(
            *(world.folder, 2, honest.stamp(request).read_bytes()),
            ledger.Trust(roots=timestamp.load_roots([honest.root])),
            where="reply",
        )
        run = world.run(registration.find(world.folder, 2), Path(scratch) / "run")
        entry = filing.open_registration(world.folder, 2, what="a verdict")
        assert entry.registration is not None
        outcome = adjudicate.adjudicate(entry, run)
        closing.close(world.folder, entry.registration, outcome, world.signer())
        world.file("third", "2026-01-03T00:00:00Z")
        TARGET.mkdir()
        shutil.copytree(world.root / prereg.FOLDER, TARGET / "preregistered")
        shutil.copy(f"{world.key}.pub", TARGET / "signer.pem.pub")
        shutil.copy(honest.root, TARGET / "root.pem")
