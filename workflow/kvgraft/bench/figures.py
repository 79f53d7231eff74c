"""From raw timings to figures: ratios of medians, with the range that the timings allow.

A figure may have a limit that the project set itself; whether it is met is said, and decides
nothing. Measures nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvaudit import stats
from kvgraft.bench.work import N_DECODE

PRESETS = ("stock", "split-invariant")
SPEED_UPS = {("gemma-3-270m", "stock"): {256: 20.0, 1000: 80.0, 4000: 300.0}}
"""Least speed-up wanted of a verified graft, by model, profile and length."""
OVERHEAD, MEMORY, FASTER = 60.0, 1.1, 1.0

Measurement = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One number of the benchmark.

    Attributes:
        name: what it is.
        who: contender, or profile.
        tokens: length of the span.
        value: ratio of medians.
        low: the least the timings allow.
        high: the most.
        wanted: the limit, None if there is none.
        met: whether the limit is met.
    """

    name: str
    who: str
    tokens: int
    value: float
    low: float
    high: float
    wanted: float | None = None
    met: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON form: the fields."""
        return asdict(self)


def ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of the medians, the least and the largest ratio of two readings."""
    return (
        stats.median(over) / stats.median(under),
        min(over) / max(under),
        max(over) / min(under),
    )


def of_model(model: str, result: Mapping[str, Any]) -> list[Figure]:
    """All figures of one model.

    Args:
        model: its name.
        result: {"ours": {preset: {"measured": [measurement, ...]}}, "rivals": [...]}.
    """
    out: list[Figure] = []
    ours = result["ours"]
    for preset in PRESETS:
        wanted = SPEED_UPS.get((model, preset), {})
        for one in ours[preset]["measured"]:
            out += _of_ours(one, wanted.get(one["n_tokens"]))
    out += _cost_of_invariance(ours)
    for rival in result["rivals"]:
        out.append(_speed_up(rival, None))
        for preset in PRESETS:
            mine = _at(ours[preset]["measured"], rival["n_tokens"])
            value, low, high = ratio(rival["seconds"]["restore"], mine["seconds"]["restore"])
            name = f"{preset} faster than {rival['who']}"
            n = rival["n_tokens"]
            out.append(Figure(name, preset, n, value, low, high, FASTER, value > FASTER))
    return out


def _at(measured: Sequence[Measurement], n_tokens: int) -> Measurement:
    return next(one for one in measured if one["n_tokens"] == n_tokens)


def _speed_up(one: Measurement, wanted: float | None) -> Figure:
    value, low, high = ratio(one["seconds"]["cold"], one["seconds"]["restore"])
    met = None if wanted is None else value >= wanted
    return Figure("speed-up", one["who"], one["n_tokens"], value, low, high, wanted, met)


def _of_ours(one: Measurement, wanted: float | None) -> list[Figure]:
    who, n, seconds = one["who"], one["n_tokens"], one["seconds"]
    plain = ratio(seconds["cold"], seconds["restore_unverified"])
    value, low, high = (100 * (r - 1) for r in ratio(seconds["graft"], seconds["graft_unverified"]))
    prefill = [n / s for s in seconds["prefill"]]
    decode = [N_DECODE / s for s in seconds["decode"]]
    return [
        *_memory(one),
        _speed_up(one, wanted),
        Figure("speed-up, unverified", who, n, *plain),
        Figure("verification, %", who, n, value, low, high, OVERHEAD, value <= OVERHEAD),
        Figure("graft / copy", who, n, *ratio(seconds["graft"], seconds["copy"])),
        Figure("graft / SHA-256", who, n, *ratio(seconds["graft"], seconds["sha256"])),
        Figure("graft / BLAKE3", who, n, *ratio(seconds["graft"], seconds["blake3"])),
        _plain("prefill, tokens/s", who, n, prefill),
        _plain("decode, tokens/s", who, n, decode),
    ]


def _cost_of_invariance(ours: Mapping[str, Any]) -> list[Figure]:
    """Time under the split-invariant profile over time under the stock one."""
    out: list[Figure] = []
    for one in ours["split-invariant"]["measured"]:
        n = one["n_tokens"]
        other = _at(ours["stock"]["measured"], n)
        for name in ("prefill", "decode"):
            value = ratio(one["seconds"][name], other["seconds"][name])
            out.append(Figure(f"{name} time / stock", "split-invariant", n, *value))
    return out


def _plain(name: str, who: str, n: int, values: Sequence[float]) -> Figure:
    return Figure(name, who, n, stats.median(values), min(values), max(values))


def _memory(one: Measurement) -> list[Figure]:
    """Peak memory over the block's size: the worst reading is the value."""
    extra = one["extra"]
    values = [peak / extra["state_bytes"] for peak in extra["peaks"]]
    if not values:
        return []
    n, worst = one["n_tokens"], max(values)
    name, met = "peak memory / block", worst <= MEMORY
    return [Figure(name, one["who"], n, worst, min(values), worst, MEMORY, met)]
