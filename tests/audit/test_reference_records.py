"""Records of the later stages that schemas allow and no measurement gives: the verifier refuses or
fails them in words, whatever was resealed around them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic

from kvaudit import canonical, manifest

REFERENCE = Path(__file__).parents[2] / "results/reference"
MODEL = "smollm2-135m"
Rows = list[dict[str, Any]]

EDITS: dict[str, tuple[str, Callable[[Rows], object]]] = {
    "a list cut": ("position/{}/records/relocation.jsonl", lambda r: r[0]["top"]["tokens"].pop()),
    "no samples": ("position/{}/records/samples.jsonl", lambda r: r.clear()),
    "no chains": ("position/{}/records/chains.jsonl", lambda r: r.clear()),
    "one offset": (
        "position/{}/records/relocation.jsonl",
        lambda r: [row.update(offset=16) for row in r],
    ),
    "a needle nowhere": ("context/{}/records/needles.jsonl", lambda r: r[0].update(place=None)),
    "a needle beyond": ("context/{}/records/needles.jsonl", lambda r: r[0].update(block=99)),
    "a profile of no shape": (
        "context/{}/records/profiles.jsonl",
        lambda r: r[0].update(profile={"settings": []}),
    ),
    "no timings": ("cost/{}/records/timings.jsonl", lambda r: r.clear()),
    "another profile in force": (
        "context/{}/records/profiles.jsonl",
        lambda r: r[0]["profile"]["context"].update(flash_attention=True),
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_hostile_records_never_verify_and_never_crash(
    tmp_path: Path, audit: Callable[..., tuple[int, str, str]], name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(REFERENCE, run)
    file, change = EDITS[name]
    path = run / file.format(MODEL)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(rows)
    path.write_bytes(canonical.dump_lines(rows))
    (run / manifest.VERDICT).unlink()
    synthetic.reseal(run)
    code, out, err = audit("verify", "--no-programs", run)
    assert code in (1, 2)
    stage = file.split("/")[0]
    assert f"{stage}/{MODEL}" in out + err
