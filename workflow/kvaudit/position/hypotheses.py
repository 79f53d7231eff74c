"""Seven other explanations of the relocation residual, each with a criterion, and their table (P3).

The residual is the KL between a span computed freshly at an offset and its block re-rotated to it.
An explanation predicts that the residual goes where its cause goes, or grows with its dose. Each is
ruled out by a stated number or it is `not ruled out`. Pure functions of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvaudit import estimate, stats
from kvaudit.estimate import Interval
from kvaudit.position import plan, relocation
from kvaudit.position.explanations import (
    EXPLANATIONS,
    KEYS,
    PROFILES,
    REFUSAL,
    ROTATION,
    check,
)
from kvaudit.position.part import Part
from kvaudit.position.relocation import RELOCATION, SAMPLES, interval, ratio_of
from kvaudit.stagekind import Rows

KEPT = 10.0**-0.5
"""An explanation predicts that the residual falls tenfold or more where its cause is removed. It
is ruled out where the whole interval is nearer to no change than to that, as a ratio."""
DOSE = 4.0
"""Four rotations instead of one would leave four times the residual if rotations made it."""
LARGE = 10.0
"""What counts as large: ten times the control, or the growth expected of a dose a hundredfold."""
SLOPE = 0.25
"""Exponent of the residual in the offset. Errors of angles grow in proportion to it and KL with
their square, exponent 2; random rounding gives 1/2 in the keys and 1 in KL."""
HALF_ROUNDING = 2.0**-11
"""Unit roundoff of half precision (IEEE 754 binary16), relative."""

Measured = dict[str, Any]


class Table:
    """The rows of one stage, as the tests look at them."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        conditions = rows[EXPLANATIONS]
        self.has_window = any(row["hypothesis"] == "window_buffering" for row in conditions)
        probes = [row["offset"] for row in conditions if row["condition"] == "four_steps"]
        self.near = probes[0] if probes else 0
        self.offsets = sorted({row["offset"] for row in rows[RELOCATION]})

    def kl(self, hypothesis: str, condition: str) -> list[float]:
        """KL of each measured sample of a condition, nats."""
        return [
            row["kl"]
            for row in self.rows[EXPLANATIONS]
            if (row["hypothesis"], row["condition"]) == (hypothesis, condition)
            and row["kl"] is not None
        ]

    def curve(self, name: str, offset: int | None = None) -> list[float]:
        """KL of each sample of the relocation curve, by default at the probe offset."""
        return relocation.by_sample(self.rows, name, self.near if offset is None else offset)

    def refused(self, condition: str) -> tuple[int, int]:
        """How many relocations of a condition were refused as they must be, and of how many."""
        rows = [row for row in self.rows[EXPLANATIONS] if row["condition"] == condition]
        return sum(row["refused"] == REFUSAL for row in rows), len(rows)

    def key_error(self, arm: str, cache: str, offset: int) -> float | None:
        """The largest relative rms error of keys, None where none was measured."""
        found = [
            row["rms_error"]
            for row in self.rows[KEYS]
            if (row["arm"], row["cache"], row["offset"]) == (arm, cache, offset)
        ]
        return max(found, default=None)


def _keeps(found: Interval | None) -> bool:
    return found is not None and found.low >= KEPT


def _below(found: Interval | None, limit: float) -> bool:
    return found is not None and found.high < limit


def _mean(values: Sequence[float], seed: str) -> Interval | None:
    return estimate.bootstrap_mean(values, seed) if values else None


def _half_precision(table: Table) -> tuple[bool, Measured]:
    moved = table.kl("half_precision", "relocated")
    left = ratio_of(moved, table.curve("relocated"), "half_precision")
    measured = {
        "f32_over_f16": interval(left),
        "f32_relocated": interval(_mean(moved, "f32 relocated")),
        "f32_control": interval(_mean(table.kl("half_precision", "control"), "f32 control")),
    }
    return _keeps(left), measured


def _window_buffering(table: Table) -> tuple[bool, Measured]:
    inside = _mean(table.curve("relocated"), "inside")
    exists = inside is not None and inside.low > 0.0
    measured: Measured = {"inside_relocated": interval(inside), "window": table.has_window}
    if not table.has_window:
        return exists, measured
    same = table.kl("window_buffering", "small_against_full")
    refusals = [table.refused(name) for name in ("small_relocation", "past_small_relocation")]
    measured |= {
        "small_equals_full": sum(kl == 0.0 for kl in same),
        "small_against_full": len(same),
        "refused": sum(n for n, _ in refusals),
        "relocations_tried": sum(n for _, n in refusals),
    }
    for name in ("small_control", "past_control", "past_relocated", "past_small_control"):
        measured[name] = interval(_mean(table.kl("window_buffering", name), name))
    unchanged = len(same) > 0 and not any(same)
    return exists and unchanged and all(n == m for n, m in refusals), measured


def _size_of_offset(table: Table) -> tuple[bool, Measured]:
    slopes: dict[str, Interval | None] = {}
    for name in ("relocated", "control"):
        slopes[name] = _mean(_slopes(table, name), f"slope {name}")
    ends = [table.curve("relocated", offset) for offset in (table.offsets[-1], table.offsets[0])]
    growth = ratio_of(ends[0], ends[1], "size_of_offset")
    found = slopes["relocated"]
    measured = {
        "slope": interval(found),
        "control_slope": interval(slopes["control"]),
        "largest_over_smallest": interval(growth),
        "offsets_ratio": stats.rounded(table.offsets[-1] / table.offsets[0]),
    }
    flat = found is not None and -SLOPE < found.low <= found.high < SLOPE
    return flat, measured


def _slopes(table: Table, name: str) -> list[float]:
    """Of each sample, the slope of log KL on log offset; none where a KL is not above 0."""
    series: dict[int, list[tuple[float, float]]] = {}
    for row in table.rows[RELOCATION]:
        if row["kl"][name] <= 0.0:
            return []
        point = (math.log(row["offset"]), math.log(row["kl"][name]))
        series.setdefault(row["sample"], []).append(point)
    if any(len(points) < 3 for points in series.values()):
        return []
    lines = (zip(*series[sample], strict=True) for sample in sorted(series))
    return [estimate.slope(x, y).slope for x, y in lines]


def _double_rotation(table: Table) -> tuple[bool, Measured]:
    one = table.curve("relocated")
    often = ratio_of(table.kl("double_rotation", "four_steps"), one, "four_steps")
    back = ratio_of(table.kl("double_rotation", "there_and_back"), one, "there_and_back")
    n = len(table.kl("double_rotation", "four_steps"))
    none = ratio_of(table.curve("control")[:n], one[:n], "no rotation")
    zero = table.kl("double_rotation", "by_zero")
    measured = {
        "four_over_one": interval(often),
        "there_and_back_over_one": interval(back),
        "control_over_one": interval(none),
        "by_zero_max": stats.rounded(max(zero, key=abs)) if zero else None,
    }
    return _below(often, DOSE) and _keeps(none), measured


def _frequency_mismatch(table: Table) -> tuple[bool, Measured]:
    control = table.curve("control")
    outside = ratio_of(table.kl("frequency_mismatch", "outside_wrong_base"), control, "outside")
    engine = ratio_of(table.kl("frequency_mismatch", "wrong_base"), control, "wrong_base")
    error = table.key_error("relocated", plan.REGISTERED, table.near)
    measured = {
        "wrong_base_over_control": interval(outside),
        "wrong_base_in_engine_over_control": interval(engine),
        "relocated_key_error": None if error is None else stats.rounded(error),
    }
    large = outside is not None and outside.low >= LARGE
    return large and error is not None and error <= HALF_ROUNDING, measured


def _large_angle(table: Table) -> tuple[bool, Measured]:
    moved = table.kl("large_angle", "far_relocated")
    far = ratio_of(moved, table.curve("relocated", table.offsets[0]), "far")
    near_exact = ratio_of(table.kl("large_angle", "outside"), table.curve("relocated"), "outside")
    far_exact = ratio_of(table.kl("large_angle", "far_outside"), moved, "far_outside")
    probes = [r["offset"] for r in table.rows[EXPLANATIONS] if r["condition"] == "far_relocated"]
    errors = [
        table.key_error("fresh", "f32_keys", offset)
        for offset in (table.offsets[0], *(probes[:1] or [0]))
    ]
    measured = {
        "far_over_smallest": interval(far),
        "exact_angles_over_engine": interval(near_exact),
        "exact_angles_over_engine_far": interval(far_exact),
        "far_control": interval(_mean(table.kl("large_angle", "far_control"), "far_control")),
        "far_offset": probes[0] if probes else None,
        "f32_key_error_smallest": None if errors[0] is None else stats.rounded(errors[0]),
        "f32_key_error_far": None if errors[1] is None else stats.rounded(errors[1]),
    }
    return _below(far, LARGE) and _keeps(near_exact) and _keeps(far_exact), measured


def _reassociation(table: Table) -> tuple[bool, Measured]:
    one = table.curve("relocated")
    threads = table.kl("reassociation", "other_threads")
    own = [row["kl"] for row in table.rows[SAMPLES]]
    residual = _mean(one, "residual")
    sizes = {
        f"{name}_over_relocated": interval(ratio_of(table.kl("reassociation", name), one, name))
        for name in ("other_cells", "flash_attention")
    }
    measured = {
        "own_cells_max": stats.rounded(max(own, key=abs)) if own else None,
        "other_threads_max": stats.rounded(max(threads, key=abs)) if threads else None,
        "same_cells_relocated": interval(residual),
        **sizes,
    }
    steady = bool(own) and bool(threads) and not any(own) and not any(threads)
    return steady and residual is not None and residual.low > 0.0, measured


TESTS: Mapping[str, tuple[str, str, Callable[[Table], tuple[bool, Measured]]]] = {
    "half_precision": (
        "with keys cached in f32 the residual falls tenfold or more",
        f"f32 keeps at least {KEPT:.2g} of the residual (90% interval)",
        _half_precision,
    ),
    "window_buffering": (
        "no residual where no cell of a window cache is reused, nor in a model without a window",
        "inside the window a small cache gives the bytes of a full one, and the residual is there",
        _window_buffering,
    ),
    "size_of_offset": (
        "the residual grows with the offset, by its first or second power",
        f"the exponent's 95% interval lies within ±{SLOPE:g}",
        _size_of_offset,
    ),
    "double_rotation": (
        "four rotations leave four times the residual of one, none leaves nothing",
        f"four leave less than {DOSE:g} times one, and none at all (the control) at least "
        f"{KEPT:.2g} of it (90% intervals)",
        _double_rotation,
    ),
    "frequency_mismatch": (
        "re-rotated keys differ from the model's own rotation by more than one rounding",
        "relocated keys lie within half precision of float64 angles, and a wrong base gives "
        f"{LARGE:g} times the control",
        _frequency_mismatch,
    ),
    "large_angle": (
        "the residual grows towards the context's end and goes away with exact angles",
        f"less than {LARGE:g} times the smallest offset's residual near the end, and float64 "
        f"angles keep at least {KEPT:.2g} of it (90% intervals)",
        _large_angle,
    ),
    "reassociation": (
        "no residual where rows lie in the same cells and threads are the same",
        "own cells and other threads give equal bytes, and the residual is there in equal cells",
        _reassociation,
    ),
}


def table(rows: Rows) -> list[dict[str, Any]]:
    """One entry a hypothesis: prediction if true, criterion, what was measured, the verdict."""
    seen = Table(rows)
    entries = []
    for name, (prediction, criterion, test) in TESTS.items():
        ruled_out, measured = test(seen) if seen.offsets else (False, {})
        entries.append(
            {
                "hypothesis": name,
                "prediction": prediction,
                "criterion": criterion,
                "measured": measured,
                "verdict": "ruled out" if ruled_out else "not ruled out",
            }
        )
    return entries


def summarise(rows: Rows) -> dict[str, Any]:
    """Fields `explanations` and `rotation` of the summary."""
    found = rows[ROTATION][0] if rows[ROTATION] else None
    return {
        "explanations": table(rows),
        "rotation": found and {key: found[key] for key in ("pairs", "unequal", "max_error")},
    }


PART = Part(
    records={
        EXPLANATIONS: "position-explanation",
        KEYS: "position-keys",
        ROTATION: "position-rotation",
        PROFILES: "profile",
    },
    check=check,
    summarise=summarise,
)
