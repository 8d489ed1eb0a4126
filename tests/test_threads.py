"""Many threads at once: each result is right, nothing is lost, and the books balance in the end.

The interpreter changes threads all the time. The code in C gives the GIL away wherever it waits: calls overlap. On a
free-threaded interpreter they overlap everywhere.
"""

import contextlib
import gc
import io
import pickle
import random
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from support import allocated, without_gil

THREADS = 6

gpu = pytest.mark.backends("fake", "cuda")


@pytest.fixture(autouse=True)
def restless():
    """Threads change after a few bytecodes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def balanced(umem):
    """What the test allocates is gone in the end, and so is the work."""

    def held():
        gc.collect()
        umem.synchronize()
        umem.trim()
        stats = umem.memory_stats()
        return {key: stats[key] for key in stats if key.endswith(".current") or "waiting" in key}

    before = held()
    yield
    assert held() == before


def together(work, count=THREADS):
    """Runs work(0) … work(count - 1) in threads that start at once; raises what one of them raised."""
    barrier = threading.Barrier(count)
    errors = []

    def run(i):
        barrier.wait()
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("balanced")
class TestApart:
    """Each thread with arrays of its own."""

    def test_everything_at_once(self, umem):
        def work(i):
            for n in range(15):
                a = umem.full((40, 50), i, dtype="f4")
                b = umem.arange(2000, dtype="f4").reshape(40, 50)
                c = a * 2 + b
                umem.add(c, 1, out=c)
                view = np.asarray(c)
                c += n
                last = 1999 + 2 * i + 1 + n
                assert view[39, 49] == last
                assert c[39, 49] == last
                assert c[::2].T[49, 0] == 49 + 2 * i + 1 + n
                assert str(last) in repr(c.astype("i8"))
                assert c.sum(dtype="f8") == 1999 * 1000 + 2000 * (2 * i + 1 + n)
                assert c.astype("i8")[0, 0] == 2 * i + 1 + n
                c.prefetch("cpu" if n % 2 else "cuda")
                assert c.read()[1, 1] == 51 + 2 * i + 1 + n
                assert c.residency().nbytes == 8000
                c[5:7] = b[5:7]
                assert c[6, 0] == 300
                d = umem.empty(c.shape, home="cpu")
                d[...] = c
                assert d[6, 0] == 300
                assert np.from_dlpack(c.on("cpu"))[6, 1] == 301
                assert umem.from_dlpack(c)[6, 2] == 302
                assert pickle.loads(pickle.dumps(c))[6, 3] == 303
                del a, b, d, view

        together(work)

    def test_allocating_and_freeing(self, umem):
        sizes = [0, 1, 1000, 70_000, 1_000_000]

        def work(i):
            mine = []
            for n in range(60):
                size = sizes[(i + n) % len(sizes)]
                mine.append((umem.full(size, i * 1000 + n, dtype="i4"), i * 1000 + n))
                if len(mine) > 5:
                    array, value = mine.pop(n % 5)
                    assert (array.read() == value).all()

        together(work)

    def test_freeing_what_others_allocated(self, umem):
        """Arrays go from thread to thread, and die wherever they are when they are done."""
        from queue import Queue

        queues = [Queue() for _ in range(THREADS)]

        def work(i):
            for n in range(40):
                queues[(i + 1) % THREADS].put((umem.full(20_000, n, dtype="f4") + 1, n))
                array, value = queues[i].get(timeout=60)
                array *= 2
                assert array[n] == 2 * (value + 1)

        together(work)

    @gpu
    def test_freeing_what_is_in_use(self, umem):
        """Whoever drops the last reference, and while its work is pending, the memory goes back when that is done."""
        boxes = [[umem.zeros(20_000, "f4") for _ in range(10)] for _ in range(THREADS)]
        for box in boxes:
            for n in range(10):
                umem.add(box[n], 1, out=box[n])

        def work(i):
            box = boxes[(i + 1) % THREADS]
            while box:
                box.pop()
                umem.zeros(10_000, "f4")

        together(work)

    def test_values_survive_when_memory_is_used_again(self, umem):
        def work(i):
            total = umem.zeros(20_000, "i8")
            for n in range(40):
                part = umem.full(20_000, i + n, dtype="i8")
                umem.add(total, part, out=total)
                del part
                umem.empty(20_000, "i8").fill(-(10**9))
            assert (total.read() == sum(i + n for n in range(40))).all()

        together(work)

    def test_weak_references(self, umem):
        """Those of one thread end with arrays that die in another."""

        def work(i):
            for n in range(60):
                a = shared[n % 3]
                seen = weakref.ref(a)
                assert seen() is a
                shared[n % 3] = umem.zeros(10)
                view = umem.ones(100)[i:]
                ends = weakref.ref(view)
                del a, view
                assert ends() is None
                found = seen()
                assert found is None or found.shape == (10,)

        shared = [umem.zeros(10) for _ in range(3)]
        together(work)
        shared.clear()

    def test_collecting_garbage(self, umem):
        before = allocated(umem)

        def work(i):
            for _ in range(30):
                cycle = [umem.zeros(1000), memoryview(umem.ones(10))]
                cycle.append(cycle)
                cycle[0] += 1
                del cycle
                if i == 0:
                    gc.collect(1)

        together(work)
        gc.collect()
        umem.synchronize()
        assert allocated(umem) == before

    def test_saving(self, umem):
        files = [[io.BytesIO() for _ in range(10)] for _ in range(THREADS)]

        def work(i):
            for file in files[i]:
                umem.save(file, umem.full((30, 30), i) + 1)

        together(work)
        # Loaded one after the other: np.load parses the header with ast, which CPython 3.11 cannot do in several
        # threads that switch this often (SystemError: AST constructor recursion depth mismatch).
        for i, row in enumerate(files):
            for file in row:
                file.seek(0)
                assert umem.load(file)[29, 29] == i + 1


@pytest.mark.usefixtures("balanced")
class TestOneArray:
    """Several threads use the same array."""

    def test_reading(self, umem):
        a = umem.arange(50_000, dtype="f4").reshape(250, 200)
        a += 1
        text, total = repr(a), a.sum(dtype="f8")

        def work(i):
            for n in range(20):
                assert a[n, i] == n * 200 + i + 1
                assert a.sum(dtype="f8") == total
                assert repr(a) == text
                assert (a + n)[1, 1] == 202 + n
                assert memoryview(a)[2, 2] == 403
                assert a[n:].T.read()[0, 0] == n * 200 + 1
                assert np.max(a) == 50_000
                assert a.tolist()[249][199] == 50_000

        together(work)

    def test_each_its_part(self, umem):
        a = umem.zeros((THREADS, 30_000), dtype="i4")

        def work(i):
            row = a[i]
            for n in range(40):
                row += i
                a[i, n] += 1
                assert row[29_999] == (n + 1) * i

        together(work)
        expected = np.repeat(np.arange(THREADS, dtype="i4")[:, None] * 40, 30_000, axis=1)
        expected[:, :40] += 1
        assert np.array_equal(a, expected)

    @gpu
    def test_additions_on_one_stream_all_count(self, umem):
        """Kernels of one stream run one after the other, whoever launches them."""
        a = umem.zeros(30_000, dtype="i4")
        one = umem.ones(30_000, dtype="i4")

        def work(_):
            for _ in range(50):
                umem.add(a, one, out=a)

        together(work)
        assert (a.read() == 50 * THREADS).all()

    def test_one_computes_while_the_other_looks(self, umem):
        """What is seen through umem only grows."""
        a = umem.zeros(30_000, dtype="i8")
        done = threading.Event()

        def work(i):
            if i == 0:
                try:
                    for _ in range(200):
                        umem.add(a, 1, out=a)
                finally:
                    done.set()
                return
            seen = 0
            while not done.is_set():
                now = (int(a[5]), int(a.read()[29_999]), int(a[100:101].item()))[i - 1]
                assert seen <= now <= 200
                seen = now

        together(work, 4)
        assert (a.read() == 200).all()

    def test_under_live_views(self, umem):
        """Rule 3 holds in each thread: after its own kernel it sees its own result in the view."""
        a = umem.zeros((THREADS, 5000), dtype="i4")
        view = np.asarray(a)

        def work(i):
            row = a[i]
            for n in range(40):
                umem.add(row, 1, out=row)
                assert view[i, 4999] == n + 1
                assert view[i, 0] == n + 1

        together(work)

    def test_handed_out_every_way(self, umem, on_gpu):
        a = umem.arange(3000, dtype="f4").reshape(30, 100)
        address = a.numpy().ctypes.data
        ways = [
            lambda: np.asarray(a),
            lambda: np.asarray(memoryview(a)),
            lambda: np.asarray(a.on("cpu")),
            lambda: np.from_dlpack(a.on("cpu")),
            lambda: umem.from_dlpack(a).numpy(),
            lambda: umem.asarray(np.asarray(a)).numpy(),
            lambda: a.T.numpy().T,
            lambda: a.reshape(100, 30).reshape(-1).numpy().reshape(30, 100),
            lambda: a[:, :].view("i4").view("f4").numpy(),
        ]
        interfaces = ["__array_interface__", *["__cuda_array_interface__"] * on_gpu]

        def work(i):
            for n in range(40):
                view = ways[(i + n) % len(ways)]()
                assert view.ctypes.data == address
                assert view[n % 30, 5] == n % 30 * 100 + 5
                for name in interfaces:
                    seen = getattr(a, name)
                    assert (seen["data"], seen["typestr"]) == ((address, False), "<f4")
                assert a.__array_struct__
                assert a.__dlpack__(max_version=(1, 0))
                assert pickle.loads(pickle.dumps(a[n % 30]))[5] == n % 30 * 100 + 5

        together(work)

    @pytest.mark.backends("fake")
    def test_views_that_end_are_forgotten(self, umem, fake):
        """However views and changes of the flag overlap, none is counted twice and none is left (rule 3)."""
        a = umem.zeros(5000, "f4")
        others = [a[i:] for i in range(THREADS)]

        def work(i):
            for n in range(100):
                mine = (a, others[i])[n % 2]
                views = [np.asarray(a), memoryview(mine), mine.numpy(), memoryview(a.T)]
                a.flags.writeable = n % 3 == 0
                views.append(np.asarray(a))
                del views

        together(work)
        a.flags.writeable = True
        umem.synchronize()
        umem.add(a, 1, out=a)
        assert fake.pending() > 0
        assert a[0] == 1

    @gpu
    def test_the_interface_says_what_the_flag_says(self, umem):
        """It is made once and then copied: also when it is first read by several threads, while others set the flag."""
        arrays = [umem.zeros(10, "f4") for _ in range(300)]

        def work(i):
            for n, a in enumerate(arrays):
                if i < 2:
                    a.flags.writeable = (n + i) % 2 == 0
                seen = a.__cuda_array_interface__
                assert seen["shape"] == (10,)
                assert seen["data"][1] in (True, False)
                seen.clear()

        together(work)
        for a in arrays:
            assert a.__cuda_array_interface__["data"][1] == (not a.flags.writeable)

    def test_one_capsule_for_all(self, umem):
        """An exporter may give the same capsule to several threads: one of them gets the tensor."""

        class Exporter:
            def __init__(self, array):
                self.capsule = array.on("cpu").__dlpack__()

            def __dlpack__(self, **kwargs):
                return self.capsule

            def __dlpack_device__(self):
                return (1, 0)

        exporters = [Exporter(umem.full(300, n)) for n in range(200)]
        got, late = [], []

        def work(_):
            for n, exporter in enumerate(exporters):
                try:
                    got.append((n, umem.from_dlpack(exporter)))
                except ValueError as error:
                    late.append(error)

        together(work)
        assert sorted(n for n, _ in got) == list(range(200))
        assert len(late) == 200 * (THREADS - 1)
        assert all(array[299] == n for n, array in got)

    def test_keys_that_change(self, umem):
        """A list of fields may change while it is a key: the fields are the old ones, the new ones, or an error."""
        a = umem.zeros(5, [("x", "f4"), ("y", "f4"), ("z", "f4")])
        key = ["x", "y", "z"]

        def work(i):
            for n in range(300):
                if i % 2:
                    with contextlib.suppress(IndexError, KeyError, ValueError):
                        assert set(a[key].dtype.names) <= {"x", "y", "z"}
                else:
                    key[:] = [["x"], ["x", "y", "z"], [], [f"{n}"] * 50][n % 4]

        together(work)

    def test_moving_it_about(self, umem):
        a = umem.arange(100_000, dtype="f4")

        def work(i):
            for n in range(20):
                if i == 0:
                    a.prefetch("cuda" if n % 2 else "cpu")
                elif i == 1:
                    umem.prefetch([a[:50_000], a], "cpu" if n % 2 else "cuda")
                elif i == 2:
                    a.home = (None, "cpu")[n % 2]
                elif i == 3:
                    a.advise("read_mostly" if n % 2 else "unset_read_mostly")
                else:
                    a.residency()
                assert a[n] == n
                assert (a * 2)[99_999] == 199_998

        together(work)
        assert np.array_equal(a, np.arange(100_000, dtype="f4"))

    def test_the_last_view_may_go_anywhere(self, umem):
        for _ in range(20):
            views = [umem.full(20_000, 3, dtype="f4")]
            views += [views[0][i:] for i in range(THREADS - 1)]

            def work(i, views=views):
                view, views[i] = views[i], None
                assert view[0] == 3
                assert np.asarray(view)[-1] == 3

            together(work)

    def test_anything_in_any_order(self, umem):
        a = umem.ones((200, 300), "f4")

        def act(n, where):
            if n == 0:
                a.prefetch(where)
            elif n == 1:
                umem.prefetch([a, a[5:]], where)
                umem.trim()
            elif n == 2:
                umem.synchronize()
            elif n == 3:
                r = a.residency()
                assert r.host + r.device + r.untouched + r.unknown == a.nbytes
            elif n == 4:
                with umem.stream(2):
                    assert (a * 3).sum(axis=0)[5] == 600
            elif n == 5:
                assert umem.asarray(a.numpy())[3, 4] == 1
            elif n == 6:
                a.__dlpack__(max_version=(1, 0))
            elif n == 7:
                assert a.T[5:9].copy().sum() == 800
            elif n == 8:
                with umem.deferred():
                    b = a - 1
                assert not b.any()
            elif n == 9:
                assert repr(a).startswith("umem.array([[1., 1.,")
            else:
                assert (a + a)[199, 299] == 2

        def work(i):
            chance = random.Random(i)
            for _ in range(80):
                act(chance.randrange(11), chance.choice(["cpu", "cuda"]))

        together(work)
        assert (np.asarray(a) == 1).all()

    def test_flags_and_attributes(self, umem):
        a = umem.zeros((30, 40))

        def work(i):
            for n in range(100):
                a.flags.writeable = (n + i) % 2 == 0
                assert a.flags["WRITEABLE"] in (True, False)
                assert (a.shape, a.strides, a.nbytes) == ((30, 40), (320, 8), 9600)
                assert a.device
                assert a.base is None
                view = a.reshape(40, 30)
                assert view.base is a
                with contextlib.suppress(ValueError):
                    a[n % 30] = 0

        together(work)
        a.flags.writeable = True


class TestStreams:
    """Each thread with a stream of its own."""

    @pytest.fixture
    def handles(self, fake):
        streams = [fake.stream_create(blocking=i % 2 == 0) for i in range(THREADS)]
        yield streams
        for stream in streams:
            fake.stream_destroy(stream)

    @pytest.mark.backends("fake")
    @pytest.mark.usefixtures("balanced")
    def test_own_work(self, umem, handles):
        def work(i):
            with umem.stream(handles[i]) as s:
                a = umem.zeros(20_000, dtype="i4")
                for n in range(40):
                    umem.add(a, i, out=a)
                    if n % 10 == i % 10:
                        s.synchronize()
                assert umem._core.current_stream.get() is s
                assert (np.asarray(a) == 40 * i).all()

        together(work)

    @pytest.mark.backends("fake")
    @pytest.mark.usefixtures("balanced")
    def test_shared_operands_are_ordered(self, umem, handles):
        """All streams read what one wrote, and one reads what all wrote."""
        a = umem.zeros(20_000, dtype="i4")
        parts = [umem.zeros(20_000, dtype="i4") for _ in range(THREADS)]
        barrier = threading.Barrier(THREADS)

        def work(i):
            with umem.stream(handles[i]):
                for n in range(15):
                    if i == 0:
                        umem.add(a, 1, out=a)
                    barrier.wait(60)
                    umem.add(parts[i], a, out=parts[i])
                    barrier.wait(60)
                    if i == n % THREADS:
                        total = umem.zeros(20_000, dtype="i4")
                        for part in parts:
                            umem.add(total, part, out=total)
                        assert total[19_999] == THREADS * sum(range(1, n + 2))
                    barrier.wait(60)

        try:
            together(work)
        finally:
            barrier.abort()

    @pytest.mark.backends("fake")
    def test_exports_to_each_others_streams(self, umem, handles):
        a = umem.zeros(20_000, dtype="f4")

        def work(i):
            with umem.stream(handles[i]):
                for _ in range(30):
                    a.__dlpack__(stream=handles[(i + 1) % THREADS], max_version=(1, 0))
                    assert a.__cuda_array_interface__["data"][0]
                    b = umem.from_dlpack(a)
                    umem.multiply(b, 1, out=b)

        together(work)
        assert a[5] == 0

    @pytest.mark.backends("fake")
    @pytest.mark.usefixtures("balanced")
    def test_one_stream_for_all(self, umem, handles):
        shared = umem.Stream(handles[0])
        a = umem.zeros(20_000, dtype="i4")

        def work(i):
            for n in range(30):
                with umem.stream(shared if n % 2 else handles[0]) as s:
                    assert s == shared
                    assert hash(s) == hash(shared)
                    umem.add(a, 1, out=a)
                    with umem.stream(handles[i]):
                        umem.zeros(5000) + 1
                    if n % 10 == i:
                        s.synchronize()

        together(work)
        assert (a.read() == 30 * THREADS).all()

    @pytest.mark.usefixtures("balanced")
    def test_the_default_streams(self, umem):
        def work(i):
            with umem.stream((0, 1, 2)[i % 3]):
                a = umem.zeros(20_000, dtype="f8")
                for n in range(30):
                    with umem.deferred() if n % 2 else contextlib.nullcontext():
                        umem.axpy(2, a, a, out=a)
                        umem.add(a, i, out=a)
                umem.synchronize()
                assert a[7] == a[19_999]
            with pytest.raises(LookupError):
                umem._core.current_stream.get()

        together(work)


class TestSettings:
    def test_limits(self, umem):
        """Every thread gets its memory or an error, and all together never more than the limit."""
        before = allocated(umem)
        limit = before + 3 * 800_000 + 1000
        umem.set_limit(limit)
        got, errors = [], []

        def work(_):
            for _ in range(40):
                try:
                    a = umem.empty(100_000)
                except umem.OutOfMemoryError as error:
                    errors.append(error)
                else:
                    got.append(allocated(umem))
                    del a

        together(work)
        assert len(got) + len(errors) == 40 * THREADS
        assert len(got) >= 40
        assert max(got) <= limit
        assert {(e.requested, e.limit) for e in errors} <= {(800_000, limit)}
        assert allocated(umem) == before

    def test_limits_that_change(self, umem):
        """What is allocated fits a limit that was in force, and nothing is counted wrongly."""
        before = allocated(umem)
        limits = [None, before + 5 * 80_000, before + 100, "50%"]
        refused = []

        def work(i):
            for n in range(60):
                if i == 0:
                    umem.set_limit(limits[n % 4])
                    assert umem.get_limit() is None or umem.get_limit() > 0
                    continue
                try:
                    a = umem.empty(10_000)
                except umem.OutOfMemoryError as error:
                    refused.append(
                        error.requested
                    )  # the error itself would keep the arrays of its traceback
                else:
                    a.fill(n)
                    assert a[9_999] == n

        together(work)
        umem.set_limit(None)
        assert set(refused) <= {80_000}
        umem.synchronize()
        umem.trim()
        assert allocated(umem) == before

    def test_statistics_meanwhile(self, umem):
        before = umem.memory_stats()

        def work(i):
            for n in range(50):
                if i % 2:
                    umem.empty(1000 * (n + 1))
                else:
                    stats = umem.memory_stats()
                    assert stats["allocated_bytes.all.current"] <= stats["allocated_bytes.all.peak"]
                    assert umem.memory_summary()
                    umem.trim()
                    umem.info()
                    umem.devices()

        together(work)
        umem.synchronize()
        after = umem.memory_stats()
        assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
        assert after["active.all.current"] == before["active.all.current"]
        for kind, expected in (("active", 150), ("allocated_bytes", 150 * 25.5 * 8000)):
            for what in ("allocated", "freed"):
                key = f"{kind}.all.{what}"
                assert after[key] - before[key] == expected


class TestFirstUse:
    """Threads that open the context together get one."""

    def test_with_settings(self, run_python):
        """Whoever opens it, UMEM_ALLOC_CONF holds for all."""
        out = run_python(
            """
import sys, threading; sys.setswitchinterval(1e-5)
import umem
barrier, limits, errors = threading.Barrier(8), [], []
calls = [umem.get_limit, lambda: umem.info()["limit"], lambda: umem.Stream(1) and umem.get_limit(),
         lambda: umem.empty(3).nbytes and umem.get_limit()]
def work(i):
    barrier.wait()
    try: limits.append(calls[i % 4]())
    except BaseException as error: errors.append(error)
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(set(limits), errors)
""",
            UMEM_ALLOC_CONF="limit:1GiB",
        )
        assert out.strip() == f"{{{1 << 30}}} []"

    def test_at_once(self, run_python):
        out = run_python(
            """
import sys, threading; sys.setswitchinterval(1e-5)
import umem
barrier, backends, errors = threading.Barrier(8), [], []
def work(i):
    barrier.wait()
    try:
        a = umem.ones(1000, "f4") + i
        backends.append((umem.info()["backend"], float(a[5]) == i + 1))
    except BaseException as error: errors.append(error)
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(set(backends)), len(backends), errors, umem.memory_stats()["allocated_bytes.all.current"])
"""
        )
        assert out.split() == ["1", "8", "[]", "0"]

    def test_importing_at_once(self, run_python):
        out = run_python(
            """
import sys, threading; sys.setswitchinterval(1e-5)
barrier, results = threading.Barrier(8), []
def work(i):
    barrier.wait()
    import umem
    results.append(umem.ones(10).sum())
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(results == [10.0] * 8)
"""
        )
        assert out.strip() == "True"

    @pytest.mark.backends("fake")
    def test_threads_that_never_had_a_context(self, umem, fake):
        """A thread needs nothing of its own before its first call, and umem leaves no context on its stack."""
        a = umem.ones(30_000, "f4")
        depths = []

        def work(_):
            depths.append(fake.context_depth())
            b = a + 1
            assert b[5] == 2
            b.prefetch("cuda")
            umem.synchronize()
            del b
            depths.append(fake.context_depth())

        together(work)
        assert depths == [0] * 2 * THREADS


def test_a_wait_lets_other_threads_run(umem):
    """While one thread waits for the GPU or copies, another one gets on."""
    a = umem.zeros(4_000_000, dtype="f4")
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(1)
            time.sleep(0)

    other = threading.Thread(target=tick)
    other.start()
    try:
        for _ in range(5):
            a += 1
            a.copy()
            a.read()
            a.fill(2)
            a.sum()
            umem.synchronize()
    finally:
        stop.set()
        other.join()
    assert len(ticks) > 10


@pytest.mark.backends("fake")
def test_turns_without_concurrent_access(run_python):
    """Rule 6: on such a device the fake driver makes every touch by the host a segmentation fault while a kernel runs.
    Some threads launch kernels, others read and write elements: they get on or get the documented error.
    """
    out = run_python(
        """
import sys, threading; sys.setswitchinterval(1e-5)
import numpy as np, umem
arrays = [umem.zeros(5000, "f4") for _ in range(8)]
errors = []
def compute(a, b, n):
    umem.add(a, 1, out=a)
    b.copy(), umem.zeros(3000), umem.full(100, 3.0), umem.from_dlpack(b, copy=True)
def touch(a, b, n):
    text = umem.zeros(10, "S3")
    text[3] = b"abc"
    text[...] = b"xyz"
    text.fill(b"q")
    assert b"q" in text
    a[[1, 2, 3]] = n
    assert a[[1, 2]][1] == n
    a[5:9] = [1, 2, 3, 4]
    assert a[7] == 3
    assert umem.array(np.arange(300.0))[299] == 299
def work(i):
    for n in range(200):
        try: (touch, compute)[i % 2](arrays[i], arrays[(i + 1) % 8], n)
        except RuntimeError as error:
            if "umem.synchronize()" not in str(error): errors.append(error)
        except BaseException as error: errors.append(error)
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(errors, umem.devices()[0]["concurrent_managed_access"], max(float(a[0]) for a in arrays) > 100)
""",
        FAKECU_CONCURRENT="0",
    )
    assert out.split() == ["[]", "False", "True"]


@without_gil
@pytest.mark.backends("fake")
def test_a_kernel_waits_for_the_turn_of_the_host(run_python):
    """Code of the value that is being written runs in the host's turn, and holds kernels of other threads back."""
    out = run_python(
        """
import threading, time
import umem
a, text = umem.zeros(100, "f4"), umem.zeros(4, "S3")
begin, done, seen = threading.Event(), threading.Event(), []
def compute():
    begin.wait()
    umem.add(a, 1, out=a)
    done.set()
class Value:
    def __str__(self):
        begin.set()
        end = time.perf_counter() + 2
        while time.perf_counter() < end and not done.is_set(): pass
        seen.append(done.is_set())
        return "abc"
thread = threading.Thread(target=compute)
thread.start()
text.fill(Value())
thread.join()
print(set(seen), text[3], a[5])
""",
        FAKECU_CONCURRENT="0",
        PYTHON_GIL="0",
    )
    assert out.split() == ["{False}", "b'abc'", "1.0"]


@without_gil
def test_the_gil_stays_off(run_python):
    out = run_python(
        """
import sys, warnings
warnings.simplefilter("error")
import numpy
without = not sys._is_gil_enabled()
import umem
assert umem.info() and (umem.ones(3) + 1)[0] == 2
print(without, not sys._is_gil_enabled())
""",
        PYTHON_GIL="",
    )
    assert out.split() == ["True", "True"]
