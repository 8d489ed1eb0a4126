"""umem.evaluate, with NumPy's result of the same expression as the oracle. Both backends, and the register machine by itself."""

# ruff: noqa: F841 (expressions use the local variables)

import gc
import math
import operator
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import NUMBERS, assert_same, sample, specials

#: functions of an expression that NumPy has under another name, or not at all
NAMESPACE = {"where": np.where}
UNARY = [
    "sin",
    "cos",
    "tan",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "arcsinh",
    "arccosh",
    "arctanh",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "floor",
    "ceil",
    "trunc",
    "rint",
    "isnan",
    "isinf",
    "isfinite",
]
BINARY = ["arctan2", "minimum", "maximum", "fmod", "hypot"]
NAMESPACE |= {name: getattr(np, name) for name in UNARY + BINARY}
#: of those the ones that round as IEEE 754 says, or do not round
EXACT = ["sqrt", "floor", "ceil", "trunc", "rint", "isnan", "isinf", "isfinite"]
#: what the machine computes without NumPy
MACHINE = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8")
ULP = 4


def oracle(text, **operands):
    """What NumPy makes of the expression: Python's operators on NumPy's arrays."""
    with np.errstate(all="ignore"):
        return eval(text, {}, NAMESPACE | operands)


def managed(umem, operands):
    return {
        name: umem.asarray(x) if isinstance(x, np.ndarray) and x.ndim else x
        for name, x in operands.items()
    }


def evaluate(umem, text, operands, **kwargs):
    with np.errstate(all="ignore"):
        return umem.evaluate(text, managed(umem, operands), {}, **kwargs)


def check(umem, text, **operands):
    expected = oracle(text, **operands)
    actual = evaluate(umem, text, operands)
    if np.ndim(expected) == 0:
        expected = np.asarray(expected)[()]  # numbers alone are NumPy's too
    if isinstance(expected, np.ndarray):
        assert type(actual) is umem.ndarray
    if (
        "minimum" in text or "maximum" in text
    ):  # which zero of two NumPy takes depends on the processor
        np.testing.assert_array_equal(np.asarray(actual), expected)
        assert actual.dtype == expected.dtype
    else:
        assert_same(actual, expected)
    return actual


def spread(dtype, count=61, seed=0):
    """Values of a dtype: special ones and others."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        values = rng.integers(-40, 40, count).astype(dtype)
    elif dtype.kind == "c":
        return (rng.normal(size=count) + 1j * rng.normal(size=count)).astype(dtype)
    else:
        values = (rng.normal(size=count) * 8).astype(dtype)
    if dtype.str[1:] in ("f4", "f8", "i4", "i8"):
        some = specials(dtype)
        values[: len(some)] = rng.permutation(some)
    return values


@pytest.fixture
def machine(umem, on_gpu, monkeypatch):
    """Counts programs that run on the machine."""
    runs = []
    if on_gpu:
        run = umem._core.evaluate

        def counted(*args):
            runs.append(args)
            return run(*args)

        monkeypatch.setattr(sys.modules["umem._evaluate"]._core, "evaluate", counted)
    return runs


# --- results ---------------------------------------------------------------------------------------------


class TestOperations:
    @pytest.mark.parametrize("dtype", NUMBERS)
    @pytest.mark.parametrize(
        "text",
        [
            "a + b", "a - b", "a * b", "a / b", "a // b", "a % b", "a & b", "a | b", "a ^ b", "a << b",
            "a >> b", "-a", "~a", "+a", "abs(a)", "a == b", "a != b", "a < b", "a <= b", "a > b", "a >= b",
            "a ** 2", "a ** 3", "a ** 0", "a ** 0.5", "fmod(a, b)", "minimum(a, b)", "maximum(a, b)",
            "where(a, a, b)", "where(a < b, a, 1)", "a * 2 + 1",
            *(f"{name}(a)" for name in EXACT),
        ],
    )  # fmt: skip
    def test_like_numpy(self, umem, on_gpu, machine, text, dtype):
        if text in ("+a", "a ** 2") and dtype == "?":
            return  # there is no np.positive for bool, and ** is np.square there
        a, b = spread(dtype), spread(dtype, seed=1)
        try:
            expected = oracle(text, a=a, b=b)
        except TypeError:
            with pytest.raises(TypeError, match=r"\^"):
                evaluate(umem, text, {"a": a, "b": b})
            return
        if text == "a ** 3" and expected.dtype.kind == "f":
            actual = evaluate(umem, text, {"a": a, "b": b})
            np.testing.assert_array_max_ulp(np.asarray(actual), expected, ULP)
        elif dtype in ("c8", "c16") and text in (
            "abs(a)",
            "a / b",
            "sqrt(a)",
            "a ** 0.5",
            "a ** 2",
        ):
            np.testing.assert_allclose(
                np.asarray(evaluate(umem, text, {"a": a, "b": b})), expected, 1e-6
            )
        else:
            check(umem, text, a=a, b=b)
        whole = expected.dtype in map(np.dtype, MACHINE)
        if on_gpu and dtype in MACHINE and whole and text != "a ** 0":
            assert machine, "NumPy computed it"

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    @pytest.mark.parametrize("name", [name for name in UNARY if name not in EXACT])
    def test_functions_within_4_ulp(self, umem, name, dtype):
        rng = np.random.default_rng(5)
        a = np.concatenate(
            [
                rng.uniform(-1, 1, 500),
                rng.normal(size=500) * 20,
                10.0 ** rng.uniform(-30, 30, 500),
                -(10.0 ** rng.uniform(-30, 30, 200)),
                np.arange(1, 200) * (math.pi / 2),
                [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40],
            ]
        ).astype(dtype)
        exact = oracle(f"{name}(a)", a=a.astype("g"))
        with np.errstate(all="ignore"):
            expected = exact.astype(dtype)
            near = np.abs(np.asarray(evaluate(umem, f"{name}(a)", {"a": a})).astype("g") - exact)
            off = near / np.maximum(
                np.spacing(np.abs(expected)), np.finfo(dtype).smallest_subnormal
            )
        actual = np.asarray(evaluate(umem, f"{name}(a)", {"a": a}))
        assert actual.dtype == np.dtype(dtype)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(actual[~finite], expected[~finite])
        assert off[finite].max() <= ULP
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]))

    @pytest.mark.backends("fake", "cuda")
    @pytest.mark.parametrize("name", ["sin", "cos", "tan"])
    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_angles_of_any_size(self, umem, name, dtype):
        """Against exact arithmetic: an angle as it is stored, however large."""
        mpmath = pytest.importorskip("mpmath")
        rng = np.random.default_rng(3)
        most = np.log10(float(np.finfo(dtype).max))
        a = (10 ** rng.uniform(3, most, 400) * rng.choice([-1, 1], 400)).astype(dtype)
        if dtype == "f8":
            a[:1] = 6381956970095103 * 2.0**797  # the double next to a multiple of pi/2
        actual = np.asarray(evaluate(umem, f"{name}(a)", {"a": a}))
        with mpmath.workprec(1300):
            for x, y in zip(a.tolist(), actual, strict=True):
                exact = getattr(mpmath, name)(mpmath.mpf(x))
                unit = np.spacing(np.abs(np.dtype(dtype).type(float(exact))))
                assert abs(mpmath.mpf(float(y)) - exact) <= ULP * float(unit)

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    @pytest.mark.parametrize("text", ["arctan2(a, b)", "hypot(a, b)", "a ** b"])
    def test_functions_of_two(self, umem, text, dtype):
        a, b = spread(dtype, 200), spread(dtype, 200, seed=1)
        actual = np.asarray(evaluate(umem, text, {"a": a, "b": b}))
        with np.errstate(all="ignore"):
            expected = oracle(text, a=a.astype("g"), b=b.astype("g")).astype(dtype)
        np.testing.assert_array_max_ulp(actual, expected, ULP)


LEAVES = st.sampled_from(["a", "b", "c", "d", "1", "2", "3", "0.5", "2.5", "-1"])
FORMS = [
    *(
        f"({{0}} {op} {{1}})"
        for op in [
            "+",
            "-",
            "*",
            "/",
            "//",
            "%",
            "&",
            "|",
            "^",
            "<<",
            ">>",
            "<",
            "<=",
            ">",
            ">=",
            "==",
            "!=",
        ]
    ),
    *("-({0})", "~({0})", "abs({0})", "sqrt({0})", "floor({0})", "ceil({0})"),
    # Which of two zeros is the smaller depends on the processor: + 0 makes them one.
    *("(minimum({0}, {1}) + 0)", "(maximum({0}, {1}) + 0)"),
    *("fmod({0}, {1})", "where({0}, {1}, {2})"),
]
TREES = st.recursive(
    LEAVES,
    lambda part: st.builds(str.format, st.sampled_from(FORMS), part, part, part),
    max_leaves=14,
)


ERRORS = (TypeError, ValueError, ArithmeticError)


class TestRandomExpressions:
    @given(
        text=TREES,
        dtypes=st.tuples(*[st.sampled_from(MACHINE)] * 4),
        shapes=st.tuples(*[st.sampled_from([(3, 9), (9,), (3, 1), (1, 1), (3, 9)])] * 4),
    )
    def test_like_numpy(self, umem, text, dtypes, shapes):
        operands = {
            name: np.resize(spread(dtype, seed=i), shape)
            for i, (name, dtype, shape) in enumerate(zip("abcd", dtypes, shapes, strict=True))
        }
        try:
            oracle(text, **operands)
        except ERRORS:
            with pytest.raises(ERRORS):  # of several in one expression any may come first
                evaluate(umem, text, operands)
            return
        check(umem, text, **operands)

    @given(text=TREES, dtype=st.sampled_from(["f4", "i4", "f8", "i8"]))
    def test_of_one_type(self, umem, text, dtype):
        operands = {name: spread(dtype, seed=i) for i, name in enumerate("abcd")}
        try:
            oracle(text, **operands)
        except ERRORS:
            with pytest.raises(ERRORS):  # of several in one expression any may come first
                evaluate(umem, text, operands)
            return
        check(umem, text, **operands)


# --- types -----------------------------------------------------------------------------------------------


class TestTypes:
    @pytest.mark.parametrize("second", NUMBERS)
    @pytest.mark.parametrize("first", NUMBERS)
    def test_are_numpys(self, umem, first, second):
        a, b = sample(first), sample(second)
        assert_same(evaluate(umem, "a * b + 1", {"a": a, "b": b}), oracle("a * b + 1", a=a, b=b))

    @pytest.mark.parametrize("dtype", MACHINE)
    @pytest.mark.parametrize(
        "number", [2, -3, 2.5, True, np.float32(1.5), np.int64(3), np.float64(0.5), np.uint8(7)]
    )
    def test_numbers(self, umem, dtype, number):
        a = spread(dtype)
        try:
            oracle("a * n + a", a=a, n=number)
        except OverflowError:
            with pytest.raises(OverflowError):
                evaluate(umem, "a * n + a", {"a": a, "n": number})
            return
        check(umem, "a * n + a", a=a, n=number)

    def test_python_numbers_are_computed_as_python_does(self, umem):
        a = spread("f4")
        check(umem, "a * (n / m) + n // m * 2 ** m", a=a, n=7, m=2)
        check(umem, "a * sin(2)", a=a)  # NumPy's sine of a Python number is a float64
        check(umem, "where(n > 3, n, 1) + a", a=a, n=7)

    def test_comparison_with_integers_that_the_type_lacks(self, umem):
        a = spread("i4")
        check(umem, "a < 2**40", a=a)
        check(umem, "where(a > -2**40, a, 0)", a=a)
        with pytest.raises(OverflowError):
            evaluate(umem, "a + 2**40", {"a": a})

    def test_powers(self, umem):
        for dtype in ("i1", "u2", "i4", "i8"):
            a = spread(dtype)
            for n in (1, 2, 5, 13, 64, np.int8(3)):
                check(umem, "a ** n", a=a, n=n)
            with pytest.raises((ValueError, OverflowError), match="negative|-1"):
                evaluate(umem, "a ** n", {"a": a, "n": -1})
        check(umem, "a ** b", a=spread("i8"), b=abs(spread("i1")))

    def test_the_exponent_decides_each_time(self, umem):
        a = spread("f4")
        for n in (2, 3, 2.0, 0.5, 2):
            actual = np.asarray(evaluate(umem, "a ** n", {"a": a, "n": n}))
            np.testing.assert_array_max_ulp(actual, oracle("a ** n", a=a, n=n), ULP)

    def test_shifts_of_all_bits_and_more(self, umem):
        for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8"):
            a = spread(dtype)
            by = np.resize(np.array([0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 100], dtype), a.shape)
            check(umem, "a << by", a=a, by=by)
            check(umem, "a >> by", a=a, by=by)
            if dtype[0] == "i":
                check(umem, "a << by", a=a, by=-by)
                check(umem, "a >> by", a=a, by=-by)

    def test_division_of_integers(self, umem):
        for dtype in ("i1", "i4", "i8"):
            least = np.iinfo(dtype).min
            a = np.array([least, least, 7, -7, 7, -7, 0, 5, -5, least], dtype)
            b = np.array([-1, 0, 2, 2, -2, -2, 0, 0, 0, 3], dtype)
            for text in ("a // b", "a % b", "fmod(a, b)", "a / b", "-a", "abs(a)", "a * a"):
                check(umem, text, a=a, b=b)

    def test_a_type_without_a_loop(self, umem):
        with pytest.raises(TypeError) as error:
            evaluate(umem, "a + (~a)", {"a": spread("f4")})
        assert str(error.value).splitlines()[1:] == ["    a + (~a)", "         ^"]

    def test_rounds_float32_after_each_operation(self, umem):
        rng = np.random.default_rng(2)
        a, b, c = (rng.normal(size=1000).astype("f4") for _ in range(3))
        d = rng.normal(size=1000)
        check(umem, "a*b + c", a=a, b=b, c=c)
        check(umem, "(a*b + c) * d", a=a, b=b, c=c, d=d)


# --- layouts ---------------------------------------------------------------------------------------------


class TestLayouts:
    TEXT = "2*a + b*c - where(a > b, a, c)"

    def check(self, umem, a, b, c, **kwargs):
        with np.errstate(all="ignore"):
            expected = oracle(self.TEXT, a=np.asarray(a), b=np.asarray(b), c=np.asarray(c))
            actual = umem.evaluate(self.TEXT, **kwargs)
        assert_same(actual, expected)
        return actual

    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 255, 2048, 2049, 16_384, 40_001])
    def test_counts(self, umem, count):
        for dtype in ("f4", "f8", "i2"):
            a, b, c = (umem.arange(count).astype(dtype) * k for k in (1, 2, 3))
            self.check(umem, a, b, c)

    def test_no_elements(self, umem):
        a, b, c = (umem.zeros((3, 0), "f4") for _ in range(3))
        self.check(umem, a, b, c)

    def test_no_axes(self, umem):
        a, b, c = umem.array(2.0), umem.array(3.0), np.array(4.0)
        result = umem.evaluate(self.TEXT)
        assert type(result) is np.float64
        assert result == oracle(self.TEXT, a=2.0, b=3.0, c=4.0)
        d = umem.ones(5)
        assert_same(umem.evaluate("a*d + b"), np.full(5, 5.0))

    def test_broadcast(self, umem):
        a = umem.arange(12, dtype="f4").reshape(3, 4)
        self.check(umem, a, umem.arange(4, dtype="f4"), umem.arange(3, dtype="f4").reshape(3, 1))
        self.check(umem, a, umem.ones((1, 1), "f4"), umem.ones((2, 1, 1), "f4"))

    def test_strides(self, umem):
        x = umem.arange(4 * 30, dtype="f4").reshape(4, 30)
        for view in (
            lambda v: v[:, ::2], lambda v: v[::-1], lambda v: v[:, ::-1], lambda v: v.T,
            lambda v: v[1:, 1:].T, lambda v: v[:, 3:19], lambda v: v[::2, ::-3],
        ):  # fmt: skip
            a, b, c = view(x), view(x * 2), view(x + 1)
            self.check(umem, a, b, c)
            d = umem.arange(a.size, dtype="f8").reshape(a.shape)
            self.check(umem, a, d, c)

    def test_mixed_orders(self, umem):
        x = umem.arange(3 * 8 * 16, dtype="f4").reshape(3, 8, 16)
        a, b, c = x, x.T.copy().T, x.transpose(1, 0, 2).copy().transpose(1, 0, 2)
        self.check(umem, a, b, c)

    def test_many_axes(self, umem):
        base = umem.arange(4**6 * 2**6, dtype="i4").reshape((4,) * 6 + (2,) * 6)
        a = base[(slice(None, None, 2),) * 6]
        assert a.ndim == 12
        self.check(umem, a, a[::-1], a.T)

    def test_vectors_with_a_broadcast_row(self, umem):
        for dtype in ("f4", "f8", "u1"):
            a = umem.arange(16 * 64).astype(dtype).reshape(16, 64)
            column = umem.arange(16).astype(dtype).reshape(16, 1)
            self.check(umem, a, column, umem.arange(64).astype(dtype))

    def test_unaligned(self, umem):
        raw = umem.zeros(4 * 50 + 1, "u1")
        a = raw[1:].view("f4")
        a[...] = np.arange(50, dtype="f4")
        self.check(umem, a, a, umem.ones(50, "f4"))

    def test_other_byte_order(self, umem):
        a = umem.asarray(np.arange(50, dtype=">f4"))
        assert_same(umem.evaluate("a + 1"), np.arange(1, 51, dtype="f4"))

    @pytest.mark.parametrize("order", ["C", "F", "K", "A"])
    def test_order(self, umem, order):
        x = np.asfortranarray(np.ones((3, 4), "f4"))
        a = umem.asarray(x)
        expected = np.add(x, 1, order=order)
        actual = umem.evaluate("a + 1", order=order)
        assert actual.strides == expected.strides
        with pytest.raises(ValueError, match="order"):
            umem.evaluate("a + 1", order="Z")


class TestOut:
    def test_is_returned(self, umem):
        a, d = umem.arange(100, dtype="f4"), umem.empty(100, "f4")
        assert umem.evaluate("2*a + 1", out=d) is d
        assert_same(np.asarray(d), np.arange(100, dtype="f4") * 2 + 1)

    def test_may_be_an_operand(self, umem):
        a = umem.arange(3000, dtype="f4")
        umem.evaluate("a*a - a", out=a)
        x = np.arange(3000, dtype="f4")
        assert_same(np.asarray(a), x * x - x)

    @pytest.mark.parametrize(("out_view", "in_view"), [
        (np.s_[1:], np.s_[:-1]), (np.s_[:-1], np.s_[1:]), (np.s_[::-1], np.s_[:]), (np.s_[::2], np.s_[: 1500]),
    ])  # fmt: skip
    def test_may_overlap_operands(self, umem, out_view, in_view):
        a, x = umem.arange(3000, dtype="f4"), np.arange(3000, dtype="f4")
        b, y = a[in_view], x[in_view]
        umem.evaluate("2*b + 1", out=a[out_view])
        x[out_view] = 2 * y + 1
        assert_same(np.asarray(a), x)

    def test_may_be_a_row_of_an_operand(self, umem):
        a, x = (
            umem.arange(300, dtype="f4").reshape(3, 100),
            np.arange(300, dtype="f4").reshape(3, 100),
        )
        row = a[1]
        umem.evaluate("a + row", out=a)
        assert_same(np.asarray(a), x + x[1].copy())

    def test_of_another_type(self, umem):
        a = umem.arange(50, dtype="i4")
        for dtype in ("f8", "i8", "c16", "g"):
            out = umem.empty(50, dtype)
            umem.evaluate("a*3", out=out)
            assert_same(np.asarray(out), (np.arange(50) * 3).astype(dtype))
        for dtype in ("f4", "i2", "u1", "f2", "?"):
            out = umem.empty(50, dtype)
            with pytest.raises(TypeError, match="casting='safe'"):
                umem.evaluate("a*3", out=out)
            umem.evaluate("a*3", out=out, casting="unsafe")
            assert_same(np.asarray(out), (np.arange(50) * 3).astype(dtype))

    def test_integers_from_floats(self, umem):
        a = umem.linspace(-5, 5, 50)
        for dtype in ("i4", "i8", "i1"):
            out = umem.empty(50, dtype)
            umem.evaluate("a*1.5", out=out, casting="unsafe")
            assert_same(np.asarray(out), (np.linspace(-5, 5, 50) * 1.5).astype(dtype))

    def test_views(self, umem):
        x = np.zeros((6, 20), "f4")
        out, a = umem.asarray(x.copy()), umem.arange(10, dtype="f4")
        umem.evaluate("a + 1", out=out[::2, ::-2])
        x[::2, ::-2] = np.arange(1, 11)
        assert_same(np.asarray(out), x)

    def test_numpys(self, umem):
        a, out = umem.arange(10, dtype="f4"), np.zeros(10, "f4")
        assert umem.evaluate("a + 1", out=out) is out
        assert_same(out, np.arange(1, 11, dtype="f4"))

    def test_of_a_number(self, umem):
        out = umem.zeros(3)
        assert umem.evaluate("1 + 1.5", out=out) is out
        assert out.tolist() == [2.5] * 3

    def test_refused(self, umem):
        a = umem.arange(10, dtype="f4")
        with pytest.raises(ValueError, match="shape"):
            umem.evaluate("a + 1", out=umem.empty(5, "f4"))
        with pytest.raises(ValueError, match="shape"):
            umem.evaluate("a + 1", out=umem.empty(1, "f4"))
        with pytest.raises(TypeError, match="out must be an array"):
            umem.evaluate("a + 1", out=[0] * 10)
        a.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            umem.evaluate("a + 1", out=a)
        b = umem.arange(3)
        with pytest.raises(ValueError, match="broadcast"):
            umem.evaluate("a + b")
        assert b.tolist() == [0, 1, 2]


# --- names -----------------------------------------------------------------------------------------------

GLOBAL = np.arange(4.0)


class TestNames:
    def test_of_the_caller(self, umem):
        a = umem.ones(4)
        assert umem.evaluate("a + GLOBAL").tolist() == [1, 2, 3, 4]
        del a

    def test_given(self, umem):
        a = umem.ones(4)
        assert umem.evaluate("a + b", {"a": a, "b": 2}).tolist() == [3] * 4
        assert umem.evaluate("a + b", {"a": a}, {"b": 3, "a": 0}).tolist() == [4] * 4
        assert umem.evaluate("a + GLOBAL", {"a": a}).tolist() == [1, 2, 3, 4]

    def test_not_ascii(self, umem):
        größe, π = umem.ones(3), 3
        assert umem.evaluate("größe * π").tolist() == [3] * 3
        assert (größe.size, π) == (3, 3)

    def test_arrays_of_other_libraries(self, umem):
        torch = pytest.importorskip("torch")
        a, t, x = umem.ones(4, "f4"), torch.arange(4, dtype=torch.float32), [1, 2, 3, 4]
        result = umem.evaluate("a + t * 2 + x")
        assert type(result) is umem.ndarray
        assert result.tolist() == [2, 5, 8, 11]
        del a, t, x

    def test_numpy_alone(self, umem):
        a = np.ones(4)
        assert_same(umem.evaluate("a + 1"), a + 1)

    @pytest.mark.parametrize("value", ["text", None, object(), np.array(["x"]), np.ma.masked_array([1, 2], [0, 1]),
                                       np.array([None]), np.zeros(2, "M8[s]"), np.str_("x")], ids=lambda value: type(value).__name__)  # fmt: skip
    def test_no_numbers(self, umem, value):
        with pytest.raises(TypeError, match="neither an array of numbers nor a number") as error:
            umem.evaluate("1 + value")
        assert str(error.value).splitlines()[2] == "        ^"

    def test_a_function_drops_its_arrays(self, umem):
        """Looking names up keeps nothing alive."""
        a = umem.ones(1 << 20)
        umem.evaluate("a + 1")
        before = umem.memory_stats()["allocated_bytes.all.current"]
        del a
        gc.collect()
        assert umem.memory_stats()["allocated_bytes.all.current"] == before - (8 << 20)

    def test_locals_of_the_caller_stay(self, umem):
        a = umem.ones(4)
        mine = locals()
        umem.evaluate("a + 1")
        assert mine["a"] is a


# --- errors ------------------------------------------------------------------------------------------------


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "mark", "what"),
        [
            ("a +* b", 3, "invalid syntax"),
            ("a + ", 3, "invalid syntax"),
            ("(a + b", 0, "never closed"),
            ("größe + a.b", 8, "no attributes"),
            ("'größe' + a", 0, "no str"),
            ("a[0] + 1", 0, "no indices"),
            ("a + b[1:]", 4, "no indices"),
            ("a < b < a", 0, "cannot be chained"),
            ("a and b", 0, "& | ~"),
            ("1 + (not a)", 5, "& | ~"),
            ("a if b else a", 0, "where"),
            ("a + spam(b)", 4, "no function 'spam'"),
            ("a + sin(a, b)", 4, "takes 1 argument, not 2"),
            ("where(a, b)", 0, "takes 3 arguments, not 2"),
            ("sin(*a)", 4, r"no \*"),
            ("sin(x=a)", 4, "keyword"),
            ("a.sin()", 0, "only functions by their name"),
            ("a @ b", 0, "no '@'"),
            ("[a, b]", 0, "no lists"),
            ("lambda: a", 0, "no Lambda"),
            ("(a := b)", 1, "no NamedExpr"),
            ("a; b", 1, "invalid syntax"),
            ("a = b", 2, "invalid syntax"),
            ("f'{a}'", 0, "no JoinedStr"),
            ("a is b", 0, "no 'is'"),
            ("a + ...", 4, "no ellipsis"),
            ("a + None", 4, "no NoneType"),
            ("sum(a)", 0, "no function 'sum'"),
            ("a\n+ b", None, "invalid syntax"),
            ("", None, "empty"),
            ("  ", None, "empty"),
            ("a\0b", None, "null"),
            ("a + \ud800", None, "surrogates"),
        ],
    )
    def test_syntax(self, umem, text, mark, what):
        a = b = umem.ones(3)
        größe = 1
        with pytest.raises(SyntaxError, match=what) as error:
            umem.evaluate(text)
        lines = str(error.value).splitlines()
        assert any("functions abs arccos" in line for line in lines)
        if mark is not None:
            assert lines[1:3] == ["    " + text.strip(), "    " + " " * mark + "^"]
        assert (a is b, größe) == (True, 1)

    def test_the_mark_stands_under_wide_characters(self, umem):
        with pytest.raises(NameError) as error:
            umem.evaluate("変数 + x", {"変数": 1}, {})
        assert str(error.value).splitlines()[2] == "    " + " " * 7 + "^"

    def test_several_lines(self, umem):
        a = umem.ones(3)
        assert umem.evaluate("(a +\n\t2)").tolist() == [3] * 3
        with pytest.raises(NameError) as error:
            umem.evaluate("(a +\n\tspam)")
        assert str(error.value).splitlines() == [
            "name 'spam' is not defined",
            "     spam)",
            "     ^",
        ]
        assert a.size == 3

    def test_names(self, umem):
        with pytest.raises(NameError) as error:
            umem.evaluate("1 + spam")
        assert str(error.value).splitlines() == [
            "name 'spam' is not defined",
            "    1 + spam",
            "        ^",
        ]

    def test_numbers(self, umem):
        with pytest.raises(ZeroDivisionError) as error:
            umem.evaluate("1 + 2 // 0")
        assert str(error.value).splitlines()[2] == "          ^"
        with pytest.raises(OverflowError, match="bits"):
            umem.evaluate("2 ** 9999999999")
        with pytest.raises(OverflowError, match="bits"):
            umem.evaluate("1 << n", {"n": 10**9})
        with pytest.raises(ZeroDivisionError):
            umem.evaluate("a + 1 // n", {"n": 0, "a": umem.ones(3)})

    def test_size(self, umem):
        a = umem.ones(3)
        with pytest.raises(SyntaxError, match="levels deep"):
            umem.evaluate("-" * 150 + "a")
        with pytest.raises(SyntaxError, match="levels deep|too many nested|too deeply"):
            umem.evaluate("(" * 150 + "a" + ")" * 150 + "+" * 150 + "a")
        with pytest.raises(SyntaxError, match="nest"):
            umem.evaluate("sin(" * 3000 + "a" + ")" * 3000)
        with pytest.raises(SyntaxError, match="characters"):
            umem.evaluate("a" + " + a" * 10_000)
        assert umem.evaluate("a" + "+ a" * 90).tolist() == [91] * 3

    def test_no_string(self, umem):
        with pytest.raises(TypeError, match="str"):
            umem.evaluate(b"a + 1")

    def test_nothing_is_executed(self, umem):
        called = []
        spam = called.append
        with pytest.raises(SyntaxError):
            umem.evaluate("spam(1)")
        assert spam
        assert not called


# --- large expressions -------------------------------------------------------------------------------------


class TestLargeExpressions:
    def test_more_arrays_than_a_pass_takes(self, umem, on_gpu, machine):
        operands = {f"x{i}": spread("f4", seed=i) for i in range(30)}
        check(umem, " + ".join(f"x{i} * {i}" for i in range(30)), **operands)
        assert len(machine) > 3 or not on_gpu

    def test_more_arrays_than_nditer_takes(self, umem):
        operands = {f"x{i}": spread("i4", seed=i) for i in range(90)}
        check(umem, "+".join(operands), **operands)

    def test_more_registers_than_there_are(self, umem):
        """Products that all wait for the sum of all."""
        terms = [f"(a + {i})" for i in range(20)]
        total = "(" + " + ".join(terms) + ")"
        check(umem, " ^ ".join(f"({term} * {total})" for term in terms), a=spread("i8"))

    def test_more_steps_and_constants_than_there_are(self, umem, on_gpu, machine):
        text = " + ".join(
            "(" + " ^ ".join(f"(a * {40 * j + i})" for i in range(40)) + ")" for j in range(10)
        )
        check(umem, text, a=spread("i8"))
        assert len(machine) > 1 or not on_gpu

    def test_parts_have_their_own_shapes(self, umem):
        operands = {
            f"x{i}": spread("f4", 24, seed=i).reshape((24, 1) if i % 2 else (1, 24))
            for i in range(20)
        }
        check(umem, " + ".join(f"x{i} * x{19 - i}" for i in range(20)), **operands)

    def test_deep_on_both_sides(self, umem):
        def balanced(depth, at=1):
            if depth == 0:
                return f"(a - {at % 60})"
            return f"({balanced(depth - 1, 2 * at)} * {balanced(depth - 1, 2 * at + 1)} + b)"

        check(umem, balanced(6), a=spread("i4"), b=spread("i4", seed=1))


class TestPrograms:
    """What is made of expressions: CUDA backend."""

    pytestmark = pytest.mark.backends("fake", "cuda")

    def program(self, umem, machine, text, **operands):
        machine.clear()
        evaluate(umem, text, operands)
        ((steps, constants, wide, inputs, _out),) = machine
        decoded = [struct.unpack("8B", steps[i : i + 8])[:5] for i in range(0, len(steps), 8)]
        registers = {s[4] for s in decoded if s[4] != 0xFF} | set(range(len(inputs)))
        return decoded, len(constants) // 8, wide, len(registers)

    def test_the_example(self, umem, machine):
        a, b, c = (spread("f4", seed=i) for i in range(3))
        steps, constants, wide, registers = self.program(
            umem, machine, "2*a + b*sin(c)", a=a, b=b, c=c
        )
        assert (len(steps), constants, wide, registers) == (4, 1, False, 3)

    def test_equal_parts_are_computed_once(self, umem, machine):
        a, b = spread("f4"), spread("f4", seed=1)
        steps, *_ = self.program(umem, machine, "(a+b)*(a+b) - (a+b)", a=a, b=b)
        assert len(steps) == 3

    def test_numbers_are_folded(self, umem, machine):
        steps, constants, *_ = self.program(umem, machine, "a * (2*3.5 - 1)", a=spread("f4"))
        assert (len(steps), constants) == (1, 1)

    def test_few_registers(self, umem, machine):
        a = spread("f4")
        text = "+".join(f"(a*{i} - {i})" for i in range(1, 20))
        assert self.program(umem, machine, text, a=a)[3] <= 3

    def test_small_types_have_narrow_cells(self, umem, machine):
        assert not self.program(umem, machine, "a*2 > 5", a=spread("i2"))[2]
        assert self.program(umem, machine, "a*2.5 > 5", a=spread("i4"))[2]

    def test_a_repeated_call_compiles_nothing(self, umem, machine):
        module = sys.modules["umem._evaluate"]
        a = umem.asarray(spread("f4"))
        umem.evaluate("a*3 + 4")
        before = module._compile.cache_info().misses
        a = umem.asarray(spread("f4", seed=1))
        umem.evaluate("a*3 + 4")
        assert module._compile.cache_info().misses == before
        assert a.size

    def test_the_machine_checks_programs(self, umem):
        run, op = umem._core.evaluate, umem._core.evaluate_op
        a, out = umem.ones(5, "f4"), umem.zeros(5, "f4")
        none, add = 255, op("f32_add")

        def step(number, first, second=none, third=none, store=none):
            return struct.pack("8B", number, first, second, third, store, 0, 0, 0)

        run(step(add, 0, 0), b"", False, (a,), out)
        assert out.tolist() == [2] * 5
        where = op("where")
        for steps, constants, wide in (
            (b"", b"", False),
            (step(add, 1, 0), b"", False),  # a register without a value
            (step(add, 0, 0x80), b"", False),  # no such constant
            (step(add, 0xFE, 0), b"", False),  # nothing before
            (step(add, 0, 0, 0), b"", False),  # an operand too many
            (step(where, 0, 0), b"", False),
            (step(where, 0, none, 0), b"", False),
            (step(add, none, 0), b"", False),
            (step(add, 0, 0, none, 12), b"", False),  # no such register
            (step(op("f64_add"), 0, 0), b"", False),  # of wide machines
            (step(254, 0, 0), b"", False),
            (step(add, 0, 0) * 129, b"", False),
            (step(add, 0, 0), b"\0" * 8 * 65, False),
        ):
            with pytest.raises(ValueError, match=r"step|constants"):
                run(steps, constants, wide, (a,), out)
        with pytest.raises(ValueError, match="operand"):
            run(step(add, 0, 0), b"", False, (umem.ones(5),), out)
        with pytest.raises(ValueError, match="operand"):
            run(step(add, 0, 0), b"", False, (umem.zeros(21, "u1")[1:].view("f4"),), out)
        with pytest.raises(TypeError, match="complex"):
            run(step(add, 0, 0), b"", False, (umem.ones(5, "c8"),), out)
        with pytest.raises(TypeError, match="tuple"):
            run(step(add, 0, 0), b"", False, [a], out)
        with pytest.raises(TypeError, match="tuple"):
            run(step(add, 0, 0), b"", False, (a,) * 9, out)
        with pytest.raises(TypeError, match="ndarray"):
            run(step(add, 0, 0), b"", False, (np.ones(5, "f4"),), out)
        with pytest.raises(TypeError, match="ndarray"):
            run(step(add, 0, 0), b"", False, (a,), np.ones(5, "f4"))
        with pytest.raises(TypeError, match="bytes"):
            run("add", b"", False, (a,), out)
        with pytest.raises(TypeError, match="5 arguments"):
            run(b"")
        with pytest.raises(ValueError, match="broadcast"):
            run(step(add, 0, 0), b"", False, (umem.ones(3, "f4"),), out)
        with pytest.raises(TypeError, match="str"):
            op(3)
        with pytest.raises(UnicodeEncodeError):
            op("\ud800")
        out.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            run(step(add, 0, 0), b"", False, (a,), out)
        assert op("f32_nothing") == -1

    def test_no_kernels_on_the_host_backend(self, umem):
        assert umem._core.evaluate_limits == (8, 12, 128, 64)


@pytest.mark.backends("host")
def test_the_machine_is_for_cuda(umem):
    with pytest.raises(RuntimeError, match="host backend"):
        umem._core.evaluate(bytes(8), b"", False, (umem.ones(3),), umem.ones(3))


# --- coherence and threads ---------------------------------------------------------------------------------


def test_a_view_shows_the_result(umem):
    a, d = umem.arange(50_000, dtype="f4"), umem.zeros(50_000, "f4")
    view = d.numpy()
    umem.evaluate("a * 2", out=d)
    assert view[-1] == 99_998
    assert a.size


def test_follows_other_work(umem):
    a = umem.arange(50_000, dtype="f4")
    b = umem.add(a, 1)
    c = umem.evaluate("a * b")
    with umem.stream(2):
        d = umem.evaluate("c + 1")
    assert umem.subtract(d, c).tolist() == [1] * 16 + (d - c).tolist()[16:]


def test_threads(umem):
    def work(seed):
        a, b = (umem.asarray(spread("f4", 5000, seed=seed + k)) for k in range(2))
        x, y = np.asarray(a), np.asarray(b)
        for k in range(20):
            with np.errstate(all="ignore"):
                result = umem.evaluate(f"a * {k % 7} + where(b > a, b, k)")
                expected = x * (k % 7) + np.where(y > x, y, k)
            np.testing.assert_array_equal(np.asarray(result), expected)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_is_one_of_the_operators():
    """The oracle is not the code under test: Python's operators, on NumPy's arrays."""
    assert oracle("a // b", a=7, b=2) == operator.floordiv(7, 2)
