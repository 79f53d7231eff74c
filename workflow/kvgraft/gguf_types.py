"""What a GGUF header says, as plain values: shared by its reader and by whoever uses its facts.

Only frozen dataclasses and the number tables of ggml (commit 0c1e57098: `ggml_type` in ggml.h,
`llama_ftype` in llama.h). This module reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Scalar = str | int | float | bool


@dataclass(frozen=True)
class SkippedArray:
    """An array that was checked for its bounds and passed over.

    Attributes:
        element: GGUF name of the element type, such as `string` or `float32`.
        length: number of elements.
    """

    element: str
    length: int


Value = Scalar | tuple[Scalar, ...] | SkippedArray


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as the header describes it.

    Attributes:
        name: unique name, at most 63 bytes.
        dimensions: sizes, the contiguous one first, 1 to 4 of them.
        type: ggml name of the element type, such as `Q4_K`.
        offset: bytes from the start of the data section, a multiple of the alignment.
        bytes: size in bytes.
    """

    name: str
    dimensions: tuple[int, ...]
    type: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says before its weights.

    Attributes:
        version: 2 or 3.
        architecture: value of `general.architecture`.
        metadata: every key; long arrays as `SkippedArray`.
        tensors: in file order, contiguous up to padding.
        alignment: of tensor data, bytes, a power of two.
        data_offset: where the data section starts, bytes from the start of the file.
        file_bytes: size of the file.
    """

    version: int
    architecture: str
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    file_bytes: int


@dataclass(frozen=True)
class ModelFacts:
    """What the project needs to know of a model, from its header alone.

    Attributes:
        architecture: such as `gemma3`; always a supported one.
        name: `general.name`, or the empty string.
        quantisation: the mix the file names (`Q4_K_M`), else the type that holds most elements.
        tensor_types: type name to number of tensors.
        n_layer: layers with a cache; heads that predict several tokens ahead are not counted.
        n_ctx_train: context the model was trained for, tokens.
        n_embd: width of the residual stream.
        n_head: query heads of a layer; the largest, where layers differ.
        n_head_kv: key and value heads of a layer; the largest, where layers differ.
        key_length: width of a key head.
        value_length: width of a value head.
        window: width of the sliding window the header names, tokens; None where all is attended.
        rope_freq_base: base of the rotary embedding; 10,000 where the header is silent.
        vocab_size: number of tokens.
    """

    architecture: str
    name: str
    quantisation: str
    tensor_types: Mapping[str, int]
    n_layer: int
    n_ctx_train: int
    n_embd: int
    n_head: int
    n_head_kv: int
    key_length: int
    value_length: int
    window: int | None
    rope_freq_base: float
    vocab_size: int


TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = MappingProxyType(
    {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        9: ("Q8_1", 32, 40),
        10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66),
        17: ("IQ2_XS", 256, 74),
        18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18),
        21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82),
        23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1),
        25: ("I16", 1, 2),
        26: ("I32", 1, 4),
        27: ("I64", 1, 8),
        28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36),
        41: ("Q1_0", 128, 18),
        42: ("Q2_0", 64, 18),
    }
)
"""ggml type number to (name, elements a block, bytes a block)."""

FILE_TYPES: Mapping[int, str] = MappingProxyType(
    {
        0: "F32",
        1: "F16",
        2: "Q4_0",
        3: "Q4_1",
        7: "Q8_0",
        8: "Q5_0",
        9: "Q5_1",
        10: "Q2_K",
        11: "Q3_K_S",
        12: "Q3_K_M",
        13: "Q3_K_L",
        14: "Q4_K_S",
        15: "Q4_K_M",
        16: "Q5_K_S",
        17: "Q5_K_M",
        18: "Q6_K",
        19: "IQ2_XXS",
        20: "IQ2_XS",
        21: "Q2_K_S",
        22: "IQ3_XS",
        23: "IQ3_XXS",
        24: "IQ1_S",
        25: "IQ4_NL",
        26: "IQ3_S",
        27: "IQ3_M",
        28: "IQ2_S",
        29: "IQ2_M",
        30: "IQ4_XS",
        31: "IQ1_M",
        32: "BF16",
        36: "TQ1_0",
        37: "TQ2_0",
        38: "MXFP4_MOE",
        39: "NVFP4",
        40: "Q1_0",
        41: "Q2_0",
    }
)
"""`general.file_type` to the name of the quantisation mix."""
