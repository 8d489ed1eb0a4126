"""Reductions by kernels: sums, products, extremes, truth, means and deviations, over any axes.

Each function here answers NotImplemented when NumPy has to do it (no kernel for the dtype, `where`, …). As in
`_ufunc.py` NumPy's rules decide the dtype of a result.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from umem import _core, _layout, _ufunc
from umem._core import ndarray

if TYPE_CHECKING:
    Dtype = np.dtype[Any]

_NO_VALUE: Any = np._NoValue
#: ufuncs whose reduce has kernels
UFUNCS: dict[np.ufunc, str] = {
    np.add: "sum",
    np.multiply: "prod",
    np.minimum: "min",
    np.maximum: "max",
    np.logical_and: "all",
    np.logical_or: "any",
}
ARGUMENTS = frozenset(("axis", "dtype", "out", "keepdims", "initial", "where"))
_BOOL, _INT, _FLOAT = np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64)
_WHOLE_COUNT: Any = type(np.count_nonzero(np.ones(1)))  # int before NumPy 2.4
_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)


def reduce(
    ufunc: np.ufunc,
    a: Any,
    *,
    out: Any,
    axis: Any = 0,
    dtype: Any = None,
    keepdims: bool = False,
    initial: Any = _NO_VALUE,
    where: Any = True,
) -> Any:
    """As ufunc.reduce."""
    name = UFUNCS[ufunc]
    if not has_elements(a) or where is not True or initial is None:
        return NotImplemented
    if initial is not _NO_VALUE and name in ("all", "any"):
        return NotImplemented
    wanted = _result_dtype(name, a.dtype, dtype, out)
    if wanted is None:
        return NotImplemented
    if initial is not _NO_VALUE:
        try:
            initial = wanted.type(initial)
        except (TypeError, ValueError, OverflowError):
            return NotImplemented  # NumPy says what is wrong
        if np.ndim(initial) != 0:
            return NotImplemented
    axes = normalize_axes(axis, a.shape)
    shape = _shape_of_result(a.shape, axes, keepdims)
    if not axes or not _is_target(out, a, shape, wanted):
        return NotImplemented
    name, a, own = _loop(name, a, wanted)
    target = _run(name, a, axes, shape, own, out if own == wanted else None)
    if own != wanted:
        converted = _core.empty(shape, wanted, device=a.device) if out is None else out
        _core.cast(target, converted)
        target = converted
    if initial is not _NO_VALUE:
        if shape == () and out is None:
            return wanted.type(ufunc(target[()], initial))
        ufunc(target, initial, out=(target,))
    return target[()] if shape == () and out is None else target


def arg_reduce(name: str, a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    """As ndarray.argmin and argmax."""
    if not has_elements(a) or not (axis is None or type(axis) is int):
        return NotImplemented
    axes = normalize_axes(axis, a.shape)
    shape = _shape_of_result(a.shape, axes, bool(keepdims))
    if not _is_target(out, a, shape, _INT):
        return NotImplemented
    target = _run(name, a, axes, shape, _INT, out)
    return target[()] if shape == () and out is None else target


def count_nonzero(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    """As numpy.count_nonzero."""
    if not has_elements(a) or not is_plain_axis(axis):
        return NotImplemented
    axes = normalize_axes(axis, a.shape)
    shape = _shape_of_result(a.shape, axes, bool(keepdims))
    if not axes:
        return NotImplemented
    target = _run("count", a, axes, shape, _INT, None)
    if shape != ():
        return target
    return _WHOLE_COUNT(target[()]) if axis is None else target[()]


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False
) -> Any:
    """As ndarray.mean."""
    if not has_elements(a) or dtype is not None or out is not None or not is_plain_axis(axis):
        return NotImplemented
    axes = normalize_axes(axis, a.shape)
    if not axes:
        return NotImplemented
    shape = _shape_of_result(a.shape, axes, bool(keepdims))
    count = _count(a.shape, axes)
    wanted = _FLOAT if a.dtype.kind in "biu" else a.dtype
    return _quotient(_sum_for_mean(a, axes, shape), count, wanted)


def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    *,
    mean: Any = _NO_VALUE,
    root: bool = False,
) -> Any:
    """As ndarray.var, or std if `root`: the mean, then the sum of the squared distances in a second pass."""
    if not has_elements(a) or dtype is not None or out is not None or not is_plain_axis(axis):
        return NotImplemented
    axes = normalize_axes(axis, a.shape)
    count = _count(a.shape, axes)
    if not axes or type(ddof) not in (int, float) or not ddof < count:
        return NotImplemented
    kept = _shape_of_result(a.shape, axes, True)
    computed = _FLOAT if a.dtype.kind in "biu" else _SINGLE if a.dtype == _HALF else a.dtype
    if mean is _NO_VALUE or mean is None:
        middle = _sum_for_mean(a, axes, kept)
        _core.true_divide(middle, count, out=middle)
    elif type(mean) is ndarray and (mean.shape, mean.dtype) == (kept, computed):
        middle = mean
        if not _ufunc._has_kernels(mean):
            return NotImplemented
    else:
        return NotImplemented
    wanted = _real(_FLOAT if a.dtype.kind in "biu" else a.dtype)
    shape = _shape_of_result(a.shape, axes, bool(keepdims))
    total = _squares(a, axes, shape, middle)
    return _quotient(total, count - ddof, wanted, root)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    """As numpy.linalg.norm for the Euclidean norm of vectors, and of all elements: one pass."""
    if not has_elements(x) or x.dtype.kind not in "fc" or x.dtype == _HALF:
        return NotImplemented
    if not (ord is None or (ord == 2 and type(ord) is int and (x.ndim == 1 or type(axis) is int))):
        return NotImplemented
    if not (axis is None or type(axis) is int):
        return NotImplemented
    axes = normalize_axes(axis, x.shape)
    zero = _core.empty(_shape_of_result(x.shape, axes, True), x.dtype, device=x.device)
    zero.fill(0)
    shape = _shape_of_result(x.shape, axes, bool(keepdims))
    return _quotient(_squares(x, axes, shape, zero), 1, _real(x.dtype), True)


def dot(a: Any, b: Any, conjugate: bool = False) -> Any:
    """The sum of the products of two vectors; the products are an array of their own for a while."""
    for x in (a, b):
        if not has_elements(x) or x.ndim != 1 or x.dtype == _BOOL:
            return NotImplemented
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return NotImplemented
    left = _core.conjugate(a) if conjugate and a.dtype.kind == "c" else a
    return np.add.reduce(_core.multiply(left, b), dtype=a.dtype)


# --- what the kernels need to be told ---------------------------------------------------------------------


def has_elements(a: Any) -> bool:
    """Whether kernels can reduce it at all; without elements NumPy knows what to say."""
    return type(a) is ndarray and a.ndim > 0 and a.size > 0 and _ufunc._has_kernels(a)


def is_plain_axis(axis: Any) -> bool:
    """Whether axis is of a usual type; what NumPy says of others, NumPy should say."""
    if isinstance(axis, tuple):
        return all(isinstance(i, int) and not isinstance(i, bool) for i in axis)
    return axis is None or (isinstance(axis, int) and not isinstance(axis, bool))


def normalize_axes(axis: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes to reduce, in ascending order; raises NumPy's error when they are not such."""
    if axis is None:
        return tuple(range(len(shape)))
    try:
        given = [_axis_number(i) for i in (axis if isinstance(axis, tuple) else (axis,))]
        return tuple(sorted(normalize_axis_tuple(given, len(shape))))
    except (TypeError, ValueError):
        np.add.reduce(_ufunc._stand_in(shape), axis=axis)
        raise


def _axis_number(axis: Any) -> int:
    if isinstance(axis, (bool, np.bool)):
        raise TypeError("axis must be an integer or a tuple of integers, not bool")
    return index(axis)


def _shape_of_result(
    shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool
) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keepdims or i not in axes)


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    count = 1
    for i in axes:
        count *= shape[i]
    return count


def _real(dtype: Dtype) -> Dtype:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _is_target(out: Any, a: ndarray, shape: tuple[int, ...], dtype: Dtype) -> bool:
    """Whether a kernel can write to `out`, if it is given."""
    return out is None or (
        isinstance(out, ndarray)
        and (out.shape, out.dtype) == (shape, dtype)
        and out.flags.writeable
        and _ufunc._has_kernels(out)
        and not _ufunc._repeats(out)
        and not _ufunc._overlap(a, out)
    )


def _result_dtype(name: str, own: Dtype, given: Any, out: Any) -> Dtype | None:
    """The dtype that NumPy gives the reduction, if kernels can."""
    if given is None and out is not None and name in ("sum", "prod"):
        given = out.dtype
    dtype: Dtype | None = None if given is None else np.dtype(given)
    if name in ("any", "all"):
        return _BOOL if dtype is None or dtype == _BOOL else None
    if name in ("min", "max"):
        return own if dtype is None or dtype == own else None
    if dtype is None:
        return _wide(own) if own.kind in "biu" else own
    if own.kind in "biu" and dtype.kind in "iu":
        return dtype if dtype in _core.kernel_dtypes else None  # modulo its size, as NumPy's
    if dtype.kind in "fc" and dtype in _core.kernel_dtypes and np.can_cast(own, dtype, "safe"):
        return dtype
    return None


def _wide(dtype: Dtype) -> Dtype:
    return np.dtype(np.uint64) if dtype.kind == "u" else _INT


def _loop(name: str, a: ndarray, wanted: Dtype) -> tuple[str, ndarray, Dtype]:
    """The kernel for a result of dtype `wanted`: its name, the array as it needs it, the dtype it gives."""
    if name not in ("sum", "prod"):
        return name, a, wanted
    if wanted.kind in "fc":
        if name == "prod" and wanted == _HALF:
            return name, _ufunc._kernel_operand(a, _SINGLE, a.device), wanted
        return name, _ufunc._kernel_operand(a, wanted, a.device), wanted
    if name == "prod" and a.dtype == _BOOL:
        return "all", a, _BOOL
    if name == "prod":
        a = _ufunc._kernel_operand(a, _wide(a.dtype), a.device)
    return name, a, _wide(a.dtype)


def _run(
    name: str,
    a: ndarray,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: Dtype,
    out: ndarray | None = None,
) -> ndarray:
    target = _core.empty(shape, dtype, device=a.device) if out is None else out
    _core.reduce_into(name, a, axes, target)
    return target


def _sum_for_mean(a: ndarray, axes: tuple[int, ...], shape: tuple[int, ...]) -> ndarray:
    """The sum in the dtype that NumPy computes the mean in; of float16 in float32."""
    if a.dtype.kind not in "biu":
        return _run("sum", a, axes, shape, _SINGLE if a.dtype == _HALF else a.dtype)
    if a.itemsize == 8 or a.size > 1 << 31:  # the sum may not fit 64 bits
        return _run("sum", _ufunc._kernel_operand(a, _FLOAT, a.device), axes, shape, _FLOAT)
    return _converted(_run("sum", a, axes, shape, _wide(a.dtype)), _FLOAT)


def _squares(a: ndarray, axes: tuple[int, ...], shape: tuple[int, ...], mean: ndarray) -> ndarray:
    """The sum of abs(a - mean)**2; of float16 as float32."""
    if a.dtype.kind in "biu":
        a = _ufunc._kernel_operand(a, _FLOAT, a.device)
    total = _core.empty(shape, _real(mean.dtype), device=a.device)
    _core.reduce_into("squares", a, axes, total, mean)
    return total


def _converted(a: ndarray, dtype: Dtype) -> ndarray:
    if a.dtype == dtype:
        return a
    result = _layout.empty(a.shape, dtype, "K", a, device=a.device)
    _core.cast(a, result)
    return result


def _quotient(total: ndarray, count: Any, dtype: Dtype, root: bool = False) -> Any:
    """total / count, or its square root, as NumPy returns it: a scalar when all axes are gone."""
    if total.shape == ():
        value = total[()]
        value = value.dtype.type(value / count)
        return dtype.type(np.sqrt(value) if root else value)
    if count != 1:
        _core.true_divide(total, count, out=total)
    if root:
        _core.sqrt(total, out=total)
    return _converted(total, dtype)
