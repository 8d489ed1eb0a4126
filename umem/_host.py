"""Memory as NumPy gets it for computing on the host, and NumPy's results as umem returns them."""

from __future__ import annotations

from typing import Any

import numpy as np

from umem import _core, _layout
from umem._core import ndarray

#: Bytes from which on GPU-resident memory is moved as a whole before the host works on it, because
#: a page fault each would take several times as long. Less is cheaper to copy than to move.
BULK = 1 << 20


def is_packed(array: ndarray) -> bool:
    """Whether the elements fill the memory they span, as far as the flags can tell."""
    flags = array.flags
    return bool(flags.c_contiguous or flags.f_contiguous)


def move_to_host(array: ndarray) -> None:
    """Start moving a large array to the host, unless it lives there or is a view with gaps."""
    if array.nbytes >= BULK and _core.has_kernels() and array.home != "cpu" and is_packed(array):
        array.prefetch("cpu")


def values(array: ndarray) -> np.ndarray[Any, Any]:
    """The elements for reading, in the same memory order: the memory itself or a copy."""
    if not _core.has_kernels():
        return array.numpy()
    if array.nbytes >= BULK and is_packed(array):
        move_to_host(array)
        return array.numpy()
    if array.flags.f_contiguous:
        return array.T.read().T
    return array.read()


def view(array: ndarray) -> np.ndarray[Any, Any]:
    """The memory itself, for reading and writing."""
    move_to_host(array)
    return array.numpy()


def managed(result: np.ndarray[Any, Any]) -> ndarray | np.ndarray[Any, Any]:
    """A copy of a NumPy result in managed memory.

    Subclasses of NumPy's array are returned as they are, since they mean something that a copy would
    lose, and so are arrays of Python objects, which managed memory cannot hold.
    """
    if type(result) is not np.ndarray or result.dtype.hasobject or result.dtype.char == "T":
        return result
    return _layout.copy_of(result)
