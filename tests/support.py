"""What several test files need: the comparison with NumPy, and arrays and views worth trying everything on."""

from __future__ import annotations

import ctypes
import math
import pickle
import re
import sys
import sysconfig
import threading
import warnings
from contextlib import contextmanager

import numpy as np
from hypothesis import HealthCheck, settings

# Examples are the same in every run: a failure in CI is one that everybody can repeat.
settings.register_profile(
    "umem",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.differing_executors,
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
)
# Other examples in every run, and many: pytest --hypothesis-profile=long --timeout=0
settings.register_profile(
    "long", settings.get_profile("umem"), max_examples=2000, derandomize=False, print_blob=True
)
settings.load_profile("umem")  # --hypothesis-profile is read later, and wins


#: Whether the interpreter can do without the GIL, if it is asked to (PYTHON_GIL=0).
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

#: Free-threaded CPython 3.13 makes modules, classes, code and functions outside of functions immortal when a second thread
#: starts, and those that come later at once: it does not count references to them across threads yet. They are taken
#: away from the collector too, with or without the GIL. So umem's module and what it keeps stay to the end of the
#: process, as does what a class of a test holds.
IMMORTAL_MODULES = FREE_THREADED and sys.version_info < (3, 14)


def make_modules_immortal() -> None:
    """Has every test see the same, whether or not one before it started a thread."""
    if IMMORTAL_MODULES:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()


def without_gil(test):
    """Leaves the test out where the interpreter has a GIL in any case."""
    return test if FREE_THREADED else None


def label(value) -> str:
    """A test's id for a parameter whose repr may hold an address: the same in every process of a parallel run."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


#: dtypes with a kernel for every operation that integers have too
KERNEL_DTYPES = ("f4", "f8", "i4", "i8")

#: a packed record with padding at its end, nested fields, a field of several elements and a gap
RECORD = np.dtype(
    {
        "names": ["a", "b", "c"],
        "formats": ["<i4", [("x", "<f8"), ("y", "S3")], ("<u2", (2, 2))],
        "offsets": [0, 8, 20],
        "itemsize": 32,
    }
)

NUMBERS = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")

#: every kind of dtype that may be stored, by a name for test ids
DTYPES = {
    **{name: np.dtype(name) for name in NUMBERS},
    "longdouble": np.dtype("g"),
    "clongdouble": np.dtype("G"),
    "big-endian i4": np.dtype(">i4"),
    "big-endian f8": np.dtype(">f8"),
    "bytes": np.dtype("S3"),
    "text": np.dtype("U2"),
    "datetime": np.dtype("M8[s]"),
    "timedelta": np.dtype("m8[ms]"),
    "raw": np.dtype("V5"),
    "record": np.dtype([("x", "f4"), ("n", "i8")]),
    "nested record": RECORD,
}

#: views of a two-dimensional array of at least 4 × 6 elements, for NumPy's and umem's alike
VIEWS = {
    "whole": lambda x: x,
    "rows": lambda x: x[1:3],
    "row": lambda x: x[1],
    "column": lambda x: x[:, 1],
    "steps": lambda x: x[::2, 1::2],
    "transposed": lambda x: x.T,
    "transposed steps": lambda x: x[1:, ::3].T,
    "rows reversed": lambda x: x[::-1],
    "all reversed": lambda x: x[::-1, ::-2],
    "new axis": lambda x: x[:, None, 1:4],
    "one element": lambda x: x[1:2, 2:3],
    "no axes": lambda x: x[2, 3, ...],
    "no rows": lambda x: x[2:2],
    "no columns": lambda x: x[:, 4:1],
}

#: what numbers of a kind do badly
SPECIAL_FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.1, 1.5, -2.5, 3e38, -3e38, 1e-45, 1.17e-38, 16777217.0, 2**31, -(2**31), 2**63,
    -(2**63), 1e300, 5e-324, math.inf, -math.inf, math.nan,
]  # fmt: skip
SPECIAL_INTEGERS = [
    0,
    1,
    -1,
    2,
    -2,
    7,
    46341,
    -46341,
    2**31 - 1,
    -(2**31),
    2**53 + 1,
    2**63 - 1,
    -(2**63),
]


def specials(dtype) -> np.ndarray:
    """The special values that fit a kernel dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array(SPECIAL_FLOATS, np.float64).astype(dtype)
    info = np.iinfo(dtype)
    return np.array([value for value in SPECIAL_INTEGERS if info.min <= value <= info.max], dtype)


def sample(dtype, shape=(4, 6)) -> np.ndarray:
    """An array with a bit of everything that the dtype can hold, the same at each call."""
    dtype = np.dtype(dtype)
    numbers = np.arange(math.prod(shape)) * 7 % 23 - 5
    if dtype.names is not None:
        record = np.zeros(shape, dtype)
        for name in dtype.names:
            field = record[name]
            field[...] = sample(field.dtype, field.shape)
        return record
    if dtype.kind == "V":
        raw = (np.arange(math.prod(shape) * dtype.itemsize) * 31 % 251).astype("u1")
        return raw.view(dtype).reshape(shape)
    if dtype.kind == "b":
        numbers = numbers % 2
    elif dtype.kind == "u":
        numbers = abs(numbers)
    values = numbers.astype(dtype).reshape(shape)
    if dtype.kind == "c":
        values = values + (values[::-1] if shape else values) * dtype.type(0.5j)
    return values.astype(dtype)


def address(a) -> int:
    """Of the first element."""
    return a.__array_interface__["data"][0]


def walked_strides(n) -> list[int]:
    """Strides of the axes along which an array is walked; those of others mean nothing (NumPy changes them now and then)."""
    if n.size == 0:
        return []
    return [stride for stride, length in zip(n.strides, n.shape, strict=True) if length > 1]


def is_scalar(value) -> bool:
    return isinstance(value, (np.generic, bool, int, float, complex, str, bytes))


def assert_same(actual, expected) -> None:
    """`actual` has the dtype, shape and values of `expected`, bit for bit; any NaN equals any."""
    assert is_scalar(actual) == is_scalar(expected), f"{type(actual)}, not {type(expected)}"
    if is_scalar(expected):
        assert type(actual) is type(expected)
    got, want = np.asarray(actual), np.asarray(expected)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.names is not None:
        for name in want.dtype.names:
            assert_same(got[name], want[name])
        return
    if want.dtype.kind == "V":
        assert got.tobytes() == want.tobytes()
        return
    np.testing.assert_array_equal(got, want)
    if want.dtype.kind in "fc":
        parts = (
            [(got, want)]
            if want.dtype.kind == "f"
            else [(got.real, want.real), (got.imag, want.imag)]
        )
        for one, other in parts:
            number = ~np.isnan(other)
            np.testing.assert_array_equal(np.signbit(one)[number], np.signbit(other)[number])


def assert_same_array(umem, actual, expected) -> None:
    """As assert_same, and `actual` is an array of umem's."""
    assert type(actual) is umem.ndarray
    assert_same(actual, expected)


#: the ufuncs with kernels, by the names that umem gives them
OPERATIONS = {
    name: np._core.umath.clip if name == "clip" else getattr(np, name)
    for name in (
        "add", "subtract", "multiply", "true_divide", "negative", "positive", "absolute", "fabs", "conjugate", "sign",
        "reciprocal", "square", "sqrt", "copysign", "heaviside", "deg2rad", "rad2deg", "radians", "degrees", "rint",
        "floor", "ceil", "trunc", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
        "logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf", "isfinite", "signbit",
        "maximum", "minimum", "fmax", "fmin", "clip", "bitwise_and", "bitwise_or", "bitwise_xor", "invert",
        "left_shift", "right_shift", "floor_divide", "remainder", "fmod", "power", "cbrt", "exp", "exp2", "expm1",
        "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2", "nextafter", "sin", "cos", "tan", "arcsin",
        "arccos", "arctan", "arctan2", "hypot", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
    )
}  # fmt: skip
#: operations whose results may differ from NumPy's, by at most so many units in the last place of the exact result
ULPS = {
    **dict.fromkeys(("deg2rad", "rad2deg", "radians", "degrees"), 2),
    **dict.fromkeys(
        ("absolute", "power", "float_power", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
         "arcsin", "arccos", "arctan", "arctan2", "hypot", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh"), 4),
    "logaddexp": 8, "logaddexp2": 8,
    "std": 4,  # a sum in another order
    "sign": 0,  # of complex numbers, a quotient
}  # fmt: skip


def _ranks(x):
    """Floats as integers in the same order, neighbours one apart."""
    bits = np.ascontiguousarray(x).view(f"i{x.itemsize}").astype(np.int64)
    return np.where(bits < 0, np.iinfo(f"i{x.itemsize}").min - bits, bits)


def _assert_near_reals(actual, wide, bound, where):
    expected = wide.astype(actual.dtype)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), err_msg=str(where))
    number = ~np.isnan(expected)
    distance = abs(_ranks(actual[number]).astype("g") - _ranks(expected[number]).astype("g"))
    worst = distance.max(initial=0)
    assert worst <= bound, (where, worst, expected[number][distance.argmax()])


def assert_near(name, actual, expected, wide=None, where=None) -> None:
    """`actual` is what the operation gives: bit for bit `expected`, or within the operation's bound of `wide`, the result in a wider type.

    Complex products and quotients may differ by roundings relative to their modulus: NumPy's own do with the processor.
    """
    kind = np.asarray(expected).dtype.kind
    if kind != "c" and (name not in ULPS or kind != "f"):
        try:
            assert_same(actual, expected)
        except AssertionError as error:
            if name not in ("maximum", "minimum", "fmax", "fmin", "clip"):
                raise AssertionError(f"{where}: {error}") from error
            np.testing.assert_array_equal(actual, expected)  # of equal zeros any may be taken
        return
    assert is_scalar(actual) == is_scalar(expected)
    got, want = np.atleast_1d(np.asarray(actual)), np.atleast_1d(np.asarray(expected))
    assert (got.dtype, got.shape) == (want.dtype, want.shape), where
    if kind == "f":
        _assert_near_reals(got, want if wide is None else np.atleast_1d(wide), ULPS[name], where)
        return
    finite = np.isfinite(want)
    scale = 4 * np.finfo(want.dtype).eps
    assert (abs(got - want)[finite] <= scale * abs(want)[finite]).all(), where
    np.testing.assert_array_equal(
        np.isnan(got)[~finite], np.isnan(want)[~finite], err_msg=str(where)
    )


def outcome(function, *args, **kwargs):
    """What a call does, in a form that can be compared: its result and type, or the type of its error; and the warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            value = function(*args, **kwargs)
            result = ("returns", type(value), value)
        except Exception as error:
            result = ("raises", type(error))
    return result, sorted({w.category.__name__ for w in seen})


def allocated(umem) -> int:
    """Bytes of live umem arrays."""
    return umem.memory_stats()["allocated_bytes.all.current"]


def make_what_is_made_once(umem):
    """Modules, kernels, streams and buffers that stay for the next time."""
    a = umem.ones(1 << 16, dtype="f4") + umem.ones(1, dtype="f8")
    assert a.sum() == 2 << 16
    for where in ("cpu", "cuda") if umem._core.has_kernels() else ("cpu",):
        umem.prefetch([a, umem.ones(1 << 16, home=where)], where)
    assert pickle.loads(pickle.dumps(a))[0] == a.read()[0]


class Exporter:
    """An object that offers some protocols of another array and nothing else."""

    def __init__(self, array, *names):
        self._array = array
        self._names = names

    def __getattr__(self, name):
        if name in object.__getattribute__(self, "_names"):
            return getattr(self._array, name)
        raise AttributeError(name)


@contextmanager
def managed_memory(fake, nbytes):
    """Address of managed memory that another library of the process allocated from the fake driver."""
    driver = ctypes.CDLL(fake.path)
    context, previous, pointer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()

    def call(name, *arguments):
        function, status = ctypes.c_void_p(), ctypes.c_int()
        assert (
            driver.cuGetProcAddress_v2(
                name, ctypes.byref(function), 12000, ctypes.c_uint64(0), ctypes.byref(status)
            )
            == 0
        )
        assert ctypes.CFUNCTYPE(ctypes.c_int)(function.value)(*arguments) == 0

    call(b"cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call(b"cuCtxPushCurrent", context)
    call(b"cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(nbytes), 1)
    call(b"cuCtxPopCurrent", ctypes.byref(previous))
    yield pointer.value
    call(b"cuCtxPushCurrent", context)
    call(b"cuMemFree", pointer)
    call(b"cuCtxPopCurrent", ctypes.byref(previous))
    call(b"cuDevicePrimaryCtxRelease", 0)
