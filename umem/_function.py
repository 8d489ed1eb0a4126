"""NumPy functions on umem arrays (NEP 18).

A function gets NumPy arrays over the same memory, so that one which returns views or writes in place does
so in managed memory. In what it returns, arrays that lie in managed memory become views again, and
others are copied into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from umem import _core, _creation, _display, _host, _reduce, _ufunc
from umem._core import ndarray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Functions that look at an array's shape and strides only, or return a view: no page has to move.
_NO_ACCESS = frozenset(
    getattr(np, name)
    for name in (
        "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_to",
        "can_cast", "diagonal", "dsplit", "expand_dims", "flip", "fliplr", "flipud", "hsplit", "imag",
        "iscomplexobj", "isrealobj", "matrix_transpose", "may_share_memory", "moveaxis", "ndim",
        "permute_dims", "ravel", "real", "reshape", "result_type", "rollaxis", "rot90", "shape",
        "shares_memory", "size", "split", "squeeze", "swapaxes", "transpose", "unstack", "vsplit",
    )
    if hasattr(np, name)
)  # fmt: skip


def array_function(
    self: ndarray,
    func: Callable[..., Any],
    types: Iterable[type],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    /,
) -> Any:
    """NumPy's __array_function__."""
    if not all(issubclass(kind, (ndarray, np.ndarray)) for kind in types):
        return NotImplemented
    own = _OWN.get(func)
    if own is not None:
        answer = own(*args, **kwargs)
        if answer is not NotImplemented:
            return answer
    call = Call(func in _NO_ACCESS)
    # Tuples: CPython 3.11 leaks keyword arguments when an iterator behind * raises.
    return call.result(func(*tuple(map(call.argument, args)), **call.argument(kwargs)))


class Call:
    """Arguments and result of one call of a function of NumPy's.

    It remembers the arrays that the function got, so that one it returns (its `out`, say) is the caller's.
    no_access: the function looks at no element
    """

    def __init__(self, no_access: bool = False) -> None:
        self._given: dict[int, tuple[np.ndarray[Any, Any], ndarray]] = {}
        self._view = ndarray.numpy if no_access else _host.view

    def argument(self, value: Any) -> Any:
        """The argument with NumPy arrays in place of umem's."""
        if isinstance(value, ndarray):
            view = self._view(value)
            self._given[id(view)] = view, value
            return view
        if type(value) in (list, tuple):
            return type(value)(map(self.argument, value))
        if type(value) is dict:
            return {key: self.argument(item) for key, item in value.items()}
        return value

    def result(self, value: Any) -> Any:
        """The result with umem arrays in place of NumPy's."""
        if isinstance(value, np.ndarray):
            if id(value) in self._given:
                return self._given[id(value)][1]
            shared = _core.alias(value) if type(value) is np.ndarray else None
            return _host.managed(value) if shared is None else shared
        if type(value) in (list, tuple):
            return type(value)(map(self.result, value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
            return type(value)(*map(self.result, value))
        return value


# --- functions with an answer of umem's own: NotImplemented sends the call to NumPy after all --------------------


def _array_repr(arr: Any, *args: Any, **kwargs: Any) -> str:
    return np.array_repr(_display.shown(arr), *args, **kwargs)


def _array_str(a: Any, *args: Any, **kwargs: Any) -> str:
    return np.array_str(_display.shown(a), *args, **kwargs)


def _array2string(a: Any, *args: Any, **kwargs: Any) -> str:
    shown = _display.shown(a, kwargs.get("threshold"), kwargs.get("edgeitems"))
    return np.array2string(shown, *args, **kwargs)


def _copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    return _creation.copy(a, order)


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> Any:
    if not (isinstance(dst, ndarray) and isinstance(src, ndarray) and where is True):
        return NotImplemented
    if not np.can_cast(src.dtype, dst.dtype, casting):
        return NotImplemented
    dst[...] = src
    return None


def _clip(
    a: Any,
    a_min: Any = np._NoValue,
    a_max: Any = np._NoValue,
    out: Any = None,
    *,
    min: Any = np._NoValue,
    max: Any = np._NoValue,
    **options: Any,
) -> Any:
    if a_min is np._NoValue and a_max is np._NoValue:
        a_min = None if min is np._NoValue else min
        a_max = None if max is np._NoValue else max
    elif a_min is np._NoValue or a_max is np._NoValue or min is not max:
        return NotImplemented  # NumPy says what is wrong
    if options or not isinstance(a, ndarray):
        return NotImplemented
    return _ufunc.clip(a, a_min, a_max, out)


def _where(condition: Any, *choices: Any) -> Any:
    return _ufunc.where(condition, *choices) if len(choices) == 2 else NotImplemented


def _save(file: Any, arr: Any, *args: Any, **kwargs: Any) -> Any:
    from umem import _io

    return _io.save(file, arr)


def _reduction(name: str) -> Callable[..., Any]:
    """The method: its parameters are the function's."""

    def reduce(a: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(a, ndarray) or any(value is np._NoValue for value in args):
            return NotImplemented
        given = {key: value for key, value in options.items() if value is not np._NoValue}
        return getattr(a, name)(*args, **given)

    return reduce


def _deviation(name: str) -> Callable[..., Any]:
    method = _reduction(name)

    def reduce(a: Any, *args: Any, correction: Any = np._NoValue, **options: Any) -> Any:
        if correction is not np._NoValue:
            if len(args) > 3 or "ddof" in options:
                return NotImplemented  # NumPy raises
            options["ddof"] = correction
        return method(a, *args, **options)

    return reduce


def _by_kernel(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        if not _core.has_kernels() or not all(isinstance(x, ndarray) for x in args[:1]):
            return NotImplemented
        try:
            return function(*args, **options, **fixed)
        except TypeError:
            return NotImplemented  # NumPy says what is wrong with the arguments

    return call


_OWN: dict[Any, Callable[..., Any]] = {
    np.all: _reduction("all"),
    np.amax: _reduction("max"),
    np.amin: _reduction("min"),
    np.any: _reduction("any"),
    np.argmax: _reduction("argmax"),
    np.argmin: _reduction("argmin"),
    np.array_repr: _array_repr,
    np.array_str: _array_str,
    np.array2string: _array2string,
    np.clip: _clip,
    np.copy: _copy,
    np.copyto: _copyto,
    np.count_nonzero: _by_kernel(_reduce.count_nonzero),
    np.dot: _by_kernel(_reduce.dot),
    np.empty_like: _creation.empty_like,
    np.full_like: _creation.full_like,
    np.inner: _by_kernel(_reduce.dot),
    np.linalg.norm: _by_kernel(_reduce.norm),
    np.max: _reduction("max"),
    np.mean: _reduction("mean"),
    np.min: _reduction("min"),
    np.ones_like: _creation.ones_like,
    np.prod: _reduction("prod"),
    np.save: _save,
    np.std: _deviation("std"),
    np.sum: _reduction("sum"),
    np.var: _deviation("var"),
    np.vdot: _by_kernel(_reduce.dot, conjugate=True),
    np.where: _where,
    np.zeros_like: _creation.zeros_like,
}
