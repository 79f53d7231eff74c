"""Write docs/results.md, every claim of the committed runs: python docs/results.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ORDER = ("D", "E", "P", "C", "F", "R")
HEAD = """# What was measured

Every claim of the committed runs with the paper's figure, as `kvaudit verify` prints it; written
by `docs/results.py`. A claim's criterion stands in the run's verdict.json. What the rows of the
flywheel show, and what not, says [ADR 9](adr/0009-how-the-flywheel-answers.md).
"""


def main() -> int:
    """Read the verdicts, write the table; returns the exit status."""
    parts = [HEAD]
    kept = [ROOT / "results/reference", ROOT / "results/reference-portable"]
    runs = [*kept, *sorted((ROOT / "results/registered").glob("*"))]
    for run in runs:
        verdict = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
        counts = [claim["verdict"] for claim in verdict["claims"]]
        parts.append(
            f"\n## {run.relative_to(ROOT)}: {counts.count('holds')} claims hold, "
            f"{counts.count('fails')} fail, {counts.count('not run here')} not run here\n\n"
            + table(verdict["claims"])
        )
    (ROOT / "docs/results.md").write_text("".join(parts), encoding="utf-8")
    return 0


def table(claims: list[dict[str, Any]]) -> str:
    """The claims as a table, one column a model."""
    models = list(dict.fromkeys(claim["model"] for claim in claims))
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for claim in claims:
        rows.setdefault(claim["id"], {})[claim["model"]] = claim
    lines = [
        f"| claim | the paper | {' | '.join(models)} |",
        "|---|---|" + "---|" * len(models),
    ]
    asked = [name for name, of in rows.items() if any(map(_is_asked, of.values()))]
    for name in sorted(asked or rows, key=_place):
        cells = [_cell(rows[name].get(model)) for model in models]
        first = next(iter(rows[name].values()))
        paper = first["paper"].replace("|", "/")
        lines.append(f"| {name} {first['title']} | {paper} | {' | '.join(cells)} |")
    left = sorted({*rows} - {*asked}, key=_place) if asked else []
    rest = [f"\nNot asked of these runs: {', '.join(left)}."] if left else []
    return "\n".join(lines + rest) + "\n"


def _is_asked(claim: dict[str, Any]) -> bool:
    return not claim["measured"].startswith("not asked")


def _place(name: str) -> tuple[int, int, str]:
    digits = "".join(c for c in name.partition("-")[0] if c.isdigit())
    return ORDER.index(name[0]), int(digits or 0), name


def _cell(claim: dict[str, Any] | None) -> str:
    if claim is None:
        return ""
    mark = "" if claim["verdict"] == "holds" else f" **{claim['verdict']}**"
    return claim["measured"].replace("|", "/") + mark


if __name__ == "__main__":
    sys.exit(main())
