"""One allocation, one pointer, every consumer: arrays in CUDA managed memory.

NumPy, PyTorch, CuPy, Numba and JAX see the same bytes at the same address, on the CPU and on the GPU,
with nothing copied. On a machine without a GPU the same program runs on ordinary memory.

    >>> import numpy as np, torch, umem
    >>> a = umem.arange(6, dtype="f4").reshape(2, 3)
    >>> t = torch.as_tensor(a)          # a CUDA tensor where there is a GPU
    >>> t *= 2                          # PyTorch computes …
    >>> a                               # … and the array shows it
    umem.array([[ 0.,  2.,  4.],
                [ 6.,  8., 10.]], dtype=float32)

Where data lives: `a.residency()`, `a.prefetch("cuda")`, `a.home = "cpu"`, `a.advise("read_mostly")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from umem import _core
except ImportError as error:
    if "_core" not in str(error):
        raise
    raise ImportError(
        "umem's extension module is not built here. This is the source tree: build it with `make build`, "
        "or leave this folder to import an installed umem"
    ) from error
from umem import _methods, _ufunc, random
from umem._core import (
    CudaError,
    DriverNotFoundError,
    OutOfMemoryError,
    Stream,
    __version__,
    absolute,
    add,
    addcmul,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    axpy,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    cbrt,
    ceil,
    clip,
    conjugate,
    copysign,
    cos,
    cosh,
    deg2rad,
    degrees,
    devices,
    equal,
    exp,
    exp2,
    expm1,
    fabs,
    floor,
    floor_divide,
    fmax,
    fmin,
    fmod,
    get_limit,
    greater,
    greater_equal,
    heaviside,
    hypot,
    info,
    invert,
    isfinite,
    isinf,
    isnan,
    left_shift,
    lerp,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logaddexp2,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    memory_stats,
    minimum,
    multiply,
    ndarray,
    negative,
    nextafter,
    not_equal,
    on_out_of_memory,
    positive,
    power,
    prefetch,
    rad2deg,
    radians,
    reciprocal,
    remainder,
    reset_peak,
    right_shift,
    rint,
    set_limit,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    synchronize,
    tan,
    tanh,
    trim,
    true_divide,
    trunc,
)
from umem._creation import (
    arange,
    array,
    asarray,
    copy,
    empty,
    empty_like,
    from_dlpack,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from umem._evaluate import evaluate
from umem._memory import memory_scope, memory_summary, record_allocations
from umem._residency import Residency
from umem._streams import deferred, stream
from umem._ufunc import where

if TYPE_CHECKING:
    from umem._io import fromfile, load, save

__all__ = [
    # create
    "arange", "array", "asarray", "copy", "empty", "empty_like", "from_dlpack", "fromfile", "full",
    "full_like", "linspace", "load", "ones", "ones_like", "save", "zeros", "zeros_like",
    # array
    "ndarray",
    # placement
    "Residency", "prefetch",
    # streams
    "Stream", "deferred", "stream", "synchronize",
    # kernels
    "absolute", "add", "addcmul", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2",
    "arctanh", "axpy", "bitwise_and", "bitwise_or", "bitwise_xor", "cbrt", "ceil", "clip",
    "conjugate", "copysign", "cos", "cosh", "deg2rad", "degrees", "equal", "evaluate", "exp", "exp2",
    "expm1", "fabs", "floor", "floor_divide", "fmax", "fmin", "fmod", "greater",
    "greater_equal", "heaviside", "hypot", "invert", "isfinite", "isinf", "isnan", "left_shift",
    "lerp", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2",
    "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply",
    "negative", "nextafter", "not_equal", "positive", "power", "rad2deg", "radians",
    "reciprocal", "remainder", "right_shift", "rint", "sign", "signbit", "sin", "sinh", "sqrt",
    "square", "subtract", "tan", "tanh", "true_divide", "trunc", "where",
    # memory
    "get_limit", "memory_scope", "memory_stats", "memory_summary", "on_out_of_memory", "record_allocations",
    "reset_peak", "set_limit", "trim",
    # random numbers
    "random",
    # system
    "__version__", "devices", "info",
    # errors
    "CudaError", "DriverNotFoundError", "OutOfMemoryError",
]  # fmt: skip

_methods.attach()
_core._set_hooks(ufunc=_ufunc.call)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in ("fromfile", "load", "save"):  # imported at first use
            from umem import _io

            globals()[name] = value = getattr(_io, name)
            return value
        raise AttributeError(f"module 'umem' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
