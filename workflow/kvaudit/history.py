"""With the history at hand: is a commit's tree the one that a run was made from?

The optional part of an audit, and where a run learns its own commit. Git is only read: no hook, no
file-system monitor, no fetch, no lock, no replaced object. This module must not know what lies in
the files.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit import chain, digests
from kvaudit.chain import Finding
from kvaudit.errors import UnusableInput
from kvaudit.manifest import INPUTS
from kvaudit.source import RELEVANT, is_relevant, source_files

MAX_BLOB_BYTES = 64 * 1024 * 1024
_TIMEOUT_SECONDS = 120
_SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "protocol.allow=never",
)


@dataclass(frozen=True)
class HistoryReport:
    """What the history says about a run.

    `commits_since` counts the commits after the run's that touch a relevant file; None where the
    commit cannot be placed.
    """

    commit: str | None
    commits_since: int | None
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, as the verifier's."""
        return chain.exit_code(self.findings)

    def to_json(self) -> dict[str, Any]:
        """A JSON object for `kvaudit verify --json`."""
        return {
            "commit": self.commit,
            "commits_since": self.commits_since,
            "findings": [vars(finding) for finding in self.findings],
        }

    def render(self) -> str:
        """One line of plain text."""
        if self.findings:
            return f"history: {self.findings[0].message}"
        count = self.commits_since
        return (
            f"history: the tree is that of commit {self.commit}; "
            f"{count} later commit{'' if count == 1 else 's'} touch{'es' if count == 1 else ''} it"
        )


def check(repository: str | Path, inputs: Mapping[str, Any]) -> HistoryReport:
    """Compares the source tree of an inputs manifest with the commit that it names.

    Raises:
        UnusableInput: `repository` is no git repository, or git is not installed.
    """
    _require_clone(repository)
    source = inputs["source"]
    commit = source["commit"]

    def report(severity: Any, message: str, since: int | None = None) -> HistoryReport:
        return HistoryReport(commit, since, (Finding(severity, INPUTS, message),))

    if commit is None:
        return report("incomplete", "the run names no commit")
    if not _ok(repository, "cat-file", "-e", f"{commit}^{{commit}}"):
        shallow = _try(repository, "rev-parse", "--is-shallow-repository") == b"true"
        more = ", of which this clone has but the end: git fetch --unshallow" if shallow else ""
        return report("incomplete", f"commit {commit} is not in this history{more}")
    files = commit_files(repository, commit)
    since = None
    if _ok(repository, "merge-base", "--is-ancestor", commit, "HEAD"):
        count = _git(repository, "rev-list", "--count", f"{commit}..HEAD", "--", *RELEVANT)
        since = int(count)
    if digests.tree_digest(files) != source["tree_sha256"]:
        recorded = source["files"]
        names = sorted(n for n in {*files, *recorded} if files.get(n) != recorded.get(n))
        return report(
            "fails", f"the tree is not that of commit {commit}: {', '.join(names[:10])}", since
        )
    if source["dirty"]:
        return report("fails", "the run calls its source modified, but it equals the commit", since)
    if since is None:
        return report("fails", f"commit {commit} is not an ancestor of the present one")
    return HistoryReport(commit, since, ())


def _require_clone(repository: str | Path) -> None:
    done = _run(repository, ("rev-parse", "--git-dir"), b"")
    if done.returncode != 0:
        raise UnusableInput(
            "--history wants a git clone, for an archive holds no history",
            where=repository,
            found=_complaint(done),
            hint="clone the repository, or verify without --history",
        )


def source_facts(repository: str | Path) -> dict[str, Any]:
    """What a run records about its own source: {commit, dirty, files}.

    `dirty` compares the relevant files with those of the commit, byte for byte, not by times.
    Both are None outside a git repository or before its first commit.

    Raises:
        UnusableInput: a relevant file is a link.
    """
    files = source_files(repository)
    top = _try(repository, "rev-parse", "--show-toplevel")
    head = _try(repository, "rev-parse", "--verify", "HEAD^{commit}")
    if top is None or head is None or not os.path.samefile(os.fsdecode(top), repository):
        return {"commit": None, "dirty": None, "files": files}
    commit = head.decode()
    try:
        dirty = commit_files(repository, commit) != files
    except UnusableInput:
        dirty = True
    return {"commit": commit, "dirty": dirty, "files": files}


def commit_files(repository: str | Path, commit: str) -> dict[str, str]:
    """{path: SHA-256} of the relevant files of a commit, by the rule of `source`.

    Raises:
        UnusableInput: the commit is absent, or a relevant entry is a link or a submodule.
    """
    listing = _git(repository, "ls-tree", "-r", "-z", "--full-tree", commit, "--", *RELEVANT)
    blobs: dict[str, str] = {}
    for entry in listing.split(b"\0"):
        if not entry:
            continue
        facts, _, name = entry.partition(b"\t")
        mode, _, blob = facts.decode("ascii").split(" ")
        path = os.fsdecode(name)
        if not is_relevant(path):
            continue
        if mode not in ("100644", "100755"):
            raise UnusableInput("a source file is not a regular file", where=path, found=mode)
        blobs[path] = blob
    contents = _blob_digests(repository, sorted(set(blobs.values())))
    return {path: contents[blob] for path, blob in sorted(blobs.items())}


def content(repository: str | Path, commit: str, path: str) -> bytes | None:
    """The bytes of one file of a commit; None where there is no such file, commit or repository."""
    done = _run(repository, ("cat-file", "blob", f"{commit}:{path}"), b"")
    return done.stdout if done.returncode == 0 else None


def _blob_digests(repository: str | Path, blobs: list[str]) -> dict[str, str]:
    """{git object: SHA-256 of its content}, through one `git cat-file --batch`."""
    output = _git(
        repository, "cat-file", "--batch", feed="".join(f"{blob}\n" for blob in blobs).encode()
    )
    found: dict[str, str] = {}
    offset = 0
    for blob in blobs:
        end = output.find(b"\n", offset)
        fields = output[offset:end].split(b" ") if end >= 0 else []
        if len(fields) != 3 or fields[0] != blob.encode() or fields[1] != b"blob":
            raise UnusableInput("git did not return an object", where=repository, found=blob)
        size = int(fields[2])
        if size > MAX_BLOB_BYTES:
            raise UnusableInput("a source file is too long", where=repository, found=blob)
        found[blob] = hashlib.sha256(output[end + 1 : end + 1 + size]).hexdigest()
        offset = end + 1 + size + 1
    return found


def _run(
    repository: str | Path, arguments: tuple[str, ...], feed: bytes
) -> subprocess.CompletedProcess[bytes]:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_GRAFT_FILE": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    command = ["git", "--no-pager", *settings, "-C", os.fspath(repository), *arguments]
    try:
        return subprocess.run(
            command,
            check=False,
            input=feed,
            capture_output=True,
            env=environment,
            timeout=_TIMEOUT_SECONDS,
        )
    except FileNotFoundError:
        raise UnusableInput("git is not installed", hint="verify without --history") from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UnusableInput("git could not be run", where=repository, found=error) from None


def _git(repository: str | Path, *arguments: str, feed: bytes = b"") -> bytes:
    done = _run(repository, arguments, feed)
    if done.returncode != 0:
        raise UnusableInput(f"git {arguments[0]} failed", where=repository, found=_complaint(done))
    return done.stdout if feed else done.stdout.removesuffix(b"\n")


def _complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    """The first line of what git says."""
    return done.stderr.decode("utf-8", "replace").strip().split("\n")[0]


def _try(repository: str | Path, *arguments: str) -> bytes | None:
    try:
        return _git(repository, *arguments)
    except UnusableInput:
        return None


def _ok(repository: str | Path, *arguments: str) -> bool:
    return _run(repository, arguments, b"").returncode == 0
