"""Figures of the stage context, from records: access time against depth, and growth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvaudit.context import summary
from kvaudit.context.records import ACCESSES, BLOCKS, GROWTH
from kvaudit.stagekind import Rows

_STYLE: Any = {
    "svg.hashsalt": "kvgraft",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7a4fa3")


def draw(rows_by_model: Mapping[str, Rows], folder: Path) -> list[Path]:
    """Draws the stage's figures.

    Args:
        rows_by_model: the records of the stage, by model.
        folder: where to write; made if it is not there.

    Returns:
        The files written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with matplotlib.rc_context(_STYLE):
        for name, draw_one in (("access", _access), ("growth", _growth)):
            figure = draw_one(rows_by_model, Figure)
            path = folder / f"context-{name}.svg"
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
            made.append(path)
    return made


def _access(rows_by_model: Mapping[str, Rows], figure_type: Any) -> Any:
    """One panel a model: every counted access, the line through the blocks' medians, its band."""
    n = max(1, len(rows_by_model))
    figure = figure_type(figsize=(7.0, 2.6 * n), layout="constrained")
    panels = figure.subplots(n, 1, squeeze=False)[:, 0]
    for panel, colour, (model, rows) in zip(
        panels, _cycle(n), sorted(rows_by_model.items()), strict=False
    ):
        counted = [row for row in rows[ACCESSES] if row["round"] > 0]
        starts, at = {}, 0
        for block in rows[BLOCKS]:
            starts[block["block"]] = at
            at += block["tokens"]
        panel.plot(
            [starts[row["block"]] for row in counted],
            [1e3 * sum(row["seconds"].values()) for row in counted],
            ".",
            color=colour,
            alpha=0.45,
            label="one access",
        )
        medians = summary.block_medians(rows[ACCESSES])
        panel.plot(
            [starts[block] for block in medians],
            [1e3 * seconds for seconds in medians.values()],
            "o",
            color=colour,
            label="median of a block",
        )
        fit = summary.access(rows[ACCESSES])["per_block"]
        if fit is not None:
            middle = sum(medians) / len(medians)
            height = fit["intercept"] + fit["slope"] * middle
            depth = [starts[block] for block in medians]

            def line(
                slope: float,
                blocks: tuple[int, ...] = tuple(medians),
                middle: float = middle,
                height: float = height,
            ) -> list[float]:
                return [1e3 * (height + slope * (block - middle)) for block in blocks]

            panel.plot(depth, line(fit["slope"]), "-", color=colour, label="fitted line")
            panel.fill_between(
                depth,
                line(fit["low"]),
                line(fit["high"]),
                color=colour,
                alpha=0.15,
                linewidth=0,
                label="slope's 95% interval",
            )
        panel.set_ylim(bottom=0)
        panel.set_title(model, loc="left")
        panel.set_ylabel("access time (ms)")
        panel.legend(frameon=False, fontsize=8, ncols=4, loc="lower left")
    panels[-1].set_xlabel("depth: tokens before the block")
    return figure


def _growth(rows_by_model: Mapping[str, Rows], figure_type: Any) -> Any:
    """Three panels: time, disk and index against the number of blocks, with the laws."""
    figure = figure_type(figsize=(9.0, 3.2), layout="constrained")
    panels = figure.subplots(1, 3)
    shown = (
        ("seconds", 1.0, "prefill and deposit (s)"),
        ("disk_bytes", 1e-6, "blocks on disk (MB)"),
        ("index_bytes", 1e-3, "index in memory (kB)"),
    )
    for colour, (model, rows) in zip(
        _cycle(len(rows_by_model)), sorted(rows_by_model.items()), strict=True
    ):
        made = summary.growth(rows[GROWTH])
        sizes = [mark["blocks"] for mark in made["marks"]]
        for panel, (key, unit, _) in zip(panels, shown, strict=True):
            law = made["laws"][key]
            label = model if law is None else f"{model}: n^{law['exponent']:.2f}"
            values = [mark[key] * unit for mark in made["marks"]]
            panel.plot(sizes, values, "o-", color=colour, label=label)
    for panel, (_, _, label) in zip(panels, shown, strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.set_xlabel("blocks in the store")
        panel.set_ylabel(label)
        panel.legend(frameon=False, fontsize=8)
    return figure


def _cycle(n: int) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(n)]
