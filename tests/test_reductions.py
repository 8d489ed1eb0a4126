"""Reductions against NumPy: every reduction, dtype, layout and kind of axis, special values, accuracy, arguments."""

import itertools
import warnings

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

INTEGERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
FLOATS = ["f2", "f4", "f8"]
COMPLEX = ["c8", "c16"]
DTYPES = ["?", *INTEGERS, *FLOATS, *COMPLEX]
REDUCTIONS = ("sum", "prod", "min", "max", "any", "all", "mean", "var", "std")
PLACES = ("argmin", "argmax")

LAYOUTS = {
    "C": lambda x: x,
    "F": lambda x: x.T,
    "every second": lambda x: x[:, ::2],
    "backwards": lambda x: x[::-1, ::-1],
    "permuted": lambda x: x.reshape(4, 2, -1).transpose(1, 2, 0),
    "rows": lambda x: x[1:2],
    "vector": lambda x: x.ravel()[3:],
    "unlike steps": lambda x: x.reshape(2, 4, -1)[:, ::2, ::-3],
}


def numbers(dtype, shape=(8, 12), seed=0):
    """Small numbers with ties, whose sums and products are exact in any order."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "c":
        return (rng.integers(-2, 3, shape) + 1j * rng.integers(-1, 3, shape)).astype(dtype)
    low = 0 if np.dtype(dtype).kind in "u?" else -3
    return rng.integers(low, 4, shape).astype(dtype)


def assert_equal(result, expected, tolerance=0.0):
    """The same type, dtype, shape and values; floats within a relative tolerance."""
    assert type(result) is (
        type(expected)
        if np.ndim(expected) == 0 and not isinstance(expected, np.ndarray)
        else type(result)
    )
    values = np.asarray(result)
    assert values.dtype == np.asarray(expected).dtype
    assert values.shape == np.shape(expected)
    if tolerance:
        np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(values, expected)


def tolerance_of(name, dtype):
    """Where NumPy's own order of operations, or its half precision, decides the last bits."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "fc" and name not in ("mean", "var", "std"):
        return 0.0
    bits = {"e": 1e-2, "f": 2e-6, "F": 2e-6}.get(dtype.char, 1e-14)
    return bits if name in ("mean", "var", "std", "prod") else 0.0


def axes_of(ndim):
    return [
        None,
        *range(-ndim, ndim),
        *itertools.chain(*(itertools.combinations(range(ndim), n) for n in range(2, ndim + 1))),
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
class TestAgainstNumPy:
    @pytest.mark.parametrize("name", REDUCTIONS)
    def test_axes(self, umem, name, dtype, layout):
        x = numbers(dtype)
        n, a = LAYOUTS[layout](x), LAYOUTS[layout](umem.array(x))
        if name == "prod" and dtype == "f2":
            n, a = LAYOUTS[layout](np.sign(x)), LAYOUTS[layout](umem.array(np.sign(x)))
        for axis in axes_of(n.ndim):
            for keepdims in (False, True):
                expected = getattr(n, name)(axis=axis, keepdims=keepdims)
                result = getattr(a, name)(axis=axis, keepdims=keepdims)
                assert_equal(result, expected, tolerance_of(name, dtype))
                if np.ndim(expected):
                    assert type(result) is umem.ndarray
                assert_equal(
                    getattr(np, name)(a, axis=axis, keepdims=keepdims),
                    expected,
                    tolerance_of(name, dtype),
                )

    @pytest.mark.parametrize("name", PLACES)
    def test_places(self, umem, name, dtype, layout):
        x = numbers(dtype)
        n, a = LAYOUTS[layout](x), LAYOUTS[layout](umem.array(x))
        for axis in (None, *range(-n.ndim, n.ndim)):
            for keepdims in (False, True):
                expected = getattr(n, name)(axis=axis, keepdims=keepdims)
                assert_equal(getattr(a, name)(axis=axis, keepdims=keepdims), expected)
                assert_equal(getattr(np, name)(a, axis=axis, keepdims=keepdims), expected)

    def test_count_nonzero(self, umem, dtype, layout):
        x = numbers(dtype)
        n, a = LAYOUTS[layout](x), LAYOUTS[layout](umem.array(x))
        assert np.count_nonzero(a) == np.count_nonzero(n)
        assert type(np.count_nonzero(a)) is type(np.count_nonzero(n))
        for axis in axes_of(n.ndim)[1:]:
            assert_equal(np.count_nonzero(a, axis=axis), np.count_nonzero(n, axis=axis))
            assert_equal(
                np.count_nonzero(a, axis=axis, keepdims=True),
                np.count_nonzero(n, axis=axis, keepdims=True),
            )


class TestShapes:
    #: long enough for partial results in each way of reading, with tails, broadcast, without elements
    SHAPES = [
        (100_003,),
        (1, 70_001),
        (3, 30_000),
        (30_000, 3),
        (5000, 16),
        (16, 5000),
        (2, 3, 4, 5),
        (257, 33),
    ]

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_long(self, umem, dtype, shape):
        x = numbers(dtype, shape)
        if np.dtype(dtype).kind not in "?c":
            x.flat[x.size * 2 // 3] = x.flat[x.size * 3 // 4] = 5  # the largest
        a = umem.array(x)
        for axis in (None, *range(x.ndim)):
            for name in ("sum", "min", "max", "any", "all", "argmin", "argmax"):
                if name == "sum" and dtype == "f2":
                    expected = x.sum(axis, "f4").astype("f2")
                else:
                    expected = getattr(x, name)(axis)
                assert_equal(getattr(a, name)(axis), expected)
            assert_equal(np.count_nonzero(a, axis), np.count_nonzero(x, axis))
            wide = x.astype("c16" if np.dtype(dtype).kind == "c" else "f8")
            for name in ("mean", "var", "std"):
                expected = np.asarray(getattr(wide, name)(axis)).astype(
                    getattr(x, name)(axis).dtype
                )[()]
                assert_equal(
                    getattr(a, name)(axis),
                    expected,
                    {"f2": 2e-3, "f4": 1e-5, "c8": 1e-5}.get(dtype, 1e-12),
                )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_broadcast(self, umem, dtype):
        row = umem.array(numbers(dtype, (6,)))
        for a in (np.broadcast_to(row, (5, 6)), np.broadcast_to(row[:1], (7, 9))):
            assert type(a) is umem.ndarray
            n = np.asarray(a)
            for name in ("sum", "min", "argmax", "all", "var"):
                for axis in (None, 0, 1):
                    assert_equal(
                        getattr(a, name)(axis), getattr(n, name)(axis), tolerance_of(name, dtype)
                    )

    @pytest.mark.parametrize("name", [*REDUCTIONS, *PLACES])
    @pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()], ids=str)
    def test_without_elements_or_axes(self, umem, name, shape):
        n, a = np.ones(shape, "f4"), umem.ones(shape, "f4")
        for axis in (None, *range(len(shape))):
            try:
                expected = getattr(n, name)(axis)
            except ValueError as error:
                with pytest.raises(ValueError) as raised:
                    getattr(a, name)(axis)
                assert raised.value.args == error.args  # noqa: PT017
            else:
                assert_equal(getattr(a, name)(axis), expected)

    @pytest.mark.backends("fake")
    def test_offsets(self, umem):
        """Every alignment of a vector's beginning, and every tail."""
        for dtype in DTYPES:
            x = numbers(dtype, (300,))
            a = umem.array(x)
            for start, length in itertools.product(range(5), (1, 2, 15, 16, 17, 33, 100, 255)):
                part = slice(start, start + length)
                for name in ("sum", "max", "argmin", "any"):
                    expected = (
                        getattr(x[part], name)()
                        if (name, dtype) != ("sum", "f2")
                        else np.float16(x[part].sum(dtype="f4"))
                    )
                    assert_equal(getattr(a[part], name)(), expected)


class TestValues:
    @pytest.mark.parametrize(
        "name", ["min", "max", "argmin", "argmax", "sum", "any", "all", "prod", "mean"]
    )
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_special_floats(self, umem, name, dtype):
        special = [
            0.0,
            -0.0,
            1,
            -1,
            np.inf,
            -np.inf,
            np.nan,
            np.finfo(dtype).tiny,
            np.finfo(dtype).smallest_subnormal,
        ]
        for values in itertools.product(special, repeat=3):
            x = np.array([*values, *values[::-1]] * 3, dtype)
            if name in ("sum", "prod", "mean") and np.isfinite(x).all():
                continue  # the last bits, and which products underflow, depend on the order
            if name == "prod" and np.isinf(x).any() and (abs(x) < 1).any():
                continue  # so does whether there is a 0 when infinity comes
            assert_equal(
                getattr(umem.array(x), name)(), getattr(x, name)(), 0 if name != "mean" else 1e-3
            )

    @pytest.mark.parametrize("name", ["argmin", "argmax", "min", "max", "any", "all"])
    @pytest.mark.parametrize("dtype", COMPLEX)
    def test_special_complex(self, umem, name, dtype):
        parts = [0.0, -0.0, 1, np.inf, -np.inf, np.nan]
        special = [complex(re, im) for re in parts for im in parts]
        for values in itertools.product(special, repeat=2):
            x = np.array([1, *values, values[0], 1j], dtype)
            result, expected = getattr(umem.array(x), name)(), getattr(x, name)()
            if np.isnan(expected):
                assert np.isnan(result)
            else:
                assert_equal(result, expected)

    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_limits_of_integers(self, umem, dtype):
        limits = np.iinfo(dtype)
        x = np.array([0, limits.max, 1, limits.min, limits.max, limits.min], dtype)
        for name in ("min", "max", "argmin", "argmax", "sum", "prod"):
            assert_equal(getattr(umem.array(x), name)(), getattr(x, name)())
            assert_equal(getattr(umem.array(x[1::2]), name)(), getattr(x[1::2], name)())
        assert_equal(
            umem.full(1000, limits.max, dtype).sum(), np.full(1000, limits.max, dtype).sum()
        )

    @pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
    def test_only_the_largest_value(self, umem, dtype):
        for value in (np.inf, -np.inf, np.nan):
            x = np.full(1000, value, dtype)
            for name in ("min", "max", "argmin", "argmax"):
                assert_equal(getattr(umem.array(x), name)(), getattr(x, name)())

    def test_nan_in_a_long_array(self, umem):
        x = np.arange(200_000, dtype="f4")
        x[[150_001, 170_000]] = np.nan
        a = umem.array(x)
        assert np.isnan(a.min())
        assert np.isnan(a.max())
        assert a.argmin() == a.argmax() == 150_001
        b = umem.array(x.reshape(-1, 8))
        assert_equal(b.argmax(0), x.reshape(-1, 8).argmax(0))
        assert_equal(b.argmin(1), x.reshape(-1, 8).argmin(1))

    @pytest.mark.parametrize("dtype", ["f2", "f4", "c8"])
    def test_sums_are_at_least_as_accurate_as_numpys(self, umem, dtype):
        x = np.random.default_rng(1).normal(size=(3, 50_000)).astype(dtype)
        wide = np.dtype("c16" if dtype == "c8" else "f8")
        for axis in (None, 0, 1):
            exact = x.astype(wide).sum(axis)
            ours = np.abs(np.asarray(umem.array(x).sum(axis)) - exact).max()
            theirs = np.abs(
                x.sum(axis, "f4" if dtype == "f2" else None).astype(dtype) - exact
            ).max()
            assert ours <= theirs + np.abs(exact).max() * np.finfo(dtype).eps

    @pytest.mark.backends("fake")
    def test_half_precision_is_not_computed_in_half_precision(self, umem):
        a = umem.full(1 << 17, 1.5, "f2")
        assert a.mean() == 1.5
        assert a.var() == 0
        assert umem.full(3, 300, "f2").prod() == np.inf
        assert np.dtype(a.std().dtype) == np.float16

    def test_results_repeat(self, umem):
        x = np.random.default_rng(3).normal(size=(100, 1000)).astype("f4")
        a = umem.array(x)
        first = [
            np.asarray(f(a)).tobytes()
            for f in (np.sum, np.var, lambda b: b.mean(0), lambda b: b.std(1))
        ]
        assert first == [
            np.asarray(f(a)).tobytes()
            for f in (np.sum, np.var, lambda b: b.mean(0), lambda b: b.std(1))
        ]


UFUNCS = [
    np.add,
    np.multiply,
    np.minimum,
    np.maximum,
    np.logical_and,
    np.logical_or,
    np.bitwise_or,
    np.bitwise_and,
]


class TestArguments:
    @pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda u: u.__name__)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_ufunc_reduce(self, umem, ufunc, dtype):
        x = numbers(dtype, (4, 6))
        a = umem.array(x)
        for options in (
            {},
            {"axis": None},
            {"axis": 1, "keepdims": True},
            {"axis": (0, 1)},
            {"axis": ()},
            {"initial": 2},
            {"axis": None, "initial": 1},
            {"where": x != 0, "initial": 1},
            {"initial": None},
            {"axis": 5},
            {"dtype": dtype},
            {"initial": "x"},
        ):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    expected = ufunc.reduce(x, **options)
            except Exception as error:
                with pytest.raises(type(error)):
                    a.__array_ufunc__(
                        ufunc, "reduce", a, **options
                    )  # NumPy leaks operands of ufunc.reduce when that raises
            else:
                assert_equal(
                    ufunc.reduce(a, **options),
                    expected,
                    tolerance_of("prod", dtype) if ufunc is np.multiply else 0,
                )

    @pytest.mark.parametrize("name", ["sum", "prod", "min", "max"])
    def test_dtype_and_out(self, umem, name):
        for dtype, other in itertools.product(DTYPES, DTYPES):
            x = numbers(dtype, (4, 6))
            out, expected_out = umem.zeros(6, other), np.zeros(6, other)
            ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[name]
            for options in ({"dtype": other}, {"out": True}, {"out": True, "dtype": other}):
                theirs = {**options, "out": expected_out} if "out" in options else options
                ours = {**options, "out": out} if "out" in options else options
                try:
                    expected = ufunc.reduce(x, **theirs)
                except Exception as error:
                    ours = {**ours, "out": (out,)} if "out" in ours else ours
                    with pytest.raises(type(error)):
                        umem.ndarray.__array_ufunc__(
                            umem.ones(1), ufunc, "reduce", umem.array(x), **ours
                        )
                else:
                    result = ufunc.reduce(umem.array(x), **ours)
                    assert ("out" not in ours) or result is out
                    assert_equal(
                        result,
                        expected,
                        max(tolerance_of("prod", dtype), tolerance_of("prod", other)),
                    )

    @pytest.mark.parametrize("name", [*REDUCTIONS, *PLACES])
    def test_out_of_methods(self, umem, name):
        x = numbers("f4")
        expected = getattr(x, name)(1)
        out = umem.zeros(8, expected.dtype)
        assert getattr(umem.array(x), name)(1, out=out) is out
        assert_equal(out, expected, 2e-6)
        assert getattr(np, name)(umem.array(x), axis=1, out=out) is out
        for wrong in (umem.zeros(7, expected.dtype), umem.zeros((8, 1), expected.dtype)):
            with pytest.raises(ValueError):
                getattr(umem.array(x), name)(1, out=wrong)

    @pytest.mark.parametrize("name", [*REDUCTIONS, *PLACES])
    def test_wrong_arguments_raise_what_numpy_raises(self, umem, name):
        n, a = np.ones((3, 4), "f4"), umem.ones((3, 4), "f4")
        for args, options in [
            ((2,), {}),
            ((-3,), {}),
            (("x",), {}),
            ((1.5,), {}),
            ((True,), {}),
            ((), {"nothing": 1}),
            ((0,), {"axis": 0}),
            ((0,) * 9, {}),
        ]:
            try:
                expected = getattr(n, name)(*args, **options)
            except Exception as error:
                with pytest.raises(type(error)):
                    getattr(a, name)(*args, **options)
            else:
                assert_equal(getattr(a, name)(*args, **options), expected)

    @pytest.mark.parametrize("name", ["var", "std"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_deviations(self, umem, name, dtype):
        x = numbers(dtype, (5, 8))
        a = umem.array(x)
        tolerance = max(tolerance_of(name, dtype), 1e-14)
        function = getattr(np, name)
        for options in (
            {"ddof": 1},
            {"correction": 1},
            {"ddof": 0.5},
            {"axis": 0, "ddof": 2},
            {"axis": 1, "keepdims": True},
            {"ddof": 40},
            {"ddof": 41},
            {"where": x != 0},
            {"dtype": "c16" if "c" in dtype else "f8"},
        ):
            assert_equal(function(a, **options), function(x, **options), tolerance)
        middle = x.mean(axis=0, keepdims=True)
        for given in (middle, umem.array(middle)):
            assert_equal(
                function(a, axis=0, mean=given), function(x, axis=0, mean=middle), tolerance
            )
        with pytest.raises(ValueError):
            function(a, ddof=1, correction=1)

    def test_where_and_initial(self, umem):
        x = numbers("f4")
        a = umem.array(x)
        for mask in (x > 0, umem.array(x > 0)):
            assert_equal(a.sum(where=mask), x.sum(where=x > 0))
            assert_equal(a.max(0, where=mask, initial=-9), x.max(0, where=x > 0, initial=-9))
            assert_equal(a.mean(1, where=mask), x.mean(1, where=x > 0), 1e-6)
            assert_equal(a.any(1, where=mask), x.any(1, where=x > 0))
        assert_equal(a.max(initial=100), x.max(initial=100))
        assert_equal(a.sum(0, initial=3), x.sum(0, initial=3))
        with pytest.raises(OverflowError):
            umem.ones(5, "i1").max(initial=1000)


class TestProducts:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("function", [np.dot, np.vdot, np.inner])
    def test_of_vectors(self, umem, function, dtype):
        x, y = numbers(dtype, (999,)), numbers(dtype, (999,), 1)
        assert_equal(
            function(umem.array(x), umem.array(y)), function(x, y), 1e-6 if dtype != "f2" else 5e-2
        )
        assert_equal(
            function(umem.array(x)[::3], umem.array(y)[::-3]),
            function(x[::3], y[::-3]),
            1e-6 if dtype != "f2" else 5e-2,
        )

    def test_of_others(self, umem):
        x, y = numbers("f4", (3, 4)), numbers("f4", (4, 3), 1)
        a, b = umem.array(x), umem.array(y)
        assert_equal(a.dot(b), x.dot(y))
        assert_equal(np.dot(a, b), x.dot(y))
        assert_equal(np.dot(a[0], y[:, 0]), x[0].dot(y[:, 0]))
        assert_equal(np.inner(a, b.T), np.inner(x, y.T))
        assert_equal(np.vdot(a, b), np.vdot(x, y))
        with pytest.raises(ValueError):
            np.dot(a[0], b[0])
        with pytest.raises(TypeError):
            np.dot(a)

    @pytest.mark.parametrize("dtype", DTYPES[1:])
    def test_norm(self, umem, dtype):
        x = numbers(dtype)
        a = umem.array(x)
        for options in (
            {},
            {"axis": 0},
            {"axis": 1, "keepdims": True},
            {"keepdims": True},
            {"ord": 2, "axis": 1},
            {"ord": 1, "axis": 1},
            {"ord": "fro"},
            {"axis": (0, 1)},
        ):
            assert_equal(
                np.linalg.norm(a, **options),
                np.linalg.norm(x, **options),
                1e-2 if dtype == "f2" else 1e-6,
            )
        assert_equal(
            np.linalg.norm(a[0], 2), np.linalg.norm(x[0], 2), 1e-2 if dtype == "f2" else 1e-6
        )


@pytest.mark.backends("fake")
class TestOnTheGPU:
    """That these are kernels at all, and how many."""

    @pytest.mark.parametrize("name", [*REDUCTIONS, *PLACES])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_runs_kernels_and_no_numpy(self, umem, fake, name, dtype):
        a = umem.array(numbers(dtype, (400, 500)))
        a.prefetch("cuda")
        umem.synchronize()
        before = fake.counter("launches")
        result = getattr(a, name)(axis=0)
        assert fake.counter("launches") > before
        umem.synchronize()
        assert a.residency().host == 0  # NumPy would have had to get it
        assert type(result) is umem.ndarray

    def test_names_and_types(self, umem):
        core = umem._core
        assert core.reduce_dtype("sum", np.dtype("i1")) == np.int64
        assert core.reduce_dtype("argmax", np.dtype("f2")) == np.int64
        assert core.reduce_dtype("squares", np.dtype("c8")) == np.float32
        assert core.reduce_dtype("squares", np.dtype("i4")) is None
        assert core.reduce_dtype("prod", np.dtype("i1")) is None
        assert core.reduce_dtype("min", np.dtype("S1")) is None

    def test_refusals(self, umem):
        core = umem._core
        a, out, whole = umem.ones((3, 4), "f4"), umem.zeros(3, "f4"), umem.zeros(3, "i8")
        wrong = [
            (TypeError, ("sum", a, (1,))),
            (TypeError, ("sum", a, (1,), out, out, out)),
            (TypeError, (5, a, (1,), out)),
            (ValueError, ("nothing", a, (1,), out)),
            (TypeError, ("sum", np.ones(3), (0,), out)),
            (TypeError, ("sum", a, (1,), whole)),
            (TypeError, ("argmin", a, (1,), out)),
            (TypeError, ("min", a, (1,), umem.zeros(3, "f8"))),
            (TypeError, ("squares", a, (1,), out)),
            (TypeError, ("sum", a, (1,), out, out)),
            (TypeError, ("squares", a, (1,), out, 1.0)),
            (TypeError, ("squares", a, (1,), out, umem.zeros(3, "f8"))),
            (ValueError, ("squares", a, (1,), out, umem.zeros(4, "f4"))),
            (TypeError, ("prod", umem.ones((3, 4), "i1"), (1,), whole)),
            (ValueError, ("min", umem.ones((3, 0), "f4"), (1,), out)),
        ]
        for error, args in wrong:
            with pytest.raises(error):
                core.reduce_into(*args)
        with pytest.raises(TypeError):
            core.reduce_dtype("sum", "f4")
        for name, one in (("prod", 1), ("sum", 0)):
            core.reduce_into(name, umem.ones((3, 0), "f4"), (1,), out)
            assert out.tolist() == [one] * 3
