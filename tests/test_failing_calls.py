"""The loop of test_failures.py for memory of the host: each call of the extension into CPython, NumPy and libc fails in turn.

Every failure raises MemoryError, or the operation does without and the result is right. It leaks nothing, leaves
arrays as they were, and the next operation works.
"""

import contextlib
import copy
import functools
import gc
import inspect
import io
import pickle
import warnings

import numpy as np
import pytest

from failing_calls import FailingCalls
from support import RECORD, Exporter, allocated, sample
from test_failures import COUNT, VARYING, Stage, value
from test_failures import SCENARIOS as DRIVER_SCENARIOS

pytestmark = pytest.mark.backends("host", "fake")


class SmallStage:
    """A few small arrays of several kinds, and one that owns its pages."""

    def __init__(self, umem):
        self.umem = umem
        self.a = umem.arange(COUNT, dtype="f4")
        self.small = umem.array(sample("f4"))
        self.numbers = umem.array(sample("i8"))
        self.record = umem.array(sample(RECORD))
        self.text = umem.array(sample("S3"))
        self.mask = umem.array(sample("?"))
        self.complex = umem.array(sample("c16"))
        self.one = umem.array([[5]])
        self.deep = umem.ones((1,) * 10)

    def check(self):
        """What no scenario writes is as it was, and the next operation works."""
        assert np.array_equal(self.a.read(), np.arange(COUNT, dtype="f4"))
        assert self.umem.add(self.a, 1)[COUNT - 1] == COUNT


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Attributes:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class CudaStream:
    def __cuda_stream__(self):
        return (0, 2)


def set_to(function, *parts):
    """`function`, a statement, and then the values of what it wrote."""

    def run(s):
        function(s)
        return [np.asarray(getattr(s, part)).tolist() for part in parts]

    return run


def beyond_the_limit(s):
    s.umem.set_limit(1 << 20)
    try:
        return s.umem.empty(1 << 21)
    except s.umem.OutOfMemoryError as error:
        return [error.requested, error.limit]
    finally:
        s.umem.set_limit(None)


def scope(s):
    with s.umem.memory_scope() as m:
        s.umem.empty(300_000, "u1")
    return m.allocated


def recording(s):
    file = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there was no memory for the log
        with s.umem.record_allocations(file):
            s.umem.empty(300_000, "u1")
    assert file.getvalue().startswith("umem-allocations 1\n")
    return s.umem._core.log_end()


def room_is_made(s):
    asked = []

    def make_room(requested_bytes, device):
        asked.append(requested_bytes)
        s.umem.set_limit(None)
        return True

    try:
        s.umem.on_out_of_memory(make_room)
        s.umem.set_limit(1 << 20)
        return [s.umem.empty(1 << 21, "u1").size, *asked]
    finally:
        s.umem.on_out_of_memory(None)
        s.umem.set_limit(None)


def cuda_interface(s, **fields):
    return Attributes(__cuda_array_interface__={**s.small.__cuda_array_interface__, **fields})


def frozen(array):
    array.flags.writeable = False
    return array


def random_numbers(rng, s):
    parts = [
        rng.random(9),
        rng.normal(1, 2, (3, 4)),
        rng.integers(2**40, size=5),
        rng.integers(-3, 3, 8, "i1"),
    ]
    rng.random(dtype="f4", out=s.small)
    return [*parts, s.small, rng.random(), rng.integers(5)]


class OldExporter:
    """An exporter older than DLPack 1.0."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


FLAGS = ["c_contiguous", "f_contiguous", "contiguous", "forc", "fnc", "behaved", "carray", "farray", "owndata", "aligned",
         "writebackifcopy", "num", "writeable"]  # fmt: skip

#: more of the extension, of which most asks nothing of the driver
SMALL_SCENARIOS = {
    "measures": lambda s: (s.small.shape, s.small.strides, s.small.ndim, s.small.size, s.small.nbytes, s.small.itemsize),
    "attributes": lambda s: (s.small.home, s.small.device, s.small.T, s.small[1].base),
    "flags": lambda s: [getattr(s.small.flags, name) for name in FLAGS],
    "flags by key": lambda s: [s.small.flags["C"], s.small.flags["WRITEABLE"], repr(s.small.flags)],
    "set a flag": lambda s: setattr(s.small.flags, "writeable", False),
    "set a flag by key": lambda s: s.small.flags.__setitem__("W", Index(1)),
    "no such flag": lambda s: s.small.flags["no"],
    "iterate": lambda s: [row.tolist() for row in s.small],
    "contains": lambda s: [3 in s.small, s.one in s.numbers],
    "as a scalar": lambda s: [bool(s.one), int(s.one), float(s.one), s.one.item(), range(9)[s.one[0, 0]]],
    "as a complex number": lambda s: complex(s.complex[:1, :1]),
    "as an index": lambda s: [1, 2, 3, 4, 5, 6][s.umem.array(5)],
    "item of several indices": lambda s: [s.small.item(1, 2), s.small.item((1, 2)), s.small.item(np.int64(3))],
    "item of a record": lambda s: str(s.record.item(1)),
    "element of a record": lambda s: str(s.record[1, 1]),
    "field": lambda s: s.record["a"],
    "fields": lambda s: s.record[["a", "c"]]["c"],
    "index of None and an Ellipsis": lambda s: s.small[None, ..., 1],
    "index of objects": lambda s: s.small[Index(1), Index(2) : Index(4)],
    "index of NumPy": lambda s: s.small[np.int64(1), np.array([1, 2])],
    "index of an array": lambda s: s.small[s.umem.array([1, 2])],
    "mask": lambda s: s.small[s.mask],
    "index out of bounds": lambda s: outcome(lambda s: s.small[99], s),
    "set a field": set_to(lambda s: s.record.__setitem__("a", 5), "record"),
    "set by a mask": set_to(lambda s: s.small.__setitem__(s.mask, 0), "small"),
    "set a record": set_to(lambda s: s.record.__setitem__((0, 0), s.record[1, 1]), "record"),
    "set a list": set_to(lambda s: s.small.__setitem__(..., [[1], [2], [3], [4]]), "small"),
    "set another dtype": set_to(lambda s: s.small.__setitem__(..., s.numbers), "small"),
    "set an overlap": set_to(lambda s: s.small.__setitem__(slice(1, None), s.small[:-1]), "small"),
    "set text": set_to(lambda s: s.text.__setitem__((0, 0), "ab"), "text"),
    "set a scalar of NumPy": set_to(lambda s: s.small.__setitem__(1, np.float64(7)), "small"),
    "set an element": set_to(lambda s: s.small.__setitem__((1, Index(1)), 7), "small"),
    "set what does not fit": lambda s: s.small.__setitem__(..., np.ones((3, 3))),
    "set text in numbers": lambda s: s.small.__setitem__((0, 0), "x"),
    "set what is read-only": lambda s: frozen(s.small).__setitem__(0, 1),
    "fill text": set_to(lambda s: s.text.fill("xy"), "text"),
    "fill with an array": set_to(lambda s: s.small[1:3].fill(s.one), "small"),
    "fill complex": set_to(lambda s: s.complex.fill(2 + 1j), "complex"),
    "reshape forms": lambda s: [s.small.reshape(6, 4), s.small.reshape((-1,)), s.small.T.reshape(-1, order="F")],
    "reshape copy": lambda s: s.small.T.reshape(-1, copy=True),
    "reshape to what does not fit": lambda s: s.small.reshape(5, 5),
    "ravel": lambda s: [s.small.ravel(), s.small.T.ravel(), s.small.ravel("K")],
    "transpose": lambda s: [s.small.transpose(1, 0), s.small.transpose((1, 0)), s.small.swapaxes(0, 1)],
    "transpose wrongly": lambda s: s.small.transpose(0, 0),
    "squeeze": lambda s: [s.one.squeeze(), s.one.squeeze(1), s.deep.squeeze((0, 1))],
    "view of another dtype": lambda s: s.small.view("i4"),
    "view of another size": lambda s: s.small.view("u1"),
    "parts": lambda s: [s.complex.real, s.complex.imag, s.small.real],
    "many axes": lambda s: [s.deep[0], s.deep.T, s.umem.empty((1,) * 12).ndim],
    "buffer of records": lambda s: bytes(memoryview(s.record)),
    "buffer of steps": lambda s: memoryview(s.small[::2, ::3]).tolist(),
    "buffer without a format": lambda s: s.umem.array(sample("M8[s]")).tobytes(),
    "no buffer": lambda s: memoryview(s.umem.array(sample("M8[s]"))),
    "buffer of what is read-only": lambda s: memoryview(frozen(s.small)).tolist(),
    "array struct": lambda s: np.asarray(Exporter(s.small, "__array_struct__")),
    "array interface of records": lambda s: np.asarray(Exporter(s.record, "__array_interface__")).tobytes(),
    "array interface of steps": lambda s: np.asarray(Exporter(s.small[::2, ::3], "__array_interface__")),
    "dlpack device": lambda s: s.small.__dlpack_device__(),
    "dlpack of steps": lambda s: np.from_dlpack(s.small[::2, ::3].on("cpu")),
    "dlpack of many axes": lambda s: np.from_dlpack(s.deep.on("cpu")),
    "dlpack of records": lambda s: s.record.__dlpack__(),
    "dlpack of what is read-only": lambda s: np.from_dlpack(frozen(s.small).on("cpu")),
    "dlpack copies": lambda s: [s.small.__dlpack__(copy=True), s.small.__dlpack__(dl_device=(1, 0), copy=True, max_version=(1, 1))],
    "dlpack on no device": lambda s: s.small.__dlpack__(dl_device=(7, 0)),
    "from_dlpack read-only": lambda s: s.umem.from_dlpack(frozen(np.arange(5.0))),
    "from_dlpack a copy": lambda s: s.umem.from_dlpack(np.arange(5.0), copy=True),
    "from_dlpack many axes": lambda s: s.umem.from_dlpack(np.ones((1,) * 10)),
    "from_dlpack reversed": lambda s: s.umem.from_dlpack(np.arange(9.0)[::-2]),
    "from_dlpack by an old exporter": lambda s: s.umem.from_dlpack(OldExporter(s.small)),
    "from_dlpack of nothing": lambda s: s.umem.from_dlpack(object()),
    "asarray of buffers": lambda s: [s.umem.asarray(bytearray(b"abcd")), s.umem.asarray(memoryview(s.small))],
    "asarray of an interface": lambda s: s.umem.asarray(Exporter(s.small, "__array_interface__")),
    "asarray of a list": lambda s: s.umem.asarray([[1, 2], [3, 4]]),
    "asarray of a tensor's kind": lambda s: s.umem.asarray(Exporter(s.small, "__dlpack__", "__dlpack_device__")),
    "cuda interface of records": lambda s: s.umem.asarray(Exporter(s.record, "__cuda_array_interface__")).tobytes(),
    "cuda interface of steps": lambda s: s.umem.asarray(Exporter(s.small[::2, ::3], "__cuda_array_interface__")),
    "cuda interface on a stream": lambda s: s.umem.asarray(cuda_interface(s, stream=2, strides=[24, 4])),
    "cuda interface of version 9": lambda s: s.umem.asarray(cuda_interface(s, version=9)),
    "cuda interface with a mask": lambda s: s.umem.asarray(cuda_interface(s, mask=s.small)),
    "cuda interface, no dtype": lambda s: s.umem.asarray(cuda_interface(s, typestr="?!")),
    "array from a GPU": lambda s: s.umem.array(Exporter(s.small, "__cuda_array_interface__")),
    "on the CPU": lambda s: [np.asarray(s.small.on("cpu")), s.small.on("cpu").__array_interface__["shape"]],
    "on a GPU": lambda s: [s.small.on("cuda").__cuda_array_interface__["shape"], s.small.on("cuda").__dlpack_device__()],
    "attributes of on": lambda s: [s.small.on("cpu").array, s.small.on("cpu").device, s.small.on("cpu").shape, repr(s.small.on("cpu"))],
    "stream": lambda s: (s.umem.Stream(2).handle, s.umem.Stream(2).device, s.umem.Stream(2).__cuda_stream__()),
    "repr of a stream": lambda s: repr(s.umem.Stream(2)),
    "stream of a device": lambda s: s.umem.Stream(2, device="cuda:0").device,
    "streams of libraries": lambda s: [s.umem.Stream(CudaStream()).handle, s.umem.Stream(Attributes(cuda_stream=2)).handle,
                                       s.umem.Stream(Attributes(ptr=2, synchronize=None)).handle,
                                       s.umem.Stream(Attributes(handle=Attributes(value=2), synchronize=None)).handle],
    "no stream": lambda s: s.umem.Stream("no"),
    "locations": lambda s: [s.a.prefetch(where) for where in (0, "cuda:0", "numa:0", Attributes(device_id=0), Attributes(numa_id=0),
                                                               Attributes(numa_id=None), Attributes(type="cuda", index=None),
                                                               Attributes(type="cpu", index=0), Index(0))],
    "no location": lambda s: s.a.prefetch("nowhere"),
    "no such location": lambda s: s.a.prefetch("cuda:99"),
    "no location for a home": lambda s: s.umem.empty(3, device="numa:0"),
    "advise forms": lambda s: [s.a.advise(advice, where) for advice, where in (("accessed_by", "cpu"), ("unset_accessed_by", "cpu"),
                                                                                 ("preferred_location", "cpu"), ("unset_read_mostly", None))],
    "residency of a part": lambda s: s.umem._core.residency(s.a[100:20000])[:2],
    "memory_stats of a device": lambda s: s.umem.memory_stats(0),
    "all of memory_stats": lambda s: len(s.umem.memory_stats()),
    "a scope": scope,
    "a recording": recording,
    "limits": lambda s: (s.umem.set_limit(1 << 40), s.umem.set_limit("512GiB", device=0), s.umem.get_limit(), s.umem.set_limit(None, device=0)),
    "reset the peak": lambda s: (s.umem.reset_peak_memory_stats() if hasattr(s.umem, "reset_peak_memory_stats") else s.umem._core.reset_peak()),
    "beyond the limit": beyond_the_limit,
    "room is made": room_is_made,
    "no function": lambda s: s.umem.on_out_of_memory(5),
    "loops": lambda s: [str(s.umem._core.op_loops(name)) for name in ("add", "negative", "true_divide")],
    "no loops": lambda s: s.umem._core.op_loops("no"),
    "extent": lambda s: s.umem._core.extent(s.small[::-1, ::2])[1],
    "read_all": lambda s: [part.tolist() for part in s.umem._core.read_all([s.small, s.numbers, s.record["a"]])],
    "random numbers": lambda s: random_numbers(s.umem.random.default_rng(5), s),
    "random numbers that cannot be": lambda s: s.umem._core.random_fill(s.small, "integers", 0, 0, 0, 1),
    "scalar operands": lambda s: [s.small + 1.5, s.small * np.float32(2), 2 - s.numbers, s.numbers + np.int64(3)],
    "operands in order F": lambda s: s.small.T + s.small.T,
    "operands of steps": lambda s: s.small[::2] - s.small[1::2],
    "operands to broadcast": lambda s: s.small + s.small[0],
    "operands of many axes": lambda s: s.deep + s.deep,
    "operands that do not broadcast": lambda s: s.umem.add(s.small, s.small[:3]),
    "no operand": lambda s: s.umem.add(s.small),
    "out of another shape": lambda s: s.umem.add(s.small, 1, out=s.one),
    "out of another dtype": set_to(lambda s: s.umem.add(s.numbers, 1, out=s.complex), "complex"),
    "out that is read-only": lambda s: s.umem.add(s.small, 1, out=frozen(s.small)),
    "axpy forms": lambda s: [s.umem.axpy(2, s.small, 1), s.umem.axpy(s.umem.array(2.0), s.numbers, s.small)],
    "divide integers": lambda s: s.numbers / 2,
    "huge scalar": lambda s: s.umem.array([1], "i4") + 2**40,
    "sum forms": lambda s: [s.small.sum(axis=(0, 1)), s.small.sum(0, keepdims=True), s.small.sum(dtype="f8"), s.small.sum(-1), s.mask.sum()],
    "sum of no such axis": lambda s: s.small.sum(axis=5),
    "sum into": set_to(lambda s: s.small.sum(axis=1, out=s.small[:, 0]), "small"),
    "sum of another dtype": lambda s: s.umem.array(sample("i2")).sum(axis=0),
    "mean": lambda s: [s.small.mean(), s.numbers.mean(axis=0)],
    "empty forms": lambda s: [s.umem.empty((2, 3), "(2,)i2", order="F").shape, s.umem.empty([3], "S").shape, s.umem.empty(np.int64(3)).shape,
                              s.umem.empty(2, device=0).shape, s.umem.zeros((), RECORD).shape],
    "negative length": lambda s: s.umem.empty(-1),
    "too many axes": lambda s: s.umem.empty((1,) * 65),
    "too large": lambda s: s.umem.empty((1 << 40, 1 << 40)),
    "objects": lambda s: s.umem.empty(3, object),
    "no order": lambda s: s.umem.empty(3, order="X"),
    "unknown argument": lambda s: s.umem.empty(3, what=1),
    "astype forms": lambda s: [s.small.astype("i4"), s.numbers.astype("f4", order="F"), s.small.astype("f4", copy=False)],
    "deepcopy": lambda s: copy.deepcopy(s.small),
    "old pickle": lambda s: pickle.loads(pickle.dumps(s.small, 2)),
    "text of it": lambda s: [str(s.small), f"{s.one[0, 0]:.2f}", repr(s.record), repr(s.mask)],
    "signatures": lambda s: [str(inspect.signature(function)) for function in (s.umem.add, s.umem.negative, s.umem.axpy)],
    "what functions say": lambda s: [s.umem.add.__doc__, s.umem.negative.__doc__, s.umem.axpy.__doc__, s.umem.add.__name__, repr(s.umem.add)],
    "compare streams": lambda s: [s.umem.Stream(1) == s.umem.Stream(0), s.umem.Stream(1) != s.umem.Stream(2), hash(s.umem.Stream(2))],
    "compare streams with others": lambda s: s.umem.Stream(1) == 1,
    "synchronize streams": lambda s: [s.umem.Stream(1).synchronize(), s.umem.Stream(2, device=0).synchronize()],
    "stream of another device": lambda s: s.umem.Stream(2, device=7),
    "prefetch by keywords": lambda s: s.a.prefetch(where="cpu"),
    "prefetch several": lambda s: s.umem.prefetch([s.a, s.small, s.a[5:]], where="cpu"),
    "prefetch nothing": lambda s: s.umem.prefetch([], "cpu"),
    "prefetch what is no array": lambda s: s.umem.prefetch([s.a, 5], "cpu"),
    "advise by keywords": lambda s: s.a.advise(advice="read_mostly", where=None),
    "discard a part": lambda s: s.umem.ones(COUNT, "f4")[: COUNT // 2].discard(),
    "home of a view": lambda s: setattr(s.a[5:], "home", "cpu"),
    "home of a small array": lambda s: setattr(s.small, "home", "cpu"),
    "no home": lambda s: setattr(s.a, "home", None),
    "copy_device": lambda s: s.umem._core.copy_device(Exporter(s.small[::2], "__cuda_array_interface__")),
    "run directly": lambda s: (s.umem._core.run("add", (s.small, s.small), s.small), s.umem._core.run("negative", (np.float32(2),), s.small)),
    "cast directly": lambda s: (s.umem._core.cast(s.numbers, s.small), s.umem._core.cast(np.float64(2), s.small)),
    "sum_into directly": lambda s: s.umem._core.sum_into(s.small, (1,), s.umem.zeros(4, "f4")),
    "reductions": lambda s: (s.numbers.argmax(), s.small.var(0), s.a.min(), s.a.std(), np.count_nonzero(s.a), np.linalg.norm(s.a), s.small.prod(1)),
    "as ctypes": lambda s: s.small.ctypes.shape[0],
}  # fmt: skip

SCENARIOS = {**DRIVER_SCENARIOS, **SMALL_SCENARIOS}
del SCENARIOS["large zeros"]  # the same calls as "zeros"

#: besides those of test_failures.py: what is allocated meanwhile counts
VARYING_TOO = {"memory_stats of a device", "no such location", "all of memory_stats", "a recording"}


@pytest.fixture
def failing(umem):
    return FailingCalls(umem._core)


@pytest.fixture
def ledger(umem, backend):
    """What umem holds when everything is freed and idle."""
    fake = None
    if backend == "fake":
        from backends import fake_library
        from fake_cuda.control import FakeCuda

        fake = FakeCuda(fake_library())

    def read(generation=1):
        gc.collect(generation)  # what an operation makes is young; everything else takes 25 ms
        umem.synchronize()
        umem.trim()
        kinds = ("managed", "device", "context", "library") if fake else ()
        return [allocated(umem), *(fake.live(kind) for kind in kinds)]

    return read


def outcome(scenario, stage):
    """A scenario is as good where it is refused: the error is then the result."""
    try:
        return value(scenario(stage))
    except (
        ArithmeticError,
        AttributeError,
        BufferError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        return type(error)


@pytest.mark.parametrize("onwards", [False, True], ids=["one", "all later too"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_call_fails(umem, failing, ledger, name, onwards):
    scenario = SCENARIOS[name]
    make_stage = SmallStage if name in SMALL_SCENARIOS else Stage
    expected = outcome(scenario, make_stage(umem))
    before = ledger(2)
    for n in range(1, 2000):
        stage = make_stage(umem)
        error = None
        result = None
        try:
            result = failing.run(n, functools.partial(outcome, scenario, stage), onwards=onwards)
        except MemoryError as caught:
            error = caught
        except Exception as caught:
            raise AssertionError(f"call {n}, {failing.failed}, failed") from caught
        failed = failing.failed
        if error is None and name not in VARYING | VARYING_TOO:
            assert result == expected, f"call {n}, {failed}, failed and the result is wrong"
        stage.check()
        del stage, error, result
        assert ledger() == before, f"call {n}, {failed}, failed and something leaked"
        if failed is None:
            break
    else:
        raise AssertionError("the scenario never ends without a failure")


def test_calls_do_fail(umem, failing):
    """That of the loop above is not for want of wrappers: they are in the tables of CPython, NumPy and libc."""
    a = umem.ones(5)
    names = set()
    for n in range(1, 200):
        with contextlib.suppress(MemoryError):
            failing.run(
                n, lambda: (umem.trim(), umem.zeros((1 << 20, 1), "i1"), a + 1, a.flags, a.numpy())
            )
        if failing.failed is None:
            break
        names.add(failing.failed)
    assert {"_PyObject_GC_New", "NewFromDescr", "DescrConverter", "calloc"} <= names


def test_no_memory_for_the_parts_of_a_new_slab(umem, failing):
    """However many unused structs are left, which are made 63 at a time: a slab that cannot be cut is not kept."""
    structs = []
    for n in range(1, 100):
        last = True
        for _ in range(64):
            structs.append(umem.empty(0))
            umem.trim()
            with contextlib.suppress(MemoryError):
                failing.run(n, lambda: umem.empty(1 << 20, "u1"), onwards=True)
            last = last and failing.failed is None
            a = umem.empty(1 << 20, "u1")
            a[-1] = 1
            assert a[-1] == 1
            del a
        if last:
            break
    else:
        raise AssertionError("never ends")


class TestOpening:
    def test_each_call_of_the_import_and_the_first_use(self, run_python):
        """A new copy of the extension for each call that fails: it is not there, or it works."""
        out = run_python(
            """
import importlib, sys
sys.path.insert(0, "tests")
import umem
from failing_calls import FailingCalls
failing = FailingCalls(umem._core)
refused = survived = 0

def use():
    sys.modules.pop("umem._core", None)
    core = importlib.import_module("umem._core")
    core.info()
    return core

def check(core):
    assert core.get_limit() == 1 << 30
    a = core.zeros(5)
    a[4] = 7
    assert a.numpy().tolist() == [0, 0, 0, 0, 7]

for onwards in (False, True):
    for n in range(1, 3000):
        try:
            core = failing.run(n, use, onwards=onwards)
        except MemoryError:
            refused += 1
        else:
            survived += 1
            check(core)
        check(use())
        if failing.failed is None:
            break
    else:
        raise AssertionError("never ends")
print(refused, survived)
""",
            UMEM_ALLOC_CONF="limit:1GiB,gc_threshold:80%,slab:4MiB,large_page:1MiB,max_split:64MiB,numa:off",
            UMEM_NUMA_NODES="0-3",
        )
        refused, survived = map(int, out.split())
        assert refused > 100
        assert survived < refused
