"""Random-weight GGUF files that llama.cpp loads in milliseconds, for tests of mechanics.

A tiny model has the structure of a real one (grouped-query attention, sliding-window layers that
alternate with full ones, quantised weights, a byte-level vocabulary) and none of its knowledge.
Its logits are far from uniform and depend on every token of the context, so that a wrong state
shows. The bytes of a file are a function of the arguments alone: weights come from the raw output
of PCG64, which NumPy keeps stable, through exact float32 operations. This module knows the GGUF
writer and nothing of the engine.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from kvaudit.errors import UnusableInput

Architecture = Literal["llama", "gemma3"]

BEGIN, END, FIRST_BYTE = 0, 1, 2
MIN_VOCABULARY = FIRST_BYTE + 256

_FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_1": gguf.LlamaFileType.MOSTLY_Q4_1,
    "Q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
    "Q5_1": gguf.LlamaFileType.MOSTLY_Q5_1,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_K": gguf.LlamaFileType.MOSTLY_Q4_K_S,
    "Q6_K": gguf.LlamaFileType.MOSTLY_Q6_K,
}

# Scores before the softmax have a standard deviation of about this value squared: attention then
# prefers some tokens clearly without collapsing onto one, so every earlier token leaves a trace.
_SHARPNESS = 1.4

_CORPUS = (
    "The keeper of the north lighthouse wrote the name of every ship in a green book. In the "
    "morning she counted the boats that had come in, and in the evening she counted those that "
    "were still at sea. When the wind was from the west the harbour was quiet, and there was time "
    "to read the older pages. What was the name of the ship that carried the salt? Where did the "
    "miller store the grain before the winter? The answer is written there, under the date, with "
    "the number of barrels and the price that was paid for them. Nothing in the book had ever been "
    "changed, because each line was signed by two people, and each page was numbered by hand. "
)


@dataclass(frozen=True)
class _Shape:
    """Sizes of one tiny model; every field is a count."""

    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    vocab: int


def make_tiny_gguf(
    path: str | Path,
    architecture: Architecture = "llama",
    *,
    seed: int = 0,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int | None = None,
    n_head_kv: int | None = None,
    head_dim: int = 32,
    n_ff: int | None = None,
    vocab: int = 384,
    window: int = 64,
    window_pattern: int = 2,
    n_ctx: int = 4096,
    quantisation: str = "Q8_0",
) -> Path:
    """Write a random-weight model and return its path.

    Args:
        path: where to write; an existing file is replaced.
        architecture: `llama`, or `gemma3` with a sliding window.
        seed: seed of the weights (PCG64).
        n_layer: number of layers.
        n_embd: width of the residual stream; a multiple of the block size of `quantisation`
            (32, for the K types 256).
        n_head: query heads; `n_embd / head_dim`, at least 2, unless given.
        n_head_kv: key and value heads; half of `n_head` unless given.
        head_dim: width of a head; a multiple of 32 lets the KV cache be quantised too.
        n_ff: width of the feed-forward layer; twice `n_embd` unless given.
        vocab: vocabulary size, at least 258: two control tokens, 256 bytes, then learned merges
            and, where those run out, unused entries.
        window: width of the sliding window in tokens (gemma3).
        window_pattern: every `window_pattern`-th layer attends to everything (gemma3).
        n_ctx: context length the model claims to be trained for.
        quantisation: type of all weight matrices; norms are always F32.

    Returns:
        The path written.

    Raises:
        UnusableInput: for an unknown architecture or type, or sizes that do not fit together.
    """
    heads = n_head or max(2, n_embd // head_dim)
    shape = _Shape(
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=heads,
        n_head_kv=n_head_kv or max(1, heads // 2),
        head_dim=head_dim,
        n_ff=n_ff or 2 * n_embd,
        vocab=vocab,
    )
    _check(shape, architecture, quantisation, window, window_pattern)
    path = Path(path)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture} {quantisation} seed {seed}")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(_FILE_TYPES[quantisation])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if architecture == "gemma3":
        writer.add_rope_freq_base(1_000_000.0)
        writer.add_sliding_window(window)
        writer.add_sliding_window_pattern(window_pattern)
    else:
        writer.add_rope_freq_base(10_000.0)
        writer.add_rope_dimension_count(head_dim)
        writer.add_vocab_size(vocab)
    _add_vocabulary(writer, vocab, add_begin=architecture == "gemma3")
    _add_weights(writer, architecture, shape, seed, quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _check(
    shape: _Shape, architecture: str, quantisation: str, window: int, window_pattern: int
) -> None:
    """Refuse sizes llama.cpp would abort on or read as something else."""
    if architecture not in ("llama", "gemma3"):
        raise UnusableInput(
            "no tiny model of this architecture", expected="llama or gemma3", found=architecture
        )
    if quantisation not in _FILE_TYPES:
        raise UnusableInput(
            "no tiny model of this quantisation",
            expected=", ".join(_FILE_TYPES),
            found=quantisation,
        )
    if shape.vocab < MIN_VOCABULARY:
        raise UnusableInput(
            "the vocabulary has no room for every byte",
            expected=f"vocab >= {MIN_VOCABULARY}",
            found=shape.vocab,
        )
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[quantisation]][0]
    for name, rows in (
        ("n_embd", shape.n_embd),
        ("n_ff", shape.n_ff),
        ("n_head * head_dim", shape.n_head * shape.head_dim),
    ):
        if rows <= 0 or rows % block:
            raise UnusableInput(
                f"{name} does not fill whole {quantisation} blocks",
                expected=f"a positive multiple of {block}",
                found=rows,
            )
    if shape.n_head_kv <= 0 or shape.n_head % shape.n_head_kv or shape.head_dim % 2:
        raise UnusableInput(
            "the heads do not divide",
            expected="n_head a multiple of n_head_kv, head_dim even",
            found=f"{shape.n_head}, {shape.n_head_kv}, {shape.head_dim}",
        )
    # llama.cpp asserts that a model with a window has at least one layer that uses it.
    if architecture == "gemma3" and (window <= 0 or window_pattern < 2 or shape.n_layer < 1):
        raise UnusableInput(
            "gemma3 needs a window and a layer that uses it",
            expected="window > 0, window_pattern >= 2, n_layer >= 1",
            found=f"{window}, {window_pattern}, {shape.n_layer}",
        )


def _add_weights(
    writer: gguf.GGUFWriter, architecture: str, shape: _Shape, seed: int, quantisation: str
) -> None:
    """Draw and add all tensors, in a fixed order from one stream."""
    stream = np.random.PCG64(seed)
    kind = gguf.GGMLQuantizationType[quantisation]

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        deviation = gain / columns**0.5
        if quantisation in ("Q4_K", "Q6_K"):
            data = _random_k_blocks(stream, kind, rows, columns, deviation)
        else:
            data = gguf.quants.quantize(_uniform(stream, (rows, columns), deviation), kind)
        writer.add_tensor(name, data, raw_dtype=kind)

    def norm(name: str, width: int, gain: float = 1.0) -> None:
        writer.add_tensor(name, np.float32(gain) + _uniform(stream, (width,), 0.1 * gain))

    e, q, kv = shape.n_embd, shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    matrix("token_embd.weight", shape.vocab, e)
    for layer in range(shape.n_layer):
        at = f"blk.{layer}."
        norm(at + "attn_norm.weight", e)
        matrix(at + "attn_q.weight", q, e, _SHARPNESS)
        matrix(at + "attn_k.weight", kv, e, _SHARPNESS)
        matrix(at + "attn_v.weight", kv, e)
        matrix(at + "attn_output.weight", e, q)
        if architecture == "gemma3":
            norm(at + "attn_q_norm.weight", shape.head_dim, _SHARPNESS)
            norm(at + "attn_k_norm.weight", shape.head_dim, _SHARPNESS)
            norm(at + "post_attention_norm.weight", e, 2.0)
        norm(at + "ffn_norm.weight", e)
        matrix(at + "ffn_gate.weight", shape.n_ff, e)
        matrix(at + "ffn_up.weight", shape.n_ff, e)
        matrix(at + "ffn_down.weight", e, shape.n_ff)
        if architecture == "gemma3":
            norm(at + "post_ffw_norm.weight", e)
    norm("output_norm.weight", e)
    if architecture == "llama":
        matrix("output.weight", shape.vocab, e, 2.0)


def _uniform(
    stream: np.random.PCG64, size: tuple[int, ...], deviation: float
) -> NDArray[np.float32]:
    """Uniform float32 values of mean 0 and the given standard deviation, shape `size`."""
    raw = stream.random_raw(int(np.prod(size)))
    # 24 bits are exact in float32, so nothing here depends on a machine's math library.
    unit = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return (unit * np.float32(deviation * 3**0.5)).reshape(size)


def _random_k_blocks(
    stream: np.random.PCG64,
    kind: gguf.GGMLQuantizationType,
    rows: int,
    columns: int,
    deviation: float,
) -> NDArray[np.uint8]:
    """Blocks of 256 weights drawn as quants, since `gguf` cannot quantise to the K types.

    Layouts as in ggml's `block_q4_K` (weight = d * scale * q - dmin * min) and `block_q6_K`
    (weight = d * scale * (q - 32)); with equal scales a uniform q is a uniform weight.

    Returns:
        uint8 [rows, bytes of a row].
    """
    n, size = gguf.GGML_QUANT_SIZES[kind]
    count = rows * columns // n
    blocks = np.zeros((count, size), dtype=np.uint8)
    scale = 8
    if kind is gguf.GGMLQuantizationType.Q4_K:
        step = deviation * 12**0.5 / 16 / scale
        blocks[:, 0:4] = np.array([step, step * 7.5], dtype="<f2").view(np.uint8)
        blocks[:, 4:12] = scale
        blocks[:, 12:16] = scale | scale << 4
        quants = slice(16, 144)
    else:
        step = deviation * 12**0.5 / 64 / scale
        blocks[:, 192:208] = scale
        blocks[:, 208:210] = np.array([step], dtype="<f2").view(np.uint8)
        quants = slice(0, 192)
    width = quants.stop - quants.start
    raw = stream.random_raw(count * width // 8).astype("<u8")
    blocks[:, quants] = raw.view(np.uint8).reshape(count, width)
    return blocks.reshape(rows, -1)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int, *, add_begin: bool) -> None:
    """Add a byte-level BPE vocabulary of `size` tokens: any UTF-8 text survives a round trip."""
    letters = _byte_letters()
    merges = _learn_merges(size - MIN_VOCABULARY, letters)
    tokens = ["<|begin|>", "<|end|>", *letters, *("".join(pair) for pair in merges)]
    unused = [f"<|unused{i}|>" for i in range(size - len(tokens))]
    normal, control, never = (
        int(kind) for kind in (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.UNUSED)
    )
    types = [control] * 2 + [normal] * (len(tokens) - 2) + [never] * len(unused)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + unused)
    writer.add_token_types(types)
    # An empty array has no element type in GGUF, so one merge is always present.
    writer.add_token_merges([" ".join(pair) for pair in merges] or [f"{letters[0]} {letters[0]}"])
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(add_begin)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def _byte_letters() -> list[str]:
    """The 256 characters that stand for the bytes 0..255 in a GPT-2 vocabulary."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(256)
    return [chr(byte) if byte in visible else chr(next(spare)) for byte in range(256)]


def _learn_merges(count: int, letters: list[str]) -> list[tuple[str, str]]:
    """Up to `count` byte-pair merges learned from the module's paragraph, most frequent first."""
    words: Counter[tuple[str, ...]] = Counter(
        tuple(letters[byte] for byte in word.encode())
        for word in re.findall(r" ?[A-Za-z]+", _CORPUS)
    )
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, times in words.items():
            merged[_merge(word, best)] += times
        words = merged
    return merges


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """`word` with every occurrence of `pair` joined, left to right."""
    out: list[str] = []
    for letter in word:
        # A joined pair may not join again within one pass: only the raw neighbour counts.
        if out and (out[-1], letter) == pair:
            out[-1] += letter
        else:
            out.append(letter)
    return tuple(out)
