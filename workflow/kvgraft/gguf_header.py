"""The header of a GGUF model file: `read_header` checks it, `facts` says what the project needs.

Both answer with a value or one typed refusal, before the engine sees the file. Which architectures
are supported is said in `architectures`; how bytes are read, in `gguf_reader`. The engine is not
known here.
"""

from __future__ import annotations

import math
from collections import Counter
from types import MappingProxyType
from typing import NoReturn

from kvaudit.errors import UnusableInput
from kvgraft.architectures import require_supported
from kvgraft.errors import ModelUnsupported
from kvgraft.gguf_reader import read_header
from kvgraft.gguf_types import FILE_TYPES, GgufHeader, ModelFacts, SkippedArray, TensorInfo

__all__ = ["GgufHeader", "ModelFacts", "SkippedArray", "TensorInfo", "facts", "read_header"]

MAX_LAYERS = 512  # llama.cpp's LLAMA_MAX_LAYERS


def facts(header: GgufHeader) -> ModelFacts:
    """The facts of a supported, complete, single-file text model.

    Args:
        header: as read by `read_header`.

    Returns:
        The facts, consistent with one another and with the embedding's shape.

    Raises:
        ModelUnsupported: for an architecture or variant whose state does not restore in full, for
            an adapter or projector, and for one part of a model that is split over files.
        UnusableInput: if a key is missing, of the wrong type, or contradicts the tensors.
    """
    architecture = header.architecture
    require_supported(architecture)
    _require_whole_model(header)

    n_embd = _integer(header, f"{architecture}.embedding_length")
    heads = _integer(header, f"{architecture}.attention.head_count")
    n_layer = _integer(header, f"{architecture}.block_count", largest=MAX_LAYERS)
    ahead = _integer(header, f"{architecture}.nextn_predict_layers", 0, smallest=0)
    if ahead >= n_layer:
        _contradiction(f"{architecture}.nextn_predict_layers", f"< {n_layer}", ahead)
    vocabulary = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(vocabulary, SkippedArray):
        vocab_size = vocabulary.length
    else:
        vocab_size = len(vocabulary) if isinstance(vocabulary, tuple) else 0
    embedding = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
    if embedding is None or embedding.dimensions != (n_embd, vocab_size):
        _contradiction(
            "token_embd.weight",
            f"shape {(n_embd, vocab_size)}",
            embedding.dimensions if embedding else "no such tensor",
        )
    base = header.metadata.get(f"{architecture}.rope.freq_base", 10_000.0)
    if not isinstance(base, float) or not 0 < base < math.inf:
        _contradiction(f"{architecture}.rope.freq_base", "a positive number", base)
    name = header.metadata.get("general.name", "")
    return ModelFacts(
        architecture=architecture,
        name=name if isinstance(name, str) else "",
        quantisation=_quantisation(header),
        tensor_types=MappingProxyType(Counter(t.type for t in header.tensors)),
        n_layer=n_layer - ahead,
        n_ctx_train=_integer(header, f"{architecture}.context_length"),
        n_embd=n_embd,
        n_head=heads,
        n_head_kv=_integer(header, f"{architecture}.attention.head_count_kv", heads),
        key_length=_integer(header, f"{architecture}.attention.key_length", n_embd // heads),
        value_length=_integer(header, f"{architecture}.attention.value_length", n_embd // heads),
        window=_integer(header, f"{architecture}.attention.sliding_window", 0, smallest=0) or None,
        rope_freq_base=base,
        vocab_size=vocab_size,
    )


def _require_whole_model(header: GgufHeader) -> None:
    """Refuse what is not a whole text model of one file, or a variant with another state layout."""
    architecture, metadata = header.architecture, header.metadata
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ModelUnsupported("the file is not a model", expected="model", found=kind)
    if _integer(header, "split.count", 1, smallest=0) > 1:
        raise ModelUnsupported(
            "the model is split over several files, of which a digest would bind only one",
            hint="merge the parts with llama-gguf-split --merge",
        )
    if f"{architecture}.attention.key_length_mla" in metadata:
        raise ModelUnsupported(
            f"this {architecture} keeps compressed keys without values, a state layout that is not "
            "known here"
        )
    sections = metadata.get(f"{architecture}.rope.dimension_sections", ())
    if not isinstance(sections, tuple) or any(sections):
        raise ModelUnsupported(
            f"this {architecture} gives each token several positions, a state layout that is not "
            "known here"
        )
    if not header.tensors:
        raise UnusableInput("the file holds a vocabulary but no weights", found=architecture)


def _integer(
    header: GgufHeader,
    key: str,
    default: int | None = None,
    *,
    smallest: int = 1,
    largest: int = (1 << 31) - 1,
) -> int:
    """A whole number of the metadata; of one number a layer, the largest."""
    value = header.metadata.get(key, default)
    values = value if isinstance(value, tuple) and value else (value,)
    numbers = [number for number in values if type(number) is int]
    if len(numbers) < len(values) or not smallest <= max(numbers) <= largest or min(numbers) < 0:
        _contradiction(key, f"a whole number from {smallest} to {largest}", value)
    return max(numbers)


def _quantisation(header: GgufHeader) -> str:
    """The mix the file names, else the tensor type that holds most elements."""
    file_type = header.metadata.get("general.file_type")
    if type(file_type) is int and file_type in FILE_TYPES:
        return FILE_TYPES[file_type]
    elements: Counter[str] = Counter()
    for tensor in header.tensors:
        elements[tensor.type] += math.prod(tensor.dimensions)
    return max(elements, key=lambda name: (elements[name], name))


def _contradiction(key: str, expected: object, found: object) -> NoReturn:
    raise UnusableInput(
        "the model's header contradicts itself", where=key, expected=expected, found=found
    )
