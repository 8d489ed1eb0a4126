"""DLPack 1.x as ctypes sees it, written from its specification and not from umem's header; and exporters that may lie."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)

CPU, CUDA, CUDA_HOST, ROCM_HOST, MANAGED = 1, 2, 3, 11, 13
INT, UINT, FLOAT, HANDLE, BFLOAT, COMPLEX, BOOL = range(7)
READ_ONLY, IS_COPIED = 1, 2


class Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Version(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32)]


Deleter = CFUNCTYPE(None, c_void_p)


class Managed(Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", Deleter)]


class ManagedVersioned(Structure):
    _fields_ = [
        ("version", Version),
        ("context", c_void_p),
        ("deleter", Deleter),
        ("flags", c_uint64),
        ("tensor", Tensor),
    ]


_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype = c_char_p
_api.PyCapsule_GetName.argtypes = [py_object]
_api.PyCapsule_GetPointer.restype = c_void_p
_api.PyCapsule_GetPointer.argtypes = [py_object, c_char_p]
_api.PyCapsule_SetName.restype = ctypes.c_int
_api.PyCapsule_SetName.argtypes = [py_object, c_char_p]
_api.PyCapsule_New.restype = py_object
_api.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]

# Names of capsules have to live as long as the capsules.
LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {LEGACY: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}


def capsule_name(capsule) -> bytes:
    return _api.PyCapsule_GetName(capsule)


class Seen:
    """What a capsule holds; valid while the capsule lives."""

    def __init__(self, capsule):
        self.capsule = capsule
        self.name = capsule_name(capsule)
        assert self.name in USED
        self.pointer = _api.PyCapsule_GetPointer(capsule, self.name)
        kind = ManagedVersioned if self.name == VERSIONED else Managed
        self.managed = kind.from_address(self.pointer)
        self.versioned = self.name == VERSIONED
        tensor = self.managed.tensor
        self.data = (tensor.data or 0) + tensor.byte_offset
        self.device = (tensor.device.type, tensor.device.id)
        self.dtype = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        self.ndim = tensor.ndim
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.strides = (
            tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
        )
        if self.versioned:
            self.version = (self.managed.version.major, self.managed.version.minor)
            self.flags = self.managed.flags

    def consume(self):
        """Takes the tensor as a consumer does; returns what runs the deleter."""
        _api.PyCapsule_SetName(self.capsule, USED[self.name])
        return lambda: self.managed.deleter(self.pointer)


class DLExporter:
    """Exports a tensor made by hand, which may be a lie, and counts the calls of its deleter.

    Keyword arguments are those of the struct; `owner` is kept alive until the deleter runs. `device_says` is the answer of
    __dlpack_device__. `takes` names the keywords that __dlpack__ accepts.
    """

    def __init__(
        self,
        data,
        shape,
        *,
        strides=None,
        dtype=(FLOAT, 32, 1),
        device=(CPU, 0),
        byte_offset=0,
        versioned=True,
        version=(1, 0),
        flags=0,
        ndim=None,
        null_shape=False,
        null_deleter=False,
        name=None,
        device_says=None,
        takes=("stream", "max_version", "dl_device", "copy"),
        owner=None,
    ):
        self.deleted = 0
        self.asked = []
        self.device_says = device if device_says is None else device_says
        self.takes = takes
        self._owner = owner
        self._shape = (c_int64 * max(len(shape), 1))(*shape)
        self._strides = (c_int64 * max(len(strides), 1))(*strides) if strides is not None else None
        self._deleter = Deleter(self._delete)
        self.name = name if name is not None else (VERSIONED if versioned else LEGACY)
        self._managed = (ManagedVersioned if versioned else Managed)()
        tensor = self._managed.tensor
        tensor.data = data
        tensor.device = Device(*device)
        tensor.ndim = len(shape) if ndim is None else ndim
        tensor.dtype = DataType(*dtype)
        if not null_shape:
            tensor.shape = ctypes.cast(self._shape, POINTER(c_int64))
        if self._strides is not None:
            tensor.strides = ctypes.cast(self._strides, POINTER(c_int64))
        tensor.byte_offset = byte_offset
        if not null_deleter:
            self._managed.deleter = self._deleter
        if versioned:
            self._managed.version = Version(*version)
            self._managed.flags = flags
        self.capsules = []
        # The callback must not be freed while an array could call it.
        ALIVE.append(self)

    def _delete(self, pointer):
        assert pointer == ctypes.addressof(self._managed)
        self.deleted += 1
        self._owner = None

    @property
    def ends(self) -> int:
        """How often the tensor was deleted, or will be by a capsule that nobody took it out of: one for each capsule is right.

        Capsules have no destructor here: it would run Python code while the consumer's exception is on its way.
        """
        return self.deleted + sum(capsule_name(capsule) == self.name for capsule in self.capsules)

    def __dlpack_device__(self):
        return self.device_says

    def __dlpack__(self, **kwargs):
        for key in kwargs:
            if key not in self.takes:
                raise TypeError(f"__dlpack__() got an unexpected keyword argument {key!r}")
        self.asked.append(kwargs)
        self.capsules.append(_api.PyCapsule_New(ctypes.addressof(self._managed), self.name, None))
        return self.capsules[-1]


ALIVE: list[DLExporter] = []
