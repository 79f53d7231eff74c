"""Tables of a benchmark for people. What is compared is decided in `figures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvaudit import stats
from kvgraft.bench import figures
from kvgraft.bench.figures import Figure

SECONDS = (
    ("cold", "cold prefill + 1 token"),
    ("capture", "capture"),
    ("put", "put"),
    ("restore", "verified graft + 1 token"),
    ("graft", "  of it the verified graft"),
    ("restore_unverified", "unverified restore + 1 token"),
    ("graft_unverified", "  of it the restore"),
    ("copy", "limit: copy of the same bytes"),
    ("sha256", "limit: SHA-256, all threads"),
    ("blake3", "limit: BLAKE3, all threads"),
)
# Figure, label, unit, and on which side of its limit it is wanted.
RATIOS = (
    ("speed-up", "speed-up, verified", "×", "≥"),
    ("speed-up, unverified", "speed-up, unverified", "×", ""),
    ("verification, %", "verification costs", "%", "≤"),
    ("peak memory / block", "peak memory / block", "", "≤"),
    ("prefill, tokens/s", "prefill, tokens/s", "", ""),
    ("prefill time / stock", "  its time / stock", "×", ""),
    ("decode, tokens/s", "decode, tokens/s", "", ""),
    ("decode time / stock", "  its time / stock", "×", ""),
)


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns, the first `left` of them to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def seconds(values: Sequence[float]) -> str:
    """Median and range, in milliseconds below one second."""
    middle, low, high = stats.median(values), min(values), max(values)
    scale, unit = (1.0, "s") if middle >= 1.0 else (1e3, "ms")
    digits = 2 if middle * scale < 10 else 1 if middle * scale < 100 else 0
    texts = [f"{scale * x:.{digits}f}" for x in (middle, low, high)]
    return f"{texts[0]} {unit} ({texts[1]}–{texts[2]})"


def number(figure: Figure, unit: str, side: str) -> str:
    """Value, range and, where there is one, the limit and whether it is met."""
    digits = 2 if figure.value < 10 and unit != "%" else 1 if figure.value < 30 else 0
    low, value, high = (f"{x:.{digits}f}" for x in (figure.low, figure.value, figure.high))
    text = f"{value}{unit} ({low}–{high})"
    if figure.wanted is None:
        return text
    return f"{text} {side} {figure.wanted:g} {'met' if figure.met else 'MISSED'}"


def of_model(model: str, result: Mapping[str, Any]) -> str:
    """Everything about one model."""
    found = {(f.name, f.who, f.tokens): f for f in figures.of_model(model, result)}
    lengths = result["lengths"]
    head = (
        f"{model}: {result['n_threads']} threads, {result['n_ctx']:,} tokens of context, flash "
        f"attention off, {result['repeats']} rounds; median (least–largest)\n\n"
    )
    rows = [["", *(f"{n:,} tokens" for n in lengths)]]
    for preset in figures.PRESETS:
        rows.append([f"{preset} profile", *("" for _ in lengths)])
        measured = {one["n_tokens"]: one for one in result["ours"][preset]["measured"]}
        for key, label in SECONDS:
            times = [seconds(measured[n]["seconds"][key]) for n in lengths]
            rows.append([f"  {label}", *times])
        for name, label, unit, side in RATIOS:
            cells = [found.get((name, preset, n)) for n in lengths]
            if any(cells):
                rows.append([f"  {label}", *(number(c, unit, side) if c else "-" for c in cells)])
    return head + table(rows) + "\n" + _contenders(found, result)


def _contenders(found: Mapping[tuple[str, str, int], Figure], result: Mapping[str, Any]) -> str:
    """Ours and the rivals on the same work."""
    everyone = [one for preset in figures.PRESETS for one in result["ours"][preset]["measured"]]
    everyone += result["rivals"]
    heads = ("tokens", "cold + 1", "restore + 1", "speed-up", "vs stock", "vs invariant")
    rows = [["the same work", *heads, "on disk", "= fresh", "= one shot", "damage noticed"]]
    order = list(dict.fromkeys(one["who"] for one in everyone))
    for one in sorted(everyone, key=lambda o: (o["n_tokens"], order.index(o["who"]))):
        who, n = one["who"], one["n_tokens"]
        faster = [found.get((f"{p} faster than {who}", p, n)) for p in figures.PRESETS]
        rows.append(
            [
                f"ours, {who}" if who in figures.PRESETS else who,
                f"{n:,}",
                seconds(one["seconds"]["cold"]).partition(" (")[0],
                seconds(one["seconds"]["restore"]).partition(" (")[0],
                f"{found['speed-up', who, n].value:.1f}×",
                *(f"{f.value:.2f}×" if f else "" for f in faster),
                f"{one['disk_bytes'] / 1e6:.1f} MB",
                _equal(one["differences"]["same_split"]),
                _equal(one["differences"]["one_shot"]),
                "yes" if one["verified"] else "no",
            ]
        )
    return table(rows) + _LEGEND


_LEGEND = """
vs: its restore + 1 token over ours, verified, in this run; above 1 ours is faster. = fresh: bytes
equal to reading span and token as two batches; one shot: as one text (else the largest difference
of a logit; of llama-server's top log-probabilities). Damage: one byte on disk changed.
"""


def _equal(difference: float) -> str:
    return "yes" if difference == 0.0 else f"no, {difference:.1g}"


def splits(model: str, found: Mapping[str, Mapping[str, Any]], shortest: int, longest: int) -> str:
    """Table of one model's split cases."""
    rows = [["settings", "cases", "past window", "bytes equal", "logits equal", "largest KL"]]
    for name, one in found.items():
        counts = [str(one[key]) for key in ("cases", "past_window", "equal", "logits_equal")]
        rows.append([name, *counts, f"{one['largest_kl']:.1e}" if one["largest_kl"] else "0"])
    head = f"{model}: random batch splits of texts of {shortest:,} to {longest:,} tokens\n\n"
    return head + table(rows)
