"""umem.random: the numbers against Philox written in NumPy, the same ones everywhere, their distributions, NumPy's interface."""

import copy
import hashlib
import inspect
import math
import pickle
import threading
from typing import ClassVar

import numpy as np
import pytest

WORD = 1 << 64


def philox(key, low, high=0):
    """Philox4x32-10 of arrays of counters: the four words of each."""
    low = np.atleast_1d(np.asarray(low, "u8"))
    high = np.broadcast_to(np.asarray(high, "u8"), low.shape)
    c = [np.uint64(0xFFFFFFFF) & (x >> np.uint64(s)) for x in (low, high) for s in (0, 32)]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        c = [
            b >> half ^ c[1] ^ np.uint64(k[0]),
            b & mask,
            a >> half ^ c[3] ^ np.uint64(k[1]),
            a & mask,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=-1)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((WORD - 1, WORD - 1), WORD - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ((0x85A308D3243F6A88, 0x0370734413198A2E), 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_the_reference_is_philox(counter, key, expected):
    """The known answers published with the generator; tests/c/test_um_random.c has them for the code itself."""
    assert " ".join(f"{word:08x}" for word in philox(key, *counter)[0]) == expected


def counters(first, count):
    return np.asarray([(first + i) % WORD for i in range(count)], "u8")


def words(rng, count):
    """The words that the next `count` steps of the generator are made of."""
    state = rng.state
    return philox(state["key"], counters(state["counter"], count))


def generator(umem, counter=0, key=0x123456789ABCDEF0):
    rng = umem.random.default_rng(0)
    rng.state = {"key": key, "counter": counter}
    return rng


#: where a stream begins: at once, where the counter's low word overflows, where all of it does
STARTS = [0, 2**32 - 3, 2**64 - 2]


class TestNumbers:
    @pytest.mark.parametrize("start", STARTS)
    def test_uniform_float32(self, umem, start):
        rng = generator(umem, start)
        expected = (words(rng, 25) >> np.uint64(8)).astype("f4") * np.float32(2.0**-24)
        assert np.array_equal(rng.random(99, "f4"), expected.ravel()[:99])
        assert rng.state["counter"] == (start + 25) % WORD

    @pytest.mark.parametrize("start", STARTS)
    def test_uniform_float64(self, umem, start):
        rng = generator(umem, start)
        w = words(rng, 50)
        whole = (w[:, ::2] >> np.uint64(5)) * np.uint64(2**26) + (w[:, 1::2] >> np.uint64(6))
        assert np.array_equal(rng.random(99), whole.ravel()[:99] * 2.0**-53)
        assert rng.state["counter"] == (start + 50) % WORD

    def test_uniform_between(self, umem):
        expected = generator(umem).random(1001).read() * (7.5 - -2.25) + -2.25
        assert np.array_equal(generator(umem).uniform(-2.25, 7.5, 1001), expected)

    @pytest.mark.parametrize("start", STARTS)
    @pytest.mark.parametrize("span", [1, 2, 10, 256, 2**31 + 1, 3 * 2**30, 2**32 - 1, 2**32])
    def test_integers_of_32_bits(self, umem, start, span):
        rng = generator(umem, start)
        key, w = rng.state["key"], words(rng, 25)
        expected = []
        for i in range(99):
            unit, lane, attempt = i // 4, i % 4, 0
            word = int(w[unit, lane])
            while word * span % 2**32 < 2**32 % span:
                attempt += 1
                word = int(philox(key, (start + unit) % WORD, attempt)[0, lane])
            expected.append(word * span >> 32)
        assert np.array_equal(rng.integers(span, size=99), expected)
        assert rng.state["counter"] == (start + 25) % WORD

    @pytest.mark.parametrize("start", STARTS)
    @pytest.mark.parametrize("span", [2**32 + 1, 2**63 + 1, 3 * 2**62, 2**64 - 1, 2**64])
    def test_integers_of_64_bits(self, umem, start, span):
        rng = generator(umem, start)
        key, w = rng.state["key"], words(rng, 50)
        expected = []
        for i in range(99):
            unit, lane, attempt = i // 2, i % 2, 0
            word = int(w[unit, 2 * lane]) << 32 | int(w[unit, 2 * lane + 1])
            while word * span % WORD < WORD % span:
                attempt += 1
                again = philox(key, (start + unit) % WORD, attempt)[0]
                word = int(again[2 * lane]) << 32 | int(again[2 * lane + 1])
            expected.append(word * span >> 64)
        assert np.array_equal(rng.integers(span, size=99, dtype="u8"), np.asarray(expected, "u8"))
        assert rng.state["counter"] == (start + 50) % WORD

    @pytest.mark.parametrize(
        "dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "q", "Q"]
    )
    def test_integers_do_not_depend_on_the_dtype(self, umem, dtype):
        same = generator(umem).integers(2, size=101).read()
        assert np.array_equal(
            generator(umem).integers(2, size=101, dtype=dtype), same.astype(dtype)
        )
        if np.dtype(dtype).kind == "i":
            least = int(np.iinfo(dtype).min)
            result = generator(umem).integers(least, least + 5, size=101, dtype=dtype)
            assert np.array_equal(result, generator(umem).integers(5, size=101).read() + least)

    def test_normal_float32(self, umem):
        rng = generator(umem)
        w = words(rng, 10_000).reshape(-1, 2)
        a, b = w[:, 0], w[:, 1]
        u = (a >> np.uint64(1)).astype("f4") + np.float32(0.5)  # rounded as the kernel does
        t = (b.astype("u4").view("i4") >> 1).astype("f4").astype("f8") * (2.0**-30 * math.pi / 4)
        r = np.sqrt(-2 * np.log(u.astype("f8") / 2**31))
        expected = pair(r, t, a & np.uint64(1), b & np.uint64(1))
        result = rng.standard_normal(40_000, "f4").read().astype("f8")
        np.testing.assert_allclose(result, expected, rtol=4e-7)

    def test_normal_float64(self, umem):
        rng = generator(umem)
        w = words(rng, 20_000)
        u = (w[:, 0] >> np.uint64(5)) * np.uint64(2**26) + (w[:, 1] >> np.uint64(6))
        u = (u.astype("f8") + 0.5).astype("g") / np.longdouble(
            2
        ) ** 53  # rounded as the kernel does
        t = w[:, 2].astype("u4").view("i4").astype("g") / 2**31
        t += (w[:, 3] >> np.uint64(10)).astype("g") / 2**53
        quarter = 4 * np.arctan(np.longdouble(1)) / 4
        expected = pair(
            np.sqrt(-2 * np.log(u)), t * quarter, w[:, 1] & np.uint64(1), w[:, 1] & np.uint64(2)
        )
        result = rng.standard_normal(40_000).read()
        np.testing.assert_allclose(result, expected.astype("f8"), rtol=1e-15)
        shifted = generator(umem).normal(3.5, 0.25, 40_000)
        assert np.array_equal(shifted, result * 0.25 + 3.5)

    def test_the_numbers_stay_what_they_are(self, umem):
        """Of every processor, compiler and version."""
        rng = umem.random.default_rng(2024)
        digest = hashlib.sha256()
        for draw in draws(rng).values():
            digest.update(draw(1003).read().tobytes())
        assert digest.hexdigest()[:16] == "a13d6a93d8b16339"


def pair(r, t, negative, swapped):
    x, y = r * np.cos(t) * np.where(negative, -1, 1), r * np.sin(t)
    return np.stack([np.where(swapped, y, x), np.where(swapped, x, y)], axis=-1).ravel()


def draws(rng):
    """Calls that together use every kernel, by what they draw; each takes a size."""
    return {
        "random f4": lambda size, **more: rng.random(size, "f4", **more),
        "random f8": lambda size, **more: rng.random(size, **more),
        "normal f4": lambda size, **more: rng.standard_normal(size, "f4", **more),
        "normal f8": lambda size, **more: rng.standard_normal(size, **more),
        "uniform": lambda size: rng.uniform(-1, 3, size),
        "normal": lambda size: rng.normal(1, 2, size),
        "integers i1": lambda size: rng.integers(-100, 100, size, "i1"),
        "integers u2": lambda size: rng.integers(50_000, size=size, dtype="u2"),
        "integers i4": lambda size: rng.integers(-(2**31), 2**31, size, "i4"),
        "integers i8": lambda size: rng.integers(3_000_000_000, size=size),
        "integers u8": lambda size: rng.integers(2**63 + 1, size=size, dtype="u8"),
    }


KINDS = list(draws(None))
WITH_OUT = KINDS[:4]


class TestTheSameEverywhere:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("size", [*range(10), 1023, 1024, 4097, 70_001])
    def test_an_element_depends_on_its_index_only(self, umem, kind, size):
        longest = draws(generator(umem))[kind](70_016).read()
        assert np.array_equal(draws(generator(umem))[kind](size), longest[:size])

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_kernel_and_the_host_agree(self, umem, kind, monkeypatch):
        """On the host backend the two are one; NumPy arrays are filled on the host in any case."""
        array = draws(generator(umem, 77))[kind](50_001)
        alike = np.empty(array.shape, array.dtype)
        fill = umem._core.random_fill
        monkeypatch.setattr(umem._core, "random_fill", lambda out, *how: fill(alike, *how))
        draws(generator(umem, 77))[kind](50_001)
        assert alike.tobytes() == array.read().tobytes()

    @pytest.mark.parametrize("kind", WITH_OUT)
    @pytest.mark.parametrize(
        "view",
        [
            lambda x: x,
            lambda x: x[:, 1:],
            lambda x: x[::2, ::-3],
            lambda x: x.T,
            lambda x: x[1:, 2],
            lambda x: x.reshape(-1)[1:],
            lambda x: x[3:3],
            lambda x: x[0, 0, ...],
        ],
        ids=["whole", "columns", "steps", "transposed", "column", "off by one", "none", "no axes"],
    )
    def test_out(self, umem, kind, view):
        dtype = kind[-2:]
        memory = umem.full((40, 50), -7, dtype=dtype)
        out = view(memory)
        expected = np.full((40, 50), -7, dtype)
        view(expected)[...] = draws(generator(umem))[kind](out.shape).read()
        assert draws(generator(umem))[kind](None, out=out) is out
        assert np.array_equal(memory, expected)
        assert draws(generator(umem))[kind](out.shape, out=out) is out
        assert np.array_equal(memory, expected)

    @pytest.mark.parametrize("kind", KINDS)
    def test_one_number(self, umem, kind):
        one = draws(generator(umem))[kind](None)
        assert one == draws(generator(umem))[kind](()).item()

    def test_on_a_stream(self, umem):
        with umem.stream(2):
            result = generator(umem).random(5000)
        assert np.array_equal(result, generator(umem).random(5000))

    def test_under_a_view(self, umem):
        out = umem.zeros(5000)
        view = out.numpy()
        generator(umem).random(out=out)
        assert np.array_equal(view, generator(umem).random(5000))

    def test_a_home_and_a_device(self, umem):
        a = generator(umem).random(300_000, home="cpu", device=0)
        assert a.home == umem.empty(300_000, home="cpu", device=0).home
        assert np.array_equal(a, generator(umem).random(300_000))


def kolmogorov(sample, cdf):
    """Kolmogorov and Smirnov's statistic times sqrt(n): above 1.95 once in 1,000 times."""
    ordered = np.sort(sample)
    n = len(ordered)
    at = np.linspace(0, n - 1, 20_001).astype(int)
    expected = np.array([cdf(x) for x in ordered[at].tolist()])
    return math.sqrt(n) * max((expected - at / n).max(), ((at + 1) / n - expected).max())


def normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


@pytest.fixture(scope="module")
def samples():
    """By kind, as they are drawn; kept for the other tests."""
    return {}


@pytest.mark.backends("host", "cuda")  # the numbers are the same elsewhere
class TestDistributions:
    N = 4_000_000

    def sample(self, umem, samples, kind):
        if kind not in samples:
            samples[kind] = draws(umem.random.default_rng(11))[kind](self.N).read().astype("f8")
        return samples[kind]

    @pytest.mark.parametrize("kind", ["random f4", "random f8"])
    def test_uniform(self, umem, samples, kind):
        x = self.sample(umem, samples, kind)
        assert x.min() >= 0
        assert x.max() < 1
        assert kolmogorov(x, lambda v: v) < 1.95
        assert abs(x.mean() - 0.5) < 4 / math.sqrt(12 * self.N)
        assert abs(x.var() - 1 / 12) < 4 / math.sqrt(180 * self.N)

    @pytest.mark.parametrize("kind", ["normal f4", "normal f8"])
    def test_normal(self, umem, samples, kind):
        x = self.sample(umem, samples, kind)
        assert kolmogorov(x, normal_cdf) < 1.95
        # Means of powers against the moments of the normal distribution, within four standard errors.
        for power, moment, variance in (
            (1, 0, 1),
            (2, 1, 2),
            (3, 0, 15),
            (4, 3, 96),
            (6, 15, 10170),
        ):
            assert abs((x**power).mean() - moment) < 4 * math.sqrt(variance / self.N), power

    @pytest.mark.parametrize("kind", ["normal f4", "normal f8"])
    def test_tails(self, umem, samples, kind):
        x = abs(self.sample(umem, samples, kind))
        for limit in (1, 2, 3, 4, 4.5, 5):
            expected = self.N * math.erfc(limit / math.sqrt(2))
            assert abs((x > limit).sum() - expected) < 4 * math.sqrt(expected) + 2, limit

    @pytest.mark.parametrize(("dtype", "most"), [("f4", 6.66), ("f8", 8.57)])
    def test_the_farthest(self, umem, dtype, most):
        """The radius where the words are zero, which no sample would show: a counter that gives a small one, found by search."""
        key = 5
        found = []
        for first in range(0, 1 << 22, 1 << 18):
            w = philox(key, np.arange(first, first + (1 << 18), dtype="u8"))[:, 0]
            found.append((int(w.min()), first + int(w.argmin())))
        smallest, counter = min(found)
        assert smallest < 2**32 / 1e6
        x = generator(umem, counter, key).standard_normal(2, dtype).read().astype("f8")
        radius = math.hypot(*x)
        assert radius == pytest.approx(math.sqrt(-2 * math.log((smallest + 0.5) / 2**32)), rel=1e-3)
        assert 5.4 < radius < most

    @pytest.mark.parametrize("kind", ["random f4", "random f8", "normal f4", "normal f8"])
    def test_neighbours_are_independent(self, umem, samples, kind):
        x = self.sample(umem, samples, kind)
        x = x - x.mean()
        for values in (x, x**2 - (x**2).mean()):
            for lag in (1, 2, 3, 4, 5, 1024):
                r = (values[:-lag] * values[lag:]).mean() / values.var()
                assert abs(r) < 4.5 / math.sqrt(self.N), lag

    @pytest.mark.parametrize("span", [2, 7, 10, 100])
    def test_integers(self, umem, span):
        counts = np.bincount(umem.random.default_rng(3).integers(span, size=1_000_000).read())
        expected = 1_000_000 / span
        chi = (((counts - expected) ** 2) / expected).sum()
        assert len(counts) == span
        assert abs(chi - (span - 1)) < 4.5 * math.sqrt(2 * (span - 1))

    def test_integers_have_no_bias(self, umem):
        """Of a range of 3/4 of all words a third would come twice as often without rejection."""
        x = umem.random.default_rng(3).integers(3 << 30, size=1_000_000).read()
        counts = np.bincount(x % 3)
        assert abs(counts - 1e6 / 3).max() < 5 * math.sqrt(1e6 * 2 / 9)

    def test_bits(self, umem):
        x = umem.random.default_rng(5).integers(2**64, size=200_000, dtype="u8").read()
        ones = [(x >> np.uint64(bit) & np.uint64(1)).sum() for bit in range(64)]
        assert abs(np.array(ones, "f8") - 1e5).max() < 4.5 * math.sqrt(200_000) / 2


class TestStreams:
    def test_seeds(self, umem):
        rng = umem.random.default_rng

        def first(seed):
            return rng(seed).random(4).tolist()

        assert first(5) == first(np.int64(5)) == first(np.random.SeedSequence(5)) == first([5])
        assert len({tuple(first(seed)) for seed in (0, 1, 2**100, [1, 2], None, None)}) == 6
        g = rng(7)
        assert rng(g) is g
        assert g.seed_seq.entropy == 7
        assert repr(g) == "Generator(Philox4x32-10)"

    @pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), (1.5, TypeError), ("x", TypeError), ([1, -2], ValueError), ({}, TypeError)])  # fmt: skip
    def test_bad_seeds(self, umem, seed, error):
        with pytest.raises(error, match="seed must be"):
            umem.random.default_rng(seed)

    def test_calls_go_on(self, umem):
        rng = umem.random.default_rng(1)
        parts = [rng.random(7) for _ in range(100)]
        numbers = np.concatenate([part.read() for part in parts])
        assert len(np.unique(numbers)) == 700
        assert rng.state["counter"] == 400

    def test_state(self, umem):
        rng = umem.random.default_rng(1)
        rng.random(9)
        state = rng.state
        assert state.keys() == {"key", "counter"}
        x = rng.random(9)
        rng.state = state
        assert np.array_equal(rng.random(9), x)
        other = umem.random.default_rng(2)
        other.state = state
        assert np.array_equal(other.random(9), x)

    @pytest.mark.parametrize("state", [None, {}, {"key": 1}, {"key": 1, "counter": 2, "more": 3}, {"key": 1.0, "counter": 2}, {"key": "a", "counter": 2}])  # fmt: skip
    def test_bad_states(self, umem, state):
        rng = umem.random.default_rng(1)
        before = rng.state
        with pytest.raises(TypeError, match="state"):
            rng.state = state
        assert rng.state == before

    @pytest.mark.parametrize("word", [-1, 2**64])
    @pytest.mark.parametrize("name", ["key", "counter"])
    def test_states_out_of_range(self, umem, name, word):
        rng = umem.random.default_rng(1)
        with pytest.raises(ValueError, match=rf"state\['{name}'\]"):
            rng.state = {"key": 1, "counter": 1, name: word}

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))], ids=["copy", "deepcopy", "pickle"])  # fmt: skip
    def test_copies(self, umem, duplicate):
        rng = umem.random.default_rng(1)
        rng.random(5)
        rng.spawn(2)
        other = duplicate(rng)
        assert type(other) is umem.random.Generator
        assert other.state == rng.state
        assert np.array_equal(other.random(5), rng.random(5))
        assert other.seed_seq.n_children_spawned == 2

    def test_spawn(self, umem):
        rng = umem.random.default_rng(1)
        children = [*rng.spawn(3), *rng.spawn(2)]
        streams = [g.random(100).read() for g in (rng, *children, *children[0].spawn(1))]
        assert len(np.unique(np.concatenate(streams))) == 700
        again = umem.random.default_rng(1).spawn(5)
        assert [g.state["key"] for g in again] == [g.state["key"] for g in children]
        assert rng.spawn(0) == []
        with pytest.raises(ValueError, match="n_children"):
            rng.spawn(-1)
        with pytest.raises(TypeError, match="n_children"):
            rng.spawn(1.5)

    def test_spawn_without_a_seed_sequence(self, umem):
        class Fixed:
            def generate_state(self, n_words, dtype):
                return np.full(n_words, 3, dtype)

        rng = umem.random.default_rng(Fixed())
        assert rng.state["key"] == 3
        with pytest.raises(TypeError, match="spawn"):
            rng.spawn(1)

    def test_threads_never_get_the_same_numbers(self, umem):
        rng = umem.random.default_rng(9)
        found = []

        def draw():
            mine = [rng.random(33) for _ in range(60)]
            mine += [rng.random(()) for _ in range(60)]
            found.append(np.concatenate([part.read().ravel() for part in mine]))

        threads = [threading.Thread(target=draw) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        numbers = np.concatenate(found)
        assert len(np.unique(numbers)) == len(numbers) == 6 * 34 * 60
        assert rng.state["counter"] == 6 * 60 * (17 + 1)

    def test_no_room(self, umem):
        rng = umem.random.default_rng(9)
        umem.set_limit(1 << 20)
        with pytest.raises(umem.OutOfMemoryError):
            rng.random(1 << 20)
        umem.set_limit(None)
        assert np.array_equal(rng.random(5), umem.random.default_rng(9).random(5))

    @pytest.mark.backends("fake")
    def test_a_failed_launch_repeats_nothing(self, umem, fake):
        rng = umem.random.default_rng(9)
        out = umem.zeros(1000)
        fake.fail("cuLaunchKernel", code=fake.LAUNCH_FAILED)
        with pytest.raises(umem.CudaError):
            rng.random(out=out)
        assert not out.read().any()
        assert np.array_equal(rng.random(1000), umem.random.default_rng(9).random(2000)[1000:])


#: calls that give one number
SCALARS = {
    "random": lambda r: r.random(),
    "random f4": lambda r: r.random(dtype="f4"),
    "standard_normal": lambda r: r.standard_normal(),
    "standard_normal f4": lambda r: r.standard_normal(dtype=np.float32),
    "normal": lambda r: r.normal(),
    "uniform": lambda r: r.uniform(2, np.float32(3)),
    "integers": lambda r: r.integers(5),
    "integers int": lambda r: r.integers(5, dtype=int),
    "integers bool": lambda r: r.integers(2, dtype=bool),
    "integers np.bool": lambda r: r.integers(2, dtype=np.bool_),
    "integers i4": lambda r: r.integers(5, dtype=np.int32),
    "integers u8": lambda r: r.integers(2**64 - 1, dtype="u8", endpoint=True),
}

#: calls that fail in NumPy, with the same exception
FAILURES = {
    "size": lambda r: r.random(-1),
    "text as a size": lambda r: r.random("a"),
    "integers as floats": lambda r: r.random(3, "i4"),
    "swapped bytes": lambda r: r.random(3, ">f8"),
    "half": lambda r: r.standard_normal(3, "f2"),
    "uniform to infinity": lambda r: r.uniform(0, np.inf),
    "uniform beyond all": lambda r: r.uniform(-1e308, 1e308),
    "uniform backwards": lambda r: r.uniform(1, 0),
    "negative scale": lambda r: r.normal(0, -1),
    "negative zero as a scale": lambda r: r.normal(0, -0.0),
    "no integers": lambda r: r.integers(5, 5),
    "no integers below zero": lambda r: r.integers(0),
    "integers backwards": lambda r: r.integers(5, 3, endpoint=True),
    "too high": lambda r: r.integers(0, 257, dtype="u1"),
    "too low": lambda r: r.integers(-1, 3, dtype="u1"),
    "too high for bool": lambda r: r.integers(0, 3, dtype=bool),
    "floats as integers": lambda r: r.integers(5, dtype="f4"),
    "objects as integers": lambda r: r.integers(5, size=3, dtype="O"),
}


class TestInterface:
    @pytest.mark.parametrize("call", SCALARS.values(), ids=SCALARS)
    def test_one_number_has_numpys_type(self, umem, call):
        assert type(call(umem.random.default_rng(1))) is type(call(np.random.default_rng(1)))

    @pytest.mark.parametrize("call", FAILURES.values(), ids=FAILURES)
    def test_fails_as_numpy(self, umem, call):
        rng = umem.random.default_rng(1)
        with pytest.raises((ValueError, TypeError, OverflowError)) as expected:
            call(np.random.default_rng(1))
        with pytest.raises(expected.type):
            call(rng)
        assert rng.state["counter"] == 0

    @pytest.mark.parametrize("size", [3, np.int64(3), (), (2, 3), [2, 3], 0, (2, 0)])
    def test_shapes(self, umem, size):
        rng, expected = umem.random.default_rng(1), np.random.default_rng(1)
        for call in (
            lambda r: r.random(size),
            lambda r: r.integers(9, size=size),
            lambda r: r.normal(size=size),
        ):
            result = call(rng)
            assert type(result) is umem.ndarray
            assert result.shape == call(expected).shape
            assert result.dtype == call(expected).dtype

    def test_no_integers_of_an_empty_range(self, umem):
        rng = umem.random.default_rng(1)
        assert rng.integers(0, size=0).shape == np.random.default_rng(1).integers(0, size=0).shape
        assert rng.integers(0, 0, size=(2, 0)).shape == (2, 0)

    #: positional arguments of np.random.Generator's methods (not every NumPy tells them)
    NUMPYS: ClassVar = {
        "random": ["size", "dtype", "out"],
        "uniform": ["low", "high", "size"],
        "standard_normal": ["size", "dtype", "out"],
        "normal": ["loc", "scale", "size"],
        "integers": ["low", "high", "size", "dtype", "endpoint"],
    }

    @pytest.mark.parametrize("name", NUMPYS)
    def test_arguments_are_numpys(self, umem, name):
        parameters = inspect.signature(getattr(umem.random.Generator(1), name)).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional == self.NUMPYS[name]

    def test_bounds(self, umem):
        rng = umem.random.default_rng(1)
        assert set(rng.integers(3, 6, 1000).tolist()) == {3, 4, 5}
        assert set(rng.integers(3, 6, 1000, endpoint=True).tolist()) == {3, 4, 5, 6}
        assert set(rng.integers(-128, 128, 20_000, "i1").tolist()) == set(range(-128, 128))
        assert set(rng.integers(7, 8, 10).tolist()) == {7}
        high = rng.integers(-(2**63), 2**63, 1000)
        assert high.read().min() < 0 < high.read().max()

    @pytest.mark.parametrize(
        ("call", "error", "name"),
        [
            (lambda r, o: r.random(out=np.zeros(3)), TypeError, "out"),
            (lambda r, o: r.random(out=o, dtype="f4"), TypeError, "out"),
            (lambda r, o: r.random(4, out=o), ValueError, "size"),
            (lambda r, o: r.random(out=o, home="cpu"), ValueError, "home"),
            (lambda r, o: r.random(out=o, device=0), ValueError, "device"),
            (lambda r, o: r.uniform("a"), TypeError, "low"),
            (lambda r, o: r.uniform(0, [1, 2]), TypeError, "high"),
            (lambda r, o: r.normal(o), TypeError, "loc"),
            (lambda r, o: r.normal(0, None), TypeError, "scale"),
            (lambda r, o: r.integers(1.5), TypeError, "low"),
            (lambda r, o: r.integers(1, o), TypeError, "high"),
        ],
    )
    def test_errors_name_the_argument(self, umem, call, error, name):
        out = umem.zeros(3)
        with pytest.raises(error, match=name):
            call(umem.random.default_rng(1), out)

    def test_out_that_is_read_only(self, umem):
        out = umem.zeros(3)
        out.flags.writeable = False
        rng = umem.random.default_rng(1)
        with pytest.raises(ValueError, match="out is read-only"):
            rng.random(out=out)
        assert rng.state["counter"] == 0

    def test_random_fill_checks_what_it_is_given(self, umem):
        fill, a, b = umem._core.random_fill, umem.zeros(6), umem.zeros(6, "i4")
        frozen = umem.zeros(3)
        frozen.flags.writeable = False
        loose = umem.zeros(33, "u1")[1:].view("f8")
        for error, match, arguments in [
            (TypeError, "6 arguments", (a,)),
            (TypeError, "out must be", ([1], "random", 0, 0, 0, 1)),
            (ValueError, "kind", (a, "what", 0, 0, 0, 1)),
            (ValueError, "kind", (a, 5, 0, 0, 0, 1)),
            (OverflowError, None, (a, "random", 2**64, 0, 0, 1)),
            (OverflowError, None, (a, "random", 0, -1, 0, 1)),
            (ValueError, None, (a, "random", 0, 0, "a", 1)),
            (TypeError, None, (a, "normal", 0, 0, 0, [1])),
            (TypeError, "out has dtype", (b, "random", 0, 0, 0, 1)),
            (TypeError, "out has dtype", (a.astype(">f8"), "normal", 0, 0, 0, 1)),
            (TypeError, "out has dtype", (a, "integers", 0, 0, 0, 1)),
            (TypeError, "out has dtype", (b.astype(">i4"), "integers", 0, 0, 0, 1)),
            (TypeError, None, (b, "integers", 0, 0, 1.5, 1)),
            (OverflowError, None, (b, "integers", 0, 0, 0, -1)),
            (ValueError, "second", (b, "integers", 0, 0, 0, 2**32)),
            (ValueError, "out must be", (a[::2], "random", 0, 0, 0, 1)),
            (ValueError, "out must be", (loose, "random", 0, 0, 0, 1)),
            (ValueError, "read-only", (frozen, "random", 0, 0, 0, 1)),
            (ValueError, "out must be", (np.zeros(6)[::2], "random", 0, 0, 0, 1)),
        ]:
            with pytest.raises(error, match=match):
                fill(*arguments)
        assert not a.read().any()
        assert not b.read().any()
