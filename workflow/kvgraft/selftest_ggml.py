"""The operators of the loaded ggml, called one by one: the little of its interface they need.

`Graph` collects operators, computes them all with a number of threads and gives back the bytes of
each. Values are drawn by an integer generator of this module, so that no library of mathematics
and no generator of another one has a say in them. What is computed, and what should come of it, is
not known here.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgraft import engine
from kvgraft.errors import EngineFailed, EngineUnavailable
from kvgraft.gguf_types import TENSOR_TYPES

Tensor = int
"""Address of a ggml tensor."""

NUMBER = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
"""ggml's number of an element type."""

_MEMORY = 96 << 20
_MAX_NODES = 4096
_SIGNATURES = {
    "add": "tt",
    "add_id": "ttt",
    "cast": "ti",
    "clamp": "tff",
    "cont": "t",
    "cos": "t",
    "div": "tt",
    "exp": "t",
    "expm1": "t",
    "get_rows": "tt",
    "glu_split": "tti",
    "l2_norm": "tf",
    "log": "t",
    "mean": "t",
    "mul": "tt",
    "mul_mat": "tt",
    "mul_mat_id": "ttt",
    "norm": "tf",
    "permute": "tiiii",
    "rms_norm": "tf",
    "rope_ext": "tttiiiffffff",
    "scale": "tf",
    "scale_bias": "tff",
    "set_rows": "ttt",
    "sin": "t",
    "soft_max_ext": "ttff",
    "softplus": "t",
    "sqr": "t",
    "sqrt": "t",
    "sub": "tt",
    "sum_rows": "t",
    "swiglu_clamp": "ttf",
    "swiglu_oai": "ttff",
    "unary": "ti",
    "xielu": "tffff",
}
"""Arguments of `ggml_NAME` behind the context: tensors, ints, floats (ggml.h, commit 0c1e57098)."""
_CTYPES = {"t": ctypes.c_void_p, "i": ctypes.c_int, "f": ctypes.c_float}


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


# -- values ---------------------------------------------------------------------------------------


def draw(name: str, count: int) -> NDArray[np.uint64]:
    """`count` numbers of 64 bits that depend on the name alone (SplitMix64, seeded by SHA-256)."""
    seed = np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    with np.errstate(over="ignore"):
        z = seed + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def floats(name: str, count: int) -> NDArray[np.float32]:
    """Values in -1 … 1 with all 24 bits in use and sizes down to 2**-7 times the largest.

    Products of two need 48 bits and sums lose some, so that a rounding that is left out shows.
    """
    raw = draw(name, count)
    whole = (raw >> np.uint64(40)).astype(np.int64) - (1 << 23)
    exponents = np.uint32(127 - 23) - (raw & np.uint64(7)).astype(np.uint32)
    return whole.astype(np.float32) * (exponents << np.uint32(23)).view(np.float32)


def positive(name: str, count: int, low: int, high: int) -> NDArray[np.float32]:
    """Positive values whose binary exponents are drawn from low … high, any mantissa."""
    raw = draw(name, count)
    exponent = (raw >> np.uint64(32)) % np.uint64(high - low + 1) + np.uint64(low + 127)
    bits = exponent << np.uint64(23) | raw & np.uint64((1 << 23) - 1)
    return bits.astype(np.uint32).view(np.float32)


def signed(name: str, count: int, low: int, high: int) -> NDArray[np.float32]:
    """As `positive`, every other value negative."""
    values = positive(name, count, low, high)
    values[1::2] *= np.float32(-1)
    return values


# -- the library ----------------------------------------------------------------------------------


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Base, processor and registry library of ggml as they are loaded."""
    paths = {path.name.split(".")[0]: path for path in engine.loaded_libraries()}
    wanted = ("libggml-base", "libggml-cpu", "libggml")
    if missing := [name for name in wanted if name not in paths]:
        raise EngineUnavailable("a library of the engine is not loaded", expected=missing)
    return tuple(ctypes.CDLL(str(paths[name])) for name in wanted)


@cache
def _function(name: str, arguments: str = "", result: Any = ctypes.c_void_p) -> Any:
    for library in _libraries():
        function = getattr(library, name, None)
        if function is not None:
            function.restype = result
            known = _CTYPES | {"p": ctypes.c_void_p, "l": ctypes.c_int64, "s": ctypes.c_char_p}
            known |= {"z": ctypes.c_size_t, "b": ctypes.c_bool}
            function.argtypes = [known[kind] for kind in arguments]
            return function
    raise EngineUnavailable(f"the engine has no function {name}")


def _processor() -> int:
    return int(_function("ggml_backend_dev_by_type", "i")(0))


def extra_buffers() -> dict[str, int]:
    """The places the processor offers for weights beside plain memory, in the engine's order.

    Weights there have another layout and kernels of their own.
    """
    device = _processor()
    registry = _function("ggml_backend_dev_backend_reg", "p")(device)
    get = _function("ggml_backend_reg_get_proc_address", "ps")
    address = get(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return {}
    listed = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
    name = _function("ggml_backend_buft_name", "p", ctypes.c_char_p)
    found: dict[str, int] = {}
    for kind in listed or ():
        if not kind:
            break
        found[name(kind).decode()] = kind
    return found


class Graph:
    """Operators side by side in one memory; a context manager that frees it."""

    def __init__(self) -> None:
        self._contexts: list[int] = []
        self._buffers: list[int] = []
        self._ctx = self._context(_MEMORY, no_alloc=False)
        self._outputs: dict[str, tuple[Tensor, ...]] = {}

    def _context(self, size: int, *, no_alloc: bool) -> int:
        init = _libraries()[0].ggml_init
        init.argtypes, init.restype = [_InitParams], ctypes.c_void_p
        made = init(_InitParams(size, None, no_alloc))
        if not made:
            raise EngineFailed("the engine has no memory for its self-test", expected=size)
        self._contexts.append(made)
        return int(made)

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._buffers:
            _function("ggml_backend_buffer_free", "p", None)(buffer)
        for context in self._contexts:
            _function("ggml_free", "p", None)(context)

    def tensor(self, kind: str, shape: Sequence[int], data: NDArray[Any]) -> Tensor:
        """An input of a type, its contiguous dimension first, with these bytes."""
        made = self._new(self._ctx, kind, shape)
        data = np.ascontiguousarray(data)
        self._check_size(made, data)
        ctypes.memmove(_function("ggml_get_data", "p")(made), data.ctypes.data, data.nbytes)
        return made

    def weights(self, kind: str, shape: Sequence[int], data: NDArray[Any]) -> Tensor:
        """An input that lies where the engine would put a matrix of weights of this shape.

        That is plain memory, unless the processor's code offers a place with kernels of its own.
        """
        for buffer_type in extra_buffers().values():
            made = self._placed(buffer_type, kind, shape)
            if made is not None:
                data = np.ascontiguousarray(data)
                self._check_size(made, data)
                put = _function("ggml_backend_tensor_set", "ppzz", None)
                put(made, data.ctypes.data, 0, data.nbytes)
                return made
        return self.tensor(kind, shape, data)

    def _placed(self, buffer_type: int, kind: str, shape: Sequence[int]) -> Tensor | None:
        """A matrix in an extra place; None where that has no kernel for it."""
        context = self._context(1 << 16, no_alloc=True)
        made = self._new(context, kind, shape)
        allocate = _function("ggml_backend_alloc_ctx_tensors_from_buft", "pp")
        buffer = allocate(context, buffer_type)
        if not buffer:
            return None
        self._buffers.append(buffer)
        rows = self._new(context, "F32", (shape[0], 1))
        if len(shape) == 3:
            product = self._op(context, "mul_mat_id", made, rows, self._new(context, "I32", (1,)))
        else:
            product = self._op(context, "mul_mat", made, rows)
        supports = _function("ggml_backend_dev_supports_op", "pp", ctypes.c_bool)
        return made if supports(_processor(), product) else None

    def _new(self, context: int, kind: str, shape: Sequence[int]) -> Tensor:
        whole = (*shape, 1, 1, 1)[:4]
        return int(_function("ggml_new_tensor_4d", "pillll")(context, NUMBER[kind], *whole))

    def _check_size(self, tensor: Tensor, data: NDArray[Any]) -> None:
        size = _function("ggml_nbytes", "p", ctypes.c_size_t)(tensor)
        if size != data.nbytes:
            raise ValueError(f"a tensor of {size} bytes was given {data.nbytes}")

    def op(self, name: str, *arguments: Any) -> Tensor:
        """The result of `ggml_NAME`; it is computed if it leads to something that is kept."""
        return self._op(self._ctx, name, *arguments)

    def _op(self, context: int, name: str, *arguments: Any) -> Tensor:
        return int(_function(f"ggml_{name}", "p" + _SIGNATURES[name])(context, *arguments))

    def add_sinks(self, soft_max: Tensor, sinks: Tensor) -> None:
        """Give a softmax one more score a head, which takes a share and leads to nothing."""
        _function("ggml_soft_max_add_sinks", "pp", None)(soft_max, sinks)

    def keep(self, name: str, *tensors: Tensor) -> None:
        """Compute these tensors, and give back their bytes under a name."""
        if name in self._outputs:
            raise ValueError(f"{name} is there twice")
        self._outputs[name] = tensors

    def compute(self, n_threads: int, names: Collection[str] | None = None) -> dict[str, bytes]:
        """Compute anew; bytes by name, in the order in which they were kept.

        Args:
            n_threads: threads that share the work.
            names: of what to compute; None for everything.

        Raises:
            EngineFailed: the engine reports an error.
        """
        wanted = {n: o for n, o in self._outputs.items() if names is None or n in names}
        graph = _function("ggml_new_graph_custom", "pzb")(self._ctx, _MAX_NODES, False)
        for tensor in itertools.chain.from_iterable(wanted.values()):
            _function("ggml_build_forward_expand", "pp", None)(graph, tensor)
        run = _function("ggml_graph_compute_with_ctx", "ppi", ctypes.c_int)
        status = run(self._ctx, graph, n_threads)
        if status != 0:
            raise EngineFailed("the engine did not compute its self-test", found=status)
        data, size = _function("ggml_get_data", "p"), _function("ggml_nbytes", "p", ctypes.c_size_t)
        return {
            name: b"".join(ctypes.string_at(data(one), size(one)) for one in tensors)
            for name, tensors in wanted.items()
        }

    def first_nan(self) -> str | None:
        """Name of an operator whose last result holds something that is no number.

        Processors differ in the bits of such values.
        """
        data, size = _function("ggml_get_data", "p"), _function("ggml_nbytes", "p", ctypes.c_size_t)
        for name, tensors in self._outputs.items():
            for one in tensors:
                kind = TENSOR_TYPES[ctypes.c_int.from_address(one).value][0]  # its first field
                raw = ctypes.string_at(data(one), size(one))
                if kind == "F32" and np.isnan(np.frombuffer(raw, np.float32)).any():
                    return name
                if kind == "F16" and np.isnan(np.frombuffer(raw, np.float16)).any():
                    return name
        return None
