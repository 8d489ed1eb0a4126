"""The methods of umem.ndarray that need no C: attached to the type when umem is imported.

What NumPy computes here it computes on the same memory, or on a copy of what a GPU holds (_host.py).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from umem import _core, _display, _function, _host, _layout, _pickle, _reduce, _residency, _ufunc
from umem._core import ndarray

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

_NO_VALUE: Any = np._NoValue


# --- conversion and copies --------------------------------------------------------------------------------


def __array__(
    self: ndarray, dtype: DTypeLike | None = None, copy: bool | None = None
) -> np.ndarray[Any, Any]:
    """What np.asarray gets where it does not take the memory itself: a view, or a copy where one is needed."""
    if dtype is not None and np.dtype(dtype) != self.dtype:
        if copy is False:
            raise ValueError(f"copy=False, but {self.dtype} to {np.dtype(dtype)} needs a copy")
        return _host.values(self).astype(dtype)
    return self.read() if copy else self.numpy()


def copy(self: ndarray, order: str = "C") -> ndarray:
    """A copy in managed memory, with the same device and home. What is on the GPU is copied there."""
    order = _layout.check_order(order, "C")
    result = _layout.empty(self.shape, self.dtype, order, self, device=self.device, home=self.home)
    result[...] = self
    return result


def __copy__(self: ndarray) -> ndarray:
    return copy(self, "K")


def __deepcopy__(self: ndarray, memo: dict[int, Any] | None = None, /) -> ndarray:
    return copy(self, "K")


def astype(
    self: ndarray,
    dtype: DTypeLike,
    order: str = "K",
    casting: Any = "unsafe",
    subok: bool = True,
    copy: bool = True,
) -> ndarray:
    """The elements converted to another dtype; copy=False returns the array itself if it complies."""
    wanted = np.dtype(dtype)
    order = _layout.check_order(order)
    if not copy and wanted == self.dtype and _layout.matches(self, order):
        return self
    if not _layout.is_plain(wanted):  # NumPy finds the size of strings and the unit of times
        host = _host.values(self).astype(dtype, "K", casting)
        return _layout.copy_of(host, order, device=self.device, home=self.home)
    if not np.can_cast(self.dtype, wanted, casting):
        _host.values(self[:0] if self.ndim else self).astype(wanted, casting=casting)  # raises
    result = _layout.empty(self.shape, wanted, order, self, device=self.device, home=self.home)
    drops_imaginary = self.dtype.kind == "c" and wanted.kind not in "cb"  # NumPy warns
    if self.dtype in _core.kernel_dtypes and wanted in _core.kernel_dtypes and not drops_imaginary:
        result[...] = self
    else:
        np.copyto(result.numpy(), _host.values(self), casting)
    return result


def tolist(self: ndarray) -> Any:
    """The elements as nested lists of Python objects; moves no page."""
    return self.read().tolist()


def conj(self: ndarray, *args: Any, **kwargs: Any) -> Any:
    """The complex conjugate; real arrays are returned as they are."""
    if args or kwargs or self.dtype.kind == "c":
        return np.conjugate(self, *args, **kwargs)
    return self


def flatten(self: ndarray, order: str = "C") -> ndarray:
    """A one-dimensional copy."""
    return copy(self.ravel(order))


# --- reductions that have kernels ------------------------------------------------------------------------------


def _ufunc_reduction(name: str, ufunc: np.ufunc, parameters: tuple[str, ...]) -> Any:
    """The method that is ufunc.reduce over all axes, with the parameters of NumPy's method in their order."""

    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        options = dict(zip(parameters, args, strict=False))
        if (
            len(args) > len(parameters)
            or options.keys() & kwargs.keys()
            or not kwargs.keys() <= accepted
        ):
            return in_numpy(self, *args, **kwargs)  # raises TypeError
        options.update(kwargs)
        options = {key: value for key, value in options.items() if value is not _NO_VALUE}
        options.setdefault("axis", None)
        if options.get("out") is None:
            options.pop("out", None)
        elif not isinstance(options["out"], tuple):
            options["out"] = (options["out"],)
        if options.get("where", True) is True:
            options.pop("where", None)
        return _ufunc.array_ufunc(self, ufunc, "reduce", self, **options)

    accepted = {*parameters, "where"}
    in_numpy = _from_numpy(name)
    return _named(method, name)


def _kernel_reduction(name: str, by_kernel: Callable[..., Any]) -> Any:
    """The method that by_kernel computes, or NumPy where it does not."""

    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("where", True) is True and _core.has_kernels():
            options = {key: value for key, value in kwargs.items() if key != "where"}
            try:
                result = by_kernel(self, *args, **options)
            except TypeError:
                result = NotImplemented  # NumPy says what is wrong with the arguments
            if result is not NotImplemented:
                return result
        return in_numpy(self, *args, **kwargs)

    in_numpy = _from_numpy(name)
    return _named(method, name)


def std(self: ndarray, *args: Any, **kwargs: Any) -> Any:
    return _reduce.var(self, *args, **kwargs, root=True)


# --- methods that are NumPy's -------------------------------------------------------------------------------------


def _from_numpy(name: str, get_host: Callable[[ndarray], Any] = _host.values) -> Any:
    """The method `name` of NumPy's array on what `get_host` makes of ours, its result in managed memory."""

    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        call = _function.Call()
        function = getattr(get_host(self), name)
        return call.result(function(*call.argument(args), **call.argument(kwargs)))

    return _named(method, name)


def _named(method: Any, name: str) -> Any:
    method.__name__ = name
    method.__qualname__ = f"ndarray.{name}"
    method.__doc__ = f"As numpy.ndarray.{name}. An array in the result is in managed memory."
    return method


_READING = (
    "argpartition", "argsort", "choose", "clip", "compress", "cumprod", "cumsum", "nonzero", "repeat",
    "round", "searchsorted", "take", "trace",
)  # fmt: skip
_EXTREME = ("axis", "out", "keepdims", "initial", "where")
_TOTAL = ("axis", "dtype", "out", "keepdims", "initial", "where")
_TRUTH = ("axis", "out", "keepdims")
#: method: ufunc, positional parameters of NumPy's method
_UFUNC_REDUCTIONS = {
    "sum": (np.add, _TOTAL),
    "prod": (np.multiply, _TOTAL),
    "min": (np.minimum, _EXTREME),
    "max": (np.maximum, _EXTREME),
    "any": (np.logical_or, _TRUTH),
    "all": (np.logical_and, _TRUTH),
}
_KERNEL_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "mean": _reduce.mean,
    "var": _reduce.var,
    "std": std,
    "argmin": functools.partial(_reduce.arg_reduce, "argmin"),
    "argmax": functools.partial(_reduce.arg_reduce, "argmax"),
    "dot": _reduce.dot,
}
_IN_PLACE = ("partition", "put", "sort")
_VIEWS = ("diagonal", "swapaxes")


def _part(name: str) -> property:
    """`real` or `imag`: a view."""

    def get(self: ndarray) -> Any:
        return _function.Call().result(getattr(self.numpy(), name))

    def put(self: ndarray, value: Any) -> None:
        get(self)[...] = value

    return property(get, put, doc=f"The {name} part: a view. As numpy.ndarray.{name}.")


def _matrix_transpose(self: ndarray) -> ndarray:
    """View with the last two axes swapped."""
    if self.ndim < 2:
        raise ValueError("matrix transpose with ndim < 2 is undefined")
    *others, rows, columns = range(self.ndim)
    return self.transpose(*others, columns, rows)


# --- operators ------------------------------------------------------------------------------------------------------


def _steps_back(other: Any) -> bool:
    """Whether the other operand asks to be left the operation."""
    return getattr(other, "__array_ufunc__", True) is None


def _operators(function: Any, name: str) -> dict[str, Any]:
    """Binary operator, reflected and in place, straight to a function that has kernels."""

    def forward(self: ndarray, other: Any) -> Any:
        return NotImplemented if _steps_back(other) else function(self, other)

    def reflected(self: ndarray, other: Any) -> Any:
        return NotImplemented if _steps_back(other) else function(other, self)

    def in_place(self: ndarray, other: Any) -> Any:
        return function(self, other, self)

    methods = {f"__{name}__": forward, f"__r{name}__": reflected, f"__i{name}__": in_place}
    for key, method in methods.items():
        method.__name__ = key
        method.__qualname__ = f"ndarray.{key}"
    return methods


def _power_ufunc(base: ndarray, exponent: Any) -> np.ufunc | None:
    """The ufunc that NumPy's ** uses in place of power, if any."""
    if type(exponent) is int and exponent == 2:
        return np.square
    if base.dtype.kind == "c" and type(exponent) is float and exponent == -1:
        return None  # reciprocal gives zeros of the other sign; NumPy takes it for the int only
    if type(exponent) in (int, float) and base.dtype.kind in "fc":
        return {0.5: np.sqrt, 2.0: np.square, -1.0: np.reciprocal}.get(exponent)
    return None


def __pow__(self: ndarray, exponent: Any) -> Any:
    if _steps_back(exponent):
        return NotImplemented
    ufunc = _power_ufunc(self, exponent)
    return np.power(self, exponent) if ufunc is None else ufunc(self)


def __ipow__(self: ndarray, exponent: Any) -> Any:
    ufunc = _power_ufunc(self, exponent)
    options: Any = {"out": (self,)}
    return np.power(self, exponent, **options) if ufunc is None else ufunc(self, **options)


def _comparison(name: str, function: Any) -> Any:
    """== or !=. Where the function has no loop (records, text against numbers) NumPy's operator knows an answer."""
    numpys = getattr(np.ndarray, name)

    def method(self: ndarray, other: Any) -> Any:
        if _steps_back(other):
            return NotImplemented
        try:
            return function(self, other)
        except TypeError:
            call = _function.Call()
            return call.result(numpys(call.argument(self), call.argument(other)))

    method.__name__ = name
    method.__qualname__ = f"ndarray.{name}"
    return method


def __imatmul__(self: ndarray, other: Any) -> Any:
    """As NumPy's @=, which refuses what np.matmul(..., out=) would broadcast."""
    if _steps_back(other):
        return NotImplemented
    call = _function.Call()
    host = _host.view(self)
    host @= call.argument(other)
    return self


def setflags(self: ndarray, write: bool | None = None) -> None:
    """Sets flags.writeable. The other flags of NumPy's setflags never change."""
    if write is not None:
        self.flags.writeable = write


def tofile(self: ndarray, fid: Any, sep: str = "", format: str = "%s") -> None:
    """As numpy.ndarray.tofile; moves no page."""
    self.read().tofile(fid, sep, format)


def _of_view(name: str, doc: str) -> property:
    """What NumPy's array over the same memory has under that name. It counts as a host view while it lives."""
    return property(lambda self: getattr(self.numpy(), name), doc=doc)


def _unary(function: Any, name: str) -> Any:
    def method(self: ndarray) -> Any:
        return function(self)

    method.__name__ = f"__{name}__"
    method.__qualname__ = f"ndarray.__{name}__"
    return method


def clip(self: ndarray, min: Any = None, max: Any = None, out: Any = None, **options: Any) -> Any:
    """As numpy.ndarray.clip."""
    if options or isinstance(out, np.ndarray):
        return _clip_in_numpy(self, min, max, out, **options)
    return _ufunc.clip(self, min, max, out)


_clip_in_numpy = _from_numpy("clip")


def attach() -> None:
    """Completes the type."""
    methods = {
        key: method
        for key, method in vars(NDArrayOperatorsMixin).items()
        if key.startswith("__") and callable(method)
    }
    for function, name in (
        (_core.add, "add"),
        (_core.subtract, "sub"),
        (_core.multiply, "mul"),
        (_core.true_divide, "truediv"),
        (_core.floor_divide, "floordiv"),
        (_core.remainder, "mod"),
        (_core.bitwise_and, "and"),
        (_core.bitwise_or, "or"),
        (_core.bitwise_xor, "xor"),
        (_core.left_shift, "lshift"),
        (_core.right_shift, "rshift"),
    ):
        methods.update(_operators(function, name))
    for ordering, name in (
        (_core.less, "lt"),
        (_core.less_equal, "le"),
        (_core.greater, "gt"),
        (_core.greater_equal, "ge"),
    ):
        methods[f"__{name}__"] = _operators(ordering, name)[f"__{name}__"]
    for unary, name in (
        (_core.negative, "neg"),
        (_core.absolute, "abs"),
        (_core.invert, "invert"),
    ):
        methods[f"__{name}__"] = _unary(unary, name)
    for equality, name in ((_core.equal, "__eq__"), (_core.not_equal, "__ne__")):
        methods[name] = _comparison(name, equality)
    methods.update((name, _from_numpy(name)) for name in _READING)
    methods.update((name, _ufunc_reduction(name, *how)) for name, how in _UFUNC_REDUCTIONS.items())
    methods.update((name, _kernel_reduction(name, by)) for name, by in _KERNEL_REDUCTIONS.items())
    methods.update((name, _from_numpy(name, _host.view)) for name in _IN_PLACE)
    methods.update((name, _from_numpy(name, ndarray.numpy)) for name in _VIEWS)
    methods.update(
        {
            "__imatmul__": __imatmul__,
            "clip": clip,
            "__pow__": __pow__,
            "__ipow__": __ipow__,
            "__array_ufunc__": _ufunc.array_ufunc,
            "__array_function__": _function.array_function,
            "__array__": __array__,
            "__copy__": __copy__,
            "__deepcopy__": __deepcopy__,
            "__reduce_ex__": _pickle.reduce_ex,
            "__repr__": _display.array_repr,
            "__str__": _display.array_str,
            "__format__": _display.array_format,
            "_repr_html_": _display.repr_html,
            "astype": astype,
            "conj": conj,
            "conjugate": conj,
            "copy": copy,
            "ctypes": _of_view("ctypes", "The address for ctypes. As numpy.ndarray.ctypes."),
            "data": property(memoryview, doc="A memoryview of the elements."),
            "flat": _of_view("flat", "A 1-D iterator over the elements. As numpy.ndarray.flat."),
            "flatten": flatten,
            "imag": _part("imag"),
            "mT": property(_matrix_transpose),
            "real": _part("real"),
            "residency": _residency.residency,
            "setflags": setflags,
            "tobytes": _pickle.tobytes,
            "tofile": tofile,
            "tolist": tolist,
        }
    )
    for key, method in methods.items():
        setattr(ndarray, key, method)
