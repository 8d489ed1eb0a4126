"""umem.stream: what is accepted as a stream, how far it reaches, and that work goes there."""

import asyncio
import contextvars
import threading

import numpy as np
import pytest

from support import label

gpu = pytest.mark.backends("fake", "cuda")
fake_only = pytest.mark.backends("fake")


@pytest.fixture
def handle(fake):
    stream = fake.stream_create()
    yield stream
    fake.stream_destroy(stream)


class Protocol:
    def __init__(self, pair):
        self.pair = pair

    def __cuda_stream__(self):
        return self.pair


class Attributes:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def forms(handle):
    """What other libraries' streams look like."""
    return {
        "int": handle,
        "__cuda_stream__": Protocol((0, handle)),
        "__cuda_stream__ attribute": Attributes(__cuda_stream__=(0, handle)),
        "torch": Attributes(cuda_stream=handle, device_index=0),
        "cupy": Attributes(ptr=handle, synchronize=lambda: None),
        "numba": Attributes(handle=Attributes(value=handle), synchronize=lambda: None),
        "pycuda": Attributes(handle=handle, synchronize=lambda: None),
    }


class TestForms:
    @fake_only
    @pytest.mark.parametrize("form", forms(5))
    def test_work_goes_to_the_stream(self, umem, fake, handle, form):
        a = umem.zeros(1000, "f4")
        umem.synchronize()
        with umem.stream(forms(handle)[form]) as s:
            assert isinstance(s, umem.Stream)
            assert s.handle == handle
            umem.add(a, 1, out=a)
        assert fake.pending(handle) >= 1
        assert fake.pending(0) == 0
        assert a[999] == 1

    @pytest.mark.parametrize("form", forms(5))
    @pytest.mark.backends("host")
    def test_any_is_accepted_without_a_gpu(self, umem, form):
        a = umem.zeros(1000, "f4")
        with umem.stream(forms(0xABCDE)[form]):
            umem.add(a, 1, out=a)
        assert a[999] == 1

    @pytest.mark.parametrize("default", [0, 1, 2])
    def test_the_default_streams(self, umem, default):
        a = umem.zeros(1000, "f4")
        for form in ("int", "__cuda_stream__", "torch", "cupy"):
            with umem.stream(forms(default)[form]):
                umem.add(a, 1, out=a)
        with umem.stream(Attributes(handle=Attributes(value=None), synchronize=lambda: None)):
            umem.add(a, 1, out=a)
        assert a[999] == 5

    @pytest.mark.parametrize(
        "bad",
        [None, "x", 1.5, object(), [1], Attributes(ptr=5), Attributes(handle=5), Protocol(5), Protocol((1, 5)), Protocol((0, "x")),
         Protocol((0,)), Attributes(cuda_stream="x"), -5, 2**70, Attributes(cuda_stream=-1), int, Protocol],
        ids=label,
    )  # fmt: skip
    def test_anything_else_is_refused(self, umem, bad):
        with pytest.raises((TypeError, ValueError), match="stream"):
            umem.stream(bad)
        a = umem.ones(3)
        assert (a + 1).sum() == 6

    def test_errors_of_an_object_are_passed_on(self, umem):
        class Broken:
            def __cuda_stream__(self):
                raise ZeroDivisionError("broken")

        with pytest.raises(ZeroDivisionError, match="broken"):
            umem.stream(Broken())

    def test_arguments(self, umem):
        with pytest.raises(TypeError):
            umem.stream()
        with pytest.raises(TypeError):
            umem.stream(0, 1)


class TestObject:
    @fake_only
    def test_attributes(self, umem, handle):
        s = umem.Stream(handle)
        assert s.handle == handle
        assert str(s.device) in ("cuda:0", "0")
        assert s.__cuda_stream__() == (0, handle)
        assert umem.Stream(s).handle == handle
        assert umem.Stream(handle) == s
        assert umem.Stream(handle) != umem.Stream(0)
        assert hash(umem.Stream(handle)) == hash(s)
        assert hex(handle)[2:] in repr(s).lower() or str(handle) in repr(s)
        with pytest.raises(AttributeError):
            s.handle = 5

    @fake_only
    def test_synchronize(self, umem, fake, handle):
        a = umem.zeros(1000, "f4")
        umem.synchronize()
        with umem.stream(handle) as s:
            umem.add(a, 1, out=a)
            assert fake.pending(handle) >= 1
            s.synchronize()
            assert fake.pending(handle) == 0
        umem.Stream(0).synchronize()

    def test_is_its_own_context_argument(self, umem):
        s = umem.Stream(0)
        with umem.stream(s) as inner:
            assert inner is s
        s.synchronize()


@gpu
class TestReach:
    @fake_only
    def test_nested_and_left_by_an_exception(self, umem, fake, handle):
        other = fake.stream_create()
        a = umem.zeros(1000, "f4")
        umem.synchronize()
        try:
            with umem.stream(handle):
                with pytest.raises(KeyError), umem.stream(other):
                    umem.add(a, 1, out=a)
                    assert fake.pending(other) > 0
                    raise KeyError
                umem.synchronize()
                umem.add(a, 1, out=a)
                assert fake.pending(handle) > 0
                assert fake.pending(other) == 0
            umem.synchronize()
            umem.add(a, 1, out=a)
            assert fake.pending(handle) == fake.pending(other) == 0
            assert a[0] == 3
        finally:
            umem.synchronize()
            fake.stream_destroy(other)

    @fake_only
    def test_one_object_may_be_entered_again(self, umem, fake, handle):
        context = umem.stream(handle)
        a = umem.zeros(1000, "f4")
        umem.synchronize()
        with context, context:
            umem.add(a, 1, out=a)
        assert fake.pending(handle) > 0
        with context:
            assert a[0] == 1
        umem.add(a, 1, out=a)
        assert fake.pending(handle) == 0

    @fake_only
    def test_other_threads_are_not_reached(self, umem, fake, handle):
        a = umem.zeros(1000, "f4")
        umem.synchronize()
        with umem.stream(handle):
            thread = threading.Thread(target=lambda: umem.add(a, 1, out=a))
            thread.start()
            thread.join()
            assert fake.pending(handle) == 0
            inherited = contextvars.copy_context()
            thread = threading.Thread(target=lambda: inherited.run(lambda: umem.add(a, 1, out=a)))
            thread.start()
            thread.join()
            assert fake.pending(handle) > 0
        assert a[0] == 2

    @fake_only
    def test_each_task_has_its_own(self, umem, fake, handle):
        other = fake.stream_create()
        a, b = umem.zeros(1000, "f4"), umem.zeros(1000, "f4")
        umem.synchronize()
        seen = []

        async def work(stream, array):
            with umem.stream(stream):
                await asyncio.sleep(0)
                umem.add(array, 1, out=array)
                seen.append((stream, fake.pending(stream)))
                await asyncio.sleep(0)

        async def both():
            await asyncio.gather(work(handle, a), work(other, b))

        try:
            asyncio.run(both())
            assert {stream for stream, pending in seen if pending} == {handle, other}
            assert a[0] == b[0] == 1
        finally:
            umem.synchronize()
            fake.stream_destroy(other)

    @fake_only
    def test_all_work_goes_there(self, umem, fake, handle):
        a, b = umem.zeros(1000, "f4"), umem.zeros(1000, "f4")
        umem.synchronize()
        for work in (
            lambda: a.fill(1),
            lambda: a + b,
            lambda: np.add(a, b),
            lambda: a.__iadd__(1),
            lambda: a.copy(),
            lambda: a.astype("f8"),
            lambda: a.__setitem__(slice(None), b),
            lambda: umem.axpy(2.0, a, b),
            lambda: umem.sum(a) if hasattr(umem, "sum") else a.sum(axis=0, keepdims=True),
        ):
            before = fake.counter("launches")
            with umem.stream(handle):
                made = work()
                assert fake.counter("launches") > before
                assert fake.pending(0) == 0
            umem.synchronize()
            del made

    @fake_only
    def test_work_is_ordered_between_streams(self, umem, fake, handle):
        other = fake.stream_create()
        a = umem.zeros(1000, "f4")
        umem.synchronize()
        try:
            for _ in range(5):
                with umem.stream(handle):
                    umem.add(a, 1, out=a)
                with umem.stream(other):
                    umem.multiply(a, 2, out=a)
                umem.add(a, 3, out=a)
            expected = 0.0
            for _ in range(5):
                expected = (expected + 1) * 2 + 3
            assert a[0] == expected
        finally:
            umem.synchronize()
            fake.stream_destroy(other)

    @fake_only
    def test_a_stream_may_end_before_its_work_is_waited_for(self, umem, fake):
        a = umem.zeros(1000, "f4")
        stream = fake.stream_create()
        with umem.stream(stream):
            umem.add(a, 1, out=a)
        fake.stream_destroy(stream)
        assert a[999] == 1
        umem.add(a, 1, out=a)
        assert a[0] == 2

    @fake_only
    def test_a_stream_of_another_device(self, run_python):
        out = run_python(
            """
import os, umem, numpy as np
from tests.fake_cuda.control import FakeCuda
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
a = umem.zeros(1000, "f4"); b = umem.zeros(1000, "f4", device=1); umem.synchronize()
s = fake.stream_create(1)
with umem.stream(s) as stream:
    c = b + 1
    print(stream.device, c.device, fake.pending(s) > 0)
    d = a + 1
    print(d[0], c[0])
fake.stream_destroy(s)
""",
            FAKECU_DEVICES="2",
        ).splitlines()
        assert out[0].split()[1:] == ["cuda:1", "True"]
        assert out[1] == "1.0 1.0"


class TestDeferred:
    @pytest.mark.parametrize("name", ["stream", "deferred"])
    def test_ends_where_it_began(self, umem, name):
        """A generator that another context finishes, as event loops do, is told; the block stays as it was."""
        setting = umem.deferred() if name == "deferred" else umem.stream(1)
        with pytest.raises(RuntimeError, match="enter and leave it in the same one"):
            setting.__exit__(None, None, None)
        before = umem._core.deferred_var.get(False)
        with umem.deferred():
            with pytest.raises(RuntimeError, match="enter and leave it in the same one"):
                contextvars.Context().run(setting.__exit__, None, None, None)
            assert umem._core.deferred_var.get()
        assert umem._core.deferred_var.get(False) == before

    def test_nests_and_ends_with_an_exception(self, umem):
        a = umem.zeros(1000, "f4")
        v = np.asarray(a)
        with pytest.raises(KeyError), umem.deferred(), umem.deferred():
            umem.add(a, 1, out=a)
            raise KeyError
        umem.add(a, 1, out=a)
        assert v[0] == 2

    def test_takes_no_argument(self, umem):
        with pytest.raises(TypeError):
            umem.deferred(True)

    @fake_only
    def test_reading_through_umem_waits_as_ever(self, umem, fake):
        a = umem.zeros(1000, "f4")
        v = np.asarray(a)
        with umem.deferred():
            umem.add(a, 1, out=a)
            assert fake.pending() > 0
            assert a[0] == 1
            umem.add(a, 1, out=a)
            assert np.asarray(a)[0] == 2
            umem.add(a, 1, out=a)
            assert "3." in str(a[:1])
        assert v[0] == 3

    @fake_only
    def test_is_of_this_thread_only(self, umem, fake):
        a = umem.zeros(1000, "f4")
        v = np.asarray(a)
        with umem.deferred():
            thread = threading.Thread(target=lambda: umem.add(a, 1, out=a))
            thread.start()
            thread.join()
            assert fake.pending() == 0
        assert v[0] == 1


class TestSynchronize:
    def test_everything_is_done(self, umem):
        a = umem.zeros(100_000, "f4")
        v = np.asarray(a)
        with umem.deferred():
            for _ in range(10):
                umem.add(a, 1, out=a)
        assert umem.synchronize() is None
        assert v[99_999] == 10

    @fake_only
    def test_other_librarys_work_too(self, umem, fake, handle):
        pointer = fake.device_alloc(4096)
        try:
            fake.submit_fill(pointer, 3, 4096, handle)
            umem.synchronize()
            assert fake.peek(pointer, 2) == b"\3\3"
        finally:
            fake.device_free(pointer)


#: What the programs below begin with.
HELD = """
import faulthandler, os, signal, threading, time
import numpy as np, umem
from tests.fake_cuda.control import FakeCuda

fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
concurrent = os.environ.get("FAKECU_CONCURRENT") != "0"

faulthandler.dump_traceback_later(90, exit=True)
signal.signal(signal.SIGALRM, signal.default_int_handler)

def interrupt(name, action, after=0.1):
    # The signal has to come from outside: on devices without concurrent access no other thread of Python runs meanwhile.
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        action()
    except BaseException as error:
        took, raised = time.monotonic() - began, type(error).__name__
        if raised == "KeyboardInterrupt" and took < 10:
            return
    else:
        took, raised = time.monotonic() - began, None
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(name, raised, took)

def iadd():
    global a
    a += 1
"""

#: Each wait for a GPU whose work takes for ever ends soon after Ctrl-C. Prints what does not.
INTERRUPT = (
    HELD
    + """
def no_room():
    umem.set_limit(umem.memory_stats()["reserved_bytes.all.current"])
    try:
        umem.empty(1 << 20, "u1")
    finally:
        umem.set_limit(None)

ways = {
    "synchronize": umem.synchronize,
    "stream": lambda: stream.synchronize(),
    "trim": umem.trim,
    "asarray": lambda: np.asarray(a),
    "array": lambda: np.array(a),
    "ufunc": lambda: np.spacing(a),
    "item": lambda: a[0],
    "item()": lambda: a.item(5),
    "tolist": lambda: a.tolist(),
    "print": lambda: print(a),
    "read": lambda: a.read(),
    "memoryview": lambda: memoryview(a),
    "numpy": lambda: a.numpy(),
    "array interface": lambda: a.__array_interface__,
    "dlpack": lambda: a.__dlpack__(),
    "work under a view": iadd,
    "no room": no_room,
}
umem.zeros(3)
others = fake.stream_create()
for stream in (umem.Stream(0, device=0), umem.Stream(others, device=0)):
    with umem.stream(stream):  # what is made once for all
        b = umem.zeros(3)
        fake.hold(True)
        interrupt("first", lambda: b.__iadd__(1)[0])
        fake.hold(False)
    b = umem.synchronize()
    umem.trim()
    for exported in (False, True):
        for way, action in ways.items():
            name = (way, stream.handle, exported)
            ledger = fake.ledger()
            a = umem.zeros(1000, "f4")
            umem.synchronize()
            if exported:
                a.__cuda_array_interface__
            freed = umem.zeros(1 << 20, "u1", home="cpu") if concurrent and way == "no room" else None
            view = a.numpy() if way == "work under a view" else None
            fake.hold(True)
            expected = 0
            with umem.stream(stream):
                if not concurrent:
                    interrupt((*name, "launch"), iadd)
                    expected = 1
                elif view is None:
                    umem.add(a, 1, out=a)
                    if freed is not None:
                        umem.add(freed.view("i4"), 1, out=freed.view("i4"))
                        freed = None
                    expected = 1
                if concurrent or way not in ("work under a view", "no room"):
                    interrupt(name, action)
                    expected += way == "work under a view"
            view = freed = None
            fake.hold(False)
            if np.asarray(a).min() != expected or a[3] != expected or not (a.read() == expected).all():
                print(name, a, expected)
            a = None
            umem.synchronize()
            umem.trim()
            if fake.ledger() != ledger:
                print(name, fake.ledger(), ledger)
fake.check()
"""
)


@fake_only
class TestInterrupts:
    """Ctrl-C ends a wait for a GPU; the work goes on, and the next access waits for it."""

    @pytest.mark.parametrize("concurrent", ["1", "0"])
    def test_every_wait_ends(self, run_python, concurrent):
        assert run_python(INTERRUPT, FAKECU_CONCURRENT=concurrent) == ""

    def test_an_interrupt_that_was_caught_does_not_come_again(self, run_python):
        """NumPy drops what one way to the memory raises and tries the next, which raises it again: only then."""
        out = run_python(
            HELD
            + """
import gc, weakref
class Mark: pass
def dropped():
    mark = Mark()
    marks.append(weakref.ref(mark))
    np.asarray(a)
marks = []
a = umem.zeros(1000, "f4")
umem.add(a, 1, out=a)
fake.hold(True)
interrupt("asarray", dropped)
print([mark() for mark in marks])
signal.setitimer(signal.ITIMER_REAL, 0.1)
threading.Timer(2, fake.hold, (False,)).start()
try:
    memoryview(a)
except KeyboardInterrupt:
    a.__array_interface__
print(fake.pending(), a[0])
"""
        )
        assert out.split("\n") == ["[None]", "0 1.0", ""]

    def test_a_handler_that_raises_nothing_runs_and_the_wait_goes_on(self, run_python):
        out = run_python(
            HELD
            + """
seen = []
def handler(number, frame):
    seen.append(time.monotonic() - began)
    fake.hold(False) if len(seen) > 1 else signal.setitimer(signal.ITIMER_REAL, 0.1)
signal.signal(signal.SIGALRM, handler)
a = umem.zeros(1000, "f4")
umem.add(a, 1, out=a)
fake.hold(True)
began = time.monotonic()
signal.setitimer(signal.ITIMER_REAL, 0.1)
print(a[0], len(seen), seen[0] < 10, time.monotonic() - began < 20)
"""
        )
        assert out == "1.0 2 True True\n"

    def test_an_exception_of_a_handler_ends_the_wait_as_it_is(self, run_python):
        out = run_python(
            HELD
            + """
def handler(number, frame):
    raise LookupError
signal.signal(signal.SIGUSR1, handler)
a = umem.zeros(1000, "f4")
umem.add(a, 1, out=a)
fake.hold(True)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
try:
    umem.synchronize()
except LookupError:
    print("raised")
fake.hold(False)
print(a[0])
"""
        )
        assert out == "raised\n1.0\n"

    def test_other_threads_wait_on(self, run_python):
        out = run_python(
            HELD
            + """
a = umem.zeros(1000, "f4")
umem.add(a, 1, out=a)
fake.hold(True)
got = []
thread = threading.Thread(target=lambda: got.append(a[0]))
thread.start()
interrupt("sleep", lambda: time.sleep(20))
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
interrupt("read", lambda: a[0], after=5)
signal.setitimer(signal.ITIMER_REAL, 0)
print(got, thread.is_alive())
fake.hold(False)
thread.join()
print(got[0], a[0])
"""
        )
        assert out == "[] True\n1.0 1.0\n"

    def test_a_wait_ends_while_others_go_on_adding_work(self, run_python):
        """The wait is for what was there when it began, also where each launch moves the stream's event."""
        out = run_python(
            HELD
            + """
fake.set_query_mode(0)
umem.zeros(3)
s = fake.stream_create()
for stream in (umem.Stream(0, device=0), umem.Stream(s, device=0)):
    a, b = umem.zeros(1000, "f4"), umem.zeros(1000, "f4")
    def add():
        with umem.stream(stream):
            while not done:
                umem.add(b, 1, out=b)
    done = []
    with umem.stream(stream):
        umem.add(a, 1, out=a)
    thread = threading.Thread(target=add)
    thread.start()
    runner = threading.Timer(0.3, lambda: [fake.step(stream.handle) for _ in range(100)])
    runner.start()
    print(a[0])
    done.append(True)
    thread.join(); runner.join()
fake.run_all()
fake.stream_destroy(s)
"""
        )
        assert out == "1.0\n1.0\n"
