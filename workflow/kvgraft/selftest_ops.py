"""The operators of the self-test, by name: kernels of Gemma 3 and llama, and products of weights.

Each name stands for a computation whose inputs depend on the name alone. Sizes are odd and even,
rows 1 to 3, 7 and 8, because kernels change with both; plain products and reading of rows are there
for every type of weights that a model file may hold, products of experts for seven of them. Some
kernels of other architectures are there, not all: the sorting that chooses experts is missing.
An operator comes after those of which its result is made, so that the first that differs is the one
to look at. This module knows ggml's operators and no goldens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvgraft.gguf_types import TENSOR_TYPES
from kvgraft.profile import KV_TYPES
from kvgraft.selftest_ggml import NUMBER, Graph, Tensor, draw, floats, positive, signed

ROWS = (1, 2, 3, 7, 8)

_NO_WEIGHTS = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
TYPES = tuple(name for name, _, _ in TENSOR_TYPES.values() if name not in _NO_WEIGHTS)
"""Types of weights."""

_HALVES = {
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)},
}
"""Where a block holds its scales of 16 bits (ggml-common.h); elsewhere it is at its beginning."""

_UNARY = (
    *("abs", "sgn", "neg", "step", "tanh", "elu", "relu", "sigmoid", "gelu", "gelu_quick", "silu"),
    *("hardswish", "hardsigmoid", "exp", "expm1", "softplus", "gelu_erf", "xielu", "floor"),
    *("ceil", "round", "trunc"),
)
_GLU = ("reglu", "geglu", "swiglu", "swiglu_oai", "geglu_erf", "geglu_quick", "swiglu_clamp")
"""In ggml's order (ggml.h: ggml_unary_op, ggml_glu_op)."""

_QUANTISED = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL")
"""What the engine turns values into while it runs; the first three for keys and values."""
_ROPE_NORMAL, _ROPE_NEOX = 0, 2
_GRID = 1 << 13


def build(graph: Graph) -> None:
    """Add every operator to a graph."""
    _elementary(graph)
    _mathematics(graph)
    _conversions(graph)
    _norms(graph)
    _gates(graph)
    _rope(graph)
    _soft_max(graph)
    _rows_of_weights(graph)
    _products(graph)
    _experts(graph)
    _attention(graph)


def weights(kind: str, name: str, columns: int, rows: int) -> NDArray[np.uint8]:
    """Blocks of drawn bits, with scales of a sensible size: uint8 [bytes].

    No quantiser has a say in them.
    """
    if kind in ("F32", "F16", "BF16"):
        values = floats(name, columns * rows)
        if kind == "F16":
            return values.astype(np.float16).view(np.uint8)
        half = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return (values if kind == "F32" else half).view(np.uint8)
    elements, size = next((n, b) for one, n, b in TENSOR_TYPES.values() if one == kind)
    count = columns // elements * rows
    blocks = draw(name, -(-count * size // 8)).view(np.uint8)[: count * size].reshape(count, size)
    mantissa = draw(f"{name}/scales", 4 * count).reshape(count, 4)
    if kind in ("MXFP4", "NVFP4"):  # scales of 8 bits: powers of two, and small floats
        n, low, span = (1, 118, 8) if kind == "MXFP4" else (4, 0x20, 0x20)
        blocks[:, :n] = low + mantissa[:, :n] % np.uint64(span)
    elif kind == "IQ1_M":  # four bits of its scale stand on top of each of the last four halves
        blocks[:, -1] = blocks[:, -1] & 0x0F | 0x20
    else:
        for number, at in enumerate(_HALVES.get(kind, (0,))):
            scale = 0x2000 + mantissa[:, number] % np.uint64(0x0C00)  # 2**-7 … 2**-4
            blocks[:, at : at + 2] = scale.astype("<u2")[:, None].view(np.uint8)
    return blocks.reshape(-1)


def activations(name: str, columns: int, rows: int) -> NDArray[np.float32]:
    """Rows of four sorts in turn, float32 [rows, columns].

    Drawn; halfway between two steps of a quantiser to 8 bits; half of it zero; so small that the
    scale of a block is a subnormal half.
    """
    values = floats(name, columns * rows).reshape(rows, columns)
    steps = (draw(f"{name}/steps", columns * rows) % np.uint64(252)).astype(np.int64) - 126
    halfway = (steps.astype(np.float32) + np.float32(0.5)).reshape(rows, columns)
    halfway[:, ::32] = 127
    values[1::4] = halfway[1::4]
    values[2::4, : columns // 2] = 0
    values[3::4] *= np.float32(2.0**-18)
    return values


# -- values one by one ----------------------------------------------------------------------------


def _values(graph: Graph, name: str, *shape: int, kind: str = "F32") -> Tensor:
    data = floats(name, int(np.prod(shape)))
    if kind != "F32":
        return graph.tensor(kind, shape, weights(kind, name, shape[0], int(np.prod(shape[1:]))))
    return graph.tensor(kind, shape, data)


def _integers(graph: Graph, values: Iterable[int], *shape: int, kind: str = "I32") -> Tensor:
    array = np.fromiter(values, np.int64 if kind == "I64" else np.int32)
    return graph.tensor(kind, shape or (len(array),), array)


def _elementary(graph: Graph) -> None:
    a, b = _values(graph, "a", 129, 3), _values(graph, "b", 129, 3)
    row = _values(graph, "row", 129)
    for name in ("add", "sub", "mul", "div"):
        graph.keep(name, graph.op(name, a, b), graph.op(name, a, row))
    halves = graph.op("cast", a, NUMBER["F16"])
    graph.keep("add, mul/f16", graph.op("add", halves, b), graph.op("mul", halves, b))
    graph.keep("scale", graph.op("scale", a, 0.3), graph.op("scale_bias", a, 1.7, -0.1))
    graph.keep("clamp", graph.op("clamp", a, -0.25, 0.5))
    graph.keep("square", graph.op("sqr", a))
    graph.keep("sum_rows", graph.op("sum_rows", a), graph.op("mean", a))
    tiny = graph.tensor("F32", (64,), signed("subnormal", 64, -126, -110))
    small = graph.op("scale", tiny, 2.0**-20)
    graph.keep("subnormal numbers", small, graph.op("scale", small, 2.0**30))


def _mathematics(graph: Graph) -> None:
    """A table of each function over a grid, finite everywhere."""

    def table(name: str, values: NDArray[np.float32]) -> Tensor:
        return graph.tensor("F32", (len(values),), values)

    wide = table("wide", signed("grid", _GRID, -24, 6))
    near = table("near", signed("near", _GRID, -8, 4))
    above = table("above", positive("positive", _GRID, -126, 126))
    angles = table("angles", signed("angles", 2 * _GRID, -12, 20))
    graph.keep("math/exp", graph.op("exp", wide))
    graph.keep("math/expm1", graph.op("expm1", wide))
    graph.keep("math/log", graph.op("log", above))
    graph.keep("math/sqrt", graph.op("sqrt", above))
    graph.keep("math/sin", graph.op("sin", angles))
    graph.keep("math/cos", graph.op("cos", angles))
    graph.keep("math/softplus", graph.op("softplus", near))
    half = graph.op("cast", near, NUMBER["F16"])
    for number, name in enumerate(_UNARY):
        if name == "xielu":
            graph.keep("unary/xielu", graph.op("xielu", near, 0.8, 0.7, 0.5, -1e-6))
        else:
            graph.keep(f"unary/{name}", graph.op("unary", near, number))
            graph.keep(f"unary/{name}/f16", graph.op("unary", half, number))


def _conversions(graph: Graph) -> None:
    """Values to what caches and kernels hold, ties and subnormal halves among them."""
    ties = (draw("ties", 512) & np.uint64(0x8000_FFFF)).astype(np.uint32)
    ties = ties & np.uint32(0x8000_0FFF) | np.uint32(0x1000)
    ties |= ((draw("tie exponents", 512) % np.uint64(30)).astype(np.uint32) + 103) << np.uint32(23)
    exact = graph.tensor("F32", (256, 2), ties.view(np.float32))
    drawn = graph.tensor("F32", (256, 4), activations("drawn", 256, 4))
    for kind in _QUANTISED:
        kept = [graph.op("cast", value, NUMBER[kind]) for value in (exact, drawn)]
        graph.keep(f"quantise/{kind}", *kept)
    for kind in ("F32", *(name.upper() for name in KV_TYPES if name != "f32")):
        cache = graph.tensor(kind, (256, 5), weights(kind, f"cache/{kind}", 256, 5))
        where = _integers(graph, (3, 0, 4, 1), kind="I64")
        graph.keep(f"set_rows/{kind}", graph.op("set_rows", cache, drawn, where))


def _norms(graph: Graph) -> None:
    for columns in (64, 129, 640):
        x, y = _values(graph, f"norm/{columns}", columns, 3), _values(graph, "gain", columns)
        graph.keep(f"norm/{columns}", graph.op("norm", x, 1e-5))
        graph.keep(f"rms_norm/{columns}", graph.op("rms_norm", x, 1e-6))
        graph.keep(f"l2_norm/{columns}", graph.op("l2_norm", x, 1e-6))
        gained = graph.op("mul", graph.op("rms_norm", x, 1e-6), y)
        graph.keep(f"rms_norm, mul, add/{columns}", graph.op("add", gained, x))


def _gates(graph: Graph) -> None:
    for kind in ("F32", "F16"):
        a, b = (_values(graph, f"gate/{name}", 333, 3, kind=kind) for name in "ab")
        for number, name in enumerate(_GLU):
            if name.startswith("swiglu_"):  # with limits, of 32 bits only
                if kind == "F32":
                    limits = (1.7, 0.4) if name == "swiglu_oai" else (0.4,)
                    graph.keep(f"glu/{name}", graph.op(name, a, b, *limits))
            else:
                graph.keep(f"glu/{name}/{kind}", graph.op("glu_split", a, b, number))


# -- positions and attention ----------------------------------------------------------------------


def _rope(graph: Graph) -> None:
    positions = (0, 1, 2, 63, 1000, 4095, 32767, 131071, 1048575)
    places = _integers(graph, positions)
    factors = graph.tensor("F32", (32,), positive("factors", 32, 0, 4))
    plain = (1.0, 0.0, 1.0, 32.0, 1.0)
    linear, yarn = (0.125, 0.0, 1.0, 32.0, 1.0), (0.25, 1.0, 1.1386, 32.0, 1.0)
    for kind in ("F32", "F16"):
        x = _values(graph, f"rope/{kind}", 64, 3, len(positions), kind=kind)
        for mode, name in ((_ROPE_NORMAL, "normal"), (_ROPE_NEOX, "neox")):
            for base in (10_000.0, 500_000.0, 1_000_000.0):
                out = graph.op("rope_ext", x, places, None, 64, mode, 4096, base, *plain)
                graph.keep(f"rope/{name}/{kind}/base {base:.0f}", out)
            for n_dims, what, given, scaling in (
                (64, "factors", factors, plain),
                (64, "linear", None, linear),
                (64, "yarn", None, yarn),
                (48, "part", None, plain),
            ):
                arguments = (n_dims, mode, 4096, 10_000.0, *scaling)
                out = graph.op("rope_ext", x, places, given, *arguments)
                graph.keep(f"rope/{name}/{kind}/{what}", out)
    # One power for each width; 2 to 256 in steps.
    for n_dims in (2, 6, 20, 32, 80, 96, 128, 160, 192, 256):
        x = _values(graph, f"rope/width {n_dims}", n_dims, 1, len(positions))
        for base in (10_000.0, 25_000.0, 5_000_000.0):
            out = graph.op("rope_ext", x, places, None, n_dims, _ROPE_NEOX, 4096, base, *plain)
            graph.keep(f"rope/width {n_dims}/base {base:.0f}", out)


def _mask(graph: Graph, n_kv: int, rows: int, window: int, kind: str = "F16") -> Tensor:
    """What the last `rows` of `n_kv` positions may see: all before, or a window of it."""
    query = np.arange(n_kv - rows, n_kv)[:, None]
    key = np.arange(n_kv)[None, :]
    hidden = (key > query) | ((window > 0) & (key <= query - window))
    mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
    return graph.tensor(kind, (n_kv, rows), mask.astype(np.float16 if kind == "F16" else "f4"))


def _soft_max(graph: Graph) -> None:
    sinks = graph.tensor("F32", (6,), signed("sinks", 6, -3, 2))
    for n_kv in (1, 33, 256, 515):
        rows = min(3, n_kv)
        x = _values(graph, f"scores/{n_kv}", n_kv, rows, 6)
        graph.keep(f"soft_max/{n_kv}", graph.op("soft_max_ext", x, None, 9.0, 0.0))
        for window, name in ((0, "full"), (20, "window")):
            for kind in ("F16", "F32"):
                mask = _mask(graph, n_kv, rows, window, kind)
                out = graph.op("soft_max_ext", x, mask, 9.0, 0.0)
                graph.keep(f"soft_max/{n_kv}/{name}/{kind}", out)
        mask = _mask(graph, n_kv, rows, 0)
        graph.keep(f"soft_max/{n_kv}/slopes", graph.op("soft_max_ext", x, mask, 9.0, 8.0))
        out = graph.op("soft_max_ext", x, mask, 9.0, 0.0)
        graph.add_sinks(out, sinks)
        graph.keep(f"soft_max/{n_kv}/sinks", out)


def _attention(graph: Graph) -> None:
    """Scores, softmax and sum of values, as they are computed without flash attention."""
    kinds = [(k, "f16") for k in KV_TYPES] + [("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")]
    for (k_kind, v_kind), (n_kv, rows) in itertools.product(kinds, ((256, 1), (256, 5), (512, 2))):
        for which, window in (("full", 0), ("window", 40)):
            name = f"attention/{which}/{k_kind} {v_kind}/{n_kv}/rows {rows}"
            k = _values(graph, f"{name}/k", 32, n_kv, 2, kind=k_kind.upper())
            v = _values(graph, f"{name}/v", n_kv, 32, 2, kind=v_kind.upper())
            scores = graph.op("mul_mat", k, _values(graph, f"{name}/q", 32, rows, 4))
            if window:  # some models keep scores within bounds
                bent = graph.op("unary", graph.op("scale", scores, 0.02), _UNARY.index("tanh"))
                scores = graph.op("scale", bent, 50.0)
            mask = _mask(graph, n_kv, rows, window)
            shares = graph.op("soft_max_ext", scores, mask, 0.9, 0.0)
            graph.keep(name, scores, graph.op("mul_mat", v, shares))


# -- weights --------------------------------------------------------------------------------------


def _rows_of_weights(graph: Graph) -> None:
    for kind in TYPES:
        table = graph.tensor(kind, (768, 5), weights(kind, f"table/{kind}", 768, 5))
        graph.keep(f"get_rows/{kind}", graph.op("get_rows", table, _integers(graph, (4, 0, 3))))


def _products(graph: Graph) -> None:
    """Weights of every type by few rows and more; an odd number of outputs, then an even one."""
    for kind in TYPES:
        elements = next(n for name, n, _ in TENSOR_TYPES.values() if name == kind)
        short = {1: 77, 256: 256}.get(elements, 3 * elements)
        for rows in ROWS:
            outputs = []
            for columns, n in ((short, 7), (768, 16)):
                data = weights(kind, f"weights/{kind}/{columns}", columns, n)
                x = activations(f"rows/{columns}", columns, rows)
                matrix = graph.weights(kind, (columns, n), data)
                read = graph.tensor("F32", (columns, rows), x)
                outputs.append(graph.op("mul_mat", matrix, read))
            graph.keep(f"mul_mat/{kind}/rows {rows}", *outputs)


def _experts(graph: Graph) -> None:
    """One of several matrices a row, and a bias chosen alike."""
    chosen = _integers(graph, (0, 2, 3, 1, 2, 0), 2, 3)
    x = graph.tensor("F32", (256, 1, 3), activations("experts/rows", 256, 3))
    bias = _values(graph, "experts/bias", 8, 4)
    for kind in ("F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4"):
        matrices = graph.weights(kind, (256, 8, 4), weights(kind, f"experts/{kind}", 256, 32))
        out = graph.op("mul_mat_id", matrices, x, chosen)
        graph.keep(f"mul_mat_id/{kind}", out, graph.op("add_id", out, bias, chosen))
