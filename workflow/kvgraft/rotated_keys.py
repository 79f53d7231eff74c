"""Rotation of cached keys in float64, outside the engine, and how far the engine's own is from it.

A rotary embedding turns pairs of a key's components by angles that grow with the position, so that
a key at p + M is the key at p turned by M. Here that is computed exactly enough to judge engines:
float64 angles, one rounding at the end. This module knows states and models, no contexts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgraft import state
from kvgraft.errors import StateRefused
from kvgraft.model import FrozenModel
from kvgraft.profile import KV_TYPES

_NEIGHBOUR_NAMES = """
arctic baichuan bailingmoe bitnet chatglm cohere2 command-r deepseek ernie4_5 granite granitemoe
internlm2 llama llama4 minicpm mistral3 olmo orion plm smollm3 xverse
"""
_NEIGHBOURS = frozenset(_NEIGHBOUR_NAMES.split())
"""Architectures that turn neighbouring components together (llama.cpp `llama_model_rope_type`);
the others turn component i with i + d/2."""

_LOCAL_BASE = {"gemma3": 10_000.0, "gemma3n": 10_000.0}
"""RoPE base of the window layers where the engine fixes it (llama.cpp, `load_arch_hparams`)."""

_DTYPES: Mapping[int, np.dtype[Any]] = {
    KV_TYPES["f32"]: np.dtype("<f4"),
    KV_TYPES["f16"]: np.dtype("<f2"),
}


@dataclass(frozen=True)
class Rope:
    """How a model turns its keys.

    Attributes:
        heads: key heads of a layer.
        width: components of a head.
        neighbours: whether components 2i and 2i + 1 are a pair, or i and i + width/2.
        bases: RoPE base by cache section: of layers without a window, of window layers.
    """

    heads: int
    width: int
    neighbours: bool
    bases: tuple[float, float]

    @classmethod
    def of(cls, model: FrozenModel) -> Rope:
        """The rotation of a model, from its header and its architecture."""
        facts = model.facts
        base = facts.rope_freq_base
        return cls(
            heads=facts.n_head_kv,
            width=facts.key_length,
            neighbours=facts.architecture in _NEIGHBOURS,
            bases=(base, _LOCAL_BASE.get(facts.architecture, base)),
        )

    def turn(self, keys: NDArray[Any], delta: int, base: float) -> NDArray[np.float64]:
        """Keys turned by `delta` positions.

        Args:
            keys: [cells, heads, width].
            delta: positions.
            base: RoPE base.

        Returns:
            float64 [cells, heads, width].
        """
        half = self.width // 2
        angles = delta * base ** (-2.0 * np.arange(half, dtype=np.float64) / self.width)
        cosine, sine = np.cos(angles), np.sin(angles)
        pairs = keys.astype(np.float64)
        order = (half, 2) if self.neighbours else (2, half)
        pairs = pairs.reshape(*keys.shape[:2], *order)
        if not self.neighbours:
            pairs = pairs.swapaxes(-1, -2)
        x, y = pairs[..., 0], pairs[..., 1]
        turned = np.stack((x * cosine - y * sine, x * sine + y * cosine), -1)
        if not self.neighbours:
            turned = turned.swapaxes(-1, -2)
        return np.asarray(turned.reshape(keys.shape), dtype=np.float64)


def layers(data: NDArray[np.uint8], rope: Rope, section: int) -> list[NDArray[Any]]:
    """The keys of a state by layer of one cache: views [cells, heads, width], f16 or f32.

    Raises:
        StateRefused: the keys are of another type or size.
    """
    found = []
    part = state.parse(data.data).sections[section]
    for tensor in part.tensors:
        if tensor.kind != "k":
            continue
        dtype = _DTYPES.get(tensor.type_id)
        if dtype is None or tensor.row_bytes != rope.heads * rope.width * dtype.itemsize:
            raise StateRefused(
                "the keys cannot be read",
                where=f"layer {tensor.layer}",
                expected=f"{rope.heads} x {rope.width} components of f16 or f32",
                found=f"type {tensor.type_id}, rows of {tensor.row_bytes} bytes",
            )
        bytes_ = data[tensor.offset : tensor.offset + tensor.n_bytes]
        found.append(bytes_.view(dtype).reshape(part.n_cells, rope.heads, rope.width))
    return found


def relocated_outside(
    data: NDArray[np.uint8], rope: Rope, delta: int, *, factor: float = 1.0
) -> NDArray[np.uint8]:
    """A state whose rows stand `delta` positions further, keys turned here.

    Args:
        data: uint8 [n_bytes], a state at its own positions.
        rope: of its model.
        delta: positions.
        factor: of every RoPE base; other than 1, the frequencies are wrong.

    Returns:
        uint8 [n_bytes], a new state.

    Raises:
        StateRefused: as `layers`.
    """
    out = data.copy()
    for index, section in enumerate(state.parse(out.data).sections):
        cells = out[section.offset : section.offset + 12 * section.n_cells].view("<i4")
        cells[::3] += delta
        for keys in layers(out, rope, index):
            keys[...] = rope.turn(keys, delta, rope.bases[index] * factor).astype(keys.dtype)
    return out


def errors(
    own: NDArray[np.uint8], moved: NDArray[np.uint8], rope: Rope, delta: int, where: tuple[str, int]
) -> Mapping[str, float | int]:
    """How far keys at p + delta are from the float64 rotation of keys at p.

    Args:
        own: state at its own positions.
        moved: state of the same tokens `delta` further.
        rope: of their model.
        delta: positions.
        where: (arm, section): "fresh" compares layer 0 alone, whose keys follow from the token
            and the position; "relocated" compares every layer of the section.

    Returns:
        `layers` compared; `max_error` and `rms_error`, both relative to the root mean square of
        the layer's keys and of the worst layer.
    """
    arm, section = where
    pairs = list(zip(layers(own, rope, section), layers(moved, rope, section), strict=True))
    worst, rms = 0.0, 0.0
    pairs = pairs[:1] if arm == "fresh" else pairs
    for before, after in pairs:
        wanted = rope.turn(before, delta, rope.bases[section])
        size = float(np.sqrt(np.mean(wanted * wanted))) or 1.0
        error = np.abs(after.astype(np.float64) - wanted) / size
        worst = max(worst, float(error.max()))
        rms = max(rms, float(np.sqrt(np.mean(error * error))))
    return {"layers": len(pairs), "max_error": worst, "rms_error": rms}
