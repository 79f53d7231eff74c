"""Manifests: what they bind, what they refuse, and that sealing leaves no free byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic

from kvaudit import digests, manifest, schemas
from kvaudit.errors import EvidenceIncomplete, InputChanged, UnusableInput
from kvaudit.source import is_relevant, source_files


def test_every_schema_is_valid_and_closed() -> None:
    assert {"inputs", "stage", "run", "summary", "verdict", "block-header"} <= {*schemas.kinds()}
    for kind in schemas.kinds():
        schema = json.loads(schemas.text(kind))
        assert schema["additionalProperties"] is False
        # A configuration is written by people, who need not say what it is; the other two are
        # formats of DSSE and in-toto.
        if kind not in ("config", "dsse-envelope", "attestation-statement", "rescore-row"):
            assert schema["properties"]["kind"] == {"const": kind}
        with pytest.raises(UnusableInput, match="does not conform"):
            schemas.validate({"kind": kind}, kind, where="x")


def test_an_unknown_kind_has_no_schema() -> None:
    with pytest.raises(UnusableInput, match="no schema"):
        schemas.validate({}, "../inputs", where="x")


def test_an_error_names_the_field() -> None:
    value = synthetic.inputs()
    value["models"][0]["bytes"] = -1
    with pytest.raises(UnusableInput, match="models/0/bytes"):
        schemas.validate(value, "inputs", where="x")


def test_an_error_names_the_other_fields_too() -> None:
    value = synthetic.inputs()
    value["models"][0] |= {"bytes": -1, "sha256": ""}
    value["source"] = {}
    with pytest.raises(UnusableInput, match="models/0/bytes") as error:
        schemas.validate(value, "inputs", where="x")
    assert error.value.hint == "2 more do not conform: models/0/sha256, source"


@pytest.mark.parametrize("field", ["sha256", "name"])
def test_a_pattern_is_not_satisfied_with_a_newline_behind(field: str) -> None:
    value = synthetic.inputs()
    value["models"][0][field] += "\n"
    with pytest.raises(UnusableInput, match="does not conform"):
        schemas.validate(value, "inputs", where="x")


def test_a_written_manifest_is_read_back(tmp_path: Path) -> None:
    value = synthetic.inputs()
    digest = manifest.write(tmp_path / "x.json", value)
    assert manifest.read(tmp_path / "x.json", "inputs") == value
    assert digest == digests.sha256_file(tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_sealing_twice_gives_the_same_bytes(run: Path) -> None:
    before = (run / manifest.RUN).read_bytes()
    manifest.close_run(run)
    assert (run / manifest.RUN).read_bytes() == before


def test_a_stage_of_other_inputs_is_not_sealed(run: Path) -> None:
    manifest.write(run / manifest.INPUTS, synthetic.inputs(created="2025-01-01T00:00:00Z"))
    with pytest.raises(UnusableInput, match="other inputs"):
        manifest.close_run(run)


def test_a_run_without_stages_is_not_sealed(tmp_path: Path) -> None:
    manifest.write(tmp_path / manifest.INPUTS, synthetic.inputs())
    with pytest.raises(EvidenceIncomplete, match="no finished stage"):
        manifest.close_run(tmp_path)


def test_a_stage_cannot_use_what_was_not_registered(run: Path) -> None:
    with pytest.raises(UnusableInput, match="not registered"):
        synthetic.close(run, "tiny-a", inputs_used={"tiny-a": "0" * 64})


def test_a_stage_with_nothing_in_it_is_not_closed(run: Path) -> None:
    (run / "exactness/empty").mkdir()
    known = manifest.registered(manifest.read(run / manifest.INPUTS, "inputs"))
    with pytest.raises(EvidenceIncomplete, match="made nothing"):
        synthetic.close(run, "empty", inputs_used={"tiny-a": known["tiny-a"]})


def test_outputs_list_everything_but_the_manifest(run: Path) -> None:
    folder = run / "exactness/tiny-a"
    outputs = manifest.list_outputs(folder)
    on_disk = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {*outputs} == on_disk - {manifest.STAGE}


@pytest.fixture
def registered(tmp_path: Path) -> tuple[dict[str, object], Path]:
    """Inputs over a real model file, lock and source tree."""
    (tmp_path / "model.gguf").write_bytes(b"weights")
    (tmp_path / "lock.txt").write_bytes(b"numpy==2")
    tree = tmp_path / "tree"
    (tree / "workflow/__pycache__").mkdir(parents=True)
    (tree / "workflow/a.py").write_text("a = 1\n")
    (tree / "workflow/__pycache__/a.pyc").write_bytes(b"cache")
    (tree / "Snakefile").write_text("rule all:\n")
    (tree / "README.md").write_text("text\n")
    value = synthetic.inputs(
        ("m",), source={"commit": None, "dirty": None, "files": source_files(tree)}
    )
    value["models"][0]["sha256"] = digests.sha256_bytes(b"weights")
    value["environment"]["locks"] = {"envs/audit.txt": digests.sha256_bytes(b"numpy==2")}
    return value, tmp_path


def paths(folder: Path) -> dict[str, Path]:
    return {
        "m": folder / "model.gguf",
        "envs/audit.txt": folder / "lock.txt",
        "source": folder / "tree",
    }


def test_unchanged_inputs_pass(registered: tuple[dict[str, object], Path]) -> None:
    value, folder = registered
    assert manifest.rehash(value, paths(folder)) == {
        name: manifest.registered(value)[name] for name in ("m", "envs/audit.txt", "source")
    }


def test_changed_inputs_are_all_named(registered: tuple[dict[str, object], Path]) -> None:
    value, folder = registered
    (folder / "model.gguf").write_bytes(b"Weights")
    (folder / "lock.txt").unlink()
    (folder / "tree/workflow/b.py").write_text("new\n")
    (folder / "tree/Snakefile").unlink()
    wanted = {**paths(folder), "other": folder / "model.gguf"}
    with pytest.raises(InputChanged) as caught:
        manifest.rehash(value, wanted)
    for name in ("m", "envs/audit.txt", "workflow/b.py", "Snakefile", "other (not registered)"):
        assert name in caught.value.message()
    assert "workflow/a.py" not in caught.value.message()


def test_documents_and_caches_are_not_source(registered: tuple[dict[str, object], Path]) -> None:
    _, folder = registered
    assert {*source_files(folder / "tree")} == {"Snakefile", "workflow/a.py"}


def test_a_linked_source_file_is_refused(registered: tuple[dict[str, object], Path]) -> None:
    _, folder = registered
    (folder / "tree/workflow/link.py").symlink_to("a.py")
    with pytest.raises(UnusableInput, match="not a regular file"):
        source_files(folder / "tree")


@pytest.mark.parametrize(
    ("path", "relevant"),
    [
        ("Snakefile", True),
        ("workflow/x/y.py", True),
        ("manifests/pins/models.json", True),
        ("manifests/schema/run.v1.json", False),
        ("Snakefile.txt", False),
        ("workflowx/a.py", False),
        ("workflow/.cache/a.py", False),
        ("workflow/__pycache__/a.pyc", False),
        ("workflow/a.pyc", False),
        ("tests/a.py", False),
    ],
)
def test_which_files_can_change_a_result(path: str, relevant: bool) -> None:
    assert is_relevant(path) is relevant
