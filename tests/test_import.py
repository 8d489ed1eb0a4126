"""asarray and array: what comes in is taken as it is, shared where its memory is managed, or copied into managed memory."""

import array
import ctypes
import gc
import math

import numpy as np
import pytest

from support import (
    DTYPES,
    RECORD,
    VIEWS,
    Exporter,
    address,
    allocated,
    assert_same,
    assert_same_array,
    outcome,
    sample,
    walked_strides,
)

gpu = pytest.mark.backends("fake", "cuda")
host = pytest.mark.backends("host")

VALUES = {
    "int": 3, "float": 2.5, "complex": 1j, "bool": True, "text": "abc", "bytes": b"abc", "big int": 2**40,
    "list": [1, 2, 3], "floats": [1.0, 2.0], "mixed": [1, 2.5], "nested": [[1, 2], [3, 4]], "tuples": ((1, 2), (3, 4)),
    "empty list": [], "empty lists": [[], []], "texts": ["a", "bcd"], "bools": [True, False], "range": range(5),
    "NumPy scalar": np.float32(1.5), "NumPy scalars": [np.float32(1.5), np.int8(2)], "dates": np.datetime64("2020-01-01"),
    "list of dates": [np.datetime64("2020-01-01"), np.datetime64("2021-01-01")],
    "list of arrays": [np.arange(3), np.arange(3) * 2], "record": np.array((1, 2.5), [("a", "i4"), ("b", "f8")])[()],
    "array.array": array.array("d", [1, 2, 3]), "bytearray": bytearray(b"abc"), "memoryview": memoryview(b"abcdef"),
    "typed memoryview": memoryview(array.array("i", [1, 2, 3, 4])).cast("B").cast("i", (2, 2)),
}  # fmt: skip

REFUSED = {
    "ragged": [[1, 2], [3]], "deep ragged": [[[1], [2]], [[3], [4, 5]]],
}  # fmt: skip

OBJECTS = {
    "None": None,
    "object": object(),
    "dict": {"a": 1},
    "set": {1, 2},
    "list of None": [None],
    "generator": (i for i in [1]),
    "huge int": 2**100,
    "function": len,
}


class TestValues:
    @pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
    @pytest.mark.parametrize("name", ["asarray", "array"])
    def test_become_what_numpy_makes_of_them(self, umem, name, value):
        a, n = getattr(umem, name)(value), getattr(np, name)(value)
        assert_same_array(umem, a, n)
        assert walked_strides(a) == walked_strides(n)
        assert a.flags.writeable
        assert a.flags.owndata

    @pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
    @pytest.mark.parametrize("name", ["asarray", "array"])
    def test_that_have_no_shape(self, umem, name, value):
        with pytest.raises(ValueError, match="inhomogeneous"):
            getattr(umem, name)(value)

    @pytest.mark.parametrize("value", OBJECTS.values(), ids=OBJECTS)
    @pytest.mark.parametrize("name", ["asarray", "array"])
    def test_that_are_objects(self, umem, name, value):
        with pytest.raises(TypeError, match=r"(?i)object"):
            getattr(umem, name)(value)

    @pytest.mark.parametrize(
        "dtype", ["f4", "i8", "c16", "?", "S3", "U5", "M8[D]", "nonsense", "O", "V3", "u1"]
    )
    @pytest.mark.parametrize(
        "value", [[1, 2, 3], ["4", "5"], 2.5, [300, -1], [1j], np.arange(3.0)], ids=str
    )
    @pytest.mark.parametrize("name", ["asarray", "array"])
    def test_with_a_dtype(self, umem, name, value, dtype):
        expected, actual = (
            outcome(getattr(np, name), value, dtype),
            outcome(getattr(umem, name), value, dtype),
        )
        if expected[0][0] == "returns" and expected[0][2].dtype.hasobject:
            assert actual[0] == ("raises", TypeError)
            return
        assert actual[0][0] == expected[0][0]
        if expected[0][0] == "returns":
            assert_same_array(umem, actual[0][2], expected[0][2])
        else:
            assert actual[0] == expected[0]

    def test_lists_with_umem_arrays(self, umem):
        assert umem.array([umem.arange(3), umem.arange(3)]).tolist() == [[0, 1, 2], [0, 1, 2]]
        assert umem.array([umem.array(1), 2.5]).tolist() == [1, 2.5]
        assert np.array([umem.arange(3), umem.arange(3)]).tolist() == [[0, 1, 2], [0, 1, 2]]


class TestNumpyArrays:
    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_are_copied(self, umem, dtype, view):
        n = VIEWS[view](sample(dtype))
        for a in (umem.asarray(n), umem.array(n)):
            assert_same_array(umem, a, n)
            assert walked_strides(a) == walked_strides(n.copy("K"))
            assert a.flags.writeable
            if n.size:
                assert not np.shares_memory(a.numpy(), n)

    @pytest.mark.parametrize("order", ["C", "F", "A", "K", None])
    @pytest.mark.parametrize("name", ["asarray", "array"])
    def test_in_an_order(self, umem, name, order):
        for view in VIEWS.values():
            n = view(sample("f4"))
            a, expected = getattr(umem, name)(n, order=order), np.array(n, order=order)
            assert_same(a, n)
            if (
                name == "array" and order != "K"
            ):  # NumPy's asarray keeps any layout for K and None, where nothing is to copy
                assert walked_strides(a) == walked_strides(expected)
            if order in ("C", "F"):
                assert a.flags[order]

    def test_bad_order(self, umem):
        for make in (umem.asarray, umem.array):
            with pytest.raises(ValueError, match="order"):
                make([1], order="Z")

    def test_are_never_shared(self, umem):
        n = np.zeros(1000)
        for copy in (False,):
            for make in (umem.asarray, umem.array):
                with pytest.raises(ValueError, match="copy"):
                    make(n, copy=copy)
                with pytest.raises(ValueError, match="copy"):
                    make([1, 2], copy=copy)
                with pytest.raises(ValueError, match="copy"):
                    make(3.5, copy=copy)
        for make in (umem.asarray, umem.array):
            assert make(n, copy=None).sum() == 0
            assert make(n, copy=True).sum() == 0

    def test_read_only_ones_become_writeable_copies(self, umem):
        n = np.zeros(3)
        n.flags.writeable = False
        assert umem.asarray(n).flags.writeable
        assert umem.asarray(np.broadcast_to(1.0, (3, 4))).tolist() == [[1] * 4] * 3
        assert umem.asarray(b"abc").dtype == "S3"
        assert umem.asarray(np.frombuffer(b"abcd", "u1")).flags.writeable

    def test_subclasses_and_masks(self, umem):
        class Sub(np.ndarray):
            pass

        assert_same_array(umem, umem.asarray(np.array([[1, 2]]).view(Sub)), np.array([[1, 2]]))
        masked = np.ma.array([1, 2, 3], mask=[0, 1, 0])
        assert umem.asarray(masked).tolist() == [1, 2, 3]

    def test_memory_maps(self, umem, tmp_path):
        path = tmp_path / "map"
        np.arange(100.0).tofile(path)
        assert_same_array(umem, umem.asarray(np.memmap(path, "f8", "r")), np.arange(100.0))

    @pytest.mark.parametrize("ndmin", [0, 1, 2, 4])
    def test_ndmin(self, umem, ndmin):
        for value in (5, [1, 2], [[1, 2]], umem.arange(3)):
            assert umem.array(value, ndmin=ndmin).shape == np.array(value, ndmin=ndmin).shape


class TestOwnArrays:
    def test_asarray_gives_them_back(self, umem):
        for a in (
            umem.zeros(3),
            umem.zeros((2, 3)).T,
            umem.zeros(5)[::-1],
            umem.zeros(0),
            umem.zeros(3, "M8[s]"),
        ):
            assert umem.asarray(a) is a
            assert umem.asarray(a, copy=False) is a
            assert umem.asarray(a, a.dtype) is a
            assert umem.asarray(a, copy=None) is a

    def test_asarray_converts_and_copies(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        assert_same_array(umem, umem.asarray(a, "f4"), np.arange(6, dtype="f4").reshape(2, 3))
        made = umem.asarray(a, copy=True)
        assert made is not a
        assert address(made) != address(a)
        assert umem.asarray(a, order="F").flags.f_contiguous
        assert umem.asarray(a, order="C") is a
        with pytest.raises(ValueError, match="copy"):
            umem.asarray(a, "f4", copy=False)
        with pytest.raises(ValueError, match="copy"):
            umem.asarray(a, order="F", copy=False)

    def test_array_copies(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        made = umem.array(a)
        assert address(made) != address(a)
        assert umem.array(a, copy=False) is a
        assert umem.array(a, copy=None) is a
        assert umem.array(a.T).strides == np.array(np.zeros((2, 3)).T).strides
        assert umem.array(a, copy=False, ndmin=3).shape == (1, 2, 3)
        assert address(umem.array(a, copy=False, ndmin=3)) == address(a)

    def test_copy(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        for made in (umem.copy(a), umem.copy(a.T), umem.copy([1, 2]), umem.copy(np.arange(3))):
            assert type(made) is umem.ndarray
            assert made.flags.owndata
        assert address(umem.copy(a)) != address(a)
        assert umem.copy(a.T, order="C").flags.c_contiguous
        assert umem.copy(a.T).strides == np.copy(np.zeros((2, 3)).T).strides


class TestSharedMemory:
    """Whatever shows memory of umem's comes back as an array over the same memory."""

    WAYS = {
        "asarray": lambda a: np.asarray(a),
        "numpy": lambda a: a.numpy(),
        "memoryview": memoryview,
        "from_dlpack": np.from_dlpack,
        "frombuffer": lambda a: np.frombuffer(a, a.dtype).reshape(a.shape),
        "array_interface": lambda a: Exporter(a, "__array_interface__"),
        "dlpack": lambda a: Exporter(a, "__dlpack__", "__dlpack_device__"),
        "on cpu": lambda a: a.on("cpu"),
        "cai": lambda a: (
            Exporter(a, "__cuda_array_interface__")
            if hasattr(a, "__cuda_array_interface__")
            else a.numpy()
        ),
        "ctypes": lambda a: (ctypes.c_double * a.size).from_address(address(a)),
    }

    @pytest.mark.parametrize("way", WAYS)
    def test_is_recognised(self, umem, way):
        a = umem.arange(24.0)
        seen = self.WAYS[way](a)
        b = umem.asarray(seen)
        assert type(b) is umem.ndarray
        assert address(b) == address(a)
        assert b.shape == (24,)
        b[3] = 99
        assert a[3] == 99
        assert address(umem.asarray(seen, copy=False)) == address(a)
        assert address(umem.array(seen)) != address(a)
        assert address(umem.asarray(seen, copy=True)) != address(a)

    def test_views_keep_their_layout(self, umem):
        for dtype in DTYPES.values():
            for view in VIEWS.values():
                a = view(umem.array(sample(dtype)))
                b = umem.asarray(a.numpy())
                assert_same(b, a.read())
                if a.size:
                    assert address(b) == address(a)
                    assert walked_strides(b) == walked_strides(a)

    def test_read_only_views_stay_read_only(self, umem):
        a = umem.zeros(3)
        n = np.asarray(a)
        n.flags.writeable = False
        b = umem.asarray(n)
        assert address(b) == address(a)
        with pytest.raises(ValueError, match="read-only"):
            b[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            b.flags.writeable = True

    def test_an_alias_does_not_own_its_memory(self, umem):
        a = umem.zeros(3)
        assert not umem.asarray(np.asarray(a)).flags.owndata

    def test_the_memory_lives_as_long_as_the_alias(self, umem):
        gc.collect()
        before = allocated(umem)
        a = umem.full(1000, 7.0)
        b = umem.asarray(np.asarray(a)[10:])
        del a
        gc.collect()
        assert allocated(umem) == before + 8000
        junk = umem.zeros(1000)
        assert b.sum() == 7 * 990
        del b, junk
        gc.collect()
        assert allocated(umem) == before

    def test_as_another_dtype_it_is_a_copy(self, umem):
        a = umem.arange(3.0)
        b = umem.asarray(np.asarray(a), "f4")
        assert_same_array(umem, b, np.arange(3, dtype="f4"))
        with pytest.raises(ValueError, match="copy"):
            umem.asarray(np.asarray(a), "f4", copy=False)

    def test_memory_that_was_freed_is_not_recognised(self, umem):
        a = umem.zeros(1000)
        n = np.zeros(1000)
        where = address(a)
        del a
        umem.synchronize()
        assert not umem.asarray(n).any()
        assert where


class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    def test_tensors_are_copied(self, umem, torch):
        for dtype in (
            torch.bool,
            torch.uint8,
            torch.int32,
            torch.int64,
            torch.float16,
            torch.float32,
            torch.float64,
            torch.complex64,
        ):
            t = torch.arange(24).reshape(4, 6).to(dtype)
            for part in (t, t.T, t[:, ::2], t[0, 0], t[:0]):
                for make in (umem.asarray, umem.array):
                    a = make(part)
                    assert_same_array(umem, a, part.numpy())
                    if part.numel():
                        assert address(a) != part.data_ptr()

    def test_what_a_tensor_shares_is_recognised(self, umem, torch):
        a = umem.arange(6, dtype="f4")
        t = torch.from_dlpack(a.on("cpu"))
        assert address(umem.asarray(t)) == address(a)
        assert address(umem.asarray(t[2:])) == address(a) + 8
        assert address(umem.asarray(t, copy=False)) == address(a)

    def test_copy_false(self, umem, torch):
        with pytest.raises(ValueError, match="copy"):
            umem.asarray(torch.zeros(3), copy=False)

    def test_tensors_that_numpy_cannot_have(self, umem, torch):
        for t in (
            torch.zeros(3, requires_grad=True),
            torch.zeros(3, dtype=torch.bfloat16),
            torch.eye(3).to_sparse(),
        ):
            with pytest.raises((RuntimeError, TypeError, ValueError, BufferError)):
                umem.asarray(t)

    def test_as_another_dtype(self, umem, torch):
        assert_same_array(umem, umem.asarray(torch.arange(3), "f4"), np.arange(3, dtype="f4"))


class Interface:
    """An object that has just one interface dictionary."""

    def __init__(self, interface, name="__cuda_array_interface__"):
        self.__dict__[name] = interface


def cai(pointer, shape=(6,), typestr="<f4", **entries):
    return {"data": (pointer, False), "shape": shape, "typestr": typestr, "version": 3, **entries}


LIES = {
    "no data": lambda p: {k: v for k, v in cai(p).items() if k != "data"},
    "no shape": lambda p: {k: v for k, v in cai(p).items() if k != "shape"},
    "no typestr": lambda p: {k: v for k, v in cai(p).items() if k != "typestr"},
    "no version": lambda p: {k: v for k, v in cai(p).items() if k != "version"},
    "not a dict": lambda p: [1, 2],
    "a number": lambda p: 3,
    "data of None": lambda p: cai(p, data=None),
    "data of a number": lambda p: cai(p, data=p),
    "pointer of text": lambda p: cai(p, data=("x", False)),
    "negative pointer": lambda p: cai(p, data=(-1, False)),
    "huge pointer": lambda p: cai(p, data=(2**70, False)),
    "NULL": lambda p: cai(p, data=(0, False)),
    "unmapped": lambda p: cai(0x10000),
    "not canonical": lambda p: cai(0x4000_0000_0000_0000),
    "negative length": lambda p: cai(p, shape=(-1,)),
    "shape of a number": lambda p: cai(p, shape=6),
    "shape of floats": lambda p: cai(p, shape=(6.0,)),
    "shape of text": lambda p: cai(p, shape="66"),
    "shape too large": lambda p: cai(p, shape=(2**62,)),
    "shape overflow": lambda p: cai(p, shape=(2**32, 2**32)),
    "shape past the allocation": lambda p: cai(p, shape=(1 << 30,)),
    "huge length": lambda p: cai(p, shape=(2**70,)),
    "65 axes": lambda p: cai(p, shape=(1,) * 65),
    "bad typestr": lambda p: cai(p, typestr="nonsense"),
    "typestr of a number": lambda p: cai(p, typestr=4),
    "objects": lambda p: cai(p, typestr="|O"),
    "too many strides": lambda p: cai(p, strides=(4, 4)),
    "strides of text": lambda p: cai(p, strides="4"),
    "strides past the allocation": lambda p: cai(p, strides=(1 << 30,)),
    "strides before the allocation": lambda p: cai(p, strides=(-(1 << 30),)),
    "strides overflow": lambda p: cai(p, strides=(2**62,)),
    "huge strides": lambda p: cai(p, strides=(2**70,)),
    "future version": lambda p: cai(p, version=99),
    "version of text": lambda p: cai(p, version="3"),
    "mask": lambda p: cai(p, mask=Interface(cai(p))),
    "stream 0": lambda p: cai(p, stream=0),
    "stream of text": lambda p: cai(p, stream="x"),
    "negative stream": lambda p: cai(p, stream=-5),
}  # fmt: skip


@gpu
class TestCudaArrayInterface:
    def test_umems_memory_is_shared(self, umem):
        base = umem.arange(24, dtype="f4")
        for entries, expected in (
            ({}, np.arange(6)), ({"shape": (2, 3)}, np.arange(6).reshape(2, 3)), ({"strides": (8,)}, np.arange(0, 12, 2)),
            ({"shape": (2, 3), "strides": (4, 8)}, np.arange(6).reshape(3, 2).T), ({"strides": None}, np.arange(6)),
            ({"stream": 1}, np.arange(6)), ({"stream": 2}, np.arange(6)), ({"stream": None}, np.arange(6)), ({"version": 2}, np.arange(6)),
            ({"shape": ()}, np.array(0)), ({"typestr": "<i4"}, np.arange(6, dtype="f4").view("i4")), ({"mask": None}, np.arange(6)),
        ):  # fmt: skip
            a = umem.asarray(Interface(cai(address(base), **entries)))
            assert address(a) == address(base)
            assert a.tolist() == expected.tolist()
            assert a.flags.writeable

    def test_read_only_is_kept(self, umem):
        base = umem.arange(6, dtype="f4")
        a = umem.asarray(Interface(cai(address(base), data=(address(base), True))))
        with pytest.raises(ValueError, match="read-only"):
            a[0] = 1

    def test_a_shape_within_the_dtype_is_none_of_the_arrays(self, umem):
        base = umem.zeros(24, "f4")
        entry = cai(address(base), shape=(4,), typestr="|V24")
        entry["descr"] = [("x", "<f4", (2, 3))]  # a field may have one
        a = umem.asarray(Interface(entry))
        assert a["x"].shape == (4, 2, 3)
        assert a.read().shape == a.shape == (4,)
        with pytest.raises(ValueError, match="typestr.*shape"):
            umem.asarray(Interface(cai(address(base), shape=(4,), typestr="(2,3)<f4")))

    def test_records(self, umem):
        base = umem.array(sample(RECORD))
        entry = base.__cuda_array_interface__
        a = umem.asarray(Interface(entry))
        assert address(a) == address(base)
        assert a.itemsize == RECORD.itemsize
        for name in RECORD.names:
            assert_same(a[name], base[name].read())
        del entry["descr"]
        assert umem.asarray(Interface(entry)).dtype == np.dtype("V32")
        entry["descr"] = [("a", "i1")]
        assert umem.asarray(Interface(entry)).dtype.itemsize == 32

    def test_a_dict_that_changes_while_it_is_read(self, umem):
        """An entry's own code may empty the dict, as another thread may: what was found in it is kept."""
        base = umem.arange(6, dtype="f4")

        class Answer(int):
            def __bool__(self):
                entry.clear()
                return True

        class Length:
            def __index__(self):
                entry.clear()
                gc.collect()
                return 6

        for changes in ({"data": (address(base), Answer())}, {"shape": [Length()]}):
            entry = cai(address(base), strides=[4], **changes)
            a = umem.asarray(Interface(entry))
            assert not entry
            assert a.tolist() == base.tolist()

    def test_no_elements(self, umem):
        for pointer in (0, 12345):
            a = umem.asarray(Interface(cai(pointer, shape=(3, 0))))
            assert a.shape == (3, 0)

    @pytest.mark.backends("fake")
    def test_the_exporter_lives_as_long_as_the_array(self, umem, fake_managed):
        pointer, _ = fake_managed

        class Owner(Interface):
            gone = 0

            def __del__(self):
                type(self).gone += 1

        a = umem.asarray(Owner(cai(pointer)))
        assert address(a) == pointer
        view = a[2:]
        del a
        gc.collect()
        assert Owner.gone == 0
        del view
        gc.collect()
        umem.synchronize()
        assert Owner.gone == 1

    @pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
    def test_lies(self, umem, lie):
        base = umem.arange(24, dtype="f4")
        blocks = umem.memory_stats()["active.all.current"]
        for make in (umem.asarray, umem.array):
            with pytest.raises((ValueError, TypeError, BufferError)):
                make(Interface(lie(address(base))))
        gc.collect()
        assert umem.memory_stats()["active.all.current"] == blocks
        assert base.tolist() == list(range(24))
        assert umem.ones(5).sum() == 5

    def test_errors_of_the_property_are_passed_on(self, umem):
        class Broken:
            @property
            def __cuda_array_interface__(self):
                raise ZeroDivisionError("broken")

        with pytest.raises(ZeroDivisionError, match="broken"):
            umem.asarray(Broken())

    @pytest.mark.backends("fake")
    def test_device_memory_is_copied(self, umem, fake):
        n = np.arange(24, dtype="f4")
        pointer = fake.device_alloc(n.nbytes)
        try:
            fake.poke(pointer, n.tobytes())
            for entries, expected in (
                ({"shape": (4, 6)}, n.reshape(4, 6)),
                ({"shape": (6, 4), "strides": (4, 24)}, n.reshape(4, 6).T),
                ({"shape": (3,), "strides": (32,)}, n[::8]),
                ({"shape": (3,), "data": (pointer + 4, True)}, n[1:4]),
            ):
                a = umem.asarray(Interface(cai(pointer, **entries)))
                assert_same_array(umem, a, expected)
                assert a.flags.writeable
                with pytest.raises(ValueError, match="copy"):
                    umem.asarray(Interface(cai(pointer, **entries)), copy=False)
            assert_same_array(
                umem, umem.asarray(Interface(cai(pointer, shape=(24,))), "f8"), n.astype("f8")
            )
        finally:
            fake.device_free(pointer)

    @pytest.mark.backends("fake")
    def test_a_copy_waits_for_the_stream_that_is_named(self, umem, fake):
        stream = fake.stream_create()
        pointer = fake.device_alloc(4096)
        try:
            fake.submit_fill(pointer, 9, 4096, stream)
            a = umem.asarray(Interface(cai(pointer, shape=(4096,), typestr="|u1", stream=stream)))
            assert (a == 9).all()
        finally:
            fake.device_free(pointer)
            fake.stream_destroy(stream)

    @pytest.mark.backends("fake")
    def test_device_memory_is_never_read_past_its_end(self, umem, fake):
        pointer = fake.device_alloc(4096)
        try:
            for shape in ((1025,), (1 << 28,)):
                with pytest.raises(BufferError):
                    umem.asarray(Interface(cai(pointer, shape=shape)))
        finally:
            fake.device_free(pointer)

    @pytest.mark.backends("fake")
    def test_managed_memory_of_others_is_shared(self, umem, fake_managed):
        pointer, view = fake_managed
        view[:6] = np.arange(6)
        a = umem.asarray(Interface(cai(pointer)))
        assert address(a) == pointer
        assert a.tolist() == [0, 1, 2, 3, 4, 5]
        umem.add(a, 1, out=a)
        assert view[:6].tolist() == [1, 2, 3, 4, 5, 6]
        assert not a.flags.owndata
        b = a + a
        assert b.tolist() == [2, 4, 6, 8, 10, 12]
        assert umem.copy(a).tolist() == a.tolist()
        assert umem.asarray(Interface(cai(pointer)), copy=True).tolist() == a.tolist()

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize("protocol", ["__cuda_array_interface__", "__array_interface__"])
    @pytest.mark.parametrize("stride", [-(1 << 32), -4, 1 << 32, 4])
    def test_managed_memory_of_others_is_not_left(self, umem, fake_managed, protocol, stride):
        pointer, _ = fake_managed
        start = pointer if stride < 0 else pointer + (1 << 16) - 4
        liar = Interface(cai(start, (6,), strides=(stride,)), protocol)
        for make in (umem.asarray, umem.array):
            with pytest.raises(BufferError):
                make(liar)

    @pytest.mark.backends("fake")
    def test_managed_memory_of_others_cannot_be_given_a_home(self, umem, fake_managed):
        a = umem.asarray(Interface(cai(fake_managed[0])))
        with pytest.raises(ValueError, match="owns"):
            a.home = "cpu"
        a.prefetch("cuda")
        a.prefetch("cpu")
        assert a.residency().nbytes == 24


@host
class TestWithoutGpu:
    def test_a_gpus_array_is_refused(self, umem):
        n = np.arange(6, dtype="f4")
        for make in (umem.asarray, umem.array, umem.copy):
            with pytest.raises((BufferError, TypeError, ValueError), match="GPU"):
                make(Interface(cai(n.ctypes.data)))

    @pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
    def test_lies(self, umem, lie):
        n = np.arange(6, dtype="f4")
        with pytest.raises((ValueError, TypeError, BufferError)):
            umem.asarray(Interface(lie(n.ctypes.data)))


class TestArrayInterface:
    """What NumPy believes is NumPy's affair; umem must not believe more."""

    def test_is_copied(self, umem):
        n = np.arange(6.0).reshape(2, 3)
        for part in (n, n.T, n[:, ::-1]):
            assert_same_array(umem, umem.asarray(Exporter(part, "__array_interface__")), part)
            assert_same_array(umem, umem.asarray(Exporter(part, "__array_struct__")), part)
            assert_same_array(umem, umem.asarray(Exporter(part, "__array__")), part)

    @pytest.mark.parametrize(
        "change",
        [
            {"shape": (-1,)},
            {"shape": "x"},
            {"typestr": "nonsense"},
            {"data": "x"},
            {"strides": (1, 2, 3, 4)},
            {"typestr": "|O8"},
            {"shape": None},
        ],
        ids=str,
    )
    def test_lies(self, umem, change):
        n = np.arange(6.0)
        interface = {**n.__array_interface__, **change}
        with pytest.raises((ValueError, TypeError, BufferError)):
            umem.asarray(Interface(interface, "__array_interface__"))

    def test_errors_are_passed_on(self, umem):
        class Broken:
            def __array__(self, dtype=None, copy=None):
                raise ZeroDivisionError("broken")

        with pytest.raises(ZeroDivisionError, match="broken"):
            umem.asarray(Broken())

    def test_a_released_memoryview(self, umem):
        view = memoryview(b"abc")
        view.release()
        with pytest.raises((ValueError, TypeError)):
            umem.asarray(view)


class TestFromIterables:
    def test_the_result_is_managed_memory_on_every_backend(self, umem, on_gpu):
        a = umem.asarray([1.0, 2.0])
        assert a.device == ("cuda:0" if on_gpu else "cpu")
        assert allocated(umem) >= 16

    def test_large(self, umem):
        n = np.arange(300_000)
        assert_same_array(umem, umem.asarray(n), n)
        assert umem.asarray(n[::-1]).sum() == math.comb(300_000, 2)

    def test_arguments(self, umem):
        for call in (
            lambda: umem.asarray(),
            lambda: umem.array(),
            lambda: umem.asarray([1], colour="red"),
            lambda: umem.array([1], None, 1),
        ):
            with pytest.raises(TypeError):
                call()
