"""Where the pages are, on a real device: what each action moves, and what it must not move."""

import numpy as np
import pytest

MIB = 1 << 20


@pytest.fixture
def a(umem):
    """8 MiB that the host has written."""
    a = umem.empty(2 * MIB, dtype=np.float32)
    np.asarray(a)[:] = 1
    return a


def share(a, where):
    return getattr(a.residency(), where) / a.nbytes


def test_host_then_device_then_host(umem, a):
    assert share(a, "host") == 1
    a.prefetch("cuda")
    umem.synchronize()
    assert share(a, "device") == 1
    a.prefetch("cpu")
    umem.synchronize()
    assert share(a, "host") == 1


def test_half(umem, a):
    a[: a.size // 2].prefetch("cuda")
    umem.synchronize()
    r = a.residency()
    assert (r.device, r.host) == (4 * MIB, 4 * MIB)
    assert share(a[: a.size // 2], "device") == 1
    assert share(a[a.size // 2 :], "host") == 1


def test_batch(umem):
    arrays = [umem.ones(MIB, dtype=np.float32) for _ in range(4)]
    umem.prefetch(arrays, "cpu")
    umem.synchronize()
    assert all(share(a, "host") == 1 for a in arrays)
    umem.prefetch(arrays, "cuda:0")
    umem.synchronize()
    assert all(share(a, "device") == 1 for a in arrays)


def test_untouched(umem):
    assert share(umem.empty(MIB, dtype=np.float32), "untouched") == 1


READS = {
    "print": lambda a: print(a),
    "repr": repr,
    "item": lambda a: a[5:6].item(),
    "index": lambda a: a[a.size // 2],
    "tolist": lambda a: a[:10].tolist(),
    "tobytes": lambda a: a.tobytes(),
    "read": lambda a: a.read(),
    "strided read": lambda a: a[::-1000].read(),
    "html": lambda a: a._repr_html_(),
    "sum": lambda a: a.sum(),
    "kernel": lambda a: a + a,
    "setitem": lambda a: a.__setitem__(7, 3.0),
    "fill": lambda a: a[10:20].fill(2),
    "copy": lambda a: a.copy(),
    "astype": lambda a: a.astype(np.float64),
    "cai": lambda a: a.__cuda_array_interface__,
    "dlpack": lambda a: a.__dlpack__(stream=1, max_version=(1, 0)),
    "float": lambda a: float(a[3]),
}


@pytest.mark.parametrize("read", READS)
def test_gpu_resident_data_stays(umem, a, read):
    a.prefetch("cuda")
    umem.synchronize()
    READS[read](a)
    umem.synchronize()
    assert share(a, "device") == 1


@pytest.mark.parametrize("use", ["sum", "kernel", "fill", "setitem", "print", "read"])
def test_host_resident_data_stays_while_the_gpu_reads_it(umem, a, use):
    """Accessed-by from birth: the GPU goes over the link instead of faulting."""
    READS[use](a)
    umem.synchronize()
    assert share(a, "host") == 1


def test_the_first_hand_out_moves_a_large_host_resident_block(umem, a, torch):
    t = torch.as_tensor(a)
    umem.synchronize()
    assert share(a, "device") == 1
    assert float(t.sum()) == a.size


def test_a_home_given_by_the_user_is_left_alone(umem, torch):
    a = umem.empty(2 * MIB, dtype=np.float32, home="cpu")
    np.asarray(a)[:] = 1
    t = torch.as_tensor(a)
    assert float(t.sum()) == a.size
    umem.synchronize()
    assert a.home == "cpu"
    assert share(a, "host") == 1


def test_home_of_a_device(umem):
    a = umem.ones(MIB, dtype=np.float32)
    a.home = "cuda:0"
    assert a.home == "cuda:0"
    a.home = None
    assert a.home is None
    with pytest.raises(ValueError, match="cuda:0"):
        a.home = "cuda:99"


def test_cpu_touch_brings_pages_back(umem, a):
    a.prefetch("cuda")
    umem.synchronize()
    np.asarray(a)[: a.size // 4] += 1
    assert a.residency().host >= 2 * MIB
    assert a.residency().device > 0


@pytest.mark.parametrize("between", [None, "cpu", "cuda"])
@pytest.mark.parametrize("start", ["cpu", "cuda"])
def test_what_is_written_after_a_discard_is_kept(umem, start, between):
    for value in range(2, 12):
        a = umem.empty(2 * MIB, dtype=np.float32)
        np.asarray(a)[:] = 1
        a.prefetch(start)
        umem.synchronize()
        a.discard()
        if between:
            a.prefetch(between)
        a.fill(value)
        assert a[0] == value
        assert np.asarray(a).sum() == value * a.size
        a.discard()
        a.prefetch("cuda")
        np.asarray(a)[:] = 5
        a.prefetch("cuda")
        assert a.sum() == 5 * a.size


def test_read_mostly(umem, a):
    a.advise("read_mostly")
    a.prefetch("cuda")
    umem.synchronize()
    assert np.asarray(a).sum() == a.size
    assert a.sum() == a.size
    a.advise("unset_read_mostly")


@pytest.mark.parametrize(
    "where", ["cuda:7", "cuda:99", 99, "numa:99", "gpu", "cuda:-1", "cpu:0:1", -2]
)
def test_prefetch_to_what_is_not_there(a, where):
    with pytest.raises(ValueError, match=r"cuda:0|NUMA|accepted"):
        a.prefetch(where)
    assert a[0] == 1
