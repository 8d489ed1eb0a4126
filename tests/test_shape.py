"""reshape, ravel, transpose, squeeze, view and T: views where NumPy gives a view, copies where it copies."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from support import DTYPES, VIEWS, address, assert_same, outcome, sample


def check(umem, call, a, n):
    """call(a) is call(n): error, values, strides, and whether it is a view."""
    expected, actual = outcome(call, n), outcome(call, a)
    assert actual[0][0] == expected[0][0], (actual, expected)
    if expected[0][0] == "raises":
        assert actual == expected
        return
    got, want = actual[0][2], expected[0][2]
    assert type(got) is umem.ndarray
    assert got.flags.writeable == want.flags.writeable
    assert_same(got, want)
    if want.size == 0:
        return
    assert got.strides == want.strides
    shares = np.shares_memory(want, n)
    assert np.shares_memory(got.numpy(), a.numpy()) == shares
    if shares:
        assert address(got) - address(a) == address(want) - address(n)
        assert got.base is (a.base if a.base is not None else a)


def check_views(umem, call, dtype="f4"):
    a, n = umem.array(sample(dtype)), sample(dtype)
    for view in VIEWS.values():
        check(umem, call, view(a), view(n))


@st.composite
def shapes_of_one_size(draw):
    """Two shapes with the same number of elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 2, 5]), min_size=0, max_size=5))

    def shape():
        order = draw(st.permutations(factors))
        result, current = [], 1
        for factor in order:
            current *= factor
            if draw(st.booleans()):
                result.append(current)
                current = 1
        return (*result, current)

    return shape(), shape()


class TestReshape:
    @given(data=st.data(), shapes=shapes_of_one_size(), order=st.sampled_from(["C", "F", "A"]))
    def test_of_permuted_and_stepped_views(self, umem, data, shapes, order):
        shape, target = shapes
        steps = [data.draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
        axes = data.draw(st.permutations(range(len(shape))))
        whole = tuple(length * abs(step) for length, step in zip(shape, steps, strict=True))
        key = tuple(slice(None, None, step) for step in steps)
        n = np.arange(math.prod(whole)).reshape(whole)
        a = umem.array(n)
        check(umem, lambda x: x[key].transpose(axes).reshape(target, order=order), a, n)

    FORMS = {
        "numbers": lambda x: x.reshape(6, 4),
        "tuple": lambda x: x.reshape((6, 4)),
        "list": lambda x: x.reshape([6, 4]),
        "one number": lambda x: x.reshape(24),
        "unknown": lambda x: x.reshape(2, -1, 3),
        "unknown alone": lambda x: x.reshape(-1),
        "none": lambda x: x.reshape(None),
        "NumPy numbers": lambda x: x.reshape(np.int8(6), np.int64(4)),
        "Fortran": lambda x: x.reshape(6, 4, order="F"),
        "any order": lambda x: x.reshape((6, 4), order="A"),
        "no copy": lambda x: x.reshape(6, 4, copy=False),
        "copy": lambda x: x.reshape(6, 4, copy=True),
        "copy of the same shape": lambda x: x.reshape(4, 6, copy=True),
        "same": lambda x: x.reshape(x.shape),
        "one element": lambda x: x[1:2, 2:3].reshape(()),
        "more axes": lambda x: x.reshape(1, 4, 1, 6, 1),
        "nothing given": lambda x: x.reshape(),
        "wrong size": lambda x: x.reshape(5, 5),
        "two unknown": lambda x: x.reshape(-1, -1),
        "unknown does not fit": lambda x: x.reshape(-1, 5),
        "unknown beside zero": lambda x: x[:0].reshape(0, -1),
        "order K": lambda x: x.reshape(6, 4, order="K"),
        "bad order": lambda x: x.reshape(6, 4, order="Z"),
        "floats": lambda x: x.reshape(6.0, 4),
        "text": lambda x: x.reshape("64"),
        "unknown keyword": lambda x: x.reshape(6, 4, colour="red"),
        "overflow": lambda x: x.reshape(2**32, 2**32),
        "many axes": lambda x: x.reshape((1,) * 65),
    }

    @pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
    def test_forms(self, umem, form):
        n = sample("f4")
        a = umem.array(n)
        check(umem, form, a, n)

    def test_errors_say_what_numpys_say(self, umem):
        a, n = umem.zeros((4, 6)), np.zeros((4, 6))
        for shape in ((5, 5), (24, 2), (-1, -1), (0,), ()):
            with pytest.raises(ValueError) as expected:
                n.reshape(shape)
            with pytest.raises(ValueError) as actual:
                a.reshape(shape)
            # How the shape is spelled behind "into shape" changes with NumPy's version.
            assert str(actual.value).split("into")[0] == str(expected.value).split("into")[0]

    def test_a_copy_is_refused_when_asked(self, umem):
        a = umem.zeros((4, 6)).T
        with pytest.raises(ValueError, match="copy"):
            a.reshape(24, copy=False)

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_dtypes(self, umem, dtype):
        check_views(umem, lambda x: x.reshape(-1), dtype)
        check_views(umem, lambda x: x.reshape(-1, order="F"), dtype)


class TestRavel:
    @pytest.mark.parametrize("order", ["C", "F", "A", "K"])
    def test_orders(self, umem, order):
        check_views(umem, lambda x: x.ravel(order))
        check_views(umem, lambda x: x.ravel(order=order))

    def test_default_and_errors(self, umem):
        check_views(umem, lambda x: x.ravel())
        check_views(umem, lambda x: x.ravel("Z"))
        check_views(umem, lambda x: x.ravel(3))

    @given(shape=hnp.array_shapes(max_dims=4, max_side=4), data=st.data())
    def test_permuted(self, umem, shape, data):
        axes = data.draw(st.permutations(range(len(shape))))
        n = np.arange(math.prod(shape)).reshape(shape)
        for order in "CFAK":
            check(umem, lambda x, order=order: x.transpose(axes).ravel(order), umem.array(n), n)


class TestTranspose:
    FORMS = {
        "none": lambda x: x.transpose(),
        "None": lambda x: x.transpose(None),
        "numbers": lambda x: x.transpose(1, 0),
        "tuple": lambda x: x.transpose((1, 0)),
        "list": lambda x: x.transpose([1, 0]),
        "negative": lambda x: x.transpose(-1, -2),
        "identity": lambda x: x.transpose(0, 1),
        "repeated": lambda x: x.transpose(0, 0),
        "too many": lambda x: x.transpose(0, 1, 2),
        "too few": lambda x: x.transpose(0),
        "out of bounds": lambda x: x.transpose(0, 5),
        "floats": lambda x: x.transpose(0.0, 1.0),
        "T": lambda x: x.T,
        "T twice": lambda x: x.T.T,
    }

    @pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
    def test_forms(self, umem, form):
        check_views(umem, form)

    @given(shape=hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3), data=st.data())
    def test_any_axes(self, umem, shape, data):
        axes = data.draw(st.permutations(range(len(shape))))
        n = np.arange(math.prod(shape)).reshape(shape)
        check(umem, lambda x: x.transpose(*axes), umem.array(n), n)
        check(umem, lambda x: x.T, umem.array(n), n)


class TestSqueeze:
    @pytest.mark.parametrize(
        "axis", ["none", None, 0, -1, 2, (0, 2), (0, 0), (), 1, 9, 1.5, "x"], ids=str
    )
    def test_axes(self, umem, axis):
        n = np.arange(6.0).reshape(1, 6, 1)
        a = umem.array(n)
        if axis == "none":
            check(umem, lambda x: x.squeeze(), a, n)
        else:
            check(umem, lambda x: x.squeeze(axis), a, n)
            check(umem, lambda x: x.squeeze(axis=axis), a, n)

    def test_of_views(self, umem):
        check_views(umem, lambda x: x.squeeze())
        check_views(umem, lambda x: x[..., None].squeeze())


class TestView:
    @pytest.mark.parametrize(
        "dtype",
        [
            "f4",
            "i4",
            "u4",
            "S4",
            "V4",
            "M8[s]",
            "f8",
            "c8",
            "i2",
            "u1",
            "c16",
            "?",
            ">f4",
            "U1",
            None,
            "nonsense",
            "O",
        ],
        ids=str,
    )
    def test_as_another_dtype(self, umem, dtype):
        check_views(umem, lambda x: x.view(dtype))
        check_views(umem, lambda x: x.view(dtype=dtype))

    def test_without_a_dtype_it_is_a_new_view(self, umem):
        check_views(umem, lambda x: x.view())

    def test_records(self, umem):
        check_views(umem, lambda x: x.view("u1"), [("a", "i4"), ("b", "f4")])
        check_views(umem, lambda x: x.view([("a", "u1"), ("b", "u1"), ("c", "i2")]))
        check_views(umem, lambda x: x.view("f4,f4"))

    def test_bytes_are_shared(self, umem):
        a = umem.ones(3, "f4")
        a.view("i4")[1] = 0
        assert a.tolist() == [1, 0, 1]

    def test_numpys_classes_are_refused(self, umem):
        a = umem.zeros(3)
        with pytest.raises(TypeError, match="numpy"):
            a.view(np.ndarray)
        with pytest.raises(TypeError):
            a.view("f4", np.ndarray)


class TestFunctions:
    """NumPy's functions for the same jobs give arrays of umem's, and views where the methods do."""

    CALLS = {
        "reshape": lambda x: np.reshape(x, (6, 4)),
        "ravel": np.ravel,
        "transpose": np.transpose,
        "swapaxes": lambda x: np.swapaxes(x, 0, 1),
        "moveaxis": lambda x: np.moveaxis(x, 0, 1),
        "expand_dims": lambda x: np.expand_dims(x, 1),
        "squeeze": np.squeeze,
        "atleast_3d": np.atleast_3d,
        "flip": lambda x: np.flip(x, 0),
        "rot90": np.rot90,
        "diagonal": np.diagonal,
    }

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
    def test_gives_the_same_memory(self, umem, call):
        n = sample("f4")
        a = umem.array(n)
        got, want = call(a), call(n)
        assert type(got) is umem.ndarray
        assert_same(got, want)
        assert address(got) - address(a) == address(want) - address(n)
        assert got.strides == want.strides
        assert got.flags.writeable == want.flags.writeable

    def test_views_of_functions_keep_the_memory(self, umem):
        a = umem.full((4, 6), 3.0)
        view = np.swapaxes(a, 0, 1)
        del a
        junk = [umem.zeros((4, 6)) for _ in range(3)]
        assert (view == 3).all()
        assert len(junk) == 3


@given(shapes=shapes_of_one_size())
def test_reshape_there_and_back(umem, shapes):
    shape, target = shapes
    assume(shape != target)
    a = umem.arange(math.prod(shape)).reshape(shape)
    assert a.reshape(target).reshape(shape).tolist() == a.tolist()
