"""Parsers of what an engine is to be given: blocks, and the headers of model files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kvb_samples
from fuzzing import Target, altered, damaged
from hypothesis import strategies as st

from kvaudit import kvb
from kvaudit.kvb_header import BlockHeader
from kvaudit.kvb_map import open_block
from kvgraft import gguf_header
from kvgraft.library_archive import Archive

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(__file__).parents[3] / "shared/data/gguf"


def _block(data: bytes, folder: Path) -> None:
    path = folder / "x.kvb"
    path.write_bytes(data)
    with open_block(path) as block:
        block.verify(1, thorough=True)


def _rebuilt(value: Any, folder: Path) -> None:
    """A header of any content that is accepted, in a container that fits it, before other bytes."""
    header = BlockHeader.from_json(value)
    _, sample = kvb_samples.sample()
    _block(kvb.container_prefix(header) + kvb_samples.body_of(sample), folder)


def _gguf(data: bytes, folder: Path) -> None:
    path = folder / "x.gguf"
    path.write_bytes(data)
    gguf_header.facts(gguf_header.read_header(path, any_architecture=True))


def _archive(data: bytes, folder: Path) -> None:
    path = folder / "x.tar"
    path.write_bytes(data)
    with Archive(path) as archive:
        for name in archive.members:
            if name.endswith(".json"):
                archive.document(name)
            else:
                archive.block_header(name)


def _made_gguf() -> bytes:
    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    keys = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    keys += text(b"llama.block_count") + struct.pack("<II", 4, 2)
    keys += text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text(b"a") * 3
    tensor = text(b"token_embd.weight") + struct.pack("<IQQIQ", 2, 8, 3, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + keys + tensor
    return head + bytes(-len(head) % 32 + 96)


def _library() -> bytes:
    from kvgraft.library_archive import _END, _header

    def member(name: str, data: bytes) -> bytes:
        return _header(name, len(data)) + data + bytes(-len(data) % 512)

    block = (DATA / "golden-v1.kvb").read_bytes()
    return (
        member("library.json", b'{"kind":"library","version":1}\n')
        + member(f"entries/{'0' * 64}.json", b"{}\n")
        + member(f"blocks/{'1' * 64}.kvb", block)
        + _END
    )


def targets() -> Mapping[str, Target]:
    _, sample = kvb_samples.sample()
    golden = (DATA / "golden-v1.kvb").read_bytes()
    header = kvb_samples.header_json(sample)
    models = [_made_gguf()]
    if SHARED.is_dir():
        files = sorted(SHARED.glob("hostile/*")) + sorted(SHARED.glob("tiny/*"))
        # The beginning: of a vocabulary of megabytes every input would cost a copy.
        models += [path.read_bytes()[:60_000] for path in files]

    return {
        "block": Target(damaged([sample, golden]) | st.binary(max_size=200), _block),
        "block header": Target(altered([header]), _rebuilt),
        "model file": Target(damaged(models) | st.binary(max_size=200), _gguf, 1.5),
        "library": Target(damaged([_library()]), _archive),
    }
