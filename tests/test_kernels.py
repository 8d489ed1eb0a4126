"""Kernels: every operation on every dtype and layout gives what NumPy gives, and runs where it is promised to run."""

import contextlib
import math
import operator
import types
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from support import (
    KERNEL_DTYPES,
    NUMBERS,
    VIEWS,
    address,
    assert_same,
    assert_same_array,
    outcome,
    sample,
    specials,
    walked_strides,
)

fake_only = pytest.mark.backends("fake")

BINARY = ["add", "subtract", "multiply", "true_divide"]
OPERATORS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "true_divide": operator.truediv,
}
IN_PLACE = {
    "add": operator.iadd,
    "subtract": operator.isub,
    "multiply": operator.imul,
    "true_divide": operator.itruediv,
}

quiet = pytest.mark.filterwarnings(
    "ignore:.*encountered in:RuntimeWarning", "ignore:Casting complex values"
)


def numpy_result(function, *args, **kwargs):
    with np.errstate(all="ignore"):
        return function(*args, **kwargs)


def pair(dtype, shape=(4, 6), seed=0):
    """Two operands of ordinary values."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype), (rng.random(shape) + 0.5).astype(dtype)
    return rng.integers(-1000, 1000, shape).astype(dtype), rng.integers(1, 1000, shape).astype(
        dtype
    )


@contextlib.contextmanager
def launches(fake, least=1):
    """Asserts that the block launched kernels, and that the host did nothing with the data meanwhile."""
    before = (
        fake.counter("launches"),
        fake.counter("host_fault_bytes"),
        fake.counter("to_host_bytes"),
    )
    yield
    assert fake.counter("launches") >= before[0] + least
    assert (fake.counter("host_fault_bytes"), fake.counter("to_host_bytes")) == before[1:]


def on_device(umem, n):
    """A copy of a NumPy array whose pages are on the GPU."""
    a = umem.array(n)
    a.prefetch("cuda")
    umem.synchronize()
    return a


@quiet
class TestElementwise:
    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    @pytest.mark.parametrize("op", BINARY)
    def test_binary_on_every_layout(self, umem, op, dtype, view):
        x, y = pair(dtype)
        expected = getattr(np, op)(VIEWS[view](x), VIEWS[view](y))
        a, b = VIEWS[view](umem.array(x)), VIEWS[view](umem.array(y))
        for call in (getattr(umem, op), getattr(np, op), OPERATORS[op]):
            result = call(a, b)
            assert_same(result, expected)
            if isinstance(expected, np.ndarray):
                assert type(result) is umem.ndarray
                assert walked_strides(result) == walked_strides(expected)

    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_negative_on_every_layout(self, umem, dtype, view):
        x, _ = pair(dtype)
        expected = -VIEWS[view](x)
        a = VIEWS[view](umem.array(x))
        for call in (umem.negative, np.negative, operator.neg):
            assert_same(call(a), expected)

    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    @pytest.mark.parametrize("op", BINARY)
    def test_special_values(self, umem, op, dtype):
        values = specials(dtype)
        expected = numpy_result(getattr(np, op), values[:, None], values[None, :])
        a = umem.array(values)
        assert_same_array(umem, getattr(umem, op)(a[:, None], a[None, :]), expected)
        for value in values:
            assert_same_array(
                umem, getattr(umem, op)(a, value), numpy_result(getattr(np, op), values, value)
            )
            assert_same_array(
                umem, getattr(umem, op)(value, a), numpy_result(getattr(np, op), value, values)
            )

    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_special_values_of_negative(self, umem, dtype):
        assert_same_array(umem, umem.negative(umem.array(specials(dtype))), -specials(dtype))

    @pytest.mark.parametrize("op", [*BINARY, "axpy"])
    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_every_length_around_the_vector_width(self, umem, dtype, op):
        for count in (
            1,
            2,
            3,
            4,
            5,
            7,
            8,
            9,
            15,
            16,
            17,
            31,
            33,
            63,
            65,
            127,
            129,
            255,
            257,
            1023,
            1025,
            4097,
            100_003,
        ):
            x, y = pair(dtype, count)
            a, b = umem.array(x), umem.array(y)
            if op == "axpy" and count < 2000:
                assert_axpy(umem, umem.axpy(3, a, b), 3, x, y)
            elif op == "axpy":
                np.testing.assert_allclose(
                    np.asarray(umem.axpy(3, a, b)), 3 * x + y, rtol=1e-6, atol=1e-6
                )
            else:
                assert_same(getattr(umem, op)(a, b), getattr(np, op)(x, y))

    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_every_start_within_a_vector(self, umem, dtype):
        x, y = pair(dtype, 300)
        a, b = umem.array(x), umem.array(y)
        for i in range(5):
            for j in range(5):
                out = umem.zeros(300, dtype)
                umem.add(a[i : i + 250], b[j : j + 250], out=out[i + j : i + j + 250])
                assert_same(out[i + j : i + j + 250], x[i : i + 250] + y[j : j + 250])
                assert not out[: i + j].any()
                assert not out[i + j + 250 :].any()

    BROADCASTS = [
        ((4, 6), (6,)), ((4, 6), (1, 6)), ((4, 1), (1, 6)), ((4, 6), ()), ((), (4, 6)), ((1,), (5,)), ((2, 1, 3), (4, 1)),
        ((1, 1), (1, 1)), ((0, 3), (1, 3)), ((0,), ()), ((5, 1, 1, 2), (3, 4, 1)), ((2,), (3, 1, 2)), ((300, 1), (1, 500)),
        ((1,) * 10 + (3,), (2, 3)), ((2,) * 12, (2,)),
    ]  # fmt: skip

    @pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_broadcasting(self, umem, dtype, shapes):
        x, _ = pair(dtype, shapes[0])
        _, y = pair(dtype, shapes[1], 1)
        for op in BINARY:
            assert_same(getattr(umem, op)(umem.array(x), umem.array(y)), getattr(np, op)(x, y))

    def test_shapes_that_do_not_broadcast(self, umem):
        for left, right in (((3,), (4,)), ((2, 3), (2,)), ((2, 3), (3, 2))):
            for call in (umem.add, np.add, operator.add):
                with pytest.raises(ValueError, match="broadcast"):
                    call(umem.zeros(left), umem.zeros(right))

    @given(data=st.data(), dtype=st.sampled_from(KERNEL_DTYPES), op=st.sampled_from(BINARY))
    def test_any_views(self, umem, data, dtype, op):
        shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=5))

        def operand(shape, seed):
            steps = [data.draw(st.sampled_from([1, 1, 2, 3, -1])) for _ in shape]
            axes = data.draw(st.permutations(range(len(shape))))
            whole = tuple(shape[axis] * abs(steps[axis]) for axis in axes)
            x = pair(dtype, whole, seed)[1]
            back = np.argsort(axes)
            key = tuple(slice(None, None, step) for step in steps)
            return [
                array.transpose(back)[key] if len(shape) else array for array in (umem.array(x), x)
            ]

        (a, x), (b, y) = (operand(shape, seed) for seed, shape in enumerate(shapes.input_shapes))
        expected = getattr(np, op)(x, y)
        assert_same(getattr(umem, op)(a, b), expected)
        if isinstance(expected, np.ndarray):
            out, target = operand(shapes.result_shape, 9)
            if out.dtype == expected.dtype:
                getattr(umem, op)(a, b, out=out)
                target[...] = expected
                assert_same(out, target)
                if out.base is not None:
                    assert_same(
                        out.base,
                        target.base.reshape(out.base.shape) if target.base is not None else target,
                    )

    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_misaligned_operands(self, umem, dtype):
        size = np.dtype(dtype).itemsize
        x, y = pair(dtype, 50)
        for shift in range(1, size):
            raw = umem.zeros(60 * size, "u1")
            a = raw[shift : shift + 50 * size].view(dtype)
            assert not a.flags.aligned
            a[...] = x
            assert_same(a, x)
            assert_same(umem.add(a, umem.array(y)), x + y)
            umem.add(umem.array(y), 1, out=a)
            assert_same(a, (y + y.dtype.type(1)))
            assert_same(a.copy(), y + y.dtype.type(1))
            assert float(a.sum()) == pytest.approx(float(np.sum(y.astype("f8") + 1)))

    def test_offsets_beyond_32_bits(self, umem):
        a = umem.empty((3, 1 << 29), "f4")[
            :, :5
        ]  # rows 2 GiB apart; only their beginnings are touched
        a[...] = np.arange(15).reshape(3, 5)
        expected = np.arange(15, dtype="f4").reshape(3, 5)
        assert_same(a + a, expected * 2)
        umem.multiply(a, 3, out=a)
        assert_same(a, expected * 3)
        assert_same(a.T.copy(), expected.T * 3)
        assert_same(a.sum(axis=0), (expected * 3).sum(axis=0))
        assert a[::-1].sum() == expected.sum() * 3


def exact_axpy(alpha, x, y, dtype):
    """alpha * x + y rounded once."""
    dtype = np.dtype(dtype)
    if dtype.kind == "i":
        return numpy_result(lambda: dtype.type(alpha) * x + y)
    if not (math.isfinite(alpha) and math.isfinite(x)):
        return numpy_result(lambda: dtype.type(alpha) * dtype.type(x) + dtype.type(y))
    if not math.isfinite(y):
        return dtype.type(y)
    exact = Fraction(float(alpha)) * Fraction(float(x)) + Fraction(float(y))
    try:
        near = numpy_result(lambda: dtype.type(float(exact)))
    except OverflowError:
        near = dtype.type(math.inf if exact > 0 else -math.inf)
    if not np.isfinite(near):
        return near
    around = [near, np.nextafter(near, dtype.type(-np.inf)), np.nextafter(near, dtype.type(np.inf))]
    distances = [abs(Fraction(float(c)) - exact) for c in around if np.isfinite(c)]
    best = [c for c, d in zip(around, distances, strict=False) if d == min(distances)]
    return best[0] if len(best) == 1 else min(best, key=lambda c: c.view(f"u{dtype.itemsize}") & 1)


def assert_axpy(umem, result, alpha, x, y):
    """`result` is alpha * x + y, rounded once where a kernel computed it; on the host NumPy computes, and may round twice."""
    x, y = np.broadcast_arrays(np.asarray(x), np.asarray(y))
    dtype = x.dtype
    alphas = np.broadcast_to(np.asarray(alpha, dtype), x.shape)
    twice = numpy_result(lambda: alphas * x + y)
    got = np.asarray(result)
    assert got.dtype == dtype
    assert got.shape == x.shape
    if np.array_equal(got, twice) and umem.info()["backend"] == "host":
        return
    once = np.array(
        [
            exact_axpy(p, q, r, dtype)
            for p, q, r in zip(
                alphas.ravel().tolist(), x.ravel().tolist(), y.ravel().tolist(), strict=True
            )
        ],
        dtype,
    ).reshape(x.shape)
    same = (got == once) | (np.isnan(got) & np.isnan(once))
    if umem.info()["backend"] == "host":
        same |= (got == twice) | (np.isnan(got) & np.isnan(twice))
    assert same.all(), (got[~same], once[~same])


@quiet
class TestAxpy:
    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_layouts(self, umem, dtype, view):
        x, y = pair(dtype)
        a, b = VIEWS[view](umem.array(x)), VIEWS[view](umem.array(y))
        result = umem.axpy(2, a, b)
        if VIEWS[view](x).ndim:
            assert type(result) is umem.ndarray
        assert_axpy(umem, result, 2, VIEWS[view](x), VIEWS[view](y))

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_the_product_is_not_rounded(self, umem, dtype):
        rng = np.random.default_rng(1)
        x, y = rng.standard_normal(500).astype(dtype), rng.standard_normal(500).astype(dtype)
        y[::2] = -(np.asarray(np.dtype(dtype).type(1 / 3)) * x)[
            ::2
        ]  # what is left is the product's rounding error
        assert_axpy(
            umem, umem.axpy(1 / 3, umem.array(x), umem.array(y)), np.dtype(dtype).type(1 / 3), x, y
        )
        if umem.info()["backend"] == "cuda":
            assert np.asarray(umem.axpy(1 / 3, umem.array(x), umem.array(y)))[::2].any()

    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_special_values(self, umem, dtype):
        values = specials(dtype)
        a = umem.array(values)
        for alpha in values:
            assert_axpy(
                umem,
                umem.axpy(alpha, a[:, None], a[None, :]),
                alpha,
                values[:, None],
                values[None, :],
            )

    def test_any_argument_may_be_a_number_or_an_array(self, umem):
        x = umem.arange(4.0)
        assert umem.axpy(2, x, 1).tolist() == [1, 3, 5, 7]
        assert umem.axpy(x, x, x).tolist() == [0, 2, 6, 12]
        assert umem.axpy(x, 2, 1).tolist() == [1, 3, 5, 7]
        assert umem.axpy(x, 2.0, np.ones(4)).tolist() == [1, 3, 5, 7]
        assert umem.axpy(umem.array(2.0), x, x).tolist() == [0, 3, 6, 9]
        assert umem.axpy(2.0, [1.0, 2.0], [3, 4]).tolist() == [5, 8]
        assert umem.axpy(x[:, None], x[None, :], 1).shape == (4, 4)
        assert float(umem.axpy(2, 3, 4)) == 10

    def test_types_follow_numpys_rules(self, umem):
        for left in ("i4", "i8", "f4", "f8", "u1", "f2", "c8"):
            for right in ("i4", "i8", "f4", "f8"):
                for alpha in (2, 2.5):
                    x, y = sample(left), sample(right)
                    result = umem.axpy(alpha, umem.array(x), umem.array(y))
                    expected = alpha * x + y
                    assert result.dtype == np.result_type(alpha, x, y), (alpha, left, right)
                    np.testing.assert_allclose(
                        np.asarray(result), expected, rtol=1e-2 if "f2" in (left, right) else 1e-6
                    )

    def test_out(self, umem):
        x, y = umem.arange(4.0), umem.ones(4)
        assert umem.axpy(2, x, y, out=y) is y
        assert y.tolist() == [1, 3, 5, 7]
        assert umem.axpy(2, x, y, out=x) is x
        assert x.tolist() == [1, 5, 9, 13]
        z = umem.zeros(5)
        umem.axpy(1, z[:-1], 1, out=z[1:])
        assert z.tolist() == [0, 1, 1, 1, 1]
        with pytest.raises(ValueError):
            umem.axpy(2, x, y, out=umem.zeros(3))
        with pytest.raises(TypeError):
            umem.axpy(2, x, y, out=umem.zeros(4, "i4"))

    def test_arguments(self, umem):
        x = umem.ones(3)
        for call in (
            lambda: umem.axpy(),
            lambda: umem.axpy(1, x),
            lambda: umem.axpy(1, x, x, x, x),
            lambda: umem.axpy(1, x, x, colour="red"),
            lambda: umem.axpy(1, x, "x"),
            lambda: umem.axpy(None, x, x),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
        with pytest.raises(ValueError, match="broadcast"):
            umem.axpy(1, x, umem.ones(4))


SCALARS = [
    1,
    -3,
    2.5,
    1j,
    True,
    2**40,
    -(2**40),
    2**70,
    np.float32(1.5),
    np.float64(1.5),
    np.int8(3),
    np.int64(3),
    np.bool_(True),
    np.inf,
    np.nan,
]


@quiet
class TestTypes:
    @pytest.mark.parametrize("left", NUMBERS)
    @pytest.mark.parametrize("op", BINARY)
    def test_of_two_arrays(self, umem, op, left):
        for right in NUMBERS:
            x, y = sample(left), sample(right)
            expected = outcome(lambda: numpy_result(getattr(np, op), x, y))
            for a, b in ((umem.array(x), umem.array(y)), (umem.array(x), y), (x, umem.array(y))):
                actual = outcome(lambda: numpy_result(getattr(umem, op), a, b))
                assert actual[0][0] == expected[0][0], right
                if expected[0][0] == "returns":
                    assert_same_array(umem, actual[0][2], expected[0][2])
                else:
                    assert actual[0] == expected[0]

    @pytest.mark.parametrize("dtype", NUMBERS)
    @pytest.mark.parametrize("op", BINARY)
    def test_of_an_array_and_a_number(self, umem, op, dtype):
        x = sample(dtype)
        for value in SCALARS:
            for order in (lambda f, p, q: f(p, q), lambda f, p, q: f(q, p)):
                expected = outcome(lambda: numpy_result(order, OPERATORS[op], x, value))
                actual = outcome(lambda: numpy_result(order, OPERATORS[op], umem.array(x), value))
                assert actual[0][0] == expected[0][0], value
                if expected[0][0] == "returns":
                    assert_same_array(umem, actual[0][2], expected[0][2])
                else:
                    assert actual[0] == expected[0], value

    @pytest.mark.parametrize("op", BINARY)
    def test_of_arrays_without_axes(self, umem, op):
        for dtype in KERNEL_DTYPES:
            for other in (*KERNEL_DTYPES, "python"):
                x = np.array(7, dtype)
                y = 3 if other == "python" else np.array(3, other)
                b = 3 if other == "python" else umem.array(3, other)
                assert_same(getattr(umem, op)(umem.array(x), b), getattr(np, op)(x, y))

    def test_numbers_alone_give_numbers(self, umem):
        for op in BINARY:
            assert_same(getattr(umem, op)(7, 2), getattr(np, op)(7, 2))
            assert_same(getattr(umem, op)(np.float32(7), 2), getattr(np, op)(np.float32(7), 2))

    def test_lists_and_numpy_arrays_give_managed_arrays(self, umem):
        assert_same_array(umem, umem.add([1, 2], [3, 4]), np.array([4, 6]))
        assert_same_array(umem, umem.add(np.arange(3), 1.5), np.arange(3) + 1.5)

    def test_dtype_and_casting(self, umem):
        a, n = umem.array(sample("i4")), sample("i4")
        for keywords in ({"dtype": "f4"}, {"dtype": "f8"}, {"dtype": "i8"}, {"dtype": "i4", "casting": "unsafe"}, {"dtype": "f4", "casting": "no"},
                         {"dtype": "c8"}, {"dtype": "nonsense"}, {"casting": "nonsense"}):  # fmt: skip
            expected, actual = (
                outcome(np.add, n, n, **keywords),
                outcome(umem.add, a, a, **keywords),
            )
            assert actual[0][0] == expected[0][0], keywords
            if expected[0][0] == "returns":
                assert_same_array(umem, actual[0][2], expected[0][2])
            else:
                assert actual[0] == expected[0]

    @pytest.mark.parametrize("dtype", ["M8[s]", "m8[s]", "S3", "U3", "V4", [("a", "i4")]])
    def test_of_what_cannot_be_computed(self, umem, dtype):
        n = np.zeros(3, dtype)
        a = umem.array(n)
        for op in BINARY:
            expected, actual = outcome(getattr(np, op), n, n), outcome(getattr(umem, op), a, a)
            assert actual[0][0] == expected[0][0]
            if expected[0][0] == "raises":
                assert actual[0] == expected[0]
            else:
                assert_same_array(umem, actual[0][2], expected[0][2])


@quiet
class TestOut:
    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    @pytest.mark.parametrize("op", BINARY)
    def test_every_form(self, umem, op, dtype):
        x, y = pair(dtype)
        expected = getattr(np, op)(x, y)
        a, b = umem.array(x), umem.array(y)
        for give in (
            lambda f, o: f(a, b, out=o),
            lambda f, o: f(a, b, o),
            lambda f, o: f(a, b, out=(o,)),
        ):
            for function in (getattr(umem, op), getattr(np, op)):
                out = umem.zeros((4, 6), expected.dtype)
                assert give(function, out) is out
                assert_same(out, expected)
        assert type(getattr(umem, op)(a, b, out=None)) is umem.ndarray

    @pytest.mark.parametrize("view", VIEWS)
    def test_views(self, umem, view):
        x, y = pair("f4")
        target = np.full((4, 6), 99, "f4")
        out = umem.full((4, 6), 99, dtype="f4")
        np.add(VIEWS[view](x), VIEWS[view](y), out=VIEWS[view](target))
        result = umem.add(
            VIEWS[view](umem.array(x)), VIEWS[view](umem.array(y)), out=VIEWS[view](out)
        )
        assert type(result) is umem.ndarray
        assert_same(out, target)

    @pytest.mark.parametrize("result", NUMBERS)
    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_another_dtype_is_cast_or_refused_as_by_numpy(self, umem, dtype, result):
        x, y = pair(dtype)
        for op in BINARY:
            n, a = np.zeros((4, 6), result), umem.zeros((4, 6), result)
            expected = outcome(lambda: numpy_result(getattr(np, op), x, y, out=n))
            actual = outcome(
                lambda: numpy_result(getattr(umem, op), umem.array(x), umem.array(y), out=a)
            )
            assert actual[0][0] == expected[0][0], op
            if expected[0][0] == "raises":
                assert actual[0] == expected[0]
            assert_same(a, n)

    def test_shapes(self, umem):
        x = np.arange(4.0)
        a = umem.array(x)
        for shape in ((4,), (3, 4), (1, 4), (2, 1, 4), (3,), (1,), (4, 1), (), (0,), (5,)):
            n, out = np.zeros(shape), umem.zeros(shape)
            expected, actual = outcome(np.add, x, 1, out=n), outcome(umem.add, a, 1, out=out)
            assert actual[0][0] == expected[0][0], shape
            if expected[0][0] == "raises":
                assert actual[0] == expected[0]
            assert_same(out, n)
        out = umem.zeros(())
        assert umem.add(umem.array(1.0), 2, out=out) is out
        assert out.item() == 3

    def test_bad_ones(self, umem):
        a = umem.ones(3)
        for bad in (3, "x", [1, 2, 3], (a, a), {}, object()):
            assert (
                outcome(umem.add, a, a, out=bad)[0]
                == outcome(
                    np.add, np.ones(3), np.ones(3), out=bad if bad != (a, a) else (np.ones(3),) * 2
                )[0]
            )
        with pytest.raises(TypeError):
            umem.add(a, a, a, out=a)
        read_only = umem.zeros(3)
        read_only.flags.writeable = False
        for function in (umem.add, np.add):
            with pytest.raises(ValueError, match="read-only"):
                function(a, a, out=read_only)
        assert not read_only.any()

    def test_numpys_arrays(self, umem):
        a = umem.arange(3.0)
        n = np.zeros(3)
        for function in (umem.add, np.add):
            n[:] = 0
            assert function(a, a, out=n) is n
            assert n.tolist() == [0, 2, 4]
        out = umem.zeros(3)
        assert np.add(np.arange(3.0), np.arange(3.0), out=out) is out
        assert out.tolist() == [0, 2, 4]

    OVERLAPS = {
        "same": lambda x: (x, x, x),
        "one input": lambda x: (x, x.copy(), x),
        "shift up": lambda x: (x[:-1], x[:-1], x[1:]),
        "shift down": lambda x: (x[1:], x[1:], x[:-1]),
        "both ways": lambda x: (x[2:], x[:-2], x[1:-1]),
        "reversed": lambda x: (x, x[::-1], x),
        "reversed out": lambda x: (x, x, x[::-1]),
        "row": lambda x: (x.reshape(10, 10), x.reshape(10, 10)[3], x.reshape(10, 10)),
        "column": lambda x: (x.reshape(10, 10), x.reshape(10, 10)[:, 3:4], x.reshape(10, 10)),
        "transposed": lambda x: (x.reshape(10, 10), x.reshape(10, 10).T, x.reshape(10, 10)),
        "transposed out": lambda x: (x.reshape(10, 10), x.reshape(10, 10), x.reshape(10, 10).T),
        "element": lambda x: (x, x[50, ...], x),
        "element out": lambda x: (x[50, ...], x[51, ...], x),
        "every other": lambda x: (x[::2], x[1::2], x[::2]),
        "interleaved": lambda x: (x[::2], x[::2], x[1::2]),
        "half": lambda x: (x[:50], x[25:75], x[50:]),
    }

    @pytest.mark.parametrize("overlap", OVERLAPS.values(), ids=OVERLAPS)
    @pytest.mark.parametrize("dtype", ["f4", "i8"])
    def test_overlaps(self, umem, dtype, overlap):
        for op in ("add", "subtract", "multiply"):
            n = np.arange(100).astype(dtype)
            a = umem.array(n)
            for module, array in ((np, n), (umem, a)):
                left, right, out = overlap(array)
                getattr(module, op)(left, right, out=out)
            assert_same(a, n)

    def test_large_overlaps(self, umem):
        n = np.arange(300_000, dtype="f4")
        a = umem.array(n)
        umem.add(a[:-1], a[1:], out=a[1:])
        assert_same(a, np.concatenate([n[:1], n[:-1] + n[1:]]))

    def test_an_out_that_names_elements_twice(self, umem):
        windows = lambda x: np.lib.stride_tricks.as_strided(x, (4, 3), (16, 8))  # noqa: E731
        n = np.arange(10.0)
        a = umem.array(n)
        twice = umem.asarray(windows(np.asarray(a)))
        assert address(twice) == address(a)
        for op in BINARY:
            getattr(np, op)(windows(n), 3, out=windows(n))
            getattr(umem, op)(twice, 3, out=twice)
            assert_same(a, n)
        np.negative(windows(n)[::-1], out=windows(n))
        umem.negative(twice[::-1], out=twice)
        assert_same(a, n)

    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    @pytest.mark.parametrize("op", BINARY)
    def test_in_place_operators(self, umem, op, dtype):
        for view in VIEWS.values():
            x, y = pair(dtype)
            for other in (y, y[1], 3, x.dtype.type(3)):
                n, a = x.copy(), umem.array(x)
                expected = outcome(
                    lambda: IN_PLACE[op](
                        view(n), other if np.isscalar(other) or other.ndim < 2 else view(other)
                    )
                )
                given = other if np.isscalar(other) else umem.array(other if other.ndim < 2 else y)
                actual = outcome(
                    lambda: IN_PLACE[op](
                        view(a), given if np.isscalar(other) or other.ndim < 2 else view(given)
                    )
                )
                assert actual[0][0] == expected[0][0]
                if expected[0][0] == "raises":
                    assert actual[0] == expected[0]
                assert_same(a, n)

    def test_in_place_keeps_the_array(self, umem):
        a = b = umem.ones(3)
        a += 1
        assert a is b
        a *= np.arange(3)
        assert a is b
        assert b.tolist() == [0, 2, 4]


@quiet
class TestCasts:
    @pytest.mark.parametrize("source", KERNEL_DTYPES)
    @pytest.mark.parametrize(
        "target", [*KERNEL_DTYPES, "f2", "c8", "c16", "?"]
    )  # C says nothing of others out of range
    def test_special_values(self, umem, source, target):
        n = specials(source)
        expected = numpy_result(n.astype, target)
        assert_same_array(umem, umem.array(n).astype(target), expected)
        assert_same_array(umem, umem.array(np.repeat(n, 3))[::3].astype(target), expected)
        assert_same_array(umem, umem.array(n)[::-1].astype(target), expected[::-1])

    @pytest.mark.parametrize("source", NUMBERS)
    @pytest.mark.parametrize("target", NUMBERS)
    def test_every_pair(self, umem, source, target):
        for view in ("whole", "transposed", "steps", "no axes", "no rows"):
            n = VIEWS[view](sample(source))
            a = VIEWS[view](umem.array(sample(source)))
            expected = outcome(lambda: numpy_result(n.astype, target))[0][2]
            result = numpy_result(a.astype, target)
            assert_same_array(umem, result, expected)
            assert walked_strides(result) == walked_strides(expected)
            out = umem.zeros(n.shape, target)
            outcome(lambda: out.__setitem__(..., a))
            assert_same(out, expected)


@fake_only
@quiet
class TestWhere:
    """What is computed by kernels, with the data on the GPU, and moves nothing to the host."""

    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    @pytest.mark.parametrize("op", BINARY)
    def test_arithmetic(self, umem, fake, op, dtype):
        x, y = pair(dtype, (300, 200))
        a, b = on_device(umem, x), on_device(umem, y)
        for call in (
            lambda: getattr(umem, op)(a, b),
            lambda: getattr(np, op)(a, b),
            lambda: OPERATORS[op](a, b),
            lambda: OPERATORS[op](a, 3),
            lambda: OPERATORS[op](3, a),
            lambda: OPERATORS[op](a.T, b.T),
            lambda: OPERATORS[op](a[::2, 1::3], b[1::2, ::3][:, : a[::2, 1::3].shape[1]]),
            lambda: OPERATORS[op](a[::-1], b),
            lambda: OPERATORS[op](a, b[5]),
            lambda: OPERATORS[op](a, b[:, 5:6]),
            lambda: OPERATORS[op](a[0][:, None], b[0]),
        ):
            with launches(fake):
                result = call()
            assert type(result) is umem.ndarray
        if np.dtype(dtype).kind == "f" or op != "true_divide":
            with launches(fake):
                IN_PLACE[op](a, b)
            with launches(fake):
                IN_PLACE[op](a[::2], 2)

    def test_mixed_types_are_cast_by_kernels(self, umem, fake):
        arrays = {dtype: on_device(umem, pair(dtype, 50_000)[1]) for dtype in KERNEL_DTYPES}
        for left in KERNEL_DTYPES:
            for right in KERNEL_DTYPES:
                for op in BINARY:
                    with launches(fake):
                        result = getattr(umem, op)(arrays[left], arrays[right])
                    assert_same(
                        result, getattr(np, op)(pair(left, 50_000)[1], pair(right, 50_000)[1])
                    )
                    for array in arrays.values():
                        array.prefetch("cuda")
                    umem.synchronize()

    def test_negative_axpy_and_sum(self, umem, fake):
        for dtype in KERNEL_DTYPES:
            a = on_device(umem, pair(dtype, (300, 200))[0])
            for call in (
                lambda: -a,
                lambda: umem.axpy(2, a, a),
                lambda: umem.axpy(2, a, a, out=a),
                lambda: a.sum(axis=0),
                lambda: a.sum(axis=1),
                lambda: a.sum(),
                lambda: np.sum(a),
                lambda: a.T[::2].sum(axis=0, keepdims=True),
                lambda: a.mean(axis=0),
            ):
                with launches(fake):
                    call()

    @pytest.mark.parametrize(
        "dtype", ["u1", "i2", "f2", "f4", "f8", "c8", "c16", "?", "S2", "M8[s]", "V16", ">f4"]
    )
    def test_fill_and_copy(self, umem, fake, dtype):
        n = sample(dtype, (300, 200))
        a, b = on_device(umem, n), on_device(umem, n)
        for call in (
            lambda: a.copy(),
            lambda: a.T.copy(),
            lambda: a[::2, ::3].copy(),
            lambda: umem.copy(a),
            lambda: umem.array(a),
            lambda: a.__setitem__(slice(None), b),
            lambda: a.__setitem__((slice(None, None, 2), 5), b[::2, 7]),
            lambda: a.__setitem__(slice(10, 20), b[3]),
            lambda: a.reshape(200, 300, copy=True),
            lambda: a.T.ravel(),
            lambda: a.fill(n[0, 1]),
            lambda: a[::2, ::3].fill(n[0, 1]),
            lambda: a.__setitem__(slice(5, 50), n[0, 1]),
            lambda: umem.full_like(a, n[0, 1]),
        ):
            with launches(fake):
                made = call()
            del made

    def test_casts(self, umem, fake):
        for source in KERNEL_DTYPES:
            a = on_device(umem, pair(source, (300, 200))[0])
            for target in KERNEL_DTYPES:
                if source != target:
                    with launches(fake):
                        a.astype(target)
                    with launches(fake):
                        umem.empty((300, 200), target)[::2] = a[::2]

    def test_operands_of_the_host_are_copied_to_managed_memory(self, umem, fake):
        n = pair("f4", 50_000)[0]
        a = on_device(umem, n)
        with launches(fake):
            result = a + n
        assert_same_array(umem, result, n + n)

    def test_what_has_no_kernel_runs_in_numpy_on_the_same_memory(self, umem, fake):
        a = on_device(umem, pair("f4", 50_000)[0])
        before = fake.counter("launches")
        result = np.spacing(a)
        assert type(result) is umem.ndarray
        assert_same(result, np.spacing(pair("f4", 50_000)[0]))
        assert fake.counter("launches") == before

    def test_one_kernel_for_a_plain_call(self, umem, fake):
        a, b, c = (on_device(umem, pair("f4", 50_000)[0]) for _ in range(3))
        before = fake.counter("launches"), fake.counter("calls")
        umem.add(a, b, out=c)
        assert fake.counter("launches") == before[0] + 1
        assert fake.counter("calls") - before[1] < 15


SUM_VIEWS = {
    **VIEWS,
    "three axes": lambda x: x.reshape(2, 2, 6),
    "permuted": lambda x: x.reshape(2, 2, 6).transpose(2, 0, 1),
    "broadcast": lambda x: x[:, None] if False else x[1:2],
}


@quiet
class TestSum:
    @pytest.mark.parametrize("view", SUM_VIEWS)
    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_axes(self, umem, dtype, view):
        x = (
            np.random.default_rng(2).integers(-50, 50, (4, 6)).astype(dtype)
        )  # sums are exact in any order
        n, a = SUM_VIEWS[view](x), SUM_VIEWS[view](umem.array(x))
        axes = [
            None,
            (),
            *range(-n.ndim, n.ndim),
            tuple(range(n.ndim)),
            tuple(range(n.ndim))[1:],
            tuple(range(n.ndim))[::2],
        ]
        for axis in axes:
            for keepdims in (False, True):
                expected = n.sum(axis=axis, keepdims=keepdims)
                for call in (a.sum, lambda **k: np.sum(a, **k), lambda **k: np.add.reduce(a, **k)):
                    result = call(axis=axis, keepdims=keepdims)
                    if call is a.sum or not (
                        isinstance(expected, np.ndarray) and expected.ndim == 0
                    ):
                        assert_same(result, expected)
                    if isinstance(expected, np.ndarray):
                        assert type(result) is umem.ndarray

    @pytest.mark.parametrize("dtype", KERNEL_DTYPES)
    def test_lengths(self, umem, dtype):
        for count in (0, 1, 2, 31, 32, 33, 255, 256, 257, 1000, 1024, 1025, 65_537, 200_003):
            x = (np.arange(count) % 97 - 40).astype(dtype)
            assert_same(umem.array(x).sum(), x.sum())
            assert_same(umem.array(x)[::-1].sum(), x.sum())
            assert_same(umem.array(np.repeat(x, 2))[::2].sum(), x.sum())

    @pytest.mark.parametrize(
        "shape",
        [(1000, 3), (3, 1000), (1000, 1), (1, 1000), (50, 40, 30), (2, 5000, 2), (100, 1, 100)],
    )
    def test_shapes(self, umem, shape):
        x = (np.arange(math.prod(shape)) % 89 - 40).astype("f4").reshape(shape)
        a = umem.array(x)
        for axis in [None, *range(len(shape)), (0, len(shape) - 1)]:
            assert_same(a.sum(axis=axis), x.sum(axis=axis))
            assert_same(a.T.sum(axis=axis), x.T.sum(axis=axis))

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_is_as_accurate_as_numpys(self, umem, dtype):
        rng = np.random.default_rng(3)
        for x in (
            np.full(1_000_000, 0.1),
            rng.standard_normal(1_000_000),
            rng.random(999_999) * 1e6,
            np.tile([1e6, 1, -1e6], 100_000),
        ):
            x = x.astype(dtype)
            exact = math.fsum(x.tolist())
            bound = np.finfo(dtype).eps * math.log2(x.size) * math.fsum(np.abs(x).tolist())
            assert abs(float(umem.array(x).sum()) - exact) <= bound
            n = x[: 1000 * 300].reshape(1000, 300)
            for axis in (0, 1):
                exact = n.astype("g").sum(axis=axis)
                error = np.abs(np.asarray(umem.array(n).sum(axis=axis)) - exact).max()
                bound = np.finfo(dtype).eps * 12 * np.abs(n.astype("g")).sum(axis=axis).max()
                assert error <= max(bound, np.abs(n.sum(axis=axis) - exact).max())

    def test_special_values(self, umem):
        for values in (
            [np.nan, 1],
            [np.inf, -np.inf],
            [np.inf, 1],
            [-0.0, -0.0],
            [-0.0],
            [0.0, -0.0],
            [],
        ):
            for dtype in ("f4", "f8"):
                n = np.array(values, dtype)
                assert_same(umem.array(n).sum(), numpy_result(n.sum))
                assert_same(
                    umem.array(n).reshape(1, -1).sum(axis=1),
                    numpy_result(n.reshape(1, -1).sum, axis=1),
                )

    def test_integers_widen_and_wrap(self, umem):
        assert_same(umem.full(5, 2**31 - 1, dtype="i4").sum(), np.full(5, 2**31 - 1, "i4").sum())
        assert_same(
            umem.full(3, 2**62, dtype="i8").sum(), numpy_result(np.full(3, 2**62, "i8").sum)
        )
        assert_same(umem.array([2**53, 1, 1], dtype="i8").sum(), np.int64(2**53 + 2))
        assert_same(umem.array(sample("i4")).sum(axis=0), sample("i4").sum(axis=0))

    @pytest.mark.parametrize("dtype", NUMBERS)
    def test_into_another_dtype(self, umem, dtype):
        for result in ("f4", "f8", "i4", "i8", "c16", "u1"):
            n = sample(dtype)
            expected = outcome(lambda: numpy_result(n.sum, axis=0, dtype=result))
            actual = outcome(lambda: numpy_result(umem.array(n).sum, axis=0, dtype=result))
            assert actual[0][0] == expected[0][0]
            if expected[0][0] == "returns":
                np.testing.assert_allclose(np.asarray(actual[0][2]), expected[0][2], rtol=1e-6)
                assert actual[0][2].dtype == result

    def test_out(self, umem):
        n = sample("f4")
        a = umem.array(n)
        for out in (umem.zeros(6, "f4"), umem.zeros(12, "f4")[::2], umem.zeros(6, "f8")):
            assert a.sum(axis=0, out=out) is out
            np.testing.assert_allclose(np.asarray(out), n.sum(axis=0))
        for bad in (umem.zeros(5, "f4"), umem.zeros((1, 6), "f4"), umem.zeros((), "f4")):
            with pytest.raises(ValueError):
                a.sum(axis=0, out=bad)
        for dtype in NUMBERS:
            expected = outcome(n.sum, axis=0, out=np.zeros(6, dtype))
            actual = outcome(a.sum, axis=0, out=umem.zeros(6, dtype))
            assert actual[0][0] == expected[0][0], dtype
            if expected[0][0] == "returns":
                np.testing.assert_allclose(np.asarray(actual[0][2]), expected[0][2])
        row = umem.array(n)
        row.sum(axis=0, out=row[0])
        assert_same(row[0], n.sum(axis=0))
        kept = umem.zeros((1, 6), "f4")
        assert a.sum(axis=0, keepdims=True, out=kept) is kept
        assert_same(kept, n.sum(axis=0, keepdims=True))


class TestFunctionObjects:
    @pytest.mark.parametrize("name", [*BINARY, "negative", "axpy"])
    def test_look_like_functions(self, umem, name):
        function = getattr(umem, name)
        assert callable(function)
        assert function.__name__ == name
        assert function.__doc__
        assert name in repr(function)

    def test_argument_counts(self, umem):
        a = umem.ones(3)
        for call in (lambda: umem.add(), lambda: umem.add(a), lambda: umem.add(a, a, a, a), lambda: umem.negative(), lambda: umem.negative(a, a, a),
                     lambda: umem.add(a, a, colour="red"), lambda: umem.add(x1=a, x2=a)):  # fmt: skip
            with pytest.raises(TypeError):
                call()

    def test_other_arguments_of_ufuncs(self, umem):
        a, n = umem.array(sample("f4")), sample("f4")
        where = n > 0
        assert_same_array(
            umem,
            umem.add(a, 1, out=umem.zeros((4, 6), "f4"), where=where),
            np.add(n, 1, out=np.zeros((4, 6), "f4"), where=where),
        )
        assert umem.add(a, 1, order="F").flags.f_contiguous
        assert_same_array(umem, umem.add(a, 1, dtype="f8"), np.add(n, 1, dtype="f8"))


@pytest.mark.backends("fake")
class TestMisuse:
    """What umem's Python code never does with the functions of _core is refused all the same, and writes nothing."""

    def arrays(self, umem):
        arrays = types.SimpleNamespace(
            f=umem.ones((3, 4), "f4"),
            d=umem.ones((3, 4), "f8"),
            i=umem.ones((3, 4), "i4"),
            half=umem.ones((3, 4), "f2"),
            wide=umem.ones((3, 4), "g"),
            yes=umem.ones((3, 4), "?"),
            swapped=umem.ones((3, 4), ">f4"),
            odd=umem.zeros(49, "u1")[1:].view("f4").reshape(3, 4),
            read_only=umem.ones((3, 4), "f4"),
            row=umem.ones(4, "f4"),
            five=umem.ones(5, "f4"),
            out=umem.zeros((3, 4), "f4"),
            total=umem.zeros(3, "f4"),
        )
        arrays.read_only.flags.writeable = False
        return arrays

    CALLS = {
        "run: arguments": (TypeError, lambda core, s: core.run("add", (s.f, s.f))),
        "run: no name": (TypeError, lambda core, s: core.run(5, (s.f, s.f), s.out)),
        "run: unknown name": (ValueError, lambda core, s: core.run("nothing", (s.f, s.f), s.out)),
        "run: list": (TypeError, lambda core, s: core.run("add", [s.f, s.f], s.out)),
        "run: one input": (TypeError, lambda core, s: core.run("add", (s.f,), s.out)),
        "run: out of NumPy": (TypeError, lambda core, s: core.run("add", (s.f, s.f), np.zeros((3, 4), "f4"))),
        "run: no array": (TypeError, lambda core, s: core.run("add", (1, 2), s.out)),
        "run: text": (TypeError, lambda core, s: core.run("add", (s.f, "x"), s.out)),
        "run: no loop": (TypeError, lambda core, s: core.run("true_divide", (s.i, s.i), s.d)),
        "run: type of out": (TypeError, lambda core, s: core.run("add", (s.d, s.d), s.out)),
        "run: half": (TypeError, lambda core, s: core.run("add", (s.half, s.half), s.out)),
        "run: half out": (TypeError, lambda core, s: core.run("add", (s.f, s.f), s.half)),
        "run: swapped": (TypeError, lambda core, s: core.run("add", (s.f, s.swapped), s.out)),
        "run: odd": (ValueError, lambda core, s: core.run("add", (s.f, s.odd), s.out)),
        "run: odd out": (ValueError, lambda core, s: core.run("add", (s.f, s.f), s.odd)),
        "run: mixed": (TypeError, lambda core, s: core.run("add", (s.f, s.d), s.out)),
        "run: shapes": (ValueError, lambda core, s: core.run("add", (s.f, s.five), s.out)),
        "run: read-only": (ValueError, lambda core, s: core.run("add", (s.f, s.f), s.read_only)),
        "run: not exact": (TypeError, lambda core, s: core.run("add", (s.i, 2**40), s.i)),
        "cast: arguments": (TypeError, lambda core, s: core.cast(s.d)),
        "cast: out of NumPy": (TypeError, lambda core, s: core.cast(s.d, np.zeros(3))),
        "run_where: condition": (TypeError, lambda core, s: core.run_where(s.f, s.f, s.f, s.out)),
        "run_where: dtype": (TypeError, lambda core, s: core.run_where(s.yes, s.f, s.d, s.out)),
        "run_where: scalar": (TypeError, lambda core, s: core.run_where(s.yes, s.f, "x", s.out)),
        "run_where: read-only": (ValueError, lambda core, s: core.run_where(s.yes, s.f, s.f, s.read_only)),
        "run_where: arguments": (TypeError, lambda core, s: core.run_where(s.yes, s.f, s.f)),
        "cast: long double": (TypeError, lambda core, s: core.cast(s.wide, s.out)),
        "cast: long double out": (TypeError, lambda core, s: core.cast(s.d, s.wide)),
        "cast: text": (TypeError, lambda core, s: core.cast("x", s.out)),
        "cast: scalar": (TypeError, lambda core, s: core.cast(np.longdouble(1), s.out)),
        "cast: shapes": (ValueError, lambda core, s: core.cast(s.five, s.out)),
        "cast: read-only": (ValueError, lambda core, s: core.cast(s.d, s.read_only)),
        "sum_into: arguments": (TypeError, lambda core, s: core.sum_into(s.f, s.total)),
        "sum_into: source of NumPy": (TypeError, lambda core, s: core.sum_into(np.ones(3), (0,), s.total)),
        "sum_into: out of NumPy": (TypeError, lambda core, s: core.sum_into(s.f, (1,), np.zeros(3, "f4"))),
        "sum_into: list": (TypeError, lambda core, s: core.sum_into(s.f, [1], s.total)),
        "sum_into: text": (TypeError, lambda core, s: core.sum_into(s.f, ("x",), s.total)),
        "sum_into: huge axis": ((ValueError, OverflowError, IndexError), lambda core, s: core.sum_into(s.f, (10**30,), s.total)),
        "sum_into: no axis": (ValueError, lambda core, s: core.sum_into(s.f, (2,), s.total)),
        "sum_into: no axis from the end": (ValueError, lambda core, s: core.sum_into(s.f, (-3,), s.total)),
        "sum_into: twice": (ValueError, lambda core, s: core.sum_into(s.f, (1, -1), s.total)),
        "sum_into: half": (TypeError, lambda core, s: core.sum_into(s.half, (1,), s.total)),
        "sum_into: half out": (TypeError, lambda core, s: core.sum_into(s.f, (1,), s.half)),
        "sum_into: type": (TypeError, lambda core, s: core.sum_into(s.d, (1,), s.total)),
        "sum_into: type of ints": (TypeError, lambda core, s: core.sum_into(s.i, (1,), s.total)),
        "sum_into: shape": (ValueError, lambda core, s: core.sum_into(s.f, (0,), s.total)),
        "sum_into: axes": (ValueError, lambda core, s: core.sum_into(s.f, (0, 1), s.total)),
        "sum_into: read-only": (ValueError, lambda core, s: core.sum_into(s.f, (), s.read_only)),
        "op_loops": (TypeError, lambda core, s: core.op_loops(5)),
        "extent": (TypeError, lambda core, s: core.extent(np.ones(3))),
        "residency": (TypeError, lambda core, s: core.residency(np.ones(3))),
        "hooks": (TypeError, lambda core, s: core._set_hooks(ufunc=5)),
        "hooks: arguments": (TypeError, lambda core, s: core._set_hooks(5)),
    }  # fmt: skip

    @pytest.mark.parametrize("name", CALLS)
    def test_is_refused(self, umem, name):
        errors, call = self.CALLS[name]
        arrays = self.arrays(umem)
        with pytest.raises(errors):
            call(umem._core, arrays)
        assert (arrays.out.numpy() == 0).all()
        assert (arrays.total.numpy() == 0).all()
        assert (arrays.read_only.numpy() == 1).all()

    def test_scalars_are_converted(self, umem):
        """Scalars of NumPy select the loop; any that fits serves beside an array."""
        out = umem.zeros((3, 4), "f4")
        umem._core.run("add", (np.float32(2), 3), out)
        assert (out.numpy() == 5).all()
        whole = umem.zeros(3, "i8")
        umem._core.run("subtract", (np.int64(2), np.int64(3)), whole)
        assert (whole.numpy() == -1).all()
        for value in (np.float32(2.5), np.float64(2.5), np.int32(2), np.int64(2)):
            umem._core.cast(value, out)
            assert (out.numpy() == value).all()
