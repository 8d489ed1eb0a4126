"""memory_stats, memory_summary and memory_scope: what they count, and that it adds up."""

import gc
import threading

import pytest

MIB = 1 << 20
KIB = 1 << 10

POOLS = ("all", "small_pool", "large_pool")
PARTS = ("current", "peak", "allocated", "freed")
NAMES = ("allocation", "allocated_bytes", "active", "requested_bytes", "segment", "reserved_bytes")


@pytest.fixture
def quiet(umem):
    """umem with nothing pending or kept, and peaks that begin now."""
    gc.collect()
    umem.synchronize()
    umem.trim()
    umem.reset_peak()
    return umem


def check(stats):
    """What holds of any statistics while nothing else allocates."""
    for name in NAMES:
        for pool in POOLS:
            current, peak, allocated, freed = (stats[f"{name}.{pool}.{part}"] for part in PARTS)
            assert 0 <= current <= peak, (name, pool)
            assert current == allocated - freed, (name, pool)
        for part in ("current", "allocated", "freed"):
            small, large = (stats[f"{name}.{pool}.{part}"] for pool in POOLS[1:])
            assert stats[f"{name}.all.{part}"] == small + large, (name, part)
        small, large = (stats[f"{name}.{pool}.peak"] for pool in POOLS[1:])
        assert max(small, large) <= stats[f"{name}.all.peak"] <= small + large, name
    assert stats["reserved_bytes.all.current"] == (
        stats["block_bytes.all.current"]
        + stats["inactive_split_bytes.all.current"]
        + stats["idle_bytes"]
    )
    assert stats["block_bytes.all.current"] >= stats["allocated_bytes.all.current"]
    assert stats["block_bytes.all.current"] >= stats["waiting_bytes"]
    assert stats["num_device_alloc"] == stats["segment.all.allocated"]
    assert stats["num_device_free"] == stats["segment.all.freed"]
    for name in ("allocated_bytes", "reserved_bytes"):
        homes = [value for key, value in stats.items() if key.startswith(f"{name}.home.")]
        assert sum(homes) == stats[f"{name}.all.current"], name


def change(after, before, *names):
    return [after[name] - before[name] for name in names]


class TestStatistics:
    def test_adds_up(self, quiet):
        umem = quiet
        check(umem.memory_stats())
        arrays = [umem.empty(n, "u1") for n in (1, 300, 65_535, 65_536, 65_537, 3 * MIB, 200 * MIB)]
        arrays += [umem.empty(n, "u1", home="cpu") for n in (5, 70_000)]
        check(umem.memory_stats())
        check(umem.memory_stats(0))
        del arrays[::2]
        check(umem.memory_stats())
        umem.trim()
        check(umem.memory_stats())
        del arrays
        umem.trim()
        stats = umem.memory_stats()
        check(stats)
        assert stats["inactive_split_bytes.all.current"] == stats["idle_bytes"] == 0

    def test_pools(self, quiet):
        umem = quiet
        before = umem.memory_stats()
        small, large = umem.empty(64 * KIB - 1, "u1"), umem.empty(64 * KIB, "u1")
        after = umem.memory_stats()
        for pool, size in (("small_pool", 64 * KIB - 1), ("large_pool", 64 * KIB)):
            for name, expected in (("allocated_bytes", size), ("allocation", 1), ("segment", 1)):
                key = f"{name}.{pool}.current"
                assert change(after, before, key) == [expected], key
            assert change(after, before, f"reserved_bytes.{pool}.current")[0] >= size
        del small
        assert (
            umem.memory_stats()["allocation.large_pool.current"]
            == after["allocation.large_pool.current"]
        )
        assert change(umem.memory_stats(), after, "allocation.small_pool.freed") == [1]
        del large
        assert change(umem.memory_stats(), after, "allocation.large_pool.freed") == [1]

    def test_peaks_of_pools_are_their_own(self, quiet):
        umem = quiet
        before = umem.memory_stats()
        a = umem.empty(MIB, "u1")
        del a
        umem.synchronize()
        kept = [umem.empty(1000, "u1") for _ in range(10)]
        del kept[3:]
        after = umem.memory_stats()
        base = before["allocated_bytes.all.current"]
        assert after["allocated_bytes.all.peak"] == base + MIB
        assert change(after, before, "allocated_bytes.small_pool.peak") == [10_000]
        assert change(
            after, before, "allocation.small_pool.peak", "allocation.large_pool.peak"
        ) == [10, 1]
        umem.reset_peak()
        stats = umem.memory_stats()
        for name in NAMES:
            for pool in POOLS:
                assert stats[f"{name}.{pool}.peak"] == stats[f"{name}.{pool}.current"]

    def test_peaks_of_devices(self, quiet):
        """reset_peak() is for all, reset_peak(device) for one."""
        umem = quiet

        def peaks():
            return [umem.memory_stats(device)["allocated_bytes.all.peak"] for device in (None, 0)]

        base = peaks()
        umem.empty(MIB, "u1")
        high = [peak + MIB for peak in base]
        assert peaks() == high
        umem.reset_peak(0)
        assert peaks() == [high[0], base[1]]
        umem.empty(MIB, "u1")
        umem.reset_peak()
        assert peaks() == base

    def test_fragmentation(self, quiet):
        umem = quiet
        arrays = [umem.empty(MIB, "u1") for _ in range(12)]
        full = umem.memory_stats()
        del arrays[1::2]
        umem.synchronize()
        holes = umem.memory_stats()
        names = (
            "inactive_split_bytes.all.current",
            "block_bytes.all.current",
            "reserved_bytes.all.current",
        )
        assert change(holes, full, *names) == [6 * MIB, -6 * MIB, 0]
        assert umem._core.largest_free() >= MIB
        del arrays
        umem.synchronize()
        empty = umem.memory_stats()
        assert empty["idle_bytes"] >= 12 * MIB
        assert umem.trim() >= 12 * MIB
        assert umem.memory_stats()["idle_bytes"] == 0
        assert umem._core.largest_free() == umem._core.largest_free(0) == 0

    def test_homes(self, quiet):
        umem = quiet
        before = umem.memory_stats().get("allocated_bytes.home.cpu.current", 0)
        a, b, c = (umem.empty(n, "u1", home="cpu") for n in (10, 100_000, 2 * MIB))
        stats = umem.memory_stats()
        assert stats["allocated_bytes.home.cpu.current"] == before + 10 + 100_000 + 2 * MIB
        assert stats["reserved_bytes.home.cpu.current"] >= 2 * MIB
        assert "allocated_bytes.home.cuda:0.current" not in stats
        assert "cpu" in umem.memory_summary()
        del a, c
        assert umem.memory_stats()["allocated_bytes.home.cpu.current"] == before + 100_000
        del b
        umem.trim()
        assert umem.memory_stats().get("allocated_bytes.home.cpu.current", 0) == before

    def test_slabs_are_counted_once_they_exist(self, quiet):
        umem = quiet
        before = umem.memory_stats()
        umem.set_limit(before["reserved_bytes.all.current"] + MIB)
        with pytest.raises(umem.OutOfMemoryError):
            umem.empty(100 * MIB, "u1")
        after = umem.memory_stats()
        check(after)
        assert change(after, before, "num_ooms", "num_device_alloc") == [1, 0]
        assert change(after, before, "reserved_bytes.all.peak", "reserved_bytes.all.allocated") == [
            0,
            0,
        ]
        umem.set_limit(None)
        a = umem.empty(100 * MIB, "u1")
        assert change(umem.memory_stats(), before, "num_device_alloc", "num_device_free") == [1, 0]
        del a
        umem.trim()
        assert change(umem.memory_stats(), before, "num_device_alloc", "num_device_free") == [1, 1]

    @pytest.mark.backends("fake")
    def test_a_refusal_of_the_driver_leaves_no_trace(self, quiet, fake):
        umem = quiet
        before = umem.memory_stats()
        fake.fail("cuMemAllocManaged", code=2, forever=True)
        with pytest.raises(umem.OutOfMemoryError):
            umem.empty(100 * MIB, "u1")
        fake.reset_faults()
        after = umem.memory_stats()
        check(after)
        assert change(
            after,
            before,
            "num_device_alloc",
            "reserved_bytes.all.current",
            "reserved_bytes.all.peak",
        ) == [0, 0, 0]

    @pytest.mark.backends("fake")
    def test_requests_that_fail_meanwhile_are_no_memory(self, quiet):
        umem = quiet
        base = umem.memory_stats()["reserved_bytes.all.current"]
        done = threading.Event()

        def fail():
            while not done.is_set():
                with pytest.raises(umem.OutOfMemoryError):
                    umem.empty(1 << 50, "u1")

        thread = threading.Thread(target=fail)
        thread.start()
        try:
            for _ in range(100):
                a = umem.empty(200 * MIB, "u1")
                check(umem.memory_stats())
                del a
                umem.trim()
        finally:
            done.set()
            thread.join()
        assert umem.memory_stats()["reserved_bytes.all.peak"] <= base + 208 * MIB

    def test_max_split_size(self, umem):
        assert umem.memory_stats()["max_split_size"] == -1

    def test_random_traffic_adds_up(self, quiet):
        import random

        umem = quiet
        rng = random.Random(5)
        arrays = []
        for step in range(600):
            if arrays and rng.random() < 0.5:
                arrays.pop(rng.randrange(len(arrays)))
            else:
                home = rng.choice((None, None, "cpu"))
                arrays.append(umem.empty(int(2 ** rng.uniform(0, 22)), "u1", home=home))
            if step % 20 == 0:
                check(umem.memory_stats())
                check(umem.memory_stats(0))
        check(umem.memory_stats())


class TestSummary:
    def test_rows(self, quiet):
        umem = quiet
        kept = umem.empty(5 * MIB, "u1"), umem.empty(100, "u1")
        for device in (None, 0):
            text, stats = umem.memory_summary(device), umem.memory_stats(device)
            for word in (
                "in arrays", "reserved", "waiting", "idle", "fragmentation", "current", "peak",
                "total allocated", "total freed", "below 64 KiB", "slabs", "limit", "retries", "out of memory",
            ):  # fmt: skip
                assert word in text, word
            lines = text.splitlines()
            assert max(map(len, lines)) <= 100
            row = next(line for line in lines if line.startswith("arrays"))
            assert row.split()[1:] == [str(stats[f"allocation.all.{part}"]) for part in PARTS]
        assert "all devices" in umem.memory_summary()
        assert "device 0" in umem.memory_summary(0)
        assert len(kept) == 2

    def test_with_nothing(self, run_python):
        assert "0.0 %" in run_python("import umem; print(umem.memory_summary())")


class TestScope:
    def test_counts(self, umem):
        kept = umem.empty(3000, "u1")
        with umem.memory_scope("load") as m:
            assert m.name == "load"
            assert (m.allocated, m.freed, m.current, m.peak) == (0, 0, 0, 0)
            a = umem.empty(1000, "u1")
            assert (m.allocated, m.freed, m.current, m.peak) == (1000, 0, 1000, 1000)
            b = umem.empty(2 * MIB, "u1")
            del a, b
            assert (m.allocated, m.freed, m.current) == (2 * MIB + 1000, 2 * MIB + 1000, 0)
            assert m.peak == 2 * MIB + 1000
            assert (m.blocks_allocated, m.blocks_freed, m.blocks, m.blocks_peak) == (2, 2, 0, 2)
            c = umem.empty(10, "u1")
            del kept
        assert (m.current, m.blocks) == (10 - 3000, 0)
        d = umem.empty(50 * MIB, "u1")
        del c, d
        assert (m.allocated, m.freed) == (2 * MIB + 1010, 2 * MIB + 4000)
        assert (m.peak, m.blocks_peak) == (2 * MIB + 1000, 2)

    def test_peaks_of_nested_scopes_are_each_right(self, umem):
        for size in (1000, MIB):  # blocks kept by thread, and others
            with umem.memory_scope("outer") as outer:
                a = umem.empty(5 * size, "u1")
                del a
                b = umem.empty(2 * size, "u1")
                with umem.memory_scope("inner") as inner:
                    c = umem.empty(size, "u1")
                    del b, c
                d = umem.empty(size, "u1")
                with umem.memory_scope("second") as second:
                    pass
                del d
            assert (outer.peak, inner.peak, second.peak) == (5 * size, size, 0)
            assert (outer.current, inner.current) == (0, -2 * size)
            assert (outer.blocks_peak, inner.blocks_peak) == (2, 1)

    def test_resetting_the_peak_changes_no_scope(self, umem):
        with umem.memory_scope() as m:
            umem.empty(100_000, "u1")
            umem.empty(100, "u1")
            umem.reset_peak()
        assert m.peak == 100_000

    def test_overlapping_scopes(self, umem):
        first, second, third = (umem.memory_scope(name) for name in "abc")
        first.__enter__()
        a = umem.empty(100, "u1")
        second.__enter__()
        third.__enter__()
        b = umem.empty(1000, "u1")
        second.__exit__(None, None, None)
        c = umem.empty(10_000, "u1")
        first.__exit__(None, None, None)
        d = umem.empty(100_000, "u1")
        third.__exit__(None, None, None)
        assert [m.peak for m in (first, second, third)] == [11_100, 1000, 111_000]
        assert [m.allocated for m in (first, second, third)] == [11_100, 1000, 111_000]
        assert len((a, b, c, d)) == 4

    def test_devices(self, umem):
        with umem.memory_scope(device=0) as one, umem.memory_scope(device=None) as everything:
            a = umem.empty(1000, "u1")
        assert one.allocated == everything.allocated == a.nbytes
        with pytest.raises(ValueError, match="device"), umem.memory_scope(device="nowhere"):
            pass

    @pytest.mark.backends("fake 8 GPUs")
    def test_other_devices_do_not_count(self, umem):
        with umem.memory_scope(device=1) as one, umem.memory_scope() as everything:
            kept = [umem.empty(n, "u1", device=device) for n in (1000, MIB) for device in (0, 1, 1)]
        assert one.allocated == 2 * (1000 + MIB)
        assert everything.allocated == 3 * (1000 + MIB)
        assert len(kept) == 6
        stats = umem.memory_stats(1)
        check(stats)
        assert stats["allocation.all.current"] == 4
        assert stats["allocation.large_pool.current"] == 2

    def test_ends_with_an_exception(self, umem):
        scope = umem.memory_scope("fails")
        with pytest.raises(KeyError), scope:
            umem.empty(1000, "u1")
            raise KeyError
        umem.empty(1000, "u1")
        assert (scope.allocated, scope.peak) == (1000, 1000)
        assert "done" in repr(scope)

    def test_is_ended_after_it_was_entered(self, umem):
        m = umem.memory_scope("m")
        with pytest.raises(RuntimeError, match="'m' was not entered"):
            m.__exit__(None, None, None)
        with m:
            pass
        assert "done" in repr(m)

    def test_is_entered_once(self, umem):
        scope = umem.memory_scope("once")
        assert "not entered" in repr(scope)
        assert (scope.allocated, scope.freed, scope.current, scope.peak, scope.blocks) == (0,) * 5
        with scope:
            assert "open" in repr(scope)
            with pytest.raises(RuntimeError, match="once"):
                scope.__enter__()
        with pytest.raises(RuntimeError, match="once"):
            scope.__enter__()

    def test_text(self, umem):
        with umem.memory_scope("step 1") as m:
            a = umem.empty(3 * MIB, "u1")
        assert "'step 1'" in repr(m)
        assert "3.0 MiB in 1" in repr(m)
        assert "+3.0 MiB" in repr(m)
        with umem.memory_scope("step 2") as m:
            del a
        assert "-3.0 MiB" in repr(m)

    def test_dropped_while_open(self, umem):
        scope = umem.memory_scope()
        scope.__enter__()
        del scope
        gc.collect()
        with umem.memory_scope() as m:
            umem.empty(10, "u1")
            umem.empty(100_000, "u1")
        assert m.allocated == 100_010

    def test_handles_of_others(self, umem):
        for call in (umem._core.scope_read, umem._core.scope_end):
            for bad in (None, 1, umem):
                with pytest.raises((ValueError, TypeError)):
                    call(bad)

    def test_threads(self, umem):
        start = threading.Barrier(4)
        scopes = []

        def work():
            start.wait()
            for i in range(100):
                with umem.memory_scope() as m:
                    umem.empty(1000 + i, "u1")
                    umem.empty(70_000, "u1")
                scopes.append(m)

        with umem.memory_scope() as outer:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert outer.current == outer.blocks == 0
        assert outer.blocks_allocated == 800
        assert (
            outer.peak >= 70_000
        )  # of one thread's scope it may be less: others free what they had before it began
        assert all(m.blocks_allocated >= 2 for m in scopes)
