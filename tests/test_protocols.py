"""The protocols over random views: what an array says to a library is what NumPy's says, and what comes back is it."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import buffer_abi as abi
import dlpack_abi as dl
from dlpack_abi import Seen
from support import (
    DTYPES,
    NUMBERS,
    Exporter,
    address,
    assert_same,
    assert_same_array,
    sample,
    walked_strides,
)

ALL_DTYPES = st.sampled_from(sorted(DTYPES)).map(DTYPES.__getitem__)
PLAIN = st.sampled_from(NUMBERS).map(np.dtype)  # without padding
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def views(draw, dtypes=ALL_DTYPES, steps_back=True):
    """A function that makes an array with NumPy's or another `array`, and views it in a random way."""
    dtype, shape, order = draw(dtypes), draw(SHAPES), draw(st.sampled_from("CF"))
    key = draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=6))
    key = (*key, ...) if isinstance(key, tuple) else (key, ...) if key is not ... else key
    if key != ... and key.count(...) > 1:
        key = key[:-1]
    viewed = np.empty(shape, dtype)[key]
    axes = draw(st.permutations(range(viewed.ndim)))
    if not steps_back and any(step < 0 for step in viewed.strides):
        axes, key = range(len(shape)), ...
    writeable = draw(st.booleans())

    def make(array):
        view = array(np.array(sample(dtype, shape), order=order))[key].transpose(axes)
        view.flags.writeable = writeable
        return view

    return make


def buffer_of(obj, flags):
    """What a consumer of the buffer protocol sees, or "refused"; as far as it means something."""
    try:
        with abi.buffer(obj, flags) as view:
            seen = abi.fields(view)
    except (BufferError, ValueError):
        return "refused"
    if flags & abi.ND != abi.ND:
        del seen["ndim"]
    if seen["len"] == 0:
        del seen["strides"]
    return seen


@given(view=views(), flags=st.sampled_from(abi.REQUESTS))
def test_buffers_are_numpys(umem, view, flags):
    a, n = view(umem.array), view(np.array)
    expected = buffer_of(n, flags)
    seen = buffer_of(a, flags)
    if n.dtype.names is not None and "refused" not in (seen, expected):
        # NumPy writes a record's padding in another way each time; what is read of it counts.
        for fields in (seen, expected):
            del fields["format"]
    assert seen == expected
    if seen != "refused":
        with abi.buffer(a, flags) as buffer:
            assert buffer.buf == address(a)


@given(view=views())
def test_memoryviews_hold_the_elements(umem, view):
    a, n = view(umem.array), view(np.array)
    try:
        expected = memoryview(n)
    except (BufferError, ValueError):
        return  # NumPy cannot say the dtype
    try:
        seen = memoryview(a)
    except BufferError:
        assert n.dtype.kind == "V"  # NumPy's answer would be read as another dtype
        return
    assert (seen.shape, seen.readonly, seen.nbytes) == (n.shape, expected.readonly, n.nbytes)
    assert_same(np.asarray(seen), n)


@given(view=views())
def test_array_interfaces_are_numpys(umem, view):
    a, n = view(umem.array), view(np.array)
    seen, expected = a.__array_interface__, n.__array_interface__
    assert seen["shape"] == expected["shape"]
    assert seen["typestr"] == expected["typestr"]
    assert seen["data"][1] is expected["data"][1]
    assert seen["version"] == 3
    if n.size:
        strides = seen.get("strides") or np.empty(n.shape, n.dtype).strides
        assert [
            s for s, length in zip(strides, n.shape, strict=True) if length > 1
        ] == walked_strides(n)
    for name in ("__array_interface__", "__array_struct__"):
        back = np.asarray(Exporter(a, name))
        if n.dtype.names is None:
            assert_same(back, n)
        assert back.flags.writeable == n.flags.writeable
        if n.size and n.itemsize:
            assert address(back) == address(a)


@given(view=views())
def test_what_numpy_views_is_recognised(umem, view):
    a = view(umem.array)
    back = umem.asarray(np.asarray(a))
    assert_same_array(umem, back, a.read())
    if a.size:
        assert address(back) == address(a)
        assert walked_strides(back) == walked_strides(a)
        assert back.flags.writeable == a.flags.writeable


class OfVersion:
    """Gives the array's capsule of one version, whatever is asked for."""

    def __init__(self, array, version):
        self.array = array
        self.version = version

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(max_version=self.version, stream=keywords.get("stream"))


@given(
    view=views(PLAIN, steps_back=False),
    version=st.sampled_from([None, (1, 0)]),
)
def test_dlpack_there_and_back(umem, view, version):
    a = view(umem.array)
    n = a.read()
    try:
        seen = Seen(a.__dlpack__(max_version=version))
    except BufferError:
        uneven = any(step % a.itemsize for step in walked_strides(a))
        assert uneven or (version is None and not a.flags.writeable)
        return
    assert seen.shape == n.shape
    assert (seen.versioned and seen.flags == dl.READ_ONLY) == (not a.flags.writeable)
    back = umem.from_dlpack(OfVersion(a, version))
    assert_same_array(umem, back, n)
    assert back.flags.writeable == a.flags.writeable
    if n.size:
        assert seen.data == address(a) == address(back)
        assert walked_strides(back) == walked_strides(a)
    assert_same(np.from_dlpack(a), n)


@given(view=views(), protocol=st.integers(2, 5), apart=st.booleans())
def test_pickles_hold_the_elements(umem, view, protocol, apart):
    a, n = view(umem.array), view(np.array)
    parts = []
    callback = parts.append if apart and protocol == 5 else None
    text = pickle.dumps(a, protocol, buffer_callback=callback)
    back = pickle.loads(text, buffers=parts)
    assert_same_array(umem, back, n)
    expected = pickle.loads(pickle.dumps(n, protocol))
    assert walked_strides(back) == walked_strides(expected)
    if n.size and n.itemsize and not parts:
        assert address(back) != address(a)


@given(view=views(PLAIN), order=st.sampled_from("CFAK"))
def test_bytes_are_numpys(umem, view, order):
    a, n = view(umem.array), view(np.array)
    assert a.tobytes(order) == n.tobytes(order)
    assert a.copy(order).tobytes("A") == n.copy(order).tobytes("A")
