"""Pickling: the elements, their dtype and memory order. What is loaded is an array of its own in managed memory."""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any, SupportsIndex, cast

import numpy as np

from umem import _core, _host, _layout
from umem._core import ndarray


def reduce_ex(self: ndarray, protocol: SupportsIndex, /) -> tuple[Any, ...]:
    """A view gives only its elements. From protocol 5 on the bytes of a contiguous array go out of band."""
    order = "F" if _layout.matches(self, "F") and not _layout.matches(self, "C") else "C"
    writeable = True  # what NumPy makes of an array in the older protocols
    data: Any = None
    if protocol.__index__() >= 5:
        writeable = self.flags.writeable
        flat = _layout.flat_bytes(self)
        if flat is not None:
            _host.move_to_host(self)
            data = PickleBuffer(cast("Any", flat))
    if data is None:
        data = tobytes(self, order)
    return _load, (data, self.dtype, self.shape, order, writeable)


def tobytes(self: ndarray, order: str | None = "C") -> bytes:
    """The bytes of the elements in C order ('F': Fortran's, 'A': Fortran's if that is how they are stored)."""
    order = _layout.check_order(order, "C")
    in_fortran_order = order == "F" or (order == "A" and _layout.matches(self, "F"))
    if in_fortran_order and self.flags.f_contiguous:
        return self.T.read().tobytes()
    return self.read().tobytes("F" if in_fortran_order else "C")


def _load(
    data: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: str, writeable: bool
) -> ndarray:
    """A new array with the given bytes."""
    result = _core.empty(shape, dtype, order)
    given = memoryview(data).nbytes
    if given != result.nbytes:
        raise ValueError(f"the pickled array has {result.nbytes} bytes, its buffer {given}")
    flat = _layout.flat_bytes(result)
    if flat is not None:
        flat[...] = np.frombuffer(data, np.uint8)
    if not writeable:
        result.flags.writeable = False
    return result
