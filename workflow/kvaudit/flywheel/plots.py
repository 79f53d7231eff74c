"""Plots of the stage flywheel, from its records: arms, abstention, and routing as it grows.

A plot shows figures of the summary and is no evidence. This module must not compute any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvaudit.flywheel import blocks, contest, routes
from kvaudit.flywheel.figures import Found
from kvaudit.stagekind import Rows

_STYLE: Any = {"svg.hashsalt": "kvgraft", "svg.fonttype": "none", "font.size": 9.0}
_GREY, _BLUE, _GREEN, _RED = "#9e9e9e", "#1f77b4", "#2ca02c", "#d62728"


def draw(rows_by_model: Mapping[str, Rows], folder: Path) -> list[Path]:
    """Write flywheel-arms.svg, flywheel-abstention.svg and flywheel-growth.svg.

    Equal records make equal bytes.

    Args:
        rows_by_model: model -> record file -> rows, validated.
        folder: where to; made if it is not there.

    Returns:
        The files.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    found = {model: Found(model, rows) for model, rows in sorted(rows_by_model.items())}
    paths = []
    with plt.rc_context(_STYLE):
        for name, panel, columns in (
            ("flywheel-arms", _arms, 0),
            ("flywheel-abstention", _abstention, 3),
            ("flywheel-growth", _growth, 4),
        ):
            figure, axes = plt.subplots(
                1, len(found), figsize=(5.0 * len(found), 4.2), sharey=True, squeeze=False
            )
            for axis, (model, one) in zip(axes[0], found.items(), strict=True):
                panel(axis, one)
                axis.set_title(model)
                axis.grid(True, which="major", color="#dddddd", linewidth=0.6)
                axis.set_axisbelow(True)
            if columns:
                handles, labels = axes[0][0].get_legend_handles_labels()
                figure.legend(handles, labels, fontsize=7, loc="lower center", ncols=columns)
            figure.tight_layout(rect=(0.0, 0.07 if columns else 0.0, 1.0, 1.0))
            paths.append(folder / f"{name}.svg")
            figure.savefig(paths[-1], metadata={"Date": None})
            plt.close(figure)
    return paths


def rates(found: Found) -> list[tuple[str, str, Mapping[str, Any]]]:
    """The bars of the first plot: label, colour, rate; in the order of the rows of the table."""
    ways = contest.contest(found)["ways"]
    recall, routed = contest.recurrence(found), blocks.routed(found)
    new, solved = blocks.transfer(found), blocks.solved(found)
    return [
        ("first answer in words", _GREY, ways["pass_at_1"]),
        ("voting", _GREY, ways["vote"]),
        ("code", _GREY, ways["code"]),
        ("best-of-n with the key", _GREY, ways["best_of_n"]),
        ("code and library", _GREEN, ways["code_library"]),
        ("confident and library", _GREEN, ways["confident_library"]),
        ("recall, routed", _GREEN, recall["library"]),
        ("recall, one prefix", _BLUE, routed["recall"]["flat"]["second"]),
        ("recall, relocated", _BLUE, routed["recall"]["relocated"]["second"]),
        ("recall, text read again", _BLUE, routed["recall"]["text"]["second"]),
        ("new numbers, alone in words", _GREY, new["parametric"]["alone_text"]),
        ("new numbers, alone by code", _GREY, new["parametric"]["alone"]),
        ("new numbers, parametric", _GREEN, new["parametric"]["adapt"]),
        ("new numbers, hard-coded", _GREEN, new["hard_coded"]["adapt"]),
        ("new numbers, templated", _GREEN, new["templated"]["adapt"]),
        ("solved family, alone", _GREY, solved["alone"]),
        ("solved family, its block", _GREEN, solved["with"]),
        ("solved family, method card", _RED, solved["card"]),
    ]


def _arms(axis: Any, found: Found) -> None:
    """Share of right answers by arm, bars with Wilson's 95% intervals; n beside each."""
    bars = list(reversed(rates(found)))
    for height, (_, colour, one) in enumerate(bars):
        if not one["n"]:
            axis.text(0.01, height, "not run", fontsize=7, va="center")
            continue
        share = one["right"] / one["n"]
        axis.barh(height, share, color=colour, height=0.7)
        # Rounding may put an end of the interval a little beyond the share.
        ends = [[max(0.0, share - one["low"])], [max(0.0, one["high"] - share)]]
        axis.errorbar(share, height, xerr=ends, color="#222222", linewidth=1.0, capsize=2)
        axis.text(1.03, height, f"{one['right']}/{one['n']}", fontsize=7, va="center")
    axis.set_yticks(range(len(bars)), [label for label, _, _ in bars], fontsize=7)
    axis.set_xlim(0.0, 1.18)
    axis.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axis.set_xlabel("share right, 95% interval")


def _abstention(axis: Any, found: Found) -> None:
    """Shares against the threshold, and the threshold that the calibration gave."""
    points = routes.curve(found)
    made = routes.router(found)
    for key, label, colour in (
        ("coverage", "coverage: own queries routed", _BLUE),
        ("accuracy_of_routed", "of all routed: to their own entry", _GREEN),
        ("false_route_rate", "near misses and foreign queries routed", _RED),
    ):
        shown = [
            (point.threshold, getattr(point, key))
            for point in points
            if getattr(point, key) is not None
        ]
        axis.step(
            [threshold for threshold, _ in shown], [share for _, share in shown], where="post",
            label=label, color=colour, linewidth=1.2,
        )  # fmt: skip
    if made["threshold"] is not None:
        axis.axvline(made["threshold"], color="#4c4c4c", linewidth=0.8, linestyle="-.")
        axis.text(
            made["threshold"], 0.02, f"threshold, alpha {made['alpha']:g} ", fontsize=7,
            ha="right", transform=axis.get_xaxis_transform(),
        )  # fmt: skip
    axis.set_ylim(-0.02, 1.1)
    axis.set_xlabel("threshold, nats")
    axis.set_ylabel("share")


def _growth(axis: Any, found: Found) -> None:
    """Seconds of a query by entries of the library, both logarithmic: medians, and the parts."""
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    made = routes.router(found)["growth"]
    sizes = made["sizes"]
    entries = [one["entries"] for one in sizes]
    law = made["law"]
    for label, colour, marker, values in (
        ("whole query", "#4c4c4c", "o", [one["seconds"] for one in sizes]),
        ("rank by words", _BLUE, "v", [one["parts"]["rank"] for one in sizes]),
        ("graft candidates", _GREEN, "s", [one["parts"]["graft"] for one in sizes]),
        ("score them", "#ff7f0e", "^", [one["parts"]["score"] for one in sizes]),
    ):
        shown = [(n, value) for n, value in zip(entries, values, strict=True) if value > 0.0]
        axis.plot(
            [n for n, _ in shown], [value for _, value in shown], label=label, color=colour,
            marker=marker, markersize=4, linewidth=1.2,
        )  # fmt: skip
    if law is not None:
        axis.text(
            0.97, 0.03, f"whole query ~ entries^{law['exponent']:.2f}", fontsize=7, ha="right",
            transform=axis.transAxes,
        )  # fmt: skip
    axis.set_xticks(entries, [f"{n:,}" for n in entries])
    axis.minorticks_off()
    axis.set_xlabel("entries of the library")
    axis.set_ylabel("median time of a query, s")
