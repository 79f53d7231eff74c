"""The work behind `kvgraft inspect`: what a block says of itself, and whether its bytes agree.

Needs no engine: without one, or without the block's model, only the text is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit import digests, kvb
from kvaudit.errors import TypedError
from kvaudit.kvb_map import MappedBlock
from kvgraft import cli_common, state
from kvgraft.model import FrozenModel
from kvgraft.profile import KV_TYPES

SHOWN_TOKENS = 48
"""How many of a block's first tokens are turned into text."""


@dataclass(frozen=True)
class Inspected:
    """What a block says of itself, and whether its bytes agree.

    Attributes:
        header: the header.
        path: the file.
        layout: offsets and lengths in the file, and the caches that the state holds.
        damaged_chunks: indices of chunks that do not have both of their digests.
        text: text of the first tokens, or None.
        note: why there is no text, or "".
    """

    header: kvb.BlockHeader
    path: Path
    layout: dict[str, Any]
    damaged_chunks: tuple[int, ...]
    text: str | None
    note: str

    @property
    def text_tokens(self) -> int:
        """Number of tokens that the text stands for."""
        return 0 if self.text is None else min(SHOWN_TOKENS, self.header.tokens.n)

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return {
            "id": self.header.id,
            "path": str(self.path),
            "header": self.header.to_json(),
            "layout": self.layout,
            "damaged_chunks": list(self.damaged_chunks),
            "text": self.text,
            "text_tokens": self.text_tokens,
            "note": self.note,
        }


def inspect(block: MappedBlock, model: str | None = None) -> Inspected:
    """Look at a block: every chunk is hashed, and its beginning is shown if the model is here.

    Args:
        block: an opened block.
        model: name or path of its model; None looks among the embedded ones.
    """
    header = block.header
    damaged = _damaged_chunks(block)
    text, note = _beginning(block, model)
    return Inspected(header, block.path, _layout(block), damaged, text, note)


def _damaged_chunks(block: MappedBlock) -> tuple[int, ...]:
    """Indices of the chunks for which one of the two listed digests is not theirs."""
    listed = block.header.state
    damaged: set[int] = set()
    with block.state as state_bytes:
        for wanted, digest in (
            (listed.chunks, digests.sha256_bytes),
            (listed.blake3, digests.blake3_bytes),
        ):
            found = kvb.chunk_digests(state_bytes, digest=digest)
            pairs = enumerate(zip(wanted, found, strict=True))
            damaged |= {index for index, (want, have) in pairs if want != have}
    return tuple(sorted(damaged))


def _layout(block: MappedBlock) -> dict[str, Any]:
    header = block.header
    tokens_at = len(kvb.container_prefix(header))
    state_at = tokens_at + 4 * header.tokens.n
    try:
        caches = [_cache(section) for section in state.parse(block.state).sections]
    except TypedError as error:
        caches = [{"unreadable": str(error)}]
    return {
        "tokens_offset": tokens_at,
        "state_offset": state_at,
        "file_bytes": state_at + header.state.bytes,
        "caches": caches,
    }


def _cache(section: state.Section) -> dict[str, Any]:
    names = {number: name for name, number in KV_TYPES.items()}
    positions = section.positions
    types = {
        kind: sorted(names.get(number, str(number)) for number in {t.type_id for t in tensors})
        for kind, tensors in (
            ("k", [t for t in section.tensors if t.kind == "k"]),
            ("v", [t for t in section.tensors if t.kind == "v"]),
        )
    }
    return {
        "cells": section.n_cells,
        "positions": [int(positions[0]), int(positions[-1])] if section.n_cells else [],
        "layers": len(section.tensors) // 2,
        "types": types,
        "v_transposed": section.v_transposed,
    }


def _beginning(block: MappedBlock, model: str | None) -> tuple[str | None, str]:
    """Text of the first tokens, or why it cannot be shown; a model that was named must be right."""
    try:
        pin = cli_common.pin_of_block(block.header, model)
        with FrozenModel.open(pin) as opened:
            return opened.detokenize(block.tokens[:SHOWN_TOKENS].tolist()), ""
    except (TypedError, OSError) as error:
        if model is not None:
            raise
        return None, str(error)
