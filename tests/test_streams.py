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
