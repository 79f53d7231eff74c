"""What `kvaudit rescore` finds out of one file, and how it is shown.

A `Report` is a value; figures in it are computed from rows, the published one beside them. This
module must not read a file or run a program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from kvaudit.errors import UnusableInput, printable
from kvaudit.rescore import programs, scoring
from kvaudit.rescore.adapters import Published
from kvaudit.rescore.programs import Rerun
from kvaudit.rescore.scoring import Scored

SHOWN = 60


@dataclass(frozen=True)
class Figure:
    """A mean over rows, of 0 to 1; `rows` of them had a score, of `of` in all."""

    total: float
    rows: int
    of: int

    @property
    def percent(self) -> float:
        """Of all rows; those without a score count as wrong."""
        return 100.0 * self.total / self.of if self.of else 0.0

    def to_json(self) -> dict[str, Any]:
        """The figure as JSON."""
        return {"percent": self.percent, "total": self.total, "rows": self.rows, "of": self.of}


@dataclass(frozen=True)
class Report:
    """See the module.

    Attributes:
        format: of the file.
        file: its path as it was given.
        sha256: of its bytes.
        scored: every row with its scores.
        published: the figure that was published, if it is known.
        reruns: one a row, or None where no program was run.
    """

    format: str
    file: str
    sha256: str
    scored: Sequence[Scored]
    published: Published | None
    reruns: Sequence[Rerun] | None = None

    def figures(self) -> dict[str, Figure]:
        """By whom the rows were scored -> the mean."""
        lists: dict[str, list[float | None]] = {
            "recorded": [item.row.published for item in self.scored],
            "rule": [None if item.rule is None else item.rule.score for item in self.scored],
            "ours": [item.ours for item in self.scored if item.applies],
        }
        found = {}
        for name, scores in lists.items():
            known = [score for score in scores if score is not None]
            if known or name == "ours":
                found[name] = Figure(sum(known), len(known), len(scores))
        return found

    def troubles(self) -> list[str]:
        """What stands against the file as a whole."""
        found = []
        if self.published is not None:
            for name, figure in self.figures().items():
                if figure.of == len(self.scored) and not agrees(self.published.figure, figure):
                    found.append(
                        f"published {self.published.figure}, {_NAMES[name]} {figure.percent:.4f}"
                    )
        for (problem, _, sample), count in list(scoring.doubled(self._rows()).items())[:SHOWN]:
            found.append(f"problem {problem}, sample {sample}, occurs {count} times")
        other = [item for item in self.reruns or () if item.recorded == "other"]
        if other:
            found.append(f"{len(other)} programs do not print what the file says")
        return found

    def disagreements(self) -> Iterator[tuple[Scored, list[str]]]:
        """The rows whose scores part, with the reasons."""
        for item in self.scored:
            reasons = item.disagreements()
            if reasons:
                yield item, reasons

    @property
    def exit_code(self) -> int:
        """0 where everything agrees, 1 otherwise."""
        return 1 if self.troubles() or any(True for _ in self.disagreements()) else 0

    def to_json(self) -> dict[str, Any]:
        """The report as a document of kind `rescore-report`."""
        published = self.published
        return {
            "kind": "rescore-report",
            "version": 1,
            "format": self.format,
            "file": _short(self.file),
            "sha256": self.sha256,
            "rows": len(self.scored),
            "published": None
            if published is None
            else {"percent": published.figure, "where": published.where},
            "figures": {name: figure.to_json() for name, figure in self.figures().items()},
            "agrees": self.exit_code == 0,
            "troubles": [_short(text) for text in self.troubles()],
            "unscorable": sum(item.unscorable for item in self.scored),
            "answers": dict(scoring.rules(self.scored)),
            "disagreements": [_row(item, reasons) for item, reasons in self.disagreements()],
            "programs": None if self.reruns is None else self._programs(),
        }

    def _rows(self) -> list[Any]:
        return [item.row for item in self.scored]

    def _programs(self) -> dict[str, Any]:
        reruns = self.reruns or ()
        counted = {kind: dict(found) for kind, found in programs.counts(reruns).items()}
        return {
            **counted,
            "rows": [
                {
                    "line": item.row.line,
                    "problem": _short(item.row.problem),
                    "ending": rerun.ending,
                    "recorded": rerun.recorded,
                    "against_answer": rerun.answer,
                    "printed": _short(rerun.printed),
                    "answer": _short(item.answer.text),
                }
                for item, rerun in zip(self.scored, reruns, strict=True)
                if noteworthy(rerun)
            ],
        }

    def render(self, *, every: bool = False) -> str:
        """The report for people."""
        out = [f"{printable(self.file)} ({self.format}): {len(self.scored)} rows"]
        if self.published is not None:
            where = printable(self.published.where)
            out.append(f"  published           {self.published.figure:>8} %   {where}")
        for name, figure in self.figures().items():
            out.append(
                f"  {_NAMES[name]:<19} {figure.percent:8.2f} %   {figure.total:g} of {figure.of}"
            )
        out.append(f"  answers found       {_listed(scoring.rules(self.scored))}")
        if self.reruns is not None:
            names = {
                "ending": "programs",
                "recorded": "against the file",
                "answer": "against answer",
            }
            for kind, found in programs.counts(self.reruns).items():
                out.append(f"  {names[kind]:<19} {_listed(found)}")
        out += [f"  ✗ {printable(text)}" for text in self.troubles()]
        out += _cut([_line(item, reasons) for item, reasons in self.disagreements()], every)
        pairs = zip(self.scored, self.reruns or (), strict=False)
        out += _cut([_program_line(s, r) for s, r in pairs if noteworthy(r)], every)
        verdict = "agrees" if self.exit_code == 0 else "disagrees"
        return "\n".join([*out, f"  {verdict}", ""])


def agrees(figure: str, found: Figure) -> bool:
    """Whether a mean, rounded to the places of the figure, is the figure; a tie may go either way.

    Raises:
        UnusableInput: the figure is not a plain decimal of 0 to 100.
    """
    wanted = percent(figure)
    exponent = wanted.as_tuple().exponent
    places = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    places = min(places, 12)
    room = Fraction(1, 2 * 10**places)
    mean = Fraction(found.total).limit_denominator(10**9) * 100 / max(found.of, 1)
    return abs(mean - Fraction(wanted)) <= room + Fraction(1, 10**9)


def percent(figure: str) -> Decimal:
    """A published figure.

    Raises:
        UnusableInput: it is not a plain decimal of 0 to 100.
    """
    text = figure.strip().removesuffix("%").strip()
    if (
        len(text) <= 40
        and text.replace(".", "", 1).isascii()
        and text.replace(".", "", 1).isdigit()
    ):
        value = Decimal(text)
        if value <= 100:
            return value
    raise UnusableInput(
        "the published figure is not a percentage", expected="0 to 100, as 84.3", found=figure
    )


def noteworthy(rerun: Rerun) -> bool:
    """Whether a program's row is shown: it failed, or prints something else than expected."""
    plain = rerun.ending == "printed" and rerun.recorded in ("same", "same number")
    return not (plain and rerun.answer in ("same", "no answer"))


_NAMES = {"recorded": "scores in the file", "rule": "publisher's rule", "ours": "our rules"}


def _row(item: Scored, reasons: list[str]) -> dict[str, Any]:
    return {
        "line": item.row.line,
        "problem": _short(item.row.problem),
        "sample": item.row.sample,
        "golds": [_short(gold) for gold in item.row.golds],
        "answer": _short(item.answer.text),
        "answer_rule": item.answer.rule,
        "recorded": item.row.published,
        "rule": None if item.rule is None else item.rule.score,
        "rule_answer": None if item.rule is None else _short(item.rule.answer),
        "ours": item.ours,
        "why": _short(item.why),
        "reasons": [_short(reason) for reason in reasons],
    }


def _line(item: Scored, reasons: list[str]) -> str:
    answer, gold = printable(item.answer.text, 40), printable(" | ".join(item.row.golds), 40)
    reason = "; ".join(reasons)
    text = (
        f"  ≠ line {item.row.line}, problem {printable(item.row.problem, 40)}: {reason}: "
        f"gold {gold}, answer {answer} ({item.answer.rule}), {printable(item.why, 80)}"
    )
    if item.rule is not None and item.rule.score != item.ours:
        text += f"; the publisher's rule took {printable(item.rule.answer, 40)}"
    return text


def _program_line(item: Scored, rerun: Rerun) -> str:
    return (
        f"  ~ line {item.row.line}, problem {printable(item.row.problem, 40)}: {rerun.ending}, "
        f"against the file: {rerun.recorded}, against the answer: {rerun.answer}: "
        f"printed {printable(rerun.printed, 40)}, answer {printable(item.answer.text, 40)}"
    )


def _cut(found: list[str], every: bool) -> list[str]:
    if every or len(found) <= SHOWN:
        return found
    return [*found[:SHOWN], f"  … and {len(found) - SHOWN} more (--all, or --json)"]


def _listed(found: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.most_common()) or "none"


def _short(text: str) -> str:
    return printable(text, 2_000)
