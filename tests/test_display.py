"""Text of arrays: NumPy's, from only the bytes that it shows, moving no page."""

from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import DTYPES, VIEWS, label, sample

MIB = 1 << 20


def numpys_repr(n: np.ndarray) -> str:
    """NumPy's repr, of a class called umem.array."""
    named = type("ndarray", (np.ndarray,), {})
    named.__name__ = "umem.array"
    return np.array_repr(n.view(named))


def check(a, n):
    assert str(a) == str(n)
    assert repr(a) == numpys_repr(n)
    assert f"{a}" == f"{n}"
    assert np.array2string(a) == np.array2string(n)
    assert np.array_str(a) == np.array_str(n)


class TestNumpysText:
    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_of_small_arrays(self, umem, dtype, view):
        check(VIEWS[view](umem.array(sample(dtype))), VIEWS[view](sample(dtype)))

    ARRAYS = {
        "long": np.arange(100_000),
        "at the threshold": np.arange(1000),
        "above the threshold": np.arange(1001),
        "wide": np.arange(6000.0).reshape(3, 2000),
        "tall": np.arange(6000.0).reshape(2000, 3),
        "big square": np.arange(250_000.0).reshape(500, 500) / 7,
        "deep": np.arange(20 * 20 * 20).reshape(20, 20, 20),
        "very deep": np.arange(7**5).reshape((7,) * 5),
        "thin and deep": np.arange(5000).reshape(5000, 1, 1),
        "short axes": np.arange(6 * 6 * 50).reshape(6, 6, 50),
        "nan and inf": np.array([np.nan, np.inf, -np.inf, 1.5]),
        "nan among many": np.where(np.arange(3000) % 7, np.arange(3000.0), np.nan),
        "tiny and huge": np.array([1e-300, 1e300, 1.0]),
        "large numbers only in the middle": np.r_[np.zeros(1000), 1e10, np.zeros(1000)],
        "complex": np.arange(3000) * (1 + 2j),
        "dates": np.arange(3000).astype("M8[D]"),
        "not a time": np.array(["NaT", "2020-01-01"], "M8[D]"),
        "texts": np.array(["a", "it's", 'say "x"', "é\n"]),
        "many texts": np.arange(3000).astype("U4"),
        "bools": np.arange(3000) % 3 == 0,
        "empty": np.zeros((3, 0, 5)),
        "empty of another dtype": np.zeros((0, 2), "i2"),
        "nothing": np.zeros(0, "f4"),
        "no axes": np.array(3.5),
        "records": np.zeros(3000, [("x", "f4"), ("n", "i8")]),
        "float16": np.arange(3, dtype="f2") / 3,
        "int8": np.arange(3, dtype="i1"),
    }

    @pytest.mark.parametrize("n", ARRAYS.values(), ids=ARRAYS)
    def test_of_all_sorts(self, umem, n):
        check(umem.array(n), n)
        check(umem.array(n).T, n.T)
        if n.ndim:
            check(umem.array(n)[::-1], n[::-1])

    OPTIONS = [
        {"precision": 2}, {"threshold": 5}, {"threshold": 5, "edgeitems": 1}, {"edgeitems": 5}, {"linewidth": 40}, {"suppress": True},
        {"nanstr": "nix", "infstr": "viel"}, {"sign": "+"}, {"floatmode": "fixed"}, {"floatmode": "unique"}, {"formatter": {"float": "<{}>".format}},
        {"threshold": 10**9}, {"threshold": 0}, {"threshold": 0, "edgeitems": 0}, {"legacy": "1.13"}, {"legacy": "1.21"}, {"legacy": "1.25"},
        {"linewidth": 10}, {"override_repr": lambda n: "mine"},
    ]  # fmt: skip

    @pytest.mark.parametrize("options", OPTIONS, ids=label)
    def test_with_print_options(self, umem, options):
        with np.printoptions(**options):
            for n in (
                np.arange(30.0) / 7,
                np.arange(2000.0).reshape(40, 50) / 3,
                np.array([np.nan, np.inf]),
                np.zeros((0, 3)),
                np.array(1.5),
            ):
                a = umem.array(n)
                assert str(a) == str(n)
                if "override_repr" in options:
                    assert repr(a) == "mine"
                else:
                    assert repr(a) == numpys_repr(n)

    @given(data=st.data())
    def test_of_any_shape_and_summary(self, umem, data):
        shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=0, max_size=4)))
        n = (np.arange(int(np.prod(shape, dtype=object))) * 37 % 101 / 3).reshape(shape)
        a = umem.array(n)
        with np.printoptions(
            threshold=data.draw(st.integers(0, 60)), edgeitems=data.draw(st.integers(0, 4))
        ):
            check(a, n)
            check(a.T, n.T)
            if shape:
                check(a[::-1, ...], n[::-1, ...])

    def test_array2string_arguments(self, umem):
        n = np.arange(3000.0) / 7
        a = umem.array(n)
        for keywords in (
            {"precision": 1},
            {"threshold": 5},
            {"edgeitems": 1},
            {"prefix": "    "},
            {"separator": ", "},
            {"formatter": {"all": str}},
        ):
            assert np.array2string(a, **keywords) == np.array2string(n, **keywords)

    @pytest.mark.parametrize("spec", ["", ".2f", "5", "x", "nonsense", ">10"])
    def test_format(self, umem, spec):
        for n in (
            np.array(3.14159),
            np.array(7),
            np.arange(3.0),
            np.array([2.5]),
            np.float32(2),
            np.array("text"),
        ):
            a = umem.array(n)
            try:
                expected = format(np.asarray(n), spec)
            except (TypeError, ValueError) as error:
                with pytest.raises(type(error)):
                    format(a, spec)
            else:
                assert format(a, spec) == expected
        assert f"{umem.array([1.23456])[0]:.2f}" == "1.23"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []
        self.text = ""

    def handle_starttag(self, tag, attributes):
        if tag not in ("br", "hr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


class TestHtml:
    def test_shows_the_array_and_where_it_is(self, umem, on_gpu):
        a = umem.arange(6.0).reshape(2, 3)
        parser = Tags()
        parser.feed(a._repr_html_())
        assert parser.open == []
        for part in (
            "(2, 3)",
            "float64",
            "cuda:0" if on_gpu else "cpu",
            "host",
            str(np.arange(6.0).reshape(2, 3)),
        ):
            assert part in parser.text

    def test_escapes(self, umem):
        html = umem.array(["<script>", "a&b"])._repr_html_()
        assert "<script>" not in html
        parser = Tags()
        parser.feed(html)
        assert "<script>" in parser.text
        assert "a&b" in parser.text

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_of_every_dtype(self, umem, dtype):
        for view in VIEWS.values():
            parser = Tags()
            parser.feed(view(umem.array(sample(dtype)))._repr_html_())
            assert parser.open == []

    def test_is_short(self, umem):
        assert len(umem.zeros((1000, 1000))._repr_html_()) < 5000


SHOWING = {
    "str": str,
    "repr": repr,
    "format": lambda a: f"{a}",
    "html": lambda a: a._repr_html_(),
    "print": print,
    "item": lambda a: a.item(12345),
    "item of two": lambda a: a.item(3, 5),
    "index": lambda a: a[3, 5],
    "index negative": lambda a: a[-1, -1],
    "tolist of a part": lambda a: a[:3, :3].tolist(),
    "tolist of a row": lambda a: a[7].tolist(),
    "float": lambda a: float(a[3:4, 5:6].reshape(())),
    "bool": lambda a: bool(a[3:4, 5:6]),
    "row": lambda a: repr(a[5]),
    "column": lambda a: repr(a[:, 5]),
    "steps": lambda a: str(a[::-7, ::3]),
    "transposed": lambda a: str(a.T),
    "tobytes": lambda a: a[5].tobytes(),
    "read": lambda a: a[::10, ::10].read(),
    "array2string": np.array2string,
    "residency": lambda a: a.residency(),
    "iteration": lambda a: [x for x in a[5, :20]],
}


class TestNothingMoves:
    """Data on the GPU stay there while they are looked at."""

    @pytest.mark.backends("fake", "cuda")
    @pytest.mark.parametrize("show", SHOWING)
    def test_residency_is_unchanged(self, umem, show):
        a = umem.empty((512, 1024), "f4")
        a.fill(1)
        a.prefetch("cuda")
        umem.synchronize()
        SHOWING[show](a)
        umem.synchronize()
        assert a.residency().device == 2 * MIB

    @pytest.mark.backends("fake")
    @pytest.mark.parametrize("show", SHOWING)
    def test_the_driver_moves_and_faults_nothing(self, umem, fake, show):
        a = umem.empty((512, 1024), "f4")
        a.fill(1)
        a.prefetch("cuda")
        umem.synchronize()
        counters = ("to_host_bytes", "host_fault_bytes", "to_device_bytes")
        before = [fake.counter(name) for name in counters]
        SHOWING[show](a)
        assert [fake.counter(name) for name in counters] == before

    @pytest.mark.backends("fake")
    def test_only_what_is_shown_is_copied(self, umem, fake):
        a = umem.full((1024, 1024), 2, dtype="f4")
        a.prefetch("cuda")
        umem.synchronize()
        for show, limit in (
            (str, 20_000),
            (repr, 20_000),
            (lambda a: a[3, 5], 100),
            (lambda a: a.item(7), 100),
            (lambda a: a[5].tolist(), 5000),
        ):
            before = fake.counter("copied_bytes")
            show(a)
            assert fake.counter("copied_bytes") - before <= limit

    def test_pending_work_is_shown(self, umem):
        a = umem.zeros((100, 100), "f4")
        for i in range(1, 4):
            umem.add(a, 1, out=a)
            assert f"{i}." in repr(a)
            umem.add(a, 0, out=a)
            assert a[99, 99] == i
