"""Where arrays live: prefetch, advise, home, discard and residency, of arrays, views and batches; and how places are written."""

import gc

import numpy as np
import pytest

from support import VIEWS, Exporter, address, assert_same, label, sample

gpu = pytest.mark.backends("fake", "cuda")
host = pytest.mark.backends("host")
fake_only = pytest.mark.backends("fake")

MIB = 1 << 20
NOWHERE, HOST = -2, -1


def filled(umem, nbytes=MIB, **where):
    """Bytes that the host has written."""
    a = umem.empty(nbytes, "u1", **where)
    np.asarray(a)[:] = 1
    return a


def counts(residency):
    return (residency.host, residency.device, residency.untouched, residency.unknown)


class Numbered:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


#: spellings of places that every backend takes, and their canonical names
PLACES = {
    "cpu": "cpu",
    "cuda": "cuda:0",
    "cuda:0": "cuda:0",
    "numa:0": "numa:0",
    0: "cuda:0",
    np.int64(0): "cuda:0",
    Numbered(device_id=0): "cuda:0",
    Numbered(numa_id=0): "numa:0",
    Numbered(numa_id=None): "cpu",
    Numbered(type="cpu", index=None): "cpu",
    Numbered(type="cuda", index=0): "cuda:0",
    Numbered(type="cuda", index=None): "cuda:0",
}

NO_PLACES = [
    "gpu", "", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:0:1", " cuda", "cuda:0 ", "numa", "numa:", "numa:-1", "cuda:99999999999",
    "tpu:0", "\ud800", -1, 2**40, -(2**70), 1.0, 0.5, True, False, b"cpu", ["cpu"], ("cuda", 0), object(), type, len,
    Numbered(type="meta", index=None), Numbered(type="cuda", index=-1), Numbered(type="cuda", index="0"), Numbered(device_id="x"),
    Numbered(type=3, index=0), Numbered(),
]  # fmt: skip


class TestPlaces:
    @pytest.mark.parametrize("where", PLACES, ids=label)
    def test_are_accepted_wherever_one_is_given(self, umem, where):
        a = filled(umem)
        a.prefetch(where)
        a.prefetch(where=where)
        umem.prefetch([a], where)
        umem.prefetch([a], where=where)
        a.home = where
        assert a.home == PLACES[where]
        assert umem.zeros(10, home=where).home == PLACES[where]
        a.advise("accessed_by", "cuda")
        umem.synchronize()
        assert (np.asarray(a) == 1).all()

    def test_of_torch(self, umem):
        torch = pytest.importorskip("torch")
        a = filled(umem)
        for where, name in (
            (torch.device("cpu"), "cpu"),
            (torch.device("cuda"), "cuda:0"),
            (torch.device("cuda", 0), "cuda:0"),
        ):
            a.prefetch(where)
            a.home = where
            assert a.home == name
            assert umem.zeros(3, device=where if name != "cpu" else None).sum() == 0
        with pytest.raises(ValueError, match="where"):
            a.prefetch(torch.device("meta"))

    @pytest.mark.parametrize("where", NO_PLACES, ids=label)
    def test_anything_else_is_refused_with_a_list(self, umem, on_gpu, where):
        a = filled(umem)
        for call in (
            lambda: a.prefetch(where),
            lambda: umem.prefetch([a], where),
            lambda: a.advise("accessed_by", where),
            lambda: setattr(a, "home", where),
            lambda: umem.zeros(3, home=where),
            lambda: umem.zeros(3, device=where),
            lambda: a.on(where),
        ):
            with pytest.raises(ValueError) as error:
                call()
            text = str(error.value)
            assert "'cpu'" in text
            assert "'cuda'" in text
            assert "numa" in text
            assert ("cuda:0" if on_gpu else "no GPU") in text
        assert (np.asarray(a) == 1).all()
        assert a.home is None

    def test_none_is_no_place(self, umem):
        a = filled(umem)
        for call in (
            lambda: a.prefetch(None),
            lambda: umem.prefetch([a], None),
            lambda: a.on(None),
        ):
            with pytest.raises(ValueError, match="where"):
                call()
        for call in (
            lambda: a.prefetch(),
            lambda: umem.prefetch([a]),
            lambda: umem.prefetch(),
            lambda: a.prefetch("cpu", "cuda"),
        ):
            with pytest.raises(TypeError):
                call()

    @gpu
    @pytest.mark.parametrize("where", ["cuda:7", "cuda:99", 99, "numa:4000"])
    def test_a_place_that_is_not_there(self, umem, where):
        a = filled(umem)
        for call in (
            lambda: a.prefetch(where),
            lambda: umem.prefetch([a], where),
            lambda: a.advise("accessed_by", where),
            lambda: setattr(a, "home", where),
            lambda: umem.zeros(3, home=where),
            lambda: umem.zeros(3, device=where),
        ):
            with pytest.raises(ValueError, match=r"cuda:0|NUMA|GPU"):
                call()
        assert umem.ones(3).sum() == 3

    @host
    def test_gpus_are_hints_on_the_host(self, umem):
        a = filled(umem)
        for where in ("cuda", "cuda:0", "cuda:5", 3):
            a.prefetch(where)
            umem.prefetch([a], where)
            a.advise("accessed_by", where)
            a.home = where
        assert a.home == "cuda:3"
        assert (np.asarray(a) == 1).all()
        assert counts(a.residency()) == (MIB, 0, 0, 0)

    def test_errors_of_an_object_are_passed_on(self, umem):
        class Broken:
            @property
            def device_id(self):
                raise ZeroDivisionError("broken")

        with pytest.raises(ZeroDivisionError, match="broken"):
            filled(umem).prefetch(Broken())


class TestResidency:
    def test_new_memory_is_untouched(self, umem):
        umem.trim()
        a = umem.empty(MIB, "u1")
        assert counts(a.residency()) == (0, 0, MIB, 0)

    def test_what_the_host_wrote_is_on_the_host(self, umem):
        assert counts(filled(umem).residency()) == (MIB, 0, 0, 0)

    def test_pages_are_counted_one_by_one(self, umem):
        a = umem.empty(4 * MIB, "u1")
        np.asarray(a)[MIB : 2 * MIB] = 1
        r = a.residency()
        assert r.host >= MIB  # a huge page may have come at once
        assert r.host + r.untouched == 4 * MIB
        assert counts(a[MIB : 2 * MIB].residency()) == (MIB, 0, 0, 0)

    def test_bytes_add_up_for_any_view(self, umem):
        a = umem.array(np.arange(100_000).reshape(100, 1000))
        for view in (
            a,
            a[3],
            a[:, 5],
            a[::-1, ::7],
            a[10:20, 100:300],
            a[5:6, 5:6],
            a[50:50],
            a.T[3:9],
        ):
            r = view.residency()
            extent = 0
            if view.size:
                low, high = np.lib.array_utils.byte_bounds(view.numpy())
                extent = high - low
            assert r.nbytes == extent
            assert sum(counts(r)) == extent
            assert r.host == extent
            pages = (address(view) % r.page_size + extent) // r.page_size if extent else 0
            assert len(r.pages) >= pages

    def test_of_nothing(self, umem):
        r = umem.empty(0).residency()
        assert counts(r) == (0, 0, 0, 0)
        assert r.nbytes == 0
        assert len(r.pages) == 0
        assert r.fraction("host") == 0

    def test_fractions_and_text(self, umem):
        r = filled(umem).residency()
        assert r.fraction("host") == 1
        assert r.percent("host") == 100
        assert r.fraction("device") == r.fraction("untouched") == r.fraction("unknown") == 0
        assert "host" in str(r)
        assert "100" in str(r)
        assert str(r) in repr(r)
        with pytest.raises(ValueError, match="state"):
            r.fraction("moon")
        assert r.page_size in (4096, 16384, 65536)
        assert (r.pages == umem.Residency.HOST).all()

    def test_small_arrays(self, umem):
        a = umem.ones(3, "u1")
        r = a.residency()
        assert r.nbytes == 3
        assert sum(counts(r)) == 3
        assert len(r.pages) == 1

    def test_asking_moves_nothing_and_touches_nothing(self, umem):
        umem.trim()
        a = umem.empty(MIB, "u1")
        for _ in range(3):
            assert a.residency().untouched == MIB

    @gpu
    def test_there_and_back(self, umem):
        a = filled(umem)
        a.prefetch("cuda")
        umem.synchronize()
        assert counts(a.residency()) == (0, MIB, 0, 0)
        a.prefetch("cpu")
        umem.synchronize()
        assert counts(a.residency()) == (MIB, 0, 0, 0)
        assert (np.asarray(a) == 1).all()

    @gpu
    def test_half(self, umem):
        a = filled(umem)
        a[: MIB // 2].prefetch("cuda")
        umem.synchronize()
        assert counts(a.residency()) == (MIB // 2, MIB // 2, 0, 0)
        assert counts(a[: MIB // 2].residency()) == (0, MIB // 2, 0, 0)
        assert counts(a[MIB // 2 :].residency()) == (MIB // 2, 0, 0, 0)

    @gpu
    def test_untouched_pages_that_were_prefetched_are_there(self, umem):
        a = umem.empty(MIB, "u1")
        a.prefetch("cuda")
        umem.synchronize()
        assert counts(a.residency()) == (0, MIB, 0, 0)

    @gpu
    def test_what_a_kernel_wrote_is_on_the_gpu(self, umem):
        a = umem.empty(MIB // 4, "f4")
        a.fill(3)
        umem.synchronize()
        assert counts(a.residency()) == (0, MIB, 0, 0)

    @gpu
    def test_what_another_librarys_kernel_may_have_written_is_unknown_or_known_to_be_there(
        self, umem
    ):
        a = umem.empty(MIB // 4, "f4")
        assert a.__cuda_array_interface__
        umem.synchronize()
        r = a.residency()
        assert r.host == 0
        assert r.untouched == 0
        assert r.device + r.unknown == MIB

    @fake_only
    def test_agrees_with_the_driver(self, umem, fake):
        a = filled(umem, 4 * MIB)
        rng = np.random.default_rng(0)
        for _ in range(20):
            start, stop = sorted(rng.integers(0, 4 * MIB, 2).tolist())
            if rng.random() < 0.3:
                np.asarray(a)[start:stop] += 1
            elif stop > start:
                a[start:stop].prefetch(["cuda", "cpu"][rng.integers(2)])
            umem.synchronize()
            r = a.residency()
            driver = np.array(fake.page_locations(address(a), a.nbytes, r.page_size))
            assert r.device == (driver == 0).sum() * r.page_size
            assert r.host == (driver == HOST).sum() * r.page_size


class TestPrefetch:
    def test_views(self, umem):
        a = umem.array(sample("f4", (400, 600)))
        for view in VIEWS.values():
            view(a).prefetch("cuda")
            view(a).prefetch("cpu")
        umem.synchronize()
        assert_same(a, sample("f4", (400, 600)))

    def test_of_nothing(self, umem):
        a = umem.empty(0)
        a.prefetch("cuda")
        a.prefetch("cpu")
        umem.prefetch([a, a], "cuda")
        umem.prefetch([], "cuda")
        umem.synchronize()
        assert umem.ones(3).sum() == 3

    def test_of_read_only_arrays(self, umem):
        a = filled(umem)
        a.flags.writeable = False
        a.prefetch("cuda")
        umem.prefetch([a], "cpu")
        assert (np.asarray(a) == 1).all()

    def test_batches(self, umem):
        arrays = [filled(umem, 100_000 + i) for i in range(5)]
        for batch in (
            arrays,
            tuple(arrays),
            iter(arrays),
            {i: a for i, a in enumerate(arrays)}.values(),
            arrays[0],
        ):
            umem.prefetch(batch, "cuda")
        umem.prefetch([arrays[0], arrays[0][10:20], arrays[1][::2], umem.empty(0)], "cpu")
        umem.synchronize()
        assert all((np.asarray(a) == 1).all() for a in arrays)

    def test_bad_batches(self, umem):
        a = filled(umem)
        for bad in ([a, np.zeros(3)], [None], 5, [a, [a]], "cpu", np.zeros(3)):
            with pytest.raises(TypeError, match="array|iter"):
                umem.prefetch(bad, "cpu")

    @fake_only
    def test_a_bad_batch_moves_nothing(self, umem, fake):
        a = filled(umem)
        with pytest.raises(TypeError):
            umem.prefetch([a, np.zeros(3)], "cuda")
        umem.synchronize()
        assert a.residency().host == MIB

    @fake_only
    def test_a_batch_is_one_driver_call(self, umem, fake):
        arrays = [filled(umem) for _ in range(6)]
        before = fake.calls("cuMemPrefetchBatchAsync"), fake.calls("mem_prefetch_location")
        umem.prefetch(arrays, "cuda")
        assert fake.calls("cuMemPrefetchBatchAsync") == before[0] + 1
        assert fake.calls("mem_prefetch_location") == before[1]
        umem.synchronize()
        assert all(counts(a.residency()) == (0, MIB, 0, 0) for a in arrays)

    @fake_only
    @pytest.mark.parametrize("version", ["12000", "12020", "12080", "13000"])
    def test_every_driver_can(self, run_python, version):
        out = run_python(
            """
import numpy as np, umem
arrays = [umem.zeros(1 << 18, "f4") for _ in range(3)]
for a in arrays: np.asarray(a)[:] = 1
umem.prefetch(arrays, "cuda"); umem.synchronize()
print([a.residency().device >> 20 for a in arrays])
arrays[0].prefetch("cpu"); arrays[1].prefetch("numa:0" if umem.info()["driver"] >= 12020 else "cpu"); umem.synchronize()
print([a.residency().host >> 20 for a in arrays], [float(a.sum()) for a in arrays])
arrays[2].discard(); arrays[2].fill(2)
arrays[0].home = "cpu"; arrays[1].home = "cuda"; arrays[1].home = None
arrays[0].advise("read_mostly"); arrays[0].advise("unset_read_mostly")
print(arrays[2][5], umem.info()["driver"])
""",
            FAKECU_VERSION=version,
        )
        assert out.splitlines() == [
            "[1, 1, 1]",
            "[1, 1, 0] [262144.0, 262144.0, 262144.0]",
            f"2.0 {version}",
        ]

    @fake_only
    def test_is_ordered_on_the_stream(self, umem, fake):
        a = filled(umem)
        umem.synchronize()
        handle = fake.stream_create()
        try:
            with umem.stream(handle):
                a.prefetch("cuda")
            assert fake.pending(handle) >= 1
            assert counts(a.residency())[1] == 0
            umem.synchronize()
            assert counts(a.residency()) == (0, MIB, 0, 0)
        finally:
            fake.stream_destroy(handle)


class TestHome:
    def test_reads_back_canonically(self, umem):
        a = filled(umem)
        assert a.home is None
        for where in ("cpu", "cuda", "cuda:0", "numa:0", 0, None, "cpu"):
            a.home = where
            assert a.home == (None if where is None else PLACES[where])
        assert (np.asarray(a) == 1).all()

    def test_belongs_to_the_memory(self, umem):
        a = filled(umem)
        a[MIB // 2 :].home = "cpu"
        assert a.home == "cpu"
        assert a[:5].home == "cpu"
        assert umem.asarray(np.asarray(a)).home == "cpu"
        assert a.copy().home in ("cpu", None)

    def test_of_an_array_that_shares_its_pages_is_refused(self, umem):
        a = umem.ones(10)
        for home in ("cpu", "cuda:0"):
            with pytest.raises(ValueError, match=r"pages.*home="):
                a.home = home
        assert a.home is None
        assert a.sum() == 10

    def test_of_small_arrays_can_be_given_at_creation(self, umem):
        a = umem.ones(10, home="cpu")
        assert a.home == "cpu"
        a.home = "cpu"
        assert a.sum() == 10

    def test_setting_what_is_set_does_nothing(self, umem):
        small, large = umem.ones(3), filled(umem, home="cpu")
        small.home = None
        large.home = "cpu"
        assert (small.home, large.home) == (None, "cpu")

    def test_cannot_be_deleted(self, umem):
        a = filled(umem)
        with pytest.raises(AttributeError):
            del a.home

    @fake_only
    def test_setting_what_is_set_asks_the_driver_nothing(self, umem, fake):
        a = filled(umem, home="cpu")
        before = fake.counter("calls")
        a.home = "cpu"
        assert fake.counter("calls") == before

    @fake_only
    def test_tells_the_driver(self, umem, fake):
        a = filled(umem)
        page = address(a) + MIB // 2
        a.home = "cpu"
        assert fake.page_preferred(page) == HOST
        assert fake.page_accessed_by(page) & 1
        a.home = "cuda:0"
        assert fake.page_preferred(page) == 0
        a.home = None
        assert fake.page_preferred(page) == NOWHERE

    @fake_only
    def test_data_at_home_on_the_host_are_used_over_the_link(self, umem, fake):
        a = umem.empty(MIB // 4, "f4", home="cpu")
        np.asarray(a)[:] = 1
        moved, link = fake.counter("to_device_bytes"), fake.counter("link_bytes")
        umem.add(a, 1, out=a)
        umem.synchronize()
        assert fake.counter("link_bytes") > link
        assert fake.counter("to_device_bytes") == moved
        assert a.residency().host == MIB
        assert a[5] == 2

    @fake_only
    def test_homes_never_share_a_page(self, umem, fake):
        arrays = {
            home: [umem.ones(10, home=home) for _ in range(5)] for home in ("cpu", "cuda:0", None)
        }
        pages = {home: {address(a) // 4096 for a in some} for home, some in arrays.items()}
        assert not pages["cpu"] & pages["cuda:0"]
        assert not pages["cpu"] & pages[None]
        assert not pages["cuda:0"] & pages[None]
        for home, some in arrays.items():
            expected = {"cpu": HOST, "cuda:0": 0, None: NOWHERE}[home]
            assert all(fake.page_preferred(address(a)) == expected for a in some)


ADVICE = [
    ("read_mostly",), ("unset_read_mostly",), ("preferred_location", "cpu"), ("preferred_location", "cuda"),
    ("unset_preferred_location",), ("accessed_by", "cuda"), ("unset_accessed_by", "cuda"), ("accessed_by", "cpu"),
]  # fmt: skip


class TestAdvice:
    @pytest.mark.parametrize("advice", ADVICE, ids=str)
    def test_is_taken_of_arrays_and_views(self, umem, advice):
        a = filled(umem)
        a.advise(*advice)
        a[MIB // 2 :].advise(*advice)
        a[::3].advise(*advice)
        umem.empty(0).advise(*advice)
        assert (np.asarray(a) == 1).all()
        if len(advice) > 1:
            a.advise(advice[0], where=advice[1])
            a.advise(advice=advice[0], where=advice[1])

    @pytest.mark.parametrize("bad", ["nonsense", "", "READ_MOSTLY"])
    def test_unknown(self, umem, bad):
        with pytest.raises(ValueError, match=r"advice.*read_mostly.*accessed_by"):
            filled(umem).advise(bad)

    def test_misuse(self, umem):
        a = filled(umem)
        for call in (
            lambda: a.advise(),
            lambda: a.advise(3),
            lambda: a.advise(None),
            lambda: a.advise("read_mostly", "cpu", 3),
            lambda: a.advise("read_mostly", colour="red"),
        ):
            with pytest.raises(TypeError):
                call()
        for call in (
            lambda: a.advise("read_mostly", "cpu"),
            lambda: a.advise("accessed_by"),
            lambda: a.advise("accessed_by", None),
        ):
            with pytest.raises(ValueError, match="location"):
                call()

    @fake_only
    def test_tells_the_driver(self, umem, fake):
        a = filled(umem)
        first, second = address(a), address(a) + MIB // 2
        a[MIB // 2 :].advise("read_mostly")
        assert not fake.page_read_mostly(first)
        assert fake.page_read_mostly(second)
        a.advise("unset_read_mostly")
        assert not fake.page_read_mostly(second)
        a.advise("preferred_location", "cpu")
        assert fake.page_preferred(first) == HOST
        a.advise("unset_preferred_location")
        assert fake.page_preferred(first) == NOWHERE
        a.advise("unset_accessed_by", "cuda")
        assert not fake.page_accessed_by(first)
        a.advise("accessed_by", "cuda")
        assert fake.page_accessed_by(first) & 1


class TestDiscard:
    def test_the_array_stays_usable(self, umem):
        a = filled(umem)
        a.prefetch("cuda")
        a.discard()
        a.fill(4)
        assert (np.asarray(a) == 4).all()
        a.discard()
        np.asarray(a)[:] = 5
        assert a[MIB - 1] == 5

    def test_neighbours_of_a_view_keep_their_values(self, umem):
        a = umem.arange(200_000)
        a[50_003:150_007].discard()
        a[50_003:150_007] = -1
        n = np.asarray(a)
        assert np.array_equal(n[:50_003], np.arange(50_003))
        assert np.array_equal(n[150_007:], np.arange(150_007, 200_000))
        assert (n[50_003:150_007] == -1).all()

    def test_small_arrays_and_nothing(self, umem):
        a, b = umem.ones(3), umem.ones(3)
        a.discard()
        umem.empty(0).discard()
        assert b.sum() == 3

    def test_is_refused_where_something_else_would_be_lost(self, umem):
        a = umem.arange(200_000).reshape(1000, 200)
        for view in (a[:, :100], a[::2], a[:, 5]):
            with pytest.raises(ValueError, match="contiguous"):
                view.discard()
        a.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            a.discard()
        assert np.array_equal(np.asarray(a).ravel(), np.arange(200_000))

    def test_transposed_arrays_are_contiguous_too(self, umem):
        a = umem.zeros((300, 400))
        a.T.discard()
        a[::-1].discard()
        a.fill(1)
        assert a.sum() == 120_000

    @fake_only
    def test_moving_afterwards_costs_nothing(self, umem, fake):
        a = filled(umem)
        a.discard()
        moved = fake.counter("to_device_bytes")
        a.prefetch("cuda")
        umem.synchronize()
        assert a.residency().device == MIB
        assert (
            fake.counter("to_device_bytes") - moved <= 2 * 65536
        )  # groups of pages that reach out of the array

    @fake_only
    def test_only_whole_pages_of_a_view_are_dropped(self, umem, fake):
        a = filled(umem)
        a[1000 : MIB // 2].discard()
        moved = fake.counter("to_device_bytes")
        a.prefetch("cuda")
        umem.synchronize()
        assert MIB // 2 <= fake.counter("to_device_bytes") - moved <= MIB // 2 + 2 * 65536
        n = np.asarray(a)
        assert (n[:1000] == 1).all()
        assert (n[MIB // 2 :] == 1).all()

    @fake_only
    def test_what_is_written_afterwards_counts(self, umem, fake):
        for write in (
            lambda a: a.fill(7),
            lambda a: np.asarray(a).fill(7),
            lambda a: a.__setitem__(slice(None), 7),
            lambda a: umem.add(umem.full(a.shape, 6, dtype="f4"), 1, out=a),
        ):
            a = filled(umem).view("f4")
            a.discard()
            write(a)
            for where in ("cuda", "cpu", "cuda"):
                a.prefetch(where)
                umem.synchronize()
            assert (np.asarray(a) == 7).all()


@fake_only
class TestDefaults:
    """What umem does about placement by itself (section 4 of the contract)."""

    def test_memory_is_accessed_by_its_gpu_from_birth(self, umem, fake):
        for nbytes in (65536, 100_000, MIB):
            a = umem.empty(nbytes, "u1")
            assert fake.page_accessed_by(address(a)) & 1

    def test_the_gpu_uses_host_resident_data_over_the_link(self, umem, fake):
        a, b = filled(umem).view("f4"), filled(umem).view("f4")
        moved, link = fake.counter("to_device_bytes"), fake.counter("link_bytes")
        c = a + b
        umem.synchronize()
        assert fake.counter("link_bytes") == link + 2 * MIB
        assert fake.counter("to_device_bytes") == moved
        assert a.residency().host == MIB
        assert b.residency().host == MIB
        assert c.size == MIB // 4

    def test_outputs_nobody_has_touched_are_made_on_the_gpu(self, umem, fake):
        umem.trim()  # memory used before has its pages already
        a = filled(umem).view("f4")
        c = a + a
        umem.synchronize()
        assert counts(c.residency()) == (0, MIB, 0, 0)

    def test_large_zeros_are_made_on_the_gpu(self, umem):
        a = umem.zeros(16 * MIB, "u1")
        umem.synchronize()
        assert a.residency().host == 0
        b = umem.zeros(16 * MIB, "u1", home="cpu")
        umem.synchronize()
        assert b.residency().device == 0

    def test_bulk_reads_of_the_gpus_data_never_fault(self, umem, fake):
        a = umem.full(2 * MIB, 3, dtype="f4")
        a.prefetch("cuda")
        umem.synchronize()
        for read in (
            lambda: a.read(),
            lambda: a.tobytes(),
            lambda: np.asarray(a).sum(),
            lambda: a.tolist()[:1],
            lambda: np.max(a),
        ):
            a.prefetch("cuda")
            umem.synchronize()
            faults = fake.counter("host_fault_bytes")
            read()
            assert fake.counter("host_fault_bytes") == faults

    def test_the_first_hand_out_prefetches_and_drops_accessed_by(self, umem, fake):
        a = filled(umem, 4 * MIB)
        assert a.__cuda_array_interface__
        umem.synchronize()
        assert counts(a.residency()) == (0, 4 * MIB, 0, 0)
        assert not fake.page_accessed_by(address(a)) & 1
        np.asarray(a)[:] = 2
        a.prefetch("cpu")
        umem.synchronize()
        assert a.__cuda_array_interface__  # only the first hand-out moves anything
        umem.synchronize()
        assert a.residency().host == 4 * MIB

    @pytest.mark.parametrize("home", ["cpu", "cuda:0"])
    def test_a_home_given_by_the_user_is_left_alone(self, umem, fake, home):
        a = filled(umem, 4 * MIB, home=home)
        preferred, accessed = fake.page_preferred(address(a)), fake.page_accessed_by(address(a))
        before = counts(a.residency())
        assert a.__cuda_array_interface__
        umem.synchronize()
        assert counts(a.residency()) == before
        assert (fake.page_preferred(address(a)), fake.page_accessed_by(address(a))) == (
            preferred,
            accessed,
        )
        assert a.home == home

    def test_a_hand_out_by_dlpack_counts_too(self, umem, fake):
        a = filled(umem, 4 * MIB)
        capsule = a.__dlpack__(stream=1, max_version=(1, 0))
        umem.synchronize()
        assert a.residency().device == 4 * MIB
        del capsule
        gc.collect()

    def test_a_hand_out_to_the_host_moves_nothing(self, umem):
        a = filled(umem, 4 * MIB)
        np.from_dlpack(a)
        np.asarray(Exporter(a, "__array_interface__"))
        assert a.residency().host == 4 * MIB


@fake_only
class TestTwoDevices:
    def test_everything_knows_its_device(self, run_python):
        out = run_python(
            """
import numpy as np, umem
a, b = umem.ones(1 << 18, "f4", device=0), umem.ones(1 << 18, "f4", device="cuda:1")
print(a.device, b.device, b[5:].device, [d["index"] for d in umem.devices()])
for x in (a, b): np.asarray(x)[:] = 2
umem.prefetch([a, b], "cuda"); umem.synchronize()
import os; from tests.fake_cuda.control import FakeCuda
fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
where = lambda x: fake.page_location(x.__array_interface__["data"][0])
print(where(a), where(b))
a.prefetch("cuda:1"); umem.synchronize(); print(where(a), a.device)
c = a + b; print(c.device, c[0]); d = b + a; print(d.device, d[0])
print(b.__dlpack_device__(), a.copy().device, umem.zeros_like(b).device, b.astype("i4").device, (b * 2).device)
print(umem.from_dlpack(a, device="cuda:1").device, umem.from_dlpack(a, device="cuda").device)
for where in ("cuda:2", 2):
    try: a.prefetch(where)
    except ValueError as error: print("cuda:0, cuda:1" in str(error))
print(umem.memory_stats(0)["allocated_bytes.all.current"] > 0, umem.memory_stats("cuda:1")["allocated_bytes.all.current"] > 0)
umem.set_limit(umem.memory_stats(1)["reserved_bytes.all.current"], device=1)
try: umem.zeros(100, device=1)
except umem.OutOfMemoryError as error: print(error.device, error.limit > 0)
print(umem.zeros(100, device=0).sum())
""",
            FAKECU_DEVICES="2",
        ).splitlines()
        assert out == [
            "cuda:0 cuda:1 cuda:1 [0, 1]",
            "0 1",
            "1 cuda:0",
            "cuda:0 4.0",
            "cuda:1 4.0",
            "(2, 1) cuda:0 cuda:1 cuda:1 cuda:1",
            "cuda:1 cuda:0",
            "True",
            "True",
            "True True",
            "1 True",
            "0.0",
        ]
