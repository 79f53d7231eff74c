"""The history: a run's source tree against the commit that it names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic
from repositories import git

from kvaudit import history
from kvaudit.errors import UnusableInput

Audit = Callable[..., tuple[int, str, str]]


def commit(repository: Path, **files: str) -> str:
    for name, text in files.items():
        path = repository / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "add", "-A", "-f")
    git(repository, "commit", "-q", "-m", "change")
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    commit(folder, Snakefile="rule all:\n", workflow__a="a\n", README="text\n")
    return folder


@pytest.fixture
def made(repository: Path, tmp_path: Path) -> Path:
    """A run made from the repository as it is."""
    return synthetic.build(tmp_path / "made", source=history.source_facts(repository))


def test_a_clean_tree_is_that_of_its_commit(repository: Path) -> None:
    facts = history.source_facts(repository)
    assert facts["commit"] == git(repository, "rev-parse", "HEAD")
    assert facts["dirty"] is False
    assert {*facts["files"]} == {"Snakefile", "workflow/a"}
    assert facts["files"] == history.commit_files(repository, facts["commit"])


def test_an_edit_with_a_restored_time_is_seen(repository: Path) -> None:
    path = repository / "workflow/a"
    times = path.stat()
    path.write_text("b\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert history.source_facts(repository)["dirty"] is True


def test_an_untracked_source_file_makes_the_tree_dirty(repository: Path) -> None:
    (repository / "workflow/new").write_text("x")
    assert history.source_facts(repository)["dirty"] is True


def test_documents_do_not_make_the_tree_dirty(repository: Path) -> None:
    (repository / "README").write_text("other")
    assert history.source_facts(repository)["dirty"] is False


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text("rule all:\n")
    facts = history.source_facts(tmp_path)
    assert (facts["commit"], facts["dirty"]) == (None, None)
    assert {*facts["files"]} == {"Snakefile"}


def test_the_commit_of_a_run_is_confirmed(repository: Path, made: Path, audit: Audit) -> None:
    commit(repository, workflow__a="b\n")
    commit(repository, README="not relevant\n")
    code, out, _ = audit("verify", made, "--history", repository)
    assert code == 0
    assert "1 later commit touches it" in out


def test_a_tree_that_is_not_the_commits_fails(repository: Path, made: Path, audit: Audit) -> None:
    facts = history.source_facts(repository)
    other = commit(repository, workflow__a="b\n")
    synthetic.build(made, source={**facts, "commit": other})
    code, out, _ = audit("verify", made, "--history", repository)
    assert code == 1
    assert "workflow/a" in out


def test_a_dirty_run_fails_against_its_commit(repository: Path, made: Path, audit: Audit) -> None:
    (repository / "workflow/a").write_text("edited\n")
    synthetic.build(made, source=history.source_facts(repository))
    assert audit("verify", made)[0] == 0
    assert audit("verify", made, "--history", repository)[0] == 1


def test_a_commit_of_no_history_is_incomplete(repository: Path, made: Path, audit: Audit) -> None:
    facts = history.source_facts(repository)
    synthetic.build(made, source={**facts, "commit": "0" * 40})
    assert audit("verify", made, "--history", repository)[0] == 3
    synthetic.build(made, source={**facts, "commit": None, "dirty": None})
    assert audit("verify", made, "--history", repository)[0] == 3


def test_a_commit_beside_the_present_line_fails(repository: Path, made: Path, audit: Audit) -> None:
    start = git(repository, "rev-parse", "HEAD")
    side = commit(repository, README="side\n")
    git(repository, "reset", "-q", "--hard", start)
    synthetic.build(made, source={**history.source_facts(repository), "commit": side})
    code, out, _ = audit("verify", made, "--history", repository)
    assert code == 1
    assert "not an ancestor" in out


def test_no_repository_is_unusable(made: Path, tmp_path: Path, audit: Audit) -> None:
    (tmp_path / "plain").mkdir()
    for place in ("plain", "nowhere", "-x"):
        code, _, err = audit("verify", made, "--history", tmp_path / place)
        assert code == 2
        assert err.count("\n") == 1
        assert "--history wants a git clone" in err


def test_a_shallow_clone_says_how_it_gets_the_commit(
    repository: Path, made: Path, audit: Audit
) -> None:
    commit(repository, README="later\n")
    origin, clone = f"file://{repository}", repository.parent / "clone"
    git(repository, "clone", "-q", "--depth", "1", origin, str(clone))
    code, out, _ = audit("verify", made, "--history", clone)
    assert code == 3
    assert "is not in this history" in out
    assert "git fetch --unshallow" in out
    git(clone, "fetch", "-q", "--unshallow")
    assert audit("verify", made, "--history", clone)[0] == 0


def test_replaced_objects_do_not_deceive(repository: Path, made: Path, audit: Audit) -> None:
    facts = history.source_facts(repository)
    blob = git(repository, "rev-parse", "HEAD:workflow/a")
    (repository / "other").write_text("replacement\n")
    other = git(repository, "hash-object", "-w", "other")
    git(repository, "replace", blob, other)
    assert history.commit_files(repository, facts["commit"]) == facts["files"]


def test_programs_named_by_the_repository_are_not_run(repository: Path, made: Path) -> None:
    trap = repository.parent / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {repository.parent}/sprung\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "diff.external"):
        git(repository, "config", key, str(trap))
    git(repository, "config", "core.hooksPath", str(repository.parent))
    history.check(repository, synthetic.inputs(source=history.source_facts(repository)))
    assert not (repository.parent / "sprung").exists()


def test_a_linked_source_file_in_a_commit_is_refused(repository: Path) -> None:
    (repository / "workflow/link").symlink_to("a")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "link")
    with pytest.raises(UnusableInput, match="not a regular file"):
        history.commit_files(repository, "HEAD")
