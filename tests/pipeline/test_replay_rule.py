"""Snakemake plans a replay from a registration alone, and the matrix of a configuration in full."""

from __future__ import annotations

from pathlib import Path

from planning import dry_run


def test_a_replay_without_a_registration_is_refused() -> None:
    status, output = dry_run("replay")
    assert status != 0
    assert "replay runs what is registered, and no registration is named" in output
    assert "rule replay_stage:" not in output


def test_the_matrix_is_planned_with_the_builds_that_it_needs(tmp_path: Path) -> None:
    results = f"results={tmp_path / 'run'}"
    status, output = dry_run("--configfile", "config/replay.yaml", "--config", results)
    assert status == 0, output
    assert output.count("rule replay_stage:") == 2
    assert "rule exactness:" not in output
    assert "work/engines/lower-isa.txt" in output


def test_the_paper_s_replay_needs_no_second_build(tmp_path: Path) -> None:
    only = tmp_path / "only.yaml"
    only.write_text("stages: [replay]\n")
    status, output = dry_run(
        *("--configfile", "config/paper.yaml", str(only)),
        *("--config", f"results={tmp_path / 'run'}"),
    )
    assert status == 0, output
    assert output.count("rule replay_stage:") == 2
    assert "rule engine_variant:" not in output


def test_the_portable_matrix_needs_its_builds_and_an_emulated_python(tmp_path: Path) -> None:
    results = f"results={tmp_path / 'run'}"
    status, output = dry_run("--configfile", "config/replay-portable.yaml", "--config", results)
    assert status == 0, output
    assert output.count("rule replay_stage:") == 2
    for note in ("portable.txt", "portable-generic.txt", "portable-aarch64.txt"):
        assert f"work/engines/{note}" in output
    assert "work/engines/emulated-python.path" in output
    assert "lower-isa" not in output
