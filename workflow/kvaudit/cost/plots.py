"""Plots of the stage cost, from its records: cost curves with their crossover, and cache sizes.

A plot shows figures of the summary and is no evidence. This module must not compute any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvaudit import stats
from kvaudit.cost import summary
from kvaudit.cost.records import WORK, Records, totals, typed
from kvaudit.stagekind import Rows

_STYLE: Any = {"svg.hashsalt": "kvgraft", "svg.fonttype": "none", "font.size": 9.0}
_CURVES = (
    ("prefill", "prefill and one token", "#4c4c4c", "o"),
    ("one_shot", "both in one call", "#9e9e9e", "x"),
    ("graft_cold", "graft and one token, page cache cold", "#1f77b4", "v"),
    ("graft", "graft and one token, warm", "#2ca02c", "s"),
)


def draw(rows_by_model: Mapping[str, Rows], folder: Path) -> list[Path]:
    """Write cost-curves.svg and cost-memory.svg; equal records make equal bytes.

    Args:
        rows_by_model: model -> record file -> rows, validated.
        folder: where to; must exist.

    Returns:
        The files.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    records = {model: typed(rows) for model, rows in sorted(rows_by_model.items())}
    paths = []
    with plt.rc_context(_STYLE):
        for name, panel in (("cost-curves", _curves), ("cost-memory", _memory)):
            figure, axes = plt.subplots(
                1, len(records), figsize=(4.6 * len(records), 4.0), sharey=True, squeeze=False
            )
            for axis, (model, found) in zip(axes[0], records.items(), strict=True):
                panel(axis, found)
                axis.set_title(model)
                axis.grid(True, which="major", color="#dddddd", linewidth=0.6)
            handles, labels = axes[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, fontsize=7, loc="lower center", ncols=3)
            figure.tight_layout(rect=(0.0, 0.11, 1.0, 1.0))
            paths.append(folder / f"{name}.svg")
            figure.savefig(paths[-1], metadata={"Date": None})
            plt.close(figure)
    return paths


def _curves(axis: Any, records: Records) -> None:
    """Seconds by tokens, both logarithmic: medians, bars from the least to the most."""
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    for arm, label, colour, marker in _CURVES:
        points = [
            (n, [value for row in rows for value in totals(row, WORK)])
            for n in records.lengths()
            if (rows := records.at(n, arm))
        ]
        if not points:
            continue
        middles = [stats.median(values) for _, values in points]
        bars = [
            [m - min(values) for m, (_, values) in zip(middles, points, strict=True)],
            [max(values) - m for m, (_, values) in zip(middles, points, strict=True)],
        ]
        axis.errorbar(
            [n for n, _ in points], middles, yerr=bars, label=label, color=colour, marker=marker,
            markersize=4, linewidth=1.2, capsize=2,
        )  # fmt: skip
    limits = [(n, found) for n in records.lengths() if (found := summary.limit(records, n))]
    lengths = [n for n, _ in limits]
    axis.plot(
        lengths, [found["graft_seconds"] for _, found in limits], color="#2ca02c", linestyle=":",
        linewidth=1.2, label="of it the verified graft",
    )  # fmt: skip
    axis.plot(
        lengths, [found["seconds"] for _, found in limits], color="#d62728", linestyle="--",
        linewidth=1.2, label="raw limit: SHA-256 or copy of the bytes",
    )  # fmt: skip
    for arm, colour, height in (("graft_cold", "#1f77b4", 0.09), ("graft", "#2ca02c", 0.02)):
        cross = summary.crossover(records, arm)
        if cross is not None and cross.relation == "at":
            axis.axvline(cross.tokens, color=colour, linewidth=0.8, linestyle="-.")
            axis.text(
                cross.tokens, height, f" crossover {cross.tokens:.0f}", color=colour, fontsize=7,
                transform=axis.get_xaxis_transform(),
            )  # fmt: skip
    _ticks(axis, records.lengths())
    axis.set_xlabel("span, tokens")
    axis.set_ylabel("time, s")


def _memory(axis: Any, records: Records) -> None:
    """MiB by tokens, both logarithmic: the two caches by context size, blocks by span."""
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    sizes = summary.memory(records)
    for key, label, colour, marker in (
        ("full_mib", "cache, swa_full on", "#4c4c4c", "o"),
        ("small_mib", "cache, swa_full off", "#ff7f0e", "v"),
    ):
        points = [(row["n_ctx"], row[key]) for row in sizes if row[key]]
        axis.plot(
            [n for n, _ in points], [size for _, size in points], label=label, color=colour,
            marker=marker, markersize=4, linewidth=1.2,
        )  # fmt: skip
    blocks = [(n, records.at(n, "graft")) for n in records.lengths()]
    axis.plot(
        [n for n, rows in blocks if rows],
        [rows[0]["state_bytes"] / 2**20 for _, rows in blocks if rows],
        label="state of a block", color="#2ca02c", marker="s", markersize=4, linewidth=1.2,
    )  # fmt: skip
    _ticks(axis, [n for n, _ in blocks][::2] + [row["n_ctx"] for row in sizes])
    axis.set_xlabel("context size of a cache, span of a block; tokens")
    axis.set_ylabel("size, MiB")


def _ticks(axis: Any, numbers: Sequence[int]) -> None:
    """Plain numbers of tokens, each once."""
    ticks = sorted({*numbers})
    axis.set_xticks(ticks, [f"{n:,}" for n in ticks], rotation=45)
    axis.minorticks_off()
