"""Indexing: views and copies by NumPy's rules, found without looking at the data; assignment likewise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from support import DTYPES, RECORD, VIEWS, address, assert_same, outcome, sample

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def numbered(shape, dtype="i4"):
    return np.arange(int(np.prod(shape, dtype=object))).astype(dtype).reshape(shape)


def check_item(umem, a, n, key):
    """a[key] is what n[key] is: kind, values, and which memory."""
    expected = outcome(n.__getitem__, key)
    actual = outcome(a.__getitem__, key)
    assert actual[0][0] == expected[0][0], (key, actual, expected)
    assert actual[1] == expected[1]
    if expected[0][0] == "raises":
        assert actual[0] == expected[0]
        return
    got, want = actual[0][2], expected[0][2]
    if not isinstance(want, np.ndarray):
        assert_same(got, want)
        return
    assert type(got) is umem.ndarray
    assert_same(got, want)
    is_view = np.shares_memory(want, n) or (
        want.size == 0 and want.base is not None and want.base is n
    )
    if want.size and is_view:
        assert got.strides == want.strides
        assert address(got) - address(a) == address(want) - address(n)
        assert got.base is (a if a.base is None else a.base)
    elif want.size:
        assert not np.shares_memory(got.numpy(), a.numpy())
        assert got.base is None or got.base is not a


class TestViews:
    @given(data=st.data(), shape=SHAPES)
    def test_basic_keys(self, umem, data, shape):
        n = numbered(shape)
        a = umem.array(n)
        key = data.draw(
            hnp.basic_indices(
                shape, min_dims=0, max_dims=6, allow_newaxis=True, allow_ellipsis=True
            )
        )
        check_item(umem, a, n, key)

    @given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6))
    def test_keys_of_views(self, umem, data, shape):
        n = numbered(shape)
        a = umem.array(n)
        for _ in range(3):
            key = data.draw(hnp.basic_indices(n.shape, allow_newaxis=False))
            if not isinstance(n[key], np.ndarray):
                break
            assert_same(a[key], n[key])
            a, n = a[key], n[key]
            if data.draw(st.booleans()):
                a, n = a.T, n.T
            assert a.strides == n.strides
            assert a.base is None or a.base.base is None

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_elements_are_numpys_scalars(self, umem, dtype):
        n = sample(dtype)
        a = umem.array(n)
        for key in ((0, 1), (-1, -1), (np.int64(2), np.uint8(3))):
            assert_same(a[key], n[key])
        assert_same(a[1][2], n[1][2])
        assert_same(a[1, 2, ...], n[1, 2, ...])
        assert_same(a[..., 1, 2], n[..., 1, 2])
        assert_same(umem.array(n[0, 0])[()], n[0, 0, ...][()])

    KEYS = {
        "out of bounds": 4,
        "out of bounds below": -5,
        "out of bounds in an axis": (0, 6),
        "too many": (0, 0, 0),
        "two ellipses": (..., ...),
        "float": 1.5,
        "float in a tuple": (0, 1.0),
        "text": "x",
        "text in a tuple": (0, "x"),
        "object": object(),
        "float slice": slice(0.5, 2),
        "zero step": slice(None, None, 0),
        "huge": 2**80,
        "huge slice": slice(-(2**80), 2**80, 2**70),
        "none": None,
        "true": True,
        "false": False,
        "true in a tuple": (True, 0),
        "NumPy true": np.True_,
        "empty tuple": (),
        "ellipsis": ...,
        "list": [1, 2],
        "empty list": [],
        "list of lists": [[0, 1], [2, 3]],
        "list of bools": [True, False, True, False],
        "list in a tuple": (slice(None), [0, 2]),
        "two lists": ([0, 1], [2, 3]),
        "lists that do not broadcast": ([0, 1], [1, 2, 3]),
        "list out of bounds": [0, 7],
        "bools too short": [True, False],
        "floats": [0.0, 1.0],
        "array": np.array([3, 0, -1]),
        "array of unsigned": np.array([3, 0], "u1"),
        "array of no axes": np.array(2),
        "array of bools": np.arange(24).reshape(4, 6) % 3 == 0,
        "rows by bools": np.array([True, False, True, False]),
        "bools and a slice": (np.array([True, False, True, False]), slice(1, 3)),
        "open mesh": np.ix_([0, 2], [1, 3]),
        "separated": ([0, 1], None, [2, 3]),
        "with an ellipsis": (..., [1, 2]),
        "bytes": b"a",
        "dictionary": {},
        "nested tuple": ((0, 1), (1, 2)),
    }

    @pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
    def test_every_sort_of_key(self, umem, key):
        n = numbered((4, 6))
        a = umem.array(n)
        check_item(umem, a, n, key)
        check_item(umem, a[::-1, 1:], n[::-1, 1:], key)
        check_item(umem, a.T, n.T, key)

    @given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    def test_integer_arrays(self, umem, data, shape):
        n = numbered(shape, "f8")
        a = umem.array(n)
        key = data.draw(
            hnp.integer_array_indices(
                shape, result_shape=hnp.array_shapes(max_dims=2, min_side=0, max_side=4)
            )
        )
        check_item(umem, a, n, key)
        check_item(umem, a, n, (key[0],))

    @given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
    def test_masks(self, umem, data, shape):
        n = numbered(shape, "f8")
        a = umem.array(n)
        mask = data.draw(hnp.arrays(bool, shape))
        check_item(umem, a, n, mask)
        assert_same(a[umem.array(mask)], n[mask])

    def test_keys_that_are_umem_arrays(self, umem):
        n = numbered((4, 6))
        a = umem.array(n)
        assert_same(a[umem.array([2, 0])], n[[2, 0]])
        assert_same(a[umem.array(1)], n[np.array(1)])
        assert_same(a[umem.array([1, 2]), umem.array([3, 4])], n[[1, 2], [3, 4]])
        assert_same(a[a > 10], n[n > 10])
        assert_same(a[:, umem.array([True, False] * 3)], n[:, [True, False] * 3])
        assert_same(n[umem.array([2, 0])], n[[2, 0]])

    def test_objects_with_index(self, umem):
        class Two:
            def __index__(self):
                return 2

        class Broken:
            def __index__(self):
                raise KeyError("broken")

        n = numbered((4, 6))
        a = umem.array(n)
        check_item(umem, a, n, Two())
        check_item(umem, a, n, (Two(), slice(Two(), None)))
        with pytest.raises((KeyError, IndexError)):
            a[Broken()]

    def test_fields_of_records(self, umem):
        n = sample(RECORD)
        a = umem.array(n)
        for key in (
            "a",
            "b",
            "c",
            ["a", "b"],
            ["c"],
            [],
            "missing",
            ["a", "missing"],
            ["a", "a"],
            ("a",),
            ("a", "b"),
        ):
            check_item(umem, a, n, key)
        check_item(umem, a["b"], n["b"], "x")
        check_item(umem, a[1], n[1], "c")
        assert_same(a[0, 0]["b"]["x"], n[0, 0]["b"]["x"])

    def test_a_record_shows_the_memory_of_its_array(self, umem):
        a = umem.array(sample(RECORD))
        a[1, 2]["a"] = 77
        assert a["a"][1, 2] == 77
        a["a"][0] = -1
        assert a[0, 3]["a"] == -1

    def test_the_error_text_is_numpys(self, umem):
        a, n = umem.zeros((4, 6)), np.zeros((4, 6))
        for key in (4, (0, 6), (0, 0, 0), 1.5, "x", [0, 9], (..., ...)):
            with pytest.raises(IndexError) as expected:
                n[key]
            with pytest.raises(IndexError) as actual:
                a[key]
            assert str(actual.value) == str(expected.value)

    def test_advanced_results_do_not_follow_the_array(self, umem):
        a = umem.arange(6)
        picked = a[[1, 2]]
        a[1] = 99
        assert picked.tolist() == [1, 2]


def check_assignment(umem, n, key, value, *, view=lambda x: x):
    """a[key] = value does what n[key] = value does, errors included. `value` may be made for each by a function."""
    a, n = umem.array(n), n.copy(order="K")
    make = value if callable(value) else lambda _: value
    expected = outcome(view(n).__setitem__, key, make(np))
    actual = outcome(view(a).__setitem__, key, make(umem))
    assert actual == expected, key
    assert_same(a, n)


VALUES = {
    "number": 7,
    "negative": -3,
    "float": 2.75,
    "big": 2**40,
    "too big": 2**70,
    "nan": float("nan"),
    "complex": 1j,
    "text": "x",
    "digits": "12",
    "none": None,
    "NumPy number": np.float32(1.5),
    "NumPy number out of range": np.int64(2**40),
    "list": [1, 2, 3],
    "nested list": [[1], [2]],
    "wrong length": [1, 2],
    "too many axes": [[[1, 2, 3]], [[4, 5, 6]]],
    "row": lambda m: m.arange(3),
    "floats": lambda m: m.arange(3) + 0.5,
    "column": lambda m: m.arange(2).reshape(2, 1),
    "no axes": lambda m: m.array(5),
    "one element": lambda m: m.array([5]),
    "leading ones": lambda m: m.arange(3).reshape(1, 1, 1, 3),
    "reversed": lambda m: m.arange(3)[::-1],
    "nothing": lambda m: m.zeros(0),
    "NumPy's": lambda m: np.arange(3.0),
    "datetime": np.datetime64("2020-01-01"),
    "object": object(),
}


class TestAssignment:
    @pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
    @pytest.mark.parametrize("dtype", ["i4", "f4", "f8", "u1", "c8", "S3", "i8"])
    def test_of_every_sort_of_value(self, umem, dtype, value):
        n = sample(dtype)
        for key in (
            (slice(0, 2), slice(1, 4)),
            (0, slice(0, 3)),
            (1, 2),
            (1, 2, ...),
            (slice(2, 2), slice(0, 3)),
        ):
            check_assignment(umem, n, key, value)

    @pytest.mark.parametrize("key", TestViews.KEYS.values(), ids=TestViews.KEYS)
    def test_to_every_sort_of_key(self, umem, key):
        for view in (lambda x: x, lambda x: x[::-1, 1:], lambda x: x.T):
            check_assignment(umem, numbered((4, 6)), key, 99, view=view)

    @given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(["i4", "f4", "f8", "u2"]))
    def test_of_arrays_to_basic_keys(self, umem, data, shape, dtype):
        n = numbered(shape, dtype)
        key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
        target = n[key].shape if isinstance(n[key], np.ndarray) else ()
        shape = target[data.draw(st.integers(0, len(target))) :]
        shape = tuple(1 if data.draw(st.booleans()) else length for length in shape)
        value = (
            numbered(shape, data.draw(st.sampled_from(["i4", "f4", "f8", "i8", "?", "f2"]))) + 100
        )
        check_assignment(umem, n, key, lambda m: m.array(value))

    @given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    def test_to_integer_arrays_and_masks(self, umem, data, shape):
        n = numbered(shape, "f8")
        key = data.draw(hnp.integer_array_indices(shape))
        check_assignment(umem, n, key, -1.5)
        mask = data.draw(hnp.arrays(bool, shape))
        check_assignment(umem, n, mask, lambda m: m.arange(float(mask.sum())))

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_of_every_dtype(self, umem, dtype):
        n = sample(dtype)
        for view in VIEWS.values():
            a, m = umem.array(n), n.copy()
            view(a)[...] = view(umem.array(n))[..., ::-1] if view(n).ndim else view(umem.array(n))
            view(m)[...] = view(n.copy())[..., ::-1] if view(n).ndim else view(n.copy())
            assert_same(a, m)
        check_assignment(umem, n, (1, 2), n[0, 0])
        check_assignment(umem, n, (0, slice(None)), n[0, 0])
        check_assignment(umem, n, [0, 2], n[0, 0])

    OVERLAPS = {
        "shift up": lambda x: (x[1:], x[:-1]),
        "shift down": lambda x: (x[:-1], x[1:]),
        "reverse": lambda x: (x, x[::-1]),
        "transpose": lambda x: (x[:4, :4], x[:4, :4].T),
        "same": lambda x: (x, x),
        "broadcast of itself": lambda x: (x, x[2]),
        "element of itself": lambda x: (x, x[2, 2, ...]),
        "steps": lambda x: (x[:, ::2], x[:, :3]),
    }

    @pytest.mark.parametrize("overlap", OVERLAPS.values(), ids=OVERLAPS)
    @pytest.mark.parametrize("dtype", ["i4", "f8", "u1", "S3"])
    def test_of_overlapping_views(self, umem, dtype, overlap):
        n = sample(dtype, (6, 6))
        a = umem.array(n)
        for array in (a, n):
            target, source = overlap(array)
            target[...] = source
        assert_same(a, n)

    def test_large_overlap(self, umem):
        n = np.arange(200_000, dtype="f4")
        a = umem.array(n)
        a[1:] = a[:-1]
        n[1:] = n[:-1].copy()
        assert_same(a, n)

    def test_deleting_is_refused(self, umem):
        a = umem.zeros(3)
        with pytest.raises(ValueError, match="delete"):
            del a[0]
        with pytest.raises(ValueError, match="delete"):
            del a[:]

    def test_in_place_operators_write_through_the_key(self, umem):
        a, n = umem.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(3, 4)
        for x in (a, n):
            x[1] += 100
            x[:, 2] *= 2
            x[0, 0] -= 5
            x[x > 50] = 0
            x[[0, 2]] += 1
        assert_same(a, n)

    def test_fields_of_records(self, umem):
        n = sample(RECORD)
        a = umem.array(n)
        for x in (a, n):
            x["a"] = 5
            x["b"]["x"][1:] = np.arange(6.0)
            x["c"][0] = [[1, 2], [3, 4]]
            x[0, 0] = x[1, 1]
            x[["a", "b"]] = x[["a", "b"]][::-1]
        assert_same(a, n)

    def test_a_failed_assignment_changes_nothing(self, umem):
        a = umem.arange(6.0)
        for key, value in (
            (7, 1),
            (slice(None), [1, 2]),
            (0, "x"),
            ([0, 9], 1),
            (slice(None), object()),
        ):
            with pytest.raises((IndexError, ValueError, TypeError)):
                a[key] = value
            assert a.tolist() == [0, 1, 2, 3, 4, 5]

    def test_scalars_out_of_range_are_refused_as_in_numpy(self, umem):
        for dtype in ("u1", "i1", "i4", "u8"):
            info = np.iinfo(dtype)
            for value in (info.max, info.min, info.max + 1, info.min - 1):
                check_assignment(umem, np.zeros(3, dtype), 0, value)
                check_assignment(umem, np.zeros(3, dtype), slice(None), value)
