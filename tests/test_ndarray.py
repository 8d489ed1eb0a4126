"""The array object: attributes, flags, life, iteration, and conversion to numbers, as NumPy's."""

import copy
import gc
import math
import operator
import sys
import weakref

import numpy as np
import pytest

from support import (
    DTYPES,
    NUMBERS,
    RECORD,
    VIEWS,
    address,
    allocated,
    assert_same,
    assert_same_array,
    outcome,
    sample,
    walked_strides,
)


def pairs(umem, dtype="f4"):
    """(umem view, NumPy view) of equal values for each of VIEWS."""
    a, n = umem.array(sample(dtype)), sample(dtype)
    for view in VIEWS.values():
        yield view(a), view(n)


class TestAttributes:
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_are_numpys(self, umem, dtype):
        for a, n in pairs(umem, dtype):
            for name in ("shape", "dtype", "strides", "ndim", "size", "nbytes", "itemsize"):
                actual, expected = getattr(a, name), getattr(n, name)
                assert actual == expected, name
                assert type(actual) is type(expected), name
            assert_same_array(umem, a.T, n.T)
            assert a.T.strides == n.T.strides

    @pytest.mark.parametrize(
        "name",
        [
            "shape",
            "dtype",
            "strides",
            "ndim",
            "size",
            "nbytes",
            "itemsize",
            "T",
            "base",
            "flags",
            "device",
        ],
    )
    def test_cannot_be_changed(self, umem, name):
        a = umem.zeros((2, 3))
        before = getattr(a, name)
        with pytest.raises(AttributeError):
            setattr(a, name, 1)
        with pytest.raises(AttributeError):
            delattr(a, name)
        if name not in ("T", "flags"):
            assert getattr(a, name) == before

    def test_none_can_be_added(self, umem):
        with pytest.raises(AttributeError):
            umem.zeros(3).colour = "red"

    def test_base_is_the_array_whose_memory_it_is(self, umem):
        a = umem.zeros((4, 6))
        assert a.base is None
        view = a[1:]
        assert view.base is a
        assert view[:, 2:].T.base is a
        assert a.reshape(6, 4).base is a
        assert a.copy().base is None

    def test_device(self, umem, on_gpu):
        a = umem.zeros(3)
        assert a.device == ("cuda:0" if on_gpu else "cpu")
        assert a[1:].device == a.device

    def test_home_is_none_without_a_wish(self, umem):
        assert umem.zeros(3).home is None

    def test_length(self, umem):
        for a, n in pairs(umem):
            assert outcome(len, a) == outcome(len, n)

    def test_views_share_memory(self, umem):
        a, n = umem.array(sample("f4")), sample("f4")
        for view in VIEWS.values():
            if view(n).size:
                assert address(view(a)) - address(a) == address(view(n)) - address(n)

    def test_the_type(self, umem):
        a = umem.zeros(3)
        assert type(a) is umem.ndarray
        assert umem.ndarray.__name__ == "ndarray"
        assert umem.ndarray.__module__ == "umem"
        with pytest.raises(TypeError, match=r"umem\.(empty|array)"):
            umem.ndarray(3)
        with pytest.raises(TypeError):
            umem.ndarray.__new__(umem.ndarray)
        with pytest.raises(TypeError):
            type("Sub", (umem.ndarray,), {})

    def test_size_of_the_object_is_reported(self, umem):
        assert sys.getsizeof(umem.zeros(3)) > 0

    @pytest.mark.parametrize("name", [
        "reshape", "ravel", "transpose", "astype", "copy", "fill", "view", "squeeze", "sum", "prod", "min", "max", "mean",
        "argmin", "argmax", "any", "all", "dot", "item", "tolist", "numpy", "on", "prefetch", "advise", "discard", "residency",
        "read", "tobytes",
    ])  # fmt: skip
    def test_methods_are_there_and_documented(self, umem, name):
        method = getattr(umem.ndarray, name)
        assert callable(method)
        assert method.__doc__


FLAGS = [
    "c_contiguous",
    "f_contiguous",
    "contiguous",
    "forc",
    "fnc",
    "behaved",
    "carray",
    "writeable",
    "aligned",
    "writebackifcopy",
]
FLAG_KEYS = [
    "C_CONTIGUOUS", "C", "CONTIGUOUS", "F_CONTIGUOUS", "F", "FORTRAN", "WRITEABLE", "W", "ALIGNED", "A", "WRITEBACKIFCOPY", "X",
    "FNC", "FORC", "BEHAVED", "B", "CARRAY", "CA",
]  # fmt: skip


class TestFlags:
    @pytest.mark.parametrize("dtype", ["f4", "S3", "nested record"])
    def test_are_numpys(self, umem, dtype):
        for a, n in pairs(umem, DTYPES.get(dtype, dtype)):
            for name in FLAGS:
                assert getattr(a.flags, name) is getattr(n.flags, name), name
            for key in FLAG_KEYS:
                assert a.flags[key] is n.flags[key], key
            assert a.flags.owndata is a.flags["OWNDATA"] is a.flags["O"] is (a.base is None)
            owned = 0x4
            assert a.flags.num & ~owned == n.flags.num & ~owned
            assert bool(a.flags.num & owned) == a.flags.owndata

    def test_of_the_whole_array_print_alike(self, umem):
        a = umem.zeros((2, 3))
        assert repr(a.flags) == repr(np.zeros((2, 3)).flags)
        assert str(a.flags) == str(np.zeros((2, 3)).flags)

    def test_unknown_ones(self, umem):
        flags = umem.zeros(3).flags
        with pytest.raises(KeyError):
            flags["NONSENSE"]
        with pytest.raises(KeyError):
            flags[3]
        with pytest.raises(AttributeError):
            flags.nonsense
        with pytest.raises(KeyError):
            flags["NONSENSE"] = True
        for name in ("c_contiguous", "owndata", "aligned"):
            with pytest.raises((AttributeError, ValueError)):
                setattr(flags, name, True)

    def test_misaligned_view(self, umem):
        raw, n = umem.zeros(33, "u1"), np.zeros(40, "u1")
        a = raw[1:33].view("f8")
        assert not a.flags.aligned
        assert not a.flags.behaved
        assert not a.flags.carray
        assert a.flags.c_contiguous
        assert n.size > 0

    def test_writeable_can_be_taken_and_given_back(self, umem):
        for spell in (
            lambda a, v: setattr(a.flags, "writeable", v),
            lambda a, v: operator.setitem(a.flags, "WRITEABLE", v),
        ):
            a = umem.zeros(3)
            spell(a, False)
            assert a.flags.writeable is False
            with pytest.raises(ValueError, match="read-only"):
                a[0] = 1
            spell(a, True)
            a[0] = 1
            assert a[0] == 1
        with pytest.raises(AttributeError):
            del a.flags.writeable

    def test_a_read_only_array_refuses_every_way_of_writing(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        a.flags.writeable = False
        for write in (
            lambda: a.__setitem__(0, 1),
            lambda: a.__setitem__((0, 1), 1),
            lambda: a.__setitem__(slice(None), 1),
            lambda: a.__setitem__([0, 1], 1),
            lambda: a.__setitem__(np.asarray(a) > 2, 1),
            lambda: a.__setitem__(..., 1),
            lambda: a.fill(1),
            lambda: a.__iadd__(1),
            lambda: umem.add(a, 1, out=a),
            lambda: umem.axpy(2, a, a, out=a),
            lambda: np.add(a, 1, out=a),
            lambda: a.sum(axis=0, out=a[0]),
            lambda: np.copyto(a, 1),
            lambda: a.discard(),
        ):
            with pytest.raises(ValueError, match=r"read-only|writ"):
                write()
        assert np.array_equal(np.asarray(a), np.arange(6.0).reshape(2, 3))

    def test_views_of_a_read_only_array_are_read_only(self, umem):
        a = umem.zeros((2, 3))
        a.flags.writeable = False
        views = (
            a[1:],
            a.T,
            a.reshape(3, 2),
            a.ravel(),
            a.view("i8"),
            a[0],
            a[..., None],
            a.squeeze(),
        )
        for view in views:
            assert not view.flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                view.flags.writeable = True
        a.flags.writeable = True
        assert not views[0].flags.writeable
        views[0].flags.writeable = True
        views[0][0, 0] = 5
        assert a[1, 0] == 5

    def test_views_taken_before_stay_writeable(self, umem):
        a = umem.zeros(3)
        view = a[:]
        a.flags.writeable = False
        view[0] = 1
        assert a[0] == 1

    def test_copies_of_a_read_only_array_are_writeable(self, umem):
        a = umem.zeros((2, 3))
        a.flags.writeable = False
        for made in (
            a.copy(),
            a.astype("f4"),
            a + 1,
            umem.array(a),
            umem.copy(a),
            copy.copy(a),
            copy.deepcopy(a),
            umem.empty_like(a),
        ):
            assert made.flags.writeable

    def test_every_protocol_says_read_only(self, umem, on_gpu):
        a = umem.zeros((2, 3))
        a.flags.writeable = False
        assert memoryview(a).readonly
        assert not np.asarray(a).flags.writeable
        assert not a.numpy().flags.writeable
        assert not np.from_dlpack(a).flags.writeable
        assert not np.from_dlpack(a.on("cpu")).flags.writeable
        assert a.__array_interface__["data"][1] is True
        if on_gpu:
            assert a.__cuda_array_interface__["data"][1] is True
        assert not umem.asarray(np.asarray(a)).flags.writeable
        assert not umem.from_dlpack(a).flags.writeable

    def test_flags_keep_the_array(self, umem):
        flags = umem.zeros((2, 3)).flags
        gc.collect()
        assert flags.c_contiguous


class TestLife:
    def test_weak_references(self, umem):
        a = umem.zeros(3)
        called = []
        ref = weakref.ref(a, called.append)
        assert ref() is a
        del a
        assert ref() is None
        assert len(called) == 1

    def test_weak_keys_are_refused_as_arrays_have_no_hash(self, umem):
        with pytest.raises(TypeError, match="unhashable"):
            hash(umem.zeros(3))
        assert umem.ndarray.__hash__ is None

    def test_memory_goes_back(self, umem):
        gc.collect()
        before = allocated(umem)
        a = umem.zeros(1000)
        view = a[10:]
        assert allocated(umem) == before + 8000
        del a
        assert allocated(umem) == before + 8000
        del view
        assert allocated(umem) == before

    def test_cycles_are_collected(self, umem):
        gc.collect()
        before = allocated(umem)
        cycle = [umem.zeros(1000)[5:]]
        cycle.append(cycle)
        assert gc.is_tracked(cycle[0])
        del cycle
        gc.collect()
        assert allocated(umem) == before

    def test_flags_and_iterators_and_exporters_hold_arrays_in_cycles(self, umem):
        gc.collect()
        before = allocated(umem)
        for hold in (
            lambda a: a.flags,
            iter,
            lambda a: a.on("cpu"),
            memoryview,
            lambda a: a.numpy(),
        ):
            a = umem.zeros(1000)
            cycle = [hold(a)]
            cycle.append(cycle)
            del a, cycle
        gc.collect()
        assert allocated(umem) == before

    def test_collecting_the_module_copy_is_no_concern_of_live_arrays(self, umem):
        a = umem.ones(10)
        gc.collect()
        assert a.sum() == 10

    def test_out_of_memory_collects_garbage_first(self, umem):
        gc.collect()
        umem.set_limit(umem.memory_stats()["reserved_bytes.all.current"] + (3 << 20))
        cycle = [umem.zeros(2 << 20, "u1")]
        cycle.append(cycle)
        del cycle
        a = umem.zeros(2 << 20, "u1")
        assert not a.any()


class TestIteration:
    def test_yields_what_indexing_gives(self, umem):
        for a, n in pairs(umem):
            expected = outcome(list, n)
            actual = outcome(list, a)
            if expected[0][0] == "raises":
                assert actual == expected
                continue
            assert len(actual[0][2]) == len(expected[0][2])
            for one, other in zip(actual[0][2], expected[0][2], strict=True):
                assert_same(one, other)
                assert (type(one) is umem.ndarray) == isinstance(other, np.ndarray)

    def test_rows_are_views(self, umem):
        a = umem.zeros((3, 2))
        for i, row in enumerate(a):
            row[:] = i
        assert a.tolist() == [[0, 0], [1, 1], [2, 2]]

    def test_unpacking_and_reversing(self, umem):
        first, *rest = umem.arange(4)
        assert first == 0
        assert rest == [1, 2, 3]
        assert list(reversed(umem.arange(4))) == [3, 2, 1, 0]

    def test_membership(self, umem):
        for a, n in pairs(umem, "i4"):
            for value in (2, -5, 99, 2.5, "x", [2], np.nan):
                assert outcome(operator.contains, a, value) == outcome(operator.contains, n, value)
        assert umem.arange(3)[1:2] in umem.arange(3)

    def test_zip_with_numpy(self, umem):
        assert [x + y for x, y in zip(umem.arange(3), np.arange(3), strict=True)] == [0, 2, 4]


CONVERSIONS = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "round": round,
    "trunc": math.trunc,
}


class TestNumbers:
    @pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
    @pytest.mark.parametrize("dtype", [*NUMBERS, "S3", "U2", "M8[s]", "m8[ms]"])
    def test_conversion_of_arrays_of_each_size(self, umem, dtype, conversion):
        n = sample(dtype)
        a = umem.array(n)
        for part in (
            lambda x: x[0, 1, ...], lambda x: x[0, 0:1], lambda x: x[0:1, 0:1], lambda x: x[0], lambda x: x[0, 0:0], lambda x: x,
        ):  # fmt: skip
            if conversion is round and part(n).ndim:
                continue  # rounds arrays
            assert outcome(conversion, part(a)) == outcome(conversion, part(n))

    def test_an_array_is_an_index(self, umem):
        assert [10, 20, 30][umem.array(1)] == 20
        assert list(range(umem.array(3))) == [0, 1, 2]
        with pytest.raises(TypeError):
            [10, 20][umem.array([1])]

    def test_truth_in_an_if(self, umem):
        assert umem.array(3)
        assert not umem.array([0.0])
        with pytest.raises(ValueError, match="ambiguous"):
            bool(umem.ones(2))

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_item(self, umem, dtype):
        for a, n in pairs(umem, dtype):
            for index in (
                (),
                (0,),
                (3,),
                (-1,),
                (1, 2),
                (-1, -2),
                ((1, 2),),
                (0, 0, 0),
                (100,),
                (4, 0),
                (1.5,),
                ("x",),
                (np.int8(2),),
            ):
                actual, expected = outcome(a.item, *index), outcome(n.item, *index)
                assert actual[0][:2] == expected[0][:2], index
                if expected[0][0] == "returns":
                    assert repr(actual[0][2]) == repr(expected[0][2])

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_tolist(self, umem, dtype):
        for a, n in pairs(umem, dtype):
            assert repr(a.tolist()) == repr(n.tolist())

    @pytest.mark.parametrize(
        "dtype", [d for d in DTYPES.values() if d.char not in "gG" and d != RECORD], ids=str
    )  # those have gaps
    def test_tobytes(self, umem, dtype):
        for a, n in pairs(umem, dtype):
            assert a.tobytes() == n.tobytes()
            for order in ("C", "F", "A", None):
                assert a.tobytes(order) == a.tobytes(order=order) == n.tobytes(order)
        with pytest.raises(ValueError, match="order"):
            a.tobytes("Z")


class TestHostCopies:
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_numpy_is_the_same_memory(self, umem, dtype):
        for a, n in pairs(umem, dtype):
            view = a.numpy()
            assert type(view) is np.ndarray
            assert_same(view, n)
            assert view.strides == n.strides
            assert address(view) == address(a)

    def test_numpy_keeps_the_memory(self, umem):
        view = umem.full(1000, 3.0).numpy()[5:]
        gc.collect()
        junk = [umem.zeros(1000) for _ in range(5)]
        assert view.sum() == 3 * 995
        assert len(junk) == 5

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_read_is_a_copy(self, umem, dtype):
        for a, n in pairs(umem, dtype):
            copied = a.read()
            assert type(copied) is np.ndarray
            assert_same(copied, n)
            assert copied.flags.c_contiguous
            assert copied.flags.owndata
            assert copied.flags.writeable
            assert not np.shares_memory(copied, a.numpy())

    def test_array_protocol(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        assert address(a.__array__()) == address(a)
        assert address(a.__array__(copy=False)) == address(a)
        assert address(a.__array__(np.float64)) == address(a)
        assert address(a.__array__(copy=True)) != address(a)
        assert_same(a.__array__(np.dtype("f4")), np.arange(6, dtype="f4").reshape(2, 3))
        with pytest.raises(ValueError, match="copy"):
            a.__array__("f4", copy=False)

    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_asarray_is_the_same_memory(self, umem, dtype, view):
        a, n = VIEWS[view](umem.array(sample(dtype))), VIEWS[view](sample(dtype))
        as_numpy = np.asarray(a)
        assert type(as_numpy) is np.ndarray
        assert_same(as_numpy, n)
        if n.size:
            assert address(as_numpy) == address(a)
            assert walked_strides(as_numpy) == walked_strides(n)
            assert as_numpy.flags.writeable
        assert_same(np.array(a), n)
        assert_same(np.ascontiguousarray(a), np.ascontiguousarray(n))


class TestCopies:
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    @pytest.mark.parametrize("order", ["C", "F", "A", "K", None])
    def test_copy(self, umem, dtype, order):
        for a, n in pairs(umem, dtype):
            made, expected = (
                (a.copy(), n.copy()) if order is None else (a.copy(order), n.copy(order=order))
            )
            assert_same_array(umem, made, expected)
            assert walked_strides(made) == walked_strides(expected)
            assert made.base is None
            if n.size:
                assert address(made) != address(a)

    def test_of_permuted_axes_keep_their_order(self, umem):
        for axes in ((2, 0, 1), (1, 2, 0), (0, 2, 1), (2, 1, 0)):
            n = np.arange(24.0).reshape(2, 3, 4).transpose(axes)
            a = umem.arange(24.0).reshape(2, 3, 4).transpose(axes)
            for order in "CFAK":
                assert a.copy(order).strides == n.copy(order).strides
                assert_same(a.copy(order), n)
                assert a.astype("f4", order=order).strides == n.astype("f4", order=order).strides

    def test_bad_order(self, umem):
        with pytest.raises(ValueError, match="order"):
            umem.zeros(3).copy("Z")

    def test_fill(self, umem):
        for dtype in DTYPES.values():
            value = sample(dtype)[1, 3]
            for a, n in pairs(umem, dtype):
                a.fill(value)
                n.fill(value)
                assert_same(a, n)

    def test_fill_touches_nothing_else(self, umem):
        for view in VIEWS.values():
            a, n = umem.array(sample("i4")), sample("i4")
            view(a).fill(99)
            view(n).fill(99)
            assert_same(a, n)

    @pytest.mark.parametrize(
        "value", [300, -1, "x", 1.5, None, [1, 2], 1j, np.float64(2), np.array(7), np.array([7])]
    )
    def test_fill_converts_as_numpy(self, umem, value):
        for dtype in ("u1", "i4", "f4"):
            a, n = umem.zeros(3, dtype), np.zeros(3, dtype)
            assert outcome(a.fill, value) == outcome(n.fill, value)
            assert_same(a, n)

    def test_fill_with_an_umem_array(self, umem):
        a = umem.zeros(3, "i4")
        a.fill(umem.array(4))
        assert a.tolist() == [4, 4, 4]

    @pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
    def test_astype_casting(self, umem, casting):
        n = sample("f8")
        a = umem.array(n)
        for dtype in ("f8", "f4", ">f8", "i4", "c16", "S5"):
            expected = outcome(n.astype, dtype, casting=casting)
            actual = outcome(a.astype, dtype, casting=casting)
            assert actual[0][0] == expected[0][0]
            if expected[0][0] == "returns":
                assert_same_array(umem, actual[0][2], expected[0][2])
            else:
                assert issubclass(actual[0][1], TypeError)

    def test_astype_without_copy(self, umem):
        a = umem.zeros((2, 3))
        assert a.astype("f8", copy=False) is a
        assert a.astype("f8") is not a
        assert address(a.astype("f8")) != address(a)
        assert a.T.astype("f8", order="C", copy=False).flags.c_contiguous


REDUCTIONS = ["sum", "prod", "min", "max", "mean", "argmin", "argmax", "any", "all"]
OTHER_REDUCTIONS = ["std", "var"]


class TestReductions:
    @pytest.mark.parametrize("name", [*REDUCTIONS, *OTHER_REDUCTIONS])
    @pytest.mark.parametrize("dtype", ["?", "i4", "i8", "u1", "f2", "f4", "f8", "c8"])
    def test_of_views(self, umem, dtype, name):
        for a, n in pairs(umem, dtype):
            for keywords in (
                {},
                {"axis": 0},
                {"axis": -1},
                {"keepdims": True},
                {"axis": 1, "keepdims": True},
            ):
                expected = outcome(getattr(n, name), **keywords)
                actual = outcome(getattr(a, name), **keywords)
                assert actual[0][0] == expected[0][0]
                if expected[0][0] == "raises":
                    assert actual[0] == expected[0]
                    continue
                assert_close(actual[0][2], expected[0][2])
                if isinstance(expected[0][2], np.ndarray):
                    assert type(actual[0][2]) is umem.ndarray
                else:
                    assert type(actual[0][2]) is type(expected[0][2])

    @pytest.mark.parametrize("name", REDUCTIONS)
    def test_into_out(self, umem, name):
        n = sample("i4")
        a = umem.array(n)
        expected = getattr(n, name)(axis=0)
        out = umem.empty(6, expected.dtype)
        assert getattr(a, name)(axis=0, out=out) is out
        assert_same(out, expected)
        whole = umem.empty((), np.asarray(getattr(n, name)()).dtype)
        assert getattr(a, name)(out=whole) is whole
        assert whole.shape == ()
        assert whole.item() == getattr(n, name)()

    def test_sum_arguments(self, umem):
        n = sample("i4", (3, 4, 5))
        a = umem.array(n)
        for keywords in ({"axis": (0, 2)}, {"axis": ()}, {"dtype": "f4"}, {"axis": 1, "dtype": "i2"}, {"initial": 5}, {"where": n > 0},
                         {"axis": (0, 1, 2), "keepdims": True}):  # fmt: skip
            assert_same(a.sum(**keywords), n.sum(**keywords))
        for bad in ({"axis": 3}, {"axis": (0, 0)}, {"axis": "x"}, {"dtype": "S2"}):
            assert outcome(a.sum, **bad)[0] == outcome(n.sum, **bad)[0]

    def test_of_nothing(self, umem):
        for name in REDUCTIONS:
            assert (
                outcome(getattr(umem.zeros(0), name))[0][:2]
                == outcome(getattr(np.zeros(0), name))[0][:2]
            )

    def test_dot(self, umem):
        for left, right in (((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((), ()), ((2, 2), ())):
            n, m = sample("f8", left), sample("f8", right)
            for other in (umem.array(m), m):
                assert_close(umem.array(n).dot(other), n.dot(m))
        out = umem.empty((2, 2))
        assert umem.ones((2, 3)).dot(umem.ones((3, 2)), out=out) is out
        assert out.tolist() == [[3, 3], [3, 3]]
        with pytest.raises(ValueError):
            umem.ones((2, 3)).dot(umem.ones((2, 3)))

    @pytest.mark.parametrize("call", [
        lambda x: x.flatten(), lambda x: x.clip(-1, 3), lambda x: x.round(1), lambda x: x.cumsum(), lambda x: x.cumsum(axis=1),
        lambda x: x.flatten("F"), lambda x: x.conj(),
    ])  # fmt: skip
    def test_other_methods(self, umem, call):
        for a, n in pairs(umem, "f8"):
            expected = outcome(call, n)
            actual = outcome(call, a)
            assert actual[0][0] == expected[0][0]
            if expected[0][0] == "returns":
                assert_same(actual[0][2], expected[0][2])
                assert (type(actual[0][2]) is umem.ndarray) == isinstance(
                    expected[0][2], np.ndarray
                )


def assert_close(actual, expected):
    """As assert_same, with the last bits of sums left to the order of the additions."""
    got, want = np.asarray(actual), np.asarray(expected)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.kind in "fc":
        np.testing.assert_allclose(
            got, want, rtol=1e-2 if want.dtype == "f2" else 1e-5, equal_nan=True
        )
    else:
        assert_same(actual, expected)


class TestMethodsInPython:
    def test_conjugates(self, umem):
        n = np.array([1 + 2j, 3 - 1j])
        assert_same(umem.array(n).conj(), n.conj())
        real = umem.ones(3)
        assert real.conj() is real
        assert_same(umem.ones(3).conj(out=real), np.ones(3))

    def test_parts_are_set(self, umem):
        n = np.array([1 + 2j, 3 - 1j])
        a = umem.array(n)
        a.real, n.real = 5, 5
        a.imag, n.imag = [1, 2], [1, 2]
        assert_same(a, n)

    def test_matrix_transpose(self, umem):
        n = np.arange(24).reshape(2, 3, 4)
        assert_same(umem.array(n).mT, n.mT)
        with pytest.raises(ValueError, match="ndim < 2"):
            umem.ones(3).mT

    def test_setflags(self, umem):
        a = umem.ones(3)
        a.setflags()
        assert a.flags.writeable
        a.setflags(write=False)
        assert not a.flags.writeable

    def test_tofile(self, umem, tmp_path):
        umem.arange(5).tofile(tmp_path / "five")
        assert_same(np.fromfile(tmp_path / "five", np.int64), np.arange(5))

    @pytest.mark.parametrize("axis", [np.int64(1), (np.int64(0), 1), [0], (0, True)])
    def test_axes_of_other_types(self, umem, axis):
        n = np.ones((2, 3))
        wanted, got = outcome(n.mean, axis=axis)[0], outcome(umem.array(n).mean, axis=axis)[0]
        assert got[0] == wanted[0]
        if wanted[0] == "returns":
            assert_same(got[2], wanted[2])
        else:
            assert got[1] is wanted[1]
