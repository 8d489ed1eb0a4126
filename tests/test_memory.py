"""Limits, statistics, and what running out of memory says."""

import gc
import threading

import numpy as np
import pytest

from support import Exporter, allocated

MIB = 1 << 20

COUNTERS = [
    *(f"allocated_bytes.all.{part}" for part in ("current", "peak", "allocated", "freed")),
    *(f"reserved_bytes.all.{part}" for part in ("current", "peak")),
    *(f"active.all.{part}" for part in ("current", "peak", "allocated", "freed")),
    "num_alloc_retries", "num_ooms", "waiting_bytes",
]  # fmt: skip


def held(umem):
    return umem.memory_stats()["reserved_bytes.all.current"]


class TestStatistics:
    def test_names_and_kinds(self, umem):
        stats = umem.memory_stats()
        for name in COUNTERS:
            assert type(stats[name]) is int
            assert stats[name] >= 0
        assert stats["limit_bytes"] is None
        assert all(isinstance(name, str) for name in stats)
        assert (
            umem.memory_stats(device=0).keys() == umem.memory_stats("cuda:0").keys() == stats.keys()
        )

    def test_follow_allocations(self, umem):
        gc.collect()
        umem.synchronize()
        before = umem.memory_stats()
        a, b = umem.empty(1000, "u1"), umem.empty(3 * MIB, "u1")
        during = umem.memory_stats()
        assert (
            during["allocated_bytes.all.current"]
            == before["allocated_bytes.all.current"] + 1000 + 3 * MIB
        )
        assert during["active.all.current"] == before["active.all.current"] + 2
        assert (
            during["allocated_bytes.all.allocated"]
            == before["allocated_bytes.all.allocated"] + 1000 + 3 * MIB
        )
        assert during["active.all.allocated"] == before["active.all.allocated"] + 2
        assert (
            during["reserved_bytes.all.current"]
            >= before["reserved_bytes.all.current"] + 1000 + 3 * MIB
        )
        view = a[10:]
        assert umem.memory_stats()["active.all.current"] == during["active.all.current"]
        del a, b, view
        umem.synchronize()
        after = umem.memory_stats()
        for name in (
            "allocated_bytes.all.current",
            "active.all.current",
            "reserved_bytes.all.current",
            "waiting_bytes",
        ):
            assert after[name] == before[name], name
        assert (
            after["allocated_bytes.all.freed"]
            == before["allocated_bytes.all.freed"] + 1000 + 3 * MIB
        )
        assert after["active.all.freed"] == before["active.all.freed"] + 2

    def test_peaks(self, umem):
        gc.collect()
        umem.reset_peak()
        base = umem.memory_stats()
        assert base["allocated_bytes.all.peak"] == base["allocated_bytes.all.current"]
        assert base["active.all.peak"] == base["active.all.current"]
        for _ in range(3):
            a = umem.empty(2 * MIB, "u1")
            del a
            umem.synchronize()
        stats = umem.memory_stats()
        assert stats["allocated_bytes.all.peak"] == base["allocated_bytes.all.current"] + 2 * MIB
        assert stats["active.all.peak"] == base["active.all.current"] + 1
        assert stats["reserved_bytes.all.peak"] >= stats["allocated_bytes.all.peak"]
        umem.reset_peak(device=0)
        umem.reset_peak()
        assert (
            umem.memory_stats()["allocated_bytes.all.peak"] == base["allocated_bytes.all.current"]
        )

    def test_arrays_without_elements_and_aliases_hold_nothing(self, umem):
        a = umem.ones(100)
        before = allocated(umem)
        kept = [umem.empty(0), umem.empty((3, 0)), umem.asarray(np.asarray(a)), a[5:], a.on("cpu")]
        assert allocated(umem) == before
        assert len(kept) == 5

    def test_unknown_devices(self, umem, on_gpu):
        for bad in ("gpu", "cuda:x", 1.5):
            for call in (umem.memory_stats, umem.reset_peak, umem.get_limit, umem.memory_summary):
                with pytest.raises(ValueError, match="device"):
                    call(device=bad)
        if on_gpu:
            with pytest.raises(ValueError, match="cuda:0"):
                umem.memory_stats(99)

    def test_summary(self, umem):
        a = umem.empty(5 * MIB, "u1")
        for text in (umem.memory_summary(), umem.memory_summary(device=0)):
            assert "MiB" in text
            assert "none" in text
            assert "peak" in text
        umem.set_limit(10**12)
        assert "931.3 GiB" in umem.memory_summary()
        assert a.size == 5 * MIB

    def test_counters_are_right_with_many_threads(self, umem):
        gc.collect()
        umem.synchronize()
        before = umem.memory_stats()
        start = threading.Barrier(6)

        def work():
            start.wait()
            for i in range(50):
                umem.empty(1000 + i, "u1")

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        umem.synchronize()
        after = umem.memory_stats()
        assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
        assert after["active.all.allocated"] == before["active.all.allocated"] + 300
        assert after["reserved_bytes.all.current"] == before["reserved_bytes.all.current"]


SIZES = {
    "0": 0, "1": 1, "4096": 4096, "1B": 1, "4 KiB": 4096, "4KiB": 4096, "4kib": 4096, "4K": 4096, "4 kB": 4000, "500 MB": 500_000_000,
    "500MB": 500_000_000, "4GiB": 4 << 30, "1.5GiB": 3 << 29, ".5MiB": 1 << 19, "2T": 2 << 40, "1 TB": 10**12, " 7 MiB ": 7 << 20,
    "1e": None, "": None, " ": None, "GiB": None, "4XB": None, "-1": None, "4 G i B": None, "1,5GiB": None, "0x10": None, "nan": None,
    "101%": None, "-5%": None, "%": None, "20000000000000000000": None, "1e99 GiB": None, "4GiB!": None,
}  # fmt: skip


class TestLimits:
    @pytest.mark.parametrize("text", SIZES)
    def test_sizes_as_text(self, umem, text):
        if SIZES[text] is None:
            with pytest.raises(ValueError, match="limit"):
                umem.set_limit(text)
            assert umem.get_limit() is None
        else:
            umem.set_limit(text)
            assert umem.get_limit() == SIZES[text]

    def test_shares(self, umem, on_gpu):
        total = sum(d["total_memory"] for d in umem.devices()) if on_gpu else None
        for text, share in (("80%", 0.8), ("100 %", 1), ("0.5%", 0.005), ("0%", 0)):
            umem.set_limit(text)
            limit = umem.get_limit()
            if on_gpu:
                assert limit == pytest.approx(total * share, rel=1e-6)
            else:
                import os

                assert limit == pytest.approx(
                    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * share, rel=0.01
                )

    def test_numbers_and_none(self, umem):
        for limit in (0, 5, 1 << 40, np.int64(77), 2**63, 2**64 - 2):
            umem.set_limit(limit)
            assert umem.get_limit() == limit
            assert umem.info()["limit"] == limit
        umem.set_limit(None)
        assert umem.get_limit() is None
        for bad in (-1, 2**64, 2**80, -(2**70)):
            with pytest.raises(ValueError, match="limit"):
                umem.set_limit(bad)
        for bad in (1.5, True, [1], b"4GiB", object()):
            with pytest.raises(TypeError, match="limit"):
                umem.set_limit(bad)
        with pytest.raises(TypeError):
            umem.set_limit()

    def test_of_a_device(self, umem):
        umem.set_limit("1GiB", device=0)
        assert umem.get_limit(device=0) == umem.get_limit("cuda:0") == 1 << 30
        assert umem.get_limit() is None
        umem.set_limit(None, device=0)
        assert umem.get_limit(0) is None
        for bad in ("gpu", 1.5, "cuda:x"):
            with pytest.raises(ValueError, match="device"):
                umem.set_limit(5, device=bad)

    @pytest.mark.parametrize("device", [None, 0])
    def test_refuse_what_would_exceed_them(self, umem, device):
        gc.collect()
        umem.synchronize()
        a = umem.ones(1000)
        umem.set_limit(held(umem) + MIB, device=device)
        try:
            b = umem.empty(MIB // 2, "u1")
            for make in (
                lambda: umem.empty(2 * MIB, "u1"),
                lambda: umem.zeros((1000, 1000)),
                lambda: umem.array(np.zeros(MIB)),
                lambda: umem.asarray(np.zeros(MIB)),
                lambda: np.tile(a, 10_000),
                lambda: a[:, None] + a[None, :],
                lambda: umem.from_dlpack(np.zeros(MIB)),
                lambda: np.outer(a, a),
            ):
                with pytest.raises(umem.OutOfMemoryError):
                    make()
            c = umem.empty(MIB // 4, "u1")
            assert a.sum() == 1000
            assert b.size + c.size == MIB * 3 // 4
        finally:
            umem.set_limit(None, device=device)
        assert umem.empty(2 * MIB, "u1").size == 2 * MIB

    def test_below_what_is_held(self, umem):
        a = umem.ones(MIB, "u1")
        umem.set_limit(1)
        with pytest.raises(umem.OutOfMemoryError):
            umem.empty(1)
        assert umem.empty(0).size == 0
        assert a.sum() == MIB
        umem.set_limit(None)
        assert umem.ones(3).sum() == 3

    def test_memory_that_waits_is_reclaimed_first(self, umem):
        gc.collect()
        umem.synchronize()
        umem.set_limit(held(umem) + 5 * MIB)
        for _ in range(20):
            a = umem.zeros(MIB // 2, "f4")
            umem.add(a, 1, out=a)
            del a
        assert umem.memory_stats()["waiting_bytes"] <= 5 * MIB

    def test_out_of_memory_says_what_it_knows(self, umem):
        gc.collect()
        umem.synchronize()
        base = held(umem)
        umem.set_limit(base + MIB)
        ooms = umem.memory_stats()["num_ooms"]
        with pytest.raises(umem.OutOfMemoryError) as caught:
            umem.empty(3 * MIB, "u1")
        error = caught.value
        assert isinstance(error, MemoryError)
        assert error.requested == 3 * MIB
        assert error.in_use == base
        assert error.limit == base + MIB
        assert error.device is None
        text = str(error)
        for part in (str(3 * MIB), str(base + MIB), "set_limit", "UMEM_ALLOC_CONF"):
            assert part in text
        assert umem.memory_stats()["num_ooms"] == ooms + 1
        assert umem.memory_stats()["limit_bytes"] == base + MIB
        umem.set_limit(None)
        umem.set_limit(held(umem) + MIB, device=0)
        with pytest.raises(umem.OutOfMemoryError) as caught:
            umem.empty(3 * MIB, "u1")
        assert caught.value.device == 0
        umem.set_limit(None, device=0)

    def test_failed_allocations_are_not_counted(self, umem):
        gc.collect()
        umem.synchronize()
        before = umem.memory_stats()
        umem.set_limit(held(umem))
        for _ in range(5):
            with pytest.raises(umem.OutOfMemoryError):
                umem.empty(MIB, "u1")
        umem.set_limit(None)
        after = umem.memory_stats()
        for name in COUNTERS:
            if name not in ("num_ooms", "num_alloc_retries"):
                assert after[name] == before[name], name


class TestRealExhaustion:
    @pytest.mark.backends("fake")
    def test_of_the_driver(self, umem, fake):
        gc.collect()
        umem.synchronize()
        fake.fail("cuMemAllocManaged", code=fake.OUT_OF_MEMORY, forever=True)
        with pytest.raises(umem.OutOfMemoryError) as caught:
            umem.empty(MIB, "u1")
        assert caught.value.requested == MIB
        assert caught.value.limit is None
        fake.reset_faults()
        assert umem.ones(3).sum() == 3

    @pytest.mark.backends("fake")
    def test_one_refusal_is_retried_after_freeing_what_waits(self, umem, fake):
        gc.collect()
        umem.synchronize()
        a = umem.zeros(MIB, "f4")
        umem.add(a, 1, out=a)
        del a
        retries = umem.memory_stats()["num_alloc_retries"]
        fake.fail("cuMemAllocManaged", code=fake.OUT_OF_MEMORY)
        b = umem.empty(MIB, "u1")
        assert b.size == MIB
        assert umem.memory_stats()["num_alloc_retries"] == retries + 1
        assert umem.memory_stats()["waiting_bytes"] == 0

    @pytest.mark.backends("host")
    def test_of_the_system(self, umem):
        with pytest.raises(umem.OutOfMemoryError) as caught:
            umem.empty(2**46, "u1")
        assert caught.value.requested == 2**46
        assert umem.ones(3).sum() == 3

    def test_of_the_address_space(self, umem):
        with pytest.raises(MemoryError):
            umem.empty(2**62, "u1")
        with pytest.raises((MemoryError, ValueError)):
            umem.empty(2**63 - 1, "u1")
        assert umem.ones(3).sum() == 3


class TestTrim:
    def test_gives_back_what_waits(self, umem):
        gc.collect()
        umem.trim()
        a = umem.zeros(MIB, "f4")
        b = umem.add(a, 1)
        del a, b
        released = umem.trim()
        assert type(released) is int
        assert released >= 0
        assert umem.memory_stats()["waiting_bytes"] == 0
        assert umem.trim() == 0

    @pytest.mark.backends("fake")
    def test_memory_that_another_library_saw_waits_for_a_full_synchronise(self, umem, fake):
        gc.collect()
        umem.synchronize()
        live = fake.live("managed")
        a = umem.ones(100_000, "f4")
        assert a.__cuda_array_interface__
        umem.Stream(0).synchronize()  # one stream is not all that the library may use
        del a
        for _ in range(10):
            umem.empty(5)  # each allocation looks whether something may go back
        assert fake.live("managed") == live + 1
        umem.synchronize()
        assert fake.live("managed") == live

    @pytest.mark.backends("fake")
    def test_counts_the_bytes(self, umem, fake):
        gc.collect()
        umem.trim()
        a = umem.zeros(MIB, "f4")
        umem.synchronize()
        umem.add(a, 1, out=a)
        assert Exporter(a, "__cuda_array_interface__").__cuda_array_interface__
        del a
        assert umem.memory_stats()["waiting_bytes"] == 4 * MIB
        assert umem.trim() == 4 * MIB


GOOD = {
    "": None,
    "limit:4GiB": 4 << 30,
    "limit:500 MB": 500_000_000,
    " limit : 1024 ": 1024,
    "limit:0": 0,
    "limit:7,": 7,
}
BAD = {
    "nonsense": "limit", "limit": "limit", "limit:": "limit", "limit:x": "size", "colour:red": "colour", "limit:1,limit:2": "limit",
    "limit:1,colour:red": "colour", "Limit:5": "Limit", ":5": "limit", "limit:200%": "100", "limit:-5": "size",
}  # fmt: skip


@pytest.mark.backends("host", "fake")
class TestEnvironment:
    @pytest.mark.parametrize("conf", GOOD)
    def test_good_settings(self, run_python, conf):
        out = run_python(
            "import umem; print(umem.get_limit(), umem.zeros(0).size)", UMEM_ALLOC_CONF=conf
        )
        assert out.split()[0] == str(GOOD[conf])

    def test_shares(self, run_python):
        assert (
            int(run_python("import umem; print(umem.get_limit())", UMEM_ALLOC_CONF="limit:50%")) > 0
        )

    @pytest.mark.parametrize("conf", BAD)
    def test_bad_settings_raise_at_the_first_use_and_not_at_import(self, run_python, conf):
        out = run_python(
            """
import os, umem
print("imported")
for use in (lambda: umem.zeros(3), lambda: umem.info(), lambda: umem.zeros(3), lambda: umem.set_limit(5)):
    try: use()
    except ValueError as error: print(error)
del os.environ["UMEM_ALLOC_CONF"]
print(umem.zeros(3).sum())
""",
            UMEM_ALLOC_CONF=conf,
        ).splitlines()
        assert out[0] == "imported"
        assert len(out) == 6
        for line in out[1:5]:
            assert "UMEM_ALLOC_CONF" in line
            assert "limit" in line
            assert BAD[conf] in line
        assert out[5] == "0.0"

    def test_a_limit_is_enforced_from_the_start(self, run_python):
        out = run_python(
            """
import umem
try: umem.empty(2 << 20, "u1")
except umem.OutOfMemoryError as error: print(error.limit, error.requested)
""",
            UMEM_ALLOC_CONF="limit:1MiB",
        )
        assert out.split() == [str(MIB), str(2 * MIB)]
