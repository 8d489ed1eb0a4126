"""The coherence rules of docs/coherence.md, one test or more a rule; each fails when its rule is taken out.

On the fake driver queued work runs only when somebody waits for it, so a missing wait shows stale bytes at once. On a GPU
the arrays are large enough that the work is still running when the host looks.
"""

import ctypes
import gc
import os
import signal
import sys
import threading

import numpy as np
import pytest

from support import Exporter, without_gil

#: elements: 64 MiB of float32 on a GPU, where work has to take a while; little on the fake, which runs it in C
COUNT = {"host": 1 << 12, "fake": 1 << 16, "cuda": 1 << 24}

gpu_only = pytest.mark.backends("fake", "cuda")


@pytest.fixture
def count(backend):
    return COUNT[backend]


def many_adds(umem, a, times=20):
    """Adds 1 `times` times, without a host view in sight."""
    for _ in range(times):
        umem.add(a, 1, out=a)


def simple_buffer_address(a) -> int:
    """Takes a PyBUF_WRITABLE buffer and releases it at once, keeping the address, as torch.frombuffer does."""
    view = (ctypes.c_void_p * 16)()  # a Py_buffer and some room
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
    release.argtypes = (ctypes.c_void_p,)
    assert get(a, view, 1) == 0
    address = view[0]
    release(view)
    return address


def run_stream(fake, stream):
    """Runs what is queued on one stream, and what that was ordered behind: nothing else."""
    while fake.step(stream):
        pass


@pytest.fixture
def handle(fake):
    """A stream that does not follow the legacy stream, nor that it."""
    stream = fake.stream_create()
    yield stream
    fake.run_all()
    fake.stream_destroy(stream)


@pytest.fixture
def other_handle(fake):
    stream = fake.stream_create()
    yield stream
    fake.run_all()
    fake.stream_destroy(stream)


class Interface:
    """A GPU library's array over memory that it got elsewhere."""

    def __init__(self, pointer, count, **entries):
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<f4",
            "data": (pointer, False),
            "version": 3,
            **entries,
        }


def address_unseen(umem, a) -> int:
    """Address of the first element, got without a hand-out that the rules would know of."""
    return umem._core.extent(a)[0]


class TestRule1Asynchrony:
    """umem's kernels are asynchronous on the current stream."""

    @pytest.mark.backends("fake")
    def test_a_kernel_does_not_wait(self, umem, fake, count):
        a = umem.zeros(count, dtype=np.float32)
        umem.synchronize()
        waits = fake.counter("waits")
        many_adds(umem, a)
        assert fake.counter("waits") == waits
        assert fake.pending() > 0
        assert a[0] == 20

    @gpu_only
    def test_work_runs_in_order_on_one_stream(self, umem, count):
        a = umem.zeros(count, dtype=np.float32)
        b = umem.empty_like(a)
        umem.add(a, 1, out=a)
        umem.multiply(a, 3, out=b)
        umem.add(b, a, out=a)
        assert a[count - 1] == 4

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize("which", range(3))
    def test_work_on_any_operand_is_waited_for(self, umem, fake, handle, which):
        arrays = [umem.zeros(1000, dtype=np.float32) for _ in range(3)]
        umem.synchronize()
        with umem.stream(handle):
            umem.add(arrays[which], 1, out=arrays[which])
        umem.add(arrays[0], arrays[1], out=arrays[2])
        run_stream(fake, 0)
        assert fake.peek(address_unseen(umem, arrays[2]), 4) == np.float32(which < 2).tobytes()

    @pytest.mark.backends("fake")
    def test_work_that_came_after_an_earlier_wait_is_waited_for(self, umem, fake, handle):
        a, b = umem.zeros(1000, dtype=np.float32), umem.zeros(1000, dtype=np.float32)
        umem.synchronize()
        for expected in (1, 2, 3):
            umem.add(a, 1, out=a)
            with umem.stream(handle):
                umem.add(a, 0, out=b)
            run_stream(fake, handle)
            assert b[0] == expected
        for expected in (4, 5):
            umem.add(a, 1, out=a)
            if expected == 4:
                umem.synchronize()
                umem.add(a, 0, out=a)
            with umem.stream(handle):
                umem.add(a, 0, out=b)
            run_stream(fake, handle)
            assert b[0] == expected

    @pytest.mark.backends("fake")
    def test_a_block_is_where_its_last_work_is(self, umem, fake, handle, other_handle):
        a, b = umem.zeros(1000, dtype=np.float32), umem.zeros(1000, dtype=np.float32)
        umem.synchronize()
        with umem.stream(handle):
            umem.add(a, 1, out=a)
        with umem.stream(other_handle):
            umem.add(a, 1, out=a)
        umem.add(a, 0, out=b)
        run_stream(fake, 0)
        assert fake.peek(address_unseen(umem, b), 4) == np.float32(2).tobytes()

    @pytest.mark.backends("fake")
    def test_each_thread_has_its_own_per_thread_stream(self, umem, fake):
        a, b = umem.zeros(1000, dtype=np.float32), umem.zeros(1000, dtype=np.float32)
        umem.synchronize()

        def work():
            with umem.stream(2):
                umem.add(a, 1, out=a)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with umem.stream(2):
            umem.add(a, 0, out=b)
        assert b[0] == 1

    @pytest.mark.backends("fake")
    def test_work_whose_event_cannot_be_recorded_is_waited_for(self, umem, fake, handle):
        a = umem.zeros(1000, dtype=np.float32)
        umem.synchronize()
        fake.fail("cuEventRecord")
        with umem.stream(handle), pytest.raises(RuntimeError):
            umem.add(a, 1, out=a)
        assert fake.pending() == 0
        assert a[0] == 1


#: ways to hand an array to a GPU library; the results keep it handed out
HAND_OUTS = {
    "cuda_array_interface": lambda a: a.__cuda_array_interface__,
    "dlpack": lambda a: a.__dlpack__(max_version=(1, 0)),
    "dlpack, unordered": lambda a: a.__dlpack__(stream=-1, max_version=(1, 0)),
    "dlpack for both sides": lambda a: a.__dlpack__(dl_device=(13, 0), max_version=(1, 0)),
    "on cuda": lambda a: a.on("cuda").__cuda_array_interface__,
}


class TestRule2HostAccess:
    """Every host access through umem waits first."""

    ACCESSES = {
        "buffer": lambda a: memoryview(a)[a.size - 1],
        "asarray": lambda a: np.asarray(a)[-1],
        "array_interface": lambda a: (
            ctypes.c_float.from_address(a.__array_interface__["data"][0] + 4 * (a.size - 1)).value
        ),
        "numpy": lambda a: a.numpy()[-1],
        "from_dlpack": lambda a: np.from_dlpack(a)[-1],
        "on cpu": lambda a: np.from_dlpack(a.on("cpu"))[-1],
        "item": lambda a: a[-1:].item(),
        "getitem": lambda a: a[a.size - 1],
        "tolist": lambda a: a[-2:].tolist()[1],
        "tobytes": lambda a: np.frombuffer(a.tobytes(), np.float32)[-1],
        "float": lambda a: float(a[-1:].reshape(())),
        "numpy function": lambda a: np.max(a),
        "copy": lambda a: a.copy()[-1],
        "read": lambda a: a.read()[-1],
        "print": lambda a: float(str(a[-1:]).strip("[]")),
        "array_struct": lambda a: np.asarray(Exporter(a, "__array_struct__"))[-1],
    }

    @pytest.mark.parametrize("access", ACCESSES)
    def test_sees_the_result(self, umem, count, access):
        a = umem.zeros(count, dtype=np.float32)
        many_adds(umem, a)
        assert self.ACCESSES[access](a) == 20

    def test_setitem_comes_after_the_kernel(self, umem, count):
        a = umem.zeros(count, dtype=np.float32)
        many_adds(umem, a)
        a[count - 1] = 5
        umem.add(a, 1, out=a)
        assert a[count - 1] == 6
        assert a[0] == 21

    def test_a_view_waits_for_work_on_its_base(self, umem, count):
        a = umem.zeros((4, count // 4), dtype=np.float32)
        row = a[2]
        many_adds(umem, a)
        assert np.asarray(row)[0] == 20

    def test_an_element_that_numpy_sets_comes_after_the_kernel(self, umem):
        a = umem.zeros(3000, dtype=np.float32)
        items = a.view("u1").view("S3")  # of no kernel's size
        for index in (0, (0, ...), slice(0, 1)):
            a.fill(0)
            many_adds(umem, a)
            items[index] = b"xyz"
            assert items[0] == b"xyz"
            assert a[2999] == 20

    @pytest.mark.backends("fake")
    def test_what_was_waited_for_says_nothing_of_later_work(self, umem, fake, handle):
        arrays = [umem.zeros(1000, dtype=np.float32) for _ in range(4)]
        a, b, c, d = arrays
        umem.synchronize()
        umem.add(a, 1, out=a)
        umem.add(b, 1, out=b)
        with umem.stream(handle):
            umem.add(b, 0, out=d)  # records the legacy stream's event
        umem.add(c, 1, out=c)
        assert a[0] == 1  # waits for that event
        assert c[0] == 1  # lies behind it
        umem.add(c, 1, out=c)
        assert c[0] == 2

    @pytest.mark.backends("fake")
    def test_other_librarys_work_on_a_block_it_had_is_waited_for(self, umem, fake, handle):
        for hand_out in HAND_OUTS.values():
            a = umem.zeros(1000, dtype=np.float32)
            umem.synchronize()
            kept = hand_out(a)
            umem.add(a, 1, out=a)
            umem.synchronize()
            fake.submit_fill(address_unseen(umem, a), 0, a.nbytes, handle)
            assert a[0] == 0
            del kept

    @pytest.mark.backends("fake")
    def test_other_librarys_work_on_its_own_memory_is_waited_for(
        self, umem, fake, handle, fake_managed
    ):
        pointer, _ = fake_managed
        a = umem.asarray(Interface(pointer, 1000))
        a.fill(5)
        umem.synchronize()
        fake.submit_fill(pointer, 0, 4000, handle)
        assert a[0] == 0


class TestRule3LiveViews:
    """A kernel that writes memory with a live host view completes before it returns."""

    VIEWS = {
        "asarray": np.asarray,
        "memoryview": lambda a: np.frombuffer(memoryview(a), np.float32),
        "array_interface": lambda a: np.frombuffer(
            (ctypes.c_float * a.size).from_address(a.__array_interface__["data"][0]), np.float32
        ),
        "dlpack": np.from_dlpack,
        "on cpu": lambda a: np.from_dlpack(a.on("cpu")),
        "numpy": lambda a: a.numpy(),
        "array_struct": lambda a: np.asarray(Exporter(a, "__array_struct__")),
    }

    @pytest.mark.parametrize("view", VIEWS)
    def test_the_view_shows_the_result(self, umem, count, view):
        a = umem.zeros(count, dtype=np.float32)
        v = self.VIEWS[view](a)
        many_adds(umem, a)
        assert v[-1] == 20
        a += 1
        assert v[-1] == 21

    def test_a_view_of_another_part_of_the_block_counts(self, umem, count):
        a = umem.zeros(count, dtype=np.float32)
        v = np.asarray(a[count // 2 :])
        many_adds(umem, a)
        assert v[-1] == 20

    @gpu_only
    def test_a_kernel_that_reads_memory_with_a_writable_view_completes(self, umem, count):
        a = umem.zeros(count, dtype=np.float32)
        total = umem.zeros(count, dtype=np.float32)
        v = np.asarray(a)
        for _ in range(20):
            umem.add(a, total, out=total)
        v[:] = 1000
        assert total[count - 1] == 0

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize("which", range(3))
    @pytest.mark.parametrize("view", VIEWS)
    def test_a_view_of_any_operand_counts(self, umem, fake, view, which):
        arrays = [umem.zeros(1000, dtype=np.float32) for _ in range(3)]
        umem.synchronize()
        umem.add(arrays[0], arrays[1], out=arrays[2])
        assert fake.pending() > 0
        v = self.VIEWS[view](arrays[which])
        umem.add(arrays[0], arrays[1], out=arrays[2])
        assert fake.pending() == 0
        del v

    @pytest.mark.backends("fake")
    def test_a_copy_completes_under_a_writable_view(self, umem, fake):
        a = umem.zeros(1000, dtype=np.float32)
        v = np.asarray(a)
        b = a.__dlpack__(stream=1, copy=True, max_version=(1, 0))
        assert fake.pending() == 0
        del b
        assert v[0] == 0

    @pytest.mark.backends("fake")
    def test_what_was_launched_before_a_failure_completes(self, umem, fake):
        a = umem.ones((512, 4096), dtype=np.float32)
        out = umem.zeros(4096, dtype=np.float32)
        v = np.asarray(out)
        launches = fake.calls("cuLaunchKernel")
        umem._core.sum_into(a, (0,), out)
        count = fake.calls("cuLaunchKernel") - launches
        assert count >= 2
        fake.fail("cuLaunchKernel", nth=count)
        with pytest.raises(RuntimeError):
            umem._core.sum_into(a, (0,), out)
        assert fake.pending() == 0
        assert v.size == 4096

    @pytest.mark.backends("fake")
    def test_memory_that_came_from_a_host_library_counts(self, umem, fake, fake_managed):
        pointer, view = fake_managed
        view[:] = 0
        a = umem.asarray(Exporter(view, "__dlpack__", "__dlpack_device__"), copy=False)
        assert address_unseen(umem, a) == pointer
        umem.add(a, 1, out=a)
        assert fake.pending() == 0
        assert view[0] == 1

    @pytest.mark.backends("fake")
    def test_a_simple_buffer_counts_after_its_release(self, umem, fake):
        a = umem.zeros(1000, dtype=np.float32)
        with memoryview(a):
            pass
        umem.add(a, 1, out=a)
        assert fake.pending() > 0  # that view is gone
        address = simple_buffer_address(a)  # its end cannot be seen
        umem.add(a, 1, out=a)
        assert fake.pending() == 0
        assert ctypes.c_float.from_address(address).value == 2

    @pytest.mark.backends("fake")
    def test_deferred_opts_out(self, umem, fake):
        a = umem.zeros(1000, dtype=np.float32)
        v = np.asarray(a)
        with umem.deferred():
            umem.add(a, 1, out=a)
            assert fake.pending() > 0
        umem.add(a, 1, out=a)
        assert fake.pending() == 0
        assert v[0] == 2

    def test_deferred_work_is_there_after_a_synchronise(self, umem, count):
        a = umem.zeros(count, dtype=np.float32)
        v = np.asarray(a)
        with umem.deferred():
            many_adds(umem, a)
        umem.synchronize()
        assert v[-1] == 20


class TestRule4OtherLibraries:
    """What is handed to another GPU library is finished, or ordered before that library's work."""

    @pytest.mark.backends("fake")
    def test_cai_waits_for_work_on_an_explicit_stream(self, umem, fake):
        a = umem.zeros(1000, dtype=np.float32)
        handle = fake.stream_create()
        try:
            with umem.stream(handle):
                umem.add(a, 1, out=a)
                assert fake.pending() > 0
                assert a.__cuda_array_interface__["data"][0] == a.__array_interface__["data"][0]
            assert fake.pending() == 0
        finally:
            fake.stream_destroy(handle)

    @pytest.mark.backends("fake")
    def test_cai_says_the_stream_and_leaves_its_work_pending(self, umem, fake):
        a = umem.zeros(1000, dtype=np.float32)
        umem.synchronize()
        umem.add(a, 1, out=a)
        assert a.__cuda_array_interface__["stream"] == 1
        assert fake.pending() > 0

    @pytest.mark.backends("fake")
    def test_dlpack_orders_the_consumers_stream(self, umem, fake):
        a = umem.zeros(1000, dtype=np.float32)
        umem.synchronize()
        handle = fake.stream_create()
        try:
            umem.add(a, 1, out=a)
            before = fake.calls("cuStreamWaitEvent")
            capsule = a.__dlpack__(stream=handle, max_version=(1, 0))
            assert fake.calls("cuStreamWaitEvent") == before + 1
            capsule = a.__dlpack__(stream=-1, max_version=(1, 0))
            assert fake.calls("cuStreamWaitEvent") == before + 1
            del capsule
        finally:
            fake.stream_destroy(handle)

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize("way", ["dlpack", "cuda_array_interface"])
    def test_the_consumers_stream_comes_after_umems_work(self, umem, fake, handle, way):
        a = umem.ones(1000, dtype=np.float32)
        umem.synchronize()
        umem.add(a, 1, out=a)
        if way == "dlpack":
            kept = a.__dlpack__(stream=handle, max_version=(1, 0))
        else:
            with umem.stream(handle):
                kept = a.__cuda_array_interface__
                assert kept["stream"] == handle
        fake.submit_fill(address_unseen(umem, a), 0, 4000, handle)
        run_stream(fake, handle)
        fake.run_all()
        assert a[0] == 0
        del kept

    @pytest.mark.backends("fake")
    def test_cai_inside_a_stream_waits_for_yet_another(self, umem, fake, handle, other_handle):
        a = umem.zeros(1000, dtype=np.float32)
        umem.synchronize()
        with umem.stream(other_handle):
            umem.add(a, 1, out=a)
        with umem.stream(handle):
            kept = a.__cuda_array_interface__
        assert fake.pending(other_handle) == 0
        del kept

    @pytest.mark.backends("fake")
    def test_a_block_that_comes_back_may_be_in_use(self, umem, fake, handle):
        a = umem.ones(1000, dtype=np.float32)
        b = umem.asarray(Interface(address_unseen(umem, a), 1000))
        umem.add(b, 1, out=b)
        umem.synchronize()
        fake.submit_fill(address_unseen(umem, a), 0, 4000, handle)
        assert a[0] == 0

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize("copy", [None, True])
    def test_an_exporters_stream_is_waited_for(self, umem, fake, handle, copy):
        a = umem.ones(1000, dtype=np.float32)
        out = umem.ones(1000, dtype=np.float32)
        umem.synchronize()
        fake.submit_fill(address_unseen(umem, a), 0, 4000, handle)
        b = umem.asarray(Interface(address_unseen(umem, a), 1000, stream=handle), copy=copy)
        umem.add(b, 0, out=out)
        run_stream(fake, 0)
        assert fake.peek(address_unseen(umem, out), 4) == bytes(4)

    @pytest.mark.backends("fake")
    def test_an_exporter_without_a_stream_has_used_the_legacy_one(self, umem, fake, handle):
        a = umem.ones(1000, dtype=np.float32)
        out = umem.ones(1000, dtype=np.float32)
        pointer, result = address_unseen(umem, a), address_unseen(umem, out)

        class Managed:
            def __init__(self, array):
                self.array = array

            def __dlpack_device__(self):
                return 13, 0

            def __dlpack__(self, **_):
                capsule = self.array.__dlpack__(dl_device=(13, 0), max_version=(1, 0))
                fake.submit_fill(pointer, 0, 4000)
                return capsule

        umem.synchronize()
        with umem.stream(handle):
            b = umem.from_dlpack(Managed(a))
            umem._core.run("add", (b, 0.0), out)
        run_stream(fake, handle)
        assert fake.peek(result, 4) == bytes(4)

    @pytest.mark.backends("fake")
    def test_a_copy_of_other_memory_is_done(self, umem, fake):
        """The memory is its owner's again."""
        pointer = fake.device_alloc(4000)
        try:
            fake.submit_fill(pointer, 0, 4000)
            a = umem._core.copy_device(Interface(pointer, 1000))
            assert fake.pending() == 0
            assert a[999] == 0
        finally:
            fake.device_free(pointer)
        b = umem.from_dlpack(Exporter(a, "__dlpack__", "__dlpack_device__"), copy=True)
        assert fake.pending() == 0
        assert b[999] == 0

    @gpu_only
    def test_work_on_two_streams_of_umem_is_ordered(self, umem, backend, count):
        a = umem.zeros(count, dtype=np.float32)
        b = umem.zeros(count, dtype=np.float32)
        with umem.stream(2):
            many_adds(umem, a)
        umem.add(a, 1, out=b)
        assert b[count - 1] == 21


def place(a) -> int:
    """Address of the array, leaving no host view behind."""
    return np.asarray(a).ctypes.data


class TestRule5Reuse:
    """Freed memory is reused in order, or only when nothing can be using it."""

    @pytest.mark.backends("fake")
    def test_memory_in_use_by_a_kernel_is_reused_in_order(self, umem, fake):
        """At once, and the new owner waits for the old work: on the host, and on another stream."""
        for use in ("host", "stream"):
            a = umem.zeros(100_000, "f4")
            umem.synchronize()
            where = place(a)
            umem.add(a, 1, out=a)
            del a
            assert fake.pending() > 0
            assert umem.memory_stats()["waiting_bytes"] > 0
            b = umem.empty(100_000, "f4")
            assert place(b) == where
            if use == "host":
                b.numpy()[:] = 7
            else:
                stream = fake.stream_create()
                with umem.stream(stream):
                    b.fill(7)
                    while fake.step(stream):
                        pass
                fake.stream_destroy(stream)
            fake.run_all()
            assert (b.read() == 7).all()
            del b
            umem.synchronize()
            assert umem.memory_stats()["waiting_bytes"] == 0

    @pytest.mark.backends("fake")
    def test_no_event_is_recorded_when_the_stream_is_the_same(self, umem, fake):
        a = umem.ones(100_000, "f4")
        a + 1
        events, allocations = fake.calls("cuEventRecord"), fake.calls("cuMemAllocManaged")
        for i in range(1000):
            b = a + i
            del b
        assert fake.pending() > 0
        assert fake.calls("cuEventRecord") == events
        assert fake.calls("cuMemAllocManaged") == allocations
        assert (a + 9).read()[0] == 10

    @pytest.mark.backends("fake")
    def test_memory_handed_to_another_library_waits_for_a_full_synchronise(self, umem, fake):
        umem.trim()
        a = umem.zeros(100_000, "f4")
        where = place(a)
        assert a.__cuda_array_interface__
        umem.Stream(0).synchronize()
        del a
        b = umem.empty(100_000, "f4")
        assert place(b) != where
        del b
        umem.synchronize()
        arrays = [umem.empty(100_000, "f4") for _ in range(3)]
        assert where in map(place, arrays)

    @gpu_only
    def test_values_survive_the_free(self, umem, count):
        total = umem.zeros(count, dtype=np.float32)
        for i in range(10):
            part = umem.full(count, i, dtype=np.float32)
            umem.add(total, part, out=total)
            del part
            other = umem.empty(count, dtype=np.float32)
            other.fill(1e6)
        assert total[0] == 45
        assert total[count - 1] == 45


@pytest.mark.backends("fake")
class TestRule6WithoutConcurrentAccess:
    """On devices without concurrentManagedAccess every kernel completes before it returns."""

    def test_nothing_stays_pending(self, run_python):
        out = run_python(
            """
import sys; sys.path.insert(0, "tests")
from fake_cuda.control import FakeCuda
import os, umem, numpy as np
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
a = umem.zeros(1000, dtype=np.float32)
with umem.deferred():
    umem.add(a, 1, out=a)
print(fake.pending(), a[0], np.asarray(a)[-1], umem.devices()[0]["concurrent_managed_access"])
""",
            FAKECU_CONCURRENT="0",
        )
        assert out.split() == ["0", "1.0", "1.0", "False"]

    #: what runs on the GPU, each with umem, a (1000 float32) and b (the same) at hand
    LAUNCHES = {
        "kernel": "umem.add(a, 1, out=b)",
        "fill": "a.fill(3)",
        "copy": "a.copy()",
        "sum": "umem._core.sum_into(a, (0,), b[:1])",
        "zeros": "umem.zeros(1000)",
        "duplicate": "a.__dlpack__(copy=True, max_version=(1, 0))",
    }

    @pytest.mark.parametrize("launch", LAUNCHES)
    def test_no_other_thread_runs_python_meanwhile(self, run_python, launch):
        """Where there is a GIL: what umem does on the host with it held is safe from kernels, since these keep it."""
        out = run_python(
            f"""
import sys; sys.path.insert(0, "tests")
from fake_cuda.control import FakeCuda
import os, threading, time, umem, numpy as np
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
a, b = umem.ones(1000, dtype=np.float32), umem.ones(1000, dtype=np.float32)

def launch():
    {self.LAUNCHES[launch]}

launch()
ran = []
gate = threading.Lock()
gate.acquire()
threading.Thread(target=lambda: (gate.acquire(), ran.append(1))).start()
time.sleep(0.05)  # the thread waits at the gate
sys.setswitchinterval(1000)
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # who is woken runs, having slept for longer
gate.release()
end = time.perf_counter() + 0.05
while time.perf_counter() < end:  # … and now for the GIL, which nobody takes from us
    pass
for _ in range(200):
    launch()
print(len(ran), fake.pending())
""",
            FAKECU_CONCURRENT="0",
            PYTHON_GIL="1",
        )
        assert out.split() == ["0", "0"]

    @without_gil
    @pytest.mark.parametrize("launch", LAUNCHES)
    def test_the_host_waits_for_the_turn_of_the_device(self, run_python, launch):
        """Without a GIL other threads run, but what umem does on the host begins when the kernel is complete."""
        out = run_python(
            f"""
import sys; sys.path.insert(0, "tests")
from fake_cuda.control import FakeCuda
import os, threading, time, umem, numpy as np
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
a, b = umem.ones(1000, dtype=np.float32), umem.ones(1000, dtype=np.float32)
text = umem.zeros(4, "S3")

def launch():
    {self.LAUNCHES[launch]}

launch()
order = []
class Value:
    def __str__(self):
        order.append("host")
        assert fake.pending() == 0
        return "abc"

def compute():
    launch()
    order.append("device")

fake.hold(True)  # the GPU works
device = threading.Thread(target=compute)
device.start()
while fake.pending() == 0:
    pass
host = threading.Thread(target=text.fill, args=(Value(),))
host.start()
host.join(0.2)
print(order)
fake.hold(False)
device.join(), host.join()
print(sorted(order), text[3])
""",
            FAKECU_CONCURRENT="0",
            PYTHON_GIL="0",
        )
        assert out.splitlines() == ["[]", "['device', 'host'] b'abc'"]

    @without_gil
    @pytest.mark.parametrize("launch", LAUNCHES)
    def test_the_device_waits_for_the_turn_of_the_host(self, run_python, launch):
        """Python code that runs while umem writes elements on the host is part of its turn."""
        out = run_python(
            f"""
import threading, time, umem, numpy as np
a, b = umem.ones(1000, dtype=np.float32), umem.ones(1000, dtype=np.float32)
text = umem.zeros(4, "S3")

def launch():
    {self.LAUNCHES[launch]}

launch()
begin, done, seen = threading.Event(), threading.Event(), []

def compute():
    begin.wait()
    launch()
    done.set()

class Value:
    def __str__(self):
        begin.set()
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end and not done.is_set():
            pass
        seen.append(done.is_set())
        return "abc"

thread = threading.Thread(target=compute)
thread.start()
text.fill(Value())
thread.join()
print(set(seen), text[3])
""",
            FAKECU_CONCURRENT="0",
            PYTHON_GIL="0",
        )
        assert out.split() == ["{False}", "b'abc'"]

    def test_new_zeroes_are_complete(self, run_python):
        out = run_python(
            """
import umem, numpy as np
a = umem.ones(1000, dtype=np.float32)
v = np.asarray(a)
b = umem.zeros(1000, dtype=np.float32)
v[0] = 5
print(v[0], b[999])
""",
            FAKECU_CONCURRENT="0",
        )
        assert out.split() == ["5.0", "0.0"]

    def test_zeroes_wait_for_other_librarys_work(self, run_python):
        """The host may not write them while a kernel runs, so the device does."""
        out = run_python(
            """
import sys; sys.path.insert(0, "tests")
from fake_cuda.control import FakeCuda
import os, umem
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
umem.ones(3)
plain = fake.device_alloc(4000)
fake.submit_fill(plain, 0, 4000)
a = umem.zeros(1000)
print(a[999])
""",
            FAKECU_CONCURRENT="0",
        )
        assert out.split() == ["0.0"]


class TestRule7Fork:
    """A forked child gets an error from a GPU's arrays and keeps its own copy of the host's; the parent notices nothing."""

    @staticmethod
    def in_child(action) -> int:
        """Exit status of a forked child that runs `action`; negative: the signal that ended it."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            try:
                action()
            except BaseException:
                os._exit(1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize(
        "use",
        [
            lambda umem, a: np.asarray(a),
            lambda umem, a: a.__array_interface__,
            lambda umem, a: a.__cuda_array_interface__,
            lambda umem, a: a[0],
            lambda umem, a: a.__setitem__(0, 1),
            lambda umem, a: print(a),
            lambda umem, a: a.tolist(),
            lambda umem, a: a + 1,
            lambda umem, a: a.sum(),
            lambda umem, a: a.fill(1),
            lambda umem, a: a.copy(),
            lambda umem, a: a.__dlpack__(),
            lambda umem, a: a.prefetch("cpu"),
            lambda umem, a: a.residency(),
            lambda umem, a: umem.empty(3),
            lambda umem, a: umem.synchronize(),
            lambda umem, a: umem.trim(),
            lambda umem, a: umem.Stream(0, device=0).synchronize(),
            lambda umem, a: a.__array_struct__,
            lambda umem, a: a.__dlpack__(dl_device=(13, 0), max_version=(1, 0)),
            lambda umem, a: umem.asarray(np.ones(3)),
            lambda umem, a: umem.memory_stats(),
        ],
    )
    def test_a_child_is_told(self, umem, use):
        a = umem.zeros(1000, dtype=np.float32)

        def child():
            with pytest.raises(RuntimeError, match="fork"):
                use(umem, a)

        assert self.in_child(child) == 0
        a += 1
        assert a[0] == 1

    @pytest.mark.backends("fake")
    def test_a_child_may_drop_what_it_inherited(self, umem):
        arrays = [umem.zeros(1000, dtype=np.float32) for _ in range(3)]
        view = np.asarray(arrays[0])

        def child():
            nonlocal view
            del view
            arrays.clear()
            gc.collect()

        assert self.in_child(child) == 0
        assert view[0] == 0
        assert arrays[2][5] == 0

    @pytest.mark.backends("host")
    def test_a_child_on_the_host_has_its_own_copy(self, umem):
        a = umem.zeros(1000, dtype=np.float32)

        def child():
            a[0] = 5
            b = umem.ones(10)
            assert a[0] == 5
            assert b.sum() == 10

        assert self.in_child(child) == 0
        assert a[0] == 0
