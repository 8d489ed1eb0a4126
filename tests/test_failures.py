"""The fault loop: each driver call of each public operation fails in turn.

Every failure raises CudaError or OutOfMemoryError with the call's name, or is one of the few that are tolerated and
then the result is right. It leaks nothing and leaves arrays as they were, and the next operation works.
"""

import gc
import io
import pickle

import numpy as np
import pytest

from support import Exporter, address

pytestmark = pytest.mark.backends("fake")

COUNT = 40_000  # float32: more than 64 KiB, so that arrays own their pages


class Stage:
    """What a scenario works on, made anew for each failure: arrays on the GPU, with work of their own still pending."""

    def __init__(self, umem, fake):
        self.umem = umem
        self.fake = fake
        self.a = umem.arange(COUNT, dtype="f4")
        self.b = umem.ones(COUNT, "f4")
        self.c = umem.zeros(COUNT, "f4")
        self.d = umem.arange(COUNT, dtype="i8")
        self.grid = umem.arange(COUNT, dtype="f4").reshape(200, 200)
        umem.prefetch(self.arrays, "cuda")
        umem.synchronize()
        for array in self.arrays:
            umem.add(array, 0, out=array)

    @property
    def arrays(self):
        return (self.a, self.b, self.c, self.d, self.grid)

    def check(self):
        """Nothing half done: what no scenario writes is as it was, and the next operations work."""
        numbers = np.arange(COUNT)
        assert np.array_equal(self.a.read(), numbers.astype("f4"))
        assert np.array_equal(self.b.read(), np.ones(COUNT, "f4"))
        assert np.array_equal(self.d.read(), numbers)
        assert np.array_equal(self.grid.read().ravel(), numbers.astype("f4"))
        total = self.umem.add(self.a, self.b)
        assert total[COUNT - 1] == COUNT
        assert np.array_equal(np.asarray(total), numbers.astype("f4") + 1)


SCENARIOS = {
    "empty": lambda s: s.umem.empty(COUNT, "f4"),
    "empty small": lambda s: s.umem.empty(3, "f4"),
    "empty with a home": lambda s: s.umem.empty(COUNT, "f4", home="cpu"),
    "zeros": lambda s: s.umem.zeros(COUNT, "f4"),
    "large zeros": lambda s: s.umem.zeros(1 << 22, "f4"),
    "ones": lambda s: s.umem.ones(COUNT, "f4"),
    "full": lambda s: s.umem.full(COUNT, 3, dtype="i2"),
    "array": lambda s: s.umem.array(np.arange(COUNT)),
    "asarray": lambda s: s.umem.asarray(np.arange(COUNT)),
    "asarray of its own memory": lambda s: s.umem.asarray(s.a.numpy()),
    "copy": lambda s: s.a.copy(),
    "copy of a view": lambda s: s.grid[::2, ::3].copy(),
    "copy transposed": lambda s: s.grid.T.copy("C"),
    "astype": lambda s: s.a.astype("f8"),
    "astype in numpy": lambda s: s.a.astype("f2"),
    "add": lambda s: s.umem.add(s.a, s.b),
    "add out": lambda s: s.umem.add(s.b, s.b, out=s.c),
    "operator": lambda s: s.a * 2,
    "mixed types": lambda s: s.a + s.d,
    "in place": lambda s: s.c.__iadd__(1),
    "overlap": lambda s: s.umem.add(s.c[1:], s.c[:-1], out=s.c[1:]),
    "numpy operand": lambda s: s.a + np.ones(COUNT, "f4"),
    "axpy": lambda s: s.umem.axpy(2, s.a, s.b),
    "negative": lambda s: -s.a,
    "sum": lambda s: s.a.sum(),
    "sum of an axis": lambda s: s.grid.sum(axis=0),
    "mean": lambda s: s.grid.mean(axis=1),
    "numpy function": lambda s: np.sqrt(s.a),
    "numpy reduction": lambda s: np.max(s.a),
    "comparison": lambda s: s.a > 3,
    "fill": lambda s: s.c.fill(3),
    "fill a view": lambda s: s.c[::2].fill(3),
    "setitem": lambda s: s.c.__setitem__(slice(5, 500), 7),
    "setitem element": lambda s: s.c.__setitem__(5, 7),
    "setitem array": lambda s: s.c.__setitem__(slice(None), s.b),
    "setitem numpy": lambda s: s.c.__setitem__(slice(None), np.ones(COUNT)),
    "setitem advanced": lambda s: s.c.__setitem__([1, 2], 7),
    "element": lambda s: s.a[5],
    "item": lambda s: s.a.item(7),
    "view": lambda s: s.a[5:500],
    "advanced index": lambda s: s.a[[1, 2, 3]],
    "reshape": lambda s: s.grid.T.reshape(-1),
    "tolist": lambda s: s.a[:10].tolist(),
    "tobytes": lambda s: s.a.tobytes(),
    "read": lambda s: s.a.read(),
    "read strided": lambda s: s.grid[::50, ::3].read(),
    "numpy": lambda s: s.a.numpy(),
    "asarray by numpy": lambda s: np.asarray(s.a),
    "memoryview": lambda s: memoryview(s.a),
    "array interface": lambda s: s.a.__array_interface__,
    "repr": lambda s: repr(s.a),
    "html": lambda s: s.a._repr_html_(),
    "cuda array interface": lambda s: s.a.__cuda_array_interface__,
    "dlpack": lambda s: s.a.__dlpack__(),
    "dlpack for a GPU": lambda s: s.a.__dlpack__(stream=1, max_version=(1, 0)),
    "dlpack for the CPU": lambda s: s.a.__dlpack__(dl_device=(1, 0), max_version=(1, 0)),
    "dlpack copy": lambda s: s.a.__dlpack__(copy=True, max_version=(1, 0)),
    "from_dlpack": lambda s: s.umem.from_dlpack(np.arange(COUNT)),
    "from_dlpack of its own": lambda s: s.umem.from_dlpack(s.a),
    "from cai": lambda s: s.umem.asarray(Exporter(s.a, "__cuda_array_interface__")),
    "on": lambda s: s.a.on("cuda").__dlpack__(stream=1),
    "prefetch": lambda s: s.a.prefetch("cuda"),
    "prefetch home": lambda s: s.a.prefetch("cpu"),
    "prefetch batch": lambda s: s.umem.prefetch([s.a, s.b[5:], s.c], "cuda"),
    "advise": lambda s: s.a.advise("read_mostly"),
    "set home": lambda s: setattr(s.a, "home", "cpu"),
    "discard": lambda s: s.c.discard(),
    "discard and prefetch": lambda s: (s.c.discard(), s.c.prefetch("cuda")),
    "residency": lambda s: s.a.residency(),
    "synchronize": lambda s: s.umem.synchronize(),
    "trim": lambda s: s.umem.trim(),
    "devices": lambda s: s.umem.devices(),
    "info": lambda s: s.umem.info(),
    "statistics": lambda s: s.umem.memory_stats(),
    "limit": lambda s: s.umem.set_limit("90%"),
    "pickle": lambda s: pickle.loads(pickle.dumps(s.a)),
    "pickle out of band": lambda s: pickle.dumps(s.a, protocol=5, buffer_callback=[].append),
    "save": lambda s: s.umem.save(io.BytesIO(), s.a),
    "on a stream": lambda s: on_a_stream(s),
    "deferred": lambda s: deferred(s),
    "work under a view": lambda s: (s.c.numpy(), s.c.__iadd__(1)),
    "work, then a view": lambda s: (s.umem.add(s.b, s.b, out=s.c), s.c.numpy()),
    "dlpack for another stream": lambda s: dlpack_for_another_stream(s),
    "cuda array interface of work on a stream": lambda s: interface_of_work_on_a_stream(s),
    "synchronize a stream": lambda s: synchronize_a_stream(s),
    "free what is idle": lambda s: s.umem.ones(COUNT, "f4").sum(),
    "free a shared array": lambda s: free_a_shared_array(s),
    "free what is used": lambda s: s.umem.add(s.umem.ones(COUNT, "f4"), 1),
}


def on_a_stream(s):
    with s.umem.stream(2):
        s.umem.add(s.b, 1, out=s.c)
    return s.c.sum()


def deferred(s):
    view = s.c.numpy()
    with s.umem.deferred():
        s.umem.add(s.b, 1, out=s.c)
    s.umem.synchronize()
    return view[0]


def dlpack_for_another_stream(s):
    s.a.__dlpack__(stream=2, max_version=(1, 0))


def interface_of_work_on_a_stream(s):
    with s.umem.stream(2):
        s.umem.add(s.b, 1, out=s.c)
        return s.c.__cuda_array_interface__["stream"], s.c


def synchronize_a_stream(s):
    with s.umem.stream(2) as stream:
        s.umem.add(s.b, 1, out=s.c)
        stream.synchronize()
    return s.c


def free_a_shared_array(s):
    """What another library has seen goes back at the next synchronisation only."""
    shared = s.umem.ones(COUNT, "f4")
    assert shared.__cuda_array_interface__
    del shared
    s.umem.synchronize()


#: calls whose failure with CUDA_ERROR_UNKNOWN an operation may survive, and why
TOLERATED = {
    # hints: data that stays where it is, or keeps what could be dropped, is as right
    "cuMemAdvise", "cuMemPrefetchAsync", "cuMemPrefetchBatchAsync", "cuMemDiscardBatchAsync",
    # there is another way: pageable memory instead of page-locked, waiting instead of asking
    "cuMemHostAlloc", "cuStreamQuery", "cuEventQuery",
    # giving back: nobody could do anything about it, and the driver has done it
    "cuEventDestroy", "cuStreamDestroy", "cuMemFreeHost", "cuMemFree",
}  # fmt: skip

CONTEXT = {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"}

#: operations that give back memory of their own, where no exception can come from; it is given back later
GIVES_BACK = [
    "astype in numpy", "sum", "mean", "sum of an axis", "numpy function", "comparison", "advanced index",
    "from_dlpack", "pickle", "on a stream", "mixed types", "numpy operand", "free what is used", "trim",
    "overlap", "array", "asarray", "setitem numpy", "free what is idle", "free a shared array",
]  # fmt: skip

#: more that some may survive
TOLERATED_BY = {
    **dict.fromkeys(GIVES_BACK, CONTEXT),
    # NumPy asks for __array_interface__ when the buffer protocol fails.
    "asarray by numpy": CONTEXT | {"cuStreamSynchronize"},
    # What a driver cannot say of a device is taken for absent.
    **{name: {"cuDeviceGetAttribute"} for name in ("devices", "info", "limit")},
}

#: operations that need nothing of the driver
HOST_ONLY = {
    "view", "statistics", "residency", "from_dlpack of its own", "discard", "asarray of its own memory",
    "cuda array interface", "dlpack for a GPU", "from cai", "on",
}  # fmt: skip

#: operations whose results are not the same each time: memory as it comes, addresses, counts, what a driver says
VARYING = {"empty", "empty small", "empty with a home", "array interface", "cuda array interface", "residency",
           "devices", "info", "statistics", "html", "pickle out of band"}  # fmt: skip


def value(result):
    """A result in a form that can be compared and holds no memory of umem's; None: there is nothing to compare."""
    if isinstance(result, (tuple, list)):
        return [value(part) for part in result]
    if type(result).__name__ == "ndarray":
        return np.array(result, copy=True).tolist()
    if isinstance(result, (np.generic, int, float, str, bytes)):
        return result
    return result.tolist() if isinstance(result, memoryview) else None


def settle(umem, fake):
    """Everything freed and idle. Streams, events and buffers that umem keeps for later are no leaks; see `kept`."""
    gc.collect()
    umem.synchronize()
    umem.trim()
    return {kind: fake.live(kind) for kind in ("managed", "device", "context", "library")}


def kept(fake):
    return sum(fake.live(kind) for kind in ("stream", "event", "host"))


class TestEveryCallFails:
    @pytest.mark.parametrize("code", ["UNKNOWN", "OUT_OF_MEMORY"])
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_once(self, umem, fake, name, code):
        scenario, code = SCENARIOS[name], getattr(fake, code)
        expected = value(scenario(Stage(umem, fake)))  # and what is loaded once is loaded
        before, depth, held = settle(umem, fake), fake.context_depth(), kept(fake)
        survived = set()
        for n in range(1, 200):
            stage = Stage(umem, fake)
            fake.fail_nth_call(n, code)
            error = None
            result = None
            try:
                result = scenario(stage)
            except (umem.CudaError, umem.OutOfMemoryError) as caught:
                error = caught
            failed = fake.last_failed()
            fake.reset_faults()
            if isinstance(error, umem.CudaError):
                assert error.code == code
                assert error.name.startswith("CUDA_ERROR_")
                assert error.call.startswith("cu")
                assert error.call in str(error)
            elif error is None and failed is not None:
                survived.add(failed)
                if name not in VARYING:
                    assert value(result) == expected, f"{failed} failed and the result is wrong"
            stage.check()
            assert fake.context_depth() == depth, failed
            del stage, error, result
            assert settle(umem, fake) == before, f"{failed} failed and something leaked"
            assert kept(fake) <= held + 8, failed
            if failed is None:
                break
        else:
            raise AssertionError("the scenario never ends without a failure")
        fake.check()
        assert n > 1 or name in HOST_ONLY, f"{name} asks the driver nothing"
        if code == fake.UNKNOWN:  # out of memory umem may free some and try again, whatever failed
            tolerated = TOLERATED | TOLERATED_BY.get(name, set())
            assert survived <= tolerated, f"{name} says nothing when these fail"


class TestOpening:
    """Failures while the driver is started."""

    def test_each_call_in_turn(self, run_python):
        """A new copy of the package for each call that fails. One that opens nevertheless works and closes well."""
        out = run_python(
            """
import gc, importlib, os, sys
sys.path.insert(0, "tests")
from fake_cuda.control import FakeCuda
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
raised, survived = [], []
for n in range(1, 1000):
    fake.reset_faults()
    fake.fail_nth_call(n, fake.UNKNOWN)
    umem = importlib.import_module("umem")
    try:
        umem.info()
    except (umem.CudaError, umem.DriverNotFoundError) as error:
        assert str(error)
        failed = fake.last_failed()
        raised.append(failed)
        fake.reset_faults()
        assert fake.live() == 0, (n, failed, fake.ledger())
        assert umem.ones(1000, "f4").sum() == 1000, failed
    else:
        failed = fake.last_failed()
        fake.reset_faults()
        if failed is None:
            break
        survived.append(failed)
        assert umem.ones(1000, "f4").sum() == 1000, failed
    for name in [name for name in sys.modules if name.split(".")[0] == "umem"]:
        del sys.modules[name]
    del umem
    gc.collect()
    assert fake.live() == 0, (n, failed, fake.ledger())
else:
    raise AssertionError("never ends")
print(len(raised) > 5, sorted(set(survived) - {"cuGetProcAddress", "cuGetProcAddress_v2", "cuDeviceGetAttribute"}))
"""
        )
        assert out.split(maxsplit=1) == ["True", "[]\n"] or out.split(maxsplit=1) == [
            "True",
            "[]",
        ], out

    def test_auto_says_why_it_is_the_host(self, run_python):
        out = run_python(
            """
import os, sys
sys.path.insert(0, "tests")
from fake_cuda.control import FakeCuda
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
fake.fail("cuInit", code=fake.NO_DEVICE, forever=True)
import umem
print(umem.info()["backend"], "|", umem.info()["reason"])
""",
            UMEM_BACKEND="auto",
        )
        assert out.startswith("host |")
        assert "cuInit" in out or "NO_DEVICE" in out


class TestStickyErrors:
    """After a kernel has crashed every driver call fails: umem raises, and does not crash."""

    def test_every_operation_raises(self, run_python):
        out = run_python(
            """
import os, sys, gc
sys.path.insert(0, "tests")
from fake_cuda.control import FakeCuda
import numpy as np, umem
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
a, b = umem.ones(40_000, "f4"), umem.ones(40_000, "f4")
c = a + b
fake.set_sticky(fake.ILLEGAL_ADDRESS)
raised = 0
for use in (lambda: umem.synchronize(), lambda: a + b, lambda: umem.zeros(100_000), lambda: c[0], lambda: c.sum(),
            lambda: print(c), lambda: a.prefetch("cuda"), lambda: np.asarray(c), lambda: a.copy(), lambda: a.fill(1)):
    try: use()
    except (umem.CudaError, umem.OutOfMemoryError) as error: raised += error.code == 700
del a, b, c
gc.collect()
print(raised, "alive")
"""
        ).split()
        assert int(out[0]) >= 9
        assert out[1] == "alive"

    def test_the_error_names_the_call_and_the_code(self, umem, fake):
        a = umem.ones(COUNT, "f4")
        umem.synchronize()
        fake.fail("cuLaunchKernel", code=fake.LAUNCH_FAILED)
        with pytest.raises(umem.CudaError) as caught:
            umem.add(a, 1, out=a)
        error = caught.value
        assert error.code == 719
        assert error.name == "CUDA_ERROR_LAUNCH_FAILED"
        assert "cuLaunchKernel" in error.call
        assert "cuLaunchKernel" in str(error)
        assert "719" in str(error) or error.name in str(error)
        assert (np.asarray(a) == 1).all()
        umem.add(a, 1, out=a)
        assert a[5] == 2


def test_a_failed_export_hands_out_nothing(umem, fake):
    a = umem.ones(COUNT, "f4")
    umem.add(a, 1, out=a)
    fake.fail("cuEventSynchronize", code=fake.UNKNOWN, forever=True)
    fake.fail("cuStreamSynchronize", code=fake.UNKNOWN, forever=True)
    fake.fail("cuCtxSynchronize", code=fake.UNKNOWN, forever=True)
    for export in (
        lambda: np.asarray(a),
        lambda: a.numpy(),
        lambda: memoryview(a),
        lambda: a.__array_interface__,
        lambda: a.__dlpack__(),
        lambda: a[0],
        lambda: a.tolist(),
        lambda: print(a),
    ):
        with pytest.raises(umem.CudaError):
            export()
    fake.reset_faults()
    assert address(a)
    assert (np.asarray(a) == 2).all()
