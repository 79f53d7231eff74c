"""Exactness under the portable profile: no stock control, which the verdict says; no less asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import PORTABLE

from kvaudit.verify import Verdict, verify

MODEL = synthetic.MODELS[0]
SPLITS = "records/splits.jsonl"
Rows = list[dict[str, Any]]


def verdict(folder: Path, change: Callable[[Rows], object] = lambda _: None) -> Verdict:
    """Of a portable run of one model whose splits a patient forger has changed."""
    run = synthetic.build(folder / "run", (MODEL,), PORTABLE)
    rows = synthetic.read_rows(run, MODEL, SPLITS)
    change(rows)
    synthetic.write_rows(run, MODEL, SPLITS, rows)
    synthetic.derive(run, MODEL)
    synthetic.reseal(run)
    return verify(run, check_verdict=False)


def e3(found: Verdict) -> tuple[str, str]:
    (claim,) = (claim for claim in found.claims if claim.id == "E3")
    return claim.verdict, claim.measured


def test_a_portable_run_holds_and_names_the_control_that_it_has_not(tmp_path: Path) -> None:
    found = verdict(tmp_path)
    assert (found.status, found.findings) == ("verified", ())
    outcome, measured = e3(found)
    assert outcome == "holds"
    assert "2/2 controls differ; stock kernels not run here" in measured


def test_a_run_that_has_the_stock_control_does_not_say_so(tmp_path: Path) -> None:
    run = synthetic.build(tmp_path / "run", (MODEL,))
    _, measured = e3(verify(run, check_verdict=False))
    assert "3/3 controls differ" in measured
    assert "stock kernels" not in measured


def test_without_the_changed_token_the_comparison_is_blind(tmp_path: Path) -> None:
    def blind(rows: Rows) -> None:
        rows[:] = [row for row in rows if not row["control"]]

    found = verdict(tmp_path, blind)
    assert e3(found)[0] == "fails"
    assert any("planned controls absent" in finding.message for finding in found.findings)


def test_a_stock_control_in_a_portable_run_is_one_too_many(tmp_path: Path) -> None:
    def stock(rows: Rows) -> None:
        (control,) = [row for row in rows if row["control"] and row["sample"] == 0]
        rows.append({**control, "profile_name": "stock"})

    found = verdict(tmp_path, stock)
    assert any("1 not planned" in finding.message for finding in found.findings)


def test_one_other_byte_of_a_split_breaks_the_claim(tmp_path: Path) -> None:
    def changed(rows: Rows) -> None:
        rows[0].update(logits_sha256=synthetic.digest_of("other"), kl=0.001)

    assert e3(verdict(tmp_path, changed))[0] == "fails"


@pytest.mark.parametrize("preset", [synthetic.INVARIANT, synthetic.STOCK])
def test_other_runs_still_need_their_control(tmp_path: Path, preset: str) -> None:
    run = synthetic.build(tmp_path / "run", (MODEL,), preset)
    rows = synthetic.read_rows(run, MODEL, SPLITS)
    kept = [row for row in rows if row["profile_name"] != "stock" or preset == "stock"]
    synthetic.write_rows(run, MODEL, SPLITS, kept if kept != rows else rows[:-1])
    synthetic.derive(run, MODEL)
    synthetic.reseal(run)
    found = verify(run, check_verdict=False)
    assert any("planned controls absent" in finding.message for finding in found.findings)
