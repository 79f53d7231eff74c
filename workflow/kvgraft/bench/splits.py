"""Which settings give the same bytes for every batch split: the measurement behind the default.

Every case is a text of its own length, read once in batches as large as they come and once in
random ones. The last position's logits and the whole state must have the same bytes. One length is
not enough: kernels that change with the number of rows agree on some lengths and not on others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvaudit import digests, stats
from kvaudit.exactness.plan import generator, length, random_sizes
from kvgraft import plan
from kvgraft.bench.work import all_cores
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import ProfileSettings, split_invariant, stock
from kvgraft.session import Session

SHORTEST, LONGEST = 48, 1400
SINGLE_TOKENS = 40
SEED = "kvgraft/bench/splits"

Row = dict[str, Any]


def variants(n_ctx: int) -> dict[str, ProfileSettings]:
    """Settings that are compared, by what a table calls them."""
    common = {"n_ctx": n_ctx, "n_threads": all_cores()}
    return {
        "split-invariant": split_invariant(**common),
        "the same, 1 row": split_invariant(**common, min_rows=1),
        "repack, 8 rows": split_invariant(**common, repack=True, min_rows=8),
        "stock, 8 rows": stock(**common, min_rows=8),
        "stock": stock(**common),
    }


@dataclass(frozen=True)
class Case:
    """A text's length and the batch sizes it is read in, which sum to it."""

    seed: str
    n_tokens: int
    sizes: tuple[int, ...]


def cases(count: int, shortest: int = SHORTEST, longest: int = LONGEST) -> list[Case]:
    """Cases of all lengths, log-uniform; batches in turn large, small, and single at the end."""
    out: list[Case] = []
    for index in range(count):
        n = length(index, count, shortest, longest, SEED)
        draw = generator(SEED, "sizes", index)
        if index % 3 == 0:
            sizes = random_sizes(n, draw)
        elif index % 3 == 1:
            sizes = random_sizes(n, draw, largest=12)
        else:
            tail = min(SINGLE_TOKENS, n - 1)
            sizes = (*random_sizes(n - tail, draw), *[1] * tail)
        out.append(Case(f"{SEED}/{index}", n, sizes))
    return out


def job(pin: ModelPin, settings: ProfileSettings, chosen: Sequence[Case]) -> dict[str, Any]:
    """The JSON form of one variant's work, for a process of its own."""
    return {
        "pin": pin.to_json(),
        "settings": settings.to_json(),
        "cases": [vars(case) for case in chosen],
    }


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the cases; returns {"window", "split_invariant", "cases": [...]} as JSON."""
    rows: list[Row] = []
    settings = ProfileSettings(**job["settings"])
    with (
        FrozenModel.open(ModelPin.from_json(job["pin"])) as model,
        Session(model, settings) as session,
    ):
        for case in job["cases"]:
            ids = plan.prose(model, case["seed"], case["n_tokens"])
            readings = []
            for sizes in (None, case["sizes"]):
                session.reset()
                logits = session.decode(ids, split=sizes, outputs=1)[0]
                readings.append((logits, digests.sha256_bytes(session.capture().state.data)))
            (whole, whole_state), (split, split_state) = readings
            rows.append(
                {
                    "tokens": case["n_tokens"],
                    "batches": len(case["sizes"]),
                    "logits_equal": whole.tobytes() == split.tobytes(),
                    "state_equal": whole_state == split_state,
                    "kl": stats.kl_divergence(whole, split),
                }
            )
        profile = session.profile
        return {
            "window": profile.context["window"],
            "split_invariant": profile.is_split_invariant,
            "cases": rows,
        }


def summary(answer: Mapping[str, Any]) -> Row:
    """Counts and the largest divergence of one variant."""
    rows = answer["cases"]
    return {
        "cases": len(rows),
        "past_window": sum(1 for row in rows if 0 < answer["window"] < row["tokens"]),
        "equal": sum(1 for row in rows if row["logits_equal"] and row["state_equal"]),
        "logits_equal": sum(1 for row in rows if row["logits_equal"]),
        "largest_kl": max(row["kl"] for row in rows),
        "claimed": answer["split_invariant"],
    }
