"""Row P5 runs end to end on tiny models, and the verifier accepts what it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvaudit import claims, schemas
from kvaudit.claims import Evidence
from kvaudit.position import joined
from kvaudit.position.part import Setting
from kvaudit.profiles import InForce
from kvgraft.joined import Joined
from kvgraft.profile import split_invariant
from kvgraft.session import Session

OPTIONS: dict[str, Any] = {
    "chains": [[30, 40], [70, 90, 20]],
    "prefix": {"tokens": 80, "tail_tokens": 7, "prompts": 3, "checked": 2},
    "compositions": [[[0, 50], [256, 130]], [[0, 20], [256, 90], [512, 100]]],
    "answers": 1,
}


@pytest.mark.parametrize("name", ["llama-f32", "gemma3-f32"])
def test_row_p5_holds_on_tiny_models(models: Any, tmp_path: Path, name: str) -> None:
    model, settings = models(name), split_invariant(n_ctx=1024)
    with Session(model, settings) as session:
        measured = Joined(
            model, settings, OPTIONS, "test/joined", tmp_path, lambda _line: None
        ).measure(session)
        profile, window = session.profile.digest, session.profile.context["window"]
    rows = {file: measured[Path(file).stem] for file in joined.RECORDS}
    for file, kind in joined.RECORDS.items():
        for row in rows[file]:
            schemas.validate(row, kind, where=file)
    force = InForce("split-invariant", profile, "", window, True, "")
    assert list(joined.check(Setting(model.name, {}, OPTIONS, "test", force, {}), rows)) == []
    entry = next(rule for rule in claims.rules("position") if rule.id == "P5")
    measured_text, verdict = entry.judge(Evidence(model.name, rows, 0, 0))
    assert verdict == "holds", measured_text
    assert {row["past_window"] for row in rows[joined.CHAINS]} == {window > 0}
