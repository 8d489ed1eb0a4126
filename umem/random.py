"""Random numbers from a counter-based generator: the same on the CPU and on every GPU.

    >>> rng = umem.random.default_rng(42)
    >>> noise = rng.standard_normal((1024, 1024), dtype="f4")

The functions are those of np.random.Generator, the numbers are not: they come from Philox4x32-10, so that an element
depends on the seed, on where in the stream the call is, and on its index in C order, and on nothing else. There is
no global generator.
"""

from __future__ import annotations

import math
import operator
import threading
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from umem import _core, _host
from umem._core import empty, ndarray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    Size = int | Sequence[int]
    Seed = int | Sequence[int] | np.random.SeedSequence | None

__all__ = ["Generator", "default_rng"]

_WORD = 1 << 64


def default_rng(seed: Seed | Generator = None) -> Generator:
    """A new generator; a Generator is returned as it is.

    seed    a whole number, not negative, or a sequence of them; a np.random.SeedSequence; None takes
            what the operating system offers, so that each generator is another
    """
    return seed if isinstance(seed, Generator) else Generator(seed)


def _seed_sequence(seed: Any) -> Any:
    if hasattr(seed, "generate_state"):
        return seed
    try:
        return np.random.SeedSequence(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(
            "seed must be a whole number that is not negative, a sequence of them, a SeedSequence or "
            f"None, not {seed!r}"
        ) from None


def _float_dtype(dtype: DTypeLike, function: str) -> np.dtype[Any]:
    found = np.dtype(dtype)
    if found.char not in "fd" or not found.isnative:
        raise TypeError(f"Unsupported dtype {found!r} for {function}: float32 and float64 are")
    return found


def _number(value: Any, name: str) -> float:
    if np.ndim(value) != 0:
        raise TypeError(f"{name} must be one number; scale and shift an array of numbers yourself")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {value!r}") from None


def _whole(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None


def _is_empty(size: Size | None) -> bool:
    return size is not None and 0 in (size if isinstance(size, (tuple, list)) else (size,))


def _check_out(out: Any, size: Size | None, dtype: np.dtype[Any], placed: bool) -> None:
    if not isinstance(out, ndarray):
        raise TypeError(f"out must be a umem.ndarray, not '{type(out).__name__}'")
    if out.dtype != dtype:
        raise TypeError(f"out must have the dtype {dtype}, not {out.dtype}")
    if size is not None and out.shape != empty(size, "V0").shape:
        raise ValueError(f"size must match the shape of out, {out.shape}, not {size!r}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if placed:
        raise ValueError("device and home are for a new array; out is where it is")


class Generator:
    """A stream of random numbers. Threads may share one: no two calls get the same numbers.

    A call takes the next whole counters of the stream, each worth four elements, or two of float64 and of
    integers from a range above 2**32. So a call for three float32 and one for three more are not a call for six.

    `size=None` gives one number, made on the CPU; else the result is a new umem.ndarray, for which `device` and
    `home` mean what they mean to umem.empty. `out` is an array to be filled instead, with any strides.
    """

    def __init__(self, seed: Seed = None) -> None:
        self._seed_seq = _seed_sequence(seed)
        self._key = int(self._seed_seq.generate_state(1, np.uint64)[0])
        self._counter = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "Generator(Philox4x32-10)"

    # --- the stream

    @property
    def seed_seq(self) -> Any:
        """The SeedSequence that the key was made of."""
        return self._seed_seq

    @property
    def state(self) -> dict[str, int]:
        """The key of the stream and the counter that comes next, both below 2**64; may be set."""
        with self._lock:
            return {"key": self._key, "counter": self._counter}

    @state.setter
    def state(self, value: dict[str, int]) -> None:
        if not isinstance(value, dict) or value.keys() != {"key", "counter"}:
            raise TypeError(f"state must be a dict with key and counter, not {value!r}")
        words = {name: _whole(word, f"state[{name!r}]") for name, word in value.items()}
        for name, word in words.items():
            if not 0 <= word < _WORD:
                raise ValueError(f"state[{name!r}] must be from 0 to 2**64 - 1, not {word}")
        with self._lock:
            self._key, self._counter = words["key"], words["counter"]

    def __reduce__(self) -> tuple[Any, ...]:
        return Generator, (self._seed_seq,), self.state

    def __setstate__(self, state: dict[str, int]) -> None:
        self.state = state

    def spawn(self, n_children: int) -> list[Generator]:
        """New generators with streams of their own, others at each call. See np.random.SeedSequence.spawn."""
        if not hasattr(self._seed_seq, "spawn"):
            raise TypeError("the SeedSequence of this generator does not implement spawn")
        count = _whole(n_children, "n_children")
        if count < 0:
            raise ValueError(f"n_children must not be negative, it is {count}")
        with self._lock:
            children = self._seed_seq.spawn(count)
        return [Generator(child) for child in children]

    # --- drawing

    def _fill(
        self, target: Any, kind: str, first: float, second: float, elements_a_step: int
    ) -> None:
        with self._lock:
            key, counter = self._key, self._counter
            self._counter = (counter - -target.size // elements_a_step) % _WORD
        _core.random_fill(target, kind, key, counter, first, second)

    def _draw(
        self,
        kind: str,
        size: Size | None,
        dtype: np.dtype[Any],
        out: Any,
        device: object,
        home: object,
        first: float,
        second: float,
    ) -> Any:
        wide = second >= 1 << 32 if kind == "integers" else dtype.char == "d"
        elements_a_step = 2 if wide else 4
        if out is not None:
            _check_out(out, size, dtype, device is not None or home is not None)
            if out.flags.carray:
                self._fill(out, kind, first, second, elements_a_step)
            else:  # through an array in C order
                between = empty(out.shape, dtype, device=out.device)
                self._fill(between, kind, first, second, elements_a_step)
                out[...] = between
            return out
        if size is None:
            one = np.empty((), dtype)
            self._fill(one, kind, first, second, elements_a_step)
            return one[()] if kind == "integers" else float(one)
        made = empty(size, dtype, device=device, home=home)
        if made.nbytes >= _host.BULK and home is None and _core.has_kernels():
            made.prefetch(made.device)  # makes pages faster than the kernel's faults
        self._fill(made, kind, first, second, elements_a_step)
        return made

    def random(
        self,
        size: Size | None = None,
        dtype: DTypeLike = np.float64,
        out: ndarray | None = None,
        *,
        device: object = None,
        home: object = None,
    ) -> Any:
        """Numbers in [0, 1): the multiples of 2**-53, for float32 of 2**-24."""
        found = _float_dtype(dtype, "random")
        return self._draw("random", size, found, out, device, home, 0.0, 1.0)

    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: Size | None = None,
        *,
        device: object = None,
        home: object = None,
    ) -> Any:
        """float64 numbers in [low, high): low + (high - low) * random(), which rounding may make high."""
        low, high = _number(low, "low"), _number(high, "high")
        width = high - low
        if not math.isfinite(width):
            raise OverflowError(f"high - low must be finite, it is {width}")
        if width < 0:
            raise ValueError(f"high must not be below low: {high} < {low}")
        dtype = np.dtype(np.float64)
        return self._draw("random", size, dtype, None, device, home, low, width)

    def standard_normal(
        self,
        size: Size | None = None,
        dtype: DTypeLike = np.float64,
        out: ndarray | None = None,
        *,
        device: object = None,
        home: object = None,
    ) -> Any:
        """Numbers from the normal distribution of mean 0 and standard deviation 1.

        By Box and Muller's transformation: none lies beyond 8.66 standard deviations, of float32 beyond 6.67, which
        has a probability of 5e-18 and 3e-11.
        """
        found = _float_dtype(dtype, "standard_normal")
        return self._draw("normal", size, found, out, device, home, 0.0, 1.0)

    def normal(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size | None = None,
        *,
        device: object = None,
        home: object = None,
    ) -> Any:
        """float64 numbers from the normal distribution of mean `loc` and standard deviation `scale`."""
        loc, scale = _number(loc, "loc"), _number(scale, "scale")
        if math.copysign(1.0, scale) < 0 and not math.isnan(scale):
            raise ValueError(f"scale must not be negative, it is {scale}")
        dtype = np.dtype(np.float64)
        return self._draw("normal", size, dtype, None, device, home, loc, scale)

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: Size | None = None,
        dtype: DTypeLike = np.int64,
        endpoint: bool = False,
        *,
        device: object = None,
        home: object = None,
    ) -> Any:
        """Whole numbers from low to high - 1 (to high with endpoint), or from 0 to low - 1, all equally likely.

        They do not depend on the dtype.
        """
        found = np.dtype(dtype)
        if found.kind not in "biu" or not found.isnative:
            raise TypeError(f"Unsupported dtype {found!r} for integers")
        least, most = (0, 1) if found.kind == "b" else (np.iinfo(found).min, np.iinfo(found).max)
        first = 0 if high is None else _whole(low, "low")
        last = _whole(low, "low") if high is None else _whole(high, "high")
        last -= 0 if endpoint else 1
        if first > last:
            if not _is_empty(size):
                raise ValueError("low > high" if endpoint else "low >= high")
            first = last = 0
        if first < least:
            raise ValueError(f"low is out of bounds for {found}")
        if last > most:
            raise ValueError(f"high is out of bounds for {found}")
        result = self._draw(
            "integers", size, found, None, device, home, first % _WORD, last - first
        )
        if size is None and (dtype is int or dtype is bool):
            return cast("Any", dtype)(result)
        return result
