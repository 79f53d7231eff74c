"""Hostile input: every case ends with the right exit code and one clear line, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic
from test_canonical import HOSTILE

from kvaudit import canonical, digests, manifest

Audit = Callable[..., tuple[int, str, str]]
STAGE = f"exactness/tiny-a/{manifest.STAGE}"
SAMPLES = "exactness/tiny-a/records/samples.jsonl"


def one_line(err: str) -> str:
    assert err.startswith("kvaudit: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert err.isprintable() or err[:-1].isprintable()
    assert len(err) < 2000
    return err


def put(run: Path, name: str, data: bytes) -> None:
    """Puts bytes in the place of a document and recomputes the digests above it."""
    (run / name).write_bytes(data)
    (run / manifest.VERDICT).unlink(missing_ok=True)
    if name == STAGE:
        synthetic.edit_json(
            run / manifest.RUN,
            lambda value: value["stages"].update({"exactness/tiny-a": digests.sha256_bytes(data)}),
        )
    elif name == SAMPLES:
        synthetic.reseal(run)


@pytest.mark.parametrize("document", [manifest.INPUTS, manifest.RUN, STAGE])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_as_a_manifest(run: Path, audit: Audit, document: str, name: str) -> None:
    put(run, document, HOSTILE[name])
    code, out, err = audit("verify", run)
    assert (code, out) == (2, "")
    assert document in one_line(err)


@pytest.mark.parametrize("name", sorted({*HOSTILE} - {"empty"}))
def test_hostile_text_as_records(run: Path, audit: Audit, name: str) -> None:
    put(run, SAMPLES, HOSTILE[name] + b"\n")
    code, out, err = audit("verify", run)
    assert (code, out) == (2, "")
    assert SAMPLES in one_line(err)


def test_empty_records_leave_the_claims_without_evidence(run: Path, audit: Audit) -> None:
    put(run, SAMPLES, b"")
    code, _, err = audit("verify", run)
    assert (code, err) == (1, "")


PATHS = [
    "../../../etc/passwd",
    "/etc/passwd",
    "records/../../x",
    "./records/x",
    "records//x",
    "records/",
    "",
    ".hidden",
    "a\nb",
    "a\u0000b",
    "a\\b",
    "ü",
    "a/" * 12 + "b",
    "a" * 301,
]


@pytest.mark.parametrize("path", PATHS)
def test_paths_out_of_the_stage_are_refused(run: Path, audit: Audit, path: str) -> None:
    value = json.loads((run / STAGE).read_bytes())
    value["outputs"][path] = {"bytes": 1, "sha256": "0" * 64}
    put(run, STAGE, canonical.dumps(value) + b"\n")
    code, out, err = audit("verify", run)
    assert (code, out) == (2, "")
    assert STAGE in one_line(err)


@pytest.mark.parametrize("path", PATHS)
def test_stage_folders_out_of_the_run_are_refused(run: Path, audit: Audit, path: str) -> None:
    value = json.loads((run / manifest.RUN).read_bytes())
    value["stages"][path] = "0" * 64
    put(run, manifest.RUN, canonical.dumps(value) + b"\n")
    code, out, err = audit("verify", run)
    assert (code, out) == (2, "")
    assert manifest.RUN in one_line(err)


@pytest.mark.parametrize("kind", [None, 1, "run", "stage", "inputs2", ["inputs"], {}])
def test_another_kind_is_refused(run: Path, audit: Audit, kind: Any) -> None:
    synthetic.edit_json(run / manifest.INPUTS, lambda value: value.update(kind=kind))
    code, _, err = audit("verify", run)
    assert code == 2
    assert manifest.INPUTS in one_line(err)


@pytest.mark.parametrize("value", [[], "x", 1, None, True, {}, {"kind": "inputs"}])
def test_json_that_is_no_manifest_is_refused(run: Path, audit: Audit, value: Any) -> None:
    put(run, manifest.INPUTS, canonical.dumps(value) + b"\n")
    code, _, err = audit("verify", run)
    assert code == 2
    assert manifest.INPUTS in one_line(err)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_refused(run: Path, audit: Audit, version: Any) -> None:
    synthetic.edit_json(run / manifest.RUN, lambda value: value.update(version=version))
    code, _, err = audit("verify", run)
    assert code == 2
    assert manifest.RUN in one_line(err)


def as_directory(path: Path) -> None:
    path.mkdir()


def as_sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(10 * 1024**3)


REPLACEMENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "symbolic link"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "symbolic link"),
    "a link to a file outside": (lambda path: path.symlink_to("/etc/hostname"), "symbolic link"),
    "a fifo": (os.mkfifo, "a fifo"),
    "a directory": (as_directory, "a directory"),
    "a sparse file of 10 GB": (as_sparse, "too long"),
}


@pytest.mark.parametrize("document", [manifest.INPUTS, manifest.RUN, STAGE])
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_what_is_not_a_file_is_no_manifest(
    run: Path, audit: Audit, document: str, name: str
) -> None:
    make, message = REPLACEMENTS[name]
    (run / document).unlink()
    make(run / document)
    code, out, err = audit("verify", run)
    assert (code, out) == (2, "")
    assert document in one_line(err)
    assert message in err


def test_a_link_with_the_right_content_is_refused_all_the_same(run: Path, audit: Audit) -> None:
    data = (run / SAMPLES).read_bytes()
    (run.parent / "outside").write_bytes(data)
    (run / SAMPLES).unlink()
    (run / SAMPLES).symlink_to(run.parent / "outside")
    code, _, err = audit("verify", run)
    assert code == 2
    assert SAMPLES in one_line(err)


def test_a_linked_folder_with_the_right_content_is_refused(run: Path, audit: Audit) -> None:
    shutil.move(run / "exactness", run.parent / "moved")
    (run / "exactness").symlink_to(run.parent / "moved")
    code, _, err = audit("verify", run)
    assert code == 2
    assert "exactness" in one_line(err)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device files")
def test_a_device_file_is_refused_unopened(run: Path, audit: Audit) -> None:
    (run / SAMPLES).unlink()
    try:
        os.mknod(run / SAMPLES, 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this system does not allow device files")
    code, _, err = audit("verify", run)
    assert code == 2
    assert "character device" in one_line(err)


def test_a_name_that_is_not_utf8_is_refused(run: Path, audit: Audit) -> None:
    Path(os.fsdecode(os.fsencode(run) + b"/\xff\xfe\n")).write_bytes(b"")
    code, _, err = audit("verify", run)
    assert code == 2
    assert "not UTF-8" in one_line(err)


def test_a_promise_of_too_many_bytes_is_refused(run: Path, audit: Audit) -> None:
    value = json.loads((run / STAGE).read_bytes())
    value["outputs"]["summary.json"]["bytes"] = 10 * 1024**3
    put(run, STAGE, canonical.dumps(value) + b"\n")
    code, _, err = audit("verify", run)
    assert code == 2
    assert STAGE in one_line(err)


@pytest.mark.parametrize("name", ["nowhere", "a\nb", "\udcff"])
def test_a_directory_that_is_not_there(tmp_path: Path, audit: Audit, name: str) -> None:
    code, _, err = audit("verify", tmp_path / name)
    assert code == 2
    one_line(err)


def test_a_program_among_the_evidence_is_never_executed(run: Path, audit: Audit) -> None:
    trap = run / "sitecustomize.py"
    trap.write_text(f"open({str(run.parent / 'sprung')!r}, 'w')\n")
    trap.chmod(0o755)
    code, _, _ = audit("verify", run)
    assert code == 1
    assert not (run.parent / "sprung").exists()


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    workflow = Path(canonical.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(workflow), **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "kvaudit", *arguments],
        check=False,
        capture_output=True,
        env=environment,
        timeout=60,
        **options,
    )


def test_the_process_ends_with_the_exit_code_and_one_line(run: Path) -> None:
    put(run, manifest.INPUTS, HOSTILE["deep arrays"])
    done = command("verify", str(run))
    assert done.returncode == 2
    assert done.stdout == b""
    one_line(done.stderr.decode())


def test_an_ascii_terminal_is_no_obstacle(run: Path) -> None:
    (run / "ü").write_bytes(b"")
    done = command("verify", str(run), env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 1
    assert b"\\xfc" in done.stdout
    assert done.stderr == b""


def test_a_reader_who_leaves_early_gets_no_traceback(pristine: Path) -> None:
    workflow = Path(canonical.__file__).parents[1]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "kvaudit", "verify", str(pristine)],
        check=False,
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(workflow)},
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [["verify", "RUN"], ["verify", "RUN", "--json"], ["--help"]])
@pytest.mark.parametrize("where", [">/dev/full", ">&-", ">/dev/full 2>/dev/full", ">&- 2>&-"])
def test_an_output_that_takes_nothing_is_one_line_and_exit_2(
    pristine: Path, arguments: list[str], where: str
) -> None:
    words = [str(pristine) if word == "RUN" else word for word in arguments]
    workflow = Path(canonical.__file__).parents[1]
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {where}', "sh", sys.executable, "-m", "kvaudit", *words],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(workflow)},
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == b""
    if "2>" in where:
        assert done.stderr == b""
    else:
        assert "standard output" in one_line(done.stderr.decode())


def test_a_folder_in_the_place_of_the_verdict(run: Path, audit: Audit) -> None:
    (run / manifest.VERDICT).unlink()
    (run / manifest.VERDICT).mkdir()
    code, out, err = audit("verify", run, "--write")
    assert (code, out) == (2, "")
    assert "nothing but a regular file is replaced" in one_line(err)
    assert "found a folder" in err
    assert sorted(path.name for path in run.iterdir() if path.name.startswith(".")) == []


def test_a_folder_that_takes_no_verdict(
    run: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    code, out, err = audit("verify", run, "--write")
    assert (code, out) == (2, "")
    assert "Permission denied" in one_line(err)
