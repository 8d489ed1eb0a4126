"""Creation functions: NumPy's arguments, defaults, results and errors, in managed memory."""

import numpy as np
import pytest

from support import DTYPES, VIEWS, assert_same, assert_same_array, outcome, sample, walked_strides

SHAPES = {
    "number": 5,
    "no axes": (),
    "one axis": (3,),
    "two axes": (3, 4),
    "list": [2, 3],
    "NumPy numbers": (np.int32(2), np.int64(3)),
    "NumPy number": np.int64(4),
    "no elements": (0, 3),
    "nothing": 0,
    "ones": (1, 1, 1),
    "32 axes": (1,) * 31 + (2,),
    "64 axes": (1,) * 64,
    "large": (300, 1000),
}


def same_layout(umem, actual, expected):
    assert type(actual) is umem.ndarray
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert walked_strides(actual) == walked_strides(expected)
    assert actual.flags.writeable
    assert actual.flags.aligned
    if expected.base is None:
        assert actual.base is None
        assert actual.flags.owndata


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("order", ["C", "F"])
class TestShapes:
    def test_empty(self, umem, shape, order):
        same_layout(umem, umem.empty(shape, order=order), np.empty(shape, order=order))

    def test_zeros(self, umem, shape, order):
        a, n = umem.zeros(shape, order=order), np.zeros(shape, order=order)
        same_layout(umem, a, n)
        assert_same(a, n)

    def test_ones(self, umem, shape, order):
        a, n = umem.ones(shape, order=order), np.ones(shape, order=order)
        same_layout(umem, a, n)
        assert_same(a, n)

    def test_full(self, umem, shape, order):
        a, n = umem.full(shape, 7.5, order=order), np.full(shape, 7.5, order=order)
        same_layout(umem, a, n)
        assert_same(a, n)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
class TestDtypes:
    def test_empty(self, umem, dtype):
        same_layout(umem, umem.empty((2, 3), dtype), np.empty((2, 3), dtype))

    def test_zeros(self, umem, dtype):
        a, n = umem.zeros((2, 3), dtype), np.zeros((2, 3), dtype)
        same_layout(umem, a, n)
        assert_same(a, n)

    def test_ones(self, umem, dtype):
        expected = outcome(np.ones, (2, 3), dtype)
        actual = outcome(umem.ones, (2, 3), dtype)
        assert actual[0][0] == expected[0][0]
        if expected[0][0] == "returns":
            same_layout(umem, actual[0][2], expected[0][2])
            assert_same(actual[0][2], expected[0][2])

    def test_full(self, umem, dtype):
        value = sample(dtype)[2, 3]
        a, n = umem.full((2, 3), value, dtype), np.full((2, 3), value, dtype)
        same_layout(umem, a, n)
        assert_same(a, n)

    def test_array(self, umem, dtype):
        n = sample(dtype)
        a = umem.array(n)
        same_layout(umem, a, n)
        assert_same(a, n)


class TestDefaults:
    def test_dtype_is_float64(self, umem):
        for a in (
            umem.empty(3),
            umem.zeros(3),
            umem.ones(3),
            umem.zeros(3, None),
            umem.zeros(3, dtype=None),
        ):
            assert a.dtype == np.float64

    def test_positional_arguments_are_numpys(self, umem):
        for name, arguments in {
            "empty": ((2, 3), "i4", "F"),
            "zeros": ((2, 3), "i4", "F"),
            "ones": ((2, 3), "i4", "F"),
            "full": ((2, 3), 5, "i4", "F"),
            "arange": (2, 20, 3, "f4"),
            "linspace": (0, 1, 5, False, True, "f4"),
            "empty_like": (np.ones((2, 3)), "i4", "F"),
            "zeros_like": (np.ones((2, 3)), "i4", "F"),
            "ones_like": (np.ones((2, 3)), "i4", "F"),
            "full_like": (np.ones((2, 3)), 5, "i4", "F"),
            "array": ([[1, 2], [3, 4]], "f4"),
            "asarray": ([[1, 2], [3, 4]], "f4", "F"),
            "copy": (np.ones((2, 3)).T, "C"),
        }.items():
            actual = getattr(umem, name)(*arguments)
            expected = getattr(np, name)(*arguments)
            if name == "linspace":
                assert actual[1] == expected[1]
                actual, expected = actual[0], expected[0]
            same_layout(umem, actual, expected)
            if not name.startswith("empty"):
                assert_same(actual, expected)

    def test_keyword_arguments_are_numpys(self, umem):
        for name, keywords in {
            "empty": dict(shape=(2, 3), dtype="i4", order="F"),
            "zeros": dict(shape=(2, 3), dtype="i4", order="F"),
            "ones": dict(shape=(2, 3), dtype="i4", order="F"),
            "full": dict(shape=(2, 3), fill_value=5, dtype="i4", order="F"),
            "linspace": dict(start=1, stop=2, num=4, endpoint=False, dtype="f4", axis=0),
            "full_like": dict(a=np.ones((2, 3)), fill_value=5, dtype="i4", order="F", shape=(4,)),
            "array": dict(object=[1, 2], dtype="f4", copy=True, order="C", ndmin=2),
            "asarray": dict(a=[1, 2], dtype="f4", order="F", copy=None),
            "copy": dict(a=[1, 2], order="C"),
        }.items():
            actual = getattr(umem, name)(**keywords)
            expected = getattr(np, name)(**keywords)
            same_layout(umem, actual, expected)
            if name != "empty":
                assert_same(actual, expected)

    @pytest.mark.parametrize(
        "value", [3, 2.5, 1j, True, "ab", b"xyz", np.float32(2), np.datetime64("2020-01-01")]
    )
    def test_full_takes_the_dtype_of_its_value(self, umem, value):
        a, n = umem.full((2,), value), np.full((2,), value)
        same_layout(umem, a, n)
        assert_same(a, n)

    def test_full_broadcasts_an_array(self, umem):
        for row in (np.arange(3), umem.arange(3)):
            assert_same_array(umem, umem.full((2, 3), row), np.full((2, 3), np.arange(3)))

    def test_full_refuses_what_does_not_broadcast(self, umem):
        with pytest.raises(ValueError, match="broadcast"):
            umem.full((2, 3), [1, 2])

    def test_every_function_takes_device_and_home(self, umem, on_gpu):
        n = np.ones((2, 3))
        for make in (
            lambda **where: umem.empty(3, **where),
            lambda **where: umem.zeros(3, **where),
            lambda **where: umem.ones(3, **where),
            lambda **where: umem.full(3, 1, **where),
            lambda **where: umem.arange(3, **where),
            lambda **where: umem.linspace(0, 1, 3, **where),
            lambda **where: umem.empty_like(n, **where),
            lambda **where: umem.zeros_like(n, **where),
            lambda **where: umem.ones_like(n, **where),
            lambda **where: umem.full_like(n, 2, **where),
            lambda **where: umem.array(n, **where),
            lambda **where: umem.asarray(n, **where),
            lambda **where: umem.copy(n, **where),
        ):
            a = make(device="cuda:0", home="cpu")
            assert a.home == "cpu"
            assert a.device == ("cuda:0" if on_gpu else "cpu")
            assert make(device=0, home="cuda").home == "cuda:0"
            assert make(device=None, home=None).home is None
            with pytest.raises(ValueError, match="device"):
                make(device="gpu")
            with pytest.raises(ValueError, match="home"):
                make(home="gpu")


class TestRanges:
    @pytest.mark.parametrize(
        "arguments",
        [
            (5,), (2, 9), (2, 9, 3), (9, 2, -2), (0,), (3, 3), (5, 2), (1.5,), (0, 1, 0.1), (np.float32(0), 3),
            (np.datetime64("2020-01-01"), np.datetime64("2020-01-10"), np.timedelta64(2, "D")), (2**31, 2**31 + 3),
            (np.int8(3),), (True,),
        ],
        ids=str,
    )  # fmt: skip
    def test_arange(self, umem, arguments):
        a, n = umem.arange(*arguments), np.arange(*arguments)
        same_layout(umem, a, n)
        assert_same(a, n)

    def test_arange_by_keyword(self, umem):
        assert_same_array(
            umem, umem.arange(start=2, stop=9, step=2), np.arange(start=2, stop=9, step=2)
        )
        assert_same_array(umem, umem.arange(stop=9), np.arange(stop=9))
        assert_same_array(umem, umem.arange(3, dtype="f4"), np.arange(3, dtype="f4"))
        assert_same_array(umem, umem.arange(3, step=0.5), np.arange(3, step=0.5))

    @pytest.mark.parametrize("arguments", [(0, 1, 0), (), ("a",), (0, 10**30), (None,)], ids=str)
    def test_arange_refuses_as_numpy_does(self, umem, arguments):
        assert outcome(umem.arange, *arguments) == outcome(np.arange, *arguments)

    @pytest.mark.parametrize(
        "keywords",
        [
            {}, {"num": 7}, {"num": 0}, {"num": 1}, {"endpoint": False}, {"dtype": "i4"}, {"dtype": "f4"},
            {"num": 5, "dtype": complex},
        ],
        ids=str,
    )  # fmt: skip
    def test_linspace(self, umem, keywords):
        a, n = umem.linspace(-1, 8, **keywords), np.linspace(-1, 8, **keywords)
        same_layout(umem, a, n)
        assert_same(a, n)

    def test_linspace_of_arrays(self, umem):
        start, stop = np.arange(3.0), np.arange(3.0) * 4
        for axis in (0, -1):
            n = np.linspace(start, stop, 5, axis=axis)
            assert_same_array(umem, umem.linspace(start, stop, 5, axis=axis), n)
            assert_same_array(
                umem, umem.linspace(umem.array(start), umem.array(stop), 5, axis=axis), n
            )

    def test_linspace_gives_the_step(self, umem):
        a, step = umem.linspace(0, 3, 7, retstep=True)
        n, expected = np.linspace(0, 3, 7, retstep=True)
        assert_same_array(umem, a, n)
        assert step == expected

    def test_linspace_refuses_a_negative_number(self, umem):
        with pytest.raises(ValueError, match="non-negative"):
            umem.linspace(0, 1, -1)


LIKE = ["empty_like", "zeros_like", "ones_like", "full_like"]


@pytest.mark.parametrize("name", LIKE)
class TestLike:
    @staticmethod
    def both(umem, name, like, n, **keywords):
        value = (3,) if name == "full_like" else ()
        actual = getattr(umem, name)(like, *value, **keywords)
        expected = getattr(np, name)(n, *value, **keywords)
        same_layout(umem, actual, expected)
        if name != "empty_like":
            assert_same(actual, expected)

    @pytest.mark.parametrize("view", VIEWS)
    def test_memory_order_follows_the_prototype(self, umem, name, view):
        n = VIEWS[view](sample("f4"))
        a = VIEWS[view](umem.array(sample("f4")))
        for order in ("K", "A", "C", "F"):
            self.both(umem, name, a, n, order=order)
            self.both(umem, name, n, n, order=order)
        self.both(umem, name, a, n)

    @pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1), (2, 1, 0)])
    def test_permuted_axes(self, umem, name, axes):
        n = np.zeros((2, 3, 4), "i4").transpose(axes)
        a = umem.zeros((2, 3, 4), "i4").transpose(axes)
        self.both(umem, name, a, n)
        self.both(umem, name, a, n, dtype="f8")

    def test_another_dtype_and_shape(self, umem, name):
        n = np.zeros((2, 3), "f4")
        a = umem.zeros((2, 3), "f4")
        self.both(umem, name, a, n, dtype="i8")
        self.both(umem, name, a, n, shape=(5,))
        self.both(umem, name, a.T, n.T, shape=(4, 5))
        self.both(umem, name, a, n, shape=7, dtype="u1", order="F")
        self.both(umem, name, a, n, shape=())

    def test_of_a_list_and_a_number(self, umem, name):
        self.both(umem, name, [[1, 2], [3, 4]], [[1, 2], [3, 4]])
        self.both(umem, name, 2.5, 2.5)

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_dtypes(self, umem, name, dtype):
        if name in ("empty_like", "zeros_like"):
            self.both(umem, name, umem.array(sample(dtype)), sample(dtype))
        else:
            self.both(umem, name, umem.array(sample(dtype)), sample(dtype), dtype="f8")

    def test_bad_order(self, umem, name):
        value = (3,) if name == "full_like" else ()
        with pytest.raises(ValueError, match="order"):
            getattr(umem, name)(umem.zeros(3), *value, order="Q")


class TestContents:
    def test_zeros_are_zero_in_memory_that_was_used(self, umem):
        for count in (3, 1000, 20_000, 300_000):
            for _ in range(3):
                a = umem.full(count, -1, dtype="i8")
                assert a[count - 1] == -1
                del a
                umem.synchronize()
                assert not umem.zeros(count, dtype="i8").any()

    def test_arrays_do_not_overlap(self, umem):
        arrays = [umem.full(100 + 10 * i, i, dtype="i4") for i in range(50)]
        for i, a in enumerate(arrays):
            assert np.asarray(a).tolist() == [i] * (100 + 10 * i)

    def test_memory_is_aligned_for_any_dtype(self, umem):
        for count in (1, 3, 17):
            for dtype in DTYPES.values():
                assert umem.empty(count, dtype).__array_interface__["data"][0] % 64 == 0

    def test_arrays_without_elements_have_addresses(self, umem):
        for a in (umem.zeros(0), umem.zeros((3, 0, 2), "i4"), umem.zeros((0,), RECORD_OF_NOTHING)):
            assert a.size == 0
            assert a.nbytes == 0
            assert np.asarray(a).shape == a.shape


RECORD_OF_NOTHING = np.dtype([])

BAD_CALLS = {
    "negative": lambda m: m.zeros(-1),
    "one negative": lambda m: m.empty((3, -2)),
    "too many bytes": lambda m: m.zeros(2**62, "f8"),
    "product too large": lambda m: m.empty((2**32, 2**32, 2**32), "u1"),
    "too large with a zero": lambda m: m.empty((0, 2**40, 2**40), "f8"),
    "not an address": lambda m: m.empty(2**70),
    "65 axes": lambda m: m.zeros((1,) * 65),
    "float length": lambda m: m.zeros(2.5),
    "float lengths": lambda m: m.ones((2, 3.0)),
    "text": lambda m: m.zeros("3"),
    "no shape": lambda m: m.zeros(),
    "shape twice": lambda m: m.zeros(3, shape=3),
    "nested": lambda m: m.empty(((2, 3), 4)),
    "no such dtype": lambda m: m.zeros(3, "nonsense"),
    "bad dtype": lambda m: m.zeros(3, 17),
    "order K": lambda m: m.zeros(3, order="K"),
    "order A": lambda m: m.empty((2, 2), order="A"),
    "bad order": lambda m: m.ones(3, order="Z"),
    "order of another type": lambda m: m.zeros(3, order=7),
    "unknown keyword": lambda m: m.zeros(3, colour="red"),
    "no value": lambda m: m.full(3),
    "value of another type": lambda m: m.full(3, "x", dtype="f8"),
    "value out of range": lambda m: m.full(3, 300, dtype="u1"),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls_fail_as_in_numpy(umem, call):
    before = umem.memory_stats()["active.all.current"]
    expected = outcome(call, np)
    assert expected[0][0] == "raises"
    assert outcome(call, umem) == expected
    assert umem.memory_stats()["active.all.current"] == before


OBJECT_DTYPES = {
    "object": object,
    "O": "O",
    "record with objects": np.dtype([("a", "i4"), ("b", "O")]),
    "subarray of objects": np.dtype([("a", "O", (2,))]),
    "StringDType": np.dtypes.StringDType(),
}


@pytest.mark.parametrize("dtype", OBJECT_DTYPES.values(), ids=OBJECT_DTYPES)
class TestObjects:
    """Python objects cannot live in memory that a GPU sees."""

    def test_creation_is_refused(self, umem, dtype):
        for make in (umem.empty, umem.zeros):
            with pytest.raises(TypeError, match=r"(?i)dtype|object"):
                make(3, dtype)

    def test_other_ways_are_refused(self, umem, dtype):
        n = np.zeros(3, dtype)
        for make in (umem.array, umem.asarray, umem.copy, umem.empty_like, umem.zeros_like):
            with pytest.raises(TypeError, match=r"(?i)dtype|object"):
                make(n)
        with pytest.raises(TypeError, match=r"(?i)dtype|object"):
            umem.zeros(3).astype(dtype)


class TestDevices:
    @pytest.mark.backends("host")
    def test_gpu_locations_are_hints_on_the_host(self, umem):
        for where in ("cuda", "cuda:0", "cuda:5", 0, 3):
            a = umem.ones(10, device=where)
            assert a.device == "cpu"
            assert a.sum() == 10
        assert umem.ones(3, device="cpu").device == "cpu"
        assert umem.ones(3, home="cuda:7").home == "cuda:7"

    @pytest.mark.backends("fake", "cuda")
    def test_a_device_that_is_not_there(self, umem):
        for where in ("cuda:99", 99):
            with pytest.raises(ValueError, match=r"cuda:0"):
                umem.zeros(3, device=where)
            with pytest.raises(ValueError, match=r"cuda:0"):
                umem.zeros(3, home=where)

    @pytest.mark.backends("fake", "cuda")
    def test_the_cpu_owns_no_array_on_a_gpu(self, umem):
        with pytest.raises(ValueError, match="home"):
            umem.zeros(3, device="cpu")

    def test_home_of_arrays_of_every_size(self, umem):
        for count in (0, 1, 1000, 100_000, 3_000_000):
            for home in ("cpu", "cuda:0", "numa:0"):
                a = umem.zeros(count, "u1", home=home)
                assert a.home == home
                assert not np.asarray(a).any()


def test_what_functions_return_is_documented(umem):
    for name in (*LIKE, "empty", "zeros", "ones", "full", "arange", "linspace", "array", "asarray", "copy", "from_dlpack",
                 "fromfile", "load", "save"):  # fmt: skip
        assert len(getattr(umem, name).__doc__.strip()) > 20
