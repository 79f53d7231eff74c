"""Which blocks a session may restore: alone, as a chain, or composed side by side.

Every rule that makes a graft exact stands here, as a check of headers alone. Nothing here touches
the engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from kvaudit.kvb import BlockHeader
from kvaudit.profiles import differences
from kvgraft.errors import GraftRefused, ModelMismatch, ProfileMismatch
from kvgraft.model import FrozenModel
from kvgraft.profile import ExecutionProfile

ALIGNMENT = 256
"""Attention length is rounded up to this many cells (llama-kv-cache.cpp, get_n_kv). Blocks that
are composed start at a multiple of it, so that every row lies in the vector lane in which it would
lie in a fresh computation."""


def name(header: BlockHeader) -> str:
    """How an error names a block."""
    return f"block {header.id[:12]}"


def check_identity(
    header: BlockHeader, model: FrozenModel, profile: ExecutionProfile, *, exact: bool
) -> None:
    """The block is this model's and, where exactness is wanted, this profile's.

    Raises:
        ModelMismatch, ProfileMismatch, GraftRefused: it is not; names the fields that differ.
    """
    if header.model.sha256 != model.pin.sha256:
        raise ModelMismatch(
            "the block was captured with another model",
            where=name(header),
            expected=f"{model.name} {model.pin.sha256}",
            found=f"{header.model.name} {header.model.sha256}",
        )
    if not exact:
        return
    if header.profile != profile.digest:
        theirs = header.provenance.get("profile")
        fields = (
            ", ".join(differences(profile.to_json(), theirs))
            if isinstance(theirs, Mapping)
            else "unknown"
        )
        raise ProfileMismatch(
            f"the block was captured under another profile (fields: {fields})",
            where=name(header),
            expected=profile.digest,
            found=header.profile,
            hint="open the session with the block's settings, or graft with exact=False",
        )
    if header.engine != profile.engine_digest:
        raise ProfileMismatch(
            "the block names another engine than its profile",
            where=name(header),
            expected=profile.engine_digest,
            found=header.engine,
        )
    if header.provenance.get("exact") is not True:
        raise GraftRefused(
            "the block was captured from a session that was itself inexact",
            where=name(header),
            hint="graft with exact=False",
        )


def is_exact(headers: Sequence[BlockHeader], profile: ExecutionProfile) -> bool:
    """Whether blocks of these headers were made exactly, and under this profile."""
    return all(
        header.profile == profile.digest
        and header.engine == profile.engine_digest
        and header.provenance.get("exact") is True
        for header in headers
    )


def check_root(header: BlockHeader) -> None:
    """The block stands on its own.

    Raises:
        GraftRefused: it continues another one.
    """
    if header.parent is not None:
        raise GraftRefused(
            "the block continues another one, which is not restored",
            where=name(header),
            expected="a block without a parent",
            found=f"start {header.start}, parent {header.parent}",
            hint="restore the chain from its root on: store.chain, then graft_chain",
        )


def check_chain(headers: Sequence[BlockHeader]) -> None:
    """Each block continues the one before it, the first stands on its own.

    Raises:
        GraftRefused: no block at all, or a link is wrong; names it.
    """
    if not headers:
        raise GraftRefused("a chain has at least one block", found="none")
    check_root(headers[0])
    for parent, child in itertools.pairwise(headers):
        end = parent.start + parent.tokens.n
        if child.parent != parent.id or child.start != end:
            raise GraftRefused(
                "the chain is broken",
                where=name(child),
                expected=f"parent {parent.id}, start {end}",
                found=f"parent {child.parent}, start {child.start}",
                hint="give the blocks from the root on, as store.chain lists them",
            )


def check_layout(headers: Sequence[BlockHeader], *, exact: bool) -> None:
    """Blocks stand beside each other at reserved positions, in the one order they are loaded in.

    Args:
        headers: in the order in which they would be loaded.
        exact: False lets unaligned starts and another order pass.

    Raises:
        GraftRefused: a block continues another, two overlap, a start is not aligned, or the order
            is not that of the positions.
    """
    if not headers:
        raise GraftRefused("a composition has at least one block", found="none")
    for header in headers:
        check_root(header)
        if exact and header.start % ALIGNMENT:
            raise GraftRefused(
                "the block does not start at a reserved, aligned position",
                where=name(header),
                expected=f"a multiple of {ALIGNMENT}",
                found=header.start,
                hint="capture it from a session reset to an aligned start",
            )
    spans = [(h.start, h.start + h.tokens.n, h) for h in headers]
    ordered = sorted(spans, key=lambda span: span[:2])
    for (_, end, before), (start, _, after) in itertools.pairwise(ordered):
        if start < end:
            raise GraftRefused(
                "two blocks of the composition hold the same positions",
                where=name(after),
                expected=f"a start of at least {end}, behind {name(before)}",
                found=start,
            )
    if spans != ordered:
        if exact:
            raise GraftRefused(
                "the blocks are not in ascending order of their positions",
                expected=[start for start, _, _ in ordered],
                found=[start for start, _, _ in spans],
                hint="cells in another order give other bits",
            )
        if headers[-1] is not ordered[-1][2]:
            raise GraftRefused(
                "the last block is not the one with the highest positions",
                expected=name(ordered[-1][2]),
                found=name(headers[-1]),
            )
