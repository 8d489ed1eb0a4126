"""The core of the contract on other machines: older drivers, several GPUs, little memory, no concurrent access."""

import os
import signal

import numpy as np
import pytest

from backends import MACHINES
from support import address

pytestmark = pytest.mark.backends(*MACHINES)

COUNT = 1 << 18  # float32: 1 MiB


@pytest.fixture
def concurrent(umem):
    return umem.devices()[0]["concurrent_managed_access"]


def test_is_the_machine_that_it_is_called(umem, backend):
    info, devices = umem.info(), umem.devices()
    assert info["backend"] == "cuda"
    assert info["driver"] == {"fake 12.0": 12000, "fake 12.8": 12080}.get(backend, 13000)
    assert len(devices) == (8 if backend == "fake 8 GPUs" else 1)
    assert devices[0]["concurrent_managed_access"] == (backend != "fake not concurrent")


def test_creation(umem):
    assert np.array_equal(np.asarray(umem.arange(COUNT)), np.arange(COUNT))
    assert not umem.zeros(COUNT).read().any()
    assert umem.full(COUNT, 3, dtype="i2", home="cpu").sum() == 3 * COUNT
    assert umem.array([[1, 2], [3, 4]]).T.tolist() == [[1, 3], [2, 4]]
    assert umem.empty(0).shape == (0,)


def test_ufuncs(umem):
    n = np.arange(COUNT, dtype="f4")
    a = umem.asarray(n)
    assert np.array_equal((a * 2 + 1).read(), n * 2 + 1)
    assert np.array_equal(np.asarray(a[::3] - a[::3]), np.zeros(len(n[::3]), "f4"))
    assert (
        a[:512].reshape(8, 64).sum(axis=0).tolist() == n[:512].reshape(8, 64).sum(axis=0).tolist()
    )
    assert np.sqrt(a)[16] == 4
    a[5:10] = -1
    a += 1
    assert a[:12].tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 11, 12]


def test_a_view_shows_what_kernels_wrote(umem, fake):
    a = umem.zeros(COUNT, "f4")
    view = a.numpy()
    for i in range(1, 4):
        umem.add(a, 1, out=a)
        assert fake.pending() == 0
        assert (view == i).all()
        view += 0.5
        umem.add(a, -0.5, out=a)
    assert a.sum() == 3 * COUNT


def test_without_a_view_work_stays_pending_where_it_may(umem, fake, concurrent):
    a = umem.zeros(COUNT, "f4")
    umem.synchronize()
    umem.add(a, 1, out=a)
    assert (fake.pending() > 0) == concurrent
    assert a[7] == 1


def test_streams(umem, fake):
    handle = fake.stream_create()
    try:
        a = umem.ones(COUNT, "f4")
        with umem.stream(handle), umem.deferred():
            b = a + a
        c = b + a
        assert np.asarray(c)[COUNT - 1] == 3
        with umem.stream(handle):
            c += b
        assert c.read()[0] == 5
    finally:
        umem.synchronize()
        fake.stream_destroy(handle)


def test_dlpack(umem):
    a = umem.arange(COUNT, dtype="f4")
    n = np.from_dlpack(a.on("cpu"))
    n[0] = 7
    a += 1
    assert n[0] == a[0] == 8
    b = umem.from_dlpack(a)
    b[1] = -1
    assert a[1] == n[1] == -1
    assert umem.from_dlpack(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert a.__dlpack_device__() == (13, 0) or a.__dlpack_device__()[0] in (2, 3)
    assert np.array_equal(umem.asarray(a).read(), n)


def test_prefetch_and_residency(umem, concurrent):
    a = umem.ones(COUNT, "f4")
    b = umem.ones(COUNT, "f4")
    for where, part in (("cuda", "device"), ("cpu", "host"), ("cuda:0", "device")):
        umem.prefetch([a, b], where)
        a.prefetch(where)
        umem.synchronize()
        if concurrent:
            assert getattr(a.residency(), part) == getattr(b.residency(), part) == a.nbytes
        assert a.sum() == b.sum() == COUNT
    a.discard()
    a.fill(2)
    a.prefetch("cpu")
    assert a.sum() == 2 * COUNT
    for home in ("cpu", "cuda", None):
        a.home = home
        umem.add(a, 1, out=a)
    a.advise("read_mostly")
    assert a[3] == a.read()[4] == 5
    a.advise("unset_read_mostly")


def test_a_forked_child_is_told(umem):
    a = umem.ones(COUNT, "f4") + 1
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        told = 0
        for use in (lambda: a[0], lambda: a + 1, lambda: umem.zeros(3), lambda: np.asarray(a)):
            try:
                use()
            except RuntimeError as error:
                told += "fork" in str(error)
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    assert a.sum() == 2 * COUNT


@pytest.mark.backends("fake 8 GPUs")
class TestSeveralGpus:
    def test_each(self, umem, fake):
        arrays = [umem.full(COUNT, i, dtype="f4", device=i) for i in range(8)]
        assert [a.device for a in arrays] == [f"cuda:{i}" for i in range(8)]
        for i, a in enumerate(arrays):
            a += 1
            a.prefetch(f"cuda:{i}")
        umem.synchronize()
        assert [fake.resident(i) >= a.nbytes for i, a in enumerate(arrays)] == [True] * 8
        assert [int(a[5]) for a in arrays] == list(range(1, 9))
        assert sum(arrays[1:], arrays[0]).sum() == 36 * COUNT
        everywhere = arrays[3].copy()
        for i in range(8):
            everywhere.prefetch(i)
            assert everywhere.sum() == 4 * COUNT

    def test_limits_and_figures_are_each_devices_own(self, umem):
        umem.set_limit(1 << 20, device=5)
        try:
            with pytest.raises(umem.OutOfMemoryError):
                umem.zeros(COUNT + 1, "f4", device=5)
            a = umem.zeros(COUNT + 1, "f4", device=4)
            assert umem.memory_stats(4)["allocated_bytes.all.current"] == a.nbytes
            assert umem.memory_stats(5)["allocated_bytes.all.current"] == 0
        finally:
            umem.set_limit(None, device=5)


@pytest.mark.backends("fake small")
class TestMoreThanFits:
    """The device has 8 MiB; what was used longest ago moves to the host, and nothing is lost."""

    def test_values_survive_eviction(self, umem, fake):
        before = fake.counter("evicted_bytes")
        arrays = [umem.full(COUNT, i, dtype="f4") for i in range(12)]
        for a in arrays:
            a.prefetch("cuda")
            a += 1
        umem.synchronize()
        assert fake.counter("evicted_bytes") > before
        assert fake.resident(0) <= 8 << 20
        assert [float(a[9]) for a in arrays] == list(range(1, 13))
        assert [float(a.sum()) for a in arrays] == [i * COUNT for i in range(1, 13)]

    def test_the_least_recently_used_goes_first(self, umem, fake):
        """Where pages are by the driver's books: the host's page table does not show what was evicted."""
        arrays = [
            umem.ones(1 << 19, "f4") for _ in range(4)
        ]  # a 2 MiB block each: all that there is
        umem.prefetch(arrays, "cuda")
        umem.synchronize()
        umem.add(arrays[0], 1, out=arrays[0])
        one_more = umem.ones(1 << 19, "f4")
        one_more.prefetch("cuda")
        umem.synchronize()
        assert [fake.page_location(address(a)) for a in arrays] == [0, fake.HOST, 0, 0]
        assert fake.page_location(address(one_more)) == 0
        assert [float(a[0]) for a in arrays] == [2, 1, 1, 1]

    def test_one_array_larger_than_the_device(self, umem, fake):
        a = umem.zeros(4 * COUNT * 4, "f4")  # 16 MiB
        a.prefetch("cuda")
        a += 3
        assert a.sum() == 3 * a.size
        assert fake.resident(0) <= 8 << 20
