"""Py_buffer and PyObject_GetBuffer through ctypes, to ask for exactly the flags that a test wants."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from ctypes import POINTER, Structure, c_char_p, c_int, c_ssize_t, c_void_p, py_object


class PyBuffer(Structure):
    _fields_ = [
        ("buf", c_void_p),
        ("obj", py_object),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


SIMPLE = 0
WRITABLE = 0x1
FORMAT = 0x4
ND = 0x8
STRIDES = 0x10 | ND
C_CONTIGUOUS = 0x20 | STRIDES
F_CONTIGUOUS = 0x40 | STRIDES
ANY_CONTIGUOUS = 0x80 | STRIDES
INDIRECT = 0x100 | STRIDES

#: every request that can be made, by its flags
REQUESTS = sorted(
    {
        shape | contiguous | write | form
        for shape in (SIMPLE, ND, STRIDES, INDIRECT)
        for contiguous in (
            0,
            C_CONTIGUOUS,
            F_CONTIGUOUS,
            ANY_CONTIGUOUS,
            C_CONTIGUOUS | F_CONTIGUOUS,
        )
        for write in (0, WRITABLE)
        for form in (0, FORMAT)
    }
)

_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [py_object, POINTER(PyBuffer), c_int]
_get.restype = c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [POINTER(PyBuffer)]
_release.restype = None


@contextmanager
def buffer(obj, flags):
    """The Py_buffer that `obj` gives for a request; its error is raised."""
    view = PyBuffer()
    _get(obj, ctypes.byref(view), flags)
    try:
        yield view
    finally:
        _release(ctypes.byref(view))


def get_without_view(obj, flags):
    """What a consumer must not do: a request with nothing to fill."""
    _get(obj, None, flags)


def fields(view) -> dict[str, object]:
    """All of a Py_buffer but the address and the owner."""

    def entries(pointer):
        return tuple(pointer[i] for i in range(view.ndim)) if pointer else None

    return {
        "len": view.len,
        "itemsize": view.itemsize,
        "readonly": view.readonly,
        "ndim": view.ndim,
        "format": view.format,
        "shape": entries(view.shape),
        "strides": entries(view.strides),
        "suboffsets": entries(view.suboffsets),
    }
