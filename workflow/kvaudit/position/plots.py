"""Plots of the stage position, drawn from records: the relocation curves, and the seven tests.

One set of records makes the same bytes with one version of matplotlib. This module must not judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvaudit import estimate
from kvaudit.position import hypotheses, plan, relocation
from kvaudit.stagekind import Rows

_STYLE: Any = {"svg.hashsalt": "kvaudit", "svg.fonttype": "none", "font.size": 9}
_CURVES = {
    "control": ("fresh at 0 | fresh at offset (control)", "#1b6ca8", "o"),
    "relocated": ("fresh at offset | relocated", "#c8553d", "s"),
}


def draw(rows_by_model: Mapping[str, Rows], folder: Path) -> list[Path]:
    """Draws all plots of the stage.

    Args:
        rows_by_model: records by model.
        folder: an existing folder to write into.

    Returns:
        The files written, SVG.
    """
    import matplotlib as mpl

    mpl.use("svg")
    with mpl.rc_context(_STYLE):
        return [
            _save(_relocation(rows_by_model), folder / "position-relocation.svg"),
            _save(_explanations(rows_by_model), folder / "position-explanations.svg"),
        ]


def _relocation(rows_by_model: Mapping[str, Rows]) -> Any:
    """Mean KL with its 95% interval against the offset, one panel a model."""
    figure, panels = _panels(rows_by_model, (4.2, 3.4))
    for panel, (model, rows) in zip(panels, rows_by_model.items(), strict=True):
        offsets = sorted({row["offset"] for row in rows["records/relocation.jsonl"]})
        for name, (label, colour, marker) in _CURVES.items():
            points = [
                estimate.bootstrap_mean(relocation.by_sample(rows, name, m), f"{name}/{m}")
                for m in offsets
            ]
            means = [point.estimate for point in points]
            bars = [
                [max(0.0, point.estimate - point.low) for point in points],
                [max(0.0, point.high - point.estimate) for point in points],
            ]
            # Side by side, so that one interval does not hide the other.
            aside = 0.96 if name == "control" else 1.04
            panel.errorbar(
                [m * aside for m in offsets],
                means,
                yerr=bars,
                label=label,
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1,
                capsize=2,
            )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(offsets)
        panel.set_xticklabels([str(m) for m in offsets], rotation=45)
        panel.minorticks_off()
        panel.set_title(model)
        panel.set_xlabel("offset M (positions)")
        panel.grid(True, linewidth=0.3)
    seen = [limit for panel in panels for limit in panel.get_ylim()]
    for panel in panels:
        # Whole decades, the same for every model.
        panel.set_ylim(
            10.0 ** math.floor(math.log10(min(seen))), 10.0 ** math.ceil(math.log10(max(seen)))
        )
    panels[0].set_ylabel("KL (nats), mean and 95% interval")
    panels[0].legend(fontsize=7, loc="best")
    return figure


def _explanations(rows_by_model: Mapping[str, Rows]) -> Any:
    """KL of every condition, one dot a sample, against the residual's mean."""
    figure, panels = _panels(rows_by_model, (4.6, 4.8))
    for panel, (model, rows) in zip(panels, rows_by_model.items(), strict=True):
        table = hypotheses.Table(rows)
        series = {
            "control": table.curve("control"),
            "relocated": table.curve("relocated"),
        }
        for condition in plan.conditions(int(table.has_window)):
            if not condition.refused:
                name = f"{condition.hypothesis}: {condition.name}".replace("_", " ")
                series[name] = table.kl(condition.hypothesis, condition.name)
        for height, values in enumerate(reversed(series.values())):
            shown = [value for value in values if value > 0.0]
            panel.plot(shown, [height] * len(shown), "o", color="#1b6ca8", markersize=3, alpha=0.5)
            if values and not shown:
                panel.text(0.02, height, "0", transform=panel.get_yaxis_transform(), va="center")
        panel.axvline(
            estimate.bootstrap_mean(series["relocated"], "line").estimate,
            color="#c8553d",
            linewidth=1,
        )
        panel.set_xscale("log")
        panel.set_yticks(range(len(series)))
        panel.set_yticklabels(list(reversed(series)), fontsize=6)
        panel.set_title(model)
        panel.set_xlabel("KL (nats): one dot a sample; line: mean residual")
        panel.grid(True, axis="x", linewidth=0.3)
    return figure


def _panels(rows_by_model: Mapping[str, Rows], size: tuple[float, float]) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    n = max(1, len(rows_by_model))
    figure = Figure(figsize=(size[0] * n, size[1]), layout="constrained")
    return figure, list(figure.subplots(1, n, squeeze=False)[0])


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, format="svg", metadata={"Date": None})
    return path
