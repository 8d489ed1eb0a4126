"""The general path behind every computation: NumPy's ufunc protocol and the functions umem.add, ….

NumPy decides types and rules; what differs is who computes, and where the result is.

* On the CUDA backend a loop that has a kernel runs there. Operands of another type are cast by
  kernels first, operands outside managed memory are copied into it first.
* Everything else NumPy computes on the same memory (`_host.py` says how it gets there), and results
  are put in managed memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from umem import _core, _host, _layout, _reduce
from umem._core import ndarray
from umem._creation import asarray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Dtype = np.dtype[Any]
    Resolver = Callable[[tuple[Any, ...]], Sequence[Dtype]]

_NUMPY_HANDLER = np.ndarray.__array_ufunc__
#: operations with kernels that NumPy has no ufunc for
FUSED = ("addcmul", "axpy", "lerp")
_CLIP = np._core.umath.clip  # type: ignore[attr-defined]  # np.clip is a function around it
_UFUNCS: dict[str, np.ufunc] = {
    name: _CLIP if name == "clip" else getattr(np, name) for name in _core.ops if name not in FUSED
}
_KERNELS = {ufunc: name for name, ufunc in _UFUNCS.items()}
_DIRECT = frozenset(_KERNELS)  # umem.<name> does what the ufunc does
_KERNELS[np.float_power] = "power"
# Arguments of a ufunc call that the kernel path understands; any other sends the call to NumPy.
_KERNEL_ARGUMENTS = frozenset(("out", "where", "dtype", "casting", "order", "subok"))
_LOOPS = {name: frozenset(_core.op_loops(name)) for name in _core.ops}
_BOOL = np.dtype(bool)
_BIG = 1 << 16  # bytes of an operand from which on a result is not copied
# Operands NumPy takes as they are. Other array types are converted before it sees them, since some
# would make the result one of theirs.
_AS_THEY_ARE = (
    ndarray,
    np.ndarray,
    np.generic,
    int,
    float,
    complex,
    str,
    bytes,
    list,
    tuple,
    type(None),
)


# Types of most operands, to save looking further.
_COMMON = frozenset((ndarray, np.ndarray, int, float, np.float64, np.float32, np.int64, np.int32))
_SIGNED = frozenset(np.dtype(t) for t in ("i1", "i2", "i4", "i8"))


def call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `umem.<name>(*args, **kwargs)` does when the C code's fast path does not fit."""
    if name in FUSED:
        if len(args) + len(kwargs) not in (3, 4) or len(args) < 3:
            raise TypeError(
                f"{name}() takes 3 positional arguments and out, but {len(args)} were given"
            )
        if kwargs.keys() - {"out"}:
            raise TypeError(f"{name}() got an unexpected keyword argument {next(iter(kwargs))!r}")
        return _fused(name, *args, **kwargs)
    ufunc = _UFUNCS[name]
    if not ufunc.nin <= len(args) <= ufunc.nargs or (len(args) > ufunc.nin and "out" in kwargs):
        return ufunc(*args, **kwargs)  # raises TypeError
    out = args[ufunc.nin :] or kwargs.pop("out", ())
    if not isinstance(out, tuple):
        out = (out,)
    if len(out) > ufunc.nout:
        return ufunc(*args[: ufunc.nin], out=out)  # raises ValueError
    if any(array is not None for array in out):
        kwargs["out"] = out
    result = array_ufunc(None, ufunc, "__call__", *args[: ufunc.nin], **kwargs)
    if result is NotImplemented:  # another library's array knows how
        return ufunc(*args[: ufunc.nin], **kwargs)
    return result


def array_ufunc(self: Any, ufunc: np.ufunc, method: str, /, *inputs: Any, **kwargs: Any) -> Any:
    """NumPy's __array_ufunc__ (NEP 13): `out` is a tuple when it is given."""
    out: tuple[Any, ...] = kwargs.pop("out", ())
    if not _COMMON.issuperset(map(type, inputs)):
        if any(map(_is_foreign, inputs)):
            return NotImplemented
        inputs = tuple(map(_operand, inputs))
    if any(map(_is_foreign, out)):
        return NotImplemented
    if method == "outer" and len(inputs) == 2 and not kwargs.keys() & {"where"}:
        inputs = _spread(*inputs)
        method = "__call__"
    if _core.has_kernels():
        result: Any = NotImplemented
        if method == "__call__" and ufunc in _KERNELS and kwargs.keys() <= _KERNEL_ARGUMENTS:
            if self is not None and not kwargs and ufunc in _DIRECT:
                return getattr(_core, _KERNELS[ufunc])(*inputs, *out)  # comes back if it cannot
            result = _call_kernel(ufunc, inputs, out, **kwargs)
        elif method == "__call__" and ufunc is np.divmod and not kwargs and not out:
            result = _divmod_kernels(inputs)
        elif method == "reduce" and ufunc in _reduce.UFUNCS and kwargs.keys() <= _reduce.ARGUMENTS:
            result = _reduce.reduce(ufunc, *inputs, out=out[0] if out else None, **kwargs)
        if result is not NotImplemented:
            return result
    if "where" in kwargs:
        kwargs["where"] = _to_host(kwargs["where"])
    if method == "at":
        target, *others = inputs
        ufunc.at(_to_host_writable(target), *tuple(map(_to_host_nested, others)), **kwargs)
        return None
    if method == "__call__" and not out:
        out = _results_to_fill(ufunc, inputs, **kwargs)
    if out:
        kwargs["out"] = tuple(map(_to_host_writable, out))
    # A tuple: CPython 3.11 leaks keyword arguments when an iterator behind * raises.
    results = getattr(ufunc, method)(*tuple(map(_to_host_nested, inputs)), **kwargs)
    if not isinstance(results, tuple):
        return _returned(results, out[0] if out else None)
    given = out or (None,) * len(results)
    return tuple(map(_returned, results, given))


# --- operands ------------------------------------------------------------------------------------------


def _is_foreign(x: Any) -> bool:
    """Whether x is of a type with rules of its own for ufuncs."""
    handler = getattr(type(x), "__array_ufunc__", None)
    return handler is not None and handler is not _NUMPY_HANDLER and not isinstance(x, ndarray)


def _operand(x: Any) -> Any:
    """Arrays of other libraries as umem's or NumPy's; anything else as it is."""
    if isinstance(x, _AS_THEY_ARE):
        return x
    if hasattr(x, "__cuda_array_interface__"):
        return asarray(x)
    if hasattr(x, "__array__") or hasattr(x, "__array_interface__"):
        return np.asarray(x)
    if hasattr(x, "__dlpack__"):
        return asarray(x)
    return x


def _to_host(x: Any) -> Any:
    return _host.values(x) if isinstance(x, ndarray) else x


def _keeps_order(x: Any) -> bool:
    """Whether NumPy reads the array in the memory order that it has."""
    return not isinstance(x, ndarray) or _host.is_packed(x) or not _core.has_kernels()


def _to_host_nested(x: Any) -> Any:
    """Also inside tuples, as indices of ufunc.at and reduceat may be."""
    return tuple(map(_to_host, x)) if isinstance(x, tuple) else _to_host(x)


def _to_host_writable(x: Any) -> Any:
    return _host.view(x) if isinstance(x, ndarray) else x


def _returned(result: Any, given: Any) -> Any:
    """What the caller gets: the array given as out, else the result in managed memory."""
    if given is not None:
        return given
    return _host.managed(result) if isinstance(result, np.ndarray) else result


def _spread(a: Any, b: Any) -> tuple[Any, Any]:
    """Operands of ufunc.outer as operands of a call: a's axes before b's. To it numbers are arrays."""
    a, b = (x if isinstance(x, (ndarray, np.ndarray)) else np.asarray(x) for x in (a, b))
    return a.reshape(a.shape + (1,) * np.ndim(b)), b


def _weak_type(x: Any) -> Any:
    """What decides x's part in the result type: int, float or complex for Python numbers, else the dtype (NEP 50)."""
    if isinstance(x, (ndarray, np.ndarray, np.generic)):
        return x.dtype
    if isinstance(x, bool):
        return _BOOL
    for kind in (int, float, complex):
        if isinstance(x, kind):
            return kind
    return np.asarray(x).dtype


def _loop(ufunc: np.ufunc, types: tuple[Any, ...], dtype: Any, casting: Any) -> Sequence[Dtype]:
    """dtypes of the loop that NumPy would run. The callers leave "equiv" to NumPy's own call: with a Python
    number it crashes resolve_dtypes (NumPy 2.4).
    """
    if dtype is None:
        return ufunc.resolve_dtypes(types, casting=casting)
    signature = (None,) * ufunc.nin + (np.dtype(dtype),) * ufunc.nout
    return ufunc.resolve_dtypes(types, signature=signature, casting=casting)


# --- NumPy computes ---------------------------------------------------------------------------------------


def _results_to_fill(
    ufunc: np.ufunc,
    inputs: tuple[Any, ...],
    *,
    where: Any = True,
    dtype: Any = None,
    casting: Any = "same_kind",
    order: str = "K",
    subok: bool = True,
    **others: Any,
) -> tuple[ndarray, ...]:
    """Arrays for large results, so that NumPy writes them in place; () where it should allocate them itself.

    It should when they are small and in the order of what it reads, or when only the call can tell what they
    are. An error is left to the call, whose message is better.
    """
    arrays = [x for x in inputs if isinstance(x, (ndarray, np.ndarray))]
    if others or casting == "equiv" or ufunc.signature is not None:
        return ()
    if max((x.nbytes for x in arrays), default=0) < _BIG and all(map(_keeps_order, arrays)):
        return ()
    if any(type(x) not in (ndarray, np.ndarray) for x in arrays):
        return ()  # a subclass makes its own results
    try:
        shape = np.broadcast_shapes(*map(np.shape, inputs), np.shape(where))
        types = (*map(_weak_type, inputs), *(None,) * ufunc.nout)
        loop = _loop(ufunc, types, dtype, casting)
    except (TypeError, ValueError):
        return ()
    dtypes = loop[ufunc.nin :]
    if shape == () or any(dtype is None or dtype.hasobject for dtype in dtypes):
        return ()
    order = _layout.check_order(order)
    device = _device_of(inputs)
    operands = (*inputs, where)
    return tuple(
        _layout.empty_result(shape, dtype, order, operands, device=device) for dtype in dtypes
    )


# --- kernels compute ------------------------------------------------------------------------------------------


def _call_kernel(
    ufunc: np.ufunc,
    inputs: tuple[Any, ...],
    out: tuple[Any, ...],
    *,
    where: Any = True,
    dtype: Any = None,
    casting: Any = "same_kind",
    order: str = "K",
    subok: bool = True,
) -> Any:
    """A call of a ufunc that has kernels; NotImplemented when NumPy has to do it."""
    if casting == "equiv":
        return NotImplemented

    def resolve(types: tuple[Any, ...]) -> Sequence[Dtype]:
        return _loop(ufunc, types, dtype, casting)

    target = out[0] if out else None
    if where is True:
        return _elementwise(_KERNELS[ufunc], resolve, inputs, target, order, ufunc)
    return _masked(_KERNELS[ufunc], resolve, inputs, target, order, ufunc, where)


def _masked(
    name: str,
    resolve: Resolver,
    inputs: tuple[Any, ...],
    out: Any,
    order: str,
    ufunc: np.ufunc,
    where: Any,
) -> Any:
    """A call with `where`: everything is computed, and what is wanted is copied."""
    if not isinstance(where, (ndarray, np.ndarray)) or where.dtype != _BOOL:
        return NotImplemented
    shapes = [*map(np.shape, inputs), where.shape]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        return NotImplemented
    if shape == () or not all(map(_kernel_can_take, inputs)):
        return NotImplemented
    if out is not None:
        if not (isinstance(out, ndarray) and _has_kernels(out) and out.flags.writeable):
            return NotImplemented
        if out.shape != shape or _repeats(out):
            return NotImplemented
        resolve_inputs = resolve

        def resolve(types: tuple[Any, ...]) -> Sequence[Dtype]:
            return resolve_inputs((*types[:-1], out.dtype))

    value = _elementwise(name, resolve, inputs, None, order, ufunc)
    if value is NotImplemented:
        return NotImplemented
    device = value.device if out is None else out.device
    if out is None:
        order = _layout.check_order(order)
        out = _layout.empty_result(shape, value.dtype, order, (*inputs, where), device=device)
    mask = _kernel_operand(where, _BOOL, device)
    if isinstance(mask, ndarray) and _overlap(mask, out):
        mask = mask.copy()
    elif not isinstance(mask, ndarray):  # a single bool
        mask = asarray(where)
    if value.dtype != out.dtype:
        converted = _layout.empty(value.shape, out.dtype, "K", value, device=device)
        _core.cast(value, converted)
        value = converted
    _core.run_where(mask, value, out, out)
    return out


def _divmod_kernels(inputs: tuple[Any, ...]) -> Any:
    quotient = _call_kernel(np.floor_divide, inputs, ())
    if quotient is NotImplemented:
        return NotImplemented
    return quotient, _call_kernel(np.remainder, inputs, ())


def _elementwise(
    name: str,
    resolve: Resolver,
    inputs: tuple[Any, ...],
    out: Any,
    order: str,
    in_numpy: Callable[..., Any],
) -> Any:
    """Runs a kernel; NotImplemented when there is none for these operands.

    resolve   (types of the inputs…, type of out or None) → dtypes of the loop, as ufunc.resolve_dtypes
    in_numpy  the operation in NumPy, whose error is raised when the shapes do not fit
    """
    if not all(map(_kernel_can_take, inputs)) or all(np.ndim(x) == 0 for x in inputs):
        return NotImplemented
    if out is not None and not (isinstance(out, ndarray) and _has_kernels(out)):
        return NotImplemented
    if out is not None and not out.flags.writeable:
        raise ValueError("output array is read-only")
    if out is not None and _repeats(out):
        return NotImplemented
    types = tuple(map(_weak_type, inputs))
    *input_dtypes, result_dtype = resolve((*types, None if out is None else out.dtype))
    dtype = input_dtypes[0]
    if any(other != dtype for other in input_dtypes) or (dtype, result_dtype) not in _LOOPS[name]:
        return NotImplemented
    if dtype.kind in "iu" and not all(_fits(x, dtype) for x in inputs):
        return NotImplemented  # NumPy raises, or compares all the same
    if name == "power" and dtype in _SIGNED and not _is_power(inputs[1]):
        return NotImplemented
    shape = _common_shape(inputs, out, in_numpy)
    device = _device_of(inputs) if out is None else out.device
    operands = tuple(_kernel_operand(x, dtype, device) for x in inputs)
    if out is None:
        order = _layout.check_order(order)
        out = target = _layout.empty_result(shape, result_dtype, order, inputs, device=device)
    elif out.dtype != result_dtype or any(_overlap(x, out) for x in operands):
        target = _core.empty(shape, result_dtype, device=device)
    else:
        target = out
    _core.run(name, operands, target)
    if target is not out:
        _core.cast(target, out)
    return out


def _has_kernels(array: Any) -> bool:
    """Whether kernels know the dtype and can reach the elements, which lie on multiples of their size."""
    if array.dtype not in _core.kernel_dtypes:
        return False
    if array.dtype.kind != "c":
        return bool(array.flags.aligned)
    bits = _address(array)
    for step, length in zip(array.strides, array.shape, strict=True):
        bits |= step if length > 1 else 0
    return bool(bits % array.itemsize == 0)


def _address(array: Any) -> int:
    address: int = _core.extent(array)[0] if isinstance(array, ndarray) else array.ctypes.data
    return address


def _kernel_can_take(x: Any) -> bool:
    """Arrays of a type with kernels; any single number (its value decides nothing but itself)."""
    if type(x) in (ndarray, np.ndarray):
        return _has_kernels(x) or (x.ndim == 0 and x.dtype.kind in "biufc")
    if isinstance(x, np.generic):
        return x.dtype.kind in "biufc"
    return isinstance(x, (int, float, complex))


def _fits(x: Any, dtype: Dtype) -> bool:
    """Whether a Python integer can be of the loop's integer type."""
    if not isinstance(x, int):
        return True
    limits = np.iinfo(dtype)
    return bool(limits.min <= x <= limits.max)


def _is_power(x: Any) -> bool:
    """Whether a power of integers can be computed without a look at arrays: NumPy raises if it is negative."""
    if isinstance(x, (ndarray, np.ndarray)):
        return x.dtype.kind in "bu"
    return bool(x >= 0)


def _device_of(inputs: tuple[Any, ...]) -> str | None:
    """Device of the first operand in managed memory, where the others and the result join it."""
    return next((x.device for x in inputs if isinstance(x, ndarray)), None)


def _kernel_operand(x: Any, dtype: Dtype, device: str | None) -> Any:
    """x for a loop of `dtype`: an array in managed memory, or a NumPy scalar."""
    if not isinstance(x, (ndarray, np.ndarray)):
        return dtype.type(x)
    if x.ndim == 0 and (isinstance(x, np.ndarray) or not _has_kernels(x)):
        return dtype.type(x[()])
    if isinstance(x, np.ndarray):
        shared = _core.alias(x)
        x = _layout.copy_of(x, device=device) if shared is None else shared
    if x.dtype == dtype:
        return x
    converted = _layout.empty(x.shape, dtype, "K", x, device=x.device)
    _core.cast(x, converted)
    return converted


def _common_shape(
    inputs: tuple[Any, ...], out: Any, in_numpy: Callable[..., Any]
) -> tuple[int, ...]:
    """The shape of the result; raises NumPy's error when the operands do not fit."""
    shapes: list[tuple[int, ...]] = [np.shape(x) for x in inputs]
    if out is not None:
        shapes.append(out.shape)
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    try:
        shape: tuple[int, ...] = np.broadcast_shapes(*shapes)
    except ValueError:
        pass
    else:
        if out is None or shape == out.shape:
            return shape
    stand_ins = [_stand_in(shape) for shape in shapes]
    in_numpy(*stand_ins[: len(inputs)], out=None if out is None else stand_ins[-1])
    raise ValueError(f"operands could not be broadcast together with shapes {shapes}")


def _stand_in(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A writable array of a shape that takes no memory."""
    return np.lib.stride_tricks.as_strided(np.zeros(1), shape, (0,) * len(shape))


def _repeats(array: ndarray) -> bool:
    """Whether elements of the array share memory with others of its own, so that the order of writing matters."""
    reach = array.itemsize
    steps = sorted(
        (abs(step), n) for step, n in zip(array.strides, array.shape, strict=True) if n > 1
    )
    for step, length in steps:
        if step < reach:
            return array.size > 0
        reach += (length - 1) * step
    return False


def _overlap(x: Any, out: ndarray) -> bool:
    """Whether writing `out` element by element could change elements of x that are still to be read."""
    if x is out or not isinstance(x, ndarray):
        return False
    start, size = _core.extent(x)
    out_start, out_size = _core.extent(out)
    if start + size <= out_start or out_start + out_size <= start:
        return False
    return (start, x.shape, x.strides, x.dtype) != (out_start, out.shape, out.strides, out.dtype)


# --- clip and where ----------------------------------------------------------------------------------------------


def where(condition: Any, x: Any, y: Any, /, out: Any = None) -> Any:
    """Elements of `x` where `condition` is True, of `y` elsewhere, as numpy.where.

    Parameters
    ----------
    condition, x, y : array_like
        They broadcast together. The result has the dtype that NumPy gives `x` and `y` together.
    out : umem.ndarray, optional
        Array of the broadcast shape that receives the result and is returned.

    Returns
    -------
    umem.ndarray
        `out`, or a new array.
    """
    condition, x, y = map(_operand, (condition, x, y))
    result = _where_kernel(condition, x, y, out)
    if result is not NotImplemented:
        return result
    values = np.where(*map(_to_host, (condition, x, y)))
    if out is None:
        return _host.managed(np.asarray(values))
    np.copyto(_to_host_writable(out), values, "same_kind")
    return out


def _where_kernel(condition: Any, x: Any, y: Any, out: Any) -> Any:
    if not _core.has_kernels() or not any(isinstance(v, ndarray) for v in (condition, x, y)):
        return NotImplemented
    if not all(map(_kernel_can_take, (condition, x, y))):
        return NotImplemented
    types = map(_weak_type, (x, y))
    dtype = np.result_type(*(t(0) if isinstance(t, type) else t for t in types))
    if dtype.kind in "iu" and not (_fits(x, dtype) and _fits(y, dtype)):
        return NotImplemented
    shape = np.broadcast_shapes(*map(np.shape, (condition, x, y)))
    if dtype not in _core.kernel_dtypes or shape == ():
        return NotImplemented
    device = _device_of((condition, x, y)) if out is None else getattr(out, "device", None)
    if out is not None and not (
        isinstance(out, ndarray)
        and (out.shape, out.dtype) == (shape, dtype)
        and out.flags.writeable
        and _has_kernels(out)
        and not _repeats(out)
    ):
        return NotImplemented
    mask = _kernel_operand(condition, _BOOL, device)
    x_values, y_values = (_kernel_operand(v, dtype, device) for v in (x, y))
    if out is None:
        target = _layout.empty_result(shape, dtype, "K", (condition, x, y), device=device)
    elif any(_overlap(v, out) for v in (mask, x_values, y_values)):
        target = _core.empty(shape, dtype, device=device)
    else:
        target = out
    _core.run_where(mask, x_values, y_values, target)
    if out is not None and target is not out:
        _core.cast(target, out)
        return out
    return target


def clip(a: ndarray, low: Any, high: Any, out: Any = None) -> Any:
    """As ndarray.clip; None for no bound."""
    if a.dtype.kind in "iu":  # a bound that no element can pass
        limits = np.iinfo(a.dtype)
        low = None if type(low) is int and low <= limits.min else low
        high = None if type(high) is int and high >= limits.max else high
    if low is None:
        return np.positive(a, out=out) if high is None else np.minimum(a, high, out=out)
    return np.maximum(a, low, out=out) if high is None else _CLIP(a, low, high, out=out)


# --- fused forms -----------------------------------------------------------------------------------------------


def _fused(name: str, a: Any, b: Any, c: Any, /, out: Any = None) -> Any:
    """umem.axpy, addcmul or lerp, computed in the type that NumPy gives the three operands together.

    A kernel rounds once (fused multiply-add), NumPy on the host twice.
    """
    if isinstance(out, tuple):
        (out,) = out
    if out is not None and not isinstance(out, (ndarray, np.ndarray)):
        raise TypeError(f"out must be an array, not {type(out).__name__!r}")
    if out is not None and not out.flags.writeable:
        raise ValueError("output array is read-only")
    in_numpy, types = _IN_NUMPY[name], _lerp_types if name == "lerp" else _fused_types
    operands: tuple[Any, ...] = tuple(map(_operand, (a, b, c)))
    if _core.has_kernels():
        result = _elementwise(name, types, operands, out, "K", in_numpy)
        if result is not NotImplemented:
            return result
    shape = _common_shape(operands, out, in_numpy)
    given: Any = out
    if out is None and shape != ():
        dtype = types((*map(_weak_type, operands), None))[0]
        if not dtype.hasobject:
            given = _layout.empty_result(shape, dtype, "K", operands, device=_device_of(operands))
    values = in_numpy(*tuple(map(_to_host, operands)), out=_to_host_writable(given))
    return _returned(values, given)


def _fused_types(types: tuple[Any, ...]) -> Sequence[Dtype]:
    """As ufunc.resolve_dtypes: types of the three operands, and of out or None."""
    *inputs, out = types
    dtype = np.result_type(*(t(0) if isinstance(t, type) else t for t in inputs))
    return np.add.resolve_dtypes((dtype, dtype, out), signature=(dtype, dtype, dtype))[:1] * 4


def _lerp_types(types: tuple[Any, ...]) -> Sequence[Dtype]:
    """Likewise, with integers as float64, as in a division."""
    *inputs, out = types
    dtype = np.result_type(*(t(0) if isinstance(t, type) else t for t in inputs))
    dtype = np.true_divide.resolve_dtypes((dtype, dtype, None))[0]
    return np.add.resolve_dtypes((dtype, dtype, out), signature=(dtype, dtype, dtype))[:1] * 4


def _axpy_in_numpy(alpha: Any, x: Any, y: Any, out: Any = None) -> Any:
    dtype = _fused_types((*map(_weak_type, (alpha, x, y)), None if out is None else out.dtype))[0]
    if out is not None and out.dtype == dtype and not np.may_share_memory(out, y):
        product = np.multiply(alpha, x, out=out, dtype=dtype)
    else:
        product = np.multiply(alpha, x, dtype=dtype)
    return np.add(product, y, out=out, dtype=dtype)


def _addcmul_in_numpy(x: Any, a: Any, b: Any, out: Any = None) -> Any:
    return _axpy_in_numpy(a, b, x, out)


def _lerp_in_numpy(a: Any, b: Any, t: Any, out: Any = None) -> Any:
    dtype = _lerp_types((*map(_weak_type, (a, b, t)), None if out is None else out.dtype))[0]
    step = np.subtract(b, a, dtype=dtype)
    near, far = np.less(t, 0.5), np.subtract(t, 1, dtype=dtype)
    weight = np.where(near, t, far).astype(dtype)
    return np.add(np.where(near, a, b), weight * step, out=out, dtype=dtype)


_IN_NUMPY: dict[str, Callable[..., Any]] = {
    "addcmul": _addcmul_in_numpy,
    "axpy": _axpy_in_numpy,
    "lerp": _lerp_in_numpy,
}
