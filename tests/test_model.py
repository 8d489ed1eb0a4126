"""Random sequences of operations, each done on umem's arrays and on NumPy's as a model; hypothesis shortens what fails.

A pair is a umem array and the NumPy array that it should be indistinguishable from: views of one are views of the
other, so that a write which reaches too little, too much or the wrong memory shows in some pair. Live views are what
other libraries hold of umem's memory. They are looked at after every step, straight and not through umem, so that a
missing wait shows; pairs are looked at in the steps that say so, because looking waits.
"""

import contextlib
import copy
import gc
import math
import operator
import pickle
import sys
import types

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support import (
    KERNEL_DTYPES,
    allocated,
    assert_same,
    is_scalar,
    make_what_is_made_once,
    sample,
    walked_strides,
)

try:
    import torch
except ModuleNotFoundError:
    torch = None

#: kernel dtypes more often than others
DTYPES = st.one_of(
    st.sampled_from(KERNEL_DTYPES),
    st.sampled_from(KERNEL_DTYPES),
    st.sampled_from(["?", "i1", "u1", "i2", "u2", "u4", "u8", "f2", "c8", "c16", ">i4", ">f8"]),
    st.sampled_from(["M8[s]", "S3", "V5", "f4,i8"]),
)
SHAPES = st.one_of(
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4),
    st.sampled_from([(1500,), (40, 70), (17000,)]),  # pages, and from 64 KiB on a GPU's own
)
PLACES = st.sampled_from(["cpu", "cuda"])
SCALARS = st.sampled_from([0, 1, -1, 3, 2.5, -0.0, True, np.float32(0.5), np.int64(-7), math.inf, math.nan])  # fmt: skip
MOST_PAIRS, MOST_VIEWS = 10, 6

# Only what is one rounding, so that NumPy's loops for different layouts agree in every bit.
BINARY = [np.add, np.subtract, np.multiply, np.true_divide]
OTHER_BINARY = [
    np.floor_divide, np.bitwise_and, np.bitwise_xor, np.logical_or, np.equal, np.less, np.copysign, np.left_shift,
]  # fmt: skip
UNARY = [np.negative, np.absolute, np.square, np.sqrt, np.logical_not, np.invert, np.isnan, np.sign]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.iand]
REDUCTIONS = ["sum", "sum", "mean", "max", "min", "any", "all", "argmax", "prod"]


def values(dtype, shape, shift) -> np.ndarray:
    """An array with a bit of everything; `shift` makes different ones."""
    flat = np.roll(sample(dtype, (math.prod(shape),)), shift)
    if flat.dtype.kind == "f" and flat.size > 2:
        flat[[0, -1]] = [(np.nan, np.inf), (-0.0, -np.inf), (0.5, 1.5), (0.0, 1e30)][shift % 4]
    return flat.reshape(shape)


def number(dtype) -> bool:
    return dtype.kind in "biufc"


def keeps_values(source, dtype) -> bool:
    """Whether a cast of the array or scalar has one right result: of a float that no integer can be, it has none."""
    source = np.asarray(source)
    if source.dtype == dtype:
        return True
    if not (number(source.dtype) and number(dtype)):
        return False
    if source.dtype.kind in "fc" and dtype.kind in "iu":
        with np.errstate(invalid="ignore"):
            return bool(((source.real >= 0) & (source.real < 127)).all())
    return True


def attempt(function):
    """("returns", value) or ("raises", exception)."""
    try:
        with np.errstate(all="ignore"):
            return "returns", function()
    except Exception as error:
        return "raises", error


class Pair:
    """A umem array and its model."""

    def __init__(self, a, n):
        self.a = a
        self.n = n

    def __repr__(self):
        return f"<{self.n.dtype} {self.n.shape} with strides {self.n.strides}>"


class Machine(RuleBasedStateMachine):
    def __init__(self, umem, fake):
        super().__init__()
        gc.collect()
        umem.synchronize()
        umem.trim()
        self.umem = umem
        self.fake = fake  # None on other backends
        self.start = self.account()
        self.pairs = []
        self.views = []  # (array of another library over umem's memory, model)
        self.late = False  # deferred work may be pending: live views may be old
        self.streams = []
        if fake is None:
            self.streams = [1, 2]
        else:
            self.streams = [fake.stream_create(0, blocking) for blocking in (False, True)]
            self.streams += [1, 2]

    def account(self):
        ledger = None if self.fake is None else self.fake.ledger()
        stats = self.umem.memory_stats()
        return allocated(self.umem), stats["active.all.current"], stats["waiting_bytes"], ledger

    # --- what rules share

    def pick(self, data, accept=None):
        chosen = [pair for pair in self.pairs if accept is None or accept(pair)]
        return one_of(data, chosen) if chosen else None

    def keep(self, a, n):
        """The result of an operation on both."""
        if is_scalar(n):
            assert_same(a, n)
            return
        assert type(a) is self.umem.ndarray, type(a)
        assert a.dtype == n.dtype
        assert a.shape == n.shape
        self.pairs.append(Pair(a, n))
        if len(self.pairs) > MOST_PAIRS:
            del self.pairs[0]

    def agree(self, on_umem, on_numpy):
        """Both return, or both raise the same; their results, or None twice."""
        expected = attempt(on_numpy)
        actual = attempt(on_umem)
        if expected[0] == "raises":
            assert actual[0] == "raises", f"NumPy raises {expected[1]!r}, umem returns"
            assert type(actual[1]) is type(expected[1]), (actual[1], expected[1])
            return None, None
        if actual[0] == "raises":
            raise actual[1]
        return actual[1], expected[1]

    @contextlib.contextmanager
    def somewhere(self, data):
        """On some stream, or deferred, or neither."""
        how = data.draw(st.sampled_from(["plain", "plain", "stream", "deferred"]))
        if how == "stream":
            with self.umem.stream(data.draw(st.sampled_from(self.streams))):
                yield
        elif how == "deferred":
            self.late = True
            with self.umem.deferred():
                yield
        else:
            yield

    def key(self, data, shape):
        """An index that works, most of the time."""
        how = data.draw(st.sampled_from(["basic", "basic", "bools", "integers", "mixed"]))
        if how == "basic" or not shape or 0 in shape:
            return data.draw(
                hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True, max_dims=5)
            )
        pattern = data.draw(st.integers(0, 6))
        if how == "bools":
            axes = data.draw(st.integers(1, len(shape)))
            return (np.arange(math.prod(shape[:axes])) * (pattern + 1) % 3 == 0).reshape(
                shape[:axes]
            )
        some = np.array([pattern % shape[0], 0, -1])
        if how == "integers" or len(shape) == 1:
            return data.draw(st.sampled_from([some, some.tolist(), (some[:, None],)]))
        return (slice(None, None, -1), np.array([0, -1]))

    def operand(self, data, shape):
        """Something to compute with: (for umem, for NumPy)."""
        how = data.draw(st.sampled_from(["pair", "pair", "scalar", "array"]))
        if how == "pair" and self.pairs:
            fits = [p for p in self.pairs if broadcasts(p.n.shape, shape)] or self.pairs
            pair = one_of(data, fits)
            return pair.a, pair.n
        if how == "array":
            dtype = data.draw(st.sampled_from([*KERNEL_DTYPES, "i2", "f2"]))
            axes = data.draw(st.integers(0, len(shape)))
            array = values(dtype, shape[axes:], data.draw(st.integers(0, 5)))
            return array, array
        scalar = data.draw(SCALARS)
        return scalar, scalar

    # --- making arrays

    @initialize(eager=st.booleans(), watched=st.booleans(), dtype=st.sampled_from(KERNEL_DTYPES))
    def begin(self, eager, watched, dtype):
        self.eager = eager  # whether all pairs are looked at after every step
        n = values(dtype, (7, 4), 1)
        a = self.umem.array(n)
        self.keep(a, n)
        for part in (slice(1, None), slice(None, -1)):  # of one shape, and they overlap
            self.keep(a[part], n[part])
        if watched:
            self.views.append((np.asarray(a), n))

    @rule(
        how=st.sampled_from(
            ["empty", "zeros", "ones", "full", "array", "asarray", "arange", "dlpack"]
        ),
        dtype=DTYPES,
        shape=SHAPES,
        order=st.sampled_from("CF"),
        shift=st.integers(0, 9),
        home=st.sampled_from([None, None, None, "cpu", "cuda"]),
    )
    def make(self, how, dtype, shape, order, shift, home):
        umem, dtype = self.umem, np.dtype(dtype)
        n = np.array(values(dtype, shape, shift), order=order)
        if how in ("zeros", "ones") and number(dtype):
            n[...] = how == "ones"
            a = getattr(umem, how)(shape, dtype, order, home=home)
        elif how == "full" and n.size:
            n[...] = n.ravel()[0]
            a = umem.full(shape, n.ravel()[0], dtype, order, home=home)
        elif how == "arange":
            n = np.arange(shift, 40, 3, dtype=dtype if dtype.kind in "iuf" else None)
            a = umem.arange(shift, 40, 3, dtype=n.dtype, home=home)
        elif how == "dlpack" and number(dtype) and dtype.isnative:
            a, n = umem.from_dlpack(n), n.copy(order="C")
        elif how == "array":
            a = umem.array(n, home=home)
        elif how == "asarray":
            a = umem.asarray(n, home=home)
        else:
            a = umem.empty(shape, dtype, order, home=home)
            a[...] = n
        self.keep(a, n)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), dtype=st.sampled_from([*KERNEL_DTYPES, "?", "u1", "i2", "f2", "c8"]))
    def convert(self, data, dtype):
        pair = self.pick(data, lambda p: keeps_values(p.n, np.dtype(dtype)))
        if pair is not None:
            order = data.draw(st.sampled_from("KCFA"))
            with self.somewhere(data):
                a = pair.a.astype(dtype, order)
            with np.errstate(all="ignore"):
                self.keep(a, pair.n.astype(dtype, order))

    @precondition(lambda self: self.pairs)
    @rule(
        data=st.data(),
        how=st.sampled_from(["copy", "copy.copy", "deepcopy", "pickle", "flatten", "array"]),
    )
    def duplicate(self, data, how):
        pair = self.pick(data)
        if how == "pickle":
            protocol = data.draw(st.integers(2, 5))

            def make(x):
                return pickle.loads(pickle.dumps(x, protocol))

        else:
            make = {
                "copy": lambda x: x.copy("K"),
                "copy.copy": copy.copy,
                "deepcopy": copy.deepcopy,
                "flatten": lambda x: x.flatten(),
                "array": lambda x: (self.umem if x is pair.a else np).array(x),
            }[how]
        with self.somewhere(data):
            a = make(pair.a)
        self.keep(a, make(pair.n))

    # --- views

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def index(self, data):
        pair = self.pick(data)
        key = self.key(data, pair.n.shape)
        a, n = self.agree(lambda: pair.a[key], lambda: pair.n[key])
        if n is None:
            return
        if np.size(n) > 1 and not np.may_share_memory(n, pair.n):
            n = laid_out_as(a, n)  # in which order NumPy stores such a result is not said
        self.keep(a, n)

    @precondition(lambda self: self.pairs)
    @rule(
        data=st.data(),
        how=st.sampled_from(["transpose", "T", "reshape", "ravel", "squeeze", "swapaxes", "view", "real", "field"]),
    )  # fmt: skip
    def reform(self, data, how):
        pair = self.pick(data)
        n = pair.n
        if how == "transpose":
            axes = data.draw(st.permutations(range(n.ndim)))
            call = operator.methodcaller("transpose", axes)
        elif how == "reshape":
            shapes = [
                (-1,),
                (n.size,),
                (1, n.size),
                n.shape + (1,),
                n.shape[::-1],
                (2, -1),
                (-1, 3),
            ]
            order = data.draw(st.sampled_from("CFA"))
            shape = data.draw(st.sampled_from(shapes))

            def call(x):
                return x.reshape(shape, order=order)

        elif how == "ravel":
            call = operator.methodcaller("ravel", data.draw(st.sampled_from("CFAK")))
        elif how == "swapaxes":
            call = operator.methodcaller("swapaxes", 0, -1)
        elif how == "view":
            # Not floats: which NaN a computation gives is not said.
            if n.dtype.kind not in "iu" or not n.dtype.isnative:
                return
            to = data.draw(st.sampled_from([f"u{n.itemsize}", f"i{n.itemsize}", "u1", "i4"]))
            call = operator.methodcaller("view", to)
        elif how == "real":
            call = operator.attrgetter(data.draw(st.sampled_from(["real", "imag"])))
            if n.dtype.kind != "c":
                return
        elif how == "field":
            if n.dtype.names is None:
                return
            call = operator.itemgetter(data.draw(st.sampled_from(n.dtype.names)))
        else:
            call = operator.attrgetter("T") if how == "T" else operator.methodcaller("squeeze")
        a, n = self.agree(lambda: call(pair.a), lambda: call(pair.n))
        if n is not None:
            self.keep(a, n)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), writeable=st.booleans())
    def freeze(self, data, writeable):
        pair = self.pick(data)

        def set_flag(x):
            x.flags.writeable = writeable

        if not writeable:  # of a view of its own, so that the program does not stand still
            pair = Pair(pair.a[...], pair.n[...])
            self.keep(pair.a, pair.n)
        self.agree(lambda: set_flag(pair.a), lambda: set_flag(pair.n))

    # --- writing

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def assign(self, data):
        pair = self.pick(data)
        key = self.key(data, pair.n.shape)
        part = pair.n[key]
        mine, models = self.operand(data, np.shape(part))
        if not keeps_values(models, pair.n.dtype):
            mine = models = values(pair.n.dtype, np.shape(part), data.draw(st.integers(0, 9)))
        with self.somewhere(data):
            self.agree(
                lambda: operator.setitem(pair.a, key, mine),
                lambda: operator.setitem(pair.n, key, models),
            )

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), value=SCALARS)
    def fill(self, data, value):
        pair = self.pick(data, lambda p: number(p.n.dtype) and keeps_values(value, p.n.dtype))
        if pair is not None:
            with self.somewhere(data):
                self.agree(lambda: pair.a.fill(value), lambda: pair.n.fill(value))

    # --- computing

    @precondition(lambda self: self.pairs)
    @rule(
        data=st.data(),
        ufunc=st.one_of(st.sampled_from(BINARY), st.sampled_from(BINARY + OTHER_BINARY)),
        form=st.sampled_from(["plain", "out", "where"]),
    )
    def compute(self, data, ufunc, form):
        pair = self.pick(data)
        mine, models = self.operand(data, pair.n.shape)
        if is_inexact(ufunc, pair.n, models):
            return
        on_umem, on_numpy = {}, {}
        if form != "plain":
            shape = common_shape(pair.n, models)
            target = self.pick(data, lambda p: p.n.shape == shape) or self.pick(data)
            on_umem["out"], on_numpy["out"] = target.a, target.n
            if is_inexact(ufunc, target.n, models):
                return
        if form == "where":
            mask = np.arange(math.prod(pair.n.shape)).reshape(pair.n.shape) % 3 == 0
            on_umem["where"] = data.draw(st.sampled_from([np.asarray, self.umem.asarray]))(mask)
            on_numpy["where"] = mask
        first = data.draw(st.booleans())
        with self.somewhere(data):
            a, n = self.agree(
                lambda: ufunc(*((pair.a, mine) if first else (mine, pair.a)), **on_umem),
                lambda: ufunc(*((pair.n, models) if first else (models, pair.n)), **on_numpy),
            )
        if n is not None and form == "plain":
            self.keep(a, n)
        elif n is not None:
            assert a is on_umem["out"]

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), apply=st.sampled_from(IN_PLACE))
    def compute_in_place(self, data, apply):
        pair = self.pick(data)
        mine, models = self.operand(data, pair.n.shape)
        if is_inexact(apply, pair.n, models):
            return
        with self.somewhere(data):
            a, _ = self.agree(lambda: apply(pair.a, mine), lambda: apply(pair.n, models))
        assert a is None or a is pair.a

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), ufunc=st.sampled_from(UNARY), into=st.booleans())
    def compute_one(self, data, ufunc, into):
        pair = self.pick(data, lambda p: p.n.dtype.kind in "biufM")
        if pair is None:
            return
        mine, models = {}, {}
        if into:
            target = self.pick(data, lambda p: p.n.shape == pair.n.shape)
            mine, models = {"out": target.a}, {"out": target.n}
        with self.somewhere(data):
            a, n = self.agree(lambda: ufunc(pair.a, **mine), lambda: ufunc(pair.n, **models))
        if n is not None and not into:
            self.keep(a, n)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), name=st.sampled_from(REDUCTIONS), keepdims=st.booleans())
    def reduce(self, data, name, keepdims):
        pair = self.pick(data, lambda p: p.n.dtype.kind in "biuf" and p.n.ndim)
        if pair is None or (name == "prod" and pair.n.dtype.kind == "f"):
            return
        axes = st.integers(-pair.n.ndim, pair.n.ndim - 1)
        axis = data.draw(st.one_of(st.none(), axes, st.tuples(axes, axes)))
        with self.somewhere(data):
            a, n = self.agree(
                lambda: getattr(pair.a, name)(axis=axis, keepdims=keepdims),
                lambda: getattr(pair.n, name)(axis=axis, keepdims=keepdims),
            )
        if n is None:
            return
        if not is_scalar(n):
            assert type(a) is self.umem.ndarray
        assert is_scalar(a) == is_scalar(n)
        got = a if is_scalar(a) else a.read()
        assert (got.dtype, got.shape) == (n.dtype, n.shape)
        if n.dtype.kind == "f":
            assert_near(got, n, pair.n)
        else:
            np.testing.assert_array_equal(got, n)
        if not is_scalar(n):
            self.keep(a, got)

    # --- other libraries

    @precondition(lambda self: self.pairs)
    @rule(
        data=st.data(),
        how=st.sampled_from(["asarray", "memoryview", "numpy", "interface", "dlpack", "torch"]),
    )
    def export(self, data, how):
        pair = self.pick(data)
        live = self.view_of(pair, how)
        if live is None:
            return
        if pair.n.size:
            assert np.asarray(live).ctypes.data == self.umem._core.extent(pair.a[...])[0] + offset(
                pair.n
            )
        self.views.append((live, pair.n))
        if len(self.views) > MOST_VIEWS:
            del self.views[0]

    def view_of(self, pair, how):
        if how == "asarray":
            return np.asarray(pair.a)
        if how == "numpy":
            return pair.a.numpy()
        if how == "interface":
            return np.asarray(
                types.SimpleNamespace(__array_interface__=pair.a.__array_interface__, owner=pair.a)
            )
        if how == "memoryview":
            view, _ = self.agree(lambda: memoryview(pair.a), lambda: memoryview(pair.n))
            return None if view is None else np.asarray(view)
        if how == "torch" and torch is None:
            return None
        try:
            return (
                np.from_dlpack(pair.a) if how == "dlpack" else torch.from_dlpack(pair.a.on("cpu"))
            )
        except (BufferError, RuntimeError, TypeError):
            # NumPy gives the same or a read-only view; torch does not take every dtype, and warns.
            assert (
                how == "torch"
                or not number(pair.n.dtype)
                or not pair.n.dtype.isnative
                or not is_forward(pair.n)
            )
            return None

    @precondition(lambda self: self.views and not self.late)
    @rule(data=st.data())
    def write_through_a_view(self, data):
        live, n = one_of(data, self.views)
        if not isinstance(live, np.ndarray) or not n.flags.writeable or not live.flags.writeable:
            return
        key = self.key(data, n.shape)
        new = values(n.dtype, np.shape(n[key]), data.draw(st.integers(0, 9)))
        live[key] = new
        n[key] = new

    @precondition(lambda self: self.views)
    @rule(data=st.data(), name=st.sampled_from(["asarray", "from_dlpack"]))
    def take_back(self, data, name):
        """What is over umem's memory is recognised."""
        live, n = one_of(data, self.views)
        if name == "from_dlpack" and not (isinstance(live, np.ndarray) and live.flags.writeable):
            return
        result = attempt(lambda: getattr(self.umem, name)(live))
        if result[0] == "raises":
            assert isinstance(result[1], BufferError), result[1]
            assert name == "from_dlpack"
            return
        # A view keeps the flag that it was made with.
        if n.size and result[1].flags.writeable == n.flags.writeable:
            self.keep(result[1], n[...])

    @precondition(lambda self: self.fake is not None and self.pairs)
    @rule(data=st.data(), how=st.sampled_from(["interface", "dlpack"]))
    def through_a_gpu_library(self, data, how):
        pair = self.pick(data, lambda p: p.n.size and p.n.flags.writeable and is_forward(p.n))
        if pair is None:
            return
        if how == "interface":
            interface = pair.a.__cuda_array_interface__
            holder = types.SimpleNamespace(__cuda_array_interface__=interface, owner=pair.a)
            a = self.umem.asarray(holder)
        elif number(pair.n.dtype) and pair.n.dtype.isnative and is_forward(pair.n):
            holder = types.SimpleNamespace(
                __dlpack__=pair.a.__dlpack__, __dlpack_device__=pair.a.__dlpack_device__
            )
            a = attempt(lambda: self.umem.from_dlpack(holder))
            if a[0] == "raises":  # strides between elements
                assert isinstance(a[1], BufferError)
                return
            a = a[1]
        else:
            return
        if a.dtype == pair.n.dtype:
            self.keep(a, pair.n[...])

    # --- placement

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), where=PLACES)
    def prefetch(self, data, where):
        if self.fake is None:
            where = "cpu"
        pair, other = self.pick(data), self.pick(data)
        if data.draw(st.booleans()):
            pair.a.prefetch(where)
        else:
            self.umem.prefetch([pair.a, other.a], where)

    @precondition(lambda self: self.pairs)
    @rule(
        data=st.data(),
        advice=st.sampled_from(
            ["read_mostly", "unset_read_mostly", "home", "no home", "residency"]
        ),
        where=PLACES,
    )
    def place(self, data, advice, where):
        pair = self.pick(data)
        if self.fake is None:
            where = "cpu"
        try:
            if advice in ("home", "no home"):
                pair.a.home = where if advice == "home" else None
            elif advice == "residency":
                assert pair.a.residency().nbytes >= 0
            else:
                pair.a.advise(advice)
        except ValueError as error:
            if not any(reason in str(error) for reason in ("64 KiB", "owns", "share")):
                raise

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def discard_and_rewrite(self, data):
        pair = self.pick(data, lambda p: p.n.flags.writeable)
        if pair is None:
            return
        new = values(pair.n.dtype, pair.n.shape, data.draw(st.integers(0, 9)))
        try:
            pair.a.discard()
        except ValueError:
            if pair.n.flags.forc:
                raise
            return
        pair.a[...] = new
        pair.n[...] = new

    # --- waiting and letting go

    @rule()
    def synchronize(self):
        self.umem.synchronize()
        self.late = False

    @precondition(lambda self: self.fake is not None)
    @rule()
    def gpu_makes_progress(self):
        self.fake.step()

    @rule()
    def trim(self):
        self.umem.trim()

    @rule()
    def collect_garbage(self):
        gc.collect()

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def let_go_of_an_array(self, data):
        self.pairs.remove(one_of(data, self.pairs))

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def let_go_of_a_view(self, data):
        self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))

    # --- looking

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), how=st.sampled_from(["read", "asarray", "tolist", "tobytes", "print"]))
    def look(self, data, how):
        pair = self.pick(data)
        if how == "asarray":
            assert_same(np.asarray(pair.a), pair.n)
        elif how == "print":
            assert str(pair.a) == str(pair.n)
        elif how == "tobytes":
            if pair.n.dtype.kind not in "fc":  # NaN
                assert pair.a.tobytes() == pair.n.tobytes()
        elif how == "tolist":
            assert repr(pair.a.tolist()).replace("-nan", "nan") == repr(pair.n.tolist()).replace(
                "-nan", "nan"
            )
        else:
            assert_same(pair.a.read(), pair.n)
            self.read_moves_nothing(pair.a)

    def read_moves_nothing(self, a):
        if self.fake is None or a.size == 0:
            return
        start, size = self.umem._core.extent(a)
        before = self.fake.page_locations(start, size)
        a.read()
        assert self.fake.page_locations(start, size) == before

    @invariant()
    def layouts_are_numpys(self):
        for pair in self.pairs:
            a, n = pair.a, pair.n
            assert (a.shape, a.dtype, a.ndim, a.size, a.nbytes) == (
                n.shape,
                n.dtype,
                n.ndim,
                n.size,
                n.nbytes,
            )
            assert walked_strides(a) == walked_strides(n)
            for flag in ("C", "F", "W", "A"):
                assert a.flags[flag] == n.flags[flag], flag

    @invariant()
    def views_are_current(self):
        if not self.late:
            for live, n in self.views:
                assert_same(np.asarray(live), n)

    @invariant()
    def pairs_are_equal(self):
        if getattr(self, "eager", False):
            self.check_pairs()

    def check_pairs(self):
        for pair in self.pairs:
            assert_same(pair.a.read(), pair.n)

    @invariant()
    def memory_is_accounted_for(self):
        held = sum(nbytes for _, nbytes in self.live_extents())
        assert allocated(self.umem) >= self.start[0] + held

    def live_extents(self):
        """(start, bytes) of disjoint pieces that the pairs take."""
        pieces = sorted(self.umem._core.extent(pair.a) for pair in self.pairs if pair.n.size)
        end = 0
        for start, size in pieces:
            if start + size > end:
                yield max(start, end), start + size - max(start, end)
                end = start + size

    def teardown(self):
        failing = sys.exc_info()[0] is not None  # the traceback keeps arrays
        if not failing:
            self.check_pairs()
            self.umem.synchronize()
            self.late = False
            self.views_are_current()
        self.pairs.clear()
        self.views.clear()
        gc.collect()
        self.umem.synchronize()
        self.umem.trim()
        if self.fake is not None:
            for stream in self.streams[:2]:
                self.fake.stream_destroy(stream)
        if not failing:
            now = self.account()
            assert now == self.start, f"{self.start} before, {now} after"
            if self.fake is not None:
                self.fake.check()


def one_of(data, things):
    """Drawn by number, because hypothesis keeps what its strategies are made of."""
    return things[data.draw(st.integers(0, len(things) - 1))]


def broadcasts(shape, to) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def common_shape(*operands):
    try:
        return np.broadcast_shapes(*map(np.shape, operands))
    except ValueError:
        return None


def offset(n) -> int:
    """Bytes from the lowest element to the first."""
    return sum(
        -step * (length - 1) for step, length in zip(n.strides, n.shape, strict=True) if step < 0
    )


def laid_out_as(a, n):
    """A copy of n whose axes are in the order in memory that they have in a."""
    axes = sorted(range(n.ndim), key=lambda axis: -a.strides[axis])
    return np.array(n.transpose(axes), order="C").transpose(np.argsort(axes))


def is_forward(n) -> bool:
    return all(step >= 0 for step, length in zip(n.strides, n.shape, strict=True) if length > 1)


def is_inexact(function, *operands) -> bool:
    """Whether NumPy's own result depends on the layout (complex products), or is undefined (shifts)."""
    complex_ = any(np.asarray(x).dtype.kind == "c" for x in operands)
    if function is np.left_shift:
        return True
    return complex_ and function not in (np.add, np.subtract, operator.iadd, operator.isub)


def assert_near(got, want, summed) -> None:
    """Sums and means of floats, where the order of the additions is free; any other reduction is near too."""
    with np.errstate(all="ignore"):
        got, want = np.asarray(got, "f8"), np.asarray(want, "f8")
        size = np.abs(np.asarray(summed, "f8"))
        if not np.isfinite(size).all():
            np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
        # Whether a sum near the largest number overflows depends on the order.
        room = size[np.isfinite(size)].sum()
        if summed.dtype.kind == "f" and room >= np.finfo(summed.dtype).max / 4:
            return
        epsilon = np.finfo(summed.dtype).eps if summed.dtype.kind == "f" else 1e-15
        both = np.isfinite(got) & np.isfinite(want)
        assert (np.abs(got - want)[both] <= epsilon * max(summed.size, 1) * room).all()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
def test_random_operations(umem, backend, request):
    fake = request.getfixturevalue("fake") if backend == "fake" else None
    make_what_is_made_once(umem)
    gc.collect()
    gc.freeze()  # the machine collects often
    run_state_machine_as_test(
        lambda: Machine(umem, fake), settings=settings(stateful_step_count=30)
    )
