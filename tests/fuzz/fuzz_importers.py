"""A fuzzer for all that takes other libraries' arrays: objects that lie, made from bytes, are given to umem.

    make fuzz FUZZ_SECONDS=600                         # coverage-guided, with atheris and sanitizers
    python tests/fuzz/fuzz_importers.py host CRASH     # one input again, without atheris

`Harness.run(data)` is one input, on whichever copy of umem it was made for. It raises when umem does something it
must not: an exception that is not documented, a block, a reference or an object of the driver left behind, a deleter
called twice or not at all. tests/test_fuzz.py runs it on random bytes.

What nobody can see through is left out: pointers into memory that may be read but is not the exporter's; addresses of
functions; a struct shorter than it says; and, where NumPy reads the memory before umem does (the buffer protocol,
__array_interface__), memory that is not there.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import mmap
import sys
import warnings
from ctypes import POINTER, PYFUNCTYPE, Structure, c_char_p, c_int, c_uint, c_void_p, py_object
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import buffer_abi
import dlpack_abi as dl
from support import make_what_is_made_once, managed_memory

PAGE = mmap.PAGESIZE
LIMIT = 1 << 18  # bytes; lies about sizes shall cost no time


class Raised(Exception):
    """What hooks of the objects raise; it may come through."""


#: what may be raised for a lie; RuntimeError would be a driver's error
DOCUMENTED = (TypeError, ValueError, BufferError, MemoryError, Raised)
#: NumPy's words about what it reads itself
NUMPYS = (*DOCUMENTED, OverflowError, AttributeError, IndexError, KeyError, RuntimeError)


class Choices:
    """Decisions taken from bytes; when they run out, the first of all possibilities."""

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def one_in(self, n: int) -> bool:
        return self.byte() % n == n - 1

    def below(self, n: int) -> int:
        return self.byte() % n

    def of(self, things):
        return things[self.byte() % len(things)]

    def integer(self) -> int:
        """Small ones, ones at the edge of a type, and any."""
        kind = self.below(4)
        if kind <= 1:
            return self.below(8) if kind == 0 else self.byte() - 128
        if kind == 2:
            edge = 1 << self.of((8, 12, 16, 30, 31, 32, 47, 61, 62, 63, 64, 70))
            return self.of((edge, edge - 1, -edge, edge + 4))
        return int.from_bytes(bytes(self.byte() for _ in range(8)), "little", signed=True)

    def length(self) -> int:
        return self.integer() if self.one_in(6) else self.below(7)

    def fits(self, bits: int) -> int:
        """An integer for a signed field of so many bits."""
        value = self.integer() & ((1 << bits) - 1)
        return value - (1 << bits) if value >> (bits - 1) else value


class Harness:
    def __init__(self, umem, fake=None):
        self.umem = umem
        self.fake = fake  # control of the fake driver, if it is behind umem
        # Two pages that can be read between pages that cannot.
        self.map = mmap.mmap(-1, 6 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc = ctypes.CDLL(None)
        for first, count in ((0, 2), (4, 2)):
            libc.mprotect(c_void_p(start + first * PAGE), ctypes.c_size_t(count * PAGE), 0)
        self.host = start + 2 * PAGE
        self.array = umem.arange(2 * PAGE // 4, dtype="f4")
        #: address: (bytes, whether NumPy may be shown anything there, because umem looks first)
        self.memory = {self.host: (2 * PAGE, False)}
        self.streams = [1, 2]
        if fake is not None:
            # On the host nobody can tell that what follows the array is not its own.
            self.memory[self.array.__array_interface__["data"][0]] = (2 * PAGE, True)
            self.managed = managed_memory(fake, 2 * PAGE)
            self.memory[self.managed.__enter__()] = (2 * PAGE, True)
            self.device = fake.device_alloc(2 * PAGE)
            self.memory[self.device] = (2 * PAGE, True)
            self.streams.append(fake.stream_create())
        self.depth = 0
        self.count = 0
        make_what_is_made_once(umem)
        gc.collect()
        gc.freeze()
        umem.synchronize()
        umem.trim()
        umem.set_limit(LIMIT)
        self.start = self.account()

    def close(self):
        self.umem.set_limit(None)
        self.array = None
        if self.fake is not None:
            gc.collect()
            self.umem.synchronize()
            self.fake.stream_destroy(self.streams[2])
            self.fake.device_free(self.device)
            self.managed.__exit__(None, None, None)

    def account(self):
        stats = self.umem.memory_stats()
        ledger = None if self.fake is None else self.fake.ledger()
        return stats["active.all.current"], stats["allocated_bytes.all.current"], ledger

    # --- one input

    def run(self, data: bytes) -> None:
        choices = Choices(data)
        exporters: list[dl.DLExporter] = []
        self.exporters = exporters
        kind = choices.of(
            (
                self.make_cai,
                self.make_dlpack,
                self.make_buffer,
                self.make_interface,
                self.make_mixed,
            )
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            thing = kind(choices)
            if thing is not None:
                for _ in range(1 + choices.below(3)):
                    self.take(choices, thing, DOCUMENTED if kind == self.make_dlpack else NUMPYS)
        del thing
        self.settle(exporters)

    def settle(self, exporters) -> None:
        """Nothing is left behind."""
        gc.collect()
        self.umem.synchronize()
        self.umem.trim()
        for exporter in exporters:
            if exporter.has_deleter:
                assert exporter.ends == len(exporter.capsules), (exporter.ends, exporter.capsules)
        exporters.clear()
        dl.ALIVE.clear()
        self.count += 1
        now = self.account()
        assert now == self.start, f"{self.start} before, {now} after"
        if self.count % 64 == 0:
            a = self.umem.ones(3, dtype="f4")
            assert (a + a).sum() == 6

    def take(self, choices, thing, allowed) -> None:
        """Gives it to an importer, and uses what comes of it."""
        umem = self.umem
        importer = choices.below(6)
        dtype = choices.of((None, None, "f8", "u1", "c16"))
        try:
            if importer <= 1:
                result = umem.asarray(thing)
            elif importer == 2:
                result = umem.array(
                    thing, dtype, copy=choices.of((True, None, False)), order=choices.of("KCFA")
                )
            elif importer == 3:
                result = umem.asarray(thing, dtype, copy=choices.of((None, True, False)))
            elif importer == 4 and hasattr(type(thing), "__dlpack__"):
                result = umem.from_dlpack(
                    thing,
                    device=choices.of((None, "cpu", "cuda", "cuda:0", "numa:0", -1, 1.5)),
                    copy=choices.of((None, True, False)),
                )
            elif (
                importer == 5
                and not hasattr(thing, "__array_interface__")
                and not isinstance(thing, BufferLiar)
            ):
                result = umem.add(thing, thing)  # as an operand
            else:
                result = umem.from_dlpack(thing)
        except umem.CudaError:
            raise
        except allowed:
            return
        if type(result) is umem.ndarray:
            self.use(choices, result)

    def use(self, choices, a) -> None:
        assert a.ndim == len(a.shape) == len(a.strides) <= 64
        if a.nbytes > 1 << 16:
            return
        assert a.read().shape == a.shape
        repr(a)
        if choices.one_in(2) and a.flags.writeable and a.dtype.kind in "biuf":
            # The kernels and NumPy are both able to write it.
            a += a.dtype.type(1)
            a[...] = a[::-1].copy() if a.ndim else 0
        view = a.T
        del a
        view.tobytes()

    # --- pieces of objects

    def pointer(self, choices) -> int:
        if choices.one_in(8):
            return choices.of(
                (0, 8, 0x10000, 1 << 62, (1 << 63) - 8, (1 << 64) - PAGE, self.host - 8)
            )
        base = choices.of(list(self.memory))
        offset = choices.of((0, 0, 0, 4, 1, 64, PAGE, 2 * PAGE - 4, 2 * PAGE, -4))
        return base + offset

    def shape(self, choices) -> list[int]:
        ndim = choices.of((1, 1, 2, 0, 3, 4, 64, 65)) if choices.one_in(2) else 1
        return [choices.length() if i < 4 else 1 for i in range(ndim)]

    def strides(self, choices, shape, itemsize) -> list[int] | None:
        how = choices.below(4)
        if how == 0:
            return None
        if how == 1:
            return [choices.integer() for _ in shape]
        if how == 2:
            return [choices.of((itemsize, -itemsize, 0, 1, 2 * itemsize, 64)) for _ in shape]
        strides, step = [], itemsize
        for length in reversed(shape):
            strides.insert(0, step)
            step *= max(length, 1)
        return strides

    def junk(self, choices):
        return choices.of((
            None, -1, 1 << 70, 1.5, "x", "<f4", [], (), {}, (1,), [2, 3], object(), float("nan"), True, np.int32(4),
            np.float32(1), (0, False), Index(self, choices.below(4)), [Index(self, 2)], (Index(self, 1), False), "",
            "\0", "<f" + "9" * 30, "\ud800", ("x", 0), range(3), (1 << 64, True), self.array,
        ))  # fmt: skip

    def typestr(self, choices) -> str:
        return choices.of((
            "<f4", "<f8", "|u1", "<i4", "<i8", "<c16", "|b1", ">i4", "|S3", "<U2", "|V8", "<M8[s]", "<f2", "|V0", "|S0",
            "|O", "O8", "f4,i8", "(2,3)f4", "T", "<m8", "|i1", "?", "nonsense", "<f3", "V99999999999", "<f4\0",
        ))  # fmt: skip

    def interface(self, choices, host: bool) -> dict[str, object]:
        """An interface dictionary with some of it wrong."""
        shape = self.shape(choices)
        typestr = self.typestr(choices) if choices.one_in(2) else "<f4"
        entry = {
            "data": (self.pointer(choices), choices.one_in(3)),
            "shape": tuple(shape),
            "typestr": typestr,
            "version": 3,
        }
        strides = self.strides(choices, shape, 4)
        if strides is not None:
            entry["strides"] = tuple(strides)
        if choices.one_in(3):
            entry["stream"] = choices.of((*self.streams, None, 0, -1, "x"))
        if choices.one_in(4):
            entry["descr"] = choices.of((
                [("", "<f4")], [("a", "<f4"), ("b", "|V4")], [("a", "|O")], [("a", "<i4", (1 << 20, 1 << 20))], [()],
                [("a", [("b", "<f8")])], [("a",)], [("a", "<i4"), ("a", "<i4")], [(("t", "n"), "<f8")],
            ))  # fmt: skip
        for _ in range(choices.below(3)):
            key = choices.of(
                (
                    "data",
                    "shape",
                    "typestr",
                    "version",
                    "strides",
                    "stream",
                    "mask",
                    "descr",
                    "offset",
                )
            )
            how = choices.below(3)
            if how == 0:
                entry.pop(key, None)
            elif how == 1:
                # A stream's handle is an address that nobody can check.
                value = self.junk(choices)
                if (
                    key != "stream"
                    or not isinstance(value, (int, np.integer, Index))
                    or value in (-1, 0)
                ):
                    entry[key] = value
            elif key == "data":
                entry[key] = (choices.integer(), False)
            elif key in ("shape", "strides"):
                entry[key] = [choices.integer() for _ in range(choices.below(4))]
            elif key == "version":
                entry[key] = choices.integer()
        if choices.one_in(8):
            return self.junk(choices)
        return entry

    def numpy_may_look(self, data, shape, strides, itemsize) -> bool:
        """Whether the elements are in memory that is there, or start in memory that umem checks before anybody reads."""
        low, high = data, data + itemsize
        if 0 in shape or itemsize == 0:
            return True
        for length, step in zip(shape, strides, strict=True):
            low += min((length - 1) * step, 0)
            high += max((length - 1) * step, 0)
        for start, (size, checked) in self.memory.items():
            if start <= low and high <= start + size and start != getattr(self, "device", None):
                return True
            if checked and start <= data < start + size:
                return start != getattr(self, "device", None)
        return False

    # --- objects

    def make_cai(self, choices):
        return Attributes(
            self, choices, {"__cuda_array_interface__": self.interface(choices, False)}
        )

    def make_interface(self, choices):
        entry = self.interface(choices, True)
        if not self.is_safe_for_numpy(entry):
            return None
        return Attributes(self, choices, {"__array_interface__": entry})

    def is_safe_for_numpy(self, entry) -> bool:
        if not isinstance(entry, dict):
            return not isinstance(entry, Index)
        if any(contains_hook(value) or value is self.array for value in entry.values()):
            return False
        data, shape = entry.get("data"), entry.get("shape")
        if not isinstance(data, tuple) or len(data) != 2 or not isinstance(data[0], int):
            return data is not None and not isinstance(
                data, (str, np.generic)
            )  # None: NumPy asks for a buffer
        try:
            dtype = np.dtype(entry.get("typestr"))
            if dtype.hasobject or np.dtype(entry.get("descr", "f4")).hasobject:
                return False
            strides = entry.get("strides")
            if strides is None:
                strides = self.strides(Choices(b"\3"), shape, dtype.itemsize)
            return self.numpy_may_look(
                data[0] + (entry.get("offset") or 0), shape, strides, dtype.itemsize
            )
        except (TypeError, ValueError, SyntaxError, OverflowError, MemoryError):
            return False

    def make_buffer(self, choices):
        shape = self.shape(choices)
        code = choices.of(
            (b"f", b"d", b"B", b"i", b"q", b"Zd", b"?", b"<i", b">d", b"T{f:a:i:b:}", b"3s", b"2w")
        )
        code = choices.of((code, code, code, b"", b"x", b"(2,3)f", b"T{", b"(f", b"99999999999d", b"&f", b"e", b"g", b"^", b"}", b"T{(2)f:a:}"))  # fmt: skip
        itemsize = choices.of((4, 4, 8, 1, 2, 16, 3, 24))
        data = self.pointer(choices)
        strides = self.strides(choices, shape, itemsize) or self.strides(
            Choices(b"\3"), shape, itemsize
        )
        if (
            len(shape) > 64
            or any(abs(n) >> 62 for n in (*shape, *strides))
            or min(shape, default=0) < 0
        ):
            return None  # what memoryview believes
        # NumPy takes the item size from the format.
        if not all(self.numpy_may_look(data, shape, strides, size) for size in (itemsize, 24)):
            return None
        return BufferLiar(
            data, shape, strides, itemsize, code, choices.one_in(3), choices.one_in(8)
        )

    def make_dlpack(self, choices):
        shape = self.shape(choices)
        strides = self.strides(choices, shape, 1)
        wrap = (1 << 63) - 1
        keywords = {
            "data": self.pointer(choices) or None,
            "shape": [min(max(n, -wrap - 1), wrap) for n in shape] + [1] * 64,
            "strides": None if strides is None else [min(max(n, -wrap - 1), wrap) for n in strides] + [1] * 64,
            "ndim": len(shape),
            "device": (choices.of((dl.CPU, dl.CUDA, dl.MANAGED, dl.CUDA_HOST, dl.ROCM_HOST)), 0),
            "versioned": choices.one_in(2),
        }  # fmt: skip
        if choices.one_in(3):
            keywords["dtype"] = (
                choices.below(20),
                choices.of((32, 8, 16, 64, 128, 1, 4, 0, 255)),
                choices.of((1, 1, 1, 0, 4)),
            )
        if choices.one_in(4):
            keywords["device"] = (choices.fits(32), choices.fits(32))
        if choices.one_in(4):
            keywords["device_says"] = choices.of((
                (1, 0), (2, 0), (13, 0), (1, 99), (2, -1), (1 << 40, 0), (1,), None, [1, 0], ("x", 0), (1, 0, 0),
                (Index(self, 1), 0), (Index(self, 2), 0),
            ))  # fmt: skip
        if choices.one_in(4):
            keywords["byte_offset"] = choices.integer() & ((1 << 64) - 1)
        if choices.one_in(4):
            keywords["ndim"] = choices.of((-1, 65, 1 << 30, 2**31 - 1, -(2**31), 3, 64))
        if choices.one_in(6):
            keywords["flags"] = choices.integer() & ((1 << 64) - 1)
        if choices.one_in(6) and keywords["versioned"]:
            keywords["version"] = (choices.of((1, 0, 2, 2**32 - 1)), choices.byte())
        keywords["null_shape"] = choices.one_in(12)
        keywords["null_deleter"] = choices.one_in(12)
        if choices.one_in(12):
            keywords["name"] = choices.of(
                (b"", b"dltensor_", b"used_dltensor", b"used_dltensor_versioned", b"x")
            )
        if choices.one_in(6):
            keywords["takes"] = choices.of(((), ("stream",), ("max_version",)))
        return Tensor(self, choices.below(16), keywords)

    def make_mixed(self, choices):
        """An object with several protocols that do not agree, or with none."""
        protocols = {}
        if choices.one_in(2):
            protocols["__cuda_array_interface__"] = self.interface(choices, False)
        if choices.one_in(2):
            entry = self.interface(choices, True)
            if self.is_safe_for_numpy(entry):
                protocols["__array_interface__"] = entry
        if choices.one_in(2):
            tensor = self.make_dlpack(choices)
            protocols["__dlpack__"] = tensor.__dlpack__
            protocols["__dlpack_device__"] = tensor.__dlpack_device__
        if choices.one_in(4):
            protocols["__array_struct__"] = choices.of((None, 3, "x", self.array.__array_struct__))
        if choices.one_in(4):
            answer = choices.of((self.array, np.arange(3), None, 3))
            protocols["__array__"] = lambda dtype=None, copy=None: answer
        if choices.one_in(4):
            return choices.of((self.junk(choices), [self.junk(choices)]))
        return Attributes(self, choices, protocols)

    def enter(self, how: int):
        """What code of an object may do while umem asks it."""
        if how == 0 or self.depth > 0:
            return 1
        if how == 1:
            raise Raised
        self.depth += 1
        try:
            if how == 2:
                self.umem.asarray(np.arange(3)) + self.array[:3]
                gc.collect()
            else:
                self.umem.from_dlpack(Tensor(self, 0, {"data": self.host, "shape": [3]}))
                self.umem.synchronize()
        finally:
            self.depth -= 1
        return 2


class Index:
    """A number that runs code."""

    def __init__(self, harness, how):
        self.harness = harness
        self.how = how

    def __index__(self):
        return self.harness.enter(self.how)


def contains_hook(value) -> bool:
    return isinstance(value, Index) or (
        isinstance(value, (tuple, list)) and any(isinstance(entry, Index) for entry in value)
    )


class Attributes:
    """An object with these attributes, which may run code or be gone when they are asked for again."""

    def __init__(self, harness, choices, attributes):
        self._harness = harness
        self._how = choices.of((0, 0, 0, 0, 1, 2, 3))
        self._asked = 0
        self._attributes = attributes
        self._fickle = choices.one_in(8)

    def __getattr__(self, name):
        if name.startswith("_") and name in object.__getattribute__(self, "_attributes"):
            self._asked += 1
            if self._asked == 1:
                self._harness.enter(self._how)
            if not (self._fickle and self._asked > 1):
                return self._attributes[name]
        raise AttributeError(name)


class Tensor(dl.DLExporter):
    """An exporter whose methods may do anything."""

    def __init__(self, harness, how, keywords):
        super().__init__(**keywords)
        self.has_deleter = not keywords.get("null_deleter") and self.name in dl.USED
        self.harness = harness
        self.how = how
        harness.exporters.append(self)

    def __dlpack_device__(self):
        if self.how in (1, 2, 3):
            self.harness.enter(self.how)
        return super().__dlpack_device__()

    def __dlpack__(self, **kwargs):
        if 4 <= self.how <= 6:
            self.harness.enter(self.how - 3)
        if self.how == 7:
            return self.harness.junk(Choices(bytes([len(self.asked)])))
        if self.how == 8:
            return self.harness.array.__dlpack__(max_version=(1, 0))
        if self.how == 9 and self.capsules:
            return self.capsules[0]  # which was taken already, or not
        if self.how == 10:
            self.harness.umem.from_dlpack(np.arange(3))
            raise BufferError("no way")
        return super().__dlpack__(**kwargs)


# --- objects with a buffer that Python cannot make before 3.12


class Slot(Structure):
    _fields_ = [("slot", c_int), ("function", c_void_p)]


class Spec(Structure):
    _fields_ = [("name", c_char_p), ("basicsize", c_int), ("itemsize", c_int), ("flags", c_uint), ("slots", POINTER(Slot))]  # fmt: skip


@PYFUNCTYPE(c_int, py_object, POINTER(buffer_abi.PyBuffer), c_int)
def get_buffer(obj, view, flags):
    return obj.liar.fill(obj, view.contents)


BF_GETBUFFER, FLAGS = 1, (1 << 9) | (1 << 10)  # Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_BASETYPE
_slots = (Slot * 2)(Slot(BF_GETBUFFER, ctypes.cast(get_buffer, c_void_p)), Slot(0, None))
_spec = Spec(b"fuzz.HasBuffer", 0, 0, FLAGS, _slots)
_from_spec = ctypes.pythonapi.PyType_FromSpec
_from_spec.restype = py_object
HasBuffer = _from_spec(ctypes.byref(_spec))


class BufferLiar(HasBuffer):
    def __init__(self, data, shape, strides, itemsize, code, readonly, wrong_len):
        self.liar = self
        self.fields = (data, itemsize, readonly, len(shape), code)
        self._shape = (ctypes.c_ssize_t * max(len(shape), 1))(*shape)
        self._strides = (ctypes.c_ssize_t * max(len(strides), 1))(*strides)
        count = itemsize
        for length in shape:
            count *= length
        self.len = (count + wrong_len) % (1 << 62)

    def fill(self, obj, view):
        view.buf, view.itemsize, view.readonly, view.ndim, view.format = self.fields
        view.len, view.suboffsets, view.internal = self.len, None, None
        view.shape = ctypes.cast(self._shape, POINTER(ctypes.c_ssize_t))
        view.strides = ctypes.cast(self._strides, POINTER(ctypes.c_ssize_t))
        view.obj = obj
        ctypes.pythonapi.Py_IncRef(py_object(obj))  # the view's, which its release gives back
        return 0


def start(backend: str) -> Harness:
    from conftest import activate, fake_library
    from fake_cuda.control import FakeCuda

    umem = activate(backend)
    return Harness(umem, FakeCuda(fake_library()) if backend == "fake" else None)


def load_atheris(coverage: str):
    """atheris, told of the C code's coverage through the library that is built from coverage.c."""
    import atheris

    library = ctypes.CDLL(coverage, ctypes.RTLD_GLOBAL)  # umem's extension will look for it
    fuzzer = ctypes.CDLL(importlib.util.find_spec("atheris.core_with_libfuzzer").origin)
    for bits in (1, 2, 4, 8):
        for name in (f"cmp{bits}", f"const_cmp{bits}"):
            target = ctypes.cast(getattr(fuzzer, f"__sanitizer_cov_trace_{name}"), c_void_p)
            c_void_p.in_dll(library, f"coverage_{name}").value = target.value
    library.coverage_announce(
        fuzzer.__sanitizer_cov_8bit_counters_init, fuzzer.__sanitizer_cov_pcs_init
    )
    return atheris


def main() -> None:
    backend, what = sys.argv[1:3]
    if not what.endswith(".so"):
        start(backend).run(Path(what).read_bytes())
        return
    atheris = load_atheris(what)
    with atheris.instrument_imports(include=["umem"]):
        harness = start(backend)
    atheris.Setup([sys.argv[0], *sys.argv[3:]], harness.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
