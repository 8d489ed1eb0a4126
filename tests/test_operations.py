"""Every operation that has kernels, on every dtype, layout and kind of special value: NumPy is the oracle.

What IEEE 754 rounds is compared bit for bit. Functions with errors of their own are compared with NumPy's in the next wider type, in units
in the last place (the bounds are those of support.ULPS), so that the same tests hold on a GPU.
"""

import operator

import numpy as np
import pytest

from support import OPERATIONS, ULPS, assert_near, assert_same, walked_strides

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*encountered in:RuntimeWarning", "ignore:'where' used without:UserWarning"
)

DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
#: float32 into every second element of `out`: NumPy 2.4 writes side by side what it should spread
NUMPY_IS_WRONG = ("isnan", "isinf", "isfinite", "signbit")


def values(dtype, seed=0):
    """A hundred numbers: the special ones and ordinary ones of every size."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, 100).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        some = [0, 1, 2, 3, 5, 7, 8, 31, 63, 64, info.max, info.max - 1, info.min, info.min + 1]
        some += [-1, -2, -7] if dtype.kind == "i" else []
        small = rng.integers(max(info.min, -20), 21, 30)
        large = rng.integers(info.min, info.max, 100 - 30 - len(some), dtype, True)
        return np.concatenate([np.array(some, dtype), small.astype(dtype), large])
    if dtype.kind == "c":
        part = {"F": "f4", "D": "f8"}[dtype.char]
        few = np.array([0, -0.0, 1, -2.5, np.inf, -np.inf, np.nan], part)
        z = np.empty(100, dtype)
        z.real = np.resize(np.repeat(few, len(few)), 100)
        z.imag = np.resize(few, 100)
        z.real[60:], z.imag[60:] = rng.standard_normal((2, 40))
        return z
    info = np.finfo(dtype)
    some = [0.0, 1.0, 0.5, 2.0, 3.0, 10.0, 0.1, 1e-3, 100.0, info.max, info.tiny, info.eps, np.inf]
    some += [info.smallest_subnormal, info.smallest_subnormal * 3, 1 - info.epsneg]
    numbers = np.concatenate([some, rng.uniform(0, 5, 24), np.exp(rng.uniform(-8, 8, 10))])
    return np.concatenate([numbers[:49], -numbers[:49], [np.nan, 1.5]]).astype(dtype)


def operands(name, dtype):
    """Inputs of shape (10, 10): each number with a number of another order."""
    nin = OPERATIONS[name].nin if name in OPERATIONS else 3
    return [values(dtype)[(np.arange(100) * step) % 100].reshape(10, 10) for step in (1, 7, 13)][
        :nin
    ]


def misaligned(umem, n):
    """An array whose elements lie on odd addresses."""
    raw = umem.array(np.frombuffer(b"x" + n.tobytes(), "u1"))
    return raw[1:].view(n.dtype).reshape(n.shape)


#: what to do with NumPy's array and umem's alike
LAYOUTS = {
    "contiguous": lambda x: x,
    "every second": lambda x: x[:, ::2],
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1, ::-1],
    "row": lambda x: x[3],
    "one element": lambda x: x[1:2, 2:3],
    "empty": lambda x: x[:0],
    "no axes": lambda x: x[1, 2, ...],
}


def expect(name, inputs):
    """NumPy's result in the dtype of its loop; and the same in a wider type where that is the oracle."""
    ufunc = OPERATIONS[name]
    result = ufunc(*inputs)
    if name not in ULPS or result.dtype.kind != "f":
        return result, None
    dtype = inputs[0].dtype
    if dtype.kind == "c":
        return result, ufunc(*(x.astype({"F": "c16", "D": "G"}[dtype.char]) for x in inputs))
    wide = {"e": "f4", "f": "f8", "d": "g"}[result.dtype.char]
    return result, ufunc(*(x.astype(result.dtype).astype(wide) for x in inputs))


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operation(umem, name):
    function = getattr(umem, name)
    loops = {one.str: other for one, other in umem._core.op_loops(name)}
    for dtype in DTYPES:
        inputs = operands(name, dtype)
        rule = "negative" if name == "absolute" and dtype not in ("c8", "c16") else name  # exact
        if name == "power" and inputs[0].dtype.kind == "i":
            inputs[1] = abs(inputs[1] % 9)
        try:
            expected, wide = expect(name, inputs)
        except TypeError:
            assert np.dtype(dtype).str not in loops
            with pytest.raises(TypeError):
                function(*map(umem.array, inputs))
            continue
        if np.dtype(dtype).str in loops:
            assert expected.dtype == loops[np.dtype(dtype).str], dtype
        for layout, view in LAYOUTS.items():
            result = function(*(view(umem.array(x)) for x in inputs))
            part, wide_part = view(expected), None if wide is None else view(wide)
            if layout == "no axes":
                assert isinstance(result, np.generic)
                part, wide_part = part[()], None if wide is None else wide_part[()]
            else:
                assert type(result) is umem.ndarray
                if layout != "empty":
                    assert walked_strides(result) == walked_strides(part.copy("K"))
            assert_near(rule, result, part, wide_part, (name, dtype, layout))
        odd = function(*(misaligned(umem, x) for x in inputs))
        assert_near(rule, odd, expected, wide, (name, dtype, "misaligned"))
        out = umem.empty((10, 20), expected.dtype)[:, 1::2]
        if name in NUMPY_IS_WRONG and not umem._core.has_kernels():
            continue
        assert function(*map(umem.array, inputs), out=out) is out
        assert_near(rule, out, expected, wide, (name, dtype, "out"))
        if len(inputs) > 1:
            rows = [inputs[0], *(x[3] for x in inputs[1:])]
            expected, wide = expect(name, [np.broadcast_to(x, (10, 10)) for x in rows])
            result = function(*map(umem.array, rows))
            assert_near(rule, result, expected, wide, (name, dtype, "row and matrix"))


class TestFused:
    """axpy, addcmul and lerp, against the next wider type: within a rounding of the sum and, where NumPy computes, one of the product."""

    FORMS = {
        "axpy": (lambda a, x, y: a * x + y, lambda a, x, y: abs(a * x) + abs(y)),
        "addcmul": (lambda x, a, b: x + a * b, lambda x, a, b: abs(a * b) + abs(x)),
        "lerp": (lambda a, b, t: a + t * (b - a), lambda a, b, t: (abs(a) + abs(b)) * (1 + abs(t))),
    }

    @pytest.mark.parametrize("name", FORMS)
    def test_floating_point(self, umem, name):
        form, size = self.FORMS[name]
        for dtype in ("f2", "f4", "f8", "c8", "c16"):
            if name == "lerp" and dtype[0] == "c":
                continue
            inputs = operands(name, dtype)
            wide = {"f2": "f8", "f4": "f8", "f8": "g", "c8": "c16", "c16": "G"}[dtype]
            plain = [x.astype(wide) for x in inputs]
            with np.errstate(all="ignore"):
                exact, scale = form(*plain), size(*plain)
            limits = np.finfo(dtype)
            usual = np.isfinite(exact) & (scale < limits.max / 4)
            bound = np.maximum(scale * limits.eps * 2, limits.smallest_subnormal * 2)
            for view in LAYOUTS.values():
                result = getattr(umem, name)(*(view(umem.array(x)) for x in inputs))
                assert result.dtype == dtype
                got, want = np.asarray(result), view(exact)
                wrong = abs(got.astype(wide) - want) > view(bound)
                assert not (wrong & view(usual)).any(), (name, dtype)
                if dtype[0] == "f" and name != "lerp":
                    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))

    @pytest.mark.backends("fake")
    def test_rounds_once(self, umem):
        x = np.array([1 + 2**-12], "f4")
        a = umem.array(x)
        assert umem.axpy(a, a, umem.array(-(x * x)))[0] == 2**-24
        assert umem.addcmul(umem.array(-(x * x)), a, a)[0] == 2**-24

    @pytest.mark.parametrize("dtype", DTYPES[1:9])
    def test_integers_wrap(self, umem, dtype):
        x, y, z = operands("axpy", dtype)
        assert_same(umem.axpy(*map(umem.array, (x, y, z))), x * y + z)
        assert_same(umem.addcmul(*map(umem.array, (x, y, z))), x + y * z)

    def test_lerp_meets_both_ends(self, umem):
        a, b = (umem.array(values("f4", seed)[13:49]) for seed in (1, 2))
        assert_same(umem.lerp(a, b, 0.0), a.numpy())
        assert_same(umem.lerp(a, b, 1.0), b.numpy())
        assert umem.lerp(umem.array([1, 2]), 4, 0.5).tolist() == [2.5, 3]

    def test_errors_name_the_function(self, umem):
        a = umem.ones(3)
        for args, kwargs in [
            ((a, a), {}),
            ((a, a), {"t": 1}),
            ((a, a, a), {"dtype": "f4"}),
            ((a, a, a, a), {"out": a}),
            ((a, a, a, a, a), {}),
        ]:
            with pytest.raises(TypeError, match=r"^lerp\(\)"):
                umem.lerp(*args, **kwargs)
        assert umem.lerp(a, a, a, a) is umem.lerp(a, a, a, out=a) is a

    def test_out_and_refusals(self, umem):
        a = umem.ones((3, 4), "f4")
        out = umem.empty((3, 4), "f8")
        for name in self.FORMS:
            function = getattr(umem, name)
            assert function(a, 2, 3, out=out) is out
            assert function(a, a, a, out=(a,)) is a
            a[...] = 1
            with pytest.raises(TypeError):
                function(a, a, a, out=[1])
            with pytest.raises(ValueError, match="broadcast"):
                function(a, a, umem.ones(5))


class TestTypes:
    @pytest.mark.parametrize("name", sorted(OPERATIONS))
    def test_each_kernel_is_a_loop_of_numpys(self, umem, name):
        ufunc = OPERATIONS[name]
        for one, result in umem._core.op_loops(name):
            loop = ufunc.resolve_dtypes((*(one,) * ufunc.nin, None))
            assert loop == (*(one,) * ufunc.nin, result)

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize("name", sorted(OPERATIONS))
    def test_each_kernel_is_used(self, umem, fake, name):
        ufunc = OPERATIONS[name]
        for dtype, result in umem._core.op_loops(name):
            if name == "power" and dtype.kind == "i":
                continue
            a = umem.ones(1000, dtype)
            out = umem.empty(1000, result)
            for call in (getattr(umem, name), ufunc):
                before = fake.counter("launches")
                call(*(a,) * ufunc.nin, out=out)
                assert fake.counter("launches") == before + 1, (name, dtype)

    def test_every_dtype_has_its_python_and_numpy_scalars(self, umem):
        for dtype in DTYPES[1:]:
            n = values(dtype)
            a = umem.array(n)
            scalar = n.dtype.type(3)
            for other in (
                (3, True, scalar, np.int8(3))
                if dtype not in ("u1", "u2", "u4", "u8")
                else (3, True, scalar)
            ):
                assert_same(a + other, n + other)
                assert_same(other - a, other - n)
                assert_same(np.equal(a, other), np.equal(n, other))
        for dtype in ("c8", "c16"):
            n = values(dtype)
            for other in (1.5, 2 - 3j, n.dtype.type(1j)):
                assert_same(umem.array(n) + other, n + other)
        assert_same(umem.array(np.array([True, False])) | True, np.array([True, True]))

    def test_python_integers_out_of_range(self, umem):
        for dtype in ("i1", "u1", "i4", "u8"):
            n = values(dtype)
            for other in (1 << 70, -(1 << 70), 300, -300):
                assert_same(umem.array(n) < other, n < other)
                assert_same(umem.array(n) == other, n == other)
                try:
                    expected = n + other
                except OverflowError:
                    with pytest.raises(OverflowError):
                        umem.array(n) + other
                else:
                    assert_same(umem.array(n) + other, expected)


class TestPower:
    def test_of_integers(self, umem):
        for dtype in DTYPES[1:9]:
            n = values(dtype)
            for exponent in (0, 1, 2, 3, 7, 100):
                assert_same(umem.power(umem.array(n), exponent), np.power(n, exponent))
                assert_same(umem.array(n) ** exponent, n**exponent)

    def test_negative_powers_of_integers_raise_as_numpys(self, umem):
        a = umem.array([1, 2, 3])
        for call in (
            lambda: a**-1,
            lambda: np.power(a, a - 2),
            lambda: umem.power(a, np.int64(-1)),
        ):
            with pytest.raises(ValueError, match="negative integer powers"):
                call()
        assert (umem.array([1, 2, 3], "u1") ** umem.array([3, 2, 9], "u1")).tolist() == [1, 4, 227]

    def test_float_power(self, umem):
        a = umem.array([1, 2, 3], "i4")
        result = np.float_power(a, -1)
        assert result.dtype == np.float64
        np.testing.assert_allclose(result.numpy(), [1, 0.5, 1 / 3], rtol=1e-15)


class TestDivision:
    @pytest.mark.parametrize("dtype", DTYPES[1:12])
    def test_divmod(self, umem, dtype):
        x, y = operands("floor_divide", dtype)
        for call in (np.divmod, divmod):
            for actual, expected in zip(
                call(umem.array(x), umem.array(y)), call(x, y), strict=True
            ):
                assert_same(actual, expected)
        for actual, expected in zip(divmod(7, umem.array(y)), divmod(7, y), strict=True):
            assert_same(actual, expected)


class TestWhere:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_dtype_and_layout(self, umem, dtype):
        x, y = operands("equal", dtype)
        condition = values("?").reshape(10, 10)
        for view in LAYOUTS.values():
            expected = np.where(view(condition), view(x), view(y))
            parts = [view(umem.array(v)) for v in (condition, x, y)]
            for call in (umem.where, np.where):
                result = call(*parts)
                assert type(result) is umem.ndarray
                assert_same(result, expected)
        result = umem.where(umem.array(condition), umem.array(x[3]), y[:, 2:3])
        assert_same(result, np.where(condition, x[3], y[:, 2:3]))
        out = umem.array(y)
        assert umem.where(umem.array(condition), umem.array(x), out, out=out) is out
        assert_same(out, np.where(condition, x, y))

    def test_scalars_and_other_conditions(self, umem):
        n = values("f4")
        a = umem.array(n)
        for x, y in ((1, 0), (a, 0), (2.5, a), (a, np.float64(1)), (a, 1j)):
            plain = [v.numpy() if isinstance(v, umem.ndarray) else v for v in (x, y)]
            assert_same(umem.where(a > 0, x, y), np.where(n > 0, *plain))
            assert_same(np.where(a, x, y), np.where(n, *plain))
        assert np.where(umem.array([0, 1, 2]))[0].tolist() == [1, 2]
        with pytest.raises(ValueError, match="broadcast"):
            umem.where(a > 0, a[:3], a)

    def test_overlapping_out(self, umem):
        n = np.arange(20.0)
        a = umem.array(n)
        umem.where(umem.array([True, False] * 9 + [True]), a[:-1], 0.0, out=a[1:])
        n[1:] = np.where([True, False] * 9 + [True], n[:-1], 0.0)
        assert_same(a, n)


class TestClip:
    @pytest.mark.parametrize("dtype", DTYPES[1:12])
    def test_as_numpys(self, umem, dtype):
        x, y = operands("maximum", dtype)
        for low, high in ((1, 7), (None, 5), (2, None), (y, 9), (1, y)):
            given = [umem.array(v) if isinstance(v, np.ndarray) else v for v in (low, high)]
            assert_same(np.clip(umem.array(x), *given), np.clip(x, low, high))
            assert_same(umem.array(x).clip(*given), x.clip(low, high))
        assert_same(np.clip(umem.array(x), min=1, max=3), np.clip(x, 1, 3))
        out = umem.empty_like(umem.array(x))
        assert np.clip(umem.array(x), 1, 3, out) is out
        assert_same(out, np.clip(x, 1, 3))

    def test_refusals(self, umem):
        a = umem.ones(3)
        with pytest.raises(ValueError, match="forbidden"):
            np.clip(a, 1, 2, min=1)


class TestMasks:
    """Calls with where=."""

    @pytest.mark.parametrize("dtype", ["?", "i1", "u4", "i8", "f2", "f4", "c8", "c16"])
    def test_what_is_masked_stays(self, umem, dtype):
        x, y = operands("equal", dtype)
        mask = values("?").reshape(10, 10)
        for where in (mask, mask[2], mask[:, :1], np.array(True), False, np.array(False)):
            for ufunc in (np.add, np.equal, np.maximum, np.logical_not):
                inputs = (x, y)[: ufunc.nin]
                expected = np.full((10, 10), 1, ufunc(*inputs).dtype)
                out = umem.array(expected)
                expected = ufunc(*inputs, out=expected, where=where)
                given = umem.array(where) if isinstance(where, np.ndarray) else where
                result = ufunc(*map(umem.array, inputs), out=out, where=given)
                assert result is out
                assert_same(out, expected)
        result = np.negative(umem.array([1.0, 2.0]), where=umem.array([True, False]))
        assert result[0] == -1
        assert result.shape == (2,)

    def test_types_shapes_and_overlap(self, umem):
        n = np.arange(12.0).reshape(3, 4)
        a, mask = umem.array(n), n % 3 == 0
        out, expected = umem.zeros((3, 4), "f4"), np.zeros((3, 4), "f4")
        np.multiply(a, 2, out=out, where=umem.array(mask), casting="same_kind")
        np.multiply(n, 2, out=expected, where=mask, casting="same_kind")
        assert_same(out, expected)
        np.add(a, 1, out=a, where=umem.array(mask))
        np.add(n, 1, out=n, where=mask)
        assert_same(a, n)
        flags, plain = umem.array(mask), mask.copy()
        np.logical_not(flags, out=flags, where=flags)
        np.logical_not(plain, out=plain, where=plain.copy())
        assert_same(flags, plain)
        for wrong in (np.ones(5, bool), np.ones((3, 4))):
            with pytest.raises((TypeError, ValueError)):
                np.add(a, 1, where=umem.array(wrong))

    @pytest.mark.backends("fake")
    def test_a_kernel_computes(self, umem, fake):
        a, mask = umem.ones(1000, "f4"), umem.ones(1000, "?")
        out = umem.empty(1000, "f4")
        before = fake.counter("launches")
        np.add(a, a, out=out, where=mask)
        assert fake.counter("launches") == before + 2
        assert (out == 2).all()


class TestOperators:
    @pytest.mark.parametrize(
        "name",
        ["add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift",
         "lt", "le", "gt", "ge", "eq", "ne"],
    )  # fmt: skip
    def test_on_every_dtype(self, umem, name):
        function = getattr(operator, name)
        for dtype in DTYPES:
            x, y = operands("equal", dtype)
            if dtype in ("c8", "c16"):
                x, y = x.ravel()[60:], y.ravel()[60:]
            try:
                expected = function(x, y)
            except TypeError:
                with pytest.raises(TypeError):
                    function(umem.array(x), umem.array(y))
                continue
            assert_near(name, function(umem.array(x), umem.array(y)), expected, None, (name, dtype))

    def test_unary(self, umem):
        for dtype in DTYPES:
            x = values(dtype)
            for function in (operator.neg, operator.pos, operator.invert, abs):
                try:
                    expected = function(x)
                except TypeError:
                    with pytest.raises(TypeError):
                        function(umem.array(x))
                    continue
                name = "absolute" if dtype in ("c8", "c16") and function is abs else "negative"
                assert_near(name, function(umem.array(x)), expected, None, dtype)

    def test_other_dtypes_of_out(self, umem):
        for dtype, other in (("i1", "i8"), ("f4", "f8"), ("f2", "c8"), ("i4", "f8"), ("u1", "f2")):
            x, y = operands("add", dtype)
            out, expected = umem.empty((10, 10), other), np.empty((10, 10), other)
            np.add(umem.array(x), umem.array(y), out=out)
            assert_same(out, np.add(x, y, out=expected))
            assert_same(
                np.add(umem.array(x), umem.array(y), dtype=other), np.add(x, y, dtype=other)
            )
