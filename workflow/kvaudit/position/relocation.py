"""Own position, the relocation curve and its control: checks and summary (P1, P2, P4).

Checks hold every record to the plan and to the others; statistics are a function of records
alone. This module must not know which results would be good ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvaudit import estimate, scores, stats
from kvaudit.estimate import Interval
from kvaudit.position import plan
from kvaudit.position.part import Part, Setting
from kvaudit.stagekind import Problem, RawReader, Rows

SAMPLES = "records/samples.jsonl"
RELOCATION = "records/relocation.jsonl"
CURVES = ("relocated", "control", "from_own")
RATIO_LEVEL = 0.90
"""A 90% interval within the margins is two one-sided tests at 5% each: D. J. Schuirmann, "A
comparison of the two one-sided tests procedure", J. Pharmacokinet. Biopharm. 15 (1987) 657-680."""
ROOM = 1e-6
"""Nats of room for log-probabilities that are recorded to 9 digits."""

Row = Mapping[str, Any]


# -- statistics -------------------------------------------------------------------------------


def by_sample(rows: Rows, curve: str, offset: int | None = None) -> list[float]:
    """KL of each sample, nats: at one offset, or its mean over all offsets; in order."""
    found: dict[int, list[float]] = {}
    for row in rows[RELOCATION]:
        if offset in (None, row["offset"]):
            found.setdefault(row["sample"], []).append(row["kl"][curve])
    return [math.fsum(found[sample]) / len(found[sample]) for sample in sorted(found)]


def ratio(rows: Rows) -> Interval | None:
    """Mean KL of relocated over mean KL of control with its 90% interval; None if there is none."""
    return ratio_of(by_sample(rows, "relocated"), by_sample(rows, "control"), "P2")


def ratio_of(above: Sequence[float], below: Sequence[float], seed: str) -> Interval | None:
    """Ratio of means with its 90% interval; None where it has no meaning.

    Samples go in pairs as far as both are there.
    """
    n = min(len(above), len(below))
    # Rounding can leave a KL of -1e-17; as a size that is 0.
    tops, bottoms = ([max(value, 0.0) for value in side[:n]] for side in (above, below))
    if not any(bottoms):
        return None
    return estimate.bootstrap_ratio(tops, bottoms, seed, level=RATIO_LEVEL)


def interval(found: Interval | None) -> dict[str, float | None] | None:
    """An interval as a summary holds it; an infinite end is null."""
    if found is None:
        return None
    ends = {"estimate": found.estimate, "low": found.low, "high": found.high}
    return {k: stats.rounded(v) if math.isfinite(v) else None for k, v in ends.items()}


def summarise(rows: Rows) -> dict[str, Any]:
    """Fields `samples`, `own_position`, `curve` and `ratio` of the summary."""
    samples, curve = rows[SAMPLES], rows[RELOCATION]
    means = {name: by_sample(rows, name) for name in CURVES}
    return {
        "samples": len(samples),
        "own_position": {
            "equal": sum(_same(row["fresh"], row["graft"]) for row in samples),
            "kl_max": stats.rounded(max((row["kl"] for row in samples), key=abs, default=0.0)),
        },
        "curve": [_point(rows, offset) for offset in sorted({row["offset"] for row in curve})],
        "all_offsets": {
            name: interval(estimate.bootstrap_mean(values, f"all/{name}")) if values else None
            for name, values in means.items()
        },
        "ratio": interval(ratio(rows)),
        "inexact": sum(row["relocated"]["exact"] is False for row in curve),
        "raw_rows": sum(row["raw"] for row in curve),
    }


def _point(rows: Rows, offset: int) -> dict[str, Any]:
    here = [row for row in rows[RELOCATION] if row["offset"] == offset]
    own = {row["sample"]: row["fresh"]["argmax"] for row in rows[SAMPLES]}
    flips = {
        "relocated": sum(r["relocated"]["argmax"] != r["fresh"]["argmax"] for r in here),
        "control": sum(r["fresh"]["argmax"] != own.get(r["sample"]) for r in here),
        "from_own": sum(r["relocated"]["argmax"] != own.get(r["sample"]) for r in here),
    }
    point: dict[str, Any] = {"offset": offset, "n": len(here)}
    for name in CURVES:
        values, seed = by_sample(rows, name, offset), f"{name}/{offset}"
        share = stats.wilson(flips[name], len(here))
        point[name] = {
            "mean": interval(estimate.bootstrap_mean(values, seed)),
            "median": interval(estimate.bootstrap_median(values, seed)),
            "argmax_differ": flips[name],
            "argmax_differ_wilson95": [stats.rounded(share.low), stats.rounded(share.high)],
        }
    return point


def _same(first: Row, second: Row) -> bool:
    return bool(first["logits_sha256"] == second["logits_sha256"])


# -- checks -----------------------------------------------------------------------------------


def check(setting: Setting, rows: Rows) -> Iterator[Problem]:
    """What is wrong with samples and curve."""
    section = setting.section
    if [row["sample"] for row in rows[SAMPLES]] != list(range(section["samples"])):
        yield Problem(SAMPLES, "does not hold the planned samples, each once and in order")
    if len({row["trained_context"] for row in rows[SAMPLES]}) > 1:
        yield Problem(SAMPLES, "the trained context is not the same in every sample")
    for field in ("span_sha256", "block_id"):
        if len({row[field] for row in rows[SAMPLES]}) != len(rows[SAMPLES]):
            yield Problem(SAMPLES, f"two samples have one {field}")
    samples = {row["sample"]: row for row in rows[SAMPLES]}
    for row in rows[SAMPLES]:
        where = f"sample {row['sample']}"
        yield from (Problem(SAMPLES, f"{where}: {text}") for text in _sample(setting, row))
    planned = [(sample, m) for sample in range(section["samples"]) for m in section["offsets"]]
    if [(row["sample"], row["offset"]) for row in rows[RELOCATION]] != planned:
        yield Problem(RELOCATION, "does not hold the planned offsets of every sample in order")
    for row in rows[RELOCATION]:
        where = f"sample {row['sample']}, offset {row['offset']}"
        for text in _curve(setting, row, samples.get(row["sample"])):
            yield Problem(RELOCATION, f"{where}: {text}")


def _sample(setting: Setting, row: Row) -> Iterator[str]:
    yield from _common(setting, row)
    if row["seed"] != plan.sample_name(setting.seed, row["sample"]):
        yield "its seed is not the configured one"
    if row["span_tokens"] != plan.span_tokens(setting.section, setting.seed, row["sample"]):
        yield "its span has another length than planned"
    if row["query_tokens"] > setting.section["query_tokens"]:
        yield "its question is longer than planned"
    if not row["fresh"]["exact"]:
        yield "its fresh arm is not exact"
    if not row["graft"]["exact"]:
        yield "its graft at its own position is not exact"
    yield from pair_problems(row["fresh"], row["graft"], row["kl"])
    top = row["top"]
    yield from _top(top["tokens"], row["fresh"]["argmax"], {"fresh": top["fresh"]})


def _curve(setting: Setting, row: Row, sample: Row | None) -> Iterator[str]:
    yield from _common(setting, row)
    fresh, moved = row["fresh"], row["relocated"]
    if not fresh["exact"]:
        yield "its fresh arm is not exact"
    section = setting.section
    kept = row["sample"] < section["raw_samples"] and row["offset"] == section["probe_offset"]
    if row["raw"] != kept:
        yield "raw logits are kept where none are planned, or the other way round"
    if sample is None:
        yield "its sample is not recorded"
        return
    own = sample["fresh"]
    if row["own_sha256"] != own["logits_sha256"]:
        yield "own_sha256 is not that of its sample's fresh arm"
    pairs = {"relocated": (fresh, moved), "control": (own, fresh), "from_own": (own, moved)}
    for name, (reference, arm) in pairs.items():
        for text in pair_problems(reference, arm, row["kl"][name]):
            yield f"{name}: {text}"
    here, there = sample["top"], row["top"]
    lists = (here["tokens"], here["fresh"], *row["own_top"].values(), *there.values())
    if len({len(values) for values in lists}) > 1:
        yield "the lists of most likely tokens differ in length"
        return
    own_p = {"own": here["fresh"], **row["own_top"]}
    there_p = {"fresh": there["fresh"], "relocated": there["relocated"]}
    yield from _top(there["tokens"], fresh["argmax"], {"fresh": there["fresh"]})
    seen = (
        (here["tokens"], own_p, "fresh", fresh["argmax"]),
        (here["tokens"], own_p, "relocated", moved["argmax"]),
        (there["tokens"], there_p, "relocated", moved["argmax"]),
    )
    for tokens, log_p, name, argmax in seen:
        yield from _argmax(tokens, log_p[name], argmax, name)
    bounds = (
        ("control", own_p["own"], own_p["fresh"]),
        ("from_own", own_p["own"], own_p["relocated"]),
        ("relocated", there_p["fresh"], there_p["relocated"]),
    )
    for name, reference_p, log_p in bounds:
        least = coarse_kl(reference_p, log_p)
        if row["kl"][name] < least - ROOM:
            yield f"{name}: KL is below that of its own most likely tokens, {least:.6g}"


def _common(setting: Setting, row: Row) -> Iterator[str]:
    if row["model"] != setting.subject:
        yield f"model is {row['model']}, the stage's subject {setting.subject}"
    if row["profile"] != setting.force.digest:
        yield "its profile is not the configured one"


def pair_problems(reference: Row, arm: Row, kl: float) -> Iterator[str]:
    """Equal logits have KL 0 and one argmax; a KL is not below 0 but for rounding."""
    if _same(reference, arm):
        if kl != 0.0:
            yield "equal logits with a KL other than 0"
        if reference["argmax"] != arm["argmax"]:
            yield "equal logits with different argmax"
    elif kl == 0.0:
        yield "other logits with a KL of 0"
    if kl < -1e-9:
        yield "KL is below 0"


def _top(tokens: Sequence[int], argmax: int, log_p: Mapping[str, Sequence[float]]) -> Iterator[str]:
    (listed,) = log_p.values()
    if len(set(tokens)) != len(tokens):
        yield "a most likely token is listed twice"
    if tokens[0] != argmax:
        yield "the first of the most likely tokens is not the argmax"
    if any(a < b for a, b in itertools.pairwise(listed)):
        yield "the most likely tokens are not in order"
    if math.fsum(map(math.exp, listed)) > 1.0 + ROOM:
        yield "the most likely tokens have more than probability 1"


def _argmax(tokens: Sequence[int], log_p: Sequence[float], argmax: int, name: str) -> Iterator[str]:
    """The argmax of an arm against the log-probabilities listed for it."""
    rest = 1.0 - math.fsum(map(math.exp, log_p))
    if rest < -ROOM:
        yield f"{name}: the listed tokens have more than probability 1"
    if argmax in tokens:
        if log_p[list(tokens).index(argmax)] < max(log_p):
            yield f"{name}: a listed token is likelier than the argmax"
    elif rest + ROOM < math.exp(max(log_p)):
        yield f"{name}: the argmax is not listed, yet no other token can be as likely"


def coarse_kl(reference: Sequence[float], log_p: Sequence[float]) -> float:
    """KL in nats of the distributions coarsened to {listed tokens, rest}: by the log-sum
    inequality a lower bound of the whole KL (T. M. Cover and J. A. Thomas, "Elements of
    Information Theory" (2nd ed., 2006), theorem 2.7.1).
    """
    p = [math.exp(value) for value in reference]
    terms = [a * (b - c) for a, b, c in zip(p, reference, log_p, strict=True)]
    rest = 1.0 - math.fsum(p), 1.0 - math.fsum(math.exp(value) for value in log_p)
    if min(rest) > ROOM:
        terms.append(rest[0] * math.log(rest[0] / rest[1]))
    elif rest[0] <= ROOM:
        # The listed digits say nothing of the rest; x log x bounds what it can take away.
        terms.append(2.0 * ROOM * math.log(ROOM))
    return math.fsum(terms)


# -- raw logits -------------------------------------------------------------------------------


def raw_digests(rows: Rows) -> dict[str, str]:
    """{SHA-256 of raw logits: the record file that names it}."""
    kept = [row for row in rows[RELOCATION] if row["raw"]]
    return {
        digest: RELOCATION
        for row in kept
        for digest in (
            row["own_sha256"],
            row["fresh"]["logits_sha256"],
            row["relocated"]["logits_sha256"],
        )
    }


def check_raw(rows: Rows, read: RawReader) -> list[Problem]:
    """Recomputes the scores of records whose raw logits are kept."""
    found: list[Problem] = []
    for row in rows[RELOCATION]:
        if not row["raw"]:
            continue
        fresh, moved = row["fresh"], row["relocated"]
        own, at_m, turned = (
            read(digest)
            for digest in (row["own_sha256"], fresh["logits_sha256"], moved["logits_sha256"])
        )
        if own is None or at_m is None or turned is None:
            continue
        compared = (
            ("control", own, at_m, fresh["argmax"]),
            ("relocated", at_m, turned, moved["argmax"]),
            ("from_own", own, turned, moved["argmax"]),
        )
        for name, reference, logits, argmax in compared:
            for text in scores.problems(reference, logits, row["kl"][name], argmax):
                where = f"sample {row['sample']}, offset {row['offset']}, {name}"
                found.append(Problem(RELOCATION, f"{where}: {text}"))
        log_p = stats.log_softmax(at_m)
        for token, value in zip(row["top"]["tokens"], row["top"]["fresh"], strict=True):
            if token >= len(log_p) or abs(log_p[token] - value) > ROOM:
                found.append(
                    Problem(
                        RELOCATION,
                        f"sample {row['sample']}: a log-probability is not that of the raw logits",
                    )
                )
    return found


PART = Part(
    records={SAMPLES: "position-sample", RELOCATION: "position-relocation"},
    check=check,
    summarise=summarise,
)
