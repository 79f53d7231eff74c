"""Whether a recorded score is that of raw logits; every stage that keeps some is held to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kvaudit import stats

KL_RELATIVE = 1e-6
KL_ABSOLUTE = 1e-13
"""Room for other machines' exp and log; a recorded 0 has no room at all."""
MARGIN_RELATIVE = 1e-6


def problems(reference: Any, logits: Any, kl: float, argmax: int) -> Iterator[str]:
    """What a recorded KL and argmax get wrong.

    Args:
        reference: float32 [n_vocab], the logits that the KL is taken from.
        logits: float32 [n_vocab].
        kl: recorded KL(reference, logits), nats.
        argmax: recorded index of the largest of `logits`.
    """
    if reference.shape != logits.shape:
        yield "the raw logits have different lengths"
        return
    recomputed = stats.kl_divergence(reference, logits)
    if kl == 0.0:
        agrees = recomputed == 0.0
    else:
        agrees = math.isclose(kl, recomputed, rel_tol=KL_RELATIVE, abs_tol=KL_ABSOLUTE)
    if not agrees:
        yield f"KL recorded {kl!r}, from the raw logits {recomputed!r}"
    if stats.argmax(logits) != argmax:
        yield f"argmax recorded {argmax}, from the raw logits {stats.argmax(logits)}"
