"""Limits, statistics, and what running out of memory says."""

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from support import Exporter, address, allocated

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
        umem.trim()
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
        umem.trim()
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
        umem.trim()
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
        umem.trim()
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
        umem.trim()
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

    @pytest.mark.parametrize("device", [None, 0])
    @pytest.mark.parametrize("nbytes", [1, MIB])
    def test_of_no_bytes_refuses_everything(self, umem, device, nbytes, on_gpu):
        gc.collect()
        umem.trim()
        umem.set_limit(0, device=device)
        try:
            with pytest.raises(umem.OutOfMemoryError, match="limit") as caught:
                umem.empty(nbytes, "u1")
            assert umem.empty(0).size == 0
        finally:
            umem.set_limit(None, device=device)
        assert caught.value.limit == 0
        assert caught.value.device == device

    def test_below_what_is_held(self, umem):
        a = umem.ones(MIB, "u1")
        umem.set_limit(1)
        with pytest.raises(umem.OutOfMemoryError):
            umem.empty(1)
        assert umem.empty(0).size == 0
        assert np.asarray(a).sum() == MIB
        umem.set_limit(None)
        assert umem.ones(3).sum() == 3

    def test_memory_that_waits_is_reclaimed_first(self, umem):
        gc.collect()
        umem.trim()
        umem.set_limit(held(umem) + 5 * MIB)
        for _ in range(20):
            a = umem.zeros(MIB // 2, "f4")
            umem.add(a, 1, out=a)
            del a
        assert umem.memory_stats()["waiting_bytes"] <= 5 * MIB

    def test_out_of_memory_says_what_it_knows(self, umem):
        gc.collect()
        umem.trim()
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
        umem.trim()
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
        umem.trim()
        fake.fail("cuMemAllocManaged", code=fake.OUT_OF_MEMORY, forever=True)
        with pytest.raises(umem.OutOfMemoryError) as caught:
            umem.empty(MIB, "u1")
        error = caught.value
        assert (error.requested, error.in_use, error.limit, error.device) == (
            MIB,
            held(umem),
            None,
            0,
        )
        for part in (f"cannot allocate {MIB} bytes", "cuMemAllocManaged", "cuda:0", f"umem holds {held(umem)} bytes",
                     "Free arrays", "on_out_of_memory"):  # fmt: skip
            assert part in str(error)
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
        b = umem.empty(64 * MIB, "u1")  # more than is at hand
        assert b.size == 64 * MIB
        assert umem.memory_stats()["num_alloc_retries"] == retries + 1
        assert umem.memory_stats()["waiting_bytes"] == 0

    @pytest.mark.backends("host")
    def test_of_the_system(self, umem):
        with pytest.raises(umem.OutOfMemoryError) as caught:
            umem.empty(2**46, "u1")
        error = caught.value
        assert (error.requested, error.limit, error.device) == (2**46, None, None)
        assert error.in_use == held(umem)
        for part in (
            f"cannot allocate {2**46} bytes",
            f"umem holds {held(umem)} bytes",
            "Free arrays",
        ):
            assert part in str(error)
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
        a = umem.ones(100_000, "f4")
        where = address(a)
        assert a.__cuda_array_interface__
        umem.Stream(0).synchronize()  # one stream is not all that the library may use
        del a
        for _ in range(10):
            b = umem.empty(100_000, "f4")  # each allocation looks whether something may go back
            assert address(b) != where
            del b
        assert umem.memory_stats()["waiting_bytes"] >= 400_000
        umem.synchronize()
        assert umem.memory_stats()["waiting_bytes"] == 0

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
        before = held(umem)
        assert before >= 4 * MIB
        assert umem.trim() == before - held(umem) >= 4 * MIB
        assert umem.memory_stats()["waiting_bytes"] == 0


GOOD = {
    "": None,
    "limit:4GiB": 4 << 30,
    "limit:500 MB": 500_000_000,
    " limit : 1024 ": 1024,
    "limit:0": 0,
    "limit:7,": 7,
    "limit:7,numa:on": 7,
    "gc_threshold:0.8": None,
    "gc_threshold:0": None,
    "gc_threshold: 1 ": None,
    "gc_threshold:1.": None,
    "gc_threshold:80%": None,
    "slab:2MiB": None,
    "slab:0.5%": None,
    "large_page:64KiB": None,
    "large_page:16TiB": None,
    "max_split:64KiB": None,
    "max_split:200 MB": None,
    "numa: off ": None,
    "slab:4MiB,large_page:1MiB,max_split:200MiB,gc_threshold:50%,numa:off,limit:9GiB": 9 << 30,
}
BAD = {
    "nonsense": "limit", "limit": "limit", "limit:": "limit", "limit:x": "size", "colour:red": "colour", "limit:1,limit:2": "limit",
    "limit:1,colour:red": "colour", "Limit:5": "Limit", ":5": "limit", "limit:200%": "100", "limit:-5": "size",
    "gc_threshold:": "gc_threshold: ''", "gc_threshold:1.01": "from 0 to 1", "gc_threshold:-1": "from 0 to 1", "gc_threshold:101%": "80%",
    "gc_threshold:1e-1": "from 0 to 1", "gc_threshold:0.5GiB": "from 0 to 1", "gc_threshold:99999999999999999999": "from 0 to 1",
    "gc_threshold:nan": "from 0 to 1", "slab:2097151": "at least 2MiB", "slab:0": "at least 2MiB", "slab:x": "slab: 'x' is not a size",
    "slab:1000000TiB": "at most all memory", "slab:101%": "slab: '101%' is more than all memory", "slab:2MiB,slab:4MiB": "repeated key 'slab'",
    "large_page:65535": "at least 64KiB", "large_page:big": "large_page: 'big' is not a size", "max_split:20": "at least 64KiB",
    "max_split:-1": "max_split: '-1' is not a size", "max_split": "a value is missing in 'max_split'", "numa:": "numa: '' is neither on nor off",
    "numa:1": "numa: '1' is neither on nor off", "numa:ON": "neither on nor off", "numa:offf": "neither on nor off",
    "max_split_size_mb:200": "max_split, a size like 200MiB", "garbage_collection_threshold:0.8": "gc_threshold, a share like 0.8",
    "expandable_segments:True": "unknown key 'expandable_segments'", "keep:5": "unknown key 'keep'",
}  # fmt: skip


#: for the programs below: where an array is, and the bytes that umem holds
WHERE = """
import umem
def where(a): return a.__array_interface__["data"][0]
def held(): return umem.memory_stats()["reserved_bytes.all.current"]
"""


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
            assert (
                "limit, gc_threshold, slab, large_page, max_split, numa" in line
            )  # the valid keys
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

    @pytest.mark.parametrize(("conf", "cut"), [("", True), ("max_split:32MiB", False)])
    def test_large_blocks_are_not_cut_beyond_max_split(self, run_python, conf, cut):
        """A freed block of 64 MiB serves small requests by default; past max_split it waits for the next like it."""
        out = run_python(
            WHERE
            + """
block = umem.empty(64 << 20, "u1")
start = where(block)
del block
before = held()
small = [umem.empty(1 << 20, "u1") for _ in range(4)]
inside = [start <= where(a) < start + (64 << 20) for a in small]
grown = held() > before
block = umem.empty(64 << 20, "u1")
print(all(inside), any(inside), grown, where(block) == start)
""",
            UMEM_ALLOC_CONF=conf,
        )
        assert (
            out.split() == ["True", "True", "False", "False"]
            if cut
            else ["False"] * 2 + ["True"] * 2
        )

    @pytest.mark.parametrize(
        ("conf", "size"), [("slab:2MiB", 2), ("slab:4MiB", 4), ("slab:33000000", 32)]
    )
    def test_the_first_slab_has_that_size(self, run_python, conf, size):
        out = run_python(
            WHERE
            + """
a = umem.empty(100 << 10, "u1")
print(held())
b = umem.empty(100, "u1") # small ones have slabs of their own
print(held() - before)
""".replace("print(held())", "before = held(); print(before)"),
            UMEM_ALLOC_CONF=conf,
        )
        assert [int(number) for number in out.split()] == [size * MIB, 2 * MIB]

    @pytest.mark.parametrize(("conf", "aligned"), [("", False), ("large_page:300KiB", True)])
    def test_blocks_from_large_page_on_are_aligned(self, run_python, conf, aligned):
        out = run_python(
            WHERE
            + """
arrays = [umem.empty(310 << 10, "u1") for _ in range(6)]
print(all(where(a) % (2 << 20) == 0 for a in arrays))
print(all(where(umem.empty(2 << 20, "u1")) % (2 << 20) == 0 for _ in range(3)))
kept = [umem.empty(100 << 10, "u1") for _ in range(6)]
print(any(where(a) % (2 << 20) != 0 for a in kept))
""",
            UMEM_ALLOC_CONF=conf,
        )
        assert out.split() == [str(aligned), "True", "True"]

    def test_blocks_that_are_reused_while_in_use_are_aligned_as_well(self, run_python):
        """290 and 310 KiB take blocks of the same size, of which one is below large_page and one is not."""
        out = run_python(
            WHERE
            + """
arrays = [umem.zeros(290 << 8, "f4") for _ in range(6)]
for a in arrays: umem.add(a, 1, out=a)
freed = {where(a) for a in arrays}
arrays = a = None # the GPU's work is not done
arrays = [umem.empty(310 << 8, "f4") for _ in range(6)]
print(all(where(a) % (2 << 20) == 0 for a in arrays), {where(a) for a in arrays} == freed)
""",
            UMEM_ALLOC_CONF="large_page:300KiB",
        )
        assert out.split() == ["True", "True"]

    @pytest.mark.parametrize(
        ("conf", "mib"),
        [
            ("gc_threshold:0.5", 44),
            ("gc_threshold:84%", 84),
            ("gc_threshold:0.83", 44),
            ("gc_threshold:0", 44),
            ("gc_threshold:1", 84),
        ],
    )
    def test_what_is_idle_goes_back_past_gc_threshold(self, run_python, conf, mib):
        """40 MiB are idle and 44 are wanted: both fit under the limit."""
        out = run_python(
            WHERE
            + """
a = umem.empty(40 << 20, "u1")
del a
assert held() == 40 << 20
b = umem.empty(44 << 20, "u1")
print(held())
""",
            UMEM_ALLOC_CONF=f"limit:100MiB,{conf}",
        )
        assert int(out) == mib * MIB

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize(
        ("own", "together", "mib"), [(100, 120, 84), (100, 300, 104), (75, 300, 84)]
    )
    def test_gc_threshold_is_of_either_limit(self, run_python, own, together, mib):
        """20 MiB are idle, and 24 are wanted beside 60 of another device."""
        out = run_python(
            WHERE
            + f"""
umem.set_limit({own << 20}, device=0)
umem.set_limit({together << 20})
other = umem.empty(60 << 20, "u1", device=1)
a = umem.empty(20 << 20, "u1")
del a
b = umem.empty(24 << 20, "u1")
print(held())
""",
            FAKECU_DEVICES="2",
            UMEM_ALLOC_CONF="gc_threshold:0.5",
        )
        assert int(out) == mib * MIB


#: … and the memory policy of its pages: mode (1: a preferred node, 0: none) and nodes
POLICY = (
    WHERE
    + """
import ctypes, platform
GET = {"x86_64": 239, "aarch64": 236}[platform.machine()]
def policy(a):
    mode, nodes = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    libc = ctypes.CDLL(None, use_errno=True)
    at, flags = ctypes.c_void_p(where(a)), ctypes.c_ulong(2) # MPOL_F_ADDR
    if libc.syscall(ctypes.c_long(GET), ctypes.byref(mode), nodes, ctypes.c_ulong(1024), at, flags):
        raise OSError(ctypes.get_errno(), "get_mempolicy")
    return mode.value, nodes[0]
"""
)


def set_node(fake_library_node):
    """Code that makes that the NUMA node of the fake's first GPU."""
    return f"""
import os, sys
sys.path.insert(0, "tests")
from fake_cuda.control import FakeCuda
FakeCuda(os.environ["UMEM_CUDA_LIBRARY"]).set_attribute(0, 134, {fake_library_node})
"""


TWO_NODES = {"UMEM_NUMA_NODES": "0-1", "FAKECU_NUMA_NODES": "2"}


@pytest.mark.backends("host", "fake")
class TestNuma:
    """This host may have one node only; which node is asked for on others, tests/c/test_um_backend_cuda.c sees."""

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            (TWO_NODES, "(1, 1)"),
            ({**TWO_NODES, "UMEM_ALLOC_CONF": "numa:on"}, "(1, 1)"),
            ({**TWO_NODES, "UMEM_ALLOC_CONF": "numa:off"}, "(0, 0)"),
            ({"UMEM_NUMA_NODES": "0"}, "(0, 0)"),
            ({"UMEM_NUMA_NODES": "1-2"}, "(0, 0)"),
            ({**TWO_NODES, "FAKECU_CONCURRENT": "0"}, "(1, 1)"),
        ],
    )
    def test_slabs_are_next_to_their_gpu(self, run_python, settings, expected):
        out = run_python(
            POLICY
            + """
for size in (100, 100 << 10, 200 << 20):
    a = umem.empty(size, "u1")
    print(policy(a))
    a[:] = 1
    assert a.sum(dtype="i8") == size
""",
            **settings,
        )
        assert out.splitlines() == [expected] * 3

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize("node", [-1, 1, 900])
    def test_a_node_that_cannot_be_had_does_no_harm(self, run_python, node):
        nodes = "0-999"
        out = run_python(
            set_node(node)
            + POLICY
            + """
a = umem.ones(100_000, "f4")
print(umem.devices()[0]["numa_node"], policy(a)[0] if not os.path.isdir("/sys/devices/system/node/node1") else 0)
assert a.sum() == 100_000
""",
            **TWO_NODES | {"UMEM_NUMA_NODES": nodes},
        )
        assert out.split() == [str(None if node < 0 else node), "0"]

    @pytest.mark.parametrize("conf", ["", "numa:off"])
    def test_a_home_on_a_node_is_kept(self, run_python, conf, on_gpu):
        """That is asked for, so numa:off does not concern it."""
        out = run_python(
            POLICY
            + """
a = umem.ones(100_000, "f4", home="numa:0")
b = umem.ones(100_000, "f4", home="numa:1") # which the system does not have, perhaps
c = umem.ones(100_000, "f4", home="cpu")
assert a.sum() == b.sum() == c.sum() == 100_000
print(policy(a), policy(c))
""",
            UMEM_ALLOC_CONF=conf,
            **TWO_NODES,
        )
        assert out.strip() == ("(1, 1) (1, 1)" if on_gpu and not conf else "(1, 1) (0, 0)")

    @pytest.mark.parametrize(("conf", "on"), [("", True), ("numa:off", False)])
    def test_info_shows_the_map(self, run_python, conf, on, on_gpu):
        node = set_node(1) if on_gpu else ""
        out = run_python(
            node
            + """
import umem
from umem._info import report
info = umem.info()
print(info["numa_nodes"], info["numa"], [d["numa_node"] for d in info["devices"]])
print(*[line for line in report(info).splitlines() if "NUMA" in line], sep="\\n")
""",
            UMEM_ALLOC_CONF=conf,
            **TWO_NODES,
        ).splitlines()
        assert out[0] == f"[0, 1] {on} {[1] if on_gpu else []}"
        assert out[1].split()[:4] == ["NUMA", "nodes", "0,", "1;" if on_gpu else "1"]
        if on_gpu:
            assert ("numa:off" in out[1]) is not on
            assert out[2].split() == ["next", "to", "NUMA", "node", "1"]

    def test_of_this_host(self, umem):
        nodes = umem.info()["numa_nodes"]
        assert nodes
        assert all(type(node) is int for node in nodes)
        listed = Path("/sys/devices/system/node")
        if listed.is_dir():
            assert nodes == sorted(int(node.name[4:]) for node in listed.glob("node[0-9]*"))
        assert umem.info()["numa"] is (len(nodes) > 1)


class TestOnOutOfMemory:
    @pytest.fixture
    def full(self, umem):
        """Arrays that fill what the limit allows."""
        gc.collect()
        umem.trim()
        umem.set_limit(held(umem) + 4 * MIB)
        return [umem.empty(2 * MIB, "u1") for _ in range(2)]

    def test_is_asked_to_make_room(self, umem, full, on_gpu):
        asked = []

        def make_room(requested_bytes, device):
            asked.append((requested_bytes, device))
            full.pop()
            return True

        ooms = umem.memory_stats()["num_ooms"]
        assert umem.on_out_of_memory(make_room) is None
        assert umem.ones(MIB, "u1")[-1] == 1
        device = 0 if on_gpu else None
        assert asked == [(MIB, device)]
        assert umem.empty(4 * MIB, "u1").size == 4 * MIB  # the array of before has gone
        assert asked == [(MIB, device), (4 * MIB, device)]
        assert umem.memory_stats()["num_ooms"] == ooms  # nobody was told

    def test_nothing_is_asked_while_there_is_room(self, umem, full):
        umem.on_out_of_memory(lambda *_: pytest.fail("there was room"))
        full.pop()
        assert umem.empty(2 * MIB, "u1").size
        loop = [umem.empty(2 * MIB, "u1")] if full.clear() is None else []
        loop.append(loop)  # garbage that a collection frees
        del loop
        assert umem.empty(4 * MIB, "u1").size

    def test_returning_nothing_true_ends_it(self, umem, full):
        asked = []
        ooms = umem.memory_stats()["num_ooms"]
        for answer in (False, None, 0, ""):
            umem.on_out_of_memory(lambda *args, answer=answer: asked.append(args) or answer)
            with pytest.raises(umem.OutOfMemoryError) as caught:
                umem.empty(MIB, "u1")
            assert caught.value.requested == MIB
        assert len(asked) == 4
        assert umem.memory_stats()["num_ooms"] == ooms + 4
        assert len(full) == 2

    def test_is_asked_a_hundred_times_at_most(self, umem, full):
        asked = []
        umem.on_out_of_memory(lambda *args: asked.append(args) or True)
        with pytest.raises(umem.OutOfMemoryError):
            umem.empty(MIB, "u1")
        assert len(asked) == 100
        assert len(full) == 2

    def test_its_exception_passes(self, umem, full):
        def fail(requested_bytes, device):
            raise KeyError("mine")

        class Undecided:
            def __bool__(self):
                raise LookupError("no truth")

        umem.on_out_of_memory(fail)
        for make in (
            lambda: umem.empty(MIB, "u1"),
            lambda: umem.array(np.zeros(MIB)),
            lambda: umem.add(full[0], full[1]),
        ):
            with pytest.raises(KeyError, match="mine"):
                make()
        umem.on_out_of_memory(lambda *_: Undecided())
        with pytest.raises(LookupError, match="no truth"):
            umem.empty(MIB, "u1")
        umem.on_out_of_memory(lambda: True)
        with pytest.raises(TypeError, match="argument"):
            umem.empty(MIB, "u1")
        full.pop()
        assert umem.empty(MIB, "u1").size

    def test_is_not_entered_again(self, umem, full):
        depth = []

        def nested(requested_bytes, device):
            depth.append(len(depth))
            with pytest.raises(umem.OutOfMemoryError):
                umem.empty(3 * MIB, "u1")
            full.pop()
            return True

        umem.on_out_of_memory(nested)
        kept = umem.empty(3 * MIB, "u1")
        assert depth == [0, 1]
        umem.on_out_of_memory(lambda *_: depth.append(2))
        with pytest.raises(umem.OutOfMemoryError):
            umem.empty(3 * MIB, "u1")
        assert depth == [0, 1, 2]
        assert kept.size == 3 * MIB

    def test_is_called_again_after_an_exception(self, umem, full):
        def fail(requested_bytes, device):
            raise KeyError

        umem.on_out_of_memory(fail)
        for _ in range(3):
            with pytest.raises(KeyError):
                umem.empty(MIB, "u1")
        assert len(full) == 2

    def test_may_remove_itself(self, umem, full):
        def once(requested_bytes, device):
            assert umem.on_out_of_memory(None) is once
            full.pop()
            return True

        umem.on_out_of_memory(once)
        assert umem.empty(MIB, "u1").size
        with pytest.raises(umem.OutOfMemoryError):
            umem.empty(3 * MIB, "u1")
        assert umem.on_out_of_memory(None) is None

    def test_registering(self, umem):
        def f(requested_bytes, device):
            return False

        assert umem.on_out_of_memory(f) is None
        assert umem.on_out_of_memory(print) is f
        assert umem.on_out_of_memory(None) is print
        assert umem.on_out_of_memory(None) is None
        for bad in (5, "f", [f]):
            with pytest.raises(TypeError, match=r"\bf must be callable"):
                umem.on_out_of_memory(bad)
        with pytest.raises(TypeError):
            umem.on_out_of_memory()

    def test_what_is_registered_is_not_kept_when_replaced(self, umem):
        class Callable:
            def __call__(self, requested_bytes, device):
                return False

        f = Callable()
        gone = weakref.ref(f)
        umem.on_out_of_memory(f)
        del f
        gc.collect()
        assert gone() is not None
        umem.on_out_of_memory(None)
        gc.collect()
        assert gone() is None

    def test_threads_are_asked_on_their_own(self, umem, full):
        """While one thread is in the function another that finds no memory calls it too."""
        both = threading.Barrier(2, timeout=30)
        sizes = []

        def wait_for_the_other(requested_bytes, device):
            both.wait()
            sizes.append(requested_bytes)
            return False

        umem.on_out_of_memory(wait_for_the_other)
        errors = []

        def work(size):
            try:
                umem.empty(size, "u1")
            except umem.OutOfMemoryError as error:
                errors.append(error.requested)

        threads = [threading.Thread(target=work, args=(i * MIB,)) for i in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(sizes) == sorted(errors) == [MIB, 2 * MIB]
        assert len(full) == 2

    def test_threads_that_register_meanwhile(self, umem, full):
        done = threading.Event()
        functions = [lambda *_: False, lambda *_: None, None]

        def register():
            while not done.is_set():
                for f in functions:
                    assert umem.on_out_of_memory(f) in functions

        thread = threading.Thread(target=register)
        thread.start()
        try:
            for _ in range(100):
                with pytest.raises(umem.OutOfMemoryError):
                    umem.empty(MIB, "u1")
        finally:
            done.set()
            thread.join()
        assert len(full) == 2

    @pytest.mark.backends("fake")
    def test_of_the_device_that_is_asked_for(self, umem, fake):
        asked = []
        umem.on_out_of_memory(lambda *args: asked.append(args) or fake.reset_faults() is None)
        umem.trim()
        fake.fail("cuMemAllocManaged", code=fake.OUT_OF_MEMORY, forever=True)
        assert umem.empty(MIB, "u1").size == MIB
        assert asked == [(MIB, 0)]

    @pytest.mark.backends("fake")
    def test_is_asked_for_the_memory_that_a_sum_needs(self, umem, fake):
        a, out = umem.ones(1 << 20, "f4"), umem.zeros((), "f4")
        full = [umem.empty(200 * MIB, "u1")]  # in a slab of its own
        umem.trim()
        umem.set_limit(held(umem))
        asked = []
        umem.on_out_of_memory(lambda *args: asked.append(args) or False)
        with pytest.raises(umem.OutOfMemoryError):
            umem._core.sum_into(a, (0,), out)
        assert out[()] == 0
        umem.on_out_of_memory(lambda *args: asked.append(args) or full.pop() is not None)
        umem._core.sum_into(a, (0,), out)
        assert out[()] == 1 << 20
        assert len(asked) == 2
        assert asked[0] == asked[1]
        assert asked[0][0] > 0
        umem.on_out_of_memory(fail := lambda *_: 1 / 0)
        umem.set_limit(1)
        umem.trim()
        with pytest.raises(ZeroDivisionError):
            umem._core.sum_into(a, (0,), out)
        assert umem.on_out_of_memory(None) is fail
