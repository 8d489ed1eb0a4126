"""Memory order of new arrays: what NumPy's order='K', 'A', 'C' and 'F' mean for an array in managed memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from umem import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Array = np.ndarray[Any, Any] | _core.ndarray


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype is that of numbers. Those of strings and times may lack a size or unit."""
    return dtype.kind in "biufc"


def check_order(order: str | None, default: str = "K") -> str:
    """NumPy's order argument in upper case; None is `default`."""
    if order is None:
        return default
    if isinstance(order, str) and order.upper() in ("C", "F", "A", "K"):
        return order.upper()
    raise ValueError(f"order must be one of 'C', 'F', 'A' or 'K' (got {order!r})")


def matches(array: Array, order: str) -> bool:
    """Whether `array` already has the memory order that a copy in `order` would have to have."""
    if order == "C":
        return bool(array.flags.c_contiguous)
    if order == "F":
        return bool(array.flags.f_contiguous)
    return True


def empty(
    shape: Sequence[int],
    dtype: np.dtype[Any],
    order: str,
    like: Array | None = None,
    *,
    device: object = None,
    home: object = None,
    make: Callable[..., _core.ndarray] = _core.empty,
) -> _core.ndarray:
    """A new array whose memory order is `order`, in which 'K' and 'A' follow the array `like`.

    make: _core.empty or _core.zeros
    """
    axes = None
    if order in "KA":
        order, axes = _follow(like, len(shape), order) if like is not None else ("C", None)
    if axes is None:
        return make(shape, dtype, order, device=device, home=home)
    return _with_axes(axes, shape, dtype, device=device, home=home, make=make)


def empty_result(
    shape: Sequence[int],
    dtype: np.dtype[Any],
    order: str,
    operands: Sequence[Any],
    *,
    device: object = None,
) -> _core.ndarray:
    """A new array for what a ufunc computes of `operands`, whose memory order 'K' and 'A' follow."""
    if order in "KA":
        arrays = [np.asarray(x) if isinstance(x, (list, tuple)) else x for x in operands]
        arrays = [x for x in arrays if isinstance(x, (_core.ndarray, np.ndarray))]
        if order == "K":
            axes = _common_axes(arrays, len(shape))
            if axes != list(range(len(shape))):
                return _with_axes(axes, shape, dtype, device=device)
        order = "F" if order == "A" and all(x.flags.f_contiguous for x in arrays) else "C"
    return _core.empty(shape, dtype, order, device=device)


def _with_axes(
    axes: list[int],
    shape: Sequence[int],
    dtype: np.dtype[Any],
    *,
    make: Callable[..., _core.ndarray] = _core.empty,
    **where: object,
) -> _core.ndarray:
    """A new array that has its axes in this order in memory, the outermost first."""
    packed = make([shape[axis] for axis in axes], dtype, "C", **where)
    return _core._as_owner(packed.transpose(sorted(range(len(axes)), key=axes.__getitem__)))


def _common_axes(arrays: Sequence[Array], ndim: int) -> list[int]:
    """The axes from the outermost, as NumPy's iterator walks operands that are broadcast to `ndim` axes.

    An axis goes inside of a later one if all that are walked along both say so: C's order wins.
    """
    steps = []
    for array in arrays:
        own = zip(array.strides, array.shape, strict=True)
        own_steps = [abs(stride) if length != 1 else 0 for stride, length in own]
        steps.append([0] * (ndim - len(own_steps)) + own_steps)
    axes: list[int] = []  # from the innermost
    for axis in reversed(range(ndim)):
        at = len(axes)
        for i in reversed(range(len(axes))):
            pairs = [(own[axis], own[axes[i]]) for own in steps if own[axis] and own[axes[i]]]
            if any(outer >= inner for outer, inner in pairs):
                break
            if pairs:
                at = i
        axes.insert(at, axis)
    return axes[::-1]


def _follow(like: Array, ndim: int, order: str) -> tuple[str, list[int] | None]:
    """'C' or 'F', and for 'K' the axes from the outermost in memory if they are in another order."""
    flags = like.flags
    if like.ndim != ndim or flags.c_contiguous:
        return "C", None
    if flags.f_contiguous:
        return "F", None
    if order == "A":
        return "C", None
    # NumPy's rule for 'K' and one array: axes by falling stride, equal ones in their order.
    strides = like.strides
    axes = sorted(range(ndim), key=lambda axis: -abs(strides[axis]))
    return "C", None if axes == list(range(ndim)) else axes


def copy_of(
    array: np.ndarray[Any, Any], order: str = "K", *, device: object = None, home: object = None
) -> _core.ndarray:
    """A NumPy array's elements in managed memory."""
    result = empty(array.shape, array.dtype, order, array, device=device, home=home)
    result[...] = array
    return result


def flat_bytes(array: _core.ndarray) -> _core.ndarray | None:
    """A one-dimensional uint8 view of all bytes in memory order; None unless the array is contiguous."""
    if array.size == 0 or array.itemsize == 0:
        return None
    if array.flags.c_contiguous:
        return array.reshape(-1).view("u1")
    if array.flags.f_contiguous:
        return array.T.reshape(-1).view("u1")
    return None
