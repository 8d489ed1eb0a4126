"""Making arrays: NumPy's functions, with their arguments and defaults, in managed memory.

Each takes `device=`, the GPU that owns the memory, and `home=`, where its pages prefer to live
(None: wherever they are used). On a machine with no GPU both are accepted and have no effect.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from umem import _core, _layout
from umem._core import empty, from_dlpack, ndarray, zeros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, DTypeLike

    Shape = int | Sequence[int]
    AnyArray = np.ndarray[Any, Any]

__all__ = [
    "arange", "array", "asarray", "copy", "empty", "empty_like", "from_dlpack", "full",
    "full_like", "linspace", "ones", "ones_like", "zeros", "zeros_like",
]  # fmt: skip


# --- filled arrays ---------------------------------------------------------------------------------


def ones(
    shape: Shape,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    device: object = None,
    home: object = None,
) -> ndarray:
    """A new array of ones (float64 unless dtype is given), as np.ones."""
    result = empty(shape, float if dtype is None else dtype, order, device=device, home=home)
    return _fill_with_ones(result)


def _fill_with_ones(result: ndarray) -> ndarray:
    if result.dtype.kind == "V":
        result[...] = np.ones((), int)  # what is one in raw bytes or in a record, only a cast knows
    else:
        result.fill(1)
    return result


def full(
    shape: Shape,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    device: object = None,
    home: object = None,
) -> ndarray:
    """A new array filled with a value (or a value that broadcasts), as np.full."""
    if dtype is None:
        dtype = (
            fill_value.dtype if isinstance(fill_value, ndarray) else np.asarray(fill_value).dtype
        )
    result = empty(shape, dtype, order, device=device, home=home)
    result[...] = fill_value
    return result


def _like(
    prototype: Any,
    dtype: DTypeLike | None,
    order: str | None,
    shape: Any,
    device: object,
    home: object,
    make: Any = empty,
) -> ndarray:
    """Made by `make`, shaped and laid out like `prototype`, and in the same place if that is umem's."""
    if isinstance(prototype, ndarray):
        device = prototype.device if device is None else device
        home = prototype.home if home is None else home
    elif not isinstance(prototype, np.ndarray):
        prototype = np.asarray(prototype)
    if shape is None:
        shape = prototype.shape
    elif not isinstance(shape, (tuple, list)):
        shape = _as_shape(shape)
    wanted = prototype.dtype if dtype is None else np.dtype(dtype)
    order = _layout.check_order(order)
    return _layout.empty(shape, wanted, order, prototype, device=device, home=home, make=make)


def _as_shape(shape: Any) -> tuple[int, ...]:
    try:
        return (operator.index(shape),)
    except TypeError:
        return tuple(shape)


def empty_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: object = None,
    home: object = None,
) -> ndarray:
    """A new, uninitialised array of the shape, dtype and memory order of another, as np.empty_like.

    A umem prototype also gives its device and home. `subok` is accepted for NumPy's sake: the result is
    a umem.ndarray in any case.
    """
    return _like(prototype, dtype, order, shape, device, home)


def zeros_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: object = None,
    home: object = None,
) -> ndarray:
    """Zeros in the shape, dtype and memory order of another array, as np.zeros_like."""
    return _like(a, dtype, order, shape, device, home, zeros)


def ones_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: object = None,
    home: object = None,
) -> ndarray:
    """Ones in the shape, dtype and memory order of another array, as np.ones_like."""
    return _fill_with_ones(_like(a, dtype, order, shape, device, home))


def full_like(
    a: ArrayLike,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: object = None,
    home: object = None,
) -> ndarray:
    """A value in the shape, dtype and memory order of another array, as np.full_like."""
    result = _like(a, dtype, order, shape, device, home)
    result[...] = fill_value
    return result


# --- ranges ----------------------------------------------------------------------------------------


def arange(*args: Any, device: object = None, home: object = None, **kwargs: Any) -> ndarray:
    """arange([start,] stop[, step,], dtype=None, *, device=None, home=None)

    Evenly spaced values of the half-open interval [start, stop), as np.arange.
    """
    return _layout.copy_of(np.arange(*args, **kwargs), device=device, home=home)


def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: object = None,
    home: object = None,
) -> Any:
    """Evenly spaced values over an interval, as np.linspace; with retstep, (array, step)."""
    ends: list[Any] = [x.read() if isinstance(x, ndarray) else x for x in (start, stop)]
    with_step = cast("Any", np.linspace)  # its overloads do not take a retstep that varies
    computed, step = with_step(*ends, num, endpoint, True, dtype, axis)
    result = _layout.copy_of(computed, device=device, home=home)
    if not retstep:
        return result
    if isinstance(step, np.ndarray):
        step = _layout.copy_of(step, device=device, home=home)
    return result, step


# --- arrays from other data ----------------------------------------------------------------------------


def array(
    object: Any,
    dtype: DTypeLike | None = None,
    *,
    copy: bool | None = True,
    order: str | None = "K",
    subok: bool = False,
    ndmin: int = 0,
    device: object = None,
    home: object = None,
) -> ndarray:
    """An array of the given data, as np.array: a copy unless copy is None or False.

    copy    None shares memory where that is possible (as asarray does); False raises ValueError where
            a copy would be needed.
    subok   accepted for NumPy's sake: the result is a umem.ndarray in any case.
    """
    result = _convert(object, dtype, copy, order, device, home)
    if result.ndim < ndmin:
        result = result.reshape((1,) * (ndmin - result.ndim) + result.shape)
    return result


def asarray(
    a: Any,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: object = None,
    home: object = None,
) -> ndarray:
    """The data as a umem.ndarray, sharing memory if it can.

    A umem.ndarray is returned as it is. Anything that lies in managed memory (a NumPy view of a umem
    array, a tensor made from one, another library's managed array) becomes an array over the same
    memory. The rest is copied into managed memory: sequences, NumPy arrays, CPU tensors, and GPU arrays
    of other libraries.

    dtype, order, device and home ask for a copy where the data does not comply. copy=True always
    copies; copy=False raises ValueError where a copy would be needed.
    """
    return _convert(a, dtype, copy, order, device, home)


def copy(
    a: Any,
    order: str | None = "K",
    subok: bool = False,
    *,
    device: object = None,
    home: object = None,
) -> ndarray:
    """A copy of the data in managed memory, as np.copy.

    A copy of a umem.ndarray is in the same place unless device or home say otherwise.
    """
    return _convert(a, None, True, order, device, home)


def _convert(
    data: Any,
    dtype: DTypeLike | None,
    copy: bool | None,
    order: str | None,
    device: object,
    home: object,
) -> ndarray:
    order = _layout.check_order(order)
    shared = data if isinstance(data, ndarray) else _core.alias(data)
    if shared is not None:
        wanted = shared.dtype if dtype is None else _resolve(shared.dtype, dtype)
        if (
            not copy
            and wanted == shared.dtype
            and _layout.matches(shared, order)
            and _is_placed(shared, device, home)
        ):
            return shared
        _refuse_copy(copy)
        source: ndarray | AnyArray = shared
        if wanted is None:  # depends on the values
            source = shared.read().astype(dtype)
            wanted = source.dtype
        device = shared.device if device is None else device
        home = shared.home if home is None else home
    else:
        _refuse_copy(copy)
        source, wanted = _import(data, dtype)
    result = _layout.empty(source.shape, wanted, order, source, device=device, home=home)
    result[...] = source
    return result


def _refuse_copy(copy: bool | None) -> None:
    if copy is False:
        raise ValueError(
            "copy=False, but the data cannot be had as this array without a copy; use copy=None to "
            "copy where it is needed"
        )


def _import(data: Any, dtype: DTypeLike | None) -> tuple[ndarray | AnyArray, np.dtype[Any]]:
    """Data from outside managed memory, and the dtype it is to have there."""
    if not isinstance(data, np.ndarray):
        if hasattr(data, "__cuda_array_interface__"):
            data = _core.copy_device(data)
        else:
            data = np.asarray(data, dtype)
    if dtype is None:
        return data, data.dtype
    wanted = np.dtype(dtype)
    if not _layout.is_plain(wanted) and wanted != data.dtype:
        data = np.asarray(data.read() if isinstance(data, ndarray) else data, dtype)
        wanted = data.dtype
    return data, wanted


def _resolve(have: np.dtype[Any], dtype: DTypeLike) -> np.dtype[Any] | None:
    """The dtype that asking `have` for `dtype` means: "S" of an S3 array is S3. None: ask the values."""
    wanted = np.dtype(dtype)
    if _layout.is_plain(wanted) or wanted == have:
        return wanted
    if wanted.itemsize == 0 and wanted.type is have.type:
        return have
    if wanted.char in "mM" and np.datetime_data(cast("Any", wanted))[0] == "generic":
        return have if wanted.type is have.type else None
    return None if wanted.itemsize == 0 else wanted


def _is_placed(array: ndarray, device: object, home: object) -> bool:
    """Whether the array already is where device= and home= ask for."""
    if device is None and home is None:
        return True
    # An empty array takes no memory, checks both arguments and says how umem writes them.
    asked = empty((0,), "u1", device=device, home=home)
    return (device is None or asked.device == array.device) and (
        home is None or asked.home == array.home
    )
