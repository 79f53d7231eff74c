"""The verifier on a valid run and on damage of every kind."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvaudit import canonical, cli, manifest
from kvaudit.chain import Finding
from kvaudit.claims import Claim
from kvaudit.verify import Verdict, reported, verdict_bytes, verify

Audit = Callable[..., tuple[int, str, str]]
MODEL = "tiny-a"
STAGE = f"exactness/{MODEL}"


def evidence_files(run: Path) -> list[str]:
    return sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file())


def test_a_valid_run_is_verified(pristine: Path, audit: Audit) -> None:
    code, out, err = audit("verify", pristine)
    assert (code, err) == (0, "")
    assert "verified: 8 claims hold, 0 fail, 0 not run here; 0 findings" in out
    assert "\x1b" not in out


def test_the_verdict_is_a_function_of_the_directory(pristine: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(pristine, tmp_path / "elsewhere")
    assert verdict_bytes(verify(moved)) == (pristine / manifest.VERDICT).read_bytes()


def test_verification_changes_nothing(run: Path, audit: Audit) -> None:
    before = {name: (run / name).read_bytes() for name in evidence_files(run)}
    audit("verify", run)
    audit("verify", run, "--json")
    assert {name: (run / name).read_bytes() for name in evidence_files(run)} == before


def flip(path: Path, offset: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def test_a_flipped_byte_in_any_file_is_found_and_the_file_named(run: Path, audit: Audit) -> None:
    chooser = random.Random(7)
    for name in evidence_files(run):
        original = (run / name).read_bytes()
        offsets = {0, len(original) // 2, len(original) - 1, chooser.randrange(len(original))}
        for offset in sorted(offsets):
            flip(run / name, offset, chooser.choice([1, 32, 128]))
            code, out, err = audit("verify", run)
            assert code in (1, 2, 3), (name, offset)
            assert name in out + err, (name, offset)
            (run / name).write_bytes(original)
    assert audit("verify", run)[0] == 0


@pytest.mark.parametrize("name", [manifest.RUN, manifest.VERDICT, manifest.INPUTS])
def test_no_byte_of_an_unlisted_document_is_free(
    pristine: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    run = shutil.copytree(pristine, tmp_path_factory.mktemp("flip") / "run")
    if name == manifest.RUN:  # nothing above it: every byte must follow from what is below
        (run / manifest.VERDICT).unlink()
    original = (run / name).read_bytes()

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, len(original) - 1), st.integers(1, 255))
    def check(offset: int, mask: int) -> None:
        flip(run / name, offset, mask)
        assert cli.main(["verify", str(run)]) in (1, 2, 3)
        (run / name).write_bytes(original)

    check()


@pytest.mark.parametrize("change", [b"", b" ", b"\n"])
def test_a_file_cut_or_lengthened_is_named(run: Path, audit: Audit, change: bytes) -> None:
    for name in evidence_files(run):
        original = (run / name).read_bytes()
        (run / name).write_bytes(original + change if change else original[:-1])
        code, out, err = audit("verify", run)
        assert code in (1, 2)
        assert name in out + err
        (run / name).write_bytes(original)


def test_a_missing_file_is_incomplete_and_named(run: Path, audit: Audit) -> None:
    for name in evidence_files(run):
        if name == manifest.VERDICT:
            continue
        original = (run / name).read_bytes()
        (run / name).unlink()
        (run / manifest.VERDICT).unlink(missing_ok=True)
        code, out, err = audit("verify", run)
        assert name in out + err
        # Records that are absent leave their claims without evidence: those fail, which is worse.
        assert code == (1 if "records/" in name else 3), name
        (run / name).write_bytes(original)


def test_renamed_and_swapped_files_are_found(run: Path, audit: Audit) -> None:
    first, second = sorted((run / STAGE / "logits").iterdir())[:2]
    held = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(held)
    code, out, _ = audit("verify", run)
    assert code == 1
    assert first.name in out
    assert second.name in out


@pytest.mark.parametrize(
    "path", ["extra", "exactness/extra.json", f"{STAGE}/records/x.jsonl", ".hidden", "a\nb", "ü"]
)
def test_an_unlisted_file_is_found(run: Path, audit: Audit, path: str) -> None:
    (run / path).write_bytes(b"x")
    code, out, _ = audit("verify", run)
    assert code == 1
    assert "not listed" in out
    assert path.replace("\n", "\\n") in out


def test_an_unlisted_folder_is_found(run: Path, audit: Audit) -> None:
    (run / STAGE / "empty").mkdir()
    code, out, _ = audit("verify", run)
    assert code == 1
    assert f"{STAGE}/empty: is a folder that no manifest" in out


def test_a_sparse_file_of_ten_gigabytes_is_never_read(run: Path, audit: Audit) -> None:
    for path in (run / "unlisted", next((run / STAGE / "logits").iterdir())):
        with open(path, "r+b" if path.exists() else "wb") as file:
            file.truncate(10 * 1024**3)
    code, out, _ = audit("verify", run)
    assert code == 1
    assert "has 10737418240 bytes" in out
    assert "unlisted: is not listed" in out


def test_a_stage_left_out_is_incomplete(run: Path, audit: Audit) -> None:
    (run / manifest.VERDICT).unlink()
    shutil.rmtree(run / "exactness/tiny-b")
    manifest.close_run(run)
    code, out, _ = audit("verify", run)
    assert code == 3
    assert "exactness/tiny-b/stage.manifest.json" in out


def test_an_unsealed_run_is_incomplete_but_judged(run: Path, audit: Audit) -> None:
    (run / manifest.VERDICT).unlink()
    (run / manifest.RUN).unlink()
    code, out, _ = audit("verify", run)
    assert code == 3
    assert "not sealed" in out
    assert "8 claims hold" in out


def test_an_empty_directory_is_incomplete(tmp_path: Path, audit: Audit) -> None:
    code, _, err = audit("verify", tmp_path)
    assert code == 3
    assert "inputs.manifest.json" in err


def test_a_failing_verdict_is_not_overruled_by_a_written_one(run: Path, audit: Audit) -> None:
    (run / "extra").write_bytes(b"x")
    assert audit("verify", run, "--write")[0] == 1
    assert json.loads((run / manifest.VERDICT).read_bytes())["status"] == "failed"
    code, out, _ = audit("verify", run)
    assert code == 1
    assert "verdict.json" not in out


def test_verdict_json_is_recomputed(run: Path, audit: Audit) -> None:
    synthetic.edit_json(
        run / manifest.VERDICT, lambda value: value["claims"][0].update(measured="better")
    )
    code, out, _ = audit("verify", run)
    assert code == 1
    assert "verdict.json: is not what the verifier finds" in out
    assert audit("verify", run, "--write")[0] == 0
    assert audit("verify", run)[0] == 0


def test_json_output_is_the_verdict(pristine: Path, audit: Audit) -> None:
    _, out, _ = audit("verify", pristine, "--json")
    expected = canonical.loads_document((pristine / manifest.VERDICT).read_bytes(), where="x")
    assert json.loads(out) == expected


@pytest.mark.parametrize(
    ("failing", "code", "said"),
    [
        (["E1:m"], 0, "fail as reported: E1:m"),
        (["E1:m", "E3:m"], 0, "fail as reported: E1:m"),
        (["E1:m", "E2:m"], 1, "reported as failing, but not so: E2:m"),
        (["E2:m"], 1, "not reported as failing: E1:m; reported as failing, but not so: E2:m"),
        ([], 1, "not reported as failing: E1:m"),
    ],
)
def test_a_claim_that_is_reported_as_failing_is_no_error_and_any_other_is(
    failing: list[str], code: int, said: str
) -> None:
    claims = tuple(
        Claim(id=name, model="m", title="", criterion="", paper="", measured="", verdict=verdict)
        for name, verdict in (("E1", "fails"), ("E2", "holds"), ("E3", "not run here"))
    )
    verdict = Verdict("0" * 64, None, 0, 0, 0, 0, claims, ())
    assert reported(verdict, failing) == (code, said)
    damaged = replace(verdict, findings=(Finding("fails", "x", "y"),))
    assert reported(damaged, ["E1:m"])[0] == 1
