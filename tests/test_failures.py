"""The fault loop: each driver call of each public operation fails in turn.

Every failure raises CudaError or OutOfMemoryError with the call's name, or is one of the few that are tolerated and
then the result is right. It leaks nothing and leaves arrays as they were, and the next operation works.

The last test holds what failed against the list of all places in src/ that call the driver: none is left out.
"""

import ast
import copy
import gc
import io
import pickle
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import call_sites
import conftest
from backends import MACHINES
from fake_cuda import build
from support import Exporter, address

BUILD = Path(__file__).resolve().parent.parent / "build"

pytestmark = pytest.mark.backends("fake")

COUNT = 40_000  # float32: more than 64 KiB, so that arrays own their pages


class Stage:
    """What a scenario works on, made anew for each failure: arrays on the GPU, with work of their own still pending."""

    def __init__(self, umem, fake=None):
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
    "empty": lambda s: s.umem.empty(1 << 23, "f4"),  # more than is at hand
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
    "where": lambda s: s.umem.where(s.a > s.b, s.a, s.b),
    "overlap": lambda s: s.umem.add(s.c[1:], s.c[:-1], out=s.c[1:]),
    "numpy operand": lambda s: s.a + np.ones(COUNT, "f4"),
    "axpy": lambda s: s.umem.axpy(2, s.a, s.b),
    "negative": lambda s: -s.a,
    "evaluate": lambda s: s.umem.evaluate("2*a + b*sin(a)", {"a": s.a, "b": s.b}, {}),
    "evaluate out": lambda s: s.umem.evaluate(
        "a + d", {"a": s.b, "d": s.d}, {}, s.c, casting="unsafe"
    ),
    "evaluate in numpy": lambda s: s.umem.evaluate("a**d", {"a": s.d, "d": s.d}, {}),
    "sum": lambda s: s.a.sum(),
    "sum of an axis": lambda s: s.grid.sum(axis=0),
    "mean": lambda s: s.grid.mean(axis=1),
    "numpy function": lambda s: np.sqrt(s.a),
    "numpy reduction": lambda s: np.max(s.a),
    "comparison": lambda s: s.a > 3,
    "random numbers": lambda s: s.umem.random.default_rng(1).random(COUNT, "f4"),
    "random numbers out": lambda s: s.umem.random.default_rng(1).standard_normal(
        dtype="f4", out=s.c
    ),
    "random numbers out of order": lambda s: s.umem.random.default_rng(1).random(
        dtype="f4", out=s.c[::2]
    ),
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
    "discard and prefetch home": lambda s: (s.c.discard(), s.c.prefetch("cpu")),
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
    "tofile": lambda s: tofile(s),
    "load": lambda s: load(s),
    "fromfile": lambda s: fromfile(s),
    "zeros like": lambda s: s.umem.zeros_like(s.a),
    "ones like": lambda s: s.umem.ones_like(s.a),
    "full like": lambda s: s.umem.full_like(s.a, 3),
    "empty like": lambda s: s.umem.empty_like(s.a).shape,
    "arange": lambda s: s.umem.arange(COUNT),
    "linspace": lambda s: s.umem.linspace(0, 1, COUNT),
    "module copy": lambda s: s.umem.copy(s.a),
    "deepcopy": lambda s: copy.deepcopy(s.a),
    "other kernels": lambda s: other_kernels(s),
    "array struct": lambda s: s.a.__array_struct__,
    "ctypes": lambda s: s.a.ctypes.shape[0],
    "data": lambda s: s.a.data[5],
    "flat": lambda s: s.a.flat[5],
    "iterate": lambda s: list(s.a[:3]),
    "contains": lambda s: 7 in s.a,
    "scalars": lambda s: (bool(s.a[5:6]), float(s.a[5:6].reshape(())), int(s.d[5:6].reshape(()))),
    "format": lambda s: f"{s.a[5:6].reshape(())}",
    "set real": lambda s: setattr(s.c, "real", s.b),
    "in place by numpy": lambda s: s.c.sort(),
    "numpy writes": lambda s: np.copyto(s.c, s.b),
    "device view by numpy": lambda s: np.asarray(s.a.on("cpu")),
    "device view's interface": lambda s: s.a.on("cpu").__array_interface__["shape"],
    "stream": lambda s: s.umem.Stream(2).synchronize(),
    "memory scope": lambda s: memory_scope(s),
    "record allocations": lambda s: record_allocations(s),
    "memory summary": lambda s: s.umem.memory_summary().count("\n") > 5,
    "limits": lambda s: (
        s.umem.set_limit("8GiB", 0),
        s.umem.get_limit(0),
        s.umem.set_limit(None, 0),
    ),
    "reset peak": lambda s: s.umem.reset_peak(),
    "on out of memory": lambda s: on_out_of_memory(s),
    "on a stream": lambda s: on_a_stream(s),
    "deferred": lambda s: deferred(s),
    "work under a view": lambda s: (s.c.numpy(), s.c.__iadd__(1)),
    "work, then a view": lambda s: (s.umem.add(s.b, s.b, out=s.c), s.c.numpy()),
    "dlpack for another stream": lambda s: dlpack_for_another_stream(s),
    "cuda array interface of work on a stream": lambda s: interface_of_work_on_a_stream(s),
    "synchronize a stream": lambda s: synchronize_a_stream(s),
    "wait in another thread": lambda s: wait_in_another_thread(s),
    "free what is idle": lambda s: s.umem.ones(COUNT, "f4").sum(),
    "free a shared array": lambda s: free_a_shared_array(s),
    "free what is used": lambda s: s.umem.add(s.umem.ones(COUNT, "f4"), 1),
    "free what a stream uses": lambda s: free_what_a_stream_uses(s),
    "a stream of another library": lambda s: on_a_foreign_stream(s),
    "memory of another library": lambda s: foreign_memory(s),
    "no room": lambda s: no_room(s),
    "no code for this GPU": lambda s: no_code(s),
    "a home is refused": lambda s: refused(
        s, "cuMemAdvise", 1, lambda: s.umem.empty(COUNT, "f4", home="cpu")
    ),
    "a batch is not ordered": lambda s: refused(
        s, "cuStreamWaitEvent", 2, lambda: s.umem.prefetch([s.a, s.b], "cpu")
    ),
}


def tofile(s):
    with tempfile.TemporaryFile() as file:
        s.a.tofile(file)


def fromfile(s):
    with tempfile.TemporaryFile() as file:
        file.write(bytes(4 * COUNT))
        file.seek(0)
        return s.umem.fromfile(file, "f4")


def load(s):
    file = io.BytesIO()
    np.save(file, np.arange(COUNT))
    file.seek(0)
    return s.umem.load(file)


def other_kernels(s):
    return (
        s.umem.subtract(s.a, s.b),
        s.umem.multiply(s.a, s.b),
        s.umem.true_divide(s.a, s.b),
        s.umem.negative(s.d),
    )


def memory_scope(s):
    """It ends with the operation that fails, and counts what died then."""
    scope = s.umem.memory_scope("faults")
    try:
        with scope:
            array = s.umem.zeros(COUNT, "f4")
        return array
    finally:
        counted = scope.allocated, scope.blocks
        s.umem.ones(COUNT, "f4")
        assert (scope.allocated, scope.blocks) == counted
        assert scope.allocated in (0, 4 * COUNT)


def record_allocations(s):
    """The recording is written although the operation in it fails, and another one may begin."""
    for _ in range(2):
        file, begun = io.StringIO(), False
        try:
            with s.umem.record_allocations(file):
                begun = True
                total = s.umem.ones(COUNT, "f4").sum()
        finally:
            assert file.getvalue().startswith("umem-allocations 1\n") == begun
    return total


def on_out_of_memory(s):
    """The function is asked while the driver has no room, and what it makes is used."""
    asked = []

    def make_room(requested_bytes, device):
        asked.append(requested_bytes)
        s.fake.set_managed_limit(0)
        return len(asked) < 3

    s.umem.on_out_of_memory(make_room)
    s.fake.set_managed_limit(1)
    try:
        array = s.umem.empty(1 << 23, "f4")  # more than is at hand
        return array.shape
    finally:
        s.fake.set_managed_limit(0)
        assert s.umem.on_out_of_memory(None) is make_room


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


def wait_in_another_thread(s):
    """Only the main thread can be interrupted, and asks the driver again and again. Others block in it."""
    handle = s.fake.stream_create()
    try:
        with s.umem.stream(handle):
            s.umem.add(s.b, 1, out=s.c)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(s.c.tolist).result()
    finally:
        s.fake.run_all()
        s.fake.stream_destroy(handle)


def free_a_shared_array(s):
    """What another library has seen goes back at the next synchronisation only."""
    shared = s.umem.ones(COUNT, "f4")
    assert shared.__cuda_array_interface__
    del shared
    s.umem.synchronize()


def on_a_foreign_stream(s):
    handle = s.fake.stream_create()
    try:
        with s.umem.stream(handle):
            s.umem.add(s.b, 1, out=s.c)
        return s.c.sum()
    finally:
        s.fake.stream_destroy(handle)


def foreign_memory(s):
    pointer = s.fake.device_alloc(400)
    try:
        s.fake.poke(pointer, bytes(400))
        form = {"shape": (100,), "typestr": "<f4", "data": (pointer, False), "version": 3}
        foreign = type("Foreign", (), {"__cuda_array_interface__": form})()
        return s.umem.asarray(foreign, copy=True)
    finally:
        s.fake.run_all()
        s.fake.device_free(pointer)


def no_room(s):
    """The driver refuses the memory, and umem asks it how much there is."""
    s.fake.set_managed_limit(1)
    try:
        s.umem.empty(1 << 23)  # more than is at hand
    except s.umem.OutOfMemoryError as error:
        if "cuMemAllocManaged" not in str(error):
            raise
    finally:
        s.fake.set_managed_limit(0)


def no_code(s):
    """The kernels were built for other GPUs, and umem asks which GPU this is."""
    NO_BINARY_FOR_GPU = 209
    refused(s, "cuLaunchKernel", 1, lambda: s.umem.add(s.b, s.b, out=s.c), NO_BINARY_FOR_GPU)


def refused(s, symbol, nth, action, code=719):
    """The action when a call of its fails before the one that is to fail does."""
    s.fake.fail(symbol, nth, code)
    try:
        action()
    except s.umem.CudaError as error:
        if error.code != code:
            raise


def free_what_a_stream_uses(s):
    """The next allocation asks the stream's event whether the memory can go back."""
    with s.umem.stream(2):
        s.umem.add(s.b, 1)
    return s.umem.zeros(3)


#: calls whose failure with CUDA_ERROR_UNKNOWN an operation may survive, and why
TOLERATED = {
    # hints: data that stays where it is, or keeps what could be dropped, is as right
    "cuMemAdvise", "cuMemPrefetchAsync", "cuMemPrefetchBatchAsync", "cuMemDiscardBatchAsync",
    # there is another way: pageable memory instead of page-locked, waiting instead of asking
    "cuMemHostAlloc", "cuEventQuery",
    # giving back: nobody could do anything about it, and the driver has done it
    "cuEventDestroy", "cuStreamDestroy", "cuMemFreeHost", "cuMemFree",
}  # fmt: skip

CONTEXT = {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"}

#: operations that give back memory of their own, where no exception can come from; it is given back later
GIVES_BACK = [
    "astype in numpy", "sum", "mean", "sum of an axis", "numpy function", "comparison", "advanced index",
    "from_dlpack", "pickle", "on a stream", "mixed types", "numpy operand", "free what is used", "trim",
    "overlap", "array", "asarray", "setitem numpy", "free what is idle", "free a shared array",
    "a stream of another library", "memory of another library", "free what a stream uses",
    "random numbers out of order",
]  # fmt: skip

#: more that some may survive
TOLERATED_BY = {
    **dict.fromkeys(GIVES_BACK, CONTEXT),
    # NumPy asks for __array_interface__ when the buffer protocol fails.
    **dict.fromkeys(["asarray by numpy", "device view by numpy"], CONTEXT | {"cuStreamQuery"}),
    # The failure before it is the one that is told, also when what waits cannot be reclaimed before the retry.
    **dict.fromkeys(
        ["no room", "on out of memory"],
        CONTEXT | {"cuMemGetInfo", "cuCtxSynchronize", "cuStreamQuery"},
    ),
    "no code for this GPU": {"cuLaunchKernel", "cuDeviceGetAttribute", "cuCtxPopCurrent"},
    "a home is refused": {"cuCtxPopCurrent"},
    "a batch is not ordered": {"cuStreamWaitEvent", "cuStreamSynchronize", "cuCtxPopCurrent"},
    # What a driver cannot say of a device is taken for absent.
    **{name: {"cuDeviceGetAttribute"} for name in ("devices", "info", "limit", "limits")},
}

#: operations that need nothing of the driver
HOST_ONLY = {
    "empty small", "view", "statistics", "residency", "from_dlpack of its own", "discard", "asarray of its own memory",
    "cuda array interface", "dlpack for a GPU", "from cai", "on", "load", "fromfile", "empty like", "arange",
    "linspace", "memory summary", "reset peak",
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
    """Everything freed and idle."""
    gc.collect()
    umem.synchronize()
    umem.trim()
    return fake.ledger()


#: what failed in this process and those that it started
RECORD = call_sites.Record()

#: the parts of RECORD that are done
RECORDED = set()

CODES = ["UNKNOWN", "OUT_OF_MEMORY"]


def fail_each_call(umem, fake, backend, name, code):
    RECORDED.add((backend, name, code))
    scenario, code = SCENARIOS[name], getattr(fake, code)
    expected = value(scenario(Stage(umem, fake)))  # and what is loaded once is loaded
    fake.reset_faults()
    before, depth = settle(umem, fake), fake.context_depth()
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
        RECORD.note(fake, code, error is not None)
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
        if failed is None:
            break
    else:
        raise AssertionError("the scenario never ends without a failure")
    fake.check()
    assert n > 1 or name in HOST_ONLY or backend == "fake not concurrent", (
        f"{name} asks the driver nothing"
    )
    if code == fake.UNKNOWN:  # out of memory umem may free some and try again, whatever failed
        tolerated = TOLERATED | TOLERATED_BY.get(name, set())
        assert survived <= tolerated, f"{name} says nothing when these fail"


#: the machines of those; where little memory is, calls are the same
OTHERS = [name for name in MACHINES if name != "fake small"]

#: what other drivers and devices do in other ways
ELSEWHERE = [
    "empty with a home", "large zeros", "add", "sum", "read", "numpy", "on a stream", "prefetch", "prefetch home",
    "prefetch batch", "advise", "set home", "dlpack for the CPU", "discard and prefetch", "a stream of another library",
]  # fmt: skip


def test_every_public_function_is_in_a_scenario(umem):
    """All of umem.__all__ but types that do nothing themselves: a new function needs a scenario of its own.

    Operations of the table of kernels are one function, of which a few are there.
    """
    text = Path(__file__).read_text()
    text = text[text.index("SCENARIOS = ") : text.index("#: calls whose failure")]
    used = set(re.findall(r"\bs\.umem\.(\w+)", text))
    plain = {
        "__version__",
        "ndarray",
        "Residency",
        "CudaError",
        "DriverNotFoundError",
        "OutOfMemoryError",
    }
    missing = set(umem.__all__) - plain - used - set(umem._core.ops)
    assert not missing


class TestEveryCallFails:
    @pytest.mark.parametrize("code", CODES)
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_once(self, umem, fake, backend, name, code):
        fail_each_call(umem, fake, backend, name, code)

    @pytest.mark.backends(*OTHERS)
    @pytest.mark.parametrize("code", CODES)
    @pytest.mark.parametrize("name", ELSEWHERE)
    def test_on_other_machines(self, umem, fake, backend, name, code):
        fail_each_call(umem, fake, backend, name, code)

    @pytest.mark.parametrize("code", CODES)
    def test_spare_events(self, umem, fake, backend, code):
        lose_the_race(umem, fake, backend, code)


def lose_the_race(umem, fake, backend, code):
    """Of two threads whose batches run at once one finds that the other has put back an event: it destroys its own."""
    arrays = [[umem.ones(COUNT, "f4") for _ in range(2)] for _ in range(2)]
    umem.synchronize()
    deadline = time.monotonic() + 60
    fake.fail("cuEventDestroy", code=getattr(fake, code))
    errors = []

    def work(mine):
        try:
            while fake.last_failed() is None and time.monotonic() < deadline:
                umem.prefetch(mine, "cuda")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert fake.last_failed() == "cuEventDestroy"
    RECORD.note(fake, getattr(fake, code), False)
    RECORDED.add((backend, "race", code))


#: A copy of the extension from its first call to its last, anew for each call that fails. Prints what failed.
LIFE = """
import ctypes, gc, importlib, os, sys
import umem
sys.path.insert(0, "tests")
from call_sites import Record
from fake_cuda.control import FakeCuda
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
record, survived = Record(), set()

def hold(device):
    # Another library has the device's context, so nothing of umem's goes with it.
    address, library = ctypes.c_void_p(), ctypes.CDLL(fake.path)
    assert library.cuInit(0) == 0
    version, flags = 7000, ctypes.c_uint64(1)
    assert library.cuGetProcAddress(b"cuDevicePrimaryCtxRetain", ctypes.byref(address), version, flags) == 0
    retain = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(address.value)
    assert retain(ctypes.byref(ctypes.c_void_p()), device) == 0

def use(core):
    a, b, c = (core.zeros(40_000, "f4", home="cpu") for _ in range(3))
    core.prefetch([a, b, c], "cuda")
    core.add(a, b, out=c)
    token = core.current_stream.set(core.Stream(2))
    try:
        core.add(c, 1, out=c)
    finally:
        core.current_stream.reset(token)
    core.add(c, 1, out=c)
    assert c.read()[5] == 2
    core.synchronize()

if os.environ.get("OTHER_LIBRARY"):
    for device in range(2): hold(device)
before = fake.ledger()
del umem._core, sys.modules["umem._core"]

def live(code, arm):
    "Whether a call failed."
    core = importlib.import_module("umem._core")
    arm()
    told = False
    try:
        use(core)
    except (core.CudaError, core.OutOfMemoryError, core.DriverNotFoundError) as error:
        assert str(error)
        told = True
    failed = fake.last_failed()
    if failed:
        record.note(fake, code, told)
        fake.reset_faults()
        if not told and code == fake.UNKNOWN: survived.add(failed)
        if os.environ["WORKS"] == "yes": use(core)
    del core, umem._core, sys.modules["umem._core"]
    gc.collect()
    if not failed:
        failed = fake.last_failed() # while it closed
        record.note(fake, code, False)
        fake.reset_faults()
    assert fake.ledger() == before, (failed, before, fake.ledger())
    assert fake.leaked() == 0, failed
    assert fake.context_depth() == 0, failed
    fake.check()
    return failed is not None

gc.collect()
gc.freeze() # collections are quick then
for code in fake.UNKNOWN, fake.OUT_OF_MEMORY:
    n = 1
    while live(code, lambda: fake.fail_nth_call(n, code)): n += 1
    for symbol in os.environ["FOREVER"].split():
        assert live(code, lambda: fake.fail(symbol, code=code, forever=True))
print(record.dumps())
print(sorted(survived))
"""

#: where a life is lived
LIVES = {
    "one GPU": {},
    "two GPUs and another library": {"FAKECU_DEVICES": "2", "OTHER_LIBRARY": "1"},
    "a driver that is too old": {"FAKECU_VERSION": "11080", "WORKS": "no", "FOREVER": ""},
}


def live(run_python, name):
    """Runs LIFE there; which calls may fail there unnoticed."""
    settings = {"WORKS": "yes", "FOREVER": "cuLibraryLoadData cuLibraryGetKernel", **LIVES[name]}
    if name == "a driver that is too old":
        settings["UMEM_CUDA_LIBRARY"] = str(build.build(BUILD / "fake_cuda", driver_11=True))
    record, survived = run_python(LIFE, **settings).splitlines()
    RECORD.add(record)
    RECORDED.add(name)
    return set(ast.literal_eval(survived))


class TestLife:
    """Failures while the driver is started, at everything's first use, and while it is let go."""

    @pytest.mark.parametrize("name", LIVES)
    def test_each_call_in_turn(self, run_python, name):
        survived = live(run_python, name)
        # optional symbols, the NUMA node, a library where another one has the kernel (any of the fake's has),
        # the size of the memory, which says when to give empty slabs back first
        optional = {
            "cuDeviceGetName",
            "cuDeviceGetUuid",
            "cuDeviceTotalMem",
            "cuGetProcAddress",
            "cuDeviceGetAttribute",
            "cuLibraryLoadData",
            "cuLibraryGetKernel",
        }
        assert survived <= optional | TOLERATED | CONTEXT

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


def fail_names(umem, fake, backend, code):
    """The driver cannot say what its own errors are called."""
    a = umem.ones(COUNT, "f4")
    for symbol in ("cuGetErrorName", "cuGetErrorString"):
        fake.fail(symbol, code=getattr(fake, code))
        fake.fail("cuLaunchKernel", code=fake.LAUNCH_FAILED)
        with pytest.raises(umem.CudaError, match="cuLaunchKernel") as caught:
            umem.add(a, 1, out=a)
        assert caught.value.code == 719
        assert fake.last_failed() == symbol
        RECORD.note(fake, getattr(fake, code), False)
        fake.reset_faults()
    RECORDED.add((backend, "names", code))


@pytest.mark.parametrize("code", CODES)
def test_errors_without_names(umem, fake, backend, code):
    fail_names(umem, fake, backend, code)


def test_a_failed_export_hands_out_nothing(umem, fake):
    a = umem.ones(COUNT, "f4")
    umem.add(a, 1, out=a)
    fake.fail("cuEventQuery", code=fake.UNKNOWN, forever=True)
    fake.fail("cuStreamQuery", code=fake.UNKNOWN, forever=True)
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


#: calls whose failure nobody is told of although its result is looked at, and why
UNNOTICED = {
    # what is said is said without it
    ("result_name", "cuGetErrorName"), ("um_driver_error", "cuGetErrorString"), ("alloc_error", "cuMemGetInfo"),
    ("list_archs", "cuDeviceGetAttribute"), ("read_numa_node", "cuDeviceGetAttribute"),
    # given back all the same, and where no exception can come from
    ("um_cuda_mem_free", "cuMemFree"), ("um_cuda_stream_destroy", "cuStreamDestroy"),
    # the memory goes on waiting
    ("um_cuda_event_query", "cuEventQuery"),
}  # fmt: skip


@pytest.mark.timeout(900)  # run alone it runs everything
def test_no_call_site_is_left_out(umem, fake, backend, run_python):
    """Each place in src/ that calls the driver has failed, with each code; and somebody was told where it matters."""
    for code in CODES:
        for machine, names in {"fake": SCENARIOS, **dict.fromkeys(OTHERS, ELSEWHERE)}.items():
            for name in names:
                if (machine, name, code) not in RECORDED:
                    fail_each_call(
                        conftest.activate(machine), conftest.control(machine), machine, name, code
                    )
        conftest.activate(backend)
        for part, function in {"race": lose_the_race, "names": fail_names}.items():
            if (backend, part, code) not in RECORDED:
                function(umem, fake, backend, code)
                fake.reset_faults()
    for name in LIVES:
        if name not in RECORDED:
            live(run_python, name)
    here = {(site.function, site.symbol) for site in call_sites.all_sites()}
    assert here >= UNNOTICED, f"exempt, but no calls any more: {UNNOTICED - here}"
    sites = call_sites.sites_at(RECORD.failed)
    codes = {getattr(fake, code) for code in CODES}
    reached = [
        {site for call, site in sites.items() if code in RECORD.failed[call]} for code in codes
    ]
    noticed = {site for call, site in sites.items() if call in RECORD.noticed}
    everywhere = set.intersection(*reached)
    conftest.SUMMARY.append(
        f"driver call sites: {len(everywhere)} of {len(call_sites.all_sites())} reached by the fault loop"
    )
    missed = [str(site) for site in call_sites.all_sites() if site not in everywhere]
    assert not missed, "\n".join(missed)
    silent = [
        str(site)
        for site in call_sites.all_sites()
        if site not in noticed
        and not site.dropped
        and (site.function, site.symbol) not in UNNOTICED
    ]
    assert not silent, "\n".join(silent)
