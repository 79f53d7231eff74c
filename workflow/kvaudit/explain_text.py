"""An explanation as plain text. This module must not know how it was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvaudit import manifest
from kvaudit.errors import printable
from kvaudit.explain import Explanation, File

SHOWN = 4
"""Files of one folder, such as raw logits, and ranges of lines, that are printed one by one; --json
has them all."""


def render(explanation: Explanation) -> str:
    """The walk as plain text, ending in a newline."""
    claim = explanation.claim
    lines = [
        f"{claim.id} of {claim.model}: {claim.title}",
        f"  criterion  {claim.criterion}",
        f"  paper      {claim.paper}",
        f"  measured   {claim.measured}",
        f"  verdict    {claim.verdict}",
        *_program_lines(explanation),
        "",
        "judged from these files",
        *_file_lines(explanation),
    ]
    sealed = explanation.run_sha256
    lines += [
        "",
        "which these manifests bind",
        f"  {explanation.folder}/{manifest.STAGE}  sha256 {explanation.stage_sha256}",
        f"  {manifest.RUN}  sha256 {sealed}" if sealed else "  the run is not sealed",
        f"  {manifest.INPUTS}  sha256 {explanation.inputs_sha256}",
        "",
        "and which were made with",
        *_input_lines(explanation.inputs),
    ]
    if explanation.findings:
        lines += ["", f"findings ({len(explanation.findings)}):"]
        lines += [f"  {f.severity}: {f.file}: {f.message}" for f in explanation.findings]
    return "\n".join(printable(line, limit=2000) for line in lines) + "\n"


def _program_lines(explanation: Explanation) -> Iterable[str]:
    found = explanation.programs
    if found is None:
        return
    what = "recorded programs of the stage"
    if found.named is not None:
        what = f"{found.named:,} recorded programs behind these records"
    if found.reason is None:
        yield f"  programs   {what}: {found.rerun:,} run again, as recorded unless found below"
        return
    yield f"  programs   {what}: {found.reason}"
    yield f"             with what is recorded of them: {found.as_recorded}"


def _file_lines(explanation: Explanation) -> Iterable[str]:
    others = 0
    for file in explanation.files:
        if file.rows is None:
            others += 1
            if others > SHOWN:
                continue
        what = f"{file.bytes:,} bytes"
        if file.rows is not None:
            what = f"{file.rows:,} row{'' if file.rows == 1 else 's'}"
            what += _lines(file, file.rows)
        yield f"  {file.path}  {what}  sha256 {file.sha256}" + ("" if file.intact else "  DAMAGED")
    if others > SHOWN:
        yield f"  and {others - SHOWN} more of the same kind (--json has them all)"


def _lines(file: File, rows: int) -> str:
    """Which of its rows a claim rests on, as ranges of lines."""
    ranges = ((1, rows),) if file.lines is None and rows else file.lines or ()
    if not ranges:
        return ""
    shown = ", ".join(f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in ranges[:SHOWN])
    count = sum(b - a + 1 for a, b in ranges)
    of = "" if count == rows else f", of them {count:,}"
    more = f" and {len(ranges) - SHOWN} more" if len(ranges) > SHOWN else ""
    any_of = "any of " if file.lines is None and count > 1 else ""
    return f"{of}: {any_of}line{'' if count == 1 else 's'} {shown}{more}"


def _input_lines(inputs: Mapping[str, Any]) -> Iterable[str]:
    model = inputs["model"]
    if model is not None:
        yield f"  model {model['name']}, {model['bytes']:,} bytes  sha256 {model['sha256']}"
    for name, digest in inputs["profiles"].items():
        yield f"  profile {name}  sha256 {digest}"
    configuration, source = inputs["configuration"], inputs["source"]
    yield f"  configuration {configuration['name']}  sha256 {configuration['sha256']}"
    state = {None: "", True: ", modified", False: ", unmodified"}[source["dirty"]]
    yield f"  source tree  sha256 {source['tree_sha256']}"
    yield f"  commit {source['commit'] or 'not recorded'}{state}"
    for name, digest in sorted(inputs["locks"].items()):
        yield f"  lock {name}  sha256 {digest}"
    if inputs["registration"] is not None:
        found = inputs["registration"]
        yield f"  registration {found['number']}  sha256 {found['sha256']}"
