"""The buffer protocol: every request that can be made is honoured or refused as NumPy does it."""

import array
import ctypes
import gc
import hashlib
import io
import struct

import numpy as np
import pytest

import buffer_abi as abi
from buffer_abi import buffer, fields
from support import DTYPES, RECORD, VIEWS, address, allocated, assert_same, sample

#: layouts that answer the requests differently
LAYOUTS = {
    **VIEWS,
    "Fortran": lambda x: x.copy(order="F"),
    "Fortran view": lambda x: x.copy(order="F")[:, 1:3],
    "axes of length one": lambda x: x[1:2, ::2],
    "column of one": lambda x: x[:, 2:3],
    "step over one": lambda x: x[::4, ::6],
    "nothing with steps": lambda x: x[2:2, ::2],
    "three axes": lambda x: x.reshape(2, 2, 6),
    "three axes permuted": lambda x: x.reshape(2, 2, 6).transpose(1, 2, 0),
}


def answer(obj, flags):
    """All that a consumer sees of its request, or "refused"."""
    try:
        with buffer(obj, flags) as view:
            seen = fields(view)
    except (BufferError, ValueError):
        return "refused"
    if flags & abi.ND != abi.ND:
        del seen[
            "ndim"
        ]  # without a shape the buffer is one of bytes, and ndim means nothing (NumPy says 0)
    if seen["len"] == 0:
        del seen["strides"]  # nothing is walked along them
    return seen


class TestRequests:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("writeable", [True, False])
    def test_every_one_is_answered_as_by_numpy(self, umem, writeable, layout):
        assert len(abi.REQUESTS) >= 40
        for dtype in ("f8", "u1", "c8", "?", "f2", "g", "i8"):
            a, n = LAYOUTS[layout](umem.array(sample(dtype))), LAYOUTS[layout](sample(dtype))
            a.flags.writeable = writeable
            n.flags.writeable = writeable
            for flags in abi.REQUESTS:
                assert answer(a, flags) == answer(n, flags), f"{dtype}, {flags:#x}"

    def test_refusals_are_buffer_errors_that_say_why(self, umem):
        a = umem.zeros((4, 6))
        a.flags.writeable = False
        for view, flags, why in (
            (a, abi.WRITABLE, "read-only"),
            (a.T, abi.SIMPLE, "contiguous"),
            (a.T, abi.ND, "contiguous"),
            (a.T, abi.C_CONTIGUOUS, "C-contiguous"),
            (a, abi.F_CONTIGUOUS, "Fortran"),
            (a[:, ::2], abi.ANY_CONTIGUOUS, "contiguous"),
        ):
            with pytest.raises(BufferError, match=why), buffer(view, flags):
                pass

    def test_the_address_is_the_arrays(self, umem):
        for layout in LAYOUTS.values():
            a = layout(umem.array(sample("f4")))
            with buffer(a, abi.STRIDES) as view:
                assert view.obj is a
                if a.size:
                    assert view.buf == address(a)

    def test_a_request_without_a_view(self, umem):
        with pytest.raises(BufferError):
            abi.get_without_view(umem.zeros(3), abi.SIMPLE)

    def test_many_views_at_once(self, umem):
        a = umem.arange(24.0).reshape(4, 6)
        views = [memoryview(a[i::3].T) for i in range(3) for _ in range(50)]
        assert [v[0, 0] for v in views[::50]] == [0, 6, 12]
        for view in views[::2]:
            view.release()
        assert views[1].tolist() == a[0::3].T.tolist()


class TestFormats:
    @pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.kind not in "MmV"], ids=str)
    def test_of_simple_dtypes_are_numpys(self, umem, dtype):
        a, n = umem.array(sample(dtype)), sample(dtype)
        assert memoryview(a).format == memoryview(n).format
        assert np.asarray(memoryview(a)).dtype == dtype

    @pytest.mark.parametrize(
        "dtype",
        [
            [("x", "f4"), ("n", "i8")],
            RECORD,
            np.dtype([("x", "i1"), ("y", "f8")], align=True),
            {"names": ["a"], "formats": ["i2"], "offsets": [0], "itemsize": 8},
            {"names": ["a", "b"], "formats": ["i2", "i2"], "offsets": [2, 6], "itemsize": 12},
            [("m", "f4", (2, 3)), ("s", "S5"), ("z", "c16")],
            [("outer", [("inner", [("x", ">i4")])])],
        ],
        ids=str,
    )
    def test_of_records_are_read_as_the_same_dtype(self, umem, dtype):
        n = sample(dtype)
        a = umem.array(n)
        for view in VIEWS.values():
            seen = np.asarray(memoryview(view(a)))
            assert seen.dtype == n.dtype
            assert_same(seen, view(n))

    @pytest.mark.parametrize("dtype", ["M8[s]", "m8[D]", "M8"])
    def test_datetimes_are_refused_as_by_numpy(self, umem, dtype):
        a, n = umem.zeros(3, dtype), np.zeros(3, dtype)
        with pytest.raises(ValueError) as expected:
            memoryview(n)
        with pytest.raises((ValueError, BufferError)):
            memoryview(a)
        assert expected
        assert_same(np.asarray(a), n)

    def test_what_is_refused_goes_to_numpy_another_way(self, umem):
        for dtype in DTYPES.values():
            assert np.asarray(umem.zeros(3, dtype)).dtype == dtype

    def test_misaligned_numbers(self, umem):
        raw, n = umem.zeros(41, "u1"), np.zeros(41, "u1")
        a = raw[1:].view("f8")
        a[:] = np.arange(5)
        n[1:].view("f8")[:] = np.arange(5)
        assert_same(np.asarray(a), n[1:].view("f8"))
        assert memoryview(a).tobytes() == n[1:].tobytes()

    def test_no_format_unless_asked(self, umem):
        for dtype in ("f8", RECORD):
            with buffer(umem.zeros(3, dtype), abi.STRIDES) as view:
                assert view.format is None
                assert view.itemsize == np.dtype(dtype).itemsize


class TestConsumers:
    def test_memoryview(self, umem):
        a = umem.arange(24, dtype="i4").reshape(4, 6)
        view = memoryview(a)
        assert (view.shape, view.strides, view.format, view.itemsize, view.nbytes) == (
            (4, 6),
            (24, 4),
            "i",
            4,
            96,
        )
        assert view.tolist() == a.tolist()
        view[1, 2] = 99
        assert a[1, 2] == 99
        assert memoryview(a[::-1, ::2]).tolist() == a[::-1, ::2].tolist()
        assert view.cast("B").nbytes == 96
        assert bytes(memoryview(a.T)) == a.T.tobytes()
        assert view.obj is a

    def test_bytes_and_hashes(self, umem):
        a = umem.arange(10, dtype="u1")
        assert bytes(a) == bytes(range(10))
        assert bytearray(a) == bytearray(range(10))
        assert hashlib.sha256(a).hexdigest() == hashlib.sha256(bytes(range(10))).hexdigest()
        assert b"".join([a, a]) == bytes(range(10)) * 2

    def test_reading_into_an_array(self, umem):
        a = umem.zeros(5, "i4")
        assert io.BytesIO(np.arange(5, dtype="i4").tobytes()).readinto(a) == 20
        assert a.tolist() == [0, 1, 2, 3, 4]
        struct.pack_into("i", a, 4, 77)
        assert a[1] == 77

    def test_writing_an_array(self, umem, tmp_path):
        path = tmp_path / "raw"
        with path.open("wb") as file:
            assert file.write(umem.arange(5, dtype="i4")) == 20
        assert np.fromfile(path, "i4").tolist() == [0, 1, 2, 3, 4]

    def test_array_and_ctypes(self, umem):
        a = umem.arange(5, dtype="i4")
        assert array.array("i", bytes(a)).tolist() == [0, 1, 2, 3, 4]
        shared = (ctypes.c_int * 5).from_buffer(a)
        shared[2] = 42
        assert a[2] == 42
        a.flags.writeable = False
        with pytest.raises(TypeError):
            (ctypes.c_int * 5).from_buffer(a)

    def test_numpy(self, umem):
        a = umem.arange(6.0)
        n = np.frombuffer(a, "f8")
        n[3] = 50
        assert a[3] == 50
        assert address(n) == address(a)


class TestLife:
    def test_a_view_keeps_the_memory(self, umem):
        gc.collect()
        before = allocated(umem)
        view = memoryview(umem.full(1000, 7.0)[500:])
        gc.collect()
        assert allocated(umem) == before + 8000
        junk = [umem.zeros(1000) for _ in range(3)]
        assert view[0] == 7
        del junk
        view.release()
        assert allocated(umem) == before

    def test_refused_requests_keep_nothing(self, umem):
        gc.collect()
        before = allocated(umem)
        a = umem.zeros((4, 6))
        for flags in (abi.F_CONTIGUOUS, abi.F_CONTIGUOUS | abi.FORMAT):
            for _ in range(10):
                with pytest.raises(BufferError), buffer(a, flags):
                    pass
        del a
        gc.collect()
        assert allocated(umem) == before

    def test_repeated_requests_leak_no_memory(self, umem):
        a = umem.array(sample(RECORD))[:, ::2]
        import tracemalloc

        for _ in range(10):
            memoryview(a).release()
        tracemalloc.start()
        first = tracemalloc.take_snapshot()
        for _ in range(1000):
            memoryview(a).release()
        grown = sum(s.size_diff for s in tracemalloc.take_snapshot().compare_to(first, "filename"))
        tracemalloc.stop()
        assert grown < 50_000
