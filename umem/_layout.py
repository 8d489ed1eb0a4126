"""Memory order of new arrays: what NumPy's order='K', 'A', 'C' and 'F' mean for an array in managed memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from umem import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

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
    packed = make([shape[axis] for axis in axes], dtype, "C", device=device, home=home)
    return _core._as_owner(packed.transpose(sorted(range(len(axes)), key=axes.__getitem__)))


def _follow(like: Array, ndim: int, order: str) -> tuple[str, list[int] | None]:
    """'C' or 'F', and for 'K' the axes from the outermost in memory if they are in another order."""
    flags = like.flags
    if like.ndim != ndim or flags.c_contiguous:
        return "C", None
    if flags.f_contiguous:
        return "F", None
    if order == "A":
        return "C", None
    # NumPy's rule for 'K': axes by falling stride, equal ones in their order.
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
