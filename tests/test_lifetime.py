"""Who keeps what alive: interpreter exit with all of it in use, garbage, other libraries, other processes."""

import gc
import os
import subprocess
import sys
import types
import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import backends
from support import IMMORTAL_MODULES, allocated

ROOT = Path(__file__).resolve().parent.parent

#: before each program that ends with things alive
START = """
import atexit, contextlib, gc, sys, threading
import numpy as np
import umem
a = umem.arange(100_000, dtype="f4").reshape(100, 1000)
small = umem.ones(3)
"""

#: what is alive when the interpreter exits
ALIVE = {
    "nothing but the module": "del a, small",
    "arrays": "b = [umem.zeros(10), a, {'x': umem.empty(0)}, umem.zeros(())]",
    "views": "views = a[3:], a.T, a[::-1, ::2], a[5].view('i4'), iter(a), iter(a[0]), a.flags, a.on('cpu')",
    "only a view": "view = a[3:].T; del a",
    "NumPy arrays": "n = np.asarray(a); m = a.numpy()[1:]; r = a.read(); del a",
    "memoryviews": "v = memoryview(a); w = memoryview(a[5])[1:]; x = v.cast('B', [400_000]); del a",
    "capsules": "c = a.__dlpack__(), a.__dlpack__(max_version=(1, 0)), a[2:].__dlpack__(copy=True, max_version=(1, 0))",
    "DLPack both ways": "n = np.from_dlpack(a.on('cpu')); b = umem.from_dlpack(n); c = umem.from_dlpack(a); del a",
    "interfaces": "i = a.__array_interface__, a.__array_struct__; b = umem.asarray(np.asarray(a))",
    "streams": "s = umem.Stream(2); stack = contextlib.ExitStack(); stack.enter_context(umem.stream(s)); a += 1",
    "a stream that was set": "token = umem._core.current_stream.set(umem.Stream(1)); a += 1",
    "deferred": "stack = contextlib.ExitStack(); stack.enter_context(umem.deferred()); v = a.numpy(); a += 1",
    "pending work": "b = a + a; umem.prefetch([a, b], 'cpu'); c = a * 2; d = c.sum(axis=0)",
    "memory that waits": "b = a + a; c = umem.add(a, b); del a, b",
    "exports": "x = a.on('cpu').__array_interface__; y = getattr(a, '__cuda_array_interface__', None); a += 1",
    "cycles": "class C: pass\nc = C(); c.a = a; c.me = c; l = [a, memoryview(a)]; l.append(l); del a, c, l",
    "cycles that are not collected": "gc.disable(); l = [a, memoryview(a), a[2:]]; l.append(l); del l, a",
    "weak references": "import weakref; r = weakref.ref(a, print); f = weakref.finalize(small, print, 'gone')",
    "an exception": "try: a[1000]\nexcept IndexError as e: sys.last_value = e",
    "errors of umem": "umem.set_limit(0)\ntry: umem.zeros(5)\nexcept umem.OutOfMemoryError as e: sys.last_exc = e",
    "other modules": "import builtins; np.x = a; sys.x = a[1:]; umem.x = a; umem.ndarray.x = a; builtins.x = a",
    "a method": "m = a.sum; f = umem.add; g = type(a).__getitem__",
    "threads' own": "local = threading.local(); local.a = a",
    "residency": "r = a.residency(); a.advise('read_mostly'); b = umem.empty(1000, home='cpu')",
    "pickles": "import pickle; b = []; p = pickle.dumps(a, protocol=5, buffer_callback=b.append); del a",
    "a deleted module": "for n in [n for n in sys.modules if n[:4] == 'umem']: del sys.modules[n]\ndel umem; a += 1",
}  # fmt: skip

#: what runs while the interpreter exits
EXITING = {
    "atexit": "atexit.register(lambda: print((a + 1).sum(), a[3, 4], umem.ones(3), umem.info()))",
    "atexit, synchronising": "b = a + 1; atexit.register(umem.synchronize)",
    "finalize": "import weakref; weakref.finalize(a, print, 'gone')",
    "sys.exit in a stream": """
with umem.stream(2):
    a += 1
    sys.exit(0)
""",
    "__del__": """
class Holder:
    def __init__(self, a): self.a = a
    def __del__(self): print(self.a.sum(), self.a[1, 2])
holder = Holder(a)
""",
    "__del__ in a cycle": """
class Holder:
    def __init__(self, a): self.a, self.me = a, self
    def __del__(self): print(self.a.shape, self.a[1, 2])
holder = Holder(a)
""",
    "a thread that is waited for": """
def work():
    for _ in range(30): umem.add(a, 1, out=a); print(a[0, :2])
threading.Thread(target=work).start()
""",
    "daemon threads": """
import time
def work():
    while True: b = a + a; b.sum(); memoryview(b)
for _ in range(3): threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""",
    "a frame's locals": """
def frame():
    b = a + 1
    raise SystemExit(0)
frame()
""",
}


def assert_ends_well(done) -> None:
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""


#: after a program in which umem's module stays, and its context: whether any array does
LAST = """
class Last:
    def __init__(self, stats, say): self.stats, self.say = stats, say
    def __del__(self):
        active = self.stats()["active.all.current"]
        if active: self.say(f"{active} arrays are left")
sys.goes_last = Last(umem.memory_stats, sys.stderr.write)
"""
#: what a context keeps that no array uses
KEPT = {"managed", "host", "stream", "event", "library", "context"}


@pytest.fixture
def run_to_the_end(run_python, backend, tmp_path):
    """As run_python with check=False. On the fake driver nothing may be left when the process has ended.

    module_stays: no array may be left, but what umem keeps
    """

    def run(code: str, all_goes: bool = True, *, module_stays: bool = False):
        report = tmp_path / "ledger"
        if module_stays:
            code += LAST
        done = run_python(code, check=False, FAKECU_EXIT_REPORT=str(report))
        if backend == "fake":
            ledger = dict(line.split() for line in report.read_text().splitlines())
            left = {kind: count for kind, count in ledger.items() if count != "0"}
            if module_stays:
                assert left.keys() <= KEPT, f"left at the end: {left}"
            else:
                assert (not left) == all_goes, f"left at the end: {left}"
        return done

    return run


class TestExit:
    @pytest.mark.parametrize("alive", ALIVE)
    def test_with_things_alive(self, run_to_the_end, alive):
        assert_ends_well(run_to_the_end(START + ALIVE[alive]))

    @pytest.mark.parametrize("what", EXITING)
    def test_with_things_going_on(self, run_to_the_end, what):
        # Python never ends the frames of daemon threads, so what they hold stays.
        all_goes = what != "daemon threads"
        module_stays = IMMORTAL_MODULES and what == "a thread that is waited for"
        assert_ends_well(run_to_the_end(START + EXITING[what], all_goes, module_stays=module_stays))

    def test_with_an_exception(self, run_to_the_end):
        done = run_to_the_end(START + "b = a + 1; a[1000]")
        assert done.returncode == 1
        assert done.stderr.rstrip().splitlines()[-1].startswith("IndexError")

    def test_with_a_library_that_frees_late(self, run_python):
        """torch lets go of its tensors, and so of umem's memory, after the interpreter's end."""
        pytest.importorskip("torch")
        code = """
import torch
t = torch.from_dlpack(a.on("cpu")); p = torch.nn.Parameter(t); torch.a_tensor = t
(p.sum() * 2).backward()
u = torch.utils.dlpack.to_dlpack(t); b = umem.from_dlpack(t[1:])
torch.an_array = b; del a, b
"""
        assert_ends_well(run_python(START + code, check=False))

    @pytest.mark.backends("fake")
    def test_with_a_broken_driver(self, run_python):
        code = """
import os; sys.path.insert(0, "tests")
from fake_cuda.control import FakeCuda
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
b = a + 1; v = memoryview(b); s = umem.Stream(2)
fake.set_sticky(fake.LAUNCH_FAILED)
"""
        assert_ends_well(run_python(START + code, check=False))


class TestCollector:
    """What the collector is told: it cannot free a cycle of which it does not see every reference."""

    def holders(self, umem):
        class Source:
            cuda_stream = 2

        a, source = umem.ones((2, 3)), Source()
        flags, exporter, stream = a.flags, a.on("cpu"), umem.Stream(source)
        module = sys.modules[
            type(umem.add).__module__ if "." in type(umem.add).__module__ else "umem._core"
        ]
        return [
            (a[1:], a), (a, a.dtype), (a, type(a)), (flags, a), (flags, type(flags)), (exporter, a), (exporter, type(exporter)),
            (stream, source), (stream, type(stream)), (umem.add, module), (umem.add, type(umem.add)),
            (module, type(a)), (module, type(flags)), (module, type(exporter)), (module, type(stream)), (module, type(umem.add)),
            (module, umem.CudaError), (module, umem.OutOfMemoryError), (module, umem.DriverNotFoundError),
        ]  # fmt: skip

    def test_references_are_seen(self, umem):
        for holder, held in self.holders(umem):
            assert any(found is held for found in gc.get_referents(holder)), (holder, held)

    def test_a_search_may_end_early(self, umem):
        gc.unfreeze()  # conftest.py has set modules aside, where a search does not look
        try:
            for holder, held in self.holders(umem):
                if gc.is_tracked(holder) or not IMMORTAL_MODULES:
                    found = gc.get_referrers(held)
                    assert any(each is holder for each in found), (holder, held)
                else:  # what is immortal is never found
                    assert isinstance(holder, types.ModuleType)
        finally:
            gc.freeze()

    def test_a_cycle_through_a_stream(self, umem):
        class Source:
            cuda_stream = 2

        source = Source()
        source.stream = umem.Stream(source)
        gone = weakref.ref(source)
        del source
        gc.collect()
        assert gone() is None

    def test_a_cycle_through_a_base(self, umem):
        class Source:
            def __init__(self):
                self.memory = np.arange(5.0)
                self.__array_interface__ = self.memory.__array_interface__

        source = Source()
        source.alias = umem.asarray(source)
        gone = weakref.ref(source)
        del source
        gc.collect()
        assert gone() is None


class TestGarbage:
    """What only garbage holds is freed."""

    HOLDERS: ClassVar = {
        "list": lambda a: [a],
        "view": lambda a: [a[1:], a.T],
        "memoryview": lambda a: [memoryview(a)],
        "NumPy's view": lambda a: [np.asarray(a)[1:]],
        "iterator": lambda a: [iter(a), map(abs, a)],
        "method": lambda a: [a.sum, a.fill],
        "flags": lambda a: [a.flags],
        "device view": lambda a: [a.on("cpu")],
        "exception": lambda a: [caught(a)],
        "generator": lambda a: [(x for x in a)],
        "closure": lambda a: [lambda: a],
    }

    @pytest.mark.parametrize("holder", HOLDERS)
    def test_cycles(self, umem, holder):
        before = allocated(umem)
        a = umem.zeros((100, 30))
        gone = weakref.ref(a)
        cycle = self.HOLDERS[holder](a)
        cycle.append(cycle)
        del a
        gc.collect()
        assert gone() is not None
        assert allocated(umem) == before + 24_000
        del cycle
        gc.collect()
        assert gone() is None
        assert allocated(umem) == before

    def test_a_view_keeps_the_base_and_nothing_else_does(self, umem):
        before = allocated(umem)
        a = umem.arange(1000)
        gone = weakref.ref(a)
        view = a[10:].reshape(9, 110)[2:].T[1:, 1]
        del a
        assert gone() is view.base
        assert view[0] == 10 + 3 * 110 + 1
        del view
        assert gone() is None
        assert allocated(umem) == before

    def test_weak_references(self, umem):
        a = umem.ones(10)
        told = []
        reference = weakref.ref(a, told.append)
        table = weakref.WeakValueDictionary(a=a)
        proxy = weakref.proxy(a)
        assert reference() is a
        assert proxy[3] == 1
        assert proxy.shape == (10,)
        view = a[:]
        assert weakref.ref(view) is not reference
        del view, a
        assert told == [reference]
        assert reference() is None
        assert "a" not in table
        with pytest.raises(ReferenceError):
            proxy.shape

    def test_arrays_may_be_revived(self, umem):
        saved = []

        class Holder:
            def __init__(self, a):
                self.a, self.me = a, self

            def __del__(self):
                saved.append(self.a)

        Holder(umem.arange(1000))
        gc.collect()
        assert saved[0].sum() == 499_500
        saved[0] += 1
        assert saved.pop()[999] == 1000

    def test_errors_keep_no_array(self, umem):
        a = umem.zeros(1000)
        gone = weakref.ref(a)
        for use in (
            lambda a: a[2000],
            lambda a: a.reshape(7),
            lambda a: umem.add(a, a, out=a[1:]),
            lambda a: a + umem.ones(3),
            lambda a: a.prefetch("nowhere"),
            lambda a: a.__dlpack__(stream=object()),
            lambda a: umem.prefetch([a, None], "cpu"),
            lambda a: a.astype("O"),
            lambda a: a.__setitem__(0, "text"),
            lambda a: a.view("i3"),
            lambda a: float(a),
        ):
            with pytest.raises((IndexError, ValueError, TypeError, BufferError)):
                use(a)
        del a
        gc.collect()
        assert gone() is None

    @pytest.mark.parametrize("times", [200])
    def test_types_and_functions_gain_no_references(self, umem, times):
        """Every new array, view, stream and iterator holds its type; each lets go of it."""

        def use():
            a = umem.ones((3, 4), "f4")
            s = umem.Stream(0)
            with umem.stream(s), umem.deferred():
                b = a + a
            iter(b), b.flags, b[1:], b.T, b.on("cpu"), memoryview(b), b.__dlpack__(), repr(b)
            umem.from_dlpack(b), umem.asarray(b.numpy()), b.residency(), umem.add(a, 1, out=b)
            (
                b.fill(2),
                b.sum(),
                b.sum(axis=0),
                b.astype("i4"),
                b.copy(),
                b.tolist(),
                b.prefetch("cpu"),
            )

        watched = [umem.ndarray, umem.Stream, umem.add, np.dtype("f4"), np.dtype("f8"), umem]
        watched += [type(umem.ones(3).flags), type(umem.ones(3).on("cpu")), None, True, (), ""]
        watched += [umem._core.current_stream, umem._core.deferred_var]
        use()
        gc.collect()
        before = [sys.getrefcount(x) for x in watched]
        for _ in range(times):
            use()
        gc.collect()
        grown = [sys.getrefcount(x) - n for x, n in zip(watched, before, strict=True)]
        assert max(grown) < times // 2, dict(zip(map(repr, watched), grown, strict=True))


def caught(a):
    """An exception whose traceback has a frame that holds the array."""
    try:
        a[1000]
    except IndexError as error:
        return error


class TestOutliving:
    """Memory is there as long as anybody uses it, umem or not."""

    def test_torchs_tensors(self, umem):
        torch = pytest.importorskip("torch")
        before = allocated(umem)
        a = umem.arange(1000, dtype="f4")
        t = torch.from_dlpack(a.on("cpu"))
        part = t[500:].view(2, 250)
        del a, t
        gc.collect()
        assert allocated(umem) == before + 4000
        others = [umem.full(1000, -1, dtype="f4") for _ in range(20)]
        part += 1
        assert part.sum().item() == np.arange(501, 1001).sum()
        again = umem.asarray(part)  # the memory is umem's, so it is shared
        del part, others
        gc.collect()
        assert again[1, 249] == 1000
        del again
        assert allocated(umem) == before

    def test_gradients(self, umem):
        torch = pytest.importorskip("torch")
        a = umem.ones(1000, "f4")
        p = torch.nn.Parameter(torch.from_dlpack(a.on("cpu")))
        loss = (p * p).sum()
        del a, p
        gc.collect()
        umem.full(1000, 5, dtype="f4")
        loss.backward()  # reads what it saved

    @pytest.mark.parametrize(
        "view",
        [np.asarray, memoryview, lambda a: np.from_dlpack(a.on("cpu")), lambda a: a.numpy()[:]],
        ids=["asarray", "memoryview", "from_dlpack", "numpy"],
    )
    def test_views(self, umem, view):
        before = allocated(umem)
        a = umem.arange(1000, dtype="i8")
        v = view(a[10:])
        del a
        gc.collect()
        others = [umem.full(1000, -1) for _ in range(20)]
        assert v[0] == 10
        assert v[989] == 999
        del v, others
        gc.collect()
        assert allocated(umem) == before

    def test_the_module(self, run_python):
        out = run_python(
            """
import gc, sys, weakref
import numpy as np
import umem
a = umem.arange(1000, dtype="f4")
v, b, add = np.asarray(a), a + a, umem.add
for name in [name for name in sys.modules if name.split(".")[0] == "umem"]: del sys.modules[name]
del umem
gc.collect()
print(a.sum(), (a + b)[999], v[999], add(a, 1)[5], a[a > 997].tolist())
print(repr(a[:2]), np.sqrt(a)[4], a.astype("i2").dtype)
"""
        )
        assert out.splitlines() == [
            "499500.0 2997.0 999.0 6.0 [998.0, 999.0]",
            "umem.array([0., 1.], dtype=float32) 2.0 int16",
        ]

    def test_a_module_that_nobody_uses_goes(self, run_python):
        """Each import makes a state of its own, with its own context; it ends with the last array."""
        out = run_python(
            """
import gc, sys, weakref
import numpy as np
def once():
    import umem
    a = umem.ones(1000, "f4"); b = a + a
    with umem.stream(0): b += 1
    total = b.sum()
    gone = weakref.ref(umem.ndarray), weakref.ref(umem), weakref.ref(umem.Stream)
    for name in [name for name in sys.modules if name.split(".")[0] == "umem"]: del sys.modules[name]
    return total, gone
for _ in range(5):
    total, gone = once()
    gc.collect()
    print(total, [r() for r in gone])
"""
        )
        assert out.splitlines() == ["3000.0 [None, None, None]"] * 5


class TestOtherProcesses:
    @pytest.mark.backends("host")
    def test_loaders_that_fork(self, run_python):
        """torch's DataLoader with workers over an array: each worker reads the memory it inherited."""
        pytest.importorskip("torch")
        out = run_python(
            """
import torch, numpy as np, umem
class Rows(torch.utils.data.Dataset):
    def __init__(self): self.data = umem.arange(4000, dtype="f8").reshape(100, 40)
    def __len__(self): return len(self.data)
    def __getitem__(self, i): return torch.from_numpy(self.data[i].numpy()) + (self.data[i] * 1)[0]
rows = Rows()
loader = torch.utils.data.DataLoader(rows, batch_size=10, num_workers=2, multiprocessing_context="fork")
for _ in range(2): print(sum(batch.sum().item() for batch in loader))
print(rows.data.sum())
"""
        )
        expected = np.arange(4000.0).sum() + np.arange(0, 4000, 40).sum() * 40
        assert [float(x) for x in out.split()] == [expected, expected, 7_998_000.0]

    @pytest.mark.backends("fake")
    def test_loaders_that_fork_are_told(self, run_to_the_end):
        pytest.importorskip("torch")
        done = run_to_the_end(
            """
import torch, umem
a = umem.arange(4000, dtype="f8").reshape(100, 40)
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, i): return torch.from_numpy(a[i].numpy())
try: list(torch.utils.data.DataLoader(Rows(), num_workers=1, multiprocessing_context="fork"))
except RuntimeError as error: print("spawn" in str(error), "fork" in str(error))
print(a.sum())
"""
        )
        assert_ends_well(done)
        assert done.stdout.split() == ["True", "True", "7998000.0"]

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_new_processes_get_pickles(self, umem, backend, method, tmp_path):
        """Arrays go there and back; each process has its own context, and ends well."""
        script = tmp_path / "program.py"
        script.write_text(
            """
import multiprocessing, sys
import numpy as np
import umem
def work(job):
    a, b = job
    a += 1
    return np.asarray(a).sum() + b.sum(), a[::2], type(a) is umem.ndarray
if __name__ == "__main__":
    a = umem.arange(10_000, dtype="f8")
    b = a.reshape(100, 100)[::2].T
    a += 1
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        for total, part, same_type in pool.map(work, [(a, b)] * 4):
            print(total, part.shape, part[4999], type(part) is umem.ndarray, same_type)
    print(a[0])
"""
        )
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, str(script), method],
            env={**os.environ, **backends.environment(backend), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert_ends_well(done)
        a = np.arange(10_000, dtype="f8") + 1
        total = (a + 1).sum() + a.reshape(100, 100)[::2].sum()
        assert done.stdout.splitlines() == [f"{total} (5000,) 10000.0 True True"] * 4 + ["1.0"]

    def test_a_child_that_exits_normally(self, run_to_the_end):
        """After a fork the child ends the interpreter with the parent's arrays alive."""
        code = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on forking with the driver's threads
b = a + a; v = memoryview(b); c = a.__dlpack__(); s = umem.Stream(0)
sys.stdout.flush()
pid = os.fork()
if pid:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(status, b[1, 1], a[99].max())
"""
        done = run_to_the_end(START + code)
        assert_ends_well(done)
        assert done.stdout.split() == ["0", "2002.0", "99999.0"]

    def test_a_child_that_tries_everything(self, run_python, backend):
        """With a GPU the memory is not there in a child: whatever needs it is refused. On the host the child has a copy."""
        out = run_python(
            """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on forking with the driver's threads
sys.path.insert(0, "tests")
import umem
from test_failing_calls import SCENARIOS, SMALL_SCENARIOS, SmallStage, outcome
from test_failures import Stage
stages = {name: SmallStage(umem) if name in SMALL_SCENARIOS else Stage(umem) for name in SCENARIOS}
expected = {name: outcome(SCENARIOS[name], (SmallStage if name in SMALL_SCENARIOS else Stage)(umem)) for name in SCENARIOS}
sys.stdout.flush()
child = os.fork()
if child == 0:
    answers = {name: outcome(SCENARIOS[name], stage) for name, stage in stages.items()}
    refused = [name for name in SCENARIOS if answers[name] is RuntimeError and expected[name] is not RuntimeError]
    print(len(refused), sorted({"operator", "zeros", "numpy", "prefetch", "flags"} & set(refused)), flush=True)
    os._exit(0) # the exit handlers of NVIDIA's driver may crash in a child (seen on an H200, driver 580.159)
else:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
    for stage in stages.values():
        stage.check()
""",
            PYTHONFAULTHANDLER="1",
        )
        count, names = out.split(maxsplit=1)
        if backend == "host":
            assert (count, names.strip()) == ("0", "[]")
        else:
            assert int(count) > 100
            assert names.strip() == "['numpy', 'operator', 'prefetch', 'zeros']"


class TestSubinterpreters:
    def test_are_refused_or_work(self, run_to_the_end):
        """NumPy does not support them; whatever umem does there, the main interpreter goes on."""
        code = """
import os
os.environ.pop("COVERAGE_PROCESS_CONFIG", None)  # coverage.py does not support them either
try: import _interpreters as interpreters
except ImportError: import _xxsubinterpreters as interpreters
program = '''
try:
    import umem
    a = umem.ones(3)
    a += 1
    assert a.sum() == 6
except ImportError: pass
'''
for _ in range(3):
    other = interpreters.create()
    print(interpreters.run_string(other, program))
    interpreters.destroy(other)
b = a + 1
print(b[1, 1], umem.ones(3).sum())
"""
        done = run_to_the_end(START + code, module_stays=IMMORTAL_MODULES)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "arrays are left" not in done.stderr
        assert done.stdout.split() == ["None"] * 3 + ["1002.0", "3.0"]
