"""The verdict page: whole in itself, escaped, and a function of the verdict alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvaudit import html_report
from kvaudit.chain import Finding
from kvaudit.claims import Claim
from kvaudit.verify import Verdict, verify

Audit = Callable[..., tuple[int, str, str]]
VOID = {"br", "meta"}
ATTACK = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\x1b[2J\u202e\n</style>"


class Page(HTMLParser):
    """Checks nesting and keeps tags, attributes and text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.decode())
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


@pytest.fixture(scope="module")
def verdict(pristine: Path) -> Verdict:
    return verify(pristine)


def test_the_page_says_what_the_verdict_says(verdict: Verdict) -> None:
    text = Page(html_report.render(verdict, notes=["history: as recorded"])).text
    for claim in verdict.claims:
        for words in (claim.id, claim.title, claim.criterion, claim.measured, claim.paper):
            assert words in text
    assert str(verdict.run_sha256) in text
    assert verdict.inputs_sha256 in text
    assert f"{verdict.records:,}" in text
    assert "history: as recorded" in text
    assert text.count("holds") == 8


def test_the_page_needs_nothing_else(verdict: Verdict) -> None:
    page = html_report.render(verdict)
    found = Page(page)
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & {
        t for t, _ in found.tags
    }
    for _, attributes in found.tags:
        assert not {"src", "href", "style", "onload"} & {*attributes}
    assert not re.search(rb"https?:|url\(|@import|//", page)
    policies = [a for tag, a in found.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in str(policies[0]["content"])
    assert b"prefers-color-scheme: dark" in page


def test_the_same_verdict_gives_the_same_bytes(
    pristine: Path, tmp_path: Path, audit: Audit, verdict: Verdict
) -> None:
    for name in ("a.html", "b.html"):
        assert audit("verify", pristine, "--html", tmp_path / name)[0] == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert (tmp_path / "a.html").read_bytes() == html_report.render(verdict)


def test_what_a_stranger_wrote_stays_text(verdict: Verdict) -> None:
    claim = Claim(*[ATTACK] * 6, "fails")
    finding = Finding("fails", ATTACK, ATTACK)
    hostile = replace(
        verdict, claims=(claim,), findings=(finding,), programs=1, programs_reason=ATTACK
    )
    page = html_report.render(hostile, notes=[ATTACK])
    plain = {tag for tag, _ in Page(html_report.render(verdict)).tags}
    assert {tag for tag, _ in Page(page).tags} <= plain | {"ul", "li", "code"}
    assert b"\x1b" not in page
    assert "\u202e".encode() not in page
    assert page.count(b"</style>") == 1


def test_failures_and_gaps_are_shown(run: Path, tmp_path: Path, audit: Audit) -> None:
    (run / "extra").write_bytes(b"x")
    code, _, _ = audit("verify", run, "--html", tmp_path / "page.html")
    text = Page((tmp_path / "page.html").read_bytes()).text
    assert code == 1
    assert "Verdict: failed" in text
    assert "extra" in text
    assert "is not listed in any manifest" in text
    (run / "extra").unlink()
    (run / "run.manifest.json").unlink()
    (run / "verdict.json").unlink()
    assert audit("verify", run, "--html", tmp_path / "page.html")[0] == 3
    text = Page((tmp_path / "page.html").read_bytes()).text
    assert "Verdict: incomplete" in text
    assert "not sealed" in text


def test_many_findings_are_counted(verdict: Verdict) -> None:
    many = tuple(
        Finding("fails", f"file-{number}", "is not listed")
        for number in range(html_report.MAX_FINDINGS + 5)
    )
    assert "And 5 more." in Page(html_report.render(replace(verdict, findings=many))).text


def test_a_page_that_cannot_be_written_is_one_clear_error(
    pristine: Path, tmp_path: Path, audit: Audit
) -> None:
    code, out, err = audit("verify", pristine, "--html", tmp_path / "absent" / "page.html")
    assert (code, out, err.count("\n")) == (2, "", 1)
