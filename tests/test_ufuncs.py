"""NumPy's ufuncs and functions on umem arrays: NumPy's values, arrays of umem's, and the same memory where it is written."""

import functools
import io
import operator
from typing import ClassVar

import numpy as np
import pytest

from support import (
    DTYPES,
    NUMBERS,
    OPERATIONS,
    ULPS,
    VIEWS,
    Exporter,
    address,
    assert_near,
    assert_same,
    assert_same_array,
    outcome,
    sample,
    walked_strides,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*encountered in:RuntimeWarning", "ignore:Casting complex values"
)


def same_results(umem, actual, expected):
    """Values and kinds, through tuples, lists and named tuples; every array is an array of umem's."""
    if isinstance(expected, (tuple, list)):
        assert type(actual) is type(expected) or isinstance(actual, type(expected))
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            same_results(umem, one, other)
    elif isinstance(expected, np.ndarray):
        assert_same_array(umem, actual, expected)
    elif isinstance(expected, np.generic):
        assert_same(actual, expected)
    else:
        assert type(actual) is type(expected)
        assert actual == expected


#: NumPy 2.4 keeps the operands of a reduce whose __array_ufunc__ raises
NUMPY_LEAKS = pytest.mark.leaks("NumPy")


def check(umem, call, *arrays, name=None):
    """call(module-free) on umem arrays does what it does on NumPy's; `name` says which operation it is if results may differ a little."""
    expected = outcome(call, *arrays)
    actual = outcome(call, *map(umem.array, arrays))
    assert actual[0][0] == expected[0][0], (actual, expected)
    if expected[0][0] == "returns":
        if name in ULPS and umem._core.has_kernels():
            assert isinstance(actual[0][2], (umem.ndarray, np.generic))
            assert_near(name, actual[0][2], expected[0][2])
        else:
            same_results(umem, actual[0][2], expected[0][2])
    else:
        assert actual[0] == expected[0]


UNARY = [
    name
    for name in dir(np)
    if isinstance(getattr(np, name), np.ufunc) and getattr(np, name).nin == 1
]
BINARY = [
    name
    for name in dir(np)
    if isinstance(getattr(np, name), np.ufunc) and getattr(np, name).nin == 2
]
BINARY = [name for name in BINARY if not getattr(np, name).signature]


def umem_name(name):
    """NumPy has some functions under several names."""
    return next((own for own, ufunc in OPERATIONS.items() if ufunc is getattr(np, name)), name)


class TestEveryUfunc:
    @pytest.mark.parametrize("name", UNARY)
    def test_of_one_array(self, umem, name):
        known = umem_name(name)
        for dtype in ("?", "i4", "u1", "f4", "f8", "c16", "M8[s]"):
            check(umem, getattr(np, name), sample(dtype), name=known)
        check(umem, getattr(np, name), sample("f8")[::-1, ::2], name=known)
        check(umem, getattr(np, name), np.array(0.5))
        check(umem, getattr(np, name), np.zeros((0, 3)))

    @pytest.mark.parametrize("name", BINARY)
    def test_of_two_arrays(self, umem, name):
        function, known = getattr(np, name), umem_name(name)
        for dtype in ("?", "i4", "u1", "f4", "f8", "c16"):
            check(umem, function, sample(dtype), sample(dtype)[::-1].copy(), name=known)
        check(umem, function, sample("i8"), abs(sample("i8"))[1], name=known)
        check(umem, function, sample("f4"), sample("i4"), name=known)
        check(umem, lambda x: function(x, 2), sample("i4"), name=known)
        check(umem, lambda x: function(2.5, x), sample("f4"), name=known)
        n = sample("f8")
        expected = outcome(function, n, n)
        for mixed in (outcome(function, umem.array(n), n), outcome(function, n, umem.array(n))):
            assert mixed[0][0] == expected[0][0]
            if expected[0][0] == "returns":
                if known in ULPS and umem._core.has_kernels():
                    assert_near(known, mixed[0][2], expected[0][2])
                else:
                    same_results(umem, mixed[0][2], expected[0][2])

    def test_several_results_come_as_a_tuple(self, umem):
        for call in (
            np.modf,
            np.frexp,
            lambda x: np.divmod(x, 3),
            lambda x: divmod(x, 3),
            lambda x: divmod(7, abs(x) + 1),
        ):
            check(umem, call, sample("f8"))
        a = umem.array(sample("f8"))
        assert type(np.modf(a)) is tuple
        whole, part = umem.zeros((4, 6)), umem.zeros((4, 6))
        result = np.modf(a, out=(part, whole))
        assert result[0] is part
        assert result[1] is whole
        assert_same(whole, np.modf(sample("f8"))[1])
        result = np.modf(a, out=(None, whole))
        assert result[1] is whole
        assert type(result[0]) is umem.ndarray

    def test_matmul(self, umem):
        for left, right in (
            ((2, 3), (3, 4)),
            ((3,), (3, 4)),
            ((2, 3), (3,)),
            ((3,), (3,)),
            ((5, 2, 3), (5, 3, 4)),
            ((2, 3), (2, 3)),
            ((), (3,)),
        ):
            check(umem, operator.matmul, sample("f8", left), sample("f8", right))
            check(umem, np.matmul, sample("i4", left), sample("i4", right))
        a = umem.ones((3, 3))
        a @= umem.full((3, 3), 2.0)
        assert (a == 6).all()
        assert (np.ones((2, 3)) @ a).tolist() == [[18] * 3] * 2


OPERATORS = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift", "lt", "le", "eq", "ne", "gt", "ge",
]  # fmt: skip


class TestOperators:
    @pytest.mark.parametrize("name", OPERATORS)
    def test_every_one(self, umem, name):
        function = getattr(operator, name)
        for dtype in ("i4", "f8", "?"):
            x, y = sample(dtype), abs(sample("i4") % 5).astype(dtype)
            check(umem, function, x, y)
            check(umem, lambda p: function(p, 2), x)
            check(umem, lambda p: function(2, p), abs(sample("i4") % 5))
            expected = outcome(function, x, y)
            for a, b in ((umem.array(x), y), (x, umem.array(y))):
                actual = outcome(function, a, b)
                assert actual[0][0] == expected[0][0]
                if expected[0][0] == "returns":
                    assert_same_array(umem, actual[0][2], expected[0][2])

    @pytest.mark.parametrize("name", ["neg", "pos", "abs", "invert"])
    def test_unary(self, umem, name):
        for dtype in ("i4", "f8", "?"):
            check(umem, getattr(operator, name), sample(dtype))

    @pytest.mark.parametrize(
        "name",
        [
            "iadd",
            "isub",
            "imul",
            "itruediv",
            "ifloordiv",
            "imod",
            "ipow",
            "iand",
            "ior",
            "ixor",
            "ilshift",
            "irshift",
        ],
    )
    def test_in_place(self, umem, name):
        function = getattr(operator, name)
        for dtype in ("i4", "f8"):
            for other in (2, abs(sample("i4") % 5 + 1).astype(dtype)):
                for view in ("whole", "steps", "transposed"):
                    n, a = sample(dtype), umem.array(sample(dtype))
                    part = other if np.isscalar(other) else VIEWS[view](other)
                    expected = outcome(function, VIEWS[view](n), part)
                    actual = outcome(function, VIEWS[view](a), part)
                    assert actual[0][0] == expected[0][0]
                    assert_same(a, n)
                    if expected[0][0] == "returns":
                        assert type(actual[0][2]) is umem.ndarray

    def test_in_place_into_numpys_array(self, umem):
        n = np.ones(3)
        n += umem.arange(3)
        assert type(n) is np.ndarray
        assert n.tolist() == [1, 2, 3]

    def test_comparison_with_anything(self, umem):
        a, n = umem.arange(3), np.arange(3)
        for other in (None, "x", object(), [0, 5, 2], (1, 2), np.datetime64("2020-01-01"), {}):
            for function in (operator.eq, operator.ne, operator.lt):
                expected, actual = outcome(function, n, other), outcome(function, a, other)
                assert actual[0][0] == expected[0][0]
                if expected[0][0] == "returns" and isinstance(expected[0][2], np.ndarray):
                    assert_same(actual[0][2], expected[0][2])

    def test_classes_that_want_to_answer_themselves_do(self, umem):
        class Deaf:
            __array_ufunc__ = None

            def __radd__(self, other):
                return "radd"

            def __add__(self, other):
                return "add"

        class Proud:
            def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
                return "proud"

        a = umem.ones(3)
        assert a + Deaf() == "radd"
        assert Deaf() + a == "add"
        assert a + Proud() == "proud"
        assert Proud() + a == "proud"
        assert np.add(a, Proud()) == "proud"
        assert umem.add(a, Proud()) == "proud"
        with pytest.raises(TypeError):
            np.add(a, Deaf())
        with pytest.raises(TypeError):
            a += Deaf()

    def test_with_torch_tensors(self, umem):
        torch = pytest.importorskip("torch")
        a, t = umem.ones(3, "f4"), torch.ones(3)
        for result in (a + t, a * t):
            assert np.asarray(result).tolist() in ([2, 2, 2], [1, 1, 1])


class TestUfuncMethods:
    @pytest.mark.parametrize(
        "name",
        [
            "add", "multiply", "maximum", "logical_and", "bitwise_or",
            pytest.param("subtract", marks=NUMPY_LEAKS),  # cannot be reduced over two axes at once
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("dtype", ["i4", "i8", "?"])
    def test_reduce_accumulate_reduceat_outer(self, umem, dtype, name):
        ufunc = getattr(np, name)
        x = sample(dtype)
        for call in (
            ufunc.reduce,
            lambda p: ufunc.reduce(p, axis=1),
            lambda p: ufunc.reduce(p, axis=None),
            lambda p: ufunc.reduce(p, axis=(0, 1), keepdims=True),
            lambda p: ufunc.reduce(p, axis=0, initial=1),
            lambda p: ufunc.reduce(p, axis=0, where=x > 0, initial=1),
            ufunc.accumulate,
            lambda p: ufunc.accumulate(p, axis=1),
            lambda p: ufunc.reduceat(p, [0, 2]),
            lambda p: ufunc.outer(p[0], p[1]),
        ):
            check(umem, call, x)

    @NUMPY_LEAKS
    def test_an_axis_that_is_not_there(self, umem):
        check(umem, lambda p: np.add.reduce(p, axis=5), sample("i4"))

    def test_into_out(self, umem):
        a = umem.arange(6).reshape(2, 3)
        out = umem.zeros(3, "i8")
        assert np.add.reduce(a, out=out) is out
        assert out.tolist() == [3, 5, 7]
        assert np.maximum.reduce(a, axis=0, out=out) is out
        assert out.tolist() == [3, 4, 5]
        wide = umem.zeros((2, 3), "i8")
        assert np.add.accumulate(a, out=wide) is wide
        assert wide.tolist() == [[0, 1, 2], [3, 5, 7]]
        n = np.zeros(3, "i8")
        assert np.add.reduce(a, out=n) is n
        assert n.tolist() == [3, 5, 7]

    def test_at_changes_the_array(self, umem):
        a = umem.zeros(5)
        np.add.at(a, [0, 0, 2], 1)
        assert a.tolist() == [2, 0, 1, 0, 0]
        np.multiply.at(a, umem.array([0, 2]), umem.array([5.0, 7.0]))
        assert a.tolist() == [10, 0, 7, 0, 0]
        np.negative.at(a, [0])
        assert a[0] == -10

    def test_where(self, umem):
        x = sample("f4")
        mask = x > 0
        for given in (mask, umem.array(mask)):
            out = umem.full((4, 6), 7, dtype="f4")
            assert np.add(umem.array(x), 1, out=out, where=given) is out
            assert_same(out, np.add(x, 1, out=np.full((4, 6), 7, "f4"), where=mask))
            assert np.sum(umem.array(x), where=given) == np.sum(x, where=mask)

    def test_options(self, umem):
        x = sample("f4")
        for keywords in ({"dtype": "f8"}, {"order": "F"}, {"casting": "unsafe", "dtype": "i4"}, {"subok": False}, {"signature": "dd->d"},
                         {"dtype": "S3"}, {"casting": "no", "dtype": "f8"}, {"colour": "red"}):  # fmt: skip
            check(umem, lambda p: np.add(p, p, **keywords), x)
            check(umem, lambda p: np.sqrt(abs(p), **keywords), x)

    #: arrays of n times (3, 4, 5) or less, made with NumPy or umem
    LAYOUTS: ClassVar = {
        "C": lambda m, n: m.ones((3 * n, 4 * n, 5 * n), "f4"),
        "F": lambda m, n: m.ones((3 * n, 4 * n, 5 * n), "f4", "F"),
        "between": lambda m, n: m.ones((4 * n, 3 * n, 5 * n), "f4").transpose(1, 0, 2),
        "gaps": lambda m, n: m.ones((6 * n, 5 * n, 8 * n), "f8")[::2].transpose(0, 2, 1)[:, ::2],
        "backwards": lambda m, n: m.ones((3 * n, 4 * n, 5 * n), "f4", "F")[::-1, :, ::-1],
        "one row": lambda m, n: m.ones((1, 4 * n, 5 * n), "i4"),
        "one column": lambda m, n: m.ones((3 * n, 4 * n, 1), "f4", "F"),
        "fewer axes": lambda m, n: m.ones((4 * n, 5 * n), "f4", "F"),
        "vector": lambda m, n: m.ones(5 * n, "f4"),
    }

    @pytest.mark.filterwarnings("ignore:'where' used without 'out'")
    @pytest.mark.parametrize("n", [1, 12], ids=["small", "large"])
    @pytest.mark.parametrize("second", LAYOUTS)
    @pytest.mark.parametrize("first", LAYOUTS)
    def test_results_have_numpys_memory_order(self, umem, first, second, n):
        x, y = (self.LAYOUTS[name](np, n) for name in (first, second))
        a, b = (self.LAYOUTS[name](umem, n) for name in (first, second))
        mask = np.ones(np.broadcast_shapes(x.shape, y.shape), "?", order="F")
        for call in (
            np.add,  # has a kernel
            np.floor_divide,  # has none
            functools.partial(np.add, order="A"),
            functools.partial(np.floor_divide, order="A"),
            functools.partial(np.floor_divide, where=mask),
        ):
            expected = walked_strides(call(x, y))
            for operands in ((a, b), (a, y), (x, b)):
                assert walked_strides(call(*operands)) == expected, (call, operands)
        expected = walked_strides(x + y)
        for operands in ((a, b), (a, y), (x, b)):
            assert walked_strides(umem.add(*operands)) == expected
            if a.dtype == b.dtype:
                assert walked_strides(umem.axpy(1, *operands)) == expected

    @pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "?", "f2"])
    def test_a_read_only_result_is_refused_first(self, umem, dtype):
        """Before types that cannot be cast and shapes that do not fit."""
        for into in ("f4", "i4", "?"):
            x, n = umem.ones((2, 3), dtype), np.ones((2, 3), dtype)
            out, model = umem.zeros((2, 3), into), np.zeros((2, 3), into)
            out.flags.writeable = model.flags.writeable = False
            for other in (1, 2.5, np.ones((4, 4)), np.ones((2, 3), "i8")):
                for call in (np.add, np.true_divide, np.floor_divide):
                    with pytest.raises(ValueError, match="output array is read-only"):
                        call(n, other, out=model)
                    with pytest.raises(ValueError, match="output array is read-only"):
                        call(x, other, out=out)
                for call in (umem.add, functools.partial(umem.axpy, 2)):
                    with pytest.raises(ValueError, match="output array is read-only"):
                        call(x, other, out=out)
            with pytest.raises(ValueError, match="output array is read-only"):
                np.negative(x.astype("f8"), out=out)
            assert not out.any()

    def test_errstate_is_numpys(self, umem):
        with np.errstate(invalid="raise"):
            for x in (np.array([-1.0]), np.array([-1.0], "g")):
                if x.dtype == "g" or not umem._core.has_kernels():
                    check(umem, np.sqrt, x)

    @pytest.mark.backends("fake")
    def test_kernels_report_no_floating_point_errors(self, umem):
        """As documented: a GPU has no flags to look at."""
        with np.errstate(all="raise"):
            assert np.isnan(np.sqrt(umem.array([-1.0])))[0]
            assert np.isinf(umem.ones(1) / umem.zeros(1))[0]


FUNCTIONS = {
    "concatenate": lambda x: np.concatenate([x, x[::-1]]),
    "concatenate axis": lambda x: np.concatenate((x, x), axis=1),
    "concatenate none": lambda x: np.concatenate([x, x], axis=None),
    "stack": lambda x: np.stack([x, x], axis=-1),
    "vstack": lambda x: np.vstack([x, x]),
    "hstack": lambda x: np.hstack([x, x]),
    "dstack": lambda x: np.dstack([x, x]),
    "block": lambda x: np.block([[x, x], [x, x]]),
    "split": lambda x: np.split(x, 2),
    "array_split": lambda x: np.array_split(x, 3, axis=1),
    "tile": lambda x: np.tile(x, (2, 1)),
    "repeat": lambda x: np.repeat(x, 2, axis=0),
    "sort": lambda x: np.sort(x, axis=None),
    "sort axis": lambda x: np.sort(x, axis=0),
    "argsort": lambda x: np.argsort(x, axis=1, kind="stable"),
    "unique": np.unique,
    "unique counts": lambda x: np.unique(x, return_index=True, return_counts=True),
    "searchsorted": lambda x: np.searchsorted(np.sort(x.ravel()), x),
    "where": lambda x: np.where(x > 0, x, -x),
    "where one": lambda x: np.where(x > 0),
    "nonzero": np.nonzero,
    "argmax": lambda x: np.argmax(x, axis=0),
    "max": np.max,
    "amin": lambda x: np.amin(x, axis=1),
    "mean": lambda x: np.mean(x, axis=0),
    "std": np.std,
    "median": lambda x: np.median(x, axis=0),
    "percentile": lambda x: np.percentile(x, [10, 50]),
    "cumsum": np.cumsum,
    "diff": np.diff,
    "gradient": lambda x: np.gradient(x.astype(float)),
    "clip": lambda x: np.clip(x, -2, 5),
    "round": np.round,
    "dot": lambda x: np.dot(x, x.T),
    "vdot": lambda x: np.vdot(x, x),
    "inner": lambda x: np.inner(x, x),
    "outer": lambda x: np.outer(x, x),
    "tensordot": lambda x: np.tensordot(x, x, 2),
    "einsum": lambda x: np.einsum("ij,kj->ik", x, x),
    "trace": np.trace,
    "kron": lambda x: np.kron(x[:2, :2], x[:2, :2]),
    "meshgrid": lambda x: np.meshgrid(x[0], x[1]),
    "broadcast_to": lambda x: np.broadcast_to(x, (2, 4, 6)).copy(),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, x[0]),
    "pad": lambda x: np.pad(x, 1),
    "roll": lambda x: np.roll(x, 2, axis=1),
    "take": lambda x: np.take(x, [0, 2], axis=1),
    "take_along_axis": lambda x: np.take_along_axis(x, np.argsort(x, axis=1), axis=1),
    "choose": lambda x: np.choose([0, 1, 0, 1, 1, 0], x[:2]),
    "delete": lambda x: np.delete(x, 1, axis=0),
    "insert": lambda x: np.insert(x, 1, 9, axis=1),
    "append": lambda x: np.append(x, x),
    "isin": lambda x: np.isin(x, [1, 2, 3]),
    "histogram": lambda x: np.histogram(x, bins=4),
    "bincount": lambda x: np.bincount(abs(x).astype(int).ravel()),
    "digitize": lambda x: np.digitize(x, [0, 5]),
    "interp": lambda x: np.interp([1.5, 2.5], np.arange(6.0), x[0].astype(float)),
    "array_equal": lambda x: np.array_equal(x, x),
    "allclose": lambda x: np.allclose(x, x),
    "shape": np.shape,
    "ndim": np.ndim,
    "size": np.size,
    "iscomplexobj": np.iscomplexobj,
    "result_type": lambda x: np.result_type(x, np.float32),
    "can_cast": lambda x: np.can_cast(x.dtype, "f8"),
    "copy": np.copy,
    "zeros_like": np.zeros_like,
    "ones_like": lambda x: np.ones_like(x, dtype="f8"),
    "full_like": lambda x: np.full_like(x, 3),
    "flipud": np.flipud,
    "triu": np.triu,
    "diag": lambda x: np.diag(x),
    "real": np.real,
    "nan_to_num": np.nan_to_num,
    "fft": lambda x: np.fft.fft(x),
    "array2string": np.array2string,
    "apply_along_axis": lambda x: np.apply_along_axis(np.sort, 0, x),
    "ix": lambda x: x[np.ix_([0, 1], [1, 2])],
    "bad axis": lambda x: np.sum(x, axis=7),
    "bad shapes": lambda x: np.concatenate([x, x[:, :2]]),
    "bad argument": lambda x: np.sort(x, kind="nonsense"),
}

LINEAR = {
    "solve": lambda x: np.linalg.solve(x, x[0]),
    "inv": np.linalg.inv,
    "det": np.linalg.det,
    "norm": np.linalg.norm,
    "svd": np.linalg.svd,
    "qr": np.linalg.qr,
    "eigh": lambda x: np.linalg.eigh(x + x.T),
    "cholesky": lambda x: np.linalg.cholesky(x @ x.T + np.eye(4)),
    "lstsq": lambda x: np.linalg.lstsq(x, x[0], rcond=None),
    "matrix_power": lambda x: np.linalg.matrix_power(x, 3),
    "slogdet": np.linalg.slogdet,
    "multi_dot": lambda x: np.linalg.multi_dot([x, x, x]),
    "pinv": np.linalg.pinv,
    "singular": lambda x: np.linalg.inv(x * 0),
    "not square": lambda x: np.linalg.inv(x[:2]),
}


class TestFunctions:
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_of_a_function(self, umem, name):
        for dtype in ("i4", "f8", "f4"):
            check(umem, FUNCTIONS[name], sample(dtype), name=name)

    @pytest.mark.parametrize("call", LINEAR.values(), ids=LINEAR)
    def test_linear_algebra(self, umem, call):
        check(umem, call, np.random.default_rng(0).standard_normal((4, 4)) + 2 * np.eye(4))

    def test_named_results_keep_their_names(self, umem):
        a = umem.array(np.random.default_rng(0).standard_normal((4, 4)))
        result = np.linalg.svd(a)
        assert type(result.S) is umem.ndarray
        assert type(np.linalg.slogdet(a).logabsdet) is np.float64
        values, counts = np.unique_counts(umem.array([1, 1, 2]))
        assert type(values) is type(counts) is umem.ndarray

    def test_mixed_arguments(self, umem):
        n = np.arange(3)
        a = umem.arange(3)
        for result in (
            np.concatenate([a, n]),
            np.concatenate([n, a]),
            np.where(n > 0, a, n),
            np.stack((n, a)),
            np.dot(n, a[:, None]),
        ):
            assert type(result) is umem.ndarray

    def test_out(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        for call, shape in (
            (lambda out: np.concatenate([a, a], out=out), (4, 3)),
            (lambda out: np.dot(a, a.T, out=out), (2, 2)),
            (lambda out: np.mean(a, axis=0, out=out), (3,)),
            (lambda out: np.cumsum(a, out=out), (6,)),
            (lambda out: np.clip(a, 1, 3, out=out), (2, 3)),
            (lambda out: np.take(a, [0], axis=0, out=out), (1, 3)),
            (lambda out: np.max(a, axis=1, out=out), (2,)),
            (lambda out: np.einsum("ij->j", a, out=out), (3,)),
        ):
            out, target = umem.zeros(shape), np.zeros(shape)
            assert call(out) is out
            call(target)
            assert_same(out, target)

    CHANGES = {
        "copyto": lambda x: np.copyto(x, x[::-1].copy()),
        "copyto where": lambda x: np.copyto(x, 7, where=x > 0),
        "copyto cast": lambda x: np.copyto(x, 2.5, casting="unsafe"),
        "copyto refused": lambda x: np.copyto(x, "x"),
        "put": lambda x: np.put(x, [0, 5], [70, 71]),
        "putmask": lambda x: np.putmask(x, x > 0, [1, 2]),
        "place": lambda x: np.place(x, x > 0, [1, 2, 3]),
        "put_along_axis": lambda x: np.put_along_axis(x, np.zeros((4, 1), int), 99, axis=1),
        "fill_diagonal": lambda x: np.fill_diagonal(x, 55),
        "nan_to_num": lambda x: np.nan_to_num(x, copy=False) is x,
        "sort": lambda x: x.sort(),
        "sort axis": lambda x: x.sort(axis=0),
        "partition": lambda x: x.partition(2),
        "put method": lambda x: x.put([1], 5),
        "shuffle": lambda x: np.random.default_rng(0).shuffle(np.asarray(x)),
        "random out": lambda x: (
            np.random.default_rng(0).random(out=np.asarray(x).view()) if x.dtype == "f8" else None
        ),
    }

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_what_changes_its_argument_changes_the_array(self, umem, change):
        for dtype in ("i4", "f8"):
            n, a = sample(dtype), umem.array(sample(dtype))
            expected, actual = outcome(change, n), outcome(change, a)
            assert actual[0][:2] == expected[0][:2]
            assert_same(a, n)

    def test_copyto_between_the_two(self, umem):
        a, n = umem.zeros(3), np.arange(3.0)
        np.copyto(a, n)
        assert a.tolist() == [0, 1, 2]
        np.copyto(n, a + 1)
        assert n.tolist() == [1, 2, 3]
        assert type(n) is np.ndarray

    def test_pending_work_is_seen(self, umem):
        a = umem.zeros(1000, "f4")
        umem.add(a, 1, out=a)
        assert np.concatenate([a, a]).sum() == 2000
        umem.add(a, 1, out=a)
        assert np.linalg.norm(a) == np.sqrt(np.float32(4000))
        umem.add(a, 1, out=a)
        assert np.sort(a)[0] == 3

    def test_views_of_views(self, umem):
        a = umem.array(sample("f8"))
        assert np.shares_memory(a, a[1:])
        assert np.may_share_memory(a, a[1:])
        assert not np.shares_memory(a, a.copy())
        assert np.shares_memory(a, np.asarray(a))
        assert address(np.asarray(a)) == address(a)

    def test_duck_types_that_know_better_are_asked(self, umem):
        class Proud:
            def __array_function__(self, function, types, args, kwargs):
                return "proud"

        assert np.concatenate([umem.ones(3), Proud()]) == "proud"

    def test_text(self, umem, tmp_path):
        a = umem.array(sample("f8"))
        stream = io.StringIO()
        np.savetxt(stream, a)
        stream.seek(0)
        np.testing.assert_allclose(np.loadtxt(stream), sample("f8"))
        np.save(tmp_path / "a.npy", a)
        assert_same(np.load(tmp_path / "a.npy"), sample("f8"))
        np.savez(tmp_path / "a.npz", a=a)
        assert_same(np.load(tmp_path / "a.npz")["a"], sample("f8"))

    def test_testing_functions_take_them(self, umem):
        a = umem.arange(3)
        np.testing.assert_array_equal(a, [0, 1, 2])
        with pytest.raises(AssertionError):
            np.testing.assert_array_equal(a, [0, 1, 3])

    @pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.kind in "MmSUV"], ids=str)
    def test_other_dtypes(self, umem, dtype):
        n = sample(dtype)
        for call in (
            lambda x: np.concatenate([x, x]),
            lambda x: np.tile(x, 2),
            np.copy,
            lambda x: x == x,
            lambda x: np.take(x, [1, 0], axis=0),
        ):
            check(umem, call, n)
        if dtype.kind in "Mm":
            check(umem, lambda x: x - x[0], n)
            check(umem, np.max, n)
            check(umem, np.isnat, n)

    def test_arrays_of_all_numbers(self, umem):
        for dtype in NUMBERS:
            check(umem, lambda x: np.concatenate([x, x[:1]]), sample(dtype))
            check(umem, np.unique, sample(dtype))

    def test_scikit_learn_takes_them(self, umem):
        linear_model = pytest.importorskip("sklearn.linear_model")
        x = np.random.default_rng(0).standard_normal((50, 3))
        model = linear_model.LinearRegression().fit(umem.array(x), umem.array(x @ [1.0, 2.0, 3.0]))
        np.testing.assert_allclose(model.coef_, [1, 2, 3])


class TestOperandsByProtocol:
    """What an operand or `out` of another kind offers decides who computes."""

    def test_dlpack_only(self, umem):
        a, b = umem.ones(5), umem.arange(5.0)
        total = umem.add(a, Exporter(b, "__dlpack__", "__dlpack_device__"))
        assert_same(total, np.ones(5) + np.arange(5.0))

    @pytest.mark.backends("fake")
    def test_cuda_array_interface_only(self, umem):
        a, b = umem.ones(5), umem.arange(5.0)
        assert_same(
            umem.add(a, Exporter(b, "__cuda_array_interface__")), np.ones(5) + np.arange(5.0)
        )

    def test_an_output_that_computes_itself(self, umem):
        class Output:
            def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
                return "mine"

        assert np.add(umem.ones(3), 1, out=Output()) == "mine"

    def test_outputs_of_axpy(self, umem):
        x, y = umem.arange(3.0), umem.ones(3)
        out = umem.zeros(3)
        assert umem.axpy(2, x, y, out=(out,)) is out
        assert_same(out, np.array([1.0, 3.0, 5.0]))
        with pytest.raises(TypeError, match="out must be an array"):
            umem.axpy(2, x, y, out="x")

    def test_scalars_in_arrays(self, umem):
        x, y = umem.arange(3, dtype="f4"), umem.ones(3, "f4")
        assert_same(umem.axpy(np.array(2.0, "f4"), x, y), np.array([1, 3, 5], "f4"))
        assert_same(umem.axpy(umem.array(2.0, "f4"), x, y), np.array([1, 3, 5], "f4"))

    @pytest.mark.parametrize(
        "axis",
        [
            True, (0, True), 7, (0, 0), -4, 1.5, 2**70, "0", b"\0", [0], {0}, range(1), np.array([0]), ([0],),
        ],
    )  # fmt: skip
    def test_axes_that_are_none(self, umem, axis):
        a, n = umem.ones((2, 3), "f4"), np.ones((2, 3), "f4")
        wanted = outcome(n.sum, axis=axis)
        assert outcome(a.sum, axis=axis)[0][:2] == (
            wanted[0][0],
            umem.ndarray if wanted[0][1] is np.ndarray else wanted[0][1],
        )

    def test_casting_equiv(self, umem):
        a, n = umem.ones(3, "f4"), np.ones(3, "f4")
        assert_same(np.add(a, a, casting="equiv"), np.add(n, n, casting="equiv"))
        with pytest.raises(TypeError):
            np.add(a, 1, out=umem.ones(3, "f8"), casting="equiv")

    def test_copyto_refuses_as_numpy_does(self, umem):
        a = umem.zeros(3, "i4")
        with pytest.raises(TypeError):
            np.copyto(a, umem.ones(3), casting="no")
        assert_same(a, np.zeros(3, "i4"))

    def test_array_repr(self, umem):
        a, n = umem.arange(3.0), np.arange(3.0)
        assert np.array_repr(a, precision=2) == "umem." + np.array_repr(n, precision=2)

    def test_reductions_of_others_into_an_array(self, umem):
        out = umem.zeros(())
        np.sum(np.ones(3), out=out)
        assert out[()] == 3

    @pytest.mark.parametrize("exponent", [2, 2.0, 0.5, -1.0, 3, -1, np.float32(2)])
    @pytest.mark.parametrize("dtype", ["f4", "i4", "c8"])
    def test_powers(self, umem, dtype, exponent):
        n = np.array([1, 2, 4], dtype)
        assert outcome(umem.array(n).__pow__, exponent)[0][0] == outcome(n.__pow__, exponent)[0][0]
        if not (dtype == "i4" and exponent == -1 and type(exponent) is int):
            if umem._core.has_kernels():
                assert_near("power", umem.array(n) ** exponent, n**exponent)
            else:
                assert_same(umem.array(n) ** exponent, n**exponent)

    def test_operands_that_take_over(self, umem):
        class Left:
            __array_ufunc__ = None

            def __rpow__(self, other):
                return "pow"

            def __radd__(self, other):
                return "add"

            def __rmatmul__(self, other):
                return "matmul"

        a = umem.ones((2, 2))
        assert a ** Left() == "pow"
        assert a + Left() == "add"
        assert a @ Left() == "matmul"
        a @= Left()
        assert a == "matmul"
