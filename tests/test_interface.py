"""__array_interface__ and __cuda_array_interface__."""

import gc

import numpy as np
import pytest

from support import DTYPES, RECORD, VIEWS, Exporter, address, assert_same, sample, walked_strides

gpu = pytest.mark.backends("fake", "cuda")


def both(umem, dtype, view):
    return VIEWS[view](umem.array(sample(dtype))), VIEWS[view](sample(dtype))


class TestArrayInterface:
    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_says_what_numpys_says(self, umem, dtype, view):
        a, n = both(umem, dtype, view)
        actual, expected = a.__array_interface__, dict(n.__array_interface__)
        assert actual["data"] == (address(a), False)
        del expected["data"]
        assert {key: value for key, value in actual.items() if key != "data"} == expected
        assert actual["version"] == 3

    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_is_enough_for_numpy(self, umem, dtype, view):
        a, n = both(umem, dtype, view)
        seen = np.asarray(Exporter(a, "__array_interface__"))
        # Where a record has gaps, they become fields: of the same memory, since nobody copies gaps.
        assert_same(seen, np.asarray(Exporter(a.numpy(), "__array_interface__")))
        if dtype != RECORD:
            assert_same(seen, n)
        assert seen.dtype == dtype or dtype == RECORD
        if n.size:
            assert address(seen) == address(a)
            assert np.shares_memory(seen, a.numpy())

    def test_fields_that_overlap(self, umem):
        dtype = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 0]})
        n = np.arange(3, dtype="i4").view(dtype)
        a = umem.array(n)
        assert a.__array_interface__["descr"] == n.__array_interface__["descr"]
        assert_same(a.numpy(), n)
        assert (
            np.asarray(a).tobytes() == n.tobytes()
        )  # raw bytes: neither protocol can say such fields

    def test_is_new_each_time(self, umem):
        a = umem.zeros(3)
        a.__array_interface__["shape"] = (99,)
        assert a.__array_interface__["shape"] == (3,)
        with pytest.raises(AttributeError):
            a.__array_interface__ = {}

    def test_the_strides_of_reversed_arrays_are_kept(self, umem):
        a = umem.arange(5)
        assert a[::-1].__array_interface__["strides"] == (-8,)
        assert np.asarray(Exporter(a[::-1], "__array_interface__")).tolist() == [4, 3, 2, 1, 0]


@pytest.mark.backends("host")
class TestCudaInterfaceWithoutGpu:
    def test_is_not_there(self, umem):
        a = umem.zeros(3)
        assert not hasattr(a, "__cuda_array_interface__")
        with pytest.raises(AttributeError, match="GPU"):
            a.__cuda_array_interface__

    def test_torch_takes_the_array_nevertheless(self, umem):
        torch = pytest.importorskip("torch")
        a = umem.arange(6, dtype="f4").reshape(2, 3)
        t = torch.as_tensor(a)
        assert t.data_ptr() == address(a)
        t += 1
        assert a.tolist() == [[1, 2, 3], [4, 5, 6]]


@gpu
class TestCudaInterface:
    @pytest.mark.parametrize("view", [name for name in VIEWS if "reversed" not in name])
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_fields(self, umem, dtype, view):
        a, n = both(umem, dtype, view)
        seen = a.__cuda_array_interface__
        assert seen["version"] == 3
        assert seen["shape"] == n.shape
        assert seen["typestr"] == dtype.str
        assert seen["strides"] == n.__array_interface__["strides"]
        assert seen["data"] == (address(a) if n.size else 0, False)
        assert seen["stream"] == 1
        assert seen.get("mask") is None
        assert set(seen) <= {
            "version",
            "shape",
            "typestr",
            "strides",
            "data",
            "stream",
            "descr",
            "mask",
        }
        if "descr" in seen:
            assert seen["descr"] == n.__array_interface__["descr"]

    def test_records_say_their_fields(self, umem):
        assert (
            umem.zeros(3, RECORD).__cuda_array_interface__["descr"]
            == np.zeros(3, RECORD).__array_interface__["descr"]
        )

    @pytest.mark.parametrize("view", ["rows reversed", "all reversed"])
    def test_negative_strides_are_refused(self, umem, view):
        a = VIEWS[view](umem.zeros((4, 6)))
        with pytest.raises(BufferError, match=r"negative.*copy"):
            a.__cuda_array_interface__

    def test_a_flag_that_changes_while_it_is_made(self, umem, monkeypatch):
        """As another thread may do: what is kept for later reads must not say what was."""
        from numpy._core import _internal

        a = umem.zeros(3, [("x", "f4"), ("y", "i4")])
        describe = _internal._array_descr

        def describe_and_change(dtype):
            a.flags.writeable = False
            return describe(dtype)

        monkeypatch.setattr(_internal, "_array_descr", describe_and_change)
        assert a.__cuda_array_interface__["descr"] == [("x", "<f4"), ("y", "<i4")]
        assert a.__cuda_array_interface__["data"][1] is True

    def test_negative_strides_that_are_never_walked_are_not(self, umem):
        a = umem.zeros((4, 6))
        for view in (a[2:2][::-1], a[0:1][::-1], a[:, 3:3][:, ::-1]):
            assert view.__cuda_array_interface__["shape"] == view.shape

    def test_is_new_each_time(self, umem):
        a = umem.zeros(3)
        a.__cuda_array_interface__["shape"] = (99,)
        assert a.__cuda_array_interface__["shape"] == (3,)
        with pytest.raises(AttributeError):
            a.__cuda_array_interface__ = {}

    @pytest.mark.backends("fake")
    def test_says_the_stream_that_umem_uses(self, umem, fake):
        a = umem.zeros(3)
        handle = fake.stream_create()
        try:
            with umem.stream(handle):
                assert a.__cuda_array_interface__["stream"] == handle
            with umem.stream(2):
                assert a.__cuda_array_interface__["stream"] in (
                    1,
                    2,
                )  # the two default streams follow each other
            assert a.__cuda_array_interface__["stream"] == 1
        finally:
            fake.stream_destroy(handle)

    def test_comes_back_as_the_same_memory(self, umem):
        for view in VIEWS.values():
            a = view(umem.array(sample("f4")))
            if any(stride < 0 for stride in a.strides) or not a.size:
                continue
            back = umem.asarray(Exporter(a, "__cuda_array_interface__"))
            assert type(back) is umem.ndarray
            assert address(back) == address(a)
            assert walked_strides(back) == walked_strides(a)
            assert_same(back, a.read())


class TestViewsOfOneDevice:
    """a.on("cpu") and a.on("cuda") always say the one or the other."""

    def test_on_the_cpu(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        view = a.on("cpu")
        assert view.__dlpack_device__() == (1, 0)
        assert address(view) == address(a)
        assert not hasattr(view, "__cuda_array_interface__")
        for seen in (
            np.from_dlpack(view),
            np.asarray(view),
            np.asarray(memoryview(view)),
            view.__array__(),
        ):
            assert type(seen) is np.ndarray
            assert address(seen) == address(a)
            assert_same(seen, a.read())
        assert umem.asarray(view) is a
        assert address(umem.from_dlpack(view)) == address(a)

    def test_torch_gets_a_cpu_tensor(self, umem):
        torch = pytest.importorskip("torch")
        a = umem.arange(6, dtype="f4")
        t = torch.from_dlpack(a.on("cpu"))
        assert not t.is_cuda
        assert t.data_ptr() == address(a)
        t[2] = 50
        assert a[2] == 50

    @pytest.mark.backends("host")
    def test_on_a_gpu_that_is_not_there(self, umem):
        for where in ("cuda", "cuda:0", 0):
            with pytest.raises(BufferError, match="GPU"):
                umem.zeros(3).on(where)

    @gpu
    def test_on_the_gpu(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        for where in ("cuda", "cuda:0", 0):
            view = a.on(where)
            assert view.__dlpack_device__() == (2, 0)
            assert view.__cuda_array_interface__["data"] == (address(a), False)
            assert not hasattr(view, "__array_interface__")
            with pytest.raises(BufferError):
                memoryview(view)
            with pytest.raises(TypeError):
                np.asarray(view)
            assert umem.asarray(view) is a

    def test_bad_locations(self, umem):
        a = umem.zeros(3)
        for where in ("gpu", None, "cuda:x", 1.5, True, -1):
            with pytest.raises(ValueError, match="where"):
                a.on(where)
        with pytest.raises(TypeError):
            a.on()

    def test_keeps_the_array(self, umem):
        view = umem.full(1000, 5.0).on("cpu")
        gc.collect()
        junk = umem.zeros(1000)
        assert np.asarray(view).sum() == 5000
        assert junk.sum() == 0

    def test_says_what_it_is(self, umem):
        view = umem.zeros((2, 3), "f4").on("cpu")
        assert "cpu" in repr(view)
        assert "(2, 3)" in repr(view)
        with pytest.raises(TypeError):
            type(view)()
