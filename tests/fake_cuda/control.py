"""Control of the fake CUDA driver from Python, in the copy of it that umem loads in this process.

    fake = FakeCuda(os.environ["UMEM_CUDA_LIBRARY"])
    fake.fail("cuMemAllocManaged", code=FakeCuda.OUT_OF_MEMORY)

Each method is the ``fakecu_`` function of its name; fake_cuda.h says what it does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_long, c_size_t, c_ulong, c_ulonglong, c_void_p

_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "shutdown": (None, []),
    "reset": (None, []),
    "reset_faults": (None, []),
    "set_version": (None, [c_int]),
    "set_devices": (None, [c_int]),
    "set_memory": (None, [c_size_t]),
    "set_missing": (None, [c_char_p]),
    "set_concurrent": (None, [c_int]),
    "set_managed": (None, [c_int]),
    "set_managed_limit": (None, [c_size_t]),
    "set_attribute": (None, [c_int, c_int, c_int]),
    "set_query_mode": (None, [c_int]),
    "hold": (None, [c_int]),
    "fail": (None, [c_char_p, c_ulong, c_int, c_int]),
    "fail_nth_call": (None, [c_ulong, c_int]),
    "last_failed": (c_char_p, []),
    "last_failed_at": (c_char_p, []),
    "set_sticky": (None, [c_int]),
    "calls": (c_ulong, [c_char_p]),
    "counter": (c_ulonglong, [c_char_p]),
    "live": (c_long, [c_char_p]),
    "live_bytes": (c_ulonglong, [c_char_p]),
    "leaked": (c_ulong, []),
    "check": (None, []),
    "page_location": (c_int, [c_void_p]),
    "page_preferred": (c_int, [c_void_p]),
    "page_accessed_by": (c_int, [c_void_p]),
    "page_read_mostly": (c_int, [c_void_p]),
    "page_discarded": (c_int, [c_void_p]),
    "resident": (c_ulonglong, [c_int]),
    "pending": (c_long, [c_size_t]),
    "step": (c_int, [c_size_t]),
    "run_all": (None, []),
    "stream_create": (c_size_t, [c_int, c_int]),
    "stream_destroy": (None, [c_size_t]),
    "submit_fill": (None, [c_void_p, c_int, c_size_t, c_size_t, c_int]),
    "context_depth": (c_int, []),
    "device_alloc": (c_void_p, [c_size_t, c_int]),
    "device_free": (None, [c_void_p]),
    "peek": (None, [c_void_p, c_void_p, c_size_t]),
    "poke": (None, [c_void_p, c_void_p, c_size_t]),
}

ALL_STREAMS = ctypes.c_size_t(-1).value

#: objects that the ledger counts
KINDS = ("managed", "device", "host", "stream", "event", "library", "context")


class FakeCuda:
    """The library at ``path``. Misuse aborts the process with a message."""

    # CUresult values
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    NO_DEVICE = 100
    INVALID_DEVICE = 101
    INVALID_CONTEXT = 201
    INVALID_HANDLE = 400
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    LAUNCH_FAILED = 719
    NOT_SUPPORTED = 801
    UNKNOWN = 999

    # what page_location and page_preferred answer beside device ordinals
    HOST = -1
    NOWHERE = -2
    NOT_MANAGED = -3

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._library = ctypes.CDLL(self.path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, f"fakecu_{name}")
            function.restype = result
            function.argtypes = arguments

    def _do(self, name: str, *arguments: object) -> None:
        getattr(self._library, f"fakecu_{name}")(*arguments)

    def _get(self, name: str, *arguments: object) -> int:
        return int(getattr(self._library, f"fakecu_{name}")(*arguments))

    # --- configuration

    def shutdown(self) -> None:
        """Back to the state after loading. Only when nothing in the process uses the driver."""
        self._do("shutdown")

    def reset(self) -> None:
        self._do("reset")

    def reset_faults(self) -> None:
        self._do("reset_faults")

    def set_version(self, version: int) -> None:
        self._do("set_version", version)

    def set_devices(self, count: int) -> None:
        self._do("set_devices", count)

    def set_memory(self, bytes_per_device: int) -> None:
        self._do("set_memory", bytes_per_device)

    def set_missing(self, *symbols: str) -> None:
        self._do("set_missing", ",".join(symbols).encode())

    def set_concurrent(self, yes: bool) -> None:
        self._do("set_concurrent", yes)

    def set_managed(self, yes: bool) -> None:
        self._do("set_managed", yes)

    def set_managed_limit(self, size: int) -> None:
        self._do("set_managed_limit", size)

    def set_attribute(self, device: int, attribute: int, value: int) -> None:
        self._do("set_attribute", device, attribute, value)

    def set_query_mode(self, mode: int) -> None:
        self._do("set_query_mode", mode)

    def hold(self, on: bool) -> None:
        self._do("hold", on)

    # --- faults

    def fail(self, symbol: str, nth: int = 1, code: int = UNKNOWN, forever: bool = False) -> None:
        self._do("fail", symbol.encode(), nth, code, forever)

    def fail_nth_call(self, n: int, code: int = UNKNOWN) -> None:
        self._do("fail_nth_call", n, code)

    def last_failed(self) -> str | None:
        name: bytes | None = self._library.fakecu_last_failed()
        return None if name is None else name.decode()

    def last_failed_at(self) -> str | None:
        place: bytes | None = self._library.fakecu_last_failed_at()
        return None if place is None else place.decode()

    def set_sticky(self, code: int) -> None:
        self._do("set_sticky", code)

    def fault_loop(self, code: int = UNKNOWN, limit: int = 10_000) -> Iterator[int]:
        """Yields 1, 2, ... with that driver call armed to fail, until a round in which none failed.

        for n in fake.fault_loop():
            scenario(may_fail=True)
        """
        for n in range(1, limit + 1):
            self.reset_faults()
            self.fail_nth_call(n, code)
            yield n
            failed = self.last_failed()
            self.reset_faults()
            if failed is None:
                return
        raise AssertionError(f"the scenario still fails at its driver call {limit}")

    # --- what happened

    def calls(self, name: str) -> int:
        return self._get("calls", name.encode())

    def counter(self, name: str) -> int:
        return self._get("counter", name.encode())

    def live(self, kind: str = "all") -> int:
        return self._get("live", kind.encode())

    def live_bytes(self, kind: str = "all") -> int:
        return self._get("live_bytes", kind.encode())

    def leaked(self) -> int:
        return self._get("leaked")

    def check(self) -> None:
        self._do("check")

    def ledger(self) -> dict[str, int]:
        """Live objects by kind."""
        return {kind: self.live(kind) for kind in KINDS}

    @contextmanager
    def no_leaks(self) -> Iterator[None]:
        """Asserts that the block leaves as many objects alive as it found."""
        before = self.ledger()
        yield
        after = self.ledger()
        assert after == before, f"live objects: {before} before, {after} after"

    # --- pages

    def page_location(self, address: int) -> int:
        return self._get("page_location", address)

    def page_preferred(self, address: int) -> int:
        return self._get("page_preferred", address)

    def page_accessed_by(self, address: int) -> int:
        return self._get("page_accessed_by", address)

    def page_read_mostly(self, address: int) -> bool:
        return self._get("page_read_mostly", address) == 1

    def page_discarded(self, address: int) -> bool:
        return self._get("page_discarded", address) == 1

    def page_locations(self, address: int, size: int, page: int = 4096) -> list[int]:
        """page_location of every page that [address, address + size) touches."""
        return [
            self.page_location(max(at, address))
            for at in range(address - address % page, address + size, page)
        ]

    def resident(self, device: int = 0) -> int:
        return self._get("resident", device)

    # --- queued work

    def pending(self, stream: int | None = None) -> int:
        """Items queued on a stream, on all of them when it is None."""
        return self._get("pending", ALL_STREAMS if stream is None else stream)

    def step(self, stream: int | None = None) -> bool:
        return bool(self._get("step", ALL_STREAMS if stream is None else stream))

    def run_all(self) -> None:
        self._do("run_all")

    # --- what another library of the process may do

    def stream_create(self, device: int = 0, blocking: bool = False) -> int:
        return self._get("stream_create", device, blocking)

    def stream_destroy(self, stream: int) -> None:
        self._do("stream_destroy", stream)

    def submit_fill(
        self, address: int, value: int, size: int, stream: int = 0, device: int = 0
    ) -> None:
        self._do("submit_fill", address, value, size, stream, device)

    def context_depth(self) -> int:
        return self._get("context_depth")

    def device_alloc(self, size: int, device: int = 0) -> int | None:
        address: int | None = self._library.fakecu_device_alloc(size, device)
        return address

    def device_free(self, address: int) -> None:
        self._do("device_free", address)

    def peek(self, address: int, size: int) -> bytes:
        """The bytes of driver memory as they are now, whatever is queued; moves no page."""
        buffer = ctypes.create_string_buffer(size)
        self._do("peek", buffer, address, size)
        return buffer.raw

    def poke(self, address: int, data: bytes) -> None:
        self._do("poke", address, data, len(data))
