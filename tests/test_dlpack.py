"""DLPack both ways: what capsules hold, and what comes in, true or not."""

import ctypes
import gc
import mmap
import sys
import threading

import numpy as np
import pytest

import dlpack_abi as dl
from dlpack_abi import DLExporter, Seen
from support import DTYPES, VIEWS, address, allocated, assert_same, label, sample

gpu = pytest.mark.backends("fake", "cuda")
host = pytest.mark.backends("host")

DL_TYPES = {
    "?": (dl.BOOL, 8), "i1": (dl.INT, 8), "i2": (dl.INT, 16), "i4": (dl.INT, 32), "i8": (dl.INT, 64), "u1": (dl.UINT, 8),
    "u2": (dl.UINT, 16), "u4": (dl.UINT, 32), "u8": (dl.UINT, 64), "f2": (dl.FLOAT, 16), "f4": (dl.FLOAT, 32),
    "f8": (dl.FLOAT, 64), "c8": (dl.COMPLEX, 64), "c16": (dl.COMPLEX, 128),
}  # fmt: skip
FORWARD = [name for name in VIEWS if "reversed" not in name]


@pytest.fixture
def native(on_gpu):
    """Device type that an array says it is on."""
    return dl.CUDA if on_gpu else dl.CPU


@pytest.fixture
def unasked(on_gpu):
    """Device type of a capsule for somebody who asks for nothing, as NumPy does."""
    return dl.MANAGED if on_gpu else dl.CPU


class TestExport:
    @pytest.mark.parametrize("view", FORWARD)
    @pytest.mark.parametrize("dtype", DL_TYPES)
    @pytest.mark.parametrize("version", [None, (1, 0)])
    def test_what_a_capsule_holds(self, umem, unasked, version, dtype, view):
        a = VIEWS[view](umem.array(sample(dtype)))
        seen = Seen(a.__dlpack__(max_version=version))
        assert seen.versioned is (version is not None)
        assert seen.dtype == (*DL_TYPES[dtype], 1)
        assert seen.device == (unasked, 0)
        assert seen.ndim == a.ndim
        assert seen.shape == a.shape
        if a.size:
            assert seen.data == address(a)
            for length, stride, expected in zip(
                a.shape, seen.strides or (), a.strides, strict=True
            ):
                assert length == 1 or stride * a.itemsize == expected
            # One past an int64: torch and others compare strides of length-1 axes with those of a packed array.
            assert all(stride >= 0 for stride in seen.strides)
        else:
            assert seen.data == 0

    def test_device(self, umem, native):
        a = umem.zeros(3)
        assert a.__dlpack_device__() == (native, 0)
        assert a[::-1].__dlpack_device__() == (native, 0)

    @pytest.mark.parametrize(
        ("asked", "name", "given"),
        [
            (None, dl.LEGACY, None), ((0, 8), dl.LEGACY, None), ((0, 0), dl.LEGACY, None), ((1, 0), dl.VERSIONED, (1, 0)),
            ((1, 1), dl.VERSIONED, None), ((1, 99), dl.VERSIONED, None), ((2, 0), dl.VERSIONED, None), ((99, 0), dl.VERSIONED, None),
        ],
    )  # fmt: skip
    def test_version(self, umem, asked, name, given):
        seen = Seen(umem.zeros(3).__dlpack__(max_version=asked))
        assert seen.name == name
        if seen.versioned:
            assert seen.version[0] == 1
            assert asked[0] > 1 or seen.version <= asked
            assert seen.flags == 0
            assert given in (None, seen.version)

    def test_read_only(self, umem):
        a = umem.zeros(3)
        a.flags.writeable = False
        assert Seen(a.__dlpack__(max_version=(1, 0))).flags == dl.READ_ONLY
        with pytest.raises(BufferError, match="read-only"):
            a.__dlpack__()
        assert Seen(a.__dlpack__(max_version=(1, 0), copy=True)).flags == dl.IS_COPIED
        assert Seen(a.__dlpack__(copy=True)).name == dl.LEGACY

    def test_copy(self, umem):
        a = umem.arange(6.0).reshape(2, 3)
        for keep in (None, False):
            seen = Seen(a.__dlpack__(copy=keep, max_version=(1, 0)))
            assert seen.data == address(a)
            assert seen.flags == 0
        seen = Seen(a.T.__dlpack__(copy=True, max_version=(1, 0)))
        assert seen.data != address(a)
        assert seen.flags == dl.IS_COPIED
        assert seen.shape == (3, 2)
        made = np.from_dlpack(DLOnly(a.T, copy=True))
        a[0, 1] = 99
        assert made.tolist() == [[0, 3], [1, 4], [2, 5]]

    def test_a_copy_has_no_strides_to_refuse(self, umem):
        a = umem.arange(5.0)
        assert np.from_dlpack(DLOnly(a[::-1], copy=True)).tolist() == [4, 3, 2, 1, 0]

    @pytest.mark.parametrize("view", [name for name in VIEWS if "reversed" in name])
    def test_negative_strides_are_refused(self, umem, view):
        a = VIEWS[view](umem.zeros((4, 6)))
        for keywords in ({}, {"max_version": (1, 0)}, {"dl_device": (1, 0)}):
            with pytest.raises(BufferError, match=r"negative.*copy"):
                a.__dlpack__(**keywords)
        with pytest.raises(BufferError, match=r"negative.*copy"):
            np.from_dlpack(a)

    def test_negative_strides_that_are_never_walked_are_not(self, umem):
        a = umem.zeros((4, 6))
        for view in (a[2:2][::-1], a[0:1][::-1], a[:, 3:3][:, ::-1]):
            seen = Seen(view.__dlpack__())
            assert seen.shape == view.shape
            assert all(stride > 0 for stride in seen.strides)

    def test_strides_between_elements_are_refused(self, umem):
        records = umem.zeros(5, [("x", "f4"), ("y", "u1")])
        with pytest.raises(BufferError, match=r"multiple.*copy"):
            records["x"].__dlpack__()
        assert np.from_dlpack(records["x"].copy()).tolist() == [0] * 5

    @pytest.mark.parametrize(
        "dtype",
        [d for d in DTYPES.values() if d.str[1:] not in DL_TYPES and d.str[1:] != "b1"],
        ids=str,
    )
    def test_dtypes_that_it_cannot_say(self, umem, dtype):
        a = umem.zeros(3, dtype)
        for call in (
            a.__dlpack__,
            lambda: a.__dlpack__(max_version=(1, 0)),
            lambda: a.__dlpack__(copy=True),
            lambda: np.from_dlpack(a),
        ):
            with pytest.raises(BufferError, match="dtype"):
                call()

    def test_big_endian_is_refused(self, umem):
        with pytest.raises(BufferError, match="byte order"):
            umem.zeros(3, ">f4").__dlpack__()

    @pytest.mark.parametrize(
        ("keywords", "error"),
        [
            ({"stream": "x"}, TypeError), ({"stream": 1.5}, TypeError), ({"max_version": 1}, TypeError),
            ({"max_version": (1,)}, TypeError), ({"max_version": (1, 0, 0)}, TypeError), ({"max_version": ("1", 0)}, TypeError),
            ({"max_version": (2**40, 0)}, ValueError), ({"dl_device": 1}, TypeError), ({"dl_device": (1, "x")}, TypeError),
            ({"dl_device": (2**40, 0)}, ValueError), ({"colour": "red"}, TypeError), ({"dl_device": (7, 0)}, BufferError),
            ({"dl_device": (1, 1)}, BufferError), ({"dl_device": (2, 99)}, BufferError), ({"dl_device": (13, 99)}, BufferError),
            ({"dl_device": (-1, -1)}, BufferError),
        ],
        ids=str,
    )  # fmt: skip
    def test_bad_arguments(self, umem, keywords, error):
        a = umem.zeros(3)
        with pytest.raises(
            error, match=next(iter(keywords)) if error is not BufferError else "export"
        ):
            a.__dlpack__(**keywords)
        with pytest.raises(TypeError, match="positional|keyword"):
            a.__dlpack__(None)

    @host
    def test_the_cpu_takes_no_stream(self, umem):
        a = umem.zeros(3)
        assert Seen(a.__dlpack__(stream=None)).device == (dl.CPU, 0)
        for stream in (1, 2, -1, 12345):
            with pytest.raises(ValueError, match="stream"):
                a.__dlpack__(stream=stream)

    @host
    def test_the_host_is_the_cpu_only(self, umem):
        a = umem.zeros(3)
        assert Seen(a.__dlpack__(dl_device=(1, 0))).device == (1, 0)
        for device in ((2, 0), (13, 0), (3, 0)):
            with pytest.raises(BufferError, match="CPU"):
                a.__dlpack__(dl_device=device)

    @gpu
    def test_which_device_a_capsule_says(self, umem):
        a = umem.zeros(3)
        for keywords, device in (
            ({}, dl.MANAGED),
            ({"dl_device": None}, dl.MANAGED),
            ({"stream": None}, dl.CUDA),
            ({"stream": 1}, dl.CUDA),
            ({"stream": 2}, dl.CUDA),
            ({"stream": -1}, dl.CUDA),
            ({"dl_device": (1, 0)}, dl.CPU),
            ({"dl_device": (2, 0)}, dl.CUDA),
            ({"dl_device": (13, 0)}, dl.MANAGED),
            ({"dl_device": (2, 0), "stream": 1}, dl.CUDA),
            ({"dl_device": (1, 0), "stream": None}, dl.CPU),
        ):
            for version in (None, (1, 0)):
                seen = Seen(a.__dlpack__(max_version=version, **keywords))
                assert seen.device == (device, 0), keywords
                assert seen.data == address(a)

    @gpu
    def test_ambiguous_streams_are_refused(self, umem):
        a = umem.zeros(3)
        for stream in (0, -2, -(2**70), 2**70):
            with pytest.raises(ValueError, match="stream"):
                a.__dlpack__(stream=stream)

    def test_numpy_sees_the_same_memory(self, umem):
        for view in FORWARD:
            for dtype in DL_TYPES:
                a, n = VIEWS[view](umem.array(sample(dtype))), VIEWS[view](sample(dtype))
                seen = np.from_dlpack(a)
                assert_same(seen, n)
                assert seen.flags.writeable
                if n.size:
                    assert address(seen) == address(a)

    def test_torch_sees_the_same_memory(self, umem, on_gpu):
        torch = pytest.importorskip("torch")
        if (
            on_gpu and not torch.cuda.is_available()
        ):  # the fake's arrays go to the CPU's torch by the way that says so
            give = lambda a: torch.from_dlpack(a.on("cpu"))  # noqa: E731
        else:
            give = torch.from_dlpack
        for view in FORWARD:
            for dtype in ("?", "i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"):
                a, n = VIEWS[view](umem.array(sample(dtype))), VIEWS[view](sample(dtype))
                t = give(a)
                assert tuple(t.shape) == n.shape
                assert_same(t.cpu().numpy(), n)
                if n.size:
                    assert t.data_ptr() == address(a)

    @host
    def test_torch_with_arguments(self, umem):
        torch = pytest.importorskip("torch")
        a = umem.arange(3.0)
        assert torch.from_dlpack(a, device="cpu").data_ptr() == address(a)
        assert torch.from_dlpack(a, copy=False).data_ptr() == address(a)
        assert torch.from_dlpack(a, copy=True).data_ptr() != address(a)
        assert torch.utils.dlpack.from_dlpack(a.__dlpack__()).data_ptr() == address(a)


class DLOnly:
    """Passes a consumer's call on with some arguments fixed."""

    def __init__(self, array, **fixed):
        self.array = array
        self.fixed = fixed

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**{**keywords, **self.fixed})


class TestCapsules:
    @pytest.mark.parametrize("version", [None, (1, 0)])
    def test_one_that_nobody_takes_lets_go(self, umem, version):
        gc.collect()
        before = allocated(umem)
        capsule = umem.zeros(1000).__dlpack__(max_version=version)
        gc.collect()
        assert allocated(umem) == before + 8000
        del capsule
        assert allocated(umem) == before

    @pytest.mark.parametrize("version", [None, (1, 0)])
    def test_one_that_is_taken_lives_until_its_deleter(self, umem, version):
        gc.collect()
        before = allocated(umem)
        capsule = umem.full(1000, 3.0).__dlpack__(max_version=version)
        seen = Seen(capsule)
        data = seen.data
        delete = seen.consume()
        seen.capsule = capsule = None
        gc.collect()
        assert allocated(umem) == before + 8000
        junk = umem.zeros(1000)
        umem.synchronize()
        assert ctypes.c_double.from_address(data).value == 3
        del junk
        delete()
        assert allocated(umem) == before

    def test_the_deleter_may_run_in_any_thread(self, umem):
        gc.collect()
        before = allocated(umem)
        deleters = []
        for i in range(20):
            capsule = umem.zeros(1000).__dlpack__(max_version=(1, 0) if i % 2 else None)
            deleters.append(Seen(capsule).consume())
        del capsule
        threads = [threading.Thread(target=delete) for delete in deleters]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        umem.synchronize()
        assert allocated(umem) == before

    def test_refused_exports_keep_nothing(self, umem):
        gc.collect()
        before = allocated(umem)
        a = umem.zeros((4, 6))
        for _ in range(5):
            for bad in ({"dl_device": (7, 0)}, {"stream": "x"}):
                with pytest.raises((BufferError, TypeError)):
                    a.__dlpack__(**bad)
            with pytest.raises(BufferError):
                a[::-1].__dlpack__()
        del a
        assert allocated(umem) == before


class TestImport:
    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", DL_TYPES)
    def test_of_numpys_arrays_is_a_copy(self, umem, dtype, view):
        n = VIEWS[view](sample(dtype))
        a = umem.from_dlpack(n)
        assert type(a) is umem.ndarray
        assert_same(a, n)
        assert a.flags.writeable
        if n.size:
            assert not np.shares_memory(a.numpy(), n)

    def test_of_torchs_tensors(self, umem):
        torch = pytest.importorskip("torch")
        for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
                      torch.float64, torch.complex64, torch.complex128):  # fmt: skip
            t = torch.arange(24).reshape(4, 6).to(dtype)
            for part in (t, t.T, t[1:, ::2], t[2, 3], t[:0]):
                a = umem.from_dlpack(part)
                assert_same(a, part.numpy())

    def test_of_umems_own_shares(self, umem):
        a = umem.arange(24.0).reshape(4, 6)
        for view in FORWARD:
            part = VIEWS[view](a)
            back = umem.from_dlpack(part)
            assert type(back) is umem.ndarray
            assert_same(back, part.read())
            if part.size:
                assert address(back) == address(part)
        assert address(umem.from_dlpack(a.on("cpu"))) == address(a)
        with pytest.raises(BufferError):
            umem.from_dlpack(a[::-1])
        assert umem.from_dlpack(a[::-1], copy=True)[0, 0] == 18

    def test_of_views_that_numpy_and_torch_have_of_it_shares(self, umem):
        a = umem.arange(24.0).reshape(4, 6)
        n = np.asarray(a)
        for seen in (n, n[1:, ::2], np.from_dlpack(a), a.numpy().T):
            assert address(umem.from_dlpack(seen)) == address(seen)
        torch = pytest.importorskip("torch")
        t = torch.from_dlpack(a.on("cpu"))
        assert address(umem.from_dlpack(t[1:])) == t[1:].data_ptr()
        assert address(umem.from_dlpack(t, copy=False)) == address(a)

    def test_copy(self, umem):
        n = np.arange(6.0)
        a = umem.arange(6.0)
        assert umem.from_dlpack(n, copy=None).tolist() == n.tolist()
        assert umem.from_dlpack(n, copy=True).tolist() == n.tolist()
        with pytest.raises(ValueError, match="copy"):
            umem.from_dlpack(n, copy=False)
        assert address(umem.from_dlpack(a, copy=False)) == address(a)
        assert address(umem.from_dlpack(a, copy=True)) != address(a)
        assert address(umem.from_dlpack(np.asarray(a), copy=True)) != address(a)

    def test_nothing_to_share_is_nothing_to_copy(self, umem):
        for n in (np.zeros(0), np.zeros((3, 0, 2), "i4")):
            for copy in (None, True, False):
                a = umem.from_dlpack(n, copy=copy)
                assert (a.shape, a.dtype) == (n.shape, n.dtype)

    def test_device(self, umem, on_gpu):
        n = np.arange(3.0)
        for device in (None, "cpu", "cuda", "cuda:0", 0):
            assert umem.from_dlpack(n, device=device).tolist() == [0, 1, 2]
            a = umem.arange(3.0)
            assert address(umem.from_dlpack(a, device=device)) == address(a)
        for bad in ("gpu", 1.5, "cuda:x"):
            with pytest.raises(ValueError, match="device"):
                umem.from_dlpack(n, device=bad)
        if on_gpu:
            with pytest.raises(ValueError, match="cuda:0"):
                umem.from_dlpack(n, device="cuda:99")

    @pytest.mark.parametrize("what", [object(), 3, None, "x", [1, 2]], ids=label)
    def test_of_what_has_no_dlpack(self, umem, what):
        with pytest.raises(TypeError, match="__dlpack__"):
            umem.from_dlpack(what)

    def test_of_a_capsule(self, umem):
        with pytest.raises(TypeError, match="__dlpack__"):
            umem.from_dlpack(np.zeros(3).__dlpack__())

    def test_arguments(self, umem):
        with pytest.raises(TypeError):
            umem.from_dlpack()
        with pytest.raises(TypeError):
            umem.from_dlpack(np.zeros(3), "cpu")
        with pytest.raises(TypeError):
            umem.from_dlpack(np.zeros(3), colour="red")


def memory(count=24, dtype="f4"):
    n = np.arange(count, dtype=dtype)
    return n, n.ctypes.data


class TestExporters:
    """Tensors made by hand, true ones."""

    @pytest.mark.parametrize("versioned", [True, False])
    def test_a_copy_deletes_at_once_and_once(self, umem, versioned):
        n, data = memory()
        exporter = DLExporter(data, (4, 6), versioned=versioned, owner=n)
        a = umem.from_dlpack(exporter)
        assert exporter.deleted == 1
        assert a.tolist() == n.reshape(4, 6).tolist()
        del a
        gc.collect()
        assert exporter.deleted == 1

    @pytest.mark.parametrize("versioned", [True, False])
    def test_what_is_shared_is_deleted_with_the_last_array(self, umem, versioned):
        base = umem.arange(24, dtype="f4")
        gc.collect()
        exporter = DLExporter(address(base), (4, 6), versioned=versioned)
        a = umem.from_dlpack(exporter)
        assert address(a) == address(base)
        view = a[1:]
        del a
        gc.collect()
        view[0, 0] = 50
        assert base[6] == 50
        del view
        gc.collect()
        assert exporter.deleted == 1

    def test_legacy_capsules_are_writable(self, umem):
        base = umem.zeros(4, "f4")
        assert umem.from_dlpack(DLExporter(address(base), (4,), versioned=False)).flags.writeable
        assert umem.from_dlpack(DLExporter(address(base), (4,))).flags.writeable

    def test_read_only_stays_read_only(self, umem):
        base = umem.zeros(4, "f4")
        a = umem.from_dlpack(DLExporter(address(base), (4,), flags=dl.READ_ONLY))
        assert not a.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            a[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            a.flags.writeable = True
        n, data = memory()
        assert umem.from_dlpack(
            DLExporter(data, (4,), flags=dl.READ_ONLY, owner=n)
        ).flags.writeable  # a copy

    def test_strides_and_offset(self, umem):
        n, data = memory()
        for keywords, expected in (
            ({"strides": (6, 1)}, n.reshape(4, 6)),
            ({"strides": (1, 4)}, n.reshape(6, 4).T),
            ({"strides": (0, 1)}, np.broadcast_to(n[:6], (4, 6))),
            ({"strides": (3, 1)}, np.lib.stride_tricks.as_strided(n, (4, 6), (12, 4))),
        ):
            assert_same(umem.from_dlpack(DLExporter(data, (4, 6), owner=n, **keywords)), expected)
        assert_same(umem.from_dlpack(DLExporter(data, (5,), byte_offset=8, owner=n)), n[2:7])
        assert_same(
            umem.from_dlpack(DLExporter(data + 40, (3, 4), strides=(-4, 1), owner=n)),
            n[2:14].reshape(3, 4)[::-1],
        )
        base = umem.array(n)
        a = umem.from_dlpack(DLExporter(address(base), (5,), byte_offset=8))
        assert address(a) == address(base) + 8
        assert_same(a, n[2:7])

    def test_no_axes(self, umem):
        n, data = memory()
        for null in (True, False):
            a = umem.from_dlpack(DLExporter(data, (), null_shape=null, owner=n))
            assert a.shape == ()
            assert a.item() == 0

    def test_no_elements_need_no_memory(self, umem):
        exporter = DLExporter(None, (3, 0, 2))
        a = umem.from_dlpack(exporter)
        assert a.shape == (3, 0, 2)
        assert exporter.deleted == 1

    @pytest.mark.parametrize("dtype", DL_TYPES)
    def test_dtypes(self, umem, dtype):
        n = sample(dtype).copy()
        exporter = DLExporter(n.ctypes.data, n.shape, dtype=(*DL_TYPES[dtype], 1), owner=n)
        assert_same(umem.from_dlpack(exporter), n)

    def test_old_exporters_know_no_version(self, umem):
        n, data = memory()
        exporter = DLExporter(data, (4, 6), versioned=False, takes=("stream",), owner=n)
        assert umem.from_dlpack(exporter).shape == (4, 6)
        assert len(exporter.asked) == 1
        exporter = DLExporter(data, (4, 6), takes=("stream", "max_version"), owner=n)
        assert umem.from_dlpack(exporter).shape == (4, 6)

    def test_is_asked_for_the_newest_version(self, umem):
        n, data = memory()
        exporter = DLExporter(data, (4, 6), owner=n)
        umem.from_dlpack(exporter)
        assert exporter.asked[0]["max_version"][0] == 1
        assert exporter.asked[0].get("stream") is None

    def test_without_a_deleter(self, umem):
        n, data = memory()
        for versioned in (True, False):
            exporter = DLExporter(data, (4, 6), versioned=versioned, null_deleter=True, owner=n)
            assert umem.from_dlpack(exporter).shape == (4, 6)
            assert exporter.deleted == 0

    def test_page_locked_memory_is_read_as_the_hosts(self, umem):
        n, data = memory()
        for device in ((dl.CUDA_HOST, 0), (dl.ROCM_HOST, 0)):
            assert_same(umem.from_dlpack(DLExporter(data, (24,), device=device, owner=n)), n)

    @gpu
    def test_a_gpus_exporter_gets_umems_stream(self, umem):
        base = umem.arange(24, dtype="f4")
        exporter = DLExporter(address(base), (24,), device=(dl.CUDA, 0))
        a = umem.from_dlpack(exporter)
        assert address(a) == address(base)
        assert exporter.asked[0]["stream"] == 1
        with umem.stream(2):
            umem.from_dlpack(exporter)
        assert exporter.asked[1]["stream"] == 2

    @gpu
    def test_managed_memory_of_a_host_library_gets_no_stream(self, umem):
        base = umem.arange(24, dtype="f4")
        exporter = DLExporter(address(base), (24,), device=(dl.MANAGED, 0))
        assert address(umem.from_dlpack(exporter)) == address(base)
        assert exporter.asked[0].get("stream") is None

    @pytest.mark.backends("fake")
    def test_device_memory_is_copied(self, umem, fake):
        n = np.arange(24, dtype="f4")
        pointer = fake.device_alloc(n.nbytes)
        try:
            fake.poke(pointer, n.tobytes())
            for strides, expected in (
                (None, n.reshape(4, 6)),
                ((1, 4), n.reshape(6, 4).T),
                ((-6, 1), n.reshape(4, 6)[::-1]),
            ):
                start = pointer + (72 if strides == (-6, 1) else 0)
                exporter = DLExporter(start, (4, 6), strides=strides, device=(dl.CUDA, 0))
                a = umem.from_dlpack(exporter)
                assert exporter.deleted == 1
                assert_same(a, expected)
                assert not pointer <= address(a) < pointer + n.nbytes
            exporter = DLExporter(pointer, (4, 6), device=(dl.CUDA, 0))
            with pytest.raises(ValueError, match="copy"):
                umem.from_dlpack(exporter, copy=False)
            assert exporter.deleted == 1
        finally:
            fake.device_free(pointer)

    @pytest.mark.backends("fake")
    def test_device_memory_waits_for_its_stream(self, umem, fake):
        pointer = fake.device_alloc(4096)
        try:
            fake.submit_fill(pointer, 7, 4096)
            a = umem.from_dlpack(
                DLExporter(pointer, (4096,), dtype=(dl.UINT, 8, 1), device=(dl.CUDA, 0))
            )
            assert (a == 7).all()
        finally:
            fake.device_free(pointer)

    @host
    def test_a_gpus_memory_is_refused_without_a_gpu(self, umem):
        n, data = memory()
        exporter = DLExporter(data, (24,), device=(dl.CUDA, 0), owner=n)
        with pytest.raises(BufferError, match="GPU"):
            umem.from_dlpack(exporter)
        assert exporter.asked == []
        liar = DLExporter(data, (24,), device=(dl.CUDA, 0), device_says=(dl.CPU, 0), owner=n)
        with pytest.raises(BufferError, match="GPU"):
            umem.from_dlpack(liar)
        assert liar.ends == 1


class Mapping:
    """Pages of memory, some of which can be taken away."""

    def __init__(self, pages, readable):
        self.page = mmap.PAGESIZE
        self.map = mmap.mmap(-1, pages * self.page)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc = ctypes.CDLL(None, use_errno=True)
        rest = pages - readable
        assert (
            libc.mprotect(
                ctypes.c_void_p(self.address + readable * self.page),
                ctypes.c_size_t(rest * self.page),
                0,
            )
            == 0
        )


TOP = 2**64 - 4096

LIES = {
    "negative ndim": lambda data: dict(data=data, shape=(4,), ndim=-1),
    "huge ndim": lambda data: dict(data=data, shape=(4,), ndim=2**31 - 1),
    "65 axes": lambda data: dict(data=data, shape=(1,) * 65),
    "no shape": lambda data: dict(data=data, shape=(4,), null_shape=True),
    "negative length": lambda data: dict(data=data, shape=(4, -1)),
    "most negative length": lambda data: dict(data=data, shape=(-(2**63),)),
    "negative length beside zero": lambda data: dict(data=data, shape=(0, -1)),
    "size overflow": lambda data: dict(data=data, shape=(2**32, 2**32)),
    "byte overflow": lambda data: dict(data=data, shape=(2**62,)),
    "wrapping product": lambda data: dict(data=data, shape=(2**32, 2**32, 2)),
    "largest length": lambda data: dict(data=data, shape=(2**63 - 1,)),
    "large stride": lambda data: dict(data=data, shape=(2,), strides=(2**62,)),
    "most negative stride": lambda data: dict(data=data, shape=(2,), strides=(-(2**63),)),
    "stride times length": lambda data: dict(
        data=data, shape=(2**31, 2**31), strides=(2**31, 2**31)
    ),
    "NULL": lambda data: dict(data=None, shape=(4,)),
    "NULL with an offset": lambda data: dict(data=None, shape=(4,), byte_offset=data),
    "offset past the end": lambda data: dict(data=data, shape=(4,), byte_offset=2**64 - 16),
    "top of the address space": lambda data: dict(data=TOP, shape=(4096,)),
    "below the address space": lambda data: dict(data=64, shape=(64,), strides=(-4,)),
    "unmapped": lambda data: dict(data=0x10000, shape=(4,)),
    "not canonical": lambda data: dict(data=0x8000_0000_0000_0000, shape=(4,)),
    "the kernel's": lambda data: dict(data=0xFFFF_FFFF_8000_0000, shape=(4,)),
    "far too long": lambda data: dict(data=data, shape=(2**44,), dtype=(dl.UINT, 8, 1)),
    "lanes": lambda data: dict(data=data, shape=(4,), dtype=(dl.FLOAT, 32, 4)),
    "no lanes": lambda data: dict(data=data, shape=(4,), dtype=(dl.FLOAT, 32, 0)),
    "code": lambda data: dict(data=data, shape=(4,), dtype=(99, 32, 1)),
    "handle": lambda data: dict(data=data, shape=(4,), dtype=(dl.HANDLE, 64, 1)),
    "float8": lambda data: dict(data=data, shape=(4,), dtype=(10, 8, 1)),
    "24 bits": lambda data: dict(data=data, shape=(4,), dtype=(dl.INT, 24, 1)),
    "4 bits": lambda data: dict(data=data, shape=(4,), dtype=(dl.INT, 4, 1)),
    "no bits": lambda data: dict(data=data, shape=(4,), dtype=(dl.FLOAT, 0, 1)),
    "bool of 32 bits": lambda data: dict(data=data, shape=(4,), dtype=(dl.BOOL, 32, 1)),
    "complex of 32 bits": lambda data: dict(data=data, shape=(4,), dtype=(dl.COMPLEX, 32, 1)),
    "device type": lambda data: dict(
        data=data, shape=(4,), device=(99, 0), device_says=(dl.CPU, 0)
    ),
    "Vulkan": lambda data: dict(data=data, shape=(4,), device=(7, 0), device_says=(dl.CPU, 0)),
    "GPU that is not there": lambda data: dict(
        data=data, shape=(4,), device=(dl.CUDA, 99), device_says=(dl.CPU, 0)
    ),
    "negative GPU": lambda data: dict(
        data=data, shape=(4,), device=(dl.CUDA, -1), device_says=(dl.CPU, 0)
    ),
    "newer major version": lambda data: dict(data=data, shape=(4,), version=(2, 0)),
    "major version 0": lambda data: dict(data=data, shape=(4,), version=(0, 8)),
}


class TestLies:
    @pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
    @pytest.mark.parametrize("versioned", [True, False])
    @pytest.mark.parametrize("whose", ["another's", "umem's"])
    def test_are_refused_and_deleted_once(self, umem, whose, versioned, lie):
        n, data = memory()
        base = umem.array(n)
        keywords = lie(data if whose == "another's" else address(base))
        if "version" in keywords and not versioned:
            keywords = {**keywords, "name": b"dltensor_of_the_future"}
            del keywords["version"]
        gc.collect()
        before = umem.memory_stats()["active.all.current"]
        exporter = DLExporter(**keywords, versioned=versioned, owner=n)
        with pytest.raises((BufferError, ValueError, MemoryError)):
            umem.from_dlpack(exporter)
        gc.collect()
        assert exporter.ends == 1
        assert umem.memory_stats()["active.all.current"] == before
        assert umem.ones(3).sum() == 3
        assert base.tolist() == n.tolist()

    @pytest.mark.parametrize(
        "lie",
        [name for name in LIES if "version" not in name and name not in ("lanes", "no lanes")],
    )
    def test_asarray_never_crashes_on_them(self, umem, lie):
        n, data = memory()
        exporter = DLExporter(**LIES[lie](data), owner=n)
        try:
            umem.asarray(exporter)
        except (BufferError, ValueError, TypeError, MemoryError):
            pass
        gc.collect()
        assert exporter.ends == len(exporter.asked)

    def test_memory_that_ends_in_the_middle(self, umem):
        mapping = Mapping(4, readable=2)
        inside = 2 * mapping.page
        a = umem.from_dlpack(DLExporter(mapping.address, (inside,), dtype=(dl.UINT, 8, 1)))
        assert a.nbytes == inside
        for shape, strides, offset in (
            ((inside + 1,), None, 0),
            ((4 * mapping.page,), None, 0),
            ((2,), (3 * mapping.page,), 0),
            ((1,), None, inside),
            ((2,), (-mapping.page,), inside),
        ):
            exporter = DLExporter(
                mapping.address, shape, strides=strides, byte_offset=offset, dtype=(dl.UINT, 8, 1)
            )
            with pytest.raises(BufferError):
                umem.from_dlpack(exporter)
            assert exporter.ends == 1

    def test_a_tensor_that_leaves_an_umem_block(self, umem):
        base = umem.zeros(1000, "f4")
        for keywords in (
            {"shape": (100_000_000,)},
            {"shape": (2,), "strides": (-(2**30),)},
            {"shape": (2, 10), "strides": (2**28, 1)},
        ):
            exporter = DLExporter(address(base), **keywords)
            with pytest.raises(BufferError):
                umem.from_dlpack(exporter)
            assert exporter.ends == 1
        assert not base.any()

    @gpu
    def test_a_pointer_that_is_no_gpus(self, umem):
        n, data = memory()
        for pointer in (data, 0x10000):
            exporter = DLExporter(pointer, (4,), device=(dl.CUDA, 0), owner=n)
            with pytest.raises(BufferError):
                umem.from_dlpack(exporter)
            assert exporter.ends == 1
        assert umem.ones(3).sum() == 3

    @pytest.mark.backends("fake")
    def test_device_memory_that_is_said_to_be_the_hosts(self, umem, fake):
        pointer = fake.device_alloc(4096)
        try:
            exporter = DLExporter(pointer, (1024,))
            with pytest.raises(BufferError):
                umem.from_dlpack(exporter)
            assert exporter.ends == 1
        finally:
            fake.device_free(pointer)

    @pytest.mark.backends("fake")
    def test_device_memory_is_never_read_past_its_end(self, umem, fake):
        pointer = fake.device_alloc(1 << 20)
        try:
            exporter = DLExporter(pointer, (1 << 30,), device=(dl.CUDA, 0))
            with pytest.raises(BufferError):
                umem.from_dlpack(exporter)
            assert exporter.ends == 1
        finally:
            fake.device_free(pointer)

    @pytest.mark.parametrize("name", [b"dltensor_used", b"used_dltensor", b"", b"something else"])
    def test_capsules_of_another_name(self, umem, name):
        n, data = memory()
        exporter = DLExporter(data, (4,), name=name, owner=n)
        with pytest.raises((ValueError, BufferError), match="capsule"):
            umem.from_dlpack(exporter)
        gc.collect()
        assert exporter.ends == 1

    def test_a_versioned_tensor_in_a_legacy_capsules_name(self, umem):
        """The names are how the structs are told apart; what follows from a wrong one must at least not crash."""
        n, data = memory()
        exporter = DLExporter(data, (4,), versioned=False, name=dl.LEGACY, owner=n)
        assert umem.from_dlpack(exporter).shape == (4,)

    @pytest.mark.parametrize(
        "answer", [None, 3, (1,), (1, 0, 0), ("x", 0), (1.5, 0), (2**40, 0), object()], ids=label
    )
    def test_devices_that_make_no_sense(self, umem, answer):
        n, data = memory()
        exporter = DLExporter(data, (4,), owner=n)
        exporter.device_says = answer
        with pytest.raises((TypeError, BufferError)):
            umem.from_dlpack(exporter)
        assert exporter.asked == []

    @pytest.mark.parametrize("result", [None, 3, "x", object()], ids=label)
    def test_exporters_that_return_no_capsule(self, umem, result):
        class Liar:
            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, **keywords):
                return result

        with pytest.raises(TypeError, match="capsule"):
            umem.from_dlpack(Liar())

    @pytest.mark.parametrize(
        "error", [KeyError, BufferError, RuntimeError, MemoryError, ZeroDivisionError]
    )
    def test_errors_of_exporters_are_passed_on(self, umem, error):
        class Broken:
            def __init__(self, where):
                self.where = where

            def __dlpack_device__(self):
                if self.where == "device":
                    raise error("broken")
                return (1, 0)

            def __dlpack__(self, **keywords):
                raise error("broken")

        for where in ("device", "capsule"):
            with pytest.raises(error, match="broken"):
                umem.from_dlpack(Broken(where))

    def test_a_type_error_within_an_exporter_is_not_taken_for_an_old_one(self, umem):
        class Broken:
            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, **keywords):
                raise TypeError("broken inside")

        with pytest.raises(TypeError, match="broken inside"):
            umem.from_dlpack(Broken())

    def test_references_are_given_back(self, umem):
        n, data = memory()
        exporter = DLExporter(data, (4, -1), owner=n)
        before = sys.getrefcount(exporter)
        for _ in range(20):
            with pytest.raises(BufferError):
                umem.from_dlpack(exporter)
        assert sys.getrefcount(exporter) == before
        assert exporter.ends == 20
