"""The verdict as one HTML page that needs nothing else: no script, no font, no address.

Everything in it comes from the verdict, and everything that a stranger has written is escaped. The
same verdict gives the same bytes. This module must not compute a number, and must not read files.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from kvaudit.claims import Claim, verdict_counts
from kvaudit.errors import printable
from kvaudit.verify import Verdict

MAX_FINDINGS = 1000
MAX_CHARACTERS = 4000

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5b6168; --line: #d5d9de;
  --page: #ffffff; --band: #f4f6f8; --good: #11683a; --bad: #a6192e; --open: #805b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --soft: #a0a7af; --line: #3a4047;
  --page: #16191c; --band: #1f2429; --good: #5fd38d; --bad: #ff8a92; --open: #e8bf57; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--page);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .25rem 0; }
.soft { color: var(--soft); }
.holds, .verified { color: var(--good); }
.fails, .failed { color: var(--bad); }
.open, .incomplete { color: var(--open); }
.word { font-weight: 600; white-space: nowrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
caption { text-align: left; color: var(--soft); padding: 0 0 .4rem; }
th, td { text-align: left; vertical-align: top; padding: .5rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
thead th { background: var(--band); border-bottom-width: 2px; }
th.id { white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: .88em/1.5 ui-monospace, monospace; }
pre { background: var(--band); padding: .75rem 1rem; overflow-x: auto; }
@media print { body { max-width: none; padding: 0; } thead { display: table-header-group; } }
"""
_CLASSES = {"holds": "holds", "fails": "fails", "not run here": "open"}
_HEAD = ("claim", "criterion", "this run", "paper’s figure", "verdict")


def render(verdict: Verdict, *, notes: Sequence[str] = ()) -> bytes:
    """The whole page, UTF-8.

    Args:
        verdict: what `verify` returned.
        notes: lines of other checks made together with it, e.g. of the history or a signature.
    """
    counts = verdict_counts(verdict.claims)
    outcome = (
        f"{counts['holds']} claims hold, {counts['fails']} fail, {counts['not run here']} were not "
        f"run here; {len(verdict.findings)} findings"
    )
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_escaped(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>kvaudit: {_escaped(verdict.status)}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        "<main>",
        f'<h1>Verdict: <span class="{verdict.status}">{_escaped(verdict.status)}</span></h1>',
        f"<p>{_escaped(outcome)}</p>",
        '<p class="soft">Every figure on this page was recomputed from the raw records of the run '
        "named below; those records are its author’s.</p>",
        *_claims(verdict.claims),
        *_findings(verdict),
        *_evidence(verdict, notes),
        *_again(),
        "</main>",
        "</body>",
        "</html>",
    ]
    return ("\n".join(parts) + "\n").encode("utf-8")


def _claims(claims: Sequence[Claim]) -> Iterable[str]:
    yield "<h2>Claims</h2>"
    if not claims:
        yield "<p>No stage of this run can be judged.</p>"
    for model in sorted({claim.model for claim in claims}):
        yield '<div class="wide">'
        yield f"<table><caption>Model <code>{_escaped(model)}</code></caption>"
        head = "".join(f'<th scope="col">{_escaped(word)}</th>' for word in _HEAD)
        yield f"<thead><tr>{head}</tr></thead><tbody>"
        yield from (_row(claim) for claim in claims if claim.model == model)
        yield "</tbody></table></div>"


def _row(claim: Claim) -> str:
    word = f'<span class="word {_CLASSES.get(claim.verdict, "open")}">{_escaped(claim.verdict)}'
    return (
        f'<tr><th scope="row" class="id">{_escaped(claim.id)}<br>'
        f'<span class="soft">{_escaped(claim.title)}</span></th>'
        f"<td>{_escaped(claim.criterion)}</td><td>{_escaped(claim.measured)}</td>"
        f"<td>{_escaped(claim.paper)}</td><td>{word}</span></td></tr>"
    )


def _findings(verdict: Verdict) -> Iterable[str]:
    yield "<h2>Findings</h2>"
    if not verdict.findings:
        yield "<p>None: every file is listed, has its digest, and says what its records say.</p>"
        return
    yield "<ul>"
    for finding in verdict.findings[:MAX_FINDINGS]:
        kind = "fails" if finding.severity == "fails" else "incomplete"
        yield (
            f'<li><span class="word {kind}">{_escaped(finding.severity)}</span> '
            f"<code>{_escaped(finding.file)}</code>: {_escaped(finding.message)}</li>"
        )
    yield "</ul>"
    if len(verdict.findings) > MAX_FINDINGS:
        yield f"<p>And {len(verdict.findings) - MAX_FINDINGS} more.</p>"


def _evidence(verdict: Verdict, notes: Sequence[str]) -> Iterable[str]:
    rerun = "none is recorded" if verdict.programs is None else f"{verdict.programs:,}"
    if verdict.programs_reason is not None:
        rerun += f" ({verdict.programs_reason})"
    facts = [
        ("files", f"{verdict.files:,}, {verdict.bytes:,} bytes"),
        ("records", f"{verdict.records:,}"),
        ("rows of raw logits", f"{verdict.raw_logits:,}"),
        ("programs run again", rerun),
        ("inputs manifest", f"SHA-256 {verdict.inputs_sha256}"),
        ("run manifest", f"SHA-256 {verdict.run_sha256}" if verdict.run_sha256 else "not sealed"),
        *(("also checked", note) for note in notes),
    ]
    yield "<h2>Evidence</h2>"
    yield "<dl>"
    yield from (f"<dt>{_escaped(name)}</dt><dd>{_escaped(value)}</dd>" for name, value in facts)
    yield "</dl>"
    yield (
        '<p class="soft">The run manifest names the digest of every stage manifest, each of which '
        "names the digest of every file of its stage; so its one digest stands for the whole run."
        "</p>"
    )


def _again() -> Iterable[str]:
    yield "<h2>Check again</h2>"
    yield "<p>On any machine with Python, without an engine and without a network:</p>"
    yield (
        "<pre>sha256sum RUN/run.manifest.json     # the digest above\n"
        "kvaudit verify RUN                  # a folder, a .tar.zst or a .zip\n"
        "kvaudit explain RUN CLAIM           # down to the records that a claim rests on</pre>"
    )


def _escaped(text: str) -> str:
    return html.escape(printable(text, limit=MAX_CHARACTERS), quote=True)
